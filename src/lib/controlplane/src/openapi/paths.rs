//! Path items of routes.

use super::names::{SpecVersion, reference};
use super::parameters::parameter;
use super::routes::{PublishedRoute, RequestBody};
use ferrokube_apimachinery::document::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The path items of all routes.
pub(super) fn items(routes: &[PublishedRoute], version: SpecVersion) -> Map {
    let mut paths: BTreeMap<&str, Vec<&PublishedRoute>> = BTreeMap::new();
    for route in routes {
        paths.entry(&route.path).or_default().push(route);
    }
    paths
        .into_iter()
        .map(|(path, routes)| (path.to_owned(), item(path, &routes, version)))
        .collect()
}

/// Parameters that all operations have are the path's, as in kube-apiserver.
fn item(path: &str, routes: &[&PublishedRoute], version: SpecVersion) -> Value {
    let in_all = |name: &&'static str| routes.iter().all(|route| route.parameters.contains(name));
    let common: BTreeSet<&'static str> =
        routes.iter().flat_map(|route| route.parameters.iter().copied()).filter(in_all).collect();
    let mut item: Map = routes
        .iter()
        .map(|route| (route.method.to_owned(), operation(route, &common, version)))
        .collect();
    let mut parameters: Vec<(&'static str, &str)> =
        [("{name}", "name"), ("{namespace}", "namespace"), ("{path}", "path")]
            .into_iter()
            .filter(|(variable, _)| path.split('/').any(|segment| segment == *variable))
            .map(|(_, name)| (name, "path"))
            .collect();
    parameters.extend(common.iter().map(|name| (*name, "query")));
    parameters.sort_unstable();
    let parameters: Vec<Value> =
        parameters.into_iter().map(|(name, place)| parameter(name, place, version)).collect();
    if !parameters.is_empty() {
        item.insert("parameters".to_owned(), Value::from(parameters));
    }
    Value::Object(item)
}

fn operation(
    route: &PublishedRoute,
    common: &BTreeSet<&'static str>,
    version: SpecVersion,
) -> Value {
    let mut out = json!({
        "description": route.description,
        "operationId": route.id,
        "tags": [route.tag],
        "responses": responses(route, version),
    });
    if let Some((action, kind)) = &route.action {
        out["x-kubernetes-action"] = (*action).into();
        out["x-kubernetes-group-version-kind"] =
            json!({"group": kind.group, "kind": kind.kind, "version": kind.version});
    }
    let own: BTreeSet<&'static str> =
        route.parameters.iter().copied().filter(|name| !common.contains(name)).collect();
    let mut parameters: Vec<Value> =
        own.into_iter().map(|name| parameter(name, "query", version)).collect();
    match version {
        SpecVersion::V2 => {
            if let Some(body) = &route.body {
                parameters.insert(0, body_parameter(body));
            }
            if !route.consumes.is_empty() {
                out["consumes"] = json!(route.consumes);
            }
            out["produces"] = json!(route.produces);
            out["schemes"] = json!(["https"]);
        }
        SpecVersion::V3 => {
            if let Some(body) = &route.body {
                out["requestBody"] = request_body(body, route.consumes);
            }
        }
    }
    if !parameters.is_empty() {
        out["parameters"] = Value::from(parameters);
    }
    out
}

fn body_parameter(body: &RequestBody) -> Value {
    let schema = reference(SpecVersion::V2, &body.schema);
    let mut parameter = json!({"name": "body", "in": "body", "schema": schema});
    if body.required {
        parameter["required"] = true.into();
    }
    parameter
}

fn request_body(body: &RequestBody, consumes: &[&str]) -> Value {
    let mut out = json!({"content": content(&reference(SpecVersion::V3, &body.schema), consumes)});
    if body.required {
        out["required"] = true.into();
    }
    out
}

/// The same schema in each media type.
fn content(schema: &Value, media_types: &[&str]) -> Value {
    let of = |media_type: &&str| ((*media_type).to_owned(), json!({"schema": schema.clone()}));
    Value::Object(media_types.iter().map(of).collect())
}

fn responses(route: &PublishedRoute, version: SpecVersion) -> Value {
    let schema = match &route.result {
        Some(name) => reference(version, name),
        None => json!({"type": "string"}),
    };
    let mut all: Map = Map::new();
    for code in route.codes {
        let mut response = json!({"description": reason(*code)});
        match version {
            SpecVersion::V2 => response["schema"] = schema.clone(),
            SpecVersion::V3 => response["content"] = content(&schema, route.produces),
        }
        all.insert(code.to_string(), response);
    }
    all.insert("401".to_owned(), json!({"description": reason(401)}));
    Value::Object(all)
}

/// The reason phrase.
fn reason(code: u16) -> &'static str {
    let known = http::StatusCode::from_u16(code).ok();
    known.and_then(|known| known.canonical_reason()).unwrap_or_default()
}
