//! Registration, heartbeat and deregistration of workers.

mod capabilities;

use std::collections::BTreeMap;
use std::sync::Arc;

use actix_web::http::StatusCode;
use actix_web::post;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::domain::event::Json;
use crate::domain::ids::{TaskQueue, WorkerId};
use crate::domain::worker::{Beat, Description, Refused, Registration};
use crate::engine::{Fault, RegisterError};
use crate::protocol::feature::Feature;
use crate::protocol::reason::Reason;

use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::{Answer, Failure, Native};
use super::call::{AnyRole, Call, WorkerOnly};
use super::leases::MAX_ID;
use capabilities::{check_capabilities, check_manifest};

/// Runtimes that a worker may name.
const RUNTIMES: [&str; 7] = [
    "php",
    "python",
    "rust",
    "typescript",
    "go",
    "java",
    "external",
];
/// Queues, types or capabilities of one worker.
const MAX_LISTED: usize = 1_000;
/// Tasks or sessions that a worker may say it runs at once.
const MAX_SLOTS: i64 = 1_000_000;

/// `WorkerRegistrationRequest`
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkerRegistrationRequest {
    /// The worker's name of itself; made by the server when it is left out.
    worker_id: Option<String>,
    /// Queues that the worker serves.
    task_queues: Option<Vec<String>>,
    /// One queue, the SDKs' spelling.
    task_queue: Option<String>,
    /// `python`, `rust`, `php`, …
    runtime: Option<String>,
    /// Version of the SDK.
    sdk_version: Option<String>,
    /// Version of the worker's code.
    build_id: Option<String>,
    /// Workflow types.
    workflow_types: Option<Vec<String>>,
    /// Workflow types, the SDKs' spelling.
    supported_workflow_types: Option<Vec<String>>,
    /// Activity types.
    activity_types: Option<Vec<String>>,
    /// Activity types, the SDKs' spelling.
    supported_activity_types: Option<Vec<String>>,
    /// Workflow type → fingerprint of its definition.
    workflow_definition_fingerprints: Option<BTreeMap<String, String>>,
    /// Workflow type → contracts of its signals, queries and updates.
    workflow_command_contracts: Option<Map<String, Value>>,
    /// What the worker can do.
    capabilities: Option<Vec<String>>,
    /// Structured capabilities.
    capability_manifest: Option<BTreeMap<String, ManifestEntry>>,
    /// Workflow tasks at once.
    max_concurrent_workflow_tasks: Option<Int>,
    /// Activity tasks at once.
    max_concurrent_activity_tasks: Option<Int>,
    /// Sessions at once.
    max_concurrent_worker_sessions: Option<Int>,
    /// Free slots.
    task_slots: Option<TaskSlots>,
    /// About the process.
    process_metrics: Option<ProcessMetrics>,
    /// Seconds between the worker's heartbeats.
    heartbeat_interval_seconds: Option<Int>,
}

/// One capability in detail.
#[derive(Clone, Debug, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct ManifestEntry {
    /// The worker has it.
    supported: bool,
    /// Protocol version from which it is used.
    minimum_protocol_version: String,
    /// Whatever else the worker says about it.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Free slots of a worker.
#[derive(Debug, Default, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct TaskSlots {
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow_available: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    activity_available: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_available: Option<u32>,
}

/// About a worker's process.
#[derive(Debug, Default, Deserialize, serde::Serialize, utoipa::ToSchema)]
pub struct ProcessMetrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_uptime_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_started_at: Option<String>,
}

impl ProcessMetrics {
    fn check(&self, problems: &mut Problems) {
        if self.cpu_percent.is_some_and(|percent| percent < 0.0) {
            problems.add("process_metrics.cpu_percent", "must not be negative");
        }
        for (field, value, max) in [
            ("process_metrics.host", &self.host, MAX_ID),
            (
                "process_metrics.process_started_at",
                &self.process_started_at,
                64,
            ),
        ] {
            if value
                .as_ref()
                .is_some_and(|text| text.chars().count() > max)
            {
                problems.add(field, format!("must have at most {max} characters"));
            }
        }
    }

    fn stored(&self) -> Option<Json> {
        raw(self).filter(|json| json.get() != "{}")
    }
}

fn raw<T: serde::Serialize>(value: &T) -> Option<Json> {
    serde_json::value::to_raw_value(value).ok().map(Json::from)
}

/// Registers a worker, new or again.
#[utoipa::path(tag = "worker-lifecycle", operation_id = "registerWorker", request_body = WorkerRegistrationRequest,
    responses((status = 200, description = "The registration."), (status = 400, description = "Protocol version."),
        (status = 409, description = "Conflicts with a live registration or a capability's version."), (status = 422, description = "Fields.")))]
#[post("/register")]
pub async fn register_worker(call: Box<Call<AnyRole, WorkerRegistrationRequest>>) -> Native {
    Native(register(call).await)
}

async fn register(call: Box<Call<AnyRole, WorkerRegistrationRequest>>) -> Result<Answer, Failure> {
    let worker_id = call.body.worker_id.clone().unwrap_or_else(|| {
        crate::domain::ids::RunId::new(
            call.api.engine.clock().now(),
            uuid::Uuid::new_v4().as_u128(),
        )
        .to_string()
    });
    let description = describe(&call, &worker_id)?;
    let queues: Vec<String> = description.queues.iter().map(ToString::to_string).collect();
    let registered = call
        .api
        .engine
        .register_worker(
            call.namespace.clone(),
            WorkerId::from(worker_id.as_str()),
            description,
        )
        .await;
    let worker = match registered {
        Ok(worker) => worker,
        Err(RegisterError::Refused(refused)) => return Err(refusal(refused)),
        Err(RegisterError::Fault(fault)) => {
            return Err(
                lifecycle_fault(fault, "register_worker", &worker_id, queues.first())
                    .with("registered", false),
            );
        }
    };
    Answer::of(&registration(&call, &worker))
}

fn registration(call: &Call<AnyRole, WorkerRegistrationRequest>, worker: &Registration) -> Value {
    let said = &worker.description;
    let queues: Vec<&str> = said.queues.iter().map(TaskQueue::as_str).collect();
    json!({
        "worker_id": worker.worker_id.as_str(),
        "registered": true,
        "namespace": worker.namespace.as_str(),
        "task_queue": queues.first(),
        "task_queues": queues,
        "runtime": said.runtime,
        "build_id": said.build_id,
        "capabilities": said.capabilities,
        "capability_manifest": said.capability_manifest,
        "status": worker.status.as_str(),
        "heartbeat_interval_seconds": call.api.settings.workers.heartbeat_interval_seconds,
        "registration_token": worker.token,
    })
}

/// A failure of the server, with what a worker needs to repeat the request.
pub fn lifecycle_fault(
    fault: Fault,
    operation: &str,
    worker_id: &str,
    queue: Option<&String>,
) -> Failure {
    Failure::from(fault)
        .with("operation", operation)
        .with("worker_id", worker_id)
        .with("task_queue", queue.cloned())
}

fn refusal(refused: Refused) -> Failure {
    let (reason, workflow_type, sentence) = match refused {
        Refused::DefinitionChanged { workflow_type } => (
            Reason::WorkflowDefinitionChanged,
            workflow_type,
            "A live worker of this id runs another definition of this workflow type.",
        ),
        Refused::FingerprintMissing { workflow_type } => (
            Reason::WorkflowDefinitionFingerprintMissing,
            workflow_type,
            "A live worker of this id named a fingerprint for this workflow type.",
        ),
    };
    Failure::new(StatusCode::CONFLICT, reason, sentence)
        .with("registered", false)
        .with("workflow_type", workflow_type)
        .with("remediation", "Register with a new worker id.")
}

/// Checks the fields of a registration and puts them into the words of the domain.
fn describe(
    call: &Call<AnyRole, WorkerRegistrationRequest>,
    worker_id: &str,
) -> Result<Description, Failure> {
    let body = &call.body;
    let mut problems = Problems::default();
    problems.text("worker_id", worker_id, MAX_ID);
    let one = body.task_queue.as_ref().map(|queue| vec![queue.clone()]);
    let queues = match (&body.task_queues, &one) {
        // One queue and a list that holds it agree.
        (Some(list), Some(one)) if list.contains(&one[0]) => Some(list.clone()),
        _ => problems.agree("task_queues", body.task_queues.clone(), one),
    };
    let queues = queues.unwrap_or_default();
    if queues.is_empty() {
        problems.add("task_queues", "must name at least one queue");
    }
    let workflow_types = problems.agree(
        "workflow_types",
        body.workflow_types.clone(),
        body.supported_workflow_types.clone(),
    );
    let activity_types = problems.agree(
        "activity_types",
        body.activity_types.clone(),
        body.supported_activity_types.clone(),
    );
    let listed = [
        ("task_queues", Some(&queues)),
        ("workflow_types", workflow_types.as_ref()),
        ("activity_types", activity_types.as_ref()),
        ("capabilities", body.capabilities.as_ref()),
    ];
    for (field, items) in listed {
        let items = items.map_or(&[][..], Vec::as_slice);
        if items.len() > MAX_LISTED {
            problems.add(field, format!("must list at most {MAX_LISTED}"));
        }
        for (place, item) in items.iter().take(MAX_LISTED).enumerate() {
            problems.text(format_args!("{field}.{place}"), item, MAX_ID);
        }
    }
    let runtime = body
        .runtime
        .clone()
        .unwrap_or_else(|| "external".to_owned());
    if !RUNTIMES.contains(&runtime.as_str()) {
        problems.add("runtime", format!("must be one of {}", RUNTIMES.join(", ")));
    }
    for (field, value, max) in [
        ("sdk_version", &body.sdk_version, 64),
        ("build_id", &body.build_id, MAX_ID),
    ] {
        if value
            .as_ref()
            .is_some_and(|text| text.chars().count() > max)
        {
            problems.add(field, format!("must have at most {max} characters"));
        }
    }
    let slots =
        |problems: &mut Problems, field: &str, value: Option<Int>, least: i64, default: u32| {
            let Some(Int(value)) = value else {
                return default;
            };
            problems.within(field, value, least..=MAX_SLOTS);
            u32::try_from(value).unwrap_or(default)
        };
    let max_workflow_tasks = slots(
        &mut problems,
        "max_concurrent_workflow_tasks",
        body.max_concurrent_workflow_tasks,
        0,
        100,
    );
    let max_activity_tasks = slots(
        &mut problems,
        "max_concurrent_activity_tasks",
        body.max_concurrent_activity_tasks,
        0,
        100,
    );
    let max_sessions = slots(
        &mut problems,
        "max_concurrent_worker_sessions",
        body.max_concurrent_worker_sessions,
        1,
        10,
    );
    if max_workflow_tasks == 0 && max_activity_tasks == 0 {
        problems.add(
            "max_concurrent_workflow_tasks",
            "must not be 0 together with max_concurrent_activity_tasks",
        );
        problems.add(
            "max_concurrent_activity_tasks",
            "must not be 0 together with max_concurrent_workflow_tasks",
        );
    }
    let heartbeat_interval_seconds = interval(&mut problems, body.heartbeat_interval_seconds);
    if let Some(metrics) = &body.process_metrics {
        metrics.check(&mut problems);
    }
    let workflow_types = workflow_types.unwrap_or_default();
    let fingerprints = fingerprints(&mut problems, body, &workflow_types);
    let contracts = body.workflow_command_contracts.as_ref().map(|contracts| {
        let kept: Map<String, Value> = contracts
            .iter()
            .filter(|(workflow_type, _)| workflow_types.contains(workflow_type))
            .map(|(workflow_type, contract)| (workflow_type.clone(), contract.clone()))
            .collect();
        kept
    });
    if call.version.knows(Feature::CapabilityManifest) {
        check_manifest(&mut problems, call);
    }
    problems.into_result()?;
    check_capabilities(call)?;
    Ok(Description {
        queues: queues.into_iter().map(TaskQueue::from).collect(),
        runtime,
        sdk_version: body.sdk_version.clone(),
        build_id: body
            .build_id
            .as_deref()
            .filter(|build| !build.is_empty())
            .map(Arc::from),
        workflow_types: workflow_types.into(),
        activity_types: activity_types.unwrap_or_default().into(),
        fingerprints,
        contracts: contracts.as_ref().and_then(raw),
        capabilities: body.capabilities.clone().unwrap_or_default(),
        capability_manifest: body.capability_manifest.as_ref().and_then(raw),
        max_workflow_tasks,
        max_activity_tasks,
        max_sessions,
        slots: body.task_slots.as_ref().and_then(raw),
        process_metrics: body
            .process_metrics
            .as_ref()
            .and_then(ProcessMetrics::stored),
        heartbeat_interval_seconds,
    })
}

fn interval(problems: &mut Problems, value: Option<Int>) -> Option<u32> {
    let Int(seconds) = value?;
    problems.within("heartbeat_interval_seconds", seconds, 1..=3_600);
    u32::try_from(seconds).ok()
}

fn fingerprints(
    problems: &mut Problems,
    body: &WorkerRegistrationRequest,
    workflow_types: &[String],
) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for (workflow_type, fingerprint) in body.workflow_definition_fingerprints.iter().flatten() {
        let fingerprint = fingerprint.trim();
        if fingerprint.chars().count() > MAX_ID {
            problems.add(
                format!("workflow_definition_fingerprints.{workflow_type}"),
                format!("must have at most {MAX_ID} characters"),
            );
        }
        if !fingerprint.is_empty() && workflow_types.contains(workflow_type) {
            kept.insert(workflow_type.clone(), fingerprint.to_owned());
        }
    }
    kept
}

/// `WorkerHeartbeatRequest`
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
pub struct WorkerHeartbeatRequest {
    /// The worker.
    worker_id: Option<String>,
    /// Queues that the worker serves; a heartbeat does not move it to others.
    #[allow(dead_code, reason = "part of the contract, without effect on routing")]
    task_queues: Option<Vec<String>>,
    /// Slots in use, the contract's spelling.
    active_slots: Option<u32>,
    /// Free slots.
    task_slots: Option<TaskSlots>,
    /// About the process.
    process_metrics: Option<ProcessMetrics>,
    /// Seconds between the worker's heartbeats.
    heartbeat_interval_seconds: Option<Int>,
}

/// Notes that a worker is alive.
#[utoipa::path(tag = "worker-lifecycle", operation_id = "heartbeatWorker", request_body = WorkerHeartbeatRequest,
    responses((status = 200, description = "The worker is known."), (status = 404, description = "It is not registered.")))]
#[post("/heartbeat")]
pub async fn heartbeat_worker(call: Box<Call<WorkerOnly, WorkerHeartbeatRequest>>) -> Native {
    Native(heartbeat(call).await)
}

async fn heartbeat(call: Box<Call<WorkerOnly, WorkerHeartbeatRequest>>) -> Result<Answer, Failure> {
    let body = &call.body;
    let mut problems = Problems::default();
    problems.required_text("worker_id", body.worker_id.as_deref(), MAX_ID);
    let heartbeat_interval_seconds = interval(&mut problems, body.heartbeat_interval_seconds);
    if let Some(metrics) = &body.process_metrics {
        metrics.check(&mut problems);
    }
    problems.into_result()?;
    let worker_id = body.worker_id.clone().unwrap_or_default();
    let text = |json: Option<Json>| json.map(|json: Arc<RawValue>| json.get().to_owned());
    let slots = body.task_slots.as_ref().and_then(raw).or_else(|| {
        let active = body.active_slots?;
        raw(&json!({ "active_slots": active }))
    });
    let beat = Beat {
        slots: text(slots),
        process_metrics: text(
            body.process_metrics
                .as_ref()
                .and_then(ProcessMetrics::stored),
        ),
        heartbeat_interval_seconds,
    };
    let worker = call
        .api
        .engine
        .heartbeat_worker(&call.namespace, &WorkerId::from(worker_id.as_str()), &beat)
        .await
        .map_err(|fault| lifecycle_fault(fault, "heartbeat_worker", &worker_id, None))?;
    let Some(worker) = worker else {
        return Err(Failure::new(
            StatusCode::NOT_FOUND,
            Reason::WorkerNotRegistered,
            "The worker is not registered.",
        )
        .with("worker_id", worker_id));
    };
    let workers = &call.api.settings.workers;
    Answer::of(&json!({
        "worker_id": worker_id,
        "acknowledged": true,
        "status": worker.status.as_str(),
        "heartbeat_interval_seconds": workers.heartbeat_interval_seconds,
        "stale_after_seconds": workers.stale_after_seconds,
    }))
}
