//! The RBAC authorizer and how its index catches up with the store.

use super::decision::TooManyRoles;
use super::feed::{Feed, RbacChange};
use super::index::{Grant, MAX_MISSING, RbacView};
use super::part::RbacPart;
use super::rule::ResourceQuestion;
use crate::access::{Access, Authorizer, CatchUp, Decision, RightsScope, aggregate};
use arc_swap::ArcSwap;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::Catalog;
use ferrokube_storage::Store;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

/// The RBAC authorizer. Members of `system:masters` may do everything.
///
/// A question reads the roles and bindings of the cluster and those of its own namespace, and waits
/// for their changes only: rewriting large bindings in a namespace delays that namespace alone.
pub struct Rbac {
    cluster: RbacPart,
    /// By namespace; only such that have roles or bindings. Changed under the feed's lock.
    namespaces: ArcSwap<NamespaceParts>,
    head: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The revision up to which changes are queued in the parts.
    drained: AtomicU64,
    /// Locked while changes are queued, never while they are parsed.
    feed: Mutex<Box<dyn Feed>>,
}

type NamespaceParts = imbl::HashMap<Arc<str>, Arc<RbacPart>>;

/// At this number of namespaces, and each power of two after it, those without roles and bindings
/// are dropped.
const SWEPT: usize = 64;

impl Rbac {
    /// `head` grows whenever something may have changed; it is read on every request.
    pub fn new(feed: Box<dyn Feed>, head: Box<dyn Fn() -> u64 + Send + Sync>) -> Self {
        let rbac = Self {
            cluster: RbacPart::default(),
            namespaces: ArcSwap::default(),
            head,
            drained: AtomicU64::new(0),
            feed: Mutex::new(feed),
        };
        if let Ok(mut feed) = rbac.feed.try_lock() {
            rbac.drain(&mut feed);
        }
        rbac.cluster.apply_all();
        rbac.namespaces.load().values().for_each(|part| part.apply_all());
        rbac
    }

    /// Follows a server's store, whose catalog already contains the RBAC kinds.
    pub fn of(store: &Store, catalog: &Catalog) -> Self {
        let feed = super::StoreFeed::new(store, catalog);
        let store = store.clone();
        Self::new(Box::new(feed), Box::new(move || store.revision().0))
    }

    /// The view of a namespace (empty: the cluster), at least as new as the last
    /// [`Self::caught_up`] there; cheap later changes are applied first.
    pub fn view(&self, namespace: &str) -> RbacView {
        self.is_current(RightsScope::Namespace(namespace));
        let own = self.part(namespace).map(|part| part.index());
        RbacView { cluster: self.cluster.index(), own }
    }

    /// Waits until the index reflects every write acknowledged before this call.
    pub async fn caught_up(&self, scope: RightsScope<'_>) {
        let wanted = (self.head)();
        if self.drained.load(Ordering::Acquire) < wanted {
            let mut feed = self.feed.lock().await;
            if self.drained.load(Ordering::Acquire) < wanted {
                self.drain(&mut feed);
            }
        }
        self.cluster.caught_up().await;
        for part in self.parts(scope) {
            part.caught_up().await;
        }
    }

    /// Whether the index is current, after applying pending changes if they are small and the locks
    /// are free. Never blocks or computes for long.
    fn is_current(&self, scope: RightsScope<'_>) -> bool {
        if self.drained.load(Ordering::Acquire) < (self.head)() {
            let Ok(mut feed) = self.feed.try_lock() else { return false };
            self.drain(&mut feed);
        }
        let own = match scope {
            RightsScope::Namespace(name) => self.part(name).is_none_or(|part| part.is_current()),
            RightsScope::Everywhere => self.parts(scope).iter().all(|part| part.is_current()),
        };
        self.cluster.is_current() && own
    }

    fn part(&self, namespace: &str) -> Option<Arc<RbacPart>> {
        if namespace.is_empty() { None } else { self.namespaces.load().get(namespace).cloned() }
    }

    fn parts(&self, scope: RightsScope<'_>) -> Vec<Arc<RbacPart>> {
        match scope {
            RightsScope::Namespace(namespace) => self.part(namespace).into_iter().collect(),
            RightsScope::Everywhere => self.namespaces.load().values().cloned().collect(),
        }
    }

    /// Queues the feed's changes without parsing them.
    fn drain(&self, feed: &mut Box<dyn Feed>) {
        // Read before draining: a later change is found by the next request.
        let head = (self.head)();
        feed.drain(&mut |change| self.queue(change));
        self.drained.store(head, Ordering::Release);
    }

    fn queue(&self, change: RbacChange) {
        match change {
            RbacChange::Clear(kind, bytes) if kind.is_cluster() => self.cluster.clear(kind, bytes),
            RbacChange::Clear(kind, bytes) => {
                self.namespaces.load().values().for_each(|part| part.clear(kind, bytes))
            }
            change if change.kind().is_cluster() => self.cluster.push("", change),
            change => {
                let namespace = change.namespace().to_owned();
                let part = self.part(&namespace).unwrap_or_else(|| self.add(&namespace));
                part.push(&namespace, change);
            }
        }
    }

    fn add(&self, namespace: &str) -> Arc<RbacPart> {
        let mut parts = NamespaceParts::clone(&self.namespaces.load());
        if parts.len() >= SWEPT && parts.len().is_power_of_two() {
            parts.retain(|_, part| !part.is_unused());
        }
        let part = Arc::<RbacPart>::default();
        parts.insert(namespace.into(), Arc::clone(&part));
        self.namespaces.store(Arc::new(parts));
        part
    }

    #[cfg(test)]
    pub(super) fn parts_in_memory(&self) -> usize {
        self.namespaces.load().len()
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
        let view = self.view(access.namespace());
        match allowed_by(&view, access) {
            Ok(Some(grant)) => Decision::Allow(grant.reason()),
            Ok(None) => Decision::NoOpinion(missing(&view, access)),
            Err(TooManyRoles) => Decision::NoOpinion(
                "RBAC: more roles are bound to the user in the namespace than can be compared"
                    .to_owned(),
            ),
        }
    }

    fn catch_up<'a>(&'a self, user: &UserInfo, scope: RightsScope<'_>) -> Option<CatchUp<'a>> {
        if Self::is_master(user) || self.is_current(scope) {
            return None;
        }
        match scope {
            RightsScope::Everywhere => Some(Box::pin(self.caught_up(RightsScope::Everywhere))),
            RightsScope::Namespace(namespace) => {
                let namespace = namespace.to_owned();
                Some(Box::pin(async move {
                    self.caught_up(RightsScope::Namespace(&namespace)).await;
                }))
            }
        }
    }
}

/// The first grant that allows the request.
fn allowed_by<'a>(
    view: &'a RbacView,
    access: &Access<'a>,
) -> Result<Option<Grant<'a>>, TooManyRoles> {
    let Some(resource) = &access.resource else {
        return view.find(access.user, |role| role.allows_path(access.verb, access.path));
    };
    let joined = (!resource.subresource.is_empty())
        .then(|| format!("{}/{}", resource.resource, resource.subresource));
    let question = ResourceQuestion {
        verb: access.verb,
        group: resource.group,
        resource: joined.as_deref().unwrap_or(resource.resource),
        subresource: resource.subresource,
        name: resource.name,
    };
    view.find(access.user, |role| role.allows_resource(&question))
}

/// kube-apiserver's reason for a denial: empty, or the bound roles that do not exist.
fn missing(view: &RbacView, access: &Access<'_>) -> String {
    let mut missing = Vec::new();
    let _: ControlFlow<()> = view.visit(access.user, |grant, role| {
        if role.is_none() && missing.len() < MAX_MISSING {
            missing.push(grant.missing());
        }
        ControlFlow::Continue(())
    });
    if missing.is_empty() { String::new() } else { format!("RBAC: {}", aggregate(&missing)) }
}
