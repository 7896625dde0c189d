//! Definitions in `apiextensions.k8s.io/v1beta1`, which kube-apiserver stores to this day.
//!
//! Fields common to all versions are at the top of `spec`; only differing ones are in the versions.

use super::fields::versions;
use ferrokube_apimachinery::document::{Document, Map, Value, json};

const FORMER: &str = "apiextensions.k8s.io/v1beta1";
/// Fields of a version which are at the top of `spec` if all versions have the same, as (there, in
/// the version).
const SHARED: [(&str, &str); 4] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

/// As kube-apiserver converts and defaults it.
pub(super) fn restore(object: &mut Document) {
    if object.api_version() != FORMER {
        return;
    }
    object.set(&["apiVersion"], "apiextensions.k8s.io/v1");
    if object.get(&["spec", "preserveUnknownFields"]).is_none_or(Value::is_null) {
        object.set(&["spec", "preserveUnknownFields"], true);
    }
    if object.str(&["spec", "scope"]).unwrap_or_default().is_empty() {
        object.set(&["spec", "scope"], "Namespaced");
    }
    restore_versions(object);
    restore_conversion(object);
    if object.get(&["spec", "preserveUnknownFields"]) == Some(&Value::Bool(false)) {
        object.remove(&["spec", "preserveUnknownFields"]);
    }
}

fn restore_versions(object: &mut Document) {
    let name = object.str(&["spec", "version"]).unwrap_or_default().to_owned();
    if versions(object).is_empty() && !name.is_empty() {
        let only = json!({"name": name, "served": true, "storage": true});
        object.set(&["spec", "versions"], vec![only]);
    }
    object.remove(&["spec", "version"]);
    let shared = SHARED.map(|(top, own)| {
        let value = object.get(&["spec", top]).filter(|value| !value.is_null()).cloned();
        object.remove(&["spec", top]);
        (own, value)
    });
    let Some(Value::Array(listed)) = object.get_mut(&["spec", "versions"]) else { return };
    for version in listed.iter_mut().filter_map(Value::as_object_mut) {
        for (field, value) in &shared {
            if let Some(value) = value {
                version.insert(*field, value.clone());
            }
        }
        rename_paths(version);
    }
}

/// A column's `JSONPath` is its `jsonPath`.
fn rename_paths(version: &mut Map) {
    let Some(Value::Array(columns)) = version.get_mut("additionalPrinterColumns") else { return };
    for column in columns.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(path) = column.remove("JSONPath") {
            column.insert("jsonPath", path);
        }
    }
}

fn restore_conversion(object: &mut Document) {
    let Some(Value::Object(conversion)) = object.get_mut(&["spec", "conversion"]) else { return };
    let mut take = |field: &str| conversion.remove(field).filter(|value| !value.is_null());
    let client = take("webhookClientConfig");
    let reviews = take("conversionReviewVersions");
    let is_webhook = conversion.get("strategy").and_then(Value::as_str) == Some("Webhook");
    if client.is_none() && reviews.is_none() {
        return;
    }
    let mut webhook = Map::new();
    if let Some(client) = client {
        webhook.insert("clientConfig", client);
    }
    let reviews = reviews.or_else(|| is_webhook.then(|| json!(["v1beta1"])));
    webhook.insert("conversionReviewVersions", reviews.unwrap_or_else(|| json!([])));
    conversion.insert("webhook", Value::Object(webhook));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(spec: Value) -> Value {
        let object =
            json!({"apiVersion": FORMER, "kind": "CustomResourceDefinition", "spec": spec});
        let mut object = Document::from_value(object).unwrap();
        restore(&mut object);
        assert_eq!(object.api_version(), "apiextensions.k8s.io/v1");
        object.get(&["spec"]).unwrap().clone()
    }

    #[test]
    fn fields_that_versions_share_are_given_to_each() {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let spec = json!({
            "group": "example.com",
            "scope": "Cluster",
            "version": "v1",
            "versions": [
                {"name": "v1", "served": true, "storage": true},
                {"name": "v2", "served": true, "storage": false},
            ],
            "validation": schema,
            "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "JSONPath": ".spec.size"}],
            "selectableFields": [{"jsonPath": ".spec.size"}],
            "preserveUnknownFields": false,
        });
        let version = |name: &str, storage: bool| {
            json!({
                "name": name,
                "served": true,
                "storage": storage,
                "schema": schema,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "selectableFields": [{"jsonPath": ".spec.size"}],
            })
        };
        let expected = json!({
            "group": "example.com",
            "scope": "Cluster",
            "versions": [version("v1", true), version("v2", false)],
        });
        assert_eq!(restored(spec), expected);
    }

    #[test]
    fn fields_that_versions_differ_in_stay_theirs() {
        let versions = |columns: Value| {
            json!([
                {"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns},
                {"name": "v2", "served": true, "storage": false, "subresources": {"scale": {}}},
            ])
        };
        let former = json!([{"name": "Size", "type": "integer", "JSONPath": ".spec.size"}]);
        let today = json!([{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]);
        let spec = json!({"scope": "Cluster", "versions": versions(former), "preserveUnknownFields": false});
        let expected = json!({"scope": "Cluster", "versions": versions(today)});
        assert_eq!(restored(spec), expected);
    }

    #[test]
    fn defaults_are_those_of_the_former_version() {
        let expected = json!({
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true}],
            "preserveUnknownFields": true,
        });
        assert_eq!(restored(json!({"version": "v1"})), expected);
    }

    #[test]
    fn a_webhook_has_a_place_of_its_own() {
        let spec = |conversion: Value| json!({"versions": [], "scope": "Cluster", "preserveUnknownFields": true, "conversion": conversion});
        for (former, conversion) in [
            (json!({"strategy": "None"}), json!({"strategy": "None"})),
            (
                json!({"strategy": "Webhook", "webhookClientConfig": {"url": "u"}, "conversionReviewVersions": ["v1"]}),
                json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "u"}, "conversionReviewVersions": ["v1"]}}),
            ),
            (
                json!({"strategy": "Webhook", "webhookClientConfig": {"url": "u"}}),
                json!({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "u"}, "conversionReviewVersions": ["v1beta1"]}}),
            ),
        ] {
            assert_eq!(restored(spec(former)), spec(conversion));
        }
    }
}
