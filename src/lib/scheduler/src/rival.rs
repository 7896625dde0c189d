//! The lease of another scheduler: while it is held, nothing is bound here.

use k8s_openapi::api::coordination::v1::Lease;
use std::time::Duration;
use tokio::time::Instant;

/// Duration of a lease that specifies none; kube-scheduler's default.
const DURATION: Duration = Duration::from_secs(15);

/// Last state of the lease. Its holder counts as alive for the lease's duration after each
/// change that is seen, regardless of its clock.
#[derive(Default)]
pub(crate) struct RivalScheduler {
    seen: Option<Lease>,
    /// Until when it is held.
    until: Option<Instant>,
}

impl RivalScheduler {
    /// Time left for which another scheduler holds the lease; `None`: none does.
    pub(crate) fn holds(&mut self, lease: Option<&Lease>, now: Instant) -> Option<Duration> {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if self.seen.as_ref() != lease {
            let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
            let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let duration = seconds.map_or(DURATION, Duration::from_secs);
            self.until = (!holder.is_empty()).then(|| now + duration);
            self.seen = lease.cloned();
        }
        let left = self.until?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lease(holder: &str, version: &str) -> Lease {
        serde_json::from_value(json!({"metadata": {"resourceVersion": version},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 10}}))
        .unwrap()
    }

    #[test]
    fn a_lease_is_held_as_long_as_it_is_renewed() {
        let (mut rival, begin) = (RivalScheduler::default(), Instant::now());
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        let left = |seconds: u64| Some(Duration::from_secs(seconds));
        assert_eq!(rival.holds(None, at(0)), None);
        assert_eq!(rival.holds(Some(&lease("real", "1")), at(0)), left(10));
        assert_eq!(rival.holds(Some(&lease("real", "1")), at(9)), left(1));
        assert_eq!(rival.holds(Some(&lease("real", "2")), at(9)), left(10), "renewed");
        assert_eq!(rival.holds(Some(&lease("real", "2")), at(19)), None, "not renewed");
        assert_eq!(rival.holds(Some(&lease("real", "3")), at(30)), left(10));
        assert_eq!(rival.holds(Some(&lease("", "4")), at(31)), None, "released");
        assert_eq!(rival.holds(Some(&lease("real", "5")), at(32)), left(10));
        assert_eq!(rival.holds(None, at(33)), None, "deleted");
    }
}
