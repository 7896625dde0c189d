//! Requests without a barrier, while this process is the only writer.
//!
//! A request waits for a barrier because of what its client may have seen at another server. While
//! no other server runs, what is published here is all that anyone has seen. So a process that
//! has seen no one else's writes for a while claims the engine ([`RemoteEngine::claim`]). Another
//! store must revoke the claim before it starts to serve, and before its next transaction is
//! applied. A write that relied on a claim ([`Reliance`]) is applied only if that claim still
//! stands, which proves afterwards that nothing was missed. What ends without such a write has to
//! prove it by a barrier ([`Store::uphold`](crate::Store::uphold)).
//!
//! Programs that know of no claims, such as kube-apiserver, are seen by their writes: one of them
//! ends the claim here when its event arrives, and a running one writes every ten seconds. What
//! expires is deleted by the engine itself. A server that was stopped for longer than that, and
//! runs again, may show a write before its writer has published it, until it writes itself.

use super::{BoxFuture, Remote, SoleClaim, Unavailable};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Without writes of others for this long, the engine is claimed: longer than the ten seconds in
/// which every API server renews its Lease.
pub(super) const QUIET: Duration = Duration::from_secs(15);
const CHECK: Duration = Duration::from_secs(5);
/// Why a request has to be repeated that relied on a claim.
pub(super) const NOT_SOLE: &str = "another server has begun to write";
/// Limit of a claim's way through the feed.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);

tokio::task_local! {
    static RELIANCE: Arc<Reliance>;
}

/// A request's reliance on this process being the only writer.
#[derive(Debug)]
pub struct Reliance {
    claim: SoleClaim,
    is_proven: AtomicBool,
    is_refuted: AtomicBool,
}

impl Reliance {
    /// Whether a write that required the claim was applied since, or a barrier has confirmed it.
    pub fn is_proven(&self) -> bool {
        self.is_proven.load(Ordering::Acquire)
    }

    pub(super) fn claim(&self) -> SoleClaim {
        self.claim
    }

    pub(super) fn prove(&self) {
        self.is_proven.store(true, Ordering::Release);
    }

    pub(super) fn refute(&self) {
        self.is_refuted.store(true, Ordering::Release);
    }
}

/// Runs a request that relies on a claim: its writes require it.
pub async fn relying<T>(reliance: Arc<Reliance>, request: impl Future<Output = T>) -> T {
    RELIANCE.scope(reliance, request).await
}

/// The reliance of the running request.
pub fn reliance() -> Option<Arc<Reliance>> {
    RELIANCE.try_with(Arc::clone).ok()
}

/// Whether this process is the only writer, as far as it knows.
#[derive(Default)]
pub(super) struct SoleWriter {
    /// Claim in use; 0: none.
    held: AtomicU64,
    /// A write of others was seen, or may have been missed.
    is_disturbed: AtomicBool,
}

impl SoleWriter {
    /// Others write, or could without being seen.
    pub(super) fn disturb(&self) {
        // The state of an engine has many values of others.
        if !self.is_disturbed.load(Ordering::Acquire) {
            self.is_disturbed.store(true, Ordering::Release);
        }
    }

    fn is_disturbed(&self) -> bool {
        self.is_disturbed.load(Ordering::Acquire)
    }

    fn claim(&self) -> Option<SoleClaim> {
        // In this order: see `take_disturbance`.
        let is_disturbed = self.is_disturbed();
        let held = self.held.load(Ordering::Acquire);
        (held > 0 && !is_disturbed).then_some(SoleClaim(held))
    }

    /// Drops the claim if the engine has another one or none. True: it did.
    fn lose(&self, claimed: Option<SoleClaim>) -> bool {
        let held = self.held.load(Ordering::Acquire);
        let is_lost = held > 0 && claimed != Some(SoleClaim(held));
        if is_lost {
            self.held.store(0, Ordering::Release);
        }
        is_lost
    }

    /// Drops the claim if others write. True: they did since the last call.
    fn take_disturbance(&self) -> bool {
        if !self.is_disturbed() {
            return false;
        }
        // In this order: the claim is not in use for a moment without being in doubt.
        self.held.store(0, Ordering::Release);
        self.is_disturbed.store(false, Ordering::Release);
        true
    }
}

/// Claims the engine whenever others are quiet.
pub(super) async fn run(remote: Arc<Remote>) {
    let mut quiet_since = Instant::now();
    loop {
        tokio::time::sleep(CHECK).await;
        let is_lost = remote.sole.lose(remote.engine.claimed());
        if remote.sole.take_disturbance() || is_lost || remote.trouble().is_some() {
            quiet_since = Instant::now();
        }
        if remote.claim().is_some() || quiet_since.elapsed() < QUIET {
            continue;
        }
        match tokio::time::timeout(CLAIM_TIMEOUT, remote.take_claim()).await {
            Ok(Ok(true)) => tracing::debug!("this process is the only writer of the storage"),
            // The engine has no claims.
            Ok(Ok(false)) => return,
            Ok(Err(why)) => tracing::debug!(why, "the storage was not claimed"),
            Err(_) => tracing::debug!("the storage was not claimed in time"),
        }
    }
}

impl Remote {
    /// The claim on which requests can rely.
    fn claim(&self) -> Option<SoleClaim> {
        let claim = self.sole.claim()?;
        (self.engine.claimed() == Some(claim)).then_some(claim)
    }

    /// Before anything is shown here. A user of etcd who may only read cannot.
    pub(super) async fn revoke_others(&self) {
        match tokio::time::timeout(CLAIM_TIMEOUT, self.engine.revoke()).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => tracing::debug!(why, "claims of other servers were not revoked"),
            Err(_) => tracing::debug!("claims of other servers were not revoked in time"),
        }
    }

    /// False: the engine has no claims.
    async fn take_claim(&self) -> Result<bool, String> {
        let Some((claim, revision)) = self.engine.claim().await? else { return Ok(false) };
        // What others wrote before the claim is published then.
        self.reach(revision).await;
        self.sole.held.store(claim.0, Ordering::Release);
        Ok(true)
    }

    /// See [`Store::rely`](crate::Store::rely).
    pub(crate) fn rely(&self) -> Option<Arc<Reliance>> {
        let claim = self.claim()?;
        let [is_proven, is_refuted] = [(); 2].map(|()| AtomicBool::new(false));
        Some(Arc::new(Reliance { claim, is_proven, is_refuted }))
    }

    /// See [`Store::uphold`](crate::Store::uphold).
    pub(crate) fn uphold(
        self: &Arc<Self>,
        reliance: Arc<Reliance>,
    ) -> BoxFuture<'static, Result<(), Unavailable>> {
        let (remote, barrier) = (Arc::clone(self), self.barrier());
        Box::pin(async move {
            if !reliance.is_refuted.load(Ordering::Acquire) {
                barrier.await?;
                if remote.claim() == Some(reliance.claim) {
                    reliance.prove();
                    return Ok(());
                }
            }
            Err(Unavailable(NOT_SOLE.to_owned()))
        })
    }
}
