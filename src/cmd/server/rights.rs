//! Questions of rights that admission asks. The authorizer follows the registry, which is made after admission: the answer is put in later.

use ferrokube_admission::step::Check;
use ferrokube_admission::{Permits, Question, Step};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_auth::{Access, Authorizer, EscalationCheck, Rbac, ResourceAccess};
use ferrokube_registry::{Attributes, UserInfo};
use std::sync::{Arc, OnceLock};

/// Who answers. Cheap to clone; before [`Rights::set`] everything is refused.
#[derive(Clone, Default)]
pub(super) struct Rights(Arc<OnceLock<RbacRights>>);

struct RbacRights {
    authorizer: Arc<dyn Authorizer>,
    escalation: EscalationCheck,
}

impl Rights {
    /// From now on these answer.
    pub(super) fn set(&self, rbac: &Arc<Rbac>, authorizer: &Arc<dyn Authorizer>) {
        let escalation = EscalationCheck::new(Arc::clone(rbac), Arc::clone(authorizer));
        let is_first = self.0.set(RbacRights { authorizer: Arc::clone(authorizer), escalation }).is_ok();
        debug_assert!(is_first, "a server is wired once");
    }

    /// Nobody gives rights that they do not have. Asked before validation too, where upstream asks; what counts is what will be stored.
    pub(super) fn escalation_step(&self) -> Arc<dyn Step> {
        let rights = self.clone();
        let check = move |attributes: &Attributes<'_>, object: Option<&Document>| match rights.0.get() {
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
        let resource = ResourceAccess { group, version, resource, subresource: "", namespace, name };
        known.authorizer.authorize(&Access { user, verb, resource: Some(resource), path: "" }).is_allowed()
    }
}
