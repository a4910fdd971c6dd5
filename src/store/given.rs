//! Leases by the poll that was given them, for a repeat of it that reaches another node.

use sqlx::FromRow;

use super::pool::PgPool;
use super::{run_id, unsigned, unsigned32};
use crate::domain::ids::{Namespace, TaskId, TaskQueue};
use crate::domain::routing::{Poller, TaskKind};
use crate::domain::time::Timestamp;

type Time = chrono::DateTime<chrono::Utc>;

/// A lease that has not run out.
#[derive(Clone, Debug)]
pub struct Given {
    /// The task.
    pub task: TaskId,
    /// Its kind.
    pub kind: TaskKind,
    /// The hand-out.
    pub attempt: u32,
    /// Last event that it shows.
    pub seen: Option<u64>,
    /// When it was given; when it was renewed, if an attempt has no end of its own.
    pub leased_at: Timestamp,
    /// End of the lease.
    pub lease_expires_at: Timestamp,
    /// End of the attempt.
    pub start_to_close_at: Option<Timestamp>,
    /// Time of the next heartbeat at the latest.
    pub heartbeat_due_at: Option<Timestamp>,
}

#[derive(FromRow)]
struct Row {
    run_id: String,
    no: i32,
    kind: i16,
    attempt: i32,
    seen_event_id: Option<i64>,
    leased_at: Time,
    lease_expires_at: Time,
    start_to_close_at: Option<Time>,
    heartbeat_due_at: Option<Time>,
}

/// The lease that the worker's poll of this id was given on one of these queues, of one of these kinds.
///
/// # Errors
/// The database cannot be reached.
pub async fn to_poll(
    pool: &PgPool,
    namespace: &Namespace,
    queues: &[&TaskQueue],
    kinds: &[TaskKind],
    poller: &Poller,
) -> sqlx::Result<Option<Given>> {
    let queues: Vec<&str> = queues.iter().map(|queue| queue.as_str()).collect();
    let kinds: Vec<i16> = kinds.iter().map(|kind| kind.number()).collect();
    let row: Option<Row> = sqlx::query_as(
        "select run_id, task_no as no, kind, attempt, seen_event_id, lease_expires_at, start_to_close_at,
             heartbeat_due_at, coalesce(start_to_close_at - start_to_close_ms * interval '1 ms',
                 lease_expires_at - lease_ms * interval '1 ms') as leased_at
         from tasks
         where state = 1 and poll_request_id = $1 and lease_owner = $2 and namespace = $3 and queue = any($4)
           and kind = any($5) and lease_expires_at > clock_timestamp()
         union all
         select run_id, no, kind, attempt, seen_event_id, lease_expires_at, null, null, asked_at
         from asks
         where state = 1 and poll_request_id = $1 and lease_owner = $2 and namespace = $3 and queue = any($4)
           and kind = any($5) and deadline_at > clock_timestamp()
         limit 1",
    )
    .bind(poller.poll_request_id.as_deref())
    .bind(poller.owner.as_str())
    .bind(namespace.as_str())
    .bind(queues)
    .bind(kinds)
    .fetch_optional(pool)
    .await?;
    row.map(|row| {
        Ok(Given {
            task: TaskId {
                run: run_id(&row.run_id)?,
                no: unsigned32(row.no),
            },
            kind: TaskKind::from_number(row.kind).ok_or_else(|| {
                sqlx::Error::Decode(format!("not a kind of task: {}", row.kind).into())
            })?,
            attempt: unsigned32(row.attempt),
            seen: row.seen_event_id.map(unsigned),
            leased_at: row.leased_at.into(),
            lease_expires_at: row.lease_expires_at.into(),
            start_to_close_at: row.start_to_close_at.map(Into::into),
            heartbeat_due_at: row.heartbeat_due_at.map(Into::into),
        })
    })
    .transpose()
}
