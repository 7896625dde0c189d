//! OpenAPI documents, made on request and cached until the definitions change or requests cease.

mod documents;
mod gnostic;
mod paths;

use crate::discovery::hash;
use crate::exchange::{Rejection, Request};
use crate::negotiate::media_types;
use crate::state::ServerState;
use crate::status;
use bytes::Bytes;
use ferrokube_apimachinery::document::{Map, Value, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_registry::offload::{INTERNAL, compute};
use ferrokube_resource::Definition;
use ferrokube_serve::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, LOCATION, VARY};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// Documents that are not requested for one to two intervals are dropped.
const SWEEP_EVERY: Duration = Duration::from_secs(120);

/// Cached documents.
#[derive(Default)]
pub(crate) struct OpenApi {
    cache: Mutex<DocumentCache>,
    /// Held while a document is made.
    flight: tokio::sync::Mutex<()>,
    /// Number of documents made.
    made: AtomicU64,
}

#[derive(Default)]
struct DocumentCache {
    /// By `api/v1` or `apis/<group>/<version>`.
    v3: BTreeMap<String, Arc<CachedDocument>>,
    v2: Option<Arc<CachedDocument>>,
}

/// A cached document.
struct CachedDocument {
    /// Compared by address: other definitions outdate the document.
    definitions: Vec<Arc<Definition>>,
    json: Bytes,
    protobuf: Bytes,
    hash: String,
    /// Requested since the last sweep.
    asked: AtomicBool,
}

impl CachedDocument {
    fn new(definitions: Vec<Arc<Definition>>, value: &Value, protobuf: Vec<u8>) -> Self {
        let json: Bytes = codec::to_vec(value).into();
        Self {
            definitions,
            hash: hash(&json),
            json,
            protobuf: protobuf.into(),
            asked: AtomicBool::new(true),
        }
    }

    fn is_from(&self, definitions: &[Arc<Definition>]) -> bool {
        self.asked.store(true, Ordering::Relaxed);
        self.definitions.len() == definitions.len()
            && self.definitions.iter().zip(definitions).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// Definitions by the path of their group version's document.
fn by_document(state: &ServerState) -> BTreeMap<String, Vec<Arc<Definition>>> {
    let mut all: BTreeMap<String, Vec<Arc<Definition>>> = BTreeMap::new();
    for definition in state.registry.catalog().all().1 {
        for version in definition.versions.iter().filter(|version| version.served) {
            let path = documents::key(&definition.group, &version.name);
            all.entry(path).or_default().push(Arc::clone(&definition));
        }
    }
    all
}

impl OpenApi {
    /// Drops unused documents periodically, until cancelled.
    pub(crate) async fn cool_down(&self) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            self.drop_unused();
        }
    }

    fn drop_unused(&self) {
        let was_asked = |made: &Arc<CachedDocument>| made.asked.swap(false, Ordering::Relaxed);
        let mut cache = self.cache.lock();
        cache.v3.retain(|_, made| was_asked(made));
        cache.v2 = cache.v2.take().filter(was_asked);
    }

    fn cached_v3(
        &self,
        path: &str,
        definitions: &[Arc<Definition>],
    ) -> Option<Arc<CachedDocument>> {
        let cache = self.cache.lock();
        cache.v3.get(path).filter(|made| made.is_from(definitions)).cloned()
    }

    fn cached_v2(&self, definitions: &[Arc<Definition>]) -> Option<Arc<CachedDocument>> {
        let cache = self.cache.lock();
        cache.v2.as_ref().filter(|made| made.is_from(definitions)).cloned()
    }

    async fn v3_document(
        &self,
        path: &str,
        definitions: Vec<Arc<Definition>>,
    ) -> Arc<CachedDocument> {
        let made = || {
            self.made.fetch_add(1, Ordering::Relaxed);
            let value = documents::v3(path, &definitions);
            let made =
                Arc::new(CachedDocument::new(definitions.clone(), &value, gnostic::v3(&value)));
            self.cache.lock().v3.insert(path.to_owned(), Arc::clone(&made));
            made
        };
        self.get_or_make(|| self.cached_v3(path, &definitions), made).await
    }

    async fn v2_document(&self, definitions: Vec<Arc<Definition>>) -> Arc<CachedDocument> {
        let made = || {
            self.made.fetch_add(1, Ordering::Relaxed);
            let value = documents::v2(&definitions);
            let made =
                Arc::new(CachedDocument::new(definitions.clone(), &value, gnostic::v2(&value)));
            self.cache.lock().v2 = Some(Arc::clone(&made));
            made
        };
        self.get_or_make(|| self.cached_v2(&definitions), made).await
    }

    /// A cached document, or one made off the workers. They are made one at a time, so that
    /// concurrent requests share one.
    async fn get_or_make(
        &self,
        known: impl Fn() -> Option<Arc<CachedDocument>>,
        make: impl FnOnce() -> Arc<CachedDocument>,
    ) -> Arc<CachedDocument> {
        if let Some(made) = known() {
            return made;
        }
        let _flight = self.flight.lock().await;
        match known() {
            Some(made) => made,
            None => compute(INTERNAL, make).await,
        }
    }

    /// `/openapi/v2`
    pub(crate) async fn v2(
        &self,
        state: &Arc<ServerState>,
        request: &Request<'_>,
    ) -> Result<Response, Rejection> {
        let protobuf = match wanted(request.header(http::header::ACCEPT), V2_PROTOBUF) {
            Some(protobuf) => protobuf,
            None => return Ok(varying_by_both(bare(406))),
        };
        let made = self.v2_document(state.registry.catalog().all().1).await;
        Ok(varying_by_both(respond(request, &made, protobuf, V2_PROTOBUF)))
    }

    /// `/openapi/v3`: paths and hashes of the documents.
    pub(crate) async fn index(&self, state: &Arc<ServerState>) -> Result<Response, Rejection> {
        let mut paths = Map::new();
        for (path, definitions) in by_document(state) {
            let made = self.v3_document(&path, definitions).await;
            let url = format!("/openapi/v3/{path}?hash={}", made.hash);
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
        for other in state.aggregator.versions() {
            let path = documents::key(&other.group, &other.version);
            let url = match other.openapi.as_deref() {
                None => {
                    paths.remove(&path);
                    continue;
                }
                Some("") => format!("/openapi/v3/{path}"),
                Some(hash) => format!("/openapi/v3/{path}?hash={hash}"),
            };
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
        let bytes = codec::to_vec(&json!({"paths": paths}));
        Ok(status::bare_text(200, bytes))
    }

    /// `/openapi/v3/<group version>`
    pub(crate) async fn v3(
        &self,
        state: &Arc<ServerState>,
        request: &Request<'_>,
        path: &str,
    ) -> Result<Response, Rejection> {
        let Some(definitions) = by_document(state).remove(path) else { return Ok(not_found()) };
        let Some(protobuf) = wanted(request.header(http::header::ACCEPT), V3_PROTOBUF) else {
            return Ok(varying(bare(406), "Accept"));
        };
        let made = self.v3_document(path, definitions).await;
        let asked = request.action.options().hash();
        if asked.is_some_and(|asked| asked != made.hash) {
            let mut response = status::with_type(301, "application/json", crate::body::empty());
            let location = format!("/openapi/v3/{path}?hash={}", made.hash);
            response
                .headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response.headers_mut().insert(
                LOCATION,
                HeaderValue::from_str(&location).unwrap_or(HeaderValue::from_static("/openapi/v3")),
            );
            return Ok(varying(response, "Accept"));
        }
        let mut response = varying(respond(request, &made, protobuf, V3_PROTOBUF), "Accept");
        if asked.is_some() {
            response
                .headers_mut()
                .insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        }
        Ok(response)
    }
}

/// The response where there is no document.
pub(crate) fn not_found() -> Response {
    bare(404)
}

fn varying(mut response: Response, by: &'static str) -> Response {
    response.headers_mut().insert(VARY, HeaderValue::from_static(by));
    response
}

/// As two headers, like kube-apiserver.
fn varying_by_both(response: Response) -> Response {
    let mut response = varying(response, "Accept-Encoding");
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
    response
}

fn bare(code: u16) -> Response {
    let mut response = Response::new(crate::body::empty());
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

/// `Some(true)` for protobuf, `Some(false)` for JSON, `None` if neither is accepted.
fn wanted(accept: &str, protobuf: &str) -> Option<bool> {
    if accept.is_empty() {
        return Some(false);
    }
    media_types(accept).find_map(|media| match media {
        ("application", "json" | "*") | ("*", "*") => Some(false),
        // Older clients write an @ instead of the dot before the version.
        ("application", subtype)
            if protobuf.strip_prefix("application/") == Some(&*subtype.replacen('@', ".", 1)) =>
        {
            Some(true)
        }
        _ => None,
    })
}

/// Whether `If-None-Match` (RFC 9110, section 13.1.2) matches: `*`, or a list of entity tags, weak
/// ones included.
fn is_known(given: &str, hash: &str) -> bool {
    let tag = |text: &str| text.trim().trim_start_matches("W/").trim_matches('"') == hash;
    given.trim() == "*" || given.split(',').any(tag)
}

fn respond(
    request: &Request<'_>,
    made: &CachedDocument,
    protobuf: bool,
    media_type: &'static str,
) -> Response {
    let etag = HeaderValue::from_str(&format!("\"{}\"", made.hash))
        .expect("hexadecimal digits and quotes");
    let mut response = match (is_known(request.header(IF_NONE_MATCH), &made.hash), protobuf) {
        (true, _) => bare(304),
        (false, true) => {
            status::with_type(200, media_type, crate::body::full(made.protobuf.clone()))
        }
        (false, false) => {
            status::with_type(200, "application/json", crate::body::full(made.json.clone()))
        }
    };
    response.headers_mut().insert(ETAG, etag);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn fault_34_a_document_is_made_once_for_concurrent_requests() {
        let openapi = Arc::new(OpenApi::default());
        let readers: Vec<_> = (0..20)
            .map(|_| {
                let openapi = Arc::clone(&openapi);
                tokio::spawn(async move {
                    (
                        openapi.v2_document(Vec::new()).await,
                        openapi.v3_document("apis/e/v1", Vec::new()).await,
                    )
                })
            })
            .collect();
        for reader in readers {
            reader.await.expect("answered");
        }
        assert_eq!(openapi.made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn documents_are_made_on_request_and_dropped_when_unused() {
        let openapi = OpenApi::default();
        let kept = || {
            let cache = openapi.cache.lock();
            cache.v3.len() + usize::from(cache.v2.is_some())
        };
        assert_eq!(kept(), 0);
        let first = openapi.v3_document("apis/e/v1", Vec::new()).await;
        openapi.v3_document("apis/f/v1", Vec::new()).await;
        openapi.v2_document(Vec::new()).await;
        openapi.drop_unused();
        assert_eq!(kept(), 3, "they were requested");
        let again = openapi.v3_document("apis/e/v1", Vec::new()).await;
        assert!(Arc::ptr_eq(&first, &again));
        openapi.drop_unused();
        assert_eq!(kept(), 1);
        openapi.drop_unused();
        assert_eq!(kept(), 0);
        assert_eq!(openapi.v3_document("apis/e/v1", Vec::new()).await.hash, first.hash);
    }

    #[test]
    fn the_form_is_the_first_that_fits() {
        let cases = [
            ("", Some(false)),
            ("application/json", Some(false)),
            ("text/html", None),
            ("application/com.github.proto-openapi.spec.v2@v1.0+protobuf", Some(true)),
            (
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf,application/json",
                Some(true),
            ),
        ];
        for (accept, want) in cases {
            assert_eq!(wanted(accept, V2_PROTOBUF), want, "{accept}");
        }
    }
}
