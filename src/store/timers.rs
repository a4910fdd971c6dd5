//! Timer rows: which are due, and when the next one will be.

use sqlx::FromRow;

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
    /// When it was to fire.
    pub at: Timestamp,
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

#[derive(FromRow)]
struct Row {
    at: Time,
    run_id: Option<String>,
    kind: Option<i16>,
    no: Option<i32>,
    due_at: Option<Time>,
}

/// Timers that are due, and when the next one will be.
///
/// # Errors
/// The database cannot be reached.
pub async fn look(pool: &PgPool, limit: i64) -> sqlx::Result<Look> {
    // One statement, because an idle server takes it every second. The time is in a row of its own, so
    // that it is one value for all timers and can be looked up in their index.
    let rows: Vec<Row> = sqlx::query_as(
        "with n as materialized (select clock_timestamp() as at)
         select n.at, t.run_id, t.kind, t.no, t.due_at from n left join lateral (
             select run_id, kind, no, due_at from timers where due_at <= n.at + $2 * interval '1 ms'
             order by due_at, run_id limit $1) t on true
         order by t.due_at, t.run_id",
    )
    .bind(limit)
    .bind(HORIZON_MS)
    .fetch_all(pool)
    .await?;
    let at = rows.first().ok_or(sqlx::Error::RowNotFound)?.at;
    let mut next_ms = None;
    let mut due = Vec::new();
    for row in rows {
        // The only row of a look that found nothing has no timer.
        let (Some(run), Some(kind), Some(no), Some(due_at)) =
            (row.run_id, row.kind, row.no, row.due_at)
        else {
            continue;
        };
        if due_at > at {
            next_ms = Some(unsigned((due_at - at).num_milliseconds()) + 1);
            break;
        }
        let kind = TimerKind::from_number(kind)
            .ok_or_else(|| sqlx::Error::Decode(format!("not a timer kind: {kind}").into()))?;
        due.push(Due {
            run: run_id(&run)?,
            key: TimerKey {
                kind,
                no: unsigned32(no),
            },
            at: due_at.into(),
        });
    }
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
pub async fn discard(pool: &PgPool, run: RunId, key: TimerKey) -> sqlx::Result<()> {
    sqlx::query(
        "delete from timers where run_id = $1 and kind = $2 and no = $3 and due_at <= clock_timestamp()",
    )
    .bind(run.to_string())
    .bind(key.kind.number())
    .bind(key.no.cast_signed())
    .execute(pool)
    .await?;
    Ok(())
}
