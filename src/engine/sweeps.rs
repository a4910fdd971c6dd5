//! Work that is due without anybody asking: timers, deadlines, leases. Each pass is bounded, and safe
//! on all nodes at once, because every write repeats its condition.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::error::{ApplyError, Fault};
use super::executions::observe;
use super::reports::last_beat;
use super::{Core, Engine, Hint, asks, cache, claims, leases_lost, rollouts, runs};
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::ids::RunId;
use crate::domain::routing::TaskKind;
use crate::domain::run::{Input, ObservedLease, Overdue, OverdueKind, Refusal};
use crate::domain::time::Timestamp;
use crate::matching::Ended;
use crate::store::lease::{self, OverdueRow, Which};
use crate::store::notify;
use crate::store::timers::{self, Due};

/// Rows that one pass takes.
const BATCH: i64 = 1_000;
/// Timers that may be in the middle of being fired when a pass begins.
const FIRING: usize = 500;
/// Milliseconds until timers are looked at again that were passed over, because others of their run were
/// being fired.
const AGAIN_MS: u64 = 20;
/// The same for timers that could not be fired.
const RETRY_MS: u64 = 250;
/// Tries when a run's task changes hands while its deadline is applied.
const TRIES: usize = 4;

/// What a pass did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swept {
    /// Rows that were due.
    pub found: usize,
    /// Milliseconds until the next one is, if that is known.
    pub next_ms: Option<u64>,
}

impl Swept {
    /// There may be more: the pass was full.
    pub fn is_full(&self) -> bool {
        i64::try_from(self.found).unwrap_or(i64::MAX) >= BATCH
    }
}

impl Engine {
    /// Fires timers that are due: begins it, and comes back when there is room for more. A run that takes
    /// long holds up nobody else's timers.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn fire_timers(&self) -> Result<Swept, Fault> {
        let core = &self.core;
        let firing = core.firing.room().await;
        // Rows of runs that were being fired before the look may be gone by now.
        let limit = BATCH + i64::try_from(firing.timers).unwrap_or(0);
        let look = timers::look(&core.store.hot, limit).await?;
        core.clock.observe(look.at);
        let mut by_run: BTreeMap<RunId, Vec<Due>> = BTreeMap::new();
        let mut passed_over = false;
        for due in look.due {
            if firing.runs.contains(&due.run) {
                passed_over = true;
            } else {
                by_run.entry(due.run).or_default().push(due);
            }
        }
        let mut found = 0;
        for (run, dues) in by_run {
            found += dues.len();
            let fired = core.firing.begin(run, dues.len());
            let core = Arc::clone(core);
            self.core.runtime.spawn(async move {
                fire_of_run(&core, run, &dues).await;
                drop(fired);
            });
        }
        if found > 0 {
            metrics::counter!("dw_timers_fired_total").increment(found as u64);
        }
        // Another timer of a run may have come due while its first one is fired.
        let again = passed_over.then_some(AGAIN_MS);
        Ok(Swept {
            found,
            next_ms: look.next_ms.into_iter().chain(again).min(),
        })
    }

    /// Ends leases and attempts that have run out.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn end_leases(&self) -> Result<Swept, Fault> {
        let core = &self.core;
        let look = lease::look(&core.store.hot, BATCH).await?;
        core.clock.observe(look.at);
        let found = look.overdue.len();
        let mut expired = Vec::new();
        for overdue in look.overdue {
            let late = overdue.heartbeat || overdue.start_to_close;
            if overdue.row.kind == TaskKind::Activity && late {
                time_out(core, overdue);
            } else {
                expired.push(overdue.row);
            }
        }
        if !expired.is_empty() {
            metrics::counter!("dw_lease_expiries_total").increment(expired.len() as u64);
            leases_lost::give_back(core, expired, Which::RunOut).await?;
        }
        Ok(Swept {
            found,
            next_ms: look.next_ms.filter(|ms| *ms > 0),
        })
    }

    /// Gives back what workers hold that are gone or silent.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn give_back_from_absent(&self) -> Result<Swept, Fault> {
        let core = &self.core;
        let rows =
            lease::of_absent_holders(&core.store.hot, core.settings.stale_after_seconds, BATCH)
                .await?;
        let found = rows.len();
        if found > 0 {
            leases_lost::give_back(core, rows, Which::Named).await?;
        }
        Ok(Swept {
            found,
            next_ms: None,
        })
    }

    /// Waits for the next timer that this node knows of, at most `longest`.
    pub async fn timer_alarm(&self, longest: Duration) {
        self.core.alarms.timers.wait(longest).await;
    }

    /// Waits for the next end of a lease that this node knows of, at most `longest`.
    pub async fn lease_alarm(&self, longest: Duration) {
        self.core.alarms.leases.wait(longest).await;
    }

    /// Waits until tasks become ready that were opened for later, and looks at their queues.
    pub async fn wake_queues(&self) {
        for key in self.core.wakes.next().await {
            claims::due(&self.core, &key);
        }
    }

    /// Waits until there is something to tell the other nodes.
    pub async fn hints_waiting(&self) {
        self.core.hints.wait().await;
    }

    /// Tells the other nodes what they may want to know.
    ///
    /// # Errors
    /// [`Fault`]; the hints are lost, which costs time and nothing else.
    pub async fn send_hints(&self) -> Result<(), Fault> {
        while let Some(text) = self.core.hints.take() {
            notify::send(&self.core.store.hot, &text).await?;
        }
        Ok(())
    }

    /// Opens the connection on which other nodes are heard.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn ear(&self) -> Result<notify::Ear, Fault> {
        Ok(notify::Ear::open(&self.core.store).await?)
    }

    /// Acts on what was heard.
    pub fn heed(&self, heard: &notify::Heard) {
        match heard {
            notify::Heard::Gap => {
                self.core.known.forget_all();
                self.core.leases.doubt_homes();
                self.core.rollouts.doubt_all();
                let core = Arc::clone(&self.core);
                // What stays doubted when this fails is read when it is needed.
                self.core
                    .runtime
                    .spawn(async move { rollouts::refresh(&core).await });
                self.core.marks.forget_all();
                for key in self.core.registry.all_backlog() {
                    claims::start(&self.core, key);
                }
            }
            notify::Heard::Hint(text) => {
                let hints = self.core.hints.read(text);
                if !hints.is_empty() {
                    self.core.store.others.heard();
                }
                for hint in hints {
                    match hint {
                        Hint::Ready(key, from) => claims::ready(&self.core, &key, from),
                        Hint::Beat(task, attempt) => self.core.leases.beat(task, attempt),
                        Hint::Worker(key, epoch) => {
                            self.core.known.forget(&key);
                            self.core.contracts.forget(&key.namespace);
                            self.core
                                .registry
                                .end_worker(&key, epoch, Ended::Superseded);
                        }
                        Hint::Drained(key) => {
                            self.core.known.forget(&key);
                            self.core
                                .registry
                                .end_worker(&key, u64::MAX, Ended::Draining);
                        }
                        Hint::Visits(key) => self.core.leases.leaves(&key),
                        Hint::Rollouts(namespace, queue) => {
                            self.core.rollouts.doubt(&namespace, &queue);
                        }
                        Hint::Moved(run) => self.core.cache.heard_of(run),
                        Hint::Answered(ask) => asks::heard_of(&self.core, ask),
                    }
                }
            }
        }
    }
}

/// Runs whose due timers are being applied.
#[derive(Default)]
pub(super) struct Firing {
    runs: Mutex<HashMap<RunId, usize>>,
    fewer: Notify,
}

/// What is being fired at one moment.
struct Flying {
    runs: HashSet<RunId>,
    timers: usize,
}

impl Firing {
    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, usize>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until at most [`FIRING`] timers are being fired, and says which runs they are of.
    async fn room(&self) -> Flying {
        loop {
            let fewer = self.fewer.notified();
            {
                let runs = self.runs();
                let timers = runs.values().sum();
                if timers <= FIRING {
                    let runs = runs.keys().copied().collect();
                    return Flying { runs, timers };
                }
            }
            fewer.await;
        }
    }

    /// Notes that `timers` of a run are being fired, until what this returns is dropped.
    fn begin(self: &Arc<Self>, run: RunId, timers: usize) -> Fired {
        self.runs().insert(run, timers);
        Fired {
            firing: Arc::clone(self),
            run,
        }
    }
}

/// Timers of a run that are being fired.
struct Fired {
    firing: Arc<Firing>,
    run: RunId,
}

impl Drop for Fired {
    fn drop(&mut self) {
        self.firing.runs().remove(&self.run);
        self.firing.fewer.notify_one();
    }
}

/// Applies the due timers of one run, and notes how late they were.
async fn fire_of_run(core: &Arc<Core>, run: RunId, dues: &[Due]) {
    let keys = dues.iter().map(|due| due.key).collect();
    if let Some(at) = fire(core, run, keys).await {
        for due in dues {
            let late = at.millis_since(due.at) as f64 / 1_000.0;
            metrics::histogram!("dw_timer_lateness_seconds").record(late);
        }
    }
}

/// Applies due timers of one run, together if that works. Says since when that is durable, in the
/// database's time.
async fn fire(core: &Arc<Core>, run: RunId, keys: Vec<TimerKey>) -> Option<Timestamp> {
    let mut lease = ObservedLease::Unknown;
    for _ in 0..TRIES {
        let input = Input::TimersDue {
            keys: keys.clone(),
            lease: lease.clone(),
        };
        match runs::apply(core, run, input).await {
            Ok(applied) => return Some(applied.at),
            Err(ApplyError::Refused(Refusal::LeaseNeeded)) => {
                lease = observe(core, run).await.ok()?;
            }
            Err(ApplyError::NoSuchRun) => {
                discard(core, run, &keys, |_| true).await;
                return None;
            }
            Err(ApplyError::Refused(Refusal::NothingToDo)) => {
                let cached = cache::newest(core, run).await.ok()??;
                discard(core, run, &keys, |key| !cached.state.expects(key)).await;
                return None;
            }
            Err(ApplyError::FenceLost) if keys.len() > 1 => {
                let mut last = None;
                for key in keys {
                    last = Box::pin(fire(core, run, vec![key])).await.max(last);
                }
                return last;
            }
            Err(ApplyError::FenceLost) if keys[0].kind == TimerKind::ScheduleToStart => {
                // Somebody has taken the task: it was started in time.
                discard(core, run, &keys, |_| true).await;
                return None;
            }
            Err(ApplyError::FenceLost) => lease = ObservedLease::Unknown,
            // The row stays, and a later pass tries again.
            Err(ApplyError::Refused(_) | ApplyError::Fault(_)) => break,
        }
    }
    core.alarms.timer_in(RETRY_MS);
    None
}

/// Removes rows that nobody needs.
async fn discard(core: &Core, run: RunId, keys: &[TimerKey], useless: impl Fn(TimerKey) -> bool) {
    for key in keys {
        if useless(*key)
            && let Err(error) = timers::discard(&core.store.hot, run, *key).await
        {
            tracing::warn!(error = %error, "a settled timer could not be removed");
        }
    }
}

fn time_out(core: &Arc<Core>, overdue: OverdueRow) {
    let Some(owner) = overdue.row.owner.clone() else {
        return;
    };
    let task = overdue.row.task;
    let input = Input::Overdue(Overdue {
        no: task.no,
        attempt: overdue.row.attempt,
        owner,
        kind: if overdue.heartbeat {
            OverdueKind::Heartbeat
        } else {
            OverdueKind::StartToClose
        },
        beat: last_beat(&overdue.row),
    });
    let core = Arc::clone(core);
    core.clone().runtime.spawn(async move {
        // Refused means that it was reported or renewed after all; faults are met again by the next pass.
        let _ = runs::apply(&core, task.run, input).await;
    });
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Rule: a run whose timers take long to fire holds up nobody else's, up to a bound.
    #[test]
    fn a_pass_waits_for_room_and_not_for_every_run() {
        let firing: Arc<Firing> = Arc::default();
        let run = |n| RunId::new(Timestamp::from_micros(1), n);
        let mut context = Context::from_waker(Waker::noop());
        let mut room = |firing: &Arc<Firing>| {
            let mut room = Box::pin(firing.room());
            match room.as_mut().poll(&mut context) {
                Poll::Ready(flying) => Some((flying.runs, flying.timers)),
                Poll::Pending => None,
            }
        };
        assert_eq!(room(&firing), Some((HashSet::new(), 0)));
        let slow = firing.begin(run(1), FIRING);
        assert_eq!(room(&firing), Some((HashSet::from([run(1)]), FIRING)));
        let other = firing.begin(run(2), 1);
        assert_eq!(room(&firing), None, "full");
        drop(other);
        assert_eq!(room(&firing), Some((HashSet::from([run(1)]), FIRING)));
        drop(slow);
        assert_eq!(room(&firing), Some((HashSet::new(), 0)));
    }

    /// Whoever waits for room is told of it.
    #[tokio::test]
    async fn room_comes_when_a_run_has_fired() {
        let firing: Arc<Firing> = Arc::default();
        let first = firing.begin(RunId::new(Timestamp::from_micros(1), 1), FIRING + 1);
        let waiting = tokio::spawn({
            let firing = Arc::clone(&firing);
            async move { firing.room().await.timers }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert_eq!(waiting.await.ok(), Some(0));
    }
}
