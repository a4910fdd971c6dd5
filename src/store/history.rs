//! History as it is served: ranges of stored events, cut in the server and never in SQL.

use super::pool::PgPool;
use serde_json::value::RawValue;

use super::{packed, unsigned};
use crate::domain::ids::RunId;

/// A batch of events as stored, with the number of its first one.
type Stored = (i64, i32, Vec<u8>);

/// The events `from..=to` of a run as JSON objects separated by commas, without brackets, and how
/// many they are.
///
/// # Errors
/// The database cannot be reached, or a stored batch is not JSON.
pub async fn range(pool: &PgPool, run: RunId, from: u64, to: u64) -> sqlx::Result<(String, u64)> {
    let batches: Vec<Stored> = sqlx::query_as(
        "select first_event_id, event_count, events from history_batches
         where run_id = $1 and event_count > 0
           and first_event_id >= coalesce((select first_event_id from history_batches
                where run_id = $1 and first_event_id <= $2 and event_count > 0
                order by first_event_id desc limit 1), 0)
           and first_event_id <= $3
         order by first_event_id",
    )
    .bind(run.to_string())
    .bind(from.cast_signed())
    .bind(to.cast_signed())
    .fetch_all(pool)
    .await?;
    let mut page = String::new();
    let mut count = 0;
    for (first, events_in_batch, events) in &batches {
        let events = &packed::unpack(events)?;
        let first = unsigned(*first);
        let last = first + unsigned(i64::from(*events_in_batch)) - 1;
        count += append(&mut page, first, last, events, from, to)
            .map_err(|error| sqlx::Error::Decode(error.into()))?;
    }
    Ok((page, count))
}

/// Appends those events of one batch that lie in `from..=to`, and says how many.
///
/// # Errors
/// The batch is not a list of JSON objects.
pub fn append(
    page: &mut String,
    first: u64,
    last: u64,
    events: &str,
    from: u64,
    to: u64,
) -> serde_json::Result<u64> {
    if last < from || first > to {
        return Ok(0);
    }
    if !page.is_empty() {
        page.push(',');
    }
    if first >= from && last <= to {
        page.push_str(events);
        return Ok(last - first + 1);
    }
    let listed = format!("[{events}]");
    let split: Vec<&RawValue> = serde_json::from_str(&listed)?;
    let mut count = 0;
    for (event, number) in split.iter().zip(first..) {
        if (from..=to).contains(&number) {
            if count > 0 {
                page.push(',');
            }
            page.push_str(event.get());
            count += 1;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_cut_at_both_ends() -> serde_json::Result<()> {
        let batches = [
            (1, 2, r#"{"n":1},{"n":2,"t":"a,b]"}"#),
            (3, 3, r#"{"n":3}"#),
            (4, 6, r#"{"n":4},{"n":5},{"n":6}"#),
        ];
        let cut = |from, to| -> serde_json::Result<(String, u64)> {
            let mut page = String::new();
            let mut count = 0;
            for (first, last, events) in batches {
                count += append(&mut page, first, last, events, from, to)?;
            }
            Ok((page, count))
        };
        for from in 1..=6 {
            for to in from..=6 {
                let (page, count) = cut(from, to)?;
                let events: Vec<serde_json::Value> = serde_json::from_str(&format!("[{page}]"))?;
                let numbers: Vec<u64> = events.iter().filter_map(|e| e["n"].as_u64()).collect();
                assert_eq!(numbers, (from..=to).collect::<Vec<_>>());
                assert_eq!(count, to - from + 1);
            }
        }
        Ok(())
    }
}
