//! Queries: asked of a worker, never recorded.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::domain::routing::TaskKind;
use crate::engine::{AskError, CommandTarget, Question, Told};
use crate::payload::Payload;
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, OperatorOrAdmin};
use super::commands::{scope, target};
use super::inputs::{MAX_SHOWN_RESULT, check_name};
use super::start::input;

/// A query.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct QueryRequestBody {
    /// Arguments: a plain list, or an envelope.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
}

/// Queries the current run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "queryWorkflow", request_body = QueryRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("queryName" = String, Path, description = "The query.")),
    responses((status = 200, description = "The answer."), (status = 404, description = "There is no such workflow or query."),
        (status = 409, description = "Nobody can answer, or the handler refused."), (status = 422, description = "Fields, or the arguments do not fit."),
        (status = 429, description = "Too many queries wait."), (status = 504, description = "Nobody answered in time.")))]
#[post("/workflows/{workflowId}/query/{queryName}")]
pub async fn query_workflow(
    call: Box<Call<OperatorOrAdmin, QueryRequestBody>>,
    path: Path<(String, String)>,
) -> Control {
    let (workflow_id, name) = path.into_inner();
    Control(query(call, workflow_id, None, name).await)
}

/// Queries a run of a workflow.
#[utoipa::path(tag = "workflows", operation_id = "queryWorkflowRun", request_body = QueryRequestBody,
    params(("workflowId" = String, Path, description = "The workflow."), ("runId" = String, Path, description = "The run."),
        ("queryName" = String, Path, description = "The query.")),
    responses((status = 200, description = "The answer."), (status = 404, description = "There is no such workflow, run or query."),
        (status = 409, description = "Nobody can answer, or the handler refused."), (status = 422, description = "Fields, or the arguments do not fit."),
        (status = 429, description = "Too many queries wait."), (status = 504, description = "Nobody answered in time.")))]
#[post("/workflows/{workflowId}/runs/{runId}/query/{queryName}")]
pub async fn query_workflow_run(
    call: Box<Call<OperatorOrAdmin, QueryRequestBody>>,
    path: Path<(String, String, String)>,
) -> Control {
    let (workflow_id, run, name) = path.into_inner();
    Control(query(call, workflow_id, Some(run), name).await)
}

async fn query(
    call: Box<Call<OperatorOrAdmin, QueryRequestBody>>,
    workflow_id: String,
    run: Option<String>,
    name: String,
) -> Result<Answer, Answer> {
    let target = target(&call, workflow_id, run);
    let mut problems = Problems::default();
    check_name(&mut problems, "query_name", &name);
    let settings = call.api.engine.settings();
    let limit = settings.run.limits.payload_bytes;
    let arguments = input(&mut problems, "input", call.body.input.as_deref(), limit);
    problems.into_result()?;
    let question = Question {
        kind: TaskKind::Query,
        target: target.clone(),
        name: name.as_str().into(),
        arguments,
        timeout: Duration::from_millis(settings.query_timeout_ms),
    };
    let about = |answer: Answer, target: &CommandTarget| {
        answer
            .with("workflow_id", target.workflow_id.as_str())
            .with("query_name", name.as_str())
            .with("target_scope", scope(target))
    };
    let answered = call
        .api
        .engine
        .ask(question)
        .await
        .map_err(|error| about(no_answer(error), &target))?;
    let run_id = answered.state.id.to_string();
    match answered.told {
        Told::Result { json, envelope } => {
            let plain = match &json {
                Some(json) => serde_json::from_str(json.get()).unwrap_or(Value::Null),
                None => envelope
                    .as_ref()
                    .and_then(|envelope| envelope.shown(MAX_SHOWN_RESULT))
                    .unwrap_or(Value::Null),
            };
            let envelope = envelope.or_else(|| Payload::from_json(&plain).ok());
            let answer = Answer::ok(json!({
                "run_id": run_id,
                "run_status": answered.state.status().as_str(),
                "result": plain,
                "result_envelope": envelope,
                "reason": null,
            }));
            Ok(about(answer, &target))
        }
        Told::Failed {
            reason,
            message,
            validation_errors,
        } => {
            let said = |known: Reason| reason == known.as_str();
            let status = if said(Reason::RejectedUnknownQuery) {
                StatusCode::NOT_FOUND
            } else if said(Reason::InvalidQueryArguments) {
                StatusCode::UNPROCESSABLE_ENTITY
            } else {
                StatusCode::CONFLICT
            };
            let answer = Answer::refuse(status, Reason::QueryRejected, message)
                .with("reason", reason)
                .with("validation_errors", json!(validation_errors))
                .with("run_id", run_id);
            Err(about(answer, &target))
        }
        Told::Approved => Err(crate::engine::Fault::Bug.into()),
    }
}

fn no_answer(error: AskError) -> Answer {
    let (status, reason, sentence, state) = match error {
        AskError::NotFound(missing) => return missing.into(),
        AskError::Fault(fault) => return fault.into(),
        AskError::NotActive(state) => {
            let answer = Answer::refuse(
                StatusCode::CONFLICT,
                Reason::RunNotActive,
                "The run is closed, and only a completed one can still be asked.",
            );
            return answer
                .with("run_id", state.id.to_string())
                .with("run_status", state.status().as_str())
                .with("is_terminal", true);
        }
        AskError::Undeclared { state, declared } => {
            let answer = Answer::refuse(
                StatusCode::NOT_FOUND,
                Reason::RejectedUnknownQuery,
                "The workflow has no query of this name.",
            );
            return about_run(answer.with("declared_queries", json!(declared)), &state);
        }
        AskError::Unavailable(state) => (
            StatusCode::CONFLICT,
            Reason::QueryWorkerUnavailable,
            "No live worker polls the run's queue.",
            state,
        ),
        AskError::Incompatible(state) => (
            StatusCode::CONFLICT,
            Reason::QueryWorkerIncompatible,
            "Live workers poll the run's queue, and none of them can answer for this run.",
            state,
        ),
        AskError::QueueFull(state) => {
            return about_run(
                Answer::refuse(
                    StatusCode::TOO_MANY_REQUESTS,
                    Reason::QueryTaskQueueFull,
                    "Too many queries wait on the run's queue.",
                )
                .retry_in(1),
                &state,
            );
        }
        AskError::NotClaimed(state) => (
            StatusCode::GATEWAY_TIMEOUT,
            Reason::QueryTaskNotClaimed,
            "No worker took the query in time.",
            state,
        ),
        AskError::ExecutionTimeout(state) => (
            StatusCode::GATEWAY_TIMEOUT,
            Reason::QueryWorkerExecutionTimeout,
            "A worker took the query and did not answer in time.",
            state,
        ),
    };
    about_run(Answer::refuse(status, reason, sentence), &state)
}

fn about_run(answer: Answer, state: &Arc<crate::domain::run::RunState>) -> Answer {
    answer
        .with("run_id", state.id.to_string())
        .with("run_status", state.status().as_str())
        .with("task_queue", state.begun.queue.as_str())
}
