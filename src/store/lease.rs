//! Leases on task rows: renewal, give-back, and the search for those that have run out.
//!
//! Rows are locked in key order and never after a header, so that no statement here can deadlock
//! with a commit.

use std::sync::Arc;

use super::pool::PgPool;
use sqlx::FromRow;

use super::{run_id, unsigned, unsigned32};
use crate::domain::ids::{Namespace, RunId, TaskId, TaskQueue, WorkerId};
use crate::domain::routing::TaskKind;
use crate::domain::time::Timestamp;

type Time = chrono::DateTime<chrono::Utc>;

/// A task row, as far as its lease goes.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// The task.
    pub task: TaskId,
    /// Workflow or activity.
    pub kind: TaskKind,
    /// Namespace.
    pub namespace: Namespace,
    /// Queue.
    pub queue: TaskQueue,
    /// Hand-outs so far.
    pub attempt: u32,
    /// Holder.
    pub owner: Option<WorkerId>,
    /// End of the lease.
    pub lease_expires_at: Option<Timestamp>,
    /// The lease has not run out.
    pub live: bool,
    /// Last event that the holder of a workflow task was shown.
    pub seen: Option<u64>,
    /// End of the attempt.
    pub start_to_close_at: Option<Timestamp>,
    /// Time of the next heartbeat at the latest.
    pub heartbeat_due_at: Option<Timestamp>,
    /// Last heartbeat.
    pub heartbeat_at: Option<Timestamp>,
    /// What it said, JSON.
    pub heartbeat: Option<Arc<str>>,
    /// When it may be handed out.
    pub visible_at: Timestamp,
    /// Features that the holder knows.
    pub holder_knows: i64,
    /// The holder was asked to stop.
    pub cancel_requested: bool,
}

/// What [`Row`] is read from.
macro_rules! columns {
    () => {
        "run_id, task_no, kind, namespace, queue, attempt, lease_owner, lease_expires_at,
         lease_expires_at > clock_timestamp() as live, seen_event_id, start_to_close_at, heartbeat_due_at,
         heartbeat_at, heartbeat, visible_at, holder_knows, cancel_requested"
    };
}

#[derive(FromRow)]
struct Row {
    run_id: String,
    task_no: i32,
    kind: i16,
    namespace: String,
    queue: String,
    attempt: i32,
    lease_owner: Option<String>,
    lease_expires_at: Option<Time>,
    live: Option<bool>,
    seen_event_id: Option<i64>,
    start_to_close_at: Option<Time>,
    heartbeat_due_at: Option<Time>,
    heartbeat_at: Option<Time>,
    heartbeat: Option<String>,
    visible_at: Time,
    holder_knows: Option<i64>,
    cancel_requested: bool,
}

impl TryFrom<Row> for TaskRow {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> sqlx::Result<Self> {
        Ok(Self {
            task: TaskId {
                run: run_id(&row.run_id)?,
                no: unsigned32(row.task_no),
            },
            kind: TaskKind::from_number(row.kind).ok_or_else(|| {
                sqlx::Error::Decode(format!("not a task kind: {}", row.kind).into())
            })?,
            namespace: row.namespace.into(),
            queue: row.queue.into(),
            attempt: unsigned32(row.attempt),
            owner: row.lease_owner.map(WorkerId::from),
            lease_expires_at: row.lease_expires_at.map(Into::into),
            live: row.live.unwrap_or(false),
            seen: row.seen_event_id.map(unsigned),
            start_to_close_at: row.start_to_close_at.map(Into::into),
            heartbeat_due_at: row.heartbeat_due_at.map(Into::into),
            heartbeat_at: row.heartbeat_at.map(Into::into),
            heartbeat: row.heartbeat.map(Into::into),
            visible_at: row.visible_at.into(),
            holder_knows: row.holder_knows.unwrap_or(0),
            cancel_requested: row.cancel_requested,
        })
    }
}

fn rows(rows: Vec<Row>) -> sqlx::Result<Vec<TaskRow>> {
    rows.into_iter().map(TaskRow::try_from).collect()
}

/// The row of a task, if it is open.
///
/// # Errors
/// The database cannot be reached.
pub async fn read(pool: &PgPool, task: TaskId) -> sqlx::Result<Option<TaskRow>> {
    let row: Option<Row> = sqlx::query_as(concat!(
        "select ",
        columns!(),
        " from tasks where run_id = $1 and task_no = $2"
    ))
    .bind(task.run.to_string())
    .bind(task.no.cast_signed())
    .fetch_optional(pool)
    .await?;
    row.map(TaskRow::try_from).transpose()
}

/// The rows of all open tasks of a run, by number.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_run(pool: &PgPool, run: RunId) -> sqlx::Result<Vec<TaskRow>> {
    rows(
        sqlx::query_as(concat!(
            "select ",
            columns!(),
            " from tasks where run_id = $1 order by task_no"
        ))
        .bind(run.to_string())
        .fetch_all(pool)
        .await?,
    )
}

/// One renewal.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// The task.
    pub task: TaskId,
    /// The holder.
    pub owner: WorkerId,
    /// The hand-out.
    pub attempt: u32,
    /// It is an activity's heartbeat, which may say something.
    pub beat: bool,
    /// What it says, JSON.
    pub details: Option<String>,
}

/// A renewed lease.
#[derive(Clone, Copy, Debug)]
pub struct Renewed {
    /// End of the lease from now on.
    pub lease_expires_at: Timestamp,
    /// When.
    pub at: Timestamp,
    /// The holder was asked to stop.
    pub cancel_requested: bool,
}

/// Renews leases, at most one per task in a call. A lease that is not the caller's or has run out
/// stays as it is, and its place in the answer is empty.
///
/// # Errors
/// The database cannot be reached.
pub async fn renew(pool: &PgPool, renewals: &[Renewal]) -> sqlx::Result<Vec<Option<Renewed>>> {
    let runs: Vec<String> = renewals.iter().map(|r| r.task.run.to_string()).collect();
    let tasks: Vec<i32> = renewals.iter().map(|r| r.task.no.cast_signed()).collect();
    let owners: Vec<&str> = renewals.iter().map(|r| r.owner.as_str()).collect();
    let attempts: Vec<i32> = renewals.iter().map(|r| r.attempt.cast_signed()).collect();
    let beats: Vec<bool> = renewals.iter().map(|r| r.beat).collect();
    let details: Vec<Option<&str>> = renewals.iter().map(|r| r.details.as_deref()).collect();
    let rows: Vec<(i64, Time, Time, bool)> = sqlx::query_as(
        "with h as materialized (
             select t.run_id, t.task_no, h.beat, h.details, h.place
             from unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::bool[], $6::text[])
                 with ordinality as h(run_id, task_no, owner, attempt, beat, details, place)
             join tasks t on t.run_id = h.run_id and t.task_no = h.task_no
             where t.run_id = any($1) and t.lease_owner = h.owner and t.attempt = h.attempt
               and t.lease_expires_at > clock_timestamp()
             order by t.run_id, t.task_no for update of t)
         update tasks t set lease_expires_at = clock_timestamp() + t.lease_ms * interval '1 ms',
             heartbeat_due_at = case when h.beat then clock_timestamp() + t.heartbeat_ms * interval '1 ms' else t.heartbeat_due_at end,
             heartbeat_at = case when h.beat then clock_timestamp() else t.heartbeat_at end,
             heartbeat = case when h.beat then coalesce(h.details, t.heartbeat) else t.heartbeat end
         from h where t.run_id = any($1) and t.run_id = h.run_id and t.task_no = h.task_no
         returning h.place, t.lease_expires_at, clock_timestamp(), t.cancel_requested",
    )
    .bind(runs)
    .bind(tasks)
    .bind(owners)
    .bind(attempts)
    .bind(beats)
    .bind(details)
    .fetch_all(pool)
    .await?;
    let mut renewed = vec![None; renewals.len()];
    for (place, lease_expires_at, at, cancel_requested) in rows {
        let place = usize::try_from(place - 1).unwrap_or(usize::MAX);
        if let Some(slot) = renewed.get_mut(place) {
            *slot = Some(Renewed {
                lease_expires_at: lease_expires_at.into(),
                at: at.into(),
                cancel_requested,
            });
        }
    }
    Ok(renewed)
}

/// Notes that the holder of a workflow task was shown events up to `seen`. Returns whether the lease
/// is still its own.
///
/// # Errors
/// The database cannot be reached.
pub async fn show(
    pool: &PgPool,
    task: TaskId,
    owner: &WorkerId,
    attempt: u32,
    seen: u64,
) -> sqlx::Result<bool> {
    let done = sqlx::query(
        "update tasks set seen_event_id = $5
         where run_id = $1 and task_no = $2 and lease_owner = $3 and attempt = $4
           and lease_expires_at > clock_timestamp()",
    )
    .bind(task.run.to_string())
    .bind(task.no.cast_signed())
    .bind(owner.as_str())
    .bind(attempt.cast_signed())
    .bind(i64::try_from(seen).unwrap_or(i64::MAX))
    .execute(pool)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Which leases a give-back may take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The lease as it is named, whatever its end: its holder is gone.
    Named,
    /// The lease as it is named, if it has run out.
    RunOut,
}

/// A lease that ends without a report.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The task.
    pub task: TaskId,
    /// The holder.
    pub owner: WorkerId,
    /// The hand-out.
    pub attempt: u32,
    /// Milliseconds before the task may be handed out again.
    pub delay_ms: u64,
    /// The hand-out was made by then, or is another one that looks the same and stays.
    pub granted_by: Option<Timestamp>,
}

/// Makes tasks ready whose lease ended without a report. Hand-outs go on counting. Returns the
/// places of those that were given back.
///
/// # Errors
/// The database cannot be reached.
pub async fn give_back(pool: &PgPool, which: Which, lost: &[Lost]) -> sqlx::Result<Vec<usize>> {
    let runs: Vec<String> = lost.iter().map(|l| l.task.run.to_string()).collect();
    let tasks: Vec<i32> = lost.iter().map(|l| l.task.no.cast_signed()).collect();
    let owners: Vec<&str> = lost.iter().map(|l| l.owner.as_str()).collect();
    let attempts: Vec<i32> = lost.iter().map(|l| l.attempt.cast_signed()).collect();
    let delays: Vec<i64> = lost.iter().map(|l| l.delay_ms.cast_signed()).collect();
    let granted_by: Vec<Option<Time>> = lost
        .iter()
        .map(|l| l.granted_by.map(Timestamp::to_chrono))
        .collect();
    let places: Vec<i64> = sqlx::query_scalar(
        "with l as materialized (
             select t.run_id, t.task_no, l.delay_ms, l.place
             from unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::bigint[], $6::timestamptz[])
                 with ordinality as l(run_id, task_no, owner, attempt, delay_ms, granted_by, place)
             join tasks t on t.run_id = l.run_id and t.task_no = l.task_no
             where t.run_id = any($1) and t.lease_owner = l.owner and t.attempt = l.attempt
               and ($7 or t.lease_expires_at <= clock_timestamp())
               and (l.granted_by is null or t.lease_expires_at <= l.granted_by + t.lease_ms * interval '1 ms')
             order by t.run_id, t.task_no for update of t)
         update tasks t set state = 0, visible_at = clock_timestamp() + l.delay_ms * interval '1 ms',
             lease_owner = null, lease_expires_at = null, start_to_close_at = null, heartbeat_due_at = null,
             poll_request_id = null, seen_event_id = null, holder_knows = null
         from l where t.run_id = any($1) and t.run_id = l.run_id and t.task_no = l.task_no
         returning l.place",
    )
    .bind(runs)
    .bind(tasks)
    .bind(owners)
    .bind(attempts)
    .bind(delays)
    .bind(granted_by)
    .bind(which == Which::Named)
    .fetch_all(pool)
    .await?;
    Ok(places
        .into_iter()
        .map(|place| usize::try_from(place - 1).unwrap_or(usize::MAX))
        .collect())
}

/// A held task that has outlived something.
#[derive(Clone, Debug)]
pub struct OverdueRow {
    /// The task.
    pub row: TaskRow,
    /// Its heartbeat has not come in time.
    pub heartbeat: bool,
    /// Its attempt has taken too long.
    pub start_to_close: bool,
}

/// What a look at the leases found.
#[derive(Clone, Debug)]
pub struct Look {
    /// Held tasks whose lease or attempt has run out.
    pub overdue: Vec<OverdueRow>,
    /// Milliseconds until another one will.
    pub next_ms: Option<u64>,
    /// When the look was taken.
    pub at: Timestamp,
}

/// Held tasks whose lease or attempt has run out, and when the next one will.
///
/// # Errors
/// The database cannot be reached.
pub async fn look(pool: &PgPool, limit: i64) -> sqlx::Result<Look> {
    #[derive(FromRow)]
    struct Overdue {
        #[sqlx(flatten)]
        row: Row,
        late_heartbeat: Option<bool>,
        late_attempt: Option<bool>,
    }
    let (at, next): (Time, Option<i64>) = sqlx::query_as(
        "select clock_timestamp(), (extract(epoch from min(least(lease_expires_at, start_to_close_at, heartbeat_due_at))
             - clock_timestamp()) * 1000)::bigint from tasks where state = 1",
    )
    .fetch_one(pool)
    .await?;
    let next = next.map(|ms| unsigned(ms.max(0)));
    if next != Some(0) {
        return Ok(Look {
            overdue: Vec::new(),
            next_ms: next,
            at: at.into(),
        });
    }
    let found: Vec<Overdue> = sqlx::query_as(
        concat!("select ", columns!(), ", heartbeat_due_at <= clock_timestamp() as late_heartbeat,
             start_to_close_at <= clock_timestamp() as late_attempt
         from tasks
         where state = 1 and least(lease_expires_at, start_to_close_at, heartbeat_due_at) <= clock_timestamp()
         order by run_id, task_no limit $1"),
    )
    .bind(limit)
    .fetch_all(pool)
    .await?;
    let overdue = found
        .into_iter()
        .map(|found| {
            Ok(OverdueRow {
                row: found.row.try_into()?,
                heartbeat: found.late_heartbeat.unwrap_or(false),
                start_to_close: found.late_attempt.unwrap_or(false),
            })
        })
        .collect::<sqlx::Result<_>>()?;
    Ok(Look {
        overdue,
        next_ms: next,
        at: at.into(),
    })
}

/// Held tasks of one worker.
///
/// # Errors
/// The database cannot be reached.
pub async fn held_by(
    pool: &PgPool,
    namespace: &Namespace,
    worker: &WorkerId,
    limit: i64,
) -> sqlx::Result<Vec<TaskRow>> {
    rows(
        sqlx::query_as(
            concat!("select ", columns!(), " from tasks where state = 1 and namespace = $1 and lease_owner = $2 order by run_id, task_no limit $3"),
        )
        .bind(namespace.as_str())
        .bind(worker.as_str())
        .bind(limit)
        .fetch_all(pool)
        .await?,
    )
}

/// Held tasks whose holder is not registered or has been silent for too long.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_absent_holders(
    pool: &PgPool,
    stale_after_seconds: u64,
    limit: i64,
) -> sqlx::Result<Vec<TaskRow>> {
    rows(
        sqlx::query_as(concat!(
            "select ",
            columns!(),
            " from tasks t
             where t.state = 1 and not exists (select from workers w
                 where w.namespace = t.namespace and w.worker_id = t.lease_owner
                   and w.last_heartbeat_at > clock_timestamp() - $1 * interval '1 s')
             order by t.run_id, t.task_no limit $2"
        ))
        .bind(stale_after_seconds.cast_signed())
        .bind(limit)
        .fetch_all(pool)
        .await?,
    )
}
