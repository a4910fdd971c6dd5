//! Workers, as operators see them.

use actix_web::http::StatusCode;
use actix_web::web::Path;
use actix_web::{delete, get};
use serde_json::{Value, json};

use crate::domain::ids::{TaskQueue, WorkerId};
use crate::domain::worker::Registration;
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{AdminOnly, Call, Nothing, OperatorOrAdmin};

/// Words for how a worker stands, which a list may be narrowed to.
const STATUSES: [&str; 3] = ["active", "draining", "stale"];

/// Workers that a list shows.
pub const WORKERS_SHOWN: i64 = 10_000;

fn status(call: &Call<OperatorOrAdmin, Nothing>, worker: &Registration) -> &'static str {
    if call.api.engine.is_stale(worker) {
        "stale"
    } else {
        worker.status.as_str()
    }
}

/// A worker as it is shown.
pub fn view(call: &Call<OperatorOrAdmin, Nothing>, worker: &Registration) -> Value {
    let said = &worker.description;
    let queues: Vec<&str> = said.queues.iter().map(TaskQueue::as_str).collect();
    // No worker has more free slots than it has slots.
    let slot = |name: &str, capacity: u32| -> Option<u64> {
        let slots = said.slots.as_ref()?;
        let slots: Value = serde_json::from_str(slots.get()).ok()?;
        Some(slots[name].as_u64()?.min(capacity.into()))
    };
    json!({
        "worker_id": worker.worker_id.as_str(),
        "namespace": worker.namespace.as_str(),
        "task_queue": queues.first(),
        "task_queues": queues,
        "runtime": said.runtime,
        "sdk_version": said.sdk_version,
        "build_id": said.build_id,
        "supported_workflow_types": said.workflow_types,
        "supported_activity_types": said.activity_types,
        "workflow_definition_fingerprints": said.fingerprints,
        "workflow_command_contracts": said.contracts,
        "capabilities": said.capabilities,
        "capability_manifest": said.capability_manifest,
        "max_concurrent_workflow_tasks": said.max_workflow_tasks,
        "max_concurrent_activity_tasks": said.max_activity_tasks,
        "max_concurrent_worker_sessions": said.max_sessions,
        "task_slots": {
            "workflow_available": slot("workflow_available", said.max_workflow_tasks),
            "workflow_capacity": said.max_workflow_tasks,
            "activity_available": slot("activity_available", said.max_activity_tasks),
            "activity_capacity": said.max_activity_tasks,
            "session_available": slot("session_available", said.max_sessions),
            "session_capacity": said.max_sessions,
        },
        "process_metrics": said.process_metrics,
        "heartbeat_interval_seconds": said.heartbeat_interval_seconds,
        "status": status(call, worker),
        "last_heartbeat_at": worker.last_heartbeat_at,
        "registered_at": worker.registered_at,
        "updated_at": worker.updated_at,
    })
}

/// Lists workers; those that have been silent for too long only when they are asked for.
#[utoipa::path(tag = "workers", operation_id = "listWorkers",
    params(("task_queue" = Option<String>, Query, description = "Of this queue."),
        ("status" = Option<String>, Query, description = "active, draining or stale.")),
    responses((status = 200, description = "The workers."), (status = 422, description = "A parameter is wrong.")))]
#[get("/workers")]
pub async fn list_workers(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Control {
    Control(list(call).await)
}

async fn list(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Result<Answer, Answer> {
    let status_named = call.query.get("status").filter(|word| !word.is_empty());
    let wanted = status_named.map(String::as_str);
    if wanted.is_some_and(|wanted| !STATUSES.contains(&wanted)) {
        let sentence = format!("must be one of {}", STATUSES.join(", "));
        return Err(Problems::of("status", sentence).into());
    }
    let queue = call
        .query
        .get("task_queue")
        .map(|queue| TaskQueue::from(queue.as_str()));
    let workers = call
        .api
        .engine
        .list_workers(&call.namespace, queue.as_ref(), WORKERS_SHOWN)
        .await?;
    let shown: Vec<Value> = workers
        .iter()
        .filter(|worker| match wanted {
            Some(wanted) => status(&call, worker) == wanted,
            None => status(&call, worker) != "stale",
        })
        .map(|worker| view(&call, worker))
        .collect();
    Ok(Answer::ok(json!({
        "namespace": call.namespace.as_str(),
        "workers": shown,
        "stale_after_seconds": call.api.settings.workers.stale_after_seconds,
    })))
}

fn no_such_worker(worker_id: &str) -> Answer {
    Answer::refuse(
        StatusCode::NOT_FOUND,
        Reason::WorkerNotFound,
        "There is no such worker.",
    )
    .with("worker_id", worker_id)
}

/// Describes a worker.
#[utoipa::path(tag = "workers", operation_id = "describeWorker",
    params(("workerId" = String, Path, description = "The worker.")),
    responses((status = 200, description = "The worker."), (status = 404, description = "There is no such worker.")))]
#[get("/workers/{workerId}")]
pub async fn describe_worker(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    let worker_id = path.into_inner();
    let worker = call
        .api
        .engine
        .read_worker(&call.namespace, &WorkerId::from(worker_id.as_str()))
        .await;
    Control(match worker {
        Ok(Some(worker)) => Ok(Answer::ok(view(&call, &worker))),
        Ok(None) => Err(no_such_worker(&worker_id)),
        Err(fault) => Err(fault.into()),
    })
}

/// Removes a worker and gives back what it holds.
#[utoipa::path(tag = "workers", operation_id = "deleteWorker",
    params(("workerId" = String, Path, description = "The worker.")),
    responses((status = 200, description = "It is gone."), (status = 404, description = "There is no such worker.")))]
#[delete("/workers/{workerId}")]
pub async fn delete_worker(call: Box<Call<AdminOnly, Nothing>>, path: Path<String>) -> Control {
    let worker_id = path.into_inner();
    let gone = call
        .api
        .engine
        .deregister_worker(call.namespace.clone(), WorkerId::from(worker_id.as_str()))
        .await;
    Control(match gone {
        Ok(Some(recovered)) => Ok(Answer::ok(json!({
            "worker_id": worker_id,
            "outcome": "deregistered",
            "recovered_workflow_task_count": recovered,
        }))),
        Ok(None) => Err(no_such_worker(&worker_id)),
        Err(fault) => Err(fault.into()),
    })
}
