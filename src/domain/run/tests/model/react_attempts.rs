//! How the reference model reacts to what happens to attempts and timers.

use super::react::told;
use super::rules::{Fence, Made, Model, Need, Open, Said, Told};
use crate::domain::command::Failure;
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::ids::Step;
use crate::domain::run::{
    ActivityOutcome, ActivityReport, CloseReason, ObservedLease, Overdue, ReportKind,
};
use crate::domain::time::Timestamp;

impl Model {
    pub fn give_up(&mut self, fence: Fence, now: Timestamp) -> Said {
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

    pub fn report(&mut self, report: &ActivityReport, now: Timestamp) -> Said {
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

    pub fn overdue(&mut self, overdue: &Overdue, now: Timestamp) -> Said {
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

    pub fn due(&mut self, keys: &[TimerKey], lease: &ObservedLease, now: Timestamp) -> Said {
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
                TimerKind::ConditionTimeout
                | TimerKind::SignalTimeout
                | TimerKind::CleanupDeadline => {}
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
