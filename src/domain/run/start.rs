//! The start of a run.

use std::sync::Arc;

use crate::payload::Payload;

use super::super::event::{CancellationContext, Json, StartAccepted, WorkflowStarted};
use super::super::ids::{Namespace, RunId, TaskQueue, WorkflowId};
use super::super::time::Timestamp;
use super::decision::{Claim, Decision, TimerKey, TimerKind};
use super::draft::Draft;
use super::fact::{Begun, CommandKind, Contract, Fact, ParentLink, Resume};
use super::state::{Held, RunState};
use super::stream::{self, Stream};
use super::{Settings, cancellation};

/// A start as the control plane accepted it.
#[derive(Clone, Debug)]
pub struct StartRequest {
    /// Namespace.
    pub namespace: Namespace,
    /// The new workflow.
    pub workflow_id: WorkflowId,
    /// Registered type.
    pub workflow_type: Arc<str>,
    /// Queue of its workflow tasks.
    pub queue: TaskQueue,
    /// Encoded argument list.
    pub input: Payload,
    /// Caller's business key.
    pub business_key: Option<Arc<str>>,
    /// Memo, a JSON object.
    pub memo: Json,
    /// Search attributes, a JSON object.
    pub search_attributes: Json,
    /// Seconds for the whole chain of runs.
    pub execution_timeout_seconds: Option<u64>,
    /// Seconds for one run.
    pub run_timeout_seconds: Option<u64>,
    /// 0 to 9, lower is more urgent.
    pub priority: u8,
    /// Class for fair sharing.
    pub fairness_key: Option<Arc<str>>,
    /// Weight of that class.
    pub fairness_weight: u16,
    /// Build that the run is pinned to.
    pub build_id: Option<Arc<str>>,
    /// What the workers of this type have declared.
    pub contract: Contract,
}

/// Starts the first run of a workflow. The write claims the workflow id.
pub fn start(run: RunId, request: StartRequest, now: Timestamp, settings: &Settings) -> Decision {
    let begun = Begun {
        namespace: request.namespace,
        workflow_id: request.workflow_id,
        run_number: 1,
        continued_from: None,
        workflow_type: request.workflow_type,
        queue: request.queue,
        input: request.input,
        business_key: request.business_key,
        memo: request.memo,
        memo_encoded: None,
        search_attributes: request.search_attributes,
        execution_timeout_seconds: request.execution_timeout_seconds,
        run_timeout_seconds: request.run_timeout_seconds,
        execution_deadline_at: request
            .execution_timeout_seconds
            .map(|s| now.plus_seconds(s)),
        run_deadline_at: request.run_timeout_seconds.map(|s| now.plus_seconds(s)),
        priority: request.priority,
        fairness_key: request.fairness_key,
        fairness_weight: request.fairness_weight,
        build_id: request.build_id,
        started_at: now,
        contract: request.contract,
        parent: None,
        retry_of: None,
    };
    let mut draft = begin(run, begun, now, settings);
    let (_, command) = draft.command(CommandKind::Start, None, None);
    let begun = Arc::clone(&draft.state.begun);
    draft.emit(StartAccepted {
        workflow_command_id: command.clone(),
        workflow_instance_id: begun.workflow_id.clone(),
        workflow_run_id: run,
        workflow_class: Arc::clone(&begun.workflow_type),
        workflow_type: Arc::clone(&begun.workflow_type),
        business_key: begun.business_key.clone(),
        visibility_labels: empty_object(),
        memo: Arc::clone(&begun.memo),
        search_attributes: Arc::clone(&begun.search_attributes),
        outcome: "started_new".into(),
        rejection_reason: None,
    });
    draft.claim = Some(Claim::Workflow);
    open(draft, Some(command))
}

/// What a run takes over from the one before it.
#[derive(Default)]
pub(super) struct Carried {
    /// The workflow's streams.
    pub streams: Vec<(Arc<str>, Stream)>,
    /// A cancellation that the workflow has not heard of.
    pub cancellation: Option<CancellationContext>,
}

impl Carried {
    pub(super) fn from(state: &RunState) -> Self {
        let undelivered = state
            .cancellation
            .as_ref()
            .filter(|cancellation| cancellation.delivered.is_none());
        Self {
            streams: state.streams_to_carry(),
            cancellation: undelivered.map(|cancellation| cancellation.context.clone()),
        }
    }
}

/// Starts a run that another one makes: a child, the next try of one, or a successor with the inputs
/// that the run before it did not take. Its first task may be handed out from `available_at` on.
pub(super) fn start_successor(
    run: RunId,
    begun: Begun,
    held: impl IntoIterator<Item = Held>,
    carried: Carried,
    available_at: Timestamp,
    now: Timestamp,
    settings: &Settings,
) -> Decision {
    let mut draft = begin(run, begun, now, settings);
    announce(&mut draft, None);
    stream::carry_over(&mut draft, carried.streams);
    if let Some(context) = carried.cancellation {
        cancellation::carry_over(&mut draft, context);
    }
    draft.open_workflow_task_at(Resume::Start, available_at);
    for input in held {
        draft.note(match input {
            Held::Signal(signal) => Fact::SignalHeld(signal),
            Held::Update(update) => Fact::UpdateHeld(update),
        });
    }
    draft.finish()
}

fn begin(run: RunId, begun: Begun, now: Timestamp, settings: &Settings) -> Draft<'_> {
    let mut draft = Draft::new(RunState::new(run, begun.clone()), now, settings);
    draft.note(Fact::Begun(Box::new(begun)));
    draft
}

fn open(mut draft: Draft<'_>, command: Option<String>) -> Decision {
    announce(&mut draft, command);
    draft.open_workflow_task(Resume::Start);
    draft.finish()
}

fn announce(draft: &mut Draft<'_>, command: Option<String>) {
    let begun = Arc::clone(&draft.state.begun);
    let parent = begun.parent.as_deref();
    draft.emit(WorkflowStarted {
        workflow_class: Arc::clone(&begun.workflow_type),
        workflow_type: Arc::clone(&begun.workflow_type),
        workflow_instance_id: begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
        workflow_id: begun.workflow_id.clone(),
        run_number: begun.run_number,
        workflow_command_id: command,
        business_key: begun.business_key.clone(),
        visibility_labels: empty_object(),
        memo: Arc::clone(&begun.memo),
        search_attributes: Arc::clone(&begun.search_attributes),
        execution_timeout_seconds: begun.execution_timeout_seconds,
        run_timeout_seconds: begun.run_timeout_seconds,
        execution_deadline_at: begun.execution_deadline_at,
        run_deadline_at: begun.run_deadline_at,
        timestamp: draft.now,
        continued_from_run_id: begun.continued_from,
        declared_queries: begun.contract.queries.clone(),
        declared_signals: begun.contract.signals.clone(),
        declared_updates: begun.contract.updates.clone(),
        declared_update_validators: begun.contract.update_validators.clone(),
        parent_workflow_instance_id: parent.map(|parent| parent.workflow_id.clone()),
        parent_workflow_run_id: parent.map(|parent| parent.run),
        parent_sequence: parent.map(|parent| parent.step),
        child_call_id: parent.map(ParentLink::call_id),
        workflow_link_id: parent.map(ParentLink::call_id),
        retry_attempt: parent.map(|parent| parent.attempt),
        retry_of_child_workflow_run_id: begun.retry_of,
    });
    if let Some(at) = begun.run_deadline_at {
        draft.set_timer(deadline(TimerKind::RunDeadline), at);
    }
    if let Some(at) = begun.execution_deadline_at {
        draft.set_timer(deadline(TimerKind::ExecutionDeadline), at);
    }
}

/// The timer row of a run's deadline.
pub(super) fn deadline(kind: TimerKind) -> TimerKey {
    TimerKey { kind, no: 0 }
}

/// `{}`.
pub(super) fn empty_object() -> Json {
    json(serde_json::Map::new())
}

/// A JSON object as it is stored.
pub(super) fn json(object: serde_json::Map<String, serde_json::Value>) -> Json {
    serde_json::value::to_raw_value(&object).map_or_else(|_| Arc::from(null()), Arc::from)
}

fn null() -> Box<serde_json::value::RawValue> {
    serde_json::value::RawValue::NULL.to_owned()
}
