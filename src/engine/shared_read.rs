//! One read for all who ask for the same thing at the same time.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// Numbers of the last reads that have ended.
#[derive(Debug, Default)]
struct Ended {
    well: u64,
    anyhow: u64,
}

/// The reads of one thing.
#[derive(Debug, Default)]
pub(super) struct SharedRead {
    begun: AtomicU64,
    /// Held during a read.
    ended: Mutex<Ended>,
}

impl SharedRead {
    /// What is known, or else what is read. `known` is asked when no other read is under way, and told whether one
    /// has begun since this question and ended well. When such a read has ended and what it found cannot be
    /// shared, each reads for itself: nobody waits for more than two others.
    ///
    /// # Errors
    /// That of the read.
    pub async fn read<T, E>(
        &self,
        known: impl Fn(bool) -> Option<T>,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let asked = self.begun.load(Ordering::SeqCst);
        let mut ended = self.ended.lock().await;
        if let Some(known) = known(ended.well > asked) {
            return Ok(known);
        }
        if ended.anyhow > asked {
            drop(ended);
            return read.await;
        }
        let no = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let found = read.await;
        ended.anyhow = no;
        if found.is_ok() {
            ended.well = no;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::{join, join_all};
    use tokio::sync::Semaphore;

    use super::*;

    /// A thing that says how often it was read, and is read when it is let.
    #[derive(Default)]
    struct Thing {
        reads: SharedRead,
        known: AtomicUsize,
        let_in: Option<Semaphore>,
    }

    impl Thing {
        /// `is_new`: nothing that was read before the question serves.
        async fn ask(&self, is_new: bool) -> Result<usize, ()> {
            let known = |read_since| {
                let known = self.known.load(Ordering::SeqCst);
                (known > 0 && (read_since || !is_new)).then_some(known)
            };
            let read = async {
                if let Some(let_in) = &self.let_in {
                    let_in.acquire().await.map_err(|_| ())?.forget();
                }
                Ok(self.known.fetch_add(1, Ordering::SeqCst) + 1)
            };
            self.reads.read(known, read).await
        }

        fn closed() -> Self {
            Self {
                let_in: Some(Semaphore::new(0)),
                ..Self::default()
            }
        }

        fn let_in(&self, reads: usize) {
            if let Some(let_in) = &self.let_in {
                let_in.add_permits(reads);
            }
        }
    }

    #[tokio::test]
    async fn who_asks_during_a_read_is_served_by_it() {
        let thing = Thing::closed();
        let asked = join_all((0..4).map(|_| thing.ask(false)));
        let (answers, ()) = join(asked, async { thing.let_in(4) }).await;
        assert_eq!(answers, [Ok(1); 4]);
        assert_eq!(thing.ask(false).await, Ok(1), "it is known");
    }

    #[tokio::test]
    async fn who_must_have_what_is_new_shares_the_next_read() {
        let thing = Thing::closed();
        let asked = join(thing.ask(true), join_all((0..3).map(|_| thing.ask(true))));
        let (answers, ()) = join(asked, async { thing.let_in(4) }).await;
        assert_eq!(answers, (Ok(1), vec![Ok(2); 3]));
        assert_eq!(thing.ask(true).await, Ok(3), "a read before does not do");
    }

    /// Rule: a read that cannot be shared does not make others wait one after the other.
    #[tokio::test]
    async fn after_a_read_that_cannot_be_shared_all_read_together() {
        const LOOKS: usize = 1_000;
        let reads = SharedRead::default();
        let (gate, under_way) = (Semaphore::new(0), AtomicUsize::new(0));
        let failing = || async {
            under_way.fetch_add(1, Ordering::SeqCst);
            gate.acquire().await.map_err(|_| ())?.forget();
            under_way.fetch_sub(1, Ordering::SeqCst);
            Err::<usize, ()>(())
        };
        let all = join_all((0..6).map(|_| reads.read(|_| None, failing())));
        let open = async {
            gate.add_permits(2);
            for _ in 0..LOOKS {
                if under_way.load(Ordering::SeqCst) == 4 {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let together = under_way.load(Ordering::SeqCst);
            gate.add_permits(4);
            together
        };
        let (answers, together) = join(all, open).await;
        assert_eq!(answers, [Err(()); 6]);
        assert_eq!(together, 4, "all but the first two at once");
    }
}
