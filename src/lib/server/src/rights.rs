//! Authorization checks made by admission.

use ferrokube_admission::step::FnStep;
use ferrokube_admission::{AdmissionStep, CheckDecision, PermitQuery, Permits, Right};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::{Access, Authorizer, EscalationCheck, Rbac, ResourceAccess};
use ferrokube_registry::Attributes;
use std::sync::Arc;

/// Checks of rights during admission.
pub(crate) struct Rights(pub(crate) Arc<dyn Authorizer>);

/// Escalation check: users cannot grant rights they lack. Runs before validation, too, as in
/// kube-apiserver; based on the object as stored.
pub(crate) fn escalation_step(
    rbac: &Arc<Rbac>,
    authorizer: &Arc<dyn Authorizer>,
) -> Arc<dyn AdmissionStep> {
    let escalation = EscalationCheck::new(Arc::clone(rbac), Arc::clone(authorizer));
    let check = move |attributes: &Attributes<'_>, object: Option<&Document>| {
        escalation.check_admission(attributes, object)
    };
    Arc::new(FnStep::new("RBACEscalation", check).early())
}

impl Permits for Rights {
    fn decide(&self, user: &UserInfo, right: &Right) -> CheckDecision {
        let access = match right {
            Right::Path { path, verb } => Access { user, verb, resource: None, path },
            Right::Resource { resource, verb } => {
                let resource = ResourceAccess {
                    group: &resource.group,
                    version: "*",
                    resource: &resource.resource,
                    subresource: &resource.subresource,
                    namespace: &resource.namespace,
                    name: &resource.name,
                };
                Access { user, verb, resource: Some(resource), path: "" }
            }
        };
        let decision = self.0.authorize(&access);
        CheckDecision {
            allowed: decision.is_allowed(),
            reason: decision.reason().to_owned(),
            error: None,
        }
    }

    fn permits(&self, user: &UserInfo, question: &PermitQuery<'_>) -> bool {
        let PermitQuery { verb, group, version, resource, namespace, name } = *question;
        let resource =
            ResourceAccess { group, version, resource, subresource: "", namespace, name };
        self.0.authorize(&Access { user, verb, resource: Some(resource), path: "" }).is_allowed()
    }
}
