//! Describing runs: one, all of a workflow, and the list of a namespace.

use std::collections::BTreeMap;

use actix_web::get;
use actix_web::web::Path;
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::domain::ids::{Part, WorkflowId, part_id};
use crate::domain::list::{After, Filter, RunRow};
use crate::domain::rollout;
use crate::domain::run::{Close, Held, RunState, Status};
use crate::domain::time::Timestamp;
use crate::engine::RunView;
use crate::payload::Payload;
use crate::protocol::reason::Reason;

use super::super::fields;
use super::super::problems::Problems;
use super::answer::{Answer, Control, joined};
use super::call::{Call, Nothing, OperatorOrAdmin};

/// Largest payload that is shown decoded, in bytes.
const MAX_SHOWN: usize = 262_144;
/// Runs of one page, and when a request names no size.
const PAGE: (i64, i64) = (200, 50);
/// Longest filter text.
const MAX_QUERY: usize = 2_048;

/// Describes the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "describeWorkflow",
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "The current run."), (status = 404, description = "There is no such workflow.")))]
#[get("/workflows/{workflowId}")]
pub async fn describe_workflow(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    let workflow_id = WorkflowId::from(path.into_inner());
    Control(described(&call, &workflow_id, None).await)
}

/// Describes one run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "describeWorkflowRun",
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run.")),
    responses((status = 200, description = "The run."), (status = 404, description = "There is no such workflow or run.")))]
#[get("/workflows/{workflowId}/runs/{runId}")]
pub async fn describe_workflow_run(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    let workflow_id = WorkflowId::from(workflow_id);
    Control(described(&call, &workflow_id, Some(&run)).await)
}

fn shown(payload: Option<&Payload>) -> Value {
    payload
        .and_then(|payload| payload.shown(MAX_SHOWN))
        .unwrap_or(Value::Null)
}

/// Whether live workers may take a run, in a word.
fn compatibility(unserved: Option<&'static str>) -> &'static str {
    match unserved {
        None => "compatible",
        Some(_) => Reason::NoCompatibleWorker.as_str(),
    }
}

/// Describes a run, with whether live workers may take it.
async fn described(
    call: &Call<OperatorOrAdmin, Nothing>,
    workflow_id: &WorkflowId,
    run: Option<&str>,
) -> Result<Answer, Answer> {
    let engine = &call.api.engine;
    let view = engine.describe(&call.namespace, workflow_id, run).await?;
    let begun = &view.state.begun;
    let mut unserved = None;
    if view.state.close.is_none() {
        let (queue, kind) = (begun.queue.as_str(), &*begun.workflow_type);
        let serving = engine.serving(&call.namespace, &[queue], &[kind]).await?;
        unserved = rollout::unserved(&serving, queue, kind, begun.build_id.as_deref());
    }
    Ok(Answer::ok(describe(&view, unserved)))
}

/// Rows of a list of runs, with whether live workers may take them.
async fn rows(
    call: &Call<OperatorOrAdmin, Nothing>,
    runs: &[RunRow],
) -> Result<Vec<Value>, Answer> {
    let open = || runs.iter().filter(|run| !run.status.is_terminal());
    let mut queues: Vec<&str> = open().map(|run| run.queue.as_str()).collect();
    let mut types: Vec<&str> = open().map(|run| run.workflow_type.as_str()).collect();
    for names in [&mut queues, &mut types] {
        names.sort_unstable();
        names.dedup();
    }
    let serving = if queues.is_empty() {
        Vec::new()
    } else {
        let engine = &call.api.engine;
        engine.serving(&call.namespace, &queues, &types).await?
    };
    Ok(runs
        .iter()
        .map(|run| {
            let unserved = if run.status.is_terminal() {
                None
            } else {
                let pin = run.build_id.as_deref();
                rollout::unserved(&serving, &run.queue, &run.workflow_type, pin)
            };
            row(call.namespace.as_str(), run, unserved)
        })
        .collect())
}

/// A run as it is described.
fn describe(view: &RunView, unserved: Option<&'static str>) -> Value {
    let state = &*view.state;
    let begun = &state.begun;
    let close = state.close.as_deref();
    let output = close.and_then(|close| close.output.as_ref());
    let open = close.is_none();
    let mut fields = json!({
        "workflow_id": begun.workflow_id.as_str(),
        "run_id": state.id,
        "namespace": begun.namespace.as_str(),
        "workflow_type": begun.workflow_type,
        "business_key": begun.business_key,
        "run_number": begun.run_number,
        "run_count": view.run_count,
        "is_current_run": view.is_current,
        "task_queue": begun.queue.as_str(),
        "payload_codec": "avro",
        "status": view.status.as_str(),
        "status_bucket": view.status.bucket(),
        "is_terminal": view.status.is_terminal(),
        "closed_reason": close.map(|close| close.reason.as_str()),
        "reason": close.and_then(|close| close.detail.as_deref()),
        "wait_kind": state.wait_kind(),
        "wait_reason": wait_reason(state),
        "started_at": begun.started_at,
        "closed_at": close.map(|close| close.at),
        "last_progress_at": state.last_progress_at,
        "execution_timeout_seconds": begun.execution_timeout_seconds,
        "run_timeout_seconds": begun.run_timeout_seconds,
        "execution_deadline_at": begun.execution_deadline_at,
        "run_deadline_at": begun.run_deadline_at,
    });
    let more = json!({
        "input": shown(Some(&begun.input)),
        "output": shown(output),
        "input_envelope": begun.input,
        "output_envelope": output,
        "memo": state.memo.shown,
        "search_attributes": state.attributes.shown,
        "compatibility": begun.build_id,
        "compatibility_status": compatibility(unserved),
        "compatibility_supported_in_fleet": unserved.is_none(),
        "compatibility_fleet_reason": unserved,
        "priority": begun.priority,
        "fairness_key": begun.fairness_key,
        "fairness_weight": begun.fairness_weight,
        "history_length": state.last_event(),
        "history_size_bytes": state.history_bytes,
        "continued_from_run_id": begun.continued_from,
        "continued_to_run_id": close.and_then(|close| close.continued_to),
        "archived": state.archived,
        "actions": {
            "can_signal": open,
            "can_query": close.is_none_or(|close| close.reason.status() == Status::Completed),
            "can_update": open,
            "can_cancel": open,
            "can_terminate": open,
            "can_repair": state.workflow_task.as_ref().is_some_and(|task| task.failures > 0),
            "can_archive": !open && !state.archived,
        },
        "commands_scope": "selected_run",
        "commands": commands(state),
        "updates_scope": "selected_run",
        "updates": updates(state),
        "pending_activities": activities(state),
        "pending_children": children(state),
        "parent": begun.parent.as_ref().map(|parent| json!({
            "workflow_id": parent.workflow_id.as_str(),
            "run_id": parent.run,
            "sequence": parent.step,
            "child_call_id": parent.call_id(),
        })),
        "failures": [],
    });
    fields = joined(fields, more);
    if let Some(close) = close {
        failure(state, close, &mut fields);
    }
    fields
}

/// Why an open run does not move, when that is worth an operator's look.
fn wait_reason(state: &RunState) -> Value {
    match &state.workflow_task {
        Some(task) if task.blocked => json!({
            "code": "workflow_replay_blocked",
            "failures": task.failures,
            "message": task.last_failure,
        })
        .to_string()
        .into(),
        Some(task) if task.failures > 0 => Value::from(format!(
            "the workflow task failed {} times: {}",
            task.failures,
            task.last_failure.as_deref().unwrap_or_default()
        )),
        _ => Value::Null,
    }
}

fn commands(state: &RunState) -> Vec<Value> {
    state
        .recent_commands
        .iter()
        .map(|command| {
            json!({
                "command_id": part_id(state.id, Part::Command, command.n),
                "command_sequence": command.n,
                "command_type": command.kind.as_str(),
                "command_status": "accepted",
                "name": command.name,
                "request_id": command.request_id,
                "accepted_at": command.at,
            })
        })
        .collect()
}

/// Open parts of one kind that a description shows.
const SHOWN: usize = 100;

/// Updates without an outcome.
fn updates(state: &RunState) -> Vec<Value> {
    let held = state.held.iter().filter_map(|held| match &**held {
        Held::Update(update) => Some(update),
        Held::Signal(_) => None,
    });
    state
        .update
        .as_deref()
        .into_iter()
        .chain(held)
        .take(SHOWN)
        .map(|update| {
            json!({
                "update_id": update.id,
                "update_name": update.name,
                "update_status": "accepted",
                "command_id": part_id(update.run, Part::Command, update.n),
                "accepted_at": update.at,
            })
        })
        .collect()
}

fn children(state: &RunState) -> Vec<Value> {
    state
        .children
        .values()
        .take(SHOWN)
        .map(|child| {
            json!({
                "sequence": child.step,
                "child_call_id": part_id(state.id, Part::Call, child.step.into()),
                "workflow_id": child.workflow_id.as_str(),
                "run_id": child.run,
                "workflow_type": child.workflow_type,
                "parent_close_policy": child.close_policy.as_str(),
            })
        })
        .collect()
}

fn activities(state: &RunState) -> Vec<Value> {
    if state.close.is_some() {
        return Vec::new();
    }
    state
        .activities
        .values()
        .take(SHOWN)
        .map(|activity| {
            json!({
                "activity_execution_id": part_id(state.id, Part::Activity, activity.no.into()),
                "activity_type": activity.activity_type,
                "task_queue": activity.queue.as_str(),
                "attempt_count": activity.started,
                "failure_count": activity.failures,
                "scheduled_at": activity.scheduled_at,
                "available_at": activity.available_at,
            })
        })
        .collect()
}

fn failure(state: &RunState, close: &Close, fields: &mut Value) {
    let Some(failed) = &close.failure else { return };
    let exception = json!({
        "type": failed.kind,
        "class": failed.class,
        "message": failed.message,
    });
    let failure = json!({
        "failure_id": part_id(state.id, Part::Failure, close.event),
        "message": failed.message,
        "reason": close.reason.as_str(),
        "exception_type": failed.kind,
        "exception_class": failed.class,
        "failure_category": failed.category,
        "non_retryable": failed.non_retryable,
        "source_kind": "workflow_run",
        "source_id": state.id,
        "event_sequence": close.event,
        "exception": failed.exception.as_ref().map_or_else(|| exception.clone(), |json| {
            serde_json::from_str(json.get()).unwrap_or_else(|_| exception.clone())
        }),
    });
    fields["error"] = failed.message.to_string().into();
    fields["exception"] = exception;
    fields["failures"] = json!([failure]);
    let mut whole = failure;
    whole["activity_failures"] = json!([]);
    whole["failures"] = fields["failures"].clone();
    fields["failure"] = whole;
}

/// A run as lists show it.
fn row(namespace: &str, run: &RunRow, unserved: Option<&'static str>) -> Value {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| json!({}));
    json!({
        "workflow_id": run.workflow_id.as_str(),
        "run_id": run.run,
        "namespace": namespace,
        "workflow_type": run.workflow_type,
        "business_key": run.business_key,
        "status": run.status.as_str(),
        "status_bucket": run.status.bucket(),
        "is_terminal": run.status.is_terminal(),
        "task_queue": run.queue,
        "payload_codec": "avro",
        "run_number": run.run_number,
        "is_current_run": run.is_current,
        "compatibility": run.build_id,
        "compatibility_status": compatibility(unserved),
        "compatibility_supported_in_fleet": unserved.is_none(),
        "compatibility_fleet_reason": unserved,
        "started_at": run.started_at,
        "closed_at": run.closed_at,
        "memo": json(&run.memo),
        "search_attributes": json(&run.search_attributes),
    })
}

/// Lists the runs of a workflow, the oldest first.
#[utoipa::path(tag = "workflows", operation_id = "listWorkflowRuns",
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "Its runs."), (status = 404, description = "There is no such workflow.")))]
#[get("/workflows/{workflowId}/runs")]
pub async fn list_workflow_runs(
    call: Box<Call<OperatorOrAdmin, Nothing>>,
    path: Path<String>,
) -> Control {
    let workflow_id = WorkflowId::from(path.into_inner());
    Control(runs_of(&call, &workflow_id).await)
}

async fn runs_of(
    call: &Call<OperatorOrAdmin, Nothing>,
    workflow_id: &WorkflowId,
) -> Result<Answer, Answer> {
    let engine = &call.api.engine;
    let runs = engine.runs_of(&call.namespace, workflow_id).await?;
    let rows = rows(call, &runs).await?;
    Ok(Answer::ok(json!({
        "workflow_id": workflow_id.as_str(),
        "run_count": rows.len(),
        "runs": rows,
    })))
}

/// Lists the runs of a namespace, the youngest first.
#[utoipa::path(tag = "workflows", operation_id = "listWorkflows",
    params(("workflow_type" = Option<String>, Query, description = "Of this type."),
        ("status" = Option<String>, Query, description = "running, completed, failed, cancelled or terminated."),
        ("query" = Option<String>, Query, description = "Text in workflow id or business key."),
        ("page_size" = Option<u32>, Query, description = "1 to 200; 50 when left out."),
        ("next_page_token" = Option<String>, Query, description = "Where the page begins.")),
    responses((status = 200, description = "A page of runs."), (status = 422, description = "A parameter is wrong.")))]
#[get("/workflows")]
pub async fn list_workflows(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Control {
    Control(list(call).await)
}

/// Where a page of runs begins, and which list it belongs to.
#[derive(Serialize, Deserialize)]
struct Cursor {
    started_at: i64,
    run: crate::domain::ids::RunId,
    filter: u64,
}

async fn list(call: Box<Call<OperatorOrAdmin, Nothing>>) -> Result<Answer, Answer> {
    let mut problems = Problems::default();
    let filter = filter(&mut problems, &call.query);
    let size = match call
        .query
        .get("page_size")
        .map(|text| fields::query_int(text))
    {
        None => PAGE.1,
        Some(Ok(size)) => {
            problems.within("page_size", size, 1..=PAGE.0);
            size
        }
        Some(Err(problem)) => {
            problems.add("page_size", problem);
            PAGE.1
        }
    };
    let digest = super::super::body::digest(
        format!(
            "{}\0{:?}",
            call.namespace,
            (&filter.workflow_type, &filter.statuses, &filter.text)
        )
        .as_bytes(),
    );
    let after = call
        .query
        .get("next_page_token")
        .filter(|token| !token.is_empty())
        .and_then(|token| {
            let cursor = read_cursor(token).filter(|cursor| cursor.filter == digest.0);
            if cursor.is_none() {
                problems.add("next_page_token", "is not a token of this list");
            }
            cursor
        });
    problems.into_result()?;
    let after = after.map(|cursor| After {
        started_at: Timestamp::from_micros(cursor.started_at),
        run: cursor.run,
    });
    let mut runs = call
        .api
        .engine
        .list_runs(&call.namespace, &filter, after, size + 1)
        .await?;
    let more = runs.len() > usize::try_from(size).unwrap_or(usize::MAX);
    if more {
        runs.pop();
    }
    let next = runs.last().filter(|_| more).map(|last| {
        write_cursor(&Cursor {
            started_at: last.started_at.micros(),
            run: last.run,
            filter: digest.0,
        })
    });
    let rows = rows(&call, &runs).await?;
    Ok(Answer::ok(json!({
        "workflow_count": rows.len(),
        "workflows": rows,
        "next_page_token": next,
    })))
}

fn read_cursor(token: &str) -> Option<Cursor> {
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(token)
        .ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn write_cursor(cursor: &Cursor) -> String {
    let json = serde_json::to_vec(cursor).unwrap_or_default();
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json)
}

fn filter(problems: &mut Problems, query: &BTreeMap<String, String>) -> Filter {
    let text = |name: &str| query.get(name).filter(|text| !text.is_empty()).cloned();
    let statuses = match text("status").as_deref() {
        None => Vec::new(),
        // These three select a bucket.
        Some(bucket @ ("running" | "completed" | "failed")) => Status::ALL
            .into_iter()
            .filter(|status| status.bucket() == bucket)
            .collect(),
        Some("cancelled") => vec![Status::Cancelled],
        Some("terminated") => vec![Status::Terminated],
        Some(_) => {
            problems.add(
                "status",
                "must be running, completed, failed, cancelled or terminated",
            );
            Vec::new()
        }
    };
    let search = text("query");
    if search
        .as_ref()
        .is_some_and(|search| search.len() > MAX_QUERY)
    {
        problems.add("query", format!("must have at most {MAX_QUERY} bytes"));
    }
    Filter {
        workflow_type: text("workflow_type"),
        statuses,
        text: search,
    }
}
