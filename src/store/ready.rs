//! Which of several queues have ready tasks: one question for all of them.

use sqlx::FromRow;
use sqlx::postgres::PgRow;

use super::pool::PgPool;
use crate::domain::dispatch::Position;
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::routing::TaskKind;
use crate::domain::time::Timestamp;

type Time = chrono::DateTime<chrono::Utc>;

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

/// Queues as the arrays of a statement, in the order of its parameters.
struct Columns<'a> {
    namespaces: Vec<&'a str>,
    names: Vec<&'a str>,
    kinds: Vec<i16>,
    priorities: Vec<i16>,
    ages: Vec<Time>,
}

impl<'a> Columns<'a> {
    fn of(queues: &[Place<'a>]) -> Self {
        Self {
            namespaces: queues.iter().map(|one| one.namespace.as_str()).collect(),
            names: queues.iter().map(|one| one.queue.as_str()).collect(),
            kinds: queues.iter().map(|one| one.kind.number()).collect(),
            priorities: queues.iter().map(|one| one.from.priority.into()).collect(),
            ages: queues
                .iter()
                .map(|one| one.from.ready_at.to_chrono())
                .collect(),
        }
    }

    /// Asks a statement whose rows begin with the place of a queue among these, from one.
    async fn ask<R>(self, pool: &PgPool, statement: &'static str) -> sqlx::Result<Vec<R>>
    where
        R: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        sqlx::query_as(statement)
            .bind(self.namespaces)
            .bind(self.names)
            .bind(self.kinds)
            .bind(self.priorities)
            .bind(self.ages)
            .fetch_all(pool)
            .await
    }
}

type Row = (i64, Option<i16>, Option<Time>);

/// Those of the queues, by their place in the list, that have a task which is ready, whoever may take it, and where
/// the first one lies. Where it is of a class, of a session or an ask, that is [`Position::END`]. One of a class may
/// be for later.
///
/// # Errors
/// The database cannot be reached.
pub async fn ready(pool: &PgPool, queues: &[Place<'_>]) -> sqlx::Result<Vec<(usize, Position)>> {
    let statement = "with n as materialized (select clock_timestamp() as now)
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
             limit 1) h";
    let rows: Vec<Row> = Columns::of(queues).ask(pool, statement).await?;
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

/// The places of those queues that have a ready task, the most urgent one first, and of equally urgent
/// ones that with the older task. What a worker can take is not looked at, nor asks, nor what runs in sessions.
///
/// # Errors
/// The database cannot be reached.
pub async fn urgent_first(pool: &PgPool, queues: &[Place<'_>]) -> sqlx::Result<Vec<usize>> {
    let statement = "with n as materialized (select clock_timestamp() as now)
         select q.place from unnest($1::text[], $2::text[], $3::smallint[], $4::smallint[], $5::timestamptz[])
             with ordinality q(namespace, queue, kind, from_priority, from_age, place),
         lateral (
             (select priority, visible_at from tasks
              where state = 0 and session_id is null and fairness_key is null
                and namespace = q.namespace and queue = q.queue and kind = q.kind
                and (priority, visible_at) >= (q.from_priority, q.from_age)
                and visible_at <= (select now from n)
              order by priority, visible_at limit 1)
             union all
             (select priority, visible_at from tasks
              where state = 0 and session_id is null and fairness_key is not null
                and namespace = q.namespace and queue = q.queue and kind = q.kind
                and visible_at <= clock_timestamp()
              order by priority, fairness_key, visible_at limit 1)) h
         group by q.place
         order by min(h.priority), min(h.visible_at), q.place";
    let places: Vec<(i64,)> = Columns::of(queues).ask(pool, statement).await?;
    Ok(places
        .into_iter()
        .filter_map(|(place,)| usize::try_from(place - 1).ok())
        .collect())
}
