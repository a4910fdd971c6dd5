//! Work that runs to its end whatever becomes of its caller, and costs no task while the caller stays.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

use super::error::Fault;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that its caller drives by awaiting it. A caller that goes away in the middle leaves it to the
/// engine's runtime. A task of its own from the beginning would cost two changes of thread.
pub(super) struct Driven<'a, T: Send + 'static> {
    work: Option<Work<T>>,
    runtime: &'a Handle,
}

impl<'a, T: Send + 'static> Driven<'a, T> {
    /// Takes work over; it begins when it is awaited, or dropped.
    pub fn new(runtime: &'a Handle, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            work: Some(Box::pin(work)),
            runtime,
        }
    }
}

impl<T: Send + 'static> Future for Driven<'_, T> {
    /// [`Fault::Bug`] for work that panicked; what it held was dropped.
    type Output = Result<T, Fault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(work) = &mut self.work else {
            return Poll::Ready(Err(Fault::Bug));
        };
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => {
                self.work = None;
                Poll::Ready(Ok(result))
            }
            Err(_) => {
                // Its message is in the log; the panic hook put it there.
                self.work = None;
                tracing::error!("work of the engine stopped");
                Poll::Ready(Err(Fault::Bug))
            }
        }
    }
}

impl<T: Send + 'static> Drop for Driven<'_, T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::panic,
        reason = "a test may stop at the first surprise"
    )]

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_ends_although_its_caller_has_gone() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let runtime = Handle::current();
        let mut work = Box::pin(Driven::new(&runtime, async move {
            gone.await.unwrap();
            done.send(7).unwrap();
        }));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(work.as_mut().poll(&mut context).is_pending());
        drop(work);
        go.send(()).unwrap();
        assert_eq!(is_done.await, Ok(7));
    }

    #[tokio::test]
    async fn work_that_nobody_awaited_is_done_as_well() {
        let (done, is_done) = oneshot::channel();
        drop(Driven::new(&Handle::current(), async move {
            done.send(()).unwrap();
        }));
        assert_eq!(is_done.await, Ok(()));
    }

    #[tokio::test]
    async fn a_panic_is_a_fault_and_drops_what_the_work_held() {
        let (held, dropped) = oneshot::channel::<()>();
        let runtime = Handle::current();
        let work = Driven::new(&runtime, async move {
            let _held = held;
            tokio::task::yield_now().await;
            panic!("on purpose");
        });
        assert!(matches!(work.await, Err::<(), _>(Fault::Bug)));
        assert!(dropped.await.is_err());
    }
}
