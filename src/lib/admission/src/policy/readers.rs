//! Writers of policies and bindings must be able to read the parameters: expressions and their
//! messages show them.

use super::compiled::ParamKind;
use super::{GROUP, PolicyInputs};
use crate::matching::text;
use crate::step::{AdmissionStep, PermitQuery};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_registry::{Attributes, Effects, view};
use ferrokube_storage::Prefix;

/// The step. Part of the kinds' validation in kube-apiserver.
pub struct PolicyReaders {
    inputs: PolicyInputs,
}

impl PolicyReaders {
    /// Over the policies in the store.
    pub fn new(inputs: PolicyInputs) -> Self {
        Self { inputs }
    }

    /// Group, version and plural of a policy's parameters; `*` where they are unknown.
    fn resource(&self, kind: &Value) -> (String, String, String) {
        let kind = ParamKind::new(text(kind, "apiVersion"), text(kind, "kind"));
        let (group, version) = kind.group_version();
        let resource = match kind.resolve(&self.inputs.catalog) {
            Some(served) => served.definition.plural.clone(),
            None => "*".to_owned(),
        };
        (group.to_owned(), version.to_owned(), resource)
    }

    fn check_policy(&self, user: &UserInfo, kind: &Value) -> Option<FieldError> {
        let (group, version, resource) = self.resource(kind);
        let question = PermitQuery {
            verb: "get",
            group: &group,
            version: &version,
            resource: &resource,
            namespace: "*",
            name: "*",
        };
        let is_permitted = self.inputs.permits.permits(user, &question);
        (!is_permitted).then(|| {
            let message = format!(
                "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
                shown(user),
                text(kind, "kind"),
                text(kind, "apiVersion")
            );
            FieldError::forbidden("spec.paramKind", message)
        })
    }

    fn check_binding(
        &self,
        user: &UserInfo,
        param: &Value,
        policies: &str,
        policy: &str,
    ) -> Option<FieldError> {
        let stored = self.policy(policies, policy);
        let kind = stored.as_ref().and_then(|policy| policy.get(&["spec", "paramKind"]));
        let any = || "*".to_owned();
        let (group, version, resource) = kind
            .filter(|kind| !kind.is_null())
            .map_or_else(|| (any(), any(), any()), |kind| self.resource(kind));
        let name = text(param, "name");
        let verb = if name.is_empty() { "list" } else { "get" };
        let question = PermitQuery {
            verb,
            group: &group,
            version: &version,
            resource: &resource,
            namespace: text(param, "namespace"),
            name,
        };
        if self.inputs.permits.permits(user, &question) {
            return None;
        }
        let user = shown(user);
        let message = match stored {
            None => format!(
                "unable to get policy {policy} to determine minimum required permissions and user {user} does not have {verb:?} permission for all groups, versions and resources"
            ),
            Some(_) => format!(
                "user {user} does not have {verb:?} permission on the object referenced by paramRef"
            ),
        };
        Some(FieldError::forbidden("spec.paramRef", message))
    }

    fn policy(&self, plural: &str, name: &str) -> Option<Document> {
        let served = self.inputs.catalog.find(GROUP, "v1", plural)?;
        let prefix = Prefix::new(served.definition.storage_prefix.as_deref()?).ok()?;
        let entry = self.inputs.store.get(&prefix.key(None, name).ok()?)?;
        Some(view(&entry, &served))
    }
}

impl AdmissionStep for PolicyReaders {
    fn name(&self) -> &'static str {
        "PolicyReaders"
    }

    fn mutates(&self) -> bool {
        false
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Document>,
        _effects: &mut Effects,
    ) -> Result<(), Failure> {
        let (target, user) = (attributes.target, &attributes.context.user);
        let definition = &target.served.definition;
        let Some(object) = object.filter(|_| {
            definition.group == GROUP
                && target.subresource.is_empty()
                && !user.groups.iter().any(|group| group == "system:masters")
        }) else {
            return Ok(());
        };
        let changed = |path: &[&str]| {
            let given = object.get(path).filter(|value| !value.is_null())?;
            let is_same = attributes.old.is_some_and(|old| old.get(path) == Some(given));
            Some((given, is_same))
        };
        let error = match definition.plural.as_str() {
            "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
                changed(&["spec", "paramKind"])
                    .filter(|(_, is_same)| !is_same)
                    .and_then(|(kind, _)| self.check_policy(user, kind))
            }
            bindings
            @ ("validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings") => {
                let policies = bindings.replace("policybindings", "policies");
                let policy = object.str(&["spec", "policyName"]).unwrap_or_default();
                let same_policy = attributes
                    .old
                    .is_some_and(|old| old.str(&["spec", "policyName"]) == Some(policy));
                changed(&["spec", "paramRef"])
                    .filter(|(_, is_same)| !(*is_same && same_policy))
                    .and_then(|(param, _)| self.check_binding(user, param, &policies, policy))
            }
            _ => None,
        };
        match error {
            None => Ok(()),
            Some(error) => {
                let kind = &definition.kind;
                Err(Failure::invalid(&definition.group, kind, object.name(), &[error]))
            }
        }
    }
}

/// A user as Go prints it.
fn shown(user: &UserInfo) -> String {
    let extra: Vec<String> =
        user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}
