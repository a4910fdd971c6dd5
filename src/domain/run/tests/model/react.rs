//! How the reference model reacts to inputs.

use super::rules::{Fence, Made, Model, Need, Said, Told};
use crate::domain::command::{Command, End};
use crate::domain::ids::{Step, TaskNo};
use crate::domain::parallel::{Path, StepKind};
use crate::domain::run::{
    CloseReason, Input, ObservedLease, ReportKind, TaskFailure, WorkflowTaskReport,
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
            Input::CompleteWorkflowTask {
                report, commands, ..
            } => self.complete(report, commands, now),
            Input::FailWorkflowTask {
                report, failure, ..
            } => self.fail(report, failure, now),
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
                self.held.push_back(request.arguments.blob().to_string());
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
            other => panic!("no rule for {other:?}"),
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

    pub fn known_report(&self, fence: &Fence, kind: ReportKind, digest: u64) -> Option<Said> {
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

    pub fn time_out(&mut self) {
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
                other => panic!("no rule for {other:?}"),
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
