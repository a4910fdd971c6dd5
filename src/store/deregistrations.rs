//! What a deregistration by token came to, for a caller that missed the answer.

use sqlx::PgConnection;

use super::pool::{PgPool, bounded};
use super::unsigned;
use crate::domain::ids::{Namespace, WorkerId};

/// A deregistration that is over.
#[derive(Clone, Copy, Debug)]
pub struct Receipt {
    /// Workflow tasks that went back to their queues.
    pub recovered: u64,
    /// Seconds since then.
    pub age_seconds: u64,
}

/// The receipt of a token.
///
/// # Errors
/// The database cannot be reached.
pub async fn find(
    connection: &mut PgConnection,
    namespace: &Namespace,
    worker_id: &WorkerId,
    token: &str,
) -> sqlx::Result<Option<Receipt>> {
    let read = sqlx::query_as(
        "select recovered, extract(epoch from clock_timestamp() - ended_at)::bigint from deregistrations
         where namespace = $1 and worker_id = $2 and registration_token = $3",
    )
    .bind(namespace.as_str())
    .bind(worker_id.as_str())
    .bind(token)
    .fetch_optional(connection);
    let row: Option<(i64, i64)> = bounded(read).await?;
    Ok(row.map(|(recovered, age)| Receipt {
        recovered: unsigned(recovered),
        age_seconds: unsigned(age),
    }))
}

/// Keeps a receipt. The tasks that the worker holds are counted as the transaction sees them.
///
/// # Errors
/// The database cannot be reached.
pub async fn keep(
    connection: &mut PgConnection,
    namespace: &Namespace,
    worker_id: &WorkerId,
    token: &str,
) -> sqlx::Result<u64> {
    let keep = sqlx::query_scalar(
        "insert into deregistrations (namespace, worker_id, registration_token, recovered, ended_at)
         select $1, $2, $3, count(*), clock_timestamp() from tasks
         where state = 1 and kind = 0 and namespace = $1 and lease_owner = $2
         returning recovered",
    )
    .bind(namespace.as_str())
    .bind(worker_id.as_str())
    .bind(token)
    .fetch_one(connection);
    let recovered: i64 = bounded(keep).await?;
    Ok(unsigned(recovered))
}

/// Forgets receipts that ended long ago, at most `limit`.
///
/// # Errors
/// The database cannot be reached.
pub async fn forget_old(pool: &PgPool, after_seconds: u64, limit: i64) -> sqlx::Result<u64> {
    let done = sqlx::query(
        "delete from deregistrations where (namespace, worker_id, registration_token) in (
             select namespace, worker_id, registration_token from deregistrations
             where ended_at < clock_timestamp() - $1 * interval '1 s' limit $2 for update skip locked)",
    )
    .bind(after_seconds.cast_signed())
    .bind(limit)
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}
