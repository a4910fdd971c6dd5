//! Leases outside the door: renewed by their holder only, given back as they were named, and found
//! when they run out.

use leasehold::domain::ids::{TaskId, WorkerId};
use leasehold::domain::run::RunState;
use leasehold::store::lease::{self, Lost, Renewal, Which};
use sqlx::PgConnection;

use crate::kit::*;

fn task_of(state: &RunState) -> TaskId {
    TaskId {
        run: state.id,
        no: open_task(state),
    }
}

fn renewal(task: TaskId, owner: &str, attempt: u32) -> Renewal {
    Renewal {
        task,
        owner: WorkerId::from(owner),
        attempt,
        beat: false,
        details: None,
    }
}

fn lost(task: TaskId, owner: &str, attempt: u32, delay_ms: u64) -> Lost {
    Lost {
        task,
        owner: WorkerId::from(owner),
        attempt,
        delay_ms,
        granted_by: None,
    }
}

async fn expire(connection: &mut PgConnection, task: TaskId) {
    let statement = format!(
        "update tasks set lease_expires_at = clock_timestamp() - interval '1 s' where run_id = '{}' and task_no = {}",
        task.run, task.no
    );
    assert_eq!(execute(connection, &statement).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_holder_of_a_live_lease_renews_it() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let mut tasks = Vec::new();
    for n in 0..4 {
        tasks.push(task_of(
            &bench.begun(&mut door, &format!("wf-{n}"), "w").await,
        ));
    }
    expire(&mut door, tasks[3]).await;
    let before = lease::read(&bench.store.reads, tasks[0])
        .await
        .unwrap()
        .unwrap();
    let renewals = [
        renewal(tasks[3], "w", 1),
        renewal(tasks[2], "w", 2),
        renewal(tasks[1], "x", 1),
        renewal(tasks[0], "w", 1),
        renewal(TaskId { no: 99, ..tasks[0] }, "w", 1),
    ];
    let renewed = lease::renew(&bench.store.hot, &renewals).await.unwrap();
    let which: Vec<bool> = renewed.iter().map(Option::is_some).collect();
    assert_eq!(which, [false, false, false, true, false]);
    let after = lease::read(&bench.store.reads, tasks[0])
        .await
        .unwrap()
        .unwrap();
    assert!(after.lease_expires_at > before.lease_expires_at);
    assert_eq!(
        after.lease_expires_at,
        renewed[3].map(|renewed| renewed.lease_expires_at)
    );
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_given_back_as_it_was_named_or_only_once_it_has_run_out() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let at = now();
    let mut tasks = Vec::new();
    for n in 0..4 {
        tasks.push(task_of(
            &bench.begun(&mut door, &format!("wf-{n}"), "w").await,
        ));
    }
    expire(&mut door, tasks[1]).await;
    let all = [
        lost(tasks[0], "w", 1, 0),
        lost(tasks[1], "w", 1, 0),
        lost(tasks[2], "x", 1, 0),
        lost(tasks[3], "w", 2, 0),
    ];
    assert_eq!(
        lease::give_back(&bench.store.hot, Which::RunOut, &all)
            .await
            .unwrap(),
        [1]
    );
    let mut given = lease::give_back(&bench.store.hot, Which::Named, &all)
        .await
        .unwrap();
    given.sort_unstable();
    assert_eq!(
        given,
        [0],
        "the second was given back already, the others are not as named"
    );
    let ready = lease::read(&bench.store.reads, tasks[0])
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (ready.owner, ready.attempt),
        (None, 1),
        "hand-outs go on counting"
    );
    // The hand-out that is meant was made before this one, which only looks the same.
    let earlier = Lost {
        granted_by: Some(at),
        ..lost(tasks[2], "w", 1, 0)
    };
    let this = Lost {
        granted_by: Some(now()),
        ..earlier.clone()
    };
    let hot = &bench.store.hot;
    assert!(
        lease::give_back(hot, Which::Named, &[earlier])
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        lease::give_back(hot, Which::Named, &[this]).await.unwrap(),
        [0]
    );
    let delayed = [lost(tasks[3], "w", 1, 5_000)];
    assert_eq!(
        lease::give_back(&bench.store.hot, Which::Named, &delayed)
            .await
            .unwrap(),
        [0]
    );
    let later = lease::read(&bench.store.reads, tasks[3])
        .await
        .unwrap()
        .unwrap();
    assert!(later.visible_at > now());
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_finds_what_has_run_out_and_says_when_the_next_will() {
    let bench = Bench::new().await;
    let mut door = bench.door().await;
    let look = lease::look(&bench.store.hot, 100).await.unwrap();
    assert!(look.overdue.is_empty() && look.next_ms.is_none());
    let state = bench.begun(&mut door, "wf", "w").await;
    let look = lease::look(&bench.store.hot, 100).await.unwrap();
    assert!(look.overdue.is_empty());
    let next = look.next_ms.unwrap();
    assert!((25_000..=30_000).contains(&next), "{next}");
    let mut scheduled = complete(&state, "w", vec![activity(), activity(), activity()]);
    hand_out(&mut scheduled, "w");
    assert_committed(put_one(&mut door, &mut scheduled).await);
    let numbers: Vec<u32> = scheduled.write.next.activities.keys().copied().collect();
    let past = "clock_timestamp() - interval '1 s'";
    for (no, column) in
        numbers
            .iter()
            .zip(["lease_expires_at", "heartbeat_due_at", "start_to_close_at"])
    {
        execute(
            &mut door,
            &format!("update tasks set {column} = {past} where task_no = {no}"),
        )
        .await;
    }
    let look = lease::look(&bench.store.hot, 100).await.unwrap();
    let found: Vec<_> = look
        .overdue
        .iter()
        .map(|found| {
            (
                found.row.task.no,
                found.row.live,
                found.heartbeat,
                found.start_to_close,
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (numbers[0], false, false, false),
            (numbers[1], true, true, false),
            (numbers[2], true, false, true)
        ]
    );
    bench.end().await;
}
