//! Makers of the commands and inputs of children, waits, selections, updates, streams and
//! cancellations, and the steps on the bench that belong to them.

use std::collections::BTreeMap;

use serde_json::{Value, json as value};

use super::bench::{Bench, Held, Outcome};
use super::make::{at, failure, payload, signal_request};
use crate::domain::command::{
    CancellationPolicy, ClosePolicy, Command, LocalActivity, LocalAttempt, LocalEnd,
    OpenConditionWait, OpenSignalWait, ScheduleActivity, StartChild, StartTimer, UpdateAnswer,
    UpsertSearchAttributes,
};
use crate::domain::decision::Relay;
use crate::domain::event::{CancellationContext, Delivery, SelectionOperationCancelled};
use crate::domain::ids::{RunId, Step};
use crate::domain::parallel::{Path, PathEntry, SelectionMember};
use crate::domain::retry::Policy;
use crate::domain::run::{
    CancellationRequest, ChildClosed, ChildFailure, ChildOutcome, CloseReason, DeliveryReport,
    Digest, Input, MessageRequest, Reply, StreamReport,
};
use crate::payload::Codec;
use crate::payload::Payload;
use crate::payload::avro::Entries;

/// A wait for a condition under this key.
pub fn condition(key: &str) -> OpenConditionWait {
    OpenConditionWait {
        key: Some(key.into()),
        fingerprint: Some("code".into()),
        occurrence: None,
        timeout_seconds: None,
        path: None,
    }
}

/// A wait for a condition that has a name over all its openings, and a time limit.
pub fn limited_condition(key: &str, occurrence: &str, seconds: u64) -> OpenConditionWait {
    OpenConditionWait {
        occurrence: Some(occurrence.into()),
        timeout_seconds: Some(seconds),
        ..condition(key)
    }
}

pub fn wait_for(condition: OpenConditionWait) -> Command {
    Command::OpenConditionWait(condition)
}

pub fn signal_wait(name: &str, timeout_seconds: Option<u64>) -> Command {
    Command::OpenSignalWait(OpenSignalWait {
        name: name.into(),
        timeout_seconds,
        path: None,
    })
}

/// A child without any option.
pub fn plain_child() -> StartChild {
    StartChild {
        workflow_type: "orders.ship".into(),
        arguments: None,
        queue: None,
        close_policy: ClosePolicy::Abandon,
        cancellation: None,
        policy: None,
        execution_timeout_seconds: None,
        run_timeout_seconds: None,
        path: None,
    }
}

pub fn child() -> Command {
    Command::StartChild(plain_child())
}

pub fn child_with(change: impl FnOnce(&mut StartChild)) -> Command {
    let mut child = plain_child();
    change(&mut child);
    Command::StartChild(child)
}

pub fn cancellable_activity(activity_type: &str, policy: CancellationPolicy) -> Command {
    limited_activity(activity_type, policy, None)
}

pub fn limited_activity(
    activity_type: &str,
    cancellation: CancellationPolicy,
    policy: Option<Policy>,
) -> Command {
    Command::ScheduleActivity(ScheduleActivity {
        activity_type: activity_type.into(),
        arguments: None,
        queue: None,
        policy,
        cancellation: Some(cancellation),
        session: None,
        path: None,
    })
}

/// An attempt of a local activity; the failure counts when another attempt follows.
pub fn local_attempt(name: &str) -> LocalAttempt {
    LocalAttempt {
        worker_attempt_id: Some(name.into()),
        heartbeats: Vec::new(),
        failure: failure("Busy"),
        timeout_kind: None,
        retry_reason: None,
        backoff_seconds: 1,
    }
}

pub fn local_activity(attempts: Vec<LocalAttempt>, end: LocalEnd) -> Command {
    Command::RecordLocalActivity(LocalActivity {
        activity_type: "local".into(),
        arguments: None,
        policy: None,
        attempts,
        end,
    })
}

/// `upsert_search_attributes` with the types that it declares.
pub fn attributes(attributes: Value, types: &[(&str, &'static str)]) -> Command {
    let Value::Object(attributes) = attributes else {
        panic!("not an object: {attributes}");
    };
    let types: BTreeMap<String, &'static str> = types
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), *kind))
        .collect();
    Command::UpsertSearchAttributes(UpsertSearchAttributes { attributes, types })
}

pub fn memo(entries: &Value) -> Command {
    let entries = Entries::from_json(entries.as_object().unwrap()).unwrap();
    Command::UpsertMemo {
        entries: Payload::new(Codec::Avro, &entries.blob()),
    }
}

pub fn complete_update(id: &str) -> Command {
    Command::AnswerUpdate {
        update_id: id.into(),
        answer: UpdateAnswer::Completed(Some(payload("answer"))),
    }
}

pub fn fail_update(id: &str) -> Command {
    Command::AnswerUpdate {
        update_id: id.into(),
        answer: UpdateAnswer::Failed(failure("Invalid")),
    }
}

/// The command with this path.
pub fn with_path(command: Command, levels: Vec<PathEntry>) -> Command {
    let path = Path::new(levels);
    match command {
        Command::ScheduleActivity(command) => {
            Command::ScheduleActivity(ScheduleActivity { path, ..command })
        }
        Command::StartTimer(command) => Command::StartTimer(StartTimer { path, ..command }),
        Command::StartChild(command) => Command::StartChild(StartChild { path, ..command }),
        Command::OpenConditionWait(command) => {
            Command::OpenConditionWait(OpenConditionWait { path, ..command })
        }
        Command::OpenSignalWait(command) => {
            Command::OpenSignalWait(OpenSignalWait { path, ..command })
        }
        other => panic!("not a member of groups: {other:?}"),
    }
}

fn kind_of(command: &Command) -> &'static str {
    match command {
        Command::ScheduleActivity(_) => "activity",
        Command::StartTimer(_) => "timer",
        Command::StartChild(_) => "child",
        Command::OpenConditionWait(_) => "condition",
        _ => "signal",
    }
}

/// A selection at `base` between members of one leaf or, with more leaves, of a nested group each.
/// The key of a member is its place.
pub fn select(base: Step, members: Vec<Vec<Command>>) -> Vec<Command> {
    let count = |leaves: usize| u32::try_from(leaves).unwrap();
    let size = count(members.iter().map(Vec::len).sum());
    let mut commands = Vec::new();
    for (place, member) in (0..).zip(members) {
        let (first, leaves) = (base + count(commands.len()), count(member.len()));
        for (index, leaf) in (0..).zip(member) {
            let kind = if leaves == 1 { kind_of(&leaf) } else { "group" };
            let mut levels = vec![PathEntry {
                parallel_group_id: format!("select-calls:{base}:{size}"),
                parallel_group_kind: "mixed".to_owned(),
                parallel_group_mode: Some("select".to_owned()),
                parallel_group_base_sequence: base,
                parallel_group_size: size,
                parallel_group_index: first + index - base,
                member: Some(SelectionMember {
                    selection_member_key: value!(place),
                    selection_member_index: place,
                    selection_member_base_sequence: first,
                    selection_member_size: leaves,
                    selection_member_kind: kind.to_owned(),
                }),
            }];
            if leaves > 1 {
                levels.push(super::make::level(first, leaves, index));
            }
            commands.push(with_path(leaf, levels));
        }
    }
    commands
}

/// `cancel_selection_operation` for the member that this leaf belongs to.
pub fn give_up_member(leaf: &Command, identity: String) -> SelectionOperationCancelled {
    let path = match leaf {
        Command::ScheduleActivity(command) => &command.path,
        Command::StartTimer(command) => &command.path,
        Command::StartChild(command) => &command.path,
        Command::OpenConditionWait(command) => &command.path,
        Command::OpenSignalWait(command) => &command.path,
        other => panic!("not a member of groups: {other:?}"),
    };
    let outer = path.as_ref().unwrap().outermost();
    let member = outer.member.clone().unwrap();
    SelectionOperationCancelled {
        selection_group_id: outer.parallel_group_id.clone(),
        member_key: member.selection_member_key,
        member_index: member.selection_member_index,
        member_base_sequence: member.selection_member_base_sequence,
        member_size: member.selection_member_size,
        operation_kind: member.selection_member_kind,
        operation_identity: identity,
    }
}

pub fn update(name: &str) -> Input {
    Input::Update(signal_request(name))
}

pub fn message(stream: &str, id: &str) -> Input {
    Input::Message(MessageRequest {
        stream: stream.into(),
        id: id.into(),
        payload: payload(id),
        digest: Digest(7),
    })
}

/// What a completion says about streams.
pub fn streams(cursors: &[(&str, u64)], waits: &[(&str, u64)]) -> StreamReport {
    let owned = |entries: &[(&str, u64)]| {
        entries
            .iter()
            .map(|(name, position)| ((*name).into(), *position))
            .collect()
    };
    StreamReport {
        cursors: owned(cursors),
        waits: owned(waits),
    }
}

/// The interruption of a call of this kind at `sequence`.
pub fn call(kind: &str, sequence: Step) -> Delivery {
    Delivery {
        sequence,
        call_kind: kind.into(),
        sequence_span: 1,
        operation_sequence: None,
        operation_sequence_span: 1,
    }
}

/// The interruption of a parallel call of `span` leaves.
pub fn parallel_call(sequence: Step, span: u32) -> Delivery {
    Delivery {
        sequence_span: span,
        ..call("parallel", sequence)
    }
}

/// How a child ended.
pub fn child_outcome(reason: CloseReason) -> ChildOutcome {
    ChildOutcome {
        reason,
        at: at(1),
        output: (reason == CloseReason::Completed).then(|| payload("output")),
        failure: (reason != CloseReason::Completed).then(|| ChildFailure {
            message: "It broke.".into(),
            kind: Some("Broken".into()),
            class: None,
            exception: None,
        }),
    }
}

impl Held {
    pub fn complete_with(&self, commands: Vec<Command>, streams: StreamReport) -> Input {
        Input::CompleteWorkflowTask {
            report: self.report(1),
            commands,
            streams,
            keep: None,
        }
    }

    pub fn deliver(&self, request_id: &str, delivery: Delivery) -> Input {
        Input::DeliverCancellation(DeliveryReport {
            no: self.no,
            attempt: self.attempt,
            owner: self.owner.clone(),
            request_id: request_id.into(),
            delivery,
        })
    }
}

impl Bench {
    /// The control plane asks for a cancellation with the workflow's cooperation.
    pub fn request_cancellation(&mut self, cleanup_timeout_seconds: u64) -> Outcome {
        let lease = self.observe();
        self.put(Input::RequestCancellation(CancellationRequest {
            reason: Some("no longer wanted".into()),
            cleanup_timeout_seconds,
            parent: None,
            lease,
        }))
    }

    /// The parent asks for it.
    pub fn request_from_parent(&mut self, context: CancellationContext) -> Outcome {
        let lease = self.observe();
        self.put(Input::RequestCancellation(CancellationRequest {
            reason: None,
            cleanup_timeout_seconds: 600,
            parent: Some(Box::new(context)),
            lease,
        }))
    }

    /// The id of the cancellation that was asked for.
    pub fn request_id(&self) -> String {
        let cancellation = self.state().cancellation.as_ref().unwrap();
        cancellation.context.request_id.to_string()
    }

    /// A worker takes the open workflow task and delivers the cancellation at this call.
    pub fn deliver(&mut self, delivery: Delivery) -> (Held, Reply) {
        let held = self.claim(self.workflow_task().unwrap());
        let reply = self.ok(held.deliver(&self.request_id(), delivery));
        (held, reply)
    }

    /// Takes the open workflow task and completes it with this word on streams.
    pub fn step_with(&mut self, commands: Vec<Command>, streams: StreamReport) -> Reply {
        let held = self.claim(self.workflow_task().unwrap());
        self.ok(held.complete_with(commands, streams))
    }

    /// The first run of the child at `step`.
    pub fn child_run(&self, step: Step) -> RunId {
        self.state().children[&step].run
    }

    /// The parent hears of the end of the child at `step`.
    pub fn end_child(&mut self, step: Step, reason: CloseReason) -> Reply {
        let child = self.child_run(step);
        self.ok(Input::ChildClosed(ChildClosed {
            step,
            child,
            outcome: child_outcome(reason),
        }))
    }

    /// The bench goes on with this run; the one before it stays as it is.
    pub fn visit(&mut self, run: RunId) -> RunId {
        std::mem::replace(&mut self.run, run)
    }

    /// What this run has told others.
    pub fn relays(&self) -> &[Relay] {
        &self.stored().relays
    }

    /// An update of this name arrives; its id.
    pub fn update(&mut self, name: &str) -> String {
        match self.ok(update(name)) {
            Reply::UpdateAccepted { id, .. } => id.to_string(),
            other => panic!("not accepted: {other:?}"),
        }
    }
}
