//! The authorization seam: one question, asked once per request, from the same typed request that reaches the store.

use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
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

/// The 403 of a refused request, in upstream's words.
pub fn forbidden(access: &Access<'_>, reason: &str) -> Failure {
    let suffix = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let user = &access.user.name;
    let verb = access.verb;
    let Some(resource) = &access.resource else {
        let message = format!("forbidden: User {user:?} cannot {verb} path {:?}{suffix}", access.path);
        return Failure::new(Reason::Forbidden, message).with_details(Details::default());
    };
    let slash = if resource.subresource.is_empty() { "" } else { "/" };
    let place = if resource.namespace.is_empty() { "at the cluster scope".to_owned() } else { format!("in the namespace {:?}", resource.namespace) };
    let what = format!("{}{slash}{}", resource.resource, resource.subresource);
    let why = format!("User {user:?} cannot {verb} resource {what:?} in API group {:?} {place}{suffix}", resource.group);
    Failure::forbidden(&GroupResource::new(resource.group, resource.resource), resource.name, &why)
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
