//! The webhooks of all configurations of a kind, as of the newest published state.

use super::hook::Hook;
use arc_swap::ArcSwap;
use ferrokube_apimachinery::{json, work};
use ferrokube_storage::{Cursor, Key, Prefix, Revision, Store, WatchError};
use ferrokube_webhook::WebhookAccess;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Follows the configurations: a change is in effect when its write is acknowledged.
pub(super) struct FollowedHooks {
    store: Store,
    prefix: Prefix,
    access: WebhookAccess,
    state: ArcSwap<CompiledHooks>,
    /// Held while compiling.
    turn: Mutex<()>,
}

/// The webhooks at a revision.
#[derive(Default)]
struct CompiledHooks {
    /// At that revision; `None`: not read yet, or the store is closing.
    cursor: Option<Cursor>,
    hooks: Arc<[Arc<Hook>]>,
    /// By configuration; unchanged ones keep their connections.
    by_key: HashMap<Key, (Revision, Vec<Arc<Hook>>)>,
}

impl CompiledHooks {
    fn is_current(&self) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| !cursor.is_behind())
    }
}

impl FollowedHooks {
    /// # Panics
    /// If `plural` is no storage prefix.
    pub(super) fn new(store: &Store, plural: &str, access: WebhookAccess) -> Self {
        Self {
            store: store.clone(),
            prefix: Prefix::new(plural).expect("a constant without a slash"),
            access,
            state: ArcSwap::default(),
            turn: Mutex::new(()),
        }
    }

    /// The webhooks now. Two loads if nothing has changed.
    pub(super) fn now(&self) -> Arc<[Arc<Hook>]> {
        let state = self.state.load();
        if state.is_current() {
            return Arc::clone(&state.hooks);
        }
        let _turn = self.turn.lock();
        let state = self.state.load_full();
        if state.is_current() {
            return Arc::clone(&state.hooks);
        }
        // Other writes wait for it, on workers.
        let next = work::uninterrupted(|| self.compile(&state));
        let hooks = Arc::clone(&next.hooks);
        self.state.store(Arc::new(next));
        hooks
    }

    /// Whether there are none: the usual case, without counting references.
    pub(super) fn are_none(&self) -> bool {
        let state = self.state.load();
        state.is_current() && state.hooks.is_empty()
    }

    fn compile(&self, before: &CompiledHooks) -> CompiledHooks {
        let (snapshot, cursor) = loop {
            let snapshot = self.store.snapshot(&self.prefix);
            match self.store.watch(&self.prefix, snapshot.revision) {
                Ok(cursor) => break (snapshot, Some(cursor)),
                // The history moved past the snapshot: take a newer one.
                Err(WatchError::Compacted(_)) => {}
                Err(WatchError::Closed) => break (snapshot, None),
            }
        };
        let mut by_key = HashMap::new();
        let mut hooks = Vec::new();
        for entry in snapshot.range(None, None) {
            let known = before.by_key.get(&entry.key);
            let of_entry = match known.filter(|(revision, _)| *revision == entry.revision) {
                Some((_, hooks)) => hooks.clone(),
                None => match json::read(&entry.bytes) {
                    Ok(read) => Hook::all(&read.document, &self.access),
                    Err(error) => {
                        tracing::error!(key = entry.key.as_str(), %error, "a webhook configuration cannot be read");
                        Vec::new()
                    }
                },
            };
            hooks.extend(of_entry.iter().cloned());
            by_key.insert(entry.key.clone(), (entry.revision, of_entry));
        }
        CompiledHooks { cursor, hooks: hooks.into(), by_key }
    }
}
