//! Discovery: which groups, versions and resources there are, in the old form and in the aggregated
//! one. Made again only when the catalog changes.

mod aggregated;
mod groups;
mod legacy;

pub(crate) use groups::Group;

use crate::action::no_such_resource;
use crate::exchange::{Rejection, Request};
use crate::handler::{accepted, document, method_not_allowed};
use crate::negotiate::{Accepted, Form, Offer, Router, View, Views};
use crate::state::ServerState;
use crate::status;
use bytes::Bytes;
use ferrokube_apimachinery::document::Document;
use ferrokube_serve::Response;
use http::header::{ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

const META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1";

/// What is served, remembered until the catalog changes.
#[derive(Default)]
pub(crate) struct Discovery {
    cache: Mutex<Option<Arc<Cached>>>,
}

struct Cached {
    change: u64,
    groups: Vec<Group>,
    aggregated: Mutex<Aggregated>,
}

/// Aggregated documents as compact JSON, with their ETags, by core or not.
type Aggregated = HashMap<bool, (Bytes, HeaderValue)>;

impl Discovery {
    fn cached(&self, state: &ServerState) -> Arc<Cached> {
        let mut cache = self.cache.lock().expect("no panic while held");
        if let Some(cached) = &*cache
            && cached.change == state.registry.catalog().change_number()
        {
            return Arc::clone(cached);
        }
        let (change, definitions) = state.registry.catalog().all();
        let made = Arc::new(Cached {
            change,
            groups: groups::collect(&definitions),
            aggregated: Mutex::default(),
        });
        *cache = Some(Arc::clone(&made));
        made
    }

    /// Whether a group's unknown resources are answered by a router (with a `Status`) and not by
    /// the plain 404 of unknown paths.
    pub(crate) fn is_native(&self, state: &ServerState, group: &str) -> bool {
        group.is_empty()
            || self.cached(state).groups.iter().any(|known| known.name == group && known.native)
    }

    /// Groups and their versions, preferred first; the core group has the empty name.
    pub(crate) fn group_versions(&self, state: &ServerState) -> Vec<(String, Vec<String>)> {
        let cached = self.cached(state);
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
    pub(crate) fn core(
        &self,
        state: &ServerState,
        request: &Request<'_>,
    ) -> Result<Response, Rejection> {
        let views = (Views::Discovery, Router::Objects);
        self.list(state, request, true, views, |groups| {
            legacy::core(groups, request.header(http::header::HOST))
        })
    }

    /// `/apis`
    pub(crate) fn groups(
        &self,
        state: &ServerState,
        request: &Request<'_>,
    ) -> Result<Response, Rejection> {
        // Upstream's handler of the aggregated form is mounted at the exact path.
        let views =
            if request.action.path().ends_with('/') { Views::None } else { Views::Discovery };
        self.list(state, request, false, (views, Router::None), legacy::groups)
    }

    fn list(
        &self,
        state: &ServerState,
        request: &Request<'_>,
        core: bool,
        (views, router): (Views, Router),
        make: impl FnOnce(&[Group]) -> Document,
    ) -> Result<Response, Rejection> {
        let message = format!("{META}.{}", if core { "APIVersions" } else { "APIGroupList" });
        let protobuf = state.encoder.messages().contains(&message);
        let accepted = accepted(request, Offer { protobuf, views, router })?;
        let cached = self.cached(state);
        if accepted.view == View::Discovery {
            return Ok(aggregate(
                state,
                &cached,
                request,
                core,
                Accepted { view: View::Whole, ..accepted },
            ));
        }
        let (bytes, form) = state.encoder.document(
            &make(&cached.groups),
            Accepted { view: View::Whole, ..accepted },
            Some(&message),
        );
        Ok(status::with_form(200, bytes, form))
    }

    /// `/apis/<group>`
    pub(crate) fn group(
        &self,
        state: &ServerState,
        request: &Request<'_>,
        name: &str,
    ) -> Result<Response, Rejection> {
        let cached = self.cached(state);
        let Some(group) = cached.groups.iter().find(|group| group.name == name && !name.is_empty())
        else {
            return Ok(status::not_found());
        };
        document(state, request, &legacy::group(group), (&format!("{META}.APIGroup"), Router::None))
    }

    /// `/api/<version>` and `/apis/<group>/<version>`
    pub(crate) fn resources(
        &self,
        state: &ServerState,
        request: &Request<'_>,
        group: &str,
        version: &str,
    ) -> Result<Response, Rejection> {
        let cached = self.cached(state);
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
        if found.is_some_and(|known| known.native) && request.action.verb() != "get" {
            // Those of custom resources are answered whatever the method.
            return Err(method_not_allowed().into());
        }
        let router =
            if found.is_some_and(|known| known.native) { Router::Objects } else { Router::None };
        document(
            state,
            request,
            &legacy::resources(group, version),
            (&format!("{META}.APIResourceList"), router),
        )
    }
}

fn aggregate(
    state: &ServerState,
    cached: &Cached,
    request: &Request<'_>,
    core: bool,
    accepted: Accepted,
) -> Response {
    let write = |accepted| {
        state.encoder.document(
            &aggregated::document(&cached.groups, core),
            accepted,
            Some(aggregated::MESSAGE),
        )
    };
    let (json, etag) = cached
        .aggregated
        .lock()
        .expect("no panic while held")
        .entry(core)
        .or_insert_with(|| {
            let bytes = write(Accepted::JSON).0;
            let etag = etag(&bytes);
            (bytes.into(), etag)
        })
        .clone();
    let unchanged = request.head.headers.get(IF_NONE_MATCH).is_some_and(|given| given == etag);
    let mut response = if unchanged {
        let mut response = Response::new(crate::body::empty());
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
        response
    } else {
        let (bytes, form) = if accepted == Accepted::JSON {
            (json, Form::Json)
        } else {
            into_bytes(write(accepted))
        };
        status::with_type(200, aggregated::media_type(form), crate::body::full(bytes))
    };
    response.headers_mut().insert(ETAG, etag);
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn into_bytes((bytes, form): (Vec<u8>, Form)) -> (Bytes, Form) {
    (bytes.into(), form)
}

/// A quoted hash of a document.
pub(crate) fn etag(bytes: &[u8]) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{}\"", hash(bytes))).expect("hexadecimal digits and quotes")
}

/// SHA-256 in upper-case hexadecimal digits.
pub(crate) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02X}");
        text
    })
}
