//! The schema: embedded migrations, run under a lock of the database, and its version.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// The schema and this binary do not fit.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// The database cannot be reached.
    #[error("the database cannot be reached: {0}")]
    Unreachable(#[from] sqlx::Error),
    /// A migration failed.
    #[error("a migration failed: {0}")]
    Failed(MigrateError),
    /// The schema is newer than the binary.
    #[error(
        "the database schema is at version {schema}, this binary knows up to {known}; upgrade the binary"
    )]
    Newer {
        /// Version of the schema.
        schema: i64,
        /// Newest version that the binary knows.
        known: i64,
    },
    /// The schema is older than the binary, and nobody migrated it.
    #[error(
        "the database schema is at version {schema}, this binary needs {known}; run `leasehold migrate`"
    )]
    Older {
        /// Version of the schema.
        schema: i64,
        /// Version that the binary needs.
        known: i64,
    },
}

/// The newest schema version that this binary knows.
pub fn known_version() -> i64 {
    MIGRATOR
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0)
}

/// Brings the schema up to date. Safe to run from several nodes at once.
///
/// # Errors
/// The database cannot be reached, a migration fails, or the schema is newer than this binary.
pub async fn run(options: &PgConnectOptions) -> Result<(), SchemaError> {
    let mut connection = PgConnection::connect_with(options).await?;
    let schema = current(&mut connection).await?;
    let known = known_version();
    if schema > known {
        return Err(SchemaError::Newer { schema, known });
    }
    MIGRATOR
        .run(&mut connection)
        .await
        .map_err(SchemaError::Failed)?;
    Ok(connection.close().await?)
}

/// Checks that the schema is exactly the one that this binary needs.
///
/// # Errors
/// It is another one, or the database cannot be reached.
pub async fn check(connection: &mut PgConnection) -> Result<(), SchemaError> {
    let schema = current(connection).await?;
    let known = known_version();
    match schema.cmp(&known) {
        std::cmp::Ordering::Less => Err(SchemaError::Older { schema, known }),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(SchemaError::Newer { schema, known }),
    }
}

/// The version of the schema; 0 for an empty database.
///
/// # Errors
/// The database cannot be reached.
pub async fn current(connection: &mut PgConnection) -> sqlx::Result<i64> {
    let exists: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(0);
    }
    sqlx::query_scalar("select coalesce(max(version), 0) from _sqlx_migrations where success")
        .fetch_one(connection)
        .await
}
