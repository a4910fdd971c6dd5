//! Delivery: which poll is given a task, when, and what becomes of one whose worker is gone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Client, TestServer, eventually, text};

fn spawn_poll(client: &Client, kind: &'static str, worker: &str) -> tokio::task::JoinHandle<Value> {
    let (client, worker) = (client.clone(), worker.to_owned());
    tokio::spawn(async move { client.poll(kind, &worker, "q", 30).await })
}

async fn parked(server: &TestServer, count: usize) {
    eventually("the polls are parked", 5, async || {
        (server.node.engine().parked_polls() == count).then_some(())
    })
    .await;
}

/// Rule: a parked poll wakes with the commit that opens its task: within 250 ms of a start on another
/// connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_poll_wakes_with_the_start() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let mut waits = Vec::new();
    for n in 0..10 {
        let poll = spawn_poll(client, "workflow", "w");
        parked(&server, 1).await;
        let began = Instant::now();
        client.start(&format!("wf{n}"), "flow", "q").await;
        let task = poll.await.unwrap();
        waits.push(began.elapsed());
        assert_eq!(task["workflow_id"], format!("wf{n}"));
        assert_eq!(task["workflow_task_attempt"], 1);
    }
    waits.sort_unstable();
    assert!(waits[5] < Duration::from_millis(250), "{waits:?}");
    server.stop().await;
}

/// Rule: the same for an activity that a completion schedules, and for the workflow task that its
/// outcome opens.
#[tokio::test(flavor = "multi_thread")]
async fn every_step_wakes_the_poll_that_waits_for_it() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let activity = spawn_poll(client, "activity", "w");
    parked(&server, 1).await;
    let began = Instant::now();
    client
        .complete(
            &task,
            json!([{"type": "schedule_activity", "activity_type": "act"}]),
        )
        .await
        .expect(200);
    let activity = activity.await.unwrap();
    assert_eq!(activity["attempt"], 1);
    let resumed = spawn_poll(client, "workflow", "w");
    parked(&server, 1).await;
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    assert_eq!(resumed.await.unwrap()["run_id"], task["run_id"]);
    assert!(began.elapsed() < Duration::from_secs(3));
    server.stop().await;
}

/// Rule: a task is handed to exactly one of many waiting polls; each poll is given at most one.
#[tokio::test(flavor = "multi_thread")]
async fn one_task_goes_to_exactly_one_of_many_polls() {
    let server = TestServer::start().await;
    let client = &server.client;
    let workers: Vec<String> = (0..12).map(|n| format!("w{n}")).collect();
    for worker in &workers {
        client.register(worker, "q", &["flow"], &[]).await;
    }
    let mut polls = tokio::task::JoinSet::new();
    for worker in workers {
        let client = client.clone();
        polls.spawn(async move { client.poll("workflow", &worker, "q", 30).await });
    }
    parked(&server, 12).await;
    let starts = (0..8).map(|n| {
        let client = client.clone();
        async move { client.start(&format!("wf{n}"), "flow", "q").await }
    });
    let runs: BTreeSet<String> = futures_util::future::join_all(starts)
        .await
        .into_iter()
        .collect();
    assert_eq!(runs.len(), 8);
    let mut taken = Vec::new();
    while taken.len() < 8 {
        let task = polls.join_next().await.unwrap().unwrap();
        taken.push(text(&task, "run_id").to_owned());
        assert_eq!(task["workflow_task_attempt"], 1);
    }
    assert_eq!(taken.iter().cloned().collect::<BTreeSet<_>>(), runs);
    assert_eq!(server.node.engine().parked_polls(), 4);
    polls.abort_all();
    server.stop().await;
}

/// Rule: the same from a backlog: concurrent probes never share a task.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claims_never_share_a_task() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    for n in 0..10 {
        client.start(&format!("wf{n}"), "flow", "q").await;
    }
    let probes = (0..20).map(|_| client.poll("workflow", "w", "q", 0));
    let tasks = futures_util::future::join_all(probes).await;
    let given: Vec<&str> = tasks
        .iter()
        .filter_map(|task| task["task_id"].as_str())
        .collect();
    assert_eq!(given.len(), 10);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 10);
    server.stop().await;
}

/// Rule: of several polls the one that has waited longest is given the task.
#[tokio::test(flavor = "multi_thread")]
async fn the_poll_that_has_waited_longest_is_first() {
    let server = TestServer::start().await;
    let client = &server.client;
    let mut polls = Vec::new();
    for n in 0..4 {
        let worker = format!("w{n}");
        // Two kinds of worker, so that the order holds across them.
        let types: &[&str] = if n % 2 == 0 {
            &["flow"]
        } else {
            &["flow", "other"]
        };
        client.register(&worker, "q", types, &[]).await;
        polls.push(spawn_poll(client, "workflow", &worker));
        parked(&server, n + 1).await;
    }
    for (n, poll) in polls.into_iter().enumerate() {
        client.start(&format!("wf{n}"), "flow", "q").await;
        let task = poll.await.unwrap();
        assert_eq!(task["workflow_id"], format!("wf{n}"));
        assert_eq!(task["lease_owner"], format!("w{n}"));
    }
    server.stop().await;
}

/// Rule: a poll may name several registered queues and is given a task of any of them.
#[tokio::test(flavor = "multi_thread")]
async fn one_poll_waits_on_several_queues() {
    let server = TestServer::start().await;
    let client = &server.client;
    let register =
        json!({"worker_id": "w", "task_queues": ["a", "b", "c"], "workflow_types": ["flow"]});
    client.post("/worker/register", register).await.expect(200);
    let poll = |queues: &[&str], seconds: u64| {
        let body =
            json!({"worker_id": "w", "task_queues": queues, "poll_timeout_seconds": seconds});
        let client = client.clone();
        async move { client.post("/worker/workflow-tasks/poll", body).await }
    };
    for queue in ["c", "a", "b"] {
        let waiting = tokio::spawn(poll(&["a", "b", "c"], 30));
        parked(&server, 1).await;
        client.start(&format!("live-{queue}"), "flow", queue).await;
        let task = waiting.await.unwrap().expect(200)["task"].take();
        assert_eq!(task["task_queue"], queue);
    }
    assert_eq!(server.node.engine().parked_polls(), 0);
    // A queue that is named twice is one queue.
    let twice = tokio::spawn(poll(&["a", "a"], 30));
    parked(&server, 1).await;
    client.start("twice", "flow", "a").await;
    client.start("once", "flow", "a").await;
    assert_eq!(
        twice.await.unwrap().expect(200)["task"]["workflow_id"],
        "twice"
    );
    assert_eq!(
        poll(&["a", "a"], 0).await.expect(200)["task"]["workflow_id"],
        "once"
    );
    // From a backlog, the longest waiting first, wherever it waits.
    for queue in ["a", "b", "c"] {
        client.start(&format!("old-{queue}"), "flow", queue).await;
    }
    assert_eq!(
        poll(&["b", "a"], 0).await.expect(200)["task"]["task_queue"],
        "a"
    );
    // The more urgent one before that, for a poll that looks once and for one that waits.
    for seconds in [0, 30] {
        let urgent = json!({"workflow_type": "flow", "task_queue": "c", "priority": 1});
        client
            .start_with(&format!("urgent-{seconds}"), urgent)
            .await;
        let task = poll(&["b", "c"], seconds).await.expect(200)["task"].take();
        assert_eq!(task["workflow_id"], format!("urgent-{seconds}"));
    }
    assert_eq!(
        poll(&["b", "a"], 0).await.expect(200)["task"]["task_queue"],
        "b"
    );
    assert!(poll(&["b", "a"], 0).await.expect(200)["task"].is_null());
    assert_eq!(
        poll(&["b", "a", "c"], 5).await.expect(200)["task"]["task_queue"],
        "c"
    );
    let body = poll(&["a", "d"], 0)
        .await
        .refused(409, "task_queue_mismatch");
    assert_eq!(body["requested_task_queue"], "d");
    server.stop().await;
}

/// Rule: a smaller priority is more urgent; within one the older task is first.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_taken_by_priority_then_age() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    for (workflow, priority) in [
        ("late", 9),
        ("normal", 5),
        ("urgent", 0),
        ("normal2", 5),
        ("soon", 1),
    ] {
        client
            .start_with(workflow, json!({ "priority": priority }))
            .await;
    }
    for expected in ["urgent", "soon", "normal", "normal2", "late"] {
        let task = client.poll("workflow", "w", "q", 0).await;
        assert_eq!(task["workflow_id"], expected);
    }
    server.stop().await;
}

/// Rule: a retry is not handed out before its backoff is over, and then at once, to a parked poll too.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_waits_for_its_backoff() {
    let server = TestServer::start().await;
    let client = &server.client;
    let policy = json!({"retry_policy": {"max_attempts": 3, "backoff_seconds": [1]}});
    let activity = client.first_activity(policy).await;
    let began = Instant::now();
    let failure = json!({"failure": {"message": "again"}});
    client.report(&activity, "fail", failure).await.expect(200);
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
    let again = client.poll("activity", "w", "q", 10).await;
    assert_eq!(again["task_id"], activity["task_id"]);
    assert_eq!(again["attempt"], 2);
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(990), "{waited:?}");
    assert!(waited < Duration::from_millis(1_900), "{waited:?}");
    server.stop().await;
}

/// Rule: a poll whose client has gone is given nothing, and its task goes to the next one as its first
/// attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_whose_client_is_gone_takes_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let gone = spawn_poll(client, "workflow", "w");
    parked(&server, 1).await;
    gone.abort();
    parked(&server, 0).await;
    client.start("wf", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    assert_eq!(task["workflow_id"], "wf");
    assert_eq!(task["workflow_task_attempt"], 1);
    server.stop().await;
}

/// Rule: a repeat of a poll under its id is given the same task while its lease lasts; another id is
/// another poll; after the report the id stands for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_poll_is_given_the_same_task() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    client.register("v", "q", &["flow"], &["act"]).await;
    let poll = async |kind: &str, worker: &str, id: &str, seconds: u64| {
        let body = json!({
            "worker_id": worker, "task_queue": "q", "poll_request_id": id, "timeout_seconds": seconds,
        });
        client
            .post(&format!("/worker/{kind}-tasks/poll"), body)
            .await
            .expect(200)["task"]
            .take()
    };
    // Claimed from a backlog, and handed to a parked poll.
    client.start("wf0", "flow", "q").await;
    client.start("wf1", "flow", "q").await;
    let first = poll("workflow", "w", "a", 0).await;
    let again = poll("workflow", "w", "a", 5).await;
    assert_eq!(again["task_id"], first["task_id"]);
    assert_eq!(again["workflow_task_attempt"], 1);
    assert_eq!(again["history_events"], first["history_events"]);
    let other = poll("workflow", "w", "b", 0).await;
    assert_ne!(other["task_id"], first["task_id"]);
    assert!(poll("workflow", "v", "a", 0).await.is_null());
    assert!(poll("activity", "w", "a", 0).await.is_null());
    // A renewal shows in the repeat.
    let renewed = client
        .task(&first, "heartbeat", json!({}))
        .await
        .expect(200);
    let again = poll("workflow", "w", "a", 0).await;
    assert_eq!(again["lease_expires_at"], renewed["lease_expires_at"]);
    let schedule = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&first, schedule).await.expect(200);
    assert!(poll("workflow", "w", "a", 0).await.is_null());
    let activity = poll("activity", "w", "a", 0).await;
    let again = poll("activity", "w", "a", 0).await;
    assert_eq!(
        again["activity_attempt_id"],
        activity["activity_attempt_id"]
    );
    client
        .report(&again, "complete", json!({}))
        .await
        .expect(200);
    let next = poll("workflow", "w", "a", 0).await;
    assert_eq!(next["run_id"], first["run_id"]);
    assert_ne!(next["task_id"], first["task_id"]);
    // A lost lease is not given again: the new process starts anew.
    client.register("w", "q", &["flow"], &["act"]).await;
    let handed_out_again = poll("workflow", "w", "a", 0).await;
    assert_eq!(handed_out_again["workflow_task_attempt"], 2);
    server.stop().await;
}

/// Rule: two requests of one poll hold one place: the older one ends, and one claim is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_takes_the_place_of_the_poll_it_repeats() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let poll = || {
        let client = client.clone();
        tokio::spawn(async move {
            let body = json!({
                "worker_id": "w", "task_queue": "q", "poll_request_id": "a", "timeout_seconds": 30,
            });
            client
                .post("/worker/workflow-tasks/poll", body)
                .await
                .expect(200)["task"]
                .take()
        })
    };
    let older = poll();
    parked(&server, 1).await;
    let newer = poll();
    assert!(older.await.unwrap().is_null());
    client.start("wf0", "flow", "q").await;
    client.start("wf1", "flow", "q").await;
    assert_eq!(newer.await.unwrap()["workflow_id"], "wf0");
    assert_eq!(
        client.poll("workflow", "w", "q", 0).await["workflow_id"],
        "wf1"
    );
    server.stop().await;
}

/// Rule: any node hands out what another one opened, and hears of it from a parked poll's queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_poll_on_one_node_wakes_for_a_start_on_another() {
    let server = TestServer::start().await;
    let (other, there) = server.other_node().await;
    server.client.register("w", "q", &["flow"], &["act"]).await;
    let poll = spawn_poll(&there, "workflow", "w");
    eventually("the poll is parked", 5, async || {
        (other.engine().parked_polls() == 1).then_some(())
    })
    .await;
    let began = Instant::now();
    server.client.start("wf", "flow", "q").await;
    let task = poll.await.unwrap();
    assert!(
        began.elapsed() < Duration::from_millis(2_500),
        "{:?}",
        began.elapsed()
    );
    // The report may go to either node.
    let schedule = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    server.client.complete(&task, schedule).await.expect(200);
    let activity = there.poll("activity", "w", "q", 5).await;
    server
        .client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    let task = there.poll("workflow", "w", "q", 5).await;
    there
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    for client in [&server.client, &there] {
        assert_eq!(
            client.get("/workflows/wf").await.expect(200)["status"],
            "completed"
        );
    }
    other.stop().await;
    server.stop().await;
}

/// Rule: the last heartbeat of an attempt enters the history with its outcome, whichever nodes heard
/// of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_on_one_node_is_recorded_with_the_outcome_on_another() {
    let server = TestServer::start().await;
    let (other, there) = server.other_node().await;
    let here = &server.client;
    let activity = there.activity_of("wf", json!({})).await;
    here.report(&activity, "heartbeat", json!({"details": {"n": 1}}))
        .await
        .expect(200);
    // What is said from node to node comes in order: a later word has arrived when this one wakes.
    here.register("w", "q", &["flow"], &[]).await;
    let poll = spawn_poll(&there, "workflow", "w");
    eventually("the poll is parked", 5, async || {
        (other.engine().parked_polls() == 1).then_some(())
    })
    .await;
    here.start("later", "flow", "q").await;
    assert_eq!(poll.await.unwrap()["workflow_id"], "later");
    there
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    let history = here.history("wf", text(&activity, "run_id")).await;
    let beat = crate::support::only(&history, "ActivityHeartbeatRecorded");
    assert_eq!(beat["payload"]["progress"], json!({"details": {"n": 1}}));
    other.stop().await;
    server.stop().await;
}

/// Rule: a holder that names no attempt reports on the one it has now, whichever node granted it.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_without_an_attempt_is_known_by_every_node() {
    let server = TestServer::with(|settings| settings.leases.activity_seconds = 1).await;
    let (other, there) = server.other_node().await;
    let here = &server.client;
    let first = here.activity_of("wf", json!({})).await;
    // The lease runs out, and the other node hands the task out again.
    let second = there.poll("activity", "wf", "wf", 10).await;
    assert_eq!(second["attempt"], 2);
    let path = format!(
        "/worker/activity-tasks/{}/complete",
        text(&first, "task_id")
    );
    let body = here
        .post(&path, json!({"worker_id": "wf", "result": 1}))
        .await
        .expect(200);
    assert_eq!(body["activity_attempt_id"], second["activity_attempt_id"]);
    other.stop().await;
    server.stop().await;
}
