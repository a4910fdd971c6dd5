//! Closed runs whose retention is over: gone for every caller at once, their ids free, and forgotten by
//! every node.

use leasehold::engine::{Engine, Walk};
use serde_json::{Value, json};

use crate::support::{Client, TestServer, eventually};

/// A server whose own pass comes too late for any test.
async fn server() -> TestServer {
    TestServer::with(|settings| settings.retention.interval_seconds = 3_600).await
}

/// What is closed is due.
async fn all_is_over(server: &TestServer) {
    let none = "update namespaces set retention_days = 0";
    server.db.execute(none).await;
}

/// Makes the removal of runs a thing of the past.
async fn a_while_later(server: &TestServer) {
    let shift = "update removed_runs set removed_at = removed_at - interval '61 s'";
    server.db.execute(shift).await;
}

/// One walk over all runs: how many are removed, and how many rows of history.
async fn walk(engine: &Engine) -> (usize, u64) {
    let mut walk = Walk::default();
    let (mut runs, mut rows) = (0, 0);
    loop {
        let step = engine.remove_expired(&mut walk).await.unwrap();
        runs += step.runs;
        rows += step.history_rows;
        if !step.more {
            return (runs, rows);
        }
    }
}

async fn terminate(client: &Client, workflow: &str) {
    let path = format!("/workflows/{workflow}/terminate");
    client.post(&path, json!({})).await.expect(200);
}

async fn listed(client: &Client) -> Vec<Value> {
    let list = client.get("/workflows").await.expect(200);
    list["workflows"].as_array().unwrap().clone()
}

/// Rule: retention: describe of a removed run is a 404, on each node, and its id can be used again; so can
/// the keys of its commands.
#[tokio::test(flavor = "multi_thread")]
async fn a_removed_run_is_gone_and_its_id_is_free() {
    let server = server().await;
    let client = &server.client;
    let (node, other) = server.other_node().await;
    let open = client.start("open", "flow", "q").await;
    let run = client.start("wf", "flow", "q").await;
    let keyed = json!({"request_id": "k", "input": [1]});
    let signal = "/workflows/wf/signal/go";
    client.post(signal, keyed.clone()).await.expect(202);
    terminate(client, "wf").await;
    // Both nodes have it in memory.
    for client in [client, &other] {
        assert!(!client.events("wf", &run).await.is_empty());
    }
    // Its time is not over.
    assert_eq!(walk(server.node.engine()).await, (0, 0));
    all_is_over(&server).await;
    assert_eq!(walk(server.node.engine()).await, (1, 0));
    for client in [client, &other] {
        client
            .get("/workflows/wf")
            .await
            .refused(404, "instance_not_found");
        for path in ["", "/history", "/history/export"] {
            let path = format!("/workflows/wf/runs/{run}{path}");
            client.get(&path).await.expect(404);
        }
        client.get("/workflows/wf/runs").await.expect(404);
        client.post(signal, keyed.clone()).await.expect(404);
        let listed = listed(client).await;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0]["run_id"], open.as_str());
    }
    let again = client.start("wf", "flow", "q").await;
    assert_ne!(again, run);
    let signalled = client.post(signal, keyed).await.expect(202);
    assert_ne!(signalled["retained"], true);
    // The rest of it goes later, and nothing of the others.
    a_while_later(&server).await;
    let (runs, rows) = walk(server.node.engine()).await;
    assert!(runs == 0 && rows > 0, "{runs} runs, {rows} rows");
    let left: Vec<String> =
        sqlx::query_scalar("select distinct run_id from history_batches order by 1")
            .fetch_all(&mut server.db.connect().await)
            .await
            .unwrap();
    assert_eq!(left, [open.as_str(), again.as_str()]);
    for (workflow, run) in [("open", &open), ("wf", &again)] {
        assert!(!other.events(workflow, run).await.is_empty());
    }
    node.stop().await;
    server.stop().await;
}

/// Rule: retention: a predecessor goes while its successor is open; the chain's numbers go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_chain_goes_on_without_its_removed_runs() {
    let server = server().await;
    let client = &server.client;
    let first = client.first_task().await;
    let run = first["run_id"].as_str().unwrap();
    let next = json!([{"type": "continue_as_new"}]);
    client.complete(&first, next.clone()).await.expect(200);
    all_is_over(&server).await;
    assert_eq!(walk(server.node.engine()).await.0, 1);
    a_while_later(&server).await;
    assert!(walk(server.node.engine()).await.1 > 0);
    client
        .get(&format!("/workflows/wf/runs/{run}"))
        .await
        .expect(404);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["run_number"], 2);
    assert_eq!(described["continued_from_run_id"], run);
    let task = client.poll("workflow", "w", "q", 5).await;
    client.complete(&task, next).await.expect(200);
    let described = client.get("/workflows/wf").await.expect(200);
    assert_eq!(described["run_number"], 3);
    assert_eq!(described["run_count"], 3);
    server.stop().await;
}

/// Rule: a node that has a removed run in memory forgets it: what it said of the run is said no more.
#[tokio::test(flavor = "multi_thread")]
async fn every_node_forgets_a_removed_run() {
    let server = server().await;
    let client = &server.client;
    let (node, other) = server.other_node().await;
    let task = client.first_task().await;
    let end = json!([{"type": "complete_workflow"}]);
    client.complete(&task, end.clone()).await.expect(200);
    let repeated = other.complete(&task, end.clone()).await.expect(200);
    assert_eq!(repeated["duplicate"], true);
    all_is_over(&server).await;
    assert_eq!(walk(server.node.engine()).await.0, 1);
    a_while_later(&server).await;
    assert!(walk(server.node.engine()).await.1 > 0);
    client.complete(&task, end.clone()).await.expect(404);
    // The other node has not heard of it.
    other.complete(&task, end.clone()).await.expect(200);
    node.engine().forget_expired().await.unwrap();
    other.complete(&task, end).await.expect(404);
    // What is open stays in memory, and what is closed is read again.
    client.start("next", "flow", "q").await;
    terminate(client, "next").await;
    node.engine().forget_expired().await.unwrap();
    other.get("/workflows/next").await.expect(200);
    node.stop().await;
    server.stop().await;
}

/// Rule: a node removes by itself what is due, unless it is set not to; then it does not announce it.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_removes_by_itself_what_is_due() {
    let server = TestServer::with(|settings| settings.retention.interval_seconds = 1).await;
    let client = &server.client;
    client.start("wf", "flow", "q").await;
    terminate(client, "wf").await;
    all_is_over(&server).await;
    eventually("the run is gone", 20, async || {
        (client.get("/workflows/wf").await.status == 404).then_some(())
    })
    .await;
    let info = client.get("/cluster/info").await.expect(200);
    assert_eq!(info["capabilities"]["history_retention"], true);
    server.stop().await;
    let server = TestServer::with(|settings| settings.retention.interval_seconds = 0).await;
    let info = server.client.get("/cluster/info").await.expect(200);
    assert_eq!(info["capabilities"]["history_retention"], false);
    server.stop().await;
}
