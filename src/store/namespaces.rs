//! Namespaces.

use super::pool::PgPool;
use super::unsigned32;
use crate::domain::ids::Namespace;

/// The names of all namespaces.
///
/// # Errors
/// The database cannot be reached.
pub async fn names(pool: &PgPool) -> sqlx::Result<Vec<String>> {
    sqlx::query_scalar("select name from namespaces order by name")
        .fetch_all(pool)
        .await
}

/// All namespaces, by name, and for how many days each keeps closed runs.
///
/// # Errors
/// The database cannot be reached.
pub async fn retention_days(pool: &PgPool) -> sqlx::Result<Vec<(Namespace, u32)>> {
    let rows: Vec<(String, i32)> =
        sqlx::query_as("select name, retention_days from namespaces order by name")
            .fetch_all(pool)
            .await?;
    Ok(rows
        .into_iter()
        .map(|(name, days)| (name.into(), unsigned32(days)))
        .collect())
}
