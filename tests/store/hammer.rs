//! The hammer: many connections write random batches of decisions about the same few runs, while
//! others claim, renew and take leases away. Afterwards every row must be explained by exactly the
//! items that were accepted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use leasehold::domain::decision::{Claim, Decision, TaskEffect};
use leasehold::domain::dispatch::Position;
use leasehold::domain::ids::{RunId, TaskId, TaskNo, WorkerId};
use leasehold::domain::lease::Hold;
use leasehold::domain::routing::{Poller, Profile, TaskKind};
use leasehold::domain::run::{
    CloseRequest, Input, ObservedLease, Overdue, OverdueKind, RunState, Settings, TaskFailure,
    Verdict, WorkflowTaskReport, decide,
};
use leasehold::store::commit::{self, Outcome};
use leasehold::store::door::{DOOR, Door};
use leasehold::store::item::Item;
use leasehold::store::lease::{Lost, Renewal, Which};
use leasehold::store::{claim, lease};
use sqlx::{Connection, PgConnection};

use crate::kit::*;

/// How hard to hammer.
#[derive(Clone, Copy)]
pub struct Force {
    pub connections: u64,
    pub statements: usize,
    pub runs_per_statement: usize,
    pub starts_per_statement: usize,
    /// The youngest runs and leases, which everybody is after.
    pub near: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Tally {
    pub accepted: usize,
    pub refused: usize,
    pub claimed: usize,
    pub given_back: usize,
    pub runs: usize,
}

/// A lease as the hammer knows it.
#[derive(Clone, Debug)]
struct Lease {
    owner: String,
    attempt: u32,
    /// It is to run out at once, and has certainly done so a moment after this.
    lapses: Option<Instant>,
}

/// A lease of a millisecond began before its statement was answered, which is when its moment is
/// taken; after this it is over for certain. Much more, and a fast hammer would never meet one.
const LAPSED_AFTER: Duration = Duration::from_millis(10);

impl Lease {
    fn has_lapsed(&self) -> bool {
        self.lapses
            .is_some_and(|since| since.elapsed() > LAPSED_AFTER)
    }
}

/// An item as it was given to the door.
struct Entry {
    run: RunId,
    base: u64,
    accepted: bool,
    /// A fence of it cannot hold.
    hopeless: Option<&'static str>,
    /// The hand-out that it ends.
    ends: Option<(TaskId, u32)>,
    started: Option<String>,
    key: Option<String>,
    created: Vec<RunId>,
}

#[derive(Default)]
struct World {
    runs: BTreeMap<RunId, RunState>,
    leases: HashMap<TaskId, Lease>,
    /// Tasks whose leases run out at once.
    short: HashSet<TaskId>,
    closed: HashSet<TaskId>,
    log: Vec<Entry>,
    given_back: HashSet<(TaskId, u32)>,
    claimed: usize,
    workflows: u64,
    broken: Option<String>,
}

struct Shared {
    world: Mutex<World>,
    over: AtomicBool,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    fn break_off(&self, why: String) {
        self.world().broken.get_or_insert(why);
        self.over.store(true, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

/// Hammers a database of its own with this text of the door.
///
/// # Errors
/// The first thing that was not as it must be.
pub async fn hammer(through: &'static Door, force: Force, seed: u64) -> Result<Tally, String> {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    let name = column(&mut admin, "select current_database()::text")
        .await
        .remove(0);
    // Deadlocks are to show, not to cost time.
    execute(
        &mut admin,
        &format!("alter database {name} set deadlock_timeout = '20ms'"),
    )
    .await;
    let shared = Arc::new(Shared {
        world: Mutex::default(),
        over: AtomicBool::new(false),
    });
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..force.connections {
        let door = bench.door().await;
        writers.spawn(write(
            Arc::clone(&shared),
            door,
            through,
            force,
            n,
            Dice(seed + n),
        ));
    }
    let mut others = tokio::task::JoinSet::new();
    others.spawn(hand_out_backlog(
        Arc::clone(&shared),
        bench.store.hot.clone(),
    ));
    others.spawn(renew(
        Arc::clone(&shared),
        bench.store.hot.clone(),
        force.near,
        Dice(seed + 100),
    ));
    others.spawn(take_away(
        Arc::clone(&shared),
        bench.store.hot.clone(),
        force.near,
        Dice(seed + 200),
    ));
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    shared.over.store(true, Ordering::SeqCst);
    while let Some(done) = others.join_next().await {
        done.unwrap();
    }
    // Its statistics are complete once the sessions have ended.
    bench.store.hot.close().await;
    let verdict = judge(&shared, &bench, &mut admin).await;
    admin.close().await.unwrap();
    bench.end().await;
    verdict
}

async fn write(
    shared: Arc<Shared>,
    mut door: PgConnection,
    written_through: &'static Door,
    force: Force,
    me: u64,
    mut dice: Dice,
) {
    for _ in 0..force.statements {
        if shared.is_over() {
            break;
        }
        let mut decisions = random_decisions(&shared, force, me, &mut dice);
        let items: Vec<Item> = decisions
            .iter_mut()
            .map(|(decision, _)| item(decision))
            .collect();
        let outcomes = commit::commit_with(&mut door, written_through, &items).await;
        for ((decision, entry), outcome) in decisions.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Committed(_) => accept(&shared, decision, entry),
                Outcome::Refused => shared.world().log.push(entry),
                other => return shared.break_off(format!("an item came back as {other:?}")),
            }
        }
    }
    // Its statistics are complete once the session has ended.
    door.close().await.unwrap();
}

/// A batch: a run at most once, a workflow id and a key at most once.
fn random_decisions(
    shared: &Shared,
    force: Force,
    me: u64,
    dice: &mut Dice,
) -> Vec<(Decision, Entry)> {
    let mut decisions = Vec::new();
    let (mut known, next_workflow) = {
        let world = shared.world();
        let open: Vec<RunState> = world.runs.values().cloned().collect();
        (open, world.workflows)
    };
    let mut workflows = BTreeSet::new();
    for _ in 0..force.starts_per_statement {
        // Some are taken, most are wanted by others at the same time.
        let near = dice.below(2 * force.starts_per_statement as u64);
        let workflow = format!("wf-{:06}", (next_workflow + near).saturating_sub(3));
        if workflows.insert(workflow.clone()) {
            let mut asked = request(&workflow);
            asked.run_timeout_seconds = dice.percent(50).then_some(3_600);
            let decision = started_with(asked);
            let mut entry = Entry::of(&decision, None, None);
            entry.started = Some(workflow);
            decisions.push((decision, entry));
        }
    }
    for _ in 0..force.runs_per_statement {
        if known.is_empty() {
            break;
        }
        // The youngest runs are the ones that everybody writes.
        let near = known.len().min(force.near) as u64;
        let place = known.len() - 1 - usize::try_from(dice.below(near)).unwrap();
        let state = known.remove(place);
        if let Some(decision) = random_decision(shared, &state, me, dice) {
            decisions.push(decision);
        }
    }
    for (decision, _) in &mut decisions {
        maybe_hand_out(decision, me, dice);
    }
    decisions
}

impl Entry {
    fn of(
        decision: &Decision,
        hopeless: Option<&'static str>,
        ends: Option<(TaskId, u32)>,
    ) -> Self {
        Self {
            run: decision.run_id(),
            base: decision.write.base,
            accepted: false,
            hopeless,
            ends,
            started: None,
            key: match &decision.claim {
                Some(Claim::Request(key)) => {
                    Some(format!("{} {}", key.workflow_id, key.request_id))
                }
                _ => None,
            },
            created: decision.created.iter().map(|write| write.next.id).collect(),
        }
    }
}

/// Something that the run can be asked, on the state that is known of it.
fn random_decision(
    shared: &Shared,
    state: &RunState,
    me: u64,
    dice: &mut Dice,
) -> Option<(Decision, Entry)> {
    if state.close.is_some() {
        let request = CloseRequest {
            reason: None,
            request_id: None,
            lease: ObservedLease::Unknown,
        };
        return simple(state, Input::Archive(request));
    }
    match dice.below(10) {
        0 => {
            let key = format!("key-{}", dice.below(4));
            let request_id = dice.percent(80).then_some(key.as_str());
            let signalled = try_decide(state, signal("go", request_id)).ok()??;
            // With the report of a worker that cannot hold the task, so that only the lease fails.
            if request_id.is_some()
                && dice.percent(30)
                && signalled.write.next.workflow_task.is_some()
            {
                let next = &signalled.write.next;
                let input = completion(next, open_task(next), "nobody", 1, vec![timer(3_600)]);
                let completed = try_decide(next, input).ok()??;
                let decision = signalled.then(completed);
                let entry = Entry::of(&decision, Some("nobody holds it"), None);
                return Some((decision, entry));
            }
            let entry = Entry::of(&signalled, None, None);
            Some((signalled, entry))
        }
        1 if !state.timers.is_empty() => {
            let step = dice.pick(&state.timers.keys().copied().collect::<Vec<_>>())?;
            let input = Input::TimersDue {
                keys: vec![user_timer(step)],
                lease: ObservedLease::Unknown,
            };
            // An hour later, as far as the decision knows.
            match decide(
                state,
                input,
                now().plus_seconds(3_600),
                &Settings::default(),
            ) {
                Ok(Verdict::Commit(decision, _)) => {
                    let entry = Entry::of(&decision, None, None);
                    Some((*decision, entry))
                }
                _ => None,
            }
        }
        2 => close(shared, state, dice),
        _ => report(shared, state, me, dice),
    }
}

fn simple(state: &RunState, input: Input) -> Option<(Decision, Entry)> {
    let decision = try_decide(state, input).ok()??;
    let entry = Entry::of(&decision, None, None);
    Some((decision, entry))
}

fn leases_of(shared: &Shared, state: &RunState) -> Vec<(TaskNo, Option<Lease>)> {
    let world = shared.world();
    let activities = state.activities.keys().copied();
    let workflow = state.workflow_task.as_ref().map(|task| task.no);
    activities
        .chain(workflow)
        .map(|no| {
            let task = TaskId { run: state.id, no };
            (no, world.leases.get(&task).cloned())
        })
        .collect()
}

/// A cancel, fenced on the lease that was seen or on what nobody has seen.
fn close(shared: &Shared, state: &RunState, dice: &mut Dice) -> Option<(Decision, Entry)> {
    let no = state.workflow_task.as_ref()?.no;
    let task = TaskId { run: state.id, no };
    let lease = shared.world().leases.get(&task).cloned();
    // A lease that seemed run out is fenced on its hand-out alone.
    let live = dice.below(2) == 0;
    let held = |owner: &str, attempt| ObservedLease::Held {
        owner: WorkerId::from(owner),
        attempt,
        live,
        knows: i64::MAX,
    };
    let (seen, hopeless) = match (lease, dice.below(3)) {
        (Some(lease), 0) => (
            held("nobody", lease.attempt),
            Some("seen with another worker"),
        ),
        (Some(lease), 1) => (
            held(&lease.owner, lease.attempt + 50),
            Some("seen with another hand-out"),
        ),
        (Some(lease), _) => (held(&lease.owner, lease.attempt), None),
        (None, _) => (ObservedLease::Free, None),
    };
    let request = CloseRequest {
        reason: None,
        request_id: None,
        lease: seen,
    };
    let decision = try_decide(state, Input::Cancel(request)).ok()??;
    let entry = Entry::of(&decision, hopeless, None);
    Some((decision, entry))
}

/// A worker's report on one of the run's tasks, true or not.
fn report(
    shared: &Shared,
    state: &RunState,
    me: u64,
    dice: &mut Dice,
) -> Option<(Decision, Entry)> {
    let (no, lease) = dice.pick(&leases_of(shared, state))?;
    let task = TaskId { run: state.id, no };
    let Some(lease) = lease else {
        // Nobody holds it, as far as is known; a cancel that relies on that may be right.
        return (state
            .workflow_task
            .as_ref()
            .is_some_and(|open| open.no == no)
            && dice.percent(20))
        .then(|| close(shared, state, dice))?;
    };
    let lapsed = lease.has_lapsed();
    let (owner, attempt, hopeless) = match dice.below(10) {
        0 => ("nobody".to_owned(), lease.attempt, Some("another worker")),
        1 => (
            lease.owner.clone(),
            lease.attempt + 50,
            Some("another hand-out"),
        ),
        _ => (
            lease.owner.clone(),
            lease.attempt,
            lapsed.then_some("run out"),
        ),
    };
    let is_activity = state.activities.contains_key(&no);
    if is_activity && dice.percent(25) {
        let overdue = Overdue {
            no,
            attempt,
            owner: WorkerId::from(owner.as_str()),
            kind: OverdueKind::StartToClose,
            beat: None,
        };
        let decision = try_decide(state, Input::Overdue(overdue)).ok()??;
        let hopeless = match hopeless {
            Some("run out") => None,
            None if lease.lapses.is_none() => Some("in time"),
            other => other,
        };
        let entry = Entry::of(&decision, hopeless, Some((task, attempt)));
        return Some((decision, entry));
    }
    if !is_activity && dice.percent(7) {
        // A cancel that believes a held task to be free.
        let request = CloseRequest {
            reason: None,
            request_id: None,
            lease: ObservedLease::Free,
        };
        let decision = try_decide(state, Input::Cancel(request)).ok()??;
        assert!(decision.fences.iter().any(|fence| fence.hold == Hold::Free));
        // It may have been given back since: only what is certain is held against the door.
        let entry = Entry::of(&decision, None, None);
        return Some((decision, entry));
    }
    let input = if is_activity {
        activity_report(no, &owner, attempt, dice.percent(30))
    } else if dice.percent(15) {
        Input::FailWorkflowTask {
            report: WorkflowTaskReport {
                no,
                attempt,
                owner: WorkerId::from(owner.as_str()),
                digest: leasehold::domain::run::Digest(me),
                seen: state.last_event(),
            },
            failure: TaskFailure::Other("no".into()),
            code: None,
        }
    } else {
        completion(state, no, &owner, attempt, random_commands(dice))
    };
    let decision = try_decide(state, input).ok()??;
    let entry = Entry::of(&decision, hopeless, Some((task, attempt)));
    Some((decision, entry))
}

fn random_commands(dice: &mut Dice) -> Vec<leasehold::domain::command::Command> {
    match dice.below(12) {
        0 => vec![finish()],
        1 => vec![continue_as_new()],
        2 => vec![timer(0)],
        3 | 4 => vec![timer(3_600), activity()],
        5 | 6 => vec![activity(), activity()],
        _ => vec![activity()],
    }
}

/// Gives most of what is opened to this connection's worker, some of it with a lease that is over at
/// once.
fn maybe_hand_out(decision: &mut Decision, me: u64, dice: &mut Dice) {
    if !dice.percent(75) {
        return;
    }
    hand_out(decision, &format!("w{me}"));
    if dice.percent(20) {
        for write in decision.writes_mut() {
            let opened: Vec<TaskNo> = write.opened().map(|(no, _)| no).collect();
            for no in opened {
                write.effects.opened_mut(no).unwrap().lease_ms = 1;
            }
        }
    }
}

fn accept(shared: &Shared, decision: Decision, mut entry: Entry) {
    entry.accepted = true;
    let mut world = shared.world();
    for write in decision.writes() {
        for (no, effect) in write.effects.tasks() {
            let task = TaskId {
                run: write.next.id,
                no: *no,
            };
            match effect {
                TaskEffect::Open(opened) => {
                    if opened.lease_ms == 1 {
                        world.short.insert(task);
                    }
                    if let Some(to) = &opened.handed_to {
                        let lease = Lease {
                            owner: to.owner.to_string(),
                            attempt: 1,
                            lapses: (opened.lease_ms == 1).then(Instant::now),
                        };
                        world.leases.insert(task, lease);
                    }
                }
                TaskEffect::Close => {
                    world.leases.remove(&task);
                    world.closed.insert(task);
                }
                TaskEffect::Again { .. } => {
                    // It may have been handed out again by now.
                    let ended = entry.ends.map_or(0, |(_, attempt)| attempt);
                    if world
                        .leases
                        .get(&task)
                        .is_some_and(|lease| lease.attempt <= ended)
                    {
                        world.leases.remove(&task);
                    }
                }
            }
        }
    }
    if entry.started.is_some() {
        world.workflows += 1;
    }
    for write in std::iter::once(decision.write).chain(decision.created) {
        let known = world
            .runs
            .get(&write.next.id)
            .map_or(0, |state| state.version);
        if known < write.next.version {
            let state = std::sync::Arc::unwrap_or_clone(write.next);
            world.runs.insert(state.id, state);
        }
    }
    world.log.push(entry);
}

async fn hand_out_backlog(shared: Arc<Shared>, pool: leasehold::store::pool::PgPool) {
    let pollers: Vec<Poller> = (0..8)
        .map(|n| Poller {
            owner: WorkerId::from(format!("c{n}")),
            poll_request_id: None,
            kinds: [TaskKind::Workflow].into(),
        })
        .collect();
    let profile = Profile {
        types: vec!["greet".to_owned(), "hello".to_owned()].into(),
        build_id: None,
        knows: i64::MAX,
    };
    while !shared.is_over() {
        for kind in [TaskKind::Workflow, TaskKind::Activity] {
            let claimed = claim::claim(
                &pool,
                kind,
                &"default".into(),
                &"q".into(),
                &profile,
                &pollers,
                Position::START,
            )
            .await;
            let claimed = match claimed {
                Ok(plain) => plain.claimed,
                Err(error) => return shared.break_off(format!("claim: {error}")),
            };
            let mut world = shared.world();
            for claimed in claimed {
                world.claimed += 1;
                let lease = Lease {
                    owner: pollers[claimed.poller].owner.to_string(),
                    attempt: claimed.attempt,
                    lapses: world.short.contains(&claimed.task).then(Instant::now),
                };
                // What closed it is known already.
                if !world.closed.contains(&claimed.task) {
                    world.leases.insert(claimed.task, lease);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn some_leases(shared: &Shared, dice: &mut Dice, near: usize, most: usize) -> Vec<(TaskId, Lease)> {
    let world = shared.world();
    let mut all: Vec<_> = world
        .leases
        .iter()
        .map(|(task, lease)| (*task, lease.clone()))
        .collect();
    // The youngest are the ones that the writers are at.
    all.sort_by_key(|(task, _)| std::cmp::Reverse(*task));
    all.truncate(2 * near);
    let mut picked = BTreeMap::new();
    for _ in 0..most {
        if let Some((task, lease)) = dice.pick(&all) {
            picked.insert(task, lease);
        }
    }
    let mut picked: Vec<_> = picked.into_iter().collect();
    // In an order of its own: the statement sorts.
    picked.sort_by_key(|(task, _)| std::cmp::Reverse((task.run.spread(), task.no)));
    picked
}

async fn renew(
    shared: Arc<Shared>,
    pool: leasehold::store::pool::PgPool,
    near: usize,
    mut dice: Dice,
) {
    while !shared.is_over() {
        let renewals: Vec<Renewal> = some_leases(&shared, &mut dice, near, 24)
            .into_iter()
            .filter(|(_, lease)| lease.lapses.is_none())
            .map(|(task, lease)| Renewal {
                task,
                owner: WorkerId::from(lease.owner),
                attempt: lease.attempt,
                beat: true,
                details: None,
            })
            .collect();
        if let Err(error) = lease::renew(&pool, &renewals).await {
            return shared.break_off(format!("renew: {error}"));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn take_away(
    shared: Arc<Shared>,
    pool: leasehold::store::pool::PgPool,
    near: usize,
    mut dice: Dice,
) {
    while !shared.is_over() {
        let lost: Vec<Lost> = some_leases(&shared, &mut dice, near, 6)
            .into_iter()
            .map(|(task, lease)| Lost {
                task,
                owner: WorkerId::from(lease.owner),
                attempt: lease.attempt,
                delay_ms: 0,
                granted_by: None,
            })
            .collect();
        let places = match lease::give_back(&pool, Which::Named, &lost).await {
            Ok(places) => places,
            Err(error) => return shared.break_off(format!("give back: {error}")),
        };
        {
            let mut world = shared.world();
            for place in places {
                let Lost { task, attempt, .. } = lost[place];
                world.given_back.insert((task, attempt));
                if world
                    .leases
                    .get(&task)
                    .is_some_and(|lease| lease.attempt == attempt)
                {
                    world.leases.remove(&task);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Holds everything that is stored against everything that was accepted.
async fn judge(shared: &Shared, bench: &Bench, admin: &mut PgConnection) -> Result<Tally, String> {
    let world = std::mem::take(&mut *shared.world());
    if let Some(why) = world.broken {
        return Err(why);
    }
    let (deadlocks, rollbacks): (i64, i64) = sqlx::query_as(
        "select deadlocks, xact_rollback from pg_stat_database where datname = current_database()",
    )
    .fetch_one(&mut *admin)
    .await
    .unwrap();
    if deadlocks > 0 || rollbacks > 0 {
        return Err(format!(
            "{deadlocks} deadlocks, {rollbacks} statements failed"
        ));
    }
    let mut versions: BTreeMap<RunId, Vec<u64>> = BTreeMap::new();
    let mut ended = HashSet::new();
    let mut keys = BTreeSet::new();
    let mut workflows: BTreeMap<String, RunId> = BTreeMap::new();
    for entry in world.log.iter().filter(|entry| entry.accepted) {
        if let Some(why) = entry.hopeless {
            return Err(format!("{}: accepted although {why}", entry.run));
        }
        versions.entry(entry.run).or_default().push(entry.base);
        for run in &entry.created {
            versions.entry(*run).or_default().push(0);
        }
        if let Some(hand_out) = entry.ends
            && (!ended.insert(hand_out) || world.given_back.contains(&hand_out))
        {
            return Err(format!("hand-out {hand_out:?} ended twice"));
        }
        if let Some(key) = &entry.key
            && !keys.insert(key.clone())
        {
            return Err(format!("key {key} was claimed twice"));
        }
        if let Some(workflow) = &entry.started
            && workflows.insert(workflow.clone(), entry.run).is_some()
        {
            return Err(format!("{workflow} was started twice"));
        }
    }
    for (run, bases) in &mut versions {
        bases.sort_unstable();
        let state = check_run(bench, admin, *run).await?;
        if *bases != (0..state.version).collect::<Vec<_>>() {
            return Err(format!(
                "{run} is at version {}, accepted were {bases:?}",
                state.version
            ));
        }
        if let Some(next) = state.close.as_ref().and_then(|close| close.continued_to) {
            let workflow = state.begun.workflow_id.to_string();
            if workflows.get(&workflow) == Some(run) {
                workflows.insert(workflow, next);
            }
        }
    }
    same(
        "runs",
        admin,
        "select run_id from workflow_runs",
        versions.keys().map(ToString::to_string),
    )
    .await?;
    for table in ["history_batches", "tasks", "timers"] {
        let stray = format!(
            "select count(*) from {table} t where not exists (select from workflow_runs r where r.run_id = t.run_id)"
        );
        if number(admin, &stray).await > 0 {
            return Err(format!("{table} has rows of runs that do not exist"));
        }
    }
    let instances = workflows
        .iter()
        .map(|(workflow, run)| format!("{workflow} {run}"));
    same(
        "workflow ids",
        admin,
        "select workflow_id || ' ' || run_id from workflow_instances",
        instances,
    )
    .await?;
    let receipts = "select workflow_id || ' ' || request_id from request_receipts";
    same("keys", admin, receipts, keys.into_iter()).await?;
    let leases = world
        .leases
        .iter()
        .map(|(task, lease)| format!("{task} {} {}", lease.owner, lease.attempt));
    let held = "select format('%s-%s %s %s', run_id, task_no, lease_owner, attempt) from tasks where state = 1";
    same("leases", admin, held, leases).await?;
    let accepted = world.log.iter().filter(|entry| entry.accepted).count();
    Ok(Tally {
        accepted,
        refused: world.log.len() - accepted,
        claimed: world.claimed,
        given_back: world.given_back.len(),
        runs: versions.len(),
    })
}

async fn same(
    what: &str,
    connection: &mut PgConnection,
    statement: &str,
    wanted: impl Iterator<Item = String>,
) -> Result<(), String> {
    let found: BTreeSet<String> = column(connection, statement).await.into_iter().collect();
    let wanted: BTreeSet<String> = wanted.collect();
    if found == wanted {
        return Ok(());
    }
    let extra: Vec<_> = found.difference(&wanted).take(3).collect();
    let missing: Vec<_> = wanted.difference(&found).take(3).collect();
    Err(format!(
        "{what}: stored and unexplained {extra:?}, accepted and not stored {missing:?}"
    ))
}

async fn hammer_the_door(name: &str, force: Force) -> Tally {
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    let began = Instant::now();
    let tally = hammer(*DOOR, force, seed).await;
    let tally = tally.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    println!(
        "hammer, {name}: {tally:?} in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn four_connections_and_random_batches_leave_nothing_unexplained() {
    let force = Force {
        connections: 4,
        statements: 100,
        runs_per_statement: 24,
        starts_per_statement: 6,
        near: 48,
    };
    let tally = hammer_the_door("random batches", force).await;
    assert!(tally.accepted > 1_000 && tally.refused > 1_000, "{tally:?}");
    assert!(tally.claimed > 50 && tally.given_back > 50, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn four_connections_that_crowd_on_few_runs_leave_nothing_unexplained() {
    let force = Force {
        connections: 4,
        statements: 150,
        runs_per_statement: 16,
        starts_per_statement: 2,
        near: 16,
    };
    let tally = hammer_the_door("few runs", force).await;
    assert!(
        tally.accepted > 200 && tally.refused > 1_000 && tally.runs > 50,
        "{tally:?}"
    );
}
