//! How the reference model reacts to inputs.

use super::rules::{Fence, Made, Model, Need, Open, Said, Told};
use crate::domain::command::{Command, End, Failure};
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::ids::{Step, TaskNo};
use crate::domain::parallel::{Path, StepKind};
use crate::domain::run::{
    ActivityOutcome, ActivityReport, CloseReason, Input, ObservedLease, Overdue, ReportKind,
    TaskFailure, WorkflowTaskReport,
};
use crate::domain::time::Timestamp;

pub fn told(kind: ReportKind, created: &[TaskNo], next: Option<TaskNo>, again: bool) -> String {
    format!("reported {kind:?} {created:?} {next:?} again={again}")
}

/// What a worker may do about a command's place.
enum Place {
    New(Step),
    Repeat,
    Wrong,
}

impl Model {
    /// What the rules say about `input`, and what the run is after it if it is written.
    pub fn react(&mut self, input: &Input, now: Timestamp) -> Said {
        match input {
            Input::CompleteWorkflowTask { report, commands } => {
                self.complete(report, commands, now)
            }
            Input::FailWorkflowTask { report, failure } => self.fail(report, failure, now),
            Input::AttemptStarted { no, attempt, owner } => {
                let step = self.activity(*no).map(|(step, _)| step);
                match step.filter(|step| self.closed.is_none() && self.shown(*step) < *attempt) {
                    None => Said::refused("NothingToDo"),
                    Some(step) => {
                        self.record("ActivityStarted", step, *attempt);
                        let fence = (*no, owner.clone(), *attempt);
                        Said::written("done".to_owned(), vec![Need::Live(fence)])
                    }
                }
            }
            Input::ReportActivity(report) => self.report(report, now),
            Input::Overdue(overdue) => self.overdue(overdue, now),
            Input::GiveUp { no, attempt, owner } => {
                self.give_up((*no, owner.clone(), *attempt), now)
            }
            Input::TimersDue { keys, lease } => self.due(keys, lease, now),
            Input::Signal(request) => {
                if self.closed.is_some() {
                    return Said::refused("NotActive");
                }
                let limit = self.limits.pending_signals;
                if limit != 0 && self.held.len() as u64 + 1 > limit {
                    return Said::refused("Limit PendingSignals");
                }
                self.commands += 1;
                self.held.push_back(request.arguments.blob.to_string());
                if self.open.is_none() {
                    self.release();
                    self.open_task(now);
                }
                Said::written(format!("signal {}", self.commands), Vec::new())
            }
            Input::Cancel(request) => self.close_from_outside(
                &request.lease,
                (
                    "CancelRequested",
                    "WorkflowCancelled",
                    CloseReason::Cancelled,
                ),
            ),
            Input::Terminate(request) => self.close_from_outside(
                &request.lease,
                (
                    "TerminateRequested",
                    "WorkflowTerminated",
                    CloseReason::Terminated,
                ),
            ),
            Input::Archive(_) => {
                if self.closed.is_none() {
                    return Said::refused("NotClosed");
                }
                if self.archived {
                    return Said::answered("archived None");
                }
                self.commands += 1;
                self.archived = true;
                self.record("ArchiveRequested", 0, 0);
                self.record("WorkflowArchived", 0, 0);
                Said::written(format!("archived {:?}", Some(self.commands)), Vec::new())
            }
        }
    }

    /// A hand-off shows an activity's start in the commit that opens it.
    pub fn handed_over(&mut self, no: TaskNo) {
        if let Some((step, _)) = self.activity(no) {
            self.record("ActivityStarted", step, 1);
        }
    }

    /// Whether a report is about a hand-out that may still report.
    fn guard(&self, report: &WorkflowTaskReport, kind: ReportKind) -> Option<Said> {
        let fence = (report.no, report.owner.clone(), report.attempt);
        if let Some(said) = self.known_report(&fence, kind, report.digest.0) {
            return Some(said);
        }
        if let Some(reason) = self.closed {
            return Some(match (self.cut_off.as_ref() == Some(&fence), reason) {
                (true, CloseReason::TimedOut) => Said::refused("RunTimedOut"),
                (true, _) => Said::answered("closed meanwhile"),
                (false, _) => Said::refused("RunClosed"),
            });
        }
        if self.open.as_ref().is_none_or(|open| open.no != report.no) {
            return Some(Said::refused("TaskNotOpen"));
        }
        None
    }

    fn known_report(&self, fence: &Fence, kind: ReportKind, digest: u64) -> Option<Said> {
        let (no, owner, attempt) = fence;
        if *no == 0 || *no > self.tasks {
            return Some(Said::refused("UnknownTask"));
        }
        let first = self.report_of(*no, *attempt)?;
        let same = first.owner == *owner && first.kind == kind && first.digest == digest;
        Some(if same {
            Said::answered(&told(kind, &first.created, first.next, true))
        } else {
            Said::refused("AlreadyReported")
        })
    }

    fn keep(
        &mut self,
        report: &WorkflowTaskReport,
        kind: ReportKind,
        created: Vec<TaskNo>,
        next: Option<TaskNo>,
    ) -> Said {
        let fence = (report.no, report.owner.clone(), report.attempt);
        let said = told(kind, &created, next, false);
        self.told.push(Told {
            no: report.no,
            attempt: report.attempt,
            owner: report.owner.clone(),
            kind,
            digest: report.digest.0,
            created,
            next,
        });
        Said::written(said, vec![Need::Live(fence)])
    }

    fn time_out(&mut self) {
        self.drop_open();
        self.close(CloseReason::TimedOut, "WorkflowTimedOut", 0);
    }

    fn timed_out_instead(&mut self, report: &WorkflowTaskReport) -> Said {
        let fence = (report.no, report.owner.clone(), report.attempt);
        self.cut_off = Some(fence.clone());
        self.time_out();
        Said::written("timed out instead".to_owned(), vec![Need::Live(fence)])
    }

    fn complete(
        &mut self,
        report: &WorkflowTaskReport,
        commands: &[Command],
        now: Timestamp,
    ) -> Said {
        if let Some(said) = self.guard(report, ReportKind::Completed) {
            return said;
        }
        if self.is_past_deadline(now) {
            return self.timed_out_instead(report);
        }
        let before = self.history.len();
        let mut faults = Vec::new();
        let mut check = |ok: bool, what: &str| {
            if !ok {
                faults.push(format!("refused {what}"));
            }
        };
        let within = |count: usize, limit: u64| limit == 0 || count as u64 <= limit;
        check(
            within(commands.len(), self.limits.command_batch),
            "Limit CommandBatch",
        );
        let mut created = Vec::new();
        let mut new = Vec::new();
        let mut ends = Vec::new();
        for command in commands {
            let (kind, path, policy, delay) = match command {
                Command::ScheduleActivity(c) => (StepKind::Activity, &c.path, c.policy.clone(), 0),
                Command::StartTimer(c) => (StepKind::Timer, &c.path, None, c.delay_seconds),
                Command::RecordSideEffect { .. } => {
                    self.record("SideEffectRecorded", self.next_step(), 0);
                    continue;
                }
                Command::RecordVersionMarker(m) => {
                    let inside = m.min_supported <= m.version && m.version <= m.max_supported;
                    check(inside, "InvalidCommands");
                    self.record("VersionMarkerRecorded", self.next_step(), 0);
                    continue;
                }
                Command::End(end) => {
                    ends.push(end);
                    continue;
                }
            };
            let step = match self.place(kind, path.as_ref()) {
                Place::New(step) => step,
                Place::Repeat => continue,
                Place::Wrong => {
                    check(false, "InvalidCommands");
                    continue;
                }
            };
            new.extend(path.clone().map(|path| (step, path)));
            let mut no = 0;
            if kind == StepKind::Activity {
                self.tasks += 1;
                no = self.tasks;
                created.push(no);
                self.ready.insert(no, now);
            }
            self.made.insert(
                step,
                Made {
                    kind,
                    path: path.clone(),
                    no,
                    policy,
                    delay,
                    at: now,
                },
            );
            if kind == StepKind::Activity {
                self.record("ActivityScheduled", step, 0);
                check(
                    within(self.activities().len(), self.limits.pending_activities),
                    "Limit PendingActivities",
                );
            } else {
                self.record("TimerScheduled", step, 0);
                check(
                    within(self.timers().len(), self.limits.pending_timers),
                    "Limit PendingTimers",
                );
            }
        }
        check(ends.len() <= 1, "InvalidCommands");
        check(are_whole(&new), "InvalidCommands");
        if ends.is_empty() {
            for (step, made) in self.timers() {
                if made.delay == 0 {
                    self.record("TimerFired", step, 0);
                }
            }
        }
        let written = self.history.len() - before + ends.len().min(1);
        check(
            within(written, self.limits.events_per_transaction),
            "Limit HistoryTransaction",
        );
        if !faults.is_empty() {
            return Said {
                labels: faults,
                ..Said::default()
            };
        }
        match ends.first() {
            None => self.end_task(report, ReportKind::Completed, created, now),
            Some(end) => {
                self.ready.remove(&report.no);
                let mut successor = None;
                match end {
                    End::Complete { .. } => {
                        self.release();
                        self.close(CloseReason::Completed, "WorkflowCompleted", 0);
                    }
                    End::Fail(_) => {
                        self.release();
                        self.close(CloseReason::Failed, "WorkflowFailed", 0);
                    }
                    End::ContinueAsNew(_) => {
                        let mut next = Self::new(
                            self.limits.clone(),
                            self.number + 1,
                            &["WorkflowStarted"],
                            now,
                        );
                        next.run_timeout = self.run_timeout;
                        next.run_deadline =
                            self.run_timeout.map(|seconds| now.plus_seconds(seconds));
                        next.execution_deadline = self.execution_deadline;
                        next.held = std::mem::take(&mut self.held);
                        self.close(
                            CloseReason::Continued,
                            "WorkflowContinuedAsNew",
                            self.next_step(),
                        );
                        successor = Some(Box::new(next));
                    }
                }
                let said = self.keep(report, ReportKind::Completed, created, None);
                Said { successor, ..said }
            }
        }
    }

    /// Where a command goes: the next number, or the one that its groups declare.
    fn place(&self, kind: StepKind, path: Option<&Path>) -> Place {
        let next = self.next_step();
        let Some(path) = path else {
            return Place::New(next);
        };
        let mut places = path.entries().iter().map(|entry| {
            let inside = entry.parallel_group_index < entry.parallel_group_size;
            let step = u64::from(entry.parallel_group_base_sequence)
                + u64::from(entry.parallel_group_index);
            (inside && step > 0)
                .then(|| Step::try_from(step).ok())
                .flatten()
        });
        let Some(Some(step)) = places.next() else {
            return Place::Wrong;
        };
        if places.any(|other| other != Some(step)) {
            return Place::Wrong;
        }
        if step >= next {
            return Place::New(step);
        }
        match self.made.get(&step) {
            Some(made)
                if made.kind == kind
                    && made.path.as_ref() == Some(path)
                    && !self.is_settled(path.outermost()) =>
            {
                Place::Repeat
            }
            _ => Place::Wrong,
        }
    }

    /// Closes the task of a run that goes on.
    fn end_task(
        &mut self,
        report: &WorkflowTaskReport,
        kind: ReportKind,
        mut created: Vec<TaskNo>,
        now: Timestamp,
    ) -> Said {
        let seen = usize::try_from(report.seen).unwrap();
        self.open = None;
        self.ready.remove(&report.no);
        self.release();
        let next = self.wake(seen, now);
        self.seen = self.seen.max(seen);
        created.extend(next);
        self.keep(report, kind, created, next)
    }

    fn fail(&mut self, report: &WorkflowTaskReport, failure: &TaskFailure, now: Timestamp) -> Said {
        let kind = match failure {
            TaskFailure::WaitingForHistory => ReportKind::Waiting,
            TaskFailure::Blocked(_) | TaskFailure::Other(_) => ReportKind::Failed,
        };
        if let Some(said) = self.guard(report, kind) {
            return said;
        }
        if self.is_past_deadline(now) {
            return self.timed_out_instead(report);
        }
        if kind == ReportKind::Waiting {
            return self.end_task(report, kind, Vec::new(), now);
        }
        let blocked = matches!(failure, TaskFailure::Blocked(_));
        let open = self.open.as_mut().unwrap();
        open.failures += 1;
        open.blocked = blocked;
        // Twice at once, then from half a second doubling to a minute; a blocked one from one second.
        let doublings = open
            .failures
            .saturating_sub(if blocked { 1 } else { 3 })
            .min(10);
        let delay = match (blocked, open.failures) {
            (false, 1 | 2) => 0,
            (false, _) => (500u64 << doublings).min(60_000),
            (true, _) => (1_000u64 << doublings).min(60_000),
        };
        self.ready.insert(report.no, now.plus_millis(delay));
        let next = (!blocked).then_some(report.no);
        self.keep(report, kind, Vec::new(), next)
    }

    fn give_up(&mut self, fence: Fence, now: Timestamp) -> Said {
        let (no, owner, attempt) = fence.clone();
        if self.closed.is_some() {
            return Said::refused("NothingToDo");
        }
        if let Some((step, _)) = self.activity(no) {
            if self.is_over(step, attempt) {
                return Said::refused("NothingToDo");
            }
            let before = self.history.len();
            self.show_start(step, attempt);
            self.record("ActivityTimedOut", step, attempt);
            self.ready.remove(&no);
            self.wake(before, now);
            return Said::written("done".to_owned(), vec![Need::Ended(fence)]);
        }
        match &mut self.open {
            Some(open) if open.no == no => {
                *open = Open {
                    failures: open.failures + 1,
                    blocked: true,
                    no,
                };
                self.ready.insert(no, Timestamp::from_micros(i64::MAX));
                self.told.push(Told {
                    no,
                    attempt,
                    owner,
                    kind: ReportKind::Failed,
                    digest: 0,
                    created: Vec::new(),
                    next: None,
                });
                Said::written("done".to_owned(), vec![Need::Ended(fence)])
            }
            _ => Said::refused("NothingToDo"),
        }
    }

    fn show_start(&mut self, step: Step, attempt: u32) {
        if self.shown(step) < attempt {
            self.record("ActivityStarted", step, attempt);
        }
    }

    fn report(&mut self, report: &ActivityReport, now: Timestamp) -> Said {
        let (no, attempt) = (report.no, report.attempt);
        let fence = (no, report.owner.clone(), attempt);
        let kind = match report.outcome {
            ActivityOutcome::Failed(_) => ReportKind::Failed,
            ActivityOutcome::Completed(_) | ActivityOutcome::TooLarge { .. } => {
                ReportKind::Completed
            }
        };
        if let Some(said) = self.known_report(&fence, kind, report.digest.0) {
            return said;
        }
        let activity = self.activity(no);
        if let Some(reason) = self.closed {
            let by_itself = matches!(
                reason,
                CloseReason::Completed | CloseReason::Failed | CloseReason::Continued
            );
            return if by_itself && activity.is_some() {
                Said::answered("too late")
            } else {
                Said::refused("RunClosed")
            };
        }
        let Some((step, made)) = activity.filter(|(step, _)| !self.is_over(*step, attempt)) else {
            return Said::refused("StaleAttempt");
        };
        let before = self.history.len();
        self.show_start(step, attempt);
        if report.beat.is_some() {
            self.record("ActivityHeartbeatRecorded", step, attempt);
        }
        let retried = match &report.outcome {
            ActivityOutcome::Completed(_) => {
                self.record("ActivityCompleted", step, attempt);
                false
            }
            ActivityOutcome::TooLarge { .. } => {
                self.record("ActivityFailed", step, attempt);
                false
            }
            ActivityOutcome::Failed(failure) => {
                let retried = !is_final(&made, failure) && self.retry(step, attempt, now);
                if !retried {
                    self.record("ActivityFailed", step, attempt);
                }
                retried
            }
        };
        let next = if retried {
            Some(no)
        } else {
            self.ready.remove(&no);
            self.wake(before, now)
        };
        self.told.push(Told {
            no,
            attempt,
            owner: report.owner.clone(),
            kind,
            digest: report.digest.0,
            created: Vec::new(),
            next,
        });
        Said::written(told(kind, &[], next, false), vec![Need::Live(fence)])
    }

    /// Another attempt, if one is left.
    fn retry(&mut self, step: Step, attempt: u32, now: Timestamp) -> bool {
        let made = &self.made[&step];
        let Some(policy) = &made.policy else {
            return false;
        };
        let failed = self.failures(step) + 1;
        if failed >= policy.max_attempts {
            return false;
        }
        let list = &policy.backoff_seconds;
        let place = list.len().min(usize::try_from(failed).unwrap());
        let backoff = if place == 0 { 0 } else { list[place - 1] };
        let (no, until) = (made.no, now.plus_seconds(backoff));
        self.record("ActivityRetryScheduled", step, attempt);
        self.history.last_mut().unwrap().until = Some(until);
        self.ready.insert(no, until);
        true
    }

    /// An attempt ran into one of its limits.
    fn time_out_attempt(&mut self, step: Step, attempt: u32, now: Timestamp) {
        let out_of_time = self.close_deadline(step).is_some_and(|at| at <= now);
        if out_of_time || !self.retry(step, attempt, now) {
            self.record("ActivityTimedOut", step, attempt);
            let no = self.made[&step].no;
            self.ready.remove(&no);
        }
    }

    fn overdue(&mut self, overdue: &Overdue, now: Timestamp) -> Said {
        let (no, attempt) = (overdue.no, overdue.attempt);
        let activity = self.activity(no).filter(|_| self.closed.is_none());
        let Some((step, _)) = activity.filter(|(step, _)| !self.is_over(*step, attempt)) else {
            return Said::refused("NothingToDo");
        };
        let before = self.history.len();
        self.show_start(step, attempt);
        if overdue.beat.is_some() {
            self.record("ActivityHeartbeatRecorded", step, attempt);
        }
        self.time_out_attempt(step, attempt, now);
        self.wake(before, now);
        let fence = (no, overdue.owner.clone(), attempt);
        Said::written("done".to_owned(), vec![Need::Ended(fence)])
    }

    fn due(&mut self, keys: &[TimerKey], lease: &ObservedLease, now: Timestamp) -> Said {
        let before = self.history.len();
        let mut needs = Vec::new();
        for key in keys {
            if self.closed.is_some() {
                break;
            }
            let step = self.activity(key.no).map(|(step, _)| step);
            let is_due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
            match key.kind {
                TimerKind::User => {
                    let timer = self.timers().into_iter().find(|(step, _)| *step == key.no);
                    if is_due(timer.map(|(_, made)| made.at.plus_seconds(made.delay))) {
                        self.record("TimerFired", key.no, 0);
                    }
                }
                TimerKind::ScheduleToStart => {
                    let Some(step) = step.filter(|step| is_due(self.start_deadline(*step))) else {
                        continue;
                    };
                    if !is_due(self.close_deadline(step)) {
                        needs.push(Need::Free(key.no));
                    }
                    self.time_out_attempt(step, self.shown(step), now);
                }
                TimerKind::ScheduleToClose => {
                    if let Some(step) = step.filter(|step| is_due(self.close_deadline(*step))) {
                        self.time_out_attempt(step, self.shown(step), now);
                    }
                }
                TimerKind::RunDeadline | TimerKind::ExecutionDeadline => {
                    if self.is_past_deadline(now) {
                        match self.cut_off(lease) {
                            Ok(more) => needs.extend(more),
                            Err(said) => return said,
                        }
                        self.time_out();
                    }
                }
            }
        }
        if self.history.len() == before {
            return Said::refused("NothingToDo");
        }
        self.wake(before, now);
        Said::written("done".to_owned(), needs)
    }

    fn close_from_outside(
        &mut self,
        lease: &ObservedLease,
        how: (&'static str, &'static str, CloseReason),
    ) -> Said {
        if self.closed.is_some() {
            return Said::refused("NotActive");
        }
        let needs = match self.cut_off(lease) {
            Ok(needs) => needs,
            Err(said) => return said,
        };
        let (asked, last, reason) = how;
        self.commands += 1;
        self.record(asked, 0, 0);
        self.drop_open();
        self.close(reason, last, 0);
        Said::written(format!("closed {}", self.commands), needs)
    }
}

fn is_final(made: &Made, failure: &Failure) -> bool {
    let listed = made
        .policy
        .iter()
        .flat_map(|policy| &policy.non_retryable_error_types);
    let named = [failure.kind.as_ref(), failure.class.as_ref()];
    failure.non_retryable
        || listed
            .into_iter()
            .any(|listed| named.contains(&Some(listed)))
}

/// Every level of every new member has all its places filled by new members that say the same.
fn are_whole(new: &[(Step, Path)]) -> bool {
    new.iter().all(|(_, path)| {
        path.entries().iter().enumerate().all(|(level, entry)| {
            (0..entry.parallel_group_size).all(|index| {
                let place = entry.parallel_group_base_sequence + index;
                new.iter().any(|(step, other)| {
                    let same = other.entries().get(level).is_some_and(|other| {
                        other.parallel_group_id == entry.parallel_group_id
                            && other.parallel_group_kind == entry.parallel_group_kind
                            && other.parallel_group_base_sequence
                                == entry.parallel_group_base_sequence
                            && other.parallel_group_size == entry.parallel_group_size
                            && other.parallel_group_index == index
                    });
                    *step == place && same
                })
            })
        })
    })
}
