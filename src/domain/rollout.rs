//! Rollouts: what an operator decided about a build on a queue, how its workers stand, and what follows
//! for promotion and for new starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::time::Timestamp;
use super::worker::{Registration, WorkerStatus};

/// Whether the workers of a build may take new tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainIntent {
    /// They may.
    Active,
    /// They finish what they hold.
    Draining,
}

impl DrainIntent {
    /// The word on the wire and in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
        }
    }

    /// The intent of this word.
    pub fn from_word(word: &str) -> Self {
        match word {
            "draining" => Self::Draining,
            _ => Self::Active,
        }
    }
}

/// A build; `None` stands for workers without one.
pub type Build = Option<Arc<str>>;

/// What an operator decided about one build on one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The build.
    pub build_id: Build,
    /// Whether it drains.
    pub intent: DrainIntent,
    /// Since when it drains.
    pub drained_at: Option<Timestamp>,
    /// When it was last promoted.
    pub promoted_at: Option<Timestamp>,
    /// When its promotion was taken back.
    pub rolled_back_at: Option<Timestamp>,
    /// New starts that name no build are pinned to it.
    pub selected: bool,
    /// When it was first heard of.
    pub first_seen_at: Timestamp,
}

impl Rollout {
    /// A build that nobody has decided about.
    pub fn new(build_id: Build, at: Timestamp) -> Self {
        Self {
            build_id,
            intent: DrainIntent::Active,
            drained_at: None,
            promoted_at: None,
            rolled_back_at: None,
            selected: false,
            first_seen_at: at,
        }
    }

    /// Whether its workers finish what they hold and take nothing more.
    pub fn is_draining(&self) -> bool {
        self.intent == DrainIntent::Draining
    }

    /// Its workers are to take nothing more; no new start is sent to it. The first time counts.
    pub fn drain(&mut self, at: Timestamp) {
        self.intent = DrainIntent::Draining;
        self.drained_at.get_or_insert(at);
        self.selected = false;
    }

    /// Its workers may take tasks again. A promotion that the draining ended stays ended.
    pub fn resume(&mut self) {
        self.intent = DrainIntent::Active;
        self.drained_at = None;
    }

    /// New starts are pinned to it. Once more changes nothing.
    pub fn promote(&mut self, at: Timestamp) {
        if !self.selected || self.promoted_at.is_none() {
            self.promoted_at = Some(at);
        }
        self.selected = true;
        self.rolled_back_at = None;
    }

    /// New starts are no longer pinned to it. Once more changes nothing.
    pub fn roll_back(&mut self, at: Timestamp) {
        self.selected = false;
        self.rolled_back_at.get_or_insert(at);
    }
}

/// The build that takes over when the selected one is rolled back: the one promoted last before it,
/// unless that drains or was rolled back itself.
pub fn before<'a>(rollouts: &'a [Rollout], build: &Build) -> Option<&'a Rollout> {
    rollouts
        .iter()
        .filter(|other| other.build_id != *build)
        .filter(|other| !other.is_draining() && other.rolled_back_at.is_none())
        .filter(|other| other.promoted_at.is_some())
        .max_by_key(|other| other.promoted_at)
}

/// How the workers of a build stand together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Live ones take tasks.
    Active,
    /// Some take tasks, some drain.
    ActiveWithDraining,
    /// All live ones drain.
    Draining,
    /// All have been silent for too long.
    StaleOnly,
    /// There are none.
    NoWorkers,
}

impl Standing {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::ActiveWithDraining => "active_with_draining",
            Self::Draining => "draining",
            Self::StaleOnly => "stale_only",
            Self::NoWorkers => "no_workers",
        }
    }
}

/// Workers by how they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Live, and may take tasks.
    pub active: u64,
    /// Live, and finish what they hold.
    pub draining: u64,
    /// Silent for too long.
    pub stale: u64,
}

impl Counts {
    /// All of them.
    pub fn total(self) -> u64 {
        self.active + self.draining + self.stale
    }

    /// How they stand together.
    pub fn standing(self) -> Standing {
        match self {
            Self {
                active: 1..,
                draining: 1..,
                ..
            } => Standing::ActiveWithDraining,
            Self { active: 1.., .. } => Standing::Active,
            Self { draining: 1.., .. } => Standing::Draining,
            Self { stale: 1.., .. } => Standing::StaleOnly,
            _ => Standing::NoWorkers,
        }
    }

    /// Counts one more worker.
    pub fn add(&mut self, status: WorkerStatus, is_stale: bool) {
        match status {
            _ if is_stale => self.stale += 1,
            WorkerStatus::Active => self.active += 1,
            WorkerStatus::Draining => self.draining += 1,
        }
    }
}

/// The workers of one build on one queue.
#[derive(Clone, Debug, Default)]
pub struct Cohort {
    /// How many.
    pub counts: Counts,
    /// Their runtimes.
    pub runtimes: BTreeSet<String>,
    /// Versions of their SDKs.
    pub sdk_versions: BTreeSet<String>,
    /// When one of them was last heard of.
    pub last_heartbeat_at: Option<Timestamp>,
    /// When the first of them registered.
    pub first_seen_at: Option<Timestamp>,
    /// Workflow type → fingerprints that live workers name.
    pub fingerprints: BTreeMap<String, BTreeSet<String>>,
}

impl Cohort {
    fn add(&mut self, worker: &Registration, is_stale: bool) {
        let said = &worker.description;
        self.counts.add(worker.status, is_stale);
        self.runtimes.insert(said.runtime.clone());
        self.sdk_versions.extend(said.sdk_version.clone());
        self.last_heartbeat_at = self.last_heartbeat_at.max(Some(worker.last_heartbeat_at));
        let first = self.first_seen_at.unwrap_or(worker.registered_at);
        self.first_seen_at = Some(first.min(worker.registered_at));
        if !is_stale {
            for (workflow_type, fingerprint) in &said.fingerprints {
                let known = self.fingerprints.entry(workflow_type.clone()).or_default();
                known.insert(fingerprint.clone());
            }
        }
    }

    /// Definitions that the live workers name.
    pub fn fingerprint_count(&self) -> usize {
        self.fingerprints.values().map(BTreeSet::len).sum()
    }

    /// Workflow types that live workers define differently.
    pub fn conflicts(&self) -> Vec<&str> {
        self.fingerprints
            .iter()
            .filter(|(_, known)| known.len() > 1)
            .map(|(workflow_type, _)| workflow_type.as_str())
            .collect()
    }
}

/// The workers of a queue by build.
pub fn cohorts(
    workers: &[Registration],
    is_stale: impl Fn(&Registration) -> bool,
) -> BTreeMap<Build, Cohort> {
    let mut cohorts: BTreeMap<Build, Cohort> = BTreeMap::new();
    for worker in workers {
        let build = worker.description.build_id.clone();
        let cohort = cohorts.entry(build).or_default();
        cohort.add(worker, is_stale(worker));
    }
    cohorts
}

/// Why a build cannot be promoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blockage {
    /// Nobody has heard of the build on this queue.
    UnknownDeployment,
    /// The build drains, or all its live workers do.
    FleetIsDraining,
    /// It has no workers.
    NoCompatibleWorkers,
    /// Its workers have been silent for too long.
    MissingWorkerHeartbeat,
    /// Its live workers define a workflow type differently.
    FingerprintMismatch {
        /// The types.
        workflow_types: Vec<String>,
    },
    /// Its code could not replay the history of open runs.
    ReplaySafetyFailed {
        /// How many.
        runs: u64,
    },
}

/// Everything that stands against promoting a build, the most fundamental first. `unreplayable` is the
/// number of open runs whose history its code could not replay.
pub fn blockages(
    rollout: Option<&Rollout>,
    cohort: Option<&Cohort>,
    unreplayable: u64,
) -> Vec<Blockage> {
    if rollout.is_none() && cohort.is_none() {
        return vec![Blockage::UnknownDeployment];
    }
    let counts = cohort.map(|cohort| cohort.counts).unwrap_or_default();
    let standing = counts.standing();
    let mut found = Vec::new();
    if rollout.is_some_and(Rollout::is_draining) || standing == Standing::Draining {
        found.push(Blockage::FleetIsDraining);
    }
    match standing {
        Standing::NoWorkers => found.push(Blockage::NoCompatibleWorkers),
        Standing::StaleOnly => found.push(Blockage::MissingWorkerHeartbeat),
        _ => {}
    }
    let conflicts = cohort.map(Cohort::conflicts).unwrap_or_default();
    if !conflicts.is_empty() {
        found.push(Blockage::FingerprintMismatch {
            workflow_types: conflicts.into_iter().map(str::to_owned).collect(),
        });
    }
    if unreplayable > 0 {
        found.push(Blockage::ReplaySafetyFailed { runs: unreplayable });
    }
    found
}

/// How many workers of one build run a workflow type on a queue.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Queue.
    pub queue: Arc<str>,
    /// Workflow type.
    pub workflow_type: Arc<str>,
    /// Their build.
    pub build_id: Build,
    /// How many.
    pub counts: Counts,
}

/// Why a start is not routed anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartRefused {
    /// It names a build that drains; otherwise the type has only draining workers.
    pub is_pinned: bool,
    /// Workers that could run the type.
    pub counts: Counts,
    /// Builds of the queue that drain.
    pub draining: Vec<Build>,
}

/// The build that a new start is pinned to: the one that it names, or the promoted one.
pub fn pin(named: &Build, rollouts: &[Rollout]) -> Build {
    if named.is_some() {
        return named.clone();
    }
    rollouts
        .iter()
        .find(|rollout| rollout.selected)
        .and_then(|rollout| rollout.build_id.clone())
}

/// Whether a new start finds workers that may take it, now or later. A queue without any workers takes
/// every start: it waits for them.
///
/// # Errors
/// [`StartRefused`].
pub fn admit_start(
    named: &Build,
    rollouts: &[Rollout],
    serving: &[Serving],
) -> Result<(), StartRefused> {
    let draining: Vec<Build> = rollouts
        .iter()
        .filter(|rollout| rollout.is_draining())
        .map(|rollout| rollout.build_id.clone())
        .collect();
    let pinned = pin(named, rollouts);
    let mut counts = Counts::default();
    for row in serving {
        if pinned.is_none() || row.build_id == pinned {
            counts.active += row.counts.active;
            counts.draining += row.counts.draining;
            counts.stale += row.counts.stale;
        }
    }
    let is_pinned = named.is_some() && draining.contains(named);
    if is_pinned || (counts.active == 0 && counts.draining > 0) {
        return Err(StartRefused {
            is_pinned,
            counts,
            draining,
        });
    }
    Ok(())
}

/// Why no live worker may take a run of this type and pin; `None` when one may.
pub fn unserved(
    serving: &[Serving],
    queue: &str,
    kind: &str,
    pin: Option<&str>,
) -> Option<&'static str> {
    let mut any = Counts::default();
    let mut fitting = Counts::default();
    for row in serving {
        if *row.queue != *queue || *row.workflow_type != *kind {
            continue;
        }
        any.active += row.counts.active;
        if pin.is_none() || row.build_id.as_deref() == pin {
            fitting.active += row.counts.active;
            fitting.draining += row.counts.draining;
            fitting.stale += row.counts.stale;
        }
    }
    match (fitting.standing(), any.active) {
        (Standing::Active | Standing::ActiveWithDraining, _) => None,
        (Standing::Draining, _) => Some("workers_draining"),
        (_, 1..) if pin.is_some() => Some("build_not_served"),
        (Standing::StaleOnly, _) => Some("workers_stale"),
        _ => Some("no_active_workers"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn build(name: &str) -> Build {
        Some(name.into())
    }

    fn counts(active: u64, draining: u64, stale: u64) -> Counts {
        Counts {
            active,
            draining,
            stale,
        }
    }

    fn cohort(active: u64, draining: u64, stale: u64) -> Cohort {
        Cohort {
            counts: counts(active, draining, stale),
            ..Cohort::default()
        }
    }

    #[test]
    fn every_step_may_be_repeated() {
        let mut rollout = Rollout::new(build("b1"), at(1));
        rollout.promote(at(2));
        rollout.promote(at(3));
        assert_eq!((rollout.selected, rollout.promoted_at), (true, Some(at(2))));
        rollout.drain(at(4));
        rollout.drain(at(5));
        assert!(rollout.is_draining() && !rollout.selected);
        assert_eq!(rollout.drained_at, Some(at(4)));
        rollout.resume();
        rollout.resume();
        assert_eq!((rollout.drained_at, rollout.selected), (None, false));
        rollout.promote(at(6));
        assert_eq!(rollout.promoted_at, Some(at(6)));
        rollout.roll_back(at(7));
        rollout.roll_back(at(8));
        assert_eq!(rollout.rolled_back_at, Some(at(7)));
        rollout.promote(at(9));
        assert_eq!((rollout.rolled_back_at, rollout.selected), (None, true));
    }

    #[test]
    fn a_rollback_goes_to_the_build_before_it() {
        let promoted = |name: &str, seconds| {
            let mut rollout = Rollout::new(build(name), at(0));
            rollout.promote(at(seconds));
            rollout
        };
        let mut all = vec![promoted("a", 1), promoted("b", 2), promoted("c", 3)];
        let next =
            |all: &[Rollout]| before(all, &build("c")).and_then(|next| next.build_id.clone());
        assert_eq!(next(&all), build("b"));
        all[1].drain(at(4));
        assert_eq!(next(&all), build("a"));
        all[0].roll_back(at(5));
        assert_eq!(next(&all), None);
    }

    #[test]
    fn workers_stand_as_the_best_of_them() {
        for (counts, standing) in [
            (counts(1, 0, 1), Standing::Active),
            (counts(1, 1, 1), Standing::ActiveWithDraining),
            (counts(0, 1, 1), Standing::Draining),
            (counts(0, 0, 1), Standing::StaleOnly),
            (counts(0, 0, 0), Standing::NoWorkers),
        ] {
            assert_eq!(counts.standing(), standing, "{counts:?}");
        }
    }

    #[test]
    fn a_promotion_is_blocked_by_all_that_stands_against_it() {
        let known = Rollout::new(build("b1"), at(1));
        assert_eq!(blockages(None, None, 0), [Blockage::UnknownDeployment]);
        assert_eq!(
            blockages(Some(&known), None, 0),
            [Blockage::NoCompatibleWorkers]
        );
        assert_eq!(
            blockages(None, Some(&cohort(0, 0, 1)), 0),
            [Blockage::MissingWorkerHeartbeat]
        );
        assert_eq!(
            blockages(None, Some(&cohort(0, 1, 0)), 0),
            [Blockage::FleetIsDraining]
        );
        assert_eq!(blockages(None, Some(&cohort(1, 0, 0)), 0), []);
        let mut draining = known;
        draining.drain(at(2));
        let mut torn = cohort(1, 0, 0);
        let two = BTreeSet::from(["1".to_owned(), "2".to_owned()]);
        torn.fingerprints.insert("flow".to_owned(), two);
        assert_eq!(
            blockages(Some(&draining), Some(&torn), 3),
            [
                Blockage::FleetIsDraining,
                Blockage::FingerprintMismatch {
                    workflow_types: vec!["flow".to_owned()]
                },
                Blockage::ReplaySafetyFailed { runs: 3 },
            ]
        );
    }

    fn serving(name: Build, counts: Counts) -> Serving {
        Serving {
            queue: "q".into(),
            workflow_type: "flow".into(),
            build_id: name,
            counts,
        }
    }

    #[test]
    fn a_start_is_pinned_to_what_it_names_or_to_what_was_promoted() {
        let mut promoted = Rollout::new(build("b2"), at(1));
        promoted.promote(at(2));
        let rollouts = [Rollout::new(build("b1"), at(1)), promoted];
        assert_eq!(pin(&build("b1"), &rollouts), build("b1"));
        assert_eq!(pin(&None, &rollouts), build("b2"));
        assert_eq!(pin(&None, &rollouts[..1]), None);
    }

    #[test]
    fn a_start_is_refused_when_only_draining_workers_are_there() {
        let mut draining = Rollout::new(build("b1"), at(1));
        draining.drain(at(2));
        let rollouts = [draining];
        let only = [serving(build("b1"), counts(0, 1, 0))];
        let refused = admit_start(&None, &rollouts, &only).err();
        assert_eq!(
            refused.map(|refused| (refused.is_pinned, refused.counts, refused.draining)),
            Some((false, counts(0, 1, 0), vec![build("b1")]))
        );
        let other = [only[0].clone(), serving(None, counts(1, 0, 0))];
        assert_eq!(admit_start(&None, &rollouts, &other), Ok(()));
        assert_eq!(admit_start(&None, &rollouts, &[]), Ok(()));
        assert!(
            admit_start(&build("b1"), &rollouts, &other).is_err_and(|refused| refused.is_pinned)
        );
        assert_eq!(admit_start(&build("b2"), &rollouts, &other), Ok(()));
    }

    #[test]
    fn a_run_that_nobody_takes_says_why() {
        let fleet = [
            serving(None, counts(1, 0, 0)),
            serving(build("b1"), counts(0, 1, 0)),
            serving(build("b2"), counts(0, 0, 1)),
        ];
        let why = |kind, pin| unserved(&fleet, "q", kind, pin);
        assert_eq!(why("flow", None), None);
        assert_eq!(why("flow", Some("b1")), Some("workers_draining"));
        assert_eq!(why("flow", Some("b3")), Some("build_not_served"));
        assert_eq!(why("other", None), Some("no_active_workers"));
        assert_eq!(
            unserved(&fleet[2..], "q", "flow", None),
            Some("workers_stale")
        );
    }
}
