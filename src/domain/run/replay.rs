//! Folding stored batches back into a state.

use serde::de::Error as _;

use super::super::event::Event;
use super::super::ids::RunId;
use super::fact::Fact;
use super::state::RunState;

/// A batch as the database gives it back.
#[derive(Clone, Copy, Debug)]
pub struct StoredBatch<'a> {
    /// Version of the run that the batch made.
    pub version: u64,
    /// Events, see [`Event::write_all`].
    pub events: &'a str,
    /// Facts, a JSON array of `[event number, fact]`.
    pub journal: &'a str,
}

/// The state that `batch` leads to. A first batch needs no state before it.
///
/// # Errors
/// The batch is not one that this server wrote, or does not follow the state.
pub fn fold(
    run: RunId,
    state: Option<RunState>,
    batch: StoredBatch<'_>,
) -> serde_json::Result<RunState> {
    let facts: Vec<(u64, Fact)> = serde_json::from_str(batch.journal)?;
    let events = Event::read_all(batch.events)?;
    let mut state = match (state, facts.first()) {
        (Some(state), _) => state,
        (None, Some((_, Fact::Begun(begun)))) => RunState::new(run, (**begun).clone()),
        (None, _) => {
            return Err(serde_json::Error::custom(
                "the first batch of a run does not say what it began with",
            ));
        }
    };
    if batch.version != state.version + 1 {
        return Err(serde_json::Error::custom(format_args!(
            "batch {} does not follow version {}",
            batch.version, state.version
        )));
    }
    let mut facts = facts.into_iter().peekable();
    for event in &events {
        while let Some((_, fact)) = facts.next_if(|(before, _)| *before <= event.sequence) {
            state.note(&fact);
        }
        if event.sequence != state.next_event {
            return Err(serde_json::Error::custom(format_args!(
                "event {} does not follow event {}",
                event.sequence,
                state.last_event()
            )));
        }
        state.apply(event);
    }
    for (_, fact) in facts {
        state.note(&fact);
    }
    state.version = batch.version;
    state.history_bytes += batch.events.len() as u64;
    Ok(state)
}
