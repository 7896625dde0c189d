//! Where the index learns of roles and bindings.

use ferrokube_apimachinery::document::Document;
use ferrokube_registry::{Registry, Served, view};
use ferrokube_storage::{Cursor, Entry, Event, Key, Prefix, Store, WatchError};
use futures::FutureExt;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Most events that are taken at once.
const BATCH: usize = 256;

/// The four kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `roles`
    Role,
    /// `clusterroles`
    ClusterRole,
    /// `rolebindings`
    RoleBinding,
    /// `clusterrolebindings`
    ClusterRoleBinding,
}

impl Kind {
    /// All four; roles first, so that a batch's bindings find them.
    pub const ALL: [Self; 4] =
        [Self::Role, Self::ClusterRole, Self::RoleBinding, Self::ClusterRoleBinding];

    /// The plural name.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }
}

/// One change.
pub enum Change {
    /// Forget all of this kind.
    Clear(Kind),
    /// New or changed.
    Put(Kind, Arc<Document>),
    /// New or changed, and not read yet: of so many bytes.
    Unread(Kind, usize, Box<dyn FnOnce() -> Document + Send>),
    /// Gone (namespace empty for cluster scope).
    Remove(Kind, String, String),
}

impl Change {
    /// How much is still to be read.
    pub(super) fn unread_bytes(&self) -> usize {
        if let Self::Unread(_, bytes, _) = self { *bytes } else { 0 }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clear(kind) => f.debug_tuple("Clear").field(kind).finish(),
            Self::Put(kind, document) => f.debug_tuple("Put").field(kind).field(document).finish(),
            Self::Unread(kind, bytes, _) => {
                f.debug_tuple("Unread").field(kind).field(bytes).finish()
            }
            Self::Remove(kind, namespace, name) => {
                f.debug_tuple("Remove").field(kind).field(namespace).field(name).finish()
            }
        }
    }
}

/// A source of changes.
pub trait Feed: Send {
    /// Everything that was published before this call, in order per kind; the first call gives all
    /// there is. Must not block, nor read what may be large.
    fn drain(&mut self, apply: &mut dyn FnMut(Change));
}

/// The feed of a server: cursors into its store's history. Kinds that are not served are empty.
///
/// Not the registry's informer: an authorizer must know, without waiting, that it has seen
/// everything that was published.
pub struct RegistryFeed {
    store: Store,
    sources: Vec<Source>,
}

struct Source {
    kind: Kind,
    served: Served,
    prefix: Prefix,
    /// The last entry of each key. The store holds the same, so its bytes are in memory once.
    known: HashMap<Key, Arc<Entry>>,
    /// `None`: list first.
    cursor: Option<Cursor>,
}

impl RegistryFeed {
    /// Over a registry whose catalog already holds the RBAC kinds.
    pub fn new(registry: &Registry) -> Self {
        let source = |kind: Kind| {
            let served = registry.catalog().find(super::rule::GROUP, "v1", kind.plural())?;
            let prefix = Prefix::new(served.definition.storage_prefix.as_deref()?).ok()?;
            Some(Source { kind, served, prefix, known: HashMap::new(), cursor: None })
        };
        Self {
            store: registry.store().clone(),
            sources: Kind::ALL.into_iter().filter_map(source).collect(),
        }
    }
}

impl Feed for RegistryFeed {
    fn drain(&mut self, apply: &mut dyn FnMut(Change)) {
        for source in &mut self.sources {
            source.drain(&self.store, apply);
        }
    }
}

impl Source {
    fn drain(&mut self, store: &Store, apply: &mut dyn FnMut(Change)) {
        loop {
            let Some(cursor) = &mut self.cursor else {
                self.list(store, apply);
                return;
            };
            if cursor.bookmark().is_some() {
                return;
            }
            match cursor.next(BATCH).now_or_never() {
                Some(Ok(events)) => events.iter().for_each(|event| self.change(event, apply)),
                Some(Err(WatchError::Closed)) => return,
                // The history behind the cursor is gone from memory.
                Some(Err(WatchError::Compacted(_))) => self.cursor = None,
                None if cursor.bookmark().is_some() => return,
                None => self.cursor = None,
            }
        }
    }

    fn list(&mut self, store: &Store, apply: &mut dyn FnMut(Change)) {
        let snapshot = store.snapshot(&self.prefix);
        // When the history moved on past the snapshot meanwhile, the next call lists again.
        self.cursor = store.watch(&self.prefix, snapshot.revision).ok();
        apply(Change::Clear(self.kind));
        self.known.clear();
        for entry in snapshot.range(None, None) {
            self.put(entry, apply);
        }
    }

    fn change(&mut self, event: &Event, apply: &mut dyn FnMut(Change)) {
        let key = &event.entry.key;
        if event.deleted {
            self.known.remove(key);
            apply(Change::Remove(
                self.kind,
                key.namespace().unwrap_or_default().to_owned(),
                key.name().to_owned(),
            ));
        } else {
            self.put(&event.entry, apply);
        }
    }

    /// Skips changes of metadata alone: nobody waits for a label on a binding of thousands.
    fn put(&mut self, entry: &Arc<Entry>, apply: &mut dyn FnMut(Change)) {
        let before = self.known.insert(entry.key.clone(), Arc::clone(entry));
        if before.is_some_and(|before| but_metadata(&before) == but_metadata(entry)) {
            return;
        }
        let (entry, served) = (Arc::clone(entry), self.served.clone());
        apply(Change::Unread(
            self.kind,
            entry.bytes.len(),
            Box::new(move || view(&entry, &served)),
        ));
    }
}

/// The object's bytes before and after its metadata.
fn but_metadata(entry: &Entry) -> [&[u8]; 2] {
    let [_, metadata, _] = entry.sidecar.marks;
    [&entry.bytes[..metadata as usize], &entry.bytes[entry.spliced().end..]]
}
