//! What counts against the limits of a queue and its namespace. Where a limit is set, claims take turns
//! under an advisory lock, so that no two nodes use the same room.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::pool::{PgPool, bounded};
use super::unsigned;
use crate::domain::admission::{Limits, Used};
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::routing::TaskKind;

/// Takes the turn of a queue, or of its namespace when that is limited as a whole, until the
/// transaction ends.
///
/// # Errors
/// The database cannot be reached.
pub async fn lock(
    connection: &mut PgConnection,
    limits: Limits,
    kind: TaskKind,
    namespace: &Namespace,
    queue: &TaskQueue,
) -> sqlx::Result<()> {
    let queue = (!limits.namespace_wide()).then_some(queue.as_str());
    let lock = sqlx::query(
        "select pg_advisory_xact_lock(hashtextextended($1 || chr(10) || coalesce($2, '') || chr(10) || $3, 9))",
    )
    .bind(namespace.as_str())
    .bind(queue)
    .bind(kind.as_str())
    .execute(connection);
    bounded(lock).await?;
    Ok(())
}

const USED: &str = "select
         case when $4 then (select count(*) from tasks where state = 1 and namespace = $1 and queue = $2 and kind = $3)
             else 0 end,
         case when $4 then (select count(*) from tasks where state = 1 and namespace = $1 and kind = $3) else 0 end,
         coalesce(sum(d.count) filter (where d.queue = $2), 0)::bigint, coalesce(sum(d.count), 0)::bigint
     from (select 1) one left join dispatches d on d.namespace = $1 and d.kind = $3
         and d.minute = date_trunc('minute', clock_timestamp())";

type Counted = (i64, i64, i64, i64);

fn used((a, b, c, d): Counted) -> Used {
    Used {
        leases_of_queue: unsigned(a),
        leases_of_namespace: unsigned(b),
        dispatches_of_queue: unsigned(c),
        dispatches_of_namespace: unsigned(d),
    }
}

/// What counts against the limits, inside a transaction that has the turn.
///
/// # Errors
/// The database cannot be reached.
pub async fn read(
    connection: &mut PgConnection,
    limits: Limits,
    kind: TaskKind,
    namespace: &Namespace,
    queue: &TaskQueue,
) -> sqlx::Result<Used> {
    let read = sqlx::query_as(USED)
        .bind(namespace.as_str())
        .bind(queue.as_str())
        .bind(kind.number())
        .bind(limits.leases())
        .fetch_one(connection);
    Ok(used(bounded(read).await?))
}

/// What counts against the limits, for an operator.
///
/// # Errors
/// The database cannot be reached.
pub async fn look(
    pool: &PgPool,
    kind: TaskKind,
    namespace: &Namespace,
    queue: &TaskQueue,
) -> sqlx::Result<Used> {
    let counted: Counted = sqlx::query_as(USED)
        .bind(namespace.as_str())
        .bind(queue.as_str())
        .bind(kind.number())
        .bind(true)
        .fetch_one(pool)
        .await?;
    Ok(used(counted))
}

/// Tasks that were handed out in this minute, by kind and queue.
///
/// # Errors
/// The database cannot be reached.
pub async fn dispatched(
    pool: &PgPool,
    namespace: &Namespace,
) -> sqlx::Result<HashMap<(i16, String), u64>> {
    let rows: Vec<(i16, String, i64)> = sqlx::query_as(
        "select kind, queue, count from dispatches
         where namespace = $1 and minute = date_trunc('minute', clock_timestamp())",
    )
    .bind(namespace.as_str())
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|(kind, queue, count)| ((kind, queue), unsigned(count)))
        .collect())
}

/// Counts tasks that were handed out.
///
/// # Errors
/// The database cannot be reached.
pub async fn count(
    connection: &mut PgConnection,
    kind: TaskKind,
    namespace: &Namespace,
    queue: &TaskQueue,
    tasks: usize,
) -> sqlx::Result<()> {
    let count = sqlx::query(
        "insert into dispatches (namespace, kind, minute, queue, count)
         values ($1, $2, date_trunc('minute', clock_timestamp()), $3, $4)
         on conflict (namespace, kind, minute, queue) do update set count = dispatches.count + excluded.count",
    )
    .bind(namespace.as_str())
    .bind(kind.number())
    .bind(queue.as_str())
    .bind(i64::try_from(tasks).unwrap_or(i64::MAX))
    .execute(connection);
    bounded(count).await?;
    Ok(())
}

/// Forgets the counts of minutes that are over.
///
/// # Errors
/// The database cannot be reached.
pub async fn forget_old(pool: &PgPool) -> sqlx::Result<()> {
    sqlx::query("delete from dispatches where minute < clock_timestamp() - interval '2 minutes'")
        .execute(pool)
        .await?;
    Ok(())
}
