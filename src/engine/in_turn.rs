//! When commits hand tasks over in their turn only, so that nothing passes what waits for a claim.

use super::Core;

/// Items of recent statements below which a task is handed over in its turn only. What is new passes what waits for a
/// claim otherwise, which saves writing each task's lease apart; where commits are that small there is room for that, and
/// nobody should wait several times as long as others.
const IN_TURN_BELOW: usize = 20;

/// Whether commits hand tasks over only where no other waits for a claim.
pub(super) fn only(core: &Core) -> bool {
    core.lanes.recent_items() < IN_TURN_BELOW
}
