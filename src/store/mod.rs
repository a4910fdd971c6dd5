//! All SQL. Writes to runs and tasks go through one door, [`commit`]; the rest are reads, claims and
//! renewals of leases, and plain statements on configuration.

pub mod about;
pub mod admission;
pub mod asks;
pub mod claim;
pub mod commit;
pub mod deregistrations;
pub mod dispatch;
pub mod door;
pub mod flows;
pub mod given;
pub mod history;
pub mod item;
pub mod lane;
pub mod lease;
pub mod lists;
pub mod load;
pub mod migrate;
pub mod namespaces;
pub mod notify;
pub mod others;
mod packed;
pub mod pool;
pub mod ready;
pub mod receipts;
pub mod relays;
pub mod retention;
pub mod rollouts;
mod scratch;
pub mod sessions;
pub mod timers;
pub mod trouble;
pub mod waiting;
pub mod workers;

use std::sync::Arc;

use others::Others;
use pool::PgPool;
use sqlx::postgres::PgConnectOptions;

use crate::domain::ids::RunId;

/// The database as the rest of the server sees it: two small pools. Commits have connections of
/// their own ([`lane`]).
#[derive(Clone)]
pub struct Store {
    /// Reads for callers, and writes to configuration.
    pub reads: PgPool,
    /// Claims, heartbeats and sweeps, with pinned plans.
    pub hot: PgPool,
    /// How to open further connections.
    pub options: PgConnectOptions,
    /// Other nodes on it.
    pub others: Arc<Others>,
}

/// Connections in each pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolSizes {
    /// For callers' reads.
    pub reads: u32,
    /// For claims, heartbeats and sweeps.
    pub hot: u32,
}

/// For claims: of a table that is said to be empty, all of what waits would be collected and sorted for each of them.
const IN_ORDER: &[(&str, &str)] = &[("enable_bitmapscan", "off")];

impl Store {
    /// Opens the pools. Connections are made when they are needed.
    pub fn new(options: PgConnectOptions, sizes: PoolSizes) -> Self {
        let pool = |name: &str, size: u32, settings: &[(&str, &str)]| {
            let options = options
                .clone()
                .application_name(name)
                .options(settings.iter().copied());
            PgPool::new(options, size)
        };
        Self {
            reads: pool(
                "leasehold reads",
                sizes.reads,
                &[
                    ("jit", "off"),
                    ("statement_timeout", "10000"),
                    ("lock_timeout", "3000"),
                    ("idle_in_transaction_session_timeout", "10000"),
                ],
            ),
            hot: pool(
                "leasehold hot",
                sizes.hot,
                &[commit::PINNED, IN_ORDER].concat(),
            ),
            options,
            others: Arc::default(),
        }
    }

    /// Closes the pools; statements that run are finished.
    pub async fn close(&self) {
        self.reads.close().await;
        self.hot.close().await;
    }
}

/// A run id that the database gave back.
///
/// # Errors
/// The column holds something else, which only a foreign writer can cause.
fn run_id(text: &str) -> sqlx::Result<RunId> {
    text.parse()
        .map_err(|_| sqlx::Error::Decode(format!("not a run id: {text:?}").into()))
}

/// A count that the database keeps signed.
fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or_default()
}

/// A small count that the database keeps signed.
fn unsigned32(n: i32) -> u32 {
    u32::try_from(n).unwrap_or_default()
}

/// The database's time.
///
/// # Errors
/// The database cannot be reached.
pub async fn now(pool: &PgPool) -> sqlx::Result<crate::domain::time::Timestamp> {
    let now: chrono::DateTime<chrono::Utc> = sqlx::query_scalar("select clock_timestamp()")
        .fetch_one(pool)
        .await?;
    Ok(now.into())
}

/// How long the database may take to show that it is ready.
const READY_WITHIN: std::time::Duration = std::time::Duration::from_secs(3);

/// Whether the database answers, with the schema that this binary needs.
pub async fn is_ready(pool: &PgPool) -> bool {
    let check = async {
        let mut connection = pool.acquire().await.ok()?;
        migrate::check(&mut connection).await.ok()?;
        connection.whole();
        Some(())
    };
    matches!(
        tokio::time::timeout(READY_WITHIN, check).await,
        Ok(Some(()))
    )
}
