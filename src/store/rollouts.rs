//! What operators decided about builds. A change is a transaction under an advisory lock of its namespace,
//! which registrations share, so that no worker of a draining build slips in as an active one.

use sqlx::{FromRow, PgConnection};

use super::pool::{PgPool, bounded};
use super::unsigned;
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::rollout::{Build, Counts, DrainIntent, Rollout, Serving};

type Time = chrono::DateTime<chrono::Utc>;

#[derive(FromRow)]
struct Row {
    build_id: String,
    drain_intent: String,
    drained_at: Option<Time>,
    promoted_at: Option<Time>,
    rolled_back_at: Option<Time>,
    new_start_selected: bool,
    first_seen_at: Time,
}

impl From<Row> for Rollout {
    fn from(row: Row) -> Self {
        Self {
            build_id: read_build(&row.build_id),
            intent: DrainIntent::from_word(&row.drain_intent),
            drained_at: row.drained_at.map(Into::into),
            promoted_at: row.promoted_at.map(Into::into),
            rolled_back_at: row.rolled_back_at.map(Into::into),
            selected: row.new_start_selected,
            first_seen_at: row.first_seen_at.into(),
        }
    }
}

fn read_build(text: &str) -> Build {
    (!text.is_empty()).then(|| text.into())
}

fn build_text(build: &Build) -> &str {
    build.as_deref().unwrap_or_default()
}

/// Keeps registrations and changes to builds of a namespace apart until the transaction ends.
/// Registrations share the lock; a worker of several queues keeps the lock from being a queue's.
///
/// # Errors
/// The database cannot be reached.
pub async fn lock(
    connection: &mut PgConnection,
    namespace: &Namespace,
    is_shared: bool,
) -> sqlx::Result<()> {
    let statement = if is_shared {
        "select pg_advisory_xact_lock_shared(hashtextextended($1, 8))"
    } else {
        "select pg_advisory_xact_lock(hashtextextended($1, 8))"
    };
    let lock = sqlx::query(statement)
        .bind(namespace.as_str())
        .execute(connection);
    bounded(lock).await?;
    Ok(())
}

const READ: &str =
    "select build_id, drain_intent, drained_at, promoted_at, rolled_back_at, new_start_selected,
         first_seen_at
     from build_id_rollouts where namespace = $1 and queue = $2 order by build_id";

/// The builds of a queue that operators have spoken of, inside a transaction.
///
/// # Errors
/// The database cannot be reached.
pub async fn read(
    connection: &mut PgConnection,
    namespace: &Namespace,
    queue: &TaskQueue,
) -> sqlx::Result<Vec<Rollout>> {
    let read = sqlx::query_as(READ)
        .bind(namespace.as_str())
        .bind(queue.as_str())
        .fetch_all(connection);
    let rows: Vec<Row> = bounded(read).await?;
    Ok(rows.into_iter().map(Rollout::from).collect())
}

/// The builds of a queue that operators have spoken of.
///
/// # Errors
/// The database cannot be reached.
pub async fn list(
    pool: &PgPool,
    namespace: &Namespace,
    queue: &TaskQueue,
) -> sqlx::Result<Vec<Rollout>> {
    let rows: Vec<Row> = sqlx::query_as(READ)
        .bind(namespace.as_str())
        .bind(queue.as_str())
        .fetch_all(pool)
        .await?;
    Ok(rows.into_iter().map(Rollout::from).collect())
}

/// The queues of a namespace whose builds operators have spoken of.
///
/// # Errors
/// The database cannot be reached.
pub async fn queues(
    pool: &PgPool,
    namespace: &Namespace,
    limit: i64,
) -> sqlx::Result<Vec<TaskQueue>> {
    let names: Vec<String> = sqlx::query_scalar(
        "select distinct queue from build_id_rollouts where namespace = $1 order by queue limit $2",
    )
    .bind(namespace.as_str())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    Ok(names.into_iter().map(TaskQueue::from).collect())
}

/// Writes what was decided about a build. One that is selected takes the place of the one before it.
///
/// # Errors
/// The database cannot be reached.
pub async fn write(
    connection: &mut PgConnection,
    namespace: &Namespace,
    queue: &TaskQueue,
    rollout: &Rollout,
) -> sqlx::Result<()> {
    if rollout.selected {
        let others = sqlx::query(
            "update build_id_rollouts set new_start_selected = false
             where namespace = $1 and queue = $2 and build_id <> $3 and new_start_selected",
        )
        .bind(namespace.as_str())
        .bind(queue.as_str())
        .bind(build_text(&rollout.build_id))
        .execute(&mut *connection);
        bounded(others).await?;
    }
    let write = sqlx::query(
        "insert into build_id_rollouts (namespace, queue, build_id, drain_intent, drained_at, promoted_at,
             rolled_back_at, new_start_selected, first_seen_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         on conflict (namespace, queue, build_id) do update set drain_intent = excluded.drain_intent,
             drained_at = excluded.drained_at, promoted_at = excluded.promoted_at,
             rolled_back_at = excluded.rolled_back_at, new_start_selected = excluded.new_start_selected",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(build_text(&rollout.build_id))
    .bind(rollout.intent.as_str())
    .bind(rollout.drained_at.map(|at| at.to_chrono()))
    .bind(rollout.promoted_at.map(|at| at.to_chrono()))
    .bind(rollout.rolled_back_at.map(|at| at.to_chrono()))
    .bind(rollout.selected)
    .bind(rollout.first_seen_at.to_chrono())
    .execute(connection);
    bounded(write).await?;
    Ok(())
}

/// Whether a build drains on one of these queues.
///
/// # Errors
/// The database cannot be reached.
pub async fn drains(
    connection: &mut PgConnection,
    namespace: &Namespace,
    queues: &[TaskQueue],
    build: &Build,
) -> sqlx::Result<bool> {
    let names: Vec<&str> = queues.iter().map(TaskQueue::as_str).collect();
    let read = sqlx::query_scalar(
        "select exists(select from build_id_rollouts where namespace = $1 and queue = any($2) and build_id = $3
             and drain_intent = 'draining')",
    )
    .bind(namespace.as_str())
    .bind(names)
    .bind(build_text(build))
    .fetch_one(connection);
    bounded(read).await
}

/// Open workflow tasks of a queue whose history the code of a build could not replay.
///
/// # Errors
/// The database cannot be reached.
pub async fn unreplayable(
    connection: &mut PgConnection,
    namespace: &Namespace,
    queue: &TaskQueue,
    build: &Build,
) -> sqlx::Result<u64> {
    let read = sqlx::query_scalar(
        "select count(*) from tasks where blocked_by is not null and namespace = $1 and queue = $2
             and starts_with(blocked_by, $3 || chr(31))",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(build_text(build))
    .fetch_one(connection);
    let count: i64 = bounded(read).await?;
    Ok(unsigned(count))
}

#[derive(FromRow)]
struct PlacedRow {
    namespace: String,
    queue: String,
    #[sqlx(flatten)]
    row: Row,
}

/// All builds that operators have spoken of, at most `limit`.
///
/// # Errors
/// The database cannot be reached.
pub async fn all(pool: &PgPool, limit: i64) -> sqlx::Result<Vec<(Namespace, TaskQueue, Rollout)>> {
    let rows: Vec<PlacedRow> = sqlx::query_as(
        "select * from build_id_rollouts order by namespace, queue, build_id limit $1",
    )
    .bind(limit)
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|placed| {
            (
                placed.namespace.into(),
                placed.queue.into(),
                placed.row.into(),
            )
        })
        .collect())
}

#[derive(FromRow)]
struct ServingRow {
    queue: String,
    workflow_type: String,
    build_id: Option<String>,
    active: i64,
    draining: i64,
    stale: i64,
}

/// How many workers run each workflow type on these queues, by build.
///
/// # Errors
/// The database cannot be reached.
pub async fn serving(
    pool: &PgPool,
    namespace: &Namespace,
    queues: &[&str],
    workflow_types: &[&str],
    stale_after_seconds: u64,
) -> sqlx::Result<Vec<Serving>> {
    let rows: Vec<ServingRow> = sqlx::query_as(
        "select q.queue, t.workflow_type, w.build_id,
             count(*) filter (where w.status = 'active' and l.live) as active,
             count(*) filter (where w.status <> 'active' and l.live) as draining,
             count(*) filter (where not l.live) as stale
         from workers w
         cross join lateral (select w.last_heartbeat_at > clock_timestamp() - $4 * interval '1 s' as live) l
         cross join lateral (select distinct queue from unnest(w.task_queues) queue where queue = any($2)) q
         cross join lateral (
             select distinct workflow_type from unnest(w.workflow_types) workflow_type
             where workflow_type = any($3)) t
         where w.namespace = $1 group by q.queue, t.workflow_type, w.build_id",
    )
    .bind(namespace.as_str())
    .bind(queues)
    .bind(workflow_types)
    .bind(stale_after_seconds.cast_signed())
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Serving {
            queue: row.queue.into(),
            workflow_type: row.workflow_type.into(),
            build_id: row.build_id.map(Into::into),
            counts: Counts {
                active: unsigned(row.active),
                draining: unsigned(row.draining),
                stale: unsigned(row.stale),
            },
        })
        .collect())
}
