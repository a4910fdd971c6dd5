//! Continue-as-new: the run ends and a successor takes its place in the same write.

use std::sync::Arc;

use super::super::command::ContinueAsNew;
use super::super::event::WorkflowContinuedAsNew;
use super::super::ids::Part;
use super::close;
use super::draft::Draft;
use super::fact::Begun;
use super::start::{Carried, start_successor};
use super::state::Held;
use super::status::CloseReason;

/// Ends the run and makes its successor, which inherits memo, search attributes, the parent, the
/// execution deadline and the inputs that this run did not take. The run deadline starts anew.
pub(super) fn continue_as_new(draft: &mut Draft<'_>, command: ContinueAsNew) {
    let now = draft.now;
    let old = Arc::clone(&draft.state.begun);
    let run_id = draft.state.id.offspring(now, 0);
    let begun = Begun {
        run_number: old.run_number + 1,
        continued_from: Some(draft.state.id),
        workflow_type: command
            .workflow_type
            .unwrap_or_else(|| Arc::clone(&old.workflow_type)),
        queue: command.queue.unwrap_or_else(|| old.queue.clone()),
        input: command.arguments.unwrap_or_else(|| old.input.clone()),
        memo: draft.state.memo.shown.clone(),
        memo_encoded: draft.state.memo.encoded.clone(),
        search_attributes: draft.state.attributes.shown.clone(),
        run_deadline_at: old.run_timeout_seconds.map(|s| now.plus_seconds(s)),
        started_at: now,
        retry_of: None,
        ..(*old).clone()
    };
    let run_number = begun.run_number;
    let inputs = not_taken(draft);
    draft.closing();
    close::drop_rows(draft);
    let sequence = draft.state.next_step;
    let workflow_link_id = draft.next_part(Part::Link);
    draft.emit(WorkflowContinuedAsNew {
        sequence,
        continued_to_run_id: run_id,
        continued_to_run_number: run_number,
        workflow_link_id,
        closed_reason: CloseReason::Continued.as_str().into(),
    });
    let carried = Carried::from(&draft.state);
    let successor = start_successor(run_id, begun, inputs, carried, now, now, draft.settings);
    draft.created.push(successor.write);
}

/// Recorded signals that a wait for their name would have taken, then what is held. Where a workflow
/// never waits for signals by name, its handlers have seen every recorded one.
fn not_taken(draft: &Draft<'_>) -> Vec<Held> {
    let state = &draft.state;
    let unapplied = state
        .unapplied
        .iter()
        .filter(|signal| state.awaited_names.contains(&signal.name))
        .map(|signal| Held::Signal((**signal).clone()));
    unapplied
        .chain(state.held.iter().map(|held| (**held).clone()))
        .collect()
}
