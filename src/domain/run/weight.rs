//! How much of what callers and workers sent a state holds in memory.

use crate::payload::Payload;

use super::state::{Held, RunState};

impl RunState {
    /// Bytes of payloads and other texts that the state holds. What is of bounded size for each thing
    /// is left out.
    pub fn held_bytes(&self) -> usize {
        let blob = Payload::held_bytes;
        let some = |payload: &Option<Payload>| payload.as_ref().map_or(0, blob);
        let begun = &self.begun;
        let activities: usize = self
            .activities
            .values()
            .map(|activity| some(&activity.arguments))
            .sum();
        let held: usize = self
            .held
            .iter()
            .map(|held| match &**held {
                Held::Signal(signal) => blob(&signal.arguments),
                Held::Update(update) => blob(&update.arguments),
            })
            .sum();
        let unapplied: usize = self
            .unapplied
            .iter()
            .map(|signal| blob(&signal.arguments))
            .sum();
        let messages: usize = self
            .streams
            .values()
            .flat_map(|stream| &stream.pending)
            .map(|message| blob(&message.payload))
            .sum();
        let created: usize = self
            .receipts
            .iter()
            .map(|receipt| size_of_val(receipt.created.as_slice()))
            .sum();
        let open_update = self.update.as_ref().map_or(0, |u| blob(&u.arguments));
        let output = self.close.as_ref().map_or(0, |close| some(&close.output));
        blob(&begun.input)
            + some(&self.memo.encoded)
            + self.memo.shown.get().len()
            + self.attributes.shown.get().len()
            + activities
            + held
            + unapplied
            + messages
            + created
            + open_update
            + output
    }
}
