//! Random inputs, as workers, callers and maintenance would send them, and some that nobody should.

use super::super::kit::*;
use super::rng::Rng;
use super::rules::Model;
use super::world::World;
use crate::domain::command::{Command, Failure, ScheduleActivity};
use crate::domain::decision::TimerKey;
use crate::domain::ids::{RunId, Step, WorkerId};
use crate::domain::parallel::{Path, PathEntry, StepKind};
use crate::domain::retry::Policy;
use crate::domain::routing::TaskKind;
use crate::domain::run::{
    ActivityOutcome, ActivityReport, Beat, Digest, Input, ObservedLease, Overdue, OverdueKind,
    StreamReport, TaskFailure, WorkflowTaskReport,
};

impl World {
    /// Mostly the current run, now and then one that it replaced.
    pub fn some_run(&mut self) -> RunId {
        if self.rng.percent(92) {
            return self.run();
        }
        *self.rng.pick(&self.chain).unwrap()
    }

    /// A hand-out to report on: mostly one that is live, now and then any that ever was, or a
    /// forgery of it.
    fn some_holder(&mut self, run: RunId, kind: TaskKind) -> Option<Held> {
        let stored = self.db.run(run);
        let now = self.now;
        let live: Vec<Held> = self
            .holders
            .iter()
            .filter(|(of, which, held)| {
                *of == run
                    && *which == kind
                    && stored.tasks.get(&held.no).is_some_and(|row| {
                        row.attempt == held.attempt
                            && row
                                .lease
                                .as_ref()
                                .is_some_and(|lease| lease.expires_at > now)
                    })
            })
            .map(|(_, _, held)| held.clone())
            .collect();
        let any: Vec<Held> = self
            .holders
            .iter()
            .filter(|(of, _, _)| *of == run)
            .map(|(_, _, held)| held.clone())
            .collect();
        let closed = stored.state.close.is_some();
        let from = if self.rng.percent(93) && !closed {
            &live
        } else {
            &any
        };
        let mut held = self.rng.pick(from)?.clone();
        if self.rng.percent(6) {
            match self.rng.below(4) {
                0 => held.owner = WorkerId::from("forger"),
                1 => held.attempt = held.attempt.saturating_sub(1),
                2 => held.attempt += 1,
                _ => {
                    held.no = u32::try_from(self.rng.below(usize::try_from(held.no).unwrap() + 3))
                        .unwrap()
                }
            }
        }
        Some(held)
    }

    fn digest(&mut self) -> Digest {
        self.tags += 1;
        Digest(self.tags)
    }

    fn report_of(&mut self, held: &Held) -> WorkflowTaskReport {
        WorkflowTaskReport {
            no: held.no,
            attempt: held.attempt,
            owner: held.owner.clone(),
            digest: self.digest(),
            seen: held.seen,
        }
    }

    pub fn completion(&mut self, run: RunId) -> Option<Input> {
        let held = self.some_holder(run, TaskKind::Workflow)?;
        let report = self.report_of(&held);
        let model = self.models[&run].clone();
        let commands = commands(&mut self.rng, &model);
        Some(Input::CompleteWorkflowTask {
            report,
            commands,
            streams: StreamReport::default(),
            keep: None,
        })
    }

    pub fn task_failure(&mut self, run: RunId) -> Option<Input> {
        let held = self.some_holder(run, TaskKind::Workflow)?;
        let report = self.report_of(&held);
        let failure = match self.rng.below(4) {
            0 | 1 => TaskFailure::WaitingForHistory,
            2 => TaskFailure::Other("no handler".into()),
            _ => TaskFailure::Blocked("nondeterministic".into()),
        };
        Some(Input::FailWorkflowTask {
            report,
            failure,
            code: None,
        })
    }

    /// The last heartbeat that the row keeps of this hand-out.
    fn beat_of(&self, run: RunId, held: &Held) -> Option<Beat> {
        let row = self.db.run(run).tasks.get(&held.no)?;
        row.beat.clone().filter(|_| row.attempt == held.attempt)
    }

    pub fn activity_report(&mut self, run: RunId) -> Option<Input> {
        let held = self.some_holder(run, TaskKind::Activity)?;
        let outcome = match self.rng.below(8) {
            0..=3 => ActivityOutcome::Completed(payload("result")),
            4 => ActivityOutcome::TooLarge { bytes: 3_000_000 },
            5 => ActivityOutcome::Failed(failure("Declined")),
            6 => ActivityOutcome::Failed(Failure {
                non_retryable: true,
                ..failure("Busy")
            }),
            _ => ActivityOutcome::Failed(failure("Busy")),
        };
        Some(Input::ReportActivity(ActivityReport {
            no: held.no,
            attempt: held.attempt,
            owner: held.owner.clone(),
            digest: self.digest(),
            outcome,
            beat: self.beat_of(run, &held),
        }))
    }

    pub fn attempt_started(&mut self, run: RunId) -> Option<Input> {
        let held = self.some_holder(run, TaskKind::Activity)?;
        Some(held.started())
    }

    /// What maintenance does about a holder, whether or not the time has come.
    pub fn overdue(&mut self, run: RunId) -> Option<Input> {
        let held = self.some_holder(run, TaskKind::Activity)?;
        let beat = self.beat_of(run, &held);
        Some(match self.rng.below(5) {
            0 => held.give_up(),
            1 => held.overdue(OverdueKind::Heartbeat, beat),
            _ => held.overdue(OverdueKind::StartToClose, beat),
        })
    }

    pub fn give_up_workflow_task(&mut self, run: RunId) -> Option<Input> {
        let held = self.some_holder(run, TaskKind::Workflow)?;
        Some(held.give_up())
    }

    /// Rows that are due, some of them, or any row or none that exists.
    pub fn timers_due(&mut self, run: RunId) -> Option<Input> {
        let stored = self.db.run(run);
        let now = self.now;
        let mut keys: Vec<TimerKey> = stored.timers.keys().copied().collect();
        if self.rng.percent(90) {
            keys.retain(|key| stored.timers[key] <= now);
        }
        if keys.is_empty() {
            return None;
        }
        if self.rng.percent(30) {
            let place = self.rng.below(keys.len());
            keys.swap(0, place);
        }
        if self.rng.percent(40) {
            keys.truncate(1);
        }
        let lease = self.some_lease(run);
        Some(Input::TimersDue { keys, lease })
    }

    /// What a caller knows about the lease on the workflow task: the truth, what was true before, or
    /// nothing.
    pub fn some_lease(&mut self, run: RunId) -> ObservedLease {
        let truth = self.db.run(run).observe(self.now);
        match self.rng.below(10) {
            0 => ObservedLease::Unknown,
            1 | 2 => self.observed.get(&run).cloned().unwrap_or(truth),
            _ => truth,
        }
    }

    pub fn signal(&mut self) -> Input {
        self.tags += 1;
        let mut request = signal_request("go");
        request.arguments = payload(&format!("signal-{}", self.tags));
        if self.rng.percent(30) {
            request.request_id = Some(format!("key-{}", self.tags).into());
        }
        Input::Signal(request)
    }

    /// A report that was sent before: the same again, or under its fence with another body.
    pub fn resent(&mut self) -> Option<(RunId, Input)> {
        let (run, mut input) = self.rng.pick(&self.sent)?.clone();
        if self.rng.percent(30) {
            let other = self.digest();
            match &mut input {
                Input::CompleteWorkflowTask {
                    report, commands, ..
                } => {
                    report.digest = other;
                    commands.clear();
                }
                Input::FailWorkflowTask { report, .. } => report.digest = other,
                Input::ReportActivity(report) => report.digest = other,
                _ => {}
            }
        } else if self.rng.percent(20)
            && let Input::CompleteWorkflowTask { report, .. } = input
        {
            let failure = TaskFailure::Other("late".into());
            input = Input::FailWorkflowTask {
                report,
                failure,
                code: None,
            };
        }
        Some((run, input))
    }
}

/// What maintenance makes of a hand-out that has outlived something.
pub fn outlived(held: &Held, kind: OverdueKind, beat: Option<Beat>) -> Input {
    Input::Overdue(Overdue {
        no: held.no,
        attempt: held.attempt,
        owner: held.owner.clone(),
        kind,
        beat,
    })
}

fn random_policy(rng: &mut Rng) -> Option<Policy> {
    if rng.percent(35) {
        return None;
    }
    let backoff: &[u64] = match rng.below(4) {
        0 => &[],
        1 => &[0],
        2 => &[1, 3],
        _ => &[2],
    };
    let max_attempts = u32::try_from(rng.between(1, 4)).unwrap();
    let mut made = policy(max_attempts, backoff);
    let mut seconds = |percent, high| rng.percent(percent).then(|| rng.between(1, high));
    made.start_to_close_timeout = seconds(30, 10);
    made.schedule_to_start_timeout = seconds(30, 10);
    made.schedule_to_close_timeout = seconds(30, 40);
    made.heartbeat_timeout = seconds(30, 6);
    if rng.percent(50) {
        made.non_retryable_error_types = vec!["Declined".to_owned()];
    }
    Some(made)
}

fn member(rng: &mut Rng) -> Command {
    if rng.percent(60) {
        activity_with("a", random_policy(rng))
    } else {
        timer(rng.below(4) as u64 * 5)
    }
}

/// The commands of one completion: what a workflow may say, and some that it may not.
fn commands(rng: &mut Rng, model: &Model) -> Vec<Command> {
    let mut commands = Vec::new();
    let mut next = model.next_step();
    if rng.percent(40) {
        commands.extend(sent_again(rng, model));
    }
    for _ in 0..rng.below(4) {
        match rng.below(9) {
            0..=2 => commands.push(activity_with("a", random_policy(rng))),
            3 => commands.push(timer(rng.below(4) as u64 * 5)),
            4 => commands.push(side_effect()),
            5 => {
                let version = i64::try_from(rng.below(12)).unwrap();
                commands.push(version_marker(version.min(2), 0, 2 + version / 11));
            }
            6 => commands.push(timer(0)),
            _ => {
                let base = if rng.percent(10) { next + 2 } else { next };
                let new = random_group(rng, base);
                next = base + u32::try_from(new.len()).unwrap();
                commands.extend(new);
                continue;
            }
        }
        next += 1;
    }
    if rng.percent(2) {
        commands.push(version_marker(5, 0, 2));
    }
    let end = match rng.below(80) {
        0 => Some(complete_workflow()),
        1 => Some(fail_workflow()),
        2 | 3 => Some(continue_as_new()),
        _ => None,
    };
    if let Some(end) = end {
        let place = rng.below(commands.len() + 1);
        commands.insert(place, end);
        if rng.percent(5) {
            commands.push(complete_workflow());
        }
    }
    commands
}

/// A group of one to four leaves, with an inner group now and then, or damaged.
fn random_group(rng: &mut Rng, base: Step) -> Vec<Command> {
    let size = u32::try_from(rng.between(1, 4)).unwrap();
    let inner_from = if size >= 3 && rng.percent(40) {
        size - 2
    } else {
        size
    };
    let mut group: Vec<Command> = (0..size)
        .map(|index| {
            let mut levels = vec![level(base, size, index)];
            if index >= inner_from {
                levels.push(level(
                    base + inner_from,
                    size - inner_from,
                    index - inner_from,
                ));
            }
            placed(member(rng), levels)
        })
        .collect();
    if rng.percent(6) {
        match rng.below(5) {
            0 => {
                group.pop();
            }
            3 => {
                // The outer group is whole, an inner one is not.
                let last = vec![level(base, size, size - 1), level(base + size - 1, 2, 0)];
                group[size as usize - 1] = placed(member(rng), last);
            }
            1 => group.reverse(),
            2 => group.push(placed(timer(5), vec![level(base, size + 1, size)])),
            _ => group.push(placed(timer(5), vec![level(base + size, 2, 0)])),
        }
    }
    group
}

/// A group that was recorded before, in full or in part.
fn sent_again(rng: &mut Rng, model: &Model) -> Vec<Command> {
    let bases: Vec<PathEntry> = model
        .made
        .values()
        .filter_map(|made| Some(made.path.as_ref()?.outermost().clone()))
        .filter(|entry| entry.parallel_group_index == 0)
        .filter(|entry| !model.is_settled(entry) || rng.percent(5))
        .collect();
    let Some(entry) = rng.pick(&bases) else {
        return Vec::new();
    };
    let base = entry.parallel_group_base_sequence;
    let mut again: Vec<Command> = (base..base + entry.parallel_group_size)
        .map(|step| {
            let made = &model.made[&step];
            let levels = made
                .path
                .as_ref()
                .map(|path: &Path| path.entries().to_vec());
            let command = match made.kind {
                StepKind::Activity => Command::ScheduleActivity(ScheduleActivity {
                    activity_type: "a".into(),
                    arguments: None,
                    queue: None,
                    policy: made.policy.clone(),
                    cancellation: None,
                    session: None,
                    path: None,
                }),
                _ => timer(made.delay),
            };
            placed(command, levels.unwrap_or_default())
        })
        .collect();
    if rng.percent(10) {
        let place = rng.below(again.len());
        let step = base + u32::try_from(place).unwrap();
        let mut levels = vec![PathEntry {
            parallel_group_index: step - base,
            ..entry.clone()
        }];
        if rng.percent(50) {
            levels.push(level(step, 1, 0));
        }
        again[place] = placed(side_or_timer(rng), levels);
    }
    again
}

fn side_or_timer(rng: &mut Rng) -> Command {
    if rng.percent(50) {
        timer(7)
    } else {
        activity("other")
    }
}
