//! Who is given what: the claim statement against the same rule in memory, the order of claims, and
//! many claimers at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leasehold::domain::decision::Decision;
use leasehold::domain::ids::{TaskId, WorkerId};
use leasehold::domain::routing::{Poller, Profile, Routing, TaskKind};
use leasehold::domain::session::Options;
use leasehold::domain::time::Timestamp;
use leasehold::store::claim::{Claimed, claim};
use leasehold::store::lease::{self, Lost, Which};
use leasehold::store::sessions::{self, Seekers};
use leasehold::store::{PoolSizes, Store};
use sqlx::PgConnection;

use crate::kit::*;

/// Few bits, and now and then the sign.
fn bits(chance: &mut Dice) -> i64 {
    let low = (chance.roll() & chance.roll() & 0b1111).cast_signed();
    if chance.below(8) == 0 {
        low | i64::MIN
    } else {
        low
    }
}

pub fn one_of<T: Clone>(chance: &mut Dice, from: &[T]) -> T {
    chance.pick(from).unwrap()
}

const KINDS: [TaskKind; 2] = [TaskKind::Workflow, TaskKind::Activity];
const QUEUES: [&str; 2] = ["q1", "q2"];
const TYPES: [&str; 4] = ["a", "b", "B", "c"];
const BUILDS: [Option<&str>; 3] = [None, Some("1"), Some("2")];

/// A session that a task asks for.
pub fn session(id: &str, requirements: &[&str]) -> Arc<Options> {
    Arc::new(Options {
        session_id: id.into(),
        connection: None,
        queue: None,
        requirements: requirements
            .iter()
            .map(|&needed| needed.to_owned())
            .collect(),
        lease_seconds: 60,
        ttl_seconds: 600,
        max_concurrent_activities: 2,
        create_if_missing: true,
        allow_reacquire_after_failure: true,
    })
}

pub fn random_routing(chance: &mut Dice) -> Routing {
    let kind = one_of(chance, &KINDS);
    let in_session = kind == TaskKind::Activity && chance.below(4) == 0;
    Routing {
        kind,
        namespace: "default".into(),
        queue: one_of(chance, &QUEUES).into(),
        task_type: one_of(chance, &TYPES).into(),
        priority: u8::try_from(chance.below(4)).unwrap(),
        fairness_key: None,
        fairness_weight: 1,
        build_id: one_of(chance, &BUILDS).map(Arc::from),
        needs: bits(chance),
        session: in_session.then(|| {
            let id = chance.below(20);
            session(
                &id.to_string(),
                one_of(chance, &[&[][..], &["gpu"], &["gpu", "disk"]]),
            )
        }),
        preferred: None,
    }
}

pub fn random_profile(chance: &mut Dice) -> Profile {
    let types: Vec<String> = TYPES
        .iter()
        .filter(|_| chance.below(2) == 0)
        .map(|kind| (*kind).to_owned())
        .collect();
    Profile {
        types: types.into(),
        build_id: one_of(chance, &BUILDS).map(Arc::from),
        knows: bits(chance),
    }
}

pub struct Waiting {
    pub routing: Routing,
    pub visible_at: Timestamp,
}

/// Opens tasks that are routed like this, one run each.
pub async fn open(
    door: &mut PgConnection,
    count: usize,
    mut routing: impl FnMut() -> (Routing, Timestamp),
) -> BTreeMap<TaskId, Waiting> {
    let mut tasks = BTreeMap::new();
    let mut decisions: Vec<Decision> = Vec::new();
    for _ in 0..count {
        let mut decision = started(&uuid::Uuid::new_v4().to_string());
        let no = open_task(&decision.write.next);
        let task = decision.write.effects.opened_mut(no).unwrap();
        (task.routing, task.available_at) = routing();
        let waiting = Waiting {
            routing: task.routing.clone(),
            visible_at: task.available_at,
        };
        tasks.insert(
            TaskId {
                run: decision.run_id(),
                no,
            },
            waiting,
        );
        decisions.push(decision);
    }
    for batch in decisions.chunks_mut(100) {
        for outcome in put(door, batch.iter_mut().collect()).await {
            assert_committed(outcome);
        }
    }
    tasks
}

pub fn pollers(count: usize, name: &str) -> Vec<Poller> {
    (0..count)
        .map(|n| Poller {
            owner: WorkerId::from(format!("{name}-{n}")),
            poll_request_id: Some(format!("poll-{n}").into()),
            kinds: KINDS.into(),
        })
        .collect()
}

pub async fn claim_on(
    store: &Store,
    kind: TaskKind,
    queue: &str,
    profile: &Profile,
    pollers: &[Poller],
) -> Vec<Claimed> {
    let mut claimed = claim(
        &store.hot,
        kind,
        &"default".into(),
        &queue.into(),
        profile,
        pollers,
        leasehold::domain::dispatch::Position::START,
    )
    .await
    .expect("a claim")
    .claimed;
    claimed.sort_by_key(|claimed| claimed.poller);
    claimed
}

async fn give_all_back(store: &Store, claimed: &[Claimed], pollers: &[Poller]) {
    let lost: Vec<Lost> = claimed
        .iter()
        .map(|claimed| Lost {
            task: claimed.task,
            owner: pollers[claimed.poller].owner.clone(),
            attempt: claimed.attempt,
            delay_ms: 0,
            granted_by: None,
        })
        .collect();
    let places = lease::give_back(&store.hot, Which::Named, &lost)
        .await
        .unwrap();
    assert_eq!(places.len(), claimed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_what_its_profile_may_take_and_nothing_else() {
    const CASES: usize = 200;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut chance = Dice(1);
    let tasks = open(&mut door, 120, || (random_routing(&mut chance), now())).await;
    let mut chance = Dice(1);
    let polls = pollers(tasks.len(), "w");
    let mut taken = 0;
    for _ in 0..CASES {
        let (kind, queue, profile) = (
            one_of(&mut chance, &KINDS),
            one_of(&mut chance, &QUEUES),
            random_profile(&mut chance),
        );
        let wanted: BTreeSet<TaskId> = tasks
            .iter()
            .filter(|(_, task)| {
                task.routing.kind == kind
                    && task.routing.queue.as_str() == queue
                    && task.routing.session.is_none()
                    && profile.may_take(&task.routing)
            })
            .map(|(task, _)| *task)
            .collect();
        let claimed = claim_on(&bench.store, kind, queue, &profile, &polls).await;
        let found: BTreeSet<TaskId> = claimed.iter().map(|claimed| claimed.task).collect();
        assert_eq!(found, wanted, "{kind:?} {queue} {profile:?}");
        assert_eq!(found.len(), claimed.len());
        taken += found.len();
        give_all_back(&bench.store, &claimed, &polls).await;
    }
    println!("routing: {CASES} profiles, {taken} tasks taken by both rules");
    assert!(taken > CASES);
    bench.end().await;
}

/// Rule: the claim of plain tasks leaves those of sessions, and the look for those finds them by the
/// same rule of types, build and features, with what their sessions require and at most as many of
/// each as it has room for.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_sessions_are_looked_for_by_the_same_rule() {
    const CASES: usize = 200;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut chance = Dice(7);
    let tasks = open(&mut door, 200, || {
        let mut routing = random_routing(&mut chance);
        routing.kind = TaskKind::Activity;
        let id = chance.below(20);
        let needed: &[&str] = one_of(&mut chance, &[&[][..], &["gpu"], &["gpu", "disk"]]);
        routing.session = Some(session(&id.to_string(), needed));
        (routing, now())
    })
    .await;
    let mut found_in_all = 0;
    for _ in 0..CASES {
        let (queue, profile) = (one_of(&mut chance, &QUEUES), random_profile(&mut chance));
        let capabilities: &[&str] = one_of(
            &mut chance,
            &[&[][..], &["gpu"], &["disk"], &["disk", "gpu"]],
        );
        let mut wanted: BTreeMap<Arc<str>, Vec<_>> = BTreeMap::new();
        for (id, task) in &tasks {
            let routing = &task.routing;
            let asked = routing.session.as_ref().unwrap();
            let can = |needed: &String| capabilities.contains(&needed.as_str());
            if routing.queue.as_str() == queue
                && profile.may_take(routing)
                && asked.requirements.iter().all(can)
            {
                let place = (routing.priority, task.visible_at, *id);
                let of_session = wanted.entry(Arc::clone(&asked.session_id)).or_default();
                of_session.push(place);
            }
        }
        let mut wanted: Vec<_> = wanted
            .into_values()
            .flat_map(|mut of_session| {
                of_session.sort_unstable();
                of_session.truncate(2);
                of_session
            })
            .collect();
        wanted.sort_unstable();
        let seekers = Seekers {
            profile: &profile,
            workers: &["w"],
            capabilities,
        };
        let found = sessions::candidates(
            &bench.store.hot,
            &"default".into(),
            &queue.into(),
            &seekers,
            60,
            1_000,
        )
        .await
        .unwrap();
        let found: Vec<TaskId> = found.iter().map(|candidate| candidate.task).collect();
        let wanted: Vec<TaskId> = wanted.into_iter().map(|(_, _, id)| id).collect();
        assert_eq!(found, wanted, "{queue} {capabilities:?} {profile:?}");
        found_in_all += found.len();
        let polls = pollers(tasks.len(), "w");
        let claimed = claim_on(&bench.store, TaskKind::Activity, queue, &profile, &polls).await;
        assert!(claimed.is_empty(), "a plain claim took a task of a session");
    }
    assert!(found_in_all > CASES, "{found_in_all}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_urgent_and_longest_waiting_come_first_and_nothing_before_its_time() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut chance = Dice(1);
    let at = now();
    let tasks = open(&mut door, 90, || {
        let mut routing = random_routing(&mut chance);
        routing.kind = TaskKind::Activity;
        routing.session = None;
        routing.queue = "q".into();
        routing.task_type = "a".into();
        routing.build_id = None;
        routing.needs = 0;
        // Some times are equal, and some are not here yet.
        let ago = chance.below(9);
        let time = if ago < 2 {
            at.plus_seconds(3_600)
        } else {
            Timestamp::from_micros(at.micros() - ago.cast_signed() * 1_000_000)
        };
        (routing, time)
    })
    .await;
    let mut wanted: Vec<_> = tasks
        .iter()
        .filter(|(_, task)| task.visible_at <= at)
        .map(|(id, task)| (task.routing.priority, task.visible_at, *id))
        .collect();
    wanted.sort_unstable();
    assert!(wanted.len() < tasks.len());
    let profile = Profile {
        types: vec!["a".to_owned()].into(),
        build_id: None,
        knows: 0,
    };
    let mut found = Vec::new();
    for size in [1, 2, 7, 30, 100] {
        let polls = pollers(size, &size.to_string());
        let claimed = claim_on(&bench.store, TaskKind::Activity, "q", &profile, &polls).await;
        for (place, claimed) in claimed.iter().enumerate() {
            assert_eq!(claimed.poller, place, "the first polls are served first");
            assert_eq!(claimed.attempt, 1);
            let poll: String =
                sqlx::query_scalar("select poll_request_id from tasks where run_id = $1")
                    .bind(claimed.task.run.to_string())
                    .fetch_one(&mut door)
                    .await
                    .unwrap();
            assert_eq!(poll, format!("poll-{place}"));
        }
        found.extend(claimed.iter().map(|claimed| claimed.task));
    }
    assert_eq!(
        found,
        wanted.iter().map(|(_, _, task)| *task).collect::<Vec<_>>()
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_never_give_one_task_twice() {
    const TASKS: usize = 400;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut chance = Dice(1);
    let tasks = open(&mut door, TASKS, || {
        let mut routing = random_routing(&mut chance);
        routing.kind = TaskKind::Workflow;
        routing.session = None;
        routing.queue = "q".into();
        (routing, now())
    })
    .await;
    let profile = Profile {
        types: TYPES.map(str::to_owned).to_vec().into(),
        build_id: Some("1".into()),
        knows: -1,
    };
    let wanted: BTreeSet<TaskId> = tasks
        .iter()
        .filter(|(_, task)| profile.may_take(&task.routing))
        .map(|(task, _)| *task)
        .collect();
    let other = Store::new(bench.db.options.clone(), PoolSizes { reads: 1, hot: 4 });
    let mut claimers = tokio::task::JoinSet::new();
    for n in 0..6 {
        let store = if n % 2 == 0 {
            bench.store.clone()
        } else {
            other.clone()
        };
        let profile = profile.clone();
        claimers.spawn(async move {
            let mut found = Vec::new();
            let mut empty = 0;
            // A claim that skips what others hold may come back with nothing although something is left.
            while empty < 3 {
                let polls = pollers(1 + n, &format!("node-{n}"));
                let claimed = claim_on(&store, TaskKind::Workflow, "q", &profile, &polls).await;
                empty = if claimed.is_empty() { empty + 1 } else { 0 };
                for claimed in claimed {
                    assert_eq!(claimed.attempt, 1);
                    found.push((claimed.task, polls[claimed.poller].owner.to_string()));
                }
            }
            found
        });
    }
    let mut found = Vec::new();
    while let Some(claimed) = claimers.join_next().await {
        found.extend(claimed.unwrap());
    }
    let once: BTreeMap<TaskId, String> = found.iter().cloned().collect();
    assert_eq!(once.len(), found.len(), "a task was given twice");
    assert_eq!(once.keys().copied().collect::<BTreeSet<_>>(), wanted);
    for (task, owner) in once {
        assert_eq!(holder(&mut door, task).await, Some((owner, 1)));
    }
    other.close().await;
    bench.end().await;
}
