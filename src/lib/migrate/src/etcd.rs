//! From the embedded store into etcd.

use crate::digest::StateDigest;
use crate::error::MigrateError;
use crate::{MigrationSummary, Report};
use bytes::Bytes;
use ferrokube_etcd::{CreateOutcome, EtcdConfig, EtcdKeys, MigrationNote};
use ferrokube_storage::journal::io::Io;
use ferrokube_storage::{JournalFiles, JournalState, OpenError, StoredEntry, ValueCodec};
use futures::{StreamExt, TryStreamExt};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Max concurrent writes, which etcd syncs in batches.
const CONCURRENT: usize = 64;

/// Copies the state of a journal directory into etcd, in the format of its servers. Requires a
/// Tokio runtime.
///
/// # Errors
/// [`MigrateError`].
pub async fn to_etcd(
    io: &Arc<dyn Io>,
    journal: &Path,
    etcd: &EtcdConfig,
    codec: &dyn ValueCodec,
    report: Report<'_>,
) -> Result<MigrationSummary, MigrateError> {
    let cannot = |source| OpenError::Io { what: "lock", path: journal.to_owned(), source };
    let lock = io.lock(journal).map_err(cannot)?;
    let _lock = lock.ok_or_else(|| OpenError::Locked(journal.to_owned()))?;
    let state = JournalFiles::of_directory(io, journal)?.state()?;
    let keys = EtcdKeys::new(etcd)?;
    let target = format!("{} in etcd", etcd.prefix);
    enter(&keys, &target, &journal.display().to_string()).await?;
    let present = copy(&keys, &state, codec, report).await?;
    remove_others(&keys, &state).await?;
    let expected = digest(&state, codec);
    let (found, revision) = read_back(&keys, &state).await?;
    if found != expected {
        let (source_hash, copy) = (expected.to_string(), found.to_string());
        return Err(MigrateError::Different { source_hash, copy });
    }
    let base = state.revision.0.max(now_us());
    let note = MigrationNote::Finished(base).text();
    keys.note_migration(&note).await.map_err(MigrateError::Etcd)?;
    Ok(MigrationSummary {
        keys: expected.count(),
        present,
        started_over: false,
        hash: expected.hash(),
        revision: base.saturating_add(revision),
        unserved: BTreeMap::new(),
    })
}

/// The current time as a revision, as the embedded store uses at startup.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2)
}

/// Checks that the target is empty or an unfinished migration from this source, and records the
/// migration there.
async fn enter(keys: &EtcdKeys, target: &str, source: &str) -> Result<(), MigrateError> {
    let note = keys.migration().await.map_err(MigrateError::Etcd)?;
    match note.as_deref().map(MigrationNote::parse) {
        Some(Some(MigrationNote::Unfinished(from))) if from == source => return Ok(()),
        Some(Some(MigrationNote::Unfinished(from))) => {
            return Err(MigrateError::OtherSource { target: target.to_owned(), from });
        }
        Some(None) => return Err(MigrateError::UnknownNote),
        // From an earlier migration, whose keys may have been deleted.
        Some(Some(MigrationNote::Finished(_))) | None => {}
    }
    if !keys.page(None, true).await.map_err(MigrateError::Etcd)?.values.is_empty() {
        return Err(MigrateError::NotEmpty(target.to_owned()));
    }
    let note = MigrationNote::Unfinished(source.to_owned()).text();
    keys.note_migration(&note).await.map_err(MigrateError::Etcd)
}

/// The value to store in etcd.
fn value(codec: &dyn ValueCodec, entry: &StoredEntry) -> Bytes {
    codec.write(&entry.entry.key, &entry.entry.value().concat().into())
}

/// Digest of the non-expiring entries.
fn digest(state: &JournalState, codec: &dyn ValueCodec) -> StateDigest {
    let mut digest = StateDigest::default();
    for (key, entry) in state.entries.iter().filter(|(_, entry)| entry.ttl.is_none()) {
        digest.add(key.as_str().as_bytes(), &value(codec, entry));
    }
    digest
}

/// Returns the number of keys already present.
async fn copy(
    keys: &EtcdKeys,
    state: &JournalState,
    codec: &dyn ValueCodec,
    report: Report<'_>,
) -> Result<u64, MigrateError> {
    let (done, present) = (AtomicU64::new(0), AtomicU64::new(0));
    let total = state.entries.len() as u64;
    let copies = state.entries.iter().map(async |(key, entry)| {
        if entry.ttl != Some(Duration::ZERO) {
            let wanted = value(codec, entry);
            let outcome = keys.create(key.as_str(), wanted.clone(), entry.ttl).await?;
            match outcome {
                CreateOutcome::Created => {}
                CreateOutcome::Present(found) if found == wanted => {
                    present.fetch_add(1, Ordering::Relaxed);
                }
                // The source was used since the earlier run.
                CreateOutcome::Present(_) => {
                    keys.replace(key.as_str(), wanted, entry.ttl).await?;
                }
            }
        }
        report(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        Ok(())
    });
    let copied: Result<(), String> =
        futures::stream::iter(copies).buffer_unordered(CONCURRENT).try_collect().await;
    copied.map_err(MigrateError::Etcd)?;
    Ok(present.into_inner())
}

/// Removes keys copied by an earlier run that the source no longer has.
async fn remove_others(keys: &EtcdKeys, state: &JournalState) -> Result<(), MigrateError> {
    let mut start = None;
    loop {
        let page = keys.page(start, true).await.map_err(MigrateError::Etcd)?;
        for key in page.values.into_iter().filter_map(|value| value.key) {
            if !state.entries.contains_key(&*key) {
                keys.delete(&key).await.map_err(MigrateError::Etcd)?;
            }
        }
        start = page.next;
        if start.is_none() {
            return Ok(());
        }
    }
}

/// Digest of the non-expiring entries, and etcd's revision.
async fn read_back(
    keys: &EtcdKeys,
    state: &JournalState,
) -> Result<(StateDigest, u64), MigrateError> {
    let (mut digest, mut start) = (StateDigest::default(), None);
    loop {
        let page = keys.page(start, false).await.map_err(MigrateError::Etcd)?;
        for found in &page.values {
            let key = found.key.as_deref().unwrap_or_default();
            let expires = state.entries.get(key).is_some_and(|entry| entry.ttl.is_some());
            if !expires {
                digest.add(key.as_bytes(), &found.value);
            }
        }
        start = page.next;
        if start.is_none() {
            return Ok((digest, page.revision));
        }
    }
}
