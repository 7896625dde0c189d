//! Which requests a policy or binding matches: defaults and validation.

use super::one_of;
use crate::checks::{all_invalid, is_full, items, label_selector, text};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS};
use ferrokube_apimachinery::name;
use ferrokube_cel::Type;
use ferrokube_cel::admission::{AdmissionCompiler, OptionalVariables};
use std::collections::BTreeSet;

const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const MUTABLE_OPERATIONS: [&str; 4] = ["*", "CONNECT", "CREATE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
/// Max match conditions of a policy or webhook.
const MAX_CONDITIONS: usize = 64;

/// Defaults of match resources.
pub(crate) fn default(matching: &mut Value) {
    let Some(fields) = matching.as_object_mut() else { return };
    let mut set = |field: &str, value: Value| {
        if fields.get(field).is_none_or(Value::is_null) {
            fields.insert(field.to_owned(), value);
        }
    };
    set("matchPolicy", Value::from("Equivalent"));
    set("namespaceSelector", Value::Object(Map::new()));
    set("objectSelector", Value::Object(Map::new()));
    for field in ["resourceRules", "excludeResourceRules"] {
        let rules = fields.get_mut(field).and_then(Value::as_array_mut);
        rules.into_iter().flatten().for_each(default_rule);
    }
}

/// Default of a rule: every scope.
pub(crate) fn default_rule(rule: &mut Value) {
    if let Some(fields) = rule.as_object_mut()
        && fields.get("scope").is_none_or(Value::is_null)
    {
        fields.insert("scope".to_owned(), Value::from("*"));
    }
}

/// Errors in match resources.
pub(crate) fn check(matching: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let match_policy = text(matching, "matchPolicy");
    errors.extend(one_of(&format!("{path}.matchPolicy"), match_policy, &MATCH_POLICIES));
    for field in ["namespaceSelector", "objectSelector"] {
        let below = format!("{path}.{field}");
        match matching.get(field).filter(|selector| !selector.is_null()) {
            None => errors.push(FieldError::required(below, "")),
            Some(selector) => errors.extend(label_selector(selector, &below)),
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, rule) in items(matching, field).iter().enumerate() {
            if is_full(&errors) {
                break;
            }
            let below = format!("{path}.{field}[{index}]");
            errors.extend(check_names(rule, &below));
            errors.extend(check_rule(rule, &below));
        }
    }
    errors
}

fn check_names(rule: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, name) in strings(rule, "resourceNames").enumerate() {
        if is_full(&errors) {
            break;
        }
        let below = format!("{path}.resourceNames[{index}]");
        errors.extend(all_invalid(&below, name, name::path_segment(name)));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(below, name));
        }
    }
    errors
}

/// Errors in the rule of a policy or webhook.
pub(crate) fn check_rule(rule: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let required = |field: &str| FieldError::required(format!("{path}.{field}"), "");
    let crowded = |field: &str, what: &str| {
        let given: Vec<&str> = strings(rule, field).collect();
        (given.len() > 1 && given.contains(&"*")).then(|| {
            FieldError::invalid(
                format!("{path}.{field}"),
                rule.get(field),
                format!("if '*' is present, must not specify other {what}"),
            )
        })
    };
    if items(rule, "operations").is_empty() {
        errors.push(required("operations"));
    }
    errors.extend(crowded("operations", "operations"));
    for (index, operation) in strings(rule, "operations").enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(one_of(&format!("{path}.operations[{index}]"), operation, &OPERATIONS));
    }
    if items(rule, "apiGroups").is_empty() {
        errors.push(required("apiGroups"));
    }
    errors.extend(crowded("apiGroups", "API groups"));
    if items(rule, "apiVersions").is_empty() {
        errors.push(required("apiVersions"));
    }
    errors.extend(crowded("apiVersions", "API versions"));
    let empty = strings(rule, "apiVersions").enumerate().filter(|(_, version)| version.is_empty());
    let empty = empty.map(|(index, _)| required(&format!("apiVersions[{index}]")));
    errors.extend(empty.take(MAX_ERRORS));
    errors.extend(check_resources(rule, &format!("{path}.resources")));
    if let Some(scope) = rule.get("scope").and_then(Value::as_str) {
        errors.extend(one_of(&format!("{path}.scope"), scope, &SCOPES));
    }
    errors
}

/// Errors in `resource`, `resource/subresource` and their wildcards.
fn check_resources(rule: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let given: Vec<&str> = strings(rule, "resources").collect();
    if given.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut any_subresource, mut of_any_resource) = (BTreeSet::new(), BTreeSet::new());
    let mut has_plain = false;
    for (index, whole) in given.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let at = format!("{path}[{index}]");
        if whole.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let Some((resource, subresource)) = whole.split_once('/') else {
            has_plain = *whole != "*";
            continue;
        };
        let mut covered = |by: String| {
            let detail = format!("if '{by}' is present, must not specify {whole}");
            errors.push(FieldError::invalid(at.as_str(), *whole, detail));
        };
        if any_subresource.contains(resource) {
            covered(format!("{resource}/*"));
        }
        if of_any_resource.contains(subresource) {
            covered(format!("*/{subresource}"));
        }
        if subresource == "*" {
            any_subresource.insert(resource);
        }
        if resource == "*" {
            of_any_resource.insert(subresource);
        }
    }
    let invalid = |detail: &str| FieldError::invalid(path, rule.get("resources"), detail);
    if given.len() > 1 && given.contains(&"*/*") {
        errors.push(invalid("if '*/*' is present, must not specify other resources"));
    }
    if given.contains(&"*") && has_plain {
        errors.push(invalid(
            "if '*' is present, must not specify other resources without subresources",
        ));
    }
    errors
}

/// Errors in the operations of a mutating policy, which never sees deletes.
pub(crate) fn check_mutable(matching: &Value, path: &str) -> Vec<FieldError> {
    let path = format!("{path}.resourceRules.operations");
    items(matching, "resourceRules")
        .iter()
        .flat_map(|rule| strings(rule, "operations"))
        .filter_map(|operation| one_of(&path, operation, &MUTABLE_OPERATIONS))
        .take(MAX_ERRORS)
        .collect()
}

/// Errors in match conditions.
pub(crate) fn check_conditions(
    conditions: &[Value],
    has_params: bool,
    path: &str,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if conditions.len() > MAX_CONDITIONS {
        errors.push(FieldError::too_many(path, conditions.len(), MAX_CONDITIONS));
    }
    let compiler = AdmissionCompiler::default();
    let variables = OptionalVariables { params: has_params, authorizer: true, patches: false };
    let mut names = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let (name, source) = (text(condition, "name"), text(condition, "expression").trim());
        let below = format!("{path}[{index}].expression");
        if source.is_empty() {
            errors.push(FieldError::required(below, ""));
        } else if let Err(why) = compiler.compile(source, variables, &[Type::Bool]) {
            errors.push(FieldError::invalid(below, source, why));
        }
        let below = format!("{path}[{index}].name");
        if name.is_empty() {
            errors.push(FieldError::required(below, ""));
            continue;
        }
        errors.extend(all_invalid(&below, name, name::qualified_name(name)));
        if !names.insert(name) {
            errors.push(FieldError::duplicate(below, name));
        }
    }
    errors
}

/// The strings of a list.
fn strings<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a str> {
    items(value, field).iter().map(|item| item.as_str().unwrap_or_default())
}
