//! Cooperative cancellation: asked for, delivered at a call of the workflow's code, cleaned up after;
//! and how any cancellation reaches an activity that runs.

use serde_json::{Value, json};

use super::{first_task, register, server};
use crate::support::{Answer, Client, eventually, merged, only, text};

async fn request(client: &Client, fields: Value) -> Answer {
    client
        .post("/workflows/wf/request-cancellation", fields)
        .await
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

/// Reports under a task's fence where its cancellation is delivered.
async fn deliver(client: &Client, task: &Value, fields: Value) -> Answer {
    let base = json!({"request_id": task["cancellation_request"]["request_id"]});
    client
        .task(task, "deliver-cancellation", merged(base, fields))
        .await
}

fn at(sequence: u64, kind: &str) -> Value {
    json!({"sequence": sequence, "call_kind": kind})
}

fn act(fields: Value) -> Value {
    merged(
        json!({"type": "schedule_activity", "activity_type": "act"}),
        fields,
    )
}

/// A run that waits for what these commands began, and its id.
async fn waiting_for(client: &Client, commands: Value) -> String {
    let task = first_task(client).await;
    client.complete(&task, commands).await.expect(200);
    text(&task, "run_id").to_owned()
}

/// Rule: the answer to a request, and to a repeat: the first identity and deadline; the run stays open
/// and its worker is shown the request with the task and with every heartbeat.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_shown_to_the_worker() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting_for(
        client,
        json!([{"type": "start_timer", "delay_seconds": 600}]),
    )
    .await;
    let fields = json!({"reason": "enough", "cleanup_timeout_seconds": 60});
    let body = request(client, fields).await.expect(202);
    assert_eq!(body["workflow_id"], "wf");
    assert_eq!(body["run_id"], run);
    assert_eq!(body["accepted"], true);
    assert_eq!(body["duplicate"], false);
    let asked = &body["cancellation_request"];
    assert!(text(asked, "requested_at") < text(asked, "cleanup_deadline_at"));
    for path in [
        "/workflows/wf/request-cancellation".to_owned(),
        format!("/workflows/wf/runs/{run}/request-cancellation"),
    ] {
        let again = json!({"reason": "other", "cleanup_timeout_seconds": 3_600});
        let again = client.post(&path, again).await.expect(200);
        assert_eq!(again["duplicate"], true);
        assert_eq!(again["cancellation_request"], *asked);
    }
    let history = client.history("wf", &run).await;
    let event = &only(&history, "CooperativeCancellationRequested")["payload"];
    assert_eq!(event["workflow_command_id"], asked["request_id"]);
    assert_eq!(event["workflow_instance_id"], "wf");
    assert_eq!(event["workflow_run_id"], run);
    assert_eq!(event["cleanup_deadline_at"], asked["cleanup_deadline_at"]);
    assert_eq!(event["reason"], "enough");
    let context = &event["cancellation"];
    assert_eq!(
        context["schema"],
        "durable-workflow.cancellation-context/v1"
    );
    assert_eq!(context["request_id"], asked["request_id"]);
    assert_eq!(context["root_request_id"], asked["request_id"]);
    assert_eq!(context["root_workflow_run_id"], run);
    assert!(context["parent_request_id"].is_null());
    assert!(!text(&context["requester"], "type").is_empty());
    let own = json!([{
        "request_id": asked["request_id"], "workflow_instance_id": "wf", "workflow_run_id": run,
    }]);
    assert_eq!(context["lineage"], own);
    let task = poll(client).await;
    let shown = task["cancellation_request"].as_object().unwrap();
    let mut keys: Vec<_> = shown.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "cleanup_deadline_at",
            "delivered_at",
            "delivery_sequence",
            "history_refresh_page_token",
            "request_id",
            "requested_at"
        ]
    );
    for key in ["request_id", "requested_at", "cleanup_deadline_at"] {
        assert_eq!(shown[key], asked[key], "{key}");
    }
    assert!(shown["delivered_at"].is_null());
    let token = json!({"next_history_page_token": shown["history_refresh_page_token"]});
    let page = client.task(&task, "history", token).await.expect(200);
    assert_eq!(
        page["history_events"].as_array().unwrap().len(),
        history.len()
    );
    let beat = client.task(&task, "heartbeat", json!({})).await.expect(200);
    assert_eq!(beat["cancellation_request"], task["cancellation_request"]);
    server.stop().await;
}

/// Rule: delivery closes what the interrupted call waits for, is recorded once, keeps the lease, and
/// repeats with the same answer; the workflow that then ends as cancelled closes the run under the
/// request's id.
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_interrupts_one_call() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting_for(
        client,
        json!([{"type": "start_timer", "delay_seconds": 600}]),
    )
    .await;
    request(client, json!({"reason": "enough"}))
        .await
        .expect(202);
    let task = poll(client).await;
    let body = deliver(client, &task, at(1, "timer")).await.expect(200);
    let id = &task["cancellation_request"]["request_id"];
    let expected = json!({
        "delivered": true, "task_id": task["task_id"], "workflow_run_id": run,
        "request_id": id, "sequence": 1, "call_kind": "timer", "sequence_span": 1,
        "operation_sequence": null, "operation_sequence_span": 1, "reason": null,
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(body[key], *value, "{key}");
    }
    let again = deliver(client, &task, at(1, "timer")).await.expect(200);
    assert_eq!(again, body);
    deliver(client, &task, at(2, "timer"))
        .await
        .refused(409, "invalid_commands");
    assert_eq!(
        client.events("wf", &run).await[3..],
        [
            "CooperativeCancellationRequested",
            "TimerCancelled",
            "CooperativeCancellationDelivered"
        ]
    );
    let history = client.history("wf", &run).await;
    let delivered = &only(&history, "CooperativeCancellationDelivered")["payload"];
    let requested = &only(&history, "CooperativeCancellationRequested")["payload"];
    assert_eq!(delivered["workflow_command_id"], *id);
    assert_eq!(delivered["sequence"], 1);
    assert_eq!(delivered["call_kind"], "timer");
    assert_eq!(delivered["cancellation"], requested["cancellation"]);
    let beat = client.task(&task, "heartbeat", json!({})).await.expect(200);
    assert_eq!(beat["cancellation_request"]["delivery_sequence"], 1);
    assert!(beat["cancellation_request"]["delivered_at"].is_string());
    // The cleanup goes on with the next step and may take several tasks.
    client
        .complete(&task, json!([act(json!({}))]))
        .await
        .expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    let task = poll(client).await;
    assert_eq!(task["cancellation_request"]["request_id"], *id);
    let history = client.history("wf", &run).await;
    assert_eq!(
        only(&history, "ActivityScheduled")["payload"]["sequence"],
        2
    );
    let end = json!([{
        "type": "fail_workflow", "message": "cancelled", "exception_type": "WorkflowCancelled",
    }]);
    client.complete(&task, end).await.expect(200);
    let history = client.history("wf", &run).await;
    let last = history.last().unwrap();
    assert_eq!(last["event_type"], "WorkflowCancelled");
    assert_eq!(last["payload"]["workflow_command_id"], *id);
    assert_eq!(last["payload"]["reason"], "enough");
    let body = client.get("/workflows/wf").await.expect(200);
    assert_eq!(body["status"], "cancelled");
    request(client, json!({}))
        .await
        .refused(409, "run_not_active");
    server.stop().await;
}

/// Rule: an operation ends as its policy says: tried, it is closed at delivery; awaited, the task is
/// given back and follows when it has ended; abandoned, it is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_decides_about_the_operation() {
    for policy in ["try_cancel", "wait_cancellation_completed", "abandon"] {
        let server = server("1.20").await;
        let client = &server.client;
        let fields = json!({"cancellation_policy": policy, "schedule_to_close_timeout": 600});
        let run = waiting_for(client, json!([act(fields)])).await;
        let activity = client.poll("activity", "w", "q", 5).await;
        client.started(&activity).await;
        request(client, json!({})).await.expect(202);
        let task = poll(client).await;
        let beat = async || {
            client
                .report(&activity, "heartbeat", json!({}))
                .await
                .expect(200)
        };
        let status = async || {
            client
                .report(&activity, "status", json!({}))
                .await
                .expect(200)
        };
        // A request that was not delivered stops no activity.
        assert_eq!(status().await["can_continue"], true);
        let body = deliver(client, &task, at(1, "activity")).await.expect(200);
        match policy {
            "try_cancel" => {
                assert_eq!(body["delivered"], true);
                for body in [beat().await, status().await] {
                    assert_eq!(body["can_continue"], false);
                    assert_eq!(body["cancel_requested"], true);
                    assert_eq!(body["reason"], "activity_cancelled");
                    assert_eq!(body["heartbeat_recorded"], false);
                }
                only(&client.history("wf", &run).await, "ActivityCancelled");
            }
            "wait_cancellation_completed" => {
                assert_eq!(body["delivered"], false);
                assert_eq!(body["claim_released"], true);
                assert_eq!(body["reason"], "cancellation_waiting_for_activity");
                for key in [
                    "request_id",
                    "sequence",
                    "call_kind",
                    "sequence_span",
                    "operation_sequence",
                    "operation_sequence_span",
                ] {
                    assert!(body[key].is_null(), "{key}");
                }
                assert!(client.poll("workflow", "w", "q", 0).await.is_null());
                let body = beat().await;
                assert_eq!(body["can_continue"], false);
                assert_eq!(body["cancel_requested"], true);
                let failure = json!({"failure": {"message": "stopped", "cancelled": true}});
                client.report(&activity, "fail", failure).await.expect(200);
                let task = poll(client).await;
                only(&client.history("wf", &run).await, "ActivityCancelled");
                let body = deliver(client, &task, at(1, "activity")).await.expect(200);
                assert_eq!(body["delivered"], true);
            }
            _ => {
                assert_eq!(body["delivered"], true);
                assert_eq!(beat().await["can_continue"], true);
                client
                    .report(&activity, "complete", json!({}))
                    .await
                    .expect(200);
            }
        }
        let history = client.history("wf", &run).await;
        only(&history, "CooperativeCancellationDelivered");
        let scheduled = &only(&history, "ActivityScheduled")["payload"];
        assert_eq!(scheduled["activity"]["cancellation_policy"], policy);
        server.stop().await;
    }
}

/// Rule: the worker of a cancelled activity says that its callback has ended: under the attempt that
/// was cancelled and the id of the request, once and with the same answer when it repeats; the status
/// shows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_callback_is_receipted() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting_for(client, json!([act(json!({}))])).await;
    let activity = client.poll("activity", "w", "q", 5).await;
    client.started(&activity).await;
    request(client, json!({})).await.expect(202);
    let task = poll(client).await;
    let id = task["cancellation_request"]["request_id"].clone();
    let acknowledge = async |fields: Value| {
        let fields = merged(json!({ "request_id": id }), fields);
        client
            .report(&activity, "acknowledge-cancellation", fields)
            .await
    };
    // Nothing is cancelled yet.
    acknowledge(json!({})).await.refused(409, "stale_attempt");
    deliver(client, &task, at(1, "activity")).await.expect(200);
    let status = async || {
        let body = client.report(&activity, "status", json!({})).await;
        body.expect(200)["cancellation_acknowledgement"].take()
    };
    let before = status().await;
    assert_eq!(before["callback_state"], "unknown");
    assert_eq!(before["request_id"], id);
    assert!(before["acknowledged_at"].is_null());
    let stored = server.db.contents().await;
    let other = format!("{}-7", text(&activity, "task_id"));
    for (fields, status, reason) in [
        (json!({"request_id": "other"}), 409, "stale_attempt"),
        (json!({"lease_owner": "other"}), 409, "lease_owner_mismatch"),
        (
            json!({"activity_attempt_id": other}),
            404,
            "attempt_not_found",
        ),
    ] {
        acknowledge(fields).await.refused(status, reason);
    }
    acknowledge(json!({"request_id": null}))
        .await
        .invalid(&["request_id"]);
    assert_eq!(server.db.contents().await, stored);
    let body = acknowledge(json!({})).await.expect(200);
    assert_eq!(body["acknowledged"], true);
    assert_eq!(body["duplicate"], false);
    assert_eq!(body["request_id"], id);
    let history = client.history("wf", &run).await;
    let cancelled = only(&history, "ActivityCancelled");
    assert_eq!(body["history_event_id"], cancelled["id"]);
    let again = acknowledge(json!({})).await.expect(200);
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["acknowledged_at"], body["acknowledged_at"]);
    let after = status().await;
    assert_eq!(after["callback_state"], "stopped");
    assert_eq!(after["received_after_deadline"], false);
    assert_eq!(after["cancellation_history_event_id"], cancelled["id"]);
    server.stop().await;
}

/// Rule: what one namespace holds is not acknowledged from another.
#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_stays_in_its_namespace() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting_for(client, json!([act(json!({}))])).await;
    let activity = client.poll("activity", "w", "q", 5).await;
    request(client, json!({})).await.expect(202);
    let task = poll(client).await;
    deliver(client, &task, at(1, "activity")).await.expect(200);
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let before = server.db.contents().await;
    for report in ["status", "acknowledge-cancellation"] {
        let path = format!(
            "/worker/activity-tasks/{}/{report}",
            text(&activity, "task_id")
        );
        let body = json!({
            "lease_owner": "w", "activity_attempt_id": activity["activity_attempt_id"],
            "request_id": task["cancellation_request"]["request_id"],
        });
        let sent = client
            .request(reqwest::Method::POST, &path)
            .header("X-Namespace", "second")
            .json(&body);
        client.send(sent).await.refused(404, "task_not_found");
    }
    let path = format!(
        "/worker/workflow-tasks/{}/deliver-cancellation",
        text(&task, "task_id")
    );
    let body = json!({
        "lease_owner": "w", "workflow_task_attempt": 1, "sequence": 1, "call_kind": "activity",
        "request_id": task["cancellation_request"]["request_id"],
    });
    let sent = client
        .request(reqwest::Method::POST, &path)
        .header("X-Namespace", "second")
        .json(&body);
    client.send(sent).await.refused(404, "task_not_found");
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: a worker that holds the run's task and cannot cooperate keeps a request out, with nothing
/// recorded; and no such worker is given the task of a run that was asked to cancel.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_cooperating_worker_takes_part() {
    let server = server("1.20").await;
    let client = &server.client;
    let mut plain = super::capable(client, "plain", "q");
    let list = plain["capabilities"].as_array_mut().unwrap();
    list.retain(|said| said != "cooperative_cancellation");
    client.post("/worker/register", plain).await.expect(200);
    register(client, "w", "q", json!({})).await;
    client.start("wf", "flow", "q").await;
    for (client, worker) in [(client, "plain"), (&client.speaking("1.19"), "w")] {
        let task = client.poll("workflow", worker, "q", 5).await;
        let before = server.db.contents().await;
        let body = request(client, json!({}))
            .await
            .refused(409, "active_claim_cancellation_not_supported");
        assert_eq!(body["task_id"], task["task_id"]);
        assert_eq!(body["workflow_task_attempt"], task["workflow_task_attempt"]);
        assert_eq!(server.db.contents().await, before);
        client.wait_for_history(&task).await.expect(200);
        client
            .post("/workflows/wf/signal/go", json!({}))
            .await
            .expect(202);
    }
    request(client, json!({})).await.expect(202);
    assert!(client.poll("workflow", "plain", "q", 0).await.is_null());
    let older = client.speaking("1.19");
    assert!(older.poll("workflow", "w", "q", 0).await.is_null());
    poll(client).await;
    server.stop().await;
}

/// Rule: when the time for the cleanup is over the run is closed as cancelled, under the request's id,
/// without a worker's help.
#[tokio::test(flavor = "multi_thread")]
async fn a_cleanup_has_a_deadline() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting_for(client, json!([act(json!({}))])).await;
    let fields = json!({"cleanup_timeout_seconds": 1, "reason": "late"});
    let body = request(client, fields).await.expect(202);
    let task = poll(client).await;
    eventually("the run closes", 10, async || {
        let body = client.get("/workflows/wf").await.expect(200);
        (body["status"] == "cancelled").then_some(())
    })
    .await;
    let history = client.history("wf", &run).await;
    let last = history.last().unwrap();
    assert_eq!(last["event_type"], "WorkflowCancelled");
    assert_eq!(
        last["payload"]["workflow_command_id"],
        body["cancellation_request"]["request_id"]
    );
    assert_eq!(last["payload"]["reason"], "late");
    only(&history, "ActivityCancelled");
    // The fence that was live at the end is told so.
    let body = client.complete(&task, json!([])).await.expect(200);
    assert_eq!(body["recorded"], false);
    server.stop().await;
}

/// Rule: a parent that is cancelled asks its child to cooperate, under the same root and with the same
/// deadline, and waits for it when the call says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_asked_in_turn() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let kids = json!({"supported_workflow_types": ["kid"]});
    register(client, "k", "kids", kids).await;
    let call = json!({
        "type": "start_child_workflow", "workflow_type": "kid", "queue": "kids",
        "cancellation_policy": "wait_cancellation_completed",
    });
    client.complete(&task, json!([call])).await.expect(200);
    let run = text(&task, "run_id");
    let kid = client.poll("workflow", "k", "kids", 5).await;
    client.wait_for_history(&kid).await.expect(200);
    let asked = request(client, json!({})).await.expect(202);
    let task = poll(client).await;
    let body = deliver(client, &task, at(1, "child")).await.expect(200);
    assert_eq!(body["delivered"], false);
    assert_eq!(body["reason"], "cancellation_waiting_for_child");
    let kid = client.poll("workflow", "k", "kids", 5).await;
    let asked = &asked["cancellation_request"];
    let shown = &kid["cancellation_request"];
    assert_eq!(shown["cleanup_deadline_at"], asked["cleanup_deadline_at"]);
    let history = kid["history_events"].as_array().unwrap();
    let context = &only(history, "CooperativeCancellationRequested")["payload"]["cancellation"];
    assert_eq!(context["root_request_id"], asked["request_id"]);
    assert_eq!(context["parent_request_id"], asked["request_id"]);
    assert_eq!(context["lineage"].as_array().unwrap().len(), 2);
    deliver(client, &kid, at(1, "timer")).await.expect(200);
    let end = json!([{
        "type": "fail_workflow", "message": "m", "exception_type": "WorkflowCancelled",
    }]);
    client.complete(&kid, end).await.expect(200);
    let task = poll(client).await;
    let history = client.history("wf", run).await;
    only(&history, "ChildRunCancelled");
    let body = deliver(client, &task, at(1, "child")).await.expect(200);
    assert_eq!(body["delivered"], true);
    server.stop().await;
}

/// Rule: the fields of request and delivery; what does not exist; fences of a delivery.
#[tokio::test(flavor = "multi_thread")]
async fn requests_and_deliveries_are_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting_for(
        client,
        json!([{"type": "start_timer", "delay_seconds": 600}]),
    )
    .await;
    for (fields, field) in [
        (json!({"reason": "x".repeat(1_001)}), "reason"),
        (
            json!({"cleanup_timeout_seconds": 0}),
            "cleanup_timeout_seconds",
        ),
        (
            json!({"cleanup_timeout_seconds": 3_601}),
            "cleanup_timeout_seconds",
        ),
    ] {
        request(client, fields).await.invalid(&[field]);
    }
    client
        .post("/workflows/none/request-cancellation", json!({}))
        .await
        .refused(404, "instance_not_found");
    client
        .post("/workflows/wf/runs/x/request-cancellation", json!({}))
        .await
        .refused(404, "run_not_found");
    request(client, json!({})).await.expect(202);
    let task = poll(client).await;
    let before = server.db.contents().await;
    for (fields, field) in [
        (json!({"request_id": null}), "request_id"),
        (json!({"sequence": 0}), "sequence"),
        (json!({"sequence": null}), "sequence"),
        (json!({"call_kind": "other"}), "call_kind"),
        (json!({"sequence_span": 2}), "sequence_span"),
        (
            json!({"call_kind": "parallel", "sequence_span": 1_001}),
            "sequence_span",
        ),
        (json!({"operation_sequence": 1}), "operation_sequence"),
        (
            json!({"call_kind": "selection_handle"}),
            "operation_sequence",
        ),
        (
            json!({"call_kind": "selection_handle", "operation_sequence": 1}),
            "operation_sequence",
        ),
    ] {
        deliver(client, &task, merged(at(1, "timer"), fields))
            .await
            .invalid(&[field]);
    }
    for (fields, reason) in [
        (json!({"lease_owner": "other"}), "lease_owner_mismatch"),
        (
            json!({"workflow_task_attempt": 2}),
            "workflow_task_attempt_mismatch",
        ),
        (
            json!({"request_id": "other"}),
            "cooperative_cancellation_not_supported",
        ),
    ] {
        let body = deliver(client, &task, merged(at(1, "timer"), fields))
            .await
            .refused(409, reason);
        assert_eq!(body["delivered"], false);
    }
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: cancel and terminate reach a running activity through its heartbeat, which tells it to stop
/// and why; what it reports afterwards is not recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_run_stops_its_activities() {
    for version in super::VERSIONS {
        for (command, reason) in [("cancel", "run_cancelled"), ("terminate", "run_terminated")] {
            let server = server(version).await;
            let client = &server.client;
            let run = waiting_for(client, json!([act(json!({}))])).await;
            let activity = client.poll("activity", "w", "q", 5).await;
            client.started(&activity).await;
            let beat = async || {
                let body = client.report(&activity, "heartbeat", json!({})).await;
                body.expect(200)
            };
            assert_eq!(beat().await["can_continue"], true);
            client
                .post(&format!("/workflows/wf/{command}"), json!({}))
                .await
                .expect(200);
            let before = server.db.contents().await;
            let body = beat().await;
            assert_eq!(body["can_continue"], false);
            assert_eq!(body["cancel_requested"], true);
            assert_eq!(body["heartbeat_recorded"], false);
            assert_eq!(body["reason"], reason);
            assert!(body["run_closed_at"].is_string());
            for (report, fields) in [
                ("complete", json!({})),
                ("fail", json!({"failure": {"message": "m"}})),
            ] {
                let body = client
                    .report(&activity, report, fields)
                    .await
                    .refused(409, reason);
                assert_eq!(body["recorded"], false);
                assert_eq!(body["can_continue"], false);
                assert_eq!(body["task_status"], "cancelled");
            }
            assert_eq!(server.db.contents().await, before);
            only(&client.history("wf", &run).await, "ActivityCancelled");
            server.stop().await;
        }
    }
}
