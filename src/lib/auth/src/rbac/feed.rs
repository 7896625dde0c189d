//! The source of role and binding changes for the index.

use ferrokube_apimachinery::document::Document;
use ferrokube_registry::{Catalog, Served, view};
use ferrokube_storage::{Cursor, Entry, Event, Key, Prefix, Store, WatchError};
use futures::FutureExt;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Max events per read.
const BATCH: usize = 256;

/// Kinds from which the index is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RbacKind {
    /// `roles`
    Role,
    /// `clusterroles`
    ClusterRole,
    /// `rolebindings`
    RoleBinding,
    /// `clusterrolebindings`
    ClusterRoleBinding,
}

impl RbacKind {
    /// Roles first, so that the bindings of a batch find them.
    pub const ALL: [Self; 4] =
        [Self::Role, Self::ClusterRole, Self::RoleBinding, Self::ClusterRoleBinding];

    /// Plural resource name.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Role => "roles",
            Self::ClusterRole => "clusterroles",
            Self::RoleBinding => "rolebindings",
            Self::ClusterRoleBinding => "clusterrolebindings",
        }
    }

    /// Whether its objects are in no namespace.
    pub(super) fn is_cluster(self) -> bool {
        matches!(self, Self::ClusterRole | Self::ClusterRoleBinding)
    }

    /// Whether it is a role, and not a binding.
    pub(super) fn is_role(self) -> bool {
        matches!(self, Self::Role | Self::ClusterRole)
    }
}

/// A change to roles or bindings.
pub enum RbacChange {
    /// Removes all of this kind; with their size in bytes.
    Clear(RbacKind, usize),
    /// Created or updated.
    Put(RbacKind, Arc<Document>),
    /// Created or updated, not parsed yet.
    Unread {
        /// The object's kind.
        kind: RbacKind,
        /// Empty for cluster scope.
        namespace: String,
        /// The object's name.
        name: String,
        /// Sum of the sizes before and after.
        bytes: usize,
        /// Parses it.
        read: Box<dyn FnOnce() -> Document + Send>,
    },
    /// Deleted: namespace (empty for cluster scope) and name; with its size in bytes.
    Remove(RbacKind, String, String, usize),
}

impl RbacChange {
    /// Bytes that are still to be parsed, or to be taken out of the index.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Unread { bytes, .. } | Self::Clear(_, bytes) | Self::Remove(.., bytes) => *bytes,
            Self::Put(..) => 0,
        }
    }

    pub(super) fn kind(&self) -> RbacKind {
        match self {
            Self::Clear(kind, _)
            | Self::Put(kind, _)
            | Self::Unread { kind, .. }
            | Self::Remove(kind, ..) => *kind,
        }
    }

    /// Empty for cluster scope.
    pub(super) fn namespace(&self) -> &str {
        match self {
            Self::Clear(..) => "",
            Self::Put(_, document) => document.namespace(),
            Self::Unread { namespace, .. } | Self::Remove(_, namespace, ..) => namespace,
        }
    }

    /// Empty for all of a kind.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Clear(..) => "",
            Self::Put(_, document) => document.name(),
            Self::Unread { name, .. } | Self::Remove(_, _, name, _) => name,
        }
    }
}

impl fmt::Debug for RbacChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clear(kind, bytes) => f.debug_tuple("Clear").field(kind).field(bytes).finish(),
            Self::Put(kind, document) => f.debug_tuple("Put").field(kind).field(document).finish(),
            Self::Unread { kind, namespace, name, bytes, .. } => f
                .debug_tuple("Unread")
                .field(kind)
                .field(namespace)
                .field(name)
                .field(bytes)
                .finish(),
            Self::Remove(kind, namespace, name, bytes) => f
                .debug_tuple("Remove")
                .field(kind)
                .field(namespace)
                .field(name)
                .field(bytes)
                .finish(),
        }
    }
}

/// Yields changes of roles and bindings.
pub trait Feed: Send {
    /// Passes on everything published before this call, in order per kind; the first call passes
    /// all existing objects. Must not block or parse large objects.
    fn drain(&mut self, apply: &mut dyn FnMut(RbacChange));
}

/// A server's feed: cursors over its store's history. Kinds that are not served stay empty.
///
/// The registry's informer would not do: an authorizer must know, without waiting, that it has seen
/// everything published.
pub struct StoreFeed {
    store: Store,
    sources: Vec<KindSource>,
}

struct KindSource {
    kind: RbacKind,
    served: Served,
    prefix: Prefix,
    /// The last entry of each key. The store holds the same `Arc`, so its bytes are in memory once.
    known: HashMap<Key, Arc<Entry>>,
    /// `None`: list first.
    cursor: Option<Cursor>,
}

impl StoreFeed {
    /// For a catalog that already contains the RBAC kinds.
    pub fn new(store: &Store, catalog: &Catalog) -> Self {
        let source = |kind: RbacKind| {
            let served = catalog.find(super::rule::GROUP, "v1", kind.plural())?;
            let prefix = Prefix::new(served.definition.storage_prefix.as_deref()?).ok()?;
            Some(KindSource { kind, served, prefix, known: HashMap::new(), cursor: None })
        };
        Self {
            store: store.clone(),
            sources: RbacKind::ALL.into_iter().filter_map(source).collect(),
        }
    }
}

impl Feed for StoreFeed {
    fn drain(&mut self, apply: &mut dyn FnMut(RbacChange)) {
        for source in &mut self.sources {
            source.drain(&self.store, apply);
        }
    }
}

impl KindSource {
    fn drain(&mut self, store: &Store, apply: &mut dyn FnMut(RbacChange)) {
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
                // The cursor fell out of the in-memory history.
                Some(Err(WatchError::Compacted(_))) => self.cursor = None,
                None if cursor.bookmark().is_some() => return,
                None => self.cursor = None,
            }
        }
    }

    fn list(&mut self, store: &Store, apply: &mut dyn FnMut(RbacChange)) {
        let snapshot = store.snapshot(&self.prefix);
        // If the history has moved past the snapshot, the next call lists again.
        self.cursor = store.watch(&self.prefix, snapshot.revision).ok();
        let bytes = self.known.values().map(|entry| entry.bytes.len()).sum();
        apply(RbacChange::Clear(self.kind, bytes));
        self.known.clear();
        for entry in snapshot.range(None, None) {
            self.put(entry, apply);
        }
    }

    fn change(&mut self, event: &Event, apply: &mut dyn FnMut(RbacChange)) {
        let key = &event.entry.key;
        if event.deleted {
            let known = self.known.remove(key);
            apply(RbacChange::Remove(
                self.kind,
                key.namespace().unwrap_or_default().to_owned(),
                key.name().to_owned(),
                known.map_or(0, |known| known.bytes.len()),
            ));
        } else {
            self.put(&event.entry, apply);
        }
    }

    /// Skips changes of metadata alone: relabeling a binding with thousands of subjects costs
    /// nothing.
    fn put(&mut self, entry: &Arc<Entry>, apply: &mut dyn FnMut(RbacChange)) {
        let before = self.known.insert(entry.key.clone(), Arc::clone(entry));
        if before.as_ref().is_some_and(|before| but_metadata(before) == but_metadata(entry)) {
            return;
        }
        let bytes = before.map_or(0, |before| before.bytes.len()) + entry.bytes.len();
        let (entry, served) = (Arc::clone(entry), self.served.clone());
        apply(RbacChange::Unread {
            kind: self.kind,
            namespace: entry.key.namespace().unwrap_or_default().to_owned(),
            name: entry.key.name().to_owned(),
            bytes,
            read: Box::new(move || view(&entry, &served)),
        });
    }
}

/// The object's bytes before and after `metadata`.
fn but_metadata(entry: &Entry) -> [&[u8]; 2] {
    let [_, metadata, _] = entry.sidecar.marks;
    [&entry.bytes[..metadata as usize], &entry.bytes[entry.spliced().end..]]
}
