//! What nodes saw of queues in the last minute: each writes its own counts, and reads those of the others.

use std::collections::HashMap;

use super::pool::PgPool;
use super::unsigned;
use crate::domain::ids::{Namespace, TaskQueue};
use crate::domain::list::Flow;

/// Seconds after which the counts of a node that has fallen silent are no longer true.
const STALE_SECONDS: i64 = 15;

/// Writes what a node counted in the last minute, and forgets what nodes wrote long ago.
///
/// # Errors
/// The database cannot be reached.
pub async fn write(
    pool: &PgPool,
    node: &str,
    counted: &[(Namespace, TaskQueue, Flow)],
) -> sqlx::Result<()> {
    let long = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let namespaces: Vec<&str> = counted
        .iter()
        .map(|(namespace, ..)| namespace.as_str())
        .collect();
    let queues: Vec<&str> = counted.iter().map(|(_, queue, _)| queue.as_str()).collect();
    let added: Vec<i64> = counted.iter().map(|(.., flow)| long(flow.added)).collect();
    let dispatched: Vec<i64> = counted
        .iter()
        .map(|(.., flow)| long(flow.dispatched))
        .collect();
    sqlx::query(
        "with old as (delete from queue_flows where noted_at < clock_timestamp() - interval '2 minutes' and node <> $1)
         insert into queue_flows (namespace, queue, node, added, dispatched, noted_at)
         select namespace, queue, $1, added, dispatched, clock_timestamp()
         from unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[]) f(namespace, queue, added, dispatched)
         on conflict (namespace, queue, node) do update set added = excluded.added,
             dispatched = excluded.dispatched, noted_at = excluded.noted_at",
    )
    .bind(node)
    .bind(namespaces)
    .bind(queues)
    .bind(added)
    .bind(dispatched)
    .execute(pool)
    .await?;
    Ok(())
}

/// What the other nodes counted on the queues of a namespace, or on one of them.
///
/// # Errors
/// The database cannot be reached.
pub async fn of_others(
    pool: &PgPool,
    node: &str,
    namespace: &Namespace,
    queue: Option<&TaskQueue>,
) -> sqlx::Result<HashMap<TaskQueue, Flow>> {
    let rows: Vec<(String, i64, i64)> = sqlx::query_as(
        "select queue, sum(added)::bigint, sum(dispatched)::bigint from queue_flows
         where namespace = $1 and ($2::text is null or queue = $2) and node <> $3
             and noted_at > clock_timestamp() - $4 * interval '1 s'
         group by queue",
    )
    .bind(namespace.as_str())
    .bind(queue.map(TaskQueue::as_str))
    .bind(node)
    .bind(STALE_SECONDS)
    .fetch_all(pool)
    .await?;
    Ok(rows
        .into_iter()
        .map(|(queue, added, dispatched)| {
            let flow = Flow {
                added: unsigned(added),
                dispatched: unsigned(dispatched),
            };
            (queue.as_str().into(), flow)
        })
        .collect())
}
