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

/// Relays that have waited for at least `age_ms`, the oldest events first.
///
/// # Errors
/// The database cannot be reached, or a row cannot be read.
pub async fn waiting(pool: &PgPool, age_ms: i64, limit: i64) -> sqlx::Result<Vec<Waiting>> {
    let rows: Vec<(String, i64, String)> = sqlx::query_as(
        "select run_id, event_id, body from relays
         where created_at <= clock_timestamp() - $1 * interval '1 ms'
         order by run_id, event_id limit $2",
    )
    .bind(age_ms)
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .map(|(from, event, body)| {
            Ok(Waiting {
                from: run_id(&from)?,
                event: unsigned(event),
                relay: serde_json::from_str(&body)
                    .map_err(|error| sqlx::Error::Decode(error.into()))?,
            })
        })
        .collect()
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
         where r.run_id = t.run_id and r.event_id = t.event_id",
    )
    .bind(runs)
    .bind(events)
    .execute(pool)
    .await?;
    Ok(())
}
