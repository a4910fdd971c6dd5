//! Retention: closed runs whose time is over are found, removed, and then their history, in parts.
//!
//! A run is gone in one statement, so that nobody ever finds half of one: its header, its workflow id
//! and its request keys. What is left of it, its history, is removed a while later from a list, on which
//! nobody's reads depend.

use sqlx::FromRow;

use super::pool::PgPool;
use super::{run_id, unsigned};
use crate::domain::ids::{Namespace, RunId};
use crate::domain::list::After;
use crate::domain::time::Timestamp;

/// Runs that one statement removes, and whose history one statement removes.
pub const RUNS: i64 = 100;
/// Request keys that one statement removes.
pub const KEYS: i64 = 1_000;
/// Rows of history that one statement removes.
pub const HISTORY_ROWS: i64 = 2_000;
/// Bytes of history after which a statement removes no further row.
pub const HISTORY_BYTES: i64 = 4 << 20;

/// Days after which a longer retention makes no difference; the time before many more is not a date.
const MAX_DAYS: i32 = 36_500;

/// A run that began before the time of its namespace.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    /// Where it stands.
    pub place: After,
    /// Events that it has, a bound of what hangs on it.
    pub events: u64,
    /// It is closed, not archived, and its time is over.
    pub is_due: bool,
}

/// The oldest `limit` runs of a namespace behind `after`, as long as they began before the namespace's
/// time: a run is not closed before it begins, so that younger ones need no look.
///
/// # Errors
/// The database cannot be reached.
pub async fn look(
    pool: &PgPool,
    namespace: &Namespace,
    after: Option<After>,
    limit: i64,
) -> sqlx::Result<Vec<Looked>> {
    type Row = (chrono::DateTime<chrono::Utc>, String, i64, bool);
    let (started_at, run) = after.map_or((Timestamp::EPOCH, String::new()), |after| {
        (after.started_at, after.run.to_string())
    });
    // Both ends are ends of a range of the index of lists, which is walked backwards.
    let rows: Vec<Row> = sqlx::query_as(
        "with n as materialized (
             select clock_timestamp() - least(retention_days, $5) * interval '24 hours' as before from namespaces where name = $1)
         select r.started_at, r.run_id, r.next_event_id, coalesce(r.closed_at < n.before and not r.archived, false)
         from n cross join lateral (
             select started_at, run_id, next_event_id, closed_at, archived from workflow_runs
             where namespace = $1 and started_at < n.before and (started_at, run_id) > ($2, $3)
             order by started_at, run_id limit $4) r
         order by r.started_at, r.run_id",
    )
    .bind(namespace.as_str())
    .bind(started_at.to_chrono())
    .bind(run)
    .bind(limit)
    .bind(MAX_DAYS)
    .fetch_all(pool)
    .await?;
    rows.into_iter()
        .map(|(started_at, run, next_event, is_due)| {
            Ok(Looked {
                place: After {
                    started_at: started_at.into(),
                    run: run_id(&run)?,
                },
                events: unsigned(next_event - 1),
                is_due,
            })
        })
        .collect()
}

/// What a removal came to.
#[derive(Clone, Debug, Default)]
pub struct Removed {
    /// The runs that are gone, removed by this statement and no other.
    pub runs: Vec<RunId>,
    /// More request keys than one statement removes hang on the rest: the same runs are to be tried again.
    pub keys_left: bool,
}

/// Removes those of these runs whose time is over, at most [`KEYS`] request keys with them. Kept are
/// runs that are open or archived, that have something to tell another run, or that somebody else is
/// just writing or removing; and the run that a workflow id stands for as long as the workflow has others,
/// which could not be reached without it.
///
/// A run with more keys than fit loses them first. If it is archived in that moment it stays, and a repeat
/// of such a command is told that the run is closed.
///
/// # Errors
/// The database cannot be reached.
pub async fn remove(pool: &PgPool, runs: &[RunId]) -> sqlx::Result<Removed> {
    let ids: Vec<String> = runs.iter().map(RunId::to_string).collect();
    // Headers are locked first and in key order, as everywhere. Everything else depends on them.
    let (gone, keys_left): (Vec<String>, bool) = sqlx::query_as(
        "with n as materialized (select clock_timestamp() as now),
         due as materialized (
             select r.run_id, r.namespace, r.workflow_id, r.version
             from n cross join unnest($1::text[]) i(run_id)
             join workflow_runs r on r.run_id = i.run_id join namespaces s on s.name = r.namespace
             where r.closed_at < n.now - least(s.retention_days, $3) * interval '24 hours' and not r.archived
               and not exists (select from relays l where l.run_id = r.run_id)
               and not exists (select from workflow_instances w join workflow_runs o
                       on o.namespace = w.namespace and o.workflow_id = w.workflow_id and o.run_id <> w.run_id
                   where w.namespace = r.namespace and w.workflow_id = r.workflow_id and w.run_id = r.run_id)
             order by r.run_id for update of r skip locked),
         keys as materialized (
             select q.*, row_number() over (order by q.run_id) as n from due d cross join lateral (
                 select run_id, namespace, workflow_id, kind, request_id from request_receipts
                 where run_id = d.run_id limit $2 + 1) q),
         whole as materialized (
             select * from due where coalesce(run_id < (select min(run_id) from keys where n > $2), true)),
         k as (
             delete from request_receipts q using keys k where k.n <= $2 and q.namespace = k.namespace
                 and q.workflow_id = k.workflow_id and q.kind = k.kind and q.request_id = k.request_id),
         w as (
             delete from workflow_instances w using whole d
             where w.namespace = d.namespace and w.workflow_id = d.workflow_id and w.run_id = d.run_id),
         -- By key also while statistics call the tables empty, as in the door.
         ids as materialized (select array_agg(run_id) as a from whole),
         t as (delete from tasks t where t.run_id = any ((select a from ids)::text[])),
         m as (delete from timers m where m.run_id = any ((select a from ids)::text[])),
         h as (
             insert into removed_runs (removed_at, run_id, batches)
             select n.now, d.run_id, d.version from n cross join whole d),
         r as (delete from workflow_runs r using whole d where r.run_id = d.run_id returning r.run_id)
         select coalesce((select array_agg(run_id) from r), '{}'), exists (select from keys where n > $2)",
    )
    .bind(ids)
    .bind(KEYS)
    .bind(MAX_DAYS)
    .fetch_one(pool)
    .await?;
    let runs: sqlx::Result<_> = gone.iter().map(|run| run_id(run)).collect();
    Ok(Removed {
        runs: runs?,
        keys_left,
    })
}

/// What a removal of history came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct RemovedHistory {
    /// Rows that are gone.
    pub rows: i64,
    /// There is more that waited long enough.
    pub more: bool,
}

/// Removes history of runs that were removed at least `age_ms` ago, as much as one statement may:
/// [`HISTORY_ROWS`] rows, about [`HISTORY_BYTES`] bytes.
///
/// # Errors
/// The database cannot be reached.
pub async fn remove_history(pool: &PgPool, age_ms: i64) -> sqlx::Result<RemovedHistory> {
    // So many runs are looked at that their rows are enough, and of one run no more rows than that. The
    // length of a value is known without reading it. What is not taken is the end of the order, so the
    // runs before its first one are done.
    sqlx::query_as(
        "with n as materialized (select clock_timestamp() as now),
         q as materialized (
             select l.removed_at, l.run_id, l.batches from n cross join lateral (
                 select removed_at, run_id, batches from removed_runs
                 where removed_at <= n.now - $1 * interval '1 ms'
                 order by removed_at, run_id limit $2 for update skip locked) l),
         head as materialized (
             select removed_at, run_id from (
                 select removed_at, run_id, sum(batches) over (
                     order by removed_at, run_id rows between unbounded preceding and 1 preceding) as before from q) a
             where before is null or before < $3),
         seen as materialized (
             select b.run_id, b.first_event_id, b.version,
                 row_number() over (order by b.run_id, b.first_event_id, b.version) <= $3
                 and coalesce(sum(b.bytes) over (order by b.run_id, b.first_event_id, b.version
                     rows between unbounded preceding and 1 preceding) < $4, true) as taken
             from head h cross join lateral (
                 select run_id, first_event_id, version, octet_length(events) + octet_length(journal) as bytes
                 from history_batches where run_id = h.run_id order by first_event_id, version limit $3 + 1) b),
         gone as (
             delete from history_batches b using seen s where s.taken
                 and b.run_id = s.run_id and b.first_event_id = s.first_event_id and b.version = s.version
             returning b.version),
         done as (
             delete from removed_runs r using head h where r.removed_at = h.removed_at and r.run_id = h.run_id
                 and coalesce(h.run_id < (select min(run_id) from seen where not taken), true))
         select (select count(*) from gone) as rows,
             exists (select from seen where not taken) or (select count(*) from q) > (select count(*) from head)
                 or (select count(*) from q) = $2 as more",
    )
    .bind(age_ms)
    .bind(RUNS)
    .bind(HISTORY_ROWS)
    .bind(HISTORY_BYTES)
    .fetch_one(pool)
    .await
}
