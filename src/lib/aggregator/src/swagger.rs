//! OpenAPI v2 documents of aggregated servers: restricted to a group version, and merged into ours.
//!
//! kube-aggregator's rules: the first document wins. An existing path is dropped, with the
//! definitions used only by it; a definition or parameter with the name of a different one is
//! renamed (`_v2`, `_v3`, ..); equal definitions become one with the kinds of both.

mod types;

use crate::service::text;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::json as codec;
use std::collections::{HashMap, HashSet};
use std::mem::take;
use types::{SwaggerType, are_readable};

const DEFINITION: &str = "#/definitions/";
const PARAMETER: &str = "#/parameters/";
const KINDS: &str = "x-kubernetes-group-version-kind";

/// The parts of a document that are merged.
#[derive(Clone, Debug, Default, PartialEq)]
struct Swagger {
    paths: Map,
    definitions: Map,
    parameters: Map,
}

/// A server's document restricted to its group version; `None` if nothing is left, or clients could
/// not read it.
pub(crate) fn restricted(document: &[u8], group: &str, version: &str) -> Option<Vec<u8>> {
    if group.is_empty() {
        return None;
    }
    let prefix = format!("/apis/{group}/{version}/");
    let mut swagger = Swagger::take(&mut codec::read_value(document).ok()?);
    swagger.keep_paths(|path| path.starts_with(&prefix));
    if swagger.paths.is_empty() || !swagger.is_readable() {
        return None;
    }
    let mut value = Value::Object(Map::new());
    swagger.put(&mut value);
    Some(codec::to_vec(&value))
}

/// Merges documents of aggregated servers into ours, the most important one first.
pub fn merge<'a>(document: &mut Value, others: impl IntoIterator<Item = &'a [u8]>) {
    let mut merged = Swagger::take(document);
    for other in others {
        if let Ok(mut other) = codec::read_value(other) {
            merged.add(Swagger::take(&mut other));
        }
    }
    merged.put(document);
}

impl Swagger {
    /// Leaves the rest of the document.
    fn take(document: &mut Value) -> Self {
        let mut part = |name: &str| {
            let part = document.as_object_mut().and_then(|fields| fields.remove(name));
            if let Some(Value::Object(part)) = part { part } else { Map::new() }
        };
        Self {
            paths: part("paths"),
            definitions: part("definitions"),
            parameters: part("parameters"),
        }
    }

    fn put(self, document: &mut Value) {
        let Some(fields) = document.as_object_mut() else { return };
        fields.insert("paths", Value::Object(self.paths));
        fields.insert("definitions", Value::Object(self.definitions));
        if !self.parameters.is_empty() {
            fields.insert("parameters", Value::Object(self.parameters));
        }
    }

    fn is_readable(&self) -> bool {
        let paths = self.paths.values().map(|path| (path, SwaggerType::PathItem));
        let definitions = self.definitions.values().map(|one| (one, SwaggerType::Schema));
        let parameters = self.parameters.values().map(|one| (one, SwaggerType::Parameter));
        are_readable(paths.chain(definitions).chain(parameters))
    }

    /// Drops the other paths, and definitions that only these used.
    fn keep_paths(&mut self, keep: impl Fn(&str) -> bool) {
        let before = self.used();
        self.paths.retain(|path, _| keep(path));
        let after = self.used();
        self.definitions.retain(|name, _| {
            let name = name.as_str();
            after.contains(name) || !before.contains(name)
        });
    }

    /// Names of the definitions that paths refer to, directly or not.
    fn used(&self) -> HashSet<String> {
        let mut seen: HashSet<&str> = HashSet::new();
        let mut open: Vec<&Value> = self.paths.values().collect();
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => {
                    for (name, field) in fields {
                        match field.as_str() {
                            Some(reference) if name == "$ref" => {
                                if seen.insert(reference) {
                                    open.extend(self.target(reference));
                                }
                            }
                            _ => open.push(field),
                        }
                    }
                }
                _ => {}
            }
        }
        seen.into_iter()
            .filter_map(|reference| reference.strip_prefix(DEFINITION))
            .map(str::to_owned)
            .collect()
    }

    fn target(&self, reference: &str) -> Option<&Value> {
        if let Some(name) = reference.strip_prefix(DEFINITION) {
            return self.definitions.get(name);
        }
        self.parameters.get(reference.strip_prefix(PARAMETER)?)
    }

    fn add(&mut self, mut other: Self) {
        if other.paths.keys().any(|path| self.paths.contains_key(path)) {
            other.keep_paths(|path| !self.paths.contains_key(path));
        }
        if other.paths.is_empty() {
            return;
        }
        let renamed = renames(&self.definitions, &other.definitions, is_same_definition);
        other.refer(DEFINITION, &renamed);
        rename(&mut other.definitions, &renamed);
        let renamed = renames(&self.parameters, &other.parameters, |one, two| one == two);
        other.refer(PARAMETER, &renamed);
        rename(&mut other.parameters, &renamed);
        for (name, definition) in other.definitions {
            match self.definitions.get_mut(&name) {
                Some(known) => add_kinds(known, &definition),
                None => _ = self.definitions.insert(name, definition),
            }
        }
        for (name, parameter) in other.parameters {
            self.parameters.entry(name).or_insert(parameter);
        }
        for (path, item) in other.paths {
            self.paths.insert(path, item);
        }
    }

    /// Makes references follow a renaming.
    fn refer(&mut self, prefix: &str, renamed: &HashMap<String, String>) {
        if renamed.is_empty() {
            return;
        }
        let parts = [&mut self.paths, &mut self.definitions, &mut self.parameters];
        let mut open: Vec<&mut Value> = parts.into_iter().flat_map(Map::values_mut).collect();
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items.iter_mut()),
                Value::Object(fields) => {
                    for (name, field) in fields.iter_mut() {
                        let next = field
                            .as_str()
                            .filter(|_| name == "$ref")
                            .and_then(|reference| renamed.get(reference.strip_prefix(prefix)?));
                        match next {
                            Some(next) => *field = Value::from(format!("{prefix}{next}")),
                            None => open.push(field),
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// New names of those that stand for something else in `known`.
fn renames(
    known: &Map,
    added: &Map,
    is_same: fn(&Value, &Value) -> bool,
) -> HashMap<String, String> {
    let mut renamed = HashMap::new();
    let mut taken = HashSet::new();
    for (name, value) in added {
        if known.get(name).is_none_or(|known| is_same(known, value)) {
            continue;
        }
        let mut number = 2;
        let next = loop {
            let next = format!("{name}_v{number}");
            let is_free = match known.get(&next) {
                Some(known) => is_same(known, value),
                None => !added.contains_key(&next) && taken.insert(next.clone()),
            };
            if is_free {
                break next;
            }
            number += 1;
        };
        renamed.insert(name.to_string(), next);
    }
    renamed
}

fn rename(part: &mut Map, renamed: &HashMap<String, String>) {
    if renamed.is_empty() {
        return;
    }
    for (name, value) in take(part) {
        match renamed.get(name.as_str()) {
            Some(next) => part.insert(next.as_str(), value),
            None => part.insert(name, value),
        };
    }
}

/// Whether they differ at most in the kinds that have them.
fn is_same_definition(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else {
        return one == other;
    };
    let rest = |fields: &Map| fields.len() - usize::from(fields.contains_key(KINDS));
    rest(one) == rest(other)
        && one.iter().all(|(name, value)| name == KINDS || other.get(name) == Some(value))
}

/// Adds the kinds of an equal definition, in kube-aggregator's order.
fn add_kinds(known: &mut Value, added: &Value) {
    let Some(fields) = known.as_object_mut() else { return };
    let Some(Value::Array(added)) = added.get(KINDS) else { return };
    let Some(Value::Array(kinds)) = fields.get_mut(KINDS) else {
        if !fields.contains_key(KINDS) {
            fields.insert(KINDS, Value::Array(added.clone()));
        }
        return;
    };
    let before = kinds.len();
    for kind in added {
        if !kinds.contains(kind) {
            kinds.push(kind.clone());
        }
    }
    if kinds.len() > before {
        let part = |kind: &Value, field| text(kind, field).to_owned();
        kinds.sort_by_cached_key(|kind| {
            format!("{}/{}.{}", part(kind, "group"), part(kind, "version"), part(kind, "kind"))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn path(definition: &str) -> Value {
        json!({"get": {"responses": {"200": {"schema": {"$ref": format!("#/definitions/{definition}")}}}}})
    }

    fn merged(ours: &Value, others: &[Value]) -> Value {
        let mut document = ours.clone();
        let others: Vec<Vec<u8>> = others.iter().map(codec::to_vec).collect();
        merge(&mut document, others.iter().map(Vec::as_slice));
        document
    }

    fn ours() -> Value {
        json!({
            "swagger": "2.0", "info": {"title": "ours"},
            "paths": {"/api/": path("Meta")},
            "definitions": {"Meta": {"type": "object", KINDS: [{"group": "b", "version": "v1", "kind": "K"}]}},
        })
    }

    #[test]
    fn only_the_group_version_is_left_with_what_it_uses() {
        let document = json!({
            "swagger": "2.0",
            "paths": {"/apis/ex.com/v1/things": path("Thing"), "/apis/ex.com/v10/things": path("Other"), "/api/v1/pods": path("Pod"), "/version": {}},
            "definitions": {
                "Thing": {"properties": {"next": {"$ref": "#/definitions/Thing"}, "meta": {"items": {"$ref": "#/definitions/Meta"}}}},
                "Meta": {"type": "object"}, "Other": {}, "Pod": {"properties": {"m": {"$ref": "#/definitions/Meta"}}}, "Never": {},
            },
        });
        let left = restricted(&codec::to_vec(&document), "ex.com", "v1").unwrap();
        let left = codec::read_value(&left).unwrap();
        let names = |part: &str| -> Vec<String> {
            left[part].as_object().unwrap().keys().map(ToString::to_string).collect()
        };
        assert_eq!(names("paths"), ["/apis/ex.com/v1/things"]);
        assert_eq!(names("definitions"), ["Meta", "Never", "Thing"], "what nothing used stays");
        assert_eq!(restricted(&codec::to_vec(&document), "ex.com", "v2"), None);
        assert_eq!(restricted(&codec::to_vec(&document), "", "v1"), None);
        for broken in [&b"<html>"[..], b"[]", b"{\"paths\": [1]}", b""] {
            assert_eq!(restricted(broken, "ex.com", "v1"), None);
        }
    }

    #[test]
    fn fault_33_a_document_that_clients_cannot_read_is_left_out() {
        let document = |definition: Value, operation: Value| {
            let document = json!({"paths": {"/apis/ex.com/v1/t": {"get": operation}}, "definitions": {"T": definition}});
            restricted(&codec::to_vec(&document), "ex.com", "v1")
        };
        let (schema, operation) = (json!({"type": "object"}), json!({"responses": {}}));
        assert!(document(schema.clone(), operation.clone()).is_some());
        let whole = json!({
            "type": ["object", "null"], "required": ["a"], "properties": {"a": {"items": {"maxLength": 3}, "default": null}},
            "additionalProperties": false, KINDS: [{"group": "", "version": "v1", "kind": "T"}], "x-other": [1], "example": 7,
        });
        assert!(document(whole, operation.clone()).is_some());
        for wrong in [
            json!("T"),
            json!({"type": 5}),
            json!({"properties": []}),
            json!({"properties": {"a": {"items": {"description": {}}}}}),
            json!({"allOf": [{"required": "a"}]}),
            json!({"additionalProperties": "x"}),
            json!({"maxLength": 1.5}),
            json!({KINDS: [{"group": "", "version": "v1"}]}),
        ] {
            assert_eq!(document(wrong.clone(), operation.clone()), None, "{wrong}");
        }
        for wrong in [
            json!([]),
            json!({"responses": {"200": "OK"}}),
            json!({"parameters": [{"name": 1}]}),
            json!({"tags": [1]}),
        ] {
            assert_eq!(document(schema.clone(), wrong.clone()), None, "{wrong}");
        }
    }

    #[test]
    fn a_definition_with_the_name_of_another_is_renamed() {
        let thing = |meta: &str| {
            json!({
                "paths": {"/apis/ex.com/v1/things": path("Thing")},
                "definitions": {"Thing": {"properties": {"m": {"$ref": "#/definitions/Meta"}}}, "Meta": {"type": meta}},
            })
        };
        let out = merged(&ours(), &[thing("string")]);
        assert_eq!(out["definitions"]["Meta"]["type"], "object");
        assert_eq!(out["definitions"]["Meta_v2"], json!({"type": "string"}));
        let reference = &out["definitions"]["Thing"]["properties"]["m"]["$ref"];
        assert_eq!(*reference, "#/definitions/Meta_v2");
        assert_eq!(out["paths"]["/apis/ex.com/v1/things"], path("Thing"));
        assert_eq!((&out["swagger"], &out["info"]["title"]), (&json!("2.0"), &json!("ours")));

        // The same again uses the renamed one, a third meaning gets a new name. What refers to
        // them differs from what has been renamed, as in kube-aggregator.
        let mut again = thing("string");
        again["paths"] = json!({"/apis/ex.com/v2/things": path("Thing")});
        let mut third = thing("number");
        third["paths"] = json!({"/apis/ex.com/v3/things": path("Thing")});
        let out = merged(&ours(), &[thing("string"), again, third]);
        let names: Vec<String> =
            out["definitions"].as_object().unwrap().keys().map(ToString::to_string).collect();
        assert_eq!(names, ["Meta", "Meta_v2", "Meta_v3", "Thing", "Thing_v2", "Thing_v3"]);
        for (version, meta) in [("v2", "Meta_v2"), ("v3", "Meta_v3")] {
            let thing = format!("Thing_{version}");
            assert_eq!(
                out["paths"][format!("/apis/ex.com/{version}/things").as_str()],
                path(&thing)
            );
            let reference = &out["definitions"][thing.as_str()]["properties"]["m"]["$ref"];
            assert_eq!(*reference, format!("#/definitions/{meta}").as_str());
        }
    }

    #[test]
    fn equal_definitions_are_one_with_the_kinds_of_both() {
        let other = json!({
            "paths": {"/apis/ex.com/v1/things": path("Meta")},
            "definitions": {"Meta": {"type": "object", KINDS: [
                {"group": "a", "version": "v1", "kind": "K"}, {"group": "b", "version": "v1", "kind": "K"},
            ]}},
        });
        let out = merged(&ours(), &[other]);
        let kinds = json!([{"group": "a", "version": "v1", "kind": "K"}, {"group": "b", "version": "v1", "kind": "K"}]);
        assert_eq!(out["definitions"], json!({"Meta": {"type": "object", KINDS: kinds}}));
    }

    #[test]
    fn the_first_of_two_equal_paths_wins() {
        let other = json!({
            "paths": {"/api/": path("Evil"), "/apis/ex.com/v1/things": {"parameters": [{"$ref": "#/parameters/p"}]}},
            "definitions": {"Evil": {"type": "string"}},
            "parameters": {"p": {"name": "p", "in": "query"}},
        });
        let out = merged(&ours(), std::slice::from_ref(&other));
        assert_eq!(out["paths"]["/api/"], path("Meta"));
        assert_eq!(out["definitions"].get("Evil"), None, "only the dropped path used it");
        assert_eq!(out["parameters"], other["parameters"]);
        let mut renamed = other.clone();
        renamed["paths"] =
            json!({"/apis/ex.com/v2/things": {"parameters": [{"$ref": "#/parameters/p"}]}});
        renamed["parameters"]["p"]["in"] = json!("path");
        let out = merged(&ours(), &[other, renamed]);
        let reference = &out["paths"]["/apis/ex.com/v2/things"]["parameters"][0]["$ref"];
        assert_eq!(*reference, "#/parameters/p_v2");
    }
}
