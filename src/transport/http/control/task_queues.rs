//! Task queues, as operators see them: what waits and who serves it, what is held, what is let in, and
//! what nobody may take.

use std::collections::HashMap;

use actix_web::get;
use actix_web::web::Path;
use serde_json::{Value, json};

use crate::domain::admission::Status;
use crate::domain::ids::TaskQueue;
use crate::domain::list::{Backlog, Flow, QueueRow};
use crate::domain::worker::{Registration, WorkerStatus};
use crate::engine::{Admission, QueueDetail};

use super::answer::{Answer, Control, joined};
use super::call::{Call, Nothing, OperatorOrAdmin};
use super::fleet::{WORKERS_SHOWN, view};

/// The class of tasks without a fairness key, as it is announced to workers.
const DEFAULT_CLASS: &str = "__default__";

fn stats(row: &QueueRow, flow: Flow) -> Value {
    let counts = |backlog: &Backlog| {
        json!({
            "ready_count": backlog.ready,
            "leased_count": backlog.leased,
            "oldest_ready_age_seconds": backlog.age_seconds,
        })
    };
    json!({
        "approximate_backlog_count": row.workflow.ready + row.activity.ready,
        "approximate_backlog_age_seconds": row.workflow.age_seconds.max(row.activity.age_seconds),
        "tasks_added_last_minute": flow.added,
        "tasks_dispatched_last_minute": flow.dispatched,
        "workflow_tasks": counts(&row.workflow),
        "activity_tasks": counts(&row.activity),
    })
}

/// What a queue takes in now, for one kind of task.
fn admission_of(
    backlog: &Backlog,
    workers: &[&Registration],
    slots: impl Fn(&Registration) -> u32,
    admission: &Admission,
) -> Value {
    let slots: u64 = workers.iter().map(|worker| u64::from(slots(worker))).sum();
    let (limits, used) = (admission.limits, admission.used);
    let room = limits.room(used);
    let [leases, namespace_leases, dispatches, namespace_dispatches] = limits.remaining(used);
    let counted = |is_limited: bool, used: u64| is_limited.then_some(used);
    let fields = json!({
        "status": Status::of(workers.len(), slots, backlog.leased, room).as_str(),
        "budget_source": "worker_registrations",
        "server_budget_source": limits.any().then_some("server_settings"),
        "active_worker_count": workers.len(),
        "configured_slot_count": slots,
        "leased_count": backlog.leased,
        "ready_count": backlog.ready,
        "available_slot_count": slots.saturating_sub(backlog.leased),
        "server_max_active_leases_per_queue": limits.leases_per_queue,
        "server_active_lease_count": used.leases_of_queue,
        "server_remaining_active_lease_capacity": leases,
        "server_max_active_leases_per_namespace": limits.leases_per_namespace,
        "server_namespace_active_lease_count": used.leases_of_namespace,
        "server_remaining_namespace_active_lease_capacity": namespace_leases,
    });
    // Hand-outs are counted only where they are limited.
    let more = json!({
        "server_max_dispatches_per_minute": limits.dispatches_per_queue,
        "server_dispatch_count_this_minute": counted(limits.dispatches(), used.dispatches_of_queue),
        "server_remaining_dispatch_capacity": dispatches,
        "server_max_dispatches_per_minute_per_namespace": limits.dispatches_per_namespace,
        "server_namespace_dispatch_count_this_minute":
            counted(limits.dispatches(), used.dispatches_of_namespace),
        "server_remaining_namespace_dispatch_capacity": namespace_dispatches,
        "server_dispatch_budget_group": null,
        "server_max_dispatches_per_minute_per_budget_group": null,
        "server_budget_group_dispatch_count_this_minute": null,
        "server_remaining_budget_group_dispatch_capacity": null,
        "server_lock_required": limits.any(),
        "server_lock_supported": true,
    });
    joined(fields, more)
}

fn admission(
    call: &Call<OperatorOrAdmin, Nothing>,
    row: &QueueRow,
    workers: &[&Registration],
    used: &[Admission; 2],
    queries: u64,
) -> Value {
    let most = call.api.engine.max_pending_queries();
    let answering = workers
        .iter()
        .flat_map(|worker| &worker.description.capabilities)
        .any(|said| said == "query_tasks");
    let status = match () {
        () if !answering => "unavailable",
        () if queries >= most => "full",
        () => "accepting",
    };
    json!({
        "workflow_tasks": admission_of(
            &row.workflow, workers, |worker| worker.description.max_workflow_tasks, &used[0]),
        "activity_tasks": admission_of(
            &row.activity, workers, |worker| worker.description.max_activity_tasks, &used[1]),
        "query_tasks": {
            "status": status,
            "budget_source": "server_settings",
            "max_pending_per_queue": most,
            "approximate_pending_count": queries,
            "remaining_pending_capacity": most.saturating_sub(queries),
            "lock_required": false,
            "lock_supported": true,
        },
    })
}

fn live<'w>(
    call: &Call<OperatorOrAdmin, Nothing>,
    workers: &'w [Registration],
) -> Vec<&'w Registration> {
    let is_live = |worker: &&Registration| {
        worker.status == WorkerStatus::Active && !call.api.engine.is_stale(worker)
    };
    workers.iter().filter(is_live).collect()
}

/// Lists the queues that have tasks or workers.
#[utoipa::path(tag = "task-queues", operation_id = "listTaskQueues", responses((status = 200, description = "The queues.")))]
#[get("/task-queues")]
pub async fn list_task_queues(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Control {
    Control(queues(call).await)
}

async fn queues(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Result<Answer, Answer> {
    let engine = &call.api.engine;
    let rows = engine.queues(&call.namespace, None).await?;
    let workers = engine
        .list_workers(&call.namespace, None, WORKERS_SHOWN)
        .await?;
    let live = live(&call, &workers);
    let mut names: Vec<TaskQueue> = rows
        .iter()
        .map(|row| TaskQueue::from(row.queue.as_str()))
        .collect();
    names.extend(
        live.iter()
            .flat_map(|worker| worker.description.queues.iter().cloned()),
    );
    names.sort_unstable();
    names.dedup();
    let mut known: HashMap<String, QueueRow> = rows
        .into_iter()
        .map(|row| (row.queue.clone(), row))
        .collect();
    let rows: Vec<QueueRow> = names
        .iter()
        .map(|name| {
            let row = known.remove(name.as_str()).unwrap_or_default();
            QueueRow {
                queue: name.to_string(),
                ..row
            }
        })
        .collect();
    let used = engine.admissions(&call.namespace, &rows).await?;
    let queries = engine.waiting_queries(&call.namespace).await?;
    let flows = engine.flows(&call.namespace, None).await?;
    let mut shown = Vec::with_capacity(names.len());
    for ((name, row), used) in names.iter().zip(&rows).zip(&used) {
        let serving: Vec<&Registration> = live
            .iter()
            .filter(|worker| worker.description.queues.contains(name))
            .copied()
            .collect();
        let queries = queries.get(name.as_str()).copied().unwrap_or_default();
        shown.push(json!({
            "name": name.as_str(),
            "namespace": call.namespace.as_str(),
            "stats": stats(row, flows.get(name).copied().unwrap_or_default()),
            "admission": admission(&call, row, &serving, used, queries),
        }));
    }
    Ok(Answer::ok(json!({
        "namespace": call.namespace.as_str(),
        "task_queues": shown,
    })))
}

/// Describes a queue: its tasks, the workers that serve it, and what nobody may take.
#[utoipa::path(tag = "task-queues", operation_id = "describeTaskQueue",
    params(("taskQueue" = String, Path, description = "The queue.")),
    responses((status = 200, description = "The queue, with zeros if nobody has used it.")))]
#[get("/task-queues/{taskQueue}")]
pub async fn describe_task_queue(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    Control(queue(call, path.into_inner()).await)
}

async fn queue(call: Box<Call<OperatorOrAdmin, Nothing>>, name: String) -> Result<Answer, Answer> {
    let engine = &call.api.engine;
    let key = TaskQueue::from(name.as_str());
    let rows = engine.queues(&call.namespace, Some(&key)).await?;
    let row = rows.into_iter().next().unwrap_or_default();
    let workers = engine
        .list_workers(&call.namespace, Some(&key), WORKERS_SHOWN)
        .await?;
    let detail = engine.queue_detail(&call.namespace, &key, &workers).await?;
    let used = engine.admission(&call.namespace, &key).await?;
    let flows = engine.flows(&call.namespace, Some(&key)).await?;
    let flow = flows.get(&key).copied().unwrap_or_default();
    let pollers: Vec<Value> = workers.iter().map(|worker| view(&call, worker)).collect();
    let blocked: u64 = detail.groups.iter().map(|(group, _)| group.blocked).sum();
    Ok(Answer::ok(json!({
        "name": name,
        "namespace": call.namespace.as_str(),
        "stats": stats(&row, flow),
        "admission": admission(&call, &row, &live(&call, &workers), &used, detail.queries),
        "pollers": pollers,
        "current_leases": leases(&detail),
        // A task is written in the commit that needs it, so that none can be missing.
        "repair": {"existing_task_candidates": blocked, "missing_task_candidates": 0},
        "unserved": unserved(&detail),
    })))
}

/// Describes what is ready in a queue by kind, priority and fairness key, in the order of hand-outs.
#[utoipa::path(tag = "task-queues", operation_id = "describePriorityFairness",
    params(("taskQueue" = String, Path, description = "The queue.")),
    responses((status = 200, description = "The backlog by priority and fairness key; empty if nothing is ready.")))]
#[get("/task-queues/{taskQueue}/priority-fairness")]
pub async fn describe_priority_fairness(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    Control(classes(call, path.into_inner()).await)
}

async fn classes(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    name: String,
) -> Result<Answer, Answer> {
    let engine = &call.api.engine;
    let key = TaskQueue::from(name.as_str());
    let (classes, is_whole) = engine.queue_classes(&call.namespace, &key).await?;
    let backlog: Vec<Value> = classes
        .iter()
        .map(|class| {
            json!({
                "task_kind": class.kind.as_str(),
                "priority": class.priority,
                "fairness_key": class.fairness_key,
                "fairness_class": class.fairness_key.as_deref().unwrap_or(DEFAULT_CLASS),
                "fairness_weight": class.weight,
                "ready_count": class.tasks,
                "oldest_ready_age_seconds": class.age_seconds,
            })
        })
        .collect();
    Ok(Answer::ok(json!({
        "namespace": call.namespace.as_str(),
        "task_queue": name,
        "backlog": backlog,
        "is_complete": is_whole,
    })))
}

fn leases(detail: &QueueDetail) -> Vec<Value> {
    detail
        .held
        .iter()
        .map(|held| {
            json!({
                "task_id": held.task,
                "task_kind": held.kind.as_str(),
                "task_type": held.task_type,
                "workflow_id": held.workflow_id.as_str(),
                "run_id": held.task.run,
                "lease_owner": held.owner.as_str(),
                "lease_expires_at": held.lease_expires_at,
                "attempt": held.attempt,
            })
        })
        .collect()
}

/// Ready tasks that no live worker may take: how many, of which kinds, and the first of them.
fn unserved(detail: &QueueDetail) -> Value {
    let nobody = || {
        detail
            .groups
            .iter()
            .filter(|(_, is_served)| !is_served)
            .map(|(group, _)| group)
    };
    let groups: Vec<Value> = nobody()
        .map(|group| {
            json!({
                "task_kind": group.kind.as_str(),
                "task_type": group.task_type,
                "build_id": group.build_id,
                "ready_count": group.tasks,
                "oldest_ready_age_seconds": group.age_seconds,
            })
        })
        .collect();
    let tasks: Vec<Value> = detail
        .lone
        .iter()
        .map(|(place, lone)| {
            let group = detail.groups.get(*place).map(|(group, _)| group);
            json!({
                "task_id": lone.task,
                "task_kind": group.map(|group| group.kind.as_str()),
                "task_type": group.map(|group| &group.task_type),
                "build_id": group.and_then(|group| group.build_id.as_deref()),
                "workflow_id": lone.workflow_id.as_str(),
                "run_id": lone.task.run,
                "ready_since": lone.since,
                "reason": "no_compatible_worker",
            })
        })
        .collect();
    json!({
        "no_compatible_worker_count": nobody().map(|group| group.tasks).sum::<u64>(),
        "replay_blocked_count": detail.groups.iter().map(|(group, _)| group.blocked).sum::<u64>(),
        "groups": groups,
        "tasks": tasks,
    })
}
