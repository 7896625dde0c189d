//! What aggregated servers serve, collected in the background: discovery never waits for them.

use crate::backend::Backend;
use crate::service::text;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_registry::offload::block_in_place;
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
/// Of a whole document.
const DOCUMENT_BYTES: usize = 4 << 20;
/// Interval of looking at OpenAPI documents whose resources do not change: most servers make all
/// of them for the list of hashes.
const OPENAPI_EVERY: Duration = Duration::from_secs(300);
/// Resources of one group version; further ones are dropped.
const MAX_RESOURCES: usize = 2000;

/// An aggregated group version, for discovery.
#[derive(Clone, Debug)]
pub struct AggregatedVersion {
    /// API group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
    /// Of the group among all groups; higher is first.
    pub group_priority: i64,
    /// Of the version in its group; higher is first.
    pub version_priority: i64,
    /// Whether the last request for it succeeded.
    pub is_current: bool,
    /// Entries of aggregated discovery, as last known.
    pub resources: Arc<Vec<Value>>,
    /// Hash of its OpenAPI v3 document, possibly empty; `None`: it has none.
    pub openapi: Option<String>,
}

/// What a server last said about a group version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub(crate) is_current: bool,
    pub(crate) resources: Arc<Vec<Value>>,
    pub(crate) etag: Option<HeaderValue>,
    pub(crate) openapi: Option<String>,
    /// When the next look at the OpenAPI document is due.
    pub(crate) openapi_due: Option<Instant>,
}

/// Collects after a successful check; `listed` is its answer, the unaggregated list of resources.
pub(crate) async fn collect(backend: &Backend, last: &Collected, listed: &[u8]) -> Collected {
    let fetched = backend.fetch("/apis", ACCEPT, last.etag.as_ref(), DOCUMENT_BYTES).await;
    let aggregated = match fetched {
        Ok(fetched) if fetched.status == StatusCode::NOT_MODIFIED && last.etag.is_some() => {
            return with_openapi(backend, Collected { is_current: true, ..last.clone() }).await;
        }
        Ok(fetched) if fetched.status == StatusCode::OK => {
            let is_aggregated = fetched
                .headers
                .get(CONTENT_TYPE)
                .and_then(|value| value.to_str().ok())
                .is_some_and(|value| value.contains("as=APIGroupDiscoveryList"));
            is_aggregated
                .then(|| block_in_place(|| aggregated(backend, &fetched.body)))
                .flatten()
                .map(|resources| (resources, fetched.headers.get(ETAG).cloned()))
        }
        _ => None,
    };
    let (resources, etag) =
        aggregated.unwrap_or_else(|| (block_in_place(|| converted(listed)), None));
    // Equal content stays the same allocation, by which changes are noticed.
    let is_same = resources == *last.resources;
    let resources = if is_same { Arc::clone(&last.resources) } else { Arc::new(resources) };
    let openapi_due = last.openapi_due.filter(|_| is_same);
    let openapi = last.openapi.clone();
    let next = Collected { is_current: true, resources, etag, openapi, openapi_due };
    with_openapi(backend, next).await
}

/// Looks at the OpenAPI document, if that is due.
async fn with_openapi(backend: &Backend, mut collected: Collected) -> Collected {
    let now = Instant::now();
    if collected.openapi_due.is_some_and(|due| now < due) {
        return collected;
    }
    collected.openapi_due = Some(now + OPENAPI_EVERY);
    collected.openapi = backend
        .fetch("/openapi/v3", "application/json", None, DOCUMENT_BYTES)
        .await
        .ok()
        .filter(|fetched| fetched.status == StatusCode::OK)
        .and_then(|fetched| block_in_place(|| openapi_hash(backend, &fetched.body)));
    collected
}

/// The hash of the group version's document in an index; `None` without a document.
fn openapi_hash(backend: &Backend, index: &[u8]) -> Option<String> {
    let index = codec::read(index).ok()?.document;
    let path = format!("apis/{}/{}", backend.group, backend.version);
    let url = index.str(&["paths", &path, "serverRelativeURL"])?;
    let hash = url.split_once("hash=").map_or("", |(_, hash)| hash);
    let is_plain = hash.bytes().all(|byte| byte.is_ascii_alphanumeric()) && hash.len() <= 128;
    Some(if is_plain { hash.to_owned() } else { String::new() })
}

/// The entries of one group version; `None` if the document has none.
fn aggregated(backend: &Backend, bytes: &[u8]) -> Option<Vec<Value>> {
    let document = codec::read(bytes).ok()?.document;
    let group = document.list(&["items"]).iter().find(|item| {
        item.get("metadata").map_or("", |metadata| text(metadata, "name")) == backend.group
    })?;
    let version = list(group, "versions")
        .iter()
        .find(|version| text(version, "version") == backend.version)?;
    Some(list(version, "resources").iter().filter_map(entry).take(MAX_RESOURCES).collect())
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], |items| items.as_slice())
}

/// An entry that clients can read: some fail without a kind.
fn entry(found: &Value) -> Option<Value> {
    let mut entry = Document::from_value(found.clone()).ok()?;
    if entry.str(&["resource"]).unwrap_or_default().is_empty() {
        return None;
    }
    let nameless = || json!({"group": "", "version": "", "kind": ""});
    if entry.get(&["responseKind"]).is_none_or(|kind| !kind.is_object()) {
        entry.set(&["responseKind"], nameless());
    }
    let subresources: Vec<Value> = entry
        .list(&["subresources"])
        .iter()
        .filter_map(|subresource| {
            let mut subresource = Document::from_value(subresource.clone()).ok()?;
            if subresource.get(&["responseKind"]).is_none_or(|kind| !kind.is_object()) {
                subresource.set(&["responseKind"], nameless());
            }
            Some(subresource.into_value())
        })
        .collect();
    if !subresources.is_empty() {
        entry.set(&["subresources"], subresources);
    }
    Some(entry.into_value())
}

/// From the unaggregated `APIResourceList`.
fn converted(listed: &[u8]) -> Vec<Value> {
    let Ok(decoded) = codec::read(listed) else { return Vec::new() };
    let mut entries: Vec<Document> = Vec::new();
    for found in decoded.document.list(&["resources"]).iter().take(MAX_RESOURCES) {
        let name = text(found, "name");
        let (resource, subresource) = name.split_once('/').unwrap_or((name, ""));
        if resource.is_empty() {
            continue;
        }
        let place = entries
            .iter()
            .position(|entry| entry.str(&["resource"]) == Some(resource))
            .unwrap_or_else(|| {
                entries.push(Document::default());
                entries.len() - 1
            });
        let entry = &mut entries[place];
        let namespaced = found.get("namespaced").and_then(Value::as_bool) == Some(true);
        let kind = json!({"group": text(found, "group"), "version": text(found, "version"), "kind": text(found, "kind")});
        let verbs = list(found, "verbs").to_vec();
        if entry.get(&["resource"]).is_none() {
            entry.set(&["resource"], resource);
            entry.set(&["responseKind"], json!({"group": "", "version": "", "kind": ""}));
            entry.set(&["scope"], if namespaced { "Namespaced" } else { "Cluster" });
            entry.set(&["singularResource"], "");
            entry.set(&["verbs"], Vec::<Value>::new());
        }
        if subresource.is_empty() {
            entry.set(&["responseKind"], kind);
            entry.set(&["singularResource"], text(found, "singularName"));
            entry.set(&["verbs"], verbs);
            for field in ["shortNames", "categories"] {
                if !list(found, field).is_empty() {
                    entry.set(&[field], list(found, field).to_vec());
                }
            }
        } else {
            let mut all = entry.list(&["subresources"]).to_vec();
            all.push(json!({"subresource": subresource, "responseKind": kind, "verbs": verbs}));
            entry.set(&["subresources"], all);
        }
    }
    entries.into_iter().map(Document::into_value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unaggregated_list_becomes_entries() {
        let list = br#"{"resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"], "shortNames": ["f"]},
            {"name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": ["update"]},
            {"name": ""}, {"name": "orphans/log", "kind": "Log", "verbs": ["get"]}]}"#;
        let want = json!([
            {"resource": "flunders", "responseKind": {"group": "", "version": "", "kind": "Flunder"}, "scope": "Namespaced",
             "singularResource": "flunder", "verbs": ["get"], "shortNames": ["f"],
             "subresources": [{"subresource": "status", "responseKind": {"group": "", "version": "", "kind": "Flunder"}, "verbs": ["update"]}]},
            {"resource": "orphans", "responseKind": {"group": "", "version": "", "kind": ""}, "scope": "Cluster",
             "singularResource": "", "verbs": [],
             "subresources": [{"subresource": "log", "responseKind": {"group": "", "version": "", "kind": "Log"}, "verbs": ["get"]}]},
        ]);
        assert_eq!(Value::from(converted(list)), want);
        assert_eq!(converted(b"<html>"), Vec::<Value>::new());
    }
}
