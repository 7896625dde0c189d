//! An etcd that a migration may have filled: its revisions continue above those of the store
//! that its state comes from.
//!
//! etcd's revisions start at 1, and only grow by writes, so the migration notes a number, its
//! *base*, that the servers add to each revision. Without a note the base is 0. A server does not
//! start on an unfinished migration.

use crate::connection::{ConfigError, EtcdConfig, EtcdTlsSource};
use crate::engine::Etcd;
use crate::keys::EtcdKeys;
use ferrokube_storage::remote::{
    BoxFuture, FeedItem, ProposalOutcome, RemoteChange, RemoteEngine, RemoteFeed, SoleClaim,
};
use ferrokube_storage::{Guard, Revision, Txn};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Start of the note of a finished migration; its base follows.
const FINISHED: &str = "finished, base ";
/// Prefix of the note of an unfinished migration; its source follows.
const UNFINISHED: &str = "unfinished, from ";
/// Pause after a failed read of the note.
const PAUSE: Duration = Duration::from_millis(200);

/// A note of a migration in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationNote {
    /// Source of the copy.
    Unfinished(String),
    /// Number added to etcd's revisions.
    Finished(u64),
}

impl MigrationNote {
    /// `None` for a note of another version.
    pub fn parse(text: &str) -> Option<Self> {
        let base = || text.strip_prefix(FINISHED)?.parse().ok();
        let finished = || base().filter(|base| *base <= Revision::MAX.0).map(Self::Finished);
        let from = text.strip_prefix(UNFINISHED).map(|from| Self::Unfinished(from.to_owned()));
        from.or_else(finished)
    }

    /// As it is stored.
    pub fn text(&self) -> String {
        match self {
            Self::Unfinished(from) => format!("{UNFINISHED}{from}"),
            Self::Finished(base) => format!("{FINISHED}{base}"),
        }
    }
}

/// [`Etcd`], with the base of its migration.
pub struct MigratedEtcd {
    inner: Arc<dyn RemoteEngine>,
    shift: Arc<RevisionShift>,
}

struct RevisionShift {
    keys: EtcdKeys,
    tls_source: Option<EtcdTlsSource>,
    /// Known once the feed has begun.
    base: OnceLock<u64>,
}

impl MigratedEtcd {
    /// Connects when first used. To be called within a runtime.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn new(config: &EtcdConfig) -> Result<Self, ConfigError> {
        let inner = Arc::new(Etcd::new(config)?);
        let (keys, tls_source) = (EtcdKeys::new(config)?, config.tls_source.clone());
        let shift = RevisionShift { keys, tls_source, base: OnceLock::new() };
        Ok(Self { inner, shift: Arc::new(shift) })
    }
}

impl RevisionShift {
    fn base(&self) -> u64 {
        self.base.get().copied().unwrap_or(0)
    }

    /// As shown by the store.
    fn shown(&self, revision: Revision) -> Revision {
        Revision(revision.0.saturating_add(self.base()))
    }

    /// As in etcd. A revision from before the migration becomes one that etcd never has.
    fn guard(&self, guard: Guard) -> Guard {
        match guard {
            Guard::At(key, revision) => {
                let own = revision.0.checked_sub(self.base()).filter(|own| *own > 0);
                Guard::At(key, Revision(own.unwrap_or(u64::MAX)))
            }
            absent @ Guard::Absent(_) => absent,
        }
    }

    fn outcome(&self, outcome: ProposalOutcome) -> ProposalOutcome {
        match outcome {
            ProposalOutcome::Committed(at) => ProposalOutcome::Committed(self.shown(at)),
            ProposalOutcome::Conflict(key, at) => ProposalOutcome::Conflict(key, self.shown(at)),
            other => other,
        }
    }

    fn change(&self, change: RemoteChange) -> RemoteChange {
        let (revision, create_revision) =
            (self.shown(change.revision), self.shown(change.create_revision));
        RemoteChange { revision, create_revision, ..change }
    }

    fn item(&self, item: FeedItem) -> FeedItem {
        let changes = |changes: Vec<RemoteChange>| {
            changes.into_iter().map(|change| self.change(change)).collect()
        };
        match item {
            FeedItem::State { revision, values, is_first, is_last } => FeedItem::State {
                revision: self.shown(revision),
                values: changes(values),
                is_first,
                is_last,
            },
            FeedItem::Changes { revision, changes: those } => {
                FeedItem::Changes { revision: self.shown(revision), changes: changes(those) }
            }
            other => other,
        }
    }

    /// Uses the certificates that are there now: the start may have been with others.
    async fn renew(&self) {
        let Some(source) = self.tls_source.clone() else { return };
        if let Ok(Ok(tls)) = tokio::task::spawn_blocking(move || source()).await {
            // Unusable ones are logged by the engine's renewal.
            let _ = self.keys.renew(&tls);
        }
    }

    /// Reads the note. The item is the reason why it is unknown for now, or for good.
    async fn find_base(&self) -> Result<(), FeedItem> {
        if self.base.get().is_some() {
            return Ok(());
        }
        let note = match self.keys.migration().await {
            Ok(note) => note,
            Err(why) => {
                if let Some(why) = self.keys.refused() {
                    return Err(FeedItem::Failed(why.to_owned()));
                }
                self.renew().await;
                return Err(FeedItem::Lost(why));
            }
        };
        let base = match note.as_deref().map(MigrationNote::parse) {
            None => 0,
            Some(Some(MigrationNote::Finished(base))) => base,
            Some(Some(MigrationNote::Unfinished(from))) => {
                let why = format!("a migration from {from} has not finished: repeat it");
                return Err(FeedItem::Failed(why));
            }
            Some(None) => {
                let why = "the note of its migration is of a newer version".to_owned();
                return Err(FeedItem::Failed(why));
            }
        };
        let _ = self.base.set(base);
        Ok(())
    }
}

impl RemoteEngine for MigratedEtcd {
    fn open(&self) -> Box<dyn RemoteFeed> {
        let feed = self.inner.open();
        Box::new(ShiftedFeed { feed, shift: Arc::clone(&self.shift), is_failing: false })
    }

    fn propose<'a>(
        &'a self,
        txn: &'a Txn,
        relies_on: Option<SoleClaim>,
    ) -> BoxFuture<'a, ProposalOutcome> {
        if self.shift.base() == 0 {
            return self.inner.propose(txn, relies_on);
        }
        Box::pin(async move {
            let mut shifted = txn.clone();
            let guards = shifted.guards.into_iter();
            shifted.guards = guards.map(|guard| self.shift.guard(guard)).collect();
            self.shift.outcome(self.inner.propose(&shifted, relies_on).await)
        })
    }

    fn settle(&self) -> BoxFuture<'_, Result<Revision, String>> {
        let settle = self.inner.settle();
        Box::pin(async { settle.await.map(|revision| self.shift.shown(revision)) })
    }

    fn barrier(&self) -> BoxFuture<'_, Result<Revision, String>> {
        let barrier = self.inner.barrier();
        Box::pin(async { barrier.await.map(|revision| self.shift.shown(revision)) })
    }

    fn claim(&self) -> BoxFuture<'_, Result<Option<(SoleClaim, Revision)>, String>> {
        let claim = self.inner.claim();
        Box::pin(async {
            let claimed = claim.await?;
            Ok(claimed.map(|(claim, revision)| (claim, self.shift.shown(revision))))
        })
    }

    fn revoke(&self) -> BoxFuture<'_, Result<(), String>> {
        self.inner.revoke()
    }

    fn claimed(&self) -> Option<SoleClaim> {
        self.inner.claimed()
    }

    fn hurry(&self) {
        self.inner.hurry();
    }
}

struct ShiftedFeed {
    feed: Box<dyn RemoteFeed>,
    shift: Arc<RevisionShift>,
    is_failing: bool,
}

impl RemoteFeed for ShiftedFeed {
    fn next(&mut self) -> BoxFuture<'_, FeedItem> {
        Box::pin(async move {
            if std::mem::take(&mut self.is_failing) {
                tokio::time::sleep(PAUSE).await;
            }
            if let Err(item) = self.shift.find_base().await {
                self.is_failing = true;
                return item;
            }
            let item = self.feed.next().await;
            if self.shift.base() == 0 { item } else { self.shift.item(item) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_written() {
        for note in [MigrationNote::Finished(7), MigrationNote::Unfinished("a, b".to_owned())] {
            assert_eq!(MigrationNote::parse(&note.text()), Some(note));
        }
        for text in ["", "finished, base x", "finished, base 18446744073709551615", "done"] {
            assert_eq!(MigrationNote::parse(text), None, "{text}");
        }
    }
}
