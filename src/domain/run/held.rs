//! What waited for a workflow task to close: recorded in the order of arrival, up to the next task.

use super::super::ids::TaskNo;
use super::draft::Draft;
use super::fact::Resume;
use super::state::Held;
use super::{signal, stream, update};

/// The number of the task that follows when the open one closes, if one does: something is held, or
/// the history holds something that the workflow's code has not acted on.
pub(super) fn task_after(draft: &Draft<'_>, acted_on: u64) -> Option<TaskNo> {
    let state = &draft.state;
    let follows = !state.held.is_empty() || state.last_wake > acted_on || stream::is_due(state);
    follows.then_some(draft.state.next_task)
}

/// Records what is held and opens the next task. An update gets a task of its own, but never before
/// the workflow's code has acted on what came earlier.
pub(super) fn go_on(draft: &mut Draft<'_>) {
    while draft.state.last_wake <= draft.state.acted_on {
        match draft.state.held.front().map(|held| (**held).clone()) {
            None if stream::deliver(draft) => {}
            None => return,
            Some(Held::Signal(held)) => signal::record(draft, &held),
            Some(Held::Update(held)) => {
                update::record(draft, &held);
                draft.open_workflow_task(update::resume(&held));
                return;
            }
        }
    }
    while let Some(Held::Signal(held)) = draft.state.held.front().map(|held| (**held).clone()) {
        signal::record(draft, &held);
    }
    stream::deliver(draft);
    let resume = draft.state.last_resume.clone().unwrap_or(Resume::Unseen);
    draft.open_workflow_task(resume);
}

/// The run closes: signals are recorded, updates fail.
pub(super) fn wind_up(draft: &mut Draft<'_>, closed_reason: &'static str) {
    update::fail_open(draft, closed_reason);
    while let Some(held) = draft.state.held.front().map(|held| (**held).clone()) {
        match held {
            Held::Signal(held) => signal::record(draft, &held),
            Held::Update(_) => update::fail_open(draft, closed_reason),
        }
    }
}
