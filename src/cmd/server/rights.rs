//! Authorization checks made by admission. The authorizer depends on the registry, which is built
//! after admission, so it is set later.

use ferrokube_admission::step::Check;
use ferrokube_admission::{Permits, Question, Step};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_auth::{Access, Authorizer, EscalationCheck, Rbac, ResourceAccess};
use ferrokube_registry::{Attributes, UserInfo};
use std::sync::{Arc, OnceLock};

/// A late-bound authorizer. Cheap to clone. Refuses everything until [`Rights::set`].
#[derive(Clone, Default)]
pub(super) struct Rights(Arc<OnceLock<RbacRights>>);

struct RbacRights {
    authorizer: Arc<dyn Authorizer>,
    escalation: EscalationCheck,
}

impl Rights {
    /// Sets the authorizer. Called once.
    pub(super) fn set(&self, rbac: &Arc<Rbac>, authorizer: &Arc<dyn Authorizer>) {
        let escalation = EscalationCheck::new(Arc::clone(rbac), Arc::clone(authorizer));
        let is_first =
            self.0.set(RbacRights { authorizer: Arc::clone(authorizer), escalation }).is_ok();
        debug_assert!(is_first, "set once");
    }

    /// Escalation check: nobody may grant rights they lack. Runs before validation, too, like
    /// upstream; the object as stored decides.
    pub(super) fn escalation_step(&self) -> Arc<dyn Step> {
        let rights = self.clone();
        let check =
            move |attributes: &Attributes<'_>, object: Option<&Document>| match rights.0.get() {
                Some(known) => known.escalation.check_admission(attributes, object),
                None => Err(Failure::new(Reason::ServiceUnavailable, "the server is starting")),
            };
        Arc::new(Check::new("RBACEscalation", check).early())
    }
}

impl Permits for Rights {
    fn permits(&self, user: &UserInfo, question: &Question<'_>) -> bool {
        let Some(known) = self.0.get() else { return false };
        let Question { verb, group, version, resource, namespace, name } = *question;
        let resource =
            ResourceAccess { group, version, resource, subresource: "", namespace, name };
        known
            .authorizer
            .authorize(&Access { user, verb, resource: Some(resource), path: "" })
            .is_allowed()
    }
}
