//! Local admission steps, and the rights that some of them check.

use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_cel::{Authorize, CheckDecision, CheckedSubject, Right};
use ferrokube_registry::{Attributes, Effects, Target};
use std::sync::Arc;

/// A local admission step. Synchronous; called within the key's turn, possibly several times for
/// one write.
pub trait AdmissionStep: Send + Sync {
    /// One of [`crate::PLUGINS`], or a name of its own.
    fn name(&self) -> &'static str;

    /// Whether a create of the target takes long, because of what the step reads besides: it leaves
    /// the worker. Called for every create, so it must be cheap.
    fn create_takes_long(&self, _target: &Target) -> bool {
        false
    }

    /// Whether [`Self::mutate`] does anything. If not, the phase neither calls nor times the step.
    fn mutates(&self) -> bool {
        true
    }

    /// Changes the object or rejects the write. Not called for deletes.
    ///
    /// # Errors
    /// A Status for the client.
    fn mutate(&self, _attributes: &Attributes<'_>, _object: &mut Document) -> Result<(), Failure> {
        Ok(())
    }

    /// Rejects the write, or adds effects. `object` is `None` for a delete.
    ///
    /// # Errors
    /// A Status for the client.
    fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        Ok(())
    }
}

/// Checks rights of a user, by the server's authorizer.
pub trait Permits: Send + Sync {
    /// Decides a check of an expression.
    fn decide(&self, user: &UserInfo, right: &Right) -> CheckDecision;

    /// Whether the user has the right.
    fn permits(&self, user: &UserInfo, question: &PermitQuery<'_>) -> bool;
}

/// A right to a named object of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitQuery<'a> {
    /// `approve`, `sign`, ...
    pub verb: &'a str,
    /// Empty for the core group.
    pub group: &'a str,
    /// `*` for any.
    pub version: &'a str,
    /// Plural name.
    pub resource: &'a str,
    /// Empty for cluster scope.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
}

/// A validating step from a closure, for steps of other crates (the RBAC escalation check).
pub struct FnStep<F> {
    name: &'static str,
    check: F,
    early: bool,
}

impl<F> FnStep<F>
where
    F: Fn(&Attributes<'_>, Option<&Document>) -> Result<(), Failure> + Send + Sync,
{
    /// `name` is one of [`crate::PLUGINS`]. The object is `None` for a delete.
    pub fn new(name: &'static str, check: F) -> Self {
        Self { name, check, early: false }
    }

    /// Also checks before validation: its error takes precedence over those of the object.
    #[must_use]
    pub fn early(self) -> Self {
        Self { early: true, ..self }
    }
}

impl<F> AdmissionStep for FnStep<F>
where
    F: Fn(&Attributes<'_>, Option<&Document>) -> Result<(), Failure> + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn mutates(&self) -> bool {
        self.early
    }

    fn mutate(&self, attributes: &Attributes<'_>, object: &mut Document) -> Result<(), Failure> {
        (self.check)(attributes, Some(object))
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        (self.check)(attributes, object)
    }
}

/// The `authorizer` of expressions about a user's request.
pub(crate) fn authorizer_of(permits: &Arc<dyn Permits>, user: &UserInfo) -> Arc<dyn Authorize> {
    Arc::new(UserRights { permits: Arc::clone(permits), user: user.clone() })
}

struct UserRights {
    permits: Arc<dyn Permits>,
    user: UserInfo,
}

impl std::fmt::Debug for UserRights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UserRights").field(&self.user.name).finish()
    }
}

impl Authorize for UserRights {
    fn decide(&self, subject: &CheckedSubject, right: &Right) -> CheckDecision {
        match subject {
            CheckedSubject::Caller => self.permits.decide(&self.user, right),
            CheckedSubject::ServiceAccount { namespace, name } => {
                let groups = [
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                ];
                let user = UserInfo {
                    name: format!("system:serviceaccount:{namespace}:{name}"),
                    groups: groups.into(),
                    ..UserInfo::default()
                };
                self.permits.decide(&user, right)
            }
        }
    }
}
