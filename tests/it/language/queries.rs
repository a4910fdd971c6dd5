//! Queries: asked of a worker, answered while the caller waits, never recorded.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{VERSIONS, answer, ask, first_task, register, server};
use crate::support::{Answer, Client, TestServer, envelope, merged, text};

fn query(client: &Client, fields: Value) -> JoinHandle<Answer> {
    ask(client, "wf", "query/state", fields)
}

async fn poll(client: &Client) -> Value {
    let task = client.poll("query", "w", "q", 5).await;
    assert!(task.is_object(), "no query");
    task
}

/// A run that waits, and its id.
async fn waiting(client: &Client) -> String {
    let task = first_task(client).await;
    client.wait_for_history(&task).await.expect(200);
    text(&task, "run_id").to_owned()
}

/// A server of the newest version whose queries wait for one second.
async fn hasty() -> TestServer {
    TestServer::with(|settings| {
        settings.worker_protocol = "1.20".to_owned();
        settings.queries.timeout_seconds = 1;
    })
    .await
}

/// `2026-07-18T00:40:00.000000Z`
fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    text.len() == 27 && text.ends_with('Z') && text.as_bytes()[19] == b'.'
}

/// Rule: the fields of a query task; the caller gets the worker's result in both forms; nothing is
/// written about it.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_answered_and_not_recorded() {
    for version in VERSIONS {
        let server = server(version).await;
        let client = &server.client;
        let run = waiting(client).await;
        let before = server.db.contents().await;
        let caller = query(client, json!({"input": ["x"]}));
        let task = poll(client).await;
        let id = text(&task, "query_task_id");
        assert_eq!(task["task_id"], id);
        assert_eq!(task["query_task_attempt"], 1);
        assert_eq!(task["workflow_id"], "wf");
        assert_eq!(task["run_id"], run);
        assert_eq!(task["workflow_type"], "flow");
        assert_eq!(task["query_name"], "state");
        assert_eq!(task["query_arguments"], envelope(json!(["x"])));
        assert_eq!(task["workflow_arguments"], envelope(json!([])));
        assert_eq!(task["payload_codec"], "avro");
        assert_eq!(task["task_queue"], "q");
        assert_eq!(task["lease_owner"], "w");
        assert_eq!(task["last_history_sequence"], 2);
        assert_eq!(task["history_events"].as_array().unwrap().len(), 2);
        for time in [
            "query_admitted_at",
            "query_deadline_at",
            "lease_expires_at",
            "server_time",
        ] {
            assert!(is_time(&task[time]), "{time}: {}", task[time]);
        }
        assert!(text(&task, "lease_expires_at") <= text(&task, "query_deadline_at"));
        let result = json!({"result_envelope": envelope(json!({"n": 1}))});
        let body = answer(client, &task, "complete", result).await.expect(200);
        assert_eq!(body["outcome"], "completed");
        assert_eq!(body["query_task_id"], id);
        assert_eq!(body["query_task_attempt"], 1);
        let body = caller.await.unwrap().expect(200);
        assert_eq!(body["result"], json!({"n": 1}));
        assert_eq!(body["result_envelope"], envelope(json!({"n": 1})));
        assert_eq!(body["workflow_id"], "wf");
        assert_eq!(body["run_id"], run);
        assert_eq!(body["query_name"], "state");
        assert_eq!(body["target_scope"], "instance");
        assert!(body["reason"].is_null());
        // Without arguments there is an empty list, and plain JSON is as good as an envelope.
        let caller = ask(client, "wf", &format!("runs/{run}/query/state"), json!({}));
        let task = poll(client).await;
        assert_eq!(task["query_arguments"], envelope(json!([])));
        let body = answer(client, &task, "complete", json!({"result": [1]})).await;
        body.expect(200);
        let body = caller.await.unwrap().expect(200);
        assert_eq!(body["result"], json!([1]));
        assert_eq!(body["result_envelope"], envelope(json!([1])));
        assert_eq!(body["target_scope"], "run");
        assert_eq!(server.db.contents().await, before);
        server.stop().await;
    }
}

/// Rule: a completed run can still be asked, also one that continued as new, by its own path; every
/// other closed run cannot.
#[tokio::test(flavor = "multi_thread")]
async fn only_completed_runs_are_asked_after_their_end() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let first = text(&task, "run_id").to_owned();
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    let end = json!([{"type": "complete_workflow", "result": envelope(json!(1))}]);
    client.complete(&task, end).await.expect(200);
    for (path, run, events) in [
        ("query/state".to_owned(), text(&task, "run_id"), 2),
        (format!("runs/{first}/query/state"), first.as_str(), 3),
    ] {
        let caller = ask(client, "wf", &path, json!({}));
        let task = poll(client).await;
        assert_eq!(task["run_id"], run);
        assert_eq!(task["run_status"], "completed");
        assert_eq!(task["last_history_sequence"], events);
        answer(client, &task, "complete", json!({"result": 1}))
            .await
            .expect(200);
        caller.await.unwrap().expect(200);
    }
    for (workflow, status) in [("f", "failed"), ("c", "cancelled"), ("t", "terminated")] {
        client.start(workflow, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        match status {
            "failed" => {
                let end = json!([{"type": "fail_workflow", "message": "no"}]);
                client.complete(&task, end).await.expect(200);
            }
            "cancelled" => {
                let path = format!("/workflows/{workflow}/cancel");
                client.post(&path, json!({})).await.expect(200);
            }
            _ => {
                let path = format!("/workflows/{workflow}/terminate");
                client.post(&path, json!({})).await.expect(200);
            }
        }
        let path = format!("/workflows/{workflow}/query/state");
        let answer = client.post(&path, json!({})).await;
        let body = answer.refused(409, "run_not_active");
        assert_eq!(body["run_status"], status);
        assert_eq!(body["is_terminal"], true);
    }
    server.stop().await;
}

/// Rule: a query does not wait for what its worker is busy with, be it an activity or other queries.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_waits_for_no_activity() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    let command = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&task, command).await.expect(200);
    let activity = client.poll("activity", "w", "q", 5).await;
    client.started(&activity).await;
    let callers: Vec<_> = (0..5)
        .map(|n| query(client, json!({"input": [n]})))
        .collect();
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(poll(client).await);
    }
    // Out of order, each to its own caller.
    for task in tasks.iter().rev() {
        assert_eq!(task["last_history_sequence"], 4);
        let result = json!({"result_envelope": task["query_arguments"]});
        answer(client, task, "complete", result).await.expect(200);
    }
    for (n, caller) in callers.into_iter().enumerate() {
        assert_eq!(caller.await.unwrap().expect(200)["result"], json!([n]));
    }
    client
        .report(&activity, "complete", json!({}))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: a query sees what was accepted before it once the open workflow task has closed; while that
/// task lasts, it is asked without it after a moment, on the history from before.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_sees_what_came_before_it() {
    let server = server("1.20").await;
    let client = &server.client;
    let task = first_task(client).await;
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    // Nobody can have the query before the task closes or the moment is over.
    let caller = query(client, json!({}));
    let early = client.poll("query", "w", "q", 0).await;
    assert!(early.is_null());
    client.wait_for_history(&task).await.expect(200);
    let task = client.poll("workflow", "w", "q", 5).await;
    client.wait_for_history(&task).await.expect(200);
    let asked = poll(client).await;
    assert_eq!(asked["last_history_sequence"], 3);
    answer(client, &asked, "complete", json!({"result": 1}))
        .await
        .expect(200);
    caller.await.unwrap().expect(200);
    // A task that stays open.
    client
        .post("/workflows/wf/signal/go", json!({}))
        .await
        .expect(202);
    let task = client.poll("workflow", "w", "q", 5).await;
    client
        .post("/workflows/wf/signal/held", json!({}))
        .await
        .expect(202);
    let caller = query(client, json!({}));
    let asked = poll(client).await;
    assert_eq!(asked["last_history_sequence"], 4);
    client.wait_for_history(&task).await.expect(200);
    answer(client, &asked, "complete", json!({"result": 1}))
        .await
        .expect(200);
    caller.await.unwrap().expect(200);
    server.stop().await;
}

/// Rule: what a worker says against a query reaches its caller: the reason decides the status, and the
/// message is kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_query_tells_why() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    for (reason, status) in [
        (None, 409),
        (Some("rejected_unknown_query"), 404),
        (Some("invalid_query_arguments"), 422),
        (Some("query_workflow_state_unavailable"), 409),
        (Some("my_own_reason"), 409),
    ] {
        let caller = query(client, json!({}));
        let task = poll(client).await;
        let failure = json!({
            "message": "because", "reason": reason, "type": "Oh", "stack_trace": "line 1",
            "validation_errors": {"0": ["wrong"]},
        });
        let body = answer(client, &task, "fail", json!({"failure": failure}))
            .await
            .expect(200);
        assert_eq!(body["outcome"], "failed");
        let reason = reason.unwrap_or("query_rejected");
        assert_eq!(body["reason"], reason);
        let body = caller.await.unwrap().refused(status, reason);
        assert_eq!(body["message"], "because");
        assert_eq!(body["validation_errors"], json!({"0": ["wrong"]}));
        assert_eq!(body["query_name"], "state");
    }
    server.stop().await;
}

/// Rule: a name that the workers declared not to have is refused without asking one.
#[tokio::test(flavor = "multi_thread")]
async fn an_undeclared_query_is_refused() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let contract = json!({"workflow_command_contracts": {"flow": {"queries": ["state"]}}});
    register(client, "w", "q", contract).await;
    let body = client
        .post("/workflows/wf/query/other", json!({}))
        .await
        .refused(404, "rejected_unknown_query");
    assert_eq!(body["declared_queries"], json!(["state"]));
    assert_eq!(body["query_name"], "other");
    let caller = query(client, json!({}));
    let task = poll(client).await;
    answer(client, &task, "complete", json!({"result": 1}))
        .await
        .expect(200);
    caller.await.unwrap().expect(200);
    server.stop().await;
}

/// Rule: when nobody can answer, the caller is told which of it: no live worker, no worker that can
/// answer for this run, nobody who took it in time, nobody who answered in time.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_answer() {
    let server = hasty().await;
    let client = &server.client;
    let path = "/workflows/wf/query/state";
    waiting(client).await;
    let before = server.db.contents().await;
    let body = client.post(path, json!({})).await;
    let body = body.refused(504, "query_task_not_claimed");
    assert_eq!(body["task_queue"], "q");
    assert_eq!(body["workflow_id"], "wf");
    let caller = query(client, json!({}));
    let task = poll(client).await;
    let body = caller.await.unwrap();
    body.refused(504, "query_worker_execution_timeout");
    // The answer comes too late.
    for (report, fields) in [
        ("complete", json!({"result": 1})),
        ("fail", json!({"failure": {"message": "m"}})),
    ] {
        let body = answer(client, &task, report, fields)
            .await
            .refused(409, "query_task_timed_out");
        assert_eq!(body["outcome"], "rejected");
        assert!(is_time(&body["timed_out_at"]), "{}", body["timed_out_at"]);
    }
    assert_eq!(server.db.contents().await, before);
    // Nobody is given a query that is over.
    assert!(client.poll("query", "w", "q", 0).await.is_null());
    register(
        client,
        "w",
        "q",
        json!({"capabilities": ["local_activities"]}),
    )
    .await;
    client
        .post(path, json!({}))
        .await
        .refused(409, "query_worker_incompatible");
    client.delete("/worker/registrations/w").await.expect(200);
    client
        .post(path, json!({}))
        .await
        .refused(409, "query_worker_unavailable");
    server.stop().await;
}

/// Rule: a run that is pinned to a build is asked of workers of that build.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_needs_the_build_of_its_run() {
    let server = server("1.20").await;
    let client = &server.client;
    register(client, "w", "q", json!({"build_id": "b1"})).await;
    let pinned = json!({"build_id": "b1"});
    client.start_with("wf", pinned).await;
    let task = client.poll("workflow", "w", "q", 5).await;
    client.wait_for_history(&task).await.expect(200);
    register(client, "w", "q", json!({"build_id": "b2"})).await;
    assert_eq!(task["compatibility"], "b1");
    client
        .post("/workflows/wf/query/state", json!({}))
        .await
        .refused(409, "query_worker_incompatible");
    server.stop().await;
}

/// Rule: the guards of a query task: no such task, another holder, another hand-out, answered before.
#[tokio::test(flavor = "multi_thread")]
async fn queries_are_fenced() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let caller = query(client, json!({}));
    let task = poll(client).await;
    let status = async |owner: &str, attempt: &str| {
        let id = text(&task, "query_task_id");
        let path = format!(
            "/worker/query-tasks/{id}/status?lease_owner={owner}&query_task_attempt={attempt}"
        );
        client.get(&path).await
    };
    for (report, fields) in [
        ("complete", json!({"result": 1})),
        ("fail", json!({"failure": {"message": "m"}})),
    ] {
        let answer =
            async |over: Value| answer(client, &task, report, merged(fields.clone(), over)).await;
        let body = answer(json!({"lease_owner": "other"}))
            .await
            .refused(409, "lease_owner_mismatch");
        assert_eq!(body["lease_owner"], "w");
        assert_eq!(body["query_task_id"], task["query_task_id"]);
        assert_eq!(body["outcome"], "rejected");
        let body = answer(json!({"query_task_attempt": 2}))
            .await
            .refused(409, "query_task_attempt_mismatch");
        assert_eq!(body["current_attempt"], 1);
        answer(json!({"query_task_attempt": null}))
            .await
            .invalid(&["query_task_attempt"]);
        let mut unknown = task.clone();
        for id in ["x", text(&task, "run_id"), "01ARZ3NDEKTSV4RRFFQ69G5FAV-q1"] {
            unknown["query_task_id"] = id.into();
            super::answer(client, &unknown, report, fields.clone())
                .await
                .refused(404, "query_task_not_found");
        }
    }
    for (fields, field) in [
        (json!({"result_envelope": 7}), "result_envelope"),
        (
            json!({"result_envelope": {"codec": "json", "blob": ""}}),
            "result_envelope.codec",
        ),
    ] {
        answer(client, &task, "complete", fields)
            .await
            .invalid(&[field]);
    }
    answer(client, &task, "fail", json!({}))
        .await
        .invalid(&["failure.message"]);
    let body = status("w", "1").await.expect(200);
    assert_eq!(body["can_continue"], true);
    assert_eq!(body["query_task_status"], "leased");
    for key in [
        "query_task_id",
        "query_task_attempt",
        "lease_owner",
        "query_admitted_at",
        "query_deadline_at",
        "lease_expires_at",
    ] {
        assert_eq!(body[key], task[key], "{key}");
    }
    assert!(is_time(&body["server_time"]));
    assert!(body["reason"].is_null());
    for (owner, attempt, reason) in [
        ("other", "1", "lease_owner_mismatch"),
        ("w", "2", "query_task_attempt_mismatch"),
    ] {
        let body = status(owner, attempt).await.refused(409, reason);
        assert_eq!(body["can_continue"], false);
    }
    answer(client, &task, "complete", json!({"result": 1}))
        .await
        .expect(200);
    caller.await.unwrap().expect(200);
    let again = answer(client, &task, "complete", json!({"result": 1})).await;
    again.refused(409, "query_task_not_leased");
    let body = status("w", "1").await.refused(409, "query_task_not_leased");
    assert_eq!(body["can_continue"], false);
    server.stop().await;
}

/// Rule: a caller that hangs up takes its query with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_gone_is_asked_for_no_more() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let caller = query(client, json!({}));
    let task = poll(client).await;
    caller.abort();
    crate::support::eventually("the query is over", 10, async || {
        let id = text(&task, "query_task_id");
        let path = format!("/worker/query-tasks/{id}/status?lease_owner=w&query_task_attempt=1");
        let answer = client.get(&path).await;
        (answer.body["reason"] == "query_task_timed_out").then_some(())
    })
    .await;
    let late = answer(client, &task, "complete", json!({"result": 1})).await;
    late.refused(409, "query_task_timed_out");
    server.stop().await;
}

/// Rule: a repeated poll is given its query again, as long as it holds it, and one poll id holds one.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_poll_gets_its_query_again() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    let send = |id: &str, seconds: u64| {
        let body = json!({
            "worker_id": "w", "task_queue": "q", "timeout_seconds": seconds, "poll_request_id": id,
        });
        super::send(client, "/worker/query-tasks/poll", body)
    };
    let task_of = async |polled: JoinHandle<Answer>| {
        let answer = polled.await.unwrap();
        answer.expect(200)["task"].take()
    };
    let poll = async |id: &str, seconds: u64| task_of(send(id, seconds)).await;
    // Once from what is there, and once handed to a poll that waits.
    for (id, other) in [("a", "b"), ("c", "d")] {
        let (caller, task) = if id == "a" {
            let caller = query(client, json!({}));
            (caller, poll(id, 5).await)
        } else {
            let parked = send(id, 20);
            let caller = query(client, json!({}));
            let task = task_of(parked).await;
            (caller, task)
        };
        let again = poll(id, 0).await;
        assert_eq!(again["query_task_id"], task["query_task_id"]);
        assert_eq!(again["query_task_attempt"], task["query_task_attempt"]);
        assert!(poll(other, 0).await.is_null());
        answer(client, &task, "complete", json!({"result": 1}))
            .await
            .expect(200);
        caller.await.unwrap().expect(200);
        assert!(poll(id, 0).await.is_null());
    }
    server.stop().await;
}

/// Rule: a worker whose process is gone loses its query; another gets it at a higher attempt, whether
/// the old one said goodbye or was started anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_of_a_lost_worker_goes_to_another() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    register(client, "v", "q", json!({})).await;
    for again in [false, true] {
        register(client, "w", "q", json!({})).await;
        let caller = query(client, json!({}));
        let lost = poll(client).await;
        if again {
            register(client, "w", "q", json!({})).await;
        } else {
            client.delete("/worker/registrations/w").await.expect(200);
        }
        let task = client.poll("query", "v", "q", 10).await;
        assert_eq!(task["query_task_id"], lost["query_task_id"]);
        assert_eq!(task["query_task_attempt"], 2);
        let late = answer(client, &lost, "complete", json!({"result": 1})).await;
        late.refused(409, "lease_owner_mismatch");
        answer(client, &task, "complete", json!({"result": 2}))
            .await
            .expect(200);
        assert_eq!(caller.await.unwrap().expect(200)["result"], 2);
    }
    server.stop().await;
}

/// Rule: a queue holds a bounded number of queries that wait; one more is refused, and may come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_queries_is_bounded() {
    let server = server("1.20").await;
    let client = &server.client;
    let run = waiting(client).await;
    server
        .db
        .execute(&format!(
            "insert into asks (run_id, no, kind, namespace, queue, task_type, needs, name, arguments,
                 seen_event_id, node, asked_at, deadline_at, state, attempt)
             select '{run}', n, 2, 'default', 'q', 'flow', 0, 'state', '', 2, 'n', now(),
                 now() + interval '1 hour', 0, 0
             from generate_series(1, 1024) n"
        ))
        .await;
    let answer = client.post("/workflows/wf/query/state", json!({})).await;
    assert_eq!(answer.header("Retry-After"), "1");
    let body = answer.refused(429, "query_task_queue_full");
    assert_eq!(body["task_queue"], "q");
    // Room for one.
    server.db.execute("delete from asks where no = 1").await;
    let caller = query(client, json!({}));
    crate::support::eventually("the query waits", 5, async || {
        let count = "select count(*) from asks where state = 0";
        let waiting: i64 = sqlx::query_scalar(count)
            .fetch_one(&mut server.db.connect().await)
            .await
            .unwrap();
        (waiting == 1_024).then_some(())
    })
    .await;
    client
        .post("/workflows/wf/query/state", json!({}))
        .await
        .refused(429, "query_task_queue_full");
    caller.abort();
    server.stop().await;
}

/// Rule: the fields of a query; what does not exist.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_is_checked() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    for (name, fields, wrong) in [
        (
            "state",
            json!({"input": {"codec": "json", "blob": ""}}),
            "input.codec",
        ),
        ("a%0Ab", json!({}), "query_name"),
        (&"x".repeat(257), json!({}), "query_name"),
    ] {
        let path = format!("/workflows/wf/query/{name}");
        client.post(&path, fields).await.invalid(&[wrong]);
    }
    client
        .post("/workflows/none/query/state", json!({}))
        .await
        .refused(404, "instance_not_found");
    client
        .post("/workflows/wf/runs/x/query/state", json!({}))
        .await
        .refused(404, "run_not_found");
    server.stop().await;
}

/// Rule: of reports on one query that come at once, one is taken; the others are told that nobody holds
/// the task any more, and not that its caller has gone.
#[tokio::test(flavor = "multi_thread")]
async fn simultaneous_answers_are_one_answer() {
    let server = server("1.20").await;
    let client = &server.client;
    waiting(client).await;
    for _ in 0..10 {
        let caller = query(client, json!({}));
        let task = poll(client).await;
        let reports = (0..8).map(|n| answer(client, &task, "complete", json!({"result": n})));
        let mut taken = Vec::new();
        for (n, answer) in futures_util::future::join_all(reports)
            .await
            .into_iter()
            .enumerate()
        {
            if answer.status == 200 {
                taken.push(n);
            } else {
                answer.refused(409, "query_task_not_leased");
            }
        }
        assert_eq!(taken.len(), 1);
        assert_eq!(caller.await.unwrap().expect(200)["result"], taken[0]);
    }
    server.stop().await;
}
