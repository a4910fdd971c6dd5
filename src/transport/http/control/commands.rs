//! Commands to a workflow: signal, cancel, terminate, archive; for the current run, or for a run that
//! must be the current one.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::domain::ids::{Part, WorkflowId, part_id};
use crate::domain::run::CommandKind;
use crate::engine::{Accepted, CommandError, CommandTarget, SignalCommand};
use crate::protocol::reason::Reason;

use super::super::body;
use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, OperatorOrAdmin};
use super::start::input;

/// Longest key of a caller.
const MAX_REQUEST_ID: usize = 255;
/// Longest reason.
const MAX_REASON: usize = 1_000;
/// Longest name of a signal, in bytes.
const MAX_SIGNAL_NAME: usize = 256;

/// A signal.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct SignalRequestBody {
    /// Arguments: a plain list, or an envelope.
    #[schema(value_type = Option<Object>)]
    input: Option<Box<RawValue>>,
    /// The caller's key; a repeat under it has no further effect.
    request_id: Option<String>,
    /// Only look what would happen; not served yet, and never taken for the signal itself.
    dry_run: Option<bool>,
}

/// Signals the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "signalWorkflow", request_body = SignalRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("signalName" = String, Path, description = "The signal.")),
    responses((status = 202, description = "Accepted, now or before."), (status = 404, description = "There is no such workflow."),
        (status = 409, description = "The run is closed, or the key stood for something else."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/signal/{signalName}")]
pub async fn signal_workflow(
    call: Call<OperatorOrAdmin, SignalRequestBody>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, name) = path.into_inner();
    Control(signal(call, workflow_id, None, name).await)
}

/// Signals a run that must be the current one.
#[utoipa::path(tag = "workflows", operation_id = "signalWorkflowRun", request_body = SignalRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run."),
        ("signalName" = String, Path, description = "The signal.")),
    responses((status = 202, description = "Accepted, now or before."), (status = 404, description = "There is no such workflow or run."),
        (status = 409, description = "The run is closed or not the current one, or the key stood for something else."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/runs/{runId}/signal/{signalName}")]
pub async fn signal_workflow_run(
    call: Call<OperatorOrAdmin, SignalRequestBody>,
    path: Path<(String, String, String)>,
) -> Control {
    let (workflow_id, run, name) = path.into_inner();
    Control(signal(call, workflow_id, Some(run), name).await)
}

fn target<T>(
    call: &Call<OperatorOrAdmin, T>,
    workflow_id: String,
    run: Option<String>,
) -> CommandTarget {
    CommandTarget {
        namespace: call.namespace.clone(),
        workflow_id: WorkflowId::from(workflow_id),
        run: run.map(Arc::from),
    }
}

async fn signal(
    call: Call<OperatorOrAdmin, SignalRequestBody>,
    workflow_id: String,
    run: Option<String>,
    name: String,
) -> Result<Answer, Answer> {
    let target = target(&call, workflow_id, run);
    let mut problems = Problems::default();
    if name.is_empty() || name.len() > MAX_SIGNAL_NAME || name.chars().any(char::is_control) {
        problems.add(
            "signal_name",
            format!("must have 1 to {MAX_SIGNAL_NAME} bytes and no control characters"),
        );
    }
    if name.starts_with("__durable_workflow_") {
        problems.add(
            "signal_name",
            "names that begin with __durable_workflow_ are reserved",
        );
    }
    if call.body.dry_run == Some(true) {
        problems.add("dry_run", "is not supported by this server");
    }
    let limit = call.api.engine.settings().run.limits.payload_bytes;
    let arguments = input(&mut problems, "input", call.body.input.as_deref(), limit);
    check_request_id(&mut problems, call.body.request_id.as_deref());
    problems.into_result()?;
    let command = SignalCommand {
        name: name.as_str().into(),
        digest: body::digest(arguments.blob.as_bytes()),
        arguments,
        request_id: call.body.request_id.as_deref().map(Arc::from),
    };
    let accepted = call.api.engine.signal(&target, command).await;
    let accepted = accepted.map_err(|error| {
        refusal(
            error,
            &target,
            CommandKind::Signal,
            call.body.request_id.as_deref(),
        )
        .with("signal_name", name.as_str())
    })?;
    let mut fields = receipt(
        &accepted,
        &target,
        call.body.request_id.as_deref(),
        "signal_received",
    );
    fields["signal_name"] = name.into();
    fields["intent_verified"] = true.into();
    Ok(Answer::new(StatusCode::ACCEPTED, fields))
}

fn check_request_id(problems: &mut Problems, request_id: Option<&str>) {
    if let Some(request_id) = request_id {
        problems.text("request_id", request_id, MAX_REQUEST_ID);
    }
}

/// What a caller is told of a command that was accepted.
fn receipt(
    accepted: &Accepted,
    target: &CommandTarget,
    request_id: Option<&str>,
    outcome: &str,
) -> Value {
    let run = accepted.run;
    json!({
        "workflow_id": target.workflow_id.as_str(),
        "run_id": run,
        "requested_run_id": target.run,
        "resolved_run_id": run,
        "workflow_type": accepted.state.begun.workflow_type,
        "outcome": outcome,
        "command_id": accepted.command.map(|n| part_id(run, Part::Command, n)),
        "command_sequence": accepted.command,
        "command_status": "accepted",
        "command_source": "control_plane",
        "target_scope": scope(target),
        "request_id": request_id,
        "retained": accepted.retained,
        "run_status": accepted.state.status().as_str(),
        "reason": null,
    })
}

fn scope(target: &CommandTarget) -> &'static str {
    if target.run.is_some() {
        "run"
    } else {
        "instance"
    }
}

fn refusal(
    error: CommandError,
    target: &CommandTarget,
    kind: CommandKind,
    request_id: Option<&str>,
) -> Answer {
    let rejected = |status, reason: Reason, outcome: &str, sentence: &str| {
        Answer::refuse(status, reason, sentence)
            .with("outcome", outcome)
            .with("rejection_reason", reason.as_str())
            .with("command_status", "rejected")
    };
    let answer = match error {
        CommandError::NoSuchWorkflow => rejected(
            StatusCode::NOT_FOUND,
            Reason::InstanceNotFound,
            "rejected_not_found",
            "There is no such workflow.",
        ),
        CommandError::NoSuchRun => rejected(
            StatusCode::NOT_FOUND,
            Reason::RunNotFound,
            "rejected_not_found",
            "The workflow has no such run.",
        ),
        CommandError::NotCurrent { current } => rejected(
            StatusCode::CONFLICT,
            Reason::SelectedRunNotCurrent,
            "rejected_not_current",
            "The run is not the current one of its workflow.",
        )
        .with("resolved_run_id", current.to_string()),
        CommandError::NotActive(state, close) => rejected(
            StatusCode::CONFLICT,
            Reason::RunNotActive,
            "rejected_not_active",
            "The run is closed.",
        )
        .with("run_id", state.id.to_string())
        .with("run_status", state.status().as_str())
        .with("closed_reason", close.reason.as_str())
        .with("is_terminal", true),
        CommandError::NotClosed(state) => rejected(
            StatusCode::CONFLICT,
            Reason::RunNotClosed,
            "rejected_run_not_closed",
            "Only a closed run can be archived.",
        )
        .with("run_id", state.id.to_string())
        .with("run_status", state.status().as_str()),
        CommandError::KeyConflict { receipt, differs } => Answer::refuse(
            StatusCode::CONFLICT,
            Reason::RequestIdConflict,
            "The request id was used for another command.",
        )
        .with(
            "retained_command_id",
            part_id(receipt.run, Part::Command, receipt.command),
        )
        .with("retained_command_type", kind.as_str())
        .with("retained_outcome", "signal_received")
        .with("conflict", differs),
        CommandError::Limit {
            kind,
            current,
            configured,
        } => rejected(
            StatusCode::CONFLICT,
            Reason::StructuralLimitExceeded,
            "rejected_limit",
            "The run has too many of these open.",
        )
        .with("limit_kind", kind.as_str())
        .with("current_value", current)
        .with("configured_limit", configured),
        CommandError::Fault(fault) => Answer::from(fault),
    };
    answer
        .with("workflow_id", target.workflow_id.as_str())
        .with("requested_run_id", target.run.as_deref())
        .with("target_scope", scope(target))
        .with("request_id", request_id)
}

/// A wish to close or archive a run.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct CloseRequestBody {
    /// Why.
    reason: Option<String>,
    /// The caller's key.
    request_id: Option<String>,
}

/// Cancels the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "cancelWorkflow", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "It is cancelled."), (status = 404, description = "There is no such workflow."),
        (status = 409, description = "The state of the run does not allow it."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/cancel")]
pub async fn cancel_workflow(
    call: Call<OperatorOrAdmin, CloseRequestBody>,
    path: Path<String>,
) -> Control {
    Control(close(call, path.into_inner(), None, CommandKind::Cancel).await)
}

/// Cancels a run that must be the current one.
#[utoipa::path(tag = "workflows", operation_id = "cancelWorkflowRun", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run.")),
    responses((status = 200, description = "It is cancelled."), (status = 404, description = "There is no such workflow or run."),
        (status = 409, description = "The run is not the current one, or its state does not allow it."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/runs/{runId}/cancel")]
pub async fn cancel_workflow_run(
    call: Call<OperatorOrAdmin, CloseRequestBody>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    Control(close(call, workflow_id, Some(run), CommandKind::Cancel).await)
}

/// Terminates the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "terminateWorkflow", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "It is terminated."), (status = 404, description = "There is no such workflow."),
        (status = 409, description = "The state of the run does not allow it."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/terminate")]
pub async fn terminate_workflow(
    call: Call<OperatorOrAdmin, CloseRequestBody>,
    path: Path<String>,
) -> Control {
    Control(close(call, path.into_inner(), None, CommandKind::Terminate).await)
}

/// Terminates a run that must be the current one.
#[utoipa::path(tag = "workflows", operation_id = "terminateWorkflowRun", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run.")),
    responses((status = 200, description = "It is terminated."), (status = 404, description = "There is no such workflow or run."),
        (status = 409, description = "The run is not the current one, or its state does not allow it."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/runs/{runId}/terminate")]
pub async fn terminate_workflow_run(
    call: Call<OperatorOrAdmin, CloseRequestBody>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    Control(close(call, workflow_id, Some(run), CommandKind::Terminate).await)
}

/// Archives the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "archiveWorkflow", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "It is archived."), (status = 404, description = "There is no such workflow."),
        (status = 409, description = "The state of the run does not allow it."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/archive")]
pub async fn archive_workflow(
    call: Call<OperatorOrAdmin, CloseRequestBody>,
    path: Path<String>,
) -> Control {
    Control(close(call, path.into_inner(), None, CommandKind::Archive).await)
}

/// Archives a run that must be the current one.
#[utoipa::path(tag = "workflows", operation_id = "archiveWorkflowRun", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run.")),
    responses((status = 200, description = "It is archived."), (status = 404, description = "There is no such workflow or run."),
        (status = 409, description = "The run is not the current one, or its state does not allow it."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/runs/{runId}/archive")]
pub async fn archive_workflow_run(
    call: Call<OperatorOrAdmin, CloseRequestBody>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    Control(close(call, workflow_id, Some(run), CommandKind::Archive).await)
}

async fn close(
    call: Call<OperatorOrAdmin, CloseRequestBody>,
    workflow_id: String,
    run: Option<String>,
    kind: CommandKind,
) -> Result<Answer, Answer> {
    let target = target(&call, workflow_id, run);
    let body = &call.body;
    let mut problems = Problems::default();
    if body
        .reason
        .as_ref()
        .is_some_and(|reason| reason.chars().count() > MAX_REASON)
    {
        problems.add(
            "reason",
            format!("must have at most {MAX_REASON} characters"),
        );
    }
    check_request_id(&mut problems, body.request_id.as_deref());
    problems.into_result()?;
    let reason = body
        .reason
        .as_deref()
        .filter(|reason| !reason.is_empty())
        .map(Arc::from);
    let request_id = body.request_id.as_deref().map(Arc::from);
    let accepted = call
        .api
        .engine
        .close(&target, kind, reason, request_id)
        .await;
    let accepted =
        accepted.map_err(|error| refusal(error, &target, kind, body.request_id.as_deref()))?;
    let outcome = match kind {
        CommandKind::Cancel => "cancelled",
        CommandKind::Terminate => "terminated",
        _ if accepted.command.is_none() => "archive_not_needed",
        _ => "archived",
    };
    Ok(Answer::ok(receipt(
        &accepted,
        &target,
        body.request_id.as_deref(),
        outcome,
    )))
}
