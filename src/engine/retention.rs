//! Retention: closed runs go when their namespace's time is over, from the database a batch at a time
//! and from this node's memory.

use std::collections::{HashMap, VecDeque};

use super::{Engine, Fault};
use crate::domain::ids::{Namespace, RunId};
use crate::domain::list::After;
use crate::domain::run::RunState;
use crate::store::{namespaces, retention};

/// Runs that one step looks at, those included that are to be kept.
const LOOK_RUNS: i64 = 1_000;
/// Events of the runs of one batch together, the first one apart: a bound of their request keys.
const BATCH_EVENTS: u64 = 10_000;
/// How long the history of a removed run stays, for those who found the run just before.
const HISTORY_GRACE_MS: i64 = 60_000;
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// How far a walk over the runs has come, from the oldest to those that began too late to be due, in one
/// namespace after the other.
#[derive(Debug, Default)]
pub struct Walk {
    /// Namespaces that are not through yet; the first one is being walked.
    left: VecDeque<Namespace>,
    /// Where the walk stands in the first one.
    after: Option<After>,
    /// A run that stays was passed.
    has_kept: bool,
    /// Up to where nothing is left in a namespace. No run begins in the past, so that a later walk need
    /// not wade through what was removed there.
    empty_up_to: HashMap<Namespace, After>,
}

impl Walk {
    fn begin(&mut self, namespaces: VecDeque<Namespace>) {
        self.left = namespaces;
        self.enter();
    }

    fn enter(&mut self) {
        let place = self
            .left
            .front()
            .and_then(|name| self.empty_up_to.get(name));
        self.after = place.copied();
        self.has_kept = false;
    }

    /// Goes past these runs, some of which are gone now.
    fn pass(&mut self, namespace: &Namespace, looked: &[retention::Looked], gone: &[RunId]) {
        for run in looked {
            self.has_kept |= !gone.contains(&run.place.run);
            if !self.has_kept {
                self.empty_up_to.insert(namespace.clone(), run.place);
            }
            self.after = Some(run.place);
        }
    }

    fn next_namespace(&mut self) {
        self.left.pop_front();
        self.enter();
    }
}

/// What one step of retention did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionStep {
    /// Runs that are gone.
    pub runs: usize,
    /// Rows of history that are gone.
    pub history_rows: u64,
    /// There is more to do at once.
    pub more: bool,
}

impl Engine {
    /// One bounded step of retention: a part of the history of removed runs, and a batch of runs whose
    /// time is over. The step that ends a walk says that there is no more; the next one begins another.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn remove_expired(&self, walk: &mut Walk) -> Result<RetentionStep, Fault> {
        let history = retention::remove_history(&self.core.store.hot, HISTORY_GRACE_MS).await?;
        let history_rows = u64::try_from(history.rows).unwrap_or_default();
        metrics::counter!("dw_history_rows_removed_total").increment(history_rows);
        let runs = self.remove_runs(walk).await?;
        metrics::counter!("dw_runs_removed_total").increment(runs as u64);
        Ok(RetentionStep {
            runs,
            history_rows,
            more: history.more || !walk.left.is_empty(),
        })
    }

    async fn remove_runs(&self, walk: &mut Walk) -> Result<usize, Fault> {
        let store = &self.core.store.hot;
        if walk.left.is_empty() {
            let namespaces = namespaces::retention_days(store).await?;
            walk.begin(namespaces.into_iter().map(|(name, _)| name).collect());
        }
        let Some(namespace) = walk.left.front().cloned() else {
            return Ok(0);
        };
        let looked = retention::look(store, &namespace, walk.after, LOOK_RUNS).await?;
        let batch = &looked[..batch(&looked)];
        let due: Vec<RunId> = batch
            .iter()
            .filter(|run| run.is_due)
            .map(|run| run.place.run)
            .collect();
        let removed = if due.is_empty() {
            retention::Removed::default()
        } else {
            retention::remove(store, &due).await?
        };
        for run in &removed.runs {
            self.core.cache.remove(*run);
        }
        // Otherwise the next step looks at the rest of this batch again.
        if !removed.keys_left {
            walk.pass(&namespace, batch, &removed.runs);
            let is_last = looked.len() < usize::try_from(LOOK_RUNS).unwrap_or(usize::MAX);
            if is_last && batch.len() == looked.len() {
                walk.next_namespace();
            }
        }
        Ok(removed.runs.len())
    }

    /// Forgets closed runs whose time is over, which any node may have removed. One that is still there
    /// is read again when it is needed.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn forget_expired(&self) -> Result<(), Fault> {
        let core = &self.core;
        let days = namespaces::retention_days(&core.store.hot).await?;
        let days: HashMap<Namespace, u32> = days.into_iter().collect();
        let now = core.clock.now();
        core.cache.forget_where(|state: &RunState| {
            state.close.as_ref().is_some_and(|close| {
                let days = days.get(&state.begun.namespace).copied().unwrap_or(0);
                close.at.plus_seconds(u64::from(days) * SECONDS_PER_DAY) <= now
            })
        });
        Ok(())
    }
}

/// How many of these runs one statement may deal with.
fn batch(looked: &[retention::Looked]) -> usize {
    let (mut runs, mut events) = (0, 0);
    for (place, run) in looked.iter().enumerate() {
        if !run.is_due {
            continue;
        }
        if runs == retention::RUNS || (runs > 0 && events + run.events > BATCH_EVENTS) {
            return place;
        }
        runs += 1;
        events += run.events;
    }
    looked.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::time::Timestamp;

    fn run(n: u64, events: u64, is_due: bool) -> retention::Looked {
        let started_at = Timestamp::default().plus_seconds(n);
        retention::Looked {
            place: After {
                started_at,
                run: RunId::new(started_at, u128::from(n)),
            },
            events,
            is_due,
        }
    }

    #[test]
    fn a_batch_is_bounded_in_runs_and_in_events() {
        let many: Vec<_> = (0..1_000).map(|n| run(n, 5, n % 2 == 1)).collect();
        // A hundred due ones, and as many between them that stay.
        assert_eq!(batch(&many), 201);
        let large: Vec<_> = (0..9).map(|n| run(n, 4_000, true)).collect();
        assert_eq!(batch(&large), 2);
        assert_eq!(batch(&[run(1, 50_000, true), run(2, 1, true)]), 1);
        assert_eq!(batch(&[]), 0);
    }

    #[test]
    fn a_walk_begins_where_something_was_left() {
        let name = Namespace::from("default");
        let mut walk = Walk::default();
        walk.begin([name.clone()].into());
        let looked: Vec<_> = (0..4).map(|n| run(n, 5, true)).collect();
        let place = |n: usize| looked[n].place;
        let gone = [place(0).run, place(1).run, place(3).run];
        walk.pass(&name, &looked, &gone);
        assert_eq!(walk.after.map(|after| after.run), Some(place(3).run));
        walk.next_namespace();
        assert!(walk.left.is_empty());
        walk.begin([name].into());
        assert_eq!(walk.after.map(|after| after.run), Some(place(1).run));
    }
}
