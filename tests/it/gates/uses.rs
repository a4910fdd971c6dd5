//! How each feature is used: what has to be there before, and the requests of the use itself.

use reqwest::Method;
use serde_json::{Value, json};

use super::world::{Seen, Step, World, manifest};
use crate::support::{Answer, Client, envelope, merged, text};

/// Defines steps of a use: `name(world)` prepares, `name(world, given)` uses.
macro_rules! steps {
    ($(async fn $name:ident($world:ident $(, $given:ident)?) -> $out:ty $body:block)+) => {
        $(pub fn $name($world: World $(, $given: Value)?) -> Step<$out> {
            Box::pin(async move $body)
        })+
    };
}

/// What came of an answer whose status says it all.
fn plain(answer: Answer) -> Seen {
    Seen {
        effect: answer.status.is_success(),
        answer,
    }
}

/// A report of a local activity of one attempt.
pub fn local(fields: Value) -> Value {
    let base = json!({
        "type": "record_local_activity", "activity_type": "loc", "outcome": "completed",
        "attempts": [{"attempt_number": 1, "outcome": "completed"}],
    });
    merged(base, fields)
}

/// Attributes with declared types.
pub fn typed() -> Value {
    json!({
        "type": "upsert_search_attributes", "attributes": {"A": 1}, "attribute_types": {"A": "int"},
    })
}

/// A selection of one activity.
pub fn selected() -> Value {
    let level = json!({
        "parallel_group_id": "select-calls:1:1", "parallel_group_kind": "activity",
        "parallel_group_mode": "select", "parallel_group_base_sequence": 1,
        "parallel_group_size": 1, "parallel_group_index": 0, "selection_member_key": "a",
        "selection_member_index": 0, "selection_member_base_sequence": 1,
        "selection_member_size": 1, "selection_member_kind": "activity",
    });
    let command = json!({
        "type": "schedule_activity", "activity_type": "act", "parallel_group_path": [level],
    });
    merged(command, level)
}

/// A run whose history holds what these commands left, with a task that waits for a worker. The worker
/// that wrote it could do everything; it does without one thing afterwards.
async fn history_of(world: &World, commands: Value) -> Value {
    let whole = World {
        lacks: None,
        ..world.clone()
    };
    let task = whole.task().await;
    whole.complete(&task, commands).await;
    world.register().await;
    world.signal().await;
    task
}

fn path(task: &Value, kind: &str, field: &str, report: &str) -> String {
    format!("/worker/{kind}-tasks/{}/{report}", text(task, field))
}

/// Asks the workflow while nobody waits for the answer, and gives the task that a worker got.
async fn ask(world: &World) {
    world.waiting().await;
    let (client, path) = (
        world.own.clone(),
        format!("/workflows/{}/query/state", world.name),
    );
    tokio::spawn(async move { client.post(&path, json!({})).await });
}

async fn answer_query(client: &Client, task: &Value) -> Answer {
    let fields = json!({
        "lease_owner": task["lease_owner"], "query_task_attempt": task["query_task_attempt"],
        "result": 1,
    });
    let path = path(task, "query", "query_task_id", "complete");
    client.post(&path, fields).await
}

// What has to be there.
steps! {
    async fn nothing(_world) -> Value {
        Value::Null
    }

    async fn registered(world) -> Value {
        world.register().await;
        Value::Null
    }

    async fn task(world) -> Value {
        world.task().await
    }

    async fn waiting(world) -> Value {
        world.waiting().await
    }

    async fn signalled(world) -> Value {
        let task = world.waiting().await;
        world.signal().await;
        task
    }

    async fn updated(world) -> Value {
        world.waiting().await;
        let body = json!({"request_id": "k", "input": [1]});
        world.tell("update/change", body).await.expect(202);
        world.next().await
    }

    async fn held_activity(world) -> Value {
        world.activity(json!({})).await
    }

    async fn retried(world) -> Value {
        let policy = json!({"max_attempts": 3, "backoff_seconds": [0]});
        world.activity(json!({"retry_policy": policy})).await
    }

    async fn limited(world) -> Value {
        let task = world.task().await;
        let command = json!({
            "type": "schedule_activity", "activity_type": "act", "start_to_close_timeout": 60,
        });
        world.complete(&task, json!([command])).await;
        task
    }

    async fn polled_by_id(world) -> Value {
        world.register().await;
        world.own.start(&world.name, "flow", &world.name).await;
        let body = json!({
            "worker_id": world.name, "task_queue": world.name, "timeout_seconds": 5,
            "poll_request_id": "p",
        });
        let answer = world.own.post("/worker/workflow-tasks/poll", body).await;
        answer.expect(200)["task"].take()
    }

    async fn ranked(world) -> Value {
        world.register().await;
        for (workflow, priority) in [(world.name.clone(), 9), (format!("{}-urgent", world.name), 1)] {
            let fields = json!({
                "workflow_id": workflow, "workflow_type": "flow", "task_queue": world.name,
                "priority": priority, "fairness_key": "k",
            });
            world.own.post("/workflows", fields).await.expect(201);
        }
        Value::Null
    }

    async fn long(world) -> Value {
        let task = world.task().await;
        let effect = json!({"type": "record_side_effect", "result": envelope(json!("x"))});
        world.complete(&task, json!(vec![effect; 60])).await;
        world.signal().await;
        task
    }

    async fn token(world) -> Value {
        let body = world.registration(None);
        let answer = world.own.post("/worker/register", body).await;
        answer.expect(200)["registration_token"].take()
    }

    async fn asked(world) -> Value {
        ask(&world).await;
        Value::Null
    }

    async fn held_query(world) -> Value {
        ask(&world).await;
        let task = world.own.poll("query", &world.name, &world.name, 5).await;
        assert!(task.is_object(), "no query for {}", world.name);
        task
    }

    async fn session(world) -> Value {
        world.register().await;
        let body = json!({"worker_id": world.name, "session_id": world.name});
        world.own.post("/worker/sessions", body).await.expect(201);
        Value::Null
    }

    async fn session_activity(world) -> Value {
        let task = world.task().await;
        let command = json!({
            "type": "schedule_activity", "activity_type": "act",
            "worker_session": {"session_id": world.name},
        });
        world.complete(&task, json!([command])).await;
        task
    }

    async fn memo(world) -> Value {
        let memo = json!({"type": "upsert_memo", "entries": envelope(json!({"a": 1}))});
        history_of(&world, json!([memo])).await
    }

    async fn typed_history(world) -> Value {
        history_of(&world, json!([typed()])).await
    }

    async fn stream_history(world) -> Value {
        let whole = World { lacks: None, ..world.clone() };
        let task = whole.task().await;
        let fields = json!({
            "commands": [{"type": "open_condition_wait", "condition_key": "message-stream:s:0"}],
            "message_stream_waits": [{"stream_name": "s", "after_position": 0}],
        });
        world.own.task(&task, "complete", fields).await.expect(200);
        world.register().await;
        let message = json!({"message_id": "m"});
        world.tell("message-streams/s/messages", message).await.expect(202);
        task
    }

    async fn occurrence(world) -> Value {
        let wait = json!({
            "type": "open_condition_wait", "condition_key": "k", "condition_wait_occurrence_id": "o",
        });
        history_of(&world, json!([wait])).await
    }

    async fn selection_history(world) -> Value {
        history_of(&world, json!([selected()])).await
    }

    async fn resolved(world) -> Value {
        let task = world.task().await;
        if world.advertised < 19 {
            return task;
        }
        world.complete(&task, json!([selected()])).await;
        let activity = world.own.poll("activity", &world.name, &world.name, 5).await;
        world.own.report(&activity, "complete", json!({})).await.expect(200);
        merged(
            world.next().await,
            json!({"winner": activity["activity_execution_id"]}),
        )
    }

    async fn cancel_pending(world) -> Value {
        let task = history_of(&world, json!([{"type": "start_timer", "delay_seconds": 600}])).await;
        world.tell("request-cancellation", json!({})).await.expect(202);
        task
    }

    async fn cancelled(world) -> Value {
        let task = world.task().await;
        if world.advertised < 20 || world.lacks.is_some() {
            return merged(task, json!({"cancellation_request": {"request_id": "r"}}));
        }
        let timer = json!([{"type": "start_timer", "delay_seconds": 600}]);
        world.complete(&task, timer).await;
        world.tell("request-cancellation", json!({})).await.expect(202);
        world.next().await
    }

    async fn stopped(world) -> Value {
        let activity = world.activity(json!({})).await;
        if world.advertised < 20 {
            return merged(activity, json!({"request_id": "r"}));
        }
        world.tell("request-cancellation", json!({})).await.expect(202);
        let task = world.next().await;
        let id = task["cancellation_request"]["request_id"].clone();
        let fields = json!({"request_id": id, "sequence": 1, "call_kind": "activity"});
        world.own.task(&task, "deliver-cancellation", fields).await.expect(200);
        merged(activity, json!({"request_id": id}))
    }
}

// The uses.
steps! {
    async fn poll_workflow(world, _given) -> Seen {
        world.polled("workflow").await
    }

    async fn poll_activity(world, _given) -> Seen {
        let seen = world.polled("activity").await;
        if seen.effect {
            world.own.started(&seen.answer.body["task"]).await;
        }
        seen
    }

    async fn complete_update(world, task) -> Seen {
        let command = json!({
            "type": "complete_update", "update_id": task["workflow_update_id"],
            "result": envelope(json!(1)),
        });
        let answer = world.client.complete(&task, json!([command])).await;
        world.recorded(answer, &task, "UpdateCompleted").await
    }

    async fn list_attributes(world, _given) -> Seen {
        plain(world.own.get("/search-attributes").await)
    }

    async fn list_schedules(world, _given) -> Seen {
        plain(world.own.get("/schedules").await)
    }

    async fn webhook(world, _given) -> Seen {
        plain(world.own.post("/bridge-adapters/webhook/x", json!({})).await)
    }

    async fn export(world, task) -> Seen {
        let path = format!("/workflows/{}/runs/{}/history/export", world.name, text(&task, "run_id"));
        plain(world.own.get(&path).await)
    }

    async fn fail_activity(world, activity) -> Seen {
        let failure = json!({"message": "no"});
        let answer = world.client.report(&activity, "fail", failure).await;
        world.recorded(answer, &activity, "ActivityRetryScheduled").await
    }

    async fn fail_for_good(world, activity) -> Seen {
        let failure = json!({"message": "no", "non_retryable": true});
        let answer = world.client.report(&activity, "fail", failure).await;
        world.recorded(answer, &activity, "ActivityFailed").await
    }

    async fn poll_limited(world, _given) -> Seen {
        let answer = world.poll("activity", json!({})).await;
        let task = &answer.body["task"];
        let effect = task["deadlines"]["start_to_close"].is_string();
        if effect {
            world.own.started(task).await;
        }
        Seen { answer, effect }
    }

    async fn poll_again(world, task) -> Seen {
        let answer = world.poll("workflow", json!({"poll_request_id": "p"})).await;
        let effect = answer.body["task"]["task_id"] == task["task_id"];
        Seen { answer, effect }
    }

    async fn poll_urgent(world, _given) -> Seen {
        let answer = world.poll("workflow", json!({})).await;
        let effect = answer.body["task"]["workflow_id"] == format!("{}-urgent", world.name);
        Seen { answer, effect }
    }

    async fn view_classes(world, _given) -> Seen {
        let path = format!("/task-queues/{}/priority-fairness", world.name);
        let answer = world.own.get(&path).await;
        let backlog = answer.body["backlog"].as_array().into_iter().flatten();
        let priorities: Vec<&Value> = backlog.map(|row| &row["priority"]).collect();
        let effect = priorities == [&json!(1), &json!(9)];
        Seen { answer, effect }
    }

    async fn compressed_answer(world, _given) -> Seen {
        let request = world.own.request(Method::GET, "/cluster/info");
        let response = request.header("Accept-Encoding", "gzip").send().await.unwrap();
        let encoding = response.headers().get("Content-Encoding").cloned();
        Seen {
            answer: world.own.get("/cluster/info").await,
            effect: encoding.is_some_and(|encoding| encoding == "gzip"),
        }
    }

    async fn poll_compressed(world, _given) -> Seen {
        let asked = json!({"accept_history_encoding": "gzip"});
        let answer = world.poll("workflow", asked).await;
        let effect = answer.body["task"]["history_events_compressed"].is_string();
        Seen { answer, effect }
    }

    async fn renew_lease(world, _given) -> Seen {
        plain(world.client.post("/worker/activity-tasks/x/renew-lease", json!({})).await)
    }

    async fn deregister(world, token) -> Seen {
        let path = format!("/worker/registrations/{}/deregister", world.name);
        plain(world.client.post(&path, json!({"registration_token": token})).await)
    }

    async fn query(world, _given) -> Seen {
        let (client, path) = (world.own.clone(), format!("/workflows/{}/query/state", world.name));
        let caller = tokio::spawn(async move { client.post(&path, json!({})).await });
        if world.lacks.is_none() {
            let task = world.own.poll("query", &world.name, &world.name, 5).await;
            answer_query(&world.own, &task).await.expect(200);
        }
        plain(caller.await.unwrap())
    }

    async fn poll_query(world, _given) -> Seen {
        let seen = world.polled("query").await;
        if seen.effect {
            answer_query(&world.client, &seen.answer.body["task"]).await.expect(200);
        }
        seen
    }

    async fn create_session(world, _given) -> Seen {
        let body = json!({"worker_id": world.name, "session_id": world.name});
        plain(world.client.post("/worker/sessions", body).await)
    }

    async fn renew_session(world, _given) -> Seen {
        let path = format!("/worker/sessions/{}/heartbeat", world.name);
        plain(world.client.post(&path, json!({"worker_id": world.name})).await)
    }

    async fn close_session(world, _given) -> Seen {
        let path = format!("/worker/sessions/{0}?worker_id={0}", world.name);
        plain(world.client.delete(&path).await)
    }

    async fn poll_kinds(world, _given) -> Seen {
        let fields = json!({"task_kinds": ["workflow", "update_validation"], "timeout_seconds": 0});
        plain(world.poll("workflow", fields).await)
    }

    async fn poll_validation(world, _given) -> Seen {
        plain(world.poll("update-validation", json!({"timeout_seconds": 0})).await)
    }

    async fn cursors(world, task) -> Seen {
        let fields = json!({
            "commands": [], "message_stream_cursors": [{"stream_name": "s", "through_position": 0}],
        });
        plain(world.client.task(&task, "complete", fields).await)
    }

    async fn stream_waits(world, task) -> Seen {
        let fields = json!({
            "commands": [], "message_stream_waits": [{"stream_name": "s", "after_position": 0}],
        });
        let answer = world.client.task(&task, "complete", fields).await;
        if !answer.status.is_success() {
            return plain(answer);
        }
        let path = format!("/workflows/{}/message-streams/s", world.name);
        let stream = world.own.get(&path).await;
        let effect = stream.body["pending_wait"].is_object();
        Seen { answer, effect }
    }

    async fn append(world, _given) -> Seen {
        plain(world.tell("message-streams/s/messages", json!({"message_id": "m"})).await)
    }

    async fn register_without_manifest(world, _given) -> Seen {
        let body = json!({"worker_id": world.name, "task_queue": world.name});
        plain(world.client.post("/worker/register", body).await)
    }

    async fn keep(world, task) -> Seen {
        let cache = json!({
            "worker_id": world.name, "workflow_id": world.name, "run_id": task["run_id"],
            "build_id": "sdk-1", "ttl_seconds": 300,
        });
        let fields = json!({"commands": [], "sticky_cache": cache});
        let answer = world.client.task(&task, "complete", fields).await;
        if !answer.status.is_success() {
            return plain(answer);
        }
        world.signal().await;
        let effect = world.next().await["sticky_replay_mode"] == "sticky_hit_expected";
        Seen { answer, effect }
    }

    async fn give_up(world, task) -> Seen {
        let command = json!({
            "type": "cancel_selection_operation", "selection_group_id": "select-calls:1:1",
            "member_key": "a", "member_index": 0, "member_base_sequence": 1, "member_size": 1,
            "operation_kind": "activity", "operation_identity": task["winner"],
        });
        plain(world.client.complete(&task, json!([command])).await)
    }

    async fn request_cancellation(world, _given) -> Seen {
        plain(world.tell("request-cancellation", json!({})).await)
    }

    async fn deliver(world, task) -> Seen {
        let fields = json!({
            "request_id": task["cancellation_request"]["request_id"], "sequence": 1,
            "call_kind": "timer",
        });
        let answer = world.client.task(&task, "deliver-cancellation", fields).await;
        world.recorded(answer, &task, "CooperativeCancellationDelivered").await
    }

    async fn acknowledge(world, activity) -> Seen {
        let fields = json!({"request_id": activity["request_id"]});
        let answer = world.client.report(&activity, "acknowledge-cancellation", fields).await;
        let effect = answer.body["acknowledged"] == true;
        Seen { answer, effect }
    }

    async fn activity_status(world, activity) -> Seen {
        let answer = world.client.report(&activity, "status", json!({})).await;
        let effect = answer.body["can_continue"] == true;
        Seen { answer, effect }
    }

    async fn query_status(world, task) -> Seen {
        let status = format!("status?lease_owner={}&query_task_attempt=1", world.name);
        let path = path(&task, "query", "query_task_id", &status);
        let answer = world.client.get(&path).await;
        let effect = answer.body["can_continue"] == true;
        if effect {
            answer_query(&world.client, &task).await.expect(200);
        }
        Seen { answer, effect }
    }

    async fn prepare_local(world, task) -> Seen {
        plain(world.client.task(&task, "local-activities/prepare", json!({})).await)
    }

    async fn checkpoint_group(world, task) -> Seen {
        plain(world.client.task(&task, "local-activities/checkpoint-group", json!({})).await)
    }

    async fn open_scope(world, task) -> Seen {
        plain(world.client.task(&task, "cancellation-scopes/open", json!({})).await)
    }
}

/// Registers another worker that can do one thing only.
pub async fn register_for(world: World, capability: &'static str) -> Seen {
    let body = json!({
        "worker_id": format!("{}-other", world.name), "task_queue": world.name,
        "capabilities": [capability], "capability_manifest": manifest(&[capability]),
    });
    plain(world.client.post("/worker/register", body).await)
}
