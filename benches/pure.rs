//! Micro-benchmarks of the pure parts of a completion: reading it, deciding it, and writing it out.

#![allow(clippy::expect_used, reason = "a benchmark has nobody to answer to")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use leasehold::domain::command::{Command, ScheduleActivity};
use leasehold::domain::decision::{Decision, HandOff};
use leasehold::domain::event::{Event, Json};
use leasehold::domain::ids::{RunId, TaskId, TaskNo, WorkerId};
use leasehold::domain::run::{
    Contract, Digest, Input, RunState, Settings, StartRequest, StreamReport, Verdict,
    WorkflowTaskReport, decide, start,
};
use leasehold::domain::time::Timestamp;
use leasehold::payload::Payload;
use leasehold::protocol::Advertised;
use leasehold::protocol::feature::Negotiated;
use leasehold::store::item::Item;
use leasehold::transport::http::native::{CommandRequest, read_commands, read_position};

/// Bytes of each value.
const PAYLOAD: usize = 1_024;
const OWNER: &str = "worker";
const COMPLETION: &str = r#"[{"type": "schedule_activity", "activity_type": "echo",
    "arguments": {"codec": "avro", "blob": "wwHioz3/VYAiNwwCCgZBZGEA"},
    "start_to_close_timeout": 30, "retry_policy": {"max_attempts": 3, "backoff_seconds": [1, 5]}}]"#;

fn now() -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000)
}

fn value() -> Payload {
    let text = "0123456789abcdef".repeat(PAYLOAD / 16);
    Payload::from_json(&serde_json::json!([text])).expect("a value")
}

fn empty() -> Json {
    serde_json::value::RawValue::from_string("{}".to_owned())
        .expect("an object")
        .into()
}

/// Opened tasks go to a waiting poll, as they do under load.
fn hand_over(decision: &mut Decision) {
    for write in decision.writes_mut() {
        let opened: Vec<TaskNo> = write.opened().map(|(no, _)| no).collect();
        for no in opened {
            let to = HandOff {
                owner: WorkerId::from(OWNER),
                poll_request_id: None,
                knows: i64::MAX,
            };
            write.hand_over(no, to, now());
        }
    }
}

/// A run whose first task is held.
fn begun() -> RunState {
    let request = StartRequest {
        namespace: "default".into(),
        workflow_id: "wf".into(),
        workflow_type: "greet".into(),
        queue: "q".into(),
        input: value(),
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
    };
    let mut decision = start(RunId::new(now(), 7), request, now(), &Settings::default());
    hand_over(&mut decision);
    Item::new(&mut decision).expect("rows");
    (*decision.write.next).clone()
}

fn completion(state: &RunState) -> Input {
    let task = state.workflow_task.as_ref().expect("an open task");
    Input::CompleteWorkflowTask {
        report: WorkflowTaskReport {
            no: task.no,
            attempt: 1,
            owner: WorkerId::from(OWNER),
            digest: Digest(1),
            seen: state.last_event(),
        },
        commands: vec![Command::ScheduleActivity(ScheduleActivity {
            activity_type: "echo".into(),
            arguments: Some(value()),
            queue: None,
            policy: None,
            cancellation: None,
            session: None,
            path: None,
        })],
        streams: StreamReport::default(),
        keep: None,
    }
}

fn decision(state: &RunState) -> Decision {
    match decide(state, completion(state), now(), &Settings::default()) {
        Ok(Verdict::Commit(decision, _)) => {
            let mut decision = *decision;
            hand_over(&mut decision);
            decision
        }
        other => unreachable!("a completion is decided: {other:?}"),
    }
}

fn benchmarks(criterion: &mut Criterion) {
    let state = begun();
    criterion.bench_function("decide a completion", |bencher| {
        let settings = Settings::default();
        bencher.iter_batched(
            || completion(&state),
            |input| decide(&state, input, now(), &settings),
            BatchSize::SmallInput,
        );
    });
    criterion.bench_function("encode a commit item", |bencher| {
        bencher.iter_batched(
            || decision(&state),
            |mut decision| Item::new(&mut decision),
            BatchSize::SmallInput,
        );
    });
    let decided = decision(&state);
    criterion.bench_function("encode history", |bencher| {
        bencher.iter(|| {
            let mut out = Vec::new();
            let events = black_box(&decided.write.events);
            Event::write_all(state.id, &state.begun.namespace, events, &mut out).map(|()| out)
        });
    });
    let advertised: Advertised = "1.13".parse().expect("a version");
    let version = Negotiated::new(&advertised, Some("1.13")).expect("a version");
    criterion.bench_function("validate commands", |bencher| {
        bencher.iter(|| {
            let sent: Vec<CommandRequest> =
                serde_json::from_str(black_box(COMPLETION)).expect("commands");
            read_commands(sent, &version, &["schedule_activity"]).expect("valid commands")
        });
    });
    let task = TaskId {
        run: state.id,
        no: 1,
    }
    .to_string();
    criterion.bench_function("parse a task id", |bencher| {
        bencher.iter(|| black_box(&task).parse::<TaskId>());
    });
    criterion.bench_function("parse a page token", |bencher| {
        bencher.iter(|| read_position(black_box("MTIzNDU=")));
    });
}

criterion_group!(pure, benchmarks);
criterion_main!(pure);
