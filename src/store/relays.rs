//! Relays: what runs have to tell other runs. They are written through the door, and read and removed
//! here.

use super::pool::PgPool;

use super::{run_id, unsigned};
use crate::domain::decision::Relay;
use crate::domain::ids::RunId;

/// A relay that nobody has taken yet.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The run that says it.
    pub from: RunId,
    /// The event that says so there.
    pub event: u64,
    /// What it says.
    pub relay: Relay,
}

/// Some of the relays that wait.
#[derive(Debug)]
pub struct Page {
    /// The relays.
    pub relays: Vec<Waiting>,
    /// Where the next page begins, if there may be one.
    pub next: Option<(RunId, u64)>,
}

/// Relays behind `after` that have waited for at least `age_ms`, by run and event. One that cannot be
/// read is a defect of its own: it is logged and stays.
///
/// # Errors
/// The database cannot be reached.
pub async fn waiting(
    pool: &PgPool,
    age_ms: i64,
    after: Option<(RunId, u64)>,
    limit: i64,
) -> sqlx::Result<Page> {
    let (run, event) = after.map_or((String::new(), 0), |(run, event)| (run.to_string(), event));
    let rows: Vec<(String, i64, String)> = sqlx::query_as(
        "select run_id, event_id, body from relays
         where created_at <= clock_timestamp() - $1 * interval '1 ms' and (run_id, event_id) > ($2, $3)
         order by run_id, event_id limit $4",
    )
    .bind(age_ms)
    .bind(run)
    .bind(event.cast_signed())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    let next = match rows.last() {
        Some((run, event, _)) if rows.len() as i64 >= limit => {
            Some((run_id(run)?, unsigned(*event)))
        }
        _ => None,
    };
    let mut relays = Vec::with_capacity(rows.len());
    for (from, event, body) in rows {
        match serde_json::from_str(&body) {
            Ok(relay) => relays.push(Waiting {
                from: run_id(&from)?,
                event: unsigned(event),
                relay,
            }),
            Err(error) => {
                tracing::error!(error = %error, run = from, event, "a relay cannot be read");
            }
        }
    }
    Ok(Page { relays, next })
}

/// Removes relays that were taken.
///
/// # Errors
/// The database cannot be reached.
pub async fn taken(pool: &PgPool, taken: &[(RunId, u64)]) -> sqlx::Result<()> {
    let runs: Vec<String> = taken.iter().map(|(run, _)| run.to_string()).collect();
    let events: Vec<i64> = taken
        .iter()
        .map(|(_, event)| i64::try_from(*event).unwrap_or(i64::MAX))
        .collect();
    sqlx::query(
        "delete from relays r using unnest($1::text[], $2::bigint[]) t(run_id, event_id)
         where r.run_id = any($1) and r.run_id = t.run_id and r.event_id = t.event_id",
    )
    .bind(runs)
    .bind(events)
    .execute(pool)
    .await?;
    Ok(())
}
