//! Changes of the feed in this store's form. Many values are decoded on all cores.

use super::{Remote, RemoteChange};
use crate::entry::{DraftEntry, Entry, Sidecar};
use crate::key::{Key, Revision};
use bytes::Bytes;
use std::collections::VecDeque;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Changes that a task decodes, at least and at most, and bytes of their values after which it has
/// enough.
const MIN_TASK_CHANGES: usize = 100;
const TASK_CHANGES: usize = 1000;
const TASK_BYTES: usize = 4 << 20;
/// Most tasks at a time: a hostile value takes tens of MiB while it is decoded.
pub(super) const MAX_DECODERS: usize = 16;

/// A change of the store.
pub(super) struct DecodedChange {
    pub(super) key: Key,
    pub(super) revision: Revision,
    /// `None`: deleted, or replaced by what cannot be read.
    pub(super) entry: Option<Arc<Entry>>,
}

/// Changes that are being decoded, in order.
pub(super) struct Decoding {
    remote: Arc<Remote>,
    tasks: VecDeque<JoinHandle<Vec<DecodedChange>>>,
    done: Vec<DecodedChange>,
}

impl Decoding {
    pub(super) fn new(remote: &Arc<Remote>) -> Self {
        Self { remote: Arc::clone(remote), tasks: VecDeque::new(), done: Vec::new() }
    }

    /// Adds changes. Waits while too many are being decoded.
    pub(super) async fn add(&mut self, changes: Vec<RemoteChange>) {
        let share = changes.len().div_ceil(self.remote.decoders);
        let most = share.clamp(MIN_TASK_CHANGES, TASK_CHANGES);
        let mut changes = changes.into_iter();
        while !changes.as_slice().is_empty() {
            let length = length_of_task(changes.as_slice(), most);
            let part: Vec<_> = changes.by_ref().take(length).collect();
            if self.tasks.is_empty() && changes.as_slice().is_empty() {
                self.done.extend(part.into_iter().filter_map(|change| self.remote.decode(change)));
                return;
            }
            while self.tasks.len() >= self.remote.decoders {
                self.take().await;
            }
            let remote = Arc::clone(&self.remote);
            self.tasks.push_back(tokio::task::spawn_blocking(move || {
                part.into_iter().filter_map(|change| remote.decode(change)).collect()
            }));
        }
    }

    /// All changes.
    pub(super) async fn end(mut self) -> Vec<DecodedChange> {
        while !self.tasks.is_empty() {
            self.take().await;
        }
        self.done
    }

    async fn take(&mut self) {
        let Some(task) = self.tasks.pop_front() else { return };
        match task.await {
            Ok(decoded) => self.done.extend(decoded),
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime ends.
            Err(_) => pending().await,
        }
    }
}

/// Number of changes of the next task, which has at least one.
fn length_of_task(changes: &[RemoteChange], most: usize) -> usize {
    let mut bytes = 0;
    let enough = changes.iter().take(most).position(|change| {
        bytes += change.value.as_ref().map_or(0, Bytes::len);
        bytes >= TASK_BYTES
    });
    enough.map_or(changes.len().min(most), |at| at + 1)
}

impl Remote {
    fn key(&self, text: &str) -> Option<Key> {
        let Some(prefix) = self.codec.prefix(text) else {
            if self.unserved.note(text) {
                self.sole.disturb();
            }
            return None;
        };
        let key = Key::from_journal(text, prefix.len());
        if key.is_none()
            && let Some(left_out) = self.unreadable.take()
        {
            tracing::error!(
                key = text,
                left_out,
                "a key in the storage is malformed: it is not served"
            );
        }
        key
    }

    /// The value in this store's form; `None` if it cannot be read.
    fn read(&self, key: &Key, value: &Bytes) -> Option<(Bytes, Sidecar)> {
        if let Some(own) = self.own.lock().written(key, value) {
            return Some(own);
        }
        self.sole.disturb();
        // Values of others must not end the feed, whatever they are.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.codec.read(key, value)));
        match decoded.unwrap_or_else(|_| Err("the codec panicked".to_owned())) {
            Ok((value, sidecar)) if sidecar.revision_at as usize <= value.len() => {
                Some((value, sidecar))
            }
            outcome => {
                let why = outcome.err().unwrap_or_else(|| "the codec is wrong".to_owned());
                if let Some(left_out) = self.unreadable.take() {
                    tracing::error!(
                        key = key.as_str(),
                        why,
                        left_out,
                        "a value in the storage cannot be read: it is not served"
                    );
                }
                None
            }
        }
    }

    /// `None` for a key that is not served.
    fn decode(&self, change: RemoteChange) -> Option<DecodedChange> {
        let key = self.key(&change.key)?;
        let revision = change.revision;
        let entry = change.value.and_then(|value| {
            let present = self.core.published.get(&key);
            if let Some(unchanged) = present.filter(|entry| entry.revision == revision) {
                return Some(unchanged);
            }
            let (value, sidecar) = self.read(&key, &value)?;
            let draft = DraftEntry::new([&value, b""], sidecar, revision);
            Some(Arc::new(draft.finish(key.clone(), revision, change.create_revision)))
        });
        Some(DecodedChange { key, revision, entry })
    }
}
