//! Delivery: who really received the task.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::{parked, sent, swallow};
use crate::support::{Client, TestServer, eventually, text};

/// Rule: every call that changes state can be repeated by a caller who did not see the answer: a poll
/// whose answer got lost is given the same task again under its id, and no other poll is.
#[tokio::test(flavor = "multi_thread")]
async fn fc_02_a_claim_whose_answer_got_lost_is_found_again() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    for kind in ["workflow", "activity"] {
        for parked_first in [true, false] {
            let id = format!("{kind}-{parked_first}");
            let ask = |poll: &str, seconds: u64| {
                json!({
                    "worker_id": "w", "task_queue": "q", "poll_request_id": poll,
                    "timeout_seconds": seconds,
                })
            };
            let make = async || {
                client.start(&id, "flow", "q").await;
                if kind == "activity" {
                    let task = client.poll("workflow", "w", "q", 5).await;
                    let act = json!([{"type": "schedule_activity", "activity_type": "act"}]);
                    client.complete(&task, act).await.expect(200);
                }
            };
            let path = format!("/worker/{kind}-tasks/poll");
            let lost = if parked_first {
                let lost = sent(client, &path, &ask(&id, 20)).await;
                parked(&server, 1).await;
                make().await;
                lost
            } else {
                make().await;
                sent(client, &path, &ask(&id, 20)).await
            };
            swallow(lost).await;
            let other = client.post(&path, ask("other", 0)).await.expect(200);
            assert_eq!(other["task"], Value::Null, "{id}");
            let mut found = Vec::new();
            for _ in 0..2 {
                let body = client.post(&path, ask(&id, 5)).await.expect(200);
                assert_eq!(body["task"]["workflow_id"], id);
                found.push(body["task"].clone());
            }
            assert_eq!(found[0]["task_id"], found[1]["task_id"]);
            if kind == "workflow" {
                assert_eq!(found[0]["workflow_task_attempt"], 1);
                let finish = json!([{"type": "complete_workflow"}]);
                client.complete(&found[0], finish).await.expect(200);
            } else {
                assert_eq!(found[0]["attempt"], 1);
                client
                    .report(&found[0], "complete", json!({}))
                    .await
                    .expect(200);
                let events = client.events(&id, text(&found[0], "run_id")).await;
                let starts = events.iter().filter(|kind| *kind == "ActivityStarted");
                assert_eq!(starts.count(), 1);
                let task = client.poll("workflow", "w", "q", 5).await;
                let finish = json!([{"type": "complete_workflow"}]);
                client.complete(&task, finish).await.expect(200);
            }
        }
    }
    server.stop().await;
}

/// Rule: leaving is a state that the server enforces: the open poll of a worker that has left ends, a
/// new one is refused, and others get the task.
#[tokio::test(flavor = "multi_thread")]
async fn fc_03_a_worker_that_has_left_takes_nothing_along() {
    let server = TestServer::start().await;
    let client = &server.client;
    let (node, there) = server.other_node().await;
    client.register("stays", "q", &["flow"], &["act"]).await;
    for (round, elsewhere) in [client, &there].into_iter().enumerate() {
        client.register("leaves", "q", &["flow"], &["act"]).await;
        let open = {
            let elsewhere = elsewhere.clone();
            tokio::spawn(async move { elsewhere.poll_whole("workflow", "leaves", "q", 30).await })
        };
        let engines = [server.node.engine(), node.engine()];
        eventually("the poll waits", 5, async || {
            (engines[round].parked_polls() == 1).then_some(())
        })
        .await;
        client
            .delete("/worker/registrations/leaves")
            .await
            .expect(200);
        let ended = open.await.unwrap().expect(200);
        assert_eq!(ended["task"], Value::Null);
        assert_eq!(ended["poll_status"], "stale_worker_registration");
        let id = format!("wf{round}");
        client.start(&id, "flow", "q").await;
        for client in [client, &there] {
            client
                .poll_whole("workflow", "leaves", "q", 20)
                .await
                .refused(412, "worker_not_registered");
        }
        let task = client.poll("workflow", "stays", "q", 5).await;
        assert_eq!(task["workflow_id"], id);
        assert_eq!(task["workflow_task_attempt"], 1);
        let finish = json!([{"type": "complete_workflow"}]);
        client.complete(&task, finish).await.expect(200);
    }
    node.stop().await;
    server.stop().await;
}

async fn transactions(connection: &mut sqlx::PgConnection) -> i64 {
    // What the server's connections have counted is seen once they are idle or look again.
    sqlx::query("select pg_stat_force_next_flush()")
        .execute(&mut *connection)
        .await
        .expect("a statement");
    sqlx::query_scalar(
        "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()",
    )
    .fetch_one(connection)
    .await
    .expect("a count")
}

/// Rule: one waiter is woken per task: what a delivery costs the database does not grow with the number
/// of polls that wait, and all others wait on.
#[tokio::test(flavor = "multi_thread")]
async fn fc_04_a_task_wakes_one_poll() {
    const STARTS: usize = 10;
    /// Transactions per delivered task: the start, the hand-out, and background looks.
    const MOST: i64 = 10;
    let server = TestServer::start().await;
    let client = &server.client;
    for n in 0..20 {
        client.register(&format!("w{n}"), "q", &["flow"], &[]).await;
    }
    let mut connection = server.db.connect().await;
    let mut polls = tokio::task::JoinSet::new();
    let mut started = 0;
    for waiting in [200, 800] {
        while polls.len() < waiting {
            let (client, worker) = (client.clone(), format!("w{}", polls.len() % 20));
            polls.spawn(async move { client.poll("workflow", &worker, "q", 60).await });
        }
        parked(&server, waiting).await;
        let before = transactions(&mut connection).await;
        for left in (waiting - STARTS..waiting).rev() {
            let id = format!("wf{started}");
            started += 1;
            client.start(&id, "flow", "q").await;
            let task = polls.join_next().await.unwrap().unwrap();
            assert_eq!(task["workflow_id"], id);
            assert_eq!(server.node.engine().parked_polls(), left);
        }
        let cost = transactions(&mut connection).await - before;
        let most = MOST * i64::try_from(STARTS).unwrap();
        assert!(cost <= most, "{cost} transactions with {waiting} polls");
        assert!(polls.try_join_next().is_none(), "a poll ended with nothing");
    }
    polls.abort_all();
    server.stop().await;
}

async fn cycle(client: &Client, n: usize) {
    let id = format!("wf{n}");
    client.start(&id, "flow", "busy").await;
    let task = client.poll("workflow", "busy", "busy", 20).await;
    assert!(task.is_object(), "no task in cycle {n}");
    let finish = json!([{"type": "complete_workflow"}]);
    client.complete(&task, finish).await.expect(200);
}

/// Rule: a waiting request holds no connection and no transaction: with far more polls than
/// connections everything else goes on.
#[tokio::test(flavor = "multi_thread")]
async fn fc_05_waiting_polls_hold_no_connection() {
    const POLLS: usize = 500;
    const READS: u32 = 2;
    const HOT: u32 = 3;
    let server = TestServer::with(|settings| {
        settings.database.read_connections = READS;
        settings.database.hot_connections = HOT;
    })
    .await;
    let client = &server.client;
    client.register("idle", "idle", &["flow"], &["act"]).await;
    client.register("busy", "busy", &["flow"], &[]).await;
    let mut polls = tokio::task::JoinSet::new();
    for n in 0..POLLS {
        let client = client.clone();
        let kind = ["workflow", "activity"][n % 2];
        polls.spawn(async move { client.poll(kind, "idle", "idle", 60).await });
    }
    parked(&server, POLLS).await;
    let mut connection = server.db.connect().await;
    let over = AtomicBool::new(false);
    let watch = async {
        let mut looks = 0;
        while !over.load(Ordering::Relaxed) {
            let (count, stuck): (i64, i64) = sqlx::query_as(
                "select count(*), count(*) filter (where state like 'idle in transaction%'
                     and state_change < clock_timestamp() - interval '1 s')
                 from pg_stat_activity
                 where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'",
            )
            .fetch_one(&mut connection)
            .await
            .unwrap();
            // The pools, the commit lanes and the listener.
            let lanes = i64::from(crate::support::settings().database.commit_lanes);
            assert!(count <= i64::from(READS + HOT) + lanes + 1, "{count}");
            assert_eq!(stuck, 0);
            client
                .send(client.bare(reqwest::Method::GET, "/ready"))
                .await
                .expect(200);
            looks += 1;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        looks
    };
    let work = async {
        for n in 0..100 {
            cycle(client, n).await;
        }
        over.store(true, Ordering::Relaxed);
    };
    let (looks, ()) = futures_util::future::join(watch, work).await;
    assert!(looks > 0);
    assert_eq!(server.node.engine().parked_polls(), POLLS);
    assert!(polls.try_join_next().is_none());
    polls.abort_all();
    server.stop().await;
}

/// Rule: a poll id stands for one set of kinds while its poll waits or its task is held: another set is
/// 409 `poll_request_task_kinds_conflict`, and takes nothing; the order of the kinds does not matter.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_id_stands_for_one_set_of_kinds() {
    let server = TestServer::start().await;
    let client = &server.client;
    let body = json!({
        "worker_id": "w", "task_queue": "q", "supported_workflow_types": ["flow"],
        "supported_activity_types": ["act"], "capabilities": ["update_validation_tasks"],
    });
    client.post("/worker/register", body).await.expect(200);
    let both = json!(["workflow", "update_validation"]);
    let turned = json!(["update_validation", "workflow"]);
    let ask = |kinds: &Value, seconds: u64| {
        json!({
            "worker_id": "w", "task_queue": "q", "poll_request_id": "p", "task_kinds": kinds,
            "timeout_seconds": seconds,
        })
    };
    let path = "/worker/workflow-tasks/poll";
    let others = [
        json!(["workflow"]),
        json!(["update_validation"]),
        Value::Null,
    ];
    let waiting = {
        let (client, body) = (client.clone(), ask(&both, 30));
        tokio::spawn(async move { client.post(path, body).await })
    };
    parked(&server, 1).await;
    let conflicts = async || {
        for kinds in &others {
            for seconds in [0, 5] {
                let body = client
                    .post(path, ask(kinds, seconds))
                    .await
                    .refused(409, "poll_request_task_kinds_conflict");
                assert_eq!(body["poll_status"], "conflict");
                assert_eq!(body["task"], Value::Null);
                assert_eq!(body["poll_request_id"], "p");
                assert_eq!(body["bound_task_kinds"], both);
                let asked = if kinds.is_null() { &others[0] } else { kinds };
                assert_eq!(body["requested_task_kinds"], *asked);
                assert_eq!(body["worker_id"], "w");
            }
        }
    };
    conflicts().await;
    // The ids of activity polls are others.
    let body = client
        .post("/worker/activity-tasks/poll", ask(&Value::Null, 0))
        .await
        .expect(200);
    assert_eq!(body["poll_status"], "empty");
    client.start("wf", "flow", "q").await;
    let task = waiting.await.unwrap().expect(200)["task"].take();
    assert_eq!(task["workflow_id"], "wf");
    conflicts().await;
    let again = client.post(path, ask(&turned, 0)).await.expect(200);
    assert_eq!(again["task"]["task_id"], task["task_id"]);
    // The id is free again with the end of the task.
    let finish = json!([{"type": "complete_workflow"}]);
    client.complete(&task, finish).await.expect(200);
    for kinds in &others {
        client.post(path, ask(kinds, 0)).await.expect(200);
    }
    server.stop().await;
}
