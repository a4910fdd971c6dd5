//! The end of a worker process: replaced under its id, deregistered, or gone without a word.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Client, TestServer, eventually, text};

/// Starts `n` workflows and gives the workflow tasks that worker `w` then holds.
async fn hold(client: &Client, n: usize) -> Vec<Value> {
    let mut tasks = Vec::new();
    for i in 0..n {
        client.start(&format!("wf{i}"), "flow", "q").await;
        tasks.push(client.poll("workflow", "w", "q", 5).await);
    }
    tasks
}

/// Rule: a registration is a process boundary: what the older process held is given back at once, and
/// its late reports change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_registration_fences_the_older_process() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    client.start("other", "flow", "q").await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client.register("w", "q", &["flow"], &["act"]).await;
    let history = client.history("wf", text(&activity, "run_id")).await;
    let late = client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await;
    assert_eq!(late.refused(409, "task_not_leased")["task_status"], "ready");
    client
        .task(&task, "heartbeat", json!({}))
        .await
        .refused(409, "task_not_leased");
    client
        .task(&task, "history", json!({}))
        .await
        .refused(409, "task_not_leased");
    client
        .wait_for_history(&task)
        .await
        .refused(409, "task_not_leased");
    client
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .refused(409, "stale_attempt");
    let failure = json!({"failure": {"message": "x"}});
    client
        .report(&activity, "fail", failure)
        .await
        .refused(409, "stale_attempt");
    let stop = client
        .report(&activity, "heartbeat", json!({}))
        .await
        .expect(200);
    assert_eq!(stop["can_continue"], false);
    assert_eq!(stop["reason"], "stale_attempt");
    assert_eq!(stop["heartbeat_recorded"], false);
    assert_eq!(
        client.history("wf", text(&activity, "run_id")).await,
        history
    );
    // The new process is handed both, each as its next attempt.
    let again = client.poll("workflow", "w", "q", 0).await;
    assert_eq!(again["task_id"], task["task_id"]);
    assert_eq!(again["workflow_task_attempt"], 2);
    let resumed = client.poll("activity", "w", "q", 0).await;
    assert_eq!(resumed["task_id"], activity["task_id"]);
    assert_eq!(resumed["attempt"], 2);
    assert_ne!(
        resumed["activity_attempt_id"],
        activity["activity_attempt_id"]
    );
    // Now the older process names the attempt that was, not the one that is.
    let late = client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await;
    let body = late.refused(409, "workflow_task_attempt_mismatch");
    assert_eq!(body["current_attempt"], 2);
    client
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .refused(409, "stale_attempt");
    client
        .complete(&again, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    client
        .report(&resumed, "complete", json!({"result": 2}))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a poll that was parked by the older process ends with `stale_worker_registration`, and takes
/// no task.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_registration_ends_the_parked_polls_of_the_older_process() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &["act"]).await;
    let polls = ["workflow", "activity"].map(|kind| {
        let client = client.clone();
        tokio::spawn(async move { client.poll_whole(kind, "w", "q", 60).await })
    });
    eventually("the polls are parked", 5, async || {
        (server.node.engine().parked_polls() == 2).then_some(())
    })
    .await;
    let began = Instant::now();
    client.register("w", "q", &["flow"], &["act"]).await;
    for poll in polls {
        let body = poll.await.unwrap().expect(200);
        assert!(body["task"].is_null());
        assert_eq!(body["poll_status"], "stale_worker_registration");
        assert_eq!(body["reason"], "stale_worker_registration");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(server.node.engine().parked_polls(), 0);
    client.start("wf", "flow", "q").await;
    assert_eq!(
        client.poll("workflow", "w", "q", 5).await["workflow_task_attempt"],
        1
    );
    server.stop().await;
}

/// Rule: a refused registration leaves the older process alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_registration_gives_nothing_back() {
    let server = TestServer::start().await;
    let client = &server.client;
    let register = async |fingerprint: &str| {
        let body = json!({
            "worker_id": "w", "task_queue": "q", "workflow_types": ["flow"],
            "workflow_definition_fingerprints": {"flow": fingerprint},
        });
        client.post("/worker/register", body).await
    };
    register("1").await.expect(200);
    let task = hold(client, 1).await.remove(0);
    register("2")
        .await
        .refused(409, "workflow_definition_changed");
    client
        .complete(&task, json!([{"type": "complete_workflow"}]))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a deregistration tells how many workflow tasks it gave back; others are handed them at once,
/// and the activities as well.
#[tokio::test(flavor = "multi_thread")]
async fn fc_13_what_a_deregistered_worker_held_goes_to_others_at_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let held = hold(client, 2).await;
    client.register("v", "q", &["flow"], &["act"]).await;
    let waiting = client.clone();
    let parked = tokio::spawn(async move { waiting.poll("workflow", "v", "q", 30).await });
    eventually("the poll is parked", 5, async || {
        (server.node.engine().parked_polls() == 1).then_some(())
    })
    .await;
    let began = Instant::now();
    let mut body = client.delete("/worker/registrations/w").await.expect(200);
    body.as_object_mut().unwrap().remove("server_capabilities");
    let expected = json!({
        "protocol_version": "1.13",
        "worker_id": "w",
        "outcome": "deregistered",
        "recovered_workflow_task_count": 2,
    });
    assert_eq!(body, expected);
    let mut recovered = vec![parked.await.unwrap()];
    assert!(began.elapsed() < Duration::from_secs(5));
    recovered.push(client.poll("workflow", "v", "q", 0).await);
    let mut ids: Vec<&str> = recovered.iter().map(|task| text(task, "task_id")).collect();
    ids.sort_unstable();
    let mut expected: Vec<&str> = held.iter().map(|task| text(task, "task_id")).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    assert!(
        recovered
            .iter()
            .all(|task| task["workflow_task_attempt"] == 2)
    );
    let resumed = client.poll("activity", "v", "q", 0).await;
    assert_eq!(resumed["task_id"], activity["task_id"]);
    assert_eq!(resumed["attempt"], 2);
    client
        .delete("/worker/registrations/w")
        .await
        .refused(404, "worker_not_found");
    // The process that said goodbye has nothing left to say.
    client
        .complete(&held[0], json!([]))
        .await
        .refused(409, "lease_owner_mismatch");
    client
        .report(&activity, "complete", json!({}))
        .await
        .refused(409, "stale_attempt");
    for task in &recovered {
        client
            .complete(task, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
    }
    server.stop().await;
}

/// Rule: a report by a worker that is registered no more is refused as such while nobody else holds
/// the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_report_without_a_registration_is_refused() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client.delete("/worker/registrations/w").await.expect(200);
    for report in ["heartbeat", "history"] {
        let body = client.task(&task, report, json!({})).await;
        let body = body.refused(409, "stale_worker_registration");
        assert_eq!(body["lease_owner"], "w");
    }
    client
        .complete(&task, json!([]))
        .await
        .refused(409, "stale_worker_registration");
    assert_eq!(client.events("wf", text(&task, "run_id")).await.len(), 2);
    server.stop().await;
}

/// Rule: an unknown worker is 404 `worker_not_found` for a deregistration, 404
/// `worker_not_registered` for a heartbeat and 412 for a poll; ids are of one namespace.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_worker_is_told_so_by_every_call() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    client.register("w", "q", &["flow"], &[]).await;
    let elsewhere = client.request(reqwest::Method::DELETE, "/worker/registrations/w");
    let answer = client.send(elsewhere.header("X-Namespace", "second")).await;
    answer.refused(404, "worker_not_found");
    client.delete("/worker/registrations/w").await.expect(200);
    let body = client
        .delete("/worker/registrations/w")
        .await
        .refused(404, "worker_not_found");
    assert_eq!(body["worker_id"], "w");
    client
        .post("/worker/heartbeat", json!({"worker_id": "w"}))
        .await
        .refused(404, "worker_not_registered");
    for kind in ["workflow", "activity"] {
        let body = client
            .poll_whole(kind, "w", "q", 0)
            .await
            .refused(412, "worker_not_registered");
        assert_eq!(body["worker_id"], "w");
    }
    // Ids are percent-decoded; any text may be one.
    client.register("a b/ä", "q", &["flow"], &[]).await;
    let body = client
        .delete("/worker/registrations/a%20b%2F%C3%A4")
        .await
        .expect(200);
    assert_eq!(body["worker_id"], "a b/ä");
    server.stop().await;
}

/// Rule: what a worker holds that has been silent for too long goes to others, without a report on
/// its lease.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_silent_worker_holds_goes_to_others() {
    let server = TestServer::with(|settings| settings.workers.stale_after_seconds = 1).await;
    let client = &server.client;
    let task = client.first_task().await;
    let again = eventually("another worker is handed the task", 10, async || {
        // A registration of its own each time, so that this worker is not silent itself.
        client.register("v", "q", &["flow"], &[]).await;
        let task = client.poll("workflow", "v", "q", 0).await;
        task.is_object().then_some(task)
    })
    .await;
    assert_eq!(again["task_id"], task["task_id"]);
    assert_eq!(again["workflow_task_attempt"], 2);
    server.stop().await;
}
