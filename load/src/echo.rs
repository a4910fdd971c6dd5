//! The echo server: the least that an HTTP server with the server's library can do.

use std::io::{BufRead, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use actix_web::{App, HttpResponse, HttpServer, web};

async fn echo(body: web::Bytes) -> HttpResponse {
    match serde_json::from_slice::<serde_json::Value>(&body) {
        Ok(value) => HttpResponse::Ok().json(value),
        Err(error) => HttpResponse::BadRequest().body(error.to_string()),
    }
}

/// Serves on a free port, which is printed, until standard input ends.
///
/// # Errors
/// There is no port.
pub fn serve(threads: usize) -> Result<(), String> {
    // Whatever becomes of the tool, its child does not stay behind.
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut rest);
        std::process::exit(0);
    });
    let text = |error: std::io::Error| format!("echo server: {error}");
    actix_web::rt::System::new().block_on(async move {
        let mut server =
            HttpServer::new(|| App::new().service(web::resource("/").route(web::post().to(echo))))
                .backlog(4_096)
                .disable_signals();
        if threads > 0 {
            server = server.workers(threads);
        }
        let server = server.bind("127.0.0.1:0").map_err(text)?;
        for address in server.addrs() {
            println!("{address}");
        }
        std::io::stdout().flush().map_err(text)?;
        server.run().await.map_err(text)
    })
}

/// A running echo server; it ends when dropped.
pub struct Echo {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Echo {
    /// Starts this program once more, as an echo server.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(threads: usize) -> Result<Self, String> {
        let text = |error: std::io::Error| format!("echo server: {error}");
        let mut child = Command::new(std::env::current_exe().map_err(text)?)
            .arg("echo-server")
            .arg("--threads")
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(text)?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            std::io::BufReader::new(out)
                .read_line(&mut line)
                .map_err(text)?;
        }
        match line.trim().parse() {
            Ok(address) => Ok(Self { child, address }),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                Err("the echo server did not start".to_owned())
            }
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
