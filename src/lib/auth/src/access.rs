//! Authorization: one decision per request, on the same typed request that reaches the store.

use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_apimachinery::user::UserInfo;
use std::pin::Pin;

/// A request to authorize.
#[derive(Clone, Debug)]
pub struct Access<'a> {
    /// The user, after impersonation.
    pub user: &'a UserInfo,
    /// `get`, `list`, `create`, `impersonate`, ...
    pub verb: &'a str,
    /// The resource; `None` for a non-resource request, which has a `path`.
    pub resource: Option<ResourceAccess<'a>>,
    /// The non-resource path; empty with a resource.
    pub path: &'a str,
}

impl Access<'_> {
    /// The namespace whose roles decide; empty for the cluster's.
    pub fn namespace(&self) -> &str {
        self.resource.as_ref().map_or("", |resource| resource.namespace)
    }
}

/// The resource attributes of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceAccess<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// API version, such as `v1`.
    pub version: &'a str,
    /// Plural name, such as `configmaps`.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for cluster scope and across namespaces. For `namespaces/x` (and its subresources) it
    /// is `x`, so that a role inside the namespace covers it.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
}

/// An authorizer's decision. Reasons are shown to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed, for this reason; later authorizers are not consulted.
    Allow(String),
    /// Denied; later authorizers are not consulted.
    Deny(String),
    /// Left to the next authorizer; denied if there is none.
    NoOpinion(String),
}

impl Decision {
    /// Whether this is [`Decision::Allow`].
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// Why; often empty.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow(reason) | Self::Deny(reason) | Self::NoOpinion(reason) => reason,
        }
    }
}

/// Consults authorizers in order; the first opinion counts.
pub struct Union(pub Vec<std::sync::Arc<dyn Authorizer>>);

impl Authorizer for Union {
    fn catch_up<'a>(&'a self, user: &UserInfo, scope: RightsScope<'_>) -> Option<CatchUp<'a>> {
        all(self.0.iter().map(|authorizer| authorizer.catch_up(user, scope)))
    }

    fn authorize(&self, access: &Access<'_>) -> Decision {
        let mut reasons: Vec<String> = Vec::new();
        for authorizer in &self.0 {
            match authorizer.authorize(access) {
                Decision::NoOpinion(reason) if reason.is_empty() => {}
                Decision::NoOpinion(reason) => reasons.push(reason),
                opinion => return opinion,
            }
        }
        Decision::NoOpinion(reasons.join(", "))
    }
}

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of [`ANONYMOUS`].
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of every authenticated user.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Paths that every client may read without credentials.
pub const OPEN_PATHS: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Whether this is the anonymous user or a member of its group, by missing credentials, by
/// impersonation or by a front proxy's headers.
pub fn is_anonymous(user: &UserInfo) -> bool {
    user.name == ANONYMOUS || user.groups.iter().any(|group| group == UNAUTHENTICATED)
}

/// Adds [`AUTHENTICATED`] once, and not to anonymous users, as kube-apiserver does.
pub fn add_authenticated(user: &mut UserInfo) {
    if !is_anonymous(user) && !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
}

/// Limits anonymous users to reading the open paths, regardless of bindings; they may not
/// impersonate either.
///
/// It wraps the whole authorizer, so that requests, impersonation checks and access reviews agree.
/// kube-apiserver leaves this to the bindings; an accidental binding to `system:unauthenticated` is
/// how clusters are lost.
pub struct AnonymousLock(pub std::sync::Arc<dyn Authorizer>);

impl Authorizer for AnonymousLock {
    fn catch_up<'a>(&'a self, user: &UserInfo, scope: RightsScope<'_>) -> Option<CatchUp<'a>> {
        if is_anonymous(user) { None } else { self.0.catch_up(user, scope) }
    }

    fn authorize(&self, access: &Access<'_>) -> Decision {
        let is_open = || {
            access.resource.is_none() && access.verb == "get" && OPEN_PATHS.contains(&access.path)
        };
        if is_anonymous(access.user) && !is_open() {
            return Decision::NoOpinion(String::new());
        }
        self.0.authorize(access)
    }
}

/// The 403 of a denied request, with kube-apiserver's message. Client input is escaped, so that
/// browsers do not interpret it as HTML.
pub fn forbidden(access: &Access<'_>, reason: &str) -> Failure {
    let suffix = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let (user, verb) = (quote(&access.user.name), access.verb);
    let Some(resource) = &access.resource else {
        let why = escaped(&format!("User {user} cannot {verb} path {}", quote(access.path)));
        return Failure::new(Reason::Forbidden, format!("forbidden: {why}{suffix}"))
            .with_details(Details::default());
    };
    let slash = if resource.subresource.is_empty() { "" } else { "/" };
    let place = if resource.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {}", quote(resource.namespace))
    };
    let what = quote(&[resource.resource, slash, resource.subresource].concat());
    let group = quote(resource.group);
    let why =
        escaped(&format!("User {user} cannot {verb} resource {what} in API group {group} {place}"));
    let resource_name = GroupResource::new(resource.group, resource.resource);
    Failure::forbidden(&resource_name, resource.name, &(why + &suffix))
}

/// Escapes `&`, `<` and `>` for HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Joins errors as kube-apiserver does: duplicates once, in brackets when there are several.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for error in errors {
        if !seen.contains(&error.as_str()) {
            seen.push(error);
        }
    }
    if seen.len() == 1 { seen.concat() } else { format!("[{}]", seen.join(", ")) }
}

/// Resolves when an authorizer has caught up.
pub type CatchUp<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The rights that a decision depends on. It waits for pending changes to these and to cluster-wide
/// rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RightsScope<'a> {
    /// One namespace; if empty, the cluster alone.
    Namespace(&'a str),
    /// Any of them.
    Everywhere,
}

/// All of them, in order.
pub fn all<'a>(waits: impl Iterator<Item = Option<CatchUp<'a>>>) -> Option<CatchUp<'a>> {
    let mut waits: Vec<CatchUp<'a>> = waits.flatten().collect();
    let first = waits.pop()?;
    Some(Box::pin(async move {
        first.await;
        for wait in waits {
            wait.await;
        }
    }))
}

/// Decides synchronously, on every request.
pub trait Authorizer: Send + Sync {
    /// Decides without waiting, on the state that the last [`Self::catch_up`] reached or a later
    /// one.
    fn authorize(&self, access: &Access<'_>) -> Decision;

    /// Await this before a decision in this scope that must reflect every write acknowledged before
    /// this call; `None` if it already does. The request chain awaits it for every request; long
    /// work runs off the async workers, on behalf of one of the waiting requests.
    fn catch_up<'a>(&'a self, _user: &UserInfo, _scope: RightsScope<'_>) -> Option<CatchUp<'a>> {
        None
    }
}

/// Allows everything to `system:masters` and nothing to others. Used until RBAC is configured.
#[derive(Debug)]
pub struct MastersOnly;

impl Authorizer for MastersOnly {
    fn authorize(&self, access: &Access<'_>) -> Decision {
        if access.user.groups.iter().any(|group| group == "system:masters") {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// Denies everything, for tests.
#[derive(Debug)]
pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize(&self, _access: &Access<'_>) -> Decision {
        Decision::Deny("always denied".into())
    }
}
