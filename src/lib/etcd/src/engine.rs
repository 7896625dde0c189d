//! Transactions and barriers.

use crate::compaction;
use crate::connection::{ConfigError, EtcdConfig, EtcdConnection, is_of_etcd, is_unsent, reason};
use crate::feed::EtcdFeed;
use crate::fence::Fence;
use crate::lease::Leases;
use crate::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, EtcdWatchRequest, PutRequest,
    RangeRequest, RequestOp, RequestUnion, ResponseUnion, TargetUnion, TxnRequest, TxnResponse,
    WatchProgressRequest, WatchRequestUnion,
};
use crate::remembered::{self, Remembered};
use crate::renewal;
use bytes::Bytes;
use ferrokube_storage::remote::{BoxFuture, ProposalOutcome, RemoteEngine, RemoteFeed};
use ferrokube_storage::{Guard, Key, Put, Revision, Txn, Write};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::{Code, Status};

/// Start of the store's keys.
const STORE_PREFIX: &str = "/registry";
/// Read by barriers; written where progress notifications cannot be trusted. Below a name that is
/// neither a resource nor a group.
const MARKER: &str = "/ferrokube/barrier";

/// Limit of what precedes a transaction: a lease, a fence.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(10);

/// The engine. Its tasks end when it is dropped.
pub struct Etcd {
    shared: Arc<EtcdShared>,
    tasks: Vec<JoinHandle<()>>,
    remembered: Option<PathBuf>,
}

/// What the engine, its feed and its tasks share.
pub(crate) struct EtcdShared {
    pub(crate) connection: EtcdConnection,
    pub(crate) prefix: String,
    places: &'static [(&'static str, &'static str)],
    pub(crate) leases: Leases,
    fence: Fence,
    /// Of the feed's stream.
    pub(crate) requests: Mutex<Option<mpsc::Sender<EtcdWatchRequest>>>,
    /// Whether progress notifications of the feed's member can be trusted.
    pub(crate) has_progress: AtomicBool,
    is_marking: AtomicBool,
    /// The feed cannot be told how far it is.
    pub(crate) is_blind: AtomicBool,
    /// When the feed was asked for its progress, unless it has given something since.
    pub(crate) asked: Mutex<Option<Instant>>,
}

impl Etcd {
    /// Connects when first used. To be called within a runtime.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        let prefix = config.prefix.as_str();
        if !prefix.starts_with('/') || prefix.ends_with('/') || prefix.contains('\0') {
            return Err(ConfigError::Prefix(prefix.to_owned()));
        }
        let shared = Arc::new(EtcdShared {
            connection: EtcdConnection::new(config)?,
            prefix: prefix.to_owned(),
            places: config.places,
            leases: Leases::default(),
            fence: Fence::default(),
            requests: Mutex::default(),
            has_progress: AtomicBool::new(false),
            is_marking: AtomicBool::new(false),
            is_blind: AtomicBool::new(false),
            asked: Mutex::default(),
        });
        let mut tasks =
            vec![tokio::spawn(compaction::run(Arc::clone(&shared), config.compaction_interval))];
        if let Some(source) = config.tls_source.clone() {
            tasks.push(tokio::spawn(renewal::run(Arc::clone(&shared), source, config.tls.clone())));
        }
        let remembered = config.remembered.clone();
        if let Some(path) = remembered.clone() {
            let shared = Arc::clone(&shared);
            let seen = move || shared.connection.seen();
            tasks.push(tokio::spawn(remembered::run(path, seen)));
        }
        Ok(Self { shared, tasks, remembered })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        if let Some(path) = &self.remembered {
            // What the task wrote a second ago suffices if this fails.
            let seen = self.shared.connection.seen();
            let _ = (seen != Remembered::default()).then(|| seen.write(path));
        }
    }
}

impl EtcdShared {
    /// A key of the store in etcd.
    fn key(&self, key: &Key) -> Bytes {
        let rest = key.as_str().strip_prefix(STORE_PREFIX).unwrap_or(key.as_str());
        Bytes::from(in_etcd(&self.prefix, self.places, rest))
    }

    /// The store's key for one of etcd; `None` if there is none.
    pub(crate) fn store_key(&self, key: &[u8]) -> Option<Box<str>> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(self.prefix.as_str())?;
        in_store(self.places, rest)
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

    /// A revision not older than the call.
    pub(crate) async fn probe(&self) -> Result<Revision, Status> {
        let request = RangeRequest { key: self.marker(), keys_only: true, ..Default::default() };
        let header = self.connection.probe(request).await?.header.unwrap_or_default();
        Ok(revision(header.revision))
    }

    async fn request(&self, txn: &Txn) -> Result<TxnRequest, Status> {
        let mut request = TxnRequest::default();
        for guard in &txn.guards {
            let key = self.key(guard.key());
            request.compare.push(compare_mod(key.clone(), guard));
            let range = RangeRequest { key, keys_only: true, ..Default::default() };
            request.failure.push(op(RequestUnion::Range(range)));
        }
        if needs_fence(txn) {
            request.compare.push(self.fence.compare(self).await?);
        }
        for write in &txn.writes {
            let key = self.key(write.key());
            request.success.push(op(match write {
                Write::Put(Put { value, ttl, .. }) => {
                    let lease = match ttl {
                        Some(ttl) => self.leases.for_ttl(&self.connection, *ttl).await?,
                        None => 0,
                    };
                    RequestUnion::Put(PutRequest { key, value: value.clone(), lease })
                }
                Write::Delete { .. } => RequestUnion::DeleteRange(DeleteRangeRequest { key }),
            }));
        }
        Ok(request)
    }

    async fn propose(&self, txn: &Txn) -> ProposalOutcome {
        // Callers queue for the same lease.
        let request = tokio::time::timeout(PREPARE_TIMEOUT, self.request(txn)).await;
        let request = match request.unwrap_or_else(|_| Err(Status::deadline_exceeded("no reply"))) {
            Ok(request) => request,
            Err(status) if is_full(&status) => return ProposalOutcome::Full,
            Err(status) => return ProposalOutcome::Unavailable(self.reason(&status)),
        };
        let mut call = UnknownOnDrop { fence: needs_fence(txn).then_some(&self.fence) };
        let response = self.connection.txn(request).await;
        let outcome = match response {
            Ok(response) => outcome(txn, &response),
            Err(status) => self.failed(&status),
        };
        if !matches!(outcome, ProposalOutcome::Unknown(_)) {
            call.fence = None;
        }
        outcome
    }

    /// Fences off what may still be applied. The revision is not older than the fence.
    async fn settle(&self) -> Result<Revision, Status> {
        self.fence.compare(self).await?;
        self.probe().await
    }

    fn failed(&self, status: &Status) -> ProposalOutcome {
        let (why, message) = (self.reason(status), status.message());
        if is_unsent(status) {
            return ProposalOutcome::Unavailable(why);
        }
        if !is_of_etcd(status) {
            return ProposalOutcome::Unknown(why);
        }
        match status.code() {
            Code::ResourceExhausted if is_full(status) => ProposalOutcome::Full,
            Code::ResourceExhausted if message.contains("too many requests") => {
                ProposalOutcome::Unavailable(why)
            }
            // Nothing is wrong with the transaction.
            Code::InvalidArgument if is_of_credentials(message) => {
                ProposalOutcome::Unavailable(why)
            }
            Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => {
                ProposalOutcome::Invalid(why)
            }
            Code::NotFound if message.contains("lease") => {
                self.leases.forget();
                ProposalOutcome::Unavailable(why)
            }
            Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition => {
                ProposalOutcome::Unavailable(why)
            }
            Code::Unavailable if message.contains("no leader") => ProposalOutcome::Unavailable(why),
            // With a refused cluster, too: whatever it did is not acknowledged.
            _ => ProposalOutcome::Unknown(why),
        }
    }

    /// Writes the marker: its event tells the feed how far it is. A full etcd takes only deletes:
    /// then the marker's own deletion is the event, or, without one, the state must be read again.
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

    /// Has a marker written, unless one is on its way.
    pub(crate) fn start_mark(self: &Arc<Self>) {
        if !self.is_marking.swap(true, Ordering::AcqRel) {
            let shared = Arc::clone(self);
            tokio::spawn(async move { shared.mark().await });
        }
    }

    fn hurry(self: &Arc<Self>) {
        self.asked.lock().get_or_insert_with(Instant::now);
        if self.has_progress.load(Ordering::Acquire) {
            let request = WatchRequestUnion::Progress(WatchProgressRequest {});
            if let Some(requests) = &*self.requests.lock() {
                // Full: enough are on their way.
                let _ = requests.try_send(EtcdWatchRequest { request: Some(request) });
            }
        } else {
            self.start_mark();
        }
    }
}

impl RemoteEngine for Etcd {
    fn open(&self) -> Box<dyn RemoteFeed> {
        Box::new(EtcdFeed::new(Arc::clone(&self.shared)))
    }

    fn propose<'a>(&'a self, txn: &'a Txn) -> BoxFuture<'a, ProposalOutcome> {
        Box::pin(self.shared.propose(txn))
    }

    fn settle(&self) -> BoxFuture<'_, Result<Revision, String>> {
        Box::pin(async {
            let settled = tokio::time::timeout(PREPARE_TIMEOUT, self.shared.settle()).await;
            settled
                .unwrap_or_else(|_| Err(Status::deadline_exceeded("no reply")))
                .map_err(|status| self.shared.reason(&status))
        })
    }

    fn barrier(&self) -> BoxFuture<'_, Result<Revision, String>> {
        Box::pin(async {
            match self.shared.probe().await {
                Ok(revision) => Ok(revision),
                Err(status) => Err(self.shared.reason(&status)),
            }
        })
    }

    fn hurry(&self) {
        self.shared.hurry();
    }
}

/// `rest` is the store's key without its prefix.
pub(crate) fn in_etcd(prefix: &str, places: &[(&str, &str)], rest: &str) -> String {
    let moved = places.iter().find_map(|(store, etcd)| {
        rest.strip_prefix(store).map(|name| format!("{prefix}{etcd}{name}"))
    });
    moved.unwrap_or_else(|| format!("{prefix}{rest}"))
}

/// The opposite. `None` for a key at the store's place, which nothing of this store is at.
pub(crate) fn in_store(places: &[(&str, &str)], rest: &str) -> Option<Box<str>> {
    for (store, etcd) in places {
        if let Some(name) = rest.strip_prefix(etcd) {
            return Some(format!("{STORE_PREFIX}{store}{name}").into());
        }
        if rest.starts_with(store) {
            return None;
        }
    }
    rest.starts_with('/').then(|| format!("{STORE_PREFIX}{rest}").into())
}

/// Whether a call is refused for who called: etcd has the code of a malformed call for that.
fn is_of_credentials(message: &str) -> bool {
    ["user name", "user ID or password", "auth store", "authentication"]
        .iter()
        .any(|words| message.contains(words))
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

pub(crate) fn op(request: RequestUnion) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(crate) fn revision(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

fn required(guard: &Guard) -> i64 {
    match guard {
        // A key that does not exist has this revision.
        Guard::Absent(_) => 0,
        Guard::At(_, revision) => i64::try_from(revision.0).unwrap_or(i64::MAX),
    }
}

fn compare_mod(key: Bytes, guard: &Guard) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key,
        target_union: Some(TargetUnion::ModRevision(required(guard))),
    }
}

/// A call that is cancelled counts as unknown.
struct UnknownOnDrop<'a> {
    fence: Option<&'a Fence>,
}

impl Drop for UnknownOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(fence) = self.fence {
            fence.need();
        }
    }
}

fn needs_fence(txn: &Txn) -> bool {
    txn.guards.iter().any(|guard| matches!(guard, Guard::Absent(_)))
}

fn outcome(txn: &Txn, response: &TxnResponse) -> ProposalOutcome {
    let at = revision(response.header.clone().unwrap_or_default().revision);
    if response.succeeded {
        return ProposalOutcome::Committed(at);
    }
    let present = response.responses.iter().map(|op| match &op.response {
        Some(ResponseUnion::Range(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
        _ => 0,
    });
    let mut guards = txn.guards.iter().zip(present);
    match guards.find(|(guard, present)| required(guard) != *present) {
        Some((guard, _)) => ProposalOutcome::Conflict(guard.key().clone(), at),
        None => ProposalOutcome::Unavailable("another call of this server was lost".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_at_their_places_both_ways() {
        let places = [("/crds/", "/ext.io/crds/")];
        for (store, etcd) in [
            ("/crds/a", "/p/ext.io/crds/a"),
            ("/maps/ns/a", "/p/maps/ns/a"),
            ("/crdsx/a", "/p/crdsx/a"),
        ] {
            assert_eq!(in_etcd("/p", &places, store), etcd);
            let back = in_store(&places, etcd.strip_prefix("/p").unwrap());
            assert_eq!(back.as_deref(), Some(format!("/registry{store}").as_str()));
        }
        assert_eq!(in_store(&places, "/crds/a"), None, "not this store's");
        assert_eq!(in_store(&places, "x"), None);
    }
}
