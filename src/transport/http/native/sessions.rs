//! Worker sessions on the worker plane: made, renewed and closed by their owners (worker plane,
//! section 9).

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::web::Path;
use actix_web::{delete, post};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::domain::ids::{TaskQueue, WorkerId};
use crate::domain::session::{Options, Refused, Session};
use crate::engine::{SessionError, SessionView};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::{Answer, Failure, Native};
use super::call::{Call, WorkerOnly};
use super::leases::MAX_ID;

/// Longest lease or life of a session, in seconds: a hundred years.
const MAX_SECONDS: i64 = 3_155_760_000;
/// Most activities of a session at once.
const MAX_ACTIVITIES: i64 = 1_000_000;
/// Most requirements of a session.
const MAX_REQUIREMENTS: usize = 100;
const DEFAULT_LEASE_SECONDS: i64 = 120;
const DEFAULT_TTL_SECONDS: i64 = 1_800;
const DEFAULT_ACTIVITIES: i64 = 1;

/// What a session is asked to be, in a request or a command.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkerSessionOptions {
    /// Its id, within the namespace.
    #[schema(required = true)]
    session_id: Option<String>,
    /// The author's name for what it is connected to.
    connection: Option<String>,
    /// Its queue; the worker's when none is named.
    queue: Option<String>,
    /// Capabilities that the owner must have.
    requirements: Option<Vec<String>>,
    /// Seconds from one sign of life to the end of the lease; 120 when it is left out.
    lease_seconds: Option<Int>,
    /// Seconds to its end, whatever is renewed; 1800 when it is left out.
    ttl_seconds: Option<Int>,
    /// Activities that run in it at once; 1 when it is left out.
    max_concurrent_activities: Option<Int>,
    /// Whether an admission may make it; yes when it is left out.
    create_if_missing: Option<bool>,
    /// Whether another worker may own it after a loss; yes when it is left out.
    allow_reacquire_after_failure: Option<bool>,
}

impl WorkerSessionOptions {
    /// The options, or what is wrong with them; `prefix` is the path to them.
    pub fn read(&self, problems: &mut Problems, prefix: &str) -> Option<Options> {
        let path = |field: &str| format!("{prefix}{field}");
        problems.required_text(path("session_id"), self.session_id.as_deref(), MAX_ID);
        for (field, value) in [("connection", &self.connection), ("queue", &self.queue)] {
            if let Some(value) = value {
                problems.text(path(field), value, MAX_ID);
            }
        }
        let requirements = self.requirements.clone().unwrap_or_default();
        if requirements.len() > MAX_REQUIREMENTS {
            problems.add(
                path("requirements"),
                format!("must have at most {MAX_REQUIREMENTS} items"),
            );
        }
        for (place, requirement) in requirements.iter().enumerate().take(MAX_REQUIREMENTS) {
            problems.text(path(&format!("requirements.{place}")), requirement, MAX_ID);
            if requirements[..place].contains(requirement) {
                problems.add(path(&format!("requirements.{place}")), "occurs twice");
            }
        }
        let mut number = |field: &str, value: Option<Int>, default: i64, most: i64| {
            let value = value.map_or(default, |value| value.0);
            problems.within(path(field), value, 1..=most);
            value.max(1).unsigned_abs()
        };
        let lease_seconds = number(
            "lease_seconds",
            self.lease_seconds,
            DEFAULT_LEASE_SECONDS,
            MAX_SECONDS,
        );
        let ttl_seconds = number(
            "ttl_seconds",
            self.ttl_seconds,
            DEFAULT_TTL_SECONDS,
            MAX_SECONDS,
        );
        let activities = number(
            "max_concurrent_activities",
            self.max_concurrent_activities,
            DEFAULT_ACTIVITIES,
            MAX_ACTIVITIES,
        );
        Some(Options {
            session_id: self.session_id.as_deref()?.into(),
            connection: self.connection.as_deref().map(Arc::from),
            queue: self.queue.as_deref().map(TaskQueue::from),
            requirements,
            lease_seconds,
            ttl_seconds,
            max_concurrent_activities: u32::try_from(activities).unwrap_or(u32::MAX),
            create_if_missing: self.create_if_missing.unwrap_or(true),
            allow_reacquire_after_failure: self.allow_reacquire_after_failure.unwrap_or(true),
        })
    }
}

/// Asks for a session.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(from = "CreateFields")]
pub struct WorkerSessionCreateRequest {
    /// The worker that is to own it.
    #[schema(required = true)]
    worker_id: Option<String>,
    /// What it is to be.
    #[serde(flatten)]
    options: WorkerSessionOptions,
}

/// The fields of the request one by one, so that a wrong type is found by its path, which flattening
/// hides.
#[derive(Deserialize)]
struct CreateFields {
    worker_id: Option<String>,
    session_id: Option<String>,
    connection: Option<String>,
    queue: Option<String>,
    requirements: Option<Vec<String>>,
    lease_seconds: Option<Int>,
    ttl_seconds: Option<Int>,
    max_concurrent_activities: Option<Int>,
    create_if_missing: Option<bool>,
    allow_reacquire_after_failure: Option<bool>,
}

impl From<CreateFields> for WorkerSessionCreateRequest {
    fn from(fields: CreateFields) -> Self {
        Self {
            worker_id: fields.worker_id,
            options: WorkerSessionOptions {
                session_id: fields.session_id,
                connection: fields.connection,
                queue: fields.queue,
                requirements: fields.requirements,
                lease_seconds: fields.lease_seconds,
                ttl_seconds: fields.ttl_seconds,
                max_concurrent_activities: fields.max_concurrent_activities,
                create_if_missing: fields.create_if_missing,
                allow_reacquire_after_failure: fields.allow_reacquire_after_failure,
            },
        }
    }
}

/// Renews a session.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkerSessionHeartbeatRequest {
    /// Its owner.
    #[schema(required = true)]
    worker_id: Option<String>,
    /// Seconds to the end of the lease from now on; as before when it is left out.
    lease_seconds: Option<Int>,
}

/// Closes a session.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkerSessionCloseRequest {
    /// Its owner; some proxies drop the body of a DELETE, so it may also be in the query.
    worker_id: Option<String>,
}

/// The worker that a DELETE without a body names.
#[derive(Debug, Default, Deserialize)]
pub struct OwnerQuery {
    worker_id: Option<String>,
}

/// Makes a session, or renews one that the worker owns.
#[utoipa::path(tag = "worker-sessions", operation_id = "createWorkerSession", request_body = WorkerSessionCreateRequest,
    responses((status = 200, description = "The worker owned it, or owns it again."), (status = 201, description = "It is new."),
        (status = 409, description = "The rules forbid it, or the version is too old."), (status = 412, description = "The worker is not registered."),
        (status = 422, description = "Fields.")))]
#[post("/sessions")]
pub async fn create_worker_session(
    call: Box<Call<WorkerOnly, WorkerSessionCreateRequest>>,
) -> Native {
    Native(create(call).await)
}

async fn create(
    call: Box<Call<WorkerOnly, WorkerSessionCreateRequest>>,
) -> Result<Answer, Failure> {
    gate(&call)?;
    let mut problems = Problems::default();
    problems.required_text("worker_id", call.body.worker_id.as_deref(), MAX_ID);
    let options = call.body.options.read(&mut problems, "");
    problems.into_result().map_err(invalid)?;
    let (Some(options), Some(worker)) = (options, call.body.worker_id.as_deref()) else {
        return Err(invalid(Problems::of("session_id", "is required")));
    };
    let limits = Limits {
        activities: Some(options.max_concurrent_activities),
    };
    let made = call
        .api
        .engine
        .open_session(&call.namespace, &WorkerId::from(worker), options)
        .await;
    let (view, admitted) = made.map_err(|error| refusal(error, limits))?;
    let status = match admitted {
        crate::domain::session::Admitted::Created => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    result(admitted.as_str(), &view, status)
}

/// Renews the lease of a session.
#[utoipa::path(tag = "worker-sessions", operation_id = "heartbeatWorkerSession", request_body = WorkerSessionHeartbeatRequest,
    params(("sessionId" = String, Path, description = "The session.")),
    responses((status = 200, description = "It is renewed."), (status = 404, description = "There is no such session."),
        (status = 409, description = "It has no owner, or another one."), (status = 412, description = "The worker is not registered."),
        (status = 422, description = "Fields.")))]
#[post("/sessions/{sessionId}/heartbeat")]
pub async fn heartbeat_worker_session(
    call: Box<Call<WorkerOnly, WorkerSessionHeartbeatRequest>>,
    session: Path<String>,
) -> Native {
    Native(heartbeat(call, &session).await)
}

async fn heartbeat(
    call: Box<Call<WorkerOnly, WorkerSessionHeartbeatRequest>>,
    session: &str,
) -> Result<Answer, Failure> {
    gate(&call)?;
    let mut problems = Problems::default();
    problems.required_text("worker_id", call.body.worker_id.as_deref(), MAX_ID);
    if let Some(seconds) = call.body.lease_seconds {
        problems.within("lease_seconds", seconds.0, 1..=MAX_SECONDS);
    }
    problems.into_result().map_err(invalid)?;
    let worker = WorkerId::from(call.body.worker_id.as_deref().unwrap_or_default());
    let seconds = call
        .body
        .lease_seconds
        .map(|seconds| seconds.0.unsigned_abs());
    let renewed = call
        .api
        .engine
        .renew_session(&call.namespace, &worker, session, seconds)
        .await;
    let view = renewed.map_err(|error| refusal(error, Limits::default()))?;
    result("heartbeat_recorded", &view, StatusCode::OK)
}

/// Closes a session.
#[utoipa::path(tag = "worker-sessions", operation_id = "closeWorkerSession", request_body = WorkerSessionCloseRequest,
    params(("sessionId" = String, Path, description = "The session."), ("worker_id" = Option<String>, Query, description = "Its owner, where a DELETE has no body.")),
    responses((status = 200, description = "It is closed, now or before."), (status = 404, description = "There is no such session."),
        (status = 409, description = "Another worker owns it."), (status = 422, description = "Fields.")))]
#[delete("/sessions/{sessionId}")]
pub async fn close_worker_session(
    call: Box<Call<WorkerOnly, WorkerSessionCloseRequest>>,
    session: Path<String>,
    query: actix_web::web::Query<OwnerQuery>,
) -> Native {
    Native(close(call, &session, query.into_inner()).await)
}

async fn close(
    call: Box<Call<WorkerOnly, WorkerSessionCloseRequest>>,
    session: &str,
    query: OwnerQuery,
) -> Result<Answer, Failure> {
    gate(&call)?;
    let worker = call.body.worker_id.clone().or(query.worker_id);
    let mut problems = Problems::default();
    problems.required_text("worker_id", worker.as_deref(), MAX_ID);
    problems.into_result().map_err(invalid)?;
    let worker = WorkerId::from(worker.as_deref().unwrap_or_default());
    let closed = call
        .api
        .engine
        .close_session(&call.namespace, &worker, session)
        .await;
    let (view, was_open) = closed.map_err(|error| refusal(error, Limits::default()))?;
    let outcome = if was_open { "closed" } else { "already_closed" };
    result(outcome, &view, StatusCode::OK)
}

/// Sessions need their version on both sides.
fn gate<T>(call: &Call<WorkerOnly, T>) -> Result<(), Failure> {
    if call.version.allows(Feature::WorkerSessions) {
        return Ok(());
    }
    Err(Failure::new(
        StatusCode::CONFLICT,
        Reason::WorkerSessionsUnavailable,
        format!(
            "Worker sessions need worker protocol {} or newer.",
            Feature::WorkerSessions.floor()
        ),
    )
    .with("supported_version", call.api.advertised.to_string())
    .with("requested_version", call.version.requested().to_string())
    .with(
        "minimum_protocol_version",
        Feature::WorkerSessions.floor().to_string(),
    )
    .with("remediation", "Upgrade the worker's SDK."))
}

fn invalid(problems: Problems) -> Failure {
    Failure::from(problems)
        .with("reason", Reason::InvalidWorkerSession.as_str())
        .with("admitted", false)
        .with("status", StatusCode::UNPROCESSABLE_ENTITY.as_u16())
}

fn result(outcome: &str, view: &SessionView, status: StatusCode) -> Result<Answer, Failure> {
    Ok(Answer::of(&json!({
        "admitted": true,
        "outcome": outcome,
        "session": snapshot(view),
        "activity_task_id": null,
        "status": status.as_u16(),
        "reason": null,
    }))?
    .status(status))
}

/// A session as it is shown to workers and operators.
pub fn snapshot(view: &SessionView) -> Value {
    let session = &view.session;
    let options = &session.options;
    let holder = view.holder.as_ref().map(|worker| {
        json!({
            "worker_id": worker.worker_id.as_str(),
            "task_queue": worker.description.queues.first().map(TaskQueue::as_str),
            "status": worker.status.as_str(),
            "last_heartbeat_at": worker.last_heartbeat_at,
            "is_stale": view.holder_is_stale,
        })
    });
    json!({
        "session_id": options.session_id,
        "namespace": session.namespace.as_str(),
        "connection": options.connection,
        "queue": options.queue.as_ref().map(TaskQueue::as_str),
        "requirements": options.requirements,
        "status": session.status.as_str(),
        "lease_owner": session.owner.as_str(),
        "holder": holder,
        "lease_expires_at": session.lease_expires_at,
        "ttl_expires_at": session.ttl_expires_at,
        "closed_at": session.closed_at,
        "failure_reason": session.loss.map(|loss| loss.as_str()),
        "lease_seconds": options.lease_seconds,
        "ttl_seconds": options.ttl_seconds,
        "max_concurrent_activities": options.max_concurrent_activities,
        "create_if_missing": options.create_if_missing,
        "allow_reacquire_after_failure": options.allow_reacquire_after_failure,
        "active_activity_count": view.running,
        "last_heartbeat_at": session.last_heartbeat_at,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
    })
}

/// A session as its activities show it: what it was asked to be, and its owner. Nulls are left out.
pub fn affinity(asked: &Options, session: &Session) -> Value {
    let mut fields = match json!(asked) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let queue = session.options.queue.as_ref().map(TaskQueue::as_str);
    for (name, value) in [
        ("queue", json!(queue)),
        ("namespace", json!(session.namespace.as_str())),
        ("status", json!(session.status.as_str())),
        ("lease_owner", json!(session.owner.as_str())),
        ("lease_expires_at", json!(session.lease_expires_at)),
        ("ttl_expires_at", json!(session.ttl_expires_at)),
    ] {
        fields.insert(name.to_owned(), value);
    }
    Value::Object(fields)
}

/// What a refusal repeats of the request.
#[derive(Clone, Copy, Default)]
struct Limits {
    activities: Option<u32>,
}

fn refusal(error: SessionError, limits: Limits) -> Failure {
    let (status, reason, sentence) = match &error {
        SessionError::Fault(fault) => return Failure::from(*fault).with("admitted", false),
        SessionError::NotRegistered => (
            StatusCode::PRECONDITION_FAILED,
            Reason::WorkerNotRegistered,
            "The worker is not registered.",
        ),
        SessionError::NotFound => (
            StatusCode::NOT_FOUND,
            Reason::SessionNotFound,
            "There is no such session.",
        ),
        SessionError::Refused(refused, _) => {
            let (reason, sentence) = words(refused);
            (StatusCode::CONFLICT, reason, sentence)
        }
    };
    let mut failure = Failure::new(status, reason, sentence)
        .with("admitted", false)
        .with("status", status.as_u16());
    if let SessionError::Refused(refused, view) = &error {
        if let Some(view) = view {
            let mut shown = snapshot(view);
            if let Value::Object(fields) = &mut shown {
                // `status` is the answer's own.
                let own = fields.remove("status");
                fields.insert("session_status".to_owned(), own.unwrap_or_default());
            }
            failure = failure.with_all(shown);
        }
        match refused {
            Refused::RequirementsNotMet(missing) => {
                failure = failure.with("missing_requirements", missing.clone());
            }
            Refused::WorkerLimit(most) => {
                failure = failure.with("max_concurrent_worker_sessions", *most);
            }
            Refused::ActivityLimit => {
                failure = failure.with("max_concurrent_activities", limits.activities);
            }
            _ => {}
        }
    }
    failure
}

fn words(refused: &Refused) -> (Reason, &'static str) {
    match refused {
        Refused::QueueMismatch => (
            Reason::SessionQueueMismatch,
            "The worker does not serve the session's queue, or the session has another one.",
        ),
        Refused::RequirementsNotMet(_) => (
            Reason::SessionRequirementsNotMet,
            "The worker lacks capabilities that the session needs.",
        ),
        Refused::Missing => (
            Reason::SessionMissing,
            "There is no such session, and create_if_missing is false.",
        ),
        Refused::OwnedByAnother => (
            Reason::SessionOwnedByAnotherWorker,
            "Another worker owns the session.",
        ),
        Refused::Closed => (Reason::SessionClosed, "The session was closed."),
        Refused::ReacquireDisallowed => (
            Reason::SessionReacquireDisallowed,
            "The session was lost and may not be owned again.",
        ),
        Refused::WorkerLimit(_) => (
            Reason::WorkerSessionLimitExceeded,
            "The worker owns as many sessions as it may.",
        ),
        Refused::ActivityLimit => (
            Reason::SessionActivityLimitExceeded,
            "As many activities run in the session as may.",
        ),
        Refused::NotActive => (Reason::SessionNotActive, "The session has no owner now."),
        Refused::OwnerMismatch => (
            Reason::SessionOwnerMismatch,
            "The worker does not own the session.",
        ),
    }
}
