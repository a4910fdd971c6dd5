//! Archiving: a closed run is kept for good.

use std::sync::Arc;

use super::super::event::{ArchiveRequested, Request, WorkflowArchived};
use super::close::CloseRequest;
use super::draft::Draft;
use super::fact::{CommandKind, Fact};
use super::outcome::{Refusal, Reply, Verdict};

pub(super) fn archive(mut draft: Draft<'_>, request: CloseRequest) -> Result<Verdict, Refusal> {
    if draft.state.close.is_none() {
        return Err(Refusal::NotClosed);
    }
    if draft.state.archived {
        return Ok(Verdict::Answer(Reply::Archived { command: None }));
    }
    let (n, command) = draft.command(CommandKind::Archive, None, request.request_id.as_deref());
    let workflow_instance_id = draft.state.begun.workflow_id.clone();
    let workflow_run_id = draft.state.id;
    draft.emit(ArchiveRequested(Request {
        workflow_command_id: command.clone(),
        workflow_instance_id: workflow_instance_id.clone(),
        workflow_run_id,
        command_type: CommandKind::Archive.as_str().into(),
        reason: request.reason.as_ref().map(Arc::clone),
    }));
    draft.emit(WorkflowArchived {
        workflow_command_id: command.clone(),
        workflow_instance_id,
        workflow_run_id,
        archive_command_id: command,
        reason: request.reason,
    });
    draft.note(Fact::Archived);
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::Archived { command: Some(n) },
    ))
}
