//! Values of authorization checks, and the interface that decides them.

use std::sync::Arc;

pub(crate) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub(crate) const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
pub(crate) const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
pub(crate) const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
pub(crate) const DECISION: &str = "kubernetes.authorization.Decision";

/// Answers the checks of expressions.
pub trait Authorize: std::fmt::Debug + Send + Sync {
    /// Whether the subject has a right, and why.
    fn decide(&self, subject: &CheckedSubject, right: &Right) -> CheckDecision;
}

/// Subject of a check of rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckedSubject {
    /// The user of the request.
    Caller,
    /// `system:serviceaccount:NAMESPACE:NAME`
    ServiceAccount {
        /// As the expression gives it.
        namespace: Arc<str>,
        /// As the expression gives it; need not exist.
        name: Arc<str>,
    },
}

/// A right that an expression checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Right {
    /// A path outside the resources.
    Path {
        /// Such as `/healthz`.
        path: Arc<str>,
        /// HTTP method in lower case.
        verb: Arc<str>,
    },
    /// A resource, in any version.
    Resource {
        /// With namespace and name, if set.
        resource: CheckedResource,
        /// API verb.
        verb: Arc<str>,
    },
}

/// A resource that an expression checks; unset parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedResource {
    /// API group.
    pub group: Arc<str>,
    /// Plural name.
    pub resource: Arc<str>,
    /// `status`, `scale`, ...
    pub subresource: Arc<str>,
    /// Empty: cluster-scoped, or in all namespaces.
    pub namespace: Arc<str>,
    /// Object name.
    pub name: Arc<str>,
}

/// The answer to a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckDecision {
    /// Whether the right is granted.
    pub allowed: bool,
    /// May be empty.
    pub reason: String,
    /// Why it could not be decided.
    pub error: Option<String>,
}

/// A value of the library's types.
#[derive(Clone, Debug)]
pub enum AuthorizerValue {
    /// `kubernetes.authorization.Authorizer`
    Authorizer(Arc<dyn Authorize>, CheckedSubject),
    /// `kubernetes.authorization.PathCheck`
    Path(Arc<dyn Authorize>, CheckedSubject, Arc<str>),
    /// An API group.
    Group(Arc<dyn Authorize>, CheckedSubject, Arc<str>),
    /// `kubernetes.authorization.ResourceCheck`
    Resource(Arc<dyn Authorize>, CheckedSubject, CheckedResource),
    /// The result of a check.
    Decision(CheckDecision),
}

impl AuthorizerValue {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Authorizer(..) => AUTHORIZER,
            Self::Path(..) => PATH_CHECK,
            Self::Group(..) => GROUP_CHECK,
            Self::Resource(..) => RESOURCE_CHECK,
            Self::Decision(_) => DECISION,
        }
    }
}
