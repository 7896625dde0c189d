//! The authorization seam: one question, asked once per request, from the same typed request that reaches the store.

use ferrokube_registry::UserInfo;

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
    /// Empty for cluster scope and across namespaces. For `namespaces/x` (and its subresources) it is `x`, so that a role inside the namespace covers it.
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

/// An authorizer. Synchronous and fast: it runs on every request.
pub trait Authorizer: Send + Sync {
    /// Decides.
    fn authorize(&self, access: &Access<'_>) -> Decision;
}

/// Lets `system:masters` do everything and nobody else anything: until RBAC is configured.
#[derive(Debug)]
pub struct MastersOnly;

impl Authorizer for MastersOnly {
    fn authorize(&self, access: &Access<'_>) -> Decision {
        if access.user.groups.iter().any(|group| group == "system:masters") { Decision::Allow(String::new()) } else { Decision::NoOpinion(String::new()) }
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
