//! Reads that see every write acknowledged before them.

use super::reach::Reach;
use super::{BoxFuture, Remote, RemoteEngine, Unavailable};
use crate::core::StoreCore;
use crate::key::{Key, Revision};
use crate::txn::CommitError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Longest wait of a read. kube-apiserver's limit for a cache that lags.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of asking the feed for its progress.
const HURRY: Duration = Duration::from_millis(100);

/// Between probes without a caller, so that it is known whether the engine can be reached; the
/// second is that after a failed one.
const IDLE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];

/// A caller that waits for a revision.
pub(super) type Probe = oneshot::Sender<Result<Revision, String>>;

/// Answers callers, each by a probe that started after it arrived; all that wait share the next.
/// Without callers it asks the feed for its progress: a watch that hangs is found in silence, too.
pub(super) async fn run(
    core: Arc<StoreCore>,
    engine: Arc<dyn RemoteEngine>,
    reach: Arc<Reach>,
    mut waiting: mpsc::Receiver<Probe>,
) {
    loop {
        let idle = IDLE[usize::from(reach.is_doubtful())];
        let mut joined = match tokio::time::timeout(idle, waiting.recv()).await {
            Ok(Some(first)) => vec![first],
            Ok(None) => return,
            Err(_) => Vec::new(),
        };
        while let Ok(next) = waiting.try_recv() {
            joined.push(next);
        }
        let found = tokio::time::timeout(TIMEOUT, engine.barrier()).await;
        let found = found.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        reach.probed(found.as_ref().err());
        if let Ok(revision) = &found {
            let published = core.published.revision();
            reach.compared(*revision, published);
            if joined.is_empty() && published < *revision {
                engine.hurry();
            }
        }
        for probe in joined {
            // The caller may be gone.
            let _ = probe.send(found.clone());
        }
    }
}

impl Remote {
    /// Resolves once every write is published that was acknowledged before the call.
    pub(crate) fn barrier(self: &Arc<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        let remote = Arc::clone(self);
        Box::pin(async move {
            let passed = tokio::time::timeout(TIMEOUT, remote.pass()).await;
            passed.unwrap_or_else(|_| {
                let why = remote.trouble().unwrap_or_else(|| "it does not answer in time".into());
                Err(Unavailable(why))
            })
        })
    }

    /// Resolves once it is certain that `head` was the key's head after the call.
    pub(crate) fn confirm(
        self: &Arc<Self>,
        key: Key,
        head: Option<Revision>,
    ) -> BoxFuture<'static, Result<(), CommitError>> {
        let (remote, barrier) = (Arc::clone(self), self.barrier());
        Box::pin(async move {
            barrier.await.map_err(|Unavailable(why)| CommitError::Unavailable(why))?;
            let present = remote.core.published.get(&key).map(|entry| entry.revision);
            if present == head { Ok(()) } else { Err(CommitError::Conflict(key)) }
        })
    }

    pub(super) async fn pass(&self) -> Result<(), Unavailable> {
        let revision = self.probed().await?;
        self.reach(revision).await;
        Ok(())
    }

    /// A revision at which every write is visible that was acknowledged before the call.
    pub(super) async fn probed(&self) -> Result<Revision, Unavailable> {
        let closed = || Unavailable("the store is closed".to_owned());
        let (probe, found) = oneshot::channel();
        self.probes.send(probe).await.map_err(|_| closed())?;
        found.await.map_err(|_| closed())?.map_err(Unavailable)
    }

    /// Waits until a revision with an event is published. Asks only a feed that is late.
    pub(super) async fn shown(&self, revision: Revision) {
        let published = self.core.published.wait_for(revision);
        if tokio::time::timeout(HURRY, published).await.is_err() {
            self.reach(revision).await;
        }
    }

    /// Waits until a revision is published that may have no event of its own.
    pub(super) async fn reach(&self, revision: Revision) {
        let published = &self.core.published;
        while published.revision() < revision {
            self.engine.hurry();
            let _ = tokio::time::timeout(HURRY, published.wait_for(revision)).await;
        }
    }
}
