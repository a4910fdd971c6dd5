//! One HTTP/1.1 connection that is kept alive: as few instructions per request as possible, so that
//! the client leaves the machine to the server.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Headers of an answer that are looked at.
const MAX_HEADERS: usize = 64;
/// Bytes that a read makes room for.
const READ_ROOM: usize = 16 << 10;
/// Buffers that have grown over this are given back after the answer.
const KEEP_ROOM: usize = 256 << 10;

/// Time after which it is looked whether the server has closed the connection.
const IDLE: Duration = Duration::from_millis(500);

/// Which half of the protocol a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// Below `/api/worker`.
    Worker,
    /// Everything else.
    Control,
}

/// What every request to one server carries.
#[derive(Clone)]
pub struct Target {
    /// Where the server listens.
    pub address: SocketAddr,
    worker_head: String,
    control_head: String,
}

impl Target {
    /// Reads `http://host:port`.
    ///
    /// # Errors
    /// It is not such an address, or the host is unknown.
    pub fn new(url: &str, namespace: &str, token: Option<&str>) -> Result<Self, String> {
        let host = url
            .strip_prefix("http://")
            .map(|rest| rest.trim_end_matches('/'))
            .ok_or_else(|| format!("{url} does not begin with http://"))?;
        let address = std::net::ToSocketAddrs::to_socket_addrs(host)
            .map_err(|error| format!("{url}: {error}"))?
            .next()
            .ok_or_else(|| format!("{url} has no address"))?;
        let token = token.map_or_else(String::new, |token| {
            format!("Authorization: Bearer {token}\r\n")
        });
        let head = format!("Host: {host}\r\nX-Namespace: {namespace}\r\n{token}");
        Ok(Self {
            address,
            worker_head: format!("{head}X-Durable-Workflow-Protocol-Version: 1.13\r\n"),
            control_head: format!("{head}X-Durable-Workflow-Control-Plane-Version: 2\r\n"),
        })
    }
}

/// An answer; its body stays in the connection's buffer.
pub struct Answer<'a> {
    /// Status code.
    pub status: u16,
    /// It says when to come back.
    pub retry_hint: bool,
    /// From the first byte sent to the last byte received.
    pub seconds: f64,
    /// The body.
    pub body: &'a [u8],
}

struct Head {
    status: u16,
    retry_hint: bool,
    close: bool,
    body_at: usize,
    length: Length,
}

enum Length {
    Known(usize),
    Chunked,
}

/// A connection, made when it is first used and again after a failure.
pub struct Connection {
    target: Target,
    stream: Option<TcpStream>,
    out: Vec<u8>,
    input: Vec<u8>,
    /// Body of a chunked answer, put together.
    whole: Vec<u8>,
    used: Instant,
}

impl Connection {
    /// Not connected yet.
    pub fn new(target: &Target) -> Self {
        Self {
            target: target.clone(),
            stream: None,
            out: Vec::new(),
            input: Vec::new(),
            whole: Vec::new(),
            used: Instant::now(),
        }
    }

    /// Drops the connection without a word.
    pub fn cut(&mut self) {
        self.stream = None;
    }

    /// Connects unless it is.
    ///
    /// # Errors
    /// The server is not there.
    pub async fn connect(&mut self) -> io::Result<()> {
        // A server closes what is idle for long.
        if self.used.elapsed() > IDLE
            && let Some(stream) = &self.stream
            && !matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        {
            self.stream = None;
        }
        self.used = Instant::now();
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.target.address).await?;
            stream.set_nodelay(true)?;
            self.stream = Some(stream);
        }
        Ok(())
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// The connection failed; the outcome of the request is unknown.
    pub async fn send(
        &mut self,
        plane: Plane,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> io::Result<Answer<'_>> {
        match self.exchange(plane, method, path, body).await {
            Ok((head, range, seconds)) => {
                if head.close {
                    self.stream = None;
                }
                let body = match head.length {
                    Length::Known(_) => &self.input[range],
                    Length::Chunked => &self.whole,
                };
                Ok(Answer {
                    status: head.status,
                    retry_hint: head.retry_hint,
                    seconds,
                    body,
                })
            }
            Err(error) => {
                self.stream = None;
                Err(error)
            }
        }
    }

    async fn exchange(
        &mut self,
        plane: Plane,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> io::Result<(Head, Range<usize>, f64)> {
        self.connect().await?;
        let Some(stream) = self.stream.as_mut() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let head = match plane {
            Plane::Worker => &self.target.worker_head,
            Plane::Control => &self.target.control_head,
        };
        let out = &mut self.out;
        out.clear();
        for part in [method, " ", path, " HTTP/1.1\r\n", head] {
            out.extend_from_slice(part.as_bytes());
        }
        if method != "GET" {
            out.extend_from_slice(b"Content-Type: application/json\r\nContent-Length: ");
            out.extend_from_slice(body.len().to_string().as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
        if self.input.capacity() > KEEP_ROOM {
            self.input = Vec::new();
        }
        self.input.clear();
        let began = Instant::now();
        stream.write_all(out).await?;
        let head = loop {
            more(stream, &mut self.input).await?;
            if let Some(head) = read_head(&self.input)? {
                break head;
            }
        };
        let range = match head.length {
            Length::Known(length) => {
                let end = head.body_at + length;
                self.input.reserve(end.saturating_sub(self.input.len()));
                while self.input.len() < end {
                    more(stream, &mut self.input).await?;
                }
                head.body_at..end
            }
            Length::Chunked => {
                self.whole.clear();
                let mut at = head.body_at;
                loop {
                    match httparse::parse_chunk_size(&self.input[at..])
                        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?
                    {
                        httparse::Status::Partial => more(stream, &mut self.input).await?,
                        httparse::Status::Complete((begins, size)) => {
                            let size = usize::try_from(size).unwrap_or(usize::MAX);
                            let end = at + begins + size + 2;
                            while self.input.len() < end {
                                more(stream, &mut self.input).await?;
                            }
                            self.whole
                                .extend_from_slice(&self.input[at + begins..end - 2]);
                            at = end;
                            if size == 0 {
                                break 0..0;
                            }
                        }
                    }
                }
            }
        };
        self.used = Instant::now();
        Ok((head, range, began.elapsed().as_secs_f64()))
    }
}

async fn more(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<()> {
    if input.capacity() - input.len() < 1_024 {
        input.reserve(READ_ROOM);
    }
    if stream.read_buf(input).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

fn read_head(input: &[u8]) -> io::Result<Option<Head>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let body_at = match response.parse(input).map_err(|_| invalid())? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(at) => at,
    };
    let mut head = Head {
        status: response.code.ok_or_else(invalid)?,
        retry_hint: false,
        close: false,
        body_at,
        length: Length::Known(0),
    };
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let text = std::str::from_utf8(header.value).map_err(|_| invalid())?;
            head.length = Length::Known(text.trim().parse().map_err(|_| invalid())?);
        } else if is("transfer-encoding") {
            head.length = Length::Chunked;
        } else if is("retry-after") {
            head.retry_hint = true;
        } else if is("connection") {
            head.close = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    Ok(Some(head))
}
