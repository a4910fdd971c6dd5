//! Failures that servers of this kind have had in production, each as a test that is named by its
//! case. Cases that another file tests already carry their name there.

mod database;
mod delivery;
mod leases;
mod names;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::{Client, TOKEN, TestServer, eventually};

/// Sends a request to the worker plane over a connection of its own, and leaves the answer in it.
async fn sent(client: &Client, path: &str, body: &Value) -> TcpStream {
    let address = client.address();
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let body = body.to_string();
    let request = format!(
        "POST /api{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\n\
         X-Durable-Workflow-Protocol-Version: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        client.version,
        body.len()
    );
    stream
        .write_all(request.as_bytes())
        .await
        .expect("the request is sent");
    stream
}

/// Waits until the first byte of an answer is there, and goes away without reading it.
async fn swallow(stream: TcpStream) {
    let mut byte = [0];
    assert_eq!(stream.peek(&mut byte).await.expect("an answer"), 1);
}

async fn parked(server: &TestServer, count: usize) {
    eventually("the polls wait", 10, async || {
        (server.node.engine().parked_polls() == count).then_some(())
    })
    .await;
}
