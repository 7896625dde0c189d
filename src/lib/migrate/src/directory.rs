//! From etcd into the embedded store.

use crate::digest::StateDigest;
use crate::error::MigrateError;
use crate::etcd::now_us;
use crate::{MigrationSummary, Report};
use bytes::Bytes;
use ferrokube_etcd::{EtcdConfig, EtcdKeys, EtcdValue, MigrationNote};
use ferrokube_storage::journal::io::SystemDisk;
use ferrokube_storage::{
    Config, JournalFiles, Key, Prefix, Put, Revision, Sidecar, Store, Ticket, Txn, ValueCodec,
    ValueForm, Write,
};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Max concurrent writes.
const CONCURRENT: usize = 256;
/// Where nothing of a store is, for display.
const FOREIGN: &str = "keys of no resource";

/// The directory of the new store.
pub struct DirectoryTarget {
    /// Name of the complete directory; must not exist yet.
    pub journal: PathBuf,
    /// Name until complete, in the same directory. An existing one is removed.
    pub unfinished: PathBuf,
    /// How long etcd is observed at least, from the first read to the last. Longer than the pauses
    /// between writes of a server without requests, so that each running one is noticed.
    pub observed: Duration,
}

/// Copies the state from etcd into a new store; a repeated call starts over. Nothing has changed in
/// etcd from the first read until the store is complete, or it is [`MigrateError::Changed`].
/// Requires a Tokio runtime.
///
/// # Errors
/// [`MigrateError`].
pub async fn to_directory(
    etcd: &EtcdConfig,
    codec: &Arc<dyn ValueCodec>,
    target: &DirectoryTarget,
    report: Report<'_>,
) -> Result<MigrationSummary, MigrateError> {
    let started_over = make_room(target)?;
    let keys = EtcdKeys::new(etcd)?;
    let base = base(&keys).await?;
    let begun = Instant::now();
    let since = read_revision(&keys).await?;
    let origin = since.saturating_add(base).max(now_us());
    let config =
        Config { origin: Some(Revision(origin)), ..Config::embedded(target.unfinished.clone()) };
    let store = Store::open(config)?;
    let mut copy = EtcdCopy {
        keys: &keys,
        codec: &**codec,
        store: &store,
        leases: HashMap::new(),
        tickets: Vec::new(),
        contents: StateDigest::default(),
        versions: StateDigest::default(),
        unserved: BTreeMap::new(),
        unreadable: None,
    };
    copy.run(report).await?;
    let EtcdCopy { contents, versions, unserved, unreadable, .. } = copy;
    if let Some((count, key, why)) = unreadable {
        return Err(MigrateError::Unreadable { count, key, why });
    }
    let revision = store.revision().0;
    store.close().await;
    drop(store);
    compare(&target.unfinished, contents)?;
    tokio::time::sleep_until(begun + target.observed).await;
    if current_versions(&keys, since).await? != versions {
        return Err(MigrateError::Changed);
    }
    finish(target)?;
    let (keys, hash) = (contents.count(), contents.hash());
    Ok(MigrationSummary { keys, present: 0, started_over, hash, revision, unserved })
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> MigrateError {
    let path = path.to_owned();
    move |source| MigrateError::Io { what, path, source }
}

/// Returns whether an unfinished copy was removed.
fn make_room(target: &DirectoryTarget) -> Result<bool, MigrateError> {
    if target.journal.exists() {
        return Err(MigrateError::NotEmpty(target.journal.display().to_string()));
    }
    match std::fs::remove_dir_all(&target.unfinished) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error("remove", &target.unfinished)(error)),
    }
}

fn finish(target: &DirectoryTarget) -> Result<(), MigrateError> {
    let DirectoryTarget { journal, unfinished, .. } = target;
    std::fs::rename(unfinished, journal).map_err(io_error("rename", unfinished))?;
    let folder = journal.parent().unwrap_or(Path::new("."));
    let sync = || std::fs::File::open(folder)?.sync_all();
    sync().map_err(io_error("sync", folder))
}

/// The base that servers add to etcd's revisions.
async fn base(keys: &EtcdKeys) -> Result<u64, MigrateError> {
    let note = keys.migration().await.map_err(MigrateError::Etcd)?;
    match note.as_deref().map(MigrationNote::parse) {
        None => Ok(0),
        Some(Some(MigrationNote::Finished(base))) => Ok(base),
        Some(Some(MigrationNote::Unfinished(from))) => Err(MigrateError::SourceUnfinished(from)),
        Some(None) => Err(MigrateError::UnknownNote),
    }
}

async fn read_revision(keys: &EtcdKeys) -> Result<u64, MigrateError> {
    keys.page(None, true).await.map(|page| page.revision).map_err(MigrateError::Etcd)
}

fn version(versions: &mut StateDigest, value: &EtcdValue) {
    let key = value.key.as_deref().unwrap_or_default();
    versions.add(key.as_bytes(), &value.revision.to_le_bytes());
}

/// Digest of keys and revisions, without expiring ones, none of which may have been written since.
async fn current_versions(keys: &EtcdKeys, since: u64) -> Result<StateDigest, MigrateError> {
    let (mut versions, mut start) = (StateDigest::default(), None);
    loop {
        let page = keys.page(start, true).await.map_err(MigrateError::Etcd)?;
        if page.values.iter().any(|value| value.lease != 0 && value.revision > since) {
            return Err(MigrateError::Changed);
        }
        let lasting = page.values.iter().filter(|value| value.lease == 0);
        lasting.for_each(|value| version(&mut versions, value));
        start = page.next;
        if start.is_none() {
            return Ok(versions);
        }
    }
}

/// Reads the new store back.
fn compare(journal: &Path, expected: StateDigest) -> Result<(), MigrateError> {
    let state = JournalFiles::of_directory(&(Arc::new(SystemDisk) as Arc<_>), journal)?.state()?;
    let mut found = StateDigest::default();
    for (key, entry) in state.entries.iter().filter(|(_, entry)| entry.ttl.is_none()) {
        found.add(key.as_str().as_bytes(), &entry.entry.value().concat());
    }
    if found == expected {
        return Ok(());
    }
    let (source_hash, copy) = (expected.to_string(), found.to_string());
    Err(MigrateError::Different { source_hash, copy })
}

/// One pass over etcd.
struct EtcdCopy<'a> {
    keys: &'a EtcdKeys,
    codec: &'a dyn ValueCodec,
    store: &'a Store,
    /// Time left, once read.
    leases: HashMap<i64, Option<Duration>>,
    tickets: Vec<Ticket>,
    /// Digest of non-expiring keys and values, in the store's format.
    contents: StateDigest,
    /// Digest of non-expiring keys and revisions in etcd.
    versions: StateDigest,
    unserved: BTreeMap<String, u64>,
    /// Number of unreadable values, and one of them with the reason.
    unreadable: Option<(u64, String, String)>,
}

impl EtcdCopy<'_> {
    async fn run(&mut self, report: Report<'_>) -> Result<(), MigrateError> {
        let (mut start, mut done) = (None, 0);
        loop {
            let page = self.keys.page(start, false).await.map_err(MigrateError::Etcd)?;
            let total = page.total.max(done);
            for value in page.values {
                self.copy(value).await?;
                done += 1;
                report(done, total.max(done));
            }
            start = page.next;
            if start.is_none() {
                return self.written().await;
            }
        }
    }

    async fn copy(&mut self, found: EtcdValue) -> Result<(), MigrateError> {
        if found.lease == 0 {
            version(&mut self.versions, &found);
        }
        let Some(text) = &found.key else {
            *self.unserved.entry(FOREIGN.to_owned()).or_default() += 1;
            return Ok(());
        };
        let Some(key) = store_key(self.codec, text) else {
            *self.unserved.entry(resource(text)).or_default() += 1;
            return Ok(());
        };
        match self.codec.read(&key, &found.value) {
            Ok((value, sidecar)) => {
                let sidecar = Sidecar { form: ValueForm::OWN, ..sidecar };
                self.put(key, value, sidecar, found.lease).await
            }
            Err(why) => {
                let first = self.unreadable.take();
                let (count, key, why) = first.unwrap_or_else(|| (0, text.to_string(), why));
                self.unreadable = Some((count + 1, key, why));
                Ok(())
            }
        }
    }

    async fn put(
        &mut self,
        key: Key,
        value: Bytes,
        sidecar: Sidecar,
        lease: i64,
    ) -> Result<(), MigrateError> {
        let ttl = match lease {
            0 => None,
            lease => match self.time_left(lease).await? {
                Some(left) => Some(left),
                None => return Ok(()),
            },
        };
        if ttl.is_none() {
            self.contents.add(key.as_str().as_bytes(), &value);
        }
        let writes = vec![Write::Put(Put { key, value, sidecar, ttl })];
        let submitted = self.store.submit(Txn { guards: Vec::new(), writes });
        let ticket = submitted.map_err(|error| MigrateError::Write(error.to_string()))?;
        self.tickets.push(ticket);
        if self.tickets.len() >= CONCURRENT { self.written().await } else { Ok(()) }
    }

    async fn time_left(&mut self, lease: i64) -> Result<Option<Duration>, MigrateError> {
        if let Some(known) = self.leases.get(&lease) {
            return Ok(*known);
        }
        let left = self.keys.time_left(lease).await.map_err(MigrateError::Etcd)?;
        self.leases.insert(lease, left);
        Ok(left)
    }

    async fn written(&mut self) -> Result<(), MigrateError> {
        for ticket in self.tickets.drain(..) {
            let done = ticket.committed().await;
            done.map_err(|error| MigrateError::Write(error.to_string()))?;
        }
        Ok(())
    }
}

/// The store's key of a served object.
fn store_key(codec: &dyn ValueCodec, text: &str) -> Option<Key> {
    let prefix = codec.prefix(text)?;
    let resource = prefix.strip_prefix("/registry/")?.trim_end_matches('/');
    let rest = text.strip_prefix(prefix)?;
    let (namespace, name) = match rest.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, rest),
    };
    Prefix::new(resource).ok()?.key(namespace, name).ok()
}

/// The part of a key that names its resource, for display: a group contains a dot and is followed
/// by its resource.
fn resource(text: &str) -> String {
    let mut parts = text.trim_start_matches("/registry/").split('/');
    let first = parts.next().unwrap_or_default();
    match parts.next() {
        Some(second) if first.contains('.') => format!("{first}/{second}"),
        _ => first.to_owned(),
    }
}
