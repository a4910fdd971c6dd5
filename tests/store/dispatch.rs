//! The order of hand-outs in SQL: what a look finds and a choice takes against the same rule in memory,
//! hand-offs against claims, and looks at very many classes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold::domain::dispatch::{Candidate, Position, Shares, Window, pick};
use leasehold::domain::ids::{TaskId, WorkerId};
use leasehold::domain::routing::{Poller, Preferred, Profile, Routing, TaskKind};
use leasehold::domain::time::Timestamp;
use leasehold::matching::{QueueKey, Registry, Waiting, WorkerKey};
use leasehold::store::Store;
use leasehold::store::claim::claim;
use leasehold::store::dispatch::{After, Begin, Seen, look, take};

use crate::kit::*;
use crate::routing::{open, pollers, random_profile, random_routing};

const WORKERS: u64 = 6;

/// A routing with a class and a worker that keeps the run, or kept it.
fn any_routing(chance: &mut Dice, at: Timestamp) -> Routing {
    let mut routing = random_routing(chance);
    routing.session = None;
    if chance.below(3) > 0 {
        let class = chance.below(4);
        routing.fairness_key = Some(class.to_string().into());
        routing.fairness_weight = u16::try_from(1 + class * 7).unwrap();
    }
    if routing.kind == TaskKind::Workflow && chance.below(2) == 0 {
        let until = if chance.below(4) == 0 {
            Timestamp::from_micros(at.micros() - 1)
        } else {
            at.plus_seconds(600)
        };
        routing.preferred = kept_by(chance.below(WORKERS), until);
    }
    routing
}

fn kept_by(n: u64, until: Timestamp) -> Option<Box<Preferred>> {
    let worker = worker(n);
    Some(Box::new(Preferred { worker, until }))
}

fn worker(n: u64) -> WorkerId {
    WorkerId::from(format!("w-{n}"))
}

fn candidate(task: TaskId, routing: &Routing, ready_at: Timestamp, at: Timestamp) -> Candidate {
    let kept = routing.preferred.as_ref();
    Candidate {
        task,
        priority: routing.priority,
        class: routing.fairness_key.clone(),
        weight: routing.fairness_weight,
        ready_at,
        preferred: kept
            .filter(|kept| kept.until > at)
            .map(|kept| kept.worker.clone()),
    }
}

async fn see(
    store: &Store,
    kind: TaskKind,
    queue: &str,
    profile: &Profile,
    want: usize,
    after: Option<&After>,
) -> Seen {
    look(
        &store.hot,
        kind,
        &"default".into(),
        &queue.into(),
        profile,
        want,
        Begin {
            after,
            from: Position::START,
        },
    )
    .await
    .unwrap()
}

/// Takes what is chosen from a window, and says which poll got which task.
async fn serve(
    store: &Store,
    profile: &Profile,
    window: &Window,
    shares: &mut Shares,
    pollers: &[Poller],
) -> Vec<(TaskId, usize)> {
    let owners: Vec<&WorkerId> = pollers.iter().map(|poller| &poller.owner).collect();
    let picks = pick(shares, window, &owners);
    let chosen: Vec<_> = picks
        .iter()
        .map(|pick| (window.candidates[pick.candidate].task, &pollers[pick.poll]))
        .collect();
    let taken = take(&store.hot, profile, &chosen).await.unwrap();
    assert_eq!(taken.len(), chosen.len());
    for task in &taken {
        assert_eq!(task.task, chosen[task.poller].0);
    }
    for pick in &picks {
        shares.charge(window, *pick);
    }
    picks
        .iter()
        .map(|pick| (window.candidates[pick.candidate].task, pick.poll))
        .collect()
}

/// Rule: a claim hands out the tasks that the rule in memory hands out, in the same order and to the
/// same polls: by priority, by turns of the classes, to the workers that keep the runs. Random fleets
/// take turns at one backlog until nothing is left for any of them.
#[tokio::test(flavor = "multi_thread")]
async fn claims_follow_the_order_of_hand_outs() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut chance = Dice(11);
    let at = now();
    let mut left = open(&mut door, 400, || {
        // Some are not here yet.
        let time = match chance.below(9) {
            0 => at.plus_seconds(3_600),
            ago => Timestamp::from_micros(at.micros() - ago.cast_signed() * 300_000),
        };
        (any_routing(&mut chance, at), time)
    })
    .await;
    let whole = left.len();
    let mut clocks: BTreeMap<(i16, &str), Shares> = BTreeMap::new();
    let mut kept = 0;
    for _ in 0..300 {
        let kind = chance
            .pick(&[TaskKind::Workflow, TaskKind::Activity])
            .unwrap();
        let queue = chance.pick(&["q1", "q2"]).unwrap();
        let profile = random_profile(&mut chance);
        let fleet: Vec<Poller> = (0..1 + chance.below(8))
            .map(|_| Poller {
                owner: worker(chance.below(WORKERS)),
                poll_request_id: None,
                kinds: [kind].into(),
            })
            .collect();
        let shares = clocks.entry((kind.number(), queue)).or_default();
        let fitting: Vec<Candidate> = left
            .iter()
            .filter(|(_, task)| {
                let routing = &task.routing;
                routing.kind == kind
                    && routing.queue.as_str() == queue
                    && profile.may_take(routing)
                    && task.visible_at <= at
            })
            .map(|(id, task)| candidate(*id, &task.routing, task.visible_at, at))
            .collect();
        let model = Window {
            candidates: fitting,
            ..Window::default()
        };
        let owners: Vec<&WorkerId> = fleet.iter().map(|poller| &poller.owner).collect();
        let wanted: Vec<(TaskId, usize)> = pick(shares, &model, &owners)
            .iter()
            .map(|pick| (model.candidates[pick.candidate].task, pick.poll))
            .collect();
        let seen = see(&bench.store, kind, queue, &profile, fleet.len(), None).await;
        assert!(seen.window.is_whole(), "a look reaches all of it");
        let mut found = seen.window.candidates.clone();
        found.sort_by_key(|one| one.task);
        assert_eq!(found, model.candidates);
        let got = serve(&bench.store, &profile, &seen.window, shares, &fleet).await;
        assert_eq!(got, wanted, "{kind:?} {queue} {profile:?}");
        for (task, poll) in got {
            let routing = left.remove(&task).unwrap().routing;
            let owner = &fleet[poll].owner;
            kept += usize::from(routing.preferred.is_some_and(|one| one.worker == *owner));
        }
    }
    let taken = whole - left.len();
    println!("dispatch: {taken} tasks in the order of both rules, {kept} to who keeps the run");
    assert!(taken > whole / 2 && kept > 20);
    bench.end().await;
}

fn park(registry: &Arc<Registry>, key: &QueueKey, profile: &Profile, owner: &WorkerId) -> Waiting {
    let worker = WorkerKey {
        namespace: key.namespace.clone(),
        worker: owner.clone(),
    };
    let poller = Poller {
        owner: owner.clone(),
        poll_request_id: None,
        kinds: [key.kind].into(),
    };
    registry
        .park(vec![key.clone()], worker, 1, profile.clone(), poller)
        .unwrap()
}

/// Rule: a task that is handed over goes to the poll that a claim would give it to, and to none where
/// a claim would give it to none: the worker that keeps the run if it polls, else whoever waits longest.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_off_chooses_the_poll_that_a_claim_chooses() {
    const CASES: usize = 300;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut chance = Dice(23);
    let (mut given, mut kept) = (0, 0);
    for _ in 0..CASES {
        let at = now();
        let tasks = open(&mut door, 1, || {
            let mut routing = any_routing(&mut chance, at);
            if routing
                .preferred
                .as_ref()
                .is_some_and(|one| one.until <= at)
            {
                routing.preferred = None;
            }
            routing.needs &= 1;
            (routing, at)
        })
        .await;
        let (task, waiting) = tasks.into_iter().next().unwrap();
        let routing = waiting.routing;
        let key = QueueKey::from(&routing);
        let registry = Arc::new(Registry::default());
        let polls: Vec<(Profile, WorkerId)> = (0..chance.below(24))
            .map(|_| (random_profile(&mut chance), worker(chance.below(WORKERS))))
            .collect();
        let parked: Vec<Waiting> = polls
            .iter()
            .map(|(profile, owner)| park(&registry, &key, profile, owner))
            .collect();
        registry.saw(&key, false);
        let handed = registry
            .reserve(&routing, false)
            .map(|poll| poll.poller().owner.clone());
        // A claim is for polls that can take the same tasks; each of these can take this one.
        let able: Vec<Poller> = polls
            .iter()
            .filter(|(profile, _)| profile.may_take(&routing))
            .map(|(_, owner)| Poller {
                owner: owner.clone(),
                poll_request_id: None,
                kinds: [key.kind].into(),
            })
            .collect();
        let profile = Profile {
            types: vec![routing.task_type.to_string()].into(),
            build_id: routing.build_id.clone(),
            knows: -1,
        };
        let queue = routing.queue.as_str();
        let seen = see(&bench.store, key.kind, queue, &profile, able.len(), None).await;
        let shares = &mut Shares::default();
        let got = serve(&bench.store, &profile, &seen.window, shares, &able).await;
        let claimed = got.first().map(|(got, poll)| {
            assert_eq!(*got, task);
            able[*poll].owner.clone()
        });
        assert_eq!(handed, claimed, "{routing:?} {polls:?}");
        given += usize::from(handed.is_some());
        kept += usize::from(handed.is_some() && handed == routing.preferred.map(|one| one.worker));
        drop(parked);
        if claimed.is_none() {
            // The next case finds its own task only.
            let one = pollers(1, "last");
            serve(&bench.store, &profile, &seen.window, shares, &one).await;
        }
    }
    println!("dispatch: {given} of {CASES} tasks to the same poll, {kept} to who keeps the run");
    assert!(given > CASES / 4 && given < CASES && kept > 10);
    bench.end().await;
}

/// Rule: where tasks differ in priority or class, a new task is not handed over while older ones may
/// wait; where they are alike, or nothing is left, it is.
#[test]
fn a_hand_off_does_not_pass_a_backlog_that_has_an_order() {
    let key = QueueKey {
        kind: TaskKind::Workflow,
        namespace: "default".into(),
        queue: "q".into(),
    };
    let profile = Profile {
        types: vec!["greet".to_owned()].into(),
        build_id: None,
        knows: 0,
    };
    let decision = started("wf");
    let mut routing = decision.write.opened().next().unwrap().1.routing.clone();
    routing.preferred = kept_by(1, now().plus_seconds(60));
    let taken = |registry: &Arc<Registry>| {
        let poll = registry.reserve(&routing, false)?;
        let owner = poll.poller().owner.clone();
        assert_eq!(registry.put_back(poll).len(), 0, "no claim is called for");
        Some(owner)
    };
    for ordered in [true, false] {
        let registry = Arc::new(Registry::default());
        let one = park(&registry, &key, &profile, &worker(1));
        assert_eq!(taken(&registry), None, "nobody has looked yet");
        assert!(registry.wants_claim(&key));
        let (profile, polls) = registry.next_claim(&key, 9).unwrap();
        let two = park(&registry, &key, &profile, &worker(2));
        assert_eq!(taken(&registry), None, "the first look is under way");
        assert!(!registry.is_plain(&key), "who knows");
        registry.saw(&key, ordered);
        assert_eq!(registry.is_plain(&key), !ordered);
        registry.picky(&key, true);
        assert!(!registry.is_plain(&key), "some tasks wait for their own");
        registry.picky(&key, false);
        assert_eq!(registry.waiting(&key), 1, "one is spoken for");
        let wanted = (!ordered).then(|| worker(2));
        assert_eq!(taken(&registry), wanted, "a look is under way");
        // It found a task for each poll, and there may be more.
        registry.more(&key, &profile);
        drop(polls);
        let (_, polls) = registry.next_claim(&key, 9).unwrap();
        for poll in polls {
            let _ = registry.put_back(poll);
        }
        assert!(registry.next_claim(&key, 9).is_none());
        assert_eq!(taken(&registry), Some(worker(2)), "nothing is left");
        drop((one, two));
    }
}

/// Rule: claims of a queue come to an end when nothing is left, however many kinds of worker wait.
#[test]
fn very_many_profiles_are_looked_for_once() {
    const PROFILES: usize = 200;
    let key = QueueKey {
        kind: TaskKind::Workflow,
        namespace: "default".into(),
        queue: "q".into(),
    };
    let registry = Arc::new(Registry::default());
    let parked: Vec<Waiting> = (0..PROFILES)
        .map(|n| {
            let profile = Profile {
                types: vec![n.to_string()].into(),
                build_id: None,
                knows: 0,
            };
            park(&registry, &key, &profile, &worker(0))
        })
        .collect();
    assert!(registry.wants_claim(&key));
    let mut looks = 0;
    while let Some((_, polls)) = registry.next_claim(&key, 9) {
        looks += 1;
        assert!(looks <= PROFILES, "it claims for ever");
        for poll in polls {
            let _ = registry.put_back(poll);
        }
    }
    assert_eq!((looks, parked.len()), (PROFILES, PROFILES));
}

/// Rule: a queue with more classes than one look goes through serves the most urgent first, every class
/// in time, and a less urgent task only when nothing else is left.
#[tokio::test(flavor = "multi_thread")]
async fn very_many_classes_are_served_in_turn() {
    const CLASSES: usize = 600;
    const BATCH: usize = 40;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut n = 0;
    let at = now();
    let tasks = open(&mut door, 2 * CLASSES + 20, || {
        let mut routing = decided_routing();
        // Two of each class, then some that are more urgent or less, with a class or without.
        if n < 2 * CLASSES {
            routing.fairness_key = Some(format!("{}", n % CLASSES).into());
        } else {
            routing.priority = if n % 2 == 0 { 1 } else { 8 };
            routing.fairness_key = (n % 4 < 2).then(|| "z".into());
        }
        n += 1;
        (routing, at)
    })
    .await;
    let profile = Profile {
        types: vec!["greet".to_owned()].into(),
        build_id: None,
        knows: -1,
    };
    let polls = pollers(BATCH, "w");
    let (mut shares, mut after) = (Shares::default(), None);
    let mut order = Vec::new();
    let mut looks = 0;
    while order.len() < tasks.len() {
        let seen = see(
            &bench.store,
            TaskKind::Workflow,
            "q",
            &profile,
            BATCH,
            after.as_ref(),
        )
        .await;
        looks += 1;
        assert!(
            looks <= 3 * tasks.len() / BATCH,
            "{} after {looks} looks",
            order.len()
        );
        let got = serve(&bench.store, &profile, &seen.window, &mut shares, &polls).await;
        order.extend(got.into_iter().map(|(task, _)| task));
        after = seen.after;
    }
    let priorities: Vec<u8> = order
        .iter()
        .map(|task| tasks[task].routing.priority)
        .collect();
    assert!(priorities.is_sorted(), "{priorities:?}");
    let first: BTreeSet<_> = order[10..10 + CLASSES + CLASSES / 2]
        .iter()
        .map(|task| tasks[task].routing.fairness_key.clone())
        .collect();
    assert_eq!(first.len(), CLASSES, "every class was served");
    println!("dispatch: {CLASSES} classes served with {looks} looks");
    bench.end().await;
}

/// The routing of a plain workflow task.
fn decided_routing() -> Routing {
    let decision = started("any");
    decision.write.opened().next().unwrap().1.routing.clone()
}

/// Rule: while tasks with a fairness key are there, the claim by priority and age gives nothing and says
/// so; without them it says what else it saw.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_claim_leaves_classes_alone() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let profile = Profile {
        types: vec!["greet".to_owned()].into(),
        build_id: None,
        knows: -1,
    };
    let one = pollers(1, "w");
    let plain = async || {
        let (kind, namespace, queue) = (TaskKind::Workflow, "default".into(), "q".into());
        let hot = &bench.store.hot;
        claim(
            hot,
            kind,
            &namespace,
            &queue,
            &profile,
            &one,
            Position::START,
        )
        .await
        .unwrap()
    };
    let empty = plain().await;
    assert!(empty.claimed.is_empty() && !empty.classes);
    let mut kinds = [(None, 5, false), (None, 4, false), (None, 5, true)].into_iter();
    open(&mut door, 3, || {
        let (key, priority, kept) = kinds.next().unwrap();
        let mut routing = decided_routing();
        (routing.fairness_key, routing.priority) = (key, priority);
        routing.preferred = kept_by(0, now()).filter(|_| kept);
        (routing, Timestamp::from_micros(now().micros() - 1_000_000))
    })
    .await;
    let saw = async || {
        let plain = plain().await;
        (
            plain.claimed.len(),
            plain.classes,
            plain.priorities,
            plain.preferred,
        )
    };
    assert_eq!(saw().await, (1, false, true, false));
    let keyed = open(&mut door, 1, || {
        let mut routing = decided_routing();
        routing.fairness_key = Some("a".into());
        (routing, now())
    })
    .await;
    assert_eq!(saw().await, (0, true, false, false));
    let seen = see(&bench.store, TaskKind::Workflow, "q", &profile, 9, None).await;
    assert!(seen.classes && seen.window.is_whole());
    assert_eq!(seen.window.candidates.len(), 3);
    let task = *keyed.keys().next().unwrap();
    let taken = take(&bench.store.hot, &profile, &[(task, &one[0])])
        .await
        .unwrap();
    assert_eq!((taken.len(), taken[0].attempt), (1, 1));
    let again = take(&bench.store.hot, &profile, &[(task, &one[0])])
        .await
        .unwrap();
    assert!(again.is_empty(), "it is taken");
    assert!(!saw().await.1, "no classes are left");
    assert_eq!(saw().await.0, 1);
    bench.end().await;
}
