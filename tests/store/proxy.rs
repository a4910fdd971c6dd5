//! A way to the database that can be broken: answers swallowed, or nothing passed on at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use leasehold::managed_pg::testing::scratch_dir;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;

const PASS: u8 = 0;
const CUT_AT_ANSWER: u8 = 1;
const SILENT: u8 = 2;

/// Passes on what both sides say, until it is told otherwise.
pub struct Proxy {
    pub options: PgConnectOptions,
    mode: Arc<AtomicU8>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// `name` is unique in the process.
    pub fn start(upstream: &PgConnectOptions, name: &str) -> Self {
        let dir = scratch_dir(name).expect("a folder for the socket");
        let options = upstream.clone().socket(&dir).port(5432);
        let listener = UnixListener::bind(dir.join(".s.PGSQL.5432")).expect("a socket");
        let mode = Arc::new(AtomicU8::new(PASS));
        let accepting = tokio::spawn(accept(listener, upstream.clone(), Arc::clone(&mode)));
        Self {
            options,
            mode,
            accepting,
        }
    }

    /// From now on a connection ends with the next thing that the database says on it.
    pub fn cut_at_answers(&self) {
        self.mode.store(CUT_AT_ANSWER, Ordering::SeqCst);
    }

    /// From now on nothing arrives on either side, and no connection ends.
    pub fn fall_silent(&self) {
        self.mode.store(SILENT, Ordering::SeqCst);
    }

    /// Connections work again.
    pub fn pass(&self) {
        self.mode.store(PASS, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, upstream: PgConnectOptions, mode: Arc<AtomicU8>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (upstream, mode) = (upstream.clone(), Arc::clone(&mode));
        connections.spawn(async move {
            match upstream.get_socket() {
                Some(dir) => {
                    let path: PathBuf = dir.join(format!(".s.PGSQL.{}", upstream.get_port()));
                    let Ok(server) = UnixStream::connect(path).await else {
                        return;
                    };
                    let (reader, writer) = server.into_split();
                    relay(client, reader, writer, &mode).await;
                }
                None => {
                    let address = (upstream.get_host(), upstream.get_port());
                    let Ok(server) = TcpStream::connect(address).await else {
                        return;
                    };
                    let (reader, writer) = server.into_split();
                    relay(client, reader, writer, &mode).await;
                }
            }
        });
    }
}

async fn relay(
    client: UnixStream,
    server_says: impl AsyncRead + Unpin,
    to_server: impl AsyncWrite + Unpin,
    mode: &AtomicU8,
) {
    let (client_says, to_client) = client.into_split();
    // Whichever side ends first ends both.
    tokio::select! {
        () = pass_on(client_says, to_server, mode, false) => {}
        () = pass_on(server_says, to_client, mode, true) => {}
    }
}

async fn pass_on(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mode: &AtomicU8,
    answers: bool,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0 {
            return;
        }
        match mode.load(Ordering::SeqCst) {
            CUT_AT_ANSWER if answers => return,
            SILENT => {}
            _ => {
                if to.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
