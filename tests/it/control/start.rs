//! Starts: fields and limits, duplicates, and what a start writes.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer, envelope, eventually, merged, only, text};

async fn start(client: &Client, fields: Value) -> Answer {
    let base = json!({"workflow_id": "wf", "workflow_type": "flow"});
    client.post("/workflows", merged(base, fields)).await
}

/// Rule: the answer to a start, key by key, and the defaults of what was left out.
#[tokio::test(flavor = "multi_thread")]
async fn the_smallest_start_has_the_defaults() {
    let server = TestServer::start().await;
    let client = &server.client;
    let mut body = start(client, json!({})).await.expect(201);
    let fields = body.as_object_mut().unwrap();
    fields.remove("control_plane");
    let run = fields.remove("run_id").unwrap();
    assert_eq!(run.as_str().unwrap().len(), 26);
    let expected = json!({
        "workflow_id": "wf",
        "workflow_type": "flow",
        "namespace": "default",
        "task_queue": "default",
        "status": "pending",
        "business_key": null,
        "payload_codec": "avro",
        "outcome": "started_new",
        "command_status": "accepted",
        "command_source": "control_plane",
        "reason": null,
        "rejection_reason": null,
        "message": null,
    });
    assert_eq!(body, expected);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["input"], json!([]));
    assert_eq!(described["priority"], 5);
    assert_eq!(described["fairness_weight"], 1);
    for absent in [
        "business_key",
        "fairness_key",
        "compatibility",
        "execution_timeout_seconds",
        "run_timeout_seconds",
        "execution_deadline_at",
        "run_deadline_at",
    ] {
        assert!(described[absent].is_null(), "{absent}");
    }
    assert_eq!(described["memo"], json!({}));
    assert_eq!(described["search_attributes"], json!({}));
    server.stop().await;
}

/// Rule: an id is made when none is given; any text of the pattern up to 128 characters is one.
#[tokio::test(flavor = "multi_thread")]
async fn workflow_ids_follow_the_pattern() {
    let server = TestServer::start().await;
    let client = &server.client;
    for absent in [json!({"workflow_id": null}), json!({"workflow_id": null})] {
        let body = start(client, absent).await.expect(201);
        assert_eq!(text(&body, "workflow_id").len(), 26);
    }
    for good in ["a", "A.b_c:d-9", &"x".repeat(128)] {
        let body = start(client, json!({"workflow_id": good}))
            .await
            .expect(201);
        assert_eq!(body["workflow_id"], good);
        assert_eq!(
            client.get(&format!("/workflows/{good}")).await.expect(200)["workflow_id"],
            good
        );
    }
    for bad in ["", "a b", "a/b", "ä", "a\n", "a?b", &"x".repeat(129)] {
        start(client, json!({"workflow_id": bad}))
            .await
            .invalid(&["workflow_id"]);
    }
    server.stop().await;
}

/// Rule: every field has its limit; what is no field of a start is refused by name.
#[tokio::test(flavor = "multi_thread")]
async fn every_field_has_its_limit() {
    let server = TestServer::start().await;
    let client = &server.client;
    let long = "x".repeat(256);
    let many: serde_json::Map<String, Value> =
        (0..101).map(|n| (format!("k{n}"), json!(n))).collect();
    let total: serde_json::Map<String, Value> = (0..30)
        .map(|n| (format!("k{n}"), json!("v".repeat(2_000))))
        .collect();
    for (fields, wrong) in [
        (json!({"workflow_type": null}), "workflow_type"),
        (json!({"workflow_type": ""}), "workflow_type"),
        (json!({"workflow_type": long}), "workflow_type"),
        (json!({"workflow_type": "a\tb"}), "workflow_type"),
        (json!({"task_queue": ""}), "task_queue"),
        (json!({"task_queue": long}), "task_queue"),
        (
            json!({"input": {"codec": "json", "blob": "[]"}}),
            "input.codec",
        ),
        (json!({"input": {"codec": "avro", "blob": 1}}), "input.blob"),
        (
            json!({"input": {"codec": "avro", "external_storage": {}}}),
            "input.external_storage",
        ),
        (
            json!({"input": {"codec": "avro", "blob": "A".repeat(2_097_153)}}),
            "input",
        ),
        (json!({"payload_codec": "json"}), "payload_codec"),
        (json!({"business_key": long}), "business_key"),
        (json!({"memo": []}), "memo"),
        (json!({"memo": "x"}), "memo"),
        (json!({"memo": {"x": "y".repeat(262_144)}}), "memo"),
        (json!({"search_attributes": [1]}), "search_attributes"),
        (
            json!({"search_attributes": {"a": {"b": 1}}}),
            "search_attributes.a",
        ),
        (
            json!({"search_attributes": {"a": [1]}}),
            "search_attributes.a",
        ),
        (
            json!({"search_attributes": {"a": "v".repeat(2_049)}}),
            "search_attributes.a",
        ),
        (json!({"search_attributes": {"": 1}}), "search_attributes."),
        (json!({"search_attributes": many}), "search_attributes"),
        (json!({"search_attributes": total}), "search_attributes"),
        (
            json!({"duplicate_policy": "use_existing"}),
            "duplicate_policy",
        ),
        (json!({"duplicate_policy": ""}), "duplicate_policy"),
        (
            json!({"execution_timeout_seconds": 0}),
            "execution_timeout_seconds",
        ),
        (json!({"run_timeout_seconds": -1}), "run_timeout_seconds"),
        (json!({"run_timeout_seconds": 1.5}), "run_timeout_seconds"),
        (
            json!({"run_timeout_seconds": u64::MAX}),
            "run_timeout_seconds",
        ),
        (json!({"priority": -1}), "priority"),
        (json!({"priority": 10}), "priority"),
        (json!({"fairness_key": ""}), "fairness_key"),
        (json!({"fairness_key": "a b"}), "fairness_key"),
        (json!({"fairness_key": "x".repeat(65)}), "fairness_key"),
        (json!({"fairness_weight": 0}), "fairness_weight"),
        (json!({"fairness_weight": 1001}), "fairness_weight"),
        (json!({"build_id": long}), "build_id"),
        (json!({"compatibility": long}), "compatibility"),
        (
            json!({"workflow_execution_timeout": 1}),
            "workflow_execution_timeout",
        ),
        (
            json!({"workflow_run_timeout": "1s"}),
            "workflow_run_timeout",
        ),
        (json!({"workflow_task_timeout": 1}), "workflow_task_timeout"),
        (json!({"retry_policy": {}}), "retry_policy"),
        (json!({"idempotency_key": "k"}), "idempotency_key"),
        (json!({"request_id": "k"}), "request_id"),
        (json!({"workflow_type": 1}), "workflow_type"),
    ] {
        let shown: String = fields.to_string().chars().take(80).collect();
        let answer = start(client, fields).await;
        assert_eq!(answer.status, 422, "{shown}");
        answer.invalid(&[wrong]);
    }
    client
        .get("/workflows/wf")
        .await
        .refused(404, "instance_not_found");
    let largest = json!({
        "workflow_type": "t".repeat(255), "task_queue": "q".repeat(255), "business_key": "b".repeat(255),
        "input": {"codec": "avro", "blob": "A".repeat(2_097_152)}, "priority": 9, "fairness_key": "k".repeat(64),
        "fairness_weight": 1000, "build_id": "b".repeat(255), "execution_timeout_seconds": 3_155_760_000_u64,
        "run_timeout_seconds": "600", "search_attributes": {"k".repeat(128): "v".repeat(2_048), "n": null, "l": ["a"]},
        "observability_context": {"traceparent": "00-x"}, "unknown": [1],
    });
    start(client, largest).await.expect(201);
    server.stop().await;
}

/// Rule: the input is the argument list: a list as it is, null as none, anything else as the only
/// argument; an envelope is kept byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn the_input_is_the_argument_list() {
    let server = TestServer::start().await;
    let client = &server.client;
    let encoded = envelope(json!(["Ada", {"n": 1}]));
    for (n, (input, shown)) in [
        (json!(null), json!([])),
        (json!([]), json!([])),
        (
            json!([1, "zwei", 2.5, null, {"a": []}]),
            json!([1, "zwei", 2.5, null, {"a": []}]),
        ),
        (json!("Ada"), json!(["Ada"])),
        (json!({"name": "Ada"}), json!([{"name": "Ada"}])),
        (json!(7), json!([7])),
        (encoded.clone(), json!(["Ada", {"n": 1}])),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("wf{n}");
        start(client, json!({"workflow_id": id, "input": input}))
            .await
            .expect(201);
        let described = client.get(&format!("/workflows/{id}")).await.expect(200);
        assert_eq!(described["input"], shown);
        assert_eq!(described["input_envelope"], envelope(shown.clone()));
    }
    // What cannot be decoded is kept, and shown as its envelope only.
    let opaque = json!({"codec": "avro", "blob": "no avro at all"});
    start(client, json!({"input": opaque})).await.expect(201);
    let described = client.get("/workflows/wf").await.expect(200);
    assert!(described["input"].is_null());
    assert_eq!(described["input_envelope"], opaque);
    server.stop().await;
}

/// Rule: memo and search attributes come back as they were sent: integers as integers, floats as
/// floats, in any nesting.
#[tokio::test(flavor = "multi_thread")]
async fn memo_and_attributes_come_back_as_they_were_sent() {
    let server = TestServer::start().await;
    let client = &server.client;
    let memo = r#"{"list":[[1,2.5],[null,true]],"float":1.0,"int":1,"big":9007199254740993,"text":"Grüße 🚀","empty":{},"neg":-0.5,"exp":1e300}"#;
    let body = format!(
        r#"{{"workflow_id":"wf","workflow_type":"flow","memo":{memo},"search_attributes":{{"Extra":7,"S":"x","L":["a","b"],"F":2.5,"B":false}}}}"#
    );
    let request = client
        .request(reqwest::Method::POST, "/workflows")
        .header("Content-Type", "application/json")
        .body(body);
    client.send(request).await.expect(201);
    let expected: Value = serde_json::from_str(memo).unwrap();
    let attributes = json!({"Extra": 7, "S": "x", "L": ["a", "b"], "F": 2.5, "B": false});
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["memo"], expected);
    assert!(described["memo"]["float"].is_f64() && described["memo"]["int"].is_u64());
    assert_eq!(described["search_attributes"], attributes);
    let listed = client.get("/workflows").await.expect(200)["workflows"][0].take();
    assert_eq!(listed["memo"], expected);
    assert_eq!(listed["search_attributes"], attributes);
    server.stop().await;
}

/// Rule: JSON that could be stored and not shown again is refused before it is stored.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_shown_again_is_not_stored() {
    let server = TestServer::start().await;
    let client = &server.client;
    let deep = format!("{}{}", "[".repeat(150), "]".repeat(150));
    for value in [
        deep.as_str(),
        "1e400",
        "-1e999",
        r#""\ud800""#,
        r#"{"\udfff":1}"#,
    ] {
        for field in ["memo", "search_attributes"] {
            let body = format!(
                r#"{{"workflow_id":"wf","workflow_type":"flow","{field}":{{"x":{value}}}}}"#
            );
            let request = client
                .request(reqwest::Method::POST, "/workflows")
                .header("Content-Type", "application/json");
            client
                .send(request.body(body))
                .await
                .refused(400, "malformed_json");
        }
    }
    let deepest = format!("{}{}", "[".repeat(98), "]".repeat(98));
    let body = format!(r#"{{"workflow_id":"wf","workflow_type":"flow","memo":{{"x":{deepest}}}}}"#);
    let request = client
        .request(reqwest::Method::POST, "/workflows")
        .header("Content-Type", "application/json");
    let run = client.send(request.body(body)).await.expect(201)["run_id"].take();
    let expected: Value = serde_json::from_str(&deepest).unwrap();
    assert_eq!(
        client.get("/workflows/wf").await.expect(200)["memo"]["x"],
        expected
    );
    assert_eq!(
        client.get("/workflows").await.expect(200)["workflows"][0]["memo"]["x"],
        expected
    );
    let run = run.as_str().unwrap();
    client
        .get(&format!("/workflows/wf/runs/{run}/history"))
        .await
        .expect(200);
    client
        .get(&format!("/workflows/wf/runs/{run}/history/export"))
        .await
        .expect(200);
    server.stop().await;
}

/// Rule: what happens to an id that is in use, by policy, state and type; a refusal names the run that
/// is there and writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_taken_id_is_refused_or_found() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = start(client, json!({"duplicate_policy": "use-existing"}))
        .await
        .expect(201)["run_id"]
        .take();
    let before = server.db.contents().await;
    let fail = json!({"duplicate_policy": "fail"});
    let existing = json!({"duplicate_policy": "use-existing", "input": [1]});
    let assert_duplicate = |answer: Answer| {
        let body = answer.refused(409, "instance_already_started");
        assert_eq!(body["outcome"], "rejected_duplicate");
        assert_eq!(body["rejection_reason"], "instance_already_started");
        assert_eq!(body["command_status"], "rejected");
        assert_eq!(body["run_id"], run);
        assert_eq!(body["workflow_id"], "wf");
        assert_eq!(body["workflow_type"], "flow");
        assert!(!text(&body, "message").is_empty());
    };
    assert_duplicate(start(client, fail.clone()).await);
    assert_duplicate(start(client, json!({})).await);
    let body = start(client, existing.clone()).await.expect(200);
    assert_eq!(body["outcome"], "returned_existing_active");
    assert_eq!(body["run_id"], run);
    for policy in [&fail, &existing] {
        let other = merged(policy.clone(), json!({"workflow_type": "other"}));
        let body = start(client, other).await.invalid(&["workflow_type"]);
        assert_eq!(body["workflow_id"], "wf");
    }
    assert_eq!(server.db.contents().await, before);
    client
        .post("/workflows/wf/cancel", json!({}))
        .await
        .expect(200);
    // A closed id stays taken under both policies.
    assert_duplicate(start(client, fail).await);
    assert_duplicate(start(client, existing).await);
    assert_eq!(
        client.get("/workflows/wf/runs").await.expect(200)["run_count"],
        1
    );
    server.stop().await;
}

/// Rule: of concurrent starts under one id exactly one starts a run, and all the others learn of it.
#[tokio::test(flavor = "multi_thread")]
async fn fc_25_one_of_concurrent_starts_wins() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (id, policy, other) in [("a", "use-existing", 200), ("b", "fail", 409)] {
        let fields = json!({"workflow_id": id, "duplicate_policy": policy});
        let starts = (0..16).map(|_| start(client, fields.clone()));
        let answers = futures_util::future::join_all(starts).await;
        let new = answers.iter().filter(|answer| answer.status == 201).count();
        assert_eq!(new, 1);
        let run = &answers[0].body["run_id"];
        for answer in &answers {
            assert!(
                answer.status == 201 || answer.status == other,
                "{:#}",
                answer.body
            );
            assert_eq!(answer.body["run_id"], *run);
        }
        assert_eq!(
            client.events(id, run.as_str().unwrap()).await,
            ["StartAccepted", "WorkflowStarted"]
        );
    }
    assert_eq!(
        client.get("/workflows").await.expect(200)["workflow_count"],
        2
    );
    server.stop().await;
}

/// Rule: what a start writes into the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_writes_two_events() {
    let server = TestServer::start().await;
    let client = &server.client;
    let fields = json!({
        "business_key": "order-7", "memo": {"m": 1}, "search_attributes": {"k": "v"},
        "execution_timeout_seconds": 3600, "run_timeout_seconds": 600,
    });
    let run = start(client, fields).await.expect(201)["run_id"].take();
    let run = run.as_str().unwrap();
    let history = client.history("wf", run).await;
    assert_eq!(history.len(), 2);
    let accepted = &only(&history, "StartAccepted")["payload"];
    let started = &only(&history, "WorkflowStarted")["payload"];
    for payload in [accepted, started] {
        for (key, value) in [
            ("workflow_instance_id", json!("wf")),
            ("workflow_run_id", json!(run)),
            ("workflow_type", json!("flow")),
            ("workflow_class", json!("flow")),
            ("business_key", json!("order-7")),
            ("memo", json!({"m": 1})),
            ("search_attributes", json!({"k": "v"})),
        ] {
            assert_eq!(payload[key], value, "{key}");
        }
        assert_eq!(
            payload["workflow_command_id"],
            accepted["workflow_command_id"]
        );
    }
    assert_eq!(accepted["outcome"], "started_new");
    assert!(accepted["rejection_reason"].is_null());
    assert_eq!(started["execution_timeout_seconds"], 3600);
    assert_eq!(started["run_timeout_seconds"], 600);
    assert!(text(started, "run_deadline_at") < text(started, "execution_deadline_at"));
    let described = client.get("/workflows/wf").await.expect(200);
    for key in [
        "run_deadline_at",
        "execution_deadline_at",
        "run_timeout_seconds",
        "execution_timeout_seconds",
    ] {
        assert_eq!(described[key], started[key], "{key}");
    }
    server.stop().await;
}

/// Rule: a pinned build; `build_id` goes over `compatibility`.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_may_be_pinned_to_a_build() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (id, fields, build) in [
        ("a", json!({"build_id": "b1"}), "b1"),
        ("b", json!({"compatibility": "b2"}), "b2"),
        ("c", json!({"build_id": "b1", "compatibility": "b2"}), "b1"),
    ] {
        start(client, merged(json!({ "workflow_id": id }), fields))
            .await
            .expect(201);
        assert_eq!(
            client.get(&format!("/workflows/{id}")).await.expect(200)["compatibility"],
            build
        );
    }
    server.stop().await;
}

/// Rule: deadlines need no worker: the run ends as failed and timed out, with the event last.
#[tokio::test(flavor = "multi_thread")]
async fn deadlines_need_no_worker() {
    let server = TestServer::start().await;
    let client = &server.client;
    let cases = [
        (
            "run",
            json!({"run_timeout_seconds": 1, "execution_timeout_seconds": 60}),
            "run_timeout",
        ),
        (
            "execution",
            json!({"execution_timeout_seconds": 1}),
            "execution_timeout",
        ),
        (
            "both",
            json!({"run_timeout_seconds": 1, "execution_timeout_seconds": 1}),
            "execution_timeout",
        ),
    ];
    let mut runs = Vec::new();
    for (id, fields, _) in &cases {
        runs.push(client.start_with(id, fields.clone()).await);
    }
    for ((id, _, kind), run) in cases.iter().zip(runs) {
        let described = eventually("the run times out", 20, async || {
            let described = client.get(&format!("/workflows/{id}")).await.expect(200);
            (described["is_terminal"] == true).then_some(described)
        })
        .await;
        assert_eq!(described["status"], "failed");
        assert_eq!(described["status_bucket"], "failed");
        assert_eq!(described["closed_reason"], "timed_out");
        assert_eq!(described["reason"], *kind);
        let history = client.history(id, &run).await;
        let last = history.last().unwrap();
        assert_eq!(last["event_type"], "WorkflowTimedOut");
        assert_eq!(last["payload"]["timeout_kind"], *kind);
        assert_eq!(last["payload"]["failure_category"], "timeout");
        assert!(!text(&last["payload"], "message").is_empty());
    }
    server.stop().await;
}
