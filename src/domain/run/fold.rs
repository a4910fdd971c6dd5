//! The fold: what each fact and each event does to the state of a run.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::command::CancellationPolicy;
use super::super::event::{Body, Event};
use super::super::features;
use super::super::ids::{Part, Step, TaskNo, part_id};
use super::super::limits::{COMMANDS_SHOWN, RECEIPTS_KEPT};
use super::super::parallel::{Group, LeafEnd, Member, Path, StepKind};
use super::attributes::{Attributes, Memo};
use super::cancellation::Stopped;
use super::fact::{Fact, Receipt, Resume};
use super::state::{Activity, CancelledActivity, Close, Held, RunState, WorkflowTask};
use super::status::CloseReason;

/// A step's end: its place in groups, and whether it failed.
pub(super) struct StepEnd<'a> {
    pub path: Option<&'a Path>,
    pub failed: bool,
    pub identity: &'a str,
    pub resume: Resume,
}

impl RunState {
    /// Folds one fact in.
    pub fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Begun(begun) => self.begun = Arc::new((**begun).clone()),
            Fact::Command(command) => {
                self.commands = command.n;
                push_bounded(
                    &mut self.recent_commands,
                    Arc::new(command.clone()),
                    COMMANDS_SHOWN,
                );
            }
            Fact::TaskOpened { no, resume } => {
                self.next_task = self.next_task.max(no + 1);
                self.workflow_task = Some(WorkflowTask {
                    no: *no,
                    resume: resume.clone(),
                    failures: 0,
                    blocked: false,
                    last_failure: None,
                });
            }
            Fact::TaskFailed {
                receipt,
                blocked,
                message,
            } => {
                self.keep(receipt);
                if let Some(task) = &mut self.workflow_task {
                    task.failures += 1;
                    task.blocked = *blocked;
                    task.last_failure = Some(Arc::clone(message));
                }
            }
            Fact::TaskDone { receipt, seen } => {
                self.keep_no_longer(receipt.no);
                self.task_done(receipt, *seen);
            }
            Fact::AttemptReported { receipt } => self.keep(receipt),
            Fact::SignalHeld(signal) => {
                self.signals += 1;
                self.held.push_back(Arc::new(Held::Signal(signal.clone())));
            }
            Fact::UpdateHeld(update) => {
                self.held.push_back(Arc::new(Held::Update(update.clone())));
            }
            Fact::TaskRepaired { .. } => {
                if let Some(task) = &mut self.workflow_task {
                    task.failures = 0;
                    task.blocked = false;
                }
            }
            Fact::TaskReleased { .. } => {
                // The worker has seen all there is, and found that it must wait.
                self.workflow_task = None;
                self.acted_on = self.last_event();
            }
            Fact::ChildAsked { step } => self.asked(|asked| asked.children_asked.push(*step)),
            Fact::ActivityAsked { no } => self.asked(|asked| asked.activities_asked.push(*no)),
            Fact::CallbackStopped { no, attempt, at } => self.stopped.push(Stopped {
                no: *no,
                attempt: *attempt,
                at: *at,
            }),
            Fact::MessageTaken { .. }
            | Fact::MessageRepeated { .. }
            | Fact::MessagesDelivered { .. }
            | Fact::StreamsWaited { .. }
            | Fact::StreamCarried { .. } => self.note_on_streams(fact),
            Fact::RunKept {
                task,
                worker,
                epoch,
                until,
            } => self.keep_in_memory(*task, worker, *epoch, *until),
            Fact::TypesDeclared => self.needs |= features::TYPED_ATTRIBUTES,
            Fact::ClosedUnderLease { no, owner, attempt } => {
                self.under_lease = Some((*no, owner.clone(), *attempt));
            }
            Fact::Archived => self.archived = true,
        }
    }

    fn task_done(&mut self, receipt: &Receipt, seen: u64) {
        self.keep(receipt);
        self.progressed = true;
        let for_update = self
            .workflow_task
            .take()
            .is_some_and(|task| task.is_for_update());
        if for_update {
            // Only the update's handler ran: the workflow's code has acted on nothing new.
            return;
        }
        self.acted_on = seen;
        // A worker that saw a group finished never sends it again, nor a wait that it saw time out.
        self.groups
            .retain(|_, group| group.finished_at().is_none_or(|at| at > seen));
        self.lapsed.retain(|lapsed| lapsed.event > seen);
    }

    fn keep(&mut self, receipt: &Receipt) {
        push_bounded(&mut self.receipts, Arc::new(receipt.clone()), RECEIPTS_KEPT);
    }

    /// Folds one event in. Events arrive in the order of their numbers.
    pub fn apply(&mut self, event: &Event) {
        self.next_event = event.sequence + 1;
        self.last_progress_at = event.recorded_at;
        self.resolution = None;
        match &event.body {
            Body::ActivityScheduled(_)
            | Body::ActivityStarted(_)
            | Body::ActivityRetryScheduled(_)
            | Body::ActivityCompleted(_)
            | Body::ActivityFailed(_)
            | Body::ActivityTimedOut(_)
            | Body::ActivityCancelled(_) => self.apply_to_activity(event),
            Body::TimerScheduled(_) | Body::TimerFired(_) | Body::TimerCancelled(_) => {
                self.apply_to_timer(event);
            }
            Body::ChildWorkflowScheduled(_)
            | Body::ChildRunCompleted(_)
            | Body::ChildRunFailed(_)
            | Body::ChildRunCancelled(_)
            | Body::ChildRunTerminated(_) => self.apply_to_child(event),
            Body::ConditionWaitOpened(_)
            | Body::ConditionWaitSatisfied(_)
            | Body::ConditionWaitTimedOut(_) => self.apply_to_condition(event),
            Body::SignalReceived(_) | Body::SignalWaitOpened(_) | Body::SignalApplied(_) => {
                self.apply_to_signals(event);
            }
            Body::UpdateAccepted(_) | Body::UpdateApplied(_) | Body::UpdateCompleted(_) => {
                self.apply_to_updates(event);
            }
            Body::SideEffectRecorded(effect) => self.next_step = effect.sequence + 1,
            Body::VersionMarkerRecorded(marker) => self.next_step = marker.sequence + 1,
            Body::SearchAttributesUpserted(upserted) => {
                self.next_step = upserted.sequence + 1;
                self.attributes = Arc::new(Attributes::from_values(upserted.merged.clone()));
            }
            Body::MemoUpserted(upserted) => {
                self.next_step = upserted.sequence + 1;
                self.needs |= features::MEMO;
                self.memo = Arc::new(Memo::from_merged(&upserted.merged));
            }
            Body::SelectionResolved(resolved) => {
                self.needs |= features::SELECTION;
                let base = resolved.selection_group_base_sequence;
                if let Some(group) = self.groups.get_mut(&base) {
                    Arc::make_mut(group).decide(resolved.member_base_sequence);
                }
                // The task that is opened must see the decision too, not only what brought it about.
                self.last_wake = event.sequence;
            }
            Body::MessageCursorAdvanced(advanced) => self.advance_cursor(advanced),
            Body::CooperativeCancellationRequested(requested) => {
                self.apply_cancellation_request(requested, event.sequence);
            }
            Body::CooperativeCancellationDelivered(delivered) => {
                self.apply_cancellation_delivery(delivered, event.recorded_at);
            }
            Body::SelectionOperationCancelled(cancelled) => self.give_up_member(cancelled),
            Body::WorkflowCompleted(_)
            | Body::WorkflowFailed(_)
            | Body::WorkflowCancelled(_)
            | Body::WorkflowTerminated(_)
            | Body::WorkflowTimedOut(_)
            | Body::WorkflowContinuedAsNew(_) => self.apply_end(event),
            Body::StartAccepted(_)
            | Body::WorkflowStarted(_)
            | Body::ActivityHeartbeatRecorded(_)
            | Body::ChildRunStarted(_)
            | Body::ParentClosePolicyApplied(_)
            | Body::UpdateRejected(_)
            | Body::CancelRequested(_)
            | Body::TerminateRequested(_)
            | Body::RepairRequested(_)
            | Body::ArchiveRequested(_)
            | Body::WorkflowArchived(_) => {}
        }
    }

    fn apply_to_activity(&mut self, event: &Event) {
        match &event.body {
            Body::ActivityScheduled(scheduled) => {
                let keys = &scheduled.keys;
                let path = keys.group.path();
                self.record_step(keys.sequence, StepKind::Activity, path.as_ref());
                self.next_task = self.next_task.max(keys.activity_task_id.no + 1);
                if keys.is_local() {
                    return;
                }
                self.activities.insert(
                    keys.activity_task_id.no,
                    Arc::new(Activity {
                        no: keys.activity_task_id.no,
                        step: keys.sequence,
                        activity_type: Arc::clone(&keys.activity_type),
                        queue: scheduled.activity.queue.clone(),
                        arguments: scheduled.activity.arguments.clone(),
                        policy: scheduled.activity.retry_policy.clone().map(Arc::new),
                        session: scheduled.activity.worker_session.clone(),
                        path,
                        scheduled_at: event.recorded_at,
                        available_at: event.recorded_at,
                        failures: 0,
                        started: 0,
                        holder: None,
                        ended: 0,
                        cancellation: scheduled
                            .activity
                            .cancellation_policy
                            .as_deref()
                            .and_then(CancellationPolicy::from_word)
                            .unwrap_or(CancellationPolicy::TryCancel),
                    }),
                );
            }
            Body::ActivityStarted(started) => {
                self.change_activity(started.keys.activity_task_id.no, |activity| {
                    activity.started = started.attempt_number;
                    activity.holder = Some(started.lease_owner.as_str().into());
                });
            }
            Body::ActivityRetryScheduled(retry) => {
                self.change_activity(retry.keys.activity_task_id.no, |activity| {
                    activity.failures += 1;
                    activity.available_at = retry.retry_available_at;
                    activity.ended = retry.retry_after_attempt;
                });
            }
            Body::ActivityCompleted(end) => {
                self.end_activity(end.keys.activity_task_id.no, event, false);
            }
            Body::ActivityFailed(end) => {
                self.end_activity(end.keys.activity_task_id.no, event, true);
            }
            Body::ActivityTimedOut(end) => {
                self.end_activity(end.keys.activity_task_id.no, event, true);
            }
            Body::ActivityCancelled(end) => {
                let no = end.keys.activity_task_id.no;
                if let Some(activity) = self.activities.get(&no) {
                    let cancelled = CancelledActivity {
                        event: event.sequence,
                        attempt: activity.started,
                        holder: activity.holder.clone(),
                    };
                    self.cancelled_activities.insert(no, cancelled);
                }
                self.end_activity(no, event, true);
            }
            _ => {}
        }
    }

    fn change_activity(&mut self, no: TaskNo, change: impl FnOnce(&mut Activity)) {
        if let Some(activity) = self.activities.get_mut(&no) {
            change(Arc::make_mut(activity));
        }
    }

    /// An activity that its worker ran itself is not open, so its end is nobody's news.
    fn end_activity(&mut self, no: TaskNo, event: &Event, failed: bool) {
        let Some(activity) = self.activities.remove(&no) else {
            return;
        };
        self.end_step(
            event,
            StepEnd {
                path: activity.path.as_ref(),
                failed,
                identity: &part_id(self.id, Part::Activity, no.into()),
                resume: Resume::Activity {
                    no,
                    step: activity.step,
                    activity_type: Arc::clone(&activity.activity_type),
                    event: event.body.event_type().into(),
                },
            },
        );
    }

    pub(super) fn record_step(&mut self, step: Step, kind: StepKind, path: Option<&Path>) {
        self.next_step = self.next_step.max(step.saturating_add(1));
        let Some(path) = path else { return };
        let outer = path.outermost();
        if outer.member.is_some() {
            self.needs |= features::SELECTION;
        }
        self.fan_out = self.fan_out.max(outer.parallel_group_size);
        let group = self
            .groups
            .entry(outer.parallel_group_base_sequence)
            .or_insert_with(|| Arc::new(Group::new(outer.parallel_group_size)));
        Arc::make_mut(group).record(
            outer.parallel_group_index,
            Member {
                kind,
                path: path.clone(),
            },
        );
    }

    /// A step outside any group wakes the workflow; for one inside, its group says.
    pub(super) fn end_step(&mut self, event: &Event, end: StepEnd<'_>) {
        let group = end.path.and_then(|path| {
            let base = path.outermost().parallel_group_base_sequence;
            Some((path, self.groups.get_mut(&base)?))
        });
        let Some((path, group)) = group else {
            self.wake(event.sequence, end.resume);
            return;
        };
        let consequence = Arc::make_mut(group).close_leaf(
            path,
            &LeafEnd {
                sequence: event.sequence,
                event_type: event.body.event_type(),
                failed: end.failed,
                identity: end.identity.to_owned(),
            },
        );
        // A delivery that waits for one member of a group does not wait for the others.
        if consequence.wake || self.delivery_waits() {
            self.wake(event.sequence, end.resume);
        }
        self.resolution = consequence.resolved;
    }

    pub(super) fn wake(&mut self, sequence: u64, resume: Resume) {
        self.last_wake = sequence;
        self.last_resume = Some(resume);
    }

    pub(super) fn end(
        &mut self,
        event: &Event,
        reason: CloseReason,
        fill: impl FnOnce(&mut Close),
    ) {
        let mut close = Close {
            reason,
            at: event.recorded_at,
            event: event.sequence,
            output: None,
            failure: None,
            detail: None,
            continued_to: None,
            under_lease: self.under_lease.take(),
        };
        fill(&mut close);
        self.close = Some(Arc::new(close));
        self.workflow_task = None;
        self.timers.clear();
        self.children.clear();
        self.conditions.clear();
        self.lapsed.clear();
        self.signal_waits.clear();
        self.unapplied = Arc::default();
        self.groups.clear();
        self.held.clear();
        self.update = None;
        self.resolution = None;
    }
}

pub(super) fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, bound: usize) {
    if queue.len() >= bound {
        queue.pop_front();
    }
    queue.push_back(item);
}
