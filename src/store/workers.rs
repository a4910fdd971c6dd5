//! Worker registrations. Plain short statements: a registration is configuration, not work.

use super::pool::{PgPool, bounded};
use sqlx::{FromRow, PgConnection, PgExecutor};

use super::{unsigned, unsigned32};
use crate::domain::event::Json;
use crate::domain::ids::{Namespace, TaskQueue, WorkerId};
use crate::domain::worker::{Beat, Description, Registration, Shape, WorkerStatus};

type Time = chrono::DateTime<chrono::Utc>;

#[derive(FromRow)]
struct Row {
    namespace: String,
    worker_id: String,
    epoch: i64,
    status: String,
    task_queues: Vec<String>,
    runtime: String,
    sdk_version: Option<String>,
    build_id: Option<String>,
    workflow_types: Vec<String>,
    activity_types: Vec<String>,
    workflow_definition_fingerprints: String,
    workflow_command_contracts: String,
    capabilities: Vec<String>,
    capability_manifest: Option<String>,
    max_concurrent_workflow_tasks: i32,
    max_concurrent_activity_tasks: i32,
    max_concurrent_worker_sessions: i32,
    task_slots: Option<String>,
    process_metrics: Option<String>,
    heartbeat_interval_seconds: Option<i32>,
    registration_token: Option<String>,
    registered_at: Time,
    updated_at: Time,
    last_heartbeat_at: Time,
}

fn json(text: String) -> sqlx::Result<Json> {
    serde_json::value::RawValue::from_string(text)
        .map(Json::from)
        .map_err(|error| sqlx::Error::Decode(error.into()))
}

impl TryFrom<Row> for Registration {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> sqlx::Result<Self> {
        Ok(Self {
            namespace: row.namespace.into(),
            worker_id: row.worker_id.into(),
            epoch: unsigned(row.epoch),
            status: status_of(&row.status),
            description: Description {
                queues: row.task_queues.into_iter().map(TaskQueue::from).collect(),
                runtime: row.runtime,
                sdk_version: row.sdk_version,
                build_id: row.build_id.map(Into::into),
                workflow_types: row.workflow_types.into(),
                activity_types: row.activity_types.into(),
                fingerprints: serde_json::from_str(&row.workflow_definition_fingerprints)
                    .map_err(|error| sqlx::Error::Decode(error.into()))?,
                contracts: Some(json(row.workflow_command_contracts)?),
                capabilities: row.capabilities,
                capability_manifest: row.capability_manifest.map(json).transpose()?,
                max_workflow_tasks: unsigned32(row.max_concurrent_workflow_tasks),
                max_activity_tasks: unsigned32(row.max_concurrent_activity_tasks),
                max_sessions: unsigned32(row.max_concurrent_worker_sessions),
                slots: row.task_slots.map(json).transpose()?,
                process_metrics: row.process_metrics.map(json).transpose()?,
                heartbeat_interval_seconds: row.heartbeat_interval_seconds.map(unsigned32),
            },
            token: row.registration_token.map(Into::into),
            registered_at: row.registered_at.into(),
            updated_at: row.updated_at.into(),
            last_heartbeat_at: row.last_heartbeat_at.into(),
        })
    }
}

/// The registration, locked until the transaction ends.
///
/// # Errors
/// The database cannot be reached.
pub async fn lock(
    connection: &mut PgConnection,
    namespace: &Namespace,
    worker_id: &WorkerId,
) -> sqlx::Result<Option<Registration>> {
    // The advisory lock also covers a worker id that has no row yet.
    let lock =
        sqlx::query("select pg_advisory_xact_lock(hashtextextended($1 || chr(10) || $2, 7))")
            .bind(namespace.as_str())
            .bind(worker_id.as_str())
            .execute(&mut *connection);
    bounded(lock).await?;
    let read =
        sqlx::query_as("select * from workers where namespace = $1 and worker_id = $2 for update")
            .bind(namespace.as_str())
            .bind(worker_id.as_str())
            .fetch_optional(connection);
    let row: Option<Row> = bounded(read).await?;
    row.map(Registration::try_from).transpose()
}

/// Writes a registration, over an older one of the same worker if there is one.
///
/// # Errors
/// The database cannot be reached.
pub async fn write(connection: &mut PgConnection, worker: &Registration) -> sqlx::Result<()> {
    let said = &worker.description;
    let queues: Vec<&str> = said.queues.iter().map(TaskQueue::as_str).collect();
    let write = sqlx::query(
        "insert into workers (namespace, worker_id, epoch, status, task_queues, runtime, sdk_version, build_id,
             workflow_types, activity_types, workflow_definition_fingerprints, workflow_command_contracts,
             capabilities, capability_manifest, max_concurrent_workflow_tasks, max_concurrent_activity_tasks,
             max_concurrent_worker_sessions, task_slots, process_metrics, heartbeat_interval_seconds,
             registered_at, registration_token, updated_at, last_heartbeat_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
             clock_timestamp(), clock_timestamp())
         on conflict (namespace, worker_id) do update set epoch = excluded.epoch, status = excluded.status,
             task_queues = excluded.task_queues, runtime = excluded.runtime, sdk_version = excluded.sdk_version,
             build_id = excluded.build_id, workflow_types = excluded.workflow_types,
             activity_types = excluded.activity_types,
             workflow_definition_fingerprints = excluded.workflow_definition_fingerprints,
             workflow_command_contracts = excluded.workflow_command_contracts,
             capabilities = excluded.capabilities, capability_manifest = excluded.capability_manifest,
             max_concurrent_workflow_tasks = excluded.max_concurrent_workflow_tasks,
             max_concurrent_activity_tasks = excluded.max_concurrent_activity_tasks,
             max_concurrent_worker_sessions = excluded.max_concurrent_worker_sessions,
             task_slots = excluded.task_slots, process_metrics = excluded.process_metrics,
             heartbeat_interval_seconds = excluded.heartbeat_interval_seconds,
             registration_token = excluded.registration_token,
             updated_at = excluded.updated_at, last_heartbeat_at = excluded.last_heartbeat_at",
    )
    .bind(worker.namespace.as_str())
    .bind(worker.worker_id.as_str())
    .bind(worker.epoch.cast_signed())
    .bind(worker.status.as_str())
    .bind(queues)
    .bind(&said.runtime)
    .bind(said.sdk_version.as_deref())
    .bind(said.build_id.as_deref())
    .bind(&*said.workflow_types)
    .bind(&*said.activity_types)
    .bind(serde_json::to_string(&said.fingerprints).unwrap_or_else(|_| "{}".to_owned()))
    .bind(said.contracts.as_ref().map_or("{}", |contracts| contracts.get()))
    .bind(&said.capabilities)
    .bind(said.capability_manifest.as_ref().map(|manifest| manifest.get()))
    .bind(said.max_workflow_tasks.cast_signed())
    .bind(said.max_activity_tasks.cast_signed())
    .bind(said.max_sessions.cast_signed())
    .bind(said.slots.as_ref().map(|slots| slots.get()))
    .bind(said.process_metrics.as_ref().map(|metrics| metrics.get()))
    .bind(said.heartbeat_interval_seconds.map(u32::cast_signed))
    .bind(worker.registered_at.to_chrono())
    .bind(worker.token.as_deref())
    .execute(connection);
    bounded(write).await?;
    Ok(())
}

/// The registration of one worker.
///
/// # Errors
/// The database cannot be reached.
pub async fn read(
    pool: &PgPool,
    namespace: &Namespace,
    worker_id: &WorkerId,
) -> sqlx::Result<Option<Registration>> {
    let row: Option<Row> =
        sqlx::query_as("select * from workers where namespace = $1 and worker_id = $2")
            .bind(namespace.as_str())
            .bind(worker_id.as_str())
            .fetch_optional(pool)
            .await?;
    row.map(Registration::try_from).transpose()
}

/// The workers of a namespace, or of one of its queues, by id.
///
/// # Errors
/// The database cannot be reached.
pub async fn list<'e>(
    from: impl PgExecutor<'e>,
    namespace: &Namespace,
    queue: Option<&TaskQueue>,
    limit: i64,
) -> sqlx::Result<Vec<Registration>> {
    let rows: Vec<Row> = sqlx::query_as(
        "select * from workers where namespace = $1 and ($2::text is null or $2 = any(task_queues))
         order by worker_id limit $3",
    )
    .bind(namespace.as_str())
    .bind(queue.map(TaskQueue::as_str))
    .bind(limit)
    .fetch_all(from)
    .await?;
    rows.into_iter().map(Registration::try_from).collect()
}

/// Epoch and status of those of these workers that are registered.
///
/// # Errors
/// The database cannot be reached.
pub async fn standings(
    pool: &PgPool,
    keys: &[(&str, &str)],
) -> sqlx::Result<Vec<(Namespace, WorkerId, u64, WorkerStatus)>> {
    let (namespaces, ids): (Vec<&str>, Vec<&str>) = keys.iter().copied().unzip();
    let rows: Vec<(String, String, i64, String)> = sqlx::query_as(
        "select w.namespace, w.worker_id, w.epoch, w.status
         from unnest($1::text[], $2::text[]) k(namespace, worker_id)
         join workers w on w.namespace = k.namespace and w.worker_id = k.worker_id",
    )
    .bind(namespaces)
    .bind(ids)
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|(namespace, id, epoch, status)| {
            (
                namespace.into(),
                id.into(),
                unsigned(epoch),
                status_of(&status),
            )
        })
        .collect())
}

fn status_of(word: &str) -> WorkerStatus {
    match word {
        "draining" => WorkerStatus::Draining,
        _ => WorkerStatus::Active,
    }
}

type ShapeRow = (
    String,
    Vec<String>,
    Vec<String>,
    Vec<String>,
    Option<String>,
    Vec<String>,
);

/// The shapes of all live workers that take tasks.
///
/// # Errors
/// The database cannot be reached.
pub async fn shapes(
    pool: &PgPool,
    stale_after_seconds: u64,
    limit: i64,
) -> sqlx::Result<Vec<Shape>> {
    let rows: Vec<ShapeRow> = sqlx::query_as(
        "select distinct namespace, task_queues, workflow_types, activity_types, build_id, capabilities
         from workers where status = 'active' and last_heartbeat_at > clock_timestamp() - $1 * interval '1 s'
         limit $2",
    )
    .bind(stale_after_seconds.cast_signed())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Shape {
            namespace: row.0.into(),
            queues: row.1.into_iter().map(TaskQueue::from).collect(),
            workflow_types: row.2.into(),
            activity_types: row.3.into(),
            build_id: row.4.map(Into::into),
            capabilities: row.5,
        })
        .collect())
}

/// Notes that a worker is alive. `None` when it is not registered.
///
/// # Errors
/// The database cannot be reached.
pub async fn beat(
    pool: &PgPool,
    namespace: &Namespace,
    worker_id: &WorkerId,
    beat: &Beat,
) -> sqlx::Result<Option<Registration>> {
    let row: Option<Row> = sqlx::query_as(
        "update workers set last_heartbeat_at = clock_timestamp(),
             task_slots = coalesce((coalesce(task_slots, '{}')::jsonb || $3::jsonb)::text, task_slots),
             process_metrics = coalesce($4, process_metrics),
             heartbeat_interval_seconds = coalesce($5, heartbeat_interval_seconds)
         where namespace = $1 and worker_id = $2 returning *",
    )
    .bind(namespace.as_str())
    .bind(worker_id.as_str())
    .bind(beat.slots.as_deref())
    .bind(beat.process_metrics.as_deref())
    .bind(beat.heartbeat_interval_seconds.map(u32::cast_signed))
    .fetch_optional(pool)
    .await?;
    row.map(Registration::try_from).transpose()
}

/// Says of all workers of a build on a queue whether they drain, as the rollouts of their queues have it.
/// Returns those that this changed.
///
/// # Errors
/// The database cannot be reached.
pub async fn stamp(
    connection: &mut PgConnection,
    namespace: &Namespace,
    queue: &TaskQueue,
    build: Option<&str>,
) -> sqlx::Result<Vec<Registration>> {
    let stamp = sqlx::query_as(
        "with w as materialized (
             select w.worker_id, case when exists (
                     select from build_id_rollouts r where r.namespace = w.namespace
                         and r.queue = any(w.task_queues) and r.build_id = coalesce(w.build_id, '')
                         and r.drain_intent = 'draining')
                 then 'draining' else 'active' end as status
             from workers w
             where w.namespace = $1 and $2 = any(w.task_queues) and w.build_id is not distinct from $3
             order by w.worker_id for update of w)
         update workers t set status = w.status, updated_at = clock_timestamp()
         from w where t.namespace = $1 and t.worker_id = w.worker_id and t.status <> w.status
         returning t.*",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(build)
    .fetch_all(connection);
    let rows: Vec<Row> = bounded(stamp).await?;
    rows.into_iter().map(Registration::try_from).collect()
}

/// Removes a registration inside a transaction.
///
/// # Errors
/// The database cannot be reached.
pub async fn remove_in(
    connection: &mut PgConnection,
    namespace: &Namespace,
    worker_id: &WorkerId,
) -> sqlx::Result<()> {
    let remove = sqlx::query("delete from workers where namespace = $1 and worker_id = $2")
        .bind(namespace.as_str())
        .bind(worker_id.as_str())
        .execute(connection);
    bounded(remove).await?;
    Ok(())
}

/// Removes a registration. Returns whether there was one.
///
/// # Errors
/// The database cannot be reached.
pub async fn remove(
    pool: &PgPool,
    namespace: &Namespace,
    worker_id: &WorkerId,
) -> sqlx::Result<bool> {
    let done = sqlx::query("delete from workers where namespace = $1 and worker_id = $2")
        .bind(namespace.as_str())
        .bind(worker_id.as_str())
        .execute(pool)
        .await?;
    Ok(done.rows_affected() > 0)
}
