//! Builds of a queue, and deployments, which are other names for the same: listed, drained, resumed,
//! promoted, rolled back.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::web::Path;
use actix_web::{get, post};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::rollout::{Blockage, Build, Rollout};
use crate::engine::{BuildView, RolloutError, RolloutStep};
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::{Answer, Control, joined};
use super::call::{Call, Nothing, OperatorOrAdmin};

/// Longest build or queue.
const MAX_NAME: usize = 255;
/// Stands for workers without a build in the name of a deployment.
const UNVERSIONED: &str = "unversioned";

/// A build to decide about.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct BuildIdRequest {
    /// The build; null for workers without one. The key must be there.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, required = true)]
    build_id: Option<Option<String>>,
}

/// Tells a key that is null from one that is missing.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// The name of a deployment.
fn deployment(namespace: &Namespace, queue: &TaskQueue, build: &Build) -> String {
    let build = build.as_deref().unwrap_or(UNVERSIONED);
    format!("{namespace}/{queue}@{build}")
}

fn decided(namespace: &Namespace, queue: &TaskQueue, rollout: &Rollout) -> Value {
    json!({
        "namespace": namespace.as_str(),
        "task_queue": queue.as_str(),
        "build_id": rollout.build_id,
        "drain_intent": rollout.intent.as_str(),
        "drained_at": rollout.drained_at,
        "promoted_at": rollout.promoted_at,
        "rolled_back_at": rollout.rolled_back_at,
        "new_start_selected": rollout.selected,
        "deployment": deployment(namespace, queue, &rollout.build_id),
    })
}

/// A build with its workers.
fn row(view: &BuildView) -> Value {
    let (rollout, cohort) = (&view.rollout, &view.cohort);
    let counts = cohort.counts;
    json!({
        "build_id": rollout.build_id,
        "rollout_status": counts.standing().as_str(),
        "drain_intent": rollout.intent.as_str(),
        "drained_at": rollout.drained_at,
        "promoted_at": rollout.promoted_at,
        "rolled_back_at": rollout.rolled_back_at,
        "new_start_selected": rollout.selected,
        "active_worker_count": counts.active,
        "draining_worker_count": counts.draining,
        "stale_worker_count": counts.stale,
        "total_worker_count": counts.total(),
        "runtimes": cohort.runtimes,
        "sdk_versions": cohort.sdk_versions,
        "last_heartbeat_at": cohort.last_heartbeat_at,
        "first_seen_at": rollout.first_seen_at,
        "workflow_definition_fingerprint_count": cohort.fingerprint_count(),
        "workflow_definition_fingerprint_conflicts": cohort.conflicts(),
    })
}

/// Lists the builds of a queue.
#[utoipa::path(tag = "task-queues", operation_id = "listTaskQueueBuildIds",
    params(("taskQueue" = String, Path, description = "The queue.")),
    responses((status = 200, description = "Its builds, with their workers.")))]
#[get("/task-queues/{taskQueue}/build-ids")]
pub async fn list_build_ids(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    Control(list(call, path.into_inner()).await)
}

async fn list(call: Box<Call<OperatorOrAdmin, Nothing>>, queue: String) -> Result<Answer, Answer> {
    let queue = TaskQueue::from(queue);
    let views = call.api.engine.builds(&call.namespace, &queue).await?;
    let rows: Vec<Value> = views.iter().map(row).collect();
    Ok(Answer::ok(json!({
        "namespace": call.namespace.as_str(),
        "task_queue": queue.as_str(),
        "stale_after_seconds": call.api.settings.workers.stale_after_seconds,
        "build_ids": rows,
    })))
}

/// Lets the workers of a build finish what they hold and take nothing more.
#[utoipa::path(tag = "task-queues", operation_id = "drainTaskQueueBuildId", request_body = BuildIdRequest,
    params(("taskQueue" = String, Path, description = "The queue.")),
    responses((status = 200, description = "The build drains."), (status = 422, description = "Fields.")))]
#[post("/task-queues/{taskQueue}/build-ids/drain")]
pub async fn drain_build_id(
    call: Box<Call<OperatorOrAdmin, BuildIdRequest>>,
    path: Path<String>,
) -> Control {
    Control(decide(call, path.into_inner(), RolloutStep::Drain).await)
}

/// Lets the workers of a build take tasks again.
#[utoipa::path(tag = "task-queues", operation_id = "resumeTaskQueueBuildId", request_body = BuildIdRequest,
    params(("taskQueue" = String, Path, description = "The queue.")),
    responses((status = 200, description = "The build takes tasks."), (status = 422, description = "Fields.")))]
#[post("/task-queues/{taskQueue}/build-ids/resume")]
pub async fn resume_build_id(
    call: Box<Call<OperatorOrAdmin, BuildIdRequest>>,
    path: Path<String>,
) -> Control {
    Control(decide(call, path.into_inner(), RolloutStep::Resume).await)
}

/// Pins new starts that name no build to this one.
#[utoipa::path(tag = "task-queues", operation_id = "promoteTaskQueueBuildId", request_body = BuildIdRequest,
    params(("taskQueue" = String, Path, description = "The queue.")),
    responses((status = 200, description = "New starts are pinned to the build."),
        (status = 409, description = "Something stands against it."), (status = 422, description = "Fields.")))]
#[post("/task-queues/{taskQueue}/build-ids/promote")]
pub async fn promote_build_id(
    call: Box<Call<OperatorOrAdmin, BuildIdRequest>>,
    path: Path<String>,
) -> Control {
    Control(decide(call, path.into_inner(), RolloutStep::Promote).await)
}

async fn decide(
    call: Box<Call<OperatorOrAdmin, BuildIdRequest>>,
    queue: String,
    step: RolloutStep,
) -> Result<Answer, Answer> {
    let mut problems = Problems::default();
    problems.text("task_queue", &queue, MAX_NAME);
    let build: Build = match &call.body.build_id {
        None => {
            problems.add(
                "build_id",
                "must be there; null stands for workers without a build",
            );
            None
        }
        Some(build) => build.as_deref().map(Arc::from),
    };
    if let Some(build) = &build {
        problems.text("build_id", build, MAX_NAME);
    }
    problems.into_result()?;
    let queue = TaskQueue::from(queue);
    let namespace = call.namespace.clone();
    let done = call
        .api
        .engine
        .roll_out(namespace.clone(), queue.clone(), build.clone(), step)
        .await;
    match done {
        Ok(rollout) => Ok(Answer::ok(decided(&namespace, &queue, &rollout))),
        Err(error) => Err(refused(&namespace, &queue, &build, error)),
    }
}

/// A blockage as a reason, a sentence, and what more there is to say.
fn blockage(blockage: &Blockage) -> (Reason, &'static str, Value) {
    match blockage {
        Blockage::UnknownDeployment => (
            Reason::UnknownDeployment,
            "Nobody has heard of this build on this queue.",
            json!({}),
        ),
        Blockage::FleetIsDraining => (
            Reason::FleetIsDraining,
            "The build drains; resume it first.",
            json!({}),
        ),
        Blockage::NoCompatibleWorkers => (
            Reason::NoCompatibleWorkers,
            "No worker of this build is registered on this queue.",
            json!({}),
        ),
        Blockage::MissingWorkerHeartbeat => (
            Reason::MissingWorkerHeartbeat,
            "All workers of this build have been silent for too long.",
            json!({}),
        ),
        Blockage::FingerprintMismatch { workflow_types } => (
            Reason::FingerprintMismatch,
            "Workers of this build define a workflow type differently.",
            json!({ "workflow_types": workflow_types }),
        ),
        Blockage::ReplaySafetyFailed { runs } => (
            Reason::ReplaySafetyFailed,
            "The code of this build could not replay the history of open runs.",
            json!({ "blocked_run_count": runs }),
        ),
    }
}

fn refused(namespace: &Namespace, queue: &TaskQueue, build: &Build, error: RolloutError) -> Answer {
    let blockages = match error {
        RolloutError::Fault(fault) => return fault.into(),
        RolloutError::Blocked(blockages) => blockages,
    };
    let (reason, sentence) = blockages
        .first()
        .map_or((Reason::UnknownDeployment, ""), |first| {
            let (reason, sentence, _) = blockage(first);
            (reason, sentence)
        });
    let listed: Vec<Value> = blockages
        .iter()
        .map(|one| {
            let (reason, sentence, more) = blockage(one);
            joined(json!({"reason": reason, "message": sentence}), more)
        })
        .collect();
    Answer::refuse(StatusCode::CONFLICT, reason, sentence)
        .with("namespace", namespace.as_str())
        .with("task_queue", queue.as_str())
        .with("build_id", build.as_deref())
        .with("deployment", deployment(namespace, queue, build))
        .with("outcome", format!("rejected_{reason}"))
        .with("blockages", listed)
}

/// What the name of a deployment stands for: `namespace/queue@build`. The build has no `@`, the queue
/// may have some.
fn read_name(
    call: &Call<OperatorOrAdmin, Nothing>,
    name: &str,
) -> Result<(TaskQueue, Build), Answer> {
    let missing = || no_such_deployment(name);
    let (namespace, rest) = name.split_once('/').ok_or_else(missing)?;
    let (queue, build) = rest.rsplit_once('@').ok_or_else(missing)?;
    if queue.is_empty() || build.is_empty() {
        return Err(missing());
    }
    if namespace != call.namespace.as_str() {
        return Err(Answer::refuse(
            StatusCode::BAD_REQUEST,
            Reason::NamespaceMismatch,
            "The deployment is of another namespace than the request.",
        )
        .with("deployment", name)
        .with("namespace", call.namespace.as_str()));
    }
    let build = (build != UNVERSIONED).then(|| build.into());
    Ok((TaskQueue::from(queue), build))
}

fn no_such_deployment(name: &str) -> Answer {
    Answer::refuse(
        StatusCode::NOT_FOUND,
        Reason::DeploymentNotFound,
        "There is no such deployment.",
    )
    .with("deployment", name)
}

fn deployment_row(namespace: &Namespace, view: &BuildView) -> Value {
    let name = deployment(namespace, &view.queue, &view.rollout.build_id);
    joined(
        json!({
            "deployment": name,
            "name": name,
            "namespace": namespace.as_str(),
            "task_queue": view.queue.as_str(),
        }),
        row(view),
    )
}

/// Lists the deployments of a namespace.
#[utoipa::path(tag = "deployments", operation_id = "listDeployments",
    responses((status = 200, description = "Builds of all queues, with their workers.")))]
#[get("/deployments")]
pub async fn list_deployments(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Control {
    Control(match call.api.engine.all_builds(&call.namespace).await {
        Err(fault) => Err(fault.into()),
        Ok(views) => {
            let rows: Vec<Value> = views
                .iter()
                .map(|view| deployment_row(&call.namespace, view))
                .collect();
            Ok(Answer::ok(json!({
                "namespace": call.namespace.as_str(),
                "deployments": rows,
            })))
        }
    })
}

async fn find(call: &Call<OperatorOrAdmin, Nothing>, name: &str) -> Result<BuildView, Answer> {
    let (queue, build) = read_name(call, name)?;
    let views = call.api.engine.builds(&call.namespace, &queue).await?;
    views
        .into_iter()
        .find(|view| view.rollout.build_id == build)
        .ok_or_else(|| no_such_deployment(name))
}

/// Describes a deployment.
#[utoipa::path(tag = "deployments", operation_id = "describeDeployment",
    params(("deployment" = String, Path, description = "namespace/queue@build, percent-encoded.")),
    responses((status = 200, description = "The deployment."), (status = 400, description = "Of another namespace."),
        (status = 404, description = "There is no such deployment.")))]
#[get("/deployments/{deployment}")]
pub async fn describe_deployment(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    let name = path.into_inner();
    Control(
        find(&call, &name)
            .await
            .map(|view| Answer::ok(deployment_row(&call.namespace, &view))),
    )
}

async fn deploy(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    name: String,
    step: RolloutStep,
) -> Result<Answer, Answer> {
    let view = find(&call, &name).await?;
    let build = view.rollout.build_id;
    let namespace = call.namespace.clone();
    let done = call
        .api
        .engine
        .roll_out(namespace.clone(), view.queue.clone(), build.clone(), step)
        .await;
    match done {
        Ok(rollout) => Ok(Answer::ok(decided(&namespace, &view.queue, &rollout))),
        Err(error) => Err(refused(&namespace, &view.queue, &build, error)),
    }
}

/// Pins new starts that name no build to this deployment's.
#[utoipa::path(tag = "deployments", operation_id = "promoteDeployment",
    params(("deployment" = String, Path, description = "namespace/queue@build, percent-encoded.")),
    responses((status = 200, description = "New starts are pinned to it."), (status = 400, description = "Of another namespace."),
        (status = 404, description = "There is no such deployment."), (status = 409, description = "Something stands against it.")))]
#[post("/deployments/{deployment}/promote")]
pub async fn promote_deployment(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    Control(deploy(call, path.into_inner(), RolloutStep::Promote).await)
}

/// Lets the workers of a deployment finish what they hold and take nothing more.
#[utoipa::path(tag = "deployments", operation_id = "drainDeployment",
    params(("deployment" = String, Path, description = "namespace/queue@build, percent-encoded.")),
    responses((status = 200, description = "It drains."), (status = 400, description = "Of another namespace."),
        (status = 404, description = "There is no such deployment.")))]
#[post("/deployments/{deployment}/drain")]
pub async fn drain_deployment(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    Control(deploy(call, path.into_inner(), RolloutStep::Drain).await)
}

/// Lets the workers of a deployment take tasks again.
#[utoipa::path(tag = "deployments", operation_id = "resumeDeployment",
    params(("deployment" = String, Path, description = "namespace/queue@build, percent-encoded.")),
    responses((status = 200, description = "It takes tasks."), (status = 400, description = "Of another namespace."),
        (status = 404, description = "There is no such deployment.")))]
#[post("/deployments/{deployment}/resume")]
pub async fn resume_deployment(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    Control(deploy(call, path.into_inner(), RolloutStep::Resume).await)
}

/// Takes a promotion back: new starts go to the build that was promoted before it.
#[utoipa::path(tag = "deployments", operation_id = "rollbackDeployment",
    params(("deployment" = String, Path, description = "namespace/queue@build, percent-encoded.")),
    responses((status = 200, description = "It is rolled back."), (status = 400, description = "Of another namespace."),
        (status = 404, description = "There is no such deployment.")))]
#[post("/deployments/{deployment}/rollback")]
pub async fn rollback_deployment(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    Control(deploy(call, path.into_inner(), RolloutStep::RollBack).await)
}
