//! What a stretch of work cost: CPU per side, memory, and the database's counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::postgres::PgConnection;

use crate::database::{self, Counters, Database};
use crate::procs::{Snapshot, Tree, cores};

/// How often memory is looked at for its peak.
const LOOK: Duration = Duration::from_millis(200);
/// Share of CPU that nobody measured may use before a figure is no longer used.
pub const DISTURBED: f64 = 0.10;

/// What is measured.
pub struct Meter {
    connection: Option<PgConnection>,
    /// Processes of the servers.
    pub servers: Vec<u32>,
    /// The database's first process.
    pub postmaster: Option<u32>,
    /// Durable settings and version, or null without a database.
    pub settings: Value,
}

/// Everything at one moment.
pub struct Look {
    at: Instant,
    server: Tree,
    postgres: f64,
    load: f64,
    busy: f64,
    counters: Counters,
    peak: Peak,
}

/// Follows the servers' memory until dropped.
struct Peak {
    highest: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Peak {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a stretch cost.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    pub seconds: f64,
    pub server_cpu: f64,
    pub postgres_cpu: f64,
    pub load_cpu: f64,
    /// Share of the machine's CPU that belongs to none of them.
    pub foreign: f64,
    pub memory_start: u64,
    pub memory_peak: u64,
    pub memory_end: u64,
    pub transactions: f64,
    pub wal: f64,
    pub blocks_hit: f64,
    pub blocks_read: f64,
    pub dead_rows: i64,
}

impl Look {
    /// Resident bytes of the servers.
    pub fn server_memory(&self) -> u64 {
        self.server.memory
    }
}

impl Meter {
    /// Measures these processes; the database's are found by themselves where that is possible.
    ///
    /// # Errors
    /// The database cannot be asked, or is not durable.
    pub async fn new(
        database: Option<&Database>,
        servers: Vec<u32>,
        postmaster: Option<u32>,
    ) -> Result<Self, String> {
        let mut meter = Self {
            connection: None,
            servers,
            postmaster,
            settings: Value::Null,
        };
        if let Some(database) = database {
            let mut connection = database.connect().await?;
            meter.settings = database::settings(&mut connection).await?;
            if meter.postmaster.is_none() {
                meter.postmaster = database::postmaster(&mut connection).await;
            }
            meter.connection = Some(connection);
        }
        Ok(meter)
    }

    /// Looks at everything.
    ///
    /// # Errors
    /// The database cannot be asked.
    pub async fn look(&mut self) -> Result<Look, String> {
        let counters = match &mut self.connection {
            Some(connection) => database::counters(connection).await?,
            None => Counters::default(),
        };
        let snapshot = Snapshot::take();
        let server = self.server(&snapshot);
        Ok(Look {
            at: Instant::now(),
            postgres: self
                .postmaster
                .map_or(0.0, |pid| snapshot.tree(pid, &[]).cpu),
            load: self.load(&snapshot),
            busy: snapshot.busy,
            counters,
            peak: self.follow(server.memory),
            server,
        })
    }

    /// The servers' trees, without the database that one of them may have started.
    pub fn server(&self, snapshot: &Snapshot) -> Tree {
        let apart: Vec<u32> = self.postmaster.into_iter().collect();
        let mut all = Tree::default();
        for pid in &self.servers {
            let tree = snapshot.tree(*pid, &apart);
            all.cpu += tree.cpu;
            all.memory += tree.memory;
        }
        all
    }

    fn load(&self, snapshot: &Snapshot) -> f64 {
        // A server that the tool started is not the tool.
        let mut apart = self.servers.clone();
        apart.extend(self.postmaster);
        snapshot.tree(std::process::id(), &apart).cpu
    }

    fn follow(&self, memory: u64) -> Peak {
        let highest = Arc::new(AtomicU64::new(memory));
        let seen = Arc::clone(&highest);
        let (servers, apart): (Vec<u32>, Vec<u32>) =
            (self.servers.clone(), self.postmaster.into_iter().collect());
        let task = tokio::spawn(async move {
            let mut every = tokio::time::interval(LOOK);
            loop {
                every.tick().await;
                let snapshot = Snapshot::take();
                let memory = servers
                    .iter()
                    .map(|pid| snapshot.tree(*pid, &apart).memory)
                    .sum();
                seen.fetch_max(memory, Relaxed);
            }
        });
        Peak { highest, task }
    }

    /// What was used since.
    ///
    /// # Errors
    /// The database cannot be asked.
    pub async fn since(&mut self, before: &Look) -> Result<Costs, String> {
        let after = self.look().await?;
        let seconds = after.at.duration_since(before.at).as_secs_f64();
        let used = |now: f64, then: f64| (now - then).max(0.0);
        let (server_cpu, postgres_cpu, load_cpu) = (
            used(after.server.cpu, before.server.cpu),
            used(after.postgres, before.postgres),
            used(after.load, before.load),
        );
        let foreign = used(after.busy, before.busy) - server_cpu - postgres_cpu - load_cpu;
        let (now, then) = (after.counters, before.counters);
        Ok(Costs {
            seconds,
            server_cpu,
            postgres_cpu,
            load_cpu,
            foreign: foreign.max(0.0) / (seconds * cores()),
            memory_start: before.server.memory,
            memory_peak: before.peak.highest.load(Relaxed).max(after.server.memory),
            memory_end: after.server.memory,
            transactions: (now.transactions - then.transactions) as f64,
            wal: (now.wal - then.wal) as f64,
            blocks_hit: (now.blocks_hit - then.blocks_hit) as f64,
            blocks_read: (now.blocks_read - then.blocks_read) as f64,
            dead_rows: now.dead_rows,
        })
    }
}

impl Costs {
    /// Somebody else used too much of the machine.
    pub fn disturbed(&self) -> bool {
        self.foreign > DISTURBED
    }

    /// As part of a line; `per` is what the costs are divided by.
    pub fn json(&self, per: f64) -> Value {
        let per = per.max(1.0);
        json!({
            "seconds": self.seconds,
            "server_cpu_us": self.server_cpu * 1e6 / per,
            "postgres_cpu_us": self.postgres_cpu * 1e6 / per,
            "load_cpu_us": self.load_cpu * 1e6 / per,
            "foreign_cpu_share": self.foreign,
            "disturbed": self.disturbed(),
            "server_memory_start": self.memory_start,
            "server_memory_peak": self.memory_peak,
            "server_memory_end": self.memory_end,
            "transactions": self.transactions / per,
            "wal_bytes": self.wal / per,
            "blocks_hit": self.blocks_hit / per,
            "blocks_read": self.blocks_read / per,
            "dead_rows": self.dead_rows as f64 / per,
        })
    }
}
