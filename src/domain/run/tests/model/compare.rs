//! What the run says and what it recorded, put beside the reference model.

use std::collections::{BTreeMap, BTreeSet};

use super::super::kit::Stored;
use super::react::told;
use super::rules::{Ev, Model};
use crate::domain::command::{Command, End};
use crate::domain::decision::TimerKey;
use crate::domain::event::{Body, Event};
use crate::domain::ids::{RunId, TaskNo};
use crate::domain::parallel::Path;
use crate::domain::routing::TaskKind;
use crate::domain::run::{Held, Input, Refusal, Reply, Verdict, WorkflowTaskReport};
use crate::domain::time::Timestamp;

/// An outcome in the words of the reference model.
pub fn label(decided: &Result<Verdict, Refusal>) -> String {
    let reply = match decided {
        Ok(Verdict::Answer(reply) | Verdict::Commit(_, reply)) => reply,
        Err(Refusal::Limit { kind, .. }) => return format!("refused Limit {kind:?}"),
        Err(refusal) => return format!("refused {}", refusal_name(refusal)),
    };
    match reply {
        Reply::Done => "done".to_owned(),
        Reply::Reported {
            report,
            created,
            next,
            duplicate,
        } => told(*report, created, *next, *duplicate),
        Reply::ClosedMeanwhile(_) => "closed meanwhile".to_owned(),
        Reply::TooLate(_) => "too late".to_owned(),
        Reply::TimedOutInstead => "timed out instead".to_owned(),
        Reply::Started => "started".to_owned(),
        Reply::SignalAccepted { command } => format!("signal {command}"),
        Reply::Closed { command } => format!("closed {command}"),
        Reply::Archived { command } => format!("archived {command:?}"),
        other => format!("{other:?}"),
    }
}

fn refusal_name(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::UnknownTask => "UnknownTask",
        Refusal::TaskNotOpen => "TaskNotOpen",
        Refusal::AlreadyReported(_) => "AlreadyReported",
        Refusal::RunClosed(_) => "RunClosed",
        Refusal::RunTimedOut(_) => "RunTimedOut",
        Refusal::StaleAttempt => "StaleAttempt",
        Refusal::InvalidCommands(_) => "InvalidCommands",
        Refusal::Limit { .. } => "Limit",
        Refusal::NotActive(_) => "NotActive",
        Refusal::NotClosed => "NotClosed",
        Refusal::NotCurrent(_) => "NotCurrent",
        Refusal::LeaseNeeded => "LeaseNeeded",
        Refusal::NothingToDo => "NothingToDo",
        _ => "another",
    }
}

fn input_name(input: &Input) -> &'static str {
    match input {
        Input::CompleteWorkflowTask { .. } => "CompleteWorkflowTask",
        Input::FailWorkflowTask { .. } => "FailWorkflowTask",
        Input::AttemptStarted { .. } => "AttemptStarted",
        Input::ReportActivity(_) => "ReportActivity",
        Input::Overdue(_) => "Overdue",
        Input::GiveUp { .. } => "GiveUp",
        Input::TimersDue { .. } => "TimersDue",
        Input::Signal(_) => "Signal",
        Input::Cancel(_) => "Cancel",
        Input::Terminate(_) => "Terminate",
        Input::Archive(_) => "Archive",
        _ => "another",
    }
}

/// A kind of input and its kind of outcome.
pub fn outcome(input: &Input, label: &str) -> String {
    let name = input_name(input);
    let again = label.contains("again=true");
    let kind: Vec<&str> = label
        .split(' ')
        .take_while(|word| word.starts_with(char::is_alphabetic))
        .filter(|word| !word.starts_with("None") && !word.starts_with("Some"))
        .collect();
    format!(
        "{name}: {}{}",
        kind.join(" "),
        if again { " again" } else { "" }
    )
}

/// An input in a line, for the list of steps of a failing seed.
pub fn describe(run: RunId, input: &Input) -> String {
    let run = run.to_string();
    let text = match input {
        Input::CompleteWorkflowTask {
            report, commands, ..
        } => {
            let commands: Vec<String> = commands.iter().map(command).collect();
            format!("complete {} [{}]", task_fence(report), commands.join(", "))
        }
        Input::FailWorkflowTask {
            report, failure, ..
        } => {
            format!("fail {} {failure:?}", task_fence(report))
        }
        Input::ReportActivity(report) => format!(
            "activity {}-{} by {} digest {}: {:?} beat {}",
            report.no,
            report.attempt,
            report.owner,
            report.digest.0,
            report.outcome,
            report.beat.is_some()
        ),
        Input::Signal(request) => format!("signal {}", request.arguments.blob()),
        other => format!("{other:?}"),
    };
    format!("run …{}: {text}", &run[run.len() - 4..])
}

fn task_fence(report: &WorkflowTaskReport) -> String {
    format!(
        "{}-{} by {} digest {} seen {}",
        report.no, report.attempt, report.owner, report.digest.0, report.seen
    )
}

fn command(command: &Command) -> String {
    let levels = |path: &Option<Path>| -> String {
        let entries = path.iter().flat_map(Path::entries);
        entries
            .map(|e| {
                let base = e.parallel_group_base_sequence;
                format!(
                    " {base}+{}/{}",
                    e.parallel_group_index, e.parallel_group_size
                )
            })
            .collect()
    };
    match command {
        Command::ScheduleActivity(c) => format!("activity{} {:?}", levels(&c.path), c.policy),
        Command::StartTimer(c) => format!("timer {} s{}", c.delay_seconds, levels(&c.path)),
        Command::RecordSideEffect { .. } => "side effect".to_owned(),
        Command::RecordVersionMarker(c) => format!("version {}", c.version),
        Command::End(End::Complete { .. }) => "complete workflow".to_owned(),
        Command::End(End::Fail(_)) => "fail workflow".to_owned(),
        Command::End(End::ContinueAsNew(_)) => "continue as new".to_owned(),
        other => format!("{other:?}"),
    }
}

/// An event as the reference model keeps it.
fn seen(event: &Event) -> Ev {
    let (step, attempt) = match &event.body {
        Body::ActivityScheduled(e) => (e.keys.sequence, 0),
        Body::ActivityStarted(e) => (e.keys.sequence, e.attempt_number),
        Body::ActivityHeartbeatRecorded(e) => (e.keys.sequence, e.attempt_number),
        Body::ActivityRetryScheduled(e) => (e.keys.sequence, e.retry_after_attempt),
        Body::ActivityCompleted(e) => (e.keys.sequence, e.attempt_number),
        Body::ActivityFailed(e) => (e.keys.sequence, e.attempt_number),
        Body::ActivityTimedOut(e) => (e.keys.sequence, e.attempt_number),
        Body::ActivityCancelled(e) => (e.keys.sequence, e.attempt_number),
        Body::TimerScheduled(e) => (e.timer.sequence, 0),
        Body::TimerFired(e) => (e.timer.sequence, 0),
        Body::TimerCancelled(e) => (e.timer.sequence, 0),
        Body::SideEffectRecorded(e) => (e.sequence, 0),
        Body::VersionMarkerRecorded(e) => (e.sequence, 0),
        Body::WorkflowContinuedAsNew(e) => (e.sequence, 0),
        _ => (0, 0),
    };
    Ev {
        kind: event.body.event_type(),
        step,
        attempt,
        tag: match &event.body {
            Body::SignalReceived(e) => e.arguments.blob().to_string(),
            _ => String::new(),
        },
        until: match &event.body {
            Body::ActivityRetryScheduled(e) => Some(e.retry_available_at),
            _ => None,
        },
    }
}

/// What was recorded since `from` is what the rules say.
pub fn events(model: &Model, stored: &Stored, from: usize) {
    let recorded: Vec<Ev> = stored.events[from..].iter().map(seen).collect();
    assert_eq!(
        recorded,
        model.history[from..],
        "recorded, and what the rules say"
    );
}

/// What is open is what the rules say, row by row.
pub fn state(model: &Model, stored: &Stored, is_discarded: impl Fn(TimerKey, Timestamp) -> bool) {
    let state = &stored.state;
    assert_eq!(state.next_event, model.history.len() as u64 + 1);
    assert_eq!(state.next_step, model.next_step());
    assert_eq!(state.next_task, model.tasks + 1);
    assert_eq!(state.commands, model.commands);
    assert_eq!(state.archived, model.archived);
    assert_eq!(state.close.as_ref().map(|close| close.reason), model.closed);
    let open = state
        .workflow_task
        .as_ref()
        .map(|task| (task.no, task.failures, task.blocked));
    let rule = model
        .open
        .as_ref()
        .map(|open| (open.no, open.failures, open.blocked));
    assert_eq!(open, rule, "the open workflow task");
    let held: Vec<&str> = state
        .held
        .iter()
        .map(|held| match &**held {
            Held::Signal(signal) => signal.arguments.blob(),
            Held::Update(update) => update.arguments.blob(),
        })
        .collect();
    assert!(
        held.iter().eq(model.held.iter()),
        "held {held:?}, and by the rules {:?}",
        model.held
    );
    let activities: BTreeMap<TaskNo, (u32, u32, u32)> = state
        .activities
        .values()
        .map(|activity| {
            (
                activity.no,
                (activity.step, activity.failures, activity.started),
            )
        })
        .collect();
    let rule: BTreeMap<TaskNo, (u32, u32, u32)> = model
        .activities()
        .into_iter()
        .map(|(step, made)| (made.no, (step, model.failures(step), model.shown(step))))
        .collect();
    assert_eq!(activities, rule, "open activities");
    let rows: BTreeSet<TaskNo> = stored.tasks.keys().copied().collect();
    let workflow = stored
        .tasks
        .values()
        .filter(|row| row.kind == TaskKind::Workflow);
    assert!(workflow.count() <= 1, "one workflow task at a time");
    if model.closed.is_none() {
        let rule: BTreeSet<TaskNo> = rule
            .into_keys()
            .chain(model.open.iter().map(|open| open.no))
            .collect();
        assert_eq!(rows, rule, "task rows");
        let timers: BTreeMap<u32, Timestamp> = state
            .timers
            .values()
            .map(|timer| (timer.step, timer.fire_at))
            .collect();
        let rule: BTreeMap<u32, Timestamp> = model
            .timers()
            .into_iter()
            .map(|(step, made)| (step, made.at.plus_seconds(made.delay)))
            .collect();
        assert_eq!(timers, rule, "open timers");
    } else {
        assert!(rows.is_empty(), "a closed run has no task rows");
    }
    let mut rule = model.rows();
    rule.retain(|key, at| !is_discarded(*key, *at));
    assert_eq!(stored.timers, rule, "timer rows");
    is_not_stuck(model, stored);
}

/// An open run waits for something, and has nothing that nobody will look at.
fn is_not_stuck(model: &Model, stored: &Stored) {
    let state = &stored.state;
    if state.close.is_some() || state.workflow_task.is_some() {
        return;
    }
    assert!(
        state.held.is_empty(),
        "held signals wait for a task, and none is open"
    );
    assert!(
        state.last_wake <= model.seen as u64,
        "event {} woke the run, and no worker will see it",
        state.last_wake
    );
    assert!(model.newest_wake() <= model.seen);
}

/// What was committed for a task says when it may be handed out.
pub fn readiness(model: &Model, stored: &Stored, no: TaskNo) {
    if let (Some(row), Some(ready)) = (stored.tasks.get(&no), model.ready.get(&no)) {
        assert_eq!(row.visible_at, *ready, "task {no} is ready at");
    }
}

/// A whole history keeps the promises that every reader relies on.
pub fn history(stored: &Stored) {
    let mut opened = BTreeSet::new();
    let mut ended = BTreeSet::new();
    let mut terminal = None;
    for (place, event) in stored.events.iter().enumerate() {
        assert_eq!(event.sequence, place as u64 + 1, "no gap");
        let ev = seen(event);
        let after_the_end = matches!(ev.kind, "ArchiveRequested" | "WorkflowArchived");
        assert!(
            terminal.is_none() || after_the_end,
            "{} follows {terminal:?}",
            ev.kind
        );
        match ev.kind {
            "ActivityScheduled"
            | "TimerScheduled"
            | "SideEffectRecorded"
            | "VersionMarkerRecorded" => {
                assert!(opened.insert(ev.step), "step {} opens twice", ev.step);
            }
            "ActivityStarted" | "ActivityHeartbeatRecorded" | "ActivityRetryScheduled" => {
                assert!(
                    opened.contains(&ev.step) && !ended.contains(&ev.step),
                    "{ev:?}"
                );
            }
            "ActivityCompleted" | "ActivityFailed" | "ActivityTimedOut" | "ActivityCancelled"
            | "TimerFired" | "TimerCancelled" => {
                assert!(opened.contains(&ev.step), "{ev:?} before its opening");
                assert!(ended.insert(ev.step), "step {} ends twice", ev.step);
            }
            "WorkflowCompleted"
            | "WorkflowFailed"
            | "WorkflowCancelled"
            | "WorkflowTerminated"
            | "WorkflowTimedOut"
            | "WorkflowContinuedAsNew" => terminal = Some(ev.kind),
            _ => {}
        }
    }
    assert_eq!(terminal.is_some(), stored.state.close.is_some());
    let folded = stored.folded();
    assert_eq!(
        format!("{folded:?}"),
        format!("{:?}", stored.state),
        "folded from nothing"
    );
}
