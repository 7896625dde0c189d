//! Discovery of aggregated servers, collected in the background so that requests never wait for it.

use crate::backend::Backend;
use crate::service::text;
use crate::swagger;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_registry::offload::{INTERNAL, compute};
use http::header::{CONTENT_TYPE, ETAG};
use http::{HeaderValue, StatusCode};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
/// Max bytes of a whole document.
const DOCUMENT_BYTES: usize = 4 << 20;
/// Interval of fetching OpenAPI documents whose resources do not change: most servers make all
/// of them for the list of hashes.
const OPENAPI_EVERY: Duration = Duration::from_secs(300);
/// Resources of one group version; further ones are dropped.
const MAX_RESOURCES: usize = 2000;
/// Strings of a list of an entry, and bytes of one.
const MAX_WORDS: usize = 256;
const MAX_WORD_BYTES: usize = 256;

/// An aggregated group version, for discovery.
#[derive(Clone, Debug)]
pub struct AggregatedVersion {
    /// API group.
    pub group: String,
    /// Such as `v1`.
    pub version: String,
    /// Priority of the group among all groups; higher is first.
    pub group_priority: i64,
    /// Priority of the version in its group; higher is first.
    pub version_priority: i64,
    /// Whether the last request for it succeeded.
    pub is_current: bool,
    /// Entries of aggregated discovery, as last known.
    pub resources: Arc<Vec<Value>>,
    /// Hash of its OpenAPI v3 document, possibly empty; `None`: it has none.
    pub openapi: Option<String>,
}

/// A server's last discovery of a group version.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub(crate) is_current: bool,
    pub(crate) resources: Arc<Vec<Value>>,
    pub(crate) etag: Option<HeaderValue>,
    pub(crate) openapi: Option<String>,
    pub(crate) swagger: Option<CollectedSwagger>,
    /// When to fetch the OpenAPI documents again.
    pub(crate) openapi_due: Option<Instant>,
}

/// The part of a server's OpenAPI v2 document that belongs to the group version. Equal content
/// stays the same allocation, by which changes are noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectedSwagger {
    pub(crate) document: Bytes,
    etag: Option<HeaderValue>,
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
            let found = match is_aggregated {
                true => compute(INTERNAL, || aggregated(backend, &fetched.body)).await,
                false => None,
            };
            found.map(|resources| (resources, fetched.headers.get(ETAG).cloned()))
        }
        _ => None,
    };
    let (resources, etag) = match aggregated {
        Some(found) => found,
        None => (compute(INTERNAL, || converted(listed)).await, None),
    };
    // Equal content stays the same allocation, by which changes are noticed.
    let is_same = resources == *last.resources;
    let resources = if is_same { Arc::clone(&last.resources) } else { Arc::new(resources) };
    let openapi_due = last.openapi_due.filter(|_| is_same);
    let (openapi, swagger) = (last.openapi.clone(), last.swagger.clone());
    let next = Collected { is_current: true, resources, etag, openapi, swagger, openapi_due };
    with_openapi(backend, next).await
}

/// Fetches the OpenAPI documents, if due.
async fn with_openapi(backend: &Backend, mut collected: Collected) -> Collected {
    let now = Instant::now();
    if collected.openapi_due.is_some_and(|due| now < due) {
        return collected;
    }
    collected.openapi_due = Some(now + OPENAPI_EVERY);
    let fetched = backend.fetch("/openapi/v3", "application/json", None, DOCUMENT_BYTES).await;
    collected.openapi = match fetched.ok().filter(|fetched| fetched.status == StatusCode::OK) {
        Some(fetched) => compute(INTERNAL, || openapi_hash(backend, &fetched.body)).await,
        None => None,
    };
    collected.swagger = collect_swagger(backend, collected.swagger.take()).await;
    collected
}

/// The OpenAPI v2 document; the last one while there is no other.
async fn collect_swagger(
    backend: &Backend,
    last: Option<CollectedSwagger>,
) -> Option<CollectedSwagger> {
    let etag = last.as_ref().and_then(|last| last.etag.as_ref());
    let fetched = backend.fetch("/openapi/v2", "application/json", etag, DOCUMENT_BYTES).await.ok();
    let Some(fetched) = fetched.filter(|fetched| fetched.status == StatusCode::OK) else {
        return last;
    };
    let restricted = || swagger::restricted(&fetched.body, &backend.group, &backend.version);
    let document = Bytes::from(compute(INTERNAL, restricted).await?);
    let etag = fetched.headers.get(ETAG).cloned();
    let document = match last {
        Some(last) if last.document == document => last.document,
        _ => document,
    };
    Some(CollectedSwagger { document, etag })
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

/// The strings of a list. Whatever else a server says is left out: clients read all groups as one
/// document, and a single value of another type would make them fail for all.
fn words(value: &Value, field: &str) -> Vec<Value> {
    let is_word = |word: &&Value| word.as_str().is_some_and(|word| word.len() <= MAX_WORD_BYTES);
    list(value, field).iter().filter(is_word).take(MAX_WORDS).cloned().collect()
}

/// A short string; empty if there is none.
fn word<'a>(value: &'a Value, field: &str) -> &'a str {
    let word = text(value, field);
    if word.len() <= MAX_WORD_BYTES { word } else { "" }
}

/// A kind: some clients fail without one.
fn kind(value: Option<&Value>) -> Value {
    let part = |field: &str| value.map_or("", |value| word(value, field));
    json!({"group": part("group"), "version": part("version"), "kind": part("kind")})
}

/// An entry of aggregated discovery, of which only known fields are kept.
fn entry(found: &Value) -> Option<Value> {
    let resource = word(found, "resource");
    if resource.is_empty() {
        return None;
    }
    let mut entry = DiscoveryEntry::new(resource);
    entry.kind = kind(found.get("responseKind"));
    entry.scope = word(found, "scope");
    entry.singular = word(found, "singularResource");
    entry.verbs = words(found, "verbs");
    entry.short_names = words(found, "shortNames");
    entry.categories = words(found, "categories");
    let subresources = list(found, "subresources").iter().take(MAX_WORDS);
    for subresource in subresources {
        let accepted = list(subresource, "acceptedTypes").iter().take(MAX_WORDS);
        let accepted: Vec<Value> = accepted.map(|known| kind(Some(known))).collect();
        entry.add_subresource(
            word(subresource, "subresource"),
            kind(subresource.get("responseKind")),
            words(subresource, "verbs"),
            accepted,
        );
    }
    Some(entry.into_value())
}

/// A resource in discovery.
struct DiscoveryEntry<'a> {
    resource: &'a str,
    kind: Value,
    scope: &'a str,
    singular: &'a str,
    verbs: Vec<Value>,
    short_names: Vec<Value>,
    categories: Vec<Value>,
    subresources: Vec<Value>,
}

impl<'a> DiscoveryEntry<'a> {
    fn new(resource: &'a str) -> Self {
        Self {
            resource,
            kind: kind(None),
            scope: "",
            singular: "",
            verbs: Vec::new(),
            short_names: Vec::new(),
            categories: Vec::new(),
            subresources: Vec::new(),
        }
    }

    fn add_subresource(
        &mut self,
        name: &str,
        kind: Value,
        verbs: Vec<Value>,
        accepted: Vec<Value>,
    ) {
        if name.is_empty() || self.subresources.len() >= MAX_WORDS {
            return;
        }
        let mut subresource = Document::default();
        subresource.set(&["subresource"], name);
        subresource.set(&["responseKind"], kind);
        if !accepted.is_empty() {
            subresource.set(&["acceptedTypes"], accepted);
        }
        subresource.set(&["verbs"], verbs);
        self.subresources.push(subresource.into_value());
    }

    fn into_value(self) -> Value {
        let mut entry = Document::default();
        entry.set(&["resource"], self.resource);
        entry.set(&["responseKind"], self.kind);
        entry.set(&["scope"], self.scope);
        entry.set(&["singularResource"], self.singular);
        entry.set(&["verbs"], self.verbs);
        let optional = [
            ("shortNames", self.short_names),
            ("categories", self.categories),
            ("subresources", self.subresources),
        ];
        for (field, values) in optional.into_iter().filter(|(_, values)| !values.is_empty()) {
            entry.set(&[field], values);
        }
        entry.into_value()
    }
}

/// From the unaggregated `APIResourceList`.
fn converted(listed: &[u8]) -> Vec<Value> {
    let Ok(decoded) = codec::read(listed) else { return Vec::new() };
    let mut entries: Vec<DiscoveryEntry<'_>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for found in decoded.document.list(&["resources"]).iter().take(MAX_RESOURCES) {
        let name = word(found, "name");
        let (resource, subresource) = name.split_once('/').unwrap_or((name, ""));
        if resource.is_empty() {
            continue;
        }
        let namespaced = found.get("namespaced").and_then(Value::as_bool) == Some(true);
        let place = *places.entry(resource).or_insert_with(|| {
            entries.push(DiscoveryEntry {
                scope: if namespaced { "Namespaced" } else { "Cluster" },
                ..DiscoveryEntry::new(resource)
            });
            entries.len() - 1
        });
        let (entry, kind, verbs) = (&mut entries[place], kind(Some(found)), words(found, "verbs"));
        if subresource.is_empty() {
            entry.kind = kind;
            entry.singular = word(found, "singularName");
            entry.verbs = verbs;
            entry.short_names = words(found, "shortNames");
            entry.categories = words(found, "categories");
        } else {
            entry.add_subresource(subresource, kind, verbs, Vec::new());
        }
    }
    entries.into_iter().map(DiscoveryEntry::into_value).collect()
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

    #[test]
    fn fault_33_lies_are_left_out_of_discovery() {
        let lies = json!({"resource": "things", "responseKind": {"group": 7, "kind": "Thing"},
            "scope": ["x"], "singularResource": {}, "verbs": ["get", 5, [[]]], "shortNames": "t",
            "categories": {"a": 1}, "other": [1], "subresources": [7,
                {"subresource": "status", "responseKind": [], "verbs": {}, "acceptedTypes": [1]},
                {"subresource": 1}]});
        let nameless = json!({"group": "", "version": "", "kind": ""});
        let want = json!({"resource": "things",
            "responseKind": {"group": "", "version": "", "kind": "Thing"}, "scope": "",
            "singularResource": "", "verbs": ["get"], "subresources": [{"subresource": "status",
                "responseKind": nameless, "acceptedTypes": [nameless], "verbs": []}]});
        assert_eq!(entry(&lies), Some(want));
        for nothing in [json!(7), json!({"resource": 7}), json!({"resource": "x".repeat(257)})] {
            assert_eq!(entry(&nothing), None);
        }
        let many = json!({"resource": "a", "verbs": vec![json!("get"); 1000]});
        let verbs = entry(&many).map(|entry| list(&entry, "verbs").len());
        assert_eq!(verbs, Some(MAX_WORDS));
    }
}
