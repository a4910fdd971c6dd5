//! Leases by the poll that was given them, for a repeat of it that reaches another node.

use std::sync::Arc;

use sqlx::FromRow;

use super::pool::PgPool;
use super::{run_id, unsigned, unsigned32};
use crate::domain::ids::{Namespace, TaskId, TaskQueue, WorkerId};
use crate::domain::routing::TaskKind;
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
    namespace: String,
    queue: String,
    lease_owner: String,
    poll_request_id: String,
}

/// What is asked for: the leases that a worker's poll was given on one of these queues, of one of these
/// kinds.
#[derive(Clone, Debug)]
pub struct Question {
    /// Namespace.
    pub namespace: Namespace,
    /// Queues that the poll names.
    pub queues: Vec<TaskQueue>,
    /// Kinds that polls of its plane may be given.
    pub kinds: Vec<TaskKind>,
    /// The worker.
    pub owner: WorkerId,
    /// The poll's id.
    pub poll: Arc<str>,
}

impl Question {
    fn is_answered_by(&self, row: &Row) -> bool {
        *self.poll == *row.poll_request_id
            && self.owner.as_str() == row.lease_owner
            && self.namespace.as_str() == row.namespace
            && self.queues.iter().any(|queue| queue.as_str() == row.queue)
            && self.kinds.iter().any(|kind| kind.number() == row.kind)
    }
}

/// Leases of one poll that are looked at.
const LEASES_OF_A_POLL: i64 = 8;

/// The leases that polls were given, in the order of the questions. Each is looked up by its own key, and in words
/// that fit no other index: asked otherwise, the planner walks every dead row as soon as it takes the table for
/// nearly empty.
///
/// # Errors
/// The database cannot be reached.
pub async fn to_polls(pool: &PgPool, questions: &[Question]) -> sqlx::Result<Vec<Vec<Given>>> {
    let polls: Vec<&str> = questions.iter().map(|one| &*one.poll).collect();
    let owners: Vec<&str> = questions.iter().map(|one| one.owner.as_str()).collect();
    let rows: Vec<Row> = sqlx::query_as(
        "select t.* from unnest($1::text[], $2::text[]) as q(poll, owner) cross join lateral (
             select run_id, task_no as no, kind, attempt, seen_event_id, lease_expires_at, start_to_close_at,
                 heartbeat_due_at, coalesce(start_to_close_at - start_to_close_ms * interval '1 ms',
                     lease_expires_at - lease_ms * interval '1 ms') as leased_at,
                 namespace, queue, lease_owner, poll_request_id
             from tasks
             where poll_request_id = q.poll and lease_owner = q.owner and state + 0 = 1 and lease_expires_at > clock_timestamp()
             limit $3) t
         union all
         select a.* from unnest($1::text[], $2::text[]) as q(poll, owner) cross join lateral (
             select run_id, no, kind, attempt, seen_event_id, lease_expires_at, null::timestamptz, null::timestamptz, asked_at,
                 namespace, queue, lease_owner, poll_request_id
             from asks
             where poll_request_id = q.poll and lease_owner = q.owner and state + 0 = 1 and deadline_at > clock_timestamp()
             limit $3) a",
    )
    .bind(polls)
    .bind(owners)
    .bind(LEASES_OF_A_POLL)
    .fetch_all(pool)
    .await?;
    questions
        .iter()
        .map(|question| {
            let rows = rows.iter().filter(|row| question.is_answered_by(row));
            rows.map(Row::given).collect()
        })
        .collect()
}

impl Row {
    fn given(&self) -> sqlx::Result<Given> {
        Ok(Given {
            task: TaskId {
                run: run_id(&self.run_id)?,
                no: unsigned32(self.no),
            },
            kind: TaskKind::from_number(self.kind).ok_or_else(|| {
                sqlx::Error::Decode(format!("not a kind of task: {}", self.kind).into())
            })?,
            attempt: unsigned32(self.attempt),
            seen: self.seen_event_id.map(unsigned),
            leased_at: self.leased_at.into(),
            lease_expires_at: self.lease_expires_at.into(),
            start_to_close_at: self.start_to_close_at.map(Into::into),
            heartbeat_due_at: self.heartbeat_due_at.map(Into::into),
        })
    }
}
