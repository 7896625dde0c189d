//! The authorization seam: one question, asked once per request, from the same typed request that
//! reaches the store.

use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_registry::UserInfo;
use std::pin::Pin;

/// May this user do this?
#[derive(Clone, Debug)]
pub struct Access<'a> {
    /// Who.
    pub user: &'a UserInfo,
    /// `get`, `list`, `create`, `impersonate`, ...
    pub verb: &'a str,
    /// On what: a resource, or else `path`.
    pub resource: Option<ResourceAccess<'a>>,
    /// The non-resource path.
    pub path: &'a str,
}

/// A resource, as authorization sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceAccess<'a> {
    /// The group.
    pub group: &'a str,
    /// The version.
    pub version: &'a str,
    /// The plural name.
    pub resource: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// Empty for cluster scope and across namespaces. For `namespaces/x` (and its subresources) it
    /// is `x`, so that a role inside the namespace covers it.
    pub namespace: &'a str,
    /// Empty for collections.
    pub name: &'a str,
}

/// The answer; reasons are for people and safe to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allow(String),
    /// No, and nobody else is asked.
    Deny(String),
    /// Not by this authorizer.
    NoOpinion(String),
}

impl Decision {
    /// Whether it is a yes.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// The reason; often empty.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow(reason) | Self::Deny(reason) | Self::NoOpinion(reason) => reason,
        }
    }
}

/// Asks authorizers in order; the first opinion counts.
pub struct Union(pub Vec<std::sync::Arc<dyn Authorizer>>);

impl Authorizer for Union {
    fn catch_up<'a>(&'a self, user: &UserInfo) -> Option<CatchUp<'a>> {
        let mut waits: Vec<CatchUp<'a>> =
            self.0.iter().filter_map(|authorizer| authorizer.catch_up(user)).collect();
        let first = waits.pop()?;
        Some(Box::pin(async move {
            first.await;
            for wait in waits {
                wait.await;
            }
        }))
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
/// Its group.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of all others.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Paths that every client may read, also without credentials (design section 8).
pub const OPEN_PATHS: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];

/// Whether nobody known acts: the anonymous user or a member of its group, however that came about
/// (no credentials, impersonation, a front proxy's headers).
pub fn is_anonymous(user: &UserInfo) -> bool {
    user.name == ANONYMOUS || user.groups.iter().any(|group| group == UNAUTHENTICATED)
}

/// Adds the group of those who are known, as upstream: once, and never to nobody.
pub fn add_authenticated(user: &mut UserInfo) {
    if !is_anonymous(user) && !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
}

/// Whatever the bindings say, nobody known may read the open paths and do nothing else,
/// impersonation included.
///
/// It stands before the whole authorizer, so that a request, the check of an impersonation and an
/// access review get the same answer. Upstream leaves this to the bindings; one to
/// `system:unauthenticated` by mistake is how clusters are lost.
pub struct AnonymousLock(pub std::sync::Arc<dyn Authorizer>);

impl Authorizer for AnonymousLock {
    fn catch_up<'a>(&'a self, user: &UserInfo) -> Option<CatchUp<'a>> {
        if is_anonymous(user) { None } else { self.0.catch_up(user) }
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

/// The 403 of a refused request, in upstream's words. What the client sent is escaped, so that no
/// browser takes it for HTML.
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

/// `&`, `<` and `>` as HTML has them.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Errors as upstream joins them: each once, in brackets when there are several.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for error in errors {
        if !seen.contains(&error.as_str()) {
            seen.push(error);
        }
    }
    if seen.len() == 1 { seen.concat() } else { format!("[{}]", seen.join(", ")) }
}

/// Waits until an authorizer has caught up.
pub type CatchUp<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// An authorizer. Its decisions are synchronous and fast: they are made on every request.
pub trait Authorizer: Send + Sync {
    /// Decides, waiting for nothing: on the state that the last [`Self::catch_up`] reached, or a
    /// later one.
    fn authorize(&self, access: &Access<'_>) -> Decision;

    /// Awaited before decisions about a user that must know everything which was acknowledged
    /// before this call; `None`: they do. The request chain awaits it for every request, off no
    /// worker: what takes long is done by one of those who wait, where it holds up nobody else.
    fn catch_up<'a>(&'a self, _user: &UserInfo) -> Option<CatchUp<'a>> {
        None
    }
}

/// Lets `system:masters` do everything and nobody else anything: until RBAC is configured.
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

/// Refuses everything (tests).
#[derive(Debug)]
pub struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn authorize(&self, _access: &Access<'_>) -> Decision {
        Decision::Deny("always denied".into())
    }
}
