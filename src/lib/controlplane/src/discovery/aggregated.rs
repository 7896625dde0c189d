//! Aggregated discovery (`apidiscovery.k8s.io`): everything in one document.

use super::groups::{Group, Resource, ServedVersion};
use crate::negotiate::Form;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_apimachinery::work;

pub(super) const MESSAGE: &str = "k8s.io.api.apidiscovery.v2.APIGroupDiscoveryList";

/// The document of `/api` (`core`) or `/apis`.
pub(super) fn document(groups: &[Group], core: bool) -> Document {
    let items: Vec<Value> =
        groups.iter().filter(|group| group.name.is_empty() == core).map(group).collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    Document::from_value(list).expect("an object literal")
}

pub(super) fn media_type(form: Form) -> &'static str {
    match form {
        Form::Json => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Form::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Form::Protobuf => {
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        }
    }
}

fn group(group: &Group) -> Value {
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    json!({"metadata": metadata, "versions": group.versions.iter().map(version).collect::<Vec<_>>()})
}

fn version(version: &ServedVersion) -> Value {
    if let Some(other) = &version.aggregated {
        let freshness = if other.is_current { "Current" } else { "Stale" };
        let mut entry = Document::default();
        entry.set(&["version"], version.name.as_str());
        if !other.resources.is_empty() {
            entry.set(&["resources"], other.resources.to_vec());
        }
        entry.set(&["freshness"], freshness);
        return entry.into_value();
    }
    json!({"version": version.name, "resources": version.resources.iter().map(resource).collect::<Vec<_>>(), "freshness": "Current"})
}

/// kube-apiserver omits a native kind's group and version if they are the resource's own.
fn kind(gvk: &GroupVersionKind, resource: &Resource) -> Value {
    let own = resource.definition.gvk(resource.version);
    if !resource.definition.dialect.is_discovered_by_controller()
        && (&gvk.group, &gvk.version) == (&own.group, &own.version)
    {
        return json!({"group": "", "version": "", "kind": gvk.kind});
    }
    json!({"group": gvk.group, "version": gvk.version, "kind": gvk.kind})
}

fn resource(resource: &Resource) -> Value {
    work::breathe();
    let definition = &resource.definition;
    let mut entry = Document::from_value(json!({
        "resource": definition.plural,
        "responseKind": kind(&definition.gvk(resource.version), resource),
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
    let mut subresources: Vec<_> =
        definition.versions[resource.version].subresources.iter().collect();
    // For custom resources kube-apiserver lists status before scale.
    if !definition.dialect.is_discovered_by_controller() {
        subresources.sort_by_key(|subresource| subresource.name);
    }
    let subresources: Vec<Value> = subresources
        .into_iter()
        .map(|subresource| json!({"subresource": subresource.name, "responseKind": kind(&subresource.kind, resource), "verbs": Resource::words(subresource.verbs)}))
        .collect();
    if !subresources.is_empty() {
        entry.set(&["subresources"], subresources);
    }
    entry.into_value()
}
