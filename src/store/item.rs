//! A decision as rows: what the door writes for it, in the door's own columns.

use super::{packed, scratch};
use crate::domain::decision::{Batch, Claim, Decision, HandOff, RunWrite, TaskEffect, TimerEffect};
use crate::domain::event::Body;
use crate::domain::ids::{Namespace, RunId, TaskNo, TaskQueue, WorkerId, WorkflowId};
use crate::domain::lease::Hold;
use crate::domain::routing::TaskKind;
use crate::domain::run::CloseReason;
use crate::domain::time::Timestamp;

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

/// A fence on a task row.
pub(super) struct FenceRow {
    pub task_no: i32,
    pub mode: i16,
    pub owner: Option<WorkerId>,
    pub attempt: Option<i32>,
}

/// A workflow id to claim.
pub(super) struct WorkflowRow {
    pub namespace: Namespace,
    pub workflow_id: WorkflowId,
}

/// A caller's key to claim.
pub(super) struct RequestRow {
    pub namespace: Namespace,
    pub workflow_id: WorkflowId,
    pub kind: &'static str,
    pub request_id: String,
    pub command_no: i64,
    pub name: String,
    pub digest: i64,
    pub run_target: String,
    pub made_id: Option<String>,
}

/// The header of a run that comes into being.
pub(super) struct CreatedRow {
    pub namespace: Namespace,
    pub workflow_id: WorkflowId,
    pub run_number: i32,
    pub workflow_type: Arc<str>,
    pub queue: TaskQueue,
    pub business_key: Option<Arc<str>>,
    pub build_id: Option<Arc<str>>,
    pub next_event_id: i64,
    pub status: i16,
    pub started_at: Timestamp,
    pub memo: Arc<RawValue>,
    pub search_attributes: Arc<RawValue>,
}

/// The changed part of the header of a run that exists.
pub(super) struct ChangedRow {
    pub version: i64,
    pub next_event_id: i64,
    pub status: i16,
    pub closed_reason: Option<&'static str>,
    pub closed_at: Option<Timestamp>,
    pub last_progress_at: Timestamp,
    pub archived: bool,
    /// Only when they changed.
    pub memo: Option<Arc<RawValue>>,
    pub search_attributes: Option<Arc<RawValue>>,
}

/// A workflow id that stands for another run from now on.
pub(super) struct MovedRow {
    pub namespace: Namespace,
    pub workflow_id: WorkflowId,
    pub run_number: i32,
}

/// A workflow id that a run which comes into being takes for good.
pub(super) struct MadeRow {
    pub namespace: Namespace,
    pub workflow_id: WorkflowId,
}

/// Bytes of text of a batch that is packed when its turn comes. Many may wait, and each would hold its payloads once
/// more.
const PACKED_LATE: usize = 256 << 10;

/// A batch of history.
pub(super) struct HistoryRow {
    pub first_event_id: i64,
    pub version: i64,
    pub event_count: i32,
    /// Both packed; empty while the batch waits.
    pub events: Vec<u8>,
    pub journal: Vec<u8>,
    waiting: Option<Box<Batch>>,
    /// Bytes of what is packed, or of the text that waits.
    bytes: usize,
}

impl HistoryRow {
    /// Packs what has waited.
    fn pack(&mut self) -> serde_json::Result<()> {
        if let Some(batch) = self.waiting.take() {
            (self.events, self.journal) = scratch::lend(|text| {
                let events = batch.write(text)?;
                serde_json::Result::Ok(packed::pack_batch(text, events))
            })?;
        }
        Ok(())
    }
}

/// A task that is opened.
pub(super) struct OpenedRow {
    pub task_no: i32,
    pub kind: i16,
    pub namespace: Namespace,
    pub queue: TaskQueue,
    pub task_type: Arc<str>,
    pub priority: i16,
    pub fairness_key: Option<Arc<str>>,
    pub fairness_weight: i16,
    pub build_id: Option<Arc<str>>,
    pub needs: i64,
    pub session: Option<String>,
    pub session_id: Option<String>,
    pub preferred: Option<WorkerId>,
    pub preferred_until: Option<Timestamp>,
    pub visible_at: Timestamp,
    pub owner: Option<WorkerId>,
    pub lease_ms: i64,
    pub start_to_close_ms: Option<i64>,
    pub heartbeat_ms: Option<i64>,
    pub poll_request_id: Option<Arc<str>>,
    pub seen_event_id: Option<i64>,
    pub holder_knows: Option<i64>,
}

impl OpenedRow {
    /// Its holder; what the holder sees of the run is for the caller to say.
    fn hand_to(&mut self, to: &HandOff) {
        self.owner = Some(to.owner.clone());
        self.poll_request_id = to.poll_request_id.clone();
        self.holder_knows = Some(to.knows);
    }
}

/// Header of a run, new or changed.
pub(super) enum HeaderRow {
    Created(CreatedRow),
    Changed(ChangedRow),
}

impl HeaderRow {
    fn next_event_id(&self) -> i64 {
        match self {
            Self::Created(row) => row.next_event_id,
            Self::Changed(row) => row.next_event_id,
        }
    }
}

/// Everything that is written for one run.
pub(super) struct RunRows {
    pub run_id: String,
    pub header: HeaderRow,
    pub moved: Option<MovedRow>,
    pub made: Option<MadeRow>,
    pub history: HistoryRow,
    pub tasks_closed: Vec<i32>,
    pub tasks_again: Vec<(i32, Timestamp, Option<Arc<str>>)>,
    pub tasks_opened: Vec<OpenedRow>,
    pub timers_set: Vec<(i16, i32, Timestamp)>,
    pub timers_cancelled: Vec<(i16, i32)>,
    pub tasks_marked: Vec<(i32, Option<i64>, bool)>,
    pub relays: Vec<(i64, String)>,
}

impl RunRows {
    fn bytes(&self) -> usize {
        let relays: usize = self.relays.iter().map(|(_, body)| body.len()).sum();
        self.history.bytes + relays
    }
}

/// Finds a poll for a task that is opened.
pub type Offer = Box<dyn FnOnce() -> Option<HandOff> + Send + Sync>;

/// A task that nobody waited for when its item was made.
struct Offered {
    run: usize,
    task_no: i32,
    offer: Offer,
}

/// One decision, ready for the door.
pub struct Item {
    pub(super) run: RunId,
    pub(super) base: i64,
    pub(super) fences: Vec<FenceRow>,
    pub(super) workflow: Option<WorkflowRow>,
    pub(super) request: Option<RequestRow>,
    pub(super) runs: Vec<RunRows>,
    offered: Vec<Offered>,
    bytes: usize,
}

impl Item {
    /// Writes a decision out as rows. The decision's states then know the size of their history;
    /// nothing may be added to it afterwards.
    ///
    /// # Errors
    /// A payload cannot be written as JSON, which no value of the domain provokes.
    pub fn new(decision: &mut Decision) -> serde_json::Result<Self> {
        let fences = decision
            .fences
            .iter()
            .map(|fence| {
                let (mode, holder) = match &fence.hold {
                    Hold::Live { owner, attempt } => (0, Some((owner, attempt))),
                    Hold::Seen { owner, attempt } => (1, Some((owner, attempt))),
                    Hold::Overdue { owner, attempt } => (2, Some((owner, attempt))),
                    Hold::Free => (3, None),
                };
                FenceRow {
                    task_no: int(fence.no),
                    mode,
                    owner: holder.map(|(owner, _)| owner.clone()),
                    attempt: holder.map(|(_, attempt)| int(*attempt)),
                }
            })
            .collect();
        let begun = &decision.write.next.begun;
        let workflow = matches!(decision.claim, Some(Claim::Workflow)).then(|| WorkflowRow {
            namespace: begun.namespace.clone(),
            workflow_id: begun.workflow_id.clone(),
        });
        let request = match &decision.claim {
            Some(Claim::Request(key)) => Some(RequestRow {
                namespace: key.namespace.clone(),
                workflow_id: key.workflow_id.clone(),
                kind: key.kind,
                request_id: key.request_id.to_string(),
                command_no: long(key.command),
                name: key.name.to_string(),
                digest: key.digest.0.cast_signed(),
                run_target: key.run_target.to_string(),
                made_id: key.made_id.as_deref().map(str::to_owned),
            }),
            _ => None,
        };
        let run = decision.run_id();
        let base = long(decision.write.base);
        let claims_workflow = workflow.is_some();
        let runs: Vec<RunRows> = decision
            .writes_mut()
            .map(|write| run_rows(write, claims_workflow))
            .collect::<serde_json::Result<_>>()?;
        let bytes = runs.iter().map(RunRows::bytes).sum();
        Ok(Self {
            run,
            base,
            fences,
            workflow,
            request,
            runs,
            offered: Vec::new(),
            bytes,
        })
    }

    /// Offers a workflow task that it opens once more when its turn comes: a poll may have come by then. `run` is the
    /// place of its run among the writes of the decision.
    pub fn offer(&mut self, run: usize, no: TaskNo, offer: Offer) {
        self.offered.push(Offered {
            run,
            task_no: int(no),
            offer,
        });
    }

    /// Hands tasks to polls that have come while it waited.
    pub(super) fn hand_over(&mut self) {
        for Offered {
            run,
            task_no,
            offer,
        } in self.offered.drain(..)
        {
            let Some(run) = self.runs.get_mut(run) else {
                continue;
            };
            let last_event = run.header.next_event_id() - 1;
            let mut tasks = run.tasks_opened.iter_mut();
            if let Some(task) = tasks.find(|task| task.task_no == task_no)
                && let Some(to) = offer()
            {
                task.seen_event_id = Some(last_event);
                task.hand_to(&to);
            }
        }
    }

    /// Packs what is large. Called when its turn has come.
    ///
    /// # Errors
    /// A payload cannot be written as JSON, which was found when the item was made.
    pub(super) fn pack(&mut self) -> serde_json::Result<()> {
        self.runs.iter_mut().try_for_each(|run| run.history.pack())
    }

    /// Bytes of history and of messages to other runs, as they are sent to the database or a little more: all of
    /// it that may be large.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts off what its tasks are ready from.
    pub(super) fn delay(&mut self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        for task in self.runs.iter_mut().flat_map(|run| &mut run.tasks_opened) {
            task.visible_at = task.visible_at.plus_millis(by);
        }
    }

    /// The deciding run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Tasks of the deciding run that are closed or made ready again, and that no fence names.
    pub(super) fn unfenced(&self) -> impl Iterator<Item = i32> {
        let run = &self.runs[0];
        let again = run.tasks_again.iter().map(|(no, ..)| no);
        let written = run.tasks_closed.iter().chain(again);
        written
            .filter(|no| self.fences.iter().all(|fence| fence.task_no != **no))
            .copied()
    }

    /// The key that it claims, if any: no two items of a batch may claim the same one.
    pub(super) fn key(&self) -> Option<String> {
        match (&self.workflow, &self.request) {
            (Some(key), _) => Some(format!("{}\0{}", key.namespace, key.workflow_id)),
            (None, Some(key)) => Some(format!(
                "{}\0{}\0{}\0{}",
                key.namespace, key.workflow_id, key.kind, key.request_id
            )),
            (None, None) => None,
        }
    }

    /// Header and leases: what must hold before keys are claimed.
    pub(super) fn pre(&self) -> usize {
        usize::from(self.base > 0) + self.fences.len()
    }

    /// All fences.
    pub(super) fn need(&self) -> usize {
        self.pre() + usize::from(self.workflow.is_some()) + usize::from(self.request.is_some())
    }
}

/// The history of a write as it is stored, packed at once when it is small.
fn history(write: &mut RunWrite) -> serde_json::Result<HistoryRow> {
    let mut row = HistoryRow {
        first_event_id: long(write.first_event),
        version: long(write.next.version),
        event_count: i32::try_from(write.events.len()).unwrap_or(i32::MAX),
        events: Vec::new(),
        journal: Vec::new(),
        waiting: None,
        bytes: 0,
    };
    scratch::lend(|text| {
        let events = write.seal(text)?;
        if text.len() > PACKED_LATE {
            row.waiting = Some(Box::new(write.batch()));
            row.bytes = text.len();
        } else {
            (row.events, row.journal) = packed::pack_batch(text, events);
            row.bytes = row.events.len() + row.journal.len();
        }
        Ok(row)
    })
}

fn run_rows(write: &mut RunWrite, claims_workflow: bool) -> serde_json::Result<RunRows> {
    let history = history(write)?;
    let upserted = Upserted::by(write);
    let next = &write.next;
    let begun = &next.begun;
    let header = if write.base == 0 {
        HeaderRow::Created(CreatedRow {
            namespace: begun.namespace.clone(),
            workflow_id: begun.workflow_id.clone(),
            run_number: int(begun.run_number),
            workflow_type: begun.workflow_type.clone(),
            queue: begun.queue.clone(),
            business_key: begun.business_key.clone(),
            build_id: begun.build_id.clone(),
            next_event_id: long(next.next_event),
            status: next.status().number(),
            started_at: begun.started_at,
            memo: begun.memo.clone(),
            search_attributes: begun.search_attributes.clone(),
        })
    } else {
        HeaderRow::Changed(ChangedRow {
            version: long(next.version),
            next_event_id: long(next.next_event),
            status: next.status().number(),
            closed_reason: next.close.as_ref().map(|close| close.reason.as_str()),
            closed_at: next.close.as_ref().map(|close| close.at),
            last_progress_at: next.last_progress_at,
            archived: next.archived,
            memo: upserted.memo.then(|| next.memo.shown.clone()),
            search_attributes: upserted.attributes.then(|| next.attributes.shown.clone()),
        })
    };
    // A successor takes the workflow id over from the run that made it.
    let moved = (write.base == 0 && begun.run_number > 1).then(|| MovedRow {
        namespace: begun.namespace.clone(),
        workflow_id: begun.workflow_id.clone(),
        run_number: int(begun.run_number),
    });
    let first = write.base == 0 && begun.run_number == 1;
    let made = (first && !claims_workflow).then(|| MadeRow {
        namespace: begun.namespace.clone(),
        workflow_id: begun.workflow_id.clone(),
    });
    debug_assert!(
        next.close.as_ref().is_none_or(
            |close| close.reason != CloseReason::Continued || close.continued_to.is_some()
        )
    );
    let mut rows = RunRows {
        run_id: next.id.to_string(),
        header,
        moved,
        made,
        history,
        tasks_closed: Vec::new(),
        tasks_again: Vec::new(),
        // Its rows are large, and there is seldom more than one.
        tasks_opened: Vec::with_capacity(write.opened().count()),
        timers_set: Vec::new(),
        timers_cancelled: Vec::new(),
        tasks_marked: Vec::new(),
        relays: Vec::new(),
    };
    for (no, effect) in write.effects.tasks() {
        match effect {
            TaskEffect::Close => rows.tasks_closed.push(int(*no)),
            TaskEffect::Again { available_at } => {
                let mark = write.effects.marks().get(no);
                let blocked_by = mark.and_then(|mark| mark.blocked_by.clone());
                rows.tasks_again.push((int(*no), *available_at, blocked_by));
            }
            TaskEffect::Open(task) => {
                let seen = task.handed_to.is_some() && task.routing.kind == TaskKind::Workflow;
                let mut row = OpenedRow {
                    task_no: int(*no),
                    kind: task.routing.kind.number(),
                    namespace: task.routing.namespace.clone(),
                    queue: task.routing.queue.clone(),
                    task_type: task.routing.task_type.clone(),
                    priority: task.routing.priority.into(),
                    fairness_key: task.routing.fairness_key.clone(),
                    fairness_weight: i16::try_from(task.routing.fairness_weight)
                        .unwrap_or(i16::MAX),
                    build_id: task.routing.build_id.clone(),
                    needs: task.routing.needs,
                    session: match &task.routing.session {
                        Some(session) => Some(serde_json::to_string(&**session)?),
                        None => None,
                    },
                    session_id: task
                        .routing
                        .session
                        .as_ref()
                        .map(|session| session.session_id.to_string()),
                    preferred: task
                        .routing
                        .preferred
                        .as_ref()
                        .map(|preferred| preferred.worker.clone()),
                    preferred_until: task.routing.preferred.as_ref().map(|kept| kept.until),
                    visible_at: task.available_at,
                    owner: None,
                    lease_ms: long(task.lease_ms),
                    start_to_close_ms: task.start_to_close_ms.map(long),
                    heartbeat_ms: task.heartbeat_ms.map(long),
                    poll_request_id: None,
                    seen_event_id: seen.then(|| long(next.last_event())),
                    holder_knows: None,
                };
                if let Some(to) = &task.handed_to {
                    row.hand_to(to);
                }
                rows.tasks_opened.push(row);
            }
        }
    }
    for (key, effect) in write.effects.timers() {
        let (kind, no) = (key.kind.number(), int(key.no));
        match effect {
            TimerEffect::Set(at) => rows.timers_set.push((kind, no, *at)),
            TimerEffect::Cancel => rows.timers_cancelled.push((kind, no)),
        }
    }
    for (no, mark) in write.effects.marks() {
        if mark.needs.is_none() && !mark.cancel {
            continue;
        }
        rows.tasks_marked.push((int(*no), mark.needs, mark.cancel));
    }
    for (event, relay) in write.effects.relays() {
        rows.relays
            .push((long(*event), serde_json::to_string(relay)?));
    }
    Ok(rows)
}

/// Which parts of the header a batch changed that most batches leave alone.
struct Upserted {
    memo: bool,
    attributes: bool,
}

impl Upserted {
    fn by(write: &RunWrite) -> Self {
        let has = |wanted: fn(&Body) -> bool| write.events.iter().any(|event| wanted(&event.body));
        Self {
            memo: has(|body| matches!(body, Body::MemoUpserted(_))),
            attributes: has(|body| matches!(body, Body::SearchAttributesUpserted(_))),
        }
    }
}

/// Numbers inside a run stay far below what the column holds: a run has at most 50,000 events.
fn int(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn long(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
