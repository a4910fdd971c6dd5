//! Commands that close, repair or archive a workflow, for the current run or for a run that must be the current
//! one; and what all commands to a workflow share.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::domain::ids::{Part, WorkflowId, part_id};
use crate::domain::run::CommandKind;
use crate::engine::{Accepted, CommandError, CommandTarget};
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, OperatorOrAdmin};

/// Longest key of a caller.
const MAX_REQUEST_ID: usize = 255;
/// Longest reason.
const MAX_REASON: usize = 1_000;

pub(super) fn target<T>(
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

pub(super) fn check_request_id(problems: &mut Problems, request_id: Option<&str>) {
    if let Some(request_id) = request_id {
        problems.text("request_id", request_id, MAX_REQUEST_ID);
    }
}

/// What a caller is told of a command that was accepted.
pub(super) fn receipt(
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

pub(super) fn scope(target: &CommandTarget) -> &'static str {
    if target.run.is_some() {
        "run"
    } else {
        "instance"
    }
}

pub(super) fn refusal(
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
        .with(
            "retained_outcome",
            (kind == CommandKind::Signal).then_some("signal_received"),
        )
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
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
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
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
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
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
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
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    Control(close(call, workflow_id, Some(run), CommandKind::Terminate).await)
}

/// Makes the workflow task of a run ready at once that failed, was put off or was given up.
#[utoipa::path(tag = "workflows", operation_id = "repairWorkflow", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "It is ready, or there was nothing to repair."), (status = 404, description = "There is no such workflow."),
        (status = 409, description = "The run is closed."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/repair")]
pub async fn repair_workflow(
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
    path: Path<String>,
) -> Control {
    Control(close(call, path.into_inner(), None, CommandKind::Repair).await)
}

/// Archives the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "archiveWorkflow", request_body = CloseRequestBody,
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 200, description = "It is archived."), (status = 404, description = "There is no such workflow."),
        (status = 409, description = "The state of the run does not allow it."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/archive")]
pub async fn archive_workflow(
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
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
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    Control(close(call, workflow_id, Some(run), CommandKind::Archive).await)
}

async fn close(
    call: Box<Call<OperatorOrAdmin, CloseRequestBody>>,
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
        CommandKind::Repair if accepted.command.is_none() => "repair_not_needed",
        CommandKind::Repair => "repair_dispatched",
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
