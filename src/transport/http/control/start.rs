//! Starting a workflow.

use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::post;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::domain::event::Json;
use crate::domain::ids::{RunId, TaskQueue, WorkflowId};
use crate::domain::rollout::StartRefused;
use crate::domain::run::{RunState, StartRequest};
use crate::engine::StartError;
use crate::payload::{Codec, Payload};
use crate::protocol::reason::Reason;

use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::{Answer, Control};
use super::call::{Call, OperatorOrAdmin};
use super::operation::Object;

/// Longest workflow id.
pub const MAX_WORKFLOW_ID: usize = 128;
/// Longest type, queue or key.
const MAX_NAME: usize = 255;
/// Longest time that a start may name, in seconds: a hundred years.
const MAX_SECONDS: i64 = 3_155_760_000;
/// Search attributes of one run.
const MAX_ATTRIBUTES: usize = 100;
/// Characters of the name of a search attribute.
const MAX_ATTRIBUTE_KEY: usize = 128;
/// Bytes of the value of a search attribute.
const MAX_ATTRIBUTE_VALUE: usize = 2_048;

/// A start.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
pub struct StartWorkflowRequest {
    /// Registered type.
    workflow_type: Option<String>,
    /// The caller's name for the workflow; made by the server when it is left out.
    workflow_id: Option<String>,
    /// Queue of its workflow tasks.
    task_queue: Option<String>,
    /// Arguments: a plain list, or an envelope.
    #[schema(value_type = Option<serde_json::Value>)]
    input: Option<Box<RawValue>>,
    /// `avro`
    payload_codec: Option<String>,
    /// A key of the caller's business.
    business_key: Option<String>,
    /// Anything that describes the run: a JSON object.
    #[schema(value_type = Option<Object>)]
    memo: Option<Box<RawValue>>,
    /// Attributes by which runs are found: a JSON object.
    #[schema(value_type = Option<Object>)]
    search_attributes: Option<Box<RawValue>>,
    /// `fail` or `use-existing`.
    duplicate_policy: Option<String>,
    /// Seconds for the whole chain of runs.
    execution_timeout_seconds: Option<Int>,
    /// Seconds for one run.
    run_timeout_seconds: Option<Int>,
    /// 0 to 9, lower is more urgent.
    priority: Option<Int>,
    /// Class for fair sharing.
    fairness_key: Option<String>,
    /// Weight of that class.
    fairness_weight: Option<Int>,
    /// Build that the run is pinned to.
    build_id: Option<String>,
    /// The same under its older name.
    compatibility: Option<String>,
    #[schema(ignore)]
    workflow_execution_timeout: Option<Value>,
    #[schema(ignore)]
    workflow_run_timeout: Option<Value>,
    #[schema(ignore)]
    workflow_task_timeout: Option<Value>,
    #[schema(ignore)]
    retry_policy: Option<Value>,
    #[schema(ignore)]
    idempotency_key: Option<Value>,
    #[schema(ignore)]
    request_id: Option<Value>,
}

/// Starts a workflow.
#[utoipa::path(tag = "workflows", operation_id = "startWorkflow", request_body = StartWorkflowRequest,
    responses((status = 201, description = "Started."), (status = 200, description = "The open run that was already there."),
        (status = 409, description = "The workflow id is taken, or no worker may take the run."), (status = 422, description = "Fields.")))]
#[post("/workflows")]
pub async fn start_workflow(call: Box<Call<OperatorOrAdmin, StartWorkflowRequest>>) -> Control {
    // What a handler returns is moved several times before it runs.
    Control(Box::pin(start(call)).await)
}

async fn start(
    mut call: Box<Call<OperatorOrAdmin, StartWorkflowRequest>>,
) -> Result<Answer, Answer> {
    let (request, use_existing) = read(&call)?;
    // It may be large, and the commit may take a while.
    call.body.input = None;
    let (workflow_id, workflow_type) = (
        request.workflow_id.clone(),
        Arc::clone(&request.workflow_type),
    );
    match call.api.engine.start_workflow(request, use_existing).await {
        Ok(started) => {
            let (status, outcome) = if started.new {
                (StatusCode::CREATED, "started_new")
            } else {
                (StatusCode::OK, "returned_existing_active")
            };
            Ok(told(status, &started.state, outcome, None))
        }
        Err(StartError::Duplicate(state)) => {
            let refused = Refused(
                Reason::InstanceAlreadyStarted,
                "A workflow with this id has been started before.",
            );
            let status = StatusCode::CONFLICT;
            Err(told(status, &state, "rejected_duplicate", Some(refused)))
        }
        Err(StartError::OtherType(_)) => Err(Answer::from(Problems::of(
            "workflow_type",
            "a workflow with this id has been started with another type",
        ))
        .with("workflow_id", workflow_id.as_str())
        .with("workflow_type", &*workflow_type)
        .with("outcome", "rejected_duplicate")),
        Err(StartError::NotRouted(refused)) => Err(not_routed(&call, &refused)
            .with("workflow_id", workflow_id.as_str())
            .with("workflow_type", &*workflow_type)),
        Err(StartError::Fault(fault)) => Err(Answer::from(fault)
            .with("workflow_id", workflow_id.as_str())
            .with("workflow_type", &*workflow_type)),
    }
}

/// No worker may take the run: its type has only draining workers, or the build that it names drains.
fn not_routed(
    call: &Call<OperatorOrAdmin, StartWorkflowRequest>,
    refused: &StartRefused,
) -> Answer {
    let (reason, sentence) = if refused.is_pinned {
        (
            Reason::CompatibilityBlocked,
            "The named build drains and takes no new workflows.",
        )
    } else {
        (
            Reason::TaskQueueDraining,
            "All workers of this type on this queue are draining.",
        )
    };
    let counts = refused.counts;
    Answer::refuse(StatusCode::CONFLICT, reason, sentence)
        .with("run_id", Value::Null)
        .with("namespace", call.namespace.as_str())
        .with(
            "task_queue",
            call.body.task_queue.as_deref().unwrap_or("default"),
        )
        .with("business_key", call.body.business_key.clone())
        .with("payload_codec", "avro")
        .with("outcome", format!("rejected_{reason}"))
        .with("command_status", "rejected")
        .with("command_source", "control_plane")
        .with("rejection_reason", reason.as_str())
        .with("routing_status", counts.standing().as_str())
        .with("active_worker_count", counts.active)
        .with("draining_worker_count", counts.draining)
        .with("stale_worker_count", counts.stale)
        .with("draining_build_ids", json!(refused.draining))
        .with("drain_intent", "draining")
}

/// A run that was started, found or in the way: the status, the outcome, and whether the start was accepted.
fn told(status: StatusCode, state: &RunState, outcome: &str, refused: Option<Refused>) -> Answer {
    let begun = &state.begun;
    let (reason, message) = refused
        .map(|Refused(reason, message)| (reason, message))
        .unzip();
    let accepted = if reason.is_none() {
        "accepted"
    } else {
        "rejected"
    };
    let fields = Object::default()
        .with("workflow_id", &begun.workflow_id)
        .with("run_id", &state.id)
        .with("workflow_type", &begun.workflow_type)
        .with("namespace", &begun.namespace)
        .with("task_queue", &begun.queue)
        .with("status", state.status().as_str())
        .with("business_key", &begun.business_key)
        .with("payload_codec", "avro")
        .with("outcome", outcome)
        .with("command_status", accepted)
        .with("command_source", "control_plane")
        .with("reason", &reason)
        .with("rejection_reason", &reason)
        .with("message", &message);
    Answer::written(status, fields)
}

/// Why a start was refused, and a sentence that says so.
struct Refused(Reason, &'static str);

fn read(
    call: &Call<OperatorOrAdmin, StartWorkflowRequest>,
) -> Result<(StartRequest, bool), Answer> {
    let body = &call.body;
    let mut problems = Problems::default();
    problems.required_text("workflow_type", body.workflow_type.as_deref(), MAX_NAME);
    let workflow_id = match &body.workflow_id {
        Some(id) => {
            check_workflow_id(&mut problems, id);
            id.clone()
        }
        None => RunId::new(
            call.api.engine.clock().now(),
            uuid::Uuid::new_v4().as_u128(),
        )
        .to_string(),
    };
    let queue = body.task_queue.as_deref().unwrap_or("default");
    problems.text("task_queue", queue, MAX_NAME);
    for (field, value) in [
        ("business_key", &body.business_key),
        ("build_id", &body.build_id),
        ("compatibility", &body.compatibility),
    ] {
        if let Some(value) = value {
            problems.text(field, value, MAX_NAME);
        }
    }
    for (field, value) in [
        (
            "workflow_execution_timeout",
            &body.workflow_execution_timeout,
        ),
        ("workflow_run_timeout", &body.workflow_run_timeout),
        ("workflow_task_timeout", &body.workflow_task_timeout),
        ("retry_policy", &body.retry_policy),
        ("idempotency_key", &body.idempotency_key),
        ("request_id", &body.request_id),
    ] {
        if value.is_some() {
            problems.add(field, "is not a field of a start");
        }
    }
    if let Some(codec) = &body.payload_codec
        && Codec::parse(codec).is_err()
    {
        problems.add("payload_codec", "must be avro");
    }
    let input = input(
        &mut problems,
        "input",
        body.input.as_deref(),
        call.api.engine.settings().run.limits.payload_bytes,
    );
    let use_existing = match body.duplicate_policy.as_deref() {
        None | Some("fail") => false,
        Some("use-existing") => true,
        Some(_) => {
            problems.add("duplicate_policy", "must be fail or use-existing");
            false
        }
    };
    let limits = &call.api.engine.settings().run.limits;
    let memo = object(
        &mut problems,
        "memo",
        body.memo.as_deref(),
        limits.memo_bytes,
    );
    let search_attributes = object(
        &mut problems,
        "search_attributes",
        body.search_attributes.as_deref(),
        limits.search_attribute_bytes,
    );
    check_attributes(&mut problems, &search_attributes);
    let execution_timeout_seconds = seconds(
        &mut problems,
        "execution_timeout_seconds",
        body.execution_timeout_seconds,
    );
    let run_timeout_seconds = seconds(
        &mut problems,
        "run_timeout_seconds",
        body.run_timeout_seconds,
    );
    let priority = body.priority.map_or(5, |Int(n)| n);
    problems.within("priority", priority, 0..=9);
    let fairness_weight = body.fairness_weight.map_or(1, |Int(n)| n);
    problems.within("fairness_weight", fairness_weight, 1..=1_000);
    if let Some(key) = &body.fairness_key
        && (key.is_empty() || key.len() > 64 || !key.bytes().all(is_id_byte))
    {
        problems.add(
            "fairness_key",
            "must have 1 to 64 characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'",
        );
    }
    problems.into_result()?;
    let text = |value: &Option<String>| value.as_deref().map(Arc::from);
    Ok((
        StartRequest {
            namespace: call.namespace.clone(),
            workflow_id: WorkflowId::from(workflow_id),
            workflow_type: body.workflow_type.as_deref().unwrap_or_default().into(),
            queue: TaskQueue::from(queue),
            input,
            business_key: text(&body.business_key),
            memo,
            search_attributes,
            execution_timeout_seconds,
            run_timeout_seconds,
            priority: u8::try_from(priority).unwrap_or(5),
            fairness_key: text(&body.fairness_key),
            fairness_weight: u16::try_from(fairness_weight).unwrap_or(1),
            build_id: text(&body.build_id).or_else(|| text(&body.compatibility)),
            contract: call.api.engine.remembered_contract(
                &call.namespace,
                body.workflow_type.as_deref().unwrap_or_default(),
            ),
        },
        use_existing,
    ))
}

fn is_id_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._:-".contains(&byte)
}

/// The rule of workflow ids.
pub fn check_workflow_id(problems: &mut Problems, id: &str) {
    if id.is_empty() || id.len() > MAX_WORKFLOW_ID || !id.bytes().all(is_id_byte) {
        problems.add(
            "workflow_id",
            format!("must have 1 to {MAX_WORKFLOW_ID} characters of A-Z, a-z, 0-9, '.', '_', ':' and '-'"),
        );
    }
}

/// Arguments of a call: a plain list, an envelope, or nothing.
pub fn input(problems: &mut Problems, field: &str, raw: Option<&RawValue>, limit: u64) -> Payload {
    let payload = match raw.map(Payload::arguments_raw) {
        None => Payload::empty_list(),
        Some(Ok(payload)) => payload,
        Some(Err(error)) => {
            problems.add(format!("{field}{}", error.path()), error.to_string());
            Payload::empty_list()
        }
    };
    if limit != 0 && payload.blob().len() as u64 > limit {
        problems.add(field, format!("must have at most {limit} bytes, encoded"));
    }
    payload
}

fn seconds(problems: &mut Problems, field: &str, value: Option<Int>) -> Option<u64> {
    let Int(value) = value?;
    problems.within(field, value, 1..=MAX_SECONDS);
    u64::try_from(value).ok()
}

/// A field that must be a JSON object; kept as it was sent.
fn object(problems: &mut Problems, field: &str, raw: Option<&RawValue>, limit: u64) -> Json {
    let empty = || {
        Json::from(
            RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned()),
        )
    };
    let Some(raw) = raw else { return empty() };
    if !raw.get().trim_start().starts_with('{') {
        problems.add(field, "must be an object");
        return empty();
    }
    if limit != 0 && raw.get().len() as u64 > limit {
        problems.add(field, format!("must have at most {limit} bytes"));
    }
    Json::from(raw.to_owned())
}

fn check_attributes(problems: &mut Problems, attributes: &Json) {
    let Ok(attributes) = serde_json::from_str::<Map<String, Value>>(attributes.get()) else {
        return;
    };
    if attributes.len() > MAX_ATTRIBUTES {
        problems.add(
            "search_attributes",
            format!("must have at most {MAX_ATTRIBUTES} entries"),
        );
    }
    for (key, value) in &attributes {
        let field = format!("search_attributes.{key}");
        if key.is_empty() || key.chars().count() > MAX_ATTRIBUTE_KEY {
            problems.add(
                &field,
                format!("the name must have 1 to {MAX_ATTRIBUTE_KEY} characters"),
            );
        }
        let listed = value
            .as_array()
            .is_some_and(|items| items.iter().all(Value::is_string));
        if value.is_object() || (value.is_array() && !listed) {
            problems.add(
                &field,
                "must be text, a number, true, false, null or a list of texts",
            );
        }
        let bytes = value
            .as_str()
            .map_or_else(|| value.to_string().len(), str::len);
        if bytes > MAX_ATTRIBUTE_VALUE {
            problems.add(
                &field,
                format!("must have at most {MAX_ATTRIBUTE_VALUE} bytes"),
            );
        }
    }
}
