//! Leases of values that expire. A lease is shared by the values of about a minute, as
//! kube-apiserver does: etcd handles few leases well.

use crate::connection::EtcdConnection;
use crate::proto::LeaseGrantRequest;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::{Code, Status};

/// A lease is given to new values for this share of the TTL, and at most [`MOST_SHARED`].
const SHARED_PART: u64 = 20;
const MOST_SHARED: Duration = Duration::from_secs(60);
/// Values per lease.
const MAX_VALUES: u32 = 1000;

/// Whether a call failed because its lease is gone, such as revoked by an administrator.
pub(crate) fn is_gone(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease")
}

/// The leases in use, by TTL.
#[derive(Default)]
pub(crate) struct Leases(Mutex<HashMap<Duration, SharedLease>>);

struct SharedLease {
    id: i64,
    shared_until: Instant,
    values: u32,
}

impl Leases {
    /// A lease that lasts at least the TTL, and little longer.
    pub(crate) async fn for_ttl(
        &self,
        connection: &EtcdConnection,
        ttl: Duration,
    ) -> Result<i64, Status> {
        let mut leases = self.0.lock().await;
        let now = Instant::now();
        leases.retain(|_, lease| lease.shared_until > now && lease.values < MAX_VALUES);
        if let Some(lease) = leases.get_mut(&ttl) {
            lease.values += 1;
            return Ok(lease.id);
        }
        let shared = (ttl / u32::try_from(SHARED_PART).unwrap_or(1)).min(MOST_SHARED);
        let seconds = (ttl + shared).as_secs_f64().ceil().max(1.0);
        let request = LeaseGrantRequest { ttl: seconds as i64 };
        let id = connection.grant(request).await?.id;
        leases.insert(ttl, SharedLease { id, shared_until: now + shared, values: 1 });
        Ok(id)
    }

    /// Forgets them all: one was revoked.
    pub(crate) fn forget(&self) {
        if let Ok(mut leases) = self.0.try_lock() {
            leases.clear();
        }
    }
}
