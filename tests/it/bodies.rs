//! Requests that arrive cut in pieces: each is read whole, and answered, wherever it is cut.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::{TOKEN, TestServer};

/// Longest time for an answer; a request that is forgotten has none at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// The one connection of a test.
struct Wire<'a> {
    server: &'a TestServer,
    stream: BufReader<TcpStream>,
}

impl<'a> Wire<'a> {
    async fn to(server: &'a TestServer) -> Self {
        let address = server.client.address();
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("an option");
        Self {
            server,
            stream: BufReader::new(stream),
        }
    }

    /// Sends a piece, and sees to it that the server's one thread has had a turn since.
    async fn send(&mut self, piece: &[u8]) {
        let sent = self.stream.get_mut().write_all(piece).await;
        sent.expect("the server reads");
        self.server.client.get("/health").await.expect(200);
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.stream.read_line(&mut line)).await;
        read.expect("an answer in time").expect("an answer");
        line.trim_end().to_ascii_lowercase()
    }

    /// The next answer: its status and its body.
    async fn answer(&mut self) -> (u16, Value) {
        let status = self.line().await;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut length = 0;
        loop {
            let line = self.line().await;
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        let read = tokio::time::timeout(PATIENCE, self.stream.read_exact(&mut body)).await;
        read.expect("a body in time").expect("a body");
        let body = serde_json::from_slice(&body).expect("JSON");
        (status.expect("a status"), body)
    }

    /// The next answer is that of the start of this workflow.
    async fn started(&mut self, workflow: &str) {
        let (status, body) = self.answer().await;
        assert_eq!((status, &body["workflow_id"]), (201, &json!(workflow)));
    }
}

fn head(fields: &str) -> String {
    format!(
        "POST /api/workflows HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\n\
         X-Durable-Workflow-Control-Plane-Version: 2\r\nContent-Type: application/json\r\n{fields}\r\n"
    )
}

fn body(workflow: &str, filler: usize) -> String {
    json!({
        "workflow_id": workflow, "workflow_type": "w", "task_queue": "q", "input": ["x".repeat(filler)],
    })
    .to_string()
}

/// A whole request, and where its body begins.
fn request(workflow: &str, filler: usize) -> (String, usize) {
    let body = body(workflow, filler);
    let head = head(&format!("Content-Length: {}\r\n", body.len()));
    (format!("{head}{body}"), head.len())
}

/// Rule: a request is answered wherever the network cuts it.
#[tokio::test]
async fn a_request_may_be_cut_anywhere() {
    let server = TestServer::start().await;
    let mut wire = Wire::to(&server).await;
    let (whole, begin) = request("w", 0);
    let cuts = [0, 1, begin - 1, begin, begin + 1, whole.len() - 1];
    for (place, cut) in cuts.into_iter().enumerate() {
        let workflow = format!("cut-{place}");
        let (text, _) = request(&workflow, 0);
        let (first, last) = text.split_at(cut);
        wire.send(first.as_bytes()).await;
        wire.send(last.as_bytes()).await;
        wire.started(&workflow).await;
    }
    let (text, begin) = request("bytes", 0);
    let (head, body) = text.split_at(begin);
    wire.send(head.as_bytes()).await;
    for byte in body.bytes() {
        wire.send(&[byte]).await;
    }
    wire.started("bytes").await;
    drop(wire);
    server.stop().await;
}

/// Rule: a body that is larger than what a connection buffers is read to its end.
#[tokio::test]
async fn a_large_body_may_come_slowly() {
    let server = TestServer::start().await;
    let mut wire = Wire::to(&server).await;
    let (text, begin) = request("large", 300 << 10);
    let (head, body) = text.split_at(begin);
    wire.send(head.as_bytes()).await;
    for piece in body.as_bytes().chunks(50 << 10) {
        wire.send(piece).await;
    }
    wire.started("large").await;
    let (text, _) = request("large-at-once", 300 << 10);
    wire.send(text.as_bytes()).await;
    wire.started("large-at-once").await;
    drop(wire);
    server.stop().await;
}

/// Rule: a body of unknown length is read to its last chunk (RFC 9112, 7.1).
#[tokio::test]
async fn a_chunked_body_is_read_to_its_last_chunk() {
    let server = TestServer::start().await;
    let mut wire = Wire::to(&server).await;
    wire.send(head("Transfer-Encoding: chunked\r\n").as_bytes())
        .await;
    for piece in body("chunked", 50).as_bytes().chunks(40) {
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(piece);
        wire.send(&chunk).await;
        wire.send(b"\r\n").await;
    }
    wire.send(b"0\r\n\r\n").await;
    wire.started("chunked").await;
    drop(wire);
    server.stop().await;
}

/// Rule: requests that follow one another without waiting are answered in their order (RFC 9112, 9.3.2).
#[tokio::test]
async fn requests_may_be_sent_ahead() {
    let server = TestServer::start().await;
    let parts = request("c0", 0);
    let ends = [parts.1 - 5, parts.1, parts.1 + 3, parts.0.len()];
    for (place, cut) in ends.into_iter().enumerate() {
        // The last one is cut while the ones before it are still worked on. The library closes after such a
        // round, and says so.
        let mut wire = Wire::to(&server).await;
        let names = ["a", "b", "c"].map(|name| format!("{name}{place}"));
        let [first, second, third] = names.each_ref().map(|name| request(name, 0).0);
        let (begin, end) = third.split_at(cut);
        let together = [&first, &second, begin].concat();
        wire.send(together.as_bytes()).await;
        wire.started(&names[0]).await;
        wire.started(&names[1]).await;
        wire.send(end.as_bytes()).await;
        wire.started(&names[2]).await;
    }
    server.stop().await;
}

/// Rule: a client that asks first is told to go on (RFC 9110, 10.1.1).
#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let server = TestServer::start().await;
    let mut wire = Wire::to(&server).await;
    let body = body("asked", 0);
    let fields = format!("Content-Length: {}\r\nExpect: 100-continue\r\n", body.len());
    wire.send(head(&fields).as_bytes()).await;
    assert_eq!(wire.line().await, "http/1.1 100 continue");
    assert_eq!(wire.line().await, "");
    wire.send(body.as_bytes()).await;
    wire.started("asked").await;
    drop(wire);
    server.stop().await;
}

/// Rule: a body that is announced as too long is refused before any of it has come (RFC 9110, 15.5.14).
#[tokio::test]
async fn a_body_may_be_refused_by_its_head() {
    let server = TestServer::start().await;
    let mut wire = Wire::to(&server).await;
    let fields = format!("Content-Length: {}\r\n", 1_u64 << 30);
    wire.send(head(&fields).as_bytes()).await;
    let (status, _) = wire.answer().await;
    assert_eq!(status, 413);
    drop(wire);
    server.stop().await;
}

/// Rule: whoever reads no body waits for none.
#[tokio::test]
async fn a_body_that_nobody_reads_is_not_waited_for() {
    let server = TestServer::start().await;
    for (request, status) in [
        ("GET /api/health", 200),
        ("POST /api/health", 405),
        ("POST /nowhere", 404),
    ] {
        let mut wire = Wire::to(&server).await;
        let head = format!(
            "{request} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\n"
        );
        wire.send(head.as_bytes()).await;
        assert_eq!(wire.answer().await.0, status, "{request}");
    }
    server.stop().await;
}

/// Rule: who announces large bodies and does not send them keeps nobody out; small bodies do not even wait.
#[tokio::test]
async fn large_bodies_that_do_not_come_keep_nobody_out() {
    let server = TestServer::start().await;
    let mut silent = Vec::new();
    for _ in 0..10 {
        let mut wire = Wire::to(&server).await;
        let head = head(&format!("Content-Length: {}\r\n", 1 << 20));
        wire.send(head.as_bytes()).await;
        silent.push(wire);
    }
    let mut wire = Wire::to(&server).await;
    for (workflow, filler) in [("small", 0), ("large", 1 << 20)] {
        let (text, _) = request(workflow, filler);
        wire.send(text.as_bytes()).await;
        wire.started(workflow).await;
    }
    drop((silent, wire));
    server.stop().await;
}
