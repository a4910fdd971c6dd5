//! The door: the one statement that writes runs and tasks, for a whole batch of decisions at once.

use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::postgres::PgArguments;
use sqlx::{Arguments, PgConnection, Row};

use super::door::{DOOR, Door, Parts};
use super::item::{HeaderRow, Item};
use super::pool;
use super::trouble::{Closed, Trouble};
use crate::domain::ids::WorkerId;
use crate::domain::time::Timestamp;

/// Items in one statement.
pub const MAX_BATCH: usize = 128;

/// What became of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything it asked for is durable, decided at this time of the database.
    Committed(Timestamp),
    /// A fence did not hold; nothing of it was written.
    Refused,
    /// The database was too busy, or others held what it needed for too long; nothing of it was
    /// written.
    Crowded,
    /// The database takes no writes.
    Closed(Closed),
    /// The statement failed because of it; nothing of it was written.
    Failed,
    /// The database was out of reach before anything was sent; nothing was written.
    Unreached,
    /// The connection broke while the statement ran: it may or may not have been written.
    Unknown,
}

macro_rules! columns {
    ($($part:ident { $($name:ident: $kind:ty),* $(,)? })*) => {
        /// The door's parameters, in the order of their placeholders.
        #[derive(Default)]
        struct Columns<'a> { $($($name: Vec<$kind>,)*)* _items: std::marker::PhantomData<&'a ()> }

        impl<'a> Columns<'a> {
            /// Makes room for so many rows of a part.
            fn reserve(&mut self, part: Parts, rows: usize) {
                $(if part == Parts::$part {
                    $(self.$name.reserve(rows);)*
                })*
            }

            /// The form of the door that these columns need, with its parameters, which take some `bytes`.
            fn bind(self, door: &Door, bytes: usize) -> sqlx::query::Query<'a, sqlx::Postgres, PgArguments> {
                let parts = self.parts();
                let mut arguments = PgArguments::default();
                arguments.reserve(COLUMNS, bytes);
                let mut query = sqlx::query_with(door.form(parts), arguments);
                $(if parts.has(Parts::$part) {
                    $(query = query.bind(self.$name);)*
                })*
                query
            }
        }

        const COLUMNS: usize = [$($(stringify!($name)),*),*].len();
    };
}

columns! {
    NONE {
        item_run: &'a str, item_version: i64, item_pre: i32, item_need: i32,
    }
    FENCED {
        fence_ord: i32, fence_run: &'a str, fence_task: i32, fence_mode: i16, fence_owner: Option<&'a str>, fence_attempt: Option<i32>,
    }
    WORKFLOWS {
        workflow_ord: i32, workflow_namespace: &'a str, workflow_id: &'a str, workflow_run: &'a str,
    }
    REQUESTS {
        request_ord: i32, request_namespace: &'a str, request_workflow: &'a str, request_kind: &'a str, request_id: &'a str,
        request_run: &'a str, request_command: i64, request_name: &'a str, request_digest: i64, request_target: &'a str,
        request_made: Option<&'a str>,
    }
    CREATED {
        created_ord: i32, created_run: &'a str, created_namespace: &'a str, created_workflow: &'a str, created_number: i32,
        created_type: &'a str, created_queue: &'a str, created_business_key: Option<&'a str>, created_build: Option<&'a str>,
        created_next_event: i64, created_status: i16, created_started: DateTime<Utc>, created_memo: &'a str, created_attributes: &'a str,
    }
    CHANGED {
        changed_ord: i32, changed_run: &'a str, changed_version: i64, changed_next_event: i64, changed_status: i16,
        changed_reason: Option<&'a str>, changed_closed: Option<DateTime<Utc>>, changed_progress: DateTime<Utc>, changed_archived: bool,
        changed_memo: Option<&'a str>, changed_attributes: Option<&'a str>,
    }
    FAMILY {
        moved_ord: i32, moved_namespace: &'a str, moved_workflow: &'a str, moved_run: &'a str, moved_number: i32,
        made_ord: i32, made_namespace: &'a str, made_workflow: &'a str, made_run: &'a str,
    }
    CLOSED { closed_ord: i32, closed_run: &'a str, closed_task: i32 }
    TOUCHED {
        again_ord: i32, again_run: &'a str, again_task: i32, again_visible: DateTime<Utc>,
        again_blocked: Option<&'a str>,
    }
    OPENED {
        opened_ord: i32, opened_run: &'a str, opened_task: i32, opened_kind: i16, opened_namespace: &'a str, opened_queue: &'a str,
        opened_type: &'a str, opened_priority: i16, opened_fairness_key: Option<&'a str>, opened_fairness_weight: i16,
        opened_build: Option<&'a str>, opened_needs: i64, opened_session: Option<&'a str>, opened_session_id: Option<&'a str>,
        opened_preferred: Option<&'a str>, opened_preferred_until: Option<DateTime<Utc>>,
        opened_visible: DateTime<Utc>, opened_owner: Option<&'a str>,
        opened_lease_ms: i64, opened_start_to_close_ms: Option<i64>, opened_heartbeat_ms: Option<i64>,
        opened_poll: Option<&'a str>, opened_seen: Option<i64>, opened_knows: Option<i64>,
    }
    TIMERS {
        set_ord: i32, set_run: &'a str, set_kind: i16, set_no: i32, set_due: DateTime<Utc>,
        cancelled_ord: i32, cancelled_run: &'a str, cancelled_kind: i16, cancelled_no: i32,
    }
    TOUCHED { marked_ord: i32, marked_run: &'a str, marked_task: i32, marked_needs: Option<i64>, marked_cancel: bool }
    FAMILY { relays_ord: i32, relays_run: &'a str, relays_event: i64, relays_body: &'a str }
    NONE {
        history_ord: i32, history_run: &'a str, history_first: i64, history_version: i64, history_count: i32,
        history_events: &'a [u8], history_journal: &'a [u8],
    }
}

/// Bytes of an item as parameters besides its history and its messages, or a little more.
const ROW_BYTES: usize = 1 << 10;
/// Mode of a task row that is written without a fence: only locked, together with the fenced ones.
const LOCK_ONLY: i16 = 4;

impl<'a> Columns<'a> {
    /// The columns of a batch. Items come in the order of their runs, so that every array is in key
    /// order, which is the order in which rows are locked.
    fn of(items: &'a [&'a Item]) -> Self {
        let mut to = Self::default();
        let runs = || items.iter().flat_map(|item| &item.runs);
        let created = runs().filter(|rows| matches!(rows.header, HeaderRow::Created(_)));
        let created = created.count();
        to.reserve(Parts::NONE, runs().count());
        to.reserve(Parts::CREATED, created);
        to.reserve(Parts::CHANGED, runs().count() - created);
        let opened = runs().map(|rows| rows.tasks_opened.len()).sum();
        to.reserve(Parts::OPENED, opened);
        for (place, item) in items.iter().enumerate() {
            to.push(small(place + 1), item);
        }
        to
    }

    /// What these columns need of the door.
    fn parts(&self) -> Parts {
        let requests = !self.request_ord.is_empty();
        let family =
            !self.moved_ord.is_empty() || !self.made_ord.is_empty() || !self.relays_ord.is_empty();
        let fenced = !self.fence_ord.is_empty() || self.item_version.iter().any(|base| *base > 0);
        [
            Parts::FENCED.if_any(fenced),
            Parts::WORKFLOWS.if_any(requests || !self.workflow_ord.is_empty()),
            Parts::REQUESTS.if_any(requests),
            Parts::CREATED.if_any(!self.created_ord.is_empty()),
            Parts::CHANGED.if_any(!self.changed_ord.is_empty()),
            Parts::FAMILY.if_any(family),
            Parts::CLOSED.if_any(!self.closed_ord.is_empty()),
            Parts::OPENED.if_any(!self.opened_ord.is_empty()),
            Parts::TOUCHED.if_any(!self.again_ord.is_empty() || !self.marked_ord.is_empty()),
            Parts::TIMERS.if_any(!self.set_ord.is_empty() || !self.cancelled_ord.is_empty()),
        ]
        .into_iter()
        .fold(Parts::NONE, Parts::and)
    }

    fn push(&mut self, ord: i32, item: &'a Item) {
        let to = self;
        let run = item.runs[0].run_id.as_str();
        to.item_run.push(run);
        to.item_version.push(item.base);
        to.item_pre.push(small(item.pre()));
        to.item_need.push(small(item.need()));
        for fence in &item.fences {
            to.fence_ord.push(ord);
            to.fence_run.push(run);
            to.fence_task.push(fence.task_no);
            to.fence_mode.push(fence.mode);
            to.fence_owner
                .push(fence.owner.as_ref().map(WorkerId::as_str));
            to.fence_attempt.push(fence.attempt);
        }
        for task in item.unfenced() {
            to.fence_ord.push(ord);
            to.fence_run.push(run);
            to.fence_task.push(task);
            to.fence_mode.push(LOCK_ONLY);
            to.fence_owner.push(None);
            to.fence_attempt.push(None);
        }
        if let Some(workflow) = &item.workflow {
            to.workflow_ord.push(ord);
            to.workflow_namespace.push(workflow.namespace.as_str());
            to.workflow_id.push(workflow.workflow_id.as_str());
            to.workflow_run.push(run);
        }
        if let Some(request) = &item.request {
            to.request_ord.push(ord);
            to.request_namespace.push(request.namespace.as_str());
            to.request_workflow.push(request.workflow_id.as_str());
            to.request_kind.push(request.kind);
            to.request_id.push(&request.request_id);
            to.request_run.push(run);
            to.request_command.push(request.command_no);
            to.request_name.push(&request.name);
            to.request_digest.push(request.digest);
            to.request_target.push(&request.run_target);
            to.request_made.push(request.made_id.as_deref());
        }
        for rows in &item.runs {
            to.push_run(ord, rows);
        }
    }

    fn push_run(&mut self, ord: i32, rows: &'a super::item::RunRows) {
        let to = self;
        let run = rows.run_id.as_str();
        match &rows.header {
            HeaderRow::Created(header) => {
                to.created_ord.push(ord);
                to.created_run.push(run);
                to.created_namespace.push(header.namespace.as_str());
                to.created_workflow.push(header.workflow_id.as_str());
                to.created_number.push(header.run_number);
                to.created_type.push(&header.workflow_type);
                to.created_queue.push(header.queue.as_str());
                to.created_business_key.push(header.business_key.as_deref());
                to.created_build.push(header.build_id.as_deref());
                to.created_next_event.push(header.next_event_id);
                to.created_status.push(header.status);
                to.created_started.push(header.started_at.to_chrono());
                to.created_memo.push(header.memo.get());
                to.created_attributes.push(header.search_attributes.get());
            }
            HeaderRow::Changed(header) => {
                to.changed_ord.push(ord);
                to.changed_run.push(run);
                to.changed_version.push(header.version);
                to.changed_next_event.push(header.next_event_id);
                to.changed_status.push(header.status);
                to.changed_reason.push(header.closed_reason);
                to.changed_closed
                    .push(header.closed_at.map(Timestamp::to_chrono));
                to.changed_progress
                    .push(header.last_progress_at.to_chrono());
                to.changed_archived.push(header.archived);
                to.changed_memo
                    .push(header.memo.as_deref().map(RawValue::get));
                to.changed_attributes
                    .push(header.search_attributes.as_deref().map(RawValue::get));
            }
        }
        if let Some(moved) = &rows.moved {
            to.moved_ord.push(ord);
            to.moved_namespace.push(moved.namespace.as_str());
            to.moved_workflow.push(moved.workflow_id.as_str());
            to.moved_run.push(run);
            to.moved_number.push(moved.run_number);
        }
        if let Some(made) = &rows.made {
            to.made_ord.push(ord);
            to.made_namespace.push(made.namespace.as_str());
            to.made_workflow.push(made.workflow_id.as_str());
            to.made_run.push(run);
        }
        to.history_ord.push(ord);
        to.history_run.push(run);
        to.history_first.push(rows.history.first_event_id);
        to.history_version.push(rows.history.version);
        to.history_count.push(rows.history.event_count);
        to.history_events.push(&rows.history.events);
        to.history_journal.push(&rows.history.journal);
        for no in &rows.tasks_closed {
            to.closed_ord.push(ord);
            to.closed_run.push(run);
            to.closed_task.push(*no);
        }
        for (no, at, blocked_by) in &rows.tasks_again {
            to.again_ord.push(ord);
            to.again_run.push(run);
            to.again_task.push(*no);
            to.again_visible.push(at.to_chrono());
            to.again_blocked.push(blocked_by.as_deref());
        }
        for task in &rows.tasks_opened {
            to.opened_ord.push(ord);
            to.opened_run.push(run);
            to.opened_task.push(task.task_no);
            to.opened_kind.push(task.kind);
            to.opened_namespace.push(task.namespace.as_str());
            to.opened_queue.push(task.queue.as_str());
            to.opened_type.push(&task.task_type);
            to.opened_priority.push(task.priority);
            to.opened_fairness_key.push(task.fairness_key.as_deref());
            to.opened_fairness_weight.push(task.fairness_weight);
            to.opened_build.push(task.build_id.as_deref());
            to.opened_needs.push(task.needs);
            to.opened_session.push(task.session.as_deref());
            to.opened_session_id.push(task.session_id.as_deref());
            to.opened_preferred
                .push(task.preferred.as_ref().map(WorkerId::as_str));
            to.opened_preferred_until
                .push(task.preferred_until.map(Timestamp::to_chrono));
            to.opened_visible.push(task.visible_at.to_chrono());
            to.opened_owner
                .push(task.owner.as_ref().map(WorkerId::as_str));
            to.opened_lease_ms.push(task.lease_ms);
            to.opened_start_to_close_ms.push(task.start_to_close_ms);
            to.opened_heartbeat_ms.push(task.heartbeat_ms);
            to.opened_poll.push(task.poll_request_id.as_deref());
            to.opened_seen.push(task.seen_event_id);
            to.opened_knows.push(task.holder_knows);
        }
        for (kind, no, at) in &rows.timers_set {
            to.set_ord.push(ord);
            to.set_run.push(run);
            to.set_kind.push(*kind);
            to.set_no.push(*no);
            to.set_due.push(at.to_chrono());
        }
        for (kind, no) in &rows.timers_cancelled {
            to.cancelled_ord.push(ord);
            to.cancelled_run.push(run);
            to.cancelled_kind.push(*kind);
            to.cancelled_no.push(*no);
        }
        for (no, needs, cancel) in &rows.tasks_marked {
            to.marked_ord.push(ord);
            to.marked_run.push(run);
            to.marked_task.push(*no);
            to.marked_needs.push(*needs);
            to.marked_cancel.push(*cancel);
        }
        for (event, body) in &rows.relays {
            to.relays_ord.push(ord);
            to.relays_run.push(run);
            to.relays_event.push(*event);
            to.relays_body.push(body);
        }
    }
}

fn small(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Writes a batch and says of each item, in the order given, what became of it. At most
/// [`MAX_BATCH`] items; a run at most once, a workflow id claimed at most once.
///
/// An item that makes the statement fail is found by writing them one by one, so that it never
/// takes its neighbours with it.
pub async fn commit(connection: &mut PgConnection, items: &[Item]) -> Vec<Outcome> {
    commit_with(connection, *DOOR, items).await
}

/// [`commit`] with another text for the door, see [`super::door::TEMPLATE`].
pub async fn commit_with(
    connection: &mut PgConnection,
    door: &Door,
    items: &[Item],
) -> Vec<Outcome> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|place| items[*place].run);
    let sorted: Vec<&Item> = order.iter().map(|place| &items[*place]).collect();
    let written = match write(connection, door, &sorted).await {
        Ok(written) => written,
        Err(error) if Trouble::of(&error) == Trouble::Connection => {
            tracing::warn!(error = %error, items = items.len(), "commit: connection lost");
            vec![Outcome::Unknown; items.len()]
        }
        Err(error) if items.len() == 1 => vec![failed(&error, sorted[0])],
        Err(error) => {
            tracing::warn!(error = %error, items = items.len(), "commit: batch failed, one by one");
            one_by_one(connection, door, &sorted).await
        }
    };
    let mut outcomes = vec![Outcome::Unknown; items.len()];
    for (place, outcome) in order.into_iter().zip(written) {
        outcomes[place] = outcome;
    }
    outcomes
}

/// The items of a statement that failed, each on its own. Once the connection is gone the rest is
/// known not to be written.
async fn one_by_one(connection: &mut PgConnection, door: &Door, items: &[&Item]) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(items.len());
    for item in items {
        match write(connection, door, std::slice::from_ref(item)).await {
            Ok(written) => outcomes.push(written.first().copied().unwrap_or(Outcome::Unknown)),
            Err(error) if Trouble::of(&error) == Trouble::Connection => {
                tracing::warn!(error = %error, "commit: connection lost");
                outcomes.push(Outcome::Unknown);
                break;
            }
            Err(error) => outcomes.push(failed(&error, item)),
        }
    }
    outcomes.resize(items.len(), Outcome::Unreached);
    outcomes
}

/// What became of an item whose own statement failed.
fn failed(error: &sqlx::Error, item: &Item) -> Outcome {
    if let Some(closed) = Closed::of(error) {
        tracing::warn!(error = %error, run = %item.run, "commit: no writes");
        return Outcome::Closed(closed);
    }
    if Trouble::of(error) == Trouble::Crowd {
        tracing::warn!(error = %error, run = %item.run, "commit: statement given up");
        return Outcome::Crowded;
    }
    tracing::error!(error = %error, run = %item.run, "commit: statement failed");
    Outcome::Failed
}

async fn write(
    connection: &mut PgConnection,
    door: &Door,
    items: &[&Item],
) -> sqlx::Result<Vec<Outcome>> {
    let bytes = items.iter().map(|item| item.bytes() + ROW_BYTES).sum();
    let query = Columns::of(items).bind(door, bytes);
    let row = pool::bounded(query.fetch_one(connection)).await?;
    let accepted: Vec<bool> = row.try_get(0)?;
    let now: DateTime<Utc> = row.try_get(1)?;
    Ok(accepted
        .into_iter()
        .map(|accepted| {
            if accepted {
                Outcome::Committed(now.into())
            } else {
                Outcome::Refused
            }
        })
        .collect())
}

/// Settings of a connection that the door uses: a plan chosen on an empty database would scan and
/// hash, and would stay.
pub const PINNED: &[(&str, &str)] = &[
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("lock_timeout", "2000"),
    ("statement_timeout", "10000"),
    ("idle_in_transaction_session_timeout", "10000"),
    ("default_transaction_isolation", "read committed"),
];

/// Opens a connection for the door.
///
/// # Errors
/// The database cannot be reached.
pub async fn connect(options: &sqlx::postgres::PgConnectOptions) -> sqlx::Result<PgConnection> {
    let options = options
        .clone()
        .application_name("leasehold commit")
        .options(PINNED.iter().copied());
    pool::connect(&options).await
}
