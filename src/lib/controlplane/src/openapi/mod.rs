//! OpenAPI documents, made on request and cached until the definitions change or requests cease.

mod cached;
mod discovery;
mod documents;
mod gnostic;
mod names;
mod parameters;
mod paths;
mod routes;

use crate::compress;
use crate::decode::leave_worker_or_reject;
use crate::negotiate::ParsedHead;
use crate::negotiate::media_types;
use crate::rejection::Rejection;
use crate::status;
use bytes::Bytes;
use cached::{CachedDocument, DocumentCache, DocumentForm, hidden_fields};
pub use documents::SchemaSource;
use documents::{Documents, Machinery};
use ferrokube_aggregator::{Aggregator, merge_swagger};
use ferrokube_apimachinery::document::{Map, json};
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::work;
use ferrokube_registry::Catalog;
use ferrokube_registry::offload::{INTERNAL, Offload, compute};
use ferrokube_resource::Definition;
use ferrokube_serve::Response;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderValue,
    IF_NONE_MATCH, LOCATION, VARY,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// Documents that are not requested for one to two intervals are dropped.
const SWEEP_EVERY: Duration = Duration::from_secs(120);

/// Longer lists of documents are made off the workers.
const INLINE_PATHS: usize = 200;

/// Cached documents.
pub(crate) struct OpenApi {
    sources: OpenApiSources,
    cache: Mutex<DocumentCache>,
    /// Held while a document is made. All requests wait for it, so its holder waits in no caller's
    /// queue: it is locked outside of [`Offload::run`] only.
    flight: tokio::sync::Mutex<()>,
    /// Number of documents made.
    made: AtomicU64,
}

/// Sources of the documents.
pub(crate) struct OpenApiSources {
    pub(crate) schemas: SchemaSource,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) aggregator: Arc<Aggregator>,
    /// Paths mounted next to the resources, without outer slashes.
    pub(crate) mounted: Vec<String>,
    pub(crate) listed: ListedDocuments,
}

/// The paths of all documents, for the catalog's last change number: each request needs them.
pub(crate) type ListedDocuments = Mutex<Option<(u64, Arc<Documents>)>>;

impl OpenApiSources {
    /// Definitions by path.
    fn documents(&self) -> Arc<Documents> {
        let mut listed = self.listed.lock();
        if let Some((change, documents)) = &*listed
            && *change == self.catalog.change_number()
        {
            return Arc::clone(documents);
        }
        let (change, definitions) = self.catalog.all();
        let documents = Arc::new(self.by_path(definitions));
        *listed = Some((change, Arc::clone(&documents)));
        documents
    }

    fn by_path(&self, definitions: Vec<Arc<Definition>>) -> Documents {
        let mut all: Documents =
            ["api", "apis", "version"].map(|path| (path.to_owned(), Vec::new())).into();
        for definition in definitions {
            if definition.dialect.is_bundled() && !definition.group.is_empty() {
                all.entry(format!("apis/{}", definition.group)).or_default();
            }
            for version in definition.versions.iter().filter(|version| version.served) {
                let path = names::key(&definition.group, &version.name);
                all.entry(path).or_default().push(Arc::clone(&definition));
            }
        }
        let mounted =
            self.mounted.iter().filter(|path| discovery::MOUNTED.contains(&path.as_str()));
        all.extend(mounted.map(|path| (path.clone(), Vec::new())));
        all
    }
}

/// Group versions of the bundled kinds.
fn bundled_versions(documents: &Documents) -> Vec<(String, String)> {
    let bundled = documents.values().flatten().filter(|one| one.dialect.is_bundled());
    let versions: BTreeSet<(String, String)> = bundled
        .flat_map(|definition| {
            let served = definition.versions.iter().filter(|version| version.served);
            served.map(|version| (definition.group.clone(), version.name.clone()))
        })
        .collect();
    versions.into_iter().collect()
}

impl OpenApi {
    pub(crate) fn new(sources: OpenApiSources) -> Self {
        Self {
            sources,
            cache: Mutex::default(),
            flight: tokio::sync::Mutex::default(),
            made: AtomicU64::new(0),
        }
    }

    fn machinery(&self, documents: &Documents) -> Machinery {
        Machinery {
            schemas: Arc::clone(&self.sources.schemas),
            versions: bundled_versions(documents),
        }
    }

    /// Drops unused documents periodically, until cancelled.
    pub(crate) async fn cool_down(&self) {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            self.drop_unused();
        }
    }

    fn drop_unused(&self) {
        let was_requested =
            |made: &Arc<CachedDocument>| made.requested.swap(false, Ordering::Relaxed);
        let mut cache = self.cache.lock();
        cache.v3.retain(|_, made| was_requested(made));
        cache.v2 = cache.v2.take().filter(was_requested);
        drop(cache);
        // It would keep definitions that were removed.
        *self.sources.listed.lock() = None;
    }

    fn cached_v3(
        &self,
        path: &str,
        definitions: &[Arc<Definition>],
    ) -> Option<Arc<CachedDocument>> {
        let cache = self.cache.lock();
        cache.v3.get(path).filter(|made| made.is_from(definitions)).cloned()
    }

    fn cached_v2(
        &self,
        definitions: &[Arc<Definition>],
        others: &[Bytes],
    ) -> Option<Arc<CachedDocument>> {
        let cache = self.cache.lock();
        let is_current =
            |made: &&Arc<CachedDocument>| made.is_from(definitions) && made.is_merged_from(others);
        cache.v2.as_ref().filter(is_current).cloned()
    }

    /// The document of a path, if there is one. `seen` are the definitions that the reader knows.
    /// They are read again once it may make the document: one of definitions that were replaced
    /// meanwhile would be useless.
    async fn v3_document(&self, path: &str, seen: &Documents) -> Option<Arc<CachedDocument>> {
        if let Some(made) = self.cached_v3(path, seen.get(path)?) {
            return Some(made);
        }
        let _flight = self.flight.lock().await;
        let documents = self.sources.documents();
        let definitions = documents.get(path)?;
        if let Some(made) = self.cached_v3(path, definitions) {
            return Some(made);
        }
        let make = || {
            self.made.fetch_add(1, Ordering::Relaxed);
            // First: a field that is hidden in the meantime outdates the document.
            let hidden = hidden_fields(definitions);
            let value = documents::v3(path, definitions, &self.machinery(&documents));
            let made = CachedDocument::new(definitions, &value, gnostic::v3(&value));
            Arc::new(CachedDocument { hidden, ..made })
        };
        let made = compute(INTERNAL, make).await;
        self.cache.lock().v3.insert(path.to_owned(), Arc::clone(&made));
        Some(made)
    }

    async fn v2_document(&self) -> Arc<CachedDocument> {
        let sources = || {
            let documents = self.sources.documents();
            let definitions: Vec<_> = documents.values().flatten().cloned().collect();
            (documents, definitions, self.sources.aggregator.swaggers())
        };
        let (_, definitions, others) = sources();
        if let Some(made) = self.cached_v2(&definitions, &others) {
            return made;
        }
        let _flight = self.flight.lock().await;
        // As above.
        let (documents, definitions, others) = sources();
        if let Some(made) = self.cached_v2(&definitions, &others) {
            return made;
        }
        let make = || {
            self.made.fetch_add(1, Ordering::Relaxed);
            let hidden = hidden_fields(&definitions);
            let mut value = documents::v2(&documents, &self.machinery(&documents));
            if !others.is_empty() {
                merge_swagger(&mut value, others.iter().map(|other| &**other));
            }
            let made = CachedDocument::new(&definitions, &value, gnostic::v2(&value));
            Arc::new(CachedDocument { others, hidden, ..made })
        };
        // Dropped first, so that two do not exist at a time.
        self.cache.lock().v2 = None;
        let made = compute(INTERNAL, make).await;
        self.cache.lock().v2 = Some(Arc::clone(&made));
        made
    }

    /// A document's bytes for a client, and whether they are compressed.
    async fn form(&self, head: ParsedHead<'_>, form: &DocumentForm) -> (Bytes, bool) {
        if !form.is_large() || !compress::accepts(head.header(ACCEPT_ENCODING)) {
            return (form.plain.clone(), false);
        }
        if let Some(gzip) = form.gzip.get() {
            return (gzip.clone(), true);
        }
        let _flight = self.flight.lock().await;
        let gzip = match form.gzip.get() {
            Some(gzip) => gzip.clone(),
            None => compute(INTERNAL, || form.compressed()).await,
        };
        (gzip, true)
    }

    async fn respond(
        &self,
        head: ParsedHead<'_>,
        made: &CachedDocument,
        protobuf: bool,
        media_type: &'static str,
    ) -> Response {
        let etag = HeaderValue::from_str(&format!("\"{}\"", made.hash))
            .expect("hexadecimal digits and quotes");
        let mut response = if is_known(head.header(IF_NONE_MATCH), &made.hash) {
            bare(304)
        } else {
            let (form, media_type) = match protobuf {
                true => (&made.protobuf, media_type),
                false => (&made.json, "application/json"),
            };
            let (bytes, is_compressed) = self.form(head, form).await;
            let mut response = status::with_type(200, media_type, crate::body::full(bytes));
            if is_compressed {
                let gzip = HeaderValue::from_static("gzip");
                response.headers_mut().insert(CONTENT_ENCODING, gzip);
            }
            response
        };
        response.headers_mut().insert(ETAG, etag);
        response
    }

    /// `/openapi/v2`
    pub(crate) async fn v2(&self, head: ParsedHead<'_>) -> Result<Response, Rejection> {
        let protobuf = match wanted(head.header(http::header::ACCEPT), V2_PROTOBUF) {
            Some(protobuf) => protobuf,
            None => return Ok(varying_by_both(bare(406))),
        };
        let made = self.v2_document().await;
        Ok(varying_by_both(self.respond(head, &made, protobuf, V2_PROTOBUF).await))
    }

    /// `/openapi/v3`: paths and hashes of the documents, listed within the caller's account.
    pub(crate) async fn index(
        &self,
        offload: &Offload,
        caller: u64,
    ) -> Result<Response, Rejection> {
        let documents = self.sources.documents();
        let mut hashes = Vec::with_capacity(documents.len());
        for path in documents.keys() {
            let made = self.v3_document(path, &documents).await;
            hashes.extend(made.map(|made| (path.as_str(), made.hash.clone())));
        }
        let listing = async {
            if hashes.len() > INLINE_PATHS {
                leave_worker_or_reject(caller, hashes.len() as u64).await?;
            }
            Ok::<_, Rejection>(self.list(hashes))
        };
        offload.run(caller, Box::pin(listing)).await
    }

    fn list(&self, hashes: Vec<(&str, String)>) -> Response {
        let mut paths = Map::new();
        for (path, hash) in hashes {
            work::breathe();
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path.to_owned(), json!({"serverRelativeURL": url}));
        }
        for other in self.sources.aggregator.versions() {
            let path = names::key(&other.group, &other.version);
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
        status::bare_text(200, codec::to_vec(&json!({"paths": paths})))
    }

    /// `/openapi/v3/<group version>`
    pub(crate) async fn v3(&self, head: ParsedHead<'_>, path: &str) -> Result<Response, Rejection> {
        let documents = self.sources.documents();
        if !documents.contains_key(path) {
            return Ok(not_found());
        }
        let Some(protobuf) = wanted(head.header(http::header::ACCEPT), V3_PROTOBUF) else {
            return Ok(varying(bare(406), "Accept"));
        };
        let Some(made) = self.v3_document(path, &documents).await else { return Ok(not_found()) };
        let hash = head.action.options().hash();
        if hash.is_some_and(|hash| hash != made.hash) {
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
        let mut response =
            varying(self.respond(head, &made, protobuf, V3_PROTOBUF).await, "Accept");
        if hash.is_some() {
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
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static(by));
    if headers.contains_key(CONTENT_ENCODING) && by != "Accept-Encoding" {
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_aggregator::{ListedServices, ProxyIdentity};
    use ferrokube_registry::offload::caller;
    use futures::poll;
    use std::pin::pin;

    fn openapi() -> OpenApi {
        openapi_of(Arc::new(|_| None))
    }

    fn openapi_of(schemas: SchemaSource) -> OpenApi {
        OpenApi::new(OpenApiSources {
            schemas,
            catalog: Arc::default(),
            aggregator: Arc::new(Aggregator::new(
                Arc::new(ListedServices::default()),
                ProxyIdentity::default(),
            )),
            mounted: Vec::new(),
            listed: ListedDocuments::default(),
        })
    }

    /// Adds a native definition, other than those before.
    fn define(openapi: &OpenApi, plural: &str) -> String {
        let mut all = ferrokube_resources::definitions(ferrokube_resources::tables()).into_iter();
        let definition = all.find(|one| one.plural == plural).expect("a known kind");
        let path = names::key(&definition.group, &definition.versions[0].name);
        openapi.sources.catalog.put(definition);
        path
    }

    #[test]
    fn fault_34_documents_are_listed_once_for_all_requests() {
        let openapi = openapi();
        define(&openapi, "leases");
        let documents = openapi.sources.documents();
        assert!(Arc::ptr_eq(&documents, &openapi.sources.documents()));
        let path = define(&openapi, "configmaps");
        assert!(!documents.contains_key(&path) && openapi.sources.documents().contains_key(&path));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn fault_34_a_document_is_made_once_for_concurrent_requests() {
        let openapi = Arc::new(openapi());
        let path = define(&openapi, "leases");
        let readers: Vec<_> = (0..20)
            .map(|_| {
                let (openapi, path) = (Arc::clone(&openapi), path.clone());
                tokio::spawn(async move {
                    openapi.v2_document().await;
                    openapi.v3_document(&path, &openapi.sources.documents()).await
                })
            })
            .collect();
        for reader in readers {
            reader.await.expect("answered").expect("found");
        }
        assert_eq!(openapi.made.load(Ordering::Relaxed), 2);
    }

    /// A caller may have many long computations in its queue, and all requests wait for a document.
    #[tokio::test]
    async fn fault_34_documents_are_made_in_no_callers_queue() {
        let callers: Arc<Mutex<Vec<u64>>> = Arc::default();
        let seen = Arc::clone(&callers);
        let openapi = openapi_of(Arc::new(move |_| {
            seen.lock().push(caller());
            None
        }));
        define(&openapi, "leases");
        let response = openapi.index(&Offload::default(), 7).await.expect("listed");
        let callers = std::mem::take(&mut *callers.lock());
        assert!(response.status() == 200 && !callers.is_empty());
        assert!(callers.iter().all(|caller| *caller == INTERNAL), "{callers:?}");
    }

    /// Without it, each waiting request would make and keep a document of its own.
    #[tokio::test]
    async fn fault_34_no_document_is_made_of_definitions_that_were_replaced_meanwhile() {
        let openapi = openapi();
        let path = define(&openapi, "leases");
        let seen = openapi.sources.documents();
        let flight = openapi.flight.lock().await;
        let (mut of_all, mut of_one) =
            (pin!(openapi.v2_document()), pin!(openapi.v3_document(&path, &seen)));
        assert!(poll!(of_all.as_mut()).is_pending() && poll!(of_one.as_mut()).is_pending());
        define(&openapi, "configmaps");
        define(&openapi, "leases");
        drop(flight);
        let of_all = of_all.await;
        assert!(Arc::ptr_eq(&of_all, &openapi.v2_document().await), "it is current");
        let current = openapi.sources.documents();
        let of_one = of_one.await.expect("found");
        let again = openapi.v3_document(&path, &current).await.expect("found");
        assert!(Arc::ptr_eq(&of_one, &again), "it is current");
        assert_eq!(openapi.made.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn fault_34_readers_share_one_compressed_document_and_keep_no_other_alive() {
        let large = DocumentForm::new(vec![b' '; compress::MIN_BYTES]);
        let gzip = large.compressed();
        assert!(large.is_large() && gzip.len() < compress::MIN_BYTES / 10);
        assert_eq!(gzip.as_ptr(), large.compressed().as_ptr());
        let plain = large.plain.clone();
        drop(large);
        assert!(plain.is_unique(), "a reader of the compressed form holds that alone");
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&gzip[..]), &mut read)
            .expect("a gzip member");
        assert_eq!(read, plain);
        assert!(!DocumentForm::new(vec![b' '; compress::MIN_BYTES - 1]).is_large());
    }

    #[tokio::test]
    async fn documents_are_made_on_request_and_dropped_when_unused() {
        let openapi = openapi();
        let (one, other) = (define(&openapi, "leases"), define(&openapi, "configmaps"));
        let documents = openapi.sources.documents();
        let kept = || {
            let cache = openapi.cache.lock();
            cache.v3.len() + usize::from(cache.v2.is_some())
        };
        assert_eq!(kept(), 0);
        let first = openapi.v3_document(&one, &documents).await.expect("found");
        openapi.v3_document(&other, &documents).await;
        openapi.v2_document().await;
        openapi.drop_unused();
        assert_eq!(kept(), 3, "they were requested");
        let again = openapi.v3_document(&one, &documents).await.expect("found");
        assert!(Arc::ptr_eq(&first, &again));
        openapi.drop_unused();
        assert_eq!(kept(), 1);
        openapi.drop_unused();
        assert_eq!(kept(), 0);
        let later = openapi.v3_document(&one, &documents).await.expect("found");
        assert_eq!(later.hash, first.hash);
        assert!(openapi.v3_document("apis/g/v1", &documents).await.is_none());
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
