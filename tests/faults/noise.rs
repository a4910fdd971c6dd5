//! What is sent to the port and is no HTTP: answered, and no business of the operator's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::process::{Server, free_port};
use crate::support::TestDb;

/// Sends bytes and gives the first line of the answer.
fn send(url: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = [0; 64];
    let length = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length])
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Rule: a request that cannot be read as HTTP is refused with a status of 4xx, and logged neither as an
/// error nor as a warning.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_is_refused_and_not_logged_as_an_error() {
    let db = TestDb::new().await;
    let mut server = Server::serve(&db.options, free_port(), &[]);
    server.until_ready().await;
    let headers = format!(
        "GET / HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n",
        "x".repeat(200_000)
    );
    for bytes in [
        b"POST /api/workflows HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n".as_slice(),
        b"POST /api/workflows HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"nonsense\r\n\r\n",
        headers.as_bytes(),
    ] {
        let status = send(&server.url, bytes);
        assert!(status.starts_with("HTTP/1.1 4"), "{status:?}");
    }
    server.kill();
    let log = std::fs::read_to_string(&server.log).unwrap();
    assert!(log.contains("INFO"), "{log}");
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
    db.drop().await;
}
