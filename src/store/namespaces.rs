//! Namespaces.

use super::pool::PgPool;

/// The names of all namespaces.
///
/// # Errors
/// The database cannot be reached.
pub async fn names(pool: &PgPool) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar("select name from namespaces order by name")
        .fetch_all(pool)
        .await
}
