//! Tasks on the wire: what a claimed workflow or activity task looks like, and polls without one.

use std::sync::LazyLock;

use actix_web::web::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::domain::ids::{Part, RunId, TaskId, part_id};
use crate::domain::retry::Policy;
use crate::domain::run::{Resume, RunState};
use crate::domain::time::Timestamp;
use crate::engine::{ActivityTaskView, Fault, Page, WorkflowTaskView};
use crate::payload::Payload;
use crate::protocol::budget::Budget;
use crate::protocol::capabilities::HISTORY_COMPRESSION_THRESHOLD;

use super::super::compression::HistoryEncoding;
use super::answer::{Failure, Fields};
use super::cancellations::request_object;
use super::page_tokens;
use super::sessions::affinity;

/// Events that a page holds, as raw JSON.
///
/// # Errors
/// The stored text is no JSON, which is a defect.
pub fn events(page: &str) -> Result<Box<RawValue>, Failure> {
    RawValue::from_string(format!("[{page}]")).map_err(|error| Failure::from(Fault::from(error)))
}

/// A page of a task's history as a worker takes it: what stands beside the events, and the events.
#[derive(Serialize)]
pub struct ShownHistory {
    #[serde(skip)]
    events: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    history_events_compressed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history_events_encoding: Option<&'static str>,
    next_history_page_token: Option<String>,
    last_history_sequence: u64,
    #[serde(skip)]
    size: HistorySize,
}

impl ShownHistory {
    /// A page of a task that shows events up to `seen`; compressed when that is asked for and worth while.
    pub fn new(state: &RunState, page: Page, seen: u64, encoding: Option<HistoryEncoding>) -> Self {
        let compressed = compressed(&page, encoding);
        let (text, encoding) = compressed.unzip();
        Self {
            next_history_page_token: page
                .next_after
                .map(|after| page_tokens::of_run(state.id, after)),
            events: match text {
                Some(_) => Bytes::new(),
                None => page.events.into(),
            },
            history_events_compressed: text,
            history_events_encoding: encoding,
            last_history_sequence: seen,
            size: history_size(state, seen),
        }
    }

    /// Appends all of it to an object that is open and has fields. The events stand in two of them, no events when
    /// they are compressed, and the stored bytes go to the worker as they are.
    ///
    /// # Errors
    /// They cannot be written as JSON, which is a defect.
    pub fn push_to(&self, fields: &mut Fields) -> Result<(), Failure> {
        for list in [r#","history_events":["#, r#"],"history":["#] {
            fields.push(list);
            fields.share(&self.events);
        }
        fields.push("]");
        fields.fields(b',', self)?;
        fields.fields(b',', &self.size)
    }
}

/// A page compressed, when that is asked for and worth while, and how.
fn compressed(page: &Page, encoding: Option<HistoryEncoding>) -> Option<(String, &'static str)> {
    let encoding = encoding.filter(|_| page.count >= HISTORY_COMPRESSION_THRESHOLD.into())?;
    let listed = format!("[{}]", page.events);
    Some((encoding.encode(&listed)?, encoding.as_str()))
}

/// When a lease began and ends.
#[derive(Debug, Serialize)]
struct Lease {
    leased_at: Timestamp,
    lease_expires_at: Timestamp,
}

/// Counts of a run's history and the advice that follows from them.
#[derive(Debug, Serialize)]
pub struct HistorySize {
    total_history_events: u64,
    history_size_bytes: u64,
    history_fan_out: u32,
    continue_as_new_recommended: bool,
    history_budget_pressure: &'static str,
    history_budget_pressure_dimensions: Vec<&'static str>,
}

/// The history counts of a task that shows events up to `seen`.
pub fn history_size(state: &RunState, seen: u64) -> HistorySize {
    let budget = Budget::of(seen, state.history_bytes, state.fan_out.into());
    HistorySize {
        total_history_events: seen,
        history_size_bytes: state.history_bytes,
        history_fan_out: state.fan_out,
        continue_as_new_recommended: budget.continue_as_new_recommended(),
        history_budget_pressure: budget.pressure(),
        history_budget_pressure_dimensions: budget.dimensions(),
    }
}

/// A workflow task up to its history.
#[derive(Serialize)]
struct WorkflowTask<'a> {
    task_kind: &'static str,
    task_type: &'static str,
    task_id: TaskId,
    workflow_id: &'a str,
    run_id: RunId,
    workflow_type: &'a str,
    workflow_task_attempt: u32,
    lease_owner: &'a str,
    lease_expires_at: Timestamp,
    payload_codec: &'static str,
    arguments: &'a Payload,
    run_status: &'static str,
}

/// A workflow task from its history to why it exists.
#[derive(Serialize)]
struct WorkflowTaskEnd<'a> {
    namespace: &'a str,
    task_queue: &'a str,
    connection: Option<&'a str>,
    compatibility: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sticky_replay_mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancellation_request: Option<Value>,
}

/// Why the task exists; every key is always there.
#[derive(Debug, Default, Serialize)]
struct ResumeContext {
    workflow_wait_kind: Option<&'static str>,
    open_wait_id: Option<String>,
    resume_source_kind: Option<&'static str>,
    resume_source_id: Option<String>,
    workflow_update_id: Option<String>,
    workflow_signal_id: Option<String>,
    signal_name: Option<String>,
    signal_wait_id: Option<String>,
    signal_arguments: Option<Payload>,
    workflow_command_id: Option<String>,
    activity_execution_id: Option<String>,
    activity_attempt_id: Option<String>,
    activity_type: Option<String>,
    child_call_id: Option<String>,
    child_workflow_run_id: Option<String>,
    workflow_sequence: Option<u32>,
    workflow_event_type: Option<String>,
    timer_id: Option<String>,
    condition_wait_id: Option<String>,
    condition_key: Option<String>,
    condition_definition_fingerprint: Option<String>,
}

impl ResumeContext {
    /// Appends it to an object that is open and has fields.
    fn push_to(resume: Option<&Self>, fields: &mut Fields) -> Result<(), Failure> {
        /// Of a task that nothing in particular caused, as text.
        static NONE: LazyLock<String> = LazyLock::new(|| {
            let none = serde_json::to_string(&ResumeContext::default()).unwrap_or_default();
            let fields = none
                .strip_prefix('{')
                .and_then(|none| none.strip_suffix('}'));
            format!(",{}", fields.unwrap_or_default())
        });
        match resume {
            Some(resume) => fields.fields(b',', resume),
            None => {
                fields.push(&NONE);
                Ok(())
            }
        }
    }
}

fn resume_context(state: &RunState, resume: &Resume) -> Option<ResumeContext> {
    let run = state.id;
    Some(match resume {
        Resume::Start | Resume::Unseen => return None,
        Resume::Activity {
            no,
            step,
            activity_type,
            event,
        } => {
            let id = part_id(run, Part::Activity, (*no).into());
            ResumeContext {
                workflow_wait_kind: Some("activity"),
                open_wait_id: Some(format!("activity:{id}")),
                resume_source_kind: Some("activity_execution"),
                resume_source_id: Some(id.clone()),
                activity_execution_id: Some(id),
                activity_type: Some(activity_type.to_string()),
                workflow_sequence: Some(*step),
                workflow_event_type: Some(event.to_string()),
                ..ResumeContext::default()
            }
        }
        Resume::Timer { step } => {
            let id = part_id(run, Part::Timer, (*step).into());
            ResumeContext {
                workflow_wait_kind: Some("timer"),
                open_wait_id: Some(format!("timer:{id}")),
                resume_source_kind: Some("timer"),
                resume_source_id: Some(id.clone()),
                timer_id: Some(id),
                workflow_sequence: Some(*step),
                workflow_event_type: Some("TimerFired".to_owned()),
                ..ResumeContext::default()
            }
        }
        // The signal is in the history; naming it here would make an SDK take it twice.
        Resume::Signal { n, run: of, .. } => {
            let id = part_id(*of, Part::Signal, *n);
            ResumeContext {
                workflow_wait_kind: Some("signal"),
                open_wait_id: Some(format!("signal-application:{id}")),
                resume_source_kind: Some("workflow_signal"),
                resume_source_id: Some(id.clone()),
                workflow_signal_id: Some(id),
                workflow_command_id: Some(part_id(*of, Part::Command, *n)),
                ..ResumeContext::default()
            }
        }
        Resume::Update { id, n, run, .. } => ResumeContext {
            workflow_wait_kind: Some("update"),
            open_wait_id: Some(format!("update:{id}")),
            resume_source_kind: Some("workflow_update"),
            resume_source_id: Some(id.to_string()),
            workflow_update_id: Some(id.to_string()),
            workflow_command_id: Some(part_id(*run, Part::Command, *n)),
            ..ResumeContext::default()
        },
        Resume::Child {
            step,
            run: child,
            event,
        } => {
            let id = part_id(run, Part::Call, (*step).into());
            ResumeContext {
                workflow_wait_kind: Some("child"),
                open_wait_id: Some(format!("child:{id}")),
                resume_source_kind: Some("child_workflow_run"),
                resume_source_id: Some(child.to_string()),
                child_call_id: Some(id),
                child_workflow_run_id: Some(child.to_string()),
                workflow_sequence: Some(*step),
                workflow_event_type: Some(event.to_string()),
                ..ResumeContext::default()
            }
        }
        Resume::Condition { step } => {
            let id = part_id(run, Part::Wait, (*step).into());
            ResumeContext {
                workflow_wait_kind: Some("condition"),
                open_wait_id: Some(id.clone()),
                resume_source_kind: Some("timer"),
                resume_source_id: Some(part_id(run, Part::Timer, (*step).into())),
                condition_wait_id: Some(id),
                workflow_sequence: Some(*step),
                ..ResumeContext::default()
            }
        }
        // The application is in the history; see the signal above.
        Resume::SignalWait { step, event, .. } => {
            let id = part_id(run, Part::Wait, (*step).into());
            ResumeContext {
                workflow_wait_kind: Some("signal"),
                open_wait_id: Some(id),
                workflow_sequence: Some(*step),
                workflow_event_type: Some(event.to_string()),
                ..ResumeContext::default()
            }
        }
    })
}

/// The fields of a poll that got a workflow task.
///
/// # Errors
/// They cannot be written as JSON, which is a defect.
pub fn workflow_claim(
    view: WorkflowTaskView,
    sticky: bool,
    encoding: Option<HistoryEncoding>,
) -> Result<Fields, Failure> {
    let state = &view.state;
    let begun = &state.begun;
    let history = ShownHistory::new(state, view.page, view.seen, encoding);
    let task = state.workflow_task.as_ref();
    let resume = task.and_then(|task| resume_context(state, &task.resume));
    let status = if state.progressed {
        "running"
    } else {
        "pending"
    };
    let task = WorkflowTask {
        task_kind: "workflow",
        task_type: "workflow",
        task_id: view.lease.task,
        workflow_id: begun.workflow_id.as_str(),
        run_id: state.id,
        workflow_type: &begun.workflow_type,
        workflow_task_attempt: view.lease.attempt,
        lease_owner: view.lease.owner.as_str(),
        lease_expires_at: view.lease.lease_expires_at,
        payload_codec: "avro",
        arguments: &begun.input,
        run_status: status,
    };
    let end = WorkflowTaskEnd {
        namespace: begun.namespace.as_str(),
        task_queue: begun.queue.as_str(),
        connection: None,
        compatibility: begun.build_id.as_deref(),
        sticky_replay_mode: sticky.then(|| view.replay_mode.as_str()),
        cancellation_request: state.cancellation.as_deref().map(request_object),
    };
    let copied = begun.input.blob().len() + 2 * Fields::copied(&history.events);
    let mut fields = Fields::with_capacity(CLAIM_ROOM + copied);
    fields.push(r#"{"task":"#);
    fields.fields(b'{', &task)?;
    history.push_to(&mut fields)?;
    fields.fields(b',', &end)?;
    ResumeContext::push_to(resume.as_ref(), &mut fields)?;
    fields.push("}");
    fields.fields(b',', &ClaimEnd::of(&view.lease))?;
    fields.push("}");
    Ok(fields)
}

/// The fields of a poll that got an activity task.
///
/// # Errors
/// They cannot be written as JSON, which is a defect.
pub fn activity_claim(view: &ActivityTaskView) -> Result<Fields, Failure> {
    #[derive(Serialize)]
    struct ActivityTask<'a> {
        task_id: TaskId,
        task_type: &'static str,
        task_kind: &'static str,
        workflow_id: &'a str,
        run_id: RunId,
        namespace: &'a str,
        activity_execution_id: &'a str,
        activity_attempt_id: String,
        idempotency_key: &'a str,
        attempt_number: u32,
        attempt: u32,
        activity_type: &'a str,
        payload_codec: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        arguments: Option<&'a Payload>,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_policy: Option<&'a Policy>,
        task_queue: &'a str,
        lease_owner: &'a str,
        lease_expires_at: Timestamp,
        deadlines: Value,
        #[serde(skip_serializing_if = "Option::is_none")]
        worker_session: Option<Value>,
    }
    let (state, activity, lease) = (&view.state, &view.activity, &view.lease);
    let mut deadlines = serde_json::Map::new();
    for (name, at) in [
        ("schedule_to_start", activity.start_deadline()),
        ("start_to_close", lease.start_to_close_at),
        ("schedule_to_close", activity.close_deadline()),
        ("heartbeat", lease.heartbeat_due_at),
    ] {
        if let Some(at) = at {
            deadlines.insert(name.to_owned(), at.to_string().into());
        }
    }
    let execution_id = view.execution_id();
    let task = ActivityTask {
        task_id: lease.task,
        task_type: "activity",
        task_kind: "activity",
        workflow_id: state.begun.workflow_id.as_str(),
        run_id: state.id,
        namespace: state.begun.namespace.as_str(),
        activity_execution_id: &execution_id,
        activity_attempt_id: view.attempt_id().to_string(),
        idempotency_key: &execution_id,
        attempt_number: lease.attempt,
        attempt: lease.attempt,
        activity_type: &activity.activity_type,
        payload_codec: "avro",
        arguments: activity.arguments.as_ref(),
        retry_policy: activity.policy.as_deref(),
        task_queue: activity.queue.as_str(),
        lease_owner: lease.owner.as_str(),
        lease_expires_at: lease.lease_expires_at,
        deadlines: Value::Object(deadlines),
        worker_session: activity
            .session
            .as_deref()
            .zip(view.session.as_ref())
            .map(|(asked, session)| affinity(asked, session)),
    };
    let arguments = activity.arguments.as_ref();
    sized_claim(
        &task,
        lease,
        arguments.map_or(0, |given| given.blob().len()),
    )
}

/// Bytes of a task without its payloads and its history, roughly.
const CLAIM_ROOM: usize = 4 << 10;

/// The fields of a poll that got `task`.
///
/// # Errors
/// They cannot be written as JSON, which is a defect.
pub fn claim<T: Serialize>(
    task: &T,
    lease: &crate::matching::GrantedLease,
) -> Result<Fields, Failure> {
    sized_claim(task, lease, 0)
}

/// [`claim`] of a task whose payloads have so many bytes.
fn sized_claim<T: Serialize>(
    task: &T,
    lease: &crate::matching::GrantedLease,
    bytes: usize,
) -> Result<Fields, Failure> {
    let mut fields = Fields::with_capacity(CLAIM_ROOM + bytes);
    fields.push(r#"{"task":"#);
    fields.value(task)?;
    fields.fields(b',', &ClaimEnd::of(lease))?;
    fields.push("}");
    Ok(fields)
}

/// What every poll that got a task says after it.
#[derive(Serialize)]
struct ClaimEnd {
    poll_status: &'static str,
    lease: Lease,
    server_time: Timestamp,
}

impl ClaimEnd {
    fn of(lease: &crate::matching::GrantedLease) -> Self {
        Self {
            poll_status: "leased",
            lease: Lease {
                leased_at: lease.leased_at,
                lease_expires_at: lease.lease_expires_at,
            },
            server_time: lease.leased_at,
        }
    }
}

/// The fields of a poll that got nothing: `poll_status`, and why.
pub fn no_task(poll_status: &str, reason: Option<&str>) -> Value {
    json!({"task": null, "poll_status": poll_status, "reason": reason})
}
