//! Lanes: order, batches, the bound in front of them, and what a lost connection costs.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use leasehold::domain::decision::HandOff;
use leasehold::domain::ids::RunId;
use leasehold::domain::run::{Held, RunState};
use leasehold::payload::{Codec, Payload};
use leasehold::store::commit::{MAX_BATCH, Outcome, PINNED};
use leasehold::store::item::Item;
use leasehold::store::lane::{BATCH_BYTES, Busy, FEW, Lanes, QUEUE_BOUND};
use sqlx::{Connection, PgConnection, Row};
use tokio::task::JoinSet;

use crate::kit::*;
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn the_pinned_settings_hold_whatever_the_database_prefers() {
    let bench = Bench::new().await;
    let mut admin = bench.db.connect().await;
    let name = column(&mut admin, "select current_database()::text")
        .await
        .remove(0);
    let preferred = [
        ("jit", "on"),
        ("plan_cache_mode", "force_custom_plan"),
        ("enable_seqscan", "on"),
        ("lock_timeout", "7s"),
        ("default_transaction_isolation", "serializable"),
    ];
    for (setting, value) in preferred {
        execute(
            &mut admin,
            &format!("alter database {name} set {setting} = '{value}'"),
        )
        .await;
    }
    let show = async |connection: &mut PgConnection| {
        let mut shown = Vec::new();
        for (setting, _) in PINNED {
            shown.push((
                *setting,
                column(connection, &format!("show {setting}"))
                    .await
                    .remove(0),
            ));
        }
        shown
    };
    let wanted: Vec<(&str, String)> = PINNED
        .iter()
        .map(|(setting, value)| {
            let shown = match *value {
                "2000" => "2s",
                "10000" => "10s",
                other => other,
            };
            (*setting, shown.to_owned())
        })
        .collect();
    assert!(wanted.contains(&("default_transaction_isolation", "read committed".to_owned())));
    let mut door = bench.door().await;
    assert_eq!(show(&mut door).await, wanted);
    let isolation = column(&mut door, "show transaction_isolation").await;
    assert_eq!(isolation, ["read committed"]);
    let mut hot = bench.store.hot.acquire().await.unwrap();
    assert_eq!(show(&mut hot).await, wanted);
    drop(hot);
    bench.end().await;
}

/// Holds the header of a run until it is let go; a lane that writes the run waits for it.
struct Block {
    connection: PgConnection,
}

impl Block {
    async fn on(bench: &Bench, run: RunId) -> Self {
        let mut connection = bench.db.connect().await;
        execute(&mut connection, "begin").await;
        let lock = format!("select 1 from workflow_runs where run_id = '{run}' for update");
        execute(&mut connection, &lock).await;
        Self { connection }
    }

    async fn lift(mut self) {
        execute(&mut self.connection, "rollback").await;
    }
}

/// One lane that is busy with a blocked run, and that run's outcome.
async fn busy_lane(
    bench: &Bench,
    batch: usize,
) -> (Lanes, Block, tokio::task::JoinHandle<Outcome>) {
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "blocked", "w").await;
    let block = Block::on(bench, state.id).await;
    let lanes = Lanes::start(&bench.store, 1, batch);
    let mut decision = decided(&state, signal("go", None));
    let blocked = item(&mut decision);
    let waiting = tokio::spawn({
        let lanes = lanes.clone();
        async move { lanes.commit(blocked).await.unwrap() }
    });
    until_waiting(&mut door, 1).await;
    (lanes, block, waiting)
}

/// Drives a commit in a task of its own. The item has its place in the queue when this returns.
async fn drive(
    commit: impl Future<Output = Result<Outcome, Busy>> + Send + 'static,
    to: &mut JoinSet<Result<Outcome, Busy>>,
) {
    let (queued, is_queued) = tokio::sync::oneshot::channel();
    to.spawn(async move {
        let mut commit = Box::pin(commit);
        // The first poll puts it into the queue.
        let first = poll_fn(|context| Poll::Ready(commit.as_mut().poll(context))).await;
        let _ = queued.send(());
        match first {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => commit.await,
        }
    });
    is_queued.await.unwrap();
}

/// Gives an item to the lanes that a caller waits for.
async fn enqueue(lanes: &Lanes, item: Item, to: &mut JoinSet<Result<Outcome, Busy>>) {
    let lanes = lanes.clone();
    drive(async move { lanes.commit(item).await }, to).await;
}

/// Like [`enqueue`], for what gives way.
async fn enqueue_giving_way(lanes: &Lanes, item: Item, to: &mut JoinSet<Result<Outcome, Busy>>) {
    let lanes = lanes.clone();
    drive(async move { lanes.commit_giving_way(item).await }, to).await;
}

/// Like [`enqueue`], for work that is due.
async fn enqueue_due(lanes: &Lanes, item: Item, to: &mut JoinSet<Result<Outcome, Busy>>) {
    let lanes = lanes.clone();
    drive(async move { Ok(lanes.commit_due(item).await) }, to).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_are_bounded_and_writes_of_a_run_stay_in_order() {
    const STARTS: usize = 300;
    const WRITES: usize = 40;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut state = bench.begun(&mut door, "ordered", "w").await;
    let (lanes, block, blocked) = busy_lane(&bench, MAX_BATCH).await;
    let mut waiting = JoinSet::new();
    // Each write of the run is decided on the one before it: out of order, the fences refuse it.
    let mut chain: Vec<Item> = Vec::new();
    for n in 0..WRITES {
        let mut decision = decided(&state, signal(&format!("{n}"), None));
        chain.push(item(&mut decision));
        state = std::sync::Arc::unwrap_or_clone(decision.write.next);
    }
    let mut chain = chain.into_iter();
    for n in 0..STARTS {
        enqueue(&lanes, item(&mut started(&format!("wf-{n}"))), &mut waiting).await;
        if n % (STARTS / WRITES) == 0
            && let Some(next) = chain.next()
        {
            enqueue(&lanes, next, &mut waiting).await;
        }
    }
    for next in chain {
        enqueue(&lanes, next, &mut waiting).await;
    }
    block.lift().await;
    all_committed(waiting, blocked).await;
    let folded = check_run(&bench, &mut door, state.id).await.unwrap();
    let names: Vec<String> = folded
        .held
        .iter()
        .map(|held| match &**held {
            Held::Signal(signal) => signal.name.to_string(),
            Held::Update(update) => update.name.to_string(),
        })
        .collect();
    assert_eq!(
        names,
        (0..WRITES).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    let batches = sqlx::query("select count(*) as items from history_batches group by recorded_at")
        .fetch_all(&mut door)
        .await
        .unwrap();
    let sizes: Vec<i64> = batches.iter().map(|row| row.get(0)).collect();
    let largest = *sizes.iter().max().unwrap();
    assert_eq!(largest, i64::try_from(MAX_BATCH).unwrap(), "{sizes:?}");
    bench.end().await;
}

/// A smaller bound is kept: with one, each decision is a commit of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_lane_writes_no_more_at_once_than_it_may() {
    const STARTS: usize = 12;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let (lanes, block, blocked) = busy_lane(&bench, 1).await;
    let mut waiting = JoinSet::new();
    for n in 0..STARTS {
        enqueue(&lanes, item(&mut started(&format!("wf-{n}"))), &mut waiting).await;
    }
    block.lift().await;
    all_committed(waiting, blocked).await;
    let sizes = sqlx::query("select count(*) as items from history_batches group by xmin::text")
        .fetch_all(&mut door)
        .await
        .unwrap();
    assert!(sizes.len() > STARTS);
    assert!(sizes.iter().all(|row| row.get::<i64, _>(0) == 1));
    bench.end().await;
}

/// A task that nobody waited for is offered once more when its commit begins, and is then held as if it had been handed
/// out at once.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_while_a_commit_waits_is_handed_its_task() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut at_once = started("at-once");
    hand_out(&mut at_once, "w");
    assert_committed(put_one(&mut door, &mut at_once).await);
    let (lanes, block, blocked) = busy_lane(&bench, MAX_BATCH).await;
    let mut waiting = JoinSet::new();
    let has_come = Arc::new(AtomicBool::new(false));
    for (workflow, comes) in [("late", true), ("never", false)] {
        let mut decision = started(workflow);
        let no = open_task(&decision.write.next);
        let mut item = item(&mut decision);
        let has_come = Arc::clone(&has_come);
        let offer = move || {
            let to = HandOff {
                owner: "w".into(),
                poll_request_id: None,
                knows: i64::MAX,
            };
            (comes && has_come.load(Ordering::SeqCst)).then_some(to)
        };
        item.offer(0, no, Box::new(offer));
        enqueue(&lanes, item, &mut waiting).await;
    }
    has_come.store(true, Ordering::SeqCst);
    block.lift().await;
    all_committed(waiting, blocked).await;
    let mut task = async |workflow: &str| {
        let task = "select (to_jsonb(t) - '{run_id, visible_at, lease_expires_at, start_to_close_at, \
                    heartbeat_due_at}'::text[])::text from tasks t join workflow_runs using (run_id)";
        column(
            &mut door,
            &format!("{task} where workflow_id = '{workflow}'"),
        )
        .await
    };
    let (at_once, late, never) = (
        task("at-once").await,
        task("late").await,
        task("never").await,
    );
    assert_eq!(late, at_once);
    assert!(late[0].contains("\"lease_owner\": \"w\""), "{late:?}");
    assert!(never[0].contains("\"lease_owner\": null"), "{never:?}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_the_bound_is_told_so_and_not_written() {
    let bench = Bench::new().await;
    let (lanes, block, blocked) = busy_lane(&bench, MAX_BATCH).await;
    let mut waiting = JoinSet::new();
    let over = 100;
    let mut items = Vec::new();
    for n in 0..QUEUE_BOUND + over {
        items.push(item(&mut started(&format!("wf-{n}"))));
    }
    for item in items {
        enqueue(&lanes, item, &mut waiting).await;
    }
    block.lift().await;
    let (mut written, mut busy) = (0, 0);
    while let Some(outcome) = waiting.join_next().await {
        match outcome.unwrap() {
            Ok(outcome) => {
                assert_committed(outcome);
                written += 1;
            }
            Err(Busy) => busy += 1,
        }
    }
    assert_committed(blocked.await.unwrap());
    assert_eq!(busy, over);
    let mut connection = bench.db.connect().await;
    let stored = number(&mut connection, "select count(*) from workflow_runs").await;
    // The blocked run is one of them.
    assert_eq!(stored, written + 1);
    bench.end().await;
}

/// Everything that waited was written, and the blocked run.
async fn all_committed(
    mut waiting: JoinSet<Result<Outcome, Busy>>,
    blocked: tokio::task::JoinHandle<Outcome>,
) {
    while let Some(outcome) = waiting.join_next().await {
        assert_committed(outcome.unwrap().unwrap());
    }
    assert_committed(blocked.await.unwrap());
}

/// Signals to as many runs `other-…`, which are begun.
async fn signals(bench: &Bench, door: &mut PgConnection, count: usize) -> Vec<Item> {
    let mut signals = Vec::new();
    for n in 0..count {
        let state = bench.begun(door, &format!("other-{n}"), "w").await;
        signals.push(item(&mut decided(&state, signal("go", None))));
    }
    signals
}

/// What each statement wrote of what waited behind the blocked run, in order.
async fn statements(connection: &mut PgConnection) -> Vec<String> {
    column(
        connection,
        "select string_agg(split_part(workflow_id, '-', 1), ' ' order by workflow_id)
         from history_batches join workflow_runs using (run_id) where workflow_id <> 'blocked'
         group by recorded_at order by recorded_at",
    )
    .await
}

/// Rule: what is due does not stand behind what callers wait for, nor the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn due_work_and_callers_share_each_statement() {
    for (asked, due, expected) in [
        (
            6,
            2,
            &["asked asked due due", "asked asked asked asked"] as &[&str],
        ),
        (2, 6, &["asked asked due due", "due due due due"]),
        (0, 5, &["due due due due", "due"]),
        (1, 4, &["asked due due due", "due"]),
    ] {
        let bench = Bench::new().await;
        let mut door = bench.door().await;
        let (lanes, block, blocked) = busy_lane(&bench, 4).await;
        let mut waiting = JoinSet::new();
        for n in 0..asked {
            let name = format!("asked-{n}");
            enqueue(&lanes, item(&mut started(&name)), &mut waiting).await;
        }
        for n in 0..due {
            let name = format!("due-{n}");
            enqueue_due(&lanes, item(&mut started(&name)), &mut waiting).await;
        }
        block.lift().await;
        all_committed(waiting, blocked).await;
        assert_eq!(
            statements(&mut door).await,
            expected,
            "{asked} asked, {due} due"
        );
        bench.end().await;
    }
}

/// Rule: under overload what was begun comes before what is new, which still goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_gives_way_has_a_part_of_each_statement() {
    let few = i64::try_from(FEW).unwrap();
    // The blocked one counts among the others.
    for (batch, others, starts, expected) in [
        (
            128,
            20,
            20,
            &[(20_i64, 7_i64), (0, few), (0, 13 - few)] as &[_],
        ),
        (128, 60, 40, &[(60, 20), (0, few), (0, 20 - few)]),
        (128, 1, 2, &[(1, 1), (0, 1)]),
        (128, 0, 20, &[(0, few), (0, 20 - few)]),
        (56, 80, 40, &[(42, 14), (38, 13), (0, few), (0, 13 - few)]),
        (8, 8, 8, &[(6, 2), (2, 1), (0, 5)]),
        (1, 2, 2, &[(0, 1), (0, 1), (1, 0), (1, 0)]),
    ] {
        let bench = Bench::new().await;
        let mut door = bench.door().await;
        let signals = signals(&bench, &mut door, others).await;
        let (lanes, block, blocked) = busy_lane(&bench, batch).await;
        let mut waiting = JoinSet::new();
        for n in 0..starts {
            let start = item(&mut started(&format!("start-{n}")));
            enqueue_giving_way(&lanes, start, &mut waiting).await;
        }
        for signal in signals {
            enqueue(&lanes, signal, &mut waiting).await;
        }
        // Long beside what passes between a decision and its place in the queue.
        execute(&mut door, "select pg_sleep(0.4)").await;
        block.lift().await;
        all_committed(waiting, blocked).await;
        // What waited to be written was not ready meanwhile.
        let early = "select count(*) from tasks t join history_batches b using (run_id) join workflow_runs using (run_id)
             where workflow_id like 'start-%' and t.visible_at < b.recorded_at - interval '200 ms'";
        assert_eq!(number(&mut door, early).await, 0);
        let written = sqlx::query(
            "select count(*) filter (where b.version > 1), count(*) filter (where b.version = 1)
             from history_batches b join workflow_runs r using (run_id)
             where workflow_id <> 'blocked' and (b.version > 1 or workflow_id like 'start-%')
             group by recorded_at order by recorded_at",
        );
        let written: Vec<(i64, i64)> = written
            .fetch_all(&mut door)
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        assert_eq!(
            written, expected,
            "{others} others, {starts} starts of {batch}"
        );
        bench.end().await;
    }
}

/// Rule: the same when a statement has room for one.
#[tokio::test(flavor = "multi_thread")]
async fn due_work_and_callers_take_turns() {
    const EACH: usize = 4;
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let (lanes, block, blocked) = busy_lane(&bench, 1).await;
    let mut waiting = JoinSet::new();
    for n in 0..EACH {
        let (asked, due) = (format!("asked-{n}"), format!("due-{n}"));
        enqueue(&lanes, item(&mut started(&asked)), &mut waiting).await;
        enqueue_due(&lanes, item(&mut started(&due)), &mut waiting).await;
    }
    block.lift().await;
    all_committed(waiting, blocked).await;
    let written = statements(&mut door).await;
    assert_eq!(written.len(), 2 * EACH);
    assert!(
        written.windows(2).all(|two| two[0] != two[1]),
        "{written:?}"
    );
    bench.end().await;
}

/// A payload of so many bytes that does not get smaller when it is packed.
fn noise(bytes: usize) -> Payload {
    let mut state = 1_u32;
    let letters = (0..bytes).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 27) as u8 % 26)
    });
    Payload::new(Codec::Avro, &letters.collect::<String>())
}

/// Rule: a statement has a bound in bytes, and what is larger than it is written alone.
#[tokio::test(flavor = "multi_thread")]
async fn large_decisions_are_written_a_few_at_a_time() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let (lanes, block, blocked) = busy_lane(&bench, MAX_BATCH).await;
    let mut waiting = JoinSet::new();
    let third = BATCH_BYTES / 3;
    for (n, bytes) in [third, third, 10, third, 2 * BATCH_BYTES, 10, 10]
        .into_iter()
        .enumerate()
    {
        let mut wanted = request(&format!("{n}-wf"));
        wanted.input = noise(bytes);
        enqueue(&lanes, item(&mut started_with(wanted)), &mut waiting).await;
    }
    block.lift().await;
    all_committed(waiting, blocked).await;
    assert_eq!(statements(&mut door).await, ["0 1 2", "3", "4", "5 6"]);
    bench.end().await;
}

/// Rule: a large decision of a caller finds room although due work never ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_decision_does_not_wait_for_the_end_of_due_work() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let (lanes, block, blocked) = busy_lane(&bench, 4).await;
    let mut waiting = JoinSet::new();
    let mut wanted = request("asked-wf");
    wanted.input = noise(2 * BATCH_BYTES);
    for n in 0..12 {
        let name = format!("due-{n}");
        enqueue_due(&lanes, item(&mut started(&name)), &mut waiting).await;
    }
    enqueue(&lanes, item(&mut started_with(wanted)), &mut waiting).await;
    block.lift().await;
    all_committed(waiting, blocked).await;
    let written = statements(&mut door).await;
    assert!(written[..2].contains(&"asked".to_owned()), "{written:?}");
    bench.end().await;
}

/// Rule: the same for a large start behind what other callers wait for.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_start_does_not_wait_for_the_end_of_other_work() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let signals = signals(&bench, &mut door, 12).await;
    let (lanes, block, blocked) = busy_lane(&bench, 4).await;
    let mut waiting = JoinSet::new();
    for signal in signals {
        enqueue(&lanes, signal, &mut waiting).await;
    }
    let mut wanted = request("start-wf");
    wanted.input = noise(2 * BATCH_BYTES);
    enqueue_giving_way(&lanes, item(&mut started_with(wanted)), &mut waiting).await;
    block.lift().await;
    all_committed(waiting, blocked).await;
    let written = statements(&mut door).await;
    // Those that began the other runs came before.
    assert!(written[12..14].contains(&"start".to_owned()), "{written:?}");
    bench.end().await;
}

async fn kill_lanes(connection: &mut PgConnection) -> i64 {
    number(
        connection,
        "select count(pg_terminate_backend(pid)) from pg_stat_activity
         where datname = current_database() and application_name = 'leasehold commit'",
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_reconnects_after_its_backend_was_killed() {
    let bench = Bench::new().await;
    let mut connection = bench.db.connect().await;
    let lanes = Lanes::start(&bench.store, 1, MAX_BATCH);
    assert_committed(lanes.commit(item(&mut started("before"))).await.unwrap());
    assert_eq!(kill_lanes(&mut connection).await, 1);
    let mut tries = 0;
    eventually("a commit works again", 10, async || {
        tries += 1;
        let outcome = lanes
            .commit(item(&mut started(&format!("after-{tries}"))))
            .await
            .unwrap();
        matches!(outcome, Outcome::Committed(_)).then_some(())
    })
    .await;
    assert!(
        tries <= 2,
        "one commit meets the dead connection, no more: {tries}"
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_said_to_be_out_of_reach() {
    let bench = Bench::new().await;
    let nowhere = bench.db.options.clone().socket("/nonexistent");
    let store =
        leasehold::store::Store::new(nowhere, leasehold::store::PoolSizes { reads: 1, hot: 1 });
    let lanes = Lanes::start(&store, 1, MAX_BATCH);
    let outcome = lanes.commit(item(&mut started("wf"))).await.unwrap();
    assert_eq!(outcome, Outcome::Unreached);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_while_lanes_are_killed() {
    const CALLERS: usize = 8;
    const STARTS: usize = 60;
    let bench = Bench::new().await;
    let lanes = Lanes::start(&bench.store, 2, MAX_BATCH);
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let lanes = lanes.clone();
        callers.spawn(async move {
            let mut outcomes = Vec::new();
            for n in 0..STARTS {
                let mut decision = started(&format!("wf-{caller}-{n}"));
                let outcome = lanes.commit(item(&mut decision)).await.unwrap();
                outcomes.push((decision.run_id(), outcome));
                if outcome == Outcome::Unreached {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
            outcomes
        });
    }
    let mut killer = bench.db.connect().await;
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let killing = tokio::spawn(async move {
        let mut killed = 0;
        while stopped.try_recv().is_err() {
            killed += kill_lanes(&mut killer).await;
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        killed
    });
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut states: Vec<RunState> = Vec::new();
    while let Some(outcomes) = callers.join_next().await {
        for (run, outcome) in outcomes.unwrap() {
            let state = bench.load(run).await;
            let word = match outcome {
                Outcome::Committed(_) => {
                    assert!(state.is_some(), "{run} was acknowledged and is lost");
                    "committed"
                }
                Outcome::Unknown => "unknown",
                Outcome::Unreached => {
                    assert!(state.is_none(), "{run} was not sent and is there");
                    "unreached"
                }
                other => panic!("{other:?}"),
            };
            *counts.entry(word).or_default() += 1;
            states.extend(state);
        }
    }
    stop.send(()).unwrap();
    let killed = killing.await.unwrap();
    println!("lanes: {killed} connections killed, {counts:?}");
    assert!(killed > 0 && counts["committed"] > 0);
    let mut connection = bench.db.connect().await;
    let stored = number(&mut connection, "select count(*) from workflow_runs").await;
    assert_eq!(stored, i64::try_from(states.len()).unwrap());
    for state in states {
        check_run(&bench, &mut connection, state.id).await.unwrap();
    }
    connection.close().await.unwrap();
    bench.end().await;
}
