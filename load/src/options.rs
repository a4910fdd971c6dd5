//! Parameters that all workloads have in common.

use std::time::Duration;

use clap::Args;

/// Parameters of every workload.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Where the servers listen, separated by commas; pollers and starters are spread over them.
    #[arg(
        long,
        default_value = "http://127.0.0.1:8080",
        value_delimiter = ',',
        global = true
    )]
    pub url: Vec<String>,
    /// Namespace; the default one is used if the server makes none.
    #[arg(long, default_value = "perf", global = true)]
    pub namespace: String,
    /// Task queue, or the beginning of their names.
    #[arg(long, default_value = "perf", global = true)]
    pub queue: String,
    /// Bearer token.
    #[arg(long, env = "DW_AUTH_TOKEN", hide_env_values = true, global = true)]
    pub token: Option<String>,
    /// Workflows in flight.
    #[arg(long, global = true)]
    pub open: Option<usize>,
    /// Starts each second, whatever becomes of them; instead of --open.
    #[arg(long, global = true)]
    pub rate: Option<f64>,
    /// Connections that poll for workflow tasks.
    #[arg(long, global = true)]
    pub wf_pollers: Option<usize>,
    /// Connections that poll for activities.
    #[arg(long, global = true)]
    pub act_pollers: Option<usize>,
    /// Seconds that a poll waits.
    #[arg(long, default_value_t = 30, global = true)]
    pub wait: u64,
    /// Bytes of each value.
    #[arg(long, default_value_t = 1_024, global = true)]
    pub payload: usize,
    /// Seconds of a round.
    #[arg(long, global = true)]
    pub secs: Option<f64>,
    /// Seconds that are thrown away before a round.
    #[arg(long, global = true)]
    pub warmup: Option<f64>,
    /// Rounds; the reference figures are taken again before each.
    #[arg(long, global = true)]
    pub rounds: Option<usize>,
    /// Events of a page of history.
    #[arg(long, global = true)]
    pub page_size: Option<usize>,
    /// How many there are of what the workload is about: tasks, polls, queries per second, signals,
    /// cycles, activities, events or queues.
    #[arg(long, global = true)]
    pub count: Option<usize>,
    /// The database below the server: for the reference figures and the counters.
    #[arg(long, env = "LOAD_DATABASE_URL", hide_env_values = true, global = true)]
    pub database_url: Option<String>,
    /// Process of a server, for its CPU and memory; may be repeated.
    #[arg(long, global = true)]
    pub server_pid: Vec<u32>,
    /// First process of the database; found by itself on the same machine.
    #[arg(long, global = true)]
    pub postgres_pid: Option<u32>,
    /// The server's program: the tool starts it itself, on a database of its own beside the one that
    /// --database-url names.
    #[arg(long, global = true)]
    pub server_binary: Option<std::path::PathBuf>,
    /// Threads that the server serves requests with, for the echo server; 0 for one per core.
    #[arg(long, default_value_t = 0, global = true)]
    pub http_threads: usize,
    /// A look at correctness: short, small, and no figure counts.
    #[arg(long, global = true)]
    pub quick: bool,
    /// Where the draws of a mix begin.
    #[arg(long, default_value_t = 1, global = true)]
    pub seed: u64,
}

impl Options {
    fn seconds(given: Option<f64>, usual: f64) -> Duration {
        Duration::from_secs_f64(given.unwrap_or(usual).clamp(0.0, 86_400.0))
    }

    /// Length of a round.
    pub fn secs(&self) -> Duration {
        Self::seconds(self.secs, if self.quick { 1.0 } else { 10.0 })
    }

    /// Length of what is thrown away.
    pub fn warmup(&self) -> Duration {
        Self::seconds(self.warmup, if self.quick { 0.2 } else { 2.0 })
    }

    /// Length of each reference figure.
    pub fn reference(&self) -> Duration {
        self.secs() / 3
    }

    /// How many rounds.
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// A size: what was asked for, else the usual one, else a small one for a quick look.
    pub fn count(&self, usual: usize, quick: usize) -> usize {
        self.count.unwrap_or(if self.quick { quick } else { usual })
    }

    /// Workflows in flight.
    pub fn open(&self, usual: usize) -> usize {
        self.open
            .unwrap_or(if self.quick { usual.min(16) } else { usual })
    }
}
