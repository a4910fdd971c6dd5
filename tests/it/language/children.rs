//! Child workflows: started with their call, heard of when they end, tried again, and closed with
//! their parent.

use serde_json::{Value, json};

use super::{VERSIONS, first_task, register, server};
use crate::support::{Client, envelope, eventually, merged, only, text};

fn child(fields: Value) -> Value {
    merged(
        json!({"type": "start_child_workflow", "workflow_type": "kid", "queue": "kids"}),
        fields,
    )
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

async fn poll_child(client: &Client) -> Value {
    let task = client.poll("workflow", "k", "kids", 5).await;
    assert!(task.is_object(), "no task of a child");
    task
}

/// Starts a parent with one child and gives the parent's run and the child's first task.
async fn family(client: &Client, fields: Value) -> (String, Value) {
    let task = first_task(client).await;
    let kids = json!({"supported_workflow_types": ["kid"]});
    register(client, "k", "kids", kids).await;
    client
        .complete(&task, json!([child(fields)]))
        .await
        .expect(200);
    (text(&task, "run_id").to_owned(), poll_child(client).await)
}

/// Waits until a run of a workflow is closed and gives its history.
async fn closed(client: &Client, task: &Value) -> Vec<Value> {
    let (workflow, run) = (text(task, "workflow_id"), text(task, "run_id"));
    eventually("the run closes", 10, async || {
        let path = format!("/workflows/{workflow}/runs/{run}");
        let body = client.get(&path).await.expect(200);
        (body["is_terminal"] == true).then_some(())
    })
    .await;
    client.history(workflow, run).await
}

/// Rule: a child comes into being with its call: the events on both sides name each other, and its
/// result reaches the parent.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_runs_and_returns() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let fields = json!({"arguments": envelope(json!(["x"]))});
        let (run, task) = family(client, fields).await;
        let parent = client.history("wf", &run).await;
        let scheduled = &only(&parent, "ChildWorkflowScheduled")["payload"];
        let started = &only(&parent, "ChildRunStarted")["payload"];
        for payload in [scheduled, started] {
            assert_eq!(payload["sequence"], 1);
            assert_eq!(payload["child_workflow_type"], "kid");
            assert_eq!(payload["child_workflow_run_id"], task["run_id"]);
            assert_eq!(payload["child_workflow_instance_id"], task["workflow_id"]);
            assert_eq!(payload["child_call_id"], scheduled["child_call_id"]);
        }
        assert_eq!(scheduled["parent_close_policy"], "abandon");
        assert_eq!(scheduled["child_run_number"], 1);
        let child = task["history_events"].as_array().unwrap();
        let begun = only(child, "WorkflowStarted");
        assert_eq!(begun["sequence"], 1);
        let begun = &begun["payload"];
        assert_eq!(begun["parent_workflow_instance_id"], "wf");
        assert_eq!(begun["parent_workflow_run_id"], run);
        assert_eq!(begun["parent_sequence"], 1);
        assert_eq!(task["arguments"], envelope(json!(["x"])));
        assert!(client.poll("workflow", "w", "q", 0).await.is_null());
        let end = json!([{"type": "complete_workflow", "result": envelope(json!({"n": 1}))}]);
        client.complete(&task, end).await.expect(200);
        let resumed = poll(client).await;
        assert_eq!(resumed["workflow_wait_kind"], "child");
        assert_eq!(resumed["resume_source_kind"], "child_workflow_run");
        assert_eq!(resumed["child_workflow_run_id"], task["run_id"]);
        assert_eq!(resumed["child_call_id"], scheduled["child_call_id"]);
        assert_eq!(resumed["workflow_event_type"], "ChildRunCompleted");
        let parent = client.history("wf", &run).await;
        let completed = &only(&parent, "ChildRunCompleted")["payload"];
        assert_eq!(completed["sequence"], 1);
        assert_eq!(completed["result"], envelope(json!({"n": 1})));
        assert_eq!(completed["output"], completed["result"]);
        assert_eq!(completed["payload_codec"], "avro");
        assert_eq!(completed["child_status"], "completed");
        server.stop().await;
    }
}

/// Rule: each other end of a child is told by an event of its own, with what went wrong.
#[tokio::test(flavor = "multi_thread")]
async fn each_end_of_a_child_is_told() {
    let server = server("1.20").await;
    let client = &server.client;
    for (n, (end, event, category)) in [
        ("fail", "ChildRunFailed", "child_workflow"),
        ("cancel", "ChildRunCancelled", "cancelled"),
        ("terminate", "ChildRunTerminated", "terminated"),
        ("timeout", "ChildRunFailed", "timeout"),
    ]
    .into_iter()
    .enumerate()
    {
        register(client, "w", "q", json!({})).await;
        let kids = json!({"supported_workflow_types": ["kid"]});
        register(client, "k", "kids", kids).await;
        let workflow = format!("wf{n}");
        let run = client.start(&workflow, "flow", "q").await;
        let task = poll(client).await;
        let limit = if end == "timeout" {
            json!({"run_timeout_seconds": 1})
        } else {
            json!({})
        };
        client
            .complete(&task, json!([child(limit)]))
            .await
            .expect(200);
        let kid = poll_child(client).await;
        let id = text(&kid, "workflow_id");
        match end {
            "fail" => {
                let failure = json!([{
                    "type": "fail_workflow", "message": "broken", "exception_type": "Oh",
                }]);
                client.complete(&kid, failure).await.expect(200);
            }
            "timeout" => {}
            end => {
                let why = json!({"reason": "broken"});
                let path = format!("/workflows/{id}/{end}");
                client.post(&path, why).await.expect(200);
            }
        }
        let resumed = poll(client).await;
        assert_eq!(resumed["workflow_event_type"], event);
        let history = client.history(&workflow, &run).await;
        let payload = &only(&history, event)["payload"];
        assert_eq!(payload["failure_category"], category, "{end}");
        assert_eq!(payload["child_workflow_type"], "kid");
        assert_eq!(payload["child_workflow_run_id"], kid["run_id"]);
        assert!(!text(payload, "failure_id").is_empty());
        if end != "timeout" {
            assert!(text(payload, "message").contains("broken"), "{payload}");
        }
        if end == "fail" {
            assert_eq!(payload["exception_type"], "Oh");
        }
        client
            .complete(&resumed, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
    }
    server.stop().await;
}

/// Rule: a child that fails is tried again as its call said, each try a run of the same child, and the
/// parent hears of the last; an error that is named as final is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_tried_again() {
    let server = server("1.20").await;
    let client = &server.client;
    let policy = json!({"retry_policy": {
        "max_attempts": 3, "backoff_seconds": [0], "non_retryable_error_types": ["Final"],
    }});
    let (run, first) = family(client, policy).await;
    let fail =
        |kind: &str| json!([{"type": "fail_workflow", "message": "m", "exception_type": kind}]);
    client.complete(&first, fail("Oh")).await.expect(200);
    let second = poll_child(client).await;
    assert_eq!(second["workflow_id"], first["workflow_id"]);
    assert_ne!(second["run_id"], first["run_id"]);
    let begun = second["history_events"].as_array().unwrap();
    let begun = &only(begun, "WorkflowStarted")["payload"];
    assert_eq!(begun["retry_attempt"], 2);
    assert_eq!(begun["retry_of_child_workflow_run_id"], first["run_id"]);
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    client.complete(&second, fail("Final")).await.expect(200);
    poll(client).await;
    let history = client.history("wf", &run).await;
    let failed = &only(&history, "ChildRunFailed")["payload"];
    assert_eq!(failed["exception_type"], "Final");
    assert!(client.poll("workflow", "k", "kids", 0).await.is_null());
    server.stop().await;
}

/// Rule: a child that continues as new stays the same child: the parent hears of its last run only.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_may_continue_as_new() {
    let server = server("1.20").await;
    let client = &server.client;
    let (run, first) = family(client, json!({})).await;
    client
        .complete(&first, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    let second = poll_child(client).await;
    let end = json!([{"type": "complete_workflow", "result": envelope(json!(2))}]);
    client.complete(&second, end).await.expect(200);
    poll(client).await;
    let history = client.history("wf", &run).await;
    let completed = &only(&history, "ChildRunCompleted")["payload"];
    assert_eq!(completed["result"], envelope(json!(2)));
    server.stop().await;
}

/// Rule: when the parent closes, whatever the way, its children are left alone, cancelled or
/// terminated as their calls said; each but the first leaves `ParentClosePolicyApplied` before the
/// parent's terminal event.
#[tokio::test(flavor = "multi_thread")]
async fn children_close_with_their_parent() {
    for end in ["complete_workflow", "fail_workflow", "cancel", "terminate"] {
        let server = server("1.20").await;
        let client = &server.client;
        let task = first_task(client).await;
        let run = text(&task, "run_id").to_owned();
        let kids = json!({"supported_workflow_types": ["kid"]});
        register(client, "k", "kids", kids).await;
        let calls = ["abandon", "request_cancel", "terminate"]
            .map(|policy| child(json!({"parent_close_policy": policy})));
        client.complete(&task, json!(calls)).await.expect(200);
        let mut tasks = Vec::new();
        for _ in 0..3 {
            tasks.push(poll_child(client).await);
        }
        let history = client.history("wf", &run).await;
        let scheduled: Vec<_> = history
            .iter()
            .filter(|event| event["event_type"] == "ChildWorkflowScheduled")
            .map(|event| &event["payload"])
            .collect();
        let task_of = |n: usize| {
            let run = &scheduled[n]["child_workflow_run_id"];
            tasks.iter().find(|task| task["run_id"] == *run).unwrap()
        };
        if end.ends_with("workflow") {
            client
                .post("/workflows/wf/signal/go", json!({}))
                .await
                .expect(202);
            let task = poll(client).await;
            let command = json!([{"type": end, "message": "m"}]);
            client.complete(&task, command).await.expect(200);
        } else {
            let path = format!("/workflows/wf/{end}");
            client.post(&path, json!({})).await.expect(200);
        }
        for (n, last) in [(1, "WorkflowCancelled"), (2, "WorkflowTerminated")] {
            let history = closed(client, task_of(n)).await;
            assert_eq!(history.last().unwrap()["event_type"], last, "{end}");
        }
        // The first goes on, and its parent is told nothing any more.
        client
            .complete(task_of(0), json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
        closed(client, task_of(0)).await;
        let history = client.history("wf", &run).await;
        let applied: Vec<_> = history
            .iter()
            .filter(|event| event["event_type"] == "ParentClosePolicyApplied")
            .map(|event| &event["payload"])
            .collect();
        assert_eq!(applied.len(), 2, "{end}");
        for (payload, (n, policy)) in applied
            .iter()
            .zip([(1, "request_cancel"), (2, "terminate")])
        {
            assert_eq!(payload["policy"], policy);
            assert_eq!(
                payload["child_run_id"],
                scheduled[n]["child_workflow_run_id"]
            );
        }
        let last = text(history.last().unwrap(), "event_type");
        assert!(last.starts_with("Workflow"), "{last}");
        assert!(
            !history
                .iter()
                .any(|event| event["event_type"] == "ChildRunCompleted")
        );
        server.stop().await;
    }
}

/// Rule: a parent that closes may ask its child to cooperate instead: the child stays open, is shown
/// the request, and ends under it.
#[tokio::test(flavor = "multi_thread")]
async fn a_closing_parent_may_ask_its_child_to_cooperate() {
    let server = server("1.20").await;
    let client = &server.client;
    let policy = json!({"parent_close_policy": "request_cancellation"});
    let (run, first) = family(client, policy).await;
    client.wait_for_history(&first).await.expect(200);
    client
        .post("/workflows/wf/terminate", json!({}))
        .await
        .expect(200);
    let kid = poll_child(client).await;
    assert!(kid["cancellation_request"]["request_id"].is_string());
    let history = kid["history_events"].as_array().unwrap();
    let context = &only(history, "CooperativeCancellationRequested")["payload"]["cancellation"];
    assert_eq!(context["root_workflow_run_id"], run);
    assert_eq!(context["source"], "parent_workflow");
    let delivery = json!({
        "request_id": kid["cancellation_request"]["request_id"], "sequence": 1,
        "call_kind": "timer",
    });
    let body = client.task(&kid, "deliver-cancellation", delivery).await;
    assert_eq!(body.expect(200)["delivered"], true);
    let end = json!([{
        "type": "fail_workflow", "message": "m", "exception_type": "WorkflowCancelled",
    }]);
    client.complete(&kid, end).await.expect(200);
    let history = closed(client, &kid).await;
    assert_eq!(history.last().unwrap()["event_type"], "WorkflowCancelled");
    server.stop().await;
}

/// Rule: a run has a bounded number of children that are open; one more refuses the whole completion.
#[tokio::test(flavor = "multi_thread")]
async fn children_are_bounded() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let calls = vec![child(json!({})); 1_000];
    client.complete(&task, json!(calls)).await.expect(200);
    let body = client.get("/cluster/info").await.expect(200);
    let limit = body["structural_limits"]["pending_child_count"].as_u64();
    let mut open = 1_000;
    for _ in 0..2 {
        client
            .post("/workflows/wf/signal/go", json!({}))
            .await
            .expect(202);
        let task = poll(client).await;
        let room = usize::try_from(limit.unwrap() - open).unwrap();
        let before = server.db.contents().await;
        if room < 1_000 {
            let calls = vec![child(json!({})); room + 1];
            let body = client
                .complete(&task, json!(calls))
                .await
                .refused(422, "structural_limit_exceeded");
            assert_eq!(body["limit_kind"], "pending_child_count");
            assert_eq!(body["recorded"], false);
            assert_eq!(server.db.contents().await, before);
        }
        let calls = vec![child(json!({})); room.min(1_000)];
        client.complete(&task, json!(calls)).await.expect(200);
        open += room.min(1_000) as u64;
    }
    assert_eq!(Some(open), limit);
    server.stop().await;
}

/// Rule: a child inherits memo and search attributes, its parent's queue unless the call names one,
/// and has time limits of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_inherits_what_its_parent_shows() {
    let server = server("1.20").await;
    let client = &server.client;
    register(
        client,
        "w",
        "q",
        json!({"supported_workflow_types": ["flow", "kid"]}),
    )
    .await;
    let fields = json!({"memo": {"m": 1}, "search_attributes": {"Attr": "x"}});
    client.start_with("wf", fields).await;
    let task = poll(client).await;
    let call = json!({
        "type": "start_child_workflow", "workflow_type": "kid",
        "run_timeout_seconds": 60, "execution_timeout_seconds": 120,
    });
    client.complete(&task, json!([call])).await.expect(200);
    let kid = poll(client).await;
    assert_eq!(kid["workflow_type"], "kid");
    assert_eq!(kid["task_queue"], "q");
    let path = format!("/workflows/{}", text(&kid, "workflow_id"));
    let body = client.get(&path).await.expect(200);
    assert_eq!(body["memo"], json!({"m": 1}));
    assert_eq!(body["search_attributes"], json!({"Attr": "x"}));
    let begun = kid["history_events"].as_array().unwrap();
    let begun = &only(begun, "WorkflowStarted")["payload"];
    assert_eq!(begun["run_timeout_seconds"], 60);
    assert_eq!(begun["execution_timeout_seconds"], 120);
    server.stop().await;
}

/// Rule: the fields of the call, each by its path; a refused completion starts no child.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    for (fields, field) in [
        (json!({"workflow_type": null}), "workflow_type"),
        (json!({"workflow_type": ""}), "workflow_type"),
        (json!({"queue": ""}), "queue"),
        (json!({"arguments": [1]}), "arguments"),
        (
            json!({"parent_close_policy": "forget"}),
            "parent_close_policy",
        ),
        (json!({"run_timeout_seconds": 0}), "run_timeout_seconds"),
        (
            json!({"execution_timeout_seconds": 0}),
            "execution_timeout_seconds",
        ),
        (
            json!({"run_timeout_seconds": 3, "execution_timeout_seconds": 2}),
            "run_timeout_seconds",
        ),
        (
            json!({"retry_policy": {"max_attempts": 0}}),
            "retry_policy.max_attempts",
        ),
        (
            json!({"cancellation_policy": "hope"}),
            "cancellation_policy",
        ),
        (
            json!({"start_to_close_timeout": 1}),
            "start_to_close_timeout",
        ),
        (json!({"delay_seconds": 1}), "delay_seconds"),
        (
            json!({"cancellation_scope_id": "inner"}),
            "cancellation_scope_id",
        ),
    ] {
        let answer = client.complete(&task, json!([child(fields)])).await;
        answer.invalid(&[&format!("commands.0.{field}")]);
    }
    assert_eq!(server.db.contents().await, before);
    client.wait_for_history(&task).await.expect(200);
    server.stop().await;
}
