//! State shared by the engine, its feed and its tasks: the connection, the key layout, and the
//! feed's progress.

use crate::connection::{ConfigError, EtcdConfig, EtcdConnection, reason};
use crate::fence::Fence;
use crate::lease::Leases;
use crate::proto::{
    Compare, DeleteRangeRequest, EtcdWatchRequest, PutRequest, RangeRequest, RequestUnion,
    ResponseUnion, TxnRequest, TxnResponse, WatchProgressRequest, WatchRequestUnion, op,
};
use crate::sole::SoleKey;
use bytes::Bytes;
use ferrokube_storage::{Key, Revision};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Status};

/// Start of the store's keys.
const STORE_PREFIX: &str = "/registry";
/// Read by barriers; written where progress notifications cannot be trusted. Below a name that is
/// neither a resource nor a group.
const MARKER: &str = "/ferrokube/barrier";

/// Shared by the engine, its feed and its tasks.
pub(crate) struct EtcdShared {
    pub(crate) connection: EtcdConnection,
    prefix: String,
    renamed: &'static [(&'static str, &'static str)],
    pub(crate) leases: Leases,
    pub(crate) fence: Fence,
    pub(crate) sole: SoleKey,
    /// Requests of the feed's stream.
    pub(crate) requests: Mutex<Option<mpsc::Sender<EtcdWatchRequest>>>,
    /// Whether progress notifications of the feed's member can be trusted.
    pub(crate) has_progress: AtomicBool,
    is_marking: AtomicBool,
    /// Whether the feed's progress cannot be determined.
    pub(crate) is_blind: AtomicBool,
    /// Time of the last progress request; `None` once the feed has delivered something.
    pub(crate) asked: Mutex<Option<Instant>>,
}

impl EtcdShared {
    pub(crate) fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            connection: EtcdConnection::new(config)?,
            prefix: config.prefix.clone(),
            renamed: config.renamed,
            leases: Leases::default(),
            fence: Fence::default(),
            sole: SoleKey::new(&config.prefix),
            requests: Mutex::default(),
            has_progress: AtomicBool::new(false),
            is_marking: AtomicBool::new(false),
            is_blind: AtomicBool::new(false),
            asked: Mutex::default(),
        })
    }

    /// A key of the store in etcd.
    pub(crate) fn key(&self, key: &Key) -> Bytes {
        let rest = key.as_str().strip_prefix(STORE_PREFIX).unwrap_or(key.as_str());
        Bytes::from(in_etcd(&self.prefix, self.renamed, rest))
    }

    /// The store's key for one of etcd; `None` if there is none.
    pub(crate) fn store_key(&self, key: &[u8]) -> Option<Box<str>> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(self.prefix.as_str())?;
        in_store(self.renamed, rest)
    }

    /// Start and end of the store's keys.
    pub(crate) fn bounds(&self) -> (Bytes, Bytes) {
        // '0' follows '/'.
        (format!("{}/", self.prefix).into(), format!("{}0", self.prefix).into())
    }

    fn marker(&self) -> Bytes {
        format!("{}{MARKER}", self.prefix).into()
    }

    pub(crate) fn reason(&self, status: &Status) -> String {
        reason(self.connection.url(), status)
    }

    /// The compare required by the next fenced transaction.
    pub(crate) async fn compare_fence(&self) -> Result<Compare, Status> {
        self.fence.compare(&self.connection, &self.leases, &self.prefix).await
    }

    /// A revision not older than the call.
    pub(crate) async fn probe(&self) -> Result<Revision, Status> {
        let request = RangeRequest { key: self.marker(), keys_only: true, ..Default::default() };
        let header = self.connection.probe(request).await?.header.unwrap_or_default();
        Ok(revision(header.revision))
    }

    /// Writes the marker, whose event shows the feed's progress. A full etcd accepts only deletes:
    /// then the marker's deletion is the event, or, without a marker, the state must be read again.
    async fn mark(&self) {
        let write = async |write| {
            let request = TxnRequest { success: vec![op(write)], ..Default::default() };
            self.connection.txn(request).await
        };
        let put = PutRequest { key: self.marker(), ..Default::default() };
        let mut outcome = write(RequestUnion::Put(put)).await;
        if outcome.as_ref().is_err_and(is_full) {
            let delete = DeleteRangeRequest { key: self.marker() };
            outcome = write(RequestUnion::DeleteRange(delete)).await;
            if outcome.as_ref().is_ok_and(deleted_nothing) {
                self.is_blind.store(true, Ordering::Release);
            }
        }
        if let Err(status) = outcome {
            tracing::debug!(why = self.reason(&status), "the marker was not written");
        }
        self.is_marking.store(false, Ordering::Release);
    }

    /// Requests that a marker is written, unless one is in flight.
    pub(crate) fn start_mark(self: &Arc<Self>) {
        if !self.is_marking.swap(true, Ordering::AcqRel) {
            let shared = Arc::clone(self);
            tokio::spawn(async move { shared.mark().await });
        }
    }

    pub(crate) fn hurry(self: &Arc<Self>) {
        self.asked.lock().get_or_insert_with(Instant::now);
        if self.has_progress.load(Ordering::Acquire) {
            let request = WatchRequestUnion::Progress(WatchProgressRequest {});
            if let Some(requests) = &*self.requests.lock() {
                // Full: enough requests are in flight.
                let _ = requests.try_send(EtcdWatchRequest { request: Some(request) });
            }
        } else {
            self.start_mark();
        }
    }
}

/// `rest` is the store's key without its prefix.
pub(crate) fn in_etcd(prefix: &str, renamed: &[(&str, &str)], rest: &str) -> String {
    let moved = renamed.iter().find_map(|(store, etcd)| {
        rest.strip_prefix(store).map(|name| format!("{prefix}{etcd}{name}"))
    });
    moved.unwrap_or_else(|| format!("{prefix}{rest}"))
}

/// The inverse. `None` for a key below the prefix that is not one of this store.
pub(crate) fn in_store(renamed: &[(&str, &str)], rest: &str) -> Option<Box<str>> {
    for (store, etcd) in renamed {
        if let Some(name) = rest.strip_prefix(etcd) {
            return Some(format!("{STORE_PREFIX}{store}{name}").into());
        }
        if rest.starts_with(store) {
            return None;
        }
    }
    rest.starts_with('/').then(|| format!("{STORE_PREFIX}{rest}").into())
}

/// Whether a call is refused for lack of space.
pub(crate) fn is_full(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("space exceeded")
}

fn deleted_nothing(response: &TxnResponse) -> bool {
    let deleted = response.responses.iter().map(|op| match &op.response {
        Some(ResponseUnion::DeleteRange(delete)) => delete.deleted,
        _ => 0,
    });
    deleted.sum::<i64>() == 0
}

pub(crate) fn revision(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_at_their_places_both_ways() {
        let renamed = [("/crds/", "/ext.io/crds/")];
        for (store, etcd) in [
            ("/crds/a", "/p/ext.io/crds/a"),
            ("/maps/ns/a", "/p/maps/ns/a"),
            ("/crdsx/a", "/p/crdsx/a"),
        ] {
            assert_eq!(in_etcd("/p", &renamed, store), etcd);
            let back = in_store(&renamed, etcd.strip_prefix("/p").unwrap());
            assert_eq!(back.as_deref(), Some(format!("/registry{store}").as_str()));
        }
        assert_eq!(in_store(&renamed, "/crds/a"), None, "not this store's");
        assert_eq!(in_store(&renamed, "x"), None);
    }
}
