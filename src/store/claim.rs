//! Claims: ready tasks of one queue given to waiting polls, as many at once as wait.

use super::pool::PgPool;
use sqlx::{FromRow, PgExecutor};

use super::{run_id, unsigned, unsigned32};
use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, TaskId, TaskQueue};
use crate::domain::routing::{DEFAULT_PRIORITY, Poller, Profile, TaskKind};
use crate::domain::time::Timestamp;

/// Makes workflow tasks ready at once that were blocked by other code than a worker of these types
/// runs. Returns how many.
///
/// # Errors
/// The database cannot be reached.
pub async fn unblock(
    pool: &PgPool,
    namespace: &Namespace,
    queues: &[TaskQueue],
    types: &[String],
    code: &[String],
) -> sqlx::Result<u64> {
    let queues: Vec<&str> = queues.iter().map(TaskQueue::as_str).collect();
    let done = sqlx::query(
        "with b as materialized (
             select t.run_id, t.task_no from tasks t
             join unnest($3::text[], $4::text[]) w(task_type, code) on w.task_type = t.task_type
             where t.blocked_by is not null and t.namespace = $1 and t.queue = any($2)
               and t.state = 0 and t.blocked_by <> w.code
             order by t.run_id, t.task_no for update of t skip locked)
         update tasks t set visible_at = least(t.visible_at, clock_timestamp()), blocked_by = null
         from b where t.run_id = b.run_id and t.task_no = b.task_no",
    )
    .bind(namespace.as_str())
    .bind(queues)
    .bind(types)
    .bind(code)
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}

/// A task that a poll was given.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The task.
    pub task: TaskId,
    /// Which of the polls got it, by its place in the list.
    pub poller: usize,
    /// The hand-out.
    pub attempt: u32,
    /// Last event that a workflow task shows.
    pub seen: Option<u64>,
    /// When.
    pub leased_at: Timestamp,
    /// End of the lease.
    pub lease_expires_at: Timestamp,
    /// End of the attempt.
    pub start_to_close_at: Option<Timestamp>,
    /// Time of the next heartbeat at the latest.
    pub heartbeat_due_at: Option<Timestamp>,
}

/// What a claim gave, and what it saw of the queue.
#[derive(Clone, Debug, Default)]
pub struct Plain {
    /// The tasks.
    pub claimed: Vec<Claimed>,
    /// Tasks with a fairness key are ready or will be. Nothing was given then: which task comes next
    /// is more than a question of priority and age.
    pub classes: bool,
    /// A task was given that some worker keeps in memory.
    pub preferred: bool,
    /// A task was given that was more or less urgent than most.
    pub priorities: bool,
    /// When it looked.
    pub at: Option<Timestamp>,
    /// The last task that was given, in the order of hand-outs.
    pub last: Option<Position>,
}

#[derive(FromRow)]
pub(super) struct ClaimedRow {
    run_id: String,
    task_no: i32,
    place: i64,
    attempt: i32,
    seen_event_id: Option<i64>,
    leased_at: chrono::DateTime<chrono::Utc>,
    lease_expires_at: chrono::DateTime<chrono::Utc>,
    start_to_close_at: Option<chrono::DateTime<chrono::Utc>>,
    heartbeat_due_at: Option<chrono::DateTime<chrono::Utc>>,
}

impl TryFrom<ClaimedRow> for Claimed {
    type Error = sqlx::Error;

    fn try_from(row: ClaimedRow) -> sqlx::Result<Self> {
        Ok(Self {
            task: TaskId {
                run: run_id(&row.run_id)?,
                no: unsigned32(row.task_no),
            },
            poller: usize::try_from(row.place - 1).unwrap_or_default(),
            attempt: unsigned32(row.attempt),
            seen: row.seen_event_id.map(unsigned),
            leased_at: row.leased_at.into(),
            lease_expires_at: row.lease_expires_at.into(),
            start_to_close_at: row.start_to_close_at.map(Into::into),
            heartbeat_due_at: row.heartbeat_due_at.map(Into::into),
        })
    }
}

#[derive(FromRow)]
struct PlainRow {
    classes: bool,
    at: chrono::DateTime<chrono::Utc>,
    preferred: Option<String>,
    priority: Option<i16>,
    visible_at: Option<chrono::DateTime<chrono::Utc>>,
    run_id: Option<String>,
    task_no: Option<i32>,
    place: Option<i64>,
    attempt: Option<i32>,
    seen_event_id: Option<i64>,
    leased_at: Option<chrono::DateTime<chrono::Utc>>,
    lease_expires_at: Option<chrono::DateTime<chrono::Utc>>,
    start_to_close_at: Option<chrono::DateTime<chrono::Utc>>,
    heartbeat_due_at: Option<chrono::DateTime<chrono::Utc>>,
}

impl PlainRow {
    /// The place of all tasks of the same age.
    fn position(&self) -> Option<Position> {
        let priority = u8::try_from(self.priority?).unwrap_or(u8::MAX);
        Some(Position::of_age(priority, self.visible_at?.into()))
    }

    /// The task of the row; the only row of a claim that gave nothing has none.
    fn claimed(self) -> Option<ClaimedRow> {
        Some(ClaimedRow {
            run_id: self.run_id?,
            task_no: self.task_no?,
            place: self.place?,
            attempt: self.attempt?,
            seen_event_id: self.seen_event_id,
            leased_at: self.leased_at?,
            lease_expires_at: self.lease_expires_at?,
            start_to_close_at: self.start_to_close_at,
            heartbeat_due_at: self.heartbeat_due_at,
        })
    }
}

/// Gives ready tasks of a queue to polls, the most urgent and longest waiting first, beginning at a
/// position. Fewer than there are polls means that the queue has no more that they can take. While tasks with a fairness
/// key are there it gives nothing and says so; [`super::dispatch`] is for those.
///
/// # Errors
/// The database cannot be reached.
pub async fn claim<'e>(
    executor: impl PgExecutor<'e>,
    kind: TaskKind,
    namespace: &Namespace,
    queue: &TaskQueue,
    profile: &Profile,
    pollers: &[Poller],
    from: Position,
) -> sqlx::Result<Plain> {
    let owners: Vec<&str> = pollers.iter().map(|poller| poller.owner.as_str()).collect();
    let polls: Vec<Option<&str>> = pollers
        .iter()
        .map(|poller| poller.poll_request_id.as_deref())
        .collect();
    let (from_run, from_no) = match from.task {
        Some(task) => (task.run.to_string(), task.no.cast_signed()),
        None => (String::new(), 0),
    };
    let rows: Vec<PlainRow> = sqlx::query_as(
        "with n as materialized (select clock_timestamp() as now),
         k as materialized (
             select exists (select from tasks where state = 0 and session_id is null and fairness_key is not null
                 and namespace = $1 and queue = $2 and kind = $3) as classes),
         w as materialized (
             select owner, poll, place from unnest($7::text[], $8::text[]) with ordinality as w(owner, poll, place)),
         p as materialized (
             select run_id, task_no, row_number() over () as place from (
                 select run_id, task_no from tasks
                 where state = 0 and session_id is null and fairness_key is null
                   and namespace = $1 and queue = $2 and kind = $3
                   and (priority, visible_at, run_id, task_no) >= ($9, $10, $11, $12)
                   and visible_at <= (select now from n)
                   and task_type = any($4) and (build_id is null or build_id = $5) and (needs & ~$6::bigint) = 0
                 order by priority, visible_at, run_id, task_no
                 limit (select case when classes then 0 else cardinality($7::text[]) end from k)
                 for update skip locked) c),
         u as (update tasks t set state = 1, attempt = t.attempt + 1, lease_owner = w.owner,
             lease_expires_at = n.now + t.lease_ms * interval '1 ms',
             start_to_close_at = n.now + t.start_to_close_ms * interval '1 ms',
             heartbeat_due_at = n.now + t.heartbeat_ms * interval '1 ms',
             heartbeat_at = null, heartbeat = null, poll_request_id = w.poll, holder_knows = $6,
             seen_event_id = case when t.kind = 0 then
                 (select r.next_event_id - 1 from workflow_runs r where r.run_id = t.run_id) end
         from n, p join w on w.place = p.place
         where t.run_id = p.run_id and t.task_no = p.task_no
         returning t.run_id, t.task_no, p.place, t.attempt, t.seen_event_id, n.now as leased_at,
             t.lease_expires_at, t.start_to_close_at, t.heartbeat_due_at, t.preferred, t.priority, t.visible_at)
         select k.classes, n.now as at, u.* from n cross join k left join u on true",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(kind.number())
    .bind(&*profile.types)
    .bind(profile.build_id.as_deref())
    .bind(profile.knows)
    .bind(owners)
    .bind(polls)
    .bind(i16::from(from.priority))
    .bind(from.ready_at.to_chrono())
    .bind(from_run)
    .bind(from_no)
    .fetch_all(executor)
    .await?;
    let mut plain = Plain::default();
    for row in rows {
        plain.at = Some(row.at.into());
        plain.classes |= row.classes;
        plain.preferred |= row.preferred.is_some();
        plain.priorities |= row
            .priority
            .is_some_and(|priority| priority != i16::from(DEFAULT_PRIORITY));
        let of_age = row.position();
        if let Some(claimed) = row.claimed() {
            let claimed = Claimed::try_from(claimed)?;
            let task = Some(claimed.task);
            let position = of_age.map(|of_age| Position { task, ..of_age });
            plain.last = plain.last.max(position);
            plain.claimed.push(claimed);
        }
    }
    Ok(plain)
}
