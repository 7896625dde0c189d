//! ResourceQuota: limits on what a namespace holds. Admission counts, the quota controller repairs.

use crate::cells;
use crate::checks::{all_invalid, invalid, items, keep_stored, required, text};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS};
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{Body, Part, Printed};
use ferrokube_resource::{Change, Hooks, Verbs};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

/// Names without a prefix that count objects: whole numbers.
const COUNTED: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
/// Names without a prefix that measure.
const MEASURED: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
const SCOPES: &[&str] =
    &["Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity", "VolumeAttributesClass"];

pub(crate) fn body() -> Body {
    Body {
        subresources: &[Part { name: "status", kind: None, verbs: Verbs::GET_PATCH_UPDATE, reset: &["spec"] }],
        reset: &["status"],
        columns: const {
            &[
                Printed::NAME,
                Printed::text("Request", "Used and hard amounts, limits excepted."),
                Printed::text("Limit", "Used and hard amounts of limits."),
                Printed::AGE,
            ]
        },
        storage: Some("resourcequotas"),
        hooks: Arc::new(ResourceQuota),
        ..Body::default()
    }
}

#[derive(Debug)]
struct ResourceQuota;

impl Hooks for ResourceQuota {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        match (change.old, change.subresource) {
            (None, _) => object.set(&["status"], json!({})),
            (Some(old), "status") => keep_stored(old, object, "spec"),
            (Some(old), _) => keep_stored(old, object, "status"),
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        if change.subresource == "status" {
            return ["hard", "used"].into_iter().flat_map(|field| amounts(object, ["status", field])).collect();
        }
        let mut errors = amounts(object, ["spec", "hard"]);
        errors.extend(scopes(object));
        errors.extend(scope_selector(object));
        if change.old.is_some_and(|old| sorted_scopes(old) != sorted_scopes(object)) {
            errors.push(invalid("spec.scopes", "field is immutable"));
        }
        errors
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn cells(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (resource, hard) in object.get(&["status", "hard"]).and_then(Value::as_object).into_iter().flatten() {
            let used = object.str(&["status", "used", resource]).unwrap_or("0");
            let cell = format!("{resource}: {used}/{}", hard.as_str().unwrap_or("0"));
            if resource.starts_with("limits.") { limits.push(cell) } else { requests.push(cell) }
        }
        vec![Value::from(object.name()), Value::from(requests.join(", ")), Value::from(limits.join(", ")), Value::from(cells::age(object, now))]
    }
}

fn amounts(object: &Document, path: [&str; 2]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (resource, amount) in object.get(&path).and_then(Value::as_object).into_iter().flatten() {
        let field = format!("{}.{}[{resource}]", path[0], path[1]);
        errors.extend(all_invalid(&field, resource, resource_name(resource)));
        let amount = amount.as_str().unwrap_or("0");
        if amount.starts_with('-') {
            errors.push(invalid(&field, format!("Invalid value: {amount:?}: must be greater than or equal to 0")));
        }
        if is_whole(resource) && !is_integer(amount) {
            errors.push(invalid(&field, format!("Invalid value: {amount:?}: must be an integer")));
        }
    }
    errors
}

fn resource_name(resource: &str) -> Vec<String> {
    let sentences = name::qualified_name(resource);
    if sentences.is_empty() && !resource.contains('/') && !is_standard(resource) {
        return vec!["must be a standard resource for quota".to_owned()];
    }
    sentences
}

fn is_standard(resource: &str) -> bool {
    COUNTED.contains(&resource) || MEASURED.contains(&resource) || resource.starts_with("hugepages-") || resource.starts_with("requests.hugepages-")
}

/// Whether only whole numbers make sense: counted objects, and extended resources (`count/...`, `example.com/gpu`).
fn is_whole(resource: &str) -> bool {
    COUNTED.contains(&resource) || (resource.contains('/') && !resource.contains("kubernetes.io/") && !resource.starts_with("requests."))
}

/// Canonical quantities are whole when they have no fraction and no suffix below one.
fn is_integer(amount: &str) -> bool {
    !amount.contains('.') && !amount.ends_with(['m', 'u', 'n'])
}

fn sorted_scopes(object: &Document) -> Vec<&str> {
    let mut scopes: Vec<&str> = object.list(&["spec", "scopes"]).iter().filter_map(Value::as_str).collect();
    scopes.sort_unstable();
    scopes.dedup();
    scopes
}

fn scopes(object: &Document) -> Vec<FieldError> {
    let scopes = sorted_scopes(object);
    let mut errors: Vec<FieldError> = scopes.iter().filter_map(|scope| scope_error(object, scope, "spec.scopes")).take(MAX_ERRORS).collect();
    errors.extend(conflicting(&scopes, "spec.scopes"));
    errors
}

/// What is wrong with a scope by itself or for a resource that the quota limits.
fn scope_error(object: &Document, scope: &str, field: &str) -> Option<FieldError> {
    if !SCOPES.contains(&scope) {
        return Some(invalid(field, format!("Invalid value: {scope:?}: unsupported scope")));
    }
    let mut hard = object.get(&["spec", "hard"]).and_then(Value::as_object).into_iter().flatten();
    let misfit = hard.find(|(resource, _)| is_standard(resource) && !fits(scope, resource))?;
    Some(invalid(field, format!("Invalid value: {scope:?}: unsupported scope applied to resource {}", misfit.0)))
}

fn fits(scope: &str, resource: &str) -> bool {
    let compute = matches!(resource, "cpu" | "memory" | "requests.cpu" | "requests.memory" | "limits.cpu" | "limits.memory");
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => resource == "pods" || compute,
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

fn conflicting(scopes: &[&str], field: &str) -> Vec<FieldError> {
    let pairs = [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")];
    let both = pairs.iter().filter(|(one, other)| scopes.contains(one) && scopes.contains(other));
    both.map(|_| invalid(field, "conflicting scopes")).collect()
}

fn scope_selector(object: &Document) -> Vec<FieldError> {
    const FIELD: &str = "spec.scopeSelector.matchExpressions";
    let mut errors = Vec::new();
    let mut scopes = Vec::new();
    // Each looks through all that the quota limits, and there are few that are known.
    let mut fit = HashSet::new();
    for requirement in object.list(&["spec", "scopeSelector", "matchExpressions"]) {
        if errors.len() >= MAX_ERRORS {
            break;
        }
        let scope = text(requirement, "scopeName");
        let field = if SCOPES.contains(&scope) { FIELD.to_owned() } else { format!("{FIELD}.scopeName") };
        if !fit.contains(scope) {
            match scope_error(object, scope, &field) {
                Some(error) => errors.push(error),
                None => _ = fit.insert(scope),
            }
        }
        errors.extend(operator_error(requirement, scope, FIELD));
        scopes.push(scope);
    }
    errors.extend(conflicting(&scopes, FIELD));
    errors
}

fn operator_error(requirement: &Value, scope: &str, field: &str) -> Option<FieldError> {
    let operator = text(requirement, "operator");
    let values = items(requirement, "values");
    match operator {
        "In" | "NotIn" if scope != "PriorityClass" && scope != "VolumeAttributesClass" => {
            Some(invalid(format!("{field}.operator"), format!("Invalid value: {operator:?}: must be 'Exists' for this scope")))
        }
        "In" | "NotIn" if values.is_empty() => Some(required(format!("{field}.values"), "must be at least one value when `operator` is 'In' or 'NotIn'")),
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            Some(invalid(format!("{field}.values"), "must be no value when `operator` is 'Exists' or 'DoesNotExist'"))
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => None,
        other => Some(invalid(format!("{field}.operator"), format!("Invalid value: {other:?}: not a valid selector operator"))),
    }
}
