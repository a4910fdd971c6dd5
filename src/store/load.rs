//! Reading runs: headers, and the batches that a state is folded from.

use std::sync::Arc;

use super::pool::PgPool;
use sqlx::FromRow;

use super::{packed, run_id, unsigned, unsigned32};
use crate::domain::ids::{Namespace, RunId, WorkflowId};

/// Batches that one read gives at most.
const READ_ROWS: i64 = 512;
/// Events from whose numbers on one read looks no further: a range that the key leads to at both ends.
const READ_EVENTS: u64 = 1_000;
/// Bytes after which a read gives no further batch.
const READ_BYTES: i64 = 4 << 20;

/// One stored batch of a run.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Version of the run that it made.
    pub version: u64,
    /// Its first event.
    pub first_event: u64,
    /// Its events.
    pub count: u32,
    /// The events as they are served.
    pub events: Arc<str>,
    /// Facts for the fold.
    pub journal: Arc<str>,
}

#[derive(FromRow)]
struct BatchRow {
    version: i64,
    first_event_id: i64,
    event_count: i32,
    events: Vec<u8>,
    journal: Vec<u8>,
    found: i64,
}

impl TryFrom<BatchRow> for Batch {
    type Error = packed::Damaged;

    fn try_from(row: BatchRow) -> Result<Self, Self::Error> {
        Ok(Self {
            version: unsigned(row.version),
            first_event: unsigned(row.first_event_id),
            count: unsigned32(row.event_count),
            events: packed::unpack_owned(row.events)?.into(),
            journal: packed::unpack_owned(row.journal)?.into(),
        })
    }
}

/// Batches of a run that are newer than `version`, oldest first, as many as fit into one read, and
/// whether there are more. `next_event` is the number of the first event that they can hold, so that the
/// key leads there.
///
/// # Errors
/// The database cannot be reached.
pub async fn batches_after(
    pool: &PgPool,
    run: RunId,
    version: u64,
    next_event: u64,
) -> sqlx::Result<(Vec<Batch>, bool)> {
    // The length of a value is known without reading it.
    let mut rows: Vec<BatchRow> = sqlx::query_as(
        "select version, first_event_id, event_count, events, journal, found from (
             select b.*, count(*) over () as found,
                 sum(octet_length(events) + octet_length(journal)) over (
                     order by first_event_id, version rows between unbounded preceding and 1 preceding) as before
             from (select version, first_event_id, event_count, events, journal from history_batches
                 where run_id = $1 and first_event_id >= $2 and first_event_id < $6 and version > $3
                 order by first_event_id, version limit $4) b) c
         where before is null or before < $5
         order by first_event_id, version",
    )
    .bind(run.to_string())
    .bind(next_event.cast_signed())
    .bind(version.cast_signed())
    .bind(READ_ROWS)
    .bind(READ_BYTES)
    .bind((next_event + READ_EVENTS).cast_signed())
    .fetch_all(pool)
    .await?;
    rows.truncate(unpacked_at_once(&rows));
    let given = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    // Events have no gaps: another batch would begin where the last one ends.
    let more = rows.last().is_some_and(|row| {
        let end = unsigned(row.first_event_id + i64::from(row.event_count));
        row.found == READ_ROWS || row.found > given || end >= next_event + READ_EVENTS
    });
    let batches: Result<_, packed::Damaged> = rows.into_iter().map(Batch::try_from).collect();
    Ok((batches?, more))
}

/// How many of these batches are small enough together once they are unpacked: one at least.
fn unpacked_at_once(rows: &[BatchRow]) -> usize {
    let mut bytes = 0;
    let fitting = rows.iter().take_while(|row| {
        let fits = bytes < READ_BYTES;
        let unpacked = packed::text_length(&row.events) + packed::text_length(&row.journal);
        bytes = bytes.saturating_add(i64::try_from(unpacked).unwrap_or(i64::MAX));
        fits
    });
    fitting.count()
}

/// A run as its header identifies it.
#[derive(Clone, Debug)]
pub struct Header {
    /// The run.
    pub run: RunId,
    /// How often it has been written.
    pub version: u64,
}

/// The current run of a workflow.
///
/// # Errors
/// The database cannot be reached.
pub async fn current_run(
    pool: &PgPool,
    namespace: &Namespace,
    workflow_id: &WorkflowId,
) -> sqlx::Result<Option<Header>> {
    let row: Option<(String, i64)> = sqlx::query_as(
        "select r.run_id, r.version from workflow_instances i join workflow_runs r on r.run_id = i.run_id
         where i.namespace = $1 and i.workflow_id = $2",
    )
    .bind(namespace.as_str())
    .bind(workflow_id.as_str())
    .fetch_optional(pool)
    .await?;
    header(row)
}

/// One run of a workflow, if it belongs to it.
///
/// # Errors
/// The database cannot be reached.
pub async fn run_of(
    pool: &PgPool,
    namespace: &Namespace,
    workflow_id: &WorkflowId,
    run: RunId,
) -> sqlx::Result<Option<Header>> {
    let row: Option<(String, i64)> = sqlx::query_as(
        "select run_id, version from workflow_runs where run_id = $3 and namespace = $1 and workflow_id = $2",
    )
    .bind(namespace.as_str())
    .bind(workflow_id.as_str())
    .bind(run.to_string())
    .fetch_optional(pool)
    .await?;
    header(row)
}

fn header(row: Option<(String, i64)>) -> sqlx::Result<Option<Header>> {
    row.map(|(run, version)| {
        Ok(Header {
            run: run_id(&run)?,
            version: unsigned(version),
        })
    })
    .transpose()
}

/// How many runs a workflow has had.
///
/// # Errors
/// The database cannot be reached.
pub async fn run_count(
    pool: &PgPool,
    namespace: &Namespace,
    workflow_id: &WorkflowId,
) -> sqlx::Result<u32> {
    let count: Option<i32> = sqlx::query_scalar(
        "select run_number from workflow_instances where namespace = $1 and workflow_id = $2",
    )
    .bind(namespace.as_str())
    .bind(workflow_id.as_str())
    .fetch_optional(pool)
    .await?;
    Ok(unsigned32(count.unwrap_or(0)))
}
