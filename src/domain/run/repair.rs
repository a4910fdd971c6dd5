//! Repair: an operator makes a workflow task that is put off, or was given up, ready at once.

use super::super::event::RepairRequested;
use super::super::ids::TaskId;
use super::super::lease::Hold;
use super::close::{CloseRequest, ObservedLease};
use super::draft::Draft;
use super::fact::{CommandKind, Fact};
use super::outcome::{Refusal, Reply, Verdict};

pub(super) fn repair(mut draft: Draft<'_>, request: CloseRequest) -> Result<Verdict, Refusal> {
    if let Some(close) = draft.state.close.clone() {
        return Err(Refusal::NotActive(close));
    }
    let troubled = draft
        .state
        .workflow_task
        .as_ref()
        .filter(|task| task.failures > 0 || task.blocked)
        .map(|task| task.no);
    let Some(no) = troubled else {
        return Ok(Verdict::Answer(Reply::Repaired { command: None }));
    };
    match request.lease {
        ObservedLease::Unknown => return Err(Refusal::LeaseNeeded),
        ObservedLease::Held { live: true, .. } => {
            return Ok(Verdict::Answer(Reply::Repaired { command: None }));
        }
        ObservedLease::Free => draft.fence(no, Hold::Free),
        ObservedLease::Held { owner, attempt, .. } => {
            draft.fence(no, Hold::Overdue { owner, attempt });
        }
    }
    let (n, command) = draft.command(CommandKind::Repair, None, request.request_id.as_deref());
    let task = TaskId {
        run: draft.state.id,
        no,
    };
    draft.emit(RepairRequested {
        workflow_command_id: command,
        workflow_instance_id: draft.state.begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
        command_type: CommandKind::Repair.as_str().into(),
        outcome: "repair_dispatched".into(),
        liveness_state: "workflow_task_ready".into(),
        wait_kind: "workflow-task".into(),
        task_id: task,
        task_type: "workflow".into(),
    });
    draft.note(Fact::TaskRepaired { no });
    let now = draft.now;
    draft.effects.again(no, now);
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::Repaired { command: Some(n) },
    ))
}
