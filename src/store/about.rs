//! What the database says about itself, for whoever looks for trouble.

use sqlx::PgConnection;

/// A server and the settings that decide whether it keeps what it acknowledged.
#[derive(Clone, Debug)]
pub struct About {
    /// Version of PostgreSQL.
    pub version: String,
    /// `fsync`
    pub fsync: String,
    /// `synchronous_commit`
    pub synchronous_commit: String,
    /// `full_page_writes`
    pub full_page_writes: String,
    /// Its clock, in milliseconds since 1970.
    pub clock_ms: i64,
}

/// Asks the database.
///
/// # Errors
/// It does not answer.
pub async fn ask(connection: &mut PgConnection) -> sqlx::Result<About> {
    let (version, fsync, synchronous_commit, full_page_writes, clock_ms) = sqlx::query_as(
        "select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
             current_setting('full_page_writes'), (extract(epoch from clock_timestamp()) * 1000)::bigint",
    )
    .fetch_one(connection)
    .await?;
    Ok(About {
        version,
        fsync,
        synchronous_commit,
        full_page_writes,
        clock_ms,
    })
}
