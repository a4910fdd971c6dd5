//! Room for large bodies: so many bytes of them are worked on at once, and the others wait in their sockets.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Bytes above which a body is large.
const LARGE: usize = 256 << 10;
/// Bytes of large bodies that are worked on at once, on each plane; one statement writes some two million. A body that
/// is larger takes all of it.
const ROOM: u32 = 8 << 20;
/// How long a body waits outside at most. Whoever sends slowly, or waits long for an answer, must not keep others out.
const PATIENCE: Duration = Duration::from_secs(2);

/// The room of one plane. Each has its own, so that starts never keep out what ends the work that was begun.
pub struct Room(Arc<Semaphore>);

/// A body is inside, until this is dropped.
pub struct Inside(#[allow(dead_code, reason = "held for its end")] OwnedSemaphorePermit);

impl Default for Room {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ROOM as usize)))
    }
}

impl Room {
    /// Waits for room for a body that was announced with this length, if that is large; the first that came is the
    /// first to go in. Nothing when it is small, or has waited for too long and goes on without.
    pub async fn enter(&self, length: Option<usize>) -> Option<Inside> {
        let length = length.filter(|length| *length > LARGE)?;
        let bytes = u32::try_from(length).unwrap_or(ROOM).min(ROOM);
        let entered = Arc::clone(&self.0).acquire_many_owned(bytes);
        timeout(PATIENCE, entered).await.ok()?.ok().map(Inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule: bodies above a size wait while others have the room, first come, first served, and not for ever.
    #[tokio::test]
    async fn large_bodies_wait_for_each_other() {
        let room = Room::default();
        assert!(room.enter(None).await.is_none());
        assert!(room.enter(Some(LARGE)).await.is_none());
        let half = room.enter(Some(ROOM as usize / 2)).await;
        let other_half = room.enter(Some(ROOM as usize / 2)).await;
        assert!(half.is_some() && other_half.is_some());
        let late = tokio::join!(room.enter(Some(LARGE + 1)), async { drop(half) }).0;
        assert!(late.is_some());
        let began = tokio::time::Instant::now();
        assert!(room.enter(Some(usize::MAX)).await.is_none());
        assert!(began.elapsed() >= PATIENCE);
        drop((other_half, late));
        assert!(room.enter(Some(usize::MAX)).await.is_some());
    }
}
