//! What waits on queues and what is held, as operators look at it.

use std::collections::HashMap;

use super::pool::PgPool;
use super::{run_id, unsigned, unsigned32};
use crate::domain::ids::{Namespace, TaskId, TaskQueue};
use crate::domain::list::{ClassBacklog, Held, Lone, Waiting};
use crate::domain::routing::TaskKind;

type Time = chrono::DateTime<chrono::Utc>;

fn kind(number: i16) -> sqlx::Result<TaskKind> {
    TaskKind::from_number(number)
        .ok_or_else(|| sqlx::Error::Decode(format!("not a kind of task: {number}").into()))
}

type WaitingRow = (
    String,
    String,
    i16,
    String,
    Option<String>,
    i64,
    i64,
    i64,
    i64,
);

fn waiting(rows: Vec<WaitingRow>) -> sqlx::Result<Vec<Waiting>> {
    rows.into_iter()
        .map(|row| {
            Ok(Waiting {
                namespace: row.0.as_str().into(),
                queue: row.1.as_str().into(),
                kind: kind(row.2)?,
                task_type: row.3.into(),
                build_id: row.4.map(Into::into),
                needs: row.5,
                tasks: unsigned(row.6),
                blocked: unsigned(row.7),
                age_seconds: unsigned(row.8),
            })
        })
        .collect()
}

/// Ready tasks of a queue, those that the same workers may take together. Tasks whose history some
/// code could not replay count as blocked, whether or not their next try is due.
///
/// # Errors
/// The database cannot be reached.
pub async fn on_queue(
    pool: &PgPool,
    namespace: &Namespace,
    queue: &TaskQueue,
    limit: i64,
) -> sqlx::Result<Vec<Waiting>> {
    let rows: Vec<WaitingRow> = sqlx::query_as(
        "select namespace, queue, kind, task_type, build_id, needs,
             count(*) filter (where visible_at <= clock_timestamp()), count(blocked_by),
             greatest(coalesce(extract(epoch from clock_timestamp() - min(visible_at)), 0), 0)::bigint
         from tasks where namespace = $1 and queue = $2 and state = 0
             and (visible_at <= clock_timestamp() or blocked_by is not null)
         group by 1, 2, 3, 4, 5, 6 order by 9 desc limit $3",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    waiting(rows)
}

/// The ready tasks at the head of every queue: those among the first `depth` of each queue and kind, with
/// and without a fairness key, in groups that the same workers may take. Walks the index from queue to queue, so that a long
/// backlog, ready or not, costs no more than a short one.
///
/// # Errors
/// The database cannot be reached.
pub async fn heads(pool: &PgPool, queues: i64, depth: i64) -> sqlx::Result<Vec<Waiting>> {
    let rows: Vec<WaitingRow> = sqlx::query_as(
        "with recursive q as (
             (select namespace, queue, kind from tasks
              where state = 0 and session_id is null and fairness_key is null
              order by namespace, queue, kind limit 1)
             union all
             select n.namespace, n.queue, n.kind from q cross join lateral (
                 select t.namespace, t.queue, t.kind from tasks t
                 where t.state = 0 and t.session_id is null and t.fairness_key is null
                     and (t.namespace, t.queue, t.kind) > (q.namespace, q.queue, q.kind)
                 order by t.namespace, t.queue, t.kind limit 1) n),
         k as (
             (select namespace, queue, kind from tasks
              where state = 0 and session_id is null and fairness_key is not null
              order by namespace, queue, kind limit 1)
             union all
             select n.namespace, n.queue, n.kind from k cross join lateral (
                 select t.namespace, t.queue, t.kind from tasks t
                 where t.state = 0 and t.session_id is null and t.fairness_key is not null
                     and (t.namespace, t.queue, t.kind) > (k.namespace, k.queue, k.kind)
                 order by t.namespace, t.queue, t.kind limit 1) n)
         select h.namespace, h.queue, h.kind, h.task_type, h.build_id, h.needs, count(*), count(h.blocked_by),
             greatest(coalesce(extract(epoch from clock_timestamp() - min(h.visible_at)), 0), 0)::bigint
         from (
             select h.* from (select * from q limit $1) q cross join lateral (
                 select t.* from tasks t where t.state = 0 and t.session_id is null and t.fairness_key is null
                     and t.namespace = q.namespace and t.queue = q.queue and t.kind = q.kind
                 order by t.priority, t.visible_at, t.run_id, t.task_no limit $2) h
             union all
             select h.* from (select * from k limit $1) k cross join lateral (
                 select t.* from tasks t where t.state = 0 and t.session_id is null and t.fairness_key is not null
                     and t.namespace = k.namespace and t.queue = k.queue and t.kind = k.kind
                 order by t.priority, t.fairness_key, t.visible_at, t.run_id, t.task_no limit $2) h) h
         where h.visible_at <= clock_timestamp() group by 1, 2, 3, 4, 5, 6",
    )
    .bind(queues)
    .bind(depth)
    .fetch_all(pool)
    .await?;
    waiting(rows)
}

type ClassRow = (i16, i16, Option<String>, i16, i64, i64);

/// Ready tasks of a queue by kind, priority and fairness key, in the order of hand-outs. At most
/// `depth` tasks are read; whether that was all is told.
///
/// # Errors
/// The database cannot be reached.
pub async fn by_class(
    pool: &PgPool,
    namespace: &Namespace,
    queue: &TaskQueue,
    depth: i64,
    limit: i64,
) -> sqlx::Result<(Vec<ClassBacklog>, bool)> {
    let rows: Vec<ClassRow> = sqlx::query_as(
        "select kind, priority, fairness_key,
             (array_agg(fairness_weight order by visible_at, run_id, task_no))[1], count(*),
             greatest(extract(epoch from clock_timestamp() - min(visible_at)), 0)::bigint
         from (select * from tasks where namespace = $1 and queue = $2 and state = 0
             and visible_at <= clock_timestamp() limit $3) t
         group by 1, 2, 3 order by 1, 2, 3 nulls first limit $4 + 1",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(depth)
    .bind(limit)
    .fetch_all(pool)
    .await?;
    let read: i64 = rows.iter().map(|row| row.4).sum();
    let shown = usize::try_from(limit).unwrap_or_default();
    let is_whole = rows.len() <= shown && read < depth;
    let classes = rows.into_iter().take(shown).map(|row| {
        Ok(ClassBacklog {
            kind: kind(row.0)?,
            priority: u8::try_from(row.1).unwrap_or(u8::MAX),
            fairness_key: row.2,
            weight: u16::try_from(row.3).unwrap_or(1),
            tasks: unsigned(row.4),
            age_seconds: unsigned(row.5),
        })
    });
    Ok((classes.collect::<sqlx::Result<_>>()?, is_whole))
}

/// The ready tasks of a group, the longest waiting first.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_group(pool: &PgPool, group: &Waiting, limit: i64) -> sqlx::Result<Vec<Lone>> {
    let rows: Vec<(String, i32, String, Option<Time>)> = sqlx::query_as(
        "select t.run_id, t.task_no, r.workflow_id, t.visible_at from tasks t
         join workflow_runs r on r.run_id = t.run_id
         where t.state = 0 and t.namespace = $1 and t.queue = $2 and t.kind = $3 and t.task_type = $4
             and t.build_id is not distinct from $5 and t.needs = $6 and t.visible_at <= clock_timestamp()
         order by t.visible_at, t.run_id, t.task_no limit $7",
    )
    .bind(group.namespace.as_str())
    .bind(group.queue.as_str())
    .bind(group.kind.number())
    .bind(&*group.task_type)
    .bind(group.build_id.as_deref())
    .bind(group.needs)
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .map(|(run, no, workflow_id, since)| {
            Ok(Lone {
                task: TaskId {
                    run: run_id(&run)?,
                    no: unsigned32(no),
                },
                workflow_id: workflow_id.into(),
                since: since.map(Into::into),
            })
        })
        .collect()
}

type HeldRow = (String, i32, i16, String, String, String, Time, i32);

/// Tasks of a queue that workers hold, those that run out first in front.
///
/// # Errors
/// The database cannot be reached.
pub async fn held(
    pool: &PgPool,
    namespace: &Namespace,
    queue: &TaskQueue,
    limit: i64,
) -> sqlx::Result<Vec<Held>> {
    let rows: Vec<HeldRow> = sqlx::query_as(
        "select t.run_id, t.task_no, t.kind, t.task_type, r.workflow_id, t.lease_owner, t.lease_expires_at, t.attempt
         from tasks t join workflow_runs r on r.run_id = t.run_id
         where t.state = 1 and t.namespace = $1 and t.queue = $2 and t.lease_owner is not null
             and t.lease_expires_at is not null
         order by t.lease_expires_at, t.run_id, t.task_no limit $3",
    )
    .bind(namespace.as_str())
    .bind(queue.as_str())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Held {
                task: TaskId {
                    run: run_id(&row.0)?,
                    no: unsigned32(row.1),
                },
                kind: kind(row.2)?,
                task_type: row.3.into(),
                workflow_id: row.4.into(),
                owner: row.5.into(),
                lease_expires_at: row.6.into(),
                attempt: unsigned32(row.7),
            })
        })
        .collect()
}

/// Queries that wait in a namespace, or on one of its queues, by queue.
///
/// # Errors
/// The database cannot be reached.
pub async fn queries(
    pool: &PgPool,
    namespace: &Namespace,
    queue: Option<&TaskQueue>,
) -> sqlx::Result<HashMap<String, u64>> {
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "select queue, count(*) from asks where namespace = $1 and ($2::text is null or queue = $2)
             and kind = 2 and state = 0 and deadline_at > clock_timestamp() group by queue",
    )
    .bind(namespace.as_str())
    .bind(queue.map(TaskQueue::as_str))
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|(queue, count)| (queue, unsigned(count)))
        .collect())
}
