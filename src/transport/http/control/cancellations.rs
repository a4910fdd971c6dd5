//! Cooperative cancellation: a workflow is asked to clean up and end.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::json;

use crate::domain::ids::TaskId;
use crate::domain::run::{CancellationRequest, CommandKind, ObservedLease};
use crate::engine::{CancellationAsked, CancellationError};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

use super::super::fields::Int;
use super::super::native::cancellation_request;
use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, OperatorOrAdmin};
use super::commands::{refusal, scope, target};

/// Longest reason.
const MAX_REASON: usize = 1_000;
/// Seconds that a cleanup may take when nothing is said.
const DEFAULT_CLEANUP_SECONDS: i64 = 600;
/// Seconds that a cleanup may take at most.
const MAX_CLEANUP_SECONDS: i64 = 3_600;

/// A wish to cancel a workflow with its cooperation.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct CancellationRequestBody {
    /// Why.
    reason: Option<String>,
    /// Seconds that the cleanup may take, up to 3600; 600 when it is left out.
    cleanup_timeout_seconds: Option<Int>,
}

/// Asks the current run of a workflow to clean up and end.
#[utoipa::path(tag = "workflows", operation_id = "requestWorkflowCancellation", request_body = CancellationRequestBody,
    params(("workflowId" = String, Path, description = "The workflow.")),
    responses((status = 202, description = "Accepted."), (status = 200, description = "It had been accepted before."),
        (status = 404, description = "There is no such workflow."), (status = 409, description = "The run is closed, or nobody can cooperate."),
        (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/request-cancellation")]
pub async fn request_workflow_cancellation(
    call: Box<Call<OperatorOrAdmin, CancellationRequestBody>>,
    path: Path<String>,
) -> Control {
    Control(request(call, path.into_inner(), None).await)
}

/// Asks a run, which must be the current one, to clean up and end.
#[utoipa::path(tag = "workflows", operation_id = "requestWorkflowRunCancellation", request_body = CancellationRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run.")),
    responses((status = 202, description = "Accepted."), (status = 200, description = "It had been accepted before."),
        (status = 404, description = "There is no such workflow or run."),
        (status = 409, description = "The run is closed or not the current one, or nobody can cooperate."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/runs/{runId}/request-cancellation")]
pub async fn request_workflow_run_cancellation(
    call: Box<Call<OperatorOrAdmin, CancellationRequestBody>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, run) = path.into_inner();
    Control(request(call, workflow_id, Some(run)).await)
}

async fn request(
    call: Box<Call<OperatorOrAdmin, CancellationRequestBody>>,
    workflow_id: String,
    run: Option<String>,
) -> Result<Answer, Answer> {
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
    let seconds = body
        .cleanup_timeout_seconds
        .map_or(DEFAULT_CLEANUP_SECONDS, |Int(n)| n);
    problems.within("cleanup_timeout_seconds", seconds, 1..=MAX_CLEANUP_SECONDS);
    problems.into_result()?;
    let offered = call
        .api
        .supported
        .offers(&call.api.advertised, Feature::CooperativeCancellation);
    if !offered {
        return Err(Answer::refuse(
            StatusCode::CONFLICT,
            Reason::CooperativeCancellationNotSupported,
            "Cooperative cancellation needs an advertised worker protocol of 1.20.",
        )
        .with("minimum_protocol_version", "1.20")
        .with(
            "remediation",
            "Set DW_WORKER_PROTOCOL_VERSION to 1.20, or use cancel, which needs no cooperation.",
        ));
    }
    let target = target(&call, workflow_id, run);
    let request = CancellationRequest {
        reason: body.reason.as_deref().map(Arc::from),
        cleanup_timeout_seconds: u64::try_from(seconds).unwrap_or(0),
        parent: None,
        lease: ObservedLease::Unknown,
    };
    let asked = call
        .api
        .engine
        .request_cancellation(&target, &request)
        .await;
    let CancellationAsked {
        state,
        cancellation,
        duplicate,
    } = asked.map_err(|error| match error {
        CancellationError::ClaimCannotCooperate { run, no, attempt } => Answer::refuse(
            StatusCode::CONFLICT,
            Reason::ActiveClaimCancellationNotSupported,
            "The worker that holds the workflow task cannot take part in a cancellation.",
        )
        .with("run_id", run.to_string())
        .with("task_id", TaskId { run, no }.to_string())
        .with("workflow_task_attempt", attempt),
        CancellationError::Command(error) => {
            refusal(error, &target, CommandKind::RequestCancellation, None)
        }
    })?;
    let context = &cancellation.context;
    let mut shown = cancellation_request(&cancellation);
    shown["root_request_id"] = (*context.root_request_id).into();
    shown["reason"] = json!(context.reason);
    shown["requester"] = json!(context.requester);
    shown["source"] = json!(context.source);
    shown["deadline_at"] = json!(context.cleanup_deadline_at);
    shown["lineage"] = json!(context.lineage);
    let status = if duplicate {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    Ok(Answer::new(
        status,
        json!({
            "workflow_id": target.workflow_id.as_str(),
            "run_id": state.id,
            "accepted": true,
            "duplicate": duplicate,
            "run_status": state.status().as_str(),
            "target_scope": scope(&target),
            "outcome": "cancellation_requested",
            "cancellation_request": shown,
            "reason": null,
        }),
    ))
}
