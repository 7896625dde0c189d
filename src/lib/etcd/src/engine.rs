//! Transactions and barriers.

use crate::compaction;
use crate::connection::{ConfigError, EtcdConfig, is_of_etcd, is_of_learner, is_unsent};
use crate::feed::EtcdFeed;
use crate::fence::Fence;
use crate::lease;
use crate::proto::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, PutRequest, RangeRequest,
    RequestUnion, ResponseUnion, TargetUnion, TxnRequest, TxnResponse, op,
};
use crate::remembered::{self, Remembered};
use crate::renewal;
use crate::shared::{EtcdShared, is_full, revision};
use crate::sole;
use bytes::Bytes;
use ferrokube_storage::remote::{BoxFuture, ProposalOutcome, RemoteEngine, RemoteFeed, SoleClaim};
use ferrokube_storage::{Guard, Put, Revision, Txn, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

/// Timeout of the steps before a transaction: a lease, a fence.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts of a transaction while others claim.
const ATTEMPTS: usize = 2;

/// The engine. Its tasks end when it is dropped.
pub struct Etcd {
    shared: Arc<EtcdShared>,
    tasks: Vec<JoinHandle<()>>,
    remembered: Option<PathBuf>,
}

impl Etcd {
    /// Connects when first used. To be called within a runtime.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        let shared = Arc::new(EtcdShared::new(config)?);
        let mut tasks =
            vec![tokio::spawn(compaction::run(Arc::clone(&shared), config.compaction_interval))];
        if let Some(source) = config.tls_source.clone() {
            tasks.push(tokio::spawn(renewal::run(Arc::clone(&shared), source, config.tls.clone())));
        }
        let remembered = config.remembered.clone();
        if let Some(path) = remembered.clone() {
            let shared = Arc::clone(&shared);
            let seen = move || shared.connection.to_remember();
            tasks.push(tokio::spawn(remembered::run(path, seen)));
        }
        Ok(Self { shared, tasks, remembered })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        if let Some(path) = &self.remembered {
            // If this fails, the value written by the task a second ago suffices.
            let seen = self.shared.connection.to_remember();
            let _ = (seen != Remembered::default()).then(|| seen.write(path));
        }
    }
}

impl EtcdShared {
    /// `claim`: the revision of the claim that it requires, 0 for none.
    async fn request(&self, txn: &Txn, claim: i64) -> Result<TxnRequest, Status> {
        let mut request = TxnRequest::default();
        for guard in &txn.guards {
            let key = self.key(guard.key());
            request.compare.push(compare_mod(key.clone(), guard));
            let range = RangeRequest { key, keys_only: true, ..Default::default() };
            request.failure.push(op(RequestUnion::Range(range)));
        }
        if needs_fence(txn) {
            request.compare.push(self.compare_fence().await?);
        }
        request.compare.push(self.sole.compare(claim));
        request.failure.push(op(self.sole.read()));
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

    async fn propose(&self, txn: &Txn, relies_on: Option<SoleClaim>) -> ProposalOutcome {
        let relies_on = relies_on.map(|claim| i64::try_from(claim.0).unwrap_or(i64::MAX));
        for _ in 0..ATTEMPTS {
            let call = self.sole.in_flight().await;
            let claim = self.sole.claimed();
            if relies_on.is_some_and(|relied| relied != claim) {
                return ProposalOutcome::NotSole;
            }
            let outcome = self.attempt(txn, claim).await;
            drop(call);
            match outcome {
                Ok(outcome) => return outcome,
                Err(_) if relies_on.is_some() => return ProposalOutcome::NotSole,
                // Another process claims.
                Err(present) if present != 0 && present != self.sole.claimed() => {
                    if let Err(status) = self.sole.revoke(Some(present), &self.connection).await {
                        return ProposalOutcome::Unavailable(self.reason(&status));
                    }
                }
                Err(_) => {}
            }
        }
        ProposalOutcome::Unavailable("servers keep claiming to write alone".to_owned())
    }

    /// The error: nothing is applied, as the key of claims has this other revision.
    async fn attempt(&self, txn: &Txn, claim: i64) -> Result<ProposalOutcome, i64> {
        // Callers queue for the same lease.
        let request = tokio::time::timeout(PREPARE_TIMEOUT, self.request(txn, claim)).await;
        let request = match request.unwrap_or_else(|_| Err(Status::deadline_exceeded("no reply"))) {
            Ok(request) => request,
            Err(status) if is_full(&status) => return Ok(ProposalOutcome::Full),
            Err(status) => return Ok(ProposalOutcome::Unavailable(self.reason(&status))),
        };
        let mut call = UnknownOnDrop { fence: needs_fence(txn).then_some(&self.fence) };
        let response = self.connection.txn(request).await;
        let outcome = match response {
            Ok(response) => match outcome(txn, &response) {
                Some(outcome) => Ok(outcome),
                None => {
                    let present = sole::revision_in(&response);
                    if present == claim {
                        let why = "another call of this server was lost".to_owned();
                        Ok(ProposalOutcome::Unavailable(why))
                    } else {
                        self.sole.revoked(claim);
                        Err(present)
                    }
                }
            },
            Err(status) => Ok(self.failed(&status)),
        };
        if !matches!(outcome, Ok(ProposalOutcome::Unknown(_))) {
            call.fence = None;
        }
        outcome
    }

    /// Fences off transactions that may still be applied. The revision is at least that of the
    /// fence.
    async fn settle(&self) -> Result<Revision, Status> {
        self.compare_fence().await?;
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
            // The transaction itself is valid.
            Code::InvalidArgument if is_of_credentials(message) => {
                ProposalOutcome::Unavailable(why)
            }
            Code::InvalidArgument | Code::OutOfRange | Code::ResourceExhausted => {
                ProposalOutcome::Invalid(why)
            }
            Code::NotFound if lease::is_gone(status) => {
                self.leases.forget();
                ProposalOutcome::Unavailable(why)
            }
            Code::PermissionDenied | Code::Unauthenticated | Code::FailedPrecondition => {
                ProposalOutcome::Unavailable(why)
            }
            Code::Unavailable if message.contains("no leader") || is_of_learner(status) => {
                ProposalOutcome::Unavailable(why)
            }
            // Its alarm refuses all writes, on every member.
            Code::DataLoss if message.contains("corrupt cluster") => {
                ProposalOutcome::Unavailable(why)
            }
            // With a refused cluster, too: whatever it did is not acknowledged.
            _ => ProposalOutcome::Unknown(why),
        }
    }
}

impl RemoteEngine for Etcd {
    fn open(&self) -> Box<dyn RemoteFeed> {
        Box::new(EtcdFeed::new(Arc::clone(&self.shared)))
    }

    fn propose<'a>(
        &'a self,
        txn: &'a Txn,
        relies_on: Option<SoleClaim>,
    ) -> BoxFuture<'a, ProposalOutcome> {
        Box::pin(self.shared.propose(txn, relies_on))
    }

    fn claim(&self) -> BoxFuture<'_, Result<Option<(SoleClaim, Revision)>, String>> {
        Box::pin(async {
            let claimed = self.shared.sole.claim(&self.shared.connection).await;
            let at = revision(claimed.map_err(|status| self.shared.reason(&status))?);
            Ok(Some((SoleClaim(at.0), at)))
        })
    }

    fn revoke(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            let revoked = self.shared.sole.revoke(None, &self.shared.connection).await;
            revoked.map_err(|status| self.shared.reason(&status))
        })
    }

    fn claimed(&self) -> Option<SoleClaim> {
        let claimed = revision(self.shared.sole.claimed()).0;
        (claimed > 0).then_some(SoleClaim(claimed))
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

/// Whether a call is refused for its credentials: etcd uses the code of a malformed call for that.
fn is_of_credentials(message: &str) -> bool {
    ["user name", "user ID or password", "auth store", "authentication"]
        .iter()
        .any(|words| message.contains(words))
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

/// `None`: not applied, although its guards held: the fence or the claim failed.
fn outcome(txn: &Txn, response: &TxnResponse) -> Option<ProposalOutcome> {
    let at = revision(response.header.clone().unwrap_or_default().revision);
    if response.succeeded {
        return Some(ProposalOutcome::Committed(at));
    }
    let present = response.responses.iter().map(|op| match &op.response {
        Some(ResponseUnion::Range(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
        _ => 0,
    });
    let mut guards = txn.guards.iter().zip(present);
    let (failed, _) = guards.find(|(guard, present)| required(guard) != *present)?;
    Some(ProposalOutcome::Conflict(failed.key().clone(), at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::EtcdTls;

    /// Otherwise a write is repeated for long, and then said to have happened perhaps.
    #[tokio::test]
    async fn what_etcd_refuses_has_not_happened() {
        let config = EtcdConfig {
            servers: vec!["http://127.0.0.1:1".to_owned()],
            prefix: "/registry".to_owned(),
            renamed: &[],
            tls: EtcdTls::default(),
            tls_source: None,
            compaction_interval: Duration::ZERO,
            remembered: None,
        };
        let shared = EtcdShared::new(&config).expect("a configuration");
        for refused in [
            Status::data_loss("etcdserver: corrupt cluster"),
            Status::unavailable("etcdserver: no leader"),
            Status::permission_denied("etcdserver: permission denied"),
            Status::failed_precondition("etcdserver: rpc not supported for learner"),
            Status::unavailable("etcdserver: rpc not supported for learner"),
        ] {
            let outcome = shared.failed(&refused);
            assert!(matches!(outcome, ProposalOutcome::Unavailable(_)), "{refused}: {outcome:?}");
        }
        for lost in [
            Status::unavailable("etcdserver: request timed out"),
            Status::unavailable("etcdserver: leader changed"),
            Status::data_loss("revisions went back from 2 to 1"),
        ] {
            let outcome = shared.failed(&lost);
            assert!(matches!(outcome, ProposalOutcome::Unknown(_)), "{lost}: {outcome:?}");
        }
    }
}
