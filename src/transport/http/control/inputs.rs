//! Signals and updates, for the current run or for a run that must be the current one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::StatusCode;
use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::domain::routing::{TaskKind, ask_id};
use crate::domain::run::{CommandKind, Rejection};
use crate::engine::{
    Accepted, AskError, CommandError, CommandTarget, InputCommand, Question, Told, UpdateOutcome,
};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

use super::super::body;
use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, OperatorOrAdmin};
use super::commands::{check_request_id, receipt, refusal, scope, target};
use super::start::input;

/// Longest name of a signal, query or update, in bytes.
const MAX_NAME: usize = 256;
/// Longest wait for an update, in seconds: clients give up after 60.
const MAX_WAIT_SECONDS: i64 = 55;
/// Wait for an update when none is named, in seconds.
const DEFAULT_WAIT_SECONDS: i64 = 10;
/// How long a validator may take.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a result up to which it is also shown as plain JSON.
pub const MAX_SHOWN_RESULT: usize = 256 * 1024;

/// A signal.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct SignalRequestBody {
    /// Arguments: a plain list, or an envelope.
    #[schema(value_type = Option<serde_json::Value>)]
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
        (status = 409, description = "The run is closed, a limit is reached, or the key stood for something else."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/signal/{signalName}")]
pub async fn signal_workflow(
    call: Box<Call<OperatorOrAdmin, SignalRequestBody>>,
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
        (status = 409, description = "The run is closed or not the current one, a limit is reached, or the key stood for something else."), (status = 422, description = "Fields.")))]
#[post("/workflows/{workflowId}/runs/{runId}/signal/{signalName}")]
pub async fn signal_workflow_run(
    call: Box<Call<OperatorOrAdmin, SignalRequestBody>>,
    path: Path<(String, String, String)>,
) -> Control {
    let (workflow_id, run, name) = path.into_inner();
    Control(signal(call, workflow_id, Some(run), name).await)
}

/// The rule of names in a path.
pub fn check_name(problems: &mut Problems, field: &str, name: &str) {
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        problems.add(
            field,
            format!("must have 1 to {MAX_NAME} bytes and no control characters"),
        );
    }
}

/// A preview is refused: who asks for one must not get the thing itself.
fn check_no_preview(problems: &mut Problems, dry_run: Option<bool>) {
    if dry_run == Some(true) {
        problems.add("dry_run", "is not supported by this server");
    }
}

async fn signal(
    call: Box<Call<OperatorOrAdmin, SignalRequestBody>>,
    workflow_id: String,
    run: Option<String>,
    name: String,
) -> Result<Answer, Answer> {
    let target = target(&call, workflow_id, run);
    let mut problems = Problems::default();
    check_name(&mut problems, "signal_name", &name);
    if name.starts_with("__durable_workflow_") {
        problems.add(
            "signal_name",
            "names that begin with __durable_workflow_ are reserved",
        );
    }
    check_no_preview(&mut problems, call.body.dry_run);
    let limit = call.api.engine.settings().run.limits.payload_bytes;
    let arguments = input(&mut problems, "input", call.body.input.as_deref(), limit);
    let request_id = call.body.request_id.as_deref();
    check_request_id(&mut problems, request_id);
    problems.into_result()?;
    let command = InputCommand {
        name: name.as_str().into(),
        digest: body::digest(arguments.blob().as_bytes()),
        arguments,
        request_id: request_id.map(Arc::from),
        update_id: None,
    };
    let accepted = call.api.engine.signal(&target, &command).await;
    let accepted = accepted.map_err(|error| {
        refusal(error, &target, CommandKind::Signal, request_id).with("signal_name", name.as_str())
    })?;
    let mut fields = receipt(&accepted, &target, request_id, "signal_received");
    fields["signal_name"] = name.into();
    fields["intent_verified"] = true.into();
    Ok(Answer::new(StatusCode::ACCEPTED, fields))
}

/// An update.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct UpdateRequestBody {
    /// Arguments: a plain list, or an envelope.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
    /// `accepted` answers at once, `completed` waits for the handler.
    wait_for: Option<String>,
    /// Seconds to wait at most, up to 55; 10 when it is left out.
    wait_timeout_seconds: Option<Int>,
    /// The caller's key; a repeat under it asks after the same update.
    request_id: Option<String>,
    /// The old name of `wait_for`.
    #[schema(value_type = Option<serde_json::Value>)]
    wait_policy: Option<Value>,
    /// Only look what would happen; not served yet, and never taken for the update itself.
    dry_run: Option<bool>,
}

/// Updates the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "updateWorkflow", request_body = UpdateRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("updateName" = String, Path, description = "The update.")),
    responses((status = 200, description = "The handler has run."), (status = 202, description = "Accepted, now or before; the handler has not run."),
        (status = 404, description = "There is no such workflow or update."),
        (status = 409, description = "The run is closed, a limit is reached, the key stood for something else, or nobody can validate."), (status = 422, description = "Fields, or the handler or a validator refused."),
        (status = 504, description = "No validator answered in time.")))]
#[post("/workflows/{workflowId}/update/{updateName}")]
pub async fn update_workflow(
    call: Box<Call<OperatorOrAdmin, UpdateRequestBody>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, name) = path.into_inner();
    Control(update(call, workflow_id, None, name).await)
}

/// Updates a run that must be the current one.
#[utoipa::path(tag = "workflows", operation_id = "updateWorkflowRun", request_body = UpdateRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run."),
        ("updateName" = String, Path, description = "The update.")),
    responses((status = 200, description = "The handler has run."), (status = 202, description = "Accepted, now or before; the handler has not run."),
        (status = 404, description = "There is no such workflow, run or update."),
        (status = 409, description = "The run is closed or not the current one, a limit is reached, the key stood for something else, or nobody can validate."),
        (status = 422, description = "Fields, or the handler or a validator refused."), (status = 504, description = "No validator answered in time.")))]
#[post("/workflows/{workflowId}/runs/{runId}/update/{updateName}")]
pub async fn update_workflow_run(
    call: Box<Call<OperatorOrAdmin, UpdateRequestBody>>,
    path: Path<(String, String, String)>,
) -> Control {
    let (workflow_id, run, name) = path.into_inner();
    Control(update(call, workflow_id, Some(run), name).await)
}

/// How long a caller waits, and for what.
struct Wait {
    for_completion: bool,
    seconds: i64,
}

async fn update(
    call: Box<Call<OperatorOrAdmin, UpdateRequestBody>>,
    workflow_id: String,
    run: Option<String>,
    name: String,
) -> Result<Answer, Answer> {
    let target = target(&call, workflow_id, run);
    let mut problems = Problems::default();
    check_name(&mut problems, "update_name", &name);
    check_no_preview(&mut problems, call.body.dry_run);
    let limit = call.api.engine.settings().run.limits.payload_bytes;
    let arguments = input(&mut problems, "input", call.body.input.as_deref(), limit);
    let request_id = call.body.request_id.as_deref();
    check_request_id(&mut problems, request_id);
    let wait = wait(&mut problems, &call.body);
    problems.into_result()?;
    let began = Instant::now();
    let mut command = InputCommand {
        name: name.as_str().into(),
        digest: body::digest(arguments.blob().as_bytes()),
        arguments,
        request_id: request_id.map(Arc::from),
        update_id: None,
    };
    let refused = |error: CommandError| {
        refusal(error, &target, CommandKind::Update, request_id).with("update_name", name.as_str())
    };
    let engine = &call.api.engine;
    let retained = engine
        .retained(&target, CommandKind::Update, &command)
        .await;
    let accepted = match retained.map_err(refused)? {
        Some(retained) => retained,
        None => {
            if let Some(rejected) = admit(&call, &target, &mut command).await? {
                rejected
            } else {
                engine.update(&target, &command).await.map_err(refused)?
            }
        }
    };
    // A validator's time is part of the caller's wait.
    let left = if wait.for_completion {
        Duration::from_secs(u64::try_from(wait.seconds).unwrap_or(0))
            .saturating_sub(began.elapsed())
    } else {
        Duration::ZERO
    };
    let update_id = accepted.update_id.clone().unwrap_or_default();
    let (outcome, state) = engine
        .update_outcome(accepted.run, &update_id, left)
        .await?;
    let accepted = Accepted { state, ..accepted };
    let mut fields = receipt(&accepted, &target, request_id, "");
    let (status, rest) = outcome_fields(outcome.as_ref(), wait.for_completion);
    if let (Some(fields), Value::Object(rest)) = (fields.as_object_mut(), rest) {
        fields.extend(rest);
    }
    fields["update_id"] = (*update_id).into();
    fields["update_name"] = name.into();
    fields["wait_for"] = if wait.for_completion {
        "completed"
    } else {
        "accepted"
    }
    .into();
    fields["wait_timeout_seconds"] = wait.seconds.into();
    fields["intent_verified"] = true.into();
    Ok(Answer::new(status, fields))
}

fn wait(problems: &mut Problems, body: &UpdateRequestBody) -> Wait {
    let for_completion = match body.wait_for.as_deref() {
        None | Some("accepted") => false,
        Some("completed") => true,
        Some(_) => {
            problems.add("wait_for", "must be accepted or completed");
            false
        }
    };
    if body.wait_policy.is_some() {
        problems.add("wait_policy", "is not a field of an update; use wait_for");
    }
    let seconds = body
        .wait_timeout_seconds
        .map_or(DEFAULT_WAIT_SECONDS, |Int(n)| n);
    problems.within("wait_timeout_seconds", seconds, 1..=i64::MAX);
    Wait {
        for_completion,
        seconds: seconds.min(MAX_WAIT_SECONDS),
    }
}

/// The checks before an update is accepted: its name, and its validator. Returns a rejection that was
/// recorded.
async fn admit(
    call: &Call<OperatorOrAdmin, UpdateRequestBody>,
    target: &CommandTarget,
    command: &mut InputCommand,
) -> Result<Option<Accepted>, Answer> {
    let engine = &call.api.engine;
    let view = engine
        .describe(
            &target.namespace,
            &target.workflow_id,
            target.run.as_deref(),
        )
        .await?;
    if view.state.close.is_some() || !view.is_current {
        // The update itself says why not.
        return Ok(None);
    }
    let contract = engine.contract(&view.state).await?;
    let lists =
        |names: &Option<Arc<[Arc<str>]>>| names.as_ref().map(|names| names.contains(&command.name));
    if lists(&contract.updates) == Some(false) {
        return Err(Answer::refuse(
            StatusCode::NOT_FOUND,
            Reason::UnknownUpdate,
            "The workflow has no update of this name.",
        )
        .with("outcome", "rejected_unknown_update")
        .with("command_status", "rejected")
        .with("update_name", &*command.name)
        .with("declared_updates", json!(contract.updates))
        .with("target_scope", scope(target)));
    }
    let offered = call
        .api
        .supported
        .offers(&call.api.advertised, Feature::UpdateValidation);
    if !offered || lists(&contract.update_validators) != Some(true) {
        return Ok(None);
    }
    if command.request_id.is_none() {
        return Err(Answer::refuse(
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::UpdateValidationRequestIdRequired,
            "An update with a validator needs a request_id.",
        ));
    }
    validate(call, target, command).await
}

async fn validate(
    call: &Call<OperatorOrAdmin, UpdateRequestBody>,
    target: &CommandTarget,
    command: &mut InputCommand,
) -> Result<Option<Accepted>, Answer> {
    let question = Question {
        kind: TaskKind::UpdateValidation,
        target: target.clone(),
        name: Arc::clone(&command.name),
        arguments: command.arguments.clone(),
        timeout: VALIDATION_TIMEOUT,
    };
    let engine = &call.api.engine;
    let answered = engine
        .ask(question)
        .await
        .map_err(|error| validation_error(error, command))?;
    command.update_id = Some(ask_id(TaskKind::UpdateValidation, answered.id).into());
    match answered.told {
        Told::Failed {
            reason,
            message,
            validation_errors,
        } if reason == Reason::UpdateValidatorRejected.as_str() => {
            let rejection = Rejection {
                message: message.into(),
                validation_errors,
            };
            let rejected = engine.reject_update(target, command, rejection).await;
            rejected.map(Some).map_err(|error| {
                let request_id = command.request_id.as_deref();
                refusal(error, target, CommandKind::Update, request_id)
            })
        }
        Told::Failed { message, .. } => Err(Answer::refuse(
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::UpdateValidationWorkerFailed,
            message,
        )
        .with("update_name", &*command.name)
        .with("outcome", Value::Null)),
        Told::Approved | Told::Result { .. } => Ok(None),
    }
}

fn validation_error(error: AskError, command: &InputCommand) -> Answer {
    let conflict = |reason, sentence: &str| {
        Answer::refuse(StatusCode::CONFLICT, reason, sentence).with("retryable", true)
    };
    let answer = match error {
        AskError::NotFound(missing) => Answer::from(missing),
        AskError::Fault(fault) => Answer::from(fault),
        AskError::NotActive(state) => Answer::refuse(
            StatusCode::CONFLICT,
            Reason::RunNotActive,
            "The run is closed.",
        )
        .with("run_status", state.status().as_str()),
        // A validation is asked for by the name of a declared update.
        AskError::Undeclared { .. } => Answer::from(crate::engine::Fault::Bug),
        AskError::Unavailable(_) => conflict(
            Reason::UpdateValidatorWorkerUnavailable,
            "No live worker polls the run's queue.",
        ),
        AskError::Incompatible(_) => conflict(
            Reason::UpdateValidatorWorkerIncompatible,
            "No live worker of the queue can run this validator.",
        ),
        AskError::QueueFull(_) => conflict(
            Reason::UpdateValidatorWorkerUnavailable,
            "Too many validations wait on the queue.",
        ),
        AskError::NotClaimed(_) => Answer::refuse(
            StatusCode::GATEWAY_TIMEOUT,
            Reason::UpdateValidationTaskNotClaimed,
            "No worker took the validation in time.",
        ),
        AskError::ExecutionTimeout(_) => Answer::refuse(
            StatusCode::GATEWAY_TIMEOUT,
            Reason::UpdateValidationExecutionTimeout,
            "The validator did not answer in time.",
        ),
    };
    answer
        .with("update_name", &*command.name)
        .with("outcome", Value::Null)
}

/// What a caller is told of an update, by its outcome or the lack of one.
fn outcome_fields(outcome: Option<&UpdateOutcome>, waited: bool) -> (StatusCode, Value) {
    match outcome {
        None => (
            StatusCode::ACCEPTED,
            json!({
                "update_status": "accepted",
                "outcome": null,
                "result": null,
                "result_envelope": null,
                "wait_timed_out": waited,
                "reason": null,
            }),
        ),
        Some(UpdateOutcome::Rejected {
            message,
            validation_errors,
            at,
        }) => (
            StatusCode::UNPROCESSABLE_ENTITY,
            json!({
                "update_status": "rejected",
                "outcome": "rejected_by_validator",
                "command_status": "rejected",
                "rejected_at": at,
                "closed_at": at,
                "validation_errors": validation_errors,
                "reason": Reason::UpdateValidatorRejected,
                "message": message,
                "wait_timed_out": false,
            }),
        ),
        Some(UpdateOutcome::Completed { completed, at }) => match &completed.failure {
            None => (
                StatusCode::OK,
                json!({
                    "update_status": "completed",
                    "outcome": "update_completed",
                    "result": completed.result.as_ref().and_then(|result| result.shown(MAX_SHOWN_RESULT)),
                    "result_envelope": completed.result,
                    "applied_at": at,
                    "closed_at": at,
                    "wait_timed_out": false,
                    "reason": null,
                }),
            ),
            Some(failure) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                json!({
                    "update_status": "failed",
                    "outcome": "update_failed",
                    "failure_id": failure.failure_id,
                    "failure_message": failure.message,
                    "failure_type": failure.exception_type,
                    "failure_category": failure.failure_category,
                    "terminal_reason": failure.terminal_reason,
                    "closed_at": at,
                    "wait_timed_out": false,
                    "reason": Reason::UpdateFailed,
                    "message": failure.message,
                }),
            ),
        },
    }
}
