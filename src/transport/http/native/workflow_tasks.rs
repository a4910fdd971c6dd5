//! Workflow tasks: poll, history page, heartbeat, complete, fail.

use actix_web::http::StatusCode;
use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::domain::command::Command;
use crate::domain::ids::{RunId, TaskId};
use crate::domain::routing::TaskKind;
use crate::domain::run::{Keep, Reply, ReportKind, StreamReport, TaskFailure};
use crate::engine::{Holder, Reported};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;
use crate::protocol::replay;

use super::super::compression::HistoryEncoding;
use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::{Answer, Failure, Fields, Native};
use super::call::{Call, Reporter, WorkerOnly};
use super::cancellations::request_object;
use super::commands::{self, CommandRequest};
use super::leases::{self, Named};
use super::polls::{self, PollBody};
use super::{page_tokens, sticky, streams, tasks};

/// Waits for a workflow task.
#[utoipa::path(tag = "workflow-tasks", operation_id = "pollWorkflowTask", request_body = PollBody,
    responses((status = 200, description = "A task, or none."), (status = 409, description = "The poll contradicts the registration."),
        (status = 412, description = "The worker is not registered."), (status = 422, description = "Fields."),
        (status = 429, description = "The node holds as many polls as it may."), (status = 503, description = "The database is away.")))]
#[post("/workflow-tasks/poll")]
pub async fn poll_workflow_task(call: Box<Call<WorkerOnly, PollBody>>) -> Native {
    Native(Box::pin(polls::poll(call, TaskKind::Workflow)).await)
}

/// `HistoryPageRequest`
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct HistoryPageRequest {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    workflow_task_attempt: Option<Int>,
    /// Where the page begins.
    page_token: Option<String>,
    /// Where the page begins, the SDKs' spelling.
    next_history_page_token: Option<String>,
    /// Events of the page.
    page_size: Option<Int>,
    /// Events of the page, the SDKs' spelling.
    history_page_size: Option<Int>,
    /// Encodings of history that the worker reads.
    accept_history_encoding: Option<String>,
}

/// Gives a page of the history of a task that the caller holds.
#[utoipa::path(tag = "workflow-tasks", operation_id = "getWorkflowTaskHistoryPage", request_body = HistoryPageRequest,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "A page."), (status = 400, description = "The token is not one."),
        (status = 404, description = "There is no such task."), (status = 409, description = "The caller does not hold it.")))]
#[post("/workflow-tasks/{taskId}/history")]
pub async fn get_workflow_task_history_page(
    call: Box<Call<WorkerOnly, HistoryPageRequest>>,
    task: Path<String>,
) -> Native {
    Native(history_page(call, &task).await)
}

async fn history_page(
    call: Box<Call<WorkerOnly, HistoryPageRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let mut problems = Problems::default();
    let token = problems.agree(
        "page_token",
        body.page_token.as_deref(),
        body.next_history_page_token.as_deref(),
    );
    if let Some(Int(size)) = body.history_page_size {
        problems.within("history_page_size", size, 1..=1_000);
    }
    if let Some(Int(size)) = body.page_size {
        problems.within("page_size", size, 1..=i64::MAX);
    }
    problems.into_result()?;
    let history = &call.api.settings.history;
    let size = body.page_size.or(body.history_page_size);
    let size = size.map_or(history.page_size_default.into(), |Int(n)| {
        u64::try_from(n).unwrap_or(1)
    });
    let size = size.min(history.page_size_max.into());
    let holder =
        leases::workflow_holder(&call.namespace, task, &named, body.workflow_task_attempt)?;
    let wrong_token = || {
        Failure::new(
            StatusCode::BAD_REQUEST,
            Reason::InvalidPageToken,
            "The page token is none that this server gave for the run.",
        )
        .with("task_id", task)
    };
    let after = match token {
        None => 0,
        Some(token) => page_tokens::read_of_run(holder.task.run, token).ok_or_else(wrong_token)?,
    };
    let read = call
        .api
        .engine
        .workflow_task_history(holder.clone(), after, size)
        .await;
    let (page, seen, attempt, state) =
        read.map_err(|refused| leases::workflow_refusal(refused, &holder, "rejected"))?;
    if after > seen {
        return Err(wrong_token());
    }
    let encoding = body
        .accept_history_encoding
        .as_deref()
        .and_then(HistoryEncoding::accepted);
    #[derive(serde::Serialize)]
    struct HistoryPage<'a> {
        task_id: &'a str,
        workflow_task_attempt: u32,
    }
    let shown = HistoryPage {
        task_id: task,
        workflow_task_attempt: attempt,
    };
    let mut fields = Fields::default();
    fields.fields(b'{', &shown)?;
    tasks::ShownHistory::new(&state, page, seen, encoding).push_to(&mut fields)?;
    fields.push("}");
    Ok(Answer::raw(fields))
}

/// `TaskHeartbeatRequest` of a workflow task
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkflowTaskHeartbeatRequest {
    /// Part of the contract; the progress of a workflow task is its history.
    #[allow(dead_code, reason = "part of the contract, without effect here")]
    #[schema(value_type = Option<serde_json::Value>)]
    progress: Option<serde::de::IgnoredAny>,
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    workflow_task_attempt: Option<Int>,
}

/// Renews the lease of a workflow task.
#[utoipa::path(tag = "workflow-tasks", operation_id = "heartbeatWorkflowTask", request_body = WorkflowTaskHeartbeatRequest,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The lease is renewed."), (status = 404, description = "There is no such task."),
        (status = 409, description = "The caller does not hold it.")))]
#[post("/workflow-tasks/{taskId}/heartbeat")]
pub async fn heartbeat_workflow_task(
    call: Box<Call<WorkerOnly, WorkflowTaskHeartbeatRequest>>,
    task: Path<String>,
) -> Native {
    Native(heartbeat(call, &task).await)
}

async fn heartbeat(
    call: Box<Call<WorkerOnly, WorkflowTaskHeartbeatRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let holder =
        leases::workflow_holder(&call.namespace, task, &named, body.workflow_task_attempt)?;
    let renewed = call
        .api
        .engine
        .heartbeat_workflow_task(holder.clone())
        .await;
    let renewed = renewed.map_err(|refused| {
        leases::workflow_refusal(refused, &holder, "rejected")
            .with("operation", "heartbeat_workflow_task")
            .with("renewed", false)
    })?;
    let mut fields = json!({
        "task_id": task,
        "workflow_task_attempt": renewed.attempt,
        "lease_owner": holder.owner.as_str(),
        "renewed": true,
        "lease_expires_at": renewed.lease_expires_at,
        "run_status": if renewed.state.progressed { "running" } else { "pending" },
        "task_status": "leased",
        "reason": null,
    });
    if let Some(cancellation) = renewed.state.cancellation.as_deref() {
        fields["cancellation_request"] = request_object(cancellation);
    }
    Answer::of(&fields)
}

/// `WorkflowTaskCompleteRequest`
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkflowTaskCompleteRequest {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    workflow_task_attempt: Option<Int>,
    /// What the workflow asks for, in order.
    commands: Option<Vec<CommandRequest>>,
    /// Message streams up to which position they were read.
    message_stream_cursors: Option<Vec<serde_json::Value>>,
    /// Message streams that are waited on.
    message_stream_waits: Option<Vec<serde_json::Value>>,
    /// The worker keeps the run in memory.
    #[schema(value_type = Option<serde_json::Value>)]
    sticky_cache: Option<Box<RawValue>>,
}

/// Completes a workflow task.
#[utoipa::path(tag = "workflow-tasks", operation_id = "completeWorkflowTask", request_body = WorkflowTaskCompleteRequest,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The commands are recorded."), (status = 404, description = "There is no such task."),
        (status = 409, description = "The caller does not hold it, the commands contradict each other or the run, or the version or the registration does not bring along what they need."),
        (status = 422, description = "A command is not valid, or a limit of the run would be exceeded.")))]
#[post("/workflow-tasks/{taskId}/complete")]
pub async fn complete_workflow_task(
    call: Box<Call<Reporter, WorkflowTaskCompleteRequest>>,
    task: Path<String>,
) -> Native {
    Native(Box::pin(complete(call, &task)).await)
}

async fn complete(
    mut call: Box<Call<Reporter, WorkflowTaskCompleteRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let sent = call.body.commands.take();
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let Some(sent) = sent else {
        return Err(Problems::of("commands", "is required").into());
    };
    let holder =
        leases::workflow_holder(&call.namespace, task, &named, body.workflow_task_attempt)?;
    let engine = &call.api.engine;
    let streams_used = streams::is_used(&body.message_stream_cursors, &body.message_stream_waits);
    let sticky = body
        .sticky_cache
        .as_deref()
        .filter(|raw| raw.get() != "null")
        .filter(|_| {
            // Unknown to an older server, and so ignored.
            let (supported, advertised) = (&call.api.supported, &call.api.advertised);
            supported.offers(advertised, Feature::StickyExecution)
        });
    let checked = check(&call, sent, streams_used, sticky, &holder).await;
    let (commands, streams, keep) = match checked {
        Ok(checked) => checked,
        // A gate is no business of a caller that does not hold the task.
        Err(failure) if failure.is_conflict() => {
            let held = engine.holds_workflow_task(&holder).await;
            held.map_err(|refused| {
                leases::workflow_refusal(refused, &holder, "completed")
                    .with("operation", "complete_workflow_task")
            })?;
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    let reported = engine
        .complete_workflow_task(holder.clone(), call.digest, commands, streams, keep)
        .await;
    let reported = reported.map_err(|refused| {
        leases::workflow_refusal(refused, &holder, "completed")
            .with("operation", "complete_workflow_task")
    })?;
    recorded(&holder, &reported)
}

/// What a completion asks for, after the checks of its fields and the gates of version and capability.
async fn check(
    call: &Call<Reporter, WorkflowTaskCompleteRequest>,
    sent: Vec<CommandRequest>,
    streams_used: bool,
    sticky: Option<&RawValue>,
    holder: &Holder,
) -> Result<(Vec<Command>, StreamReport, Option<Keep>), Failure> {
    let (body, engine) = (&call.body, &call.api.engine);
    let worker = if streams_used || sticky.is_some() || commands::needs_registration(&sent) {
        engine.worker(&call.namespace, &holder.owner).await?
    } else {
        None
    };
    let offered = &call.api.commands;
    commands::gate(&sent, &call.version, offered, worker.as_deref(), holder)?;
    if streams_used {
        let offered = call
            .api
            .supported
            .offers(&call.api.advertised, Feature::MessageStreams);
        streams::gate(offered, &call.version, worker.as_deref(), holder)?;
    }
    let commands = commands::read(sent, &call.version, offered)?;
    let streams = streams::read(&body.message_stream_cursors, &body.message_stream_waits)?;
    let keep = match sticky {
        None => None,
        Some(raw) => {
            let workflow = engine.workflow_of(holder).await?;
            let workflow = workflow.as_ref().map(|workflow| workflow.as_str());
            let worker = worker.as_deref();
            Some(sticky::read(raw, &call.version, worker, holder, workflow)?)
        }
    };
    Ok((commands, streams, keep))
}

/// The answer to a report that was taken.
fn recorded(holder: &Holder, reported: &Reported) -> Result<Answer, Failure> {
    #[derive(serde::Serialize)]
    struct Recorded {
        task_id: TaskId,
        workflow_task_attempt: u32,
        run_id: RunId,
        run_status: &'static str,
        outcome: &'static str,
        recorded: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        duplicate: Option<bool>,
        created_task_ids: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_task_id: Option<Option<String>>,
        reason: Option<Reason>,
    }
    let state = &reported.state;
    let mut fields = Recorded {
        task_id: holder.task,
        workflow_task_attempt: reported.attempt,
        run_id: state.id,
        run_status: state.status().as_str(),
        outcome: "completed",
        recorded: true,
        duplicate: None,
        created_task_ids: Vec::new(),
        next_task_id: None,
        reason: None,
    };
    match &reported.reply {
        Reply::Reported {
            report,
            created,
            next,
            duplicate,
        } => {
            let next = next.map(|no| leases::task_ids(state.id, &[no]));
            fields.outcome = report.outcome();
            fields.duplicate = Some(*duplicate);
            fields.created_task_ids = leases::task_ids(state.id, created);
            fields.next_task_id = Some(next.and_then(|ids| ids.into_iter().next()));
            Answer::of(&fields)
        }
        Reply::ClosedMeanwhile(close) => {
            fields.outcome = "ignored";
            fields.recorded = false;
            fields.reason = Some(Reason::RunClosed);
            let mut ignored = json!(fields);
            if let (Some(ignored), serde_json::Value::Object(closed)) =
                (ignored.as_object_mut(), leases::closed(state, close))
            {
                for (key, value) in closed {
                    ignored.entry(key).or_insert(value);
                }
            }
            Answer::of(&ignored)
        }
        _ => Answer::of(&fields),
    }
}

/// `TaskFailureRequest` of a workflow task
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkflowTaskFailureRequest {
    /// Part of the contract; a workflow task is always tried again.
    #[allow(dead_code, reason = "part of the contract, without effect here")]
    non_retryable: Option<bool>,
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    workflow_task_attempt: Option<Int>,
    /// What went wrong, the SDKs' spelling.
    failure: Option<TaskFailureBody>,
    /// What went wrong.
    error: Option<String>,
    /// Type of the error.
    exception_type: Option<String>,
    /// Human sentence.
    message: Option<String>,
}

/// Why a worker could not process a workflow task.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct TaskFailureBody {
    message: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    reason: Option<String>,
    sequence: Option<Int>,
    #[allow(
        dead_code,
        reason = "part of the contract; traces stay with the worker"
    )]
    stack_trace: Option<String>,
}

/// Longest sentence of a failure that is kept.
const MAX_KEPT_MESSAGE: usize = 4_096;

/// Reports that a workflow task could not be processed, or that there was nothing to do.
#[utoipa::path(tag = "workflow-tasks", operation_id = "failWorkflowTask", request_body = WorkflowTaskFailureRequest,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The report is recorded."), (status = 404, description = "There is no such task."),
        (status = 409, description = "The caller does not hold it."), (status = 422, description = "Fields.")))]
#[post("/workflow-tasks/{taskId}/fail")]
pub async fn fail_workflow_task(
    call: Box<Call<Reporter, WorkflowTaskFailureRequest>>,
    task: Path<String>,
) -> Native {
    Native(fail(call, &task).await)
}

async fn fail(
    call: Box<Call<Reporter, WorkflowTaskFailureRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let flat = TaskFailureBody {
        message: body.message.clone().or_else(|| body.error.clone()),
        kind: body.exception_type.clone(),
        ..TaskFailureBody::default()
    };
    let said = body.failure.clone().unwrap_or(flat);
    let mut problems = Problems::default();
    if said.message.is_none() {
        problems.add("failure.message", "is required");
    }
    for (field, value, max) in [
        ("failure.type", &said.kind, 512),
        ("failure.reason", &said.reason, 191),
    ] {
        if value
            .as_ref()
            .is_some_and(|text| text.chars().count() > max)
        {
            problems.add(field, format!("must have at most {max} characters"));
        }
    }
    if let Some(Int(sequence)) = said.sequence {
        problems.within("failure.sequence", sequence, 1..=i64::MAX);
    }
    problems.into_result()?;
    let holder =
        leases::workflow_holder(&call.namespace, task, &named, body.workflow_task_attempt)?;
    let engine = &call.api.engine;
    let reported = engine
        .fail_workflow_task(holder.clone(), call.digest, failure(&said))
        .await;
    let reported = reported.map_err(|refused| {
        leases::workflow_refusal(refused, &holder, "failed").with("operation", "fail_workflow_task")
    })?;
    if let Reply::Reported {
        report: ReportKind::Failed,
        ..
    } = &reported.reply
    {
        tracing::warn!(task = %holder.task, kind = said.kind, reason = said.reason, "workflow task failed by its worker");
    }
    recorded(&holder, &reported)
}

fn failure(said: &TaskFailureBody) -> TaskFailure {
    let message = said.message.as_deref().unwrap_or_default();
    let kind = said.kind.as_deref().unwrap_or_default();
    let kept: String = message.chars().take(MAX_KEPT_MESSAGE).collect();
    if replay::is_waiting(kind, message) {
        TaskFailure::WaitingForHistory
    } else if replay::is_blocked(said.reason.as_deref(), kind, message) {
        TaskFailure::Blocked(kept.into())
    } else {
        TaskFailure::Other(kept.into())
    }
}
