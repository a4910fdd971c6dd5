//! Commands of a completion: what each records, how steps are numbered, where the closing one stands.

use super::kit::*;
use crate::domain::command::{Command, ContinueAsNew, End};
use crate::domain::event::Body;
use crate::domain::routing::TaskKind;
use crate::domain::run::{CloseReason, Refusal, ReportKind, Status};

/// `schedule_activity` records `ActivityScheduled` and opens a task that is ready now, on the run's
/// queue when the command names none.
#[test]
fn an_activity_is_scheduled_and_its_task_is_ready() {
    let bench = Bench::after(vec![activity("charge")]);
    assert_eq!(bench.new_types(), ["ActivityScheduled"]);
    assert_eq!(bench.tasks(), [(2, TaskKind::Activity)]);
    let row = bench.row(2);
    assert_eq!(row.visible_at, t0());
    assert_eq!(row.task.routing.queue.as_str(), "orders");
    assert_eq!(&*row.task.routing.task_type, "charge");
    let scheduled = &bench.payloads("ActivityScheduled")[0];
    assert_eq!(scheduled["sequence"], 1);
    assert_eq!(scheduled["activity_type"], "charge");
    assert!(
        scheduled["activity"]["retry_policy"].is_null(),
        "no policy is a null snapshot"
    );
    assert_eq!(bench.state().status(), Status::Waiting);
}

/// A queue that the command names wins over the run's.
#[test]
fn an_activity_may_name_its_queue() {
    let mut command = activity("charge");
    if let Command::ScheduleActivity(command) = &mut command {
        command.queue = Some("payments".into());
    }
    let bench = Bench::after(vec![command]);
    assert_eq!(bench.row(2).task.routing.queue.as_str(), "payments");
}

/// `record_side_effect` and `record_version_marker` record a value and open nothing.
#[test]
fn values_are_recorded_without_tasks() {
    let bench = Bench::after(vec![side_effect(), version_marker(1, 0, 2)]);
    assert_eq!(
        bench.new_types(),
        ["SideEffectRecorded", "VersionMarkerRecorded"]
    );
    assert_eq!(bench.tasks(), []);
    let marker = &bench.payloads("VersionMarkerRecorded")[0];
    assert_eq!(
        *marker,
        serde_json::json!({"sequence": 2, "change_id": "change-1", "version": 1, "min_supported": 0, "max_supported": 2}),
        "exactly these keys"
    );
}

/// A version outside its supported range is refused with the whole completion; the bounds belong to it.
#[test]
fn a_version_must_be_in_its_range() {
    for (version, min, max) in [(3, 0, 2), (-1, 0, 2), (1, 2, 0)] {
        let mut bench = Bench::start();
        let task = bench.claim(1);
        let refusal =
            bench.refused(task.complete(vec![side_effect(), version_marker(version, min, max)]));
        assert!(
            matches!(refusal, Refusal::InvalidCommands(_)),
            "{refusal:?}"
        );
        assert_eq!(
            bench.types().len(),
            2,
            "nothing of a refused completion is recorded"
        );
    }
    Bench::after(vec![
        version_marker(0, 0, 0),
        version_marker(2, 0, 2),
        version_marker(0, 0, 2),
    ]);
}

/// `complete_workflow` closes the run with its result; `fail_workflow` with its failure.
#[test]
fn a_workflow_ends_by_its_own_command() {
    let bench = Bench::after(vec![complete_workflow()]);
    assert_eq!(bench.new_types(), ["WorkflowCompleted"]);
    assert_eq!(bench.state().status(), Status::Completed);
    let close = bench.state().close.clone().unwrap();
    assert_eq!(close.reason, CloseReason::Completed);
    assert_eq!(close.output.as_ref().unwrap().blob(), "result");
    assert_eq!(bench.tasks(), []);

    let bench = Bench::after(vec![fail_workflow()]);
    assert_eq!(bench.new_types(), ["WorkflowFailed"]);
    assert_eq!(bench.state().status(), Status::Failed);
    let failed = &bench.payloads("WorkflowFailed")[0];
    assert_eq!(failed["message"], "Broken happened");
    assert_eq!(failed["exception_type"], "Broken");
    assert_eq!(failed["failure_category"], "application");
}

/// Without a result the workflow returned null.
#[test]
fn an_absent_result_is_the_encoded_null() {
    let bench = Bench::after(vec![Command::End(End::Complete { result: None })]);
    let completed = &bench.payloads("WorkflowCompleted")[0];
    assert_eq!(
        completed["output"]["blob"],
        crate::payload::Payload::null().blob().to_string()
    );
}

/// Commands are recorded in their order, and steps count 1, 2, 3 … over all kinds and completions.
#[test]
fn steps_are_numbered_from_one_without_gaps() {
    let mut bench = Bench::after(vec![
        side_effect(),
        timer(60),
        activity("a"),
        version_marker(0, 0, 0),
    ]);
    assert_eq!(
        bench.new_types(),
        [
            "SideEffectRecorded",
            "TimerScheduled",
            "ActivityScheduled",
            "VersionMarkerRecorded"
        ]
    );
    bench.run_activity(2);
    bench.step(vec![activity("b"), side_effect()]);
    bench.run_activity(4);
    bench.step(vec![continue_as_new()]);
    assert_eq!(
        bench.steps(),
        [1, 2, 3, 4, 5, 6, 7],
        "history events in between do not count"
    );
}

/// The answer names the tasks that were opened, the follow-up task last.
#[test]
fn the_answer_names_the_opened_tasks_in_order() {
    let mut bench = Bench::start();
    bench.ok(signal("held"));
    let task = bench.claim(1);
    let reply = bench.ok(task.complete(vec![activity("a"), timer(60), activity("b")]));
    assert_eq!(
        reported(&reply),
        (ReportKind::Completed, vec![2, 3, 4], Some(4), false)
    );
    assert_eq!(bench.tasks().len(), 3);
}

/// The place of the closing command does not matter: it is applied last.
#[test]
fn the_closing_command_is_applied_last_wherever_it_stands() {
    for place in 0..3 {
        let mut commands = vec![side_effect(), version_marker(1, 1, 1)];
        commands.insert(place, complete_workflow());
        let bench = Bench::after(commands);
        assert_eq!(
            bench.new_types(),
            [
                "SideEffectRecorded",
                "VersionMarkerRecorded",
                "WorkflowCompleted"
            ]
        );
    }
}

/// At most one command closes the run, also when both are of one kind.
#[test]
fn two_closing_commands_are_refused() {
    let endings = [complete_workflow(), fail_workflow(), continue_as_new()];
    for first in &endings {
        for second in &endings {
            let mut bench = Bench::start();
            let task = bench.claim(1);
            let commands = vec![first.clone(), side_effect(), second.clone()];
            let refusal = bench.refused(task.complete(commands));
            assert!(
                matches!(refusal, Refusal::InvalidCommands(_)),
                "{refusal:?}"
            );
        }
    }
}

/// An empty list is no new command: the task is done and the run waits.
#[test]
fn an_empty_completion_means_that_the_run_waits() {
    let mut bench = Bench::start();
    let task = bench.claim(1);
    let reply = bench.ok(task.complete(Vec::new()));
    assert_eq!(
        reported(&reply),
        (ReportKind::Completed, vec![], None, false)
    );
    assert_eq!(bench.new_types(), [""; 0]);
    assert_eq!(bench.state().status(), Status::Waiting);
    assert_eq!(bench.state().wait_kind(), Some("signal"));
}

/// A run that ends by itself drops what is open, also what the same completion opened, and records
/// nothing for it: the terminal event is the last.
#[test]
fn what_is_open_goes_with_a_run_that_ends_by_itself() {
    let mut slow = policy(1, &[]);
    slow.schedule_to_start_timeout = Some(60);
    slow.schedule_to_close_timeout = Some(90);
    let mut bench = Bench::after(vec![
        activity_with("slow", Some(slow)),
        timer(60),
        activity("fast"),
    ]);
    bench.run_activity(3);
    bench.step(vec![
        activity("late"),
        timer(5),
        timer(0),
        complete_workflow(),
    ]);
    assert_eq!(
        bench.new_types(),
        [
            "ActivityScheduled",
            "TimerScheduled",
            "TimerScheduled",
            "WorkflowCompleted"
        ]
    );
    assert_eq!(bench.tasks(), []);
    assert_eq!(bench.timers(), []);
}

/// Events that a completion writes name its task; others do not.
#[test]
fn events_of_a_completion_name_its_task() {
    let mut bench = Bench::after(vec![activity("a")]);
    bench.run_activity(2);
    let task = format!("{}-1", bench.run);
    assert_eq!(bench.served(3)["workflow_task_id"], task.as_str());
    assert_eq!(bench.served(5)["event_type"], "ActivityCompleted");
    assert!(bench.served(5)["workflow_task_id"].is_null());
}

/// The successor's queue, type and input come from the command where it names them.
#[test]
fn continue_as_new_may_change_type_queue_and_input() {
    let mut bench = Bench::after(vec![Command::End(End::ContinueAsNew(ContinueAsNew {
        arguments: Some(payload("other-input")),
        workflow_type: Some("orders.other".into()),
        queue: Some("other-queue".into()),
    }))]);
    assert!(matches!(
        bench.stored().events.last().unwrap().body,
        Body::WorkflowContinuedAsNew(_)
    ));
    bench.follow();
    let begun = &bench.state().begun;
    assert_eq!(&*begun.workflow_type, "orders.other");
    assert_eq!(begun.input.blob(), "other-input");
    assert_eq!(bench.row(1).task.routing.queue.as_str(), "other-queue");
    assert_eq!(&*bench.row(1).task.routing.task_type, "orders.other");
}
