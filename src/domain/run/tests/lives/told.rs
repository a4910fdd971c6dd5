//! What runs tell each other, delivered at least once and in any order; and the events that the
//! lives together must have come across.

use super::life::Life;
use crate::domain::decision::Relay;
use crate::domain::ids::{RunId, WorkflowId};
use crate::domain::run::{CancellationRequest, ChildClosed, CloseRequest, Input};

/// Every event of the language that random lives reach.
pub const EVENTS: [&str; 43] = [
    "ActivityCancelled",
    "ActivityCompleted",
    "ActivityFailed",
    "ActivityRetryScheduled",
    "ActivityScheduled",
    "ActivityStarted",
    "ActivityTimedOut",
    "CancelRequested",
    "ChildRunCancelled",
    "ChildRunCompleted",
    "ChildRunFailed",
    "ChildRunStarted",
    "ChildRunTerminated",
    "ChildWorkflowScheduled",
    "ConditionWaitOpened",
    "ConditionWaitSatisfied",
    "ConditionWaitTimedOut",
    "CooperativeCancellationDelivered",
    "CooperativeCancellationRequested",
    "MemoUpserted",
    "MessageCursorAdvanced",
    "ParentClosePolicyApplied",
    "RepairRequested",
    "SearchAttributesUpserted",
    "SelectionOperationCancelled",
    "SelectionResolved",
    "SideEffectRecorded",
    "SignalApplied",
    "SignalReceived",
    "SignalWaitOpened",
    "TerminateRequested",
    "TimerCancelled",
    "TimerFired",
    "TimerScheduled",
    "UpdateAccepted",
    "UpdateApplied",
    "UpdateCompleted",
    "UpdateRejected",
    "WorkflowCancelled",
    "WorkflowCompleted",
    "WorkflowContinuedAsNew",
    "WorkflowFailed",
    "WorkflowTimedOut",
];

impl Life {
    /// The run that a workflow is in now.
    fn current(&self, workflow: &WorkflowId) -> RunId {
        let runs = self.runs.iter().copied();
        runs.filter(|run| self.state(*run).begun.workflow_id == *workflow)
            .max_by_key(|run| self.state(*run).begun.run_number)
            .unwrap()
    }

    /// Picks up what was told since the last time.
    pub fn hear(&mut self) {
        for run in self.runs.clone() {
            let heard = self.heard.entry(run).or_default();
            let relays = &self.db.run(run).relays;
            self.relays.extend(relays[*heard..].iter().cloned());
            *heard = relays.len();
        }
    }

    /// Delivers a word, now and then a second time later.
    pub fn deliver_some_word(&mut self) {
        self.hear();
        if self.relays.is_empty() {
            return;
        }
        let place = self.rng.below(self.relays.len());
        let relay = self.relays.remove(place);
        if self.rng.percent(10) {
            self.relays.push(relay.clone());
        }
        self.deliver_word(relay);
    }

    pub fn deliver_word(&mut self, relay: Relay) {
        let (run, input) = match relay {
            Relay::ChildClosed {
                parent,
                step,
                child,
                outcome,
            } => {
                let outcome = *outcome;
                let closed = ChildClosed {
                    step,
                    child,
                    outcome,
                };
                (parent, Input::ChildClosed(closed))
            }
            Relay::Close {
                workflow_id,
                terminate,
                reason,
                ..
            } => {
                let run = self.current(&workflow_id);
                let request = CloseRequest {
                    reason: Some(reason),
                    request_id: None,
                    lease: self.db.run(run).observe(self.now),
                };
                let input = if terminate {
                    Input::Terminate(request)
                } else {
                    Input::Cancel(request)
                };
                (run, input)
            }
            Relay::RequestCancellation {
                workflow_id,
                context,
                ..
            } => {
                let run = self.current(&workflow_id);
                let request = CancellationRequest {
                    reason: None,
                    cleanup_timeout_seconds: 0,
                    parent: Some(context),
                    lease: self.db.run(run).observe(self.now),
                };
                (run, Input::RequestCancellation(request))
            }
        };
        self.apply(run, input);
    }
}
