//! Lists for callers and operators: runs page by page, the queues and what waits on them.

use super::pool::PgPool;
use sqlx::FromRow;

use super::{run_id, unsigned32};
use crate::domain::ids::{Namespace, TaskQueue, WorkflowId};
use crate::domain::list::{After, Backlog, Filter, QueueRow, RunRow};
use crate::domain::run::Status;

type Time = chrono::DateTime<chrono::Utc>;

#[derive(FromRow)]
struct Row {
    run_id: String,
    workflow_id: String,
    run_number: i32,
    is_current: bool,
    workflow_type: String,
    queue: String,
    business_key: Option<String>,
    build_id: Option<String>,
    status: i16,
    started_at: Time,
    closed_at: Option<Time>,
    memo: String,
    search_attributes: String,
}

impl TryFrom<Row> for RunRow {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> sqlx::Result<Self> {
        Ok(Self {
            run: run_id(&row.run_id)?,
            workflow_id: row.workflow_id.into(),
            run_number: unsigned32(row.run_number),
            is_current: row.is_current,
            workflow_type: row.workflow_type,
            queue: row.queue,
            business_key: row.business_key,
            build_id: row.build_id,
            status: Status::from_number(row.status).ok_or_else(|| {
                sqlx::Error::Decode(format!("not a status: {}", row.status).into())
            })?,
            started_at: row.started_at.into(),
            closed_at: row.closed_at.map(Into::into),
            memo: row.memo,
            search_attributes: row.search_attributes,
        })
    }
}

/// One page of runs, the youngest first. The order never changes, because both keys of it are fixed
/// when a run begins.
///
/// # Errors
/// The database cannot be reached.
pub async fn runs(
    pool: &PgPool,
    namespace: &Namespace,
    filter: &Filter,
    after: Option<After>,
    limit: i64,
) -> sqlx::Result<Vec<RunRow>> {
    let statuses: Option<Vec<i16>> = (!filter.statuses.is_empty()).then(|| {
        filter
            .statuses
            .iter()
            .map(|status| status.number())
            .collect()
    });
    let text = filter.text.as_deref().map(like_pattern);
    let rows: Vec<Row> = sqlx::query_as(
        "select r.run_id, r.workflow_id, r.run_number, i.run_id is not null as is_current, r.workflow_type, r.queue,
             r.business_key, r.build_id, r.status, r.started_at, r.closed_at, r.memo, r.search_attributes
         from workflow_runs r left join workflow_instances i
             on i.namespace = r.namespace and i.workflow_id = r.workflow_id and i.run_id = r.run_id
         where r.namespace = $1 and ($2::text is null or r.workflow_type = $2)
           and ($3::smallint[] is null or r.status = any($3))
           and ($4::text is null or r.workflow_id ilike $4 or r.business_key ilike $4)
           and ($5::timestamptz is null or (r.started_at, r.run_id) < ($5, $6))
         order by r.started_at desc, r.run_id desc limit $7",
    )
    .bind(namespace.as_str())
    .bind(filter.workflow_type.as_deref())
    .bind(statuses)
    .bind(text)
    .bind(after.map(|after| after.started_at.to_chrono()))
    .bind(after.map(|after| after.run.to_string()))
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.into_iter().map(RunRow::try_from).collect()
}

fn like_pattern(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() + 2);
    pattern.push('%');
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}

/// The runs of one workflow, the oldest first.
///
/// # Errors
/// The database cannot be reached.
pub async fn runs_of(
    pool: &PgPool,
    namespace: &Namespace,
    workflow_id: &WorkflowId,
    limit: i64,
) -> sqlx::Result<Vec<RunRow>> {
    let rows: Vec<Row> = sqlx::query_as(
        "select r.run_id, r.workflow_id, r.run_number, i.run_id is not null as is_current, r.workflow_type, r.queue,
             r.business_key, r.build_id, r.status, r.started_at, r.closed_at, r.memo, r.search_attributes
         from workflow_runs r left join workflow_instances i
             on i.namespace = r.namespace and i.workflow_id = r.workflow_id and i.run_id = r.run_id
         where r.namespace = $1 and r.workflow_id = $2 order by r.run_number limit $3",
    )
    .bind(namespace.as_str())
    .bind(workflow_id.as_str())
    .bind(limit)
    .fetch_all(pool)
    .await?;
    rows.into_iter().map(RunRow::try_from).collect()
}

/// The queues of a namespace that have tasks, or one of them, by name.
///
/// # Errors
/// The database cannot be reached.
pub async fn queues(
    pool: &PgPool,
    namespace: &Namespace,
    queue: Option<&TaskQueue>,
) -> sqlx::Result<Vec<QueueRow>> {
    let rows: Vec<(String, i16, i64, i64, i64)> = sqlx::query_as(
        "select queue, kind, count(*) filter (where state = 0 and visible_at <= clock_timestamp()),
             count(*) filter (where state = 1),
             coalesce(extract(epoch from clock_timestamp() - min(visible_at)
                 filter (where state = 0 and visible_at <= clock_timestamp())), 0)::bigint
         from tasks where namespace = $1 and ($2::text is null or queue = $2)
         group by queue, kind order by queue, kind",
    )
    .bind(namespace.as_str())
    .bind(queue.map(TaskQueue::as_str))
    .fetch_all(pool)
    .await?;
    let mut queues: Vec<QueueRow> = Vec::new();
    for (name, kind, ready, leased, age) in rows {
        if queues.last().is_none_or(|last| last.queue != name) {
            queues.push(QueueRow {
                queue: name,
                ..QueueRow::default()
            });
        }
        if let Some(row) = queues.last_mut() {
            let backlog = Backlog {
                ready: super::unsigned(ready),
                leased: super::unsigned(leased),
                age_seconds: super::unsigned(age),
            };
            if kind == 0 {
                row.workflow = backlog;
            } else {
                row.activity = backlog;
            }
        }
    }
    Ok(queues)
}
