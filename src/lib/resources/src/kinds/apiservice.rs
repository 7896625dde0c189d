//! APIService: who serves an API group's version, this server or an aggregated one. The API
//! server's own loops route by it and keep its status.

use crate::cells;
use crate::checks::{all_invalid, is_true, text};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS};
use ferrokube_apimachinery::{name, time};
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, MetadataRules, Policy};
use std::sync::Arc;
use std::time::SystemTime;

const SERVICE: [&str; 2] = ["spec", "service"];

pub(crate) fn body() -> KindBody {
    KindBody {
        categories: &["api-extensions"],
        subresources: &[NativeSubresource::STATUS_ALONE],
        reset: &["status"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text(
                    "Service",
                    "The reference to the service that hosts this API endpoint.",
                ),
                NativeColumn::text("Available", "Whether this service is available."),
                NativeColumn::AGE,
            ]
        },
        storage: Some("apiregistration.k8s.io/apiservices"),
        policy: Policy {
            untabled_subresources: &["status"],
            status_keeps_deletion: false,
            prefix_is_name: true,
            subresource_metadata_rules: MetadataRules::Changes,
            unconditional_update: false,
            finalizer_domain: FinalizerDomain::Optional,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(ApiService),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct ApiService;

impl Hooks for ApiService {
    fn default(&self, _version: &str, object: &mut Document) {
        if let Some(Value::Object(service)) = object.get_mut(&SERVICE) {
            service.entry("port").or_insert(Value::from(443));
        }
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_some() {
            return;
        }
        object.set(&["status"], json!({}));
        if is_local(object) {
            object.set(&["status", "conditions"], vec![local_condition(change.now)]);
        }
    }

    /// [`Hooks::validate`] compares it with version and group.
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::path_segment(name))
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        if change.subresource == "status" {
            return conditions(object);
        }
        let mut errors = group_version(object);
        errors.extend(priorities(object));
        match object.get(&SERVICE).filter(|service| !service.is_null()) {
            None => errors.extend(local(object)),
            Some(service) => errors.extend(remote(object, service)),
        }
        errors
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let service = match object.get(&SERVICE).filter(|service| !service.is_null()) {
            Some(service) => format!("{}/{}", text(service, "namespace"), text(service, "name")),
            None => "Local".to_owned(),
        };
        vec![
            Value::from(object.name()),
            Value::from(service),
            Value::from(availability(object)),
            Value::from(cells::age(object, now)),
        ]
    }
}

fn is_local(object: &Document) -> bool {
    object.get(&SERVICE).is_none_or(Value::is_null)
}

/// Local group versions are available immediately.
fn local_condition(now: SystemTime) -> Value {
    json!({
        "type": "Available",
        "status": "True",
        "lastTransitionTime": time::rfc3339_seconds(now),
        "reason": "Local",
        "message": "Local APIServices are always available",
    })
}

fn availability(object: &Document) -> String {
    let available = object
        .list(&["status", "conditions"])
        .iter()
        .find(|condition| text(condition, "type") == "Available");
    match available.map(|condition| (text(condition, "status"), text(condition, "reason"))) {
        None => "Unknown".to_owned(),
        Some((status, reason)) if status == "True" || reason.is_empty() => status.to_owned(),
        Some((status, reason)) => format!("{status} ({reason})"),
    }
}

fn group_version(object: &Document) -> Vec<FieldError> {
    let [group, version] =
        ["group", "version"].map(|field| object.str(&["spec", field]).unwrap_or_default());
    let mut errors = Vec::new();
    let required = format!("{version}.{group}");
    // No name can be generated: the prefix must be the name, too.
    for field in ["generateName", "name"] {
        let given = object.meta(field);
        // Missing names, and those that are no path segment, are rejected with the metadata.
        if !given.is_empty() && given != required && name::path_segment(given).is_empty() {
            errors.push(FieldError::invalid(
                format!("metadata.{field}"),
                given,
                format!("must be `spec.version+\".\"+spec.group`: {required:?}"),
            ));
        }
    }
    if group.is_empty() && version != "v1" {
        errors.push(FieldError::required(
            "spec.group",
            "only v1 may have an empty group and it better be legacy kube",
        ));
    }
    if !group.is_empty() {
        errors.extend(all_invalid("spec.group", group, name::dns1123_subdomain(group)));
    }
    errors.extend(all_invalid("spec.version", version, name::dns1035_label(version)));
    errors
}

fn priorities(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (field, most) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let priority = object.get(&["spec", field]).and_then(Value::as_i64).unwrap_or(0);
        if !(1..=most).contains(&priority) {
            errors.push(FieldError::invalid(
                format!("spec.{field}"),
                priority,
                format!("must be positive and less than {most}"),
            ));
        }
    }
    errors
}

/// The rules without a service.
fn local(object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let bytes = ca_bundle_bytes(object);
    if bytes > 0 {
        errors.push(FieldError::invalid(
            "spec.caBundle",
            format!("{bytes} bytes"),
            "local APIServices may not have a caBundle",
        ));
    }
    if is_true(object, &["spec", "insecureSkipTLSVerify"]) {
        errors.push(FieldError::invalid(
            "spec.insecureSkipTLSVerify",
            true,
            "local APIServices may not have insecureSkipTLSVerify",
        ));
    }
    errors
}

fn remote(object: &Document, service: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for field in ["namespace", "name"] {
        if text(service, field).is_empty() {
            errors.push(FieldError::required(format!("spec.service.{field}"), ""));
        }
    }
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(0);
    if !(1..=65_535).contains(&port) {
        errors.push(FieldError::invalid(
            "spec.service.port",
            port,
            "port is not valid: must be between 1 and 65535, inclusive",
        ));
    }
    if is_true(object, &["spec", "insecureSkipTLSVerify"]) && ca_bundle_bytes(object) > 0 {
        errors.push(FieldError::invalid(
            "spec.insecureSkipTLSVerify",
            true,
            "may not be true if caBundle is present",
        ));
    }
    errors
}

/// Length of the decoded bundle.
fn ca_bundle_bytes(object: &Document) -> usize {
    let bundle = object.str(&["spec", "caBundle"]).unwrap_or_default().trim_end_matches('=');
    bundle.len() * 3 / 4
}

fn conditions(object: &Document) -> Vec<FieldError> {
    const STATUSES: [&str; 3] = ["True", "False", "Unknown"];
    let conditions = object.list(&["status", "conditions"]).iter().enumerate();
    conditions
        .filter(|(_, condition)| !STATUSES.contains(&text(condition, "status")))
        .map(|(index, condition)| {
            let field = format!("status.conditions[{index}].status");
            FieldError::not_supported(field, text(condition, "status"), STATUSES)
        })
        .take(MAX_ERRORS)
        .collect()
}
