//! The fold: what each fact and each event does to the state of a run.

use std::collections::VecDeque;
use std::sync::Arc;

use super::super::event::{
    Body, ChildEnd, ChildKeys, ConditionKeys, Event, SelectionOperationCancelled,
};
use super::super::features;
use super::super::ids::{Part, Step, TaskNo, part_id};
use super::super::limits::{ANSWERS_KEPT, COMMANDS_SHOWN, RECEIPTS_KEPT};
use super::super::parallel::{Group, LeafEnd, Member, Path, StepKind};
use super::attributes::{Attributes, Memo};
use super::fact::{Fact, Receipt, Resume, Signal, Update};
use super::state::{
    Activity, Answered, Child, Close, CloseFailure, Condition, ConditionIdentity, Held, Lapsed,
    RunState, SignalWait, Timer, WorkflowTask,
};
use super::status::CloseReason;

/// A step's end: its place in groups, and whether it failed.
struct End<'a> {
    path: Option<&'a Path>,
    failed: bool,
    identity: &'a str,
    resume: Resume,
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
            Fact::TaskDone { receipt, seen } => self.task_done(receipt, *seen),
            Fact::AttemptReported { receipt } => self.keep(receipt),
            Fact::SignalHeld(signal) => {
                self.signals += 1;
                self.held.push_back(Arc::new(Held::Signal(signal.clone())));
            }
            Fact::UpdateHeld(update) => {
                self.held.push_back(Arc::new(Held::Update(update.clone())));
            }
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
                        path,
                        scheduled_at: event.recorded_at,
                        available_at: event.recorded_at,
                        failures: 0,
                        started: 0,
                    }),
                );
            }
            Body::ActivityStarted(started) => {
                self.change_activity(started.keys.activity_task_id.no, |activity| {
                    activity.started = started.attempt_number;
                });
            }
            Body::ActivityRetryScheduled(retry) => {
                self.change_activity(retry.keys.activity_task_id.no, |activity| {
                    activity.failures += 1;
                    activity.available_at = retry.retry_available_at;
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
                if self.activities.contains_key(&no) {
                    self.cancelled_activities.insert(no);
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
            End {
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

    fn apply_to_timer(&mut self, event: &Event) {
        match &event.body {
            Body::TimerScheduled(scheduled) => {
                let timer = &scheduled.timer;
                if let Some(condition) = self.conditions.get_mut(&timer.sequence) {
                    Arc::make_mut(condition).deadline = Some(timer.fire_at);
                } else if let Some(wait) = self.signal_waits.get_mut(&timer.sequence) {
                    Arc::make_mut(wait).deadline = Some(timer.fire_at);
                } else {
                    let path = timer.group.path();
                    self.record_step(timer.sequence, StepKind::Timer, path.as_ref());
                    self.timers.insert(
                        timer.sequence,
                        Arc::new(Timer {
                            step: timer.sequence,
                            delay_seconds: timer.delay_seconds,
                            fire_at: timer.fire_at,
                            path,
                        }),
                    );
                }
            }
            Body::TimerFired(fired) => {
                let step = fired.timer.sequence;
                if let Some(timer) = self.timers.remove(&step) {
                    self.end_step(
                        event,
                        End {
                            path: timer.path.as_ref(),
                            failed: false,
                            identity: &fired.timer.timer_id,
                            resume: Resume::Timer { step },
                        },
                    );
                } else if let Some(wait) = self.signal_waits.remove(&step) {
                    self.end_signal_wait(&wait, event);
                }
            }
            Body::TimerCancelled(cancelled) => {
                self.timers.remove(&cancelled.timer.sequence);
            }
            _ => {}
        }
    }

    fn apply_to_child(&mut self, event: &Event) {
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
                        close_policy: super::super::command::ClosePolicy::from_word(policy)
                            .unwrap_or_default(),
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
            End {
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

    fn apply_to_condition(&mut self, event: &Event) {
        match &event.body {
            Body::ConditionWaitOpened(opened) => {
                let path = opened.group.path();
                let identity = ConditionIdentity::from(&opened.condition);
                self.record_step(opened.sequence, StepKind::Condition, path.as_ref());
                if identity.occurrence.is_some() {
                    self.needs |= features::OCCURRENCE;
                }
                self.conditions.insert(
                    opened.sequence,
                    Arc::new(Condition {
                        step: opened.sequence,
                        identity,
                        timeout_seconds: opened.timeout_seconds,
                        deadline: None,
                        opened_at: event.sequence,
                        path,
                    }),
                );
            }
            Body::ConditionWaitSatisfied(satisfied) => {
                // The task in which this is found out goes on by itself, so it wakes nobody, unless
                // the wait is one of several.
                if let Some(condition) = self.conditions.remove(&satisfied.sequence)
                    && condition.path.is_some()
                {
                    self.end_condition(&condition, event);
                }
            }
            Body::ConditionWaitTimedOut(lapsed) => {
                if let Some(condition) = self.conditions.remove(&lapsed.sequence) {
                    self.lapsed.push(Arc::new(Lapsed {
                        identity: condition.identity.clone(),
                        event: event.sequence,
                    }));
                    self.end_condition(&condition, event);
                }
            }
            _ => {}
        }
    }

    fn end_condition(&mut self, condition: &Condition, event: &Event) {
        self.end_step(
            event,
            End {
                path: condition.path.as_ref(),
                failed: false,
                identity: &part_id(self.id, Part::Wait, condition.step.into()),
                resume: Resume::Condition {
                    step: condition.step,
                },
            },
        );
    }

    fn apply_to_signals(&mut self, event: &Event) {
        match &event.body {
            Body::SignalReceived(received) => {
                let signal = match self.held.front().map(|held| &**held) {
                    Some(Held::Signal(held)) if held.id() == received.signal_id => {
                        let held = held.clone();
                        self.held.pop_front();
                        held
                    }
                    _ => {
                        self.signals += 1;
                        Signal {
                            n: self.commands,
                            run: self.id,
                            name: Arc::clone(&received.signal_name),
                            arguments: received.arguments.clone(),
                        }
                    }
                };
                self.last_input = event.sequence;
                let resume = Resume::Signal {
                    n: signal.n,
                    run: signal.run,
                    name: Arc::clone(&signal.name),
                };
                Arc::make_mut(&mut self.unapplied).push_back(Arc::new(signal));
                self.wake(event.sequence, resume);
            }
            Body::SignalWaitOpened(opened) => {
                let path = opened.group.path();
                self.record_step(opened.sequence, StepKind::SignalWait, path.as_ref());
                if !self.awaited_names.contains(&opened.signal_name) {
                    Arc::make_mut(&mut self.awaited_names).insert(Arc::clone(&opened.signal_name));
                }
                self.signal_waits.insert(
                    opened.sequence,
                    Arc::new(SignalWait {
                        step: opened.sequence,
                        name: Arc::clone(&opened.signal_name),
                        timeout_seconds: opened.timeout_seconds,
                        deadline: None,
                        path,
                    }),
                );
            }
            Body::SignalApplied(applied) => {
                Arc::make_mut(&mut self.unapplied).retain(|s| s.id() != applied.signal_id);
                if let Some(wait) = self.signal_waits.remove(&applied.sequence) {
                    self.end_signal_wait(&wait, event);
                }
            }
            _ => {}
        }
    }

    fn end_signal_wait(&mut self, wait: &SignalWait, event: &Event) {
        self.end_step(
            event,
            End {
                path: wait.path.as_ref(),
                failed: false,
                identity: &part_id(self.id, Part::Wait, wait.step.into()),
                resume: Resume::SignalWait {
                    step: wait.step,
                    name: Arc::clone(&wait.name),
                    event: event.body.event_type().into(),
                },
            },
        );
    }

    fn apply_to_updates(&mut self, event: &Event) {
        match &event.body {
            Body::UpdateAccepted(accepted) => {
                let update = match self.held.front().map(|held| &**held) {
                    Some(Held::Update(held)) if held.id == accepted.keys.update_id => {
                        let held = held.clone();
                        self.held.pop_front();
                        held
                    }
                    _ => Update {
                        id: Arc::clone(&accepted.keys.update_id),
                        n: self.commands,
                        run: self.id,
                        name: Arc::clone(&accepted.keys.update_name),
                        arguments: accepted.arguments.clone(),
                        at: event.recorded_at,
                    },
                };
                self.update = Some(Arc::new(update));
            }
            Body::UpdateApplied(_) => {
                self.last_input = event.sequence;
                self.wake(event.sequence, Resume::Unseen);
            }
            Body::UpdateCompleted(completed) => {
                self.update = None;
                push_bounded(
                    &mut self.answered,
                    Answered {
                        update_id: Arc::clone(&completed.keys.update_id),
                        event: event.sequence,
                    },
                    ANSWERS_KEPT,
                );
            }
            _ => {}
        }
    }

    /// A selection gave a member up: what is open of it neither wakes nor decides anything.
    fn give_up_member(&mut self, cancelled: &SelectionOperationCancelled) {
        let member = cancelled.member_base_sequence;
        let Some(base) = self.group_of_member(member) else {
            return;
        };
        if let Some(group) = self.groups.get_mut(&base) {
            Arc::make_mut(group).cancel(member);
        }
        // The waits of the member have no event of their own.
        let conditions: Vec<Step> = steps_of(self.conditions.values().map(|c| (c.step, &c.path)), member);
        let waits: Vec<Step> = steps_of(self.signal_waits.values().map(|w| (w.step, &w.path)), member);
        for step in conditions {
            self.conditions.remove(&step);
            self.close_quietly(base, step);
        }
        for step in waits {
            self.signal_waits.remove(&step);
            self.close_quietly(base, step);
        }
    }

    /// The outermost group in which `member` is a member of a selection.
    fn group_of_member(&self, member: Step) -> Option<Step> {
        self.groups
            .iter()
            .find(|(_, group)| group.selected(member).next().is_some())
            .map(|(base, _)| *base)
    }

    fn close_quietly(&mut self, base: Step, step: Step) {
        let last = self.last_event();
        if let Some(group) = self.groups.get_mut(&base) {
            let group = Arc::make_mut(group);
            let path = group.path_at(step).cloned();
            if let Some(path) = path {
                group.close_leaf(&path, &LeafEnd::quiet(last));
            }
        }
    }

    fn apply_end(&mut self, event: &Event) {
        match &event.body {
            Body::WorkflowCompleted(end) => self.end(event, CloseReason::Completed, |close| {
                close.output = Some(end.output.clone());
            }),
            Body::WorkflowFailed(end) => self.end(event, CloseReason::Failed, |close| {
                close.continued_to = end.retried_as_run_id;
                close.failure = Some(CloseFailure {
                    message: end.message.as_str().into(),
                    kind: end.exception_type.as_deref().map(Arc::from),
                    class: end.exception_class.as_deref().map(Arc::from),
                    category: end.failure_category.as_ref().into(),
                    non_retryable: end.non_retryable,
                    exception: end.exception.clone(),
                });
            }),
            Body::WorkflowCancelled(end) => self.end(event, CloseReason::Cancelled, |close| {
                close.detail.clone_from(&end.0.reason);
            }),
            Body::WorkflowTerminated(end) => self.end(event, CloseReason::Terminated, |close| {
                close.detail.clone_from(&end.0.reason);
            }),
            Body::WorkflowTimedOut(end) => self.end(event, CloseReason::TimedOut, |close| {
                close.continued_to = end.retried_as_run_id;
                close.detail = Some(end.timeout_kind.as_ref().into());
                close.failure = Some(CloseFailure {
                    message: end.message.as_str().into(),
                    kind: None,
                    class: Some(end.exception_class.as_ref().into()),
                    category: end.failure_category.as_ref().into(),
                    non_retryable: false,
                    exception: None,
                });
            }),
            Body::WorkflowContinuedAsNew(end) => {
                self.next_step = end.sequence + 1;
                self.end(event, CloseReason::Continued, |close| {
                    close.continued_to = Some(end.continued_to_run_id);
                });
            }
            _ => {}
        }
    }

    fn record_step(&mut self, step: Step, kind: StepKind, path: Option<&Path>) {
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
    fn end_step(&mut self, event: &Event, end: End<'_>) {
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
        if consequence.wake {
            self.wake(event.sequence, end.resume);
        }
        self.resolution = consequence.resolved;
    }

    fn wake(&mut self, sequence: u64, resume: Resume) {
        self.last_wake = sequence;
        self.last_resume = Some(resume);
    }

    fn end(&mut self, event: &Event, reason: CloseReason, fill: impl FnOnce(&mut Close)) {
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

fn keys_of(end: &ChildEnd) -> &ChildKeys {
    &end.keys
}

fn steps_of<'a>(
    open: impl Iterator<Item = (Step, &'a Option<Path>)>,
    member: Step,
) -> Vec<Step> {
    open.filter(|(_, path)| path.as_ref().is_some_and(|path| path.is_of_member(member)))
        .map(|(step, _)| step)
        .collect()
}

impl From<&ConditionKeys> for ConditionIdentity {
    fn from(keys: &ConditionKeys) -> Self {
        Self {
            key: keys.condition_key.clone(),
            fingerprint: keys.condition_definition_fingerprint.clone(),
            occurrence: keys.condition_wait_occurrence_id.clone(),
        }
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, bound: usize) {
    if queue.len() >= bound {
        queue.pop_front();
    }
    queue.push_back(item);
}
