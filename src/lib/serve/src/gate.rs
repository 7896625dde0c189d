//! Polls a future only after its waker fires.
//!
//! A task polls everything it waits for, whatever woke it: each event of a watch would touch the
//! timers, channels and reading side of its connection, which have left the processor's caches
//! since the last event (a seventh of an event's cost at 1,000 watchers).

use futures::task::AtomicWaker;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Whether the gate is open, and the task to wake.
struct GateSignal {
    woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for GateSignal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

/// Gates the polls of one future. The task may change between polls.
pub(crate) struct WakeGate {
    signal: Arc<GateSignal>,
    waker: Waker,
}

impl WakeGate {
    /// Open: the first poll goes through.
    pub(crate) fn new() -> Self {
        let signal =
            Arc::new(GateSignal { woken: AtomicBool::new(true), task: AtomicWaker::new() });
        Self { waker: Waker::from(Arc::clone(&signal)), signal }
    }

    /// Opens the gate, and wakes the task that polls through it.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Polls, unless the last poll was pending and no wake came since.
    pub(crate) fn poll<R>(
        &self,
        task: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        // Registered before the check, so that no wake is lost.
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

/// Wraps a future in a gate.
pub(crate) async fn gated<F: Future>(future: F) -> F::Output {
    let (gate, mut future) = (WakeGate::new(), pin!(future));
    poll_fn(|task| gate.poll(task, |task| future.as_mut().poll(task))).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::Notify;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn nothing_is_polled_before_a_wake_which_reaches_the_last_task() {
        let (gate, polls, notify) = (WakeGate::new(), AtomicUsize::new(0), Notify::new());
        let (first, second) = (Arc::new(WakeCount::default()), Arc::new(WakeCount::default()));
        let mut waiting = pin!(notify.notified());
        let mut poll = |count: &Arc<WakeCount>| {
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
    async fn ready_futures_pass_at_once_or_later() {
        assert_eq!(gated(async { 1 }).await, 1);
        let later = async {
            tokio::task::yield_now().await;
            2
        };
        assert_eq!(gated(later).await, 2);
    }
}
