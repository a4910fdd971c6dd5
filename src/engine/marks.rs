//! Low-water marks: where in the order of hand-outs the next claim of a queue begins. What lies before has
//! been handed out, and claims need not walk over what it leaves behind in the index.
//!
//! A mark is a memory of this node and never the truth. Whatever becomes ready lowers it: what this node
//! writes, as soon as it is committed, and what other nodes tell. What nobody tells of (a task whose row
//! was locked when a claim came by, a hint that was lost) is found by a look from the start, which is due
//! from time to time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::domain::dispatch::Position;
use crate::domain::routing::{DEFAULT_PRIORITY, Profile};
use crate::domain::time::Timestamp;
use crate::matching::{IdMap, QueueKey};

/// Queues whose marks are remembered; claims of one that is forgotten begin at the start again.
const QUEUES_KEPT: usize = 10_000;
/// Profiles of one queue whose marks are remembered.
const PROFILES_KEPT: usize = 64;
/// Pause between two looks from the start.
const WHOLE_LOOK: Duration = Duration::from_secs(5);
/// The pause is this many times as long as the look took, if that is longer: a long backlog between two
/// vacuums and old snapshots of the database can make it long, and one claim in a hundred is a good deal.
const WHOLE_LOOK_SHARE: u32 = 200;
/// Longest pause between two looks from the start.
const WHOLE_LOOK_MOST: Duration = Duration::from_secs(30);

/// Until the next look from the start, when one took so long.
fn pause(took: Duration) -> Duration {
    (took * WHOLE_LOOK_SHARE).clamp(WHOLE_LOOK, WHOLE_LOOK_MOST)
}

#[derive(Debug)]
struct Mark {
    profile: Profile,
    at: Position,
    whole_look_at: Instant,
}

#[derive(Debug, Default)]
struct Queue {
    marks: Vec<Mark>,
    /// Looks under way, each with the least position that has become ready since it began.
    looks: Vec<(u64, Position)>,
    /// Tasks of it differ in priority.
    is_ordered: bool,
}

impl Queue {
    fn lower(&mut self, to: Position) {
        if to == Position::END {
            return;
        }
        self.is_ordered |= to.priority != DEFAULT_PRIORITY && to != Position::START;
        for mark in &mut self.marks {
            mark.at = mark.at.min(to);
        }
        for (_, least) in &mut self.looks {
            *least = (*least).min(to);
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    queues: IdMap<QueueKey, Queue>,
    next_look: u64,
}

/// The marks of this node.
#[derive(Debug)]
pub(super) struct Marks {
    inner: Mutex<Inner>,
    is_used: bool,
}

/// A look at a queue that is under way. Dropped without an end, all marks of the queue are lowered to where it
/// began: what it had taken may be ready again, and others have passed it by.
#[derive(Debug)]
pub(super) struct Look<'a> {
    marks: &'a Marks,
    key: &'a QueueKey,
    profile: &'a Profile,
    no: u64,
    began: Instant,
    from: Position,
    /// The mark when it began.
    mark: Position,
}

impl Marks {
    /// Marks; unless they are used, every claim begins at the start.
    pub fn new(is_used: bool) -> Self {
        Self {
            inner: Mutex::default(),
            is_used,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a look at what is ready for a profile.
    pub fn look<'a>(&'a self, key: &'a QueueKey, profile: &'a Profile) -> Look<'a> {
        let began = Instant::now();
        let mut inner = self.inner();
        inner.next_look += 1;
        let no = inner.next_look;
        if inner.queues.len() >= QUEUES_KEPT && !inner.queues.contains_key(key) {
            inner.queues.retain(|_, queue| !queue.looks.is_empty());
        }
        let queue = inner.queues.entry(key.clone()).or_default();
        queue.looks.push((no, Position::END));
        let mark = queue.marks.iter_mut().find(|mark| mark.profile == *profile);
        let known = mark.as_ref().map_or(Position::START, |mark| mark.at);
        let from = mark.and_then(|mark| {
            // The next look goes on from the mark while this one is under way.
            let is_due = mark.whole_look_at <= began;
            if is_due {
                mark.whole_look_at = began + WHOLE_LOOK;
            }
            (self.is_used && !is_due).then_some(mark.at)
        });
        Look {
            marks: self,
            key,
            profile,
            no,
            began,
            from: from.unwrap_or(Position::START),
            mark: known,
        }
    }

    /// Where a look for several profiles of a queue begins that is to find out whether anything is ready. One from the
    /// start says with [`Marks::looked`] how long it took.
    pub fn begin_for(&self, key: &QueueKey, profiles: &[Profile]) -> Position {
        let now = Instant::now();
        let inner = self.inner();
        let queue = inner.queues.get(key).filter(|_| self.is_used);
        let from = |profile: &Profile| {
            let mark = queue?.marks.iter().find(|mark| mark.profile == *profile);
            mark.filter(|mark| now < mark.whole_look_at)
                .map(|mark| mark.at)
        };
        let positions = profiles
            .iter()
            .map(|profile| from(profile).unwrap_or(Position::START));
        positions.min().unwrap_or(Position::START)
    }

    /// Looks at these queues from the start took so long each.
    pub fn looked<'a>(&self, keys: impl Iterator<Item = &'a QueueKey>, took: Duration) {
        let next = Instant::now() + pause(took);
        let mut inner = self.inner();
        for key in keys {
            let queue = inner.queues.get_mut(key);
            for mark in queue.into_iter().flat_map(|queue| &mut queue.marks) {
                mark.whole_look_at = next;
            }
        }
    }

    /// Where the next look would begin.
    pub fn of(&self, key: &QueueKey, profile: &Profile) -> Position {
        let inner = self.inner();
        let marks = inner.queues.get(key).map(|queue| &queue.marks);
        let mark = marks.and_then(|marks| marks.iter().find(|mark| mark.profile == *profile));
        mark.filter(|_| self.is_used)
            .map_or(Position::START, |mark| mark.at)
    }

    /// A task has become ready, or will, at this position.
    pub fn lower(&self, key: &QueueKey, to: Position) {
        if let Some(queue) = self.inner().queues.get_mut(key) {
            queue.lower(to);
        }
    }

    /// What was told of ready tasks may have been lost.
    pub fn forget_all(&self) {
        for queue in self.inner().queues.values_mut() {
            queue.lower(Position::START);
        }
    }

    /// Whether tasks of a queue differ in priority, as far as this node has seen. Where all are alike, what
    /// becomes ready later does not lie before a mark.
    pub fn is_ordered(&self, key: &QueueKey) -> bool {
        let inner = self.inner();
        inner.queues.get(key).is_some_and(|queue| queue.is_ordered)
    }

    /// Tasks of a queue were seen to differ in priority.
    pub fn ordered(&self, key: &QueueKey) {
        let mut inner = self.inner();
        if inner.queues.len() < QUEUES_KEPT || inner.queues.contains_key(key) {
            inner.queues.entry(key.clone()).or_default().is_ordered = true;
        }
    }

    fn over(&self, look: &Look<'_>, reached: Option<Position>) {
        let mut inner = self.inner();
        let Some(queue) = inner.queues.get_mut(look.key) else {
            return;
        };
        let Some(place) = queue.looks.iter().position(|(no, _)| *no == look.no) else {
            return;
        };
        let (_, least) = queue.looks.swap_remove(place);
        let known = queue
            .marks
            .iter()
            .position(|mark| mark.profile == *look.profile);
        let Some(reached) = reached else {
            queue.lower(look.mark);
            return;
        };
        let at = reached.min(least);
        let pause = pause(look.began.elapsed());
        match known {
            Some(place) => {
                let mark = &mut queue.marks[place];
                // Another look may have left something before the beginning of this one.
                mark.at = if mark.at < look.from {
                    mark.at.min(at)
                } else {
                    at
                };
                if look.from == Position::START {
                    mark.whole_look_at = Instant::now() + pause;
                }
            }
            None => {
                if queue.marks.len() >= PROFILES_KEPT {
                    queue.marks.clear();
                }
                queue.marks.push(Mark {
                    profile: look.profile.clone(),
                    at,
                    whole_look_at: Instant::now() + pause,
                });
            }
        }
    }
}

impl Look<'_> {
    /// Where it is to begin.
    pub fn from(&self) -> Position {
        self.from
    }

    /// It went as far as this, and left nothing before it that its profile may take.
    pub fn reached(self, position: Position) {
        self.marks.over(&self, Some(position));
    }

    /// At this time it left nothing that was ready.
    pub fn left_nothing(self, at: Option<Timestamp>) {
        let Some(ready_at) = at else { return };
        let is_ordered = self.marks.is_ordered(self.key);
        // Where priorities differ, what becomes ready later may lie anywhere; whoever opened it tells.
        let position = if is_ordered {
            Position::END
        } else {
            Position::of_age(DEFAULT_PRIORITY, ready_at)
        };
        self.reached(position);
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        // After an end, the look is no longer known, and this does nothing.
        self.marks.over(self, None);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use super::*;
    use crate::matching::kit::{key, profile};

    fn position(micros: i64) -> Position {
        Position::of_age(DEFAULT_PRIORITY, Timestamp::from_micros(micros))
    }

    #[test]
    fn a_look_begins_where_the_last_one_ended() {
        let marks = Marks::new(true);
        let (key, one, other) = (key(), profile(1), profile(2));
        let look = marks.look(&key, &one);
        assert_eq!(look.from(), Position::START);
        look.reached(position(7));
        assert_eq!(marks.of(&key, &other), Position::START);
        let look = marks.look(&key, &one);
        assert_eq!(look.from(), position(7));
        look.left_nothing(Some(Timestamp::from_micros(9)));
        assert_eq!(marks.of(&key, &one), position(9));
        let unused = Marks::new(false);
        unused.look(&key, &one).reached(position(7));
        assert_eq!(unused.look(&key, &one).from(), Position::START);
    }

    #[test]
    fn what_becomes_ready_lowers_the_mark_also_during_a_look() {
        let marks = Marks::new(true);
        let (key, profile) = (key(), profile(1));
        marks.look(&key, &profile).reached(position(7));
        marks.lower(&key, position(5));
        let look = marks.look(&key, &profile);
        assert_eq!(look.from(), position(5));
        marks.lower(&key, position(3));
        marks.lower(&key, position(30));
        look.left_nothing(Some(Timestamp::from_micros(20)));
        assert_eq!(marks.of(&key, &profile), position(3));
        marks.lower(&key, Position::END);
        assert_eq!(marks.of(&key, &profile), position(3));
        marks.forget_all();
        assert_eq!(marks.of(&key, &profile), Position::START);
    }

    #[test]
    fn a_look_without_an_end_has_others_begin_where_it_began() {
        let marks = Marks::new(true);
        let (key, profile) = (key(), profile(1));
        marks.look(&key, &profile).reached(position(7));
        let other = self::profile(2);
        marks.look(&key, &other).reached(position(20));
        let failing = marks.look(&key, &profile);
        let beside = marks.look(&key, &profile);
        drop(failing);
        assert_eq!(marks.of(&key, &other), position(7));
        beside.reached(position(30));
        assert_eq!(marks.of(&key, &profile), position(7));
    }

    #[test]
    fn a_look_leaves_what_another_one_left_before_it() {
        let marks = Marks::new(true);
        let (key, profile) = (key(), profile(1));
        marks.look(&key, &profile).reached(position(7));
        let beside = marks.look(&key, &profile);
        {
            let mut inner = marks.inner();
            let mark = &mut inner.queues.get_mut(&key).unwrap().marks[0];
            mark.whole_look_at = Instant::now();
        }
        marks.look(&key, &profile).reached(position(3));
        beside.reached(position(9));
        assert_eq!(marks.of(&key, &profile), position(3));
    }

    #[test]
    fn where_priorities_differ_later_tasks_may_lie_before_the_mark() {
        let marks = Marks::new(true);
        let (key, profile) = (key(), profile(1));
        let nothing = || {
            let look = marks.look(&key, &profile);
            look.left_nothing(Some(Timestamp::from_micros(9)));
        };
        nothing();
        assert!(!marks.is_ordered(&key));
        assert_eq!(marks.of(&key, &profile), position(9));
        let urgent = Position::of_age(0, Timestamp::from_micros(30));
        marks.lower(&key, urgent);
        assert_eq!(marks.of(&key, &profile), urgent);
        nothing();
        assert_eq!(marks.of(&key, &profile), Position::END);
        assert!(marks.is_ordered(&key));
    }

    #[test]
    fn a_look_for_several_profiles_begins_at_their_lowest_mark() {
        let marks = Marks::new(true);
        let (key, one, other, gone) = (key(), profile(1), profile(2), profile(3));
        let both = [one.clone(), other.clone()];
        assert_eq!(marks.begin_for(&key, &both), Position::START);
        marks.look(&key, &gone).reached(position(1));
        marks.look(&key, &one).reached(position(7));
        assert_eq!(
            marks.begin_for(&key, &both),
            Position::START,
            "one has no mark"
        );
        marks.look(&key, &other).reached(position(5));
        assert_eq!(marks.begin_for(&key, &both), position(5));
        marks.inner().queues.get_mut(&key).unwrap().marks[1].whole_look_at = Instant::now();
        assert_eq!(
            marks.begin_for(&key, &both),
            Position::START,
            "one from the start is due"
        );
        assert_eq!(
            marks.begin_for(&key, &both[1..]),
            position(5),
            "not for this one"
        );
        marks.looked(std::iter::once(&key), Duration::ZERO);
        assert_eq!(marks.begin_for(&key, &both), position(5));
        marks.lower(&key, position(3));
        assert_eq!(marks.begin_for(&key, &both), position(3));
        let unused = Marks::new(false);
        unused.look(&key, &one).reached(position(7));
        assert_eq!(unused.begin_for(&key, &both[..1]), Position::START);
    }

    #[test]
    fn a_look_from_the_start_is_due_again() {
        let marks = Marks::new(true);
        let (key, profile) = (key(), profile(1));
        marks.look(&key, &profile).reached(position(7));
        {
            let mut inner = marks.inner();
            let mark = &mut inner.queues.get_mut(&key).unwrap().marks[0];
            mark.whole_look_at = Instant::now();
        }
        let look = marks.look(&key, &profile);
        assert_eq!(look.from(), Position::START);
        let beside = marks.look(&key, &profile);
        assert_eq!(
            beside.from(),
            position(7),
            "one look from the start at a time"
        );
        beside.reached(position(8));
        look.reached(position(8));
        assert_eq!(marks.look(&key, &profile).from(), position(8));
    }
}
