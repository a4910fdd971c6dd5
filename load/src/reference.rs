//! Reference figures: what this machine and this database can do at all, measured next to a workload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;

use crate::database::{self, Database, text};
use crate::echo::Echo;
use crate::histogram::Histogram;
use crate::http::{Connection, Plane, Target};
use crate::payload::Chance;
use crate::procs::Snapshot;

/// Bytes of a row and of an echoed body.
const BODY: usize = 1_024;
/// Workflows of one `store` statement, and connections that run it.
const STORE_BATCH: i32 = 32;
const STORE_CONNECTIONS: i32 = 2;
const COMMIT_CONNECTIONS: usize = 16;
const ECHO_CONNECTIONS: usize = 64;
/// Requests of a workflow with one activity.
const REQUESTS: f64 = 7.0;
/// Commits of it.
const COMMITS: f64 = 4.0;
/// Shortest time for which a figure is taken.
const LEAST: Duration = Duration::from_millis(300);

const SCHEMA: &str = "
drop schema if exists leasehold_reference cascade;
create schema leasehold_reference;
set search_path to leasehold_reference;
create table one (id bigint generated always as identity primary key, body text not null);
create table run (id bigint generated always as identity primary key, type integer, state integer not null default 0,
    next_seq integer, result_seq integer, started timestamptz not null default now(), closed timestamptz) with (fillfactor = 70);
create table hist (run_id bigint, seq integer, etype integer, ts timestamptz not null default now(), payload text, primary key (run_id, seq));
create table task (id bigint generated always as identity primary key, queue integer, kind integer, run_id bigint, state integer,
    attempt integer, worker integer, lease_exp timestamptz, sched_seq integer) with (fillfactor = 70);
create index task_ready on task (queue, kind, id) where state = 0;
create index task_leases on task (lease_exp) where state = 1;
";
const FORGET: &str = "drop schema if exists leasehold_reference cascade";

const COMMIT: &str = "insert into leasehold_reference.one (body) values ($1)";
const COMMIT_AND_NOTIFY: &str = "insert into leasehold_reference.one (body) values ($1) returning pg_notify('leasehold_reference', '')";

const START: &str = "with r as (insert into run (type, next_seq) select 1, 3 from generate_series(1, $1::integer) returning id),
 h as (insert into hist (run_id, seq, etype, payload) select r.id, v.s, v.s, v.p from r, (values (1, $2::text), (2, null)) v (s, p)),
 t as (insert into task (queue, kind, run_id, state, attempt, worker, lease_exp) select 1, 0, id, 1, 1, $3::integer, now() + interval '30 s' from r returning id)
select array_agg(id) from t";
const SCHEDULE: &str = "with d as (delete from task where id = any($1::bigint[]) and worker = $3::integer returning run_id),
 r as (update run set next_seq = next_seq + 2 from d where run.id = d.run_id returning run.id, next_seq - 2 as seq),
 h as (insert into hist (run_id, seq, etype, payload) select id, seq + v.s, 3 + v.s, v.p from r, (values (0, $2::text), (1, null)) v (s, p)),
 t as (insert into task (queue, kind, run_id, state, attempt, worker, lease_exp, sched_seq) select 1, 1, id, 1, 1, $3::integer, now() + interval '30 s', seq from r returning id)
select array_agg(id) from t";
const ACTIVITY: &str = "with d as (delete from task where id = any($1::bigint[]) and worker = $3::integer returning run_id),
 r as (update run set next_seq = next_seq + 1 from d where run.id = d.run_id returning run.id, next_seq - 1 as seq),
 h as (insert into hist (run_id, seq, etype, payload) select id, seq, 5, $2::text from r),
 t as (insert into task (queue, kind, run_id, state, attempt, worker, lease_exp, sched_seq) select 1, 2, id, 1, 1, $3::integer, now() + interval '30 s', seq from r returning id, run_id)
select array_agg(t.id), sum(x.len) from t, lateral (select sum(length(payload)) as len from hist h where h.run_id = t.run_id) x";
const COMPLETE: &str = "with d as (delete from task where id = any($1::bigint[]) and worker = $3::integer returning run_id),
 r as (update run set next_seq = next_seq + 1, state = 2, closed = now(), result_seq = next_seq from d where run.id = d.run_id returning run.id, next_seq - 1 as seq)
insert into hist (run_id, seq, etype, payload) select id, seq, 6, $2::text from r";

/// The figures of one round.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Commits per second of one connection, and the median of one in milliseconds.
    pub commit1: f64,
    pub commit1_p50: f64,
    /// Commits per second of sixteen connections.
    pub commit16: f64,
    /// Workflows per second of the bare statements, and what one costs.
    pub store: f64,
    pub store_cpu: f64,
    pub store_wal: f64,
    /// Requests per second of the echo server, its CPU seconds for one, and the median of one
    /// request at a time in milliseconds.
    pub echo: f64,
    pub echo_cpu: f64,
    pub echo1_p50: f64,
}

impl Reference {
    /// Workflows per second that nothing on this machine can pass.
    pub fn bound(&self) -> f64 {
        1.0 / (1.0 / self.store + REQUESTS / self.echo)
    }

    /// Milliseconds that a workflow takes at least.
    pub fn floor(&self) -> f64 {
        COMMITS * self.commit1_p50 + REQUESTS * self.echo1_p50
    }

    /// As part of a line.
    pub fn json(&self) -> Value {
        json!({
            "commit1": self.commit1,
            "commit1_p50_ms": self.commit1_p50,
            "commit16": self.commit16,
            "store": self.store,
            "store_cpu_us": self.store_cpu * 1e6,
            "store_wal_bytes": self.store_wal,
            "echo": self.echo,
            "echo_cpu_us": self.echo_cpu * 1e6,
            "echo1_p50_ms": self.echo1_p50,
            "bound": self.bound(),
            "floor_ms": self.floor(),
        })
    }
}

/// Takes all figures, each for about `each`.
///
/// # Errors
/// The database or the echo server fails.
pub async fn take(
    database: &Database,
    postmaster: Option<u32>,
    http_threads: usize,
    each: Duration,
) -> Result<Reference, String> {
    let each = each.max(LEAST);
    let mut admin = database.connect().await?;
    sqlx::raw_sql(SCHEMA)
        .execute(&mut admin)
        .await
        .map_err(text)?;
    let mut reference = Reference::default();
    let latency = Arc::new(Histogram::default());
    reference.commit1 = commits(database, COMMIT, 1, each, &latency).await?;
    reference.commit1_p50 = latency.quantile(0.5);
    reference.commit16 = commits(database, COMMIT, COMMIT_CONNECTIONS, each, &latency).await?;
    store(database, &mut admin, postmaster, each, &mut reference).await?;
    sqlx::raw_sql(FORGET)
        .execute(&mut admin)
        .await
        .map_err(text)?;
    echo(http_threads, each, &mut reference).await?;
    Ok(reference)
}

/// `commit16` alone, on a table of its own, with or without a notification in each transaction: commits
/// per second, and the median of one in milliseconds.
///
/// # Errors
/// The database fails.
pub async fn commit16(
    database: &Database,
    notify: bool,
    each: Duration,
) -> Result<(f64, f64), String> {
    let statement = if notify { COMMIT_AND_NOTIFY } else { COMMIT };
    let mut admin = database.connect().await?;
    sqlx::raw_sql(SCHEMA)
        .execute(&mut admin)
        .await
        .map_err(text)?;
    let latency = Arc::new(Histogram::default());
    let rate = commits(database, statement, COMMIT_CONNECTIONS, each, &latency).await?;
    sqlx::raw_sql(FORGET)
        .execute(&mut admin)
        .await
        .map_err(text)?;
    Ok((rate, latency.quantile(0.5)))
}

async fn commits(
    database: &Database,
    statement: &'static str,
    connections: usize,
    each: Duration,
    latency: &Arc<Histogram>,
) -> Result<f64, String> {
    let mut tasks = JoinSet::new();
    for n in 0..connections {
        let mut connection = database.connect().await?;
        let body = Chance::new(n as u64 + 1).text(BODY);
        let latency = Arc::clone(latency);
        tasks.spawn(async move {
            let end = Instant::now() + each;
            let mut done = 0_u64;
            while Instant::now() < end {
                let began = Instant::now();
                sqlx::query(statement)
                    .bind(&body)
                    .execute(&mut connection)
                    .await
                    .map_err(text)?;
                latency.add_duration(began.elapsed());
                done += 1;
            }
            Ok::<u64, String>(done)
        });
    }
    let began = Instant::now();
    let done = sum(tasks).await?;
    Ok(done as f64 / began.elapsed().as_secs_f64())
}

async fn sum(mut tasks: JoinSet<Result<u64, String>>) -> Result<u64, String> {
    let mut all = 0;
    while let Some(done) = tasks.join_next().await {
        all += done.map_err(|error| error.to_string())??;
    }
    Ok(all)
}

async fn store(
    database: &Database,
    admin: &mut PgConnection,
    postmaster: Option<u32>,
    each: Duration,
    reference: &mut Reference,
) -> Result<(), String> {
    let before = database::counters(admin).await?;
    let cpu = |pid: Option<u32>| pid.map_or(0.0, |pid| Snapshot::take().tree(pid, &[]).cpu);
    let cpu_before = cpu(postmaster);
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for worker in 1..=STORE_CONNECTIONS {
        let mut connection = database.connect().await?;
        sqlx::raw_sql("set search_path to leasehold_reference")
            .execute(&mut connection)
            .await
            .map_err(text)?;
        tasks.spawn(async move {
            let body = Chance::new(worker.unsigned_abs().into()).text(BODY);
            let end = Instant::now() + each;
            let mut done = 0;
            while Instant::now() < end {
                done += script(&mut connection, &body, worker).await?;
            }
            Ok::<u64, String>(done)
        });
    }
    let done = sum(tasks).await?;
    let seconds = began.elapsed().as_secs_f64();
    reference.store = done as f64 / seconds;
    reference.store_cpu = (cpu(postmaster) - cpu_before) / done as f64;
    let after = database::counters(admin).await?;
    reference.store_wal = (after.wal - before.wal) as f64 / done as f64;
    let closed: i64 =
        sqlx::query_scalar("select count(*) from run where state = 2 and next_seq = 7")
            .fetch_one(&mut *admin)
            .await
            .map_err(text)?;
    if u64::try_from(closed) != Ok(done) {
        return Err(format!(
            "store: {done} workflows ran and {closed} are closed"
        ));
    }
    Ok(())
}

/// Runs a batch of workflows through the four statements, each a transaction of its own.
async fn script(connection: &mut PgConnection, body: &str, worker: i32) -> Result<u64, String> {
    let mut tasks: Vec<i64> = sqlx::query_scalar(START)
        .bind(STORE_BATCH)
        .bind(body)
        .bind(worker)
        .fetch_one(&mut *connection)
        .await
        .map_err(text)?;
    for statement in [SCHEDULE, ACTIVITY] {
        tasks = sqlx::query_scalar(statement)
            .bind(&tasks)
            .bind(body)
            .bind(worker)
            .fetch_one(&mut *connection)
            .await
            .map_err(text)?;
    }
    let done = sqlx::query(COMPLETE)
        .bind(&tasks)
        .bind(body)
        .bind(worker)
        .execute(&mut *connection)
        .await
        .map_err(text)?;
    Ok(done.rows_affected())
}

async fn echo(threads: usize, each: Duration, reference: &mut Reference) -> Result<(), String> {
    let server = Echo::start(threads)?;
    let target = Target::new(&format!("http://{}", server.address), "echo", None)?;
    let cpu = || Snapshot::take().tree(server.pid(), &[]).cpu;
    let latency = Histogram::default();
    requests(&target, 1, each / 3, &latency).await?;
    latency.clear();
    requests(&target, 1, each, &latency).await?;
    reference.echo1_p50 = latency.quantile(0.5);
    let (before, began) = (cpu(), Instant::now());
    let done = requests(&target, ECHO_CONNECTIONS, each, &latency).await?;
    reference.echo = done as f64 / began.elapsed().as_secs_f64();
    reference.echo_cpu = (cpu() - before) / done as f64;
    Ok(())
}

async fn requests(
    target: &Target,
    connections: usize,
    each: Duration,
    latency: &Histogram,
) -> Result<u64, String> {
    let body = Arc::new(format!(
        r#"{{"value":"{}"}}"#,
        Chance::new(3).text(BODY - 12)
    ));
    let wrong = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let (body, wrong) = (Arc::clone(&body), Arc::clone(&wrong));
        let mut connection = Connection::new(target);
        tasks.spawn(async move {
            let mut taken = Vec::new();
            let end = Instant::now() + each;
            while Instant::now() < end {
                let answer = connection
                    .send(Plane::Control, "POST", "/", body.as_bytes())
                    .await;
                match answer {
                    Ok(answer) if answer.body == body.as_bytes() => taken.push(answer.seconds),
                    _ => {
                        wrong.fetch_add(1, Relaxed);
                        connection.cut();
                    }
                }
            }
            taken
        });
    }
    let mut done = 0;
    while let Some(taken) = tasks.join_next().await {
        for seconds in taken.map_err(|error| error.to_string())? {
            latency.add(seconds);
            done += 1;
        }
    }
    match wrong.load(Relaxed) {
        0 => Ok(done),
        wrong => Err(format!("echo: {wrong} wrong answers")),
    }
}
