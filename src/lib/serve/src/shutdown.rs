//! The shutdown signal, for listeners, handlers and background tasks.

use tokio::sync::watch;

/// Starts a shutdown, also when dropped.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

/// Observes a shutdown. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

impl ShutdownTrigger {
    /// A trigger and its observer.
    pub fn new() -> (Self, Shutdown) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), Shutdown(receiver))
    }

    /// Begins the shutdown. Idempotent.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Another observer.
    pub fn shutdown(&self) -> Shutdown {
        Shutdown(self.0.subscribe())
    }
}

impl Shutdown {
    /// Whether it has begun.
    pub fn is_begun(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Whether it has begun by [`ShutdownTrigger::begin`].
    pub(crate) fn is_ordered(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves once it has begun. Cancel safe.
    pub async fn begun(&self) {
        let mut receiver = self.0.clone();
        // The trigger was dropped: a shutdown, too.
        let _ = receiver.wait_for(|begun| *begun).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn begins_once_and_when_the_trigger_is_dropped() {
        let (trigger, shutdown) = ShutdownTrigger::new();
        assert!(!shutdown.is_begun());
        trigger.begin();
        trigger.begin();
        shutdown.begun().await;
        assert!(shutdown.is_begun() && trigger.shutdown().is_begun() && shutdown.is_ordered());
        let (trigger, shutdown) = ShutdownTrigger::new();
        drop(trigger);
        shutdown.begun().await;
        assert!(shutdown.is_begun() && !shutdown.is_ordered());
    }
}
