//! `leasehold doctor`: what is configured, from where, and whether it works.

use std::net::TcpListener;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sqlx::{Connection, PgConnection};

use super::common::{self, say};
use crate::config::Loaded;
use crate::store::{about, migrate};

/// Clocks that differ by more than this are worth a word, in milliseconds.
const CLOCK_DIFFERENCE_MS: i64 = 1_000;

pub(super) fn run(loaded: &Loaded) -> Result<(), String> {
    say("Settings");
    let settings = serde_json::to_value(&loaded.settings).unwrap_or_default();
    print(loaded, "", &settings);
    let mut problems = Vec::new();
    say("\nAddress");
    match loaded.settings.address().map(TcpListener::bind) {
        Ok(Ok(_)) => say(&format!("  {} is free", loaded.settings.listen)),
        Ok(Err(error)) => problems.push(format!("{}: {error}", loaded.settings.listen)),
        Err(error) => problems.push(error.to_string()),
    }
    say("\nDatabase");
    match common::database(&loaded.settings) {
        Err(problem) => problems.push(problem),
        Ok(options) => common::runtime()?.block_on(database(&options, &mut problems)),
    }
    if problems.is_empty() {
        say("\nNothing stands in the way.");
        return Ok(());
    }
    Err(problems.join("\n"))
}

fn print(loaded: &Loaded, prefix: &str, value: &Value) {
    if let Value::Object(fields) = value {
        for (key, value) in fields {
            let path = if prefix.is_empty() {
                key.clone()
            } else {
                format!("{prefix}.{key}")
            };
            print(loaded, &path, value);
        }
        return;
    }
    say(&format!("  {prefix} = {value} ({})", loaded.source(prefix)));
}

async fn database(options: &sqlx::postgres::PgConnectOptions, problems: &mut Vec<String>) {
    let mut connection = match PgConnection::connect_with(options).await {
        Ok(connection) => connection,
        Err(error) => {
            problems.push(reach(options, &error));
            return;
        }
    };
    match about::ask(&mut connection).await {
        Err(error) => problems.push(format!("the database does not answer: {error}")),
        Ok(about) => {
            say(&format!("  PostgreSQL {}", about.version));
            say(&format!(
                "  fsync={} synchronous_commit={} full_page_writes={}",
                about.fsync, about.synchronous_commit, about.full_page_writes
            ));
            if about.fsync != "on"
                || about.full_page_writes != "on"
                || about.synchronous_commit == "off"
            {
                problems.push("the database may lose acknowledged writes: turn fsync, synchronous_commit and full_page_writes on".to_owned());
            }
            let difference = wall_clock_ms() - about.clock_ms;
            say(&format!(
                "  its clock and this node's differ by {difference} ms"
            ));
            if difference.abs() > CLOCK_DIFFERENCE_MS {
                say("  (deadlines follow the database's clock; logs follow this node's)");
            }
        }
    }
    match migrate::current(&mut connection).await {
        Ok(schema) => {
            say(&format!(
                "  schema {schema}, this binary needs {}",
                migrate::known_version()
            ));
            if schema > migrate::known_version() {
                problems
                    .push("the schema is newer than this binary: upgrade the binary".to_owned());
            }
        }
        Err(error) => problems.push(format!("the schema cannot be read: {error}")),
    }
}

/// This node's clock, in milliseconds since 1970.
fn wall_clock_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Why the database cannot be reached, without its password.
fn reach(options: &sqlx::postgres::PgConnectOptions, error: &sqlx::Error) -> String {
    let place = format!(
        "{}@{}:{}/{}",
        options.get_username(),
        options.get_host(),
        options.get_port(),
        options.get_database().unwrap_or("postgres")
    );
    let hint = match error {
        sqlx::Error::Database(database) => match database.code().as_deref() {
            Some("28P01") => " (wrong password)",
            Some("3D000") => " (there is no such database: create it)",
            _ => "",
        },
        sqlx::Error::Io(_) => " (is PostgreSQL running there?)",
        _ => "",
    };
    format!("{place} cannot be reached: {error}{hint}")
}
