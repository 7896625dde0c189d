//! Aggregated discovery (`apidiscovery.k8s.io`): everything in one document.

use super::groups::{Group, GroupVersion, Resource};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_apimachinery::json as codec;

/// The document of `/api` (`core`) or `/apis`.
pub(super) fn write(groups: &[Group], core: bool, version: &str) -> Vec<u8> {
    let items: Vec<Value> = groups.iter().filter(|group| group.name.is_empty() == core).map(group).collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    });
    let mut bytes = codec::write(&Document::from_value(list).expect("an object literal")).0;
    bytes.push(b'\n');
    bytes
}

/// Its media type.
pub(super) fn media_type(version: &str) -> &'static str {
    if version == "v2beta1" {
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
    } else {
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    }
}

fn group(group: &Group) -> Value {
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    json!({"metadata": metadata, "versions": group.versions.iter().map(version).collect::<Vec<_>>()})
}

fn version(version: &GroupVersion) -> Value {
    json!({"version": version.name, "resources": version.resources.iter().map(resource).collect::<Vec<_>>(), "freshness": "Current"})
}

fn kind(gvk: &GroupVersionKind) -> Value {
    json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind})
}

fn resource(resource: &Resource) -> Value {
    let definition = &resource.definition;
    let mut entry = Document::from_value(json!({
        "resource": definition.plural,
        "responseKind": kind(&definition.gvk(resource.version)),
        "scope": if resource.namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": definition.singular,
        "verbs": Resource::verbs(definition),
    }))
    .expect("an object literal");
    if !definition.short_names.is_empty() {
        entry.set(&["shortNames"], definition.short_names.clone());
    }
    if !definition.categories.is_empty() {
        entry.set(&["categories"], definition.categories.clone());
    }
    let mut subresources: Vec<_> = definition.versions[resource.version].subresources.iter().collect();
    subresources.sort_by_key(|subresource| subresource.name);
    let subresources: Vec<Value> = subresources
        .into_iter()
        .map(|subresource| json!({"subresource": subresource.name, "responseKind": kind(&subresource.kind), "verbs": Resource::words(subresource.verbs)}))
        .collect();
    if !subresources.is_empty() {
        entry.set(&["subresources"], subresources);
    }
    entry.into_value()
}
