//! The order of hand-outs, over random backlogs.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use proptest::prelude::*;

use super::super::ids::RunId;
use super::*;

fn task(n: usize) -> TaskId {
    let low = u128::try_from(n).unwrap();
    TaskId {
        run: RunId::new(Timestamp::from_micros(0), low),
        no: 1,
    }
}

fn candidate(n: usize, priority: u8, class: Option<usize>, weight: u16, millis: u64) -> Candidate {
    Candidate {
        task: task(n),
        priority,
        class: class.map(|class| class.to_string().into()),
        weight,
        ready_at: Timestamp::from_micros(0).plus_millis(millis),
        preferred: None,
    }
}

fn whole(candidates: Vec<Candidate>) -> Window {
    Window {
        candidates,
        ..Window::default()
    }
}

fn workers(count: usize) -> Vec<WorkerId> {
    (0..count)
        .map(|n| WorkerId::from(format!("w{n}").as_str()))
        .collect()
}

fn by_age(candidate: &Candidate) -> (u8, Timestamp, TaskId) {
    (candidate.priority, candidate.ready_at, candidate.task)
}

/// Candidates of any priority, class, weight and age, and perhaps a worker that keeps the run.
fn candidates(classes: usize, kept: bool) -> impl Strategy<Value = Vec<Candidate>> {
    let one = (
        0u8..4,
        proptest::option::of(0..classes.max(1)),
        1u16..=1_000,
        0u64..4_000,
        proptest::option::of(0usize..6),
    );
    proptest::collection::vec(one, 0..60).prop_map(move |all| {
        all.into_iter()
            .enumerate()
            .map(|(n, (priority, class, weight, millis, worker))| {
                let class = class.filter(|_| classes > 0);
                Candidate {
                    preferred: worker
                        .filter(|_| kept)
                        .map(|worker| WorkerId::from(format!("w{worker}").as_str())),
                    ..candidate(n, priority, class, weight, millis)
                }
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Rule: without keys and kept runs the order is priority, readiness, id, and the longest waiting
    /// poll is served first.
    #[test]
    fn without_keys_the_order_is_by_priority_and_age(all in candidates(0, false), polls in 0usize..70) {
        let workers = workers(polls);
        let owners: Vec<&WorkerId> = workers.iter().collect();
        let window = whole(all);
        let picks = pick(&Shares::default(), &window, &owners);
        let mut wanted: Vec<_> = window.candidates.iter().map(by_age).collect();
        wanted.sort_unstable();
        wanted.truncate(polls);
        let got: Vec<_> = picks.iter().map(|pick| by_age(&window.candidates[pick.candidate])).collect();
        prop_assert_eq!(got, wanted);
        let places: Vec<usize> = picks.iter().map(|pick| pick.poll).collect();
        prop_assert_eq!(places, (0..picks.len()).collect::<Vec<_>>());
    }

    /// Rule: a more urgent task goes first, whatever its class and whoever keeps runs; each task and
    /// each poll is used once; nobody waits while there is something.
    #[test]
    fn priority_comes_first(all in candidates(5, true), polls in 0usize..70) {
        let workers = workers(polls);
        let owners: Vec<&WorkerId> = workers.iter().collect();
        let window = whole(all);
        let picks = pick(&Shares::default(), &window, &owners);
        prop_assert_eq!(picks.len(), polls.min(window.candidates.len()));
        let priorities: Vec<u8> = picks.iter().map(|pick| window.candidates[pick.candidate].priority).collect();
        prop_assert!(priorities.is_sorted());
        let taken: BTreeSet<usize> = picks.iter().map(|pick| pick.candidate).collect();
        let used: BTreeSet<usize> = picks.iter().map(|pick| pick.poll).collect();
        prop_assert_eq!((taken.len(), used.len()), (picks.len(), picks.len()));
        let last = priorities.last().copied().unwrap_or(0);
        let left_over = window.candidates.iter().enumerate().filter(|(place, _)| !taken.contains(place));
        for (_, candidate) in left_over {
            prop_assert!(candidate.priority >= last);
        }
    }

    /// Rule: over any stretch in which two classes of one priority always have something ready, what
    /// each was given, divided by its weight, differs by no more than 1/w + 1/v. So a class waits for
    /// no more than 1 + v/w hand-outs of each other class. This holds whatever part of the backlog a
    /// look shows, and however many polls it is for.
    #[test]
    fn classes_share_by_weight(
        weights in proptest::collection::vec(1u16..=20, 2..7),
        batches in proptest::collection::vec((1usize..40, 1usize..20), 1..60),
        before in proptest::collection::vec(0usize..7, 0..40),
        from in 0usize..200,
    ) {
        let mut shares = Shares::default();
        let of = |n: usize, class: usize, weights: &[u16]| {
            candidate(n, 5, (class > 0).then_some(class), weights[class], 0)
        };
        for class in before {
            let window = whole(vec![of(0, class % weights.len(), &weights)]);
            let one = workers(1);
            for pick in pick(&shares, &window, &[&one[0]]) {
                shares.charge(&window, pick);
            }
        }
        let mut given: Vec<usize> = Vec::new();
        for (polls, depth) in batches {
            let workers = workers(polls);
            let mut left: Vec<&WorkerId> = workers.iter().collect();
            while !left.is_empty() {
                let all = (0..weights.len() * depth).map(|n| of(n, n % weights.len(), &weights));
                let mut window = whole(all.collect());
                window.cut = window.candidates.iter().map(|one| (5, one.class.clone())).collect();
                let picks = pick(&shares, &window, &left);
                prop_assert!(!picks.is_empty());
                for pick in picks {
                    given.push(pick.candidate % weights.len());
                    shares.charge(&window, pick);
                    left.pop();
                }
            }
        }
        let mut counts = vec![0u64; weights.len()];
        for class in given.iter().skip(from) {
            counts[*class] += 1;
            for (f, n) in counts.iter().enumerate() {
                for (g, m) in counts.iter().enumerate() {
                    let (w, v) = (u64::from(weights[f]), u64::from(weights[g]));
                    prop_assert!((n * v).abs_diff(m * w) <= w + v, "{:?} of {:?}", counts, weights);
                }
            }
        }
    }

    /// Rule: a worker that keeps a run and polls is given its task before others of the class and
    /// priority that became ready at most `OVERTAKE_MS` before it, and never before an older one.
    #[test]
    fn kept_runs_overtake_for_a_moment_only(all in candidates(3, true), poll in 0usize..6) {
        let worker = WorkerId::from(format!("w{poll}").as_str());
        let window = whole(all);
        let picks = pick(&Shares::default(), &window, &[&worker]);
        prop_assert_eq!(picks.is_empty(), window.candidates.is_empty());
        for pick in picks {
            let got = &window.candidates[pick.candidate];
            let of_class = || window.candidates.iter()
                .filter(|one| (one.priority, &one.class) == (got.priority, &got.class));
            let head = of_class().min_by_key(|one| by_age(one)).unwrap();
            let last = head.ready_at.plus_millis(OVERTAKE_MS);
            let wanted = of_class()
                .filter(|one| one.ready_at <= last && one.preferred.as_ref() == Some(&worker))
                .min_by_key(|one| by_age(one))
                .unwrap_or(head);
            prop_assert_eq!(got, wanted);
        }
    }
}

/// Rule: what a look did not reach is never passed over: its class keeps its turn, and its priority
/// its rank.
#[test]
fn a_cut_window_ends_the_choice() {
    let all = vec![
        candidate(0, 1, Some(1), 1, 0),
        candidate(1, 1, Some(2), 1, 0),
        candidate(2, 1, Some(2), 1, 0),
        candidate(3, 1, Some(2), 1, 0),
        candidate(4, 7, None, 1, 0),
    ];
    let workers = workers(9);
    let owners: Vec<&WorkerId> = workers.iter().collect();
    let picked = |window: &Window| -> Vec<usize> {
        let picks = pick(&Shares::default(), window, &owners);
        picks.iter().map(|pick| pick.candidate).collect()
    };
    let mut window = whole(all);
    assert_eq!(picked(&window), [0, 1, 2, 3, 4]);
    window.through = Some(1);
    assert_eq!(picked(&window), [0, 1, 2, 3]);
    window.cut = [(1, Some("1".into()))].into();
    assert_eq!(picked(&window), [0, 1]);
    window.leave_out(|left| left == task(0));
    assert_eq!(window.candidates.len(), 4);
    assert_eq!(picked(&window), [0, 1, 2]);
}

/// Rule: a worker that keeps a run and waits is given its task, also by a claim for many polls; the
/// others go round by their age.
#[test]
fn each_kept_run_goes_to_its_worker() {
    let mut all: Vec<Candidate> = (0..4).map(|n| candidate(n, 5, None, 1, n as u64)).collect();
    let workers = workers(4);
    all[3].preferred = Some(workers[0].clone());
    all[2].preferred = Some("gone".into());
    let owners: Vec<&WorkerId> = workers.iter().collect();
    let picks = pick(&Shares::default(), &whole(all), &owners);
    let pairs: Vec<_> = picks.iter().map(|one| (one.candidate, one.poll)).collect();
    assert_eq!(pairs, [(3, 0), (0, 1), (1, 2), (2, 3)]);
}

#[test]
fn the_memory_of_classes_is_bounded() {
    let mut clocks = Clocks::default();
    for class in 0..3 * CLASSES_KEPT {
        clocks.charge(&Some(class.to_string().into()), 1_000);
        assert!(clocks.ends.len() <= CLASSES_KEPT);
    }
}
