//! The database as the tool sees it: its settings and its counters. Nothing of the server's tables.

use std::str::FromStr;

use serde_json::{Map, Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, Row};

/// Settings without which a figure is not one of a durable database.
const DURABLE: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];

/// Counters of one database at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Transactions, committed or not.
    pub transactions: i64,
    /// Blocks found in memory.
    pub blocks_hit: i64,
    /// Blocks read.
    pub blocks_read: i64,
    /// Bytes of write-ahead log since the beginning of time.
    pub wal: i64,
    /// Dead rows in all tables.
    pub dead_rows: i64,
}

/// How to reach it.
#[derive(Clone)]
pub struct Database {
    options: PgConnectOptions,
}

impl Database {
    /// Reads `postgres://…`.
    ///
    /// # Errors
    /// It is not such a text.
    pub fn new(url: &str) -> Result<Self, String> {
        let options = PgConnectOptions::from_str(url).map_err(text)?;
        Ok(Self {
            options: options.application_name("leasehold-load"),
        })
    }

    /// A connection of its own.
    ///
    /// # Errors
    /// The database is not there.
    pub async fn connect(&self) -> Result<PgConnection, String> {
        PgConnection::connect_with(&self.options)
            .await
            .map_err(text)
    }

    /// Another database of the same server, made anew, and its URL.
    ///
    /// # Errors
    /// It cannot be made.
    pub async fn scratch(&self, scratch: &Scratch) -> Result<(Self, String), String> {
        let mut connection = self.connect().await?;
        for statement in [scratch.drop, scratch.create] {
            sqlx::raw_sql(statement)
                .execute(&mut connection)
                .await
                .map_err(text)?;
        }
        let options = self.options.clone().database(scratch.name);
        let url = sqlx::ConnectOptions::to_url_lossy(&options).to_string();
        Ok((Self { options }, url))
    }

    /// Removes what [`Self::scratch`] made.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn remove_scratch(&self, scratch: &Scratch) -> Result<(), String> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql(scratch.drop)
            .execute(&mut connection)
            .await
            .map_err(text)?;
        Ok(())
    }
}

/// A database that the tool makes and removes.
pub struct Scratch {
    name: &'static str,
    drop: &'static str,
    create: &'static str,
}

/// The one that the tool's own servers run on.
pub const SERVERS: Scratch = Scratch {
    name: "leasehold_load",
    drop: "drop database if exists leasehold_load with (force)",
    create: "create database leasehold_load",
};

/// One without a server.
pub const BARE: Scratch = Scratch {
    name: "leasehold_load_bare",
    drop: "drop database if exists leasehold_load_bare with (force)",
    create: "create database leasehold_load_bare",
};

/// An error as a sentence.
pub fn text(error: impl std::fmt::Display) -> String {
    format!("database: {error}")
}

/// Durable settings and the version, as the server of the connection has them.
///
/// # Errors
/// They cannot be read, or the database is not durable.
pub async fn settings(connection: &mut PgConnection) -> Result<Value, String> {
    let mut all = Map::new();
    for name in DURABLE
        .into_iter()
        .chain(["server_version", "shared_buffers"])
    {
        let value: String = sqlx::query_scalar("select current_setting($1)")
            .bind(name)
            .fetch_one(&mut *connection)
            .await
            .map_err(text)?;
        if DURABLE.contains(&name) && value != "on" {
            return Err(format!("{name} is {value}: this is not a durable database"));
        }
        all.insert(name.to_owned(), json!(value));
    }
    Ok(Value::Object(all))
}

/// The process id of the postmaster, when it runs on this machine and may be known.
pub async fn postmaster(connection: &mut PgConnection) -> Option<u32> {
    let dir: String = sqlx::query_scalar("select current_setting('data_directory')")
        .fetch_one(connection)
        .await
        .ok()?;
    let lock = std::fs::read_to_string(std::path::Path::new(&dir).join("postmaster.pid")).ok()?;
    lock.lines().next()?.trim().parse().ok()
}

/// The counters now.
///
/// # Errors
/// They cannot be read.
pub async fn counters(connection: &mut PgConnection) -> Result<Counters, String> {
    let row = sqlx::query(
        "select xact_commit + xact_rollback, blks_hit, blks_read, \
         (pg_current_wal_insert_lsn() - '0/0')::bigint, \
         (select coalesce(sum(n_dead_tup), 0)::bigint from pg_stat_user_tables) \
         from pg_stat_database where datname = current_database()",
    )
    .fetch_one(connection)
    .await
    .map_err(text)?;
    Ok(Counters {
        transactions: row.get(0),
        blocks_hit: row.get(1),
        blocks_read: row.get(2),
        wal: row.get(3),
        dead_rows: row.get(4),
    })
}
