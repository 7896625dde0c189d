//! Compaction of etcd's history, in kube-apiserver's protocol: one server of the cluster
//! compacts per interval, to the revision at the start of the interval. A full etcd rejects the key
//! by which they agree; then every server compacts, which frees space.

use crate::proto::{
    CompactionRequest, Compare, CompareResult, CompareTarget, PutRequest, RangeRequest,
    RequestUnion, ResponseUnion, TargetUnion, TxnRequest, op,
};
use crate::shared::{EtcdShared, is_full};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Status};

/// Holds the last revision compacted to; its version counts the compactions. kube-apiserver uses
/// the same key, hence without the prefix.
const KEY: &[u8] = b"compact_rev_key";

/// Never resolves.
pub(crate) async fn run(shared: Arc<EtcdShared>, interval: Duration) {
    if interval.is_zero() {
        return std::future::pending().await;
    }
    let mut seen = Compaction { version: 0, revision: 0 };
    loop {
        tokio::time::sleep(interval).await;
        match seen.next(&shared).await {
            Ok(next) => seen = next,
            Err(status) => {
                tracing::debug!(why = shared.reason(&status), "the history was not compacted");
            }
        }
    }
}

/// The state observed one interval ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Compaction {
    version: i64,
    revision: i64,
}

impl Compaction {
    /// Compacts to the revision seen, unless another server did.
    async fn next(self, shared: &EtcdShared) -> Result<Self, Status> {
        let key = Bytes::from_static(KEY);
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Version.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::Version(self.version)),
        };
        let put = PutRequest {
            key: key.clone(),
            value: self.revision.to_string().into(),
            ..Default::default()
        };
        let range = RangeRequest { key, ..Default::default() };
        let request = TxnRequest {
            compare: vec![compare],
            success: vec![op(RequestUnion::Put(put))],
            failure: vec![op(RequestUnion::Range(range))],
        };
        let response = match shared.connection.txn(request).await {
            Err(status) if is_full(&status) => return self.compact_full(shared).await,
            response => response?,
        };
        let revision = response.header.clone().unwrap_or_default().revision;
        if !response.succeeded {
            let version = match response.responses.first().and_then(|op| op.response.as_ref()) {
                Some(ResponseUnion::Range(range)) => range.kvs.first().map_or(0, |kv| kv.version),
                _ => 0,
            };
            return Ok(Self { version, revision });
        }
        if self.revision > 0 {
            shared.connection.compact(CompactionRequest { revision: self.revision }).await?;
            tracing::debug!(revision = self.revision, "compacted the history");
        }
        Ok(Self { version: self.version + 1, revision })
    }

    /// Compacts to the revision seen, as all other servers do.
    async fn compact_full(self, shared: &EtcdShared) -> Result<Self, Status> {
        let now = shared.probe().await?;
        if self.revision > 0 {
            match shared.connection.compact(CompactionRequest { revision: self.revision }).await {
                // Another server was here.
                Err(status) if status.code() == Code::OutOfRange => {}
                compacted => _ = compacted?,
            }
        }
        Ok(Self { revision: i64::try_from(now.0).unwrap_or(i64::MAX), ..self })
    }
}
