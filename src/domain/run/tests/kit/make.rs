//! Makers of commands, policies and requests, each with plain defaults.

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::domain::command::{
    Command, ContinueAsNew, End, Failure, ScheduleActivity, StartTimer, VersionMarker,
};
use crate::domain::event::Json;
use crate::domain::ids::{RunId, Step};
use crate::domain::parallel::{Path, PathEntry};
use crate::domain::retry::Policy;
use crate::domain::run::{
    CloseRequest, Contract, Digest, Input, InputRequest, ObservedLease, StartRequest,
};
use crate::domain::time::Timestamp;
use crate::payload::{Codec, Payload};

/// When every test begins: 2026-07-18T00:40:00Z.
pub fn t0() -> Timestamp {
    Timestamp::from_micros(1_784_335_200_000_000)
}

/// `seconds` after the beginning.
pub fn at(seconds: u64) -> Timestamp {
    t0().plus_seconds(seconds)
}

pub fn payload(blob: &str) -> Payload {
    Payload::new(Codec::Avro, blob)
}

pub fn json(text: &str) -> Json {
    RawValue::from_string(text.to_owned()).unwrap().into()
}

/// A run id of its own for each number.
pub fn run_id(n: u128) -> RunId {
    RunId::new(t0(), n)
}

pub fn start_request() -> StartRequest {
    StartRequest {
        namespace: "default".into(),
        workflow_id: "order-1".into(),
        workflow_type: "orders.checkout".into(),
        queue: "orders".into(),
        input: payload("input"),
        business_key: None,
        memo: json("{}"),
        search_attributes: json("{}"),
        execution_timeout_seconds: None,
        run_timeout_seconds: None,
        priority: 5,
        fairness_key: None,
        fairness_weight: 1,
        build_id: None,
        contract: Contract::default(),
    }
}

/// A policy without timeouts: so many attempts, with these waits between them.
pub fn policy(max_attempts: u32, backoff_seconds: &[u64]) -> Policy {
    Policy {
        snapshot_version: 1,
        max_attempts,
        backoff_seconds: backoff_seconds.to_vec(),
        start_to_close_timeout: None,
        schedule_to_start_timeout: None,
        schedule_to_close_timeout: None,
        heartbeat_timeout: None,
        non_retryable_error_types: Vec::new(),
    }
}

pub fn activity_with(activity_type: &str, policy: Option<Policy>) -> Command {
    Command::ScheduleActivity(ScheduleActivity {
        activity_type: activity_type.into(),
        arguments: Some(payload("arguments")),
        queue: None,
        policy,
        cancellation: None,
        session: None,
        path: None,
    })
}

pub fn activity(activity_type: &str) -> Command {
    activity_with(activity_type, None)
}

pub fn timer(delay_seconds: u64) -> Command {
    Command::StartTimer(StartTimer {
        delay_seconds,
        path: None,
    })
}

pub fn side_effect() -> Command {
    Command::RecordSideEffect {
        result: payload("effect"),
    }
}

pub fn version_marker(version: i64, min_supported: i64, max_supported: i64) -> Command {
    Command::RecordVersionMarker(VersionMarker {
        change_id: "change-1".to_owned(),
        version,
        min_supported,
        max_supported,
    })
}

pub fn complete_workflow() -> Command {
    Command::End(End::Complete {
        result: Some(payload("result")),
    })
}

pub fn fail_workflow() -> Command {
    Command::End(End::Fail(failure("Broken")))
}

pub fn continue_as_new() -> Command {
    Command::End(End::ContinueAsNew(ContinueAsNew {
        arguments: None,
        workflow_type: None,
        queue: None,
    }))
}

/// A failure of this type.
pub fn failure(kind: &str) -> Failure {
    Failure {
        message: format!("{kind} happened"),
        kind: Some(kind.to_owned()),
        ..Failure::default()
    }
}

/// One level of a group path.
pub fn level(base: Step, size: u32, index: u32) -> PathEntry {
    PathEntry {
        parallel_group_id: format!("parallel-calls:{base}:{size}"),
        parallel_group_kind: "mixed".to_owned(),
        parallel_group_mode: None,
        parallel_group_base_sequence: base,
        parallel_group_size: size,
        parallel_group_index: index,
        member: None,
    }
}

/// The command with a place in groups, outermost first.
pub fn placed(command: Command, levels: Vec<PathEntry>) -> Command {
    let path = Path::new(levels);
    match command {
        Command::ScheduleActivity(command) => {
            Command::ScheduleActivity(ScheduleActivity { path, ..command })
        }
        Command::StartTimer(command) => Command::StartTimer(StartTimer { path, ..command }),
        other => panic!("not a member of groups: {other:?}"),
    }
}

/// The commands as one group whose first member has step `base`.
pub fn group(base: Step, members: Vec<Command>) -> Vec<Command> {
    let size = u32::try_from(members.len()).unwrap();
    (0..size)
        .zip(members)
        .map(|(index, member)| placed(member, vec![level(base, size, index)]))
        .collect()
}

pub fn signal_request(name: &str) -> InputRequest {
    InputRequest {
        name: name.into(),
        arguments: payload(name),
        request_id: None,
        digest: Digest(7),
        run_target: "".into(),
        update_id: None,
    }
}

pub fn signal(name: &str) -> Input {
    Input::Signal(signal_request(name))
}

pub fn close_request(lease: ObservedLease) -> CloseRequest {
    CloseRequest {
        reason: Some(Arc::from("no longer wanted")),
        request_id: None,
        lease,
    }
}

pub fn archive() -> Input {
    Input::Archive(close_request(ObservedLease::Unknown))
}
