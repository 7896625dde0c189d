//! The authorizer over the index.

use super::feed::{Change, Feed, Kind};
use super::index::{Grant, Index, MAX_MISSING};
use super::rule::ResourceQuestion;
use crate::access::{Access, Authorizer, CatchUp, Decision, aggregate};
use arc_swap::ArcSwap;
use ferrokube_registry::UserInfo;
use ferrokube_registry::offload::{INLINE_BYTES, aside};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// The RBAC authorizer. Members of `system:masters` may do everything.
pub struct Rbac {
    index: ArcSwap<Index>,
    /// The head that the index has reached.
    seen: AtomicU64,
    head: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Whoever holds it brings the index up to date.
    behind: Mutex<Behind>,
}

/// What the index does not know yet.
struct Behind {
    feed: Box<dyn Feed>,
    /// Taken from the feed, up to a head.
    changes: Vec<Change>,
    head: u64,
    /// A change could not be applied: what the index lacks is not known, so nobody but masters goes
    /// on.
    broken: bool,
}

impl Rbac {
    /// Over a feed. `head` is a number that has grown when something may have changed; it is read
    /// on every request.
    pub fn new(feed: Box<dyn Feed>, head: Box<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let behind = Mutex::new(Behind { feed, changes: Vec::new(), head: 0, broken: false });
        let mut rbac = Self { index: ArcSwap::default(), seen: AtomicU64::new(0), head, behind };
        let mut index = Index::default();
        let behind = rbac.behind.get_mut();
        behind.take((rbac.head)());
        behind.changes.drain(..).for_each(|change| apply(&mut index, change));
        (rbac.index, rbac.seen) = (ArcSwap::from_pointee(index), AtomicU64::new(behind.head));
        rbac
    }

    /// Over a server's registry, whose catalog already holds the RBAC kinds.
    pub fn of(registry: &ferrokube_registry::Registry) -> Self {
        let store = registry.store().clone();
        Self::new(
            Box::new(super::RegistryFeed::new(registry)),
            Box::new(move || store.revision().0),
        )
    }

    /// The index. It knows at least what the last [`Self::caught_up`] waited for, and all that
    /// costs little to know.
    pub fn index(&self) -> Arc<Index> {
        self.is_caught_up();
        self.index.load_full()
    }

    /// Waits until the index knows everything that was acknowledged before this call. What takes
    /// long is read by one who waits, off the workers.
    pub async fn caught_up(&self) {
        if self.is_caught_up() {
            return;
        }
        let wanted = (self.head)();
        let mut behind = self.behind.lock().await;
        if self.seen.load(Ordering::Acquire) < wanted && !self.catch_up_shortly(&mut behind) {
            aside(|| self.apply(&mut behind));
        }
    }

    /// Whether the index knows everything, or could be told at once. Neither waits nor computes for
    /// long.
    fn is_caught_up(&self) -> bool {
        self.seen.load(Ordering::Acquire) >= (self.head)()
            || self.behind.try_lock().is_ok_and(|mut behind| self.catch_up_shortly(&mut behind))
    }

    fn catch_up_shortly(&self, behind: &mut Behind) -> bool {
        assert!(!behind.broken, "the index of roles and bindings is broken");
        // Read before taking: what is published meanwhile is found by the next request.
        behind.take((self.head)());
        let is_short =
            behind.changes.iter().map(Change::unread_bytes).sum::<usize>() <= INLINE_BYTES;
        if is_short {
            self.apply(behind);
        }
        is_short
    }

    fn apply(&self, behind: &mut Behind) {
        if !behind.changes.is_empty() {
            behind.broken = true;
            let mut index = Index::clone(&self.index.load());
            behind.changes.drain(..).for_each(|change| apply(&mut index, change));
            self.index.store(Arc::new(index));
            behind.broken = false;
        }
        self.seen.store(behind.head, Ordering::Release);
    }

    /// Whether the user is above all rules.
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
        if Self::is_master(user) || self.is_caught_up() {
            None
        } else {
            Some(Box::pin(self.caught_up()))
        }
    }
}

impl Behind {
    fn take(&mut self, head: u64) {
        let changes = &mut self.changes;
        self.feed.drain(&mut |change| changes.push(change));
        self.head = head;
    }
}

/// The first grant that allows the request.
fn allowed_by<'a>(index: &'a Index, access: &Access<'a>) -> Option<Grant<'a>> {
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
                stop_if(role.is_some_and(|role| role.allows_resource(&question)), grant)
            })
        }
        None => index.visit(access.user, "", |grant, role| {
            stop_if(role.is_some_and(|role| role.allows_path(access.verb, access.path)), grant)
        }),
    };
    match found {
        ControlFlow::Break(grant) => Some(grant),
        ControlFlow::Continue(()) => None,
    }
}

fn stop_if<T>(stop: bool, with: T) -> ControlFlow<T> {
    if stop { ControlFlow::Break(with) } else { ControlFlow::Continue(()) }
}

/// What upstream says of a denial: nothing, or which roles do not exist.
fn missing(index: &Index, access: &Access<'_>) -> String {
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

fn apply(index: &mut Index, change: Change) {
    match change {
        Change::Unread(kind, _, read) => apply(index, Change::Put(kind, Arc::new(read()))),
        Change::Put(Kind::Role | Kind::ClusterRole, document) => index.put_role(&document),
        Change::Put(Kind::RoleBinding | Kind::ClusterRoleBinding, document) => {
            index.put_binding(&document)
        }
        Change::Remove(Kind::Role | Kind::ClusterRole, namespace, name) => {
            index.remove_role(&namespace, &name)
        }
        Change::Remove(Kind::RoleBinding | Kind::ClusterRoleBinding, namespace, name) => {
            index.remove_binding(&namespace, &name)
        }
        Change::Clear(Kind::Role) => index.clear_roles(false),
        Change::Clear(Kind::ClusterRole) => index.clear_roles(true),
        Change::Clear(Kind::RoleBinding) => index.clear_bindings(false),
        Change::Clear(Kind::ClusterRoleBinding) => index.clear_bindings(true),
    }
}
