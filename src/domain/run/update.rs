//! Updates: accepted at once, recorded at the boundary of a workflow task, each in a task of its own,
//! answered by the worker or by the end of the run.

use std::sync::Arc;

use crate::payload::{Codec, Payload};

use super::super::command::{Failure, UpdateAnswer};
use super::super::event::{
    Body, Event, Json, UpdateAccepted, UpdateApplied, UpdateCompleted, UpdateFailure, UpdateKeys,
    UpdateRejected,
};
use super::super::ids::{Part, part_id};
use super::super::limits::{ANSWERS_KEPT, LimitKind};
use super::draft::Draft;
use super::fact::{CommandKind, Fact, Resume, Update};
use super::fold::push_bounded;
use super::outcome::{Refusal, Reply, Verdict};
use super::signal::InputRequest;
use super::state::{Answered, Held, RunState};
use super::steps::invalid;
use super::workflow_task::within;

/// What a validator said when it refused an update.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Human sentence.
    pub message: Arc<str>,
    /// Field → sentences, a JSON object.
    pub validation_errors: Option<Json>,
}

/// Accepts an update. While a workflow task is open it waits its turn behind what came before it.
pub(super) fn accept(mut draft: Draft<'_>, request: InputRequest) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::NotActive(Arc::clone(close)));
    }
    within(
        draft.state.open_updates() as u64 + 1,
        draft.settings.limits.pending_updates,
        LimitKind::PendingUpdates,
    )?;
    let (n, _) = draft.command(
        CommandKind::Update,
        Some(&request.name),
        request.request_id.as_deref(),
    );
    let id = request
        .update_id
        .clone()
        .unwrap_or_else(|| part_id(draft.state.id, Part::Update, n).into());
    let update = Update {
        id: Arc::clone(&id),
        n,
        run: draft.state.id,
        name: Arc::clone(&request.name),
        arguments: request.arguments.clone(),
        at: draft.now,
    };
    if draft.state.workflow_task.is_some() {
        draft.note(Fact::UpdateHeld(update));
    } else {
        record(&mut draft, &update);
        draft.open_workflow_task(resume(&update));
    }
    draft.claim_key(CommandKind::Update, request, n, Some(Arc::clone(&id)));
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::UpdateAccepted { command: n, id },
    ))
}

/// Records that a validator refused an update. It never was the run's, and changes nothing else.
pub(super) fn reject(
    mut draft: Draft<'_>,
    request: InputRequest,
    rejection: Rejection,
) -> Result<Verdict, Refusal> {
    if let Some(close) = &draft.state.close {
        return Err(Refusal::NotActive(Arc::clone(close)));
    }
    let (n, command) = draft.command(
        CommandKind::Update,
        Some(&request.name),
        request.request_id.as_deref(),
    );
    let id = request
        .update_id
        .clone()
        .unwrap_or_else(|| part_id(draft.state.id, Part::Update, n).into());
    draft.emit(UpdateRejected {
        keys: UpdateKeys {
            workflow_command_id: command,
            update_id: Arc::clone(&id),
            workflow_instance_id: draft.state.begun.workflow_id.clone(),
            workflow_run_id: draft.state.id,
            update_name: Arc::clone(&request.name),
        },
        arguments: request.arguments.clone(),
        payload_codec: Codec::Avro,
        message: rejection.message,
        validation_errors: rejection.validation_errors,
    });
    draft.claim_key(CommandKind::Update, request, n, Some(Arc::clone(&id)));
    Ok(Verdict::Commit(
        Box::new(draft.finish()),
        Reply::UpdateAccepted { command: n, id },
    ))
}

/// Records an update; the task that carries it must be opened next.
pub(super) fn record(draft: &mut Draft<'_>, update: &Update) {
    let keys = keys(draft, update);
    draft.emit(UpdateAccepted {
        keys,
        arguments: update.arguments.clone(),
        payload_codec: Codec::Avro,
        ordering_state: "ready".into(),
    });
}

/// Why the task that carries `update` was opened.
pub(super) fn resume(update: &Update) -> Resume {
    Resume::Update {
        id: Arc::clone(&update.id),
        n: update.n,
        run: update.run,
        name: Arc::clone(&update.name),
    }
}

/// `complete_update` or `fail_update`
pub(super) fn answer(
    draft: &mut Draft<'_>,
    update_id: &str,
    answer: UpdateAnswer,
) -> Result<(), Refusal> {
    let update = match &draft.state.update {
        Some(update) if *update.id == *update_id => Arc::clone(update),
        _ => {
            return Err(invalid(&format!(
                "the task does not carry the update {update_id:?}"
            )));
        }
    };
    let keys = keys(draft, &update);
    match answer {
        UpdateAnswer::Completed(result) => {
            draft.emit(UpdateApplied {
                keys: keys.clone(),
                arguments: update.arguments.clone(),
                payload_codec: Codec::Avro,
            });
            draft.emit(UpdateCompleted {
                keys,
                result: Some(result.unwrap_or_else(Payload::null)),
                payload_codec: Codec::Avro,
                failure: None,
            });
        }
        UpdateAnswer::Failed(failure) => fail(draft, &update, failure, "application", None),
    }
    Ok(())
}

/// The task that carried an update ended without an answer to it.
pub(super) fn fail_unanswered(draft: &mut Draft<'_>) {
    let Some(update) = draft.state.update.clone() else {
        return;
    };
    let failure = Failure {
        message: "The worker finished the task without an answer to the update.".to_owned(),
        ..Failure::default()
    };
    fail(draft, &update, failure, "application", None);
}

/// The run closes: every update without an outcome fails, in the order of arrival.
pub(super) fn fail_open(draft: &mut Draft<'_>, closed_reason: &'static str) {
    let failure = Failure {
        message: format!("The workflow closed ({closed_reason}) before the update was completed."),
        ..Failure::default()
    };
    if let Some(update) = draft.state.update.clone() {
        fail(
            draft,
            &update,
            failure.clone(),
            "application",
            Some(closed_reason),
        );
    }
    while let Some(Held::Update(update)) = draft.state.held.front().map(|held| (**held).clone()) {
        record(draft, &update);
        fail(
            draft,
            &update,
            failure.clone(),
            "application",
            Some(closed_reason),
        );
    }
}

fn fail(
    draft: &mut Draft<'_>,
    update: &Update,
    failure: Failure,
    category: &'static str,
    terminal_reason: Option<&'static str>,
) {
    let keys = keys(draft, update);
    let failure_id = draft.next_part(Part::Failure);
    draft.emit(UpdateCompleted {
        keys,
        result: None,
        payload_codec: Codec::Avro,
        failure: Some(UpdateFailure {
            failure_id,
            failure_category: category.into(),
            non_retryable: failure.non_retryable,
            exception_type: failure.kind.map(Arc::from),
            exception_class: failure.class.map(Arc::from),
            message: failure.message.into(),
            terminal_reason: terminal_reason.map(Into::into),
        }),
    });
}

fn keys(draft: &Draft<'_>, update: &Update) -> UpdateKeys {
    UpdateKeys {
        workflow_command_id: part_id(update.run, Part::Command, update.n),
        update_id: Arc::clone(&update.id),
        workflow_instance_id: draft.state.begun.workflow_id.clone(),
        workflow_run_id: draft.state.id,
        update_name: Arc::clone(&update.name),
    }
}

impl RunState {
    pub(super) fn apply_to_updates(&mut self, event: &Event) {
        match &event.body {
            Body::UpdateAccepted(accepted) => {
                let update = match self.held.front().map(|held| &**held) {
                    Some(Held::Update(held)) if held.id == accepted.keys.update_id => {
                        let held = held.clone();
                        self.held.pop_front();
                        held
                    }
                    _ => Update {
                        id: Arc::clone(&accepted.keys.update_id),
                        n: self.commands,
                        run: self.id,
                        name: Arc::clone(&accepted.keys.update_name),
                        arguments: accepted.arguments.clone(),
                        at: event.recorded_at,
                    },
                };
                self.update = Some(Arc::new(update));
            }
            Body::UpdateApplied(_) => {
                self.last_input = event.sequence;
                self.wake(event.sequence, Resume::Unseen);
            }
            Body::UpdateCompleted(completed) => {
                self.update = None;
                push_bounded(
                    &mut self.answered,
                    Answered {
                        update_id: Arc::clone(&completed.keys.update_id),
                        event: event.sequence,
                    },
                    ANSWERS_KEPT,
                );
            }
            _ => {}
        }
    }
}
