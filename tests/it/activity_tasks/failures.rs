//! Failures of activities: their forms, and when another attempt follows.

use serde_json::{Value, json};

use crate::support::{Client, TestServer, envelope, only, text};

/// Runs activities of a workflow each with one failure report and gives what was recorded for it.
async fn recorded(client: &Client, n: usize, policy: Value, failure: Value) -> (Value, Value) {
    let name = format!("wf{n}");
    let activity = client.activity_of(&name, policy).await;
    let body = client.report(&activity, "fail", failure).await.expect(200);
    let history = client.history(&name, text(&activity, "run_id")).await;
    (body, history.last().unwrap().clone())
}

/// Rule: the SDKs' nested form and the contract's flat form of a failure say the same.
#[tokio::test(flavor = "multi_thread")]
async fn nested_and_flat_failures_are_recorded_alike() {
    let server = TestServer::start().await;
    let client = &server.client;
    let nested = json!({"failure": {
        "message": "no", "type": "T", "class": "my.T", "code": 7, "non_retryable": true,
        "stack_trace": "at x", "details": envelope(json!({"x": 1})), "kind": "application",
    }});
    let (body, event) = recorded(client, 0, json!({}), nested).await;
    assert_eq!(body["outcome"], "failed");
    assert_eq!(body["recorded"], true);
    assert_eq!(event["event_type"], "ActivityFailed");
    let failed = &event["payload"];
    assert_eq!(failed["message"], "no");
    assert_eq!(failed["exception_type"], "T");
    assert_eq!(failed["exception_class"], "my.T");
    assert_eq!(failed["code"], 7);
    assert_eq!(failed["non_retryable"], true);
    assert_eq!(failed["failure_category"], "activity");
    assert!(failed["failure_id"].is_string());
    let exception = json!({
        "type": "T", "message": "no", "code": 7, "non_retryable": true, "details": envelope(json!({"x": 1})),
    });
    assert_eq!(failed["exception"], exception);
    for (n, (flat, message, kind)) in [
        (
            json!({"message": "no", "exception_type": "T", "non_retryable": true}),
            "no",
            json!("T"),
        ),
        (json!({"error": "oops"}), "oops", json!(null)),
        (json!({"error": "oops", "message": "no"}), "no", json!(null)),
    ]
    .into_iter()
    .enumerate()
    {
        let (_, event) = recorded(client, n + 1, json!({}), flat).await;
        assert_eq!(event["payload"]["message"], message);
        assert_eq!(event["payload"]["exception_type"], kind);
    }
    server.stop().await;
}

/// Rule: the fields of a failure and their limits.
#[tokio::test(flavor = "multi_thread")]
async fn the_fields_of_a_failure_are_checked() {
    let server = TestServer::start().await;
    let client = &server.client;
    let activity = client.first_activity(json!({})).await;
    let before = server.db.contents().await;
    for (fields, wrong) in [
        (json!({}), "failure.message"),
        (json!({"failure": {}}), "failure.message"),
        (json!({"failure": {"message": 1}}), "failure.message"),
        (
            json!({"failure": {"message": "m".repeat(65_537)}}),
            "failure.message",
        ),
        (
            json!({"failure": {"message": "m", "type": "t".repeat(513)}}),
            "failure.type",
        ),
        (
            json!({"failure": {"message": "m", "class": "t".repeat(513)}}),
            "failure.class",
        ),
        (
            json!({"failure": {"message": "m", "code": "x"}}),
            "failure.code",
        ),
        (
            json!({"failure": {"message": "m", "non_retryable": "yes"}}),
            "failure.non_retryable",
        ),
        (json!({"failure": "m"}), "failure"),
        (json!({"message": ["m"]}), "message"),
    ] {
        client
            .report(&activity, "fail", fields)
            .await
            .invalid(&[wrong]);
    }
    assert_eq!(server.db.contents().await, before);
    let largest = json!({"failure": {"message": "m".repeat(65_536), "type": "t".repeat(512), "details": [1, {"a": null}]}});
    client.report(&activity, "fail", largest).await.expect(200);
    server.stop().await;
}

/// Rule: another attempt follows while the policy has one, unless the failure is final by its own word
/// or by its type or class, compared exactly.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_retried_unless_it_is_final() {
    let server = TestServer::start().await;
    let client = &server.client;
    let policy = json!({"retry_policy": {
        "max_attempts": 3, "backoff_seconds": [3600], "non_retryable_error_types": ["Bad", "my.Worse"],
    }});
    for (n, (failure, retried)) in [
        (json!({"message": "m"}), true),
        (json!({"message": "m", "type": "bad"}), true),
        (json!({"message": "m", "type": "Badly"}), true),
        (json!({"message": "Bad"}), true),
        (json!({"message": "m", "type": "Bad"}), false),
        (
            json!({"message": "m", "type": "Other", "class": "my.Worse"}),
            false,
        ),
        (json!({"message": "m", "non_retryable": true}), false),
    ]
    .into_iter()
    .enumerate()
    {
        let shown = failure.to_string();
        let (body, event) =
            recorded(client, n, policy.clone(), json!({ "failure": failure })).await;
        let kind = if retried {
            "ActivityRetryScheduled"
        } else {
            "ActivityFailed"
        };
        assert_eq!(event["event_type"], kind, "{shown}");
        assert_eq!(body["next_task_id"] == body["task_id"], retried, "{shown}");
        let name = format!("wf{n}");
        let workflow_task = client.poll("workflow", &name, &name, 0).await;
        assert_eq!(workflow_task.is_null(), retried, "{shown}");
        if retried {
            let retry = &event["payload"];
            assert_eq!(retry["retry_task_id"], body["task_id"]);
            assert_eq!(retry["retry_backoff_seconds"], 3600);
            assert_eq!(retry["retry_after_attempt"], 1);
            assert_eq!(retry["max_attempts"], 3);
            assert_eq!(
                retry["message"],
                json!(serde_json::from_str::<Value>(&shown).unwrap()["message"])
            );
            assert!(retry["retry_available_at"].is_string());
        }
    }
    server.stop().await;
}

/// Rule: attempt n waits for element n of the list, the last one repeats; after the last attempt the
/// activity has failed.
#[tokio::test(flavor = "multi_thread")]
async fn the_backoff_list_goes_by_attempt_and_its_last_element_repeats() {
    let server = TestServer::start().await;
    let client = &server.client;
    let policy = json!({"retry_policy": {"max_attempts": 4, "backoff_seconds": [0, 1]}});
    let mut activity = client.first_activity(policy).await;
    for attempt in 1..=4 {
        assert_eq!(activity["attempt"], attempt);
        assert_eq!(activity["attempt_number"], attempt);
        let failure = json!({"failure": {"message": format!("m{attempt}")}});
        client.report(&activity, "fail", failure).await.expect(200);
        if attempt < 4 {
            activity = client.poll("activity", "w", "q", 10).await;
        }
    }
    let history = client.history("wf", text(&activity, "run_id")).await;
    let backoffs: Vec<&Value> = history
        .iter()
        .filter(|event| event["event_type"] == "ActivityRetryScheduled")
        .map(|event| &event["payload"]["retry_backoff_seconds"])
        .collect();
    assert_eq!(backoffs, [0, 1, 1]);
    let failed = &only(&history, "ActivityFailed")["payload"];
    assert_eq!(failed["attempt_number"], 4);
    assert_eq!(failed["message"], "m4");
    assert!(client.poll("activity", "w", "q", 0).await.is_null());
    assert!(client.poll("workflow", "w", "q", 0).await.is_object());
    server.stop().await;
}
