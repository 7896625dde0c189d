//! Parameters of operations.

use super::names::SpecVersion;
use ferrokube_apimachinery::document::{Map, Value, json};

/// A parameter of the query or the path.
struct Parameter {
    name: &'static str,
    /// `boolean`, `integer` or `string`.
    kind: &'static str,
    description: &'static str,
}

const fn of(name: &'static str, kind: &'static str, description: &'static str) -> Parameter {
    Parameter { name, kind, description }
}

/// In order of names.
const PARAMETERS: [Parameter; 22] = [
    of(
        "allowWatchBookmarks",
        "boolean",
        "Send bookmarks: events that only say how far a watch is.",
    ),
    of("continue", "string", "The token from the metadata of the page before."),
    of("dryRun", "string", "All: process the request without storing anything."),
    of(
        "fieldManager",
        "string",
        "Owner of the fields that the request sets; required by an apply.",
    ),
    of("fieldSelector", "string", "Restricts objects by fields, such as metadata.name=a."),
    of("fieldValidation", "string", "Unknown or duplicate fields: Ignore, Warn or Strict."),
    of("force", "boolean", "Takes fields from other managers; applies only."),
    of("gracePeriodSeconds", "integer", "Seconds until the deletion; 0 deletes at once."),
    of(
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Delete also what cannot be read from storage.",
    ),
    of("labelSelector", "string", "Restricts objects by labels, such as a=b,c notin (d)."),
    of("limit", "integer", "Items per page; further ones by the token in its metadata."),
    of("name", "string", "Name of the object."),
    of("namespace", "string", "Namespace of the object."),
    of("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    of("pretty", "string", "true: indent the response."),
    of("propagationPolicy", "string", "Dependents: Orphan, Background or Foreground."),
    of("resourceVersion", "string", "The version to read, or to watch from."),
    of("resourceVersionMatch", "string", "What resourceVersion means: Exact or NotOlderThan."),
    of("sendInitialEvents", "boolean", "Begin a watch with the existing objects."),
    of("shardSelector", "string", "Restricts objects by a shard of their hashes."),
    of("timeoutSeconds", "integer", "Seconds until a list or watch ends."),
    of("watch", "boolean", "Watch for changes instead of listing."),
];

/// A parameter where it is used; `place` is `query` or `path`. Version 2 refers to shared ones.
pub(super) fn parameter(name: &'static str, place: &str, version: SpecVersion) -> Value {
    if version == SpecVersion::V2 && is_shared(name) {
        return json!({"$ref": format!("#/parameters/{name}")});
    }
    whole(name, place, version)
}

fn whole(name: &str, place: &str, version: SpecVersion) -> Value {
    let known = PARAMETERS.iter().find(|known| known.name == name);
    let (kind, description) = known.map_or(("string", ""), |known| (known.kind, known.description));
    let mut parameter = json!({"name": name, "in": place, "description": description});
    let schema = json!({"type": kind, "uniqueItems": true});
    match version {
        SpecVersion::V2 => {
            parameter["type"] = kind.into();
            parameter["uniqueItems"] = true.into();
        }
        SpecVersion::V3 => parameter["schema"] = schema,
    }
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

/// Old versions of kubectl look into the operations for `dryRun` and `fieldValidation`.
fn is_shared(name: &str) -> bool {
    !matches!(name, "name" | "dryRun" | "fieldValidation")
}

/// The shared parameters of version 2.
pub(super) fn shared() -> Map {
    let shared = PARAMETERS.iter().filter(|parameter| is_shared(parameter.name));
    let place = |name: &str| if name == "namespace" { "path" } else { "query" };
    shared
        .map(|parameter| {
            let name = parameter.name;
            (name.to_owned(), whole(name, place(name), SpecVersion::V2))
        })
        .collect()
}
