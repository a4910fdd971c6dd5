//! What the tests of the store share: decisions of the domain, the door, and a look at every row.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold::domain::command::{
    Command, ContinueAsNew, End, Failure, ScheduleActivity, StartTimer,
};
use leasehold::domain::decision::{Decision, HandOff, TimerKey, TimerKind};
use leasehold::domain::event::Json;
use leasehold::domain::ids::{RunId, TaskId, TaskNo, WorkerId};
use leasehold::domain::retry::Policy;
use leasehold::domain::run::{
    ActivityOutcome, ActivityReport, Contract, Digest, Input, InputRequest, Refusal, RunState,
    Settings, StartRequest, StoredBatch, StreamReport, Verdict, WorkflowTaskReport, decide, fold,
    start,
};
use leasehold::domain::time::Timestamp;
use leasehold::payload::Payload;
use leasehold::store::commit::{self, Outcome};
use leasehold::store::item::Item;
use leasehold::store::load::Unread;
use leasehold::store::{PoolSizes, Store, load};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{TestDb, eventually};

/// A database of its own, and the store on it.
pub struct Bench {
    pub db: TestDb,
    pub store: Store,
}

impl Bench {
    pub async fn new() -> Self {
        let db = TestDb::new().await;
        let sizes = PoolSizes { reads: 4, hot: 4 };
        let store = Store::new(db.options.clone(), sizes);
        Self { db, store }
    }

    /// A connection as a lane has it.
    pub async fn door(&self) -> PgConnection {
        commit::connect(&self.db.options)
            .await
            .expect("a connection for the door")
    }

    pub async fn end(self) {
        self.store.close().await;
        self.db.drop().await;
    }

    /// The run as its stored batches say.
    pub async fn load(&self, run: RunId) -> Option<RunState> {
        let mut state: Option<RunState> = None;
        loop {
            let (version, next_event) = state
                .as_ref()
                .map_or((0, 0), |state| (state.version, state.next_event));
            let read = load::batches_after(&self.store.reads, unread(run, version, next_event));
            let (batches, more) = read.await.expect("batches");
            for batch in batches {
                let stored = StoredBatch {
                    version: batch.version,
                    events: &batch.events,
                    journal: &batch.journal,
                };
                state = Some(fold(run, state, stored).expect("the batch follows"));
            }
            if !more {
                return state;
            }
        }
    }

    /// A run that was just started, its workflow task held by `owner`.
    pub async fn begun(&self, door: &mut PgConnection, workflow: &str, owner: &str) -> RunState {
        let mut decision = started(workflow);
        hand_out(&mut decision, owner);
        assert_committed(put_one(door, &mut decision).await);
        std::sync::Arc::unwrap_or_clone(decision.write.next)
    }
}

/// All of a run after a version, the next event of which is known.
pub fn unread(run: RunId, version: u64, next_event: u64) -> Unread {
    Unread {
        run,
        version,
        next_event,
    }
}

/// Now, as the tests' decisions see it; the database runs on this machine.
pub fn now() -> Timestamp {
    chrono::Utc::now().into()
}

fn random() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

/// `{}`.
pub fn empty() -> Json {
    serde_json::value::RawValue::from_string("{}".to_owned())
        .unwrap()
        .into()
}

pub fn request(workflow: &str) -> StartRequest {
    StartRequest {
        namespace: "default".into(),
        workflow_id: workflow.into(),
        workflow_type: "greet".into(),
        queue: "q".into(),
        input: Payload::empty_list(),
        business_key: None,
        memo: empty(),
        search_attributes: empty(),
        execution_timeout_seconds: None,
        run_timeout_seconds: None,
        priority: 5,
        fairness_key: None,
        fairness_weight: 1,
        build_id: None,
        contract: Contract::default(),
    }
}

/// The decision that starts a run.
pub fn started(workflow: &str) -> Decision {
    started_with(request(workflow))
}

pub fn started_with(request: StartRequest) -> Decision {
    let at = now();
    start(RunId::new(at, random()), request, at, &Settings::default())
}

/// What the run decides about an input, which it must not refuse or answer without a write.
#[track_caller]
pub fn decided(state: &RunState, input: Input) -> Decision {
    match try_decide(state, input) {
        Ok(Some(decision)) => decision,
        other => panic!("not a decision: {other:?}"),
    }
}

/// `None` when the run answers without a write.
pub fn try_decide(state: &RunState, input: Input) -> Result<Option<Decision>, Refusal> {
    match decide(state, input, now(), &Settings::default())? {
        Verdict::Commit(decision, _) => Ok(Some(*decision)),
        Verdict::Answer(_) => Ok(None),
    }
}

/// The open workflow task of a run.
#[track_caller]
pub fn open_task(state: &RunState) -> TaskNo {
    state
        .workflow_task
        .as_ref()
        .expect("an open workflow task")
        .no
}

pub fn completion(
    state: &RunState,
    no: TaskNo,
    owner: &str,
    attempt: u32,
    commands: Vec<Command>,
) -> Input {
    let report = WorkflowTaskReport {
        no,
        attempt,
        owner: WorkerId::from(owner),
        digest: Digest(u64::from(no) * 100 + u64::from(attempt)),
        seen: state.last_event(),
    };
    Input::CompleteWorkflowTask {
        report,
        commands,
        streams: StreamReport::default(),
        keep: None,
    }
}

/// The first hand-out's completion of the open workflow task.
#[track_caller]
pub fn complete(state: &RunState, owner: &str, commands: Vec<Command>) -> Decision {
    decided(
        state,
        completion(state, open_task(state), owner, 1, commands),
    )
}

pub fn activity_report(no: TaskNo, owner: &str, attempt: u32, failed: bool) -> Input {
    Input::ReportActivity(ActivityReport {
        no,
        attempt,
        owner: WorkerId::from(owner),
        digest: Digest(u64::from(no) * 100 + u64::from(attempt)),
        outcome: if failed {
            ActivityOutcome::Failed(Failure {
                message: "no".to_owned(),
                ..Failure::default()
            })
        } else {
            ActivityOutcome::Completed(Payload::null())
        },
        beat: None,
    })
}

pub fn signal(name: &str, request_id: Option<&str>) -> Input {
    Input::Signal(InputRequest {
        name: name.into(),
        arguments: Payload::empty_list(),
        request_id: request_id.map(Arc::from),
        digest: Digest(7),
        run_target: "".into(),
        update_id: None,
    })
}

pub fn activity() -> Command {
    Command::ScheduleActivity(ScheduleActivity {
        activity_type: "hello".into(),
        arguments: None,
        queue: None,
        policy: Some(Policy {
            snapshot_version: 1,
            max_attempts: 3,
            backoff_seconds: vec![0],
            start_to_close_timeout: Some(600),
            schedule_to_start_timeout: None,
            schedule_to_close_timeout: Some(3_600),
            heartbeat_timeout: Some(500),
            non_retryable_error_types: Vec::new(),
        }),
        cancellation: None,
        session: None,
        path: None,
    })
}

pub fn timer(seconds: u64) -> Command {
    Command::StartTimer(StartTimer {
        delay_seconds: seconds,
        path: None,
    })
}

pub fn finish() -> Command {
    Command::End(End::Complete { result: None })
}

/// Effects of every kind that a completion can have.
pub fn everything() -> Vec<Command> {
    vec![activity(), timer(3_600), activity()]
}

/// Hands everything that the decision opens to one worker.
pub fn hand_out(decision: &mut Decision, owner: &str) {
    for write in decision.writes_mut() {
        let opened: Vec<TaskNo> = write.opened().map(|(no, _)| no).collect();
        for no in opened {
            let to = HandOff {
                owner: WorkerId::from(owner),
                poll_request_id: None,
                knows: i64::MAX,
            };
            write.hand_over(no, to, now());
        }
    }
}

pub fn item(decision: &mut Decision) -> Item {
    Item::new(decision).expect("a decision can be written")
}

/// Writes decisions as one batch.
pub async fn put(door: &mut PgConnection, decisions: Vec<&mut Decision>) -> Vec<Outcome> {
    let items: Vec<Item> = decisions.into_iter().map(item).collect();
    commit::commit(door, &items).await
}

pub async fn put_one(door: &mut PgConnection, decision: &mut Decision) -> Outcome {
    put(door, vec![decision]).await[0]
}

#[track_caller]
pub fn assert_committed(outcome: Outcome) {
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
}

pub async fn execute(connection: &mut PgConnection, statement: &str) -> u64 {
    sqlx::query(AssertSqlSafe(statement.to_owned()))
        .execute(connection)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"))
        .rows_affected()
}

/// The first column of all rows, as text.
pub async fn column(connection: &mut PgConnection, statement: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(statement.to_owned()))
        .fetch_all(connection)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"))
}

pub async fn number(connection: &mut PgConnection, statement: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(statement.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap_or_else(|error| panic!("{statement}: {error}"))
}

/// Tables that hold rows of runs.
pub const TABLES: [&str; 6] = [
    "workflow_runs",
    "workflow_instances",
    "history_batches",
    "tasks",
    "timers",
    "request_receipts",
];

/// Every row that names the run, with the transaction that wrote it: equal before and after means
/// that nothing was written, not even the same again.
pub async fn rows_of(connection: &mut PgConnection, run: RunId) -> Vec<String> {
    let mut rows = Vec::new();
    for table in TABLES {
        let statement = format!(
            "select '{table} ' || xmin::text || ' ' || t::text from {table} t where run_id = '{run}' order by 1"
        );
        rows.extend(column(connection, &statement).await);
    }
    rows
}

/// Every row of the tables that hold runs.
pub async fn all_rows(connection: &mut PgConnection) -> Vec<String> {
    let mut rows = Vec::new();
    for table in TABLES {
        let statement =
            format!("select '{table} ' || xmin::text || ' ' || t::text from {table} t order by 1");
        rows.extend(column(connection, &statement).await);
    }
    rows
}

/// Waits until so many sessions of this database wait for a lock.
pub async fn until_waiting(connection: &mut PgConnection, sessions: i64) {
    eventually("sessions wait for a lock", 10, async || {
        let waiting = number(
            connection,
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .await;
        (waiting >= sessions).then_some(())
    })
    .await;
}

/// The lease of a task row, if it is held.
pub async fn holder(connection: &mut PgConnection, task: TaskId) -> Option<(String, i32)> {
    let row: Option<(Option<String>, i32)> =
        sqlx::query_as("select lease_owner, attempt from tasks where run_id = $1 and task_no = $2")
            .bind(task.run.to_string())
            .bind(task.no.cast_signed())
            .fetch_optional(connection)
            .await
            .expect("a task row");
    row.and_then(|(owner, attempt)| Some((owner?, attempt)))
}

/// Holds every row of a run against what the fold of its history says.
///
/// # Errors
/// What does not agree.
pub async fn check_run(
    bench: &Bench,
    connection: &mut PgConnection,
    run: RunId,
) -> Result<RunState, String> {
    let state = bench
        .load(run)
        .await
        .ok_or_else(|| format!("{run} has no history"))?;
    let header: Option<(i64, i64, i16, Option<String>, bool)> = sqlx::query_as(
        "select version, next_event_id, status, closed_reason, archived from workflow_runs where run_id = $1",
    )
    .bind(run.to_string())
    .fetch_optional(&mut *connection)
    .await
    .expect("a header");
    let wanted = (
        state.version.cast_signed(),
        state.next_event.cast_signed(),
        state.status().number(),
        state
            .close
            .as_ref()
            .map(|close| close.reason.as_str().to_owned()),
        state.archived,
    );
    if header.as_ref() != Some(&wanted) {
        return Err(format!("{run}: header {header:?}, folded {wanted:?}"));
    }
    let tasks: Vec<i32> =
        sqlx::query_scalar("select task_no from tasks where run_id = $1 order by task_no")
            .bind(run.to_string())
            .fetch_all(&mut *connection)
            .await
            .expect("task rows");
    let open = if state.close.is_some() {
        BTreeSet::new()
    } else {
        let activities = state.activities.keys().copied();
        activities
            .chain(state.workflow_task.as_ref().map(|task| task.no))
            .collect()
    };
    if tasks != open.iter().map(|no| no.cast_signed()).collect::<Vec<_>>() {
        return Err(format!("{run}: task rows {tasks:?}, folded {open:?}"));
    }
    let timers: Vec<(i16, i32, chrono::DateTime<chrono::Utc>)> =
        sqlx::query_as("select kind, no, due_at from timers where run_id = $1 order by kind, no")
            .bind(run.to_string())
            .fetch_all(&mut *connection)
            .await
            .expect("timer rows");
    let timers: BTreeSet<(i16, u32, Timestamp)> = timers
        .into_iter()
        .map(|(kind, no, at)| (kind, no.cast_unsigned(), at.into()))
        .collect();
    let wanted = expected_timers(&state);
    if timers != wanted {
        return Err(format!("{run}: timer rows {timers:?}, folded {wanted:?}"));
    }
    Ok(state)
}

/// The timer rows that a run must have; the tests set no limit from scheduling to start.
fn expected_timers(state: &RunState) -> BTreeSet<(i16, u32, Timestamp)> {
    if state.close.is_some() {
        return BTreeSet::new();
    }
    let user = state
        .timers
        .values()
        .map(|timer| (TimerKind::User, timer.step, timer.fire_at));
    let close = state.activities.values().filter_map(|activity| {
        Some((
            TimerKind::ScheduleToClose,
            activity.no,
            activity.close_deadline()?,
        ))
    });
    let run = state
        .begun
        .run_deadline_at
        .map(|at| (TimerKind::RunDeadline, 0, at));
    let whole = state
        .begun
        .execution_deadline_at
        .map(|at| (TimerKind::ExecutionDeadline, 0, at));
    user.chain(close)
        .chain(run)
        .chain(whole)
        .map(|(kind, no, at)| (kind.number(), no, at))
        .collect()
}

pub fn user_timer(step: u32) -> TimerKey {
    TimerKey {
        kind: TimerKind::User,
        no: step,
    }
}

pub fn continue_as_new() -> Command {
    Command::End(End::ContinueAsNew(ContinueAsNew {
        arguments: None,
        workflow_type: None,
        queue: None,
    }))
}

/// A source of chance that can be repeated.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let n = self.below(from.len() as u64);
        from.get(usize::try_from(n).unwrap()).cloned()
    }
}
