//! Builds of a queue: drained, resumed, promoted, pinned, and what nobody may take.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, eventually, merged, text};

/// Registers a worker of queue `q` with workflow type `flow`, activity type `act` and a build.
async fn register(client: &Client, worker: &str, build: Option<&str>, fields: Value) -> Value {
    let body = json!({
        "worker_id": worker, "task_queue": "q", "workflow_types": ["flow"], "activity_types": ["act"],
        "build_id": build, "capabilities": ["query_tasks"],
    });
    client
        .post("/worker/register", merged(body, fields))
        .await
        .expect(200)
}

async fn step(client: &Client, step: &str, build: Option<&str>) -> Answer {
    let path = format!("/task-queues/q/build-ids/{step}");
    client.post(&path, json!({ "build_id": build })).await
}

/// The row of a build.
async fn row(client: &Client, build: Option<&str>) -> Value {
    let body = client.get("/task-queues/q/build-ids").await.expect(200);
    let rows = body["build_ids"].as_array().unwrap();
    rows.iter()
        .find(|row| row["build_id"] == json!(build))
        .unwrap_or_else(|| panic!("no {build:?} in {body:#}"))
        .clone()
}

/// Opens a poll that waits long, and gives what it is answered.
async fn waiting_poll(
    server: &TestServer,
    client: &Client,
    kind: &str,
) -> tokio::task::JoinHandle<Answer> {
    let before = server.node.engine().parked_polls();
    let (poller, kind) = (client.clone(), kind.to_owned());
    let poll = tokio::spawn(async move { poller.poll_whole(&kind, "w1", "q", 50).await });
    eventually("the poll waits", 5, async || {
        (server.node.engine().parked_polls() > before).then_some(())
    })
    .await;
    poll
}

/// Rule: the builds of a queue are listed with their workers by status, what was decided, and every
/// key; an unknown queue has none.
#[tokio::test(flavor = "multi_thread")]
async fn builds_are_listed_with_their_workers() {
    let server = TestServer::start().await;
    let client = &server.client;
    let unknown = client.get("/task-queues/none/build-ids").await.expect(200);
    assert_eq!(
        unknown,
        json!({"namespace": "default", "task_queue": "none", "stale_after_seconds": 60, "build_ids": []})
    );
    let said = |fingerprint: &str| {
        json!({"runtime": "python", "sdk_version": "2.12.0",
            "workflow_definition_fingerprints": {"flow": fingerprint}})
    };
    register(client, "w1", Some("b1"), said("f1")).await;
    register(client, "w2", Some("b1"), said("f2")).await;
    register(client, "w3", None, json!({"runtime": "rust"})).await;
    let mut first = row(client, Some("b1")).await;
    for time in ["last_heartbeat_at", "first_seen_at"] {
        let at = first.as_object_mut().unwrap().remove(time).unwrap();
        assert!(at.is_string(), "{time}");
    }
    assert_eq!(
        first,
        json!({
            "build_id": "b1", "rollout_status": "active", "drain_intent": "active",
            "drained_at": null, "promoted_at": null, "rolled_back_at": null, "new_start_selected": false,
            "active_worker_count": 2, "draining_worker_count": 0, "stale_worker_count": 0,
            "total_worker_count": 2, "runtimes": ["python"], "sdk_versions": ["2.12.0"],
            "workflow_definition_fingerprint_count": 2,
            "workflow_definition_fingerprint_conflicts": ["flow"],
        })
    );
    let unversioned = row(client, None).await;
    assert_eq!(unversioned["active_worker_count"], 1);
    assert_eq!(unversioned["runtimes"], json!(["rust"]));
    server.stop().await;
}

/// Rule: the key must be there; null stands for workers without a build, and an empty text for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_names_its_build() {
    let server = TestServer::start().await;
    let client = &server.client;
    for name in ["drain", "resume", "promote"] {
        let path = format!("/task-queues/q/build-ids/{name}");
        client.post(&path, json!({})).await.invalid(&["build_id"]);
        for wrong in [String::new(), "b".repeat(256)] {
            client
                .post(&path, json!({"build_id": wrong}))
                .await
                .invalid(&["build_id"]);
        }
    }
    let body = client
        .post("/task-queues/q/build-ids/drain", json!({"build_id": null}))
        .await
        .expect(200);
    assert!(body["build_id"].is_null());
    assert_eq!(body["deployment"], "default/q@unversioned");
    assert_eq!(row(client, None).await["rollout_status"], "no_workers");
    server.stop().await;
}

/// Rule: drain and resume may be repeated; the first moment of draining stays, and resuming clears it.
#[tokio::test(flavor = "multi_thread")]
async fn drain_and_resume_may_be_repeated() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(client, "w1", Some("b1"), json!({})).await;
    let first = step(client, "drain", Some("b1")).await.expect(200);
    assert_eq!(first, step(client, "drain", Some("b1")).await.expect(200));
    assert!(first["drained_at"].is_string());
    assert_eq!(
        merged(first, json!({"drained_at": null})),
        json!({
            "namespace": "default", "task_queue": "q", "build_id": "b1", "drain_intent": "draining",
            "drained_at": null, "promoted_at": null, "rolled_back_at": null,
            "new_start_selected": false, "deployment": "default/q@b1",
        })
    );
    let shown = row(client, Some("b1")).await;
    assert_eq!(shown["rollout_status"], "draining");
    assert_eq!(shown["draining_worker_count"], 1);
    assert_eq!(
        client.get("/workers/w1").await.expect(200)["status"],
        "draining"
    );
    let resumed = step(client, "resume", Some("b1")).await.expect(200);
    assert_eq!(
        resumed,
        step(client, "resume", Some("b1")).await.expect(200)
    );
    assert_eq!(resumed["drain_intent"], "active");
    assert!(resumed["drained_at"].is_null());
    assert_eq!(row(client, Some("b1")).await["rollout_status"], "active");
    assert_eq!(
        client.get("/workers/w1").await.expect(200)["status"],
        "active"
    );
    server.stop().await;
}

/// Rule: a drain ends the open polls of the build's workers at once, on every node, with the union of
/// both bodies and status 200; polls of other builds wait on.
#[tokio::test(flavor = "multi_thread")]
async fn open_polls_of_a_draining_build_end_at_once() {
    let server = TestServer::start().await;
    let (other, elsewhere) = server.other_node().await;
    let client = &server.client;
    register(client, "w1", Some("b1"), json!({})).await;
    register(client, "w2", Some("b2"), json!({})).await;
    let mut polls = Vec::new();
    for kind in ["workflow", "activity", "query"] {
        polls.push(waiting_poll(&server, client, kind).await);
    }
    let stays = {
        let client = client.clone();
        tokio::spawn(async move { client.poll_whole("workflow", "w2", "q", 50).await })
    };
    eventually("the poll of the other build waits", 5, async || {
        (server.node.engine().parked_polls() == 4).then_some(())
    })
    .await;
    step(&elsewhere, "drain", Some("b1")).await.expect(200);
    for poll in polls {
        let body = poll.await.unwrap().expect(200);
        assert!(body["task"].is_null());
        assert_eq!(body["poll_status"], "draining");
        assert_eq!(body["reason"], "worker_draining");
        assert!(body.get("drain_reason").is_some());
        assert!(body["error"].is_string());
        assert_eq!(body["worker_id"], "w1");
        assert_eq!(body["task_queue"], "q");
        assert_eq!(body["registered_build_id"], "b1");
        assert_eq!(body["worker_status"], "draining");
        assert_eq!(body["drain_intent"], "draining");
    }
    client.start("wf", "flow", "q").await;
    assert_eq!(
        text(&stays.await.unwrap().expect(200)["task"], "workflow_id"),
        "wf"
    );
    other.stop().await;
    server.stop().await;
}

/// Rule: a draining worker heartbeats, completes and fails what it holds, and gets nothing new, not
/// even a query; later registrations and heartbeats of the build say `draining`.
#[tokio::test(flavor = "multi_thread")]
async fn a_draining_worker_finishes_what_it_holds() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(client, "w1", Some("b1"), json!({})).await;
    client.start("wf", "flow", "q").await;
    client.start("wf2", "flow", "q").await;
    let task = client.poll("workflow", "w1", "q", 5).await;
    let schedule = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&task, schedule).await.expect(200);
    let activity = client.poll("activity", "w1", "q", 5).await;
    let second = client.poll("workflow", "w1", "q", 5).await;
    step(client, "drain", Some("b1")).await.expect(200);
    for kind in ["workflow", "activity", "query"] {
        for seconds in [0, 5] {
            let body = client
                .poll_whole(kind, "w1", "q", seconds)
                .await
                .expect(200);
            assert_eq!(body["poll_status"], "draining", "{kind}");
        }
    }
    let beat = client
        .post("/worker/heartbeat", json!({"worker_id": "w1"}))
        .await
        .expect(200);
    assert_eq!(beat["status"], "draining");
    assert_eq!(
        register(client, "w9", Some("b1"), json!({})).await["status"],
        "draining"
    );
    client
        .report(&activity, "heartbeat", json!({}))
        .await
        .expect(200);
    client
        .report(&activity, "complete", json!({"result": 1}))
        .await
        .expect(200);
    client
        .task(&second, "heartbeat", json!({}))
        .await
        .expect(200);
    let failure = json!({"failure": {"message": "no", "type": "E"}});
    client.task(&second, "fail", failure).await.expect(200);
    step(client, "resume", Some("b1")).await.expect(200);
    let beat = client
        .post("/worker/heartbeat", json!({"worker_id": "w9"}))
        .await
        .expect(200);
    assert_eq!(beat["status"], "active");
    assert_eq!(
        client.poll("workflow", "w1", "q", 5).await["workflow_id"],
        "wf"
    );
    server.stop().await;
}

/// Rule: a worker of several queues drains as long as one of them drains for its build.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_several_queues_drains_with_each() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(
        client,
        "w1",
        Some("b1"),
        json!({"task_queue": null, "task_queues": ["q", "p"]}),
    )
    .await;
    let on = |queue: &str, step: &str| {
        let path = format!("/task-queues/{queue}/build-ids/{step}");
        async move {
            client
                .post(&path, json!({"build_id": "b1"}))
                .await
                .expect(200)
        }
    };
    let status = async || client.get("/workers/w1").await.expect(200)["status"].take();
    on("q", "drain").await;
    on("p", "drain").await;
    on("q", "resume").await;
    assert_eq!(status().await, "draining");
    on("p", "resume").await;
    assert_eq!(status().await, "active");
    server.stop().await;
}

/// Rule: only workers of the build get the tasks of a pinned run; a poll whose build differs from the
/// registered one is refused, and ignored where none is registered. While the build drains the run is
/// listed as one that nobody may take; after a resume it is taken at once (FC-24).
#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_run_waits_for_its_build() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(client, "w1", Some("b1"), json!({})).await;
    register(client, "w0", None, json!({})).await;
    register(client, "w2", Some("b2"), json!({})).await;
    let run = client.start_with("wf", json!({"build_id": "b1"})).await;
    let poll = async |worker: &str, build: Value| {
        let body = json!({"worker_id": worker, "task_queue": "q", "timeout_seconds": 0, "build_id": build});
        client.post("/worker/workflow-tasks/poll", body).await
    };
    for build in [json!(null), json!("b1"), json!("b2")] {
        assert!(poll("w0", build).await.expect(200)["task"].is_null());
    }
    assert!(poll("w2", json!("b2")).await.expect(200)["task"].is_null());
    poll("w2", json!("b1"))
        .await
        .refused(409, "build_id_mismatch");
    let task = poll("w1", json!(null)).await.expect(200)["task"].take();
    assert_eq!(text(&task, "run_id"), run);
    assert_eq!(task["compatibility"], "b1");
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["compatibility_status"], "compatible");
    assert_eq!(described["compatibility_supported_in_fleet"], true);
    assert!(described["compatibility_fleet_reason"].is_null());

    step(client, "drain", Some("b1")).await.expect(200);
    let schedule = json!([{"type": "schedule_activity", "activity_type": "act"}]);
    client.complete(&task, schedule).await.expect(200);
    for worker in ["w0", "w2"] {
        assert!(client.poll("activity", worker, "q", 0).await.is_null());
    }
    let body = client
        .poll_whole("activity", "w1", "q", 5)
        .await
        .expect(200);
    assert_eq!(body["poll_status"], "draining");
    let queue = client.get("/task-queues/q").await.expect(200);
    let unserved = &queue["unserved"];
    assert_eq!(unserved["no_compatible_worker_count"], 1);
    assert_eq!(unserved["groups"][0]["build_id"], "b1");
    assert_eq!(unserved["groups"][0]["task_kind"], "activity");
    assert_eq!(unserved["tasks"][0]["workflow_id"], "wf");
    assert_eq!(unserved["tasks"][0]["run_id"], run);
    assert_eq!(unserved["tasks"][0]["reason"], "no_compatible_worker");
    for path in ["/workflows/wf", "/workflows/wf/runs", "/workflows"] {
        let body = client.get(path).await.expect(200);
        let row = ["runs", "workflows"]
            .iter()
            .find_map(|list| body[list].get(0))
            .unwrap_or(&body);
        assert_eq!(
            row["compatibility_status"], "no_compatible_worker",
            "{path}"
        );
        assert_eq!(row["compatibility_supported_in_fleet"], false);
        assert_eq!(row["compatibility_fleet_reason"], "workers_draining");
    }
    // What a poll is told comes from a slow look.
    eventually(
        "a poll of another build hears why it got nothing",
        20,
        async || {
            let body = client
                .poll_whole("activity", "w2", "q", 0)
                .await
                .expect(200);
            assert_eq!(body["poll_status"], "empty");
            (body["reason"] == "no_compatible_worker").then_some(())
        },
    )
    .await;
    step(client, "resume", Some("b1")).await.expect(200);
    eventually(
        "the reason is that workers of the build take it",
        20,
        async || {
            let body = client
                .poll_whole("activity", "w2", "q", 0)
                .await
                .expect(200);
            (body["reason"] == "compatibility_blocked").then_some(())
        },
    )
    .await;
    assert_eq!(client.poll("activity", "w1", "q", 5).await["run_id"], run);
    let queue = client.get("/task-queues/q").await.expect(200);
    assert_eq!(queue["unserved"]["no_compatible_worker_count"], 0);
    server.stop().await;
}

/// Rule: a run that no live worker may take says so, and why; a closed one does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_says_why_nobody_takes_it() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.start_with("free", json!({})).await;
    client.start_with("pinned", json!({"build_id": "b3"})).await;
    let why = async |id: &str| {
        let body = client.get(&format!("/workflows/{id}")).await.expect(200);
        assert_eq!(
            body["compatibility_status"] == "compatible",
            body["compatibility_fleet_reason"].is_null()
        );
        body["compatibility_fleet_reason"].clone()
    };
    assert_eq!(why("free").await, "no_active_workers");
    register(client, "w1", Some("b1"), json!({})).await;
    assert!(why("free").await.is_null());
    assert_eq!(why("pinned").await, "build_not_served");
    client
        .post("/workflows/pinned/terminate", json!({}))
        .await
        .expect(200);
    assert!(why("pinned").await.is_null());
    server.stop().await;
}

/// Rule: a promoted build pins new starts that name no build, not those that name one; the pin stays
/// with continue-as-new and children, and their tasks.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_build_pins_new_starts() {
    let server = TestServer::start().await;
    let (other, elsewhere) = server.other_node().await;
    let client = &server.client;
    client.start_with("before", json!({})).await;
    register(client, "w1", Some("b1"), json!({})).await;
    let first = step(client, "promote", Some("b1")).await.expect(200);
    assert_eq!(first, step(client, "promote", Some("b1")).await.expect(200));
    assert_eq!(first["new_start_selected"], true);
    assert!(first["promoted_at"].is_string());
    client.start_with("after", json!({})).await;
    client.start_with("named", json!({"build_id": "b7"})).await;
    for (id, build) in [
        ("before", json!(null)),
        ("after", json!("b1")),
        ("named", json!("b7")),
    ] {
        let body = client.get(&format!("/workflows/{id}")).await.expect(200);
        assert_eq!(body["compatibility"], build, "{id}");
    }
    eventually("another node pins as well", 5, async || {
        let id = format!("elsewhere-{}", uuid::Uuid::new_v4());
        let body = json!({"workflow_id": id, "workflow_type": "flow", "task_queue": "p"});
        elsewhere.post("/workflows", body).await.expect(201);
        let id = format!("elsewhere-{}", uuid::Uuid::new_v4());
        let body = json!({"workflow_id": id, "workflow_type": "flow", "task_queue": "q"});
        elsewhere.post("/workflows", body).await.expect(201);
        let body = client.get(&format!("/workflows/{id}")).await.expect(200);
        (body["compatibility"] == "b1").then_some(())
    })
    .await;
    let mut continued = false;
    while !continued {
        let task = client.poll("workflow", "w1", "q", 5).await;
        let commands = if task["workflow_id"] == "after" {
            continued = true;
            json!([{"type": "start_child_workflow", "workflow_type": "flow", "parent_close_policy": "abandon"},
                {"type": "continue_as_new"}])
        } else {
            json!([{"type": "complete_workflow"}])
        };
        client.complete(&task, commands).await.expect(200);
    }
    let runs = client.get("/workflows/after/runs").await.expect(200);
    assert_eq!(runs["run_count"], 2);
    assert_eq!(runs["runs"][1]["compatibility"], "b1");
    let listed = client.get("/workflows?page_size=200").await.expect(200);
    let first_run = text(&runs["runs"][0], "run_id");
    let history = client.history("after", first_run).await;
    let child = history
        .iter()
        .find(|event| event["event_type"] == "ChildWorkflowScheduled")
        .unwrap();
    let child = text(&child["payload"], "child_workflow_instance_id");
    let row = listed["workflows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["workflow_id"] == child)
        .unwrap_or_else(|| panic!("no {child}"));
    assert_eq!(row["compatibility"], "b1");
    other.stop().await;
    server.stop().await;
}

/// Rule: a promotion takes the place of the one before; promoting workers without a build ends the
/// pinning; draining the promoted build ends it as well.
#[tokio::test(flavor = "multi_thread")]
async fn one_build_of_a_queue_is_promoted() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(client, "w1", Some("b1"), json!({})).await;
    register(client, "w2", Some("b2"), json!({})).await;
    register(client, "w0", None, json!({})).await;
    let pin = async |id: &str| {
        client.start_with(id, json!({})).await;
        client.get(&format!("/workflows/{id}")).await.expect(200)["compatibility"].take()
    };
    step(client, "promote", Some("b1")).await.expect(200);
    step(client, "promote", Some("b2")).await.expect(200);
    assert_eq!(row(client, Some("b1")).await["new_start_selected"], false);
    assert_eq!(row(client, Some("b2")).await["new_start_selected"], true);
    assert_eq!(pin("a").await, "b2");
    step(client, "promote", None).await.expect(200);
    assert!(pin("b").await.is_null());
    step(client, "promote", Some("b1")).await.expect(200);
    let drained = step(client, "drain", Some("b1")).await.expect(200);
    assert_eq!(drained["new_start_selected"], false);
    assert!(pin("c").await.is_null());
    server.stop().await;
}

/// Rule: what stands against a promotion is said with a reason each, and nothing is promoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_promotion_is_refused_with_its_blockages() {
    let server = TestServer::with(|settings| settings.workers.stale_after_seconds = 2).await;
    let client = &server.client;
    let refused = async |build: &str, reason: &str| {
        let body = step(client, "promote", Some(build))
            .await
            .refused(409, reason);
        assert_eq!(body["outcome"], format!("rejected_{reason}"));
        assert_eq!(body["blockages"][0]["reason"], reason);
        assert_eq!(body["deployment"], format!("default/q@{build}"));
        assert!(body["message"].is_string());
        body
    };
    refused("b1", "unknown_deployment").await;
    let said =
        |fingerprint: &str| json!({"workflow_definition_fingerprints": {"flow": fingerprint}});
    register(client, "w1", Some("b1"), said("f1")).await;
    step(client, "drain", Some("b1")).await.expect(200);
    refused("b1", "fleet_is_draining").await;
    step(client, "resume", Some("b1")).await.expect(200);
    register(client, "w2", Some("b1"), said("f2")).await;
    let body = refused("b1", "fingerprint_mismatch").await;
    assert_eq!(body["blockages"][0]["workflow_types"], json!(["flow"]));
    eventually("the workers are stale", 10, async || {
        (row(client, Some("b1")).await["rollout_status"] == "stale_only").then_some(())
    })
    .await;
    refused("b1", "missing_worker_heartbeat").await;
    for worker in ["w1", "w2"] {
        client
            .delete(&format!("/workers/{worker}"))
            .await
            .expect(200);
    }
    refused("b1", "no_compatible_workers").await;
    assert_eq!(row(client, Some("b1")).await["new_start_selected"], false);
    server.stop().await;
}

/// Rule: code that could not replay the history of an open run is not promoted, and the run counts as
/// one to repair.
#[tokio::test(flavor = "multi_thread")]
async fn code_that_cannot_replay_is_not_promoted() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(client, "w1", Some("b1"), json!({})).await;
    client.start("wf", "flow", "q").await;
    let task = client.poll("workflow", "w1", "q", 5).await;
    let failure = json!({"failure": {"message": "no", "type": "WorkflowEntryArgumentsMismatch",
        "reason": "workflow_entry_arguments_mismatch"}});
    client.task(&task, "fail", failure).await.expect(200);
    let body = step(client, "promote", Some("b1"))
        .await
        .refused(409, "replay_safety_failed");
    assert_eq!(body["blockages"][0]["blocked_run_count"], 1);
    let queue = client.get("/task-queues/q").await.expect(200);
    assert_eq!(queue["repair"]["existing_task_candidates"], 1);
    assert_eq!(queue["unserved"]["replay_blocked_count"], 1);
    server.stop().await;
}

/// Rule: a start is refused when its type has only draining workers on the queue, and when it names a
/// build that drains; not when another build serves the type, when there are no workers, or when the
/// workflow is there already.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_is_not_routed_to_a_draining_build() {
    let server = TestServer::start().await;
    let client = &server.client;
    let start = async |id: &str, fields: Value| {
        let body = json!({"workflow_id": id, "workflow_type": "flow", "task_queue": "q"});
        client.post("/workflows", merged(body, fields)).await
    };
    step(client, "drain", Some("b1")).await.expect(200);
    start("a", json!({})).await.expect(201);
    register(client, "w1", Some("b1"), json!({})).await;
    let body = start("b", json!({}))
        .await
        .refused(409, "task_queue_draining");
    assert_eq!(body["outcome"], "rejected_task_queue_draining");
    assert_eq!(body["rejection_reason"], "task_queue_draining");
    assert_eq!(body["command_status"], "rejected");
    assert_eq!(body["workflow_id"], "b");
    assert_eq!(body["workflow_type"], "flow");
    assert_eq!(body["task_queue"], "q");
    assert_eq!(body["routing_status"], "draining");
    assert_eq!(body["active_worker_count"], 0);
    assert_eq!(body["draining_worker_count"], 1);
    assert_eq!(body["stale_worker_count"], 0);
    assert_eq!(body["draining_build_ids"], json!(["b1"]));
    assert_eq!(body["drain_intent"], "draining");
    client
        .get("/workflows/b")
        .await
        .refused(404, "instance_not_found");
    start("a", json!({"duplicate_policy": "use-existing"}))
        .await
        .expect(200);
    start("a", json!({}))
        .await
        .refused(409, "instance_already_started");
    start("other", json!({"workflow_type": "other"}))
        .await
        .expect(201);
    register(client, "w2", Some("b2"), json!({})).await;
    start("c", json!({})).await.expect(201);
    let body = start("d", json!({"build_id": "b1"}))
        .await
        .refused(409, "compatibility_blocked");
    assert_eq!(body["outcome"], "rejected_compatibility_blocked");
    step(client, "resume", Some("b1")).await.expect(200);
    start("d", json!({"build_id": "b1"})).await.expect(201);
    server.stop().await;
}

/// Rule: deployments are builds under a name; a rollback selects the build that was promoted before.
#[tokio::test(flavor = "multi_thread")]
async fn deployments_are_names_of_builds() {
    let server = TestServer::start().await;
    let client = &server.client;
    register(client, "w1", Some("b1"), json!({})).await;
    register(client, "w2", Some("b2"), json!({})).await;
    register(client, "w0", None, json!({"task_queue": "p"})).await;
    let listed = client.get("/deployments").await.expect(200);
    let names: Vec<&str> = listed["deployments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| text(row, "deployment"))
        .collect();
    assert_eq!(
        names,
        ["default/p@unversioned", "default/q@b1", "default/q@b2"]
    );
    let path = |name: &str| {
        format!(
            "/deployments/{}",
            name.replace('/', "%2F").replace('@', "%40")
        )
    };
    let shown = client.get(&path("default/q@b1")).await.expect(200);
    assert_eq!(shown["build_id"], "b1");
    assert_eq!(shown["active_worker_count"], 1);
    let act = async |name: &str, step: &str| {
        client
            .post(&format!("{}/{step}", path(name)), json!({}))
            .await
    };
    act("default/q@b1", "promote").await.expect(200);
    act("default/q@b2", "promote").await.expect(200);
    let back = act("default/q@b2", "rollback").await.expect(200);
    assert!(back["rolled_back_at"].is_string());
    assert_eq!(back["new_start_selected"], false);
    assert_eq!(row(client, Some("b1")).await["new_start_selected"], true);
    let drained = act("default/q@b1", "drain").await.expect(200);
    assert_eq!(drained["deployment"], "default/q@b1");
    let body = act("default/q@b1", "promote")
        .await
        .refused(409, "fleet_is_draining");
    assert_eq!(body["deployment"], "default/q@b1");
    assert_eq!(body["blockages"][0]["reason"], "fleet_is_draining");
    act("default/q@b1", "resume").await.expect(200);
    for name in ["default/q@b9", "nonsense", "default/q"] {
        client
            .get(&path(name))
            .await
            .refused(404, "deployment_not_found");
    }
    client
        .get(&path("other/q@b1"))
        .await
        .refused(400, "namespace_mismatch");
    server.stop().await;
}

/// Rule: no registration slips by a drain, and no poll, on whichever node they are: after the drain has
/// been answered every worker of the build drains, and every poll of it ends.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_slips_by_a_drain() {
    let server = TestServer::start().await;
    let (other, elsewhere) = server.other_node().await;
    let nodes = [server.client.clone(), elsewhere];
    for round in 0..6 {
        let build = format!("b{round}");
        let known = format!("known{round}");
        register(&nodes[0], &known, Some(&build), json!({})).await;
        let mut registrations = tokio::task::JoinSet::new();
        let mut polls = tokio::task::JoinSet::new();
        for n in 0..8 {
            let client = nodes[n % 2].clone();
            let (worker, build) = (format!("w{round}-{n}"), build.clone());
            registrations.spawn(async move {
                register(&client, &worker, Some(&build), json!({})).await;
            });
            let (client, known) = (nodes[n % 2].clone(), known.clone());
            polls.spawn(async move { client.poll_whole("workflow", &known, "q", 30).await });
        }
        step(&nodes[round % 2], "drain", Some(&build))
            .await
            .expect(200);
        registrations.join_all().await;
        for answer in polls.join_all().await {
            let body = answer.expect(200);
            assert_eq!(body["poll_status"], "draining", "{body:#}");
        }
        let workers = nodes[0].get("/workers").await.expect(200);
        for worker in workers["workers"].as_array().unwrap() {
            if worker["build_id"] == build.as_str() {
                assert_eq!(worker["status"], "draining", "{worker:#}");
            }
        }
        assert_eq!(
            row(&nodes[0], Some(&build)).await["draining_worker_count"],
            9
        );
    }
    other.stop().await;
    server.stop().await;
}

/// Rule: a node that lost its connection to the others looks after its polls when it is back: those of
/// workers that drain, are gone or were replaced meanwhile end.
#[tokio::test(flavor = "multi_thread")]
async fn lost_hints_are_made_up_for() {
    let server = TestServer::start().await;
    let client = &server.client;
    let mut polls = Vec::new();
    for worker in ["drained", "gone", "replaced", "stays"] {
        register(client, worker, Some("b1"), json!({})).await;
        let client = client.clone();
        polls.push(tokio::spawn(async move {
            client.poll_whole("workflow", worker, "q", 50).await
        }));
    }
    eventually("the polls wait", 5, async || {
        (server.node.engine().parked_polls() == 4).then_some(())
    })
    .await;
    server
        .db
        .execute(
            "update workers set status = 'draining' where worker_id = 'drained';
             delete from workers where worker_id = 'gone';
             update workers set epoch = epoch + 1 where worker_id = 'replaced';
             select pg_terminate_backend(pid) from pg_stat_activity
             where application_name = 'leasehold hints' and datname = current_database()",
        )
        .await;
    let stays = polls.pop().unwrap();
    for (poll, status) in polls.into_iter().zip([
        "draining",
        "stale_worker_registration",
        "stale_worker_registration",
    ]) {
        assert_eq!(poll.await.unwrap().expect(200)["poll_status"], status);
    }
    client.start("wf", "flow", "q").await;
    assert_eq!(
        text(&stays.await.unwrap().expect(200)["task"], "workflow_id"),
        "wf"
    );
    server.stop().await;
}
