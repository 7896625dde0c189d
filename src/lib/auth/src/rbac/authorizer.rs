//! The RBAC authorizer and how its index catches up with the store.

use super::feed::{Feed, RbacChange, RbacKind};
use super::index::{Grant, MAX_MISSING, RbacIndex};
use super::rule::ResourceQuestion;
use crate::access::{Access, Authorizer, CatchUp, Decision, aggregate};
use arc_swap::ArcSwap;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::Catalog;
use ferrokube_registry::offload::{INLINE_BYTES, block_in_place};
use ferrokube_storage::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// The RBAC authorizer. Members of `system:masters` may do everything.
pub struct Rbac {
    index: ArcSwap<RbacIndex>,
    /// The revision that the index reflects.
    indexed: AtomicU64,
    head: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Locked by the caller that brings the index up to date.
    behind: Mutex<PendingChanges>,
}

/// Changes that the index does not reflect yet.
struct PendingChanges {
    feed: Box<dyn Feed>,
    /// Drained from the feed up to `head`.
    changes: Vec<RbacChange>,
    head: u64,
    /// Applying a change panicked: the index is incomplete, so every later request of a non-master
    /// panics, too.
    broken: bool,
}

impl Rbac {
    /// `head` grows whenever something may have changed; it is read on every request.
    pub fn new(feed: Box<dyn Feed>, head: Box<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let behind =
            Mutex::new(PendingChanges { feed, changes: Vec::new(), head: 0, broken: false });
        let mut rbac = Self { index: ArcSwap::default(), indexed: AtomicU64::new(0), head, behind };
        let mut index = RbacIndex::default();
        let behind = rbac.behind.get_mut();
        behind.take((rbac.head)());
        behind.changes.drain(..).for_each(|change| apply(&mut index, change));
        (rbac.index, rbac.indexed) = (ArcSwap::from_pointee(index), AtomicU64::new(behind.head));
        rbac
    }

    /// Follows a server's store, whose catalog already contains the RBAC kinds.
    pub fn of(store: &Store, catalog: &Catalog) -> Self {
        let feed = super::StoreFeed::new(store, catalog);
        let store = store.clone();
        Self::new(Box::new(feed), Box::new(move || store.revision().0))
    }

    /// The index, at least as new as the last [`Self::caught_up`]; cheap changes since then are
    /// applied first.
    pub fn index(&self) -> Arc<RbacIndex> {
        self.is_current();
        self.index.load_full()
    }

    /// Waits until the index reflects every write acknowledged before this call. One of the waiting
    /// callers parses large changes, off the async workers.
    pub async fn caught_up(&self) {
        if self.is_current() {
            return;
        }
        let wanted = (self.head)();
        let mut behind = self.behind.lock().await;
        if self.indexed.load(Ordering::Acquire) < wanted && !self.catch_up_inline(&mut behind) {
            block_in_place(|| self.apply(&mut behind));
        }
    }

    /// Whether the index is current, after applying pending changes if they are small and the lock
    /// is free. Never blocks or computes for long.
    fn is_current(&self) -> bool {
        self.indexed.load(Ordering::Acquire) >= (self.head)()
            || self.behind.try_lock().is_ok_and(|mut behind| self.catch_up_inline(&mut behind))
    }

    fn catch_up_inline(&self, behind: &mut PendingChanges) -> bool {
        assert!(!behind.broken, "the index of roles and bindings is broken");
        // Read before draining: a later change is found by the next request.
        behind.take((self.head)());
        let is_short = behind.changes.iter().map(RbacChange::bytes).sum::<usize>() <= INLINE_BYTES;
        if is_short {
            self.apply(behind);
        }
        is_short
    }

    fn apply(&self, behind: &mut PendingChanges) {
        if !behind.changes.is_empty() {
            behind.broken = true;
            let mut index = RbacIndex::clone(&self.index.load());
            behind.changes.drain(..).for_each(|change| apply(&mut index, change));
            self.index.store(Arc::new(index));
            behind.broken = false;
        }
        self.indexed.store(behind.head, Ordering::Release);
    }

    /// Whether the user is a member of `system:masters`, which bypasses RBAC.
    pub fn is_master(user: &UserInfo) -> bool {
        user.groups.iter().any(|group| group == "system:masters")
    }
}

impl Authorizer for Rbac {
    fn authorize(&self, access: &Access<'_>) -> Decision {
        if Self::is_master(access.user) {
            return Decision::Allow(String::new());
        }
        let index = self.index();
        match allowed_by(&index, access) {
            Some(grant) => Decision::Allow(grant.reason()),
            None => Decision::NoOpinion(missing(&index, access)),
        }
    }

    fn catch_up<'a>(&'a self, user: &UserInfo) -> Option<CatchUp<'a>> {
        if Self::is_master(user) || self.is_current() {
            None
        } else {
            Some(Box::pin(self.caught_up()))
        }
    }
}

impl PendingChanges {
    fn take(&mut self, head: u64) {
        let changes = &mut self.changes;
        self.feed.drain(&mut |change| changes.push(change));
        self.head = head;
    }
}

/// The first grant that allows the request.
fn allowed_by<'a>(index: &'a RbacIndex, access: &Access<'a>) -> Option<Grant<'a>> {
    let found = match &access.resource {
        Some(resource) => {
            let joined = (!resource.subresource.is_empty())
                .then(|| format!("{}/{}", resource.resource, resource.subresource));
            let question = ResourceQuestion {
                verb: access.verb,
                group: resource.group,
                resource: joined.as_deref().unwrap_or(resource.resource),
                subresource: resource.subresource,
                name: resource.name,
            };
            index.visit(access.user, resource.namespace, |grant, role| {
                break_if(role.is_some_and(|role| role.allows_resource(&question)), grant)
            })
        }
        None => index.visit(access.user, "", |grant, role| {
            break_if(role.is_some_and(|role| role.allows_path(access.verb, access.path)), grant)
        }),
    };
    match found {
        ControlFlow::Break(grant) => Some(grant),
        ControlFlow::Continue(()) => None,
    }
}

fn break_if<T>(stop: bool, with: T) -> ControlFlow<T> {
    if stop { ControlFlow::Break(with) } else { ControlFlow::Continue(()) }
}

/// kube-apiserver's reason for a denial: empty, or the bound roles that do not exist.
fn missing(index: &RbacIndex, access: &Access<'_>) -> String {
    let namespace = access.resource.map_or("", |resource| resource.namespace);
    let mut missing = Vec::new();
    let _: ControlFlow<()> = index.visit(access.user, namespace, |grant, role| {
        if role.is_none() && missing.len() < MAX_MISSING {
            missing.push(grant.missing());
        }
        ControlFlow::Continue(())
    });
    if missing.is_empty() { String::new() } else { format!("RBAC: {}", aggregate(&missing)) }
}

fn apply(index: &mut RbacIndex, change: RbacChange) {
    match change {
        RbacChange::Unread(kind, _, read) => apply(index, RbacChange::Put(kind, Arc::new(read()))),
        RbacChange::Put(RbacKind::Role | RbacKind::ClusterRole, document) => {
            index.put_role(&document)
        }
        RbacChange::Put(RbacKind::RoleBinding | RbacKind::ClusterRoleBinding, document) => {
            index.put_binding(&document)
        }
        RbacChange::Remove(RbacKind::Role | RbacKind::ClusterRole, namespace, name, _) => {
            index.remove_role(&namespace, &name)
        }
        RbacChange::Remove(
            RbacKind::RoleBinding | RbacKind::ClusterRoleBinding,
            namespace,
            name,
            _,
        ) => index.remove_binding(&namespace, &name),
        RbacChange::Clear(RbacKind::Role, _) => index.clear_roles(false),
        RbacChange::Clear(RbacKind::ClusterRole, _) => index.clear_roles(true),
        RbacChange::Clear(RbacKind::RoleBinding, _) => index.clear_bindings(false),
        RbacChange::Clear(RbacKind::ClusterRoleBinding, _) => index.clear_bindings(true),
    }
}
