//! The authorizer over the index.

use super::feed::{Change, Feed, Kind};
use super::index::{Grant, Index};
use super::rule::ResourceQuestion;
use crate::access::{Access, Authorizer, Decision, aggregate};
use arc_swap::ArcSwap;
use ferrokube_registry::UserInfo;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Most unresolvable roles that a denial names.
const MAX_MISSING: usize = 10;

/// The RBAC authorizer. Members of `system:masters` may do everything.
pub struct Rbac {
    index: ArcSwap<Index>,
    /// The head that the index has reached.
    seen: AtomicU64,
    head: Box<dyn Fn() -> u64 + Send + Sync>,
    feed: Mutex<Box<dyn Feed>>,
}

impl Rbac {
    /// Over a feed. `head` is a number that has moved when something may have changed; it is read on every request.
    pub fn new(feed: Box<dyn Feed>, head: Box<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let rbac = Self { index: ArcSwap::default(), seen: AtomicU64::new(0), head, feed: Mutex::new(feed) };
        rbac.refresh();
        rbac
    }

    /// Over a server's registry, whose catalog already holds the RBAC kinds.
    pub fn of(registry: &ferrokube_registry::Registry) -> Self {
        let store = registry.store().clone();
        Self::new(Box::new(super::RegistryFeed::new(registry)), Box::new(move || store.revision().0))
    }

    /// The index, caught up with everything that was acknowledged before this call.
    pub fn index(&self) -> Arc<Index> {
        if self.seen.load(Ordering::Acquire) != (self.head)() {
            self.refresh();
        }
        self.index.load_full()
    }

    fn refresh(&self) {
        let mut feed = self.feed.lock().expect("no panic while held");
        // Read before draining: what is published meanwhile is found by the next request.
        let head = (self.head)();
        let mut changed: Option<Index> = None;
        feed.drain(&mut |change| apply(changed.get_or_insert_with(|| Index::clone(&self.index.load())), change));
        if let Some(index) = changed {
            self.index.store(Arc::new(index));
        }
        self.seen.store(head, Ordering::Release);
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
}

/// The first grant that allows the request.
fn allowed_by<'a>(index: &'a Index, access: &Access<'_>) -> Option<&'a Grant> {
    let found = match &access.resource {
        Some(resource) => {
            let joined = (!resource.subresource.is_empty()).then(|| format!("{}/{}", resource.resource, resource.subresource));
            let question = ResourceQuestion {
                verb: access.verb,
                group: resource.group,
                resource: joined.as_deref().unwrap_or(resource.resource),
                subresource: resource.subresource,
                name: resource.name,
            };
            index.visit(access.user, resource.namespace, |grant, role| stop_if(role.is_some_and(|role| role.allows_resource(&question)), grant))
        }
        None => index.visit(access.user, "", |grant, role| stop_if(role.is_some_and(|role| role.allows_path(access.verb, access.path)), grant)),
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
        Change::Put(Kind::Role | Kind::ClusterRole, document) => index.put_role(&document),
        Change::Put(Kind::RoleBinding | Kind::ClusterRoleBinding, document) => index.put_binding(&document),
        Change::Remove(Kind::Role | Kind::ClusterRole, namespace, name) => index.remove_role(&namespace, &name),
        Change::Remove(Kind::RoleBinding | Kind::ClusterRoleBinding, namespace, name) => index.remove_binding(&namespace, &name),
        Change::Clear(Kind::Role) => index.clear_roles(false),
        Change::Clear(Kind::ClusterRole) => index.clear_roles(true),
        Change::Clear(Kind::RoleBinding) => index.clear_bindings(false),
        Change::Clear(Kind::ClusterRoleBinding) => index.clear_bindings(true),
    }
}
