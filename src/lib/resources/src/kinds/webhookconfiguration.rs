//! ValidatingWebhookConfiguration and MutatingWebhookConfiguration: which writes are reviewed by
//! which webhooks.

use super::policy::matching::{check_conditions, check_rule, default_rule};
use crate::checks::client_config::client_config;
use crate::checks::{all_invalid, is_full, items, label_selector, text};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name::{dns1035_label, dns1123_subdomain};
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{
    Change, FinalizerDomain, Hooks, MetadataRules, Policy, Printable, TableRow,
};
use std::collections::HashSet;
use std::sync::Arc;

/// Versions of AdmissionReview supported by the server.
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const NO_SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];

pub(crate) fn mutating() -> KindBody {
    body(true)
}

pub(crate) fn validating() -> KindBody {
    body(false)
}

fn body(mutates: bool) -> KindBody {
    KindBody {
        categories: &["api-extensions"],
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn {
                    kind: "integer",
                    ..NativeColumn::text(
                        "Webhooks",
                        "Webhooks indicates the number of webhooks registered in this configuration",
                    )
                },
                NativeColumn::AGE,
            ]
        },
        storage: Some(if mutates {
            "mutatingwebhookconfigurations"
        } else {
            "validatingwebhookconfigurations"
        }),
        policy: Policy {
            metadata_rules: MetadataRules::Object,
            computes_long: true,
            counts_generation: true,
            unconditional_update: false,
            finalizer_domain: FinalizerDomain::Optional,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(WebhookConfiguration { mutates }),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct WebhookConfiguration {
    mutates: bool,
}

impl Hooks for WebhookConfiguration {
    fn default(&self, _version: &str, object: &mut Document) {
        let Some(Value::Array(webhooks)) = object.get_mut(&["webhooks"]) else { return };
        for webhook in webhooks.iter_mut().filter_map(Value::as_object_mut) {
            let mut set = |field: &str, value: Value| {
                if webhook.get(field).is_none_or(Value::is_null) {
                    webhook.insert(field.to_owned(), value);
                }
            };
            set("failurePolicy", "Fail".into());
            set("matchPolicy", "Equivalent".into());
            set("namespaceSelector", json!({}));
            set("objectSelector", json!({}));
            set("timeoutSeconds", 10.into());
            if self.mutates {
                set("reinvocationPolicy", "Never".into());
            }
            if let Some(Value::Object(config)) = webhook.get_mut("clientConfig")
                && let Some(Value::Object(service)) = config.get_mut("service")
                && service.get("port").is_none_or(Value::is_null)
            {
                service.insert("port".to_owned(), 443.into());
            }
            if let Some(Value::Array(rules)) = webhook.get_mut("rules") {
                rules.iter_mut().for_each(default_rule);
            }
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let webhooks = object.list(&["webhooks"]);
        let before = change.old.map_or(&[][..], |old| old.list(&["webhooks"]));
        // Conditions that were stored stay valid.
        let same_conditions = before.len() == webhooks.len()
            && before
                .iter()
                .zip(webhooks)
                .all(|(old, new)| items(old, "matchConditions") == items(new, "matchConditions"));
        let mut errors = Vec::new();
        let mut names = HashSet::new();
        for (index, webhook) in webhooks.iter().enumerate() {
            if is_full(&errors) {
                break;
            }
            let place = format!("webhooks[{index}]");
            errors.extend(validate_webhook(webhook, self.mutates, &place));
            if !same_conditions {
                let conditions = items(webhook, "matchConditions");
                let place = format!("{place}.matchConditions");
                errors.extend(check_conditions(conditions, false, &place));
            }
            errors.extend(reviews(webhook, &format!("{place}.admissionReviewVersions")));
            let name = text(webhook, "name");
            if !name.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{place}.name"), name));
            }
        }
        errors
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document) -> Vec<String> {
        const RESERVED: &str = ".static.k8s.io";
        let warning = format!(
            "metadata.name: names ending with {RESERVED:?} are reserved for static manifest-based configurations and cannot be managed via the API"
        );
        if object.name().ends_with(RESERVED) { vec![warning] } else { Vec::new() }
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.value(&Value::from(object.document().list(&["webhooks"]).len()));
        row.age(object);
    }
}

fn validate_webhook(webhook: &Value, mutates: bool, place: &str) -> Vec<FieldError> {
    let mut errors = fully_qualified(text(webhook, "name"), &format!("{place}.name"));
    for (index, rule) in items(webhook, "rules").iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        errors.extend(check_rule(rule, &format!("{place}.rules[{index}]")));
    }
    let mut one_of = |field: &str, allowed: &[&str]| {
        let given = webhook.get(field).and_then(Value::as_str);
        if let Some(given) = given.filter(|given| !allowed.contains(given)) {
            errors.push(FieldError::not_supported(format!("{place}.{field}"), given, allowed));
        }
    };
    one_of("failurePolicy", &["Fail", "Ignore"]);
    one_of("matchPolicy", &["Equivalent", "Exact"]);
    one_of("sideEffects", &NO_SIDE_EFFECTS);
    if webhook.get("sideEffects").is_none_or(Value::is_null) {
        let why = format!("must specify one of {}", NO_SIDE_EFFECTS.join(", "));
        errors.push(FieldError::required(format!("{place}.sideEffects"), why));
    }
    let timeout = webhook.get("timeoutSeconds").and_then(Value::as_i64);
    if let Some(seconds) = timeout.filter(|seconds| !(1..=30).contains(seconds)) {
        errors.push(FieldError::invalid(
            format!("{place}.timeoutSeconds"),
            seconds,
            "the timeout value must be between 1 and 30 seconds",
        ));
    }
    for field in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = webhook.get(field) {
            errors.extend(label_selector(selector, &format!("{place}.{field}")));
        }
    }
    let reinvocation = webhook.get("reinvocationPolicy").and_then(Value::as_str);
    let known = ["IfNeeded", "Never"];
    if let Some(given) = reinvocation.filter(|given| mutates && !known.contains(given)) {
        let field = format!("{place}.reinvocationPolicy");
        errors.push(FieldError::not_supported(field, given, known));
    }
    let config = webhook.get("clientConfig").unwrap_or(&Value::Null);
    errors.extend(client_config(config, &format!("{place}.clientConfig")));
    errors
}

/// Errors in a name that must be a domain with three segments.
fn fully_qualified(name: &str, place: &str) -> Vec<FieldError> {
    if name.is_empty() {
        return vec![FieldError::required(place, "")];
    }
    let wrong = dns1123_subdomain(name);
    let why = match wrong.is_empty() {
        false => wrong.join(","),
        true if name.split('.').count() < 3 => {
            "should be a domain with at least three segments separated by dots".to_owned()
        }
        true => return Vec::new(),
    };
    vec![FieldError::invalid(place, name, why)]
}

fn strings<'a>(value: &'a Value, field: &str) -> Vec<&'a str> {
    items(value, field).iter().map(|item| item.as_str().unwrap_or_default()).collect()
}

fn reviews(webhook: &Value, place: &str) -> Vec<FieldError> {
    let versions = strings(webhook, "admissionReviewVersions");
    if versions.is_empty() {
        let why = format!("must specify one of {}", REVIEWS.join(", "));
        return vec![FieldError::required(place, why)];
    }
    let mut errors = Vec::new();
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        let field = format!("{place}[{index}]");
        if seen.insert(version) {
            errors.extend(all_invalid(&field, version, dns1035_label(version)));
        } else {
            errors.push(FieldError::invalid(field, *version, "duplicate version"));
        }
    }
    if !versions.iter().any(|version| REVIEWS.contains(version)) {
        let why = format!("must include at least one of {}", REVIEWS.join(", "));
        errors.push(FieldError::invalid(place, &versions[..], why));
    }
    errors
}
