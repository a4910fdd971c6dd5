//! One read for all who ask for the same thing at the same time.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// The reads of one thing.
#[derive(Debug, Default)]
pub(super) struct Once {
    begun: AtomicU64,
    /// Held during a read: the number of the last one that ended well.
    last: Mutex<u64>,
}

impl Once {
    /// What is known, or else what is read. `known` is asked when no other read is under way, and told whether one
    /// has begun since this question and ended well.
    ///
    /// # Errors
    /// That of the read. Others who wait read again.
    pub async fn read<T, E>(
        &self,
        known: impl Fn(bool) -> Option<T>,
        read: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let asked = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if let Some(known) = known(*last > asked) {
            return Ok(known);
        }
        let no = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let found = read.await?;
        *last = no;
        Ok(found)
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
        once: Once,
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
            self.once.read(known, read).await
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
        let (answers, ()) = join(asked, async { thing.let_in(1) }).await;
        assert_eq!(answers, [Ok(1); 4]);
        assert_eq!(thing.ask(false).await, Ok(1), "it is known");
    }

    #[tokio::test]
    async fn who_must_have_what_is_new_shares_the_next_read() {
        let thing = Thing::closed();
        let asked = join(thing.ask(true), join_all((0..3).map(|_| thing.ask(true))));
        let (answers, ()) = join(asked, async { thing.let_in(2) }).await;
        assert_eq!(answers, (Ok(1), vec![Ok(2); 3]));
        thing.let_in(1);
        assert_eq!(thing.ask(true).await, Ok(3), "a read before does not do");
    }

    #[tokio::test]
    async fn a_read_that_fails_is_not_shared() {
        let thing = Thing::closed();
        let asked = join_all((0..2).map(|_| thing.ask(true)));
        let close = async { thing.let_in.as_ref().map(Semaphore::close) };
        let (answers, _) = join(asked, close).await;
        assert_eq!(answers, [Err(()); 2]);
        assert_eq!(thing.known.load(Ordering::SeqCst), 0);
    }
}
