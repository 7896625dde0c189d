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
const PARAMETERS: [Parameter; 38] = [
    of(
        "allowWatchBookmarks",
        "boolean",
        "Send bookmarks: events that only say how far a watch is.",
    ),
    of("command", "string", "The command to run, a word at a time."),
    of("container", "string", "Name of the container; that of the only one if absent."),
    of("continue", "string", "The token from the metadata of the page before."),
    of("dryRun", "string", "All: process the request without storing anything."),
    of(
        "fieldManager",
        "string",
        "Owner of the fields that the request sets; required by an apply.",
    ),
    of("fieldSelector", "string", "Restricts objects by fields, such as metadata.name=a."),
    of("fieldValidation", "string", "Unknown or duplicate fields: Ignore, Warn or Strict."),
    of("follow", "boolean", "Send what is written later, too."),
    of("force", "boolean", "Takes fields from other managers; applies only."),
    of("gracePeriodSeconds", "integer", "Seconds until the deletion; 0 deletes at once."),
    of(
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "boolean",
        "Delete also what cannot be read from storage.",
    ),
    of(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "Do not verify the certificate of the kubelet; the log may be another one.",
    ),
    of("labelSelector", "string", "Restricts objects by labels, such as a=b,c notin (d)."),
    of("limit", "integer", "Items per page; further ones by the token in its metadata."),
    of("limitBytes", "integer", "Bytes after which the log ends."),
    of("name", "string", "Name of the object."),
    of("namespace", "string", "Namespace of the object."),
    of("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    of("path", "string", "Path of the request to forward."),
    of("ports", "integer", "Ports to forward; needed over websockets."),
    of("pretty", "string", "true: indent the response."),
    of("previous", "boolean", "The log of the container before its last restart."),
    of("propagationPolicy", "string", "Dependents: Orphan, Background or Foreground."),
    of("resourceVersion", "string", "The version to read, or to watch from."),
    of("resourceVersionMatch", "string", "What resourceVersion means: Exact or NotOlderThan."),
    of("sendInitialEvents", "boolean", "Begin a watch with the existing objects."),
    of("shardSelector", "string", "Restricts objects by a shard of their hashes."),
    of("sinceSeconds", "integer", "Seconds before now at which the log begins."),
    of("stderr", "boolean", "Connect standard error."),
    of("stdin", "boolean", "Connect standard input."),
    of("stdout", "boolean", "Connect standard output."),
    of("stream", "string", "Which output the log has: All, Stdout or Stderr."),
    of("tailLines", "integer", "Lines at the end of the log to begin with."),
    of("timeoutSeconds", "integer", "Seconds until a list or watch ends."),
    of("timestamps", "boolean", "Begin each line with its time."),
    of("tty", "boolean", "Allocate a terminal."),
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

/// Parameters of many operations. Old versions of kubectl look into the operations for `dryRun` and
/// `fieldValidation`.
fn is_shared(name: &str) -> bool {
    const OF_CONNECTIONS: [&str; 16] = [
        "command",
        "container",
        "follow",
        "insecureSkipTLSVerifyBackend",
        "limitBytes",
        "path",
        "ports",
        "previous",
        "sinceSeconds",
        "stderr",
        "stdin",
        "stdout",
        "stream",
        "tailLines",
        "timestamps",
        "tty",
    ];
    !matches!(name, "name" | "dryRun" | "fieldValidation") && !OF_CONNECTIONS.contains(&name)
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
