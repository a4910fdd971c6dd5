//! Workflow tasks: what a worker reports about one, and the task that follows.

use std::sync::Arc;

use super::super::command::{Command, End};
use super::super::ids::{TaskNo, WorkerId};
use super::super::lease::{Hold, after_blocked, after_report};
use super::super::limits::{LimitKind, MAX_HISTORY_EVENTS};
use super::super::parallel::StepKind;
use super::super::time::Timestamp;
use super::condition::Carried;
use super::draft::Draft;
use super::fact::{Digest, Fact, Receipt, ReportKind};
use super::outcome::{Refusal, Reply, Verdict};
use super::state::RunState;
use super::status::CloseReason;
use super::steps::{Numbered, Steps, invalid};
use super::sticky::{self, Keep};
use super::stream::{self, StreamReport};
use super::{
    activity, attributes, child, close, condition, continue_as_new, held, local_activity, marker,
    selection, signal, timer, update,
};

/// Fence and body of a worker's report on a workflow task.
#[derive(Clone, Debug)]
pub struct WorkflowTaskReport {
    /// The task.
    pub no: TaskNo,
    /// The hand-out.
    pub attempt: u32,
    /// The holder.
    pub owner: WorkerId,
    /// Digest of the request body.
    pub digest: Digest,
    /// Last event that the worker was shown.
    pub seen: u64,
}

/// Why a worker could not process a workflow task.
#[derive(Clone, Debug)]
pub enum TaskFailure {
    /// There was nothing to do; the workflow waits for new history.
    WaitingForHistory,
    /// The worker cannot replay the history.
    Blocked(Arc<str>),
    /// Anything else.
    Other(Arc<str>),
}

/// Checks a report against what the run knows. `Ok(Some)` is an answer without a write.
fn admit(
    draft: &Draft<'_>,
    report: &WorkflowTaskReport,
    kind: ReportKind,
) -> Result<Option<Reply>, Refusal> {
    let state = &draft.state;
    if report.no == 0 || report.no >= state.next_task {
        return Err(Refusal::UnknownTask);
    }
    if let Some(receipt) = state.receipt(report.no, report.attempt) {
        return if RunState::is_repeat(receipt, &report.owner, kind, report.digest) {
            Ok(Some(Reply::again(receipt)))
        } else {
            Err(Refusal::AlreadyReported(Arc::clone(receipt)))
        };
    }
    if let Some(close) = &state.close {
        let live = close
            .under_lease
            .as_ref()
            .is_some_and(|(no, owner, attempt)| {
                (*no, owner, *attempt) == (report.no, &report.owner, report.attempt)
            });
        return match (live, close.reason) {
            (true, CloseReason::TimedOut) => Err(Refusal::RunTimedOut(Arc::clone(close))),
            (true, _) => Ok(Some(Reply::ClosedMeanwhile(Arc::clone(close)))),
            (false, _) => Err(Refusal::RunClosed(Arc::clone(close))),
        };
    }
    match &state.workflow_task {
        Some(task) if task.no == report.no => Ok(None),
        _ => Err(Refusal::TaskNotOpen),
    }
}

fn fence(draft: &mut Draft<'_>, report: &WorkflowTaskReport) {
    draft.fence(
        report.no,
        Hold::Live {
            owner: report.owner.clone(),
            attempt: report.attempt,
        },
    );
    draft.on_behalf_of_task(report.no);
}

/// A worker completed the task.
pub(super) fn complete(
    mut draft: Draft<'_>,
    report: WorkflowTaskReport,
    commands: Vec<Command>,
    streams: StreamReport,
    keep: Option<Keep>,
) -> Result<Verdict, Refusal> {
    if let Some(reply) = admit(&draft, &report, ReportKind::Completed)? {
        return Ok(Verdict::Answer(reply));
    }
    fence(&mut draft, &report);
    if close::is_past_deadline(&draft) {
        close::time_out_under(&mut draft, report.no, report.owner, report.attempt);
        return Ok(Verdict::Commit(
            Box::new(draft.finish()),
            Reply::TimedOutInstead,
        ));
    }
    within(
        commands.len() as u64,
        draft.settings.limits.command_batch,
        LimitKind::CommandBatch,
    )?;
    let for_update = draft.state.is_in_update();
    let carried = if for_update {
        Carried::default()
    } else {
        condition::settle(&mut draft, report.seen)
    };
    if !for_update {
        stream::report(&mut draft, streams)?;
    }
    let (created, end) = run_commands(&mut draft, &report, commands, &carried)?;
    if for_update {
        update::fail_unanswered(&mut draft);
    }
    match end {
        Some(end) => {
            check_growth(&draft, 1)?;
            draft.effects.close(report.no);
            match end {
                End::Complete { result } => close::complete(&mut draft, result),
                End::Fail(failure) => close::fail(&mut draft, failure)?,
                End::ContinueAsNew(command) => {
                    continue_as_new::continue_as_new(&mut draft, command);
                }
            }
            note_done(&mut draft, &report, ReportKind::Completed, created, None);
            Ok(commit(draft, &report))
        }
        None => {
            timer::fire_immediate(&mut draft);
            condition::time_out_overdue(&mut draft);
            check_growth(&draft, 0)?;
            sticky::keep(&mut draft, &report, keep);
            close_task(&mut draft, &report, ReportKind::Completed, created);
            Ok(commit(draft, &report))
        }
    }
}

/// Applies the commands that do not close the run, in order, and returns the tasks that they made
/// and the command that does close it.
fn run_commands(
    draft: &mut Draft<'_>,
    report: &WorkflowTaskReport,
    commands: Vec<Command>,
    carried: &Carried,
) -> Result<(Vec<TaskNo>, Option<End>), Refusal> {
    let mut steps = Steps::default();
    let mut created = Vec::new();
    let mut end = None;
    for command in commands {
        match command {
            Command::ScheduleActivity(command) => {
                match steps.number(draft, StepKind::Activity, command.path.as_ref())? {
                    Numbered::Repeat => {}
                    Numbered::New(step) => {
                        activity::check_limit(draft)?;
                        created.push(activity::schedule(draft, step, command));
                    }
                }
            }
            Command::StartTimer(command) => {
                match steps.number(draft, StepKind::Timer, command.path.as_ref())? {
                    Numbered::Repeat => {}
                    Numbered::New(step) => {
                        timer::check_limit(draft, draft.settings)?;
                        timer::schedule(draft, step, command);
                    }
                }
            }
            Command::StartChild(command) => {
                match steps.number(draft, StepKind::Child, command.path.as_ref())? {
                    Numbered::Repeat => {}
                    Numbered::New(step) => child::start(draft, step, command)?,
                }
            }
            Command::OpenConditionWait(command) => {
                if condition::is_repeat(draft, &command, report.seen) {
                    continue;
                }
                match steps.number(draft, StepKind::Condition, command.path.as_ref())? {
                    Numbered::Repeat => {}
                    Numbered::New(step) => condition::open(draft, step, command, carried),
                }
            }
            Command::OpenSignalWait(command) => {
                match steps.number(draft, StepKind::SignalWait, command.path.as_ref())? {
                    Numbered::Repeat => {}
                    Numbered::New(step) => signal::open_wait(draft, step, command),
                }
            }
            Command::RecordLocalActivity(command) => {
                local_activity::record(draft, command, report.owner.as_str());
            }
            Command::RecordSideEffect { result } => marker::side_effect(draft, result),
            Command::RecordVersionMarker(marker) => marker::version(draft, marker)?,
            Command::UpsertSearchAttributes(command) => {
                attributes::upsert_search_attributes(draft, command)?;
            }
            Command::UpsertMemo { entries } => attributes::upsert_memo(draft, entries)?,
            Command::CancelSelection(command) => selection::cancel(draft, command)?,
            Command::AnswerUpdate { update_id, answer } => {
                update::answer(draft, &update_id, answer)?;
            }
            Command::End(command) => {
                if end.replace(command).is_some() {
                    return Err(invalid("more than one command closes the run"));
                }
            }
        }
    }
    steps.check_whole()?;
    Ok((created, end))
}

/// Whether the history may grow by what the completion wrote and by `closing` events more. Signals
/// that were held do not count, since the worker can do nothing about them. A run can always end,
/// and a task without commands can always be closed.
fn check_growth(draft: &Draft<'_>, closing: u64) -> Result<(), Refusal> {
    within(
        draft.written() + closing,
        draft.settings.limits.events_per_transaction,
        LimitKind::HistoryTransaction,
    )?;
    if closing == 0 && draft.written() > 0 {
        within(
            draft.state.last_event(),
            MAX_HISTORY_EVENTS,
            LimitKind::HistoryEvents,
        )?;
    }
    Ok(())
}

/// A worker could not process the task, or has nothing to do.
pub(super) fn fail(
    mut draft: Draft<'_>,
    report: WorkflowTaskReport,
    failure: TaskFailure,
    code: Option<Arc<str>>,
) -> Result<Verdict, Refusal> {
    let kind = match failure {
        TaskFailure::WaitingForHistory => ReportKind::Waiting,
        TaskFailure::Blocked(_) | TaskFailure::Other(_) => ReportKind::Failed,
    };
    if let Some(reply) = admit(&draft, &report, kind)? {
        return Ok(Verdict::Answer(reply));
    }
    fence(&mut draft, &report);
    if close::is_past_deadline(&draft) {
        close::time_out_under(&mut draft, report.no, report.owner, report.attempt);
        return Ok(Verdict::Commit(
            Box::new(draft.finish()),
            Reply::TimedOutInstead,
        ));
    }
    let (blocked, message) = match failure {
        TaskFailure::WaitingForHistory => {
            wait(&mut draft, &report);
            return Ok(commit(draft, &report));
        }
        TaskFailure::Blocked(message) => (true, message),
        TaskFailure::Other(message) => (false, message),
    };
    let receipt = receipt(&report, kind, Vec::new(), (!blocked).then_some(report.no));
    draft.note(Fact::TaskFailed {
        receipt,
        blocked,
        message,
    });
    let failures = draft
        .state
        .workflow_task
        .as_ref()
        .map_or(1, |task| task.failures);
    let delay = if blocked {
        after_blocked(failures)
    } else {
        after_report(failures)
    };
    let at = draft.now.plus_millis(delay);
    draft.effects.again(report.no, at);
    if let Some(code) = code.filter(|_| blocked) {
        draft.effects.blocked_by(report.no, code);
    }
    Ok(commit(draft, &report))
}

/// The worker found nothing to do: the workflow waits for new history.
fn wait(draft: &mut Draft<'_>, report: &WorkflowTaskReport) {
    let for_update = draft.state.is_in_update();
    if for_update {
        update::fail_unanswered(draft);
    } else {
        condition::settle(draft, report.seen);
    }
    condition::time_out_overdue(draft);
    close_task(draft, report, ReportKind::Waiting, Vec::new());
}

/// The task was handed out too often without a report. It stays open, out of reach of workers,
/// until an operator repairs it; the run does not fail for it.
pub(super) fn give_up(
    mut draft: Draft<'_>,
    no: TaskNo,
    attempt: u32,
    owner: WorkerId,
) -> Result<Verdict, Refusal> {
    let open = draft
        .state
        .workflow_task
        .as_ref()
        .is_some_and(|task| task.no == no);
    if draft.state.close.is_some() || !open {
        return Err(Refusal::NothingToDo);
    }
    let receipt = Receipt {
        no,
        attempt,
        owner: owner.clone(),
        report: ReportKind::Failed,
        digest: Digest(0),
        created: Vec::new(),
        next: None,
    };
    draft.fence(no, Hold::Overdue { owner, attempt });
    draft.note(Fact::TaskFailed {
        receipt,
        blocked: true,
        message: format!("The task was handed out {attempt} times and never reported back.").into(),
    });
    draft.effects.again(no, Timestamp::from_micros(i64::MAX));
    Ok(Verdict::Commit(Box::new(draft.finish()), Reply::Done))
}

/// Closes the task of a run that goes on: what was held is recorded, and a task follows if the
/// history now holds something that the worker had not seen.
fn close_task(
    draft: &mut Draft<'_>,
    report: &WorkflowTaskReport,
    kind: ReportKind,
    mut created: Vec<TaskNo>,
) {
    let for_update = draft.state.is_in_update();
    let acted_on = if for_update {
        draft.state.acted_on
    } else {
        report.seen
    };
    let next = held::task_after(draft, acted_on);
    created.extend(next);
    draft.effects.close(report.no);
    note_done(draft, report, kind, created, next);
    if next.is_some() {
        held::go_on(draft);
    }
}

fn note_done(
    draft: &mut Draft<'_>,
    report: &WorkflowTaskReport,
    kind: ReportKind,
    created: Vec<TaskNo>,
    next: Option<TaskNo>,
) {
    let receipt = receipt(report, kind, created, next);
    draft.note(Fact::TaskDone {
        receipt,
        seen: report.seen,
    });
}

fn receipt(
    report: &WorkflowTaskReport,
    kind: ReportKind,
    created: Vec<TaskNo>,
    next: Option<TaskNo>,
) -> Receipt {
    Receipt {
        no: report.no,
        attempt: report.attempt,
        owner: report.owner.clone(),
        report: kind,
        digest: report.digest,
        created,
        next,
    }
}

fn commit(draft: Draft<'_>, report: &WorkflowTaskReport) -> Verdict {
    let reply = match draft.state.receipt(report.no, report.attempt) {
        Some(receipt) => Reply::Reported {
            report: receipt.report,
            created: receipt.created.clone(),
            next: receipt.next,
            duplicate: false,
        },
        None => Reply::Done,
    };
    Verdict::Commit(Box::new(draft.finish()), reply)
}

/// Refuses what would exceed a limit; 0 switches a limit off.
pub(super) fn within(current: u64, configured: u64, kind: LimitKind) -> Result<(), Refusal> {
    if configured != 0 && current > configured {
        return Err(Refusal::Limit {
            kind,
            current,
            configured,
        });
    }
    Ok(())
}
