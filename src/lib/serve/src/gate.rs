//! Polls what waits only after it was woken.
//!
//! A task polls all that it waits for, whatever woke it: an event of a watch would touch the
//! timers, channels and the reading side of its connection each time, which have left the
//! processor's caches since the last event (a seventh of what an event cost at 1,000 watchers).
//! Behind a gate they are asked when they have something to say.

use futures::task::AtomicWaker;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Whether there is something to ask, and who asks.
struct Signal {
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// Stands before one thing that is polled. The task may change from poll to poll.
pub(crate) struct Gate {
    signal: Arc<Signal>,
    waker: Waker,
}

impl Gate {
    /// An open one: the first poll goes through.
    pub(crate) fn new() -> Self {
        let signal = Arc::new(Signal { woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { waker: Waker::from(Arc::clone(&signal)), signal }
    }

    /// Polls, unless the last poll was pending and nothing has woken it since.
    pub(crate) fn poll<R>(
        &self,
        task: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        // Before the look: what comes after it wakes this task.
        self.signal.task.register(task.waker());
        if !self.signal.woken.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.signal.woken.swap(false, Ordering::AcqRel);
        let polled = poll(&mut Context::from_waker(&self.waker));
        if polled.is_ready() {
            self.signal.woken.store(true, Ordering::Release);
        }
        polled
    }
}

/// A future behind a gate of its own.
pub(crate) async fn gated<F: Future>(future: F) -> F::Output {
    let (gate, mut future) = (Gate::new(), pin!(future));
    poll_fn(|task| gate.poll(task, |task| future.as_mut().poll(task))).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn nothing_is_polled_until_it_is_woken_and_the_last_task_is_told() {
        let (gate, polls, notify) = (Gate::new(), AtomicUsize::new(0), Notify::new());
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut waiting = pin!(notify.notified());
        let mut poll = |count: &Arc<Count>| {
            let waker = Waker::from(Arc::clone(count));
            gate.poll(&mut Context::from_waker(&waker), |task| {
                polls.fetch_add(1, Ordering::Relaxed);
                waiting.as_mut().poll(task)
            })
        };
        assert!(poll(&first).is_pending());
        assert!(poll(&first).is_pending());
        assert!(poll(&second).is_pending());
        assert_eq!(polls.load(Ordering::Relaxed), 1);
        notify.notify_one();
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
        assert!(poll(&second).is_ready());
        assert_eq!(polls.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_is_ready_at_once_or_later_comes_through() {
        assert_eq!(gated(async { 1 }).await, 1);
        let later = async {
            tokio::task::yield_now().await;
            2
        };
        assert_eq!(gated(later).await, 2);
    }
}
