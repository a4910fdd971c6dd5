//! Asks: questions to workers, in a table without a log. A write here waits for no disk.

use sqlx::FromRow;

use super::pool::PgPool;

use super::claim::Claimed;
use super::{run_id, unsigned, unsigned32};
use crate::domain::ids::{Namespace, TaskId, TaskQueue, WorkerId};
use crate::domain::routing::{Poller, Profile, Routing, TaskKind};
use crate::domain::time::Timestamp;

type Time = chrono::DateTime<chrono::Utc>;

/// How long an ask is remembered after its deadline, so that a late answer is told what it is.
const KEPT_SECONDS: i64 = 60;

/// A question.
#[derive(Clone, Debug)]
pub struct NewAsk {
    /// Its run and its number, which is drawn.
    pub id: TaskId,
    /// Where it waits and who may take it.
    pub routing: Routing,
    /// Name of the query or update.
    pub name: String,
    /// Encoded argument list.
    pub arguments: String,
    /// Last event that its worker may see.
    pub seen: u64,
    /// The node whose caller waits for the answer.
    pub node: String,
    /// Milliseconds until nobody waits any more.
    pub timeout_ms: u64,
    /// The poll that takes it at once.
    pub handed_to: Option<Poller>,
}

/// A question as it is kept.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Namespace of its run.
    pub namespace: Namespace,
    /// Queue.
    pub queue: TaskQueue,
    /// Query or validation.
    pub kind: TaskKind,
    /// Name of the query or update.
    pub name: String,
    /// Encoded argument list.
    pub arguments: String,
    /// Last event that its worker may see.
    pub seen: u64,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// When nobody waits any more.
    pub deadline_at: Timestamp,
    /// How far it is.
    pub state: AskState,
    /// The hand-out.
    pub attempt: u32,
    /// Its holder.
    pub owner: Option<WorkerId>,
    /// End of the lease.
    pub lease_expires_at: Option<Timestamp>,
    /// The answer, as the worker's node wrote it.
    pub answer: Option<String>,
    /// The deadline has passed.
    pub over: bool,
}

/// How far an ask is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskState {
    /// Nobody has taken it.
    Ready,
    /// A worker has it.
    Leased,
    /// It has its answer.
    Answered,
}

/// Writes an ask; `None` when its number is taken. Returns when it was asked and when it is over.
///
/// # Errors
/// The database cannot be reached.
pub async fn insert(pool: &PgPool, ask: &NewAsk) -> sqlx::Result<Option<(Timestamp, Timestamp)>> {
    let row: Option<(Time, Time)> = sqlx::query_as(
        "insert into asks (run_id, no, kind, namespace, queue, task_type, build_id, needs, name, arguments,
             seen_event_id, node, asked_at, deadline_at, state, attempt, lease_owner, lease_expires_at, poll_request_id)
         select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, now, now + $13 * interval '1 ms',
             case when $14::text is null then 0 else 1 end, case when $14::text is null then 0 else 1 end, $14,
             case when $14::text is not null then now + $13 * interval '1 ms' end, $15
         from (select clock_timestamp() as now) c
         on conflict do nothing returning asked_at, deadline_at",
    )
    .bind(ask.id.run.to_string())
    .bind(ask.id.no.cast_signed())
    .bind(ask.routing.kind.number())
    .bind(ask.routing.namespace.as_str())
    .bind(ask.routing.queue.as_str())
    .bind(&*ask.routing.task_type)
    .bind(ask.routing.build_id.as_deref())
    .bind(ask.routing.needs)
    .bind(&ask.name)
    .bind(&ask.arguments)
    .bind(i64::try_from(ask.seen).unwrap_or(i64::MAX))
    .bind(&ask.node)
    .bind(i64::try_from(ask.timeout_ms).unwrap_or(i64::MAX))
    .bind(ask.handed_to.as_ref().map(|poller| poller.owner.as_str()))
    .bind(ask.handed_to.as_ref().and_then(|poller| poller.poll_request_id.as_deref()))
    .fetch_optional(pool)
    .await?;
    Ok(row.map(|(asked, over)| (asked.into(), over.into())))
}

/// How many asks of a queue wait, up to `most`.
///
/// # Errors
/// The database cannot be reached.
pub async fn count_ready(pool: &PgPool, routing: &Routing, most: i64) -> sqlx::Result<u64> {
    let count: i64 = sqlx::query_scalar(
        "select count(*) from (select 1 from asks
             where state = 0 and namespace = $1 and queue = $2 and kind = $3 and deadline_at > clock_timestamp()
             limit $4) c",
    )
    .bind(routing.namespace.as_str())
    .bind(routing.queue.as_str())
    .bind(routing.kind.number())
    .bind(most)
    .fetch_one(pool)
    .await?;
    Ok(unsigned(count))
}

#[derive(FromRow)]
struct ClaimedRow {
    run_id: String,
    no: i32,
    place: i64,
    attempt: i32,
    seen_event_id: i64,
    leased_at: Time,
    lease_expires_at: Time,
}

/// Gives ready asks of a queue to polls, the oldest first.
///
/// # Errors
/// The database cannot be reached.
pub async fn claim(
    pool: &PgPool,
    kind: TaskKind,
    namespace: &Namespace,
    queue: &TaskQueue,
    profile: &Profile,
    pollers: &[Poller],
) -> sqlx::Result<Vec<Claimed>> {
    let owners: Vec<&str> = pollers.iter().map(|poller| poller.owner.as_str()).collect();
    let polls: Vec<Option<&str>> = pollers
        .iter()
        .map(|poller| poller.poll_request_id.as_deref())
        .collect();
    let rows: Vec<ClaimedRow> = sqlx::query_as(
        "with w as materialized (
             select owner, poll, place from unnest($7::text[], $8::text[]) with ordinality as w(owner, poll, place)),
         p as materialized (
             select run_id, no, row_number() over () as place from (
                 select run_id, no from asks
                 where state = 0 and namespace = $1 and queue = $2 and kind = $3 and deadline_at > clock_timestamp()
                   and task_type = any($4) and (build_id is null or build_id = $5) and (needs & ~$6::bigint) = 0
                 order by asked_at, run_id, no
                 limit cardinality($7::text[]) for update skip locked) c)
         update asks t set state = 1, attempt = t.attempt + 1, lease_owner = w.owner, lease_expires_at = t.deadline_at,
             poll_request_id = w.poll
         from p join w on w.place = p.place
         where t.run_id = p.run_id and t.no = p.no
         returning t.run_id, t.no, p.place, t.attempt, t.seen_event_id, clock_timestamp() as leased_at, t.lease_expires_at",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(kind.number())
    .bind(&*profile.types)
    .bind(profile.build_id.as_deref())
    .bind(profile.knows)
    .bind(owners)
    .bind(polls)
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Claimed {
                task: TaskId {
                    run: run_id(&row.run_id)?,
                    no: unsigned32(row.no),
                },
                poller: usize::try_from(row.place - 1).unwrap_or_default(),
                attempt: unsigned32(row.attempt),
                seen: Some(unsigned(row.seen_event_id)),
                leased_at: row.leased_at.into(),
                lease_expires_at: row.lease_expires_at.into(),
                start_to_close_at: None,
                heartbeat_due_at: None,
            })
        })
        .collect()
}

#[derive(FromRow)]
struct Row {
    namespace: String,
    queue: String,
    kind: i16,
    name: String,
    arguments: String,
    seen_event_id: i64,
    asked_at: Time,
    deadline_at: Time,
    state: i16,
    attempt: i32,
    lease_owner: Option<String>,
    lease_expires_at: Option<Time>,
    answer: Option<String>,
    over: bool,
}

/// The ask of this number, if it is remembered.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(pool: &PgPool, id: TaskId) -> sqlx::Result<Option<Ask>> {
    let row: Option<Row> = sqlx::query_as(
        "select namespace, queue, kind, name, arguments, seen_event_id, asked_at, deadline_at, state, attempt,
             lease_owner, lease_expires_at, answer, deadline_at <= clock_timestamp() as over
         from asks where run_id = $1 and no = $2",
    )
    .bind(id.run.to_string())
    .bind(id.no.cast_signed())
    .fetch_optional(pool)
    .await?;
    row.map(|row| {
        Ok(Ask {
            namespace: row.namespace.into(),
            queue: row.queue.into(),
            kind: TaskKind::from_number(row.kind).ok_or_else(|| {
                sqlx::Error::Decode(format!("not a kind of task: {}", row.kind).into())
            })?,
            name: row.name,
            arguments: row.arguments,
            seen: unsigned(row.seen_event_id),
            asked_at: row.asked_at.into(),
            deadline_at: row.deadline_at.into(),
            state: match row.state {
                0 => AskState::Ready,
                1 => AskState::Leased,
                _ => AskState::Answered,
            },
            attempt: unsigned32(row.attempt),
            owner: row.lease_owner.map(WorkerId::from),
            lease_expires_at: row.lease_expires_at.map(Into::into),
            answer: row.answer,
            over: row.over,
        })
    })
    .transpose()
}

/// Answers an ask under its fence. Returns the node whose caller waits; `None` when the fence does not
/// hold.
///
/// # Errors
/// The database cannot be reached.
pub async fn answer(
    pool: &PgPool,
    id: TaskId,
    owner: &WorkerId,
    attempt: u32,
    answer: &str,
) -> sqlx::Result<Option<String>> {
    sqlx::query_scalar(
        "update asks set state = 2, answer = $5
         where run_id = $1 and no = $2 and lease_owner = $3 and attempt = $4 and state = 1
           and deadline_at > clock_timestamp()
         returning node",
    )
    .bind(id.run.to_string())
    .bind(id.no.cast_signed())
    .bind(owner.as_str())
    .bind(attempt.cast_signed())
    .bind(answer)
    .fetch_optional(pool)
    .await
}

/// Makes an ask ready again whose worker never received it. Returns where it waits.
///
/// # Errors
/// The database cannot be reached.
pub async fn give_back(
    pool: &PgPool,
    id: TaskId,
    owner: &WorkerId,
    attempt: u32,
) -> sqlx::Result<Option<(Namespace, TaskQueue)>> {
    let row: Option<(String, String)> = sqlx::query_as(
        "update asks set state = 0, lease_owner = null, lease_expires_at = null, poll_request_id = null
         where run_id = $1 and no = $2 and lease_owner = $3 and attempt = $4 and state = 1
         returning namespace, queue",
    )
    .bind(id.run.to_string())
    .bind(id.no.cast_signed())
    .bind(owner.as_str())
    .bind(attempt.cast_signed())
    .fetch_optional(pool)
    .await?;
    Ok(row.map(|(namespace, queue)| (namespace.into(), queue.into())))
}

/// Makes what a worker holds ready again: its process is gone. Returns where that waits.
///
/// # Errors
/// The database cannot be reached.
pub async fn give_back_all(
    pool: &PgPool,
    namespace: &Namespace,
    owner: &WorkerId,
) -> sqlx::Result<Vec<(TaskId, TaskKind, TaskQueue)>> {
    let rows: Vec<(String, i32, i16, String)> = sqlx::query_as(
        "update asks set state = 0, lease_owner = null, lease_expires_at = null, poll_request_id = null
         where deadline_at > clock_timestamp() and namespace = $1 and lease_owner = $2 and state = 1
         returning run_id, no, kind, queue",
    )
    .bind(namespace.as_str())
    .bind(owner.as_str())
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .filter_map(|(run, no, kind, queue)| Some((run, no, TaskKind::from_number(kind)?, queue)))
        .map(|(run, no, kind, queue)| {
            let id = TaskId {
                run: run_id(&run)?,
                no: unsigned32(no),
            };
            Ok((id, kind, queue.into()))
        })
        .collect()
}

/// Nobody waits for the ask any more.
///
/// # Errors
/// The database cannot be reached.
pub async fn withdraw(pool: &PgPool, id: TaskId) -> sqlx::Result<()> {
    sqlx::query(
        "update asks set deadline_at = least(deadline_at, clock_timestamp()) where run_id = $1 and no = $2",
    )
    .bind(id.run.to_string())
    .bind(id.no.cast_signed())
    .execute(pool)
    .await?;
    Ok(())
}

/// Forgets asks that are long over. Returns how many.
///
/// # Errors
/// The database cannot be reached.
pub async fn forget_old(pool: &PgPool, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query(
        "delete from asks a using (
             select run_id, no from asks where deadline_at < clock_timestamp() - $1 * interval '1 second'
             order by deadline_at limit $2 for update skip locked) o
         where a.run_id = o.run_id and a.no = o.no",
    )
    .bind(KEPT_SECONDS)
    .bind(limit)
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}
