//! The door's fences, one by one: what holds is written whole, what does not hold writes nothing.

use leasehold::domain::decision::Decision;
use leasehold::domain::ids::{RunId, TaskId, WorkerId};
use leasehold::domain::lease::Hold;
use leasehold::domain::run::{CloseRequest, Input, ObservedLease, Overdue, OverdueKind, RunState};
use leasehold::store::commit::{self, Outcome};
use sqlx::{Connection, PgConnection};

use crate::kit::*;

/// Three runs in the order in which the door writes them, each with a held workflow task.
async fn three(bench: &Bench, door: &mut PgConnection) -> [RunState; 3] {
    let mut runs = Vec::new();
    for n in 0..3 {
        runs.push(bench.begun(door, &format!("wf-{n}"), "w").await);
    }
    runs.sort_by_key(|state| state.id);
    runs.try_into().unwrap()
}

/// Commits the middle run's decision between two good ones and sees that it alone is refused, without
/// a trace.
async fn refused_alone(
    bench: &Bench,
    door: &mut PgConnection,
    runs: &[RunState; 3],
    middle: &mut Decision,
) {
    let mut first = complete(&runs[0], "w", everything());
    let mut last = complete(&runs[2], "w", everything());
    let before = rows_of(door, runs[1].id).await;
    let outcomes = put(door, vec![&mut last, middle, &mut first]).await;
    assert_committed(outcomes[0]);
    assert_eq!(outcomes[1], Outcome::Refused);
    assert_committed(outcomes[2]);
    assert_eq!(rows_of(door, runs[1].id).await, before);
    for run in runs {
        let state = check_run(bench, door, run.id).await.unwrap();
        let written = run.id != runs[1].id;
        assert_eq!(state.activities.len(), if written { 2 } else { 0 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_run_refuses_what_was_decided_before() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let runs = three(&bench, &mut door).await;
    let mut middle = complete(&runs[1], "w", everything());
    let mut faster = decided(&runs[1], signal("go", None));
    assert_committed(put_one(&mut door, &mut faster).await);
    refused_alone(&bench, &mut door, &runs, &mut middle).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_another_worker_is_refused() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let runs = three(&bench, &mut door).await;
    let mut middle = complete(&runs[1], "somebody else", everything());
    refused_alone(&bench, &mut door, &runs, &mut middle).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_another_hand_out_is_refused() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let runs = three(&bench, &mut door).await;
    let input = completion(&runs[1], open_task(&runs[1]), "w", 2, everything());
    let mut middle = decided(&runs[1], input);
    refused_alone(&bench, &mut door, &runs, &mut middle).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_under_a_lease_that_ran_out_is_refused() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let runs = three(&bench, &mut door).await;
    let mut middle = complete(&runs[1], "w", everything());
    set_lease(
        &mut door,
        &runs[1],
        "lease_expires_at = clock_timestamp() - interval '1 ms'",
    )
    .await;
    refused_alone(&bench, &mut door, &runs, &mut middle).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_on_a_task_that_is_gone_is_refused() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let runs = three(&bench, &mut door).await;
    let mut middle = complete(&runs[1], "w", everything());
    // Only a defect removes a row without moving its run; the fence holds even then.
    let gone = format!("delete from tasks where run_id = '{}'", runs[1].id);
    assert_eq!(execute(&mut door, &gone).await, 1);
    let before = rows_of(&mut door, runs[1].id).await;
    assert_eq!(put_one(&mut door, &mut middle).await, Outcome::Refused);
    assert_eq!(rows_of(&mut door, runs[1].id).await, before);
    bench.end().await;
}

/// Changes the lease of the open workflow task behind everybody's back.
async fn set_lease(connection: &mut PgConnection, state: &RunState, set: &str) {
    let statement = format!(
        "update tasks set {set} where run_id = '{}' and task_no = {}",
        state.id,
        open_task(state)
    );
    assert_eq!(execute(connection, &statement).await, 1);
}

/// Holds the rows named until the given changes are made, while `decisions` wait in front of them on
/// connections of their own; then lets go and gives their outcomes.
async fn meanwhile(
    bench: &Bench,
    lock: &str,
    change: Option<String>,
    batches: Vec<Vec<Decision>>,
) -> Vec<Vec<Outcome>> {
    let mut watcher = bench.db.connect().await;
    let mut blocker = bench.db.connect().await;
    let mut transaction = blocker.begin().await.unwrap();
    execute(&mut transaction, lock).await;
    if let Some(change) = change {
        assert_eq!(execute(&mut transaction, &change).await, 1, "{change}");
    }
    let sessions = i64::try_from(batches.len()).unwrap();
    let mut waiting = Vec::new();
    for mut decisions in batches {
        let mut door = bench.door().await;
        waiting.push(tokio::spawn(async move {
            let items: Vec<_> = decisions.iter_mut().map(item).collect();
            commit::commit(&mut door, &items).await
        }));
    }
    until_waiting(&mut watcher, sessions).await;
    transaction.commit().await.unwrap();
    let mut outcomes = Vec::new();
    for waiting in waiting {
        outcomes.push(waiting.await.unwrap());
    }
    outcomes
}

fn header(run: RunId) -> String {
    format!("select 1 from workflow_runs where run_id = '{run}' for update")
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_connections_that_write_one_run_exactly_one_wins() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    for _ in 0..10 {
        let disputed = bench
            .begun(&mut door, &uuid::Uuid::new_v4().to_string(), "w")
            .await;
        let completes = vec![
            complete(&disputed, "w", everything()),
            started(&uuid::Uuid::new_v4().to_string()),
        ];
        let signals = vec![
            started(&uuid::Uuid::new_v4().to_string()),
            decided(&disputed, signal("go", Some("key"))),
        ];
        let batches = vec![completes, signals];
        let neighbours = [batches[0][1].run_id(), batches[1][0].run_id()];
        let outcomes = meanwhile(&bench, &header(disputed.id), None, batches).await;
        let disputed_outcomes = [outcomes[0][0], outcomes[1][1]];
        assert_committed(outcomes[0][1]);
        assert_committed(outcomes[1][0]);
        let won = disputed_outcomes
            .iter()
            .filter(|outcome| matches!(outcome, Outcome::Committed(_)))
            .count();
        assert_eq!(won, 1, "{disputed_outcomes:?}");
        assert!(disputed_outcomes.contains(&Outcome::Refused));
        let state = check_run(&bench, &mut door, disputed.id).await.unwrap();
        assert_eq!(state.version, 2);
        let signalled = matches!(disputed_outcomes[1], Outcome::Committed(_));
        assert_eq!(state.signals, u64::from(signalled));
        let keys = number(
            &mut door,
            &format!(
                "select count(*) from request_receipts where run_id = '{}'",
                disputed.id
            ),
        )
        .await;
        assert_eq!(keys, i64::from(signalled), "a refused item leaves no key");
        for neighbour in neighbours {
            check_run(&bench, &mut door, neighbour).await.unwrap();
        }
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_connections_that_start_one_workflow_exactly_one_wins() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    for n in 0..10 {
        let workflow = format!("wf-{n}");
        let batches = vec![vec![started(&workflow)], vec![started(&workflow)]];
        let runs = [batches[0][0].run_id(), batches[1][0].run_id()];
        // Both wait in front of the key, which a third session inserts and takes back.
        let mut watcher = bench.db.connect().await;
        let mut blocker = bench.db.connect().await;
        let mut transaction = blocker.begin().await.unwrap();
        let claim =
            format!("insert into workflow_instances values ('default', '{workflow}', 'x', 1)");
        execute(&mut transaction, &claim).await;
        let mut waiting = Vec::new();
        for mut decisions in batches {
            let mut door = bench.door().await;
            waiting.push(tokio::spawn(async move {
                put_one(&mut door, &mut decisions[0]).await
            }));
        }
        until_waiting(&mut watcher, 2).await;
        transaction.rollback().await.unwrap();
        let mut won = Vec::new();
        for (run, waiting) in runs.into_iter().zip(waiting) {
            match waiting.await.unwrap() {
                Outcome::Committed(_) => won.push(run),
                outcome => assert_eq!(outcome, Outcome::Refused),
            }
        }
        assert_eq!(won.len(), 1);
        let state = check_run(&bench, &mut door, won[0]).await.unwrap();
        assert_eq!(state.begun.workflow_id.as_str(), workflow);
        let lost = if won[0] == runs[0] { runs[1] } else { runs[0] };
        assert_eq!(rows_of(&mut door, lost).await, Vec::<String>::new());
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_changed_without_its_version_is_written_over_in_its_newest_form() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let decisions = vec![complete(&state, "w", everything())];
    let change = format!(
        "update workflow_runs set memo = '{{\"kept\": 1}}' where run_id = '{}'",
        state.id
    );
    let outcomes = meanwhile(&bench, &header(state.id), Some(change), vec![decisions]).await;
    assert_committed(outcomes[0][0]);
    check_run(&bench, &mut door, state.id).await.unwrap();
    let memo = column(&mut door, "select memo from workflow_runs").await;
    assert_eq!(memo, ["{\"kept\": 1}"]);
    bench.end().await;
}

fn task_lock(state: &RunState) -> String {
    format!(
        "select 1 from tasks where run_id = '{}' and task_no = {} for update",
        state.id,
        open_task(state)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_renewed_meanwhile_still_holds() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let decisions = vec![complete(&state, "w", everything())];
    let change = format!(
        "update tasks set lease_expires_at = clock_timestamp() + interval '9 s' where run_id = '{}'",
        state.id
    );
    let outcomes = meanwhile(&bench, &task_lock(&state), Some(change), vec![decisions]).await;
    assert_committed(outcomes[0][0]);
    check_run(&bench, &mut door, state.id).await.unwrap();
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_taken_away_meanwhile_holds_no_more() {
    let changes = [
        // Given back, given to another worker, given to the same worker again, run out.
        "state = 0, lease_owner = null, lease_expires_at = null",
        "lease_owner = 'other'",
        "attempt = attempt + 1",
        "lease_expires_at = clock_timestamp()",
    ];
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    for (n, change) in changes.into_iter().enumerate() {
        let state = bench.begun(&mut door, &format!("wf-{n}"), "w").await;
        let neighbour = bench.begun(&mut door, &format!("neighbour-{n}"), "w").await;
        let decisions = vec![
            complete(&state, "w", everything()),
            complete(&neighbour, "w", everything()),
        ];
        let change = format!("update tasks set {change} where run_id = '{}'", state.id);
        let outcomes = meanwhile(
            &bench,
            &task_lock(&state),
            Some(change.clone()),
            vec![decisions],
        )
        .await;
        assert_eq!(outcomes[0][0], Outcome::Refused, "{change}");
        assert_committed(outcomes[0][1]);
        let kept = check_run(&bench, &mut door, state.id).await.unwrap();
        assert_eq!(kept.version, 1);
        check_run(&bench, &mut door, neighbour.id).await.unwrap();
    }
    bench.end().await;
}

fn cancel(state: &RunState, lease: ObservedLease) -> Decision {
    let request = CloseRequest {
        reason: None,
        request_id: None,
        lease,
    };
    decided(state, Input::Cancel(request))
}

fn held(owner: &str, attempt: u32) -> ObservedLease {
    ObservedLease::Held {
        owner: WorkerId::from(owner),
        attempt,
        live: false,
        knows: i64::MAX,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn free_means_that_nobody_holds_the_task() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut decision = started("ready");
    assert_committed(put_one(&mut door, &mut decision).await);
    let ready = decision.write.next;
    let taken = bench.begun(&mut door, "held", "w").await;
    let mut on_taken = cancel(&taken, ObservedLease::Free);
    let mut on_ready = cancel(&ready, ObservedLease::Free);
    assert_eq!(on_ready.fences[0].hold, Hold::Free);
    let before = rows_of(&mut door, taken.id).await;
    let outcomes = put(&mut door, vec![&mut on_taken, &mut on_ready]).await;
    assert_eq!(outcomes[0], Outcome::Refused);
    assert_committed(outcomes[1]);
    assert_eq!(rows_of(&mut door, taken.id).await, before);
    check_run(&bench, &mut door, ready.id).await.unwrap();
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seen_means_the_same_hand_out_run_out_or_not() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut accepted = Vec::new();
    let cases = [
        ("the same", held("w", 1), "lease_ms = lease_ms"),
        (
            "run out",
            held("w", 1),
            "lease_expires_at = clock_timestamp()",
        ),
        ("other worker", held("x", 1), "lease_ms = lease_ms"),
        ("other hand-out", held("w", 2), "lease_ms = lease_ms"),
        (
            "given back",
            held("w", 1),
            "state = 0, lease_owner = null, lease_expires_at = null",
        ),
    ];
    for (name, seen, change) in cases {
        let state = bench.begun(&mut door, name, "w").await;
        set_lease(&mut door, &state, change).await;
        let mut decision = cancel(&state, seen);
        assert!(matches!(decision.fences[0].hold, Hold::Seen { .. }));
        let before = rows_of(&mut door, state.id).await;
        match put_one(&mut door, &mut decision).await {
            Outcome::Committed(_) => accepted.push(name),
            outcome => {
                assert_eq!(outcome, Outcome::Refused);
                assert_eq!(rows_of(&mut door, state.id).await, before);
            }
        }
        check_run(&bench, &mut door, state.id).await.unwrap();
    }
    assert_eq!(accepted, ["the same", "run out"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overdue_means_the_same_hand_out_past_one_of_its_limits() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut accepted = Vec::new();
    let past = "clock_timestamp() - interval '1 ms'";
    let cases = [
        ("in time", "w", 1, "lease_ms = lease_ms".to_owned()),
        (
            "attempt too long",
            "w",
            1,
            format!("start_to_close_at = {past}"),
        ),
        (
            "heartbeat late",
            "w",
            1,
            format!("heartbeat_due_at = {past}"),
        ),
        ("lease over", "w", 1, format!("lease_expires_at = {past}")),
        (
            "other hand-out",
            "w",
            2,
            format!("heartbeat_due_at = {past}"),
        ),
        ("other worker", "x", 1, format!("heartbeat_due_at = {past}")),
    ];
    for (name, owner, attempt, change) in cases {
        let state = bench.begun(&mut door, name, "w").await;
        let mut scheduled = complete(&state, "w", vec![activity()]);
        hand_out(&mut scheduled, "w");
        assert_committed(put_one(&mut door, &mut scheduled).await);
        let state = scheduled.write.next;
        let no = *state.activities.keys().next().unwrap();
        let statement = format!("update tasks set {change} where run_id = '{}'", state.id);
        assert_eq!(execute(&mut door, &statement).await, 1);
        let overdue = Overdue {
            no,
            attempt,
            owner: WorkerId::from(owner),
            kind: OverdueKind::Heartbeat,
            beat: None,
        };
        let mut decision = decided(&state, Input::Overdue(overdue));
        let before = rows_of(&mut door, state.id).await;
        match put_one(&mut door, &mut decision).await {
            Outcome::Committed(_) => accepted.push(name),
            outcome => {
                assert_eq!(outcome, Outcome::Refused);
                assert_eq!(rows_of(&mut door, state.id).await, before);
            }
        }
        check_run(&bench, &mut door, state.id).await.unwrap();
    }
    assert_eq!(
        accepted,
        ["attempt too long", "heartbeat late", "lease over"]
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_goes_on_is_ready_again_and_counts_its_hand_outs_on() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let mut scheduled = complete(&state, "w", vec![activity()]);
    hand_out(&mut scheduled, "w");
    assert_committed(put_one(&mut door, &mut scheduled).await);
    let state = scheduled.write.next;
    let no = *state.activities.keys().next().unwrap();
    let mut failed = decided(&state, activity_report(no, "w", 1, true));
    assert_committed(put_one(&mut door, &mut failed).await);
    check_run(&bench, &mut door, state.id).await.unwrap();
    assert_eq!(holder(&mut door, TaskId { run: state.id, no }).await, None);
    let row = column(
        &mut door,
        "select format('%s %s %s', state, attempt, num_nulls(lease_expires_at, start_to_close_at, heartbeat_due_at)) from tasks",
    )
    .await;
    assert_eq!(row, ["0 1 3"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_task_row_is_locked_in_key_order_before_any_is_written() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let [first, last, _] = three(&bench, &mut door).await;
    // The first run has an open activity and is finished by its second workflow task, so its completion
    // removes a row that no fence names.
    let mut scheduled = complete(&first, "w", vec![activity(), timer(0)]);
    hand_out(&mut scheduled, "w");
    assert_committed(put_one(&mut door, &mut scheduled).await);
    let first = scheduled.write.next;
    let unfenced = *first.activities.keys().next().unwrap();
    assert!(unfenced < open_task(&first));
    let mut finished = complete(&first, "w", vec![finish()]);
    let mut goes_on = complete(&last, "w", everything());
    let mut renewal = bench.db.connect().await;
    let mut watcher = bench.db.connect().await;
    let mut transaction = renewal.begin().await.unwrap();
    let lock = format!(
        "select 1 from tasks where run_id = '{}' and task_no = {unfenced} for update",
        first.id
    );
    execute(&mut transaction, &lock).await;
    let waiting =
        tokio::spawn(async move { put(&mut door, vec![&mut finished, &mut goes_on]).await });
    until_waiting(&mut watcher, 1).await;
    // Whoever holds the first row may go on to the later ones: the door has none of them yet.
    let onwards = format!(
        "select 1 from tasks where (run_id, task_no) > ('{}', {unfenced}) for update nowait",
        first.id
    );
    assert_eq!(execute(&mut transaction, &onwards).await, 3);
    transaction.rollback().await.unwrap();
    for outcome in waiting.await.unwrap() {
        assert_committed(outcome);
    }
    let mut door = bench.door().await;
    check_run(&bench, &mut door, first.id).await.unwrap();
    check_run(&bench, &mut door, last.id).await.unwrap();
    bench.end().await;
}
