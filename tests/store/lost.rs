//! Statements that fail and connections that break: neighbours are not taken along, and an unknown
//! outcome is told from a known one.

use std::time::{Duration, Instant};

use leasehold::domain::ids::TaskId;
use leasehold::store::commit::{self, Outcome};
use leasehold::store::load;
use sqlx::{Connection, PgConnection};

use crate::kit::*;
use crate::proxy::Proxy;
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_the_database_cannot_take_fails_alone() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut runs = Vec::new();
    for n in 0..5 {
        runs.push(bench.begun(&mut door, &format!("wf-{n}"), "w").await);
    }
    let mut decisions: Vec<_> = runs
        .iter()
        .map(|run| decided(run, signal("go", Some("key"))))
        .collect();
    // A NUL has no place in a text column.
    decisions[2] = decided(&runs[2], signal("a\0b", Some("key")));
    let before = rows_of(&mut door, runs[2].id).await;
    let outcomes = put(&mut door, decisions.iter_mut().collect()).await;
    for (n, outcome) in outcomes.into_iter().enumerate() {
        if n == 2 {
            assert_eq!(outcome, Outcome::Failed);
        } else {
            assert_committed(outcome);
        }
        let state = check_run(&bench, &mut door, runs[n].id).await.unwrap();
        assert_eq!(state.signals, u64::from(n != 2));
    }
    assert_eq!(rows_of(&mut door, runs[2].id).await, before);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_somebody_holds_on_to_is_given_up_alone_and_may_be_tried_again() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let blocked = bench.begun(&mut door, "blocked", "w").await;
    let free = bench.begun(&mut door, "free", "w").await;
    let mut blocker = bench.db.connect().await;
    let mut transaction = blocker.begin().await.unwrap();
    let lock = format!(
        "select 1 from workflow_runs where run_id = '{}' for update",
        blocked.id
    );
    execute(&mut transaction, &lock).await;
    let mut on_blocked = complete(&blocked, "w", everything());
    let mut on_free = complete(&free, "w", everything());
    let outcomes = put(&mut door, vec![&mut on_blocked, &mut on_free]).await;
    assert_eq!(outcomes[0], Outcome::Crowded);
    assert_committed(outcomes[1]);
    transaction.rollback().await.unwrap();
    let mut again = complete(&blocked, "w", everything());
    assert_committed(put_one(&mut door, &mut again).await);
    check_run(&bench, &mut door, blocked.id).await.unwrap();
    check_run(&bench, &mut door, free.id).await.unwrap();
    bench.end().await;
}

/// Ends the other sessions of this database that are called so.
async fn kill(connection: &mut PgConnection, name: &str) -> i64 {
    let statement = format!(
        "select count(pg_terminate_backend(pid)) from pg_stat_activity
         where datname = current_database() and application_name = '{name}' and pid <> pg_backend_pid()"
    );
    number(connection, &statement).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_killed_before_the_commit_leaves_an_unknown_outcome_and_no_trace() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let before = all_rows(&mut door).await;
    let mut blocker = bench.db.connect().await;
    let mut killer = bench.db.connect().await;
    let mut transaction = blocker.begin().await.unwrap();
    let lock = format!(
        "select 1 from workflow_runs where run_id = '{}' for update",
        state.id
    );
    execute(&mut transaction, &lock).await;
    let mut waiting_door = bench.door().await;
    let decided_on = state.clone();
    let waiting = tokio::spawn(async move {
        let mut one = complete(&decided_on, "w", everything());
        let mut two = started("never");
        put(&mut waiting_door, vec![&mut one, &mut two]).await
    });
    until_waiting(&mut killer, 1).await;
    // The door that only the assertions use is called so, too.
    assert_eq!(kill(&mut killer, "leasehold commit").await, 2);
    assert_eq!(waiting.await.unwrap(), [Outcome::Unknown, Outcome::Unknown]);
    transaction.rollback().await.unwrap();
    let mut door = bench.door().await;
    assert_eq!(all_rows(&mut door).await, before);
    // Looked at, nothing is there, so the same is decided again.
    let newest = bench.load(state.id).await.unwrap();
    let mut again = complete(&newest, "w", everything());
    assert_committed(put_one(&mut door, &mut again).await);
    check_run(&bench, &mut door, state.id).await.unwrap();
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_after_the_commit_leaves_an_unknown_outcome_that_a_repeat_finds() {
    let bench = Bench::new().await;
    let proxy = Proxy::start(&bench.db.options, "cut");
    let mut door = commit::connect(&proxy.options).await.unwrap();
    let state = bench.begun(&mut door, "wf", "w").await;
    let input = completion(&state, open_task(&state), "w", 1, everything());
    let mut decision = decided(&state, input.clone());
    let mut other = started("other");
    // A batch like the one that is cut, so that its statement is prepared and its one answer is that
    // of the commit.
    let like = bench.begun(&mut door, "like", "w").await;
    let mut like = [complete(&like, "w", everything()), started("like too")];
    for outcome in put(&mut door, like.iter_mut().collect()).await {
        assert_committed(outcome);
    }
    proxy.cut_at_answers();
    let outcomes = put(&mut door, vec![&mut decision, &mut other]).await;
    assert_eq!(outcomes, [Outcome::Unknown, Outcome::Unknown]);
    proxy.pass();
    let mut door = commit::connect(&proxy.options).await.unwrap();
    // The same item again is stopped by the fences, whatever became of the first.
    let mut repeated = decided(&state, input.clone());
    assert_eq!(put_one(&mut door, &mut repeated).await, Outcome::Refused);
    // Looked at, the run knows the report and answers it without a write.
    let newest = check_run(&bench, &mut door, state.id).await.unwrap();
    assert_eq!(newest.version, 2);
    assert!(
        matches!(try_decide(&newest, input), Ok(None)),
        "answered from the receipt"
    );
    // The start is found by its workflow id.
    assert_eq!(
        put_one(&mut door, &mut started("other")).await,
        Outcome::Refused
    );
    let current = load::current_run(&bench.store.reads, &"default".into(), &"other".into()).await;
    assert_eq!(current.unwrap().unwrap().run, other.run_id());
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_says_nothing_any_more_is_given_up() {
    let bench = Bench::new().await;
    let proxy = Proxy::start(&bench.db.options, "silent");
    let mut door = commit::connect(&proxy.options).await.unwrap();
    let state = bench.begun(&mut door, "wf", "w").await;
    proxy.fall_silent();
    let began = Instant::now();
    let mut decision = complete(&state, "w", everything());
    let outcome =
        tokio::time::timeout(Duration::from_secs(30), put_one(&mut door, &mut decision)).await;
    assert_eq!(outcome.expect("an end of the waiting"), Outcome::Unknown);
    // A statement that the server itself cuts off is not met by it.
    assert!(began.elapsed() >= Duration::from_secs(10));
    let silent =
        tokio::time::timeout(Duration::from_secs(30), commit::connect(&proxy.options)).await;
    assert!(silent.expect("an end of the waiting").is_err());
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_at_any_moment_lose_and_double_nothing() {
    const ROUNDS: u32 = 150;
    let bench = Bench::new().await;
    let mut killer = bench.db.connect().await;
    let killing = tokio::spawn(async move {
        let mut killed = 0;
        loop {
            killed += kill(&mut killer, "leasehold commit").await;
            if killed >= 12 {
                return killed;
            }
            let pause = uuid::Uuid::new_v4().as_u64_pair().0 % 40;
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    });
    let mut door = bench.door().await;
    let mut watcher = bench.db.connect().await;
    let (mut unknown, mut absent) = (0, 0);
    for n in 0..ROUNDS {
        if n >= 50 && killing.is_finished() {
            break;
        }
        let mut decisions = [started(&format!("a-{n}")), started(&format!("b-{n}"))];
        let outcomes = put(&mut door, decisions.iter_mut().collect()).await;
        let broken = outcomes.contains(&Outcome::Unknown);
        if broken {
            door = eventually("the database answers", 10, async || {
                commit::connect(&bench.db.options).await.ok()
            })
            .await;
        }
        let mut found = Vec::new();
        for (decision, outcome) in decisions.iter().zip(&outcomes) {
            let state = bench.load(decision.run_id()).await;
            found.push(state.is_some());
            match outcome {
                Outcome::Committed(_) => assert!(state.is_some(), "an acknowledged start is lost"),
                Outcome::Unknown => unknown += 1,
                other => panic!("{other:?}"),
            }
            match state {
                Some(state) => {
                    let task = TaskId {
                        run: state.id,
                        no: open_task(&state),
                    };
                    assert_eq!(holder(&mut watcher, task).await, None);
                    check_run(&bench, &mut watcher, state.id).await.unwrap();
                }
                None => {
                    absent += 1;
                    assert_eq!(
                        rows_of(&mut watcher, decision.run_id()).await,
                        Vec::<String>::new()
                    );
                }
            }
        }
        assert_eq!(
            found[0], found[1],
            "a statement is written whole or not at all"
        );
    }
    let killed = killing.await.unwrap();
    println!(
        "door: {killed} connections killed, {unknown} outcomes unknown, {absent} of them not written"
    );
    assert!(unknown > 0, "no kill met a connection in use");
    bench.end().await;
}
