//! Children: started with their call, heard of when they end, tried again, and closed with their
//! parent.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::payload::{Codec, Payload};

use super::super::command::{CancellationPolicy, ClosePolicy, Failure, StartChild};
use super::super::event::{
    Body, ChildEnd, ChildKeys, ChildRunCancelled, ChildRunCompleted, ChildRunFailed,
    ChildRunStarted, ChildRunTerminated, ChildWorkflowScheduled, Event, Json,
    ParentClosePolicyApplied,
};
use super::super::ids::{Part, RunId, Step, WorkflowId, part_id};
use super::super::limits::LimitKind;
use super::super::parallel::{GroupFields, StepKind};
use super::super::time::Timestamp;
use super::cancellation;
use super::decision::Relay;
use super::draft::Draft;
use super::fact::{Begun, Contract, ParentLink, Resume};
use super::fold::StepEnd;
use super::outcome::{Refusal, Reply, Verdict};
use super::start::{Carried, start_successor};
use super::state::{Child, RunState};
use super::status::CloseReason;
use super::workflow_task::within;

/// How a child ended, as its parent is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildOutcome {
    /// Why it closed.
    pub reason: CloseReason,
    /// When.
    pub at: Timestamp,
    /// Its result, if it returned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output: Option<Payload>,
    /// What went wrong, if something did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failure: Option<ChildFailure>,
}

/// What went wrong with a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChildFailure {
    /// Human sentence.
    pub message: Arc<str>,
    /// The SDK's error type.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kind: Option<Arc<str>>,
    /// The language's class.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<Arc<str>>,
    /// The structured exception.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub exception: Option<Json>,
}

/// A child has reached its end.
#[derive(Clone, Debug)]
pub struct ChildClosed {
    /// Step of the call.
    pub step: Step,
    /// The child's first run.
    pub child: RunId,
    /// How it ended.
    pub outcome: ChildOutcome,
}

/// Starts a child: it comes into being with the call.
pub(super) fn start(draft: &mut Draft<'_>, step: Step, command: StartChild) -> Result<(), Refusal> {
    within(
        draft.state.children.len() as u64 + 1,
        draft.settings.limits.pending_children,
        LimitKind::PendingChildren,
    )?;
    let now = draft.now;
    let parent = Arc::clone(&draft.state.begun);
    let run = draft.state.id.offspring(now, step.into());
    let workflow_id = WorkflowId::from(run.to_string());
    let child = Child {
        step,
        run,
        workflow_id: workflow_id.clone(),
        workflow_type: Arc::clone(&command.workflow_type),
        close_policy: command.close_policy,
        cancellation: command.cancellation.unwrap_or(CancellationPolicy::Abandon),
        path: command.path,
    };
    let keys = keys(draft.state.id, &child);
    draft.emit(ChildWorkflowScheduled {
        keys: keys.clone(),
        child_run_number: 1,
        parent_close_policy: command.close_policy.as_str().into(),
        cancellation_policy: command.cancellation.map(|policy| policy.as_str().into()),
        retry_policy: command.policy.clone(),
        execution_timeout_seconds: command.execution_timeout_seconds,
        run_timeout_seconds: command.run_timeout_seconds,
    });
    draft.emit(ChildRunStarted {
        keys,
        child_status: "pending".into(),
        child_run_number: 1,
        retry_attempt: 1,
        retry_of_child_workflow_run_id: None,
        retry_backoff_seconds: None,
    });
    let begun = Begun {
        workflow_id,
        run_number: 1,
        continued_from: None,
        workflow_type: command.workflow_type,
        queue: command.queue.unwrap_or_else(|| parent.queue.clone()),
        input: command.arguments.unwrap_or_else(Payload::empty_list),
        business_key: None,
        memo: draft.state.memo.shown.clone(),
        memo_encoded: draft.state.memo.encoded.clone(),
        search_attributes: draft.state.attributes.shown.clone(),
        execution_timeout_seconds: command.execution_timeout_seconds,
        run_timeout_seconds: command.run_timeout_seconds,
        execution_deadline_at: command
            .execution_timeout_seconds
            .map(|seconds| now.plus_seconds(seconds)),
        run_deadline_at: command
            .run_timeout_seconds
            .map(|seconds| now.plus_seconds(seconds)),
        started_at: now,
        contract: Contract::default(),
        retry_of: None,
        parent: Some(Box::new(ParentLink {
            workflow_id: parent.workflow_id.clone(),
            run: draft.state.id,
            step,
            first_run: run,
            policy: command.policy,
            attempt: 1,
        })),
        ..(*parent).clone()
    };
    let started = start_successor(run, begun, [], Carried::default(), now, now, draft.settings);
    draft.created.push(started.write);
    Ok(())
}

/// A child has ended.
pub(super) fn closed(mut draft: Draft<'_>, closed: ChildClosed) -> Result<Verdict, Refusal> {
    let child = match draft.state.children.get(&closed.step) {
        Some(child) if child.run == closed.child && draft.state.close.is_none() => {
            Arc::clone(child)
        }
        _ => return Err(Refusal::NothingToDo),
    };
    record_end(&mut draft, &child, closed.outcome);
    draft.wake();
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

fn record_end(draft: &mut Draft<'_>, child: &Child, outcome: ChildOutcome) {
    let keys = keys(draft.state.id, child);
    let reason = outcome.reason;
    let child_status = reason.status().as_str().into();
    let closed_reason = reason.as_str().into();
    if reason == CloseReason::Completed {
        let output = outcome.output.unwrap_or_else(Payload::null);
        draft.emit(ChildRunCompleted {
            keys,
            child_status,
            closed_reason,
            closed_at: outcome.at,
            result: output.clone(),
            output,
            payload_codec: Codec::Avro,
        });
        return;
    }
    let failure = outcome.failure.unwrap_or_else(|| ChildFailure {
        message: "The child workflow did not complete.".into(),
        kind: None,
        class: None,
        exception: None,
    });
    let end = ChildEnd {
        keys,
        child_status,
        closed_reason,
        closed_at: outcome.at,
        failure_id: draft.next_part(Part::Failure),
        failure_category: match reason {
            CloseReason::Cancelled => "cancelled".into(),
            CloseReason::Terminated => "terminated".into(),
            CloseReason::TimedOut => "timeout".into(),
            _ => "child_workflow".into(),
        },
        exception_type: failure.kind,
        exception_class: failure.class,
        message: failure.message,
        exception: failure.exception,
    };
    draft.emit(match reason {
        CloseReason::Cancelled => Body::from(ChildRunCancelled(end)),
        CloseReason::Terminated => Body::from(ChildRunTerminated(end)),
        _ => Body::from(ChildRunFailed(end)),
    });
}

const GIVEN_UP: &str = "The parent workflow no longer waits for this child.";

/// A selection gave the child up: it is cancelled, and its end is recorded at once.
pub(super) fn give_up(draft: &mut Draft<'_>, child: &Child) {
    let event = draft.state.next_event;
    abandon(draft, child);
    let relay = close_relay(draft, child, false, GIVEN_UP);
    draft.effects.relay(event, relay);
}

/// Records the end of a child that the run no longer waits for.
pub(super) fn abandon(draft: &mut Draft<'_>, child: &Child) {
    record_end(
        draft,
        child,
        ChildOutcome {
            reason: CloseReason::Cancelled,
            at: draft.now,
            output: None,
            failure: Some(ChildFailure {
                message: GIVEN_UP.into(),
                kind: None,
                class: Some("WorkflowCancelled".into()),
                exception: None,
            }),
        },
    );
}

/// The run closes: its children are closed as their calls said.
pub(super) fn apply_close_policies(draft: &mut Draft<'_>) {
    const WHY: &str = "The parent workflow closed.";
    let children: Vec<Arc<Child>> = draft.state.children.values().cloned().collect();
    for child in children {
        if child.close_policy == ClosePolicy::Abandon {
            continue;
        }
        let event = draft.state.next_event;
        draft.emit(ParentClosePolicyApplied {
            child_instance_id: child.workflow_id.clone(),
            child_run_id: child.run,
            policy: child.close_policy.as_str().into(),
            reason: "parent_closed".into(),
        });
        let relay = match child.close_policy {
            ClosePolicy::RequestCancellation => {
                cancellation::request_relay(draft, &child, &cancellation::of_closing(draft, event))
            }
            ClosePolicy::Terminate => close_relay(draft, &child, true, WHY),
            _ => close_relay(draft, &child, false, WHY),
        };
        draft.effects.relay(event, relay);
    }
}

fn close_relay(draft: &Draft<'_>, child: &Child, terminate: bool, why: &str) -> Relay {
    Relay::Close {
        namespace: draft.state.begun.namespace.clone(),
        workflow_id: child.workflow_id.clone(),
        terminate,
        reason: why.into(),
    }
}

/// The next try of a child that is about to fail, if its parent asked for one.
pub(super) struct NextTry {
    /// Its run.
    pub run: RunId,
    begun: Begun,
    available_at: Timestamp,
}

/// Whether the run, a child, is tried again after this failure.
pub(super) fn next_try(draft: &Draft<'_>, failure: &Failure) -> Option<NextTry> {
    let now = draft.now;
    let old = &draft.state.begun;
    let link = old.parent.as_deref()?;
    let policy = link.policy.as_ref()?;
    // A workflow that heard of its cancellation is not begun anew behind its back.
    let heard = draft.state.cancellation.as_ref();
    if heard.is_some_and(|cancellation| cancellation.delivered.is_some()) {
        return None;
    }
    if failure.non_retryable || policy.is_final(failure.kind.as_deref(), failure.class.as_deref()) {
        return None;
    }
    let backoff = policy.backoff_after(link.attempt)?;
    let available_at = now.plus_seconds(backoff);
    if old
        .execution_deadline_at
        .is_some_and(|at| at <= available_at)
    {
        return None;
    }
    let begun = Begun {
        run_number: old.run_number + 1,
        continued_from: None,
        retry_of: Some(draft.state.id),
        parent: Some(Box::new(ParentLink {
            attempt: link.attempt + 1,
            ..link.clone()
        })),
        run_deadline_at: old
            .run_timeout_seconds
            .map(|seconds| available_at.plus_seconds(seconds)),
        started_at: now,
        ..(**old).clone()
    };
    Some(NextTry {
        run: draft.state.id.offspring(now, 0),
        begun,
        available_at,
    })
}

/// After the terminal event: the next try comes into being, or the parent hears of the end.
pub(super) fn report_end(draft: &mut Draft<'_>, next: Option<NextTry>) {
    if let Some(next) = next {
        let started = start_successor(
            next.run,
            next.begun,
            [],
            Carried::from(&draft.state),
            next.available_at,
            draft.now,
            draft.settings,
        );
        draft.created.push(started.write);
        return;
    }
    let Some(link) = draft.state.begun.parent.clone() else {
        return;
    };
    let Some(outcome) = outcome(&draft.state) else {
        return;
    };
    let event = draft.state.last_event();
    draft.effects.relay(
        event,
        Relay::ChildClosed {
            parent: link.run,
            step: link.step,
            child: link.first_run,
            outcome: Box::new(outcome),
        },
    );
}

fn outcome(state: &RunState) -> Option<ChildOutcome> {
    let close = state.close.as_deref()?;
    let failure = match (&close.failure, close.reason) {
        (Some(failure), _) => Some(ChildFailure {
            message: Arc::clone(&failure.message),
            kind: failure.kind.clone(),
            class: failure.class.clone(),
            exception: failure.exception.clone(),
        }),
        (None, CloseReason::Cancelled) => Some(from_outside("cancelled", close.detail.as_deref())),
        (None, CloseReason::Terminated) => {
            Some(from_outside("terminated", close.detail.as_deref()))
        }
        (None, _) => None,
    };
    Some(ChildOutcome {
        reason: close.reason,
        at: close.at,
        output: close.output.clone(),
        failure,
    })
}

fn from_outside(word: &str, why: Option<&str>) -> ChildFailure {
    let (message, class) = super::close::words(word, why);
    ChildFailure {
        message: message.into(),
        kind: None,
        class: Some(class.into()),
        exception: None,
    }
}

fn keys(run: RunId, child: &Child) -> ChildKeys {
    let call = part_id(run, Part::Call, child.step.into());
    ChildKeys {
        sequence: child.step,
        workflow_link_id: call.clone(),
        child_call_id: call,
        child_workflow_instance_id: child.workflow_id.clone(),
        child_workflow_run_id: child.run,
        child_workflow_class: Arc::clone(&child.workflow_type),
        child_workflow_type: Arc::clone(&child.workflow_type),
        group: GroupFields::from(child.path.as_ref()),
    }
}

impl RunState {
    pub(super) fn apply_to_child(&mut self, event: &Event) {
        match &event.body {
            Body::ChildWorkflowScheduled(scheduled) => {
                let keys = &scheduled.keys;
                let path = keys.group.path();
                self.record_step(keys.sequence, StepKind::Child, path.as_ref());
                let policy = &scheduled.parent_close_policy;
                self.children.insert(
                    keys.sequence,
                    Arc::new(Child {
                        step: keys.sequence,
                        run: keys.child_workflow_run_id,
                        workflow_id: keys.child_workflow_instance_id.clone(),
                        workflow_type: Arc::clone(&keys.child_workflow_type),
                        close_policy: ClosePolicy::from_word(policy).unwrap_or_default(),
                        cancellation: scheduled
                            .cancellation_policy
                            .as_deref()
                            .and_then(CancellationPolicy::from_word)
                            .unwrap_or(CancellationPolicy::Abandon),
                        path,
                    }),
                );
            }
            Body::ChildRunCompleted(end) => self.end_child(&end.keys, event, false),
            Body::ChildRunFailed(end) => self.end_child(keys_of(&end.0), event, true),
            Body::ChildRunCancelled(end) => self.end_child(keys_of(&end.0), event, true),
            Body::ChildRunTerminated(end) => self.end_child(keys_of(&end.0), event, true),
            _ => {}
        }
    }

    fn end_child(&mut self, keys: &ChildKeys, event: &Event, failed: bool) {
        let Some(child) = self.children.remove(&keys.sequence) else {
            return;
        };
        self.end_step(
            event,
            StepEnd {
                path: child.path.as_ref(),
                failed,
                identity: &child.run.to_string(),
                resume: Resume::Child {
                    step: child.step,
                    run: child.run,
                    event: event.body.event_type().into(),
                },
            },
        );
    }
}

fn keys_of(end: &ChildEnd) -> &ChildKeys {
    &end.keys
}
