//! Activity tasks: poll, heartbeat, complete, fail.

use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::domain::command::Failure as ActivityFailure;
use crate::domain::event::Json;
use crate::domain::ids::{AttemptId, TaskId};
use crate::domain::routing::TaskKind;
use crate::domain::run::{ActivityOutcome, Reply};
use crate::domain::time::Timestamp;
use crate::engine::{Heartbeat, Holder, Reported};
use crate::payload::{Payload, PayloadError};
use crate::protocol::reason::Reason;

use super::super::problems::Problems;
use super::answer::{Answer, Failure, Native};
use super::call::{Call, Reporter, WorkerOnly};
use super::leases::{self, Named};
use super::polls::{self, PollBody};
use super::sessions;

type Raw = Option<Box<RawValue>>;

/// Bytes of what a heartbeat may say.
const MAX_DETAILS: usize = 65_536;
/// Bytes of a failure's message.
const MAX_MESSAGE: usize = 65_536;

/// Waits for an activity task.
#[utoipa::path(tag = "activity-tasks", operation_id = "pollActivityTask", request_body = PollBody,
    responses((status = 200, description = "A task, or none."), (status = 409, description = "The poll contradicts the registration."),
        (status = 412, description = "The worker is not registered."), (status = 422, description = "Fields."),
        (status = 429, description = "The node holds as many polls as it may."), (status = 503, description = "The database is away.")))]
#[post("/activity-tasks/poll")]
pub async fn poll_activity_task(call: Box<Call<WorkerOnly, PollBody>>) -> Native {
    Native(Box::pin(polls::poll(call, TaskKind::Activity)).await)
}

/// `TaskHeartbeatRequest` of an activity task
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct ActivityTaskHeartbeatRequest {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The attempt.
    activity_attempt_id: Option<String>,
    /// How far the activity is: any JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    progress: Raw,
    /// How far the activity is, in words.
    message: Option<String>,
    /// Done so far.
    current: Option<f64>,
    /// To be done in all.
    total: Option<f64>,
    /// What is counted.
    unit: Option<String>,
    /// Anything else.
    #[schema(value_type = Option<serde_json::Value>)]
    details: Raw,
}

/// Says that an activity is alive; the answer says whether it should go on.
#[utoipa::path(tag = "activity-tasks", operation_id = "heartbeatActivityTask", request_body = ActivityTaskHeartbeatRequest,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "Recorded, or: stop."), (status = 404, description = "There is no such task or attempt."),
        (status = 409, description = "Another worker holds it."), (status = 422, description = "Fields.")))]
#[post("/activity-tasks/{taskId}/heartbeat")]
pub async fn heartbeat_activity_task(
    call: Box<Call<WorkerOnly, ActivityTaskHeartbeatRequest>>,
    task: Path<String>,
) -> Native {
    Native(heartbeat(call, &task).await)
}

async fn heartbeat(
    call: Box<Call<WorkerOnly, ActivityTaskHeartbeatRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let details = details(body)?;
    let holder = leases::activity_holder(
        &call.namespace,
        task,
        &named,
        body.activity_attempt_id.as_deref(),
    )?;
    let heard = call
        .api
        .engine
        .heartbeat_activity(holder.clone(), details)
        .await;
    let heard = heard.map_err(|refused| {
        leases::activity_refusal(refused, &holder, "rejected").with("heartbeat_recorded", false)
    })?;
    let attempt_id = |attempt| {
        AttemptId {
            task: holder.task,
            attempt,
        }
        .to_string()
    };
    Answer::of(&match heard {
        Heartbeat::Recorded(renewed, session) => json!({
            "task_id": task,
            "activity_attempt_id": attempt_id(renewed.attempt),
            "lease_owner": holder.owner.as_str(),
            "heartbeat_recorded": true,
            "can_continue": true,
            "cancel_requested": false,
            "reason": null,
            "lease_expires_at": renewed.lease_expires_at,
            "last_heartbeat_at": renewed.at,
            "run_closed_reason": null,
            "run_closed_at": null,
            "worker_session": session.map(|beat| sessions::affinity(&beat.asked, &beat.session)),
        }),
        Heartbeat::Stop {
            reason,
            attempt,
            state,
        } => {
            let close = state.close.as_deref();
            let cancelled = [
                Reason::RunCancelled,
                Reason::RunTerminated,
                Reason::ActivityCancelled,
            ]
            .map(Reason::as_str);
            json!({
                "task_id": task,
                "activity_attempt_id": attempt_id(attempt),
                "lease_owner": holder.owner.as_str(),
                "heartbeat_recorded": false,
                "can_continue": false,
                "cancel_requested": cancelled.contains(&reason),
                "reason": reason,
                "lease_expires_at": null,
                "last_heartbeat_at": null,
                "run_status": state.status().as_str(),
                "run_closed_reason": close.map(|close| close.reason.as_str()),
                "run_closed_at": close.map(|close| close.at),
                "worker_session": null,
            })
        }
    })
}

/// What a heartbeat says, as one JSON object.
fn details(body: &ActivityTaskHeartbeatRequest) -> Result<Option<String>, Failure> {
    let mut said = Map::new();
    let parse = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).unwrap_or(Value::Null);
    match body.progress.as_deref().map(parse) {
        None | Some(Value::Null) => {}
        Some(Value::Object(fields)) => said.extend(fields),
        Some(other) => {
            said.insert("details".to_owned(), json!({ "value": other }));
        }
    }
    let words = [
        ("message", body.message.clone().map(Value::from)),
        ("current", body.current.map(Value::from)),
        ("total", body.total.map(Value::from)),
        ("unit", body.unit.clone().map(Value::from)),
        (
            "details",
            body.details
                .as_deref()
                .map(parse)
                .filter(|details| !details.is_null()),
        ),
    ];
    for (name, value) in words {
        if let Some(value) = value {
            said.insert(name.to_owned(), value);
        }
    }
    if said.is_empty() {
        return Ok(None);
    }
    let text = Value::Object(said).to_string();
    if text.len() > MAX_DETAILS {
        return Err(
            Problems::of("details", format!("must have at most {MAX_DETAILS} bytes")).into(),
        );
    }
    Ok(Some(text))
}

/// `ActivityTaskCompleteRequest`
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct ActivityTaskCompleteRequest {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The attempt.
    activity_attempt_id: Option<String>,
    /// What the activity returned: an envelope, or plain JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Raw,
}

/// Completes an activity task.
#[utoipa::path(tag = "activity-tasks", operation_id = "completeActivityTask", request_body = ActivityTaskCompleteRequest,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The result is recorded."), (status = 404, description = "There is no such task or attempt."),
        (status = 409, description = "The attempt is over, or the run is closed."), (status = 422, description = "Fields.")))]
#[post("/activity-tasks/{taskId}/complete")]
pub async fn complete_activity_task(
    call: Box<Call<Reporter, ActivityTaskCompleteRequest>>,
    task: Path<String>,
) -> Native {
    Native(Box::pin(complete(call, &task)).await)
}

async fn complete(
    mut call: Box<Call<Reporter, ActivityTaskCompleteRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let holder = leases::activity_holder(
        &call.namespace,
        task,
        &named,
        body.activity_attempt_id.as_deref(),
    )?;
    let result = match body.result.as_deref() {
        None => Payload::null(),
        Some(raw) => Payload::from_json_or_envelope_raw(raw)
            .map_err(|error| payload_problem(&error, &holder))?,
    };
    // It may be large, and the commit may take a while.
    call.body.result = None;
    let limit = call.api.engine.settings().run.limits.payload_bytes;
    let bytes = result.blob().len() as u64;
    let outcome = if limit != 0 && bytes > limit {
        ActivityOutcome::TooLarge { bytes }
    } else {
        ActivityOutcome::Completed(result)
    };
    let reported = call
        .api
        .engine
        .report_activity(holder.clone(), call.digest, outcome)
        .await;
    let reported = reported.map_err(|refused| {
        leases::activity_refusal(refused, &holder, "completed")
            .with("operation", "complete_activity_task")
    })?;
    recorded(&holder, &reported)
}

fn payload_problem(error: &PayloadError, holder: &Holder) -> Failure {
    let failure = Failure::from(Problems::of(
        format!("result{}", error.path()),
        error.to_string(),
    ))
    .with("task_id", holder.task.to_string())
    .with("recorded", false);
    match error {
        PayloadError::UnsupportedCodec { .. } => {
            failure.with("reason", Reason::UnsupportedPayloadCodec.as_str())
        }
        _ => failure,
    }
}

/// The answer to a report that was taken.
fn recorded(holder: &Holder, reported: &Reported) -> Result<Answer, Failure> {
    #[derive(serde::Serialize)]
    struct Recorded {
        task_id: TaskId,
        activity_attempt_id: String,
        next_task_id: Option<String>,
        reason: Option<Reason>,
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        recorded: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        duplicate: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        run_status: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        run_closed_reason: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        run_closed_at: Option<Timestamp>,
    }
    let state = &reported.state;
    let attempt = AttemptId {
        task: holder.task,
        attempt: reported.attempt,
    };
    let mut fields = Recorded {
        task_id: holder.task,
        activity_attempt_id: attempt.to_string(),
        next_task_id: None,
        reason: None,
        outcome: None,
        recorded: None,
        duplicate: None,
        run_status: None,
        run_closed_reason: None,
        run_closed_at: None,
    };
    match &reported.reply {
        Reply::Reported {
            report,
            next,
            duplicate,
            ..
        } => {
            fields.outcome = Some(report.outcome());
            fields.recorded = Some(true);
            fields.duplicate = Some(*duplicate);
            let next = next.map(|next| leases::task_ids(state.id, &[next]));
            fields.next_task_id = next.and_then(|ids| ids.into_iter().next());
        }
        Reply::TooLate(close) => {
            fields.outcome = Some("ignored");
            fields.recorded = Some(false);
            fields.reason = Some(Reason::RunClosed);
            fields.run_status = Some(state.status().as_str());
            fields.run_closed_reason = Some(close.reason.as_str());
            fields.run_closed_at = Some(close.at);
        }
        _ => {}
    }
    Answer::of(&fields)
}

/// `TaskFailureRequest` of an activity task
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct ActivityTaskFailureRequest {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The attempt.
    activity_attempt_id: Option<String>,
    /// What went wrong, the SDKs' spelling.
    failure: Option<ActivityFailureBody>,
    /// What went wrong.
    error: Option<String>,
    /// Type of the error.
    exception_type: Option<String>,
    /// Human sentence.
    message: Option<String>,
    /// Trying again is pointless.
    non_retryable: Option<bool>,
}

/// How an activity attempt failed.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct ActivityFailureBody {
    message: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    class: Option<String>,
    code: Option<i64>,
    #[allow(
        dead_code,
        reason = "part of the contract; traces stay with the worker"
    )]
    stack_trace: Option<String>,
    non_retryable: Option<bool>,
    #[schema(value_type = Option<serde_json::Value>)]
    details: Raw,
}

/// Reports that an activity attempt failed; the server decides whether another one follows.
#[utoipa::path(tag = "activity-tasks", operation_id = "failActivityTask", request_body = ActivityTaskFailureRequest,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The failure is recorded."), (status = 404, description = "There is no such task or attempt."),
        (status = 409, description = "The attempt is over, or the run is closed."), (status = 422, description = "Fields.")))]
#[post("/activity-tasks/{taskId}/fail")]
pub async fn fail_activity_task(
    call: Box<Call<Reporter, ActivityTaskFailureRequest>>,
    task: Path<String>,
) -> Native {
    Native(fail(call, &task).await)
}

async fn fail(
    mut call: Box<Call<Reporter, ActivityTaskFailureRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let said = call.body.failure.take();
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let said = said.unwrap_or_else(|| ActivityFailureBody {
        message: body.message.clone().or_else(|| body.error.clone()),
        kind: body.exception_type.clone(),
        non_retryable: body.non_retryable,
        ..ActivityFailureBody::default()
    });
    let mut problems = Problems::default();
    match &said.message {
        None => problems.add("failure.message", "is required"),
        Some(message) if message.len() > MAX_MESSAGE => {
            problems.add(
                "failure.message",
                format!("must have at most {MAX_MESSAGE} bytes"),
            );
        }
        Some(_) => {}
    }
    for (field, value) in [("failure.type", &said.kind), ("failure.class", &said.class)] {
        if value
            .as_ref()
            .is_some_and(|text| text.chars().count() > 512)
        {
            problems.add(field, "must have at most 512 characters");
        }
    }
    problems.into_result()?;
    let holder = leases::activity_holder(
        &call.namespace,
        task,
        &named,
        body.activity_attempt_id.as_deref(),
    )?;
    let outcome = ActivityOutcome::Failed(ActivityFailure {
        message: said.message.unwrap_or_default(),
        kind: said.kind,
        class: said.class,
        code: said.code,
        non_retryable: said.non_retryable.unwrap_or(false),
        exception: None,
        details: said.details.map(Json::from),
        failed_step: None,
    });
    let reported = call
        .api
        .engine
        .report_activity(holder.clone(), call.digest, outcome)
        .await;
    let reported = reported.map_err(|refused| {
        leases::activity_refusal(refused, &holder, "failed").with("operation", "fail_activity_task")
    })?;
    recorded(&holder, &reported)
}
