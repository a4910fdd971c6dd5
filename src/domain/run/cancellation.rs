//! Cooperative cancellation: the request, its delivery at a call of the workflow's code, the children
//! and activities that are cancelled on the way, and the deadline of the cleanup (worker plane 1.14 to
//! 1.20, section 10.1). Cancel and terminate, which close a run at once, are elsewhere.

use std::sync::Arc;

use super::super::command::{CancellationPolicy, Failure};
use super::super::event::{
    CONTEXT_SCHEMA, CancellationContext, CancellationLineage, CooperativeCancellationDelivered,
    CooperativeCancellationRequested, Delivery, Requester,
};
use super::super::features;
use super::super::ids::{Part, Step, TaskNo, WorkerId, part_id};
use super::super::lease::Hold;
use super::super::time::Timestamp;
use super::close::{self, ObservedLease};
use super::decision::{Relay, TimerKey, TimerKind};
use super::draft::Draft;
use super::fact::{CommandKind, Fact, Resume};
use super::outcome::{Refusal, Reply, Verdict};
use super::state::{Activity, Child, RunState};
use super::{activity, child, condition, held, signal, timer, update};

/// A request that a run accepted.
#[derive(Clone, Debug)]
pub struct Cancellation {
    /// Who asked, when, and until when the cleanup may take.
    pub context: CancellationContext,
    /// The call that it interrupted, and when.
    pub delivered: Option<(Delivery, Timestamp)>,
    /// Children that were asked to cancel on behalf of it.
    pub children_asked: Vec<Step>,
    /// Activities that were asked to cancel on behalf of it.
    pub activities_asked: Vec<TaskNo>,
}

/// A wish to cancel a run with its cooperation.
#[derive(Clone, Debug)]
pub struct CancellationRequest {
    /// Why.
    pub reason: Option<Arc<str>>,
    /// Seconds that the cleanup may take, when the wish comes from outside.
    pub cleanup_timeout_seconds: u64,
    /// The context of the parent's request, when it comes from there.
    pub parent: Option<Box<CancellationContext>>,
    /// The lease on the open workflow task, if it was looked up.
    pub lease: ObservedLease,
}

/// A worker found the call at which to deliver a cancellation.
#[derive(Clone, Debug)]
pub struct DeliveryReport {
    /// The task.
    pub no: TaskNo,
    /// The hand-out.
    pub attempt: u32,
    /// The holder.
    pub owner: WorkerId,
    /// The request.
    pub request_id: Arc<str>,
    /// The call.
    pub delivery: Delivery,
}

/// The row of the cleanup's deadline.
pub(super) fn deadline_row() -> TimerKey {
    TimerKey {
        kind: TimerKind::CleanupDeadline,
        no: 0,
    }
}

/// Accepts a request. A worker that holds the run's task and does not know of cancellations would run
/// past it, so the request is refused while one does.
pub(super) fn request(
    mut draft: Draft<'_>,
    request: CancellationRequest,
) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::NotActive(Arc::clone(close)));
    }
    if draft.state.cancellation.is_some() {
        return Ok(Verdict::Answer(Reply::CancellationRequested {
            duplicate: true,
        }));
    }
    let now = draft.now;
    let (requested_at, deadline) = match &request.parent {
        Some(parent) => (parent.requested_at, parent.cleanup_deadline_at),
        None => (now, now.plus_seconds(request.cleanup_timeout_seconds)),
    };
    if deadline <= now {
        return Err(Refusal::NothingToDo);
    }
    fence_on_holder(&mut draft, &request.lease)?;
    let (_, request_id) = draft.command(CommandKind::RequestCancellation, None, None);
    let request_id: Arc<str> = request_id.into();
    let begun = Arc::clone(&draft.state.begun);
    let own = CancellationLineage {
        request_id: Arc::clone(&request_id),
        workflow_instance_id: begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
    };
    let context = match request.parent.map(|parent| *parent) {
        Some(parent) => CancellationContext {
            parent_request_id: Some(Arc::clone(&parent.request_id)),
            request_id: Arc::clone(&request_id),
            lineage: parent.lineage.iter().cloned().chain([own]).collect(),
            source: "parent_workflow".into(),
            ..parent
        },
        None => CancellationContext {
            schema: CONTEXT_SCHEMA.into(),
            request_id: Arc::clone(&request_id),
            root_request_id: Arc::clone(&request_id),
            root_workflow_instance_id: begun.workflow_id.clone(),
            root_workflow_run_id: draft.state.id,
            parent_request_id: None,
            reason: request.reason,
            requester: Requester {
                kind: "control_plane".into(),
            },
            source: "control_plane".into(),
            requested_at,
            cleanup_deadline_at: deadline,
            lineage: vec![own],
        },
    };
    draft.emit(CooperativeCancellationRequested {
        workflow_command_id: request_id,
        workflow_run_id: draft.state.id,
        workflow_instance_id: begun.workflow_id.clone(),
        cleanup_deadline_at: deadline,
        reason: context.reason.clone(),
        cancellation: context,
    });
    draft.set_timer(deadline_row(), deadline);
    // From here on only workers that know of cancellations may take the run's task.
    if let Some(no) = draft.state.workflow_task.as_ref().map(|task| task.no) {
        let needs = draft.state.needs;
        draft.effects.require(no, needs);
    }
    draft.wake();
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::CancellationRequested { duplicate: false },
    ))
}

fn fence_on_holder(draft: &mut Draft<'_>, lease: &ObservedLease) -> Result<(), Refusal> {
    let Some(no) = draft.state.workflow_task.as_ref().map(|task| task.no) else {
        return Ok(());
    };
    match lease {
        ObservedLease::Unknown => Err(Refusal::LeaseNeeded),
        ObservedLease::Free => {
            draft.fence(no, Hold::Free);
            Ok(())
        }
        ObservedLease::Held {
            attempt,
            live: true,
            knows,
            ..
        } if knows & features::CANCELLATION == 0 => Err(Refusal::ClaimCannotCooperate {
            no,
            attempt: *attempt,
        }),
        ObservedLease::Held { owner, attempt, .. } => {
            draft.fence(
                no,
                Hold::Seen {
                    owner: owner.clone(),
                    attempt: *attempt,
                },
            );
            Ok(())
        }
    }
}

/// Delivers a cancellation at a call. What the call waits for is closed, left alone or awaited, as its
/// policy says; when it is awaited, the task is given back and follows once it has ended.
pub(super) fn deliver(mut draft: Draft<'_>, report: DeliveryReport) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::RunClosed(Arc::clone(close)));
    }
    match &draft.state.workflow_task {
        Some(task) if task.no == report.no => {}
        _ if report.no == 0 || report.no >= draft.state.next_task => {
            return Err(Refusal::UnknownTask);
        }
        _ => return Err(Refusal::TaskNotOpen),
    }
    let Some(cancellation) = draft.state.cancellation.clone() else {
        return Err(Refusal::NoSuchCancellation);
    };
    if cancellation.context.request_id != report.request_id {
        return Err(Refusal::NoSuchCancellation);
    }
    if let Some((delivered, _)) = &cancellation.delivered {
        return if *delivered == report.delivery {
            Ok(Verdict::Answer(Reply::CancellationDelivered))
        } else {
            Err(Refusal::OtherDelivery(delivered.clone()))
        };
    }
    draft.fence(
        report.no,
        Hold::Live {
            owner: report.owner.clone(),
            attempt: report.attempt,
        },
    );
    let open = Open::of(&draft.state, &report.delivery);
    if let Some(waiting) = ask_and_wait(&mut draft, &open, &cancellation) {
        if draft.state.is_in_update() {
            update::fail_unanswered(&mut draft);
        }
        condition::time_out_overdue(&mut draft);
        draft.effects.close(report.no);
        draft.note(Fact::TaskReleased { no: report.no });
        if held::task_after(&draft, draft.state.acted_on).is_some() {
            held::go_on(&mut draft);
        }
        return Ok(Verdict::Commit(
            Box::new(draft.finish()),
            Reply::CancellationWaits(waiting),
        ));
    }
    draft.on_behalf_of_task(report.no);
    // What is closed here decides no selection: the cancellation does.
    draft.closing();
    close_open(&mut draft, &open);
    draft.emit(CooperativeCancellationDelivered {
        workflow_command_id: report.request_id,
        workflow_run_id: draft.state.id,
        delivery: report.delivery,
        cancellation: cancellation.context.clone(),
    });
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::CancellationDelivered,
    ))
}

/// What the interrupted call waits for.
struct Open {
    activities: Vec<Arc<Activity>>,
    children: Vec<Arc<Child>>,
    timers: Vec<Arc<super::state::Timer>>,
    conditions: Vec<Arc<super::state::Condition>>,
    signal_waits: Vec<Arc<super::state::SignalWait>>,
}

impl Open {
    fn of(state: &RunState, delivery: &Delivery) -> Self {
        let (first, span) = delivery.range();
        let range = first..first.saturating_add(span);
        Self {
            activities: state
                .activities
                .values()
                .filter(|activity| range.contains(&activity.step))
                .cloned()
                .collect(),
            children: state
                .children
                .range(range.clone())
                .map(|(_, c)| Arc::clone(c))
                .collect(),
            timers: state
                .timers
                .range(range.clone())
                .map(|(_, t)| Arc::clone(t))
                .collect(),
            conditions: state
                .conditions
                .range(range.clone())
                .map(|(_, c)| Arc::clone(c))
                .collect(),
            signal_waits: state
                .signal_waits
                .range(range)
                .map(|(_, w)| Arc::clone(w))
                .collect(),
        }
    }
}

/// Asks for the end of what must be awaited. Returns what is waited for.
fn ask_and_wait(
    draft: &mut Draft<'_>,
    open: &Open,
    cancellation: &Cancellation,
) -> Option<&'static str> {
    const AWAITED: CancellationPolicy = CancellationPolicy::WaitCancellationCompleted;
    let mut waiting = None;
    for activity in open.activities.iter().filter(|a| a.cancellation == AWAITED) {
        if activity.started <= activity.ended {
            // Nobody runs it: it was never handed out, or waits for its next attempt.
            continue;
        }
        waiting = Some("cancellation_waiting_for_activity");
        if !cancellation.activities_asked.contains(&activity.no) {
            draft.note(Fact::ActivityAsked { no: activity.no });
            draft.effects.ask_to_cancel(activity.no);
        }
    }
    for child in open.children.iter().filter(|c| c.cancellation == AWAITED) {
        waiting = Some("cancellation_waiting_for_child");
        ask_child(draft, child, cancellation);
    }
    waiting
}

fn ask_child(draft: &mut Draft<'_>, child: &Child, cancellation: &Cancellation) {
    if cancellation.children_asked.contains(&child.step) {
        return;
    }
    draft.note(Fact::ChildAsked { step: child.step });
    let relay = request_relay(draft, child, &cancellation.context);
    // Facts have no number of their own; a child is asked once, so its step tells these apart from
    // the relays of events.
    draft.effects.relay(ASKED + u64::from(child.step), relay);
}

/// Numbers of relays that belong to no event begin here, far above any event.
const ASKED: u64 = 1 << 40;

/// Seconds that the cleanup of children may take when their parent closes without a request.
const CLOSING_CLEANUP_SECONDS: u64 = 600;

/// The context under which a closing run asks its children to cancel: its own request with what is
/// left of its time, or one that begins with the closing.
pub(super) fn of_closing(draft: &Draft<'_>, event: u64) -> CancellationContext {
    if let Some(cancellation) = &draft.state.cancellation
        && cancellation.context.cleanup_deadline_at > draft.now
    {
        return cancellation.context.clone();
    }
    let (run, workflow_id) = (draft.state.id, &draft.state.begun.workflow_id);
    let request_id: Arc<str> = part_id(run, Part::Event, event).into();
    CancellationContext {
        schema: CONTEXT_SCHEMA.into(),
        request_id: Arc::clone(&request_id),
        root_request_id: Arc::clone(&request_id),
        root_workflow_instance_id: workflow_id.clone(),
        root_workflow_run_id: run,
        parent_request_id: None,
        reason: Some("The parent workflow closed.".into()),
        requester: Requester {
            kind: "workflow".into(),
        },
        source: "parent_workflow".into(),
        requested_at: draft.now,
        cleanup_deadline_at: draft.now.plus_seconds(CLOSING_CLEANUP_SECONDS),
        lineage: vec![CancellationLineage {
            request_id,
            workflow_instance_id: workflow_id.clone(),
            workflow_run_id: run,
        }],
    }
}

/// What tells a child to cancel with its cooperation.
pub(super) fn request_relay(
    draft: &Draft<'_>,
    child: &Child,
    context: &CancellationContext,
) -> Relay {
    Relay::RequestCancellation {
        namespace: draft.state.begun.namespace.clone(),
        workflow_id: child.workflow_id.clone(),
        context: Box::new(context.clone()),
    }
}

fn close_open(draft: &mut Draft<'_>, open: &Open) {
    for activity in &open.activities {
        if activity.cancellation != CancellationPolicy::Abandon {
            activity::withdraw(draft, activity);
        }
    }
    for timer in &open.timers {
        timer::cancel(draft, timer);
    }
    let context = draft.state.cancellation.clone();
    for child in &open.children {
        if child.cancellation == CancellationPolicy::TryCancel
            && let Some(cancellation) = &context
        {
            ask_child(draft, child, cancellation);
            child::abandon(draft, child);
        }
    }
    for wait in &open.conditions {
        condition::cancel_timer(draft, wait);
    }
    for wait in &open.signal_waits {
        signal::cancel_timer(draft, wait);
    }
}

/// The cleanup took too long: the run is closed. Returns whether anything is written.
pub(super) fn deadline_passed(
    draft: &mut Draft<'_>,
    lease: &ObservedLease,
) -> Result<bool, Refusal> {
    let Some(cancellation) = draft.state.cancellation.clone() else {
        return Ok(false);
    };
    if cancellation.context.cleanup_deadline_at > draft.now {
        return Ok(false);
    }
    close::cut_off_holder(draft, lease)?;
    close::cancel_cooperatively(draft, &cancellation.context);
    Ok(true)
}

/// In a run that succeeds another one: the request that the workflow has not heard of.
pub(super) fn carry_over(draft: &mut Draft<'_>, mut context: CancellationContext) {
    let run = draft.state.id;
    if context.lineage.len() == 1 {
        context.root_workflow_run_id = run;
    }
    if let Some(own) = context.lineage.last_mut() {
        own.workflow_run_id = run;
    }
    let deadline = context.cleanup_deadline_at;
    draft.emit(CooperativeCancellationRequested {
        workflow_command_id: Arc::clone(&context.request_id),
        workflow_run_id: run,
        workflow_instance_id: draft.state.begun.workflow_id.clone(),
        cleanup_deadline_at: deadline,
        reason: context.reason.clone(),
        cancellation: context,
    });
    draft.set_timer(deadline_row(), deadline);
}

/// Whether this failure is the end of a cleanup after a delivered cancellation.
pub(super) fn ends_cleanup(state: &RunState, failure: &Failure) -> bool {
    const TYPES: [&str; 2] = ["WorkflowCancelled", "WorkflowCancellationRequested"];
    let delivered = state
        .cancellation
        .as_ref()
        .is_some_and(|cancellation| cancellation.delivered.is_some());
    let named = [failure.kind.as_deref(), failure.class.as_deref()];
    delivered
        && named
            .into_iter()
            .flatten()
            .any(|name| TYPES.contains(&name.rsplit(['.', '\\', ':']).next().unwrap_or(name)))
}

/// A worker says that it has stopped an activity that was cancelled.
pub(super) fn stopped(mut draft: Draft<'_>, no: TaskNo, attempt: u32) -> Result<Verdict, Refusal> {
    let at = draft.now;
    let known = draft
        .state
        .stopped
        .iter()
        .find(|stopped| stopped.no == no && stopped.attempt == attempt);
    if let Some(stopped) = known {
        return Ok(Verdict::Answer(Reply::StopAcknowledged {
            duplicate: true,
            at: stopped.at,
        }));
    }
    if !draft.state.cancelled_activities.contains_key(&no) {
        return Err(Refusal::NothingToDo);
    }
    draft.note(Fact::CallbackStopped { no, attempt, at });
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::StopAcknowledged {
            duplicate: false,
            at,
        },
    ))
}

/// A worker's word that it has stopped a cancelled activity.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The activity's task.
    pub no: TaskNo,
    /// The hand-out.
    pub attempt: u32,
    /// When it said so.
    pub at: Timestamp,
}

impl RunState {
    pub(super) fn apply_cancellation_request(
        &mut self,
        requested: &CooperativeCancellationRequested,
        sequence: u64,
    ) {
        self.needs |= features::CANCELLATION;
        self.cancellation = Some(Arc::new(Cancellation {
            context: requested.cancellation.clone(),
            delivered: None,
            children_asked: Vec::new(),
            activities_asked: Vec::new(),
        }));
        self.wake(sequence, Resume::Unseen);
    }

    pub(super) fn apply_cancellation_delivery(
        &mut self,
        delivered: &CooperativeCancellationDelivered,
        at: Timestamp,
    ) {
        let delivery = &delivered.delivery;
        // The call keeps its numbers even if nothing was opened for it.
        let after = delivery.sequence.saturating_add(delivery.sequence_span);
        self.next_step = self.next_step.max(after);
        let (first, span) = delivery.range();
        let range = first..first.saturating_add(span);
        self.conditions.retain(|step, _| !range.contains(step));
        self.signal_waits.retain(|step, _| !range.contains(step));
        self.groups.retain(|base, _| !range.contains(base));
        if let Some(cancellation) = &mut self.cancellation {
            Arc::make_mut(cancellation).delivered = Some((delivery.clone(), at));
        }
    }

    /// A delivery was put off until something that was asked to cancel has ended.
    pub(super) fn delivery_waits(&self) -> bool {
        self.cancellation.as_ref().is_some_and(|cancellation| {
            let none_asked =
                cancellation.children_asked.is_empty() && cancellation.activities_asked.is_empty();
            cancellation.delivered.is_none() && !none_asked
        })
    }

    pub(super) fn asked(&mut self, ask: impl FnOnce(&mut Cancellation)) {
        if let Some(cancellation) = &mut self.cancellation {
            ask(Arc::make_mut(cancellation));
        }
    }
}
