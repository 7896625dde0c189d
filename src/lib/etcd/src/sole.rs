//! The claim of one process to be the only writer, in a key that every transaction compares.
//!
//! While the key is absent, stores write side by side. A store that writes alone writes the key,
//! and its transactions require that revision of it. Those of others fail until one of them deletes
//! the key, which a full etcd takes, too; then the claim is revoked for good, as revisions never
//! come back. The holder learns that from its next transaction, which is not applied, or from its
//! feed.

use crate::connection::EtcdConnection;
use crate::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest,
    RequestUnion, ResponseUnion, TargetUnion, TxnRequest, TxnResponse, op,
};
use bytes::Bytes;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard};
use tonic::Status;

/// Below a name that is neither a resource nor a group.
const PLACE: &str = "/ferrokube/sole-writer";
/// Limit of a claim: other transactions wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// The key, and the claim of this process.
pub(crate) struct SoleKey {
    key: Bytes,
    /// Revision of the key by this process's claim; 0: none.
    claimed: AtomicI64,
    /// The latest revision of the key that the feed has given, which may be ahead of the reply to a
    /// claim.
    seen: AtomicI64,
    /// Held by transactions, and for a claim alone: otherwise those in flight would revoke it.
    calls: RwLock<()>,
}

impl SoleKey {
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            key: format!("{prefix}{PLACE}").into(),
            claimed: AtomicI64::new(0),
            seen: AtomicI64::new(0),
            calls: RwLock::default(),
        }
    }

    /// The claim, unless it is known to be revoked; 0: none.
    pub(crate) fn claimed(&self) -> i64 {
        let claimed = self.claimed.load(Ordering::Acquire);
        if self.seen.load(Ordering::Acquire) > claimed { 0 } else { claimed }
    }

    /// Held while a transaction is in flight.
    pub(crate) async fn in_flight(&self) -> RwLockReadGuard<'_, ()> {
        self.calls.read().await
    }

    /// The requirement of a transaction: this revision of the key.
    pub(crate) fn compare(&self, revision: i64) -> Compare {
        Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: self.key.clone(),
            target_union: Some(TargetUnion::ModRevision(revision)),
        }
    }

    /// Read by a transaction that failed.
    pub(crate) fn read(&self) -> RequestUnion {
        RequestUnion::Range(RangeRequest {
            key: self.key.clone(),
            keys_only: true,
            ..Default::default()
        })
    }

    /// The key has another revision than this claim.
    pub(crate) fn revoked(&self, claim: i64) {
        let _ = self.claimed.compare_exchange(claim, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// An event of the feed.
    pub(crate) fn saw(&self, kv: &KeyValue) {
        if kv.key == self.key {
            self.seen.fetch_max(kv.mod_revision, Ordering::AcqRel);
        }
    }

    /// Claims to be the only writer. Returns the revision of the key. A claim that arrives late is
    /// revoked by the next transaction.
    pub(crate) async fn claim(&self, connection: &EtcdConnection) -> Result<i64, Status> {
        let claimed = tokio::time::timeout(PATIENCE, self.claim_alone(connection)).await;
        claimed.unwrap_or_else(|_| Err(Status::deadline_exceeded("transactions take too long")))
    }

    async fn claim_alone(&self, connection: &EtcdConnection) -> Result<i64, Status> {
        let _alone = self.calls.write().await;
        let put = PutRequest { key: self.key.clone(), ..Default::default() };
        let claim = TxnRequest { success: vec![op(RequestUnion::Put(put))], ..Default::default() };
        let revision = connection.txn(claim).await?.header.unwrap_or_default().revision;
        self.claimed.store(revision, Ordering::Release);
        Ok(revision)
    }

    /// Revokes the claim that the key had at this revision, or any. Nothing is written if there is
    /// none.
    pub(crate) async fn revoke(
        &self,
        claim: Option<i64>,
        connection: &EtcdConnection,
    ) -> Result<(), Status> {
        let delete = RequestUnion::DeleteRange(DeleteRangeRequest { key: self.key.clone() });
        let request = TxnRequest {
            compare: claim.map(|revision| self.compare(revision)).into_iter().collect(),
            success: vec![op(delete)],
            ..Default::default()
        };
        connection.txn(request).await.map(drop)
    }
}

/// Revision of the key by the last reply of a transaction that failed, which [`SoleKey::read`] is.
pub(crate) fn revision_in(response: &TxnResponse) -> i64 {
    match response.responses.last().and_then(|op| op.response.as_ref()) {
        Some(ResponseUnion::Range(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
        _ => 0,
    }
}
