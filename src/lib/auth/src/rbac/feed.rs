//! Where the index learns of roles and bindings.

use ferrokube_apimachinery::document::Document;
use ferrokube_registry::{Informer, Notice, Registry};
use std::sync::Arc;

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
    pub const ALL: [Self; 4] = [Self::Role, Self::ClusterRole, Self::RoleBinding, Self::ClusterRoleBinding];

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
#[derive(Clone, Debug)]
pub enum Change {
    /// Forget all of this kind.
    Clear(Kind),
    /// New or changed.
    Put(Kind, Arc<Document>),
    /// Gone (namespace empty for cluster scope).
    Remove(Kind, String, String),
}

/// A source of changes.
pub trait Feed: Send {
    /// Everything that was published before this call, in order per kind; the first call gives all there is. Must not block.
    fn drain(&mut self, apply: &mut dyn FnMut(Change));
}

/// The feed of a server: informers over its registry. Kinds that are not served are empty.
pub struct RegistryFeed {
    informers: Vec<(Kind, Informer)>,
    started: bool,
}

impl RegistryFeed {
    /// Over a registry whose catalog already holds the RBAC kinds.
    pub fn new(registry: &Registry) -> Self {
        let informer = |kind: Kind| Informer::new(registry, super::rule::GROUP, "v1", kind.plural()).map(|informer| (kind, informer));
        let informers = Kind::ALL.into_iter().filter_map(informer).collect();
        Self { informers, started: false }
    }
}

impl Feed for RegistryFeed {
    fn drain(&mut self, apply: &mut dyn FnMut(Change)) {
        for (kind, informer) in &mut self.informers {
            if !self.started {
                informer.snapshot().into_iter().for_each(|(_, document)| apply(Change::Put(*kind, document)));
            }
            // The notices of published revisions are there without waiting, so that one poll decides.
            while let Some(Some(notices)) = futures::FutureExt::now_or_never(informer.next()) {
                notices.into_iter().for_each(|notice| translate(*kind, notice, apply));
            }
        }
        self.started = true;
    }
}

fn translate(kind: Kind, notice: Notice, apply: &mut dyn FnMut(Change)) {
    match notice {
        Notice::Replaced(all) => {
            apply(Change::Clear(kind));
            all.into_iter().for_each(|(_, document)| apply(Change::Put(kind, document)));
        }
        Notice::Changed(_, document) => apply(Change::Put(kind, document)),
        Notice::Removed(key) => apply(Change::Remove(kind, key.namespace().unwrap_or_default().to_owned(), key.name().to_owned())),
    }
}
