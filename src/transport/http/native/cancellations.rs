//! Cooperative cancellation on the worker plane: delivery at a call, how an activity stands, and the
//! word that a cancelled one has stopped (worker plane 1.14 to 1.20, section 10).

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::post;
use actix_web::web::Path;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::domain::event::Delivery;
use crate::domain::ids::{AttemptId, Part, part_id};
use crate::domain::run::{Activity, Cancellation, RunState};
use crate::engine::{AttemptLease, AttemptStatus, Delivered, DeliveryRefused, Holder};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::{Answer, Failure, Native};
use super::call::{Call, WorkerOnly};
use super::leases::{self, MAX_ID, Named};
use super::page_tokens;

/// Steps that an interrupted call may span.
const MAX_SPAN: i64 = 1_000;
/// Highest step.
const MAX_STEP: i64 = 2_147_483_647;

const CALL_KINDS: [&str; 9] = [
    "activity",
    "local_activity",
    "timer",
    "condition",
    "signal",
    "child",
    "parallel",
    "selection_handle",
    "service_operation",
];

/// A request as a worker is shown it, until its run ends.
pub fn request_object(cancellation: &Cancellation) -> Value {
    let context = &cancellation.context;
    let delivered = cancellation.delivered.as_ref();
    json!({
        "request_id": context.request_id,
        "requested_at": context.requested_at,
        "cleanup_deadline_at": context.cleanup_deadline_at,
        "delivery_sequence": delivered.map(|(delivery, _)| delivery.sequence),
        "delivered_at": delivered.map(|(_, at)| at),
        "history_refresh_page_token": page_tokens::position(0),
    })
}

/// Where a worker delivers a cancellation.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct CancellationDelivery {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    workflow_task_attempt: Option<Int>,
    /// The request.
    request_id: Option<String>,
    /// First step of the interrupted call.
    sequence: Option<Int>,
    /// What kind of call it is.
    call_kind: Option<String>,
    /// Steps of the call.
    sequence_span: Option<Int>,
    /// First step of the awaited operation, for a handle of a selection.
    operation_sequence: Option<Int>,
    /// Steps of that operation.
    operation_sequence_span: Option<Int>,
}

/// Delivers a cancellation at a call of the workflow's code.
#[utoipa::path(tag = "workflow-tasks", operation_id = "deliverCancellation", request_body = CancellationDelivery,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "It is delivered, or the task was given back until what the call waits for has ended."),
        (status = 404, description = "There is no such task."), (status = 409, description = "The caller does not hold it, or cannot cooperate."),
        (status = 422, description = "Fields.")))]
#[post("/workflow-tasks/{taskId}/deliver-cancellation")]
pub async fn deliver_cancellation(
    call: Box<Call<WorkerOnly, CancellationDelivery>>,
    task: Path<String>,
) -> Native {
    Native(deliver(call, &task).await)
}

async fn deliver(
    call: Box<Call<WorkerOnly, CancellationDelivery>>,
    task: &str,
) -> Result<Answer, Failure> {
    let body = &call.body;
    let mut problems = Problems::default();
    problems.required_text("request_id", body.request_id.as_deref(), MAX_ID);
    let delivery = delivery(&mut problems, body);
    problems.into_result()?;
    let named = Named {
        worker_id: body.worker_id.as_deref(),
        lease_owner: body.lease_owner.as_deref(),
    };
    let holder =
        leases::workflow_holder(&call.namespace, task, &named, body.workflow_task_attempt)?;
    let refuse = |reason, sentence: &str| {
        Failure::new(StatusCode::CONFLICT, reason, sentence)
            .with("task_id", task)
            .with("workflow_task_attempt", holder.attempt)
            .with("delivered", false)
    };
    let offered = call
        .api
        .supported
        .offers(&call.api.advertised, Feature::CooperativeCancellation);
    if !offered || !call.version.allows(Feature::CooperativeCancellation) {
        return Err(refuse(
            Reason::CooperativeCancellationNotSupported,
            "Cooperative cancellation needs worker protocol 1.20 or newer.",
        )
        .with("minimum_protocol_version", "1.20"));
    }
    let Some(delivery) = delivery else {
        return Err(Failure::from(Problems::of("sequence", "is required")));
    };
    let request_id: Arc<str> = body.request_id.as_deref().unwrap_or_default().into();
    let delivered = call
        .api
        .engine
        .deliver_cancellation(&holder, Arc::clone(&request_id), delivery.clone())
        .await
        .map_err(|refused| match refused {
            DeliveryRefused::ClaimCannotCooperate => refuse(
                Reason::ActiveClaimCancellationNotSupported,
                "The worker did not register cooperative_cancellation when it took the task.",
            ),
            DeliveryRefused::NoSuchCancellation => refuse(
                Reason::CooperativeCancellationNotSupported,
                "No cancellation of this id was asked for.",
            ),
            DeliveryRefused::OtherDelivery(other) => refuse(
                Reason::InvalidCommands,
                "The cancellation was delivered at another call.",
            )
            .with("delivery_sequence", other.sequence),
            DeliveryRefused::Report(refused) => {
                leases::workflow_refusal(refused, &holder, "rejected").with("delivered", false)
            }
        })?;
    Answer::of(&match delivered {
        Delivered::Yes(state) => json!({
            "delivered": true,
            "task_id": task,
            "workflow_run_id": state.id,
            "workflow_task_attempt": holder.attempt,
            "request_id": request_id,
            "sequence": delivery.sequence,
            "call_kind": delivery.call_kind,
            "sequence_span": delivery.sequence_span,
            "operation_sequence": delivery.operation_sequence,
            "operation_sequence_span": delivery.operation_sequence_span,
            "reason": null,
        }),
        Delivered::Waits(why, state) => json!({
            "delivered": false,
            "claim_released": true,
            "task_id": task,
            "workflow_run_id": state.id,
            "workflow_task_attempt": holder.attempt,
            "request_id": null,
            "sequence": null,
            "call_kind": null,
            "sequence_span": null,
            "operation_sequence": null,
            "operation_sequence_span": null,
            "reason": why,
        }),
    })
}

fn delivery(problems: &mut Problems, body: &CancellationDelivery) -> Option<Delivery> {
    let kind = body.call_kind.as_deref().unwrap_or_default();
    if !CALL_KINDS.contains(&kind) {
        problems.add(
            "call_kind",
            format!("must be one of {}", CALL_KINDS.join(", ")),
        );
    }
    let mut number = |field: &str, value: Option<Int>, most: i64| {
        let Int(value) = value?;
        problems.within(field, value, 1..=most);
        u32::try_from(value).ok()
    };
    let sequence = number("sequence", body.sequence, MAX_STEP);
    let span = number("sequence_span", body.sequence_span, MAX_SPAN).unwrap_or(1);
    let operation = number("operation_sequence", body.operation_sequence, MAX_STEP);
    let operation_span = number(
        "operation_sequence_span",
        body.operation_sequence_span,
        MAX_SPAN,
    )
    .unwrap_or(1);
    if body.sequence.is_none() {
        problems.add("sequence", "is required");
    }
    if span != 1 && kind != "parallel" {
        problems.add("sequence_span", "must be 1 for this kind of call");
    }
    let handle = kind == "selection_handle";
    match (handle, operation, sequence) {
        (true, Some(first), Some(sequence))
            if first < sequence && operation_span <= sequence - first => {}
        (true, ..) => problems.add(
            "operation_sequence",
            "must name an operation before the call, for a handle of a selection",
        ),
        (false, None, _) if operation_span == 1 => {}
        (false, ..) => problems.add(
            "operation_sequence",
            "belongs to handles of a selection only",
        ),
    }
    Some(Delivery {
        sequence: sequence?,
        call_kind: kind.into(),
        sequence_span: span,
        operation_sequence: operation,
        operation_sequence_span: operation_span,
    })
}

/// The fence of an attempt.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct AttemptFence {
    /// The holder.
    worker_id: Option<String>,
    /// The holder, the SDKs' spelling.
    lease_owner: Option<String>,
    /// The hand-out.
    activity_attempt_id: Option<String>,
    /// The cancellation that stopped it, for an acknowledgement.
    request_id: Option<String>,
}

impl AttemptFence {
    fn holder(&self, call: &Call<WorkerOnly, Self>, task: &str) -> Result<Holder, Failure> {
        if self.activity_attempt_id.is_none() {
            return Err(Problems::of("activity_attempt_id", "is required").into());
        }
        let named = Named {
            worker_id: self.worker_id.as_deref(),
            lease_owner: self.lease_owner.as_deref(),
        };
        let attempt = self.activity_attempt_id.as_deref();
        leases::activity_holder(&call.namespace, task, &named, attempt)
    }
}

/// Whether an attempt of an activity should go on. Renews nothing, writes nothing.
#[utoipa::path(tag = "activity-tasks", operation_id = "getActivityAttemptStatus", request_body = AttemptFence,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "How it stands."), (status = 404, description = "There is no such task or attempt."),
        (status = 409, description = "The caller does not hold it."), (status = 422, description = "Fields, or the version is too old.")))]
#[post("/activity-tasks/{taskId}/status")]
pub async fn get_activity_attempt_status(
    call: Box<Call<WorkerOnly, AttemptFence>>,
    task: Path<String>,
) -> Native {
    Native(status(call, &task).await)
}

async fn status(call: Box<Call<WorkerOnly, AttemptFence>>, task: &str) -> Result<Answer, Failure> {
    let holder = call.body.holder(&call, task)?;
    let offered = call
        .api
        .supported
        .offers(&call.api.advertised, Feature::ActivityStatus);
    if !offered || !call.version.allows(Feature::ActivityStatus) {
        return Err(Failure::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            Reason::ActivityAttemptStatusUnavailable,
            "The status of an attempt needs worker protocol 1.20 or newer.",
        )
        .with("minimum_protocol_version", "1.20")
        .with("task_id", task));
    }
    let status = call
        .api
        .engine
        .attempt_status(&holder)
        .await
        .map_err(|refused| leases::activity_refusal(refused, &holder, "rejected"))?;
    Answer::of(&attempt_fields(&status, &holder, task))
}

fn attempt_fields(status: &AttemptStatus, holder: &Holder, task: &str) -> Value {
    let (state, lease) = (&*status.state, status.lease.as_ref());
    let close = state.close.as_deref();
    let no = holder.task.no;
    let attempt = AttemptId {
        task: holder.task,
        attempt: status.attempt,
    };
    let stopped = status.stop;
    let cancelled = [
        Reason::RunCancelled,
        Reason::RunTerminated,
        Reason::ActivityCancelled,
    ]
    .iter()
    .any(|reason| Some(reason.as_str()) == stopped);
    let activity_status = match &status.activity {
        Some(_) => "running",
        None if cancelled => "cancelled",
        None => "closed",
    };
    let mut fields = json!({
        "task_id": task,
        "activity_attempt_id": attempt.to_string(),
        "lease_owner": holder.owner.as_str(),
        "can_continue": stopped.is_none(),
        "cancel_requested": cancelled,
        "reason": stopped,
        "heartbeat_recorded": false,
        "lease_expires_at": lease.and_then(|lease| lease.lease_expires_at),
        "last_heartbeat_at": lease.and_then(|lease| lease.heartbeat_at),
        "run_status": state.status().as_str(),
        "run_closed_reason": close.map(|close| close.reason.as_str()),
        "run_closed_at": close.map(|close| close.at),
        "activity_status": activity_status,
        "attempt_status": if lease.is_some() { "running" } else { "closed" },
        "task_status": if lease.is_some() { "leased" } else if cancelled { "cancelled" } else { "closed" },
        "deadlines": deadlines(status.activity.as_deref(), lease),
        "worker_session": null,
    });
    if let Some(acknowledgement) = acknowledgement(state, no, status.attempt) {
        fields["cancellation_acknowledgement"] = acknowledgement;
    }
    fields
}

fn deadlines(activity: Option<&Activity>, lease: Option<&AttemptLease>) -> Value {
    let mut deadlines = Map::new();
    for (name, at) in [
        (
            "start_to_close",
            lease.and_then(|lease| lease.start_to_close_at),
        ),
        (
            "schedule_to_close",
            activity.and_then(Activity::close_deadline),
        ),
        ("heartbeat", lease.and_then(|lease| lease.heartbeat_due_at)),
    ] {
        if let Some(at) = at {
            deadlines.insert(name.to_owned(), at.to_string().into());
        }
    }
    Value::Object(deadlines)
}

/// What is known of the stop of an activity that a cooperative cancellation cancelled.
fn acknowledgement(state: &RunState, no: u32, attempt: u32) -> Option<Value> {
    let cancellation = state.cancellation.as_ref()?;
    if !state.cancelled_activities.contains_key(&no) {
        return None;
    }
    let context = &cancellation.context;
    let event = cancelled_event(state, no);
    let stopped = state
        .stopped
        .iter()
        .find(|stopped| stopped.no == no && stopped.attempt == attempt);
    Some(json!({
        "request_id": context.request_id,
        "root_request_id": context.root_request_id,
        "cleanup_deadline_at": context.cleanup_deadline_at,
        "cancellation_history_event_id": event,
        "callback_state": if stopped.is_some() { "stopped" } else { "unknown" },
        "history_event_id": stopped.and(event.as_ref()),
        "acknowledged_at": stopped.map(|stopped| stopped.at),
        "received_after_deadline": stopped.is_some_and(|stopped| stopped.at > context.cleanup_deadline_at),
    }))
}

fn cancelled_event(state: &RunState, no: u32) -> Option<String> {
    let cancelled = state.cancelled_activities.get(&no)?;
    Some(part_id(state.id, Part::Event, cancelled.event))
}

/// A worker says that an activity that was cancelled has stopped.
#[utoipa::path(tag = "activity-tasks", operation_id = "acknowledgeActivityCancellation", request_body = AttemptFence,
    params(("taskId" = String, Path, description = "The task.")),
    responses((status = 200, description = "Taken, now or before."), (status = 404, description = "There is no such task or attempt."),
        (status = 409, description = "The activity was not cancelled."), (status = 422, description = "Fields.")))]
#[post("/activity-tasks/{taskId}/acknowledge-cancellation")]
pub async fn acknowledge_activity_cancellation(
    call: Box<Call<WorkerOnly, AttemptFence>>,
    task: Path<String>,
) -> Native {
    Native(acknowledge(call, &task).await)
}

async fn acknowledge(
    call: Box<Call<WorkerOnly, AttemptFence>>,
    task: &str,
) -> Result<Answer, Failure> {
    let mut problems = Problems::default();
    problems.required_text("request_id", call.body.request_id.as_deref(), MAX_ID);
    problems.into_result()?;
    let holder = call.body.holder(&call, task)?;
    let receipts = Feature::ActivityCancellationReceipts;
    if !call.api.supported.offers(&call.api.advertised, receipts) || !call.version.allows(receipts)
    {
        return Err(Failure::new(
            StatusCode::CONFLICT,
            Reason::CooperativeCancellationNotSupported,
            "Receipts of stopped callbacks need worker protocol 1.20 or newer.",
        )
        .with("minimum_protocol_version", receipts.floor().to_string())
        .with("task_id", task));
    }
    let request_id = call.body.request_id.as_deref().unwrap_or_default();
    let taken = call
        .api
        .engine
        .acknowledge_stop(&holder, request_id)
        .await
        .map_err(|refused| leases::activity_refusal(refused, &holder, "rejected"))?;
    Answer::of(&json!({
        "task_id": task,
        "activity_attempt_id": call.body.activity_attempt_id,
        "lease_owner": holder.owner.as_str(),
        "request_id": call.body.request_id,
        "acknowledged": true,
        "duplicate": taken.duplicate,
        "reason": null,
        "history_event_id": cancelled_event(&taken.state, holder.task.no),
        "acknowledged_at": taken.at,
        "heartbeat_recorded": false,
    }))
}
