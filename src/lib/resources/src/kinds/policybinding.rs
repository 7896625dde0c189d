//! ValidatingAdmissionPolicyBinding and MutatingAdmissionPolicyBinding: where a policy applies,
//! and with which parameters.

use super::policy::{matching, one_of};
use crate::cells;
use crate::checks::{all_invalid, is_full, items, label_selector, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{CREATION_DESCRIPTION, KindBody, NativeColumn};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, MetadataRules, Policy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

pub(crate) fn validating() -> KindBody {
    body("validatingadmissionpolicybindings", true)
}

pub(crate) fn mutating() -> KindBody {
    body("mutatingadmissionpolicybindings", false)
}

fn body(storage: &'static str, has_actions: bool) -> KindBody {
    KindBody {
        categories: &["api-extensions"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text(
                    "PolicyName",
                    "PolicyName indicates the policy definition which the policy binding binded to",
                ),
                NativeColumn::text(
                    "ParamRef",
                    "ParamRef indicates the param resource which sets the configuration param",
                ),
                NativeColumn::text("Age", CREATION_DESCRIPTION),
            ]
        },
        storage: Some(storage),
        policy: Policy {
            metadata_rules: MetadataRules::Object,
            // It stores mutating ones so to this day.
            former_versions: &["v1beta1", "v1alpha1"],
            counts_generation: true,
            finalizer_domain: FinalizerDomain::Optional,
            unconditional_update: false,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(PolicyBindingHooks { has_actions }),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct PolicyBindingHooks {
    /// `validationActions`
    has_actions: bool,
}

impl Hooks for PolicyBindingHooks {
    fn default(&self, _version: &str, object: &mut Document) {
        if let Some(matching) = object.get_mut(&["spec", "matchResources"]) {
            matching::default(matching);
        }
    }

    fn validate(&self, _change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let spec = object.get(&["spec"]).unwrap_or(&Value::Null);
        match text(spec, "policyName") {
            "" => errors.push(FieldError::required("spec.policyName", "")),
            given => {
                errors.extend(all_invalid("spec.policyName", given, name::dns1123_subdomain(given)))
            }
        }
        let given = |field: &str| spec.get(field).filter(|value| !value.is_null());
        errors.extend(given("paramRef").into_iter().flat_map(check_param_ref));
        let matching = given("matchResources").into_iter();
        errors.extend(matching.flat_map(|value| matching::check(value, "spec.matchResources")));
        if self.has_actions {
            errors.extend(check_actions(spec));
        } else if let Some(matching) = given("matchResources") {
            errors.extend(matching::check_mutable(matching, "spec.matchResources"));
        }
        errors
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let spec = |path: &[&str]| object.str(path).unwrap_or_default();
        let param = match object.get(&["spec", "paramRef"]).filter(|param| !param.is_null()) {
            None => "<unset>".to_owned(),
            Some(param) => match text(param, "name") {
                "" => param.get("selector").map_or_else(|| "<unset>".to_owned(), selector_shown),
                name => match text(param, "namespace") {
                    "" => format!("*/{name}"),
                    namespace => format!("{namespace}/{name}"),
                },
            },
        };
        vec![
            Value::from(object.name()),
            Value::from(spec(&["spec", "policyName"])),
            Value::from(param),
            Value::from(cells::age(object, now)),
        ]
    }
}

/// A label selector as Go prints it.
fn selector_shown(selector: &Value) -> String {
    let labels = selector.get("matchLabels").and_then(Value::as_object);
    let labels: String = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default()))
        .collect();
    let requirements: String = items(selector, "matchExpressions")
        .iter()
        .map(|requirement| {
            let values: Vec<&str> =
                items(requirement, "values").iter().filter_map(Value::as_str).collect();
            format!(
                "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{}],}},",
                text(requirement, "key"),
                text(requirement, "operator"),
                values.join(" ")
            )
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{requirements}}},}}"
    )
}

fn check_param_ref(param: &Value) -> Vec<FieldError> {
    const PATH: &str = "spec.paramRef";
    const BOTH: &str = "name and selector are mutually exclusive";
    let mut errors = Vec::new();
    let name = text(param, "name");
    let selector = param.get("selector").filter(|selector| !selector.is_null());
    if !name.is_empty() {
        errors.extend(all_invalid("spec.paramRef.name", name, name::path_segment(name)));
        if selector.is_some() {
            errors.push(FieldError::forbidden("spec.paramRef.name", BOTH));
        }
    }
    if let Some(selector) = selector {
        errors.extend(label_selector(selector, "spec.paramRef.selector"));
        if !name.is_empty() {
            errors.push(FieldError::forbidden("spec.paramRef.selector", BOTH));
        }
    }
    if name.is_empty() && selector.is_none() {
        errors.push(FieldError::required(PATH, "one of name or selector must be specified"));
    }
    const ACTION: &str = "spec.paramRef.parameterNotFoundAction";
    match text(param, "parameterNotFoundAction") {
        "" => errors.push(FieldError::required(ACTION, "")),
        given => errors.extend(one_of(ACTION, given, &["Deny", "Allow"])),
    }
    errors
}

fn check_actions(spec: &Value) -> Vec<FieldError> {
    const PATH: &str = "spec.validationActions";
    const KNOWN: [&str; 3] = ["Audit", "Deny", "Warn"];
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, action) in items(spec, "validationActions").iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let action = action.as_str().unwrap_or_default();
        let below = format!("{PATH}[{index}]");
        errors.extend(one_of(&below, action, &KNOWN));
        if !seen.insert(action) {
            errors.push(FieldError::duplicate(below, Word(action)));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        errors.push(FieldError::invalid(
            PATH,
            spec.get("validationActions"),
            "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
        ));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(PATH, "at least one validation action is required"));
    }
    errors
}
