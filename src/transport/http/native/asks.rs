//! Query tasks and update-validation tasks: poll, answer, and how one stands.

use actix_web::http::StatusCode;
use actix_web::web::Path;
use actix_web::{HttpRequest, get, post};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::domain::ids::{RunId, TaskId, WorkerId};
use crate::domain::routing::{TaskKind, ask_id, read_ask_id};
use crate::domain::time::Timestamp;
use crate::engine::{AskRefused, AskView, Told};
use crate::payload::{Codec, Payload};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

use super::super::fields::{self, Int};
use super::super::problems::Problems;
use super::answer::{Answer, Failure, Fields, Native};
use super::call::{Call, WorkerOnly};
use super::leases::{MAX_ID, Named};
use super::polls::{self, PollBody};
use super::tasks::{claim, events};

/// Longest sentence of a failure.
const MAX_MESSAGE: usize = 65_536;
/// Longest word for a reason.
const MAX_REASON: usize = 191;

/// Waits for a query task.
#[utoipa::path(tag = "query-tasks", operation_id = "pollQueryTask", request_body = PollBody,
    responses((status = 200, description = "A task, or none."), (status = 409, description = "The poll contradicts the registration."),
        (status = 412, description = "The worker is not registered."), (status = 422, description = "Fields."),
        (status = 429, description = "The node holds as many polls as it may."), (status = 503, description = "The database is away.")))]
#[post("/query-tasks/poll")]
pub async fn poll_query_task(call: Box<Call<WorkerOnly, PollBody>>) -> Native {
    Native(polls::poll(call, TaskKind::Query).await)
}

/// Waits for an update-validation task.
#[utoipa::path(tag = "update-validation-tasks", operation_id = "pollUpdateValidationTask", request_body = PollBody,
    responses((status = 200, description = "A task, or none."), (status = 409, description = "The poll contradicts the registration."),
        (status = 412, description = "The worker is not registered."), (status = 422, description = "Fields."),
        (status = 429, description = "The node holds as many polls as it may."), (status = 503, description = "The database is away.")))]
#[post("/update-validation-tasks/poll")]
pub async fn poll_update_validation_task(call: Box<Call<WorkerOnly, PollBody>>) -> Native {
    Native(polls::poll(call, TaskKind::UpdateValidation).await)
}

/// The fields of a poll that got an ask.
///
/// # Errors
/// The stored history is no JSON, which is a defect.
pub fn ask_claim(view: &AskView) -> Result<Fields, Failure> {
    #[derive(Serialize)]
    struct Common<'a> {
        task_kind: &'static str,
        task_type: &'static str,
        task_id: &'a str,
        lease_owner: &'a str,
        lease_expires_at: Timestamp,
        workflow_id: &'a str,
        run_id: RunId,
        namespace: &'a str,
        task_queue: &'a str,
        workflow_type: &'a str,
        workflow_class: &'a str,
        compatibility: Option<&'a str>,
        payload_codec: Codec,
        workflow_arguments: &'a Payload,
        run_status: &'static str,
        last_history_sequence: u64,
        total_history_events: u64,
        history_events: &'a RawValue,
        history_export: Option<&'a RawValue>,
    }
    #[derive(Serialize)]
    struct QueryTask<'a> {
        query_task_id: &'a str,
        query_task_attempt: u32,
        query_name: &'a str,
        query_arguments: &'a Payload,
        query_admitted_at: Timestamp,
        query_deadline_at: Timestamp,
        server_time: Timestamp,
        #[serde(flatten)]
        common: Common<'a>,
    }
    #[derive(Serialize)]
    struct ValidationTask<'a> {
        update_validation_task_id: &'a str,
        update_id: &'a str,
        update_validation_attempt: u32,
        update_name: &'a str,
        update_arguments: &'a Payload,
        #[serde(flatten)]
        common: Common<'a>,
    }
    let (state, ask, lease) = (&view.state, &view.ask, &view.lease);
    let begun = &state.begun;
    let id = ask_id(lease.kind, lease.task);
    let history = events(&view.history.events)?;
    let common = Common {
        task_kind: lease.kind.as_str(),
        task_type: lease.kind.as_str(),
        task_id: &id,
        lease_owner: lease.owner.as_str(),
        lease_expires_at: lease.lease_expires_at,
        workflow_id: begun.workflow_id.as_str(),
        run_id: state.id,
        namespace: begun.namespace.as_str(),
        task_queue: ask.queue.as_str(),
        workflow_type: &begun.workflow_type,
        workflow_class: &begun.workflow_type,
        compatibility: begun.build_id.as_deref(),
        payload_codec: Codec::Avro,
        workflow_arguments: &begun.input,
        run_status: state.status().as_str(),
        last_history_sequence: ask.seen,
        total_history_events: ask.seen,
        history_events: &history,
        history_export: None,
    };
    if lease.kind == TaskKind::UpdateValidation {
        return claim(
            &ValidationTask {
                update_validation_task_id: &id,
                update_id: &id,
                update_validation_attempt: lease.attempt,
                update_name: &ask.name,
                update_arguments: &view.arguments,
                common,
            },
            lease,
        );
    }
    claim(
        &QueryTask {
            query_task_id: &id,
            query_task_attempt: lease.attempt,
            query_name: &ask.name,
            query_arguments: &view.arguments,
            query_admitted_at: ask.asked_at,
            query_deadline_at: ask.deadline_at,
            server_time: lease.leased_at,
            common,
        },
        lease,
    )
}

/// `QueryTaskCompleteRequest`
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct QueryTaskCompleteRequest {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    query_task_attempt: Option<Int>,
    /// The result as plain JSON.
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// The result as the SDK encoded it.
    #[schema(value_type = Option<serde_json::Value>)]
    result_envelope: Option<Box<RawValue>>,
}

/// Answers a query.
#[utoipa::path(tag = "query-tasks", operation_id = "completeQueryTask", request_body = QueryTaskCompleteRequest,
    params(("queryTaskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The caller has the answer."), (status = 404, description = "There is no such task."),
        (status = 409, description = "The caller does not hold it, or nobody waits any more."), (status = 422, description = "Fields.")))]
#[post("/query-tasks/{queryTaskId}/complete")]
pub async fn complete_query_task(
    call: Box<Call<WorkerOnly, QueryTaskCompleteRequest>>,
    task: Path<String>,
) -> Native {
    Native(complete(call, &task).await)
}

async fn complete(
    mut call: Box<Call<WorkerOnly, QueryTaskCompleteRequest>>,
    task: &str,
) -> Result<Answer, Failure> {
    let json = call.body.result.take();
    let envelope = call.body.result_envelope.take();
    let mut problems = Problems::default();
    let envelope = envelope.filter(|raw| raw.get() != "null").and_then(|raw| {
        match Payload::from_wire_raw(&raw, Codec::Avro) {
            Ok(payload) => Some(payload),
            Err(error) => {
                let field = format!("result_envelope{}", error.path());
                problems.add(&field, error.to_string());
                None
            }
        }
    });
    problems.into_result()?;
    let told = Told::Result {
        json: json.filter(|raw| raw.get() != "null").map(Into::into),
        envelope,
    };
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let attempt = body.query_task_attempt;
    let attempt = answer(&call, TaskKind::Query, task, &named, attempt, &told).await?;
    Answer::of(&json!({
        "query_task_id": task,
        "query_task_attempt": attempt,
        "outcome": "completed",
        "status": 200,
    }))
}

/// What a worker says about a query that failed, or an update that it refuses.
#[derive(Clone, Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct AskFailureBody {
    message: Option<String>,
    reason: Option<String>,
    #[serde(rename = "type")]
    #[allow(dead_code, reason = "part of the contract; the reason says more")]
    kind: Option<String>,
    #[schema(value_type = Option<Object>)]
    validation_errors: Option<Box<RawValue>>,
}

/// `TaskFailureRequest` of a query or validation task
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct AskFailureRequest {
    /// Part of the contract; the reason of a failure says more.
    #[allow(dead_code, reason = "part of the contract, without effect here")]
    exception_type: Option<String>,
    /// Part of the contract; whoever asked may ask again.
    #[allow(dead_code, reason = "part of the contract, without effect here")]
    non_retryable: Option<bool>,
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out of a query task.
    query_task_attempt: Option<Int>,
    /// The hand-out of a validation task.
    update_validation_attempt: Option<Int>,
    /// What went wrong, the SDKs' spelling.
    failure: Option<AskFailureBody>,
    /// What went wrong.
    error: Option<String>,
    /// Human sentence.
    message: Option<String>,
}

/// Fails a query.
#[utoipa::path(tag = "query-tasks", operation_id = "failQueryTask", request_body = AskFailureRequest,
    params(("queryTaskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The caller has the failure."), (status = 404, description = "There is no such task."),
        (status = 409, description = "The caller does not hold it, or nobody waits any more."), (status = 422, description = "Fields.")))]
#[post("/query-tasks/{queryTaskId}/fail")]
pub async fn fail_query_task(
    call: Box<Call<WorkerOnly, AskFailureRequest>>,
    task: Path<String>,
) -> Native {
    Native(fail(call, &task, TaskKind::Query).await)
}

/// Refuses an update.
#[utoipa::path(tag = "update-validation-tasks", operation_id = "rejectUpdateValidationTask", request_body = AskFailureRequest,
    params(("updateValidationTaskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The caller has the refusal."), (status = 404, description = "There is no such task."),
        (status = 409, description = "The caller does not hold it, or nobody waits any more."), (status = 422, description = "Fields.")))]
#[post("/update-validation-tasks/{updateValidationTaskId}/reject")]
pub async fn reject_update_validation_task(
    call: Box<Call<WorkerOnly, AskFailureRequest>>,
    task: Path<String>,
) -> Native {
    Native(fail(call, &task, TaskKind::UpdateValidation).await)
}

async fn fail(
    call: Box<Call<WorkerOnly, AskFailureRequest>>,
    task: &str,
    kind: TaskKind,
) -> Result<Answer, Failure> {
    let body = &call.body;
    let said = body.failure.clone().unwrap_or_else(|| AskFailureBody {
        message: body.message.clone().or_else(|| body.error.clone()),
        ..AskFailureBody::default()
    });
    let default = if kind == TaskKind::Query {
        Reason::QueryRejected
    } else {
        Reason::UpdateValidatorRejected
    };
    let reason = said.reason.unwrap_or_else(|| default.as_str().to_owned());
    let mut problems = Problems::default();
    match &said.message {
        None => problems.add("failure.message", "is required"),
        Some(text) if text.len() > MAX_MESSAGE => problems.add(
            "failure.message",
            format!("must have at most {MAX_MESSAGE} bytes"),
        ),
        Some(_) => {}
    }
    problems.text("failure.reason", &reason, MAX_REASON);
    let errors = said.validation_errors.filter(|raw| raw.get() != "null");
    if errors
        .as_ref()
        .is_some_and(|raw| !raw.get().starts_with('{'))
    {
        problems.add("failure.validation_errors", "must be an object");
    }
    problems.into_result()?;
    let rejected = reason == default.as_str();
    let told = Told::Failed {
        reason: reason.clone(),
        message: said.message.unwrap_or_default(),
        validation_errors: errors.map(Into::into),
    };
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let sent = if kind == TaskKind::Query {
        body.query_task_attempt
    } else {
        body.update_validation_attempt
    };
    let attempt = answer(&call, kind, task, &named, sent, &told).await?;
    let outcome = match (kind, rejected) {
        (TaskKind::UpdateValidation, true) => "rejected",
        _ => "failed",
    };
    let mut fields = keys(kind, task, attempt);
    fields["outcome"] = outcome.into();
    fields["reason"] = reason.into();
    Answer::of(&fields)
}

/// The fence of an approval.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct UpdateValidationApproval {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    update_validation_attempt: Option<Int>,
}

/// Approves an update.
#[utoipa::path(tag = "update-validation-tasks", operation_id = "approveUpdateValidationTask", request_body = UpdateValidationApproval,
    params(("updateValidationTaskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "The update is accepted."), (status = 404, description = "There is no such task."),
        (status = 409, description = "The caller does not hold it, or nobody waits any more."), (status = 422, description = "Fields.")))]
#[post("/update-validation-tasks/{updateValidationTaskId}/approve")]
pub async fn approve_update_validation_task(
    call: Box<Call<WorkerOnly, UpdateValidationApproval>>,
    task: Path<String>,
) -> Native {
    let kind = TaskKind::UpdateValidation;
    let body = &call.body;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let attempt = body.update_validation_attempt;
    let answered = answer(&call, kind, &task, &named, attempt, &Told::Approved).await;
    Native(answered.and_then(|attempt| {
        let mut fields = keys(kind, &task, attempt);
        fields["outcome"] = "approved".into();
        Answer::of(&fields)
    }))
}

/// Where a worker asks how its query stands.
#[derive(Debug, Default, utoipa::IntoParams)]
pub struct QueryTaskStatus {
    /// The holder.
    lease_owner: Option<String>,
    /// The hand-out.
    query_task_attempt: Option<i64>,
}

impl QueryTaskStatus {
    fn read(request: &HttpRequest) -> Result<Self, Problems> {
        let mut query = fields::query(request);
        let mut problems = Problems::default();
        let attempt = query.remove("query_task_attempt").and_then(|text| {
            fields::query_int(&text)
                .map_err(|problem| problems.add("query_task_attempt", problem))
                .ok()
        });
        problems.into_result()?;
        Ok(Self {
            lease_owner: query.remove("lease_owner"),
            query_task_attempt: attempt,
        })
    }
}

/// Whether a query is still wanted. Renews nothing.
#[utoipa::path(tag = "query-tasks", operation_id = "getQueryTaskStatus",
    params(("queryTaskId" = String, Path, description = "The task."), QueryTaskStatus),
    responses((status = 200, description = "It is wanted."), (status = 404, description = "There is no such task, or the version is too old."),
        (status = 409, description = "The caller does not hold it, or nobody waits any more."), (status = 422, description = "Fields.")))]
#[get("/query-tasks/{queryTaskId}/status")]
pub async fn get_query_task_status(
    call: Box<Call<WorkerOnly, Value>>,
    task: Path<String>,
    request: HttpRequest,
) -> Native {
    Native(match QueryTaskStatus::read(&request) {
        Ok(fence) => status(call, &task, &fence).await,
        Err(problems) => Err(problems.into()),
    })
}

async fn status(
    call: Box<Call<WorkerOnly, Value>>,
    task: &str,
    fence: &QueryTaskStatus,
) -> Result<Answer, Failure> {
    let authority = Feature::QueryTaskAuthority;
    if !call.api.supported.offers(&call.api.advertised, authority)
        || !call.version.allows(authority)
    {
        // No word of the contract says that it is too new: the route is not there.
        return Err(Failure::new(
            StatusCode::NOT_FOUND,
            Reason::NotFound,
            format!(
                "The status of a query needs worker protocol {} or newer.",
                authority.floor()
            ),
        )
        .with("requested_version", call.version.requested().to_string())
        .with("minimum_protocol_version", authority.floor().to_string()));
    }
    let named = Named {
        worker_id: None,
        lease_owner: fence.lease_owner.as_deref(),
    };
    let attempt = fence.query_task_attempt.map(Int);
    let (id, owner, attempt) = fence_of(&call, TaskKind::Query, task, &named, attempt).await?;
    let engine = &call.api.engine;
    let ask = engine
        .ask_status(&call.namespace, TaskKind::Query, id, &owner, attempt)
        .await
        .map_err(|refused| refusal(TaskKind::Query, task, attempt, refused))?;
    Answer::of(&json!({
        "query_task_id": task,
        "query_task_attempt": attempt,
        "lease_owner": owner.as_str(),
        "query_admitted_at": ask.asked_at,
        "query_deadline_at": ask.deadline_at,
        "lease_expires_at": ask.lease_expires_at,
        "server_time": engine.clock().now(),
        "can_continue": true,
        "query_task_status": "leased",
        "reason": null,
    }))
}

/// The lease that a request names: its ask, its holder, and the hand-out, which the contract's form
/// leaves out.
async fn fence_of<T>(
    call: &Call<WorkerOnly, T>,
    kind: TaskKind,
    task: &str,
    named: &Named<'_>,
    attempt: Option<Int>,
) -> Result<(TaskId, WorkerId, u32), Failure> {
    let field = if kind == TaskKind::Query {
        "query_task_attempt"
    } else {
        "update_validation_attempt"
    };
    let mut problems = Problems::default();
    let (owner, fenced) = named.holder(&mut problems);
    match attempt {
        Some(Int(attempt)) => problems.within(field, attempt, 1..=i64::from(u32::MAX)),
        None if fenced => problems.add(field, "is required"),
        None => {}
    }
    problems.into_result()?;
    let gone = || refusal(kind, task, 0, AskRefused::NotFound);
    let shown: String = task.chars().take(MAX_ID).collect();
    let (Some(id), Some(owner)) = (read_ask_id(kind, &shown), owner) else {
        return Err(gone());
    };
    let attempt = match attempt.and_then(|Int(n)| u32::try_from(n).ok()) {
        Some(attempt) => attempt,
        None => call
            .api
            .engine
            .ask_attempt(&call.namespace, kind, id)
            .await
            .map_err(|refused| refusal(kind, task, 0, refused))?,
    };
    Ok((id, owner, attempt))
}

async fn answer<T>(
    call: &Call<WorkerOnly, T>,
    kind: TaskKind,
    task: &str,
    named: &Named<'_>,
    attempt: Option<Int>,
    told: &Told,
) -> Result<u32, Failure> {
    let (id, owner, attempt) = fence_of(call, kind, task, named, attempt).await?;
    call.api
        .engine
        .answer_ask(&call.namespace, kind, id, &owner, attempt, told)
        .await
        .map_err(|refused| refusal(kind, task, attempt, refused))?;
    Ok(attempt)
}

fn keys(kind: TaskKind, task: &str, attempt: u32) -> Value {
    if kind == TaskKind::Query {
        json!({"query_task_id": task, "query_task_attempt": attempt})
    } else {
        json!({
            "update_validation_task_id": task,
            "update_id": task,
            "update_validation_attempt": attempt,
        })
    }
}

fn refusal(kind: TaskKind, task: &str, attempt: u32, refused: AskRefused) -> Failure {
    let query = kind == TaskKind::Query;
    let conflict = |reason, sentence: &str| Failure::new(StatusCode::CONFLICT, reason, sentence);
    let failure = match refused {
        AskRefused::NotFound => {
            let reason = if query {
                Reason::QueryTaskNotFound
            } else {
                Reason::UpdateValidationTaskNotFound
            };
            Failure::new(StatusCode::NOT_FOUND, reason, "There is no such task.")
        }
        AskRefused::TimedOut { at } => {
            let reason = if query {
                Reason::QueryTaskTimedOut
            } else {
                Reason::UpdateValidationLeaseExpired
            };
            conflict(reason, "Its caller no longer waits.").with("timed_out_at", at.to_string())
        }
        AskRefused::NotLeased => {
            let reason = if query {
                Reason::QueryTaskNotLeased
            } else {
                Reason::UpdateValidationTaskNotLeased
            };
            conflict(reason, "Nobody holds the task, or it was answered.")
        }
        AskRefused::OwnerMismatch { owner } => {
            let reason = if query {
                Reason::LeaseOwnerMismatch
            } else {
                Reason::UpdateValidationLeaseOwnerMismatch
            };
            conflict(reason, "Another worker holds the task.").with("lease_owner", owner.as_str())
        }
        AskRefused::AttemptMismatch { current } => {
            let reason = if query {
                Reason::QueryTaskAttemptMismatch
            } else {
                Reason::StaleUpdateValidationCompletion
            };
            conflict(reason, "The attempt is not the current one.").with("current_attempt", current)
        }
        AskRefused::Answered => {
            let reason = if query {
                Reason::QueryTaskNotLeased
            } else {
                Reason::DuplicateUpdateValidationCompletion
            };
            conflict(reason, "The task was answered before.")
        }
        AskRefused::Fault(fault) => Failure::from(fault),
    };
    if failure.status().is_server_error() {
        // Whether it was taken may be unknown, and trying again is right.
        return failure.with_all(keys(kind, task, attempt));
    }
    let status = failure.status().as_u16();
    failure
        .with_all(keys(kind, task, attempt))
        .with("outcome", "rejected")
        .with("can_continue", false)
        .with("status", status)
}
