//! Commands that are not valid: each problem by its path, all of them at once.

use serde_json::{Value, json};

use crate::language;
use crate::support::{TestServer, envelope, merged};

fn group(kind: &str, base: u64, size: u64, index: u64) -> Value {
    let prefix = match kind {
        "activity" => "parallel-activities",
        "timer" => "parallel-timers",
        "child" => "parallel-children",
        _ => "parallel-calls",
    };
    json!({
        "parallel_group_id": format!("{prefix}:{base}:{size}"),
        "parallel_group_kind": kind,
        "parallel_group_base_sequence": base,
        "parallel_group_size": size,
        "parallel_group_index": index,
    })
}

fn grouped(command: Value, kind: &str, base: u64, size: u64, index: u64) -> Value {
    let group = group(kind, base, size, index);
    merged(
        merged(command, group.clone()),
        json!({ "parallel_group_path": [group] }),
    )
}

fn act() -> Value {
    json!({"type": "schedule_activity", "activity_type": "act"})
}

fn timer() -> Value {
    json!({"type": "start_timer", "delay_seconds": 60})
}

/// Rule: every problem is reported under `commands.{index}.{field}`.
#[tokio::test(flavor = "multi_thread")]
async fn every_problem_is_found_by_its_path() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let before = server.db.contents().await;
    let marker = json!({"type": "record_version_marker", "change_id": "c", "version": 1, "min_supported": 1, "max_supported": 1});
    let long = "x".repeat(256);
    for (command, fields) in [
        (json!({}), &["type"][..]),
        (json!({"type": null}), &["type"]),
        (json!({"type": "no_such_command"}), &["type"]),
        (json!({"type": ""}), &["type"]),
        (json!({"type": "Complete_Workflow"}), &["type"]),
        (json!({"type": 1}), &["type"]),
        (json!({"type": "schedule_activity"}), &["activity_type"]),
        (
            merged(act(), json!({"activity_type": ""})),
            &["activity_type"],
        ),
        (
            merged(act(), json!({"activity_type": long})),
            &["activity_type"],
        ),
        (merged(act(), json!({"queue": ""})), &["queue"]),
        (
            merged(act(), json!({"queue": "a", "task_queue": "b"})),
            &["queue"],
        ),
        (merged(act(), json!({"arguments": [1]})), &["arguments"]),
        (
            merged(act(), json!({"arguments": {"a": 1}})),
            &["arguments"],
        ),
        (merged(act(), json!({"arguments": 7})), &["arguments"]),
        (
            merged(act(), json!({"arguments": {"codec": "json", "blob": ""}})),
            &["arguments.codec"],
        ),
        (
            merged(act(), json!({"arguments": {"codec": "avro", "blob": 1}})),
            &["arguments.blob"],
        ),
        (
            merged(
                act(),
                json!({"arguments": {"codec": "avro", "external_storage": {}}}),
            ),
            &["arguments.external_storage"],
        ),
        (
            merged(
                act(),
                json!({"arguments": {"codec": "avro", "external_payload": {}}}),
            ),
            &["arguments.external_payload"],
        ),
        (
            merged(
                act(),
                json!({"arguments": envelope(json!([])), "input": []}),
            ),
            &["arguments"],
        ),
        (
            merged(act(), json!({"payload_codec": "json"})),
            &["payload_codec.codec"],
        ),
        (
            merged(act(), json!({"start_to_close_timeout": 0})),
            &["start_to_close_timeout"],
        ),
        (
            merged(act(), json!({"schedule_to_start_timeout": -1})),
            &["schedule_to_start_timeout"],
        ),
        (
            merged(act(), json!({"schedule_to_close_timeout": "1"})),
            &["schedule_to_close_timeout"],
        ),
        (
            merged(act(), json!({"heartbeat_timeout": 1.5})),
            &["heartbeat_timeout"],
        ),
        (
            merged(
                act(),
                json!({"heartbeat_timeout": 5, "start_to_close_timeout": 4}),
            ),
            &["heartbeat_timeout"],
        ),
        (
            merged(
                act(),
                json!({"start_to_close_timeout": 5, "schedule_to_close_timeout": 4}),
            ),
            &["start_to_close_timeout"],
        ),
        (
            merged(
                act(),
                json!({"schedule_to_start_timeout": 5, "schedule_to_close_timeout": 4}),
            ),
            &["schedule_to_start_timeout"],
        ),
        (
            merged(act(), json!({"retry_policy": {"max_attempts": 0}})),
            &["retry_policy.max_attempts"],
        ),
        (
            merged(act(), json!({"retry_policy": {"backoff_seconds": [1, -1]}})),
            &["retry_policy.backoff_seconds.1"],
        ),
        (
            merged(
                act(),
                json!({"retry_policy": {"non_retryable_error_types": ["A", " "]}}),
            ),
            &["retry_policy.non_retryable_error_types.1"],
        ),
        (
            merged(act(), json!({"retry_policy": []})),
            &["retry_policy"],
        ),
        (json!({"type": "start_timer"}), &["delay_seconds"]),
        (
            json!({"type": "start_timer", "delay_seconds": -1}),
            &["delay_seconds"],
        ),
        (
            json!({"type": "start_timer", "delay_seconds": 1.5}),
            &["delay_seconds"],
        ),
        (
            json!({"type": "start_timer", "delay_seconds": 4e18}),
            &["delay_seconds"],
        ),
        (
            json!({"type": "start_timer", "delay_seconds": 9_000_000_000_000_000_000_u64}),
            &["delay_seconds"],
        ),
        (json!({"type": "record_side_effect"}), &["result"]),
        (
            json!({"type": "record_side_effect", "result": null}),
            &["result"],
        ),
        (
            json!({"type": "record_side_effect", "result": {"a": 1}}),
            &["result"],
        ),
        (
            json!({"type": "record_version_marker"}),
            &["change_id", "max_supported", "min_supported", "version"],
        ),
        (merged(marker, json!({"version": "1"})), &["version"]),
        (json!({"type": "fail_workflow"}), &["message"]),
        (
            json!({"type": "fail_workflow", "message": "x".repeat(65_537)}),
            &["message"],
        ),
        (
            json!({"type": "fail_workflow", "message": "x", "exception": "y"}),
            &["exception"],
        ),
        (
            json!({"type": "fail_workflow", "message": "x", "exception_type": "y".repeat(513)}),
            &["exception_type"],
        ),
        (
            json!({"type": "complete_workflow", "result": [1]}),
            &["result"],
        ),
        (
            json!({"type": "continue_as_new", "workflow_type": ""}),
            &["workflow_type"],
        ),
        (
            json!({"type": "continue_as_new", "arguments": {"x": 1}}),
            &["arguments"],
        ),
    ] {
        let shown = command.to_string();
        let answer = client.complete(&task, json!([timer(), command])).await;
        assert_eq!(answer.status, 422, "{shown}");
        let fields: Vec<String> = fields
            .iter()
            .map(|field| format!("commands.1.{field}"))
            .collect();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        answer.invalid(&fields);
    }
    for (commands, field) in [
        (json!("x"), "commands"),
        (json!({}), "commands"),
        (json!([1]), "commands.0"),
        (json!([timer(), []]), "commands.1"),
        (json!([timer(), null]), "commands.1"),
        (json!(null), "commands"),
    ] {
        client
            .task(&task, "complete", json!({ "commands": commands }))
            .await
            .invalid(&[field]);
    }
    client
        .task(&task, "complete", json!({}))
        .await
        .invalid(&["commands"]);
    // All problems of all commands at once.
    let several =
        json!([{"type": "start_timer"}, timer(), {"type": "schedule_activity", "queue": ""}]);
    let answer = client.complete(&task, several).await;
    answer.invalid(&[
        "commands.0.delay_seconds",
        "commands.2.activity_type",
        "commands.2.queue",
    ]);
    assert_eq!(server.db.contents().await, before);
    server.stop().await;
}

/// Rule: a populated field on a command that does not own it is refused; null is as good as absent.
#[tokio::test(flavor = "multi_thread")]
async fn fields_belong_to_their_commands() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let owned = [
        (
            "retry_policy",
            json!({"max_attempts": 2}),
            &["schedule_activity"][..],
        ),
        ("start_to_close_timeout", json!(1), &["schedule_activity"]),
        (
            "schedule_to_start_timeout",
            json!(1),
            &["schedule_activity"],
        ),
        (
            "schedule_to_close_timeout",
            json!(1),
            &["schedule_activity"],
        ),
        ("heartbeat_timeout", json!(1), &["schedule_activity"]),
        (
            "worker_session",
            json!({"session_id": "s"}),
            &["schedule_activity"],
        ),
        ("execution_timeout_seconds", json!(1), &[]),
        ("run_timeout_seconds", json!(1), &[]),
        ("parent_close_policy", json!("abandon"), &[]),
        ("non_retryable", json!(true), &["fail_workflow"]),
        ("exception", json!({"message": "x"}), &["fail_workflow"]),
        ("delay_seconds", json!(1), &["start_timer"]),
        ("timeout_seconds", json!(1), &[]),
        (
            "payload_codec",
            json!("avro"),
            &[
                "schedule_activity",
                "complete_workflow",
                "continue_as_new",
                "record_side_effect",
                "record_version_marker",
            ],
        ),
    ];
    let commands = [
        act(),
        timer(),
        json!({"type": "record_side_effect", "result": envelope(json!(1))}),
        json!({"type": "record_version_marker", "change_id": "c", "version": 1, "min_supported": 1, "max_supported": 1}),
        json!({"type": "complete_workflow"}),
        json!({"type": "fail_workflow", "message": "x"}),
        json!({"type": "continue_as_new"}),
    ];
    // One more command that is wrong keeps the whole from being recorded.
    let wrong = json!({"type": "no_such_command"});
    for (field, value, owners) in owned {
        for command in &commands {
            let kind = command["type"].as_str().unwrap();
            let with = merged(command.clone(), json!({field: value}));
            let path = format!("commands.0.{field}");
            let answer = client.complete(&task, json!([with, wrong])).await;
            if !owners.contains(&kind) {
                answer.invalid(&[&path, "commands.1.type"]);
            } else {
                answer.invalid(&["commands.1.type"]);
            }
            let empty = merged(command.clone(), json!({field: null}));
            let answer = client.complete(&task, json!([empty, wrong])).await;
            let needed = field == "delay_seconds" && kind == "start_timer";
            if needed {
                answer.invalid(&[&path, "commands.1.type"]);
            } else {
                answer.invalid(&["commands.1.type"]);
            }
        }
    }
    client.task(&task, "heartbeat", json!({})).await.expect(200);
    server.stop().await;
}

/// Rule: group metadata is all or nothing, its id follows from kind, base and size, and the flat
/// fields are the innermost level of the path.
#[tokio::test(flavor = "multi_thread")]
async fn group_metadata_is_all_or_nothing() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let whole = grouped(act(), "activity", 1, 2, 0);
    let fields = ["id", "kind", "base_sequence", "size", "index"]
        .map(|field| format!("parallel_group_{field}"));
    for field in &fields {
        let mut command = whole.clone();
        command.as_object_mut().unwrap().remove(field);
        client
            .complete(&task, json!([command]))
            .await
            .invalid(&[&format!("commands.0.{field}")]);
        let mut command = whole.clone();
        command["parallel_group_path"][0]
            .as_object_mut()
            .unwrap()
            .remove(field);
        let answer = client.complete(&task, json!([command])).await;
        let body = answer.refused(422, "validation_failed");
        let path = format!("commands.0.parallel_group_path.0.{field}");
        assert!(body["errors"].get(&path).is_some(), "{body:#}");
    }
    for (change, field) in [
        (json!({"parallel_group_path": null}), "parallel_group_path"),
        (json!({"parallel_group_path": []}), "parallel_group_path"),
        (
            json!({"parallel_group_path": [group("activity", 1, 2, 1)]}),
            "parallel_group_path",
        ),
        (
            json!({"parallel_group_id": "parallel-activities:1:3"}),
            "parallel_group_id",
        ),
        (
            json!({"parallel_group_id": "parallel-timers:1:2"}),
            "parallel_group_id",
        ),
        (
            json!({"parallel_group_kind": "loop"}),
            "parallel_group_kind",
        ),
        (
            json!({"parallel_group_base_sequence": 0}),
            "parallel_group_base_sequence",
        ),
        (json!({"parallel_group_size": 0}), "parallel_group_size"),
        (json!({"parallel_group_size": 1001}), "parallel_group_size"),
        (json!({"parallel_group_index": 2}), "parallel_group_index"),
        (json!({"parallel_group_index": -1}), "parallel_group_index"),
    ] {
        let answer = client
            .complete(&task, json!([merged(whole.clone(), change)]))
            .await;
        let body = answer.refused(422, "validation_failed");
        let path = format!("commands.0.{field}");
        assert!(body["errors"].get(&path).is_some(), "{path}: {body:#}");
    }
    client.task(&task, "heartbeat", json!({})).await.expect(200);
    server.stop().await;
}

/// Rule: members of a group are numbered by base and index and come in one completion; anything else
/// contradicts the history and applies nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_must_fit_the_history() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let member = |index| grouped(act(), "activity", 1, 3, index);
    for commands in [
        json!([member(0), member(1)]),
        json!([member(0), member(2), member(1)]),
        json!([member(0), member(0), member(1)]),
        json!([timer(), member(0), member(1), member(2)]),
    ] {
        let body = client
            .complete(&task, commands)
            .await
            .refused(409, "invalid_commands");
        assert_eq!(body["recorded"], false);
    }
    assert_eq!(
        client
            .events("wf", task["run_id"].as_str().unwrap())
            .await
            .len(),
        2
    );
    client
        .complete(&task, json!([member(0), member(1), member(2)]))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a group wakes its workflow once, when its last member succeeds; a failure wakes it at once,
/// and the group may be sent again whole without any effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_wakes_its_workflow_once() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let members = json!([0, 1, 2].map(|index| grouped(act(), "activity", 1, 3, index)));
    let body = client.complete(&task, members.clone()).await.expect(200);
    assert_eq!(body["created_task_ids"].as_array().unwrap().len(), 3);
    let mut activities = Vec::new();
    for _ in 0..3 {
        activities.push(client.poll("activity", "w", "q", 5).await);
    }
    for activity in &activities[..2] {
        let body = client
            .report(activity, "complete", json!({}))
            .await
            .expect(200);
        assert!(body["next_task_id"].is_null());
        assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    }
    let body = client
        .report(&activities[2], "complete", json!({}))
        .await
        .expect(200);
    let resumed = client.poll("workflow", "w", "q", 0).await;
    assert_eq!(body["next_task_id"], resumed["task_id"]);
    assert_eq!(resumed["history_fan_out"], 3);
    assert!(client.poll("workflow", "w", "q", 0).await.is_null());
    // The next group begins after the last step; one member of it fails.
    let next = json!([0, 1].map(|index| grouped(act(), "activity", 4, 2, index)));
    client.complete(&resumed, next.clone()).await.expect(200);
    let failing = client.poll("activity", "w", "q", 5).await;
    let lasting = client.poll("activity", "w", "q", 5).await;
    client
        .report(&failing, "fail", json!({"failure": {"message": "no"}}))
        .await
        .expect(200);
    let woken = client.poll("workflow", "w", "q", 0).await;
    assert!(woken.is_object());
    let before = client
        .history("wf", task["run_id"].as_str().unwrap())
        .await
        .len();
    let body = client.complete(&woken, next).await.expect(200);
    assert_eq!(body["created_task_ids"], json!([]));
    assert_eq!(
        client
            .history("wf", task["run_id"].as_str().unwrap())
            .await
            .len(),
        before
    );
    client
        .report(&lasting, "complete", json!({}))
        .await
        .expect(200);
    assert!(client.poll("workflow", "w", "q", 0).await.is_object());
    server.stop().await;
}

/// Rule: arguments may be encoded text, an envelope, or a plain list under the documentation's name;
/// all arrive as the same envelope.
#[tokio::test(flavor = "multi_thread")]
async fn arguments_have_three_spellings() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let encoded = envelope(json!(["Ada", 1]));
    let commands = [
        json!({"arguments": encoded}),
        json!({"arguments": encoded["blob"]}),
        json!({"input": ["Ada", 1]}),
        json!({"input": ["Ada", 1], "task_queue": "q"}),
        json!({"arguments": encoded, "queue": "q", "task_queue": "q"}),
    ]
    .map(|fields| merged(act(), fields));
    let n = commands.len();
    client.complete(&task, json!(commands)).await.expect(200);
    for _ in 0..n {
        assert_eq!(
            client.poll("activity", "w", "q", 5).await["arguments"],
            encoded
        );
    }
    server.stop().await;
}

/// Rule: what is announced is read, and nothing else: by the default version and by the newest.
#[tokio::test(flavor = "multi_thread")]
async fn the_announced_commands_are_those_that_are_read() {
    for version in language::VERSIONS {
        let server = language::server(version).await;
        let client = &server.client;
        let task = language::first_task(client).await;
        let answer = client.task(&task, "heartbeat", json!({})).await.expect(200);
        let announced = &answer["server_capabilities"]["supported_workflow_task_commands"];
        let announced: Vec<&str> = announced
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| kind.as_str().unwrap())
            .collect();
        assert!(announced.contains(&"complete_workflow"));
        assert_eq!(announced.contains(&"upsert_memo"), version == "1.20");
        let wrong = json!({"type": "no_such_command"});
        for kind in [
            "complete_workflow",
            "fail_workflow",
            "continue_as_new",
            "schedule_activity",
            "start_timer",
            "start_child_workflow",
            "start_service_operation",
            "complete_update",
            "fail_update",
            "record_side_effect",
            "record_version_marker",
            "upsert_search_attributes",
            "open_condition_wait",
            "open_signal_wait",
            "upsert_memo",
            "record_local_activity",
            "cancel_selection_operation",
        ] {
            let answer = client.complete(&task, json!([{"type": kind}, wrong])).await;
            let body = answer.refused(422, "validation_failed");
            let unknown = body["errors"].get("commands.0.type").is_some();
            assert_eq!(unknown, !announced.contains(&kind), "{kind} at {version}");
        }
        server.stop().await;
    }
}
