//! One line of inputs per run: those that wait together are decided in order on one state and written
//! as one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::Core;
use super::cache;
use super::driven::Driven;
use super::error::{ApplyError, Fault};
use super::write::{Cause, Written, write};
use crate::domain::decision::Decision;
use crate::domain::ids::RunId;
use crate::domain::run::{Input, Refusal, Reply, RunState, Verdict, decide};
use crate::domain::time::Timestamp;
use crate::matching::IdMap;

/// Inputs that are written as one.
const MERGED_INPUTS: usize = 64;
/// Tries before a contended run is given up.
const TRIES: usize = 8;
/// Inputs that may wait for one run.
const LINE_BOUND: usize = 10_000;

/// An input that was taken.
#[derive(Clone, Debug)]
pub struct Applied {
    /// What the caller is told.
    pub reply: Reply,
    /// The run afterwards.
    pub state: Arc<RunState>,
    /// When, in database time.
    pub at: Timestamp,
}

type Answer = Result<Applied, ApplyError>;

struct Job {
    input: Input,
    answer: oneshot::Sender<Answer>,
}

/// The lines of the runs that somebody works off; a run without inputs has none.
#[derive(Default)]
pub(super) struct Lines(Mutex<IdMap<RunId, VecDeque<Job>>>);

impl Lines {
    fn lines(&self) -> MutexGuard<'_, IdMap<RunId, VecDeque<Job>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an input in line. Returns whether the line is new, so that nobody works it off yet.
    fn push(&self, run: RunId, job: Job) -> Result<bool, Fault> {
        let mut lines = self.lines();
        if let Some(line) = lines.get_mut(&run) {
            if line.len() >= LINE_BOUND {
                return Err(Fault::Busy);
            }
            line.push_back(job);
            return Ok(false);
        }
        lines.insert(run, VecDeque::from([job]));
        Ok(true)
    }

    /// The next inputs of a run. The line ends when there are none.
    fn next(&self, run: RunId) -> Option<Vec<Job>> {
        let mut lines = self.lines();
        let line = lines.get_mut(&run)?;
        if line.is_empty() {
            lines.remove(&run);
            return None;
        }
        let count = line.len().min(MERGED_INPUTS);
        Some(line.drain(..count).collect())
    }
}

/// Gives an input to a run and waits for what comes of it. Dropping the future ends the waiting, not
/// the input.
pub(super) async fn apply(core: &Arc<Core>, run: RunId, input: Input) -> Answer {
    let (answer, mut outcome) = oneshot::channel();
    if core.lines.push(run, Job { input, answer })? {
        let worker = Worker {
            core: Arc::clone(core),
            run,
            is_done: false,
        };
        // Whoever begins a line works it off until there is an answer to the own input; what came
        // meanwhile is then left to a task.
        let mut work = Driven::new(&core.runtime, worker.work());
        tokio::select! {
            biased;
            answer = &mut outcome => return heard(answer),
            _ = &mut work => {}
        }
    }
    heard(outcome.await)
}

/// No answer: the process ends, or the worker has stopped in the middle of a write.
fn heard(answer: Result<Answer, oneshot::error::RecvError>) -> Answer {
    answer.unwrap_or(Err(ApplyError::Fault(Fault::Unknown)))
}

/// Works a line off.
struct Worker {
    core: Arc<Core>,
    run: RunId,
    is_done: bool,
}

impl Worker {
    async fn work(mut self) {
        while let Some(jobs) = self.core.lines.next(self.run) {
            process(&self.core, self.run, jobs).await;
        }
        self.is_done = true;
    }
}

impl Drop for Worker {
    /// One that stops before the end takes its line along, so that the next input begins a new one.
    fn drop(&mut self) {
        if !self.is_done {
            self.core.lines.lines().remove(&self.run);
            self.core.cache.forget(self.run);
        }
    }
}

/// How one round went for one input.
enum Said {
    /// It waits for the round's write.
    Decided(Reply),
    /// It was refused on the round's state.
    Refused(Refusal),
    /// It goes into the next round.
    Deferred,
}

/// Decides inputs in order and writes what they decided; again, when others were faster.
async fn process(core: &Core, run: RunId, jobs: Vec<Job>) {
    let mut waiting: VecDeque<Job> = jobs.into();
    let mut tries = 0;
    let mut fresh = false;
    // After a refused write of several inputs each is written alone, so that one lost lease does not
    // cost its neighbours.
    let mut alone = false;
    while !waiting.is_empty() {
        tries += 1;
        if tries > TRIES {
            answer_all(waiting, &ApplyError::Fault(Fault::Contended));
            return;
        }
        let loaded = match core.cache.known(run) {
            Some(cached) => Ok(Some(cached)),
            None => {
                fresh = true;
                cache::newest(core, run).await
            }
        };
        let cached = match loaded {
            Ok(Some(cached)) => cached,
            Ok(None) => return answer_all(waiting, &ApplyError::NoSuchRun),
            Err(fault) => return answer_all(waiting, &ApplyError::Fault(fault)),
        };
        let take = if alone { 1 } else { waiting.len() };
        let round: Vec<Job> = waiting.drain(..take).collect();
        let (decision, said) = decide_round(core, &cached.state, &round);
        let rejected = said.iter().any(|said| !matches!(said, Said::Decided(_)));
        if (decision.is_none() || rejected) && !fresh {
            // A state from memory may be behind; nothing is refused on its word.
            fresh = true;
            put_front(&mut waiting, round);
            if let Err(fault) = cache::newest(core, run).await {
                return answer_all(waiting, &ApplyError::Fault(fault));
            }
            tries -= 1;
            continue;
        }
        let Some(mut decision) = decision else {
            let left = answer(round, said, &cached.state, core.clock.now());
            put_front(&mut waiting, left);
            continue;
        };
        let due = |job: &Job| matches!(job.input, Input::TimersDue { .. });
        let cause = if round.iter().any(due) {
            Cause::Due
        } else {
            Cause::Asked
        };
        match write(core, &mut decision, Some(&cached), cause).await {
            Ok(Written::Committed(at)) => {
                let state = decision.write.next;
                let left = answer(round, said, &state, at);
                put_front(&mut waiting, left);
                tries = 0;
            }
            Ok(Written::Refused) => {
                metrics::counter!("dw_commit_conflicts_total").increment(1);
                let before = cached.state.version;
                let single = round.len() == 1;
                put_front(&mut waiting, round);
                match cache::newest(core, run).await {
                    Ok(Some(now)) if now.state.version == before && single => {
                        // The run did not move: it was the lease or the key.
                        if let Some(job) = waiting.pop_front() {
                            let _ = job.answer.send(Err(ApplyError::FenceLost));
                        }
                        tries = 0;
                    }
                    Ok(_) => {}
                    Err(fault) => return answer_all(waiting, &ApplyError::Fault(fault)),
                }
                alone = true;
                fresh = true;
            }
            Err(fault) => {
                if fault == Fault::Unknown {
                    core.cache.forget(run);
                }
                put_front(&mut waiting, round);
                return answer_all(waiting, &ApplyError::Fault(fault));
            }
        }
    }
}

/// Decides the inputs of one round, each on the state that those before it lead to.
fn decide_round(core: &Core, state: &RunState, round: &[Job]) -> (Option<Decision>, Vec<Said>) {
    let now = core.clock.now();
    let mut merged: Option<Decision> = None;
    let mut said = Vec::with_capacity(round.len());
    for job in round {
        let state = merged.as_ref().map_or(state, |merged| &merged.write.next);
        said.push(
            match decide(state, job.input.clone(), now, &core.settings.run) {
                Ok(Verdict::Answer(reply)) => Said::Decided(reply),
                Ok(Verdict::Commit(decision, reply)) => {
                    let both_claim = decision.claim.is_some()
                        && merged.as_ref().is_some_and(|merged| merged.claim.is_some());
                    if both_claim {
                        Said::Deferred
                    } else {
                        merged = Some(match merged.take() {
                            None => *decision,
                            Some(merged) => merged.then(*decision),
                        });
                        Said::Decided(reply)
                    }
                }
                Err(refusal) => Said::Refused(refusal),
            },
        );
    }
    (merged, said)
}

/// Answers a round, and returns what goes into the next one.
fn answer(round: Vec<Job>, said: Vec<Said>, state: &Arc<RunState>, at: Timestamp) -> Vec<Job> {
    let mut left = Vec::new();
    for (job, said) in round.into_iter().zip(said) {
        let answer = match said {
            Said::Decided(reply) => Ok(Applied {
                reply,
                state: Arc::clone(state),
                at,
            }),
            Said::Refused(refusal) => Err(ApplyError::Refused(refusal)),
            Said::Deferred => {
                left.push(job);
                continue;
            }
        };
        let _ = job.answer.send(answer);
    }
    left
}

fn answer_all(jobs: impl IntoIterator<Item = Job>, error: &ApplyError) {
    for job in jobs {
        let _ = job.answer.send(Err(error.clone()));
    }
}

fn put_front(waiting: &mut VecDeque<Job>, jobs: Vec<Job>) {
    for job in jobs.into_iter().rev() {
        waiting.push_front(job);
    }
}
