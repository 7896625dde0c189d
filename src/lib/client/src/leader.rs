//! Lease-based leader election: one of several processes acts, and stops acting before another may
//! begin.
//!
//! The holder renews often ([`LeaseTiming`]). A candidate takes over once it has seen an unchanged
//! record for longer than its duration, by its own monotonic clock; the holder's wall clock is not
//! trusted. Late writes of a deposed leader fail by resourceVersion.
//!
//! With coordinated elections (KEP-4355) a process only says that it wants the lease: the API
//! server chooses its holder, which leaves it to another one when asked.

use crate::candidacy::{Candidacy, CandidateVersions};
use crate::lease_uses::LeaseUses;
use crate::outage::{Outage, last_cause};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use std::time::Duration;
use tokio::time::Instant;

/// Lease timing. Defaults are those of kube-controller-manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    /// Lifetime of the lease without renewal, in whole seconds.
    pub duration: Duration,
    /// The holder gives up after this long without a renewal, before any candidate may take over.
    pub deadline: Duration,
    /// Interval between attempts to renew or to take over.
    pub retry: Duration,
}

impl Default for LeaseTiming {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

impl LeaseTiming {
    /// Checks that a holder gives up before a candidate may take over, and retries before giving
    /// up.
    ///
    /// # Errors
    /// [`LeaseTimingError`].
    pub fn check(&self) -> Result<(), LeaseTimingError> {
        match () {
            () if self.duration.subsec_nanos() != 0 || self.duration.is_zero() => {
                Err(LeaseTimingError::Duration)
            }
            () if self.deadline >= self.duration => Err(LeaseTimingError::Deadline),
            () if self.retry.is_zero() || self.retry.saturating_mul(6) / 5 >= self.deadline => {
                Err(LeaseTimingError::Retry)
            }
            () => Ok(()),
        }
    }
}

/// Timing with which two candidates could lead at once, or none for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseTimingError {
    /// Leases have whole seconds.
    #[error("the lease duration must be a whole number of seconds, at least 1s")]
    Duration,
    /// The holder would continue after a takeover.
    #[error("the renew deadline must be shorter than the lease duration")]
    Deadline,
    /// One failed renewal would end the leadership.
    #[error(
        "the retry period must be longer than 0 and, times 1.2, shorter than the renew deadline"
    )]
    Retry,
}

/// The lease is lost: everything started as leader must stop now.
#[derive(Debug, thiserror::Error)]
#[error("the lease {namespace}/{name} could not be renewed in time")]
pub struct LeadershipLost {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
}

/// An attempt took too long.
#[derive(Debug, thiserror::Error)]
#[error("no response within {0:?}")]
struct AttemptTimeout(Duration);

/// A candidate for a lease.
pub struct Elector {
    leases: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    timing: LeaseTiming,
    observed: Option<(Lease, Instant)>,
    candidacy: Option<Candidacy>,
    uses: Option<LeaseUses>,
}

impl Elector {
    /// `identity` must be unique among the candidates.
    pub fn new(client: Client, namespace: &str, name: &str, identity: String) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            timing: LeaseTiming::default(),
            observed: None,
            candidacy: None,
            uses: None,
        }
    }

    /// Says in the lease which features the holder uses.
    #[must_use]
    pub fn reporting(mut self, uses: LeaseUses) -> Self {
        self.uses = Some(uses);
        self
    }

    /// Leaves the choice to the API server, which knows this process by these versions.
    #[must_use]
    pub fn coordinated(mut self, versions: CandidateVersions) -> Self {
        let client = self.leases.clone().into_client();
        self.candidacy = Some(Candidacy::new(
            client,
            [&self.namespace, &self.name, &self.identity].map(String::as_str),
            versions,
        ));
        self
    }

    /// Overrides the timing, which must pass [`LeaseTiming::check`].
    #[must_use]
    pub fn timing(mut self, timing: LeaseTiming) -> Self {
        self.timing = timing;
        self
    }

    /// Waits until this candidate holds the lease. Cancel safe.
    pub async fn acquire(&mut self) {
        let mut outage =
            Outage::new(format!("acquire the leader lease {}/{}", self.namespace, self.name));
        loop {
            // A request that never completes (a paused or vanished server) must not block the next
            // attempt.
            match tokio::time::timeout(self.timing.deadline, self.attempt()).await {
                Ok(Ok(is_ours)) => {
                    outage.works();
                    if is_ours {
                        return;
                    }
                }
                Ok(Err(error)) => _ = outage.failed(&error),
                Err(_) => _ = outage.failed(&AttemptTimeout(self.timing.deadline)),
            }
            tokio::time::sleep(self.timing.retry).await;
        }
    }

    /// Renews until the lease is lost. Call only after [`Self::acquire`].
    pub async fn hold(&mut self) -> LeadershipLost {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.timing.retry).await;
            let left = self.timing.deadline.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.attempt()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return self.lost(),
                Ok(Err(error)) => {
                    tracing::warn!(error = %error, cause = last_cause(&error), "cannot renew the leader lease")
                }
                Err(_) => return self.lost(),
            }
            if renewed.elapsed() >= self.timing.deadline {
                return self.lost();
            }
        }
    }

    /// Releases the lease, so that another candidate need not wait for its expiry.
    pub async fn release(&mut self) {
        let Some((mut lease, _)) = self.observed.take() else { return };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        if let Err(error) = self.leases.replace(&self.name, &PostParams::default(), &lease).await {
            tracing::debug!(error = %error, "cannot release the leader lease");
        }
    }

    fn lost(&self) -> LeadershipLost {
        LeadershipLost { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// One attempt to create, renew or take over the lease. Returns whether we hold it.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        let is_coordinated = self.candidacy.is_some();
        if let Some(candidacy) = &mut self.candidacy {
            candidacy.keep().await?;
        }
        let Some(lease) = self.leases.get_opt(&self.name).await? else {
            return if is_coordinated { Ok(false) } else { self.create().await };
        };
        let same = self
            .observed
            .as_ref()
            .filter(|(seen, _)| seen.metadata.resource_version == lease.metadata.resource_version);
        let since = same.map_or_else(Instant::now, |(_, since)| *since);
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let lasts = Duration::from_secs(
            u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0),
        );
        self.observed = Some((lease.clone(), since));
        if is_coordinated {
            let is_over = spec.preferred_holder.as_deref().is_some_and(|name| !name.is_empty());
            if holder != self.identity || is_over || since.elapsed() >= lasts {
                return Ok(false);
            }
        }
        if !holder.is_empty() && holder != self.identity && since.elapsed() < lasts {
            return Ok(false);
        }
        self.take(lease, spec, holder == self.identity).await
    }

    async fn create(&mut self) -> Result<bool, kube::Error> {
        let mut metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        self.annotate(&mut metadata);
        let lease = Lease { metadata, spec: Some(self.record(&LeaseSpec::default(), false)) };
        self.keep(self.leases.create(&PostParams::default(), &lease).await)
    }

    async fn take(
        &mut self,
        mut lease: Lease,
        old: LeaseSpec,
        ours: bool,
    ) -> Result<bool, kube::Error> {
        lease.spec = Some(self.record(&old, ours));
        self.annotate(&mut lease.metadata);
        let written = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        self.keep(written)
    }

    fn annotate(&self, metadata: &mut ObjectMeta) {
        if let Some(uses) = &self.uses {
            uses.annotate(metadata);
        }
    }

    /// A conflict means that another candidate was faster.
    fn keep(&mut self, written: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
        match written {
            Ok(lease) => {
                self.observed = Some((lease, Instant::now()));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn record(&self, old: &LeaseSpec, ours: bool) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.timing.duration.as_secs()).ok(),
            acquire_time: old.acquire_time.clone().filter(|_| ours).or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(
                old.lease_transitions.unwrap_or(-1).saturating_add(i32::from(!ours)).max(0),
            ),
            strategy: if self.candidacy.is_some() { old.strategy.clone() } else { None },
            ..LeaseSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timing_that_allows_two_leaders_is_refused() {
        let timing = |duration, deadline, retry| LeaseTiming {
            duration: Duration::from_millis(duration),
            deadline: Duration::from_millis(deadline),
            retry: Duration::from_millis(retry),
        };
        assert_eq!(LeaseTiming::default().check(), Ok(()));
        assert_eq!(timing(2000, 1500, 200).check(), Ok(()));
        assert_eq!(timing(1500, 1000, 200).check(), Err(LeaseTimingError::Duration));
        assert_eq!(timing(0, 0, 0).check(), Err(LeaseTimingError::Duration));
        assert_eq!(timing(2000, 2000, 200).check(), Err(LeaseTimingError::Deadline));
        assert_eq!(timing(2000, 1200, 1000).check(), Err(LeaseTimingError::Retry));
        assert_eq!(timing(2000, 1200, 0).check(), Err(LeaseTimingError::Retry));
    }
}
