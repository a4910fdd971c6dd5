//! Retention: what is removed with a run and when, what is kept, and how much one statement takes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::domain::decision::Decision;
use leasehold::domain::ids::RunId;
use leasehold::domain::run::{CloseRequest, Input, ObservedLease, RunState};
use leasehold::store::commit::Outcome;
use leasehold::store::retention::{self, HISTORY_ROWS, KEYS, RUNS, RemovedHistory};
use leasehold::store::{PoolSizes, Store, load};
use sqlx::PgConnection;

use crate::kit::*;

fn nobody_holds_it() -> CloseRequest {
    CloseRequest {
        reason: None,
        request_id: None,
        lease: ObservedLease::Free,
    }
}

async fn after(door: &mut PgConnection, state: &RunState, input: Input) -> RunState {
    let mut decision = decided(state, input);
    assert_committed(put_one(door, &mut decision).await);
    Arc::unwrap_or_clone(decision.write.next)
}

/// A run that took a signal with a key.
async fn signalled(door: &mut PgConnection, workflow: &str) -> RunState {
    let mut start = started(workflow);
    assert_committed(put_one(door, &mut start).await);
    after(door, &start.write.next, signal("go", Some("key"))).await
}

async fn closed(door: &mut PgConnection, workflow: &str) -> RunState {
    let open = signalled(door, workflow).await;
    after(door, &open, Input::Terminate(nobody_holds_it())).await
}

/// Makes a run as old as if it had all happened days earlier.
async fn age(admin: &mut PgConnection, run: RunId, days: u32) {
    let by = format!("interval '{} h'", days * 24);
    let statement = format!(
        "update workflow_runs set started_at = started_at - {by}, closed_at = closed_at - {by} where run_id = '{run}'"
    );
    assert_eq!(execute(admin, &statement).await, 1);
}

async fn due(store: &Store) -> Vec<RunId> {
    let looked = retention::look(&store.hot, &"default".into(), None, 1_000).await;
    looked
        .unwrap()
        .iter()
        .filter(|run| run.is_due)
        .map(|run| run.place.run)
        .collect()
}

async fn remove(store: &Store, runs: &[RunId]) -> Vec<RunId> {
    let removed = retention::remove(&store.hot, runs).await.unwrap();
    assert!(!removed.keys_left);
    removed.runs
}

/// The tables that have rows of a run, whatever tables there are.
async fn tables_with(admin: &mut PgConnection, run: RunId) -> Vec<String> {
    let tables = column(
        admin,
        "select table_name::text from information_schema.columns
         where table_schema = 'public' and column_name = 'run_id' order by 1",
    )
    .await;
    let mut found = Vec::new();
    for table in tables {
        let count = format!("select count(*) from {table} where run_id = '{run}'");
        if number(admin, &count).await > 0 {
            found.push(table);
        }
    }
    found
}

/// Closed runs with a workflow id, a key and a batch of history each, that were due long ago.
async fn many_expired(admin: &mut PgConnection, count: u32) {
    for statement in [
        "insert into workflow_runs (run_id, namespace, workflow_id, run_number, workflow_type, queue, version,
             next_event_id, status, started_at, last_progress_at, closed_at, memo, search_attributes)
         select lpad(n::text, 26, '0'), 'default', 'wf' || n, 1, 'greet', 'q', 1, 3, 4,
             clock_timestamp() - interval '1000 h' + n * interval '1 s', clock_timestamp(),
             clock_timestamp() - interval '800 h', '{}', '{}' from generate_series(1, $1) n",
        "insert into workflow_instances select 'default', 'wf' || n, lpad(n::text, 26, '0'), 1 from generate_series(1, $1) n",
        "insert into request_receipts select 'default', 'wf' || n, 'signal', 'key', lpad(n::text, 26, '0'), 1, 'go', 7, '',
             null, clock_timestamp() from generate_series(1, $1) n",
        "insert into history_batches select lpad(n::text, 26, '0'), 1, 1, 2, '\\x00', '\\x00', clock_timestamp()
         from generate_series(1, $1) n",
    ] {
        execute(admin, &statement.replace("$1", &count.to_string())).await;
    }
}

fn numbered(n: u32) -> RunId {
    format!("{n:0>26}").parse().unwrap()
}

/// A run that is gone except for so many rows of history of `bytes` each.
async fn only_history(admin: &mut PgConnection, n: u32, rows: i64, bytes: u32) {
    let run = numbered(n);
    let batches = format!(
        "insert into history_batches select '{run}', n, n, 1, convert_to(repeat('x', {bytes}), 'UTF8'), '\\x00',
             clock_timestamp() from generate_series(1, {rows}) n"
    );
    execute(admin, &batches).await;
    let listed = format!(
        "insert into removed_runs values (clock_timestamp() - interval '1 h' + {n} * interval '1 s', '{run}', {rows})"
    );
    execute(admin, &listed).await;
}

/// Rule: a closed run is due when its namespace's days are over, and goes with everything that names it:
/// at once what it can be found by, its history later.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_with_all_its_rows_when_its_time_is_over() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let run = closed(&mut door, "wf").await;
    let before = tables_with(&mut door, run.id).await;
    assert_eq!(
        before,
        [
            "history_batches",
            "request_receipts",
            "workflow_instances",
            "workflow_runs"
        ]
    );
    assert_eq!(due(&bench.store).await, []);
    age(&mut door, run.id, 29).await;
    assert_eq!(due(&bench.store).await, []);
    assert_eq!(remove(&bench.store, &[run.id]).await, []);
    assert_eq!(tables_with(&mut door, run.id).await, before);
    age(&mut door, run.id, 1).await;
    // For ever is a time as well.
    let days = "update namespaces set retention_days =";
    execute(&mut door, &format!("{days} {}", i32::MAX)).await;
    assert_eq!(due(&bench.store).await, []);
    assert_eq!(remove(&bench.store, &[run.id]).await, []);
    execute(&mut door, &format!("{days} 30")).await;
    assert_eq!(due(&bench.store).await, [run.id]);
    assert_eq!(remove(&bench.store, &[run.id]).await, [run.id]);
    assert_eq!(
        tables_with(&mut door, run.id).await,
        ["history_batches", "removed_runs"]
    );
    assert_eq!(remove(&bench.store, &[run.id]).await, []);
    // Whoever found it just before reads its history to the end.
    let nothing = RemovedHistory {
        rows: 0,
        more: false,
    };
    let early = retention::remove_history(&bench.store.hot, 60_000).await;
    assert_eq!(early.unwrap(), nothing);
    assert_eq!(
        bench.load(run.id).await.map(|state| state.version),
        Some(run.version)
    );
    let rows = run.version.cast_signed();
    let late = retention::remove_history(&bench.store.hot, 0).await;
    assert_eq!(late.unwrap(), RemovedHistory { rows, more: false });
    assert_eq!(tables_with(&mut door, run.id).await, Vec::<String>::new());
    // The workflow id and the key are free.
    let again = closed(&mut door, "wf").await;
    check_run(&bench, &mut door, again.id).await.unwrap();
    bench.end().await;
}

/// Rule: never an open run, an archived run, or one with something to tell that was not taken yet; also
/// when it became so after it was found.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_needed_stay() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut admin = bench.db.connect().await;
    let open = signalled(&mut door, "open").await;
    let archived = closed(&mut door, "archived").await;
    let archived = after(&mut door, &archived, Input::Archive(nobody_holds_it())).await;
    let telling = closed(&mut door, "telling").await;
    let relay = format!(
        "insert into relays values ('{}', 1, '{{}}', clock_timestamp())",
        telling.id
    );
    execute(&mut door, &relay).await;
    let written = closed(&mut door, "written").await;
    let runs = [open.id, archived.id, telling.id, written.id];
    for run in runs {
        age(&mut door, run, 31).await;
    }
    execute(&mut admin, "begin").await;
    let lock = format!(
        "select 1 from workflow_runs where run_id = '{}' for no key update",
        written.id
    );
    execute(&mut admin, &lock).await;
    let before = all_rows(&mut door).await;
    assert_eq!(due(&bench.store).await, [telling.id, written.id]);
    assert_eq!(remove(&bench.store, &runs).await, []);
    assert_eq!(all_rows(&mut door).await, before);
    execute(&mut admin, "rollback").await;
    execute(&mut door, "delete from relays").await;
    let mut gone = remove(&bench.store, &runs).await;
    gone.sort_unstable();
    assert_eq!(gone, [telling.id, written.id]);
    check_run(&bench, &mut door, open.id).await.unwrap();
    check_run(&bench, &mut door, archived.id).await.unwrap();
    bench.end().await;
}

/// Rule: a predecessor goes before the run that the workflow id stands for, whose number stays; the id
/// goes with its last run and is free then.
#[tokio::test(flavor = "multi_thread")]
async fn the_workflow_id_goes_with_the_last_run_of_its_chain() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let first = bench.begun(&mut door, "wf", "w").await;
    let mut continued = complete(&first, "w", vec![continue_as_new()]);
    assert_committed(put_one(&mut door, &mut continued).await);
    let second = Arc::clone(&continued.created[0].next);
    let (namespace, workflow) = ("default".into(), "wf".into());
    let reads = &bench.store.reads;
    for run in [first.id, second.id] {
        age(&mut door, run, 31).await;
    }
    let closed = after(&mut door, &second, Input::Terminate(nobody_holds_it())).await;
    age(&mut door, closed.id, 31).await;
    // Without it the older one could not be reached.
    assert_eq!(remove(&bench.store, &[second.id]).await, []);
    assert_eq!(
        remove(&bench.store, &[first.id, second.id]).await,
        [first.id]
    );
    let current = load::current_run(reads, &namespace, &workflow).await;
    assert_eq!(current.unwrap().unwrap().run, second.id);
    let count = load::run_count(reads, &namespace, &workflow).await;
    assert_eq!(count.unwrap(), 2);
    check_run(&bench, &mut door, second.id).await.unwrap();
    assert_eq!(remove(&bench.store, &[second.id]).await, [second.id]);
    let current = load::current_run(reads, &namespace, &workflow).await;
    assert!(current.unwrap().is_none());
    let again = bench.begun(&mut door, "wf", "w").await;
    assert_eq!(again.begun.run_number, 1);
    bench.end().await;
}

/// Removes everything that is due, as a node does that is not alone.
async fn empty(store: &Store) -> (Vec<RunId>, i64) {
    let mut removed = Vec::new();
    loop {
        let due = due(store).await;
        if due.is_empty() {
            break;
        }
        for batch in due.chunks(usize::try_from(RUNS).unwrap()) {
            removed.extend(remove(store, batch).await);
        }
    }
    let mut rows = 0;
    loop {
        let history = retention::remove_history(&store.hot, 0).await.unwrap();
        rows += history.rows;
        if !history.more {
            return (removed, rows);
        }
    }
}

/// Rule: the pass is safe on all nodes at once: each run is removed by one of them.
#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_remove_each_run_once() {
    const COUNT: u32 = 900;
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    many_expired(&mut admin, COUNT).await;
    let nodes: Vec<_> = (0..2)
        .map(|_| {
            let options = bench.db.options.clone();
            tokio::spawn(async move {
                let store = Store::new(options, PoolSizes { reads: 1, hot: 1 });
                let done = empty(&store).await;
                store.close().await;
                done
            })
        })
        .collect();
    let (mut removed, mut rows) = (Vec::new(), 0);
    for node in nodes {
        let (by_this, history) = node.await.unwrap();
        removed.extend(by_this);
        rows += history;
    }
    removed.sort_unstable();
    let all: Vec<RunId> = (1..=COUNT).map(numbered).collect();
    assert_eq!(removed, all);
    // One of them may have looked for history before the other had removed its last runs.
    rows += empty(&bench.store).await.1;
    assert_eq!(rows, i64::from(COUNT));
    let left = number(&mut admin, "select count(*) from removed_runs").await;
    assert_eq!(left, 0);
    assert_eq!(all_rows(&mut admin).await, Vec::<String>::new());
    bench.end().await;
}

/// Rule: what one statement removes is bounded, however long a history is, in rows and in bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_history_goes_in_parts() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    let listed = "select count(*) from removed_runs";
    only_history(&mut admin, 1, 10, 100).await;
    only_history(&mut admin, 2, 2 * HISTORY_ROWS + 500, 100).await;
    only_history(&mut admin, 3, 10, 100).await;
    let hot = &bench.store.hot;
    for (rows, more, left) in [
        (HISTORY_ROWS, true, 2),
        (HISTORY_ROWS, true, 2),
        (510, true, 1),
        (10, false, 0),
    ] {
        let part = retention::remove_history(hot, 0).await.unwrap();
        assert_eq!(part, RemovedHistory { rows, more });
        assert_eq!(number(&mut admin, listed).await, left);
    }
    only_history(&mut admin, 4, 10, 1 << 20).await;
    for (rows, more) in [(4, true), (4, true), (2, false)] {
        let part = retention::remove_history(hot, 0).await.unwrap();
        assert_eq!(part, RemovedHistory { rows, more });
    }
    let left = "select count(*) from history_batches";
    assert_eq!(number(&mut admin, left).await, 0);
    bench.end().await;
}

/// Rule: so are the request keys that go with a run, which are free when it is gone and not before.
#[tokio::test(flavor = "multi_thread")]
async fn many_request_keys_go_in_parts_before_their_run() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    many_expired(&mut admin, 2).await;
    let keys = format!(
        "insert into request_receipts select 'default', 'wf1', 'signal', 'k' || n, '{}', 1, 'go', 7, '', null,
             clock_timestamp() from generate_series(1, {}) n",
        numbered(1),
        2 * KEYS + 500
    );
    execute(&mut admin, &keys).await;
    let runs = [numbered(1), numbered(2)];
    let count = "select count(*) from request_receipts";
    for left in [KEYS + 502, 502] {
        let removed = retention::remove(&bench.store.hot, &runs).await.unwrap();
        assert_eq!(removed.runs, []);
        assert!(removed.keys_left);
        assert_eq!(number(&mut admin, count).await, left);
    }
    let mut gone = remove(&bench.store, &runs).await;
    gone.sort_unstable();
    assert_eq!(gone, runs);
    assert_eq!(number(&mut admin, count).await, 0);
    bench.end().await;
}

/// What happens to workflows until their time is over, which is at once.
struct Life {
    started: BTreeSet<RunId>,
    refused: usize,
    archived: BTreeSet<RunId>,
}

async fn put_all(door: &mut PgConnection, decisions: &mut [Decision]) -> Vec<Outcome> {
    put(door, decisions.iter_mut().collect()).await
}

/// Starts, signals and ends workflows in batches. Most of their ids are other callers' as well; some
/// workflows are archived, unless they are removed before.
async fn live(mut door: PgConnection, caller: u64) -> Life {
    const ROUNDS: u64 = 150;
    let mut dice = Dice(caller);
    let mut life = Life {
        started: BTreeSet::new(),
        refused: 0,
        archived: BTreeSet::new(),
    };
    for round in 0..ROUNDS {
        let own = format!("own-{caller}-{round}");
        let mut names: Vec<String> = (0..3).map(|_| format!("id-{}", dice.below(8))).collect();
        names.push(own);
        let mut starts: Vec<Decision> = names.iter().map(|name| started(name)).collect();
        let outcomes = put_all(&mut door, &mut starts).await;
        let mut states: Vec<Arc<RunState>> = Vec::new();
        for (start, outcome) in starts.iter().zip(outcomes) {
            match outcome {
                Outcome::Committed(_) => states.push(Arc::clone(&start.write.next)),
                Outcome::Refused => life.refused += 1,
                other => panic!("{other:?}"),
            }
        }
        life.started.extend(states.iter().map(|state| state.id));
        // An id that is free has no keys, and nobody but its caller writes a run.
        for input in [
            signal("go", Some("key")),
            Input::Terminate(nobody_holds_it()),
        ] {
            let mut decisions: Vec<Decision> = states
                .iter()
                .map(|state| decided(state, input.clone()))
                .collect();
            for outcome in put_all(&mut door, &mut decisions).await {
                assert_committed(outcome);
            }
            states = decisions
                .iter()
                .map(|decision| Arc::clone(&decision.write.next))
                .collect();
        }
        let last = states.last().unwrap();
        let mut archived = decided(last, Input::Archive(nobody_holds_it()));
        match put_one(&mut door, &mut archived).await {
            Outcome::Committed(_) => {
                life.archived.insert(last.id);
            }
            Outcome::Refused => {}
            other => panic!("{other:?}"),
        }
    }
    life
}

/// Rule: retention disturbs nobody: workflow ids are used again while their former runs are removed by
/// two nodes, nothing fails for it, and a run is either archived or removed, once.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_used_again_while_their_runs_are_removed() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    execute(&mut admin, "update namespaces set retention_days = 0").await;
    let over = Arc::new(AtomicBool::new(false));
    let nodes: Vec<_> = (0..2)
        .map(|_| {
            let over = Arc::clone(&over);
            let store = Store::new(bench.db.options.clone(), PoolSizes { reads: 1, hot: 1 });
            tokio::spawn(async move {
                let mut removed = Vec::new();
                while !over.load(Ordering::SeqCst) {
                    removed.extend(empty(&store).await.0);
                }
                store.close().await;
                removed
            })
        })
        .collect();
    let mut callers = Vec::new();
    for caller in 0..3 {
        callers.push(tokio::spawn(live(bench.door().await, caller)));
    }
    let (mut started, mut archived, mut refused) = (BTreeSet::new(), BTreeSet::new(), 0);
    for caller in callers {
        let life = caller.await.unwrap();
        started.extend(life.started);
        archived.extend(life.archived);
        refused += life.refused;
    }
    over.store(true, Ordering::SeqCst);
    let mut removed = Vec::new();
    for node in nodes {
        removed.extend(node.await.unwrap());
    }
    removed.extend(empty(&bench.store).await.0);
    println!(
        "retention: {} started, {refused} refused, {} archived",
        started.len(),
        archived.len()
    );
    let once: BTreeSet<RunId> = removed.iter().copied().collect();
    assert_eq!(once.len(), removed.len());
    assert_eq!(&once | &archived, started);
    assert!(once.is_disjoint(&archived));
    for run in &archived {
        check_run(&bench, &mut admin, *run).await.unwrap();
    }
    for table in ["workflow_runs", "workflow_instances", "request_receipts"] {
        let rows = number(&mut admin, &format!("select count(*) from {table}")).await;
        assert_eq!(rows, i64::try_from(archived.len()).unwrap(), "{table}");
    }
    assert!(refused > 0 && !archived.is_empty() && started.len() > archived.len() + 8);
    bench.end().await;
}
