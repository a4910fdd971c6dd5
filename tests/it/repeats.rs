//! Repeats of polls that reach another node than the first, or the same one started anew.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, eventually, merged};

async fn poll(client: &Client, plane: &str, fields: Value) -> Answer {
    let base = json!({
        "worker_id": "w", "task_queue": "q", "poll_request_id": "a", "timeout_seconds": 0,
    });
    client
        .post(&format!("/worker/{plane}-tasks/poll"), merged(base, fields))
        .await
}

async fn task(client: &Client, plane: &str, fields: Value) -> Value {
    poll(client, plane, fields).await.expect(200)["task"].take()
}

async fn register(client: &Client, worker: &str) {
    let body = json!({
        "worker_id": worker, "task_queues": ["q", "p"], "workflow_types": ["flow"],
        "activity_types": ["act"], "capabilities": ["query_tasks", "update_validation_tasks"],
    });
    client.post("/worker/register", body).await.expect(200);
}

/// Rule: a repeat of a poll is given the same task at any node, under the same attempt and lease, while
/// the lease lives; not another worker, nor a poll of another queue or plane; after the report the id
/// stands for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_at_another_node_is_given_the_same_task() {
    let server = TestServer::start().await;
    let (other, there) = server.other_node().await;
    let here = &server.client;
    register(here, "w").await;
    register(here, "v").await;
    here.start("wf0", "flow", "q").await;
    here.start("wf1", "flow", "q").await;
    let first = task(here, "workflow", json!({})).await;
    for wait in [0, 5] {
        let again = task(&there, "workflow", json!({"timeout_seconds": wait})).await;
        assert_eq!(again, first);
    }
    assert!(
        task(&there, "workflow", json!({"task_queue": "p"}))
            .await
            .is_null()
    );
    assert!(task(&there, "activity", json!({})).await.is_null());
    // What a waiting repeat may have taken in the meantime is there for others.
    let foreign = json!({"worker_id": "v", "timeout_seconds": 10});
    let foreign = task(&there, "workflow", foreign).await;
    assert_eq!(foreign["workflow_id"], "wf1");
    // A renewal shows in the repeat, and what was repeated is reported to any node.
    let renewed = here.task(&first, "heartbeat", json!({})).await.expect(200);
    let again = task(&there, "workflow", json!({})).await;
    assert_eq!(again["lease_expires_at"], renewed["lease_expires_at"]);
    let schedule = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    there.complete(&again, schedule).await.expect(200);
    assert!(task(&there, "workflow", json!({})).await.is_null());
    // Handed over in a commit, to a poll that waits at a node where its worker did not register.
    let (client, handed) = (
        there.clone(),
        json!({"poll_request_id": "b", "timeout_seconds": 30}),
    );
    let waiting = tokio::spawn(async move { task(&client, "workflow", handed).await });
    eventually("the poll is parked", 5, async || {
        (other.engine().parked_polls() == 1).then_some(())
    })
    .await;
    there.start("wf2", "flow", "q").await;
    let handed = waiting.await.unwrap();
    assert_eq!(handed["workflow_id"], "wf2");
    // The node where it registered hears of that within a moment.
    eventually("the node of the worker has heard", 5, async || {
        let again = task(here, "workflow", json!({"poll_request_id": "b"})).await;
        (!again.is_null()).then(|| assert_eq!(again, handed))
    })
    .await;
    let activity = task(here, "activity", json!({})).await;
    let again = task(&there, "activity", json!({})).await;
    for key in [
        "task_id",
        "activity_attempt_id",
        "attempt",
        "lease_expires_at",
        "arguments",
    ] {
        assert_eq!(again[key], activity[key], "{key}");
    }
    there
        .report(&again, "complete", json!({}))
        .await
        .expect(200);
    other.stop().await;
    server.stop().await;
}

/// Rule: a repeat that waits is given its task and nothing else, however many are ready; those that it was handed
/// before it was known for a repeat are not lost.
#[tokio::test(flavor = "multi_thread")]
async fn repeats_that_wait_leave_other_tasks_to_others() {
    const TASKS: usize = 12;
    let done = json!([{"type": "complete_workflow"}]);
    let server = TestServer::start().await;
    let (other, there) = server.other_node().await;
    let here = &server.client;
    register(here, "w").await;
    for n in 0..TASKS {
        here.start(&format!("wf{n}"), "flow", "q").await;
    }
    let poll = |client: &Client, n: usize| {
        let client = client.clone();
        // Shorter than a lease: what is lost to nobody does not come back in time.
        let fields = json!({"poll_request_id": format!("p{n}"), "timeout_seconds": 10});
        tokio::spawn(async move { task(&client, "workflow", fields).await })
    };
    for n in 0..TASKS {
        here.start(&format!("more{n}"), "flow", "q").await;
        let first = poll(here, n).await.unwrap();
        // The repeat waits there beside a poll that is new.
        let (again, fresh) = (poll(&there, n), poll(&there, TASKS + n));
        assert_eq!(again.await.unwrap(), first);
        there.complete(&first, done.clone()).await.expect(200);
        let fresh = fresh.await.unwrap();
        assert!(fresh.is_object());
        there.complete(&fresh, done.clone()).await.expect(200);
    }
    other.stop().await;
    server.stop().await;
}

/// Rule: the id outlives the process that gave the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_after_a_restart_is_given_the_same_task() {
    let server = TestServer::start().await;
    register(&server.client, "w").await;
    server.client.start("wf0", "flow", "q").await;
    server.client.start("wf1", "flow", "q").await;
    let first = task(&server.client, "workflow", json!({})).await;
    let db = server.stop_keeping().await;
    let server = TestServer::on(db, |_| {}).await;
    assert_eq!(task(&server.client, "workflow", json!({})).await, first);
    // A new registration is a new process, which begins with nothing.
    register(&server.client, "w").await;
    let next = task(&server.client, "workflow", json!({})).await;
    let fence = |task: &Value| {
        (
            task["task_id"].clone(),
            task["workflow_task_attempt"].clone(),
        )
    };
    assert!(next.is_object());
    assert_ne!(fence(&next), fence(&first));
    server.stop().await;
}

/// Rule: so it is with queries.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_at_another_node_is_given_the_same_query() {
    let server = TestServer::start().await;
    let (other, there) = server.other_node().await;
    let here = &server.client;
    register(here, "w").await;
    here.start("wf", "flow", "q").await;
    let first = task(here, "workflow", json!({})).await;
    here.wait_for_history(&first).await.expect(200);
    for (id, from_backlog) in [("claimed", true), ("handed", false)] {
        let fields = json!({"poll_request_id": id, "timeout_seconds": 30});
        let asked = || {
            let client = here.clone();
            tokio::spawn(async move { client.post("/workflows/wf/query/state", json!({})).await })
        };
        let polled = || {
            let (client, fields) = (here.clone(), fields.clone());
            tokio::spawn(async move { task(&client, "query", fields).await })
        };
        let (caller, query) = if from_backlog {
            let caller = asked();
            (caller, polled().await.unwrap())
        } else {
            let polled = polled();
            eventually("the poll is parked", 5, async || {
                (server.node.engine().parked_polls() == 1).then_some(())
            })
            .await;
            (asked(), polled.await.unwrap())
        };
        let again = task(&there, "query", json!({"poll_request_id": id})).await;
        for key in [
            "query_task_id",
            "query_task_attempt",
            "lease_expires_at",
            "history_events",
        ] {
            assert_eq!(again[key], query[key], "{key}");
        }
        let path = format!(
            "/worker/query-tasks/{}/complete",
            again["query_task_id"].as_str().unwrap()
        );
        let fence = json!({"lease_owner": "w", "query_task_attempt": 1, "result": 7});
        there.post(&path, fence).await.expect(200);
        assert_eq!(caller.await.unwrap().expect(200)["result"], 7);
        assert!(
            task(&there, "query", json!({"poll_request_id": id}))
                .await
                .is_null()
        );
    }
    other.stop().await;
    server.stop().await;
}

/// Rule: a repeat that does not ask for the kind of the task that is held under its id is 409
/// `poll_cached_task_kind_conflict`, and takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_must_ask_for_the_kind_of_the_task_that_is_held() {
    let server = TestServer::start().await;
    let (other, there) = server.other_node().await;
    let here = &server.client;
    register(here, "w").await;
    here.start("wf", "flow", "q").await;
    let both = json!({"task_kinds": ["workflow", "update_validation"]});
    let first = task(here, "workflow", both.clone()).await;
    for wait in [0, 5] {
        let asked = json!({"task_kinds": ["update_validation"], "timeout_seconds": wait});
        let refused = poll(&there, "workflow", asked).await;
        let body = refused.refused(409, "poll_cached_task_kind_conflict");
        assert_eq!(body["task"], Value::Null);
        assert_eq!(body["poll_status"], "conflict");
        assert_eq!(body["worker_id"], "w");
        assert_eq!(body["task_queue"], "q");
        assert_eq!(body["poll_request_id"], "a");
        assert_eq!(body["requested_task_kinds"], json!(["update_validation"]));
        assert_eq!(body["cached_task_kind"], "workflow");
        assert_eq!(body["cached_task_kind_state"], "unrequested_discriminator");
    }
    assert_eq!(task(&there, "workflow", both).await, first);
    other.stop().await;
    server.stop().await;
}
