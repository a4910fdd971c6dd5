//! HTTP over a socket that the test holds in its hand: sent, read to the end, or hung up on.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::TOKEN;

/// A connection with a request on its way.
pub struct Asked {
    stream: TcpStream,
}

/// How a client goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// It closes the connection.
    Fin,
    /// It is torn away.
    Rst,
}

/// Sends a request to the worker plane and leaves the answer in the socket.
pub async fn ask(url: &str, path: &str, body: &Value) -> Asked {
    let mut asked = ask_all_but_the_end(url, path, body).await;
    asked.end().await;
    asked
}

/// Sends a request but for its last byte.
pub async fn ask_all_but_the_end(url: &str, path: &str, body: &Value) -> Asked {
    let address = url.strip_prefix("http://").expect("a plain address");
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let body = body.to_string();
    let request = format!(
        "POST /api{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\n\
         X-Durable-Workflow-Protocol-Version: 1.13\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let all_but_the_end = &request.as_bytes()[..request.len() - 1];
    stream
        .write_all(all_but_the_end)
        .await
        .expect("the request is sent");
    Asked { stream }
}

/// A poll that is left open.
pub async fn poll(url: &str, kind: &str, worker: &str, queues: &[&str], seconds: u64) -> Asked {
    let body = json!({"worker_id": worker, "task_queues": queues, "poll_timeout_seconds": seconds});
    ask(url, &format!("/worker/{kind}-tasks/poll"), &body).await
}

impl Asked {
    /// Sends the end of a JSON object.
    pub async fn end(&mut self) {
        self.stream
            .write_all(b"}")
            .await
            .expect("the request is sent");
    }

    /// Goes away without reading.
    pub fn hang_up(self, how: HangUp) {
        if how == HangUp::Rst {
            self.stream.set_zero_linger().expect("an option");
        }
        drop(self.stream);
    }

    /// Whether the answer has begun to arrive, looked at for so long.
    pub async fn is_answered(&self, within: Duration) -> bool {
        let mut buffer = [0];
        let peek = self.stream.peek(&mut buffer);
        tokio::time::timeout(within, peek).await.is_ok()
    }

    /// Reads the answer: its status and body.
    ///
    /// # Errors
    /// The connection ended before the answer did, or nothing came in time.
    pub async fn answer(mut self, within: Duration) -> Result<(u16, Value), String> {
        tokio::time::timeout(within, read(&mut self.stream))
            .await
            .map_err(|_| format!("no answer within {within:?}"))?
    }
}

async fn read(stream: &mut TcpStream) -> Result<(u16, Value), String> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some(answer) = parse(&received) {
            return Ok(answer);
        }
        match stream.read(&mut buffer).await {
            Ok(0) => return Err(format!("ended after {} bytes", received.len())),
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The answer, once all of it is there.
fn parse(received: &[u8]) -> Option<(u16, Value)> {
    let end = received
        .windows(4)
        .position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&received[..end]).ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length: usize = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())?;
    let body = received.get(end + 4..end + 4 + length)?;
    Some((status, serde_json::from_slice(body).ok()?))
}
