//! A bench: a server, perhaps its database, and the rounds that were run against them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::api;
use crate::crew::{Crew, DRAIN, Pace, Plan, Shared};
use crate::database::{BARE, Database, SERVERS};
use crate::http::{Connection, Plane, Target};
use crate::measure::{Costs, Meter};
use crate::options::Options;
use crate::reference::{self, Reference};
use crate::server::Server;
use crate::shape::{Envelope, Shape};
use crate::spread::Spread;

/// Histories that are read again after a round.
const SAMPLE: usize = 100;
/// Seconds at the end of a window whose rate is told apart.
const LAST: usize = 10;
/// Kinds of errors that a sentence names.
const NAMED: usize = 5;

/// A server and what was measured on it.
pub struct Bench {
    pub options: Options,
    pub targets: Vec<Target>,
    pub namespace: String,
    pub database: Option<Database>,
    pub meter: Meter,
    pub rounds: Vec<Round>,
    version: Value,
    commit: Value,
    crews: u64,
    own: Option<Own>,
    /// Servers that are left alone while another one is put under load.
    aside: Vec<Target>,
}

/// Servers of the tool's own, on a database of their own.
struct Own {
    /// The database that the scratch one was made beside.
    beside: Database,
    url: String,
    servers: Vec<Server>,
}

/// One round of one workload.
#[derive(Clone, Debug)]
pub struct Round {
    pub workload: String,
    /// What sets it apart from other rounds of the workload, such as `open=256`.
    pub variant: String,
    /// Its main figure and further ones, by name.
    pub values: BTreeMap<&'static str, f64>,
    pub disturbed: bool,
    /// What is wrong; any makes the run fail.
    pub problems: Vec<String>,
    /// Everything, for the line.
    pub line: Map<String, Value>,
}

impl Round {
    /// A round without figures yet.
    pub fn new(workload: &str, variant: impl Into<String>) -> Self {
        Self {
            workload: workload.to_owned(),
            variant: variant.into(),
            values: BTreeMap::new(),
            disturbed: false,
            problems: Vec::new(),
            line: Map::new(),
        }
    }

    /// Adds a figure.
    pub fn value(&mut self, name: &'static str, value: f64) {
        self.values.insert(name, value);
    }

    /// Adds to the line.
    pub fn add(&mut self, name: &str, value: impl Into<Value>) {
        self.line.insert(name.to_owned(), value.into());
    }

    /// Says what is wrong.
    pub fn wrong(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// Fails the round unless it holds.
    pub fn must(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.problems.push(otherwise());
        }
    }

    /// Adds what a stretch cost; `per` is what it is divided by.
    pub fn costs(&mut self, costs: &Costs, per: f64) {
        self.disturbed |= costs.disturbed();
        self.add("costs", costs.json(per));
        let per = per.max(1.0);
        self.value("server_cpu_us", costs.server_cpu * 1e6 / per);
        self.value("postgres_cpu_us", costs.postgres_cpu * 1e6 / per);
        self.value("load_cpu_us", costs.load_cpu * 1e6 / per);
        self.value("wal_bytes", costs.wal / per);
        self.value("transactions", costs.transactions / per);
        self.value("foreign", costs.foreign);
    }

    /// Adds what a crew counted, and what went wrong with it.
    pub fn crew(&mut self, shared: &Shared) {
        let figures = &shared.figures;
        self.add("parameters", shared.plan.json());
        self.add("started", figures.started.load(Relaxed));
        self.add("ended_in_window", figures.ended.load(Relaxed));
        self.add("completed", figures.completed.load(Relaxed));
        self.add("refused_with_hint", figures.refused.load(Relaxed));
        self.add("late_reports", figures.late_reports.load(Relaxed));
        let mut latencies = Map::new();
        for (name, histogram) in [
            ("workflow", &figures.latency),
            ("workflow_task_schedule_to_start", &figures.workflow_wait),
            ("activity_schedule_to_start", &figures.activity_wait),
            ("start", &figures.start_call),
            ("workflow_completion", &figures.workflow_call),
            ("activity_completion", &figures.activity_call),
            ("activity_claim", &figures.claim_call),
            ("activity_heartbeat", &figures.heartbeat_call),
            ("signal", &figures.signal_call),
            ("query", &figures.query_call),
            ("timer_lateness", &figures.lateness),
            ("timer_arrival_lateness", &figures.arrival_lateness),
        ] {
            if histogram.count() > 0 {
                latencies.insert(name.to_owned(), histogram.json());
            }
        }
        self.add("latency", latencies);
        let errors = shared.errors();
        let listed: Vec<Value> = errors
            .iter()
            .map(|(refused, count)| {
                json!({"call": refused.call, "status": refused.status, "reason": refused.reason, "count": count})
            })
            .collect();
        self.add("errors", listed);
        for (refused, count) in errors.iter().take(NAMED) {
            self.wrong(format!("{count} times {refused}"));
        }
    }
}

impl Bench {
    /// Finds the server and its database.
    ///
    /// # Errors
    /// One of them is not there.
    pub async fn new(options: Options) -> Result<Self, String> {
        let mut options = options;
        let mut database = match &options.database_url {
            Some(url) => Some(Database::new(url)?),
            None => None,
        };
        let mut own = None;
        if let Some(binary) = &options.server_binary {
            let beside = database
                .take()
                .ok_or("--server-binary needs --database-url")?;
            let (scratch, url) = beside.scratch(&SERVERS).await?;
            let server = Server::start(binary, &url, options.token.as_deref(), Vec::new()).await?;
            options.url = vec![server.url()];
            options.server_pid = vec![server.pid()];
            database = Some(scratch);
            own = Some(Own {
                beside,
                url,
                servers: vec![server],
            });
        }
        let token = options.token.as_deref();
        let (first, namespace) = api::namespace(&options.url[0], &options.namespace, token).await?;
        let mut targets = vec![first];
        for url in &options.url[1..] {
            targets.push(Target::new(url, &namespace, token)?);
        }
        let meter = Meter::new(
            database.as_ref(),
            options.server_pid.clone(),
            options.postgres_pid,
        )
        .await?;
        let version = cluster(&targets[0]).await;
        Ok(Self {
            options,
            targets,
            namespace,
            database,
            meter,
            rounds: Vec::new(),
            version,
            commit: commit(),
            crews: 0,
            own,
            aside: Vec::new(),
        })
    }

    fn own(&mut self) -> Result<&mut Own, String> {
        self.own
            .as_mut()
            .ok_or_else(|| "this needs --server-binary".to_owned())
    }

    /// Starts one more server on the same database.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn add_node(&mut self, settings: Vec<(&'static str, String)>) -> Result<(), String> {
        let binary = self.options.server_binary.clone().unwrap_or_default();
        let token = self.options.token.clone();
        let namespace = self.namespace.clone();
        let own = self.own()?;
        let server = Server::start(&binary, &own.url, token.as_deref(), settings).await?;
        let (url, pid) = (server.url(), server.pid());
        own.servers.push(server);
        self.targets
            .push(Target::new(&url, &namespace, token.as_deref())?);
        self.meter.servers.push(pid);
        Ok(())
    }

    /// Ends the server that was added last.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_node(&mut self) -> Result<(), String> {
        // Dropping it ends it.
        self.own()?.servers.pop();
        self.targets.pop();
        self.meter.servers.pop();
        Ok(())
    }

    /// Starts one more server on the same database, which all load goes to until
    /// [`Self::remove_only_node`].
    ///
    /// # Errors
    /// It does not come up.
    pub async fn only_node(&mut self, settings: Vec<(&'static str, String)>) -> Result<(), String> {
        self.add_node(settings).await?;
        let others = self.targets.len() - 1;
        self.aside = self.targets.drain(..others).collect();
        Ok(())
    }

    /// Ends that server; the others are put under load again.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_only_node(&mut self) -> Result<(), String> {
        let only = std::mem::replace(&mut self.targets, std::mem::take(&mut self.aside));
        self.targets.extend(only);
        self.remove_node()
    }

    /// Takes `commit16` for the length of a round, on a database where nobody listens.
    ///
    /// # Errors
    /// The database cannot be made, or fails.
    pub async fn commits(&mut self, mut round: Round, notify: bool) -> Result<Round, String> {
        let (warmup, secs) = (self.options.warmup(), self.options.secs());
        let beside = self.own()?.beside.clone();
        let (bare, _) = beside.scratch(&BARE).await?;
        let warm = reference::commit16(&bare, notify, warmup).await;
        let before = self.meter.look().await?;
        let taken = reference::commit16(&bare, notify, secs).await;
        let costs = self.meter.since(&before).await?;
        beside.remove_scratch(&BARE).await?;
        warm?;
        let (rate, p50) = taken?;
        let commits = (rate * costs.seconds).max(1.0);
        round.disturbed = costs.disturbed();
        round.value("rate", rate);
        round.value("p50_ms", p50);
        round.value("postgres_cpu_us", costs.postgres_cpu * 1e6 / commits);
        round.value("wal_bytes", costs.wal / commits);
        round.add("foreign_cpu_share", costs.foreign);
        Ok(round)
    }

    /// Ends the first server without a warning.
    ///
    /// # Errors
    /// It is not the tool's own.
    pub fn kill_server(&mut self) -> Result<(), String> {
        if let Some(server) = self.own()?.servers.first_mut() {
            server.kill();
        }
        Ok(())
    }

    /// Starts it again and waits until it is ready.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn restart_server(&mut self) -> Result<(), String> {
        let mut pid = None;
        if let Some(server) = self.own()?.servers.first_mut() {
            server.restart()?;
            server.until_ready().await?;
            pid = Some(server.pid());
        }
        if let (Some(pid), Some(first)) = (pid, self.meter.servers.first_mut()) {
            *first = pid;
        }
        Ok(())
    }

    /// Ends the tool's own servers and removes their database.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn close(&mut self) -> Result<(), String> {
        let Some(own) = self.own.take() else {
            return Ok(());
        };
        drop(own.servers);
        own.beside.remove_scratch(&SERVERS).await
    }

    /// The reference figures, if there is a database.
    ///
    /// # Errors
    /// They cannot be taken.
    pub async fn reference(&mut self) -> Result<Option<Reference>, String> {
        let Some(database) = &self.database else {
            return Ok(None);
        };
        let before = self.meter.look().await?;
        let taken = reference::take(
            database,
            self.meter.postmaster,
            self.options.http_threads,
            self.options.reference(),
        )
        .await?;
        let costs = self.meter.since(&before).await?;
        let mut round = Round::new("reference", "");
        round.disturbed = costs.disturbed();
        for (name, value) in [
            ("bound", taken.bound()),
            ("floor_ms", taken.floor()),
            ("commit1", taken.commit1),
            ("commit1_p50_ms", taken.commit1_p50),
            ("commit16", taken.commit16),
            ("store", taken.store),
            ("store_cpu_us", taken.store_cpu * 1e6),
            ("store_wal_bytes", taken.store_wal),
            ("echo", taken.echo),
            ("echo_cpu_us", taken.echo_cpu * 1e6),
        ] {
            round.value(name, value);
        }
        round.add("reference", taken.json());
        round.add("foreign_cpu_share", costs.foreign);
        self.emit(round);
        Ok(Some(taken))
    }

    /// A plan with the common parameters.
    pub fn plan(&mut self, shape: Shape, open: usize) -> Plan {
        self.crews += 1;
        let options = &self.options;
        let pollers = (open / 2).clamp(4, 512);
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis());
        Plan {
            targets: self.targets.clone(),
            mix: vec![(shape, 1)],
            others: Vec::new(),
            queues: vec![options.queue.clone()],
            pace: match options.rate {
                Some(rate) => Pace::Rate(rate),
                None => Pace::Open(open),
            },
            workflow_pollers: options.wf_pollers.unwrap_or(pollers),
            activity_pollers: options.act_pollers.unwrap_or(pollers),
            query_pollers: 0,
            wait: options.wait,
            payload: options.payload,
            page: options.page_size,
            limit: u64::MAX,
            leave_open: false,
            started_at: None,
            milestone: 0,
            read_on: false,
            insist: false,
            killed: false,
            keep: SAMPLE,
            name: format!("{seconds:x}-{}-{}", std::process::id(), self.crews),
            seed: options.seed,
        }
    }

    /// Runs a plan for a warm-up and a window, and checks everything that came of it.
    ///
    /// # Errors
    /// The crew cannot begin.
    pub async fn run(
        &mut self,
        mut round: Round,
        plan: Plan,
    ) -> Result<(Round, Arc<Shared>), String> {
        let (warmup, secs) = (self.options.warmup(), self.options.secs());
        let crew = Crew::start(plan).await?;
        tokio::time::sleep(warmup).await;
        let before = self.meter.look().await?;
        crew.open_window();
        tokio::time::sleep(secs).await;
        crew.close_window();
        let seconds = crew.shared.by_second();
        let costs = self.meter.since(&before).await?;
        let shared = self.finish(&mut round, crew).await;
        let last = &seconds[seconds.len().saturating_sub(LAST)..];
        round.value(
            "rate_last_seconds",
            last.iter().sum::<u64>() as f64 / last.len().max(1) as f64,
        );
        let figures = &shared.figures;
        let completed = figures.completed.load(Relaxed) as f64;
        let rate = completed / costs.seconds;
        round.value("rate", rate);
        round.value("p50_ms", figures.latency.quantile(0.5));
        round.value("p99_ms", figures.latency.quantile(0.99));
        round.add("rate", rate);
        round.costs(&costs, figures.ended.load(Relaxed) as f64);
        // Short rounds may hold no workflow as a whole; none at all is another matter.
        let landed = shared.landed.load(Relaxed);
        round.must(landed > 0, || "nothing was completed".to_owned());
        round.add("completed_in_all", landed);
        Ok((round, shared))
    }

    /// Lets a crew end and checks what it leaves.
    pub async fn finish(&self, round: &mut Round, mut crew: Crew) -> Arc<Shared> {
        let left = crew.drain(DRAIN).await;
        let shared = crew.dismiss().await;
        round.must(left == 0, || format!("{left} workflows never ended"));
        round.crew(&shared);
        if let Err(problem) = self.check_histories(&shared).await {
            round.wrong(problem);
        }
        shared
    }

    /// Reads the histories of remembered workflows and compares events and result.
    ///
    /// # Errors
    /// The first that is not what it must be.
    pub async fn check_histories(&self, shared: &Shared) -> Result<(), String> {
        let mut connection = Connection::new(&self.targets[0]);
        for finished in shared.finished() {
            let (types, last) = api::history(&mut connection, &finished.workflow, &finished.run)
                .await
                .map_err(|refused| format!("{}: {refused}", finished.workflow))?;
            let types: Vec<&str> = types.iter().map(String::as_str).collect();
            finished
                .shape
                .check(&types)
                .map_err(|wrong| format!("{}: {wrong}", finished.workflow))?;
            if finished.shape.echoes() && output(&last)? != shared.input(finished.shape, finished.n)
            {
                return Err(format!(
                    "{}: the result is not the input",
                    finished.workflow
                ));
            }
        }
        Ok(())
    }

    /// Prints a round as a line and as a row.
    pub fn emit(&mut self, mut round: Round) {
        round.add("workload", round.workload.clone());
        round.add("variant", round.variant.clone());
        let number = self
            .rounds
            .iter()
            .filter(|old| old.workload == round.workload && old.variant == round.variant)
            .count();
        round.add("round", number + 1);
        round.add("quick", self.options.quick);
        round.add("payload", self.options.payload);
        round.add("namespace", self.namespace.clone());
        round.add("settings", self.meter.settings.clone());
        round.add("server", self.version.clone());
        round.add("commit", self.commit.clone());
        round.add("values", json!(round.values));
        round.add("disturbed", round.disturbed);
        round.add("problems", json!(round.problems));
        println!("{}", Value::Object(round.line.clone()));
        let _ = std::io::stdout().flush();
        let figures: Vec<String> = round
            .values
            .iter()
            .map(|(name, value)| format!("{name} {}", short(*value)))
            .collect();
        eprintln!(
            "{:<18} {:<20} {}{}",
            round.workload,
            round.variant,
            figures.join("  "),
            if round.disturbed { "  DISTURBED" } else { "" }
        );
        for problem in &round.problems {
            eprintln!("    WRONG: {problem}");
        }
        self.rounds.push(round);
    }

    /// The median of a figure over the rounds of a variant, and whether one of them was disturbed.
    pub fn median(&self, workload: &str, variant: &str, name: &str) -> Option<(f64, bool)> {
        let (spread, disturbed) = self.spread(workload, variant, name)?;
        Some((spread.median, disturbed))
    }

    /// The same with its range.
    pub fn spread(&self, workload: &str, variant: &str, name: &str) -> Option<(Spread, bool)> {
        let rounds: Vec<&Round> = self
            .rounds
            .iter()
            .filter(|round| round.workload == workload && round.variant == variant)
            .collect();
        let values = rounds
            .iter()
            .filter_map(|round| round.values.get(name).copied());
        let spread = Spread::of(values)?;
        Some((spread, rounds.iter().any(|round| round.disturbed)))
    }

    /// Everything that was wrong.
    pub fn problems(&self) -> Vec<String> {
        self.rounds
            .iter()
            .flat_map(|round| {
                let of = format!("{} {}", round.workload, round.variant);
                round
                    .problems
                    .iter()
                    .map(move |problem| format!("{of}: {problem}"))
            })
            .collect()
    }
}

/// The blob of a completed workflow's output.
fn output(payload: &str) -> Result<String, String> {
    #[derive(serde::Deserialize)]
    struct Completed<'a> {
        #[serde(borrow)]
        output: Envelope<'a>,
    }
    serde_json::from_str::<Completed<'_>>(payload)
        .map(|completed| completed.output.blob.to_owned())
        .map_err(|error| format!("a completion without an output: {error}"))
}

/// A number in few characters.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1_000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

async fn cluster(target: &Target) -> Value {
    let mut connection = Connection::new(target);
    let answer = api::call(
        &mut connection,
        "info",
        Plane::Control,
        "GET",
        "/api/cluster/info",
        "",
    );
    let Ok(answer) = answer.await else {
        return Value::Null;
    };
    let info: Value = serde_json::from_slice(answer.body).unwrap_or_default();
    json!({"version": info["version"], "worker_protocol": info["worker_protocol"]["version"]})
}

fn commit() -> Value {
    let git = std::process::Command::new("git")
        .args(["rev-parse", "HEAD"])
        .output();
    git.ok()
        .filter(|output| output.status.success())
        .map_or(Value::Null, |output| {
            json!(String::from_utf8_lossy(&output.stdout).trim())
        })
}

/// Waits a moment that belongs to a workload, not to a synchronisation.
pub async fn pause(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

/// Idle sessions of the database report their counts so late at most, in seconds.
const LATE_COUNTS: f64 = 10.5;

/// Waits until the database has counted what its idle sessions did; a quick round does not.
pub async fn settle(bench: &Bench) {
    if !bench.options.quick {
        pause(LATE_COUNTS).await;
    }
}
