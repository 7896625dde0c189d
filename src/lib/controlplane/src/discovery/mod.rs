//! Discovery of groups, versions and resources, aggregated or not. Recomputed when the catalog
//! changes.

mod aggregated;
mod groups;
mod legacy;

pub(crate) use groups::Group;

use crate::action::no_such_resource;
use crate::decode::{ENCODED_BYTES, encode_micros, leave_worker_or_reject};
use crate::encode::{Encoded, Encoder};
use crate::negotiate::ParsedHead;
use crate::negotiate::{Accepted, Form, Offer, RouterTypes, View, Views};
use crate::rejection::Rejection;
use crate::rejection::method_not_allowed;
use crate::status;
use bytes::Bytes;
use ferrokube_aggregator::Aggregator;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::work;
use ferrokube_registry::Catalog;
use ferrokube_registry::offload::caller;
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
    /// Resources in all versions.
    entries: usize,
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
        let groups = groups::collect(&definitions, self.aggregator.versions());
        let made = Arc::new(CachedDiscovery {
            change: (change, aggregated),
            entries: groups.iter().flat_map(|group| &group.versions).map(|it| it.entries()).sum(),
            groups,
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
    pub(crate) async fn core(&self, head: ParsedHead<'_>) -> Result<Response, Rejection> {
        let make = |groups: &[Group]| legacy::core(groups, head.header(http::header::HOST));
        self.list(head, true, Views::Discovery, RouterTypes::Objects, make).await
    }

    /// `/apis`
    pub(crate) async fn groups(&self, head: ParsedHead<'_>) -> Result<Response, Rejection> {
        // kube-apiserver mounts the aggregated handler at the exact path.
        let views = if head.action.path().ends_with('/') { Views::None } else { Views::Discovery };
        self.list(head, false, views, RouterTypes::None, legacy::groups).await
    }

    async fn list(
        &self,
        head: ParsedHead<'_>,
        core: bool,
        views: Views,
        router: RouterTypes,
        make: impl FnOnce(&[Group]) -> Document + Send,
    ) -> Result<Response, Rejection> {
        let message = format!("{META}.{}", if core { "APIVersions" } else { "APIGroupList" });
        let protobuf = self.encoder.messages().contains(&message);
        let accepted = head.accepted(Offer { protobuf, views, router })?;
        let cached = self.cached();
        if accepted.view == View::Discovery {
            let accepted = Accepted { view: View::Whole, ..accepted };
            let is_made = || cached.aggregated.lock().contains_key(&core);
            if accepted != Accepted::JSON || !is_made() {
                leave_if_long(cached.entries, accepted.form).await?;
            }
            return Ok(self.aggregate(&cached, head, core, accepted));
        }
        let versions = cached.groups.iter().map(|group| group.versions.len()).sum();
        leave_if_long(versions, accepted.form).await?;
        let encoded = self.encoder.document(
            &make(&cached.groups),
            Accepted { view: View::Whole, ..accepted },
            Some(&message),
        );
        Ok(status::encoded(200, encoded))
    }

    /// `/apis/<group>`
    pub(crate) async fn group(
        &self,
        head: ParsedHead<'_>,
        name: &str,
    ) -> Result<Response, Rejection> {
        let cached = self.cached();
        let Some(group) = cached.groups.iter().find(|group| group.name == name && !name.is_empty())
        else {
            return Ok(status::not_found());
        };
        let message = format!("{META}.APIGroup");
        let accepted = self.accepted(head, &message, RouterTypes::None)?;
        leave_if_long(group.versions.len(), accepted.form).await?;
        let document = legacy::group(group);
        Ok(status::encoded(200, self.encoder.document(&document, accepted, Some(&message))))
    }

    /// `/api/<version>` and `/apis/<group>/<version>`
    pub(crate) async fn resources(
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
        let message = format!("{META}.APIResourceList");
        let accepted = self.accepted(head, &message, router)?;
        leave_if_long(version.entries(), accepted.form).await?;
        let document = legacy::resources(group, version);
        Ok(status::encoded(200, self.encoder.document(&document, accepted, Some(&message))))
    }

    /// The form of a document. `router` restricts the Accept header before the handler does.
    fn accepted(
        &self,
        head: ParsedHead<'_>,
        message: &str,
        router: RouterTypes,
    ) -> Result<Accepted, Rejection> {
        let protobuf = self.encoder.messages().contains(message);
        Ok(head.accepted(Offer { protobuf, views: Views::None, router })?)
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
                // Others wait for it, on workers.
                let bytes = work::uninterrupted(|| write(Accepted::JSON).bytes);
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

/// Bytes of an entry of discovery, about.
const ENTRY_BYTES: usize = 400;
/// Longer documents in JSON are made off the workers.
const INLINE_JSON: usize = 32 * 1024;

/// Leaves the worker if a document of this many entries takes long.
async fn leave_if_long(entries: usize, form: Form) -> Result<(), Rejection> {
    match micros(entries, form) {
        Some(micros) => Ok(leave_worker_or_reject(caller(), micros).await?),
        None => Ok(()),
    }
}

/// Microseconds in which a document is made; `None` if they are few.
fn micros(entries: usize, form: Form) -> Option<u64> {
    let bytes = entries * ENTRY_BYTES;
    let (inline, micros) = match form {
        Form::Json => (INLINE_JSON, encode_micros(bytes)),
        Form::Yaml | Form::Protobuf => (ENCODED_BYTES, 2 * encode_micros(bytes)),
    };
    (bytes > inline).then_some(micros)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The bundled kinds alone are a hundred entries, and every user may ask for them.
    #[test]
    fn fault_34_long_documents_of_discovery_are_made_off_the_workers() {
        let is_long = |entries, form| micros(entries, form).is_some();
        assert_eq!(
            [10, 80, 100, 7_000].map(|it| is_long(it, Form::Json)),
            [false, false, true, true]
        );
        for form in [Form::Yaml, Form::Protobuf] {
            assert_eq!([10, 11, 100].map(|it| is_long(it, form)), [false, true, true]);
        }
        assert!(micros(7_000, Form::Yaml) > micros(7_000, Form::Json));
    }
}
