//! Keys that a write claims: workflow ids and callers' request keys. A refused item leaves none.

use leasehold::domain::decision::Decision;
use leasehold::domain::run::RunState;
use leasehold::store::commit::Outcome;
use leasehold::store::{load, receipts};
use sqlx::PgConnection;

use crate::kit::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_workflow_id_is_refused_and_its_neighbours_start() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let first = bench.begun(&mut door, "taken", "w").await;
    let (mut other, mut again, mut another) = (started("a"), started("taken"), started("z"));
    let outcomes = put(&mut door, vec![&mut other, &mut again, &mut another]).await;
    assert_committed(outcomes[0]);
    assert_eq!(outcomes[1], Outcome::Refused);
    assert_committed(outcomes[2]);
    assert_eq!(
        rows_of(&mut door, again.run_id()).await,
        Vec::<String>::new()
    );
    let current = load::current_run(&bench.store.reads, &"default".into(), &"taken".into()).await;
    assert_eq!(current.unwrap().unwrap().run, first.id);
    for run in [first.id, other.run_id(), another.run_id()] {
        check_run(&bench, &mut door, run).await.unwrap();
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_starts_of_one_workflow_in_a_batch_one_wins() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let (mut one, mut two, mut other) = (started("wf"), started("wf"), started("other"));
    let outcomes = put(&mut door, vec![&mut one, &mut two, &mut other]).await;
    assert_committed(outcomes[2]);
    let won: Vec<_> = [(&one, outcomes[0]), (&two, outcomes[1])]
        .into_iter()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Committed(_)))
        .collect();
    assert_eq!(won.len(), 1, "{outcomes:?}");
    check_run(&bench, &mut door, won[0].0.run_id())
        .await
        .unwrap();
    assert_eq!(
        number(&mut door, "select count(*) from workflow_runs").await,
        2
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_takes_the_workflow_id_over() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let mut stale = decided(&state, signal("late", Some("late")));
    let mut continued = complete(&state, "w", vec![continue_as_new()]);
    assert_committed(put_one(&mut door, &mut continued).await);
    let successor = continued.created[0].next.id;
    let current = load::current_run(&bench.store.reads, &"default".into(), &"wf".into()).await;
    assert_eq!(current.unwrap().unwrap().run, successor);
    check_run(&bench, &mut door, state.id).await.unwrap();
    check_run(&bench, &mut door, successor).await.unwrap();
    // What was decided on the run before it ended is too late, and the id stays the successor's.
    let before = all_rows(&mut door).await;
    assert_eq!(put_one(&mut door, &mut stale).await, Outcome::Refused);
    assert_eq!(
        put_one(&mut door, &mut started("wf")).await,
        Outcome::Refused
    );
    assert_eq!(all_rows(&mut door).await, before);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_is_not_made_when_its_predecessor_is_refused() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let mut continued = complete(&state, "not the holder", vec![continue_as_new()]);
    let before = all_rows(&mut door).await;
    assert_eq!(put_one(&mut door, &mut continued).await, Outcome::Refused);
    assert_eq!(all_rows(&mut door).await, before);
    bench.end().await;
}

async fn key_of(bench: &Bench, workflow: &str, key: &str) -> Option<u64> {
    receipts::find(
        &bench.store.reads,
        &"default".into(),
        &workflow.into(),
        "signal",
        key,
    )
    .await
    .unwrap()
    .map(|receipt| receipt.command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_key_is_claimed_once() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let other = bench.begun(&mut door, "other", "w").await;
    let mut first = decided(&state, signal("go", Some("key")));
    assert_committed(put_one(&mut door, &mut first).await);
    assert_eq!(key_of(&bench, "wf", "key").await, Some(2));
    let state = first.write.next;
    let mut again = decided(&state, signal("go", Some("key")));
    let mut same_key_elsewhere = decided(&other, signal("go", Some("key")));
    let before = rows_of(&mut door, state.id).await;
    let outcomes = put(&mut door, vec![&mut again, &mut same_key_elsewhere]).await;
    assert_eq!(outcomes[0], Outcome::Refused);
    assert_committed(outcomes[1]);
    assert_eq!(rows_of(&mut door, state.id).await, before);
    let mut other_key = decided(&state, signal("go", Some("key 2")));
    assert_committed(put_one(&mut door, &mut other_key).await);
    assert_eq!(key_of(&bench, "wf", "key 2").await, Some(3));
    check_run(&bench, &mut door, state.id).await.unwrap();
    bench.end().await;
}

/// A signal with a key and a completion, decided one after the other and written as one.
fn signal_and_completion(state: &RunState, owner: &str, key: &str) -> Decision {
    let signalled = decided(state, signal("go", Some(key)));
    let completed = complete(&signalled.write.next, owner, everything());
    signalled.then(completed)
}

async fn refused_and_key_is_free(
    bench: &Bench,
    door: &mut PgConnection,
    state: &RunState,
    mut decision: Decision,
) {
    let before = rows_of(door, state.id).await;
    assert_eq!(put_one(door, &mut decision).await, Outcome::Refused);
    assert_eq!(rows_of(door, state.id).await, before);
    let workflow = state.begun.workflow_id.as_str();
    assert_eq!(key_of(bench, workflow, "key").await, None);
    let newest = bench.load(state.id).await.unwrap();
    let mut again = decided(&newest, signal("go", Some("key")));
    assert_committed(put_one(door, &mut again).await);
    check_run(bench, door, state.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_left_behind_when_the_run_moved() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let stale = decided(&state, signal("go", Some("key")));
    assert_committed(put_one(&mut door, &mut decided(&state, signal("first", None))).await);
    refused_and_key_is_free(&bench, &mut door, &state, stale).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_left_behind_when_only_the_lease_is_lost() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let decision = signal_and_completion(&state, "not the holder", "key");
    assert!(decision.claim.is_some() && decision.fences.len() == 1);
    refused_and_key_is_free(&bench, &mut door, &state, decision).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_is_left_behind_when_run_and_lease_are_lost() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let decision = signal_and_completion(&state, "not the holder", "key");
    assert_committed(put_one(&mut door, &mut decided(&state, signal("first", None))).await);
    refused_and_key_is_free(&bench, &mut door, &state, decision).await;
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_key_takes_everything_else_of_its_item_with_it() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let state = bench.begun(&mut door, "wf", "w").await;
    let mut first = decided(&state, signal("go", Some("key")));
    assert_committed(put_one(&mut door, &mut first).await);
    let state = first.write.next;
    let mut decision = signal_and_completion(&state, "w", "key");
    let before = rows_of(&mut door, state.id).await;
    assert_eq!(put_one(&mut door, &mut decision).await, Outcome::Refused);
    assert_eq!(rows_of(&mut door, state.id).await, before);
    bench.end().await;
}
