//! Fences, which settle the outcome of a lost call.
//!
//! A transaction whose reply is lost may be applied much later, by a member that was paused or cut
//! off. One whose guards are revisions is harmless: once applied or overtaken, its guards fail.
//! One that requires a key to be absent can: sent again, acknowledged, and the object deleted, its
//! first copy would bring the object back. So every such transaction requires a fence to be absent,
//! too: a key of this process. After an unknown outcome the fence is written before anything is
//! sent again: from then on no earlier copy is applied, and the history up to there tells whether
//! one was. The next transactions have a new fence.

use crate::connection::EtcdConnection;
use crate::lease::{self, Leases};
use crate::proto::{
    Compare, CompareResult, CompareTarget, PutRequest, RequestUnion, TargetUnion, TxnRequest, op,
};
use bytes::Bytes;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tonic::Status;

/// Below a name that is neither a resource nor a group.
const PLACE: &str = "/ferrokube/fences/";
/// Lifetime of a fence: longer than any copy of a call lives.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// The fence in use.
#[derive(Default)]
pub(crate) struct Fence {
    /// Empty: none was needed yet.
    key: Mutex<Bytes>,
    /// A call that required it may be in flight.
    is_needed: AtomicBool,
}

impl Fence {
    /// Notes that a transaction may still be applied.
    pub(crate) fn need(&self) {
        self.is_needed.store(true, Ordering::Release);
    }

    /// Compares that the next transaction needs to succeed only if not fenced.
    pub(crate) async fn compare(
        &self,
        connection: &EtcdConnection,
        leases: &Leases,
        prefix: &str,
    ) -> Result<Compare, Status> {
        let mut key = self.key.lock().await;
        if key.is_empty() {
            *key = new_key(prefix);
        }
        if self.is_needed.load(Ordering::Acquire) {
            let fence = write(key.clone(), connection, leases).await?;
            connection.txn(fence).await.inspect_err(|status| {
                if lease::is_gone(status) {
                    leases.forget();
                }
            })?;
            *key = new_key(prefix);
            self.is_needed.store(false, Ordering::Release);
        }
        Ok(Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::ModRevision(0)),
        })
    }
}

async fn write(
    key: Bytes,
    connection: &EtcdConnection,
    leases: &Leases,
) -> Result<TxnRequest, Status> {
    let lease = leases.for_ttl(connection, TTL).await?;
    let put = PutRequest { key, lease, ..Default::default() };
    Ok(TxnRequest { success: vec![op(RequestUnion::Put(put))], ..Default::default() })
}

fn new_key(prefix: &str) -> Bytes {
    // Differs between calls and processes.
    let [one, other] = [0_u64, 1].map(|number| RandomState::new().hash_one(number));
    format!("{prefix}{PLACE}{one:016x}{other:016x}").into()
}
