//! Discovery of groups, versions and resources, aggregated or not. Recomputed when the catalog
//! changes.

mod aggregated;
mod groups;
mod legacy;

pub(crate) use groups::Group;

use crate::action::no_such_resource;
use crate::encode::{Encoded, Encoder};
use crate::negotiate::ParsedHead;
use crate::negotiate::{Accepted, Form, Offer, RouterTypes, View, Views};
use crate::rejection::Rejection;
use crate::rejection::method_not_allowed;
use crate::status;
use bytes::Bytes;
use ferrokube_aggregator::Aggregator;
use ferrokube_apimachinery::document::Document;
use ferrokube_registry::Catalog;
use ferrokube_serve::Response;
use http::header::{ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

const META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1";

/// Cached until the catalog changes.
pub(crate) struct Discovery {
    catalog: Arc<Catalog>,
    aggregator: Arc<Aggregator>,
    encoder: Encoder,
    cache: Mutex<Option<Arc<CachedDiscovery>>>,
}

struct CachedDiscovery {
    /// Change numbers of the catalog and of the aggregated servers.
    change: (u64, u64),
    groups: Vec<Group>,
    aggregated: Mutex<Aggregated>,
}

/// Aggregated documents as compact JSON with their ETags, by whether they are the core group's.
type Aggregated = HashMap<bool, (Bytes, HeaderValue)>;

impl Discovery {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        aggregator: Arc<Aggregator>,
        encoder: Encoder,
    ) -> Self {
        Self { catalog, aggregator, encoder, cache: Mutex::default() }
    }

    fn cached(&self) -> Arc<CachedDiscovery> {
        let mut cache = self.cache.lock();
        let aggregated = self.aggregator.change_number();
        if let Some(cached) = &*cache
            && cached.change == (self.catalog.change_number(), aggregated)
        {
            return Arc::clone(cached);
        }
        let (change, definitions) = self.catalog.all();
        let made = Arc::new(CachedDiscovery {
            change: (change, aggregated),
            groups: groups::collect(&definitions, self.aggregator.versions()),
            aggregated: Mutex::default(),
        });
        *cache = Some(Arc::clone(&made));
        made
    }

    /// Whether unknown resources of the group get a `Status` (from kube-apiserver's router), not
    /// plain 404.
    pub(crate) fn is_native(&self, group: &str) -> bool {
        group.is_empty()
            || self.cached().groups.iter().any(|known| known.name == group && known.native)
    }

    /// Groups with their versions, preferred first. The core group's name is empty.
    pub(crate) fn group_versions(&self) -> Vec<(String, Vec<String>)> {
        let cached = self.cached();
        cached
            .groups
            .iter()
            .map(|group| {
                (
                    group.name.clone(),
                    group.versions.iter().map(|version| version.name.clone()).collect(),
                )
            })
            .collect()
    }

    /// `/api`
    pub(crate) fn core(&self, head: ParsedHead<'_>) -> Result<Response, Rejection> {
        self.list(head, true, Views::Discovery, RouterTypes::Objects, |groups| {
            legacy::core(groups, head.header(http::header::HOST))
        })
    }

    /// `/apis`
    pub(crate) fn groups(&self, head: ParsedHead<'_>) -> Result<Response, Rejection> {
        // kube-apiserver mounts the aggregated handler at the exact path.
        let views = if head.action.path().ends_with('/') { Views::None } else { Views::Discovery };
        self.list(head, false, views, RouterTypes::None, legacy::groups)
    }

    fn list(
        &self,
        head: ParsedHead<'_>,
        core: bool,
        views: Views,
        router: RouterTypes,
        make: impl FnOnce(&[Group]) -> Document,
    ) -> Result<Response, Rejection> {
        let message = format!("{META}.{}", if core { "APIVersions" } else { "APIGroupList" });
        let protobuf = self.encoder.messages().contains(&message);
        let accepted = head.accepted(Offer { protobuf, views, router })?;
        let cached = self.cached();
        if accepted.view == View::Discovery {
            return Ok(self.aggregate(
                &cached,
                head,
                core,
                Accepted { view: View::Whole, ..accepted },
            ));
        }
        let encoded = self.encoder.document(
            &make(&cached.groups),
            Accepted { view: View::Whole, ..accepted },
            Some(&message),
        );
        Ok(status::encoded(200, encoded))
    }

    /// `/apis/<group>`
    pub(crate) fn group(&self, head: ParsedHead<'_>, name: &str) -> Result<Response, Rejection> {
        let cached = self.cached();
        let Some(group) = cached.groups.iter().find(|group| group.name == name && !name.is_empty())
        else {
            return Ok(status::not_found());
        };
        self.document(head, &legacy::group(group), &format!("{META}.APIGroup"), RouterTypes::None)
    }

    /// `/api/<version>` and `/apis/<group>/<version>`
    pub(crate) fn resources(
        &self,
        head: ParsedHead<'_>,
        group: &str,
        version: &str,
    ) -> Result<Response, Rejection> {
        let cached = self.cached();
        let found = cached.groups.iter().find(|known| known.name == group);
        let Some(version) =
            found.and_then(|known| known.versions.iter().find(|known| known.name == version))
        else {
            return if group.is_empty() || found.is_some_and(|known| known.native) {
                Err(no_such_resource().into())
            } else {
                Ok(status::not_found())
            };
        };
        if found.is_some_and(|known| known.native) && head.action.verb() != "get" {
            // Groups with only custom resources are served for any method.
            return Err(method_not_allowed().into());
        }
        let router = if found.is_some_and(|known| known.native) {
            RouterTypes::Objects
        } else {
            RouterTypes::None
        };
        self.document(
            head,
            &legacy::resources(group, version),
            &format!("{META}.APIResourceList"),
            router,
        )
    }

    /// Encodes a document. `router` restricts the Accept header before the handler does.
    fn document(
        &self,
        head: ParsedHead<'_>,
        document: &Document,
        message: &str,
        router: RouterTypes,
    ) -> Result<Response, Rejection> {
        let protobuf = self.encoder.messages().contains(message);
        let accepted = head.accepted(Offer { protobuf, views: Views::None, router })?;
        Ok(status::encoded(200, self.encoder.document(document, accepted, Some(message))))
    }

    fn aggregate(
        &self,
        cached: &CachedDiscovery,
        head: ParsedHead<'_>,
        core: bool,
        accepted: Accepted,
    ) -> Response {
        let write = |accepted| {
            self.encoder.document(
                &aggregated::document(&cached.groups, core),
                accepted,
                Some(aggregated::MESSAGE),
            )
        };
        let (json, etag) = cached
            .aggregated
            .lock()
            .entry(core)
            .or_insert_with(|| {
                let bytes = write(Accepted::JSON).bytes;
                let etag = etag(&bytes);
                (bytes, etag)
            })
            .clone();
        let unchanged = head.headers.get(IF_NONE_MATCH).is_some_and(|given| given == etag);
        let mut response = if unchanged {
            let mut response = Response::new(crate::body::empty());
            *response.status_mut() = http::StatusCode::NOT_MODIFIED;
            response
        } else {
            let encoded = if accepted == Accepted::JSON {
                Encoded { bytes: json, form: Form::Json }
            } else {
                write(accepted)
            };
            let media_type = aggregated::media_type(encoded.form);
            status::with_type(200, media_type, crate::body::full(encoded.bytes))
        };
        response.headers_mut().insert(ETAG, etag);
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
        response
    }
}

/// The quoted [`hash`].
pub(crate) fn etag(bytes: &[u8]) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{}\"", hash(bytes))).expect("hexadecimal digits and quotes")
}

/// SHA-256 in upper-case hexadecimal.
pub(crate) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}
