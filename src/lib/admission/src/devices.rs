//! Rights to devices: administrators' access to them only in namespaces for it, and parts of a
//! claim's status only for those who may write that part.
//!
//! kube-apiserver checks them with the object's fields, so refusals are 422 with causes.

use crate::step::{AdmissionStep, Permits};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, quote};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_apimachinery::status::Failure;
use ferrokube_cel::{CheckedResource, Right};
use ferrokube_registry::{AdmissionOptions, Attributes, Effects, Operation};
use ferrokube_storage::{Prefix, Store};
use std::collections::BTreeSet;
use std::sync::Arc;

const GROUP: &str = "resource.k8s.io";
const CLAIMS: &str = "resourceclaims";
/// Label of namespaces whose claims may have it, with the value `true`.
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";
/// The node of a service account's token.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// Prefixes of verbs: of those on the node of the claim, and of all others.
const ASSOCIATED: &str = "associated-node:";
const ARBITRARY: &str = "arbitrary-node:";

/// Checks claims, and templates of claims.
pub struct DeviceRights {
    store: Store,
    namespaces: Prefix,
    permits: Arc<dyn Permits>,
}

impl DeviceRights {
    /// Over the store of the namespaces, and the server's authorizer.
    ///
    /// # Panics
    /// Never: the prefix is a constant.
    pub fn new(store: Store, permits: Arc<dyn Permits>) -> Self {
        let namespaces = Prefix::new("namespaces").expect("a constant without a slash");
        Self { store, namespaces, permits }
    }

    /// The error unless the claim's namespace is labeled for admin access.
    fn refuse_admin(&self, attributes: &Attributes<'_>, field: String) -> Option<FieldError> {
        let name = attributes.target.namespace.as_deref().unwrap_or_default();
        let key = self.namespaces.key(None, name).ok()?;
        let is_allowed = self.store.pending(&key).is_some_and(|entry| {
            let layout = Layout::from_marks(entry.sidecar.marks, entry.sidecar.revision_at);
            forms::label(&entry.bytes, &layout, ADMIN_LABEL).is_some_and(|value| value == "true")
        });
        let why = format!(
            "admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
        );
        (!is_allowed).then(|| FieldError::forbidden(field, why))
    }

    fn check_status(
        &self,
        attributes: &Attributes<'_>,
        object: &Document,
        old: &Document,
    ) -> Vec<FieldError> {
        const RESULTS: [&str; 4] = ["status", "allocation", "devices", "results"];
        let mut errors = Vec::new();
        if admin_access(old, &RESULTS).is_none()
            && let Some(at) = admin_access(object, &RESULTS)
        {
            let field = format!("status.allocation.devices.results[{at}].adminAccess");
            errors.extend(self.refuse_admin(attributes, field));
        }
        let same = |field: &str| {
            given(object.get(&["status", field])) == given(old.get(&["status", field]))
        };
        if !(same("allocation") && same("reservedFor"))
            && let Some(why) = self.refused(attributes, "binding", &[""], "")
        {
            errors.push(FieldError::forbidden(
                "status.allocation",
                format!(
                    "changing status.allocation or status.reservedFor requires resource=\"{CLAIMS}/binding\", verb=\"{}\" permission: {why}",
                    verb(attributes)
                ),
            ));
        }
        if given(object.get(&["status", "allocation"])).is_some() && !same("devices") {
            errors.extend(self.check_drivers(attributes, object, old));
        }
        errors
    }

    /// Each driver whose devices have another status needs a right of its own.
    fn check_drivers(
        &self,
        attributes: &Attributes<'_>,
        object: &Document,
        old: &Document,
    ) -> Vec<FieldError> {
        let is_near = allocated_node(object).is_some_and(|node| {
            let user = &attributes.context.user;
            user.name.starts_with("system:serviceaccount:")
                && user.extra.get(NODE_NAME).is_some_and(|names| *names == [node])
        });
        let prefixes: &[&str] = if is_near { &[ASSOCIATED, ARBITRARY] } else { &[ARBITRARY] };
        let verbs: Vec<String> =
            prefixes.iter().map(|prefix| format!("{prefix}{}", verb(attributes))).collect();
        let refuse = |driver: &str| {
            let why = self.refused(attributes, "driver", prefixes, driver)?;
            Some(FieldError::forbidden(
                "status.devices",
                format!(
                    "changing status.devices requires resource=\"{CLAIMS}/driver\", verb=\"[{}]\" permission: {why}",
                    verbs.join(" ")
                ),
            ))
        };
        changed_drivers(object, old).into_iter().filter_map(refuse).collect()
    }

    /// Why the caller may use none of the verbs on a subresource (the reason for the first verb);
    /// `None` if it may use one. Checked in the claim's namespace if `name` is set, else at the
    /// cluster scope.
    fn refused(
        &self,
        attributes: &Attributes<'_>,
        subresource: &str,
        prefixes: &[&str],
        name: &str,
    ) -> Option<String> {
        let namespace = attributes.target.namespace.as_deref().filter(|_| !name.is_empty());
        let mut first = None;
        for prefix in prefixes {
            let verb = format!("{prefix}{}", verb(attributes));
            let user = &attributes.context.user;
            let resource = CheckedResource {
                group: GROUP.into(),
                resource: CLAIMS.into(),
                subresource: subresource.into(),
                namespace: namespace.unwrap_or_default().into(),
                name: name.into(),
            };
            let right = Right::Resource { resource, verb: verb.as_str().into() };
            let decision = self.permits.decide(user, &right);
            if decision.allowed {
                return None;
            }
            let place = namespace.map_or_else(
                || "at the cluster scope".to_owned(),
                |namespace| format!("in the namespace {}", quote(namespace)),
            );
            let mut why = format!(
                "User {} cannot {verb} resource \"{CLAIMS}/{subresource}\" in API group \"{GROUP}\" {place}",
                quote(&user.name)
            );
            if !decision.reason.is_empty() {
                why = format!("{why}: {}", decision.reason);
            }
            let failure = Failure::forbidden(&GroupResource::new(GROUP, CLAIMS), name, &why);
            first.get_or_insert(failure.message);
        }
        first
    }
}

impl AdmissionStep for DeviceRights {
    fn name(&self) -> &'static str {
        "DeviceRights"
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
        let target = attributes.target;
        let definition = &target.served.definition;
        let Some(object) = object.filter(|_| definition.group == GROUP) else { return Ok(()) };
        let requests: &[&str] = match definition.plural.as_str() {
            CLAIMS => &["spec", "devices", "requests"],
            "resourceclaimtemplates" => &["spec", "spec", "devices", "requests"],
            _ => return Ok(()),
        };
        let errors = match (target.subresource.as_str(), attributes.operation, attributes.old) {
            ("", Operation::Create, _) => admin_access(object, requests)
                .and_then(|at| {
                    let field = format!("spec.devices.requests[{at}].adminAccess");
                    self.refuse_admin(attributes, field)
                })
                .into_iter()
                .collect(),
            ("status", _, Some(old)) => self.check_status(attributes, object, old),
            _ => Vec::new(),
        };
        if errors.is_empty() {
            return Ok(());
        }
        Err(Failure::invalid(GROUP, &definition.kind, object.name(), &errors))
    }
}

/// The verb by which the request was authorized.
fn verb(attributes: &Attributes<'_>) -> &'static str {
    if matches!(attributes.options, AdmissionOptions::Patch(_)) { "patch" } else { "update" }
}

/// An empty value is none.
fn given(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    })
}

fn items<'a>(object: &'a Document, path: &[&str]) -> &'a [Value] {
    object.get(path).and_then(Value::as_array).map_or(&[], |list| list.as_slice())
}

/// Index of the first request, or result, with administrators' access.
fn admin_access(object: &Document, path: &[&str]) -> Option<usize> {
    let is_set = |item: &Value| {
        let request = item.get("exactly").unwrap_or(item);
        request.get("adminAccess").and_then(Value::as_bool) == Some(true)
    };
    items(object, path).iter().position(is_set)
}

/// The only node on which the devices are, if the allocation names just that.
fn allocated_node(object: &Document) -> Option<&str> {
    let [term] = items(object, &["status", "allocation", "nodeSelector", "nodeSelectorTerms"])
    else {
        return None;
    };
    let list = |value: &'_ Value, field: &str| {
        value.get(field).and_then(Value::as_array).map_or(0, |list| list.len())
    };
    let field = term.get("matchFields")?.get(0)?;
    let is_name = list(term, "matchExpressions") == 0
        && list(term, "matchFields") == 1
        && list(field, "values") == 1
        && field.get("key").and_then(Value::as_str) == Some("metadata.name")
        && field.get("operator").and_then(Value::as_str) == Some("In");
    field.get("values")?.get(0)?.as_str().filter(|node| is_name && !node.is_empty())
}

/// Drivers of the devices that are new, gone, or changed.
fn changed_drivers<'a>(object: &'a Document, old: &'a Document) -> BTreeSet<&'a str> {
    const DEVICES: [&str; 2] = ["status", "devices"];
    let (new, old) = (items(object, &DEVICES), items(old, &DEVICES));
    let driver = |device: &'a Value| device.get("driver").and_then(Value::as_str);
    let only = |some: &'a [Value], others: &'a [Value]| {
        some.iter().filter(move |device| !others.contains(device)).filter_map(driver)
    };
    only(new, old).chain(only(old, new)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn claim(status: Value) -> Document {
        Document::from_value(json!({ "status": status })).expect("an object")
    }

    #[test]
    fn changed_devices_name_their_drivers() {
        let device = |driver: &str, ready: bool| json!({"driver": driver, "pool": "p", "device": "d", "data": ready});
        let old = claim(json!({"devices": [device("a", true), device("b", true)]}));
        let new = claim(json!({"devices": [device("b", false), device("c", true)]}));
        assert_eq!(changed_drivers(&new, &old).into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(changed_drivers(&old, &old).is_empty());
    }

    #[test]
    fn a_claim_has_a_node_if_it_can_be_on_no_other() {
        let term =
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]});
        let allocated = |terms: Value| {
            claim(json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": terms}}}))
        };
        assert_eq!(allocated_node(&allocated(json!([term]))), Some("n"));
        assert_eq!(allocated_node(&allocated(json!([term, term]))), None);
        let others = json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}]}]);
        assert_eq!(allocated_node(&allocated(others)), None);
        assert_eq!(allocated_node(&claim(json!({}))), None);
    }

    #[test]
    fn administrators_access_is_found_in_requests_and_results() {
        let spec = Document::from_value(json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "c"}},
            {"name": "b", "exactly": {"deviceClassName": "c", "adminAccess": true}},
        ]}}}));
        assert_eq!(
            admin_access(&spec.expect("an object"), &["spec", "devices", "requests"]),
            Some(1)
        );
        let status = claim(json!({"results": [{"adminAccess": false}]}));
        assert_eq!(admin_access(&status, &["status", "results"]), None);
    }
}
