//! Timer rows: which are due, and when the next one will be.

use super::pool::PgPool;

use super::{run_id, unsigned, unsigned32};
use crate::domain::decision::{TimerKey, TimerKind};
use crate::domain::ids::RunId;
use crate::domain::time::Timestamp;

type Time = chrono::DateTime<chrono::Utc>;

/// A timer row that is due.
#[derive(Clone, Copy, Debug)]
pub struct Due {
    /// Its run.
    pub run: RunId,
    /// Which timer of the run.
    pub key: TimerKey,
}

/// What a look at the timers found.
#[derive(Clone, Debug)]
pub struct Look {
    /// Timers that are due, the oldest first.
    pub due: Vec<Due>,
    /// Milliseconds to the next one that is not, if it is at most [`HORIZON_MS`] away.
    pub next_ms: Option<u64>,
    /// When the look was taken.
    pub at: Timestamp,
}

/// How far ahead a look sees.
pub const HORIZON_MS: i64 = 1_000;

/// Timers that are due, and when the next one will be.
///
/// # Errors
/// The database cannot be reached.
pub async fn look(pool: &PgPool, limit: i64) -> sqlx::Result<Look> {
    let at: Time = sqlx::query_scalar("select clock_timestamp()")
        .fetch_one(pool)
        .await?;
    let mut rows: Vec<(String, i16, i32, Time)> = sqlx::query_as(
        "select run_id, kind, no, due_at from timers where due_at <= $2 + $3 * interval '1 ms'
         order by due_at, run_id limit $1",
    )
    .bind(limit)
    .bind(at)
    .bind(HORIZON_MS)
    .fetch_all(pool)
    .await?;
    let ahead = rows.iter().position(|row| row.3 > at).unwrap_or(rows.len());
    let next_ms = rows
        .get(ahead)
        .map(|row| unsigned((row.3 - at).num_milliseconds()) + 1);
    rows.truncate(ahead);
    let due = rows
        .into_iter()
        .map(|(run, kind, no, _)| {
            Ok(Due {
                run: run_id(&run)?,
                key: TimerKey {
                    kind: TimerKind::from_number(kind).ok_or_else(|| {
                        sqlx::Error::Decode(format!("not a timer kind: {kind}").into())
                    })?,
                    no: unsigned32(no),
                },
            })
        })
        .collect::<sqlx::Result<_>>()?;
    Ok(Look {
        due,
        next_ms,
        at: at.into(),
    })
}

/// Removes a due row that its run has no use for.
///
/// # Errors
/// The database cannot be reached.
pub async fn discard(pool: &PgPool, due: Due) -> sqlx::Result<()> {
    sqlx::query(
        "delete from timers where run_id = $1 and kind = $2 and no = $3 and due_at <= clock_timestamp()",
    )
    .bind(due.run.to_string())
    .bind(due.key.kind.number())
    .bind(due.key.no.cast_signed())
    .execute(pool)
    .await?;
    Ok(())
}
