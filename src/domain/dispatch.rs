//! The order of hand-outs: which ready tasks of a queue go out next, and to which of the waiting polls.
//!
//! The most urgent priority comes first, always. Inside one priority the tasks with the same fairness
//! key are a class, those without a key are one too, and the classes take turns by weight: start-time
//! fair queueing, where each hand-out moves its class's clock on by 1/weight and the class whose clock
//! is least is next. Inside a class the longest waiting task goes first, but for a task whose worker
//! keeps its run in memory and polls: that one may overtake what became ready a moment before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::ids::{TaskId, WorkerId};
use super::time::Timestamp;

/// What one hand-out moves the clock of a class of weight 1 on.
const STRIDE: u128 = 1 << 40;
/// Classes of one priority whose clocks are remembered.
const CLASSES_KEPT: usize = 4_096;
/// A task for a worker that keeps its run may overtake tasks that became ready this much earlier, and
/// no others: what waits is overtaken for a bounded time only.
pub const OVERTAKE_MS: u64 = 1_000;

/// A fairness key; `None` for tasks without one.
pub type Class = Option<Arc<str>>;

/// A place in the order in which tasks of one class go out: by priority, then by age, then by task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// 0 to 9, lower is more urgent.
    pub priority: u8,
    /// Since when a task is ready.
    pub ready_at: Timestamp,
    /// The task, of those that are equally old; before all of them without it.
    pub task: Option<TaskId>,
}

impl Position {
    /// Before all tasks.
    pub const START: Self = Self::of_age(0, Timestamp::EPOCH);

    /// After all tasks.
    pub const END: Self = Self::of_age(u8::MAX, Timestamp::EPOCH);

    /// Before all tasks of a priority that are so old.
    pub const fn of_age(priority: u8, ready_at: Timestamp) -> Self {
        Self {
            priority,
            ready_at,
            task: None,
        }
    }
}

/// A ready task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The task.
    pub task: TaskId,
    /// 0 to 9, lower is more urgent.
    pub priority: u8,
    /// Its class.
    pub class: Class,
    /// Weight of the class, as this task says it. That of the longest waiting task counts.
    pub weight: u16,
    /// Since when it is ready.
    pub ready_at: Timestamp,
    /// The worker that keeps the run in memory.
    pub preferred: Option<WorkerId>,
}

impl Candidate {
    /// Its place among those of its class.
    pub fn position(&self) -> Position {
        Position::of_age(self.priority, self.ready_at)
    }
}

/// Ready tasks that one look found: of each class some that have waited longest.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The tasks, in any order.
    pub candidates: Vec<Candidate>,
    /// Classes of which more is ready than the look took.
    pub cut: BTreeSet<(u8, Class)>,
    /// The last priority whose classes the look knows; `None` when it knows all.
    pub through: Option<u8>,
}

impl Window {
    fn plain(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|one| one.class.is_none())
    }

    /// The last task without a class that the look saw, when there may be more.
    pub fn cut_at(&self) -> Option<Position> {
        let is_cut = self.cut.iter().any(|(_, class)| class.is_none());
        let last = self.plain().map(Candidate::position).max();
        last.filter(|_| is_cut)
    }

    /// The first task without a class of which `is_given` does not say that it was handed out.
    pub fn first_left(&self, is_given: impl Fn(TaskId) -> bool) -> Option<Position> {
        let left = self.plain().filter(|one| !is_given(one.task));
        left.map(Candidate::position).min()
    }

    /// Whether everything that is ready is in it.
    pub fn is_whole(&self) -> bool {
        self.cut.is_empty() && self.through.is_none()
    }

    /// The window less tasks that are known to be out of reach. A class of which nothing is left is
    /// passed over.
    pub fn leave_out(&mut self, is_out: impl Fn(TaskId) -> bool) {
        self.candidates.retain(|candidate| !is_out(candidate.task));
        let left: BTreeSet<(u8, Class)> = self
            .candidates
            .iter()
            .map(|candidate| (candidate.priority, candidate.class.clone()))
            .collect();
        self.cut.retain(|class| left.contains(class));
    }
}

/// The clocks of the classes of one priority.
#[derive(Clone, Debug, Default)]
struct Clocks {
    /// Where the last hand-out began. A class that had nothing to hand out begins here.
    now: u128,
    /// Where the last hand-out of a class ended.
    ends: HashMap<Class, u128>,
}

impl Clocks {
    fn begin(&self, class: &Class) -> u128 {
        self.ends.get(class).copied().unwrap_or(0).max(self.now)
    }

    fn charge(&mut self, class: &Class, weight: u16) {
        let begin = self.begin(class);
        self.now = begin;
        let end = begin + STRIDE / u128::from(weight.max(1));
        self.ends.insert(class.clone(), end);
        if self.ends.len() > CLASSES_KEPT {
            // A class that ended before now is as one that was never seen.
            let now = self.now;
            self.ends.retain(|_, end| *end > now);
            if self.ends.len() > CLASSES_KEPT {
                self.ends.clear();
            }
        }
    }
}

/// What the classes of a queue have had.
#[derive(Clone, Debug, Default)]
pub struct Shares(BTreeMap<u8, Clocks>);

impl Shares {
    /// A task was handed out.
    pub fn charge(&mut self, window: &Window, pick: Pick) {
        if let Some(candidate) = window.candidates.get(pick.candidate) {
            let clocks = self.0.entry(candidate.priority).or_default();
            clocks.charge(&candidate.class, pick.weight);
        }
    }
}

/// A task and the poll it goes to, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Among the candidates.
    pub candidate: usize,
    /// Among the polls.
    pub poll: usize,
    /// Weight of the class at that moment.
    pub weight: u16,
}

/// Polls that nobody has spoken for, the longest waiting first.
struct Free<'a> {
    owners: &'a [&'a WorkerId],
    places: BTreeSet<usize>,
    by_owner: HashMap<&'a WorkerId, BTreeSet<usize>>,
}

impl<'a> Free<'a> {
    fn new(owners: &'a [&'a WorkerId]) -> Self {
        let mut by_owner: HashMap<&WorkerId, BTreeSet<usize>> = HashMap::new();
        for (place, owner) in owners.iter().enumerate() {
            by_owner.entry(owner).or_default().insert(place);
        }
        Self {
            owners,
            places: (0..owners.len()).collect(),
            by_owner,
        }
    }

    fn of(&self, candidate: &Candidate) -> Option<usize> {
        let polls = self.by_owner.get(candidate.preferred.as_ref()?)?;
        polls.first().copied()
    }

    fn take(&mut self, place: usize) {
        self.places.remove(&place);
        if let Some(polls) = self.by_owner.get_mut(self.owners[place]) {
            polls.remove(&place);
        }
    }
}

/// A class while hand-outs are chosen: its clock, and its candidates, the longest waiting first.
struct Line<'a> {
    class: &'a Class,
    begin: u128,
    waiting: Vec<usize>,
    is_cut: bool,
}

/// Chooses hand-outs for waiting polls, in their order; the longest waiting poll comes first in
/// `owners`. It ends early where what the window does not show could come first.
pub fn pick(shares: &Shares, window: &Window, owners: &[&WorkerId]) -> Vec<Pick> {
    let all = &window.candidates;
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|place| {
        let candidate = &all[*place];
        (candidate.priority, candidate.ready_at, candidate.task)
    });
    let mut free = Free::new(owners);
    let mut picks = Vec::new();
    for tier in order.chunk_by(|a, b| all[*a].priority == all[*b].priority) {
        let priority = all[tier[0]].priority;
        if window.through.is_some_and(|last| priority > last) {
            return picks;
        }
        let mut clocks = shares.0.get(&priority).cloned().unwrap_or_default();
        let mut lines: Vec<Line<'_>> = Vec::new();
        let mut places: HashMap<&Class, usize> = HashMap::new();
        for place in tier {
            let class = &all[*place].class;
            let line = *places.entry(class).or_insert_with(|| {
                lines.push(Line {
                    class,
                    begin: clocks.begin(class),
                    waiting: Vec::new(),
                    is_cut: window.cut.contains(&(priority, class.clone())),
                });
                lines.len() - 1
            });
            lines[line].waiting.push(*place);
        }
        loop {
            if free.places.is_empty() {
                return picks;
            }
            let next = lines
                .iter_mut()
                .filter(|line| line.is_cut || !line.waiting.is_empty())
                .min_by_key(|line| {
                    let head = line.waiting.first();
                    (
                        line.begin,
                        head.map(|head| (all[*head].ready_at, all[*head].task)),
                    )
                });
            let Some(line) = next else {
                break;
            };
            let Some((at, poll)) = of_class(all, &line.waiting, &free) else {
                // It is this class's turn, and its next task is not in the window.
                return picks;
            };
            let weight = all[line.waiting[0]].weight;
            let candidate = line.waiting.remove(at);
            free.take(poll);
            picks.push(Pick {
                candidate,
                poll,
                weight,
            });
            clocks.charge(line.class, weight);
            line.begin = clocks.begin(line.class);
        }
    }
    picks
}

/// The next hand-out of a class, by its place in the line, and the poll that it goes to.
fn of_class(all: &[Candidate], waiting: &[usize], free: &Free<'_>) -> Option<(usize, usize)> {
    let last = all[*waiting.first()?].ready_at.plus_millis(OVERTAKE_MS);
    let kept = waiting
        .iter()
        .take_while(|place| all[**place].ready_at <= last)
        .enumerate()
        .find_map(|(at, place)| Some((at, free.of(&all[*place])?)));
    kept.or_else(|| Some((0, free.places.first().copied()?)))
}

#[cfg(test)]
mod tests;
