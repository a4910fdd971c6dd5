//! Which of many queues have ready tasks: one question for all of them.

use super::pool::PgPool;
use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::routing::TaskKind;
use crate::domain::time::Timestamp;

/// A queue, and where in the order of hand-outs the look at it begins.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Namespace.
    pub namespace: &'a Namespace,
    /// Queue.
    pub queue: &'a TaskQueue,
    /// Kind of tasks.
    pub kind: TaskKind,
    /// What lies before it is not looked at, unless its tasks differ in class, run in sessions or are asks.
    pub from: Position,
}

type Row = (i64, Option<i16>, Option<chrono::DateTime<chrono::Utc>>);

/// Those of the queues, by their place in the list, that have a task which is ready, whoever may take it, and where
/// the first one lies. Where it is of a class, of a session or an ask, that is [`Position::END`]. One of a class may
/// be for later.
///
/// # Errors
/// The database cannot be reached.
pub async fn ready(pool: &PgPool, queues: &[Place<'_>]) -> sqlx::Result<Vec<(usize, Position)>> {
    let namespaces: Vec<&str> = queues.iter().map(|one| one.namespace.as_str()).collect();
    let names: Vec<&str> = queues.iter().map(|one| one.queue.as_str()).collect();
    let kinds: Vec<i16> = queues.iter().map(|one| one.kind.number()).collect();
    let priorities: Vec<i16> = queues.iter().map(|one| one.from.priority.into()).collect();
    let ages: Vec<_> = queues
        .iter()
        .map(|one| one.from.ready_at.to_chrono())
        .collect();
    let rows: Vec<Row> = sqlx::query_as(
        "with n as materialized (select clock_timestamp() as now)
         select q.place, h.priority, h.visible_at
         from unnest($1::text[], $2::text[], $3::smallint[], $4::smallint[], $5::timestamptz[])
             with ordinality q(namespace, queue, kind, from_priority, from_age, place),
         lateral (
             (select priority, visible_at from tasks
              where state = 0 and session_id is null and fairness_key is null
                and namespace = q.namespace and queue = q.queue and kind = q.kind
                and (priority, visible_at) >= (q.from_priority, q.from_age)
                and visible_at <= (select now from n)
              order by priority, visible_at limit 1)
             union all
             (select null, null from tasks
              where state = 0 and session_id is null and fairness_key is not null
                and namespace = q.namespace and queue = q.queue and kind = q.kind
              order by priority, fairness_key, visible_at limit 1)
             union all
             (select null, null from tasks
              where q.kind = 1 and state = 0 and session_id is not null
                and namespace = q.namespace and queue = q.queue and kind = 1
                and visible_at <= (select now from n)
              order by session_id limit 1)
             union all
             (select null, null from asks
              where state = 0 and namespace = q.namespace and queue = q.queue and kind = q.kind
                and deadline_at > (select now from n)
              order by asked_at limit 1)
             limit 1) h",
    )
    .bind(namespaces)
    .bind(names)
    .bind(kinds)
    .bind(priorities)
    .bind(ages)
    .fetch_all(pool)
    .await?;
    let found = rows.into_iter().filter_map(|(place, priority, ready_at)| {
        let at = priority
            .zip(ready_at)
            .map_or(Position::END, |(priority, ready_at)| {
                let priority = u8::try_from(priority).unwrap_or(u8::MAX);
                Position::of_age(priority, Timestamp::from(ready_at))
            });
        Some((usize::try_from(place - 1).ok()?, at))
    });
    Ok(found.collect())
}
