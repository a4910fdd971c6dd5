//! Selections: a group whose first finished member wins, and the members that lost.

use serde_json::{Value, json};

use super::{first_task, register, server};
use crate::support::{Client, merged, only, text};

/// The member of a selection that a leaf belongs to: key, place, first step, leaves.
type Member<'a> = (Value, u64, u64, u64, &'a str);

/// The outermost level of a leaf's path.
fn entry(kind: &str, base: u64, size: u64, index: u64, member: &Member<'_>) -> Value {
    let (key, place, first, leaves, member_kind) = member;
    json!({
        "parallel_group_id": format!("select-calls:{base}:{size}"),
        "parallel_group_kind": kind,
        "parallel_group_mode": "select",
        "parallel_group_base_sequence": base,
        "parallel_group_size": size,
        "parallel_group_index": index,
        "selection_member_key": key,
        "selection_member_index": place,
        "selection_member_base_sequence": first,
        "selection_member_size": leaves,
        "selection_member_kind": member_kind,
    })
}

/// A command as a member of its own.
fn leaf(command: Value, kind: &str, size: u64, index: u64, member: &Member<'_>) -> Value {
    let entry = entry(kind, 1, size, index, member);
    merged(
        merged(command, entry.clone()),
        json!({"parallel_group_path": [entry]}),
    )
}

fn act() -> Value {
    json!({"type": "schedule_activity", "activity_type": "act"})
}

fn timer(seconds: u64) -> Value {
    json!({"type": "start_timer", "delay_seconds": seconds})
}

/// Two activities of which the first to end wins.
fn two_activities() -> Value {
    json!([
        leaf(act(), "activity", 2, 0, &(json!("a"), 0, 1, 1, "activity")),
        leaf(act(), "activity", 2, 1, &(json!(7), 1, 2, 1, "activity")),
    ])
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("workflow", "w", "q", 5).await;
    assert!(task.is_object(), "no task");
    task
}

async fn activity(client: &Client) -> Value {
    let task = client.poll("activity", "w", "q", 5).await;
    assert!(task.is_object(), "no activity");
    task
}

/// What the history says of an activity's schedule.
#[track_caller]
fn scheduled<'a>(history: &'a [Value], activity: &Value) -> &'a Value {
    let scheduled = history.iter().find(|event| {
        event["event_type"] == "ActivityScheduled"
            && event["payload"]["activity_execution_id"] == activity["activity_execution_id"]
    });
    &scheduled.expect("the schedule")["payload"]
}

/// Checks the record of a winner against the event before it.
#[track_caller]
fn assert_resolved(history: &[Value], kind: &str, identity: &str, event: &str, outcome: &str) {
    let resolved = only(history, "SelectionResolved");
    let at = usize::try_from(resolved["sequence"].as_u64().unwrap()).unwrap();
    let before = &history[at - 2];
    assert_eq!(before["event_type"], event);
    let payload = &resolved["payload"];
    assert_eq!(payload["operation_kind"], kind);
    assert_eq!(payload["operation_identity"], before["payload"][identity]);
    assert_eq!(payload["outcome"], outcome);
    assert_eq!(payload["resolution_event_id"], before["id"]);
    assert_eq!(payload["resolution_event_type"], event);
    assert!(!text(before, "id").is_empty());
}

/// Rule: the first member that ends wins, with an event right after its end and one task; the others
/// go on, and their ends wake the workflow too; there is one winner, ever.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_member_wins() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    client.complete(&task, two_activities()).await.expect(200);
    let (first, second) = (activity(client).await, activity(client).await);
    client
        .report(&second, "complete", json!({}))
        .await
        .expect(200);
    let task = poll(client).await;
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    let history = client.history("wf", &run).await;
    assert_resolved(
        &history,
        "activity",
        "activity_execution_id",
        "ActivityCompleted",
        "completed",
    );
    let resolved = &only(&history, "SelectionResolved")["payload"];
    let winner = scheduled(&history, &second);
    for field in ["key", "index", "base_sequence"] {
        assert_eq!(
            resolved[format!("member_{field}")],
            winner[format!("selection_member_{field}")],
            "{field}"
        );
    }
    assert_eq!(resolved["member_size"], 1);
    assert_eq!(resolved["selection_group_id"], "select-calls:1:2");
    assert_eq!(resolved["selection_group_base_sequence"], 1);
    assert_eq!(resolved["selection_group_size"], 2);
    // Every event of a leaf repeats the whole path.
    for event in &history[2..] {
        if event["event_type"] == "SelectionResolved" {
            continue;
        }
        let path = &event["payload"]["parallel_group_path"];
        assert_eq!(path[0]["parallel_group_mode"], "select", "{event}");
        assert_eq!(event["payload"]["parallel_group_mode"], "select");
        assert_eq!(
            event["payload"]["selection_member_key"],
            path[0]["selection_member_key"]
        );
    }
    client.wait_for_history(&task).await.expect(200);
    client
        .report(&first, "complete", json!({}))
        .await
        .expect(200);
    poll(client).await;
    only(&client.history("wf", &run).await, "SelectionResolved");
    server.stop().await;
}

/// Rule: a member that fails first wins as failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_wins_too() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    client.complete(&task, two_activities()).await.expect(200);
    let first = activity(client).await;
    client
        .report(&first, "fail", json!({"failure": {"message": "no"}}))
        .await
        .expect(200);
    poll(client).await;
    let history = client.history("wf", text(&task, "run_id")).await;
    assert_resolved(
        &history,
        "activity",
        "activity_execution_id",
        "ActivityFailed",
        "failed",
    );
    server.stop().await;
}

/// Rule: every kind of operation can win, known by its own identity.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_can_win() {
    let server = server("1.20").await;
    let client = &server.client;
    let kid = json!({
        "type": "start_child_workflow", "workflow_type": "kid", "queue": "kids",
    });
    let wait = json!({"type": "open_signal_wait", "signal_name": "go"});
    let condition = json!({"type": "open_condition_wait", "timeout_seconds": 1});
    for (n, (kind, command, identity, event)) in [
        ("timer", timer(1), "timer_id", "TimerFired"),
        ("child", kid, "child_workflow_run_id", "ChildRunCompleted"),
        ("signal", wait, "signal_wait_id", "SignalApplied"),
        (
            "condition",
            condition,
            "condition_wait_id",
            "ConditionWaitTimedOut",
        ),
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
        let members = json!([
            leaf(command, "mixed", 2, 0, &(json!("x"), 0, 1, 1, kind)),
            leaf(
                timer(600),
                "mixed",
                2,
                1,
                &(json!("late"), 1, 2, 1, "timer")
            ),
        ]);
        client.complete(&task, members).await.expect(200);
        match kind {
            "child" => {
                let task = client.poll("workflow", "k", "kids", 5).await;
                let end = json!([{"type": "complete_workflow"}]);
                client.complete(&task, end).await.expect(200);
            }
            "signal" => {
                let path = format!("/workflows/{workflow}/signal/go");
                client.post(&path, json!({})).await.expect(202);
            }
            _ => {}
        }
        let task = poll(client).await;
        let history = client.history(&workflow, &run).await;
        assert_resolved(&history, kind, identity, event, "completed");
        client
            .complete(&task, json!([{"type": "complete_workflow"}]))
            .await
            .expect(200);
    }
    server.stop().await;
}

/// Rule: a member of several operations succeeds with the last of them and fails with the first
/// failure, and is known by its range.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_can_be_a_member() {
    for fails in [false, true] {
        let server = server("1.20").await;
        let client = &server.client;
        let task = first_task(client).await;
        let member = (json!("both"), 0, 1, 2, "group");
        let grouped = |index: u64| {
            let inner = json!({
                "parallel_group_id": "parallel-activities:1:2",
                "parallel_group_kind": "activity",
                "parallel_group_base_sequence": 1,
                "parallel_group_size": 2,
                "parallel_group_index": index,
            });
            let outer = entry("mixed", 1, 3, index, &member);
            let path = json!({"parallel_group_path": [outer, inner.clone()]});
            merged(merged(act(), inner), path)
        };
        let late = leaf(
            timer(600),
            "mixed",
            3,
            2,
            &(json!("late"), 1, 3, 1, "timer"),
        );
        client
            .complete(&task, json!([grouped(0), grouped(1), late]))
            .await
            .expect(200);
        let (first, second) = (activity(client).await, activity(client).await);
        if fails {
            client
                .report(&first, "fail", json!({"failure": {"message": "no"}}))
                .await
                .expect(200);
        } else {
            client
                .report(&first, "complete", json!({}))
                .await
                .expect(200);
            assert!(client.poll("workflow", "w", "q", 0).await.is_null());
            client
                .report(&second, "complete", json!({}))
                .await
                .expect(200);
        }
        poll(client).await;
        let history = client.history("wf", text(&task, "run_id")).await;
        let resolved = &only(&history, "SelectionResolved")["payload"];
        assert_eq!(resolved["member_key"], "both");
        assert_eq!(resolved["operation_kind"], "group");
        assert_eq!(resolved["operation_identity"], "group:1:2");
        assert_eq!(resolved["member_size"], 2);
        let (outcome, event) = if fails {
            ("failed", "ActivityFailed")
        } else {
            ("completed", "ActivityCompleted")
        };
        assert_eq!(resolved["outcome"], outcome);
        assert_eq!(resolved["resolution_event_type"], event);
        server.stop().await;
    }
}

/// Rule: giving a member up closes what is open of it and is recorded once; a member that has ended
/// stays as it is; fields that do not name the member contradict the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_can_be_given_up() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let run = text(&task, "run_id").to_owned();
    let members = json!([
        leaf(act(), "mixed", 2, 0, &(json!("work"), 0, 1, 1, "activity")),
        leaf(
            timer(600),
            "mixed",
            2,
            1,
            &(json!("late"), 1, 2, 1, "timer")
        ),
    ]);
    client.complete(&task, members).await.expect(200);
    let work = activity(client).await;
    client
        .report(&work, "complete", json!({}))
        .await
        .expect(200);
    let task = poll(client).await;
    let history = client.history("wf", &run).await;
    let late = &only(&history, "TimerScheduled")["payload"];
    let give_up = json!({
        "type": "cancel_selection_operation", "selection_group_id": "select-calls:1:2",
        "member_key": "late", "member_index": 1, "member_base_sequence": 2, "member_size": 1,
        "operation_kind": "timer", "operation_identity": late["timer_id"],
    });
    let before = server.db.contents().await;
    for change in [
        json!({"selection_group_id": "select-calls:9:2", "member_base_sequence": 9}),
        json!({"member_key": "work"}),
        json!({"member_index": 0}),
        json!({"member_size": 2}),
        json!({"operation_kind": "activity"}),
        json!({"operation_identity": "other"}),
    ] {
        let body = client
            .complete(&task, json!([merged(give_up.clone(), change)]))
            .await
            .refused(409, "invalid_commands");
        assert_eq!(body["recorded"], false);
    }
    for (change, field) in [
        (json!({"selection_group_id": null}), "selection_group_id"),
        (json!({"member_key": true}), "member_key"),
        (json!({"member_key": ""}), "member_key"),
        (json!({"member_index": null}), "member_index"),
        (json!({"member_base_sequence": 0}), "member_base_sequence"),
        (json!({"member_size": 0}), "member_size"),
        (json!({"operation_kind": null}), "operation_kind"),
        (json!({"operation_identity": ""}), "operation_identity"),
    ] {
        client
            .complete(&task, json!([merged(give_up.clone(), change)]))
            .await
            .invalid(&[&format!("commands.0.{field}")]);
    }
    assert_eq!(server.db.contents().await, before);
    // The winner has ended, the loser is closed, a second time changes nothing, and no step is used.
    let winner = json!({
        "type": "cancel_selection_operation", "selection_group_id": "select-calls:1:2",
        "member_key": "work", "member_index": 0, "member_base_sequence": 1, "member_size": 1,
        "operation_kind": "activity", "operation_identity": work["activity_execution_id"],
    });
    client
        .complete(&task, json!([winner, give_up, give_up, act()]))
        .await
        .expect(200);
    assert_eq!(
        client.events("wf", &run).await[history.len()..],
        [
            "SelectionOperationCancelled",
            "TimerCancelled",
            "ActivityScheduled"
        ]
    );
    let history = client.history("wf", &run).await;
    let cancelled = &only(&history, "SelectionOperationCancelled")["payload"];
    let mut expected = give_up.clone();
    expected.as_object_mut().unwrap().remove("type");
    assert_eq!(*cancelled, expected);
    assert_eq!(history.last().unwrap()["payload"]["sequence"], 3);
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    server.stop().await;
}

/// Rule: an activity that is given up learns so from its heartbeat, and its report is not recorded.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_member_is_stopped() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    client.complete(&task, two_activities()).await.expect(200);
    let (first, second) = (activity(client).await, activity(client).await);
    client.started(&second).await;
    client
        .report(&first, "complete", json!({}))
        .await
        .expect(200);
    let task = poll(client).await;
    let history = client.history("wf", text(&task, "run_id")).await;
    let lost = scheduled(&history, &second);
    let give_up = json!({
        "type": "cancel_selection_operation", "selection_group_id": "select-calls:1:2",
        "member_key": lost["selection_member_key"], "member_index": lost["selection_member_index"],
        "member_base_sequence": lost["selection_member_base_sequence"], "member_size": 1,
        "operation_kind": "activity", "operation_identity": lost["activity_execution_id"],
    });
    client.complete(&task, json!([give_up])).await.expect(200);
    let body = client
        .report(&second, "heartbeat", json!({}))
        .await
        .expect(200);
    assert_eq!(body["can_continue"], false);
    assert_eq!(body["reason"], "activity_cancelled");
    client
        .report(&second, "complete", json!({}))
        .await
        .refused(409, "stale_attempt");
    server.stop().await;
}

/// Rule: the fields of a member, each by its path; a selection is the outermost level only.
#[tokio::test(flavor = "multi_thread")]
async fn members_are_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let before = server.db.contents().await;
    let member = (json!("a"), 0, 1, 1, "activity");
    let whole = leaf(act(), "activity", 2, 0, &member);
    for (change, field) in [
        (
            json!({"parallel_group_mode": "race"}),
            "parallel_group_mode",
        ),
        (
            json!({"parallel_group_id": "parallel-activities:1:2"}),
            "parallel_group_id",
        ),
        (
            json!({"selection_member_key": true}),
            "selection_member_key",
        ),
        (json!({"selection_member_key": -1}), "selection_member_key"),
        (json!({"selection_member_key": ""}), "selection_member_key"),
        (
            json!({"selection_member_index": null}),
            "selection_member_index",
        ),
        (
            json!({"selection_member_base_sequence": 2}),
            "selection_member_base_sequence",
        ),
        (json!({"selection_member_size": 0}), "selection_member_size"),
        (
            json!({"selection_member_kind": "x"}),
            "selection_member_kind",
        ),
        (json!({"parallel_group_size": 1_001}), "parallel_group_size"),
    ] {
        let mut command = merged(whole.clone(), change.clone());
        let level = merged(command["parallel_group_path"][0].clone(), change);
        command["parallel_group_path"] = json!([level]);
        let answer = client.complete(&task, json!([command])).await;
        let body = answer.refused(422, "validation_failed");
        for path in [
            format!("commands.0.{field}"),
            format!("commands.0.parallel_group_path.0.{field}"),
        ] {
            assert!(body["errors"].get(&path).is_some(), "{path}: {body:#}");
        }
    }
    let inner = entry("activity", 1, 2, 0, &member);
    let mut command = merged(act(), inner.clone());
    command["parallel_group_path"] = json!([
        {
            "parallel_group_id": "parallel-activities:1:2",
            "parallel_group_kind": "activity",
            "parallel_group_base_sequence": 1,
            "parallel_group_size": 2,
            "parallel_group_index": 0,
        },
        inner,
    ]);
    let answer = client.complete(&task, json!([command])).await;
    let body = answer.refused(422, "validation_failed");
    let path = "commands.0.parallel_group_path.1.parallel_group_mode";
    assert!(body["errors"].get(path).is_some(), "{body:#}");
    // A part of a selection is none.
    client
        .complete(&task, json!([whole]))
        .await
        .refused(409, "invalid_commands");
    assert_eq!(server.db.contents().await, before);
    client.wait_for_history(&task).await.expect(200);
    server.stop().await;
}
