//! Polls of all kinds: fields, and how each end of a poll is answered.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::MAX_POLL_SECONDS;
use crate::domain::features;
use crate::domain::ids::{TaskQueue, WorkerId};
use crate::domain::routing::TaskKind;
use crate::engine::{Fault, Nothing, PollRefused, PollRequest, Polled};
use crate::protocol::feature::{Feature, Negotiated};
use crate::protocol::reason::Reason;

use super::super::compression::HistoryEncoding;
use super::super::fields::Int;
use super::super::problems::Problems;
use super::answer::{Answer, Failure};
use super::call::{Call, WorkerOnly};
use super::leases::MAX_ID;
use super::{asks, tasks};

/// Queues of one poll.
const MAX_QUEUES: usize = 100;

/// `PollRequest`
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[schema(as = PollRequest)]
pub struct PollBody {
    /// The worker.
    worker_id: Option<String>,
    /// Queues, in order of preference.
    task_queues: Option<Vec<String>>,
    /// One queue, the SDKs' spelling.
    task_queue: Option<String>,
    /// The build that the worker runs.
    build_id: Option<String>,
    /// The worker's name for this poll, the same when it is repeated.
    poll_request_id: Option<String>,
    /// Seconds to wait; 0 looks once.
    poll_timeout_seconds: Option<Int>,
    /// Seconds to wait, the SDKs' spelling, at most 60.
    timeout_seconds: Option<Int>,
    /// Events of the first page.
    history_page_size: Option<Int>,
    /// Encodings of history that the worker reads.
    accept_history_encoding: Option<String>,
    /// Kinds of task that the worker takes.
    task_kinds: Option<Vec<String>>,
}

impl PollBody {
    /// The form in which the worker takes history.
    pub fn history_encoding(&self) -> Option<HistoryEncoding> {
        HistoryEncoding::accepted(self.accept_history_encoding.as_deref()?)
    }

    /// Events of the first page, within the server's bounds.
    pub fn page_size(&self, call: &Call<WorkerOnly, Self>) -> u64 {
        let history = &call.api.settings.history;
        let asked = self
            .history_page_size
            .map_or(history.page_size_default.into(), |Int(n)| n);
        u64::try_from(asked)
            .unwrap_or(1)
            .clamp(1, history.page_size_max.into())
    }

    fn request(
        &self,
        call: &Call<WorkerOnly, Self>,
        kind: TaskKind,
    ) -> Result<PollRequest, Failure> {
        let mut problems = Problems::default();
        problems.required_text("worker_id", self.worker_id.as_deref(), MAX_ID);
        let one = self.task_queue.as_ref().map(std::slice::from_ref);
        let queues = problems
            .agree("task_queues", self.task_queues.as_deref(), one)
            .unwrap_or_default();
        if queues.is_empty() || queues.len() > MAX_QUEUES {
            problems.add("task_queues", format!("must name 1 to {MAX_QUEUES} queues"));
        }
        for (place, queue) in queues.iter().take(MAX_QUEUES).enumerate() {
            problems.text(format_args!("task_queues.{place}"), queue, MAX_ID);
        }
        for (field, value) in [
            ("build_id", &self.build_id),
            ("poll_request_id", &self.poll_request_id),
        ] {
            if value
                .as_ref()
                .is_some_and(|text| text.chars().count() > MAX_ID)
            {
                problems.add(field, format!("must have at most {MAX_ID} characters"));
            }
        }
        if let Some(Int(size)) = self.history_page_size {
            problems.within("history_page_size", size, 1..=1_000);
        }
        if let Some(kinds) = &self.task_kinds
            && (kinds.is_empty()
                || (1..kinds.len()).any(|place| kinds[..place].contains(&kinds[place])))
        {
            problems.add("task_kinds", "must name one kind or two different ones");
        }
        for (place, kind) in self.task_kinds.iter().flatten().enumerate() {
            if !matches!(kind.as_str(), "workflow" | "update_validation") {
                problems.add(
                    format_args!("task_kinds.{place}"),
                    "must be workflow or update_validation",
                );
            }
        }
        let wait = self.wait(call, &mut problems);
        problems.into_result()?;
        let text = |value: &Option<String>| {
            value
                .as_deref()
                .filter(|text| !text.is_empty())
                .map(Arc::from)
        };
        Ok(PollRequest {
            kinds: self.kinds(kind),
            namespace: call.namespace.clone(),
            worker_id: WorkerId::from(self.worker_id.as_deref().unwrap_or_default()),
            queues: queues
                .iter()
                .map(|queue| TaskQueue::from(queue.as_str()))
                .collect(),
            build_id: text(&self.build_id),
            poll_request_id: text(&self.poll_request_id),
            wait,
            knows: knows(&call.version),
            announces_sessions: call.version.allows(Feature::PortableWorkerSessions),
        })
    }

    /// Kinds of task that the poll takes; a workflow poll may name them.
    fn kinds(&self, kind: TaskKind) -> Vec<TaskKind> {
        let Some(named) = self.task_kinds.as_ref().filter(|named| !named.is_empty()) else {
            return vec![kind];
        };
        if kind != TaskKind::Workflow {
            return vec![kind];
        }
        let mut kinds = Vec::new();
        for (word, kind) in [
            ("workflow", TaskKind::Workflow),
            ("update_validation", TaskKind::UpdateValidation),
        ] {
            if named.iter().any(|named| named == word) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// The same in the words of the wire.
    fn kind_words(&self, kind: TaskKind) -> Vec<&'static str> {
        words(&self.kinds(kind))
    }

    /// The contract's spelling has no maximum and is cut, the SDKs' one is refused above it.
    fn wait(&self, call: &Call<WorkerOnly, Self>, problems: &mut Problems) -> Duration {
        let most = i64::try_from(MAX_POLL_SECONDS).unwrap_or(60);
        if let Some(Int(seconds)) = self.timeout_seconds {
            problems.within("timeout_seconds", seconds, 0..=most);
        }
        if let Some(Int(seconds)) = self.poll_timeout_seconds {
            problems.within("poll_timeout_seconds", seconds, 0..=i64::MAX);
        }
        let asked = problems.agree(
            "poll_timeout_seconds",
            self.poll_timeout_seconds,
            self.timeout_seconds,
        );
        let seconds = asked.map_or(
            call.api.settings.long_poll.default_seconds,
            |Int(seconds)| u64::try_from(seconds.clamp(0, most)).unwrap_or(0),
        );
        Duration::from_secs(seconds)
    }
}

fn words(kinds: &[TaskKind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.as_str()).collect()
}

/// Bits of history features that a version of the protocol brings along.
fn knows(version: &Negotiated) -> i64 {
    let bit = |feature, bit| if version.allows(feature) { bit } else { 0 };
    bit(
        Feature::ConditionWaitOccurrenceIdentity,
        features::OCCURRENCE,
    ) | bit(Feature::CooperativeCancellation, features::CANCELLATION)
        | bit(Feature::WorkerSessions, features::SESSIONS)
}

/// Polls, and shows the task that came.
pub async fn poll(
    call: Box<Call<WorkerOnly, PollBody>>,
    kind: TaskKind,
) -> Result<Answer, Failure> {
    let request = call.body.request(&call, kind)?;
    let queue = request.queues.first().cloned();
    let no_wait = request.wait.is_zero();
    let validates = request.kinds.contains(&TaskKind::UpdateValidation);
    let offered = &call.api.supported;
    if validates
        && !(offered.offers(&call.api.advertised, Feature::UpdateValidation)
            && call.version.allows(Feature::UpdateValidation))
    {
        return refusal(&call, kind, queue, PollRefused::NoValidation);
    }
    let no_view = |fault| {
        let queue = queue.as_ref().map(ToString::to_string);
        failed(&call, kind, queue, fault)
    };
    match call.api.engine.poll(request).await {
        Ok(Polled::Task(grant)) => {
            // Lets the connection look at its socket first: a client that has gone by now is noticed,
            // this is dropped, and somebody else gets the task.
            tokio::task::yield_now().await;
            let Some(lease) = grant.lease().cloned() else {
                return Answer::of(&tasks::no_task("empty", None));
            };
            let fields = match lease.kind {
                TaskKind::Query | TaskKind::UpdateValidation => {
                    let view = call.api.engine.ask_view(&lease).await.map_err(no_view)?;
                    view.map(|view| asks::ask_claim(&view)).transpose()?
                }
                TaskKind::Workflow => {
                    let size = call.body.page_size(&call);
                    let view = call.api.engine.workflow_task(&lease, size).await;
                    let view = view.map_err(no_view)?;
                    let encoding = call.body.history_encoding();
                    let sticky = call.version.allows(Feature::StickyExecution);
                    view.map(|view| tasks::workflow_claim(view, sticky, encoding))
                        .transpose()?
                }
                TaskKind::Activity => {
                    let view = call
                        .api
                        .engine
                        .activity_task(&lease)
                        .await
                        .map_err(no_view)?;
                    view.map(|view| tasks::activity_claim(&view)).transpose()?
                }
            };
            match fields {
                Some(fields) => Ok(Answer::raw(fields).carrying(grant)),
                // The run closed between claim and answer; the worker polls again.
                None => Answer::of(&tasks::no_task("empty", None)),
            }
        }
        Ok(Polled::Empty(why)) => Answer::of(&tasks::no_task("empty", nothing(why))),
        Ok(Polled::TimedOut(why)) => Answer::of(&tasks::no_task("timeout", nothing(why))),
        Ok(Polled::Shutdown) => {
            let status = if no_wait { "empty" } else { "timeout" };
            Answer::of(&tasks::no_task(status, None))
        }
        Err(refused) => refusal(&call, kind, queue.clone(), refused),
    }
}

/// Why a poll found nothing, in the contract's words.
fn nothing(why: Option<Nothing>) -> Option<&'static str> {
    let reason = match why? {
        Nothing::Throttled => Reason::Throttled,
        Nothing::CompatibilityBlocked => Reason::CompatibilityBlocked,
        Nothing::NoCompatibleWorker => Reason::NoCompatibleWorker,
    };
    Some(reason.as_str())
}

/// A poll whose id stands for other kinds of task.
fn kinds_conflict(
    call: &Call<WorkerOnly, PollBody>,
    kind: TaskKind,
    queue: Option<String>,
    reason: Reason,
    sentence: &str,
) -> Failure {
    Failure::new(StatusCode::CONFLICT, reason, sentence)
        .with("task", Value::Null)
        .with("poll_status", "conflict")
        .with("worker_id", call.body.worker_id.clone().unwrap_or_default())
        .with("task_queue", queue)
        .with("poll_request_id", call.body.poll_request_id.clone())
        .with("requested_task_kinds", call.body.kind_words(kind))
}

fn refusal(
    call: &Call<WorkerOnly, PollBody>,
    kind: TaskKind,
    queue: Option<TaskQueue>,
    refused: PollRefused,
) -> Result<Answer, Failure> {
    let worker_id = call.body.worker_id.clone().unwrap_or_default();
    let queue = queue.map(|queue| queue.to_string());
    let task_kind = format!("{}_task", kind.as_str());
    match refused {
        PollRefused::NotRegistered => Err(Failure::new(
            StatusCode::PRECONDITION_FAILED,
            Reason::WorkerNotRegistered,
            "The worker is not registered.",
        )
        .with("worker_id", worker_id)),
        PollRefused::QueueMismatch {
            registered,
            requested,
        } => Err(Failure::new(
            StatusCode::CONFLICT,
            Reason::TaskQueueMismatch,
            "The worker is not registered for this queue.",
        )
        .with("worker_id", worker_id)
        .with(
            "registered_task_queue",
            registered.first().map(ToString::to_string),
        )
        .with(
            "registered_task_queues",
            registered
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        )
        .with("requested_task_queue", requested.as_str())),
        PollRefused::BuildMismatch {
            registered,
            requested,
        } => Err(Failure::new(
            StatusCode::CONFLICT,
            Reason::BuildIdMismatch,
            "The worker is registered with another build.",
        )
        .with("worker_id", worker_id)
        .with("registered_build_id", &*registered)
        .with("requested_build_id", &*requested)),
        PollRefused::Draining(worker) => Answer::of(&json!({
            "task": null,
            "poll_status": "draining",
            "drain_reason": null,
            "reason": Reason::WorkerDraining,
            "error": "The worker is draining.",
            "worker_id": worker_id,
            "task_queue": queue,
            "registered_build_id": worker.description.build_id,
            "worker_status": worker.status.as_str(),
            "drain_intent": "draining",
        })),
        PollRefused::Stale => {
            let stale = Reason::StaleWorkerRegistration.as_str();
            Answer::of(&tasks::no_task(stale, Some(stale)))
        }
        PollRefused::NoCapability => {
            let reason = match kind {
                TaskKind::Activity => Reason::NoActivityCapability,
                _ => Reason::NoWorkflowCapability,
            };
            Answer::of(&tasks::no_task("empty", Some(reason.as_str())))
        }
        PollRefused::NoValidation => Err(Failure::new(
            StatusCode::CONFLICT,
            Reason::UpdateValidationCapabilityNotAdvertised,
            "Update validations need worker protocol 1.13 and a worker that registered for them.",
        )
        .with("task", Value::Null)
        .with("poll_status", "unsupported")
        .with("worker_id", worker_id)
        .with(
            "minimum_protocol_version",
            Feature::UpdateValidation.floor().to_string(),
        )),
        PollRefused::KindsConflict(bound) => Err(kinds_conflict(
            call,
            kind,
            queue,
            Reason::PollRequestTaskKindsConflict,
            "The poll id stands for a poll for other kinds of task.",
        )
        .with("bound_task_kinds", words(&bound))),
        PollRefused::GivenKindConflict(given) => Err(kinds_conflict(
            call,
            kind,
            queue,
            Reason::PollCachedTaskKindConflict,
            "The poll id stands for a task that is still held, of a kind that is not asked for.",
        )
        .with("cached_task_kind", given.as_str())
        .with("cached_task_kind_state", "unrequested_discriminator")),
        PollRefused::NoCapacity { queries } => Err(Failure::new(
            StatusCode::TOO_MANY_REQUESTS,
            Reason::LongPollCapacityExhausted,
            "This node holds as many polls as it may.",
        )
        .with("task", Value::Null)
        .with("poll_status", Reason::LongPollCapacityExhausted.as_str())
        .with("namespace", call.namespace.as_str())
        .with("task_queue", queue)
        .with("task_kind", task_kind)
        .with("wait_pool", if queries { "query" } else { "worker" })
        .retry_in(1)),
        PollRefused::Fault(fault) => Err(failed(call, kind, queue, fault)),
    }
}

/// The server could not: the worker is to repeat the poll under the same id.
fn failed(
    call: &Call<WorkerOnly, PollBody>,
    kind: TaskKind,
    queue: Option<String>,
    fault: Fault,
) -> Failure {
    let task_kind = format!("{}_task", kind.as_str());
    let mut failure = Failure::from(fault);
    if matches!(fault, Fault::Full | Fault::ReadOnly) {
        failure = failure.with("claim_admitted", false);
    }
    let reason = failure.reason();
    failure
        .with("operation", format!("poll_{task_kind}"))
        .with("worker_id", call.body.worker_id.clone())
        .with("namespace", call.namespace.as_str())
        .with("task_queue", queue)
        .with("task_kind", task_kind)
        .with("task", Value::Null)
        .with("poll_status", reason)
        .with("poll_request_id", call.body.poll_request_id.clone())
        .with("retry_same_poll_request_id", true)
}
