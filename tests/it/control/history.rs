//! The history of a run, page by page, and followed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{TestServer, envelope, text};

/// Rule: the body of a page and the keys of an event.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_has_every_key() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let body = client
        .get(&format!("/workflows/wf/runs/{run}/history"))
        .await
        .expect(200);
    assert_eq!(body["workflow_id"], "wf");
    assert_eq!(body["run_id"], run);
    assert!(body["next_page_token"].is_null());
    let events = body["events"].as_array().unwrap();
    assert_eq!(events.len(), 2);
    for (place, event) in events.iter().enumerate() {
        assert_eq!(event["sequence"], place + 1);
        assert!(event["event_type"].is_string());
        assert!(event["payload"].is_object());
        assert_eq!(event["timestamp"], event["recorded_at"]);
        assert!(text(event, "timestamp").ends_with('Z'));
        assert_eq!(event.get("principal"), Some(&Value::Null));
        assert!(event["id"].is_string());
    }
    server.stop().await;
}

/// Rule: pages of 1 to 1000 events by token, ascending, each event once.
#[tokio::test(flavor = "multi_thread")]
async fn pages_reassemble_the_history() {
    let server = TestServer::start().await;
    let client = &server.client;
    let task = client.first_task().await;
    let effect = json!({"type": "record_side_effect", "result": envelope(json!(1))});
    client
        .complete(&task, json!(vec![effect; 120]))
        .await
        .expect(200);
    let run = text(&task, "run_id");
    let path = format!("/workflows/wf/runs/{run}/history");
    let whole = client.history("wf", run).await;
    assert_eq!(whole.len(), 122);
    let first = client.get(&path).await.expect(200);
    assert_eq!(first["events"].as_array().unwrap().len(), 100);
    for size in [1, 50, 61, 122] {
        let mut events = Vec::new();
        let mut query = format!("?page_size={size}");
        let mut tokens = Vec::new();
        loop {
            let body = client.get(&format!("{path}{query}")).await.expect(200);
            let page = body["events"].as_array().unwrap();
            assert!(page.len() <= size);
            events.extend(page.iter().cloned());
            let Some(token) = body["next_page_token"].as_str() else {
                break;
            };
            assert!(!tokens.contains(&token.to_owned()), "a token came twice");
            tokens.push(token.to_owned());
            query = format!(
                "?page_size={size}&next_page_token={}",
                token.replace('=', "%3D").replace('+', "%2B")
            );
        }
        assert_eq!(events, whole, "{size}");
        assert_eq!(tokens.len(), 121 / size);
    }
    for bad in ["0", "1001", "-1", "x", ""] {
        client
            .get(&format!("{path}?page_size={bad}"))
            .await
            .invalid(&["page_size"]);
    }
    for bad in ["maybe", "2"] {
        client
            .get(&format!("{path}?wait_new_event={bad}"))
            .await
            .invalid(&["wait_new_event"]);
    }
    client
        .get(&format!("{path}?next_page_token=%00"))
        .await
        .invalid(&["next_page_token"]);
    // A place beyond the end is one; 18446744073709551615 is the last there can be.
    for end in ["MTIy", "MTIz", "MTg0NDY3NDQwNzM3MDk1NTE2MTU%3D"] {
        let body = client
            .get(&format!("{path}?next_page_token={end}"))
            .await
            .expect(200);
        assert_eq!(body["events"], json!([]));
        assert!(body["next_page_token"].is_null());
    }
    for bad in ["x", "MQ", "LTE%3D", "MDE%3D"] {
        client
            .get(&format!("{path}?next_page_token={bad}"))
            .await
            .refused(400, "invalid_page_token");
    }
    server.stop().await;
}

/// Rule: a follower's request is held until an event comes; it gets a token while the run is open, and
/// none at the end of a closed one.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_is_held_until_an_event_comes() {
    let server = TestServer::start().await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let path = format!("/workflows/wf/runs/{run}/history");
    let body = client
        .get(&format!("{path}?wait_new_event=1"))
        .await
        .expect(200);
    assert_eq!(body["events"].as_array().unwrap().len(), 2);
    let token = text(&body, "next_page_token").replace('=', "%3D");
    let next = format!("{path}?wait_new_event=true&next_page_token={token}");
    let following = {
        let (client, next) = (client.clone(), next.clone());
        tokio::spawn(async move { client.get(&next).await.expect(200) })
    };
    // Once the follower waits, an event ends its waiting.
    tokio::time::timeout(Duration::from_millis(300), async {
        while !following.is_finished() {
            tokio::task::yield_now().await
        }
    })
    .await
    .expect_err("the request is held");
    let began = Instant::now();
    client
        .post("/workflows/wf/cancel", json!({}))
        .await
        .expect(200);
    let body = following.await.unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    let events = body["events"].as_array().unwrap();
    assert_eq!(events[0]["event_type"], "CancelRequested");
    assert_eq!(events.last().unwrap()["event_type"], "WorkflowCancelled");
    assert!(body["next_page_token"].is_null());
    // The end of a closed run is answered at once.
    let end = format!("{path}?wait_new_event=1&next_page_token=NA%3D%3D");
    let began = Instant::now();
    let body = client.get(&end).await.expect(200);
    assert_eq!(body["events"], json!([]));
    assert!(body["next_page_token"].is_null());
    assert!(began.elapsed() < Duration::from_secs(3));
    server.stop().await;
}

/// Rule: without an event a follower is answered with an empty page and the same place after the
/// server's poll time.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_is_not_held_forever() {
    let server = TestServer::with(|settings| settings.long_poll.default_seconds = 1).await;
    let client = &server.client;
    let run = client.start("wf", "flow", "q").await;
    let path = format!("/workflows/wf/runs/{run}/history?next_page_token=Mg%3D%3D");
    let began = Instant::now();
    let body = client
        .get(&format!("{path}&wait_new_event=1"))
        .await
        .expect(200);
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(body["events"], json!([]));
    assert_eq!(body["next_page_token"], "Mg==");
    for not in ["0", "false", ""] {
        let body = client
            .get(&format!("{path}&wait_new_event={not}"))
            .await
            .expect(200);
        assert_eq!(body["events"], json!([]));
        assert!(body["next_page_token"].is_null());
    }
    server.stop().await;
}

/// Rule: status and terminal event become visible in the same commit: whoever sees a closed run finds
/// its end in the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_run_has_its_end_in_the_history() {
    let server = TestServer::start().await;
    let client = &server.client;
    for n in 0..10 {
        let id = format!("wf{n}");
        let run = client.start(&id, "flow", "q").await;
        let watch = async {
            crate::support::eventually("the run closes", 10, async || {
                let described = client.get(&format!("/workflows/{id}")).await.expect(200);
                (described["is_terminal"] == true).then_some(())
            })
            .await;
            client.events(&id, &run).await
        };
        let path = format!("/workflows/{id}/terminate");
        let close = client.post(&path, json!({}));
        let (events, closed) = futures_util::future::join(watch, close).await;
        closed.expect(200);
        assert_eq!(events.last().unwrap(), "WorkflowTerminated");
    }
    server.stop().await;
}
