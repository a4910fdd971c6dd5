//! Plans: every hot statement finds its rows by key, on a database that was never analysed and on one
//! full of dead rows.

use leasehold::domain::dispatch::Position;
use leasehold::domain::ids::{RunId, TaskId, TaskQueue, WorkerId};
use leasehold::domain::routing::{Poller, Profile, TaskKind};
use leasehold::domain::run::RunState;
use leasehold::domain::time::Timestamp;
use leasehold::store::commit::{self, PINNED};
use leasehold::store::dispatch::Begin;
use leasehold::store::door::{DOOR, Parts};
use leasehold::store::lease::{self, Lost, Renewal, Which};
use leasehold::store::pool::PgPool;
use leasehold::store::ready::{Place, ready, urgent_first};
use leasehold::store::sessions::{self, Seekers};
use leasehold::store::{
    PoolSizes, Store, claim, dispatch, given, history, load, receipts, relays, retention, timers,
    waiting,
};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::kit::*;

/// Tables that grow with the work that has been done or waits.
const GROWING: [&str; 9] = [
    "workflow_runs",
    "workflow_instances",
    "history_batches",
    "tasks",
    "timers",
    "request_receipts",
    "worker_sessions",
    "relays",
    "removed_runs",
];

/// What the statements of one session have cost since the last look.
struct Meter {
    admin: PgConnection,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    /// Whole scans of growing tables.
    scans: i64,
    /// Pages of growing tables and their indexes.
    pages: i64,
}

impl Meter {
    async fn total(&mut self) -> Cost {
        let (scans, pages): (i64, i64) = sqlx::query_as(
            "select sum(s.seq_scan)::bigint, sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
             from pg_stat_user_tables s join pg_statio_user_tables io using (relid) where s.relname = any($1)",
        )
        .bind(GROWING.as_slice())
        .fetch_one(&mut self.admin)
        .await
        .unwrap();
        Cost { scans, pages }
    }

    /// What `work` costs, whose statements all run on the one connection of `pool`.
    async fn cost<T>(&mut self, pool: &PgPool, work: impl Future<Output = T>) -> (T, Cost) {
        flush(pool).await;
        let before = self.total().await;
        let done = work.await;
        flush(pool).await;
        let after = self.total().await;
        let cost = Cost {
            scans: after.scans - before.scans,
            pages: after.pages - before.pages,
        };
        (done, cost)
    }
}

/// Makes the pool's one session report its counts.
async fn flush(pool: &PgPool) {
    sqlx::query("select pg_stat_force_next_flush()")
        .execute(pool)
        .await
        .unwrap();
}

/// One connection in each pool, so that its counts can be asked for.
async fn single(bench: &Bench) -> (Store, PgPool) {
    let store = Store::new(bench.db.options.clone(), PoolSizes { reads: 1, hot: 1 });
    let pinned = bench.db.options.clone().options(PINNED.iter().copied());
    let door = PgPool::new(pinned, 1);
    (store, door)
}

async fn no_background_work(admin: &mut PgConnection) {
    for table in GROWING {
        execute(
            admin,
            &format!("alter table {table} set (autovacuum_enabled = false)"),
        )
        .await;
    }
}

/// A connection that holds a snapshot from before whatever comes, as a backup does.
async fn old_snapshot(bench: &Bench) -> PgConnection {
    let mut backup = bench.db.connect().await;
    execute(&mut backup, "begin isolation level repeatable read").await;
    number(&mut backup, "select count(*) from tasks").await;
    backup
}

const INTO_TASKS: &str =
    "insert into tasks (run_id, task_no, kind, namespace, queue, task_type, priority,
    fairness_weight, needs, state, visible_at, attempt, lease_ms)";
const INTO_RUNS: &str =
    "insert into workflow_runs (run_id, namespace, workflow_id, run_number, workflow_type, queue,
    version, next_event_id, status, started_at, last_progress_at, memo, search_attributes)";

/// Every hot statement with its cost, in an order in which each has something to do.
async fn run_everything(bench: &Bench) -> Vec<(&'static str, Cost)> {
    let (store, door) = single(bench).await;
    let mut meter = Meter {
        admin: bench.db.connect().await,
    };
    let mut costs = Vec::new();
    let namespace = "default".into();
    // Started by the door.
    let mut start = started(&uuid::Uuid::new_v4().to_string());
    let items = [item(&mut start)];
    let state = start.write.next;
    let commit = async |items: &[leasehold::store::item::Item]| {
        let mut connection = door.acquire().await.unwrap();
        assert_committed(commit::commit(&mut connection, items).await[0]);
        connection.whole();
    };
    costs.push(("door: start", meter.cost(&door, commit(&items)).await.1));
    let claim_one = async |kind, name: &str| {
        let profile = Profile {
            types: vec!["greet".to_owned(), "hello".to_owned()].into(),
            build_id: None,
            knows: -1,
        };
        let poller = Poller {
            owner: WorkerId::from(name),
            poll_request_id: Some("poll".into()),
            kinds: [kind].into(),
        };
        let claimed = claim::claim(
            &store.hot,
            kind,
            &namespace,
            &"q".into(),
            &profile,
            &[poller],
            Position::START,
        )
        .await;
        assert_eq!(claimed.unwrap().claimed.len(), 1);
    };
    costs.push((
        "claim",
        meter
            .cost(&store.hot, claim_one(TaskKind::Workflow, "w"))
            .await
            .1,
    ));
    costs.push(("claim again", {
        let task = TaskId {
            run: state.id,
            no: open_task(&state),
        };
        give_back(&store, task, "w", 1).await;
        meter
            .cost(&store.hot, claim_one(TaskKind::Workflow, "w"))
            .await
            .1
    }));
    costs.push(("queues that may have ready tasks", {
        let queues: Vec<TaskQueue> = (0..10).map(|n| format!("quiet {n}").into()).collect();
        let quiet: Vec<Place> = queues
            .iter()
            .flat_map(|queue| {
                [TaskKind::Workflow, TaskKind::Query].map(|kind| Place {
                    namespace: &namespace,
                    queue,
                    kind,
                    from: Position::START,
                })
            })
            .collect();
        let (found, cost) = meter.cost(&store.hot, ready(&store.hot, &quiet)).await;
        assert!(found.unwrap().is_empty());
        cost
    }));
    costs.push(("repeat of a poll", {
        let question = |owner: &str| given::Question {
            namespace: "default".into(),
            queues: vec!["q".into()],
            kinds: vec![TaskKind::Workflow],
            owner: WorkerId::from(owner),
            poll: "poll".into(),
        };
        let others = (0..62).map(|n| given::Question {
            poll: format!("other {n}").into(),
            ..question("w")
        });
        let questions: Vec<_> = [question("v"), question("w")]
            .into_iter()
            .chain(others)
            .collect();
        let read = given::to_polls(&store.hot, &questions);
        let (found, cost) = meter.cost(&store.hot, read).await;
        let attempts = |given: Vec<given::Given>| given.iter().map(|one| one.attempt).collect();
        let attempts: Vec<Vec<_>> = found.unwrap().into_iter().map(attempts).collect();
        assert_eq!(attempts[..2], [vec![], vec![2]]);
        assert!(attempts[2..].iter().all(Vec::is_empty));
        cost
    }));
    let input = completion(
        &state,
        open_task(&state),
        "w",
        2,
        vec![activity(), timer(1), timer(3_600)],
    );
    let mut completed = decided(&state, input);
    hand_out(&mut completed, "w");
    let items = [item(&mut completed)];
    let state = completed.write.next;
    costs.push((
        "door: completion",
        meter.cost(&door, commit(&items)).await.1,
    ));
    let mut signalled = decided(&state, signal("go", Some("key")));
    let items = [item(&mut signalled)];
    let state = signalled.write.next;
    costs.push(("door: signal", meter.cost(&door, commit(&items)).await.1));
    let no = *state.activities.keys().next().unwrap();
    let task = TaskId { run: state.id, no };
    let renew = async || {
        let renewal = Renewal {
            task,
            owner: WorkerId::from("w"),
            attempt: 1,
            beat: true,
            details: None,
        };
        assert!(lease::renew(&store.hot, &[renewal]).await.unwrap()[0].is_some());
    };
    costs.push(("renew", meter.cost(&store.hot, renew()).await.1));
    costs.push((
        "look at leases",
        meter
            .cost(&store.hot, lease::look(&store.hot, 1_000))
            .await
            .1,
    ));
    let worker = WorkerId::from("w");
    let held = lease::held_by(&store.hot, &namespace, &worker, 10);
    costs.push(("held by", meter.cost(&store.hot, held).await.1));
    costs.push((
        "look at timers",
        meter
            .cost(&store.hot, timers::look(&store.hot, 1_000))
            .await
            .1,
    ));
    costs.push((
        "give back",
        meter
            .cost(&store.hot, give_back(&store, task, "w", 1))
            .await
            .1,
    ));
    let reads = &store.reads;
    costs.push((
        "task row",
        meter.cost(reads, lease::read(reads, task)).await.1,
    ));
    costs.push((
        "task rows of a run",
        meter.cost(reads, lease::of_run(reads, state.id)).await.1,
    ));
    costs.push((
        "load a run",
        meter
            .cost(reads, load::batches_after(reads, unread(state.id, 0, 0)))
            .await
            .1,
    ));
    let newer = load::batches_after(
        reads,
        unread(state.id, state.version - 1, state.next_event - 1),
    );
    costs.push(("catch a run up", meter.cost(reads, newer).await.1));
    let several: Vec<_> = (0..16).map(|_| unread(state.id, 0, 0)).collect();
    let together = load::batches_of_many(reads, &several);
    let (together, cost) = meter.cost(reads, together).await;
    assert_eq!(together.unwrap().len(), several.len());
    // They share a statement: what it costs is measured for one of them.
    let pages = cost.pages / 16;
    costs.push(("a run among others", Cost { pages, ..cost }));
    costs.push((
        "history page",
        meter
            .cost(reads, history::range(reads, state.id, 2, 5))
            .await
            .1,
    ));
    let workflow = state.begun.workflow_id.clone();
    costs.push((
        "current run",
        meter
            .cost(reads, load::current_run(reads, &namespace, &workflow))
            .await
            .1,
    ));
    let one = load::run_of(reads, &namespace, &workflow, state.id);
    costs.push(("named run", meter.cost(reads, one).await.1));
    let key = receipts::find(reads, &namespace, &workflow, "signal", "key");
    costs.push(("request key", meter.cost(reads, key).await.1));
    costs.extend(sessions_of(&mut meter, &store).await);
    let told = [(state.id, 1)];
    let taken = relays::taken(&store.hot, &told);
    costs.push(("relays taken", meter.cost(&store.hot, taken).await.1));
    let ids = [state.id];
    let removed = retention::remove(&store.hot, &ids);
    let (removed, cost) = meter.cost(&store.hot, removed).await;
    assert!(removed.unwrap().runs.is_empty(), "an open run stays");
    costs.push(("removal", cost));
    finish_run(&door, &state).await;
    let whole = sqlx::query("select count(journal) from history_batches").execute(reads);
    assert_eq!(
        meter.cost(reads, whole).await.1.scans,
        1,
        "the meter sees a whole scan"
    );
    store.close().await;
    door.close().await;
    costs
}

/// What a claim costs that looks for tasks of sessions, and a step on one session.
async fn sessions_of(meter: &mut Meter, store: &Store) -> Vec<(&'static str, Cost)> {
    let profile = Profile {
        types: vec!["greet".to_owned(), "hello".to_owned()].into(),
        build_id: None,
        knows: -1,
    };
    let seekers = Seekers {
        profile: &profile,
        workers: &["w"],
        capabilities: &["gpu"],
    };
    let (hot, namespace, queue) = (&store.hot, "default".into(), "q".into());
    let look = sessions::candidates(hot, &namespace, &queue, &seekers, 60, 64);
    let look = meter.cost(hot, look).await.1;
    let any = sessions::any_ready(hot, &namespace, &queue);
    let any = meter.cost(hot, any).await.1;
    let step = async {
        let mut step = store.reads.begin().await.unwrap();
        let worker = WorkerId::from("w");
        let scene = sessions::lock(&mut step, &namespace, &worker, "s5", 60).await;
        let scene = scene.unwrap();
        if let Some(session) = scene.session {
            sessions::write(&mut step, &session).await.unwrap();
        }
        step.commit().await.unwrap();
    };
    let step = meter.cost(&store.reads, step).await.1;
    let find = sessions::find(&store.reads, &namespace, "s5", 60, now());
    let find = meter.cost(&store.reads, find).await.1;
    vec![
        ("tasks of sessions", look),
        ("any task of a session", any),
        ("step on a session", step),
        ("session", find),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_found_by_key_among_many() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let options = r#"{"session_id":"s","requirements":[],"lease_seconds":600,"ttl_seconds":600,"max_concurrent_activities":1,"create_if_missing":true,"allow_reacquire_after_failure":true}"#;
    let many = format!(
        "insert into worker_sessions select 'default', 's' || n, '{options}', 'q' || n % 100, 'active', 'w' || n % 500,
             clock_timestamp() + interval '1 h', clock_timestamp() + interval '1 h', null, null, clock_timestamp(),
             clock_timestamp(), clock_timestamp()
         from generate_series(1, 20000) n"
    );
    execute(&mut admin, &many).await;
    let tasks = format!(
        "insert into tasks (run_id, task_no, kind, namespace, queue, task_type, priority, fairness_weight, needs, state,
             visible_at, attempt, lease_ms, session, session_id)
         select 'run' || n, 1, 1, 'default', 'q' || n % 100, 'greet', 5, 1, 0, 0, clock_timestamp(), 0, 30000,
             '{options}', 's' || n
         from generate_series(1, 20000) n"
    );
    execute(&mut admin, &tasks).await;
    // What this has cost is counted now, and not with what is measured.
    execute(&mut admin, "select pg_stat_force_next_flush()").await;
    let (store, door) = single(&bench).await;
    let mut meter = Meter { admin };
    // Often enough for a plan that stays.
    for _ in 0..7 {
        let costs = sessions_of(&mut meter, &store).await;
        assert_no_scans(&costs);
        for (name, cost) in costs {
            assert!(cost.pages < 100, "{name} reads {} pages", cost.pages);
        }
    }
    store.close().await;
    door.close().await;
    bench.end().await;
}

/// Rule: a look at a queue with classes goes from class to class by the index: a long backlog of one
/// hides no other and costs no more than a short one, and the claim of a queue without classes sees with
/// one look at the index that there are none.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_backlog_of_classes_is_looked_at_by_key() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let many = "insert into tasks (run_id, task_no, kind, namespace, queue, task_type, priority, fairness_key,
             fairness_weight, needs, state, visible_at, attempt, lease_ms)
         select lpad(n::text, 26, '0'), 1, 0, 'default', 'q', 'greet', 5, k, 1, 0, 0,
             clock_timestamp() - n * interval '1 ms', 0, 30000
         from (select n, case when n <= 20 then 'late' when n % 2 = 0 then 'long' when n % 5 = 0 then 'other' end as k
             from generate_series(1, 40000) n) n";
    execute(&mut admin, many).await;
    execute(&mut admin, "select pg_stat_force_next_flush()").await;
    let (store, door) = single(&bench).await;
    let mut meter = Meter { admin };
    let profile = Profile {
        types: vec!["greet".to_owned(), "hello".to_owned()].into(),
        build_id: None,
        knows: -1,
    };
    let (kind, namespace) = (TaskKind::Workflow, "default".into());
    let poller = Poller {
        owner: WorkerId::from("w"),
        poll_request_id: None,
        kinds: [kind].into(),
    };
    for _ in 0..7 {
        let queue = "q".into();
        let begin = Begin {
            after: None,
            from: Position::START,
        };
        let look = dispatch::look(&store.hot, kind, &namespace, &queue, &profile, 1, begin);
        let (seen, look) = meter.cost(&store.hot, look).await;
        let window = seen.unwrap().window;
        let classes: std::collections::BTreeSet<_> = window
            .candidates
            .iter()
            .map(|one| one.class.clone())
            .collect();
        assert_eq!(classes.len(), 4);
        let pollers = std::slice::from_ref(&poller);
        let with = claim::claim(
            &store.hot,
            kind,
            &namespace,
            &queue,
            &profile,
            pollers,
            Position::START,
        );
        let (with, with_classes) = meter.cost(&store.hot, with).await;
        assert!(with.unwrap().classes);
        let empty = "empty".into();
        let without = claim::claim(
            &store.hot,
            kind,
            &namespace,
            &empty,
            &profile,
            pollers,
            Position::START,
        );
        let without = meter.cost(&store.hot, without).await.1;
        let heads = meter
            .cost(&store.hot, waiting::heads(&store.hot, 10, 10))
            .await
            .1;
        let task = window.candidates[0].task;
        let chosen = [(task, &poller)];
        let take = dispatch::take(&store.hot, &profile, &chosen);
        let take = meter.cost(&store.hot, take).await.1;
        let costs = [
            ("look", look),
            ("claim with classes", with_classes),
            ("claim without", without),
            ("heads", heads),
            ("take", take),
        ];
        println!("plans, classes: {costs:?}");
        assert_no_scans(&costs);
        for ((name, cost), most) in costs.iter().zip([300, 20, 20, 150, 60]) {
            assert!(cost.pages <= most, "{name} reads {} pages", cost.pages);
        }
    }
    store.close().await;
    door.close().await;
    bench.end().await;
}

async fn give_back(store: &Store, task: TaskId, owner: &str, attempt: u32) {
    let lost = Lost {
        task,
        owner: WorkerId::from(owner),
        attempt,
        delay_ms: 0,
        granted_by: None,
    };
    assert_eq!(
        lease::give_back(&store.hot, Which::Named, &[lost])
            .await
            .unwrap(),
        [0]
    );
}

/// Leaves nothing ready behind.
async fn finish_run(door: &PgPool, state: &RunState) {
    let cancel = leasehold::domain::run::CloseRequest {
        reason: None,
        request_id: None,
        lease: leasehold::domain::run::ObservedLease::Free,
    };
    let mut cancelled = decided(state, leasehold::domain::run::Input::Cancel(cancel));
    let mut connection = door.acquire().await.unwrap();
    assert_committed(commit::commit(&mut connection, &[item(&mut cancelled)]).await[0]);
}

fn assert_no_scans(costs: &[(&str, Cost)]) {
    let scanning: Vec<_> = costs.iter().filter(|(_, cost)| cost.scans > 0).collect();
    assert!(scanning.is_empty(), "whole tables are read: {scanning:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_that_was_never_analysed_is_read_by_key() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let costs = Box::pin(run_everything(&bench)).await;
    println!("plans, empty: {costs:?}");
    assert_no_scans(&costs);
    let analysed = number(
        &mut admin,
        "select count(*) from pg_stat_user_tables where last_analyze is not null or last_autoanalyze is not null",
    )
    .await;
    assert_eq!(analysed, 0);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_thousand_dead_tasks_are_not_waded_through() {
    const DEAD: i64 = 50_000;
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    // As they come and go: opened ready, claimed, closed.
    let tasks = format!(
        "{INTO_TASKS}
         select 'dead' || n, 1, n % 2, 'default', 'q', 'greet', 5, 1, 0, 0, clock_timestamp() - interval '1 h', 0, 30000
         from generate_series(1, {DEAD}) n"
    );
    execute(&mut admin, &tasks).await;
    let claims = "update tasks set state = 1, lease_owner = 'w', attempt = 1,
        lease_expires_at = clock_timestamp() + interval '30 s'";
    execute(&mut admin, claims).await;
    execute(&mut admin, "delete from tasks").await;
    execute(
        &mut admin,
        "insert into timers select 'dead' || n, 0, 1, clock_timestamp() - interval '1 h' from generate_series(1, 20000) n",
    )
    .await;
    execute(&mut admin, "delete from timers").await;
    let costs = Box::pin(run_everything(&bench)).await;
    println!("plans, {DEAD} dead tasks: {costs:?}");
    assert_no_scans(&costs);
    let again = costs
        .iter()
        .find(|(name, _)| *name == "claim again")
        .unwrap()
        .1;
    // What is left is the walk over index pages that hold nothing but entries known to be dead.
    assert!(again.pages < 400, "a claim reads {} pages", again.pages);
    bench.end().await;
}

/// Rule: rows are found by key also when the statistics say that the tables are empty, which they
/// are whenever autovacuum comes by in a quiet moment.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_found_by_key_although_tables_are_said_to_be_empty() {
    const DEAD: i64 = 30_000;
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let fill = |name: &str| {
        format!(
            "insert into tasks (run_id, task_no, kind, namespace, queue, task_type, priority, fairness_weight, needs,
                 state, visible_at, attempt, lease_ms, lease_owner, lease_expires_at, poll_request_id)
             select '{name}' || n, 1, n % 2, 'default', 'other', 'greet', 5, 1, 0, 1, clock_timestamp(), 1, 30000,
                 'w', clock_timestamp() + interval '30 s', rpad('{name}' || n, 90, '-')
             from generate_series(1, {DEAD}) n"
        )
    };
    execute(&mut admin, &fill("first")).await;
    // With these two, a look-up by key seems to cost half of all pages.
    let most = "delete from tasks where run_id not in ('first1', 'first2')";
    execute(&mut admin, most).await;
    execute(&mut admin, "vacuum (truncate off, analyze) tasks").await;
    let relays = format!(
        "insert into relays (run_id, event_id, body, created_at)
         select 'dead' || n, 1, '{{}}', clock_timestamp() from generate_series(1, {DEAD}) n"
    );
    execute(&mut admin, &relays).await;
    execute(&mut admin, "delete from relays").await;
    execute(&mut admin, "vacuum (truncate off, analyze) timers, relays").await;
    let mut backup = old_snapshot(&bench).await;
    execute(&mut admin, &fill("second")).await;
    execute(&mut admin, "delete from tasks").await;
    execute(&mut admin, &relays).await;
    execute(&mut admin, "delete from relays").await;
    let costs = Box::pin(run_everything(&bench)).await;
    println!("plans, said to be empty: {costs:?}");
    for (name, cost) in &costs {
        // These go through all that is held, at most once a second. No index says when leases end, so that
        // heartbeats stay on their page.
        if ["look at leases", "held by"].contains(name) {
            continue;
        }
        assert!(cost.pages < 400, "{name} reads {} pages", cost.pages);
    }
    execute(&mut backup, "rollback").await;
    bench.end().await;
}

/// Rule: a long backlog is claimed in its order, not collected and sorted, also when the statistics say that the
/// table is empty and large.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_not_sorted_although_its_table_is_said_to_be_empty() {
    const WAITING: u32 = 60_000;
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let fill = |name: &str| {
        format!(
            "{INTO_TASKS}
             select '{name}' || lpad((n / 100)::text, 22, '0'), n % 100, 1, 'default', 'q', 'greet', 5, 1, 0, 0,
                 timestamptz '2020-01-01 00:00Z' + n * interval '1 ms', 0, 30000
             from generate_series(1, {WAITING}) n"
        )
    };
    execute(&mut admin, &fill("0000")).await;
    let most =
        "delete from tasks where task_no <> 7 or visible_at > timestamptz '2020-01-01 00:00:00.2Z'";
    execute(&mut admin, most).await;
    execute(&mut admin, "vacuum (truncate off, analyze) tasks").await;
    execute(&mut admin, &fill("0001")).await;
    execute(&mut admin, "select pg_stat_force_next_flush()").await;
    let (store, door) = single(&bench).await;
    let mut meter = Meter { admin };
    let (kind, namespace, queue) = (TaskKind::Activity, "default".into(), "q".into());
    let (profile, pollers) = (greeter(), vec![anybody(kind); 64]);
    let (hot, from) = (&store.hot, Position::START);
    let places = [Place {
        namespace: &namespace,
        queue: &queue,
        kind,
        from,
    }];
    let begin = Begin { after: None, from };
    let look = dispatch::look(hot, kind, &namespace, &queue, &profile, 64, begin);
    let claim = claim::claim(hot, kind, &namespace, &queue, &profile, &pollers, from);
    let (looked, look) = meter.cost(hot, look).await;
    assert_eq!(looked.unwrap().window.candidates.len(), 64);
    let costs = [
        (
            "urgent",
            meter.cost(hot, urgent_first(hot, &places)).await.1,
        ),
        ("ready", meter.cost(hot, ready(hot, &places)).await.1),
        ("look", look),
    ];
    for (name, cost) in costs {
        assert!(cost.pages < 100, "{name} reads {} pages", cost.pages);
    }
    let (claimed, cost) = meter.cost(hot, claim).await;
    println!("plans, backlog: {costs:?} {cost:?}");
    assert_eq!(claimed.unwrap().claimed.len(), 64);
    assert!(cost.pages < 1_400, "a claim reads {} pages", cost.pages);
    store.close().await;
    door.close().await;
    bench.end().await;
}

/// Rule: claims begin at a low-water mark per queue, so that dead entries at the head of the index cost
/// nothing, even while an old snapshot keeps them from being forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn dead_tasks_before_a_mark_are_not_walked_over() {
    const DEAD: i64 = 20_000;
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let mut backup = old_snapshot(&bench).await;
    let tasks = format!(
        "{INTO_TASKS}
         select lpad(n::text, 26, '0'), 1, 0, 'default', 'q', 'greet', 5, 1, 0, 0,
             timestamptz '2020-01-01 00:00Z' + n * interval '1 ms', 0, 30000
         from generate_series(1, {DEAD} + 2) n"
    );
    execute(&mut admin, &tasks).await;
    let runs = format!(
        "{INTO_RUNS}
         select lpad(n::text, 26, '0'), 'default', n, 1, 'greet', 'q', 1, 2, 0, now(), now(), '{{}}', '{{}}'
         from generate_series({DEAD} + 1, {DEAD} + 2) n"
    );
    execute(&mut admin, &runs).await;
    execute(
        &mut admin,
        &format!("delete from tasks where run_id <= lpad({DEAD}::text, 26, '0')"),
    )
    .await;
    execute(&mut admin, "select pg_stat_force_next_flush()").await;
    let (store, door) = single(&bench).await;
    let mut meter = Meter { admin };
    let (kind, namespace, queue) = (TaskKind::Workflow, "default".into(), "q".into());
    let mark = Position::of_age(5, at("2020-01-01T00:00:20Z"));
    let (profile, poller) = (greeter(), anybody(kind));
    let pollers = std::slice::from_ref(&poller);
    for (from, pages) in [(mark, 0..60), (Position::START, 500..usize::MAX)] {
        let pages = |cost: Cost| {
            let within = pages.contains(&usize::try_from(cost.pages).unwrap());
            assert!(within, "{} pages from {from:?}", cost.pages);
        };
        let place = Place {
            namespace: &namespace,
            queue: &queue,
            kind,
            from,
        };
        let places = [place];
        let urgent = urgent_first(&store.hot, &places);
        let (found, cost) = meter.cost(&store.hot, urgent).await;
        assert_eq!(found.unwrap(), [0]);
        pages(cost);
        let (found, cost) = meter.cost(&store.hot, ready(&store.hot, &places)).await;
        assert_eq!(found.unwrap()[0].0, 0);
        pages(cost);
        let begin = Begin { after: None, from };
        let look = dispatch::look(&store.hot, kind, &namespace, &queue, &profile, 1, begin);
        let (seen, cost) = meter.cost(&store.hot, look).await;
        assert!(!seen.unwrap().window.candidates.is_empty());
        pages(cost);
        let claimed = claim::claim(
            &store.hot, kind, &namespace, &queue, &profile, pollers, from,
        );
        let (claimed, cost) = meter.cost(&store.hot, claimed).await;
        let claimed = claimed.unwrap();
        assert_eq!(claimed.claimed.len(), 1);
        assert!(claimed.last > Some(mark) && claimed.at.is_some());
        pages(cost);
    }
    execute(&mut backup, "rollback").await;
    store.close().await;
    door.close().await;
    bench.end().await;
}

/// Rule: claims go on after the task that was handed out last, also among many of the same age, as one
/// decision opens them.
#[tokio::test(flavor = "multi_thread")]
async fn dead_tasks_of_the_same_age_are_not_walked_over() {
    const DEAD: u32 = 20_000;
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let mut backup = old_snapshot(&bench).await;
    let run = format!("{:0>26}", 7);
    let tasks = format!(
        "{INTO_TASKS}
         select '{run}', n, 1, 'default', 'q', 'greet', 5, 1, 0, 0, timestamptz '2020-01-01 00:00Z', 0, 30000
         from generate_series(1, {DEAD} + 3) n"
    );
    execute(&mut admin, &tasks).await;
    let runs = format!(
        "{INTO_RUNS}
         values ('{run}', 'default', 'w', 1, 'greet', 'q', 1, 2, 0, now(), now(), '{{}}', '{{}}')"
    );
    execute(&mut admin, &runs).await;
    let handed_out = format!("delete from tasks where task_no <= {DEAD}");
    execute(&mut admin, &handed_out).await;
    execute(&mut admin, "select pg_stat_force_next_flush()").await;
    let (store, door) = single(&bench).await;
    let mut meter = Meter { admin };
    let (kind, namespace, queue) = (TaskKind::Activity, "default".into(), "q".into());
    let (profile, poller) = (greeter(), anybody(kind));
    let pollers = std::slice::from_ref(&poller);
    let age = Position::of_age(5, at("2020-01-01T00:00:00Z"));
    let run: RunId = run.parse().unwrap();
    let last = Position {
        task: Some(TaskId { run, no: DEAD }),
        ..age
    };
    let cases = [(last, 0..60), (last, 0..60), (age, 500..usize::MAX)];
    for (no, (from, pages)) in (DEAD + 1..).zip(cases) {
        let claimed = claim::claim(
            &store.hot, kind, &namespace, &queue, &profile, pollers, from,
        );
        let (claimed, cost) = meter.cost(&store.hot, claimed).await;
        let given = TaskId { run, no };
        let claimed = claimed.unwrap();
        assert_eq!(claimed.claimed[0].task, given);
        assert_eq!(claimed.last.unwrap().task, Some(given));
        let within = pages.contains(&usize::try_from(cost.pages).unwrap());
        assert!(within, "{} pages from {from:?}", cost.pages);
    }
    execute(&mut backup, "rollback").await;
    store.close().await;
    door.close().await;
    bench.end().await;
}

fn at(time: &str) -> Timestamp {
    time.parse::<chrono::DateTime<chrono::Utc>>()
        .unwrap()
        .into()
}

/// A worker of the type that these tests use.
fn greeter() -> Profile {
    Profile {
        types: vec!["greet".to_owned()].into(),
        build_id: None,
        knows: -1,
    }
}

fn anybody(kind: TaskKind) -> Poller {
    Poller {
        owner: WorkerId::from("w"),
        poll_request_id: None,
        kinds: [kind].into(),
    }
}

/// The nodes of a plan that read a growing table from one end to the other.
fn whole_scans(plan: &serde_json::Value, found: &mut Vec<String>) {
    if plan["Node Type"] == "Seq Scan" {
        found.push(plan["Relation Name"].to_string());
    }
    for inner in plan["Plans"].as_array().into_iter().flatten() {
        whole_scans(inner, found);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_door_is_planned_by_key_on_an_empty_database() {
    let bench = Bench::new().await;
    let plan = async |options: &sqlx::postgres::PgConnectOptions, parts: Parts| {
        let door = DOOR.form(parts);
        let mut connection = <PgConnection as sqlx::Connection>::connect_with(options)
            .await
            .unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("prepare door as {door}")))
            .execute(&mut connection)
            .await
            .unwrap();
        let parameters = (1..)
            .take_while(|n| door.contains(&format!("${n}::")))
            .count();
        let arguments = vec!["'{}'"; parameters].join(", ");
        let explain = format!("explain (format json) execute door({arguments})");
        let plan: serde_json::Value = column_json(&mut connection, &explain).await;
        let mut found = Vec::new();
        whole_scans(&plan[0]["Plan"], &mut found);
        found
    };
    let pinned = bench.db.options.clone().options(PINNED.iter().copied());
    for parts in [
        Parts::ALL,
        Parts::NONE,
        Parts::WORKFLOWS,
        Parts::WORKFLOWS.and(Parts::REQUESTS),
        Parts::CREATED,
        Parts::CHANGED,
        Parts::FAMILY,
        Parts::CLOSED,
        Parts::OPENED,
        Parts::TOUCHED,
        Parts::TIMERS,
        Parts::FENCED,
    ] {
        assert_eq!(
            plan(&pinned, parts).await,
            Vec::<String>::new(),
            "{parts:?}"
        );
    }
    // Without the pins it would be otherwise, so that the pins are what is tested.
    let unpinned = bench
        .db
        .options
        .clone()
        .options([("plan_cache_mode", "force_generic_plan")]);
    assert_ne!(plan(&unpinned, Parts::ALL).await, Vec::<String>::new());
    bench.end().await;
}

async fn column_json(connection: &mut PgConnection, statement: &str) -> serde_json::Value {
    let row = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap();
    let text: String = sqlx::Row::try_get_unchecked(&row, 0).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_history_is_paged_by_key() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let (store, _) = single(&bench).await;
    let run = RunId::new(now(), 1);
    let other = RunId::new(now(), 2);
    let batches = format!(
        "insert into history_batches select r, n, n, 1, '\\x00'::bytea || convert_to(repeat('x', 300), 'UTF8'), '\\x005b5d', clock_timestamp()
         from generate_series(1, 50000) n, unnest(array['{run}', '{other}']) r"
    );
    execute(&mut admin, &batches).await;
    let mut meter = Meter { admin };
    let mut costs = Vec::new();
    for (name, from) in [("first", 1), ("middle", 25_000), ("last", 49_901)] {
        // Read often enough for a plan that stays.
        for _ in 0..7 {
            let (page, cost) = meter
                .cost(
                    &store.reads,
                    history::range(&store.reads, run, from, from + 99),
                )
                .await;
            assert_eq!(page.unwrap().1, 100);
            costs.push((name, cost));
        }
    }
    // A run is folded from parts of its history.
    let read = load::batches_after(&store.reads, unread(run, 0, 0));
    let (part, cost) = meter.cost(&store.reads, read).await;
    let (batches, more) = part.unwrap();
    assert_eq!((batches.len(), more), (512, true));
    costs.push(("part of a run", cost));
    let read = load::batches_after(&store.reads, unread(run, 49_998, 49_999));
    let (batches, more) = read.await.unwrap();
    assert_eq!((batches.len(), more), (2, false));
    println!("plans, history pages: {costs:?}");
    assert_no_scans(&costs);
    assert!(costs.iter().all(|(_, cost)| cost.pages < 200), "{costs:?}");
    assert!(
        costs[..21].iter().all(|(_, cost)| cost.pages < 60),
        "{costs:?}"
    );
    store.close().await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_batches_are_read_up_to_a_number_of_bytes() {
    let bench = Bench::new().await;
    let run = RunId::new(now(), 1);
    let batches = format!(
        r#"insert into history_batches select '{run}', n, n, 1,
             '\x00'::bytea || convert_to('{{"n":"' || repeat('x', 1 << 20) || '"}}', 'UTF8'), '\x005b5d',
             clock_timestamp() from generate_series(1, 10) n"#
    );
    execute(&mut bench.db.connect().await, &batches).await;
    let reads = &bench.store.reads;
    let (part, more) = load::batches_after(reads, unread(run, 0, 0)).await.unwrap();
    assert_eq!((part.len(), more), (4, true));
    let (rest, more) = load::batches_after(reads, unread(run, 8, 9)).await.unwrap();
    assert_eq!((rest.len(), more), (2, false));
    // Of several runs together each gives less, and none keeps the others from being read.
    let mut door = bench.door().await;
    let small = bench.begun(&mut door, "small", "w").await;
    let none = RunId::new(now(), 2);
    let unread = [
        unread(run, 0, 0),
        unread(small.id, 0, 0),
        unread(none, 0, 0),
        unread(run, 9, 10),
    ];
    let news = load::batches_of_many(reads, &unread).await.unwrap();
    let found: Vec<_> = news
        .iter()
        .map(|(news, more)| (news.len(), *more))
        .collect();
    assert_eq!(found, [(1, true), (1, false), (0, false), (1, false)]);
    assert_eq!(news[1].0[0].version, 1);
    assert_eq!(news[3].0[0].version, 10);
    let (page, count) = history::range(reads, run, 2, 9).await.unwrap();
    assert_eq!(count, 3);
    assert!(page.len() < history::PAGE_BYTES);
    let (_, count) = history::range(reads, run, 9, 10).await.unwrap();
    assert_eq!(count, 2);
    bench.end().await;
}

/// Closed runs `from..=to`, every other one archived, each with a key and five batches of history.
async fn closed_runs(admin: &mut PgConnection, from: u32, to: u32) {
    for statement in [
        "insert into workflow_runs (run_id, namespace, workflow_id, run_number, workflow_type, queue, version,
             next_event_id, status, started_at, last_progress_at, closed_at, archived, memo, search_attributes)
         select lpad(n::text, 26, '0'), 'default', 'wf' || n, 1, 'greet', 'q', 5, 11, 4,
             clock_timestamp() - interval '2000 h' + n * interval '1 s', clock_timestamp(),
             clock_timestamp() - interval '800 h', n % 2 = 0, '{}', '{}'",
        "insert into workflow_instances select 'default', 'wf' || n, lpad(n::text, 26, '0'), 1",
        "insert into request_receipts select 'default', 'wf' || n, 'signal', 'key', lpad(n::text, 26, '0'), 1, 'go', 7, '',
             null, clock_timestamp()",
        "insert into history_batches select lpad(n::text, 26, '0'), 2 * v, v, 2, convert_to(repeat('x', 300), 'UTF8'),
             '\\x00', clock_timestamp() from generate_series(1, 5) v,",
    ] {
        let rows = format!("generate_series({from}, {to}) n");
        let from = if statement.ends_with(',') { "" } else { "from" };
        execute(admin, &format!("{statement} {from} {rows}")).await;
    }
    execute(admin, "select pg_stat_force_next_flush()").await;
}

/// Rule: what is due is found and removed by key: a table eight times as large costs no more than the
/// levels that its indexes have grown by, wherever the walk stands.
#[tokio::test(flavor = "multi_thread")]
async fn retention_costs_as_much_in_a_large_table() {
    const SMALL: u32 = 8_000;
    const LARGE: u32 = 64_000;
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    no_background_work(&mut admin).await;
    let (store, door) = single(&bench).await;
    let hot = &store.hot;
    let namespace = "default".into();
    closed_runs(&mut admin, 1, SMALL).await;
    let mut meter = Meter { admin };
    let mut small: Vec<(&str, Cost)> = Vec::new();
    for size in [SMALL, LARGE] {
        if size == LARGE {
            closed_runs(&mut meter.admin, SMALL + 1, LARGE).await;
        }
        let look = retention::look(hot, &namespace, None, 1_000);
        let (first, look) = meter.cost(hot, look).await;
        let first = first.unwrap();
        assert_eq!(first.len(), 1_000);
        let mut middle = first[999].place;
        middle.run = format!("{:0>26}", size / 2).parse().unwrap();
        middle.started_at = middle.started_at.plus_seconds(u64::from(size / 2) - 1_000);
        let later = retention::look(hot, &namespace, Some(middle), 1_000);
        let (later_runs, later) = meter.cost(hot, later).await;
        assert_eq!(later_runs.unwrap().len(), 1_000);
        let due: Vec<RunId> = first
            .iter()
            .filter(|run| run.is_due)
            .map(|run| run.place.run)
            .take(100)
            .collect();
        let (removed, remove) = meter.cost(hot, retention::remove(hot, &due)).await;
        assert_eq!(removed.unwrap().runs.len(), 100);
        let (rows, history) = meter.cost(hot, retention::remove_history(hot, 0)).await;
        assert_eq!(rows.unwrap().rows, 500);
        let costs = [
            ("look", look),
            ("look later", later),
            ("remove", remove),
            ("remove history", history),
        ];
        println!("plans, retention, {size} runs: {costs:?}");
        assert_no_scans(&costs);
        for ((name, before), (_, cost)) in small.iter().zip(&costs) {
            assert!(
                cost.pages <= 2 * before.pages,
                "{name} reads {} pages of a large table and {} of a small one",
                cost.pages,
                before.pages
            );
        }
        small.extend(costs);
    }
    store.close().await;
    door.close().await;
    bench.end().await;
}
