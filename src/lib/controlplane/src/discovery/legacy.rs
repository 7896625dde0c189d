//! Unaggregated discovery: `APIVersions`, `APIGroupList`, `APIGroup`, `APIResourceList`.

use super::groups::{Group, Resource, ServedVersion};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::Subresource;

fn object(value: Value) -> Document {
    Document::from_value(value).expect("an object literal")
}

/// `/api`
pub(super) fn core(groups: &[Group], host: &str) -> Document {
    let versions: Vec<&str> = groups
        .iter()
        .filter(|group| group.name.is_empty())
        .flat_map(|group| &group.versions)
        .map(|version| version.name.as_str())
        .collect();
    object(json!({
        "kind": "APIVersions",
        "versions": versions,
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
    }))
}

/// `/apis`
pub(super) fn groups(groups: &[Group]) -> Document {
    let groups: Vec<Value> =
        groups.iter().filter(|group| !group.name.is_empty()).map(group_value).collect();
    object(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

/// `/apis/<group>`
pub(super) fn group(group: &Group) -> Document {
    let mut document = object(group_value(group));
    document.set(&["kind"], "APIGroup");
    document.set(&["apiVersion"], "v1");
    document
}

fn group_value(group: &Group) -> Value {
    let versions: Vec<Value> =
        group.versions.iter().map(|version| json!({"groupVersion": format!("{}/{}", group.name, version.name), "version": version.name})).collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

/// `/apis/<group>/<version>`
pub(super) fn resources(group: &str, version: &ServedVersion) -> Document {
    let mut list = Vec::new();
    for resource in &version.resources {
        list.push(main(resource));
        let mut subresources: Vec<&Subresource> =
            resource.definition.versions[resource.version].subresources.iter().collect();
        // For custom resources kube-apiserver lists status before scale.
        if !resource.definition.dialect.is_discovered_by_controller() {
            subresources.sort_by_key(|subresource| subresource.name);
        }
        list.extend(subresources.into_iter().map(|subresource| sub(resource, subresource)));
    }
    let group_version =
        if group.is_empty() { version.name.clone() } else { format!("{group}/{}", version.name) };
    let mut document = object(
        json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list}),
    );
    if !group.is_empty() {
        // No apiVersion in the core group's list, for the oldest clients.
        document.set(&["apiVersion"], "v1");
    }
    document
}

fn main(resource: &Resource) -> Value {
    let definition = &resource.definition;
    let mut entry = object(json!({
        "name": definition.plural,
        "singularName": definition.singular,
        "namespaced": resource.namespaced(),
        "kind": definition.kind,
        "verbs": Resource::verbs(definition),
    }));
    if !definition.short_names.is_empty() {
        entry.set(&["shortNames"], definition.short_names.clone());
    }
    if !definition.categories.is_empty() {
        entry.set(&["categories"], definition.categories.clone());
    }
    if !resource.storage_hash.is_empty() {
        entry.set(&["storageVersionHash"], resource.storage_hash.as_str());
    }
    entry.into_value()
}

fn sub(resource: &Resource, subresource: &Subresource) -> Value {
    let definition = &resource.definition;
    let mut entry = object(json!({
        "name": format!("{}/{}", definition.plural, subresource.name),
        "singularName": "",
        "namespaced": resource.namespaced(),
        "kind": subresource.kind.kind,
        "verbs": Resource::words(subresource.verbs),
    }));
    if subresource.kind.group != definition.group
        || subresource.kind.version != definition.versions[resource.version].name
    {
        entry.set(&["group"], subresource.kind.group.as_str());
        entry.set(&["version"], subresource.kind.version.as_str());
    }
    entry.into_value()
}
