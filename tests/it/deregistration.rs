//! Deregistration fenced by the token of a registration.

use serde_json::{Value, json};

use crate::support::{Answer, Client, TestServer};

async fn register(client: &Client) -> String {
    let body = json!({"worker_id": "w", "task_queue": "q", "workflow_types": ["flow"]});
    let body = client.post("/worker/register", body).await.expect(200);
    let token = body["registration_token"].as_str().unwrap().to_owned();
    assert_eq!(token.len(), 32);
    assert!(
        token
            .bytes()
            .all(|byte| b"0123456789abcdef".contains(&byte))
    );
    token
}

async fn leave(client: &Client, fields: Value) -> Answer {
    client
        .post("/worker/registrations/w/deregister", fields)
        .await
}

/// Rule: a token names one registration: it rotates with each, not with heartbeats; an older one has
/// lost its authority, and the same one gets its first answer again.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_ends_its_own_registration_only() {
    let server = TestServer::start().await;
    let client = &server.client;
    let old = register(client).await;
    let token = register(client).await;
    assert_ne!(old, token);
    client
        .post("/worker/heartbeat", json!({"worker_id": "w"}))
        .await
        .expect(200);
    client.start("wf", "flow", "q").await;
    assert!(client.poll("workflow", "w", "q", 5).await.is_object());
    let body = leave(client, json!({"registration_token": old}))
        .await
        .refused(409, "worker_registration_lost_authority");
    assert_eq!(body["worker_id"], "w");
    assert_eq!(body["registration_token"], old.as_str());
    let first = leave(client, json!({"registration_token": token}))
        .await
        .expect(200);
    assert_eq!(first["worker_id"], "w");
    assert_eq!(first["registration_token"], token.as_str());
    assert_eq!(first["outcome"], "deregistered");
    assert_eq!(first["recovered_workflow_task_count"], 1);
    let newer = register(client).await;
    let again = leave(client, json!({"registration_token": token}))
        .await
        .expect(200);
    assert_eq!(first, again);
    client.get("/workers/w").await.expect(200);
    assert!(client.poll("workflow", "w", "q", 5).await.is_object());
    leave(client, json!({"registration_token": newer}))
        .await
        .expect(200);
    client
        .get("/workers/w")
        .await
        .refused(404, "worker_not_found");
    leave(client, json!({"registration_token": "0".repeat(32)}))
        .await
        .refused(404, "worker_registration_token_not_found");
    server.stop().await;
}

/// Rule: an answer is repeated for 600 seconds; after that it is known that there was one.
#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_expires() {
    let server = TestServer::start().await;
    let client = &server.client;
    let token = register(client).await;
    leave(client, json!({"registration_token": token}))
        .await
        .expect(200);
    server
        .db
        .execute("update deregistrations set ended_at = ended_at - interval '599 s'")
        .await;
    leave(client, json!({"registration_token": token}))
        .await
        .expect(200);
    server
        .db
        .execute("update deregistrations set ended_at = ended_at - interval '2 s'")
        .await;
    leave(client, json!({"registration_token": token}))
        .await
        .refused(410, "worker_registration_receipt_expired");
    server.stop().await;
}

/// Rule: the body is exactly the token.
#[tokio::test(flavor = "multi_thread")]
async fn the_body_is_exactly_the_token() {
    let server = TestServer::start().await;
    let client = &server.client;
    let token = register(client).await;
    for wrong in [
        json!({}),
        json!({"registration_token": null}),
        json!({"registration_token": token.to_uppercase() + "0"}),
    ] {
        leave(client, wrong).await.invalid(&["registration_token"]);
    }
    leave(client, json!({"registration_token": token, "force": true}))
        .await
        .refused(422, "validation_failed");
    client.get("/workers/w").await.expect(200);
    server.stop().await;
}
