//! The list of runs: filters, order, and pages while runs are added.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Client, TestServer, text};

/// Ids of a list with this query string.
async fn ids(client: &Client, query: &str) -> Vec<String> {
    let body = client.get(&format!("/workflows{query}")).await.expect(200);
    let rows = body["workflows"].as_array().unwrap();
    assert_eq!(body["workflow_count"], rows.len());
    rows.iter()
        .map(|row| text(row, "workflow_id").to_owned())
        .collect()
}

/// Rule: the keys of a row.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_has_every_key() {
    let server = TestServer::start().await;
    let client = &server.client;
    let fields = json!({"business_key": "b", "build_id": "v1", "memo": {"m": 1}, "search_attributes": {"k": "v"}});
    let run = client.start_with("wf", fields).await;
    let mut body = client.get("/workflows").await.expect(200);
    let mut row = body["workflows"][0].take();
    assert!(
        row.as_object_mut()
            .unwrap()
            .remove("started_at")
            .unwrap()
            .is_string()
    );
    let expected = json!({
        "workflow_id": "wf",
        "run_id": run,
        "namespace": "default",
        "workflow_type": "flow",
        "business_key": "b",
        "status": "pending",
        "status_bucket": "running",
        "is_terminal": false,
        "task_queue": "q",
        "payload_codec": "avro",
        "run_number": 1,
        "is_current_run": true,
        "compatibility": "v1",
        "compatibility_status": "no_compatible_worker",
        "compatibility_supported_in_fleet": false,
        "compatibility_fleet_reason": "no_active_workers",
        "closed_at": null,
        "memo": {"m": 1},
        "search_attributes": {"k": "v"},
    });
    assert_eq!(row, expected);
    assert!(body["next_page_token"].is_null());
    server.stop().await;
}

/// Rule: the three words of the contract select buckets, other statuses themselves; types compare
/// exactly; filters combine.
#[tokio::test(flavor = "multi_thread")]
async fn runs_are_found_by_status_and_type() {
    let server = TestServer::start().await;
    let client = &server.client;
    client.register("w", "q", &["flow", "Flow"], &["act"]).await;
    for (id, command) in [
        ("completed", json!({"type": "complete_workflow"})),
        ("failed", json!({"type": "fail_workflow", "message": "x"})),
        (
            "waiting",
            json!({"type": "start_timer", "delay_seconds": 600}),
        ),
    ] {
        client.start(id, "flow", "q").await;
        let task = client.poll("workflow", "w", "q", 5).await;
        client.complete(&task, json!([command])).await.expect(200);
    }
    for command in ["cancel", "terminate"] {
        client.start(command, "flow", "q").await;
        client
            .post(&format!("/workflows/{command}/{command}"), json!({}))
            .await
            .expect(200);
    }
    client.start("pending", "flow", "q").await;
    client.start("other", "Flow", "q").await;
    for (query, expected) in [
        (
            "",
            &[
                "other",
                "pending",
                "terminate",
                "cancel",
                "waiting",
                "failed",
                "completed",
            ][..],
        ),
        ("?status=running", &["other", "pending", "waiting"]),
        ("?status=completed", &["completed"]),
        ("?status=failed", &["terminate", "cancel", "failed"]),
        ("?status=cancelled", &["cancel"]),
        ("?status=terminated", &["terminate"]),
        (
            "?status=",
            &[
                "other",
                "pending",
                "terminate",
                "cancel",
                "waiting",
                "failed",
                "completed",
            ],
        ),
        ("?workflow_type=Flow", &["other"]),
        (
            "?workflow_type=flow&status=running",
            &["pending", "waiting"],
        ),
        ("?workflow_type=none", &[]),
        ("?workflow_type=Flow&status=completed", &[]),
    ] {
        assert_eq!(ids(client, query).await, expected, "{query}");
    }
    // What discovery publishes as words for `status` is what is taken.
    let info = client.get("/cluster/info").await.expect(200);
    let status =
        &info["control_plane"]["request_contract"]["operations"]["list"]["fields"]["status"];
    for word in status["canonical_values"].as_array().unwrap() {
        let path = format!("/workflows?status={}", word.as_str().unwrap());
        client.get(&path).await.expect(200);
    }
    let aliases = status["rejected_aliases"].as_object().unwrap().keys();
    for bad in aliases
        .map(String::as_str)
        .chain(["RUNNING", "canceled", "open", "timed_out"])
    {
        client
            .get(&format!("/workflows?status={bad}"))
            .await
            .invalid(&["status"]);
    }
    server.stop().await;
}

/// Rule: text that is no predicate searches workflow id and business key, in any letter case, with no
/// wildcards.
#[tokio::test(flavor = "multi_thread")]
async fn text_searches_ids_and_business_keys() {
    let server = TestServer::start().await;
    let client = &server.client;
    for (id, key) in [
        ("Order-1", "x"),
        ("order-2", "100%"),
        ("other_3", "a_b"),
        ("plain", "aXb"),
    ] {
        client.start_with(id, json!({ "business_key": key })).await;
    }
    for (query, expected) in [
        ("order", &["order-2", "Order-1"][..]),
        ("ORDER-1", &["Order-1"]),
        ("%25", &["order-2"]),
        ("_", &["other_3"]),
        ("a_b", &["other_3"]),
        ("axb", &["plain"]),
        ("%5C", &[]),
        ("nothing", &[]),
    ] {
        assert_eq!(
            ids(client, &format!("?query={query}")).await,
            expected,
            "{query}"
        );
    }
    server.stop().await;
}

/// Rule: pages of 1 to 200 runs, 50 unless asked otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn page_sizes_have_their_range() {
    let server = TestServer::start().await;
    let client = &server.client;
    for n in 0..52 {
        client.start(&format!("wf{n}"), "flow", "q").await;
    }
    for bad in ["0", "201", "-1", "x", "1.5", "", "99999999999999999999"] {
        client
            .get(&format!("/workflows?page_size={bad}"))
            .await
            .invalid(&["page_size"]);
    }
    assert_eq!(ids(client, "").await.len(), 50);
    assert_eq!(ids(client, "?page_size=1").await, ["wf51"]);
    assert_eq!(ids(client, "?page_size=200").await.len(), 52);
    // A page that ends with the list has no token.
    let body = client.get("/workflows?page_size=52").await.expect(200);
    assert!(body["next_page_token"].is_null());
    server.stop().await;
}

/// Rule: pages repeat and miss nothing while runs are added, close and move.
#[tokio::test(flavor = "multi_thread")]
async fn pages_neither_repeat_nor_miss_while_runs_are_added() {
    let server = TestServer::start().await;
    let client = &server.client;
    for n in 0..9 {
        client.start(&format!("old{n}"), "flow", "q").await;
    }
    let mut seen = Vec::new();
    let mut token = Value::Null;
    let mut pages = 0;
    loop {
        let query = match token.as_str() {
            None => String::new(),
            Some(token) => format!("&next_page_token={token}"),
        };
        let body = client
            .get(&format!("/workflows?page_size=2{query}"))
            .await
            .expect(200);
        let rows = body["workflows"].as_array().unwrap();
        seen.extend(rows.iter().map(|row| text(row, "workflow_id").to_owned()));
        pages += 1;
        // The list changes between the pages.
        client.start(&format!("new{pages}"), "flow", "q").await;
        client
            .post(
                &format!("/workflows/old{}/cancel", pages * 2 % 9),
                json!({}),
            )
            .await
            .expect(200);
        token = body["next_page_token"].clone();
        if token.is_null() {
            break;
        }
    }
    let old: Vec<String> = (0..9).rev().map(|n| format!("old{n}")).collect();
    assert_eq!(seen, old);
    assert_eq!(pages, 5);
    let all: BTreeSet<String> = ids(client, "?page_size=200").await.into_iter().collect();
    assert_eq!(all.len(), 14);
    server.stop().await;
}

/// Rule: a token is of one list: made up, of another filter or of another namespace it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_belongs_to_its_list() {
    let server = TestServer::start().await;
    server
        .db
        .execute("insert into namespaces (name) values ('second')")
        .await;
    let client = &server.client;
    for n in 0..3 {
        client.start(&format!("wf{n}"), "flow", "q").await;
    }
    let body = client.get("/workflows?page_size=1").await.expect(200);
    let token = text(&body, "next_page_token").to_owned();
    // The size of the page may change.
    assert_eq!(
        ids(client, &format!("?page_size=7&next_page_token={token}")).await,
        ["wf1", "wf0"]
    );
    for query in [
        format!("?status=running&next_page_token={token}"),
        format!("?workflow_type=flow&next_page_token={token}"),
        format!("?query=wf&next_page_token={token}"),
        format!("?namespace=second&next_page_token={token}"),
        "?next_page_token=x".to_owned(),
        "?next_page_token=MA%3D%3D".to_owned(),
        format!("?next_page_token={token}x"),
        format!("?next_page_token={}", &token[1..]),
        format!("?next_page_token={}", "e30"),
        format!("?next_page_token={}", "A".repeat(5_000)),
    ] {
        client
            .get(&format!("/workflows{query}"))
            .await
            .invalid(&["next_page_token"]);
    }
    server.stop().await;
}

/// Rule: one row per run, so a chain shows each of its runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_shows_each_of_its_runs() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    client
        .complete(&task, json!([{"type": "continue_as_new"}]))
        .await
        .expect(200);
    let body = client.get("/workflows").await.expect(200);
    let rows = body["workflows"].as_array().unwrap();
    let shown: Vec<(&str, u64, bool)> = rows
        .iter()
        .map(|row| {
            (
                text(row, "workflow_id"),
                row["run_number"].as_u64().unwrap(),
                row["is_current_run"] == true,
            )
        })
        .collect();
    assert_eq!(shown, [("wf", 2, true), ("wf", 1, false)]);
    server.stop().await;
}

/// Rule: a started run is in the list as soon as its start was answered, and its state is that of its
/// description.
#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_never_behind() {
    let server = TestServer::start().await;
    let client = &server.client;
    for n in 0..10 {
        let id = format!("wf{n}");
        client.start(&id, "flow", "q").await;
        assert_eq!(ids(client, "?page_size=1").await, [id.as_str()]);
        client
            .post(&format!("/workflows/{id}/terminate"), json!({}))
            .await
            .expect(200);
        let body = client.get("/workflows?page_size=1").await.expect(200);
        let described = client.get(&format!("/workflows/{id}")).await.expect(200);
        for key in [
            "status",
            "status_bucket",
            "is_terminal",
            "closed_at",
            "started_at",
        ] {
            assert_eq!(body["workflows"][0][key], described[key], "{key}");
        }
    }
    server.stop().await;
}
