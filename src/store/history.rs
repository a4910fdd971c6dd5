//! History as it is served: ranges of stored events, cut in the server and never in SQL.

use super::pool::PgPool;
use serde_json::value::RawValue;

use super::{packed, unsigned};
use crate::domain::ids::RunId;

/// Bytes of one page of history; a single event may be larger.
pub const PAGE_BYTES: usize = 4 << 20;

/// A batch of events as stored, with the number of its first one.
type Stored = (i64, i32, Vec<u8>);

/// The events `from..=to` of a run as JSON objects separated by commas, without brackets, as many as
/// fit into a page, and how many they are. Batches that give nothing to the page are not read.
///
/// # Errors
/// The database cannot be reached, or a stored batch is not JSON.
pub async fn range(pool: &PgPool, run: RunId, from: u64, to: u64) -> sqlx::Result<(String, u64)> {
    let batches: Vec<Stored> = sqlx::query_as(
        "select first_event_id, event_count, events from (
             select first_event_id, event_count, events, sum(octet_length(events)) over (
                 order by first_event_id rows between unbounded preceding and 1 preceding) as before
             from history_batches
             where run_id = $1 and event_count > 0
               and first_event_id >= coalesce((select first_event_id from history_batches
                    where run_id = $1 and first_event_id <= $2 and event_count > 0
                    order by first_event_id desc limit 1), 0)
               and first_event_id <= $3) b
         where before is null or before < $4
         order by first_event_id",
    )
    .bind(run.to_string())
    .bind(from.cast_signed())
    .bind(to.cast_signed())
    .bind(i64::try_from(PAGE_BYTES).unwrap_or(i64::MAX))
    .fetch_all(pool)
    .await?;
    let mut page = String::new();
    let mut count = 0;
    for (first, events_in_batch, events) in batches {
        let events = packed::unpack_events(events)?;
        let first = unsigned(first);
        let last = first + unsigned(i64::from(events_in_batch)) - 1;
        if page.is_empty() && first >= from && last <= to && events.len() < PAGE_BYTES {
            page = events;
            count = last - first + 1;
            continue;
        }
        let given = append(&mut page, first, last, &events, from, to)
            .map_err(|error| sqlx::Error::Decode(error.into()))?;
        count += given;
        if given < (last.min(to) + 1).saturating_sub(first.max(from)) {
            break;
        }
    }
    Ok((page, count))
}

/// Appends those events of one batch that lie in `from..=to`, as long as the page has room, and says
/// how many.
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
    if first >= from && last <= to && page.len() + events.len() < PAGE_BYTES {
        if !page.is_empty() {
            page.push(',');
        }
        page.push_str(events);
        return Ok(last - first + 1);
    }
    let listed = format!("[{events}]");
    let split: Vec<&RawValue> = serde_json::from_str(&listed)?;
    let mut count = 0;
    for (event, number) in split.iter().zip(first..) {
        if (from..=to).contains(&number) {
            if !page.is_empty() {
                if page.len() + event.get().len() >= PAGE_BYTES {
                    break;
                }
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
    fn a_page_ends_where_its_room_ends() -> serde_json::Result<()> {
        let event = |length: usize| format!(r#"{{"n":"{}"}}"#, "x".repeat(length));
        let half = event(PAGE_BYTES / 2);
        let batch = [half.as_str(), &half, &half].join(",");
        let mut page = String::new();
        assert_eq!(append(&mut page, 1, 3, &batch, 1, 9)?, 1);
        assert_eq!(page, half);
        // What is larger than a page is one.
        let large = event(PAGE_BYTES * 2);
        let mut page = String::new();
        assert_eq!(append(&mut page, 4, 4, &large, 1, 9)?, 1);
        assert_eq!(append(&mut page, 5, 5, &half, 1, 9)?, 0);
        assert_eq!(page, large);
        Ok(())
    }

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
