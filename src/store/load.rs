//! Reading runs: headers, and the batches that a state is folded from.

use std::sync::Arc;

use super::pool::PgPool;
use sqlx::FromRow;

use super::{packed, run_id, unsigned, unsigned32};
use crate::domain::ids::{Namespace, RunId, WorkflowId};

/// Events from whose numbers on one read looks no further: a range that the key leads to at both ends.
const READ_EVENTS: u64 = 1_000;

/// What one read gives of a run at most.
#[derive(Clone, Copy)]
struct Portion {
    /// Batches.
    rows: u16,
    /// Bytes after which no further batch is given, as they are stored and once they are unpacked.
    bytes: u32,
}

/// Of a run that is read alone.
const LARGE: Portion = Portion {
    rows: 512,
    bytes: 4 << 20,
};
/// Of runs that are read together.
const SMALL: Portion = Portion {
    rows: 64,
    bytes: 64 << 10,
};

/// What is not known of a run.
#[derive(Clone, Copy, Debug)]
pub struct Unread {
    /// The run.
    pub run: RunId,
    /// Its version as it is known; 0 when nothing is.
    pub version: u64,
    /// The first event that newer batches can hold, so that the key leads there.
    pub next_event: u64,
}

/// What a read found: the oldest batches that are new, and whether there are more.
pub type News = (Vec<Batch>, bool);

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
    place: i64,
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
        let (events, journal) = packed::unpack_batch(row.events, row.journal)?;
        Ok(Self {
            version: unsigned(row.version),
            first_event: unsigned(row.first_event_id),
            count: unsigned32(row.event_count),
            events: events.into(),
            journal: journal.into(),
        })
    }
}

/// Batches that are newer than what is known of a run, as many as fit into one read.
///
/// # Errors
/// The database cannot be reached.
pub async fn batches_after(pool: &PgPool, unread: Unread) -> sqlx::Result<News> {
    let read = read(pool, &[unread], LARGE).await?;
    Ok(read.into_iter().next().unwrap_or_default())
}

/// The same of several runs, a small portion of each, in their order.
///
/// # Errors
/// The database cannot be reached.
pub async fn batches_of_many(pool: &PgPool, unread: &[Unread]) -> sqlx::Result<Vec<News>> {
    read(pool, unread, SMALL).await
}

async fn read(pool: &PgPool, unread: &[Unread], portion: Portion) -> sqlx::Result<Vec<News>> {
    let runs: Vec<String> = unread.iter().map(|of| of.run.to_string()).collect();
    let versions: Vec<i64> = unread.iter().map(|of| of.version.cast_signed()).collect();
    let next: Vec<i64> = unread
        .iter()
        .map(|of| of.next_event.cast_signed())
        .collect();
    // The length of a value is known without reading it.
    let rows: Vec<BatchRow> = sqlx::query_as(
        "select q.place, n.version, n.first_event_id, n.event_count, n.events, n.journal, n.found
         from unnest($1::text[], $2::bigint[], $3::bigint[]) with ordinality q(run_id, version, next_event, place),
         lateral (
             select b.*, count(*) over () as found,
                 sum(octet_length(events) + octet_length(journal)) over (
                     order by first_event_id, version rows between unbounded preceding and 1 preceding) as before
             from (select h.version, first_event_id, event_count, events, journal from history_batches h
                 where h.run_id = q.run_id and first_event_id >= q.next_event
                   and first_event_id < q.next_event + $4 and h.version > q.version
                 order by first_event_id, h.version limit $5) b) n
         where n.before is null or n.before < $6
         order by q.place, n.first_event_id, n.version",
    )
    .bind(runs)
    .bind(versions)
    .bind(next)
    .bind(READ_EVENTS.cast_signed())
    .bind(i64::from(portion.rows))
    .bind(i64::from(portion.bytes))
    .fetch_all(pool)
    .await?;
    let mut rows = rows.into_iter().peekable();
    let places = (1_i64..).zip(unread);
    places
        .map(|(place, of)| {
            let rows = std::iter::from_fn(|| rows.next_if(|row| row.place == place));
            Ok(news(rows.collect(), of.next_event, portion)?)
        })
        .collect()
}

fn news(
    mut rows: Vec<BatchRow>,
    next_event: u64,
    portion: Portion,
) -> Result<News, packed::Damaged> {
    rows.truncate(unpacked_at_once(&rows, i64::from(portion.bytes)));
    let given = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    // Events have no gaps: another batch would begin where the last one ends.
    let more = rows.last().is_some_and(|row| {
        let end = unsigned(row.first_event_id + i64::from(row.event_count));
        row.found == i64::from(portion.rows) || row.found > given || end >= next_event + READ_EVENTS
    });
    let batches: Result<_, packed::Damaged> = rows.into_iter().map(Batch::try_from).collect();
    Ok((batches?, more))
}

/// How many of these batches are small enough together once they are unpacked: one at least.
fn unpacked_at_once(rows: &[BatchRow], most: i64) -> usize {
    let mut bytes = 0;
    let fitting = rows.iter().take_while(|row| {
        let fits = bytes < most;
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
