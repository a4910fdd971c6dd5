//! Worker sessions. A step on one is a transaction under two advisory locks, first the worker's, then
//! the session's, so that a worker's count and a session's owner cannot change in between.

use sqlx::{FromRow, PgConnection};

use super::pool::PgPool;
use super::{run_id, unsigned32};
use crate::domain::ids::{Namespace, TaskId, TaskQueue, WorkerId};
use crate::domain::routing::Profile;
use crate::domain::session::{Loss, Options, Session, Status};
use crate::domain::time::Timestamp;
use crate::store::claim::{Claimed, ClaimedRow};

type Time = chrono::DateTime<chrono::Utc>;

#[derive(FromRow)]
struct Row {
    namespace: String,
    options: String,
    queue: String,
    status: String,
    lease_owner: String,
    lease_expires_at: Time,
    ttl_expires_at: Time,
    closed_at: Option<Time>,
    failure_reason: Option<String>,
    last_heartbeat_at: Time,
    created_at: Time,
    updated_at: Time,
}

fn broken(what: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("a worker session has {what}").into())
}

impl TryFrom<Row> for Session {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> sqlx::Result<Self> {
        let mut options: Options = serde_json::from_str(&row.options)
            .map_err(|error| broken(&format!("unreadable options: {error}")))?;
        options.queue = Some(row.queue.as_str().into());
        Ok(Self {
            namespace: row.namespace.as_str().into(),
            options,
            status: Status::from_word(&row.status).ok_or_else(|| broken("an unknown status"))?,
            owner: row.lease_owner.as_str().into(),
            lease_expires_at: row.lease_expires_at.into(),
            ttl_expires_at: row.ttl_expires_at.into(),
            closed_at: row.closed_at.map(Into::into),
            loss: row.failure_reason.as_deref().and_then(Loss::from_word),
            last_heartbeat_at: row.last_heartbeat_at.into(),
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        })
    }
}

/// What is known when a step on a session begins.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The session, with what time has done to it.
    pub session: Option<Session>,
    /// Sessions that the worker owns, this one apart.
    pub owned: u32,
    /// Activities that run in the session.
    pub running: u32,
    /// Now.
    pub at: Timestamp,
}

/// Locks a worker's sessions and one session, and reads them. The locks end with the transaction.
///
/// # Errors
/// The database cannot be reached.
pub async fn lock(
    connection: &mut PgConnection,
    namespace: &Namespace,
    worker: &WorkerId,
    session_id: &str,
    stale_after_seconds: u64,
) -> sqlx::Result<Scene> {
    sqlx::query(
        "select pg_advisory_xact_lock(hashtextextended($1 || chr(31) || $2, 1)),
             pg_advisory_xact_lock(hashtextextended($1 || chr(31) || $3, 2))",
    )
    .bind(namespace.as_str())
    .bind(worker.as_str())
    .bind(session_id)
    .execute(&mut *connection)
    .await?;
    let (at,): (Time,) = sqlx::query_as("select clock_timestamp()")
        .fetch_one(&mut *connection)
        .await?;
    let at = Timestamp::from(at);
    let session = read_one(
        &mut *connection,
        namespace,
        session_id,
        stale_after_seconds,
        at,
    )
    .await?;
    let queue = session
        .as_ref()
        .and_then(|session| session.options.queue.clone());
    let (owned, running): (i64, i64) = sqlx::query_as(
        "select (select count(*) from worker_sessions s
                 where s.namespace = $1 and s.lease_owner = $2 and s.status = 'active' and s.session_id <> $3
                   and s.lease_expires_at > clock_timestamp() and s.ttl_expires_at > clock_timestamp()),
             (select count(*) from tasks t
                 where t.namespace = $1 and t.queue = $4 and t.session_id = $3 and t.state = 1)",
    )
    .bind(namespace.as_str())
    .bind(worker.as_str())
    .bind(session_id)
    .bind(queue.as_ref().map(TaskQueue::as_str))
    .fetch_one(&mut *connection)
    .await?;
    Ok(Scene {
        session,
        owned: u32::try_from(owned).unwrap_or(u32::MAX),
        running: u32::try_from(running).unwrap_or(u32::MAX),
        at,
    })
}

/// A read of sessions, with whether their owners are gone. Plans are generic, so that one session and
/// all of them are two statements: the first goes by its whole key.
macro_rules! read {
    ($and:literal) => {
        concat!(
            "select s.*, not exists (select from workers w where w.namespace = s.namespace
                and w.worker_id = s.lease_owner
                and w.last_heartbeat_at > clock_timestamp() - $2 * interval '1 s') as owner_gone
            from worker_sessions s where s.namespace = $1 ",
            $and
        )
    };
}

#[derive(FromRow)]
struct RowAndOwner {
    #[sqlx(flatten)]
    row: Row,
    owner_gone: bool,
}

impl RowAndOwner {
    fn settled(self, now: Timestamp) -> sqlx::Result<Session> {
        let mut session = Session::try_from(self.row)?;
        session.settle(self.owner_gone, now);
        Ok(session)
    }
}

async fn read_one(
    executor: impl sqlx::PgExecutor<'_>,
    namespace: &Namespace,
    session_id: &str,
    stale_after_seconds: u64,
    now: Timestamp,
) -> sqlx::Result<Option<Session>> {
    let row: Option<RowAndOwner> = sqlx::query_as(read!("and s.session_id = $3"))
        .bind(namespace.as_str())
        .bind(stale_after_seconds.cast_signed())
        .bind(session_id)
        .fetch_optional(executor)
        .await?;
    row.map(|found| found.settled(now)).transpose()
}

/// One session, with what time has done to it.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(
    pool: &PgPool,
    namespace: &Namespace,
    session_id: &str,
    stale_after_seconds: u64,
    now: Timestamp,
) -> sqlx::Result<Option<Session>> {
    read_one(pool, namespace, session_id, stale_after_seconds, now).await
}

/// Sessions of a namespace by id, with what time has done to them.
///
/// # Errors
/// The database cannot be reached.
pub async fn list(
    pool: &PgPool,
    namespace: &Namespace,
    stale_after_seconds: u64,
    now: Timestamp,
    limit: i64,
) -> sqlx::Result<Vec<Session>> {
    let rows: Vec<RowAndOwner> = sqlx::query_as(read!("order by s.session_id limit $3"))
        .bind(namespace.as_str())
        .bind(stale_after_seconds.cast_signed())
        .bind(limit)
        .fetch_all(pool)
        .await?;
    rows.into_iter().map(|found| found.settled(now)).collect()
}

/// Activities that run in a session.
///
/// # Errors
/// The database cannot be reached.
pub async fn running(pool: &PgPool, session: &Session) -> sqlx::Result<u64> {
    let (count,): (i64,) = sqlx::query_as(
        "select count(*) from tasks where namespace = $1 and queue = $2 and session_id = $3 and state = 1",
    )
    .bind(session.namespace.as_str())
    .bind(session.options.queue.as_ref().map(TaskQueue::as_str))
    .bind(&*session.options.session_id)
    .fetch_one(pool)
    .await?;
    Ok(count.cast_unsigned())
}

/// Writes a session as it is now.
///
/// # Errors
/// The database cannot be reached.
pub async fn write(connection: &mut PgConnection, session: &Session) -> sqlx::Result<()> {
    let options = serde_json::to_string(&session.options)
        .map_err(|error| sqlx::Error::Encode(error.into()))?;
    sqlx::query(
        "insert into worker_sessions (namespace, session_id, options, queue, status, lease_owner, lease_expires_at,
             ttl_expires_at, closed_at, failure_reason, last_heartbeat_at, created_at, updated_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
         on conflict (namespace, session_id) do update set options = excluded.options, queue = excluded.queue,
             status = excluded.status, lease_owner = excluded.lease_owner, lease_expires_at = excluded.lease_expires_at,
             ttl_expires_at = excluded.ttl_expires_at, closed_at = excluded.closed_at,
             failure_reason = excluded.failure_reason, last_heartbeat_at = excluded.last_heartbeat_at,
             updated_at = excluded.updated_at",
    )
    .bind(session.namespace.as_str())
    .bind(&*session.options.session_id)
    .bind(options)
    .bind(session.options.queue.as_ref().map_or("", TaskQueue::as_str))
    .bind(session.status.as_str())
    .bind(session.owner.as_str())
    .bind(session.lease_expires_at.to_chrono())
    .bind(session.ttl_expires_at.to_chrono())
    .bind(session.closed_at.map(Timestamp::to_chrono))
    .bind(session.loss.map(Loss::as_str))
    .bind(session.last_heartbeat_at.to_chrono())
    .bind(session.created_at.to_chrono())
    .bind(session.updated_at.to_chrono())
    .execute(connection)
    .await?;
    Ok(())
}

/// A ready task that runs in a session.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The task.
    pub task: TaskId,
    /// The session that it names.
    pub options: Options,
}

/// Who asks for tasks of sessions.
#[derive(Clone, Debug)]
pub struct Seekers<'a> {
    /// What all of them can take.
    pub profile: &'a Profile,
    /// The workers.
    pub workers: &'a [&'a str],
    /// Capabilities that any of them has.
    pub capabilities: &'a [&'a str],
}

/// Ready tasks whose sessions may take one of these workers now, the most urgent and longest waiting
/// first, and of each session no more than it has room for: what waits for a session that is full,
/// over or another worker's does not stand in front of the rest. Whether a worker enters is decided
/// under the session's lock.
///
/// # Errors
/// The database cannot be reached.
pub async fn candidates(
    pool: &PgPool,
    namespace: &Namespace,
    queue: &TaskQueue,
    seekers: &Seekers<'_>,
    stale_after_seconds: u64,
    limit: i64,
) -> sqlx::Result<Vec<Candidate>> {
    let profile = seekers.profile;
    let rows: Vec<(String, i32, String)> = sqlx::query_as(
        "with n as materialized (select clock_timestamp() as now),
         ready as (
             select t.run_id, t.task_no, t.session, t.session_id, t.priority, t.visible_at,
                 (t.session::json->>'max_concurrent_activities')::bigint as most,
                 row_number() over (partition by t.session_id
                     order by t.priority, t.visible_at, t.run_id, t.task_no) as place
             from tasks t, n
             where t.namespace = $1 and t.queue = $2 and t.session_id is not null and t.state = 0 and t.kind = 1
               and t.visible_at <= n.now
               and t.task_type = any($3) and (t.build_id is null or t.build_id = $4) and (t.needs & ~$5::bigint) = 0
               and not exists (select from json_array_elements_text(t.session::json->'requirements') needed(name)
                   where needed.name <> all($6)))
         select r.run_id, r.task_no, r.session
         from ready r cross join n
             left join worker_sessions s on s.namespace = $1 and s.session_id = r.session_id
         where case
             when s.session_id is null then
                 (r.session::json->>'create_if_missing')::boolean and r.place <= r.most
             when s.status <> 'active' or s.ttl_expires_at <= n.now then false
             when s.lease_expires_at > n.now and exists (select from workers w where w.namespace = $1
                     and w.worker_id = s.lease_owner and w.last_heartbeat_at > n.now - $8 * interval '1 s') then
                 s.lease_owner = any($7) and r.place <= r.most - (select count(*) from tasks h
                     where h.namespace = $1 and h.queue = $2 and h.session_id = r.session_id and h.state = 1)
             else (s.options::json->>'allow_reacquire_after_failure')::boolean
                 and (r.session::json->>'allow_reacquire_after_failure')::boolean and r.place <= r.most
             end
         order by r.priority, r.visible_at, r.run_id, r.task_no limit $9",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(&*profile.types)
    .bind(profile.build_id.as_deref())
    .bind(profile.knows)
    .bind(seekers.capabilities)
    .bind(seekers.workers)
    .bind(stale_after_seconds.cast_signed())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .map(|(run, no, options)| {
            Ok(Candidate {
                task: TaskId {
                    run: run_id(&run)?,
                    no: unsigned32(no),
                },
                options: serde_json::from_str(&options)
                    .map_err(|error| broken(&format!("unreadable options: {error}")))?,
            })
        })
        .collect()
}

/// Whether tasks of sessions are ready in a queue, whoever may take them.
///
/// # Errors
/// The database cannot be reached.
pub async fn any_ready(
    pool: &PgPool,
    namespace: &Namespace,
    queue: &TaskQueue,
) -> sqlx::Result<bool> {
    let (any,): (bool,) = sqlx::query_as(
        "select exists (select from tasks where namespace = $1 and queue = $2 and session_id is not null
             and state = 0 and kind = 1 and visible_at <= clock_timestamp())",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .fetch_one(pool)
    .await?;
    Ok(any)
}

/// Gives a ready task to a worker. `None` when somebody else was faster.
///
/// # Errors
/// The database cannot be reached.
pub async fn take(
    connection: &mut PgConnection,
    task: TaskId,
    worker: &WorkerId,
    poll_request_id: Option<&str>,
    knows: i64,
) -> sqlx::Result<Option<Claimed>> {
    let row: Option<ClaimedRow> = sqlx::query_as(
        "with n as materialized (select clock_timestamp() as now)
         update tasks t set state = 1, attempt = t.attempt + 1, lease_owner = $3,
             lease_expires_at = n.now + t.lease_ms * interval '1 ms',
             start_to_close_at = n.now + t.start_to_close_ms * interval '1 ms',
             heartbeat_due_at = n.now + t.heartbeat_ms * interval '1 ms',
             heartbeat_at = null, heartbeat = null, poll_request_id = $4, holder_knows = $5, seen_event_id = null
         from n where t.run_id = $1 and t.task_no = $2 and t.state = 0 and t.visible_at <= n.now
         returning t.run_id, t.task_no, 1::bigint as place, t.attempt, t.seen_event_id, n.now as leased_at,
             t.lease_expires_at, t.start_to_close_at, t.heartbeat_due_at",
    )
    .bind(task.run.to_string())
    .bind(task.no.cast_signed())
    .bind(worker.as_str())
    .bind(poll_request_id)
    .bind(knows)
    .fetch_optional(connection)
    .await?;
    row.map(Claimed::try_from).transpose()
}

/// Forgets sessions that ended long ago, at most `limit`.
///
/// # Errors
/// The database cannot be reached.
pub async fn forget_old(pool: &PgPool, after_seconds: u64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query(
        "delete from worker_sessions where (namespace, session_id) in (
             select namespace, session_id from worker_sessions
             where greatest(updated_at, least(lease_expires_at, ttl_expires_at)) < clock_timestamp() - $1 * interval '1 s'
               and (status <> 'active' or least(lease_expires_at, ttl_expires_at) < clock_timestamp())
             limit $2 for update skip locked)",
    )
    .bind(after_seconds.cast_signed())
    .bind(limit)
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}
