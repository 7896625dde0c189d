//! What a request is about, read from its method and path alone: the one value that authorization, audit, routing and the storage key come from.
//!
//! Paths are decoded once and then split, so that an escaped slash is a slash everywhere (fault 40): no later step decodes again.

use crate::query::{Query, hex};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::selector::FieldSelector;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_auth::ResourceAccess;
use http::Method;
use std::borrow::Cow;
use std::sync::Arc;

/// A request's subject.
#[derive(Debug, Default)]
pub(crate) struct RequestInfo {
    /// The path, decoded.
    pub(crate) path: String,
    /// `get`, `list`, `watch`, `deletecollection`, ...; for non-resource paths the method in lower case.
    pub(crate) verb: Cow<'static, str>,
    /// Present below `/api/<version>/` and `/apis/<group>/<version>/`.
    pub(crate) resource: Option<Arc<ResourceInfo>>,
}

/// The resource part of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceInfo {
    /// Empty for the core group.
    pub(crate) group: String,
    /// Such as `v1`.
    pub(crate) version: String,
    /// Empty across namespaces and for cluster scope; for `/namespaces/x` itself it is `x`, as authorization expects.
    pub(crate) namespace: String,
    /// The plural.
    pub(crate) resource: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
    /// Empty for collections; a list or watch of one `metadata.name` has that.
    pub(crate) name: String,
    /// How many path segments follow the namespace, the resource's own included.
    pub(crate) segments: usize,
    /// Whether the path begins with a namespace that the resource lies in.
    pub(crate) in_namespace: bool,
    /// Whether this is the old `/watch/` form.
    pub(crate) legacy_watch: bool,
}

impl RequestInfo {
    /// The resource as authorization sees it.
    pub(crate) fn access(&self) -> Option<ResourceAccess<'_>> {
        self.resource.as_deref().map(ResourceInfo::access)
    }

    /// Whether the request may run for minutes: watches and proxied connections.
    pub(crate) fn is_long_running(&self) -> bool {
        self.resource.as_ref().is_some_and(|info| {
            self.verb == "watch" || matches!(info.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward") || info.subresource == "log"
        })
    }

    /// Whether it changes nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(&*self.verb, "get" | "list" | "watch" | "head" | "options")
    }
}

impl ResourceInfo {
    pub(crate) fn access(&self) -> ResourceAccess<'_> {
        ResourceAccess {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    /// Whether nothing follows one of the words that stood before the resource in old paths.
    pub(crate) fn is_verb_alone(&self) -> bool {
        self.segments == 1 && matches!(self.resource.as_str(), "watch" | "proxy") && !self.legacy_watch && !self.in_namespace
    }

    /// How errors name the resource.
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(self.group.as_str(), self.resource.as_str())
    }
}

/// A 404 about no object in particular, as routers answer.
pub(crate) fn no_such_resource() -> Failure {
    Failure::new(Reason::NotFound, "the server could not find the requested resource").with_details(Details::default())
}

/// A path that must not get further than the parser: what to answer, once it is known who asks.
pub(crate) type Refused = Option<Failure>;

/// Reads a request's subject. The second part refuses hostile paths; authorization must not be asked about those.
pub(crate) fn parse(method: &Method, raw_path: &str, query: &Query) -> (RequestInfo, Refused) {
    let (path, malformed) = decode(raw_path);
    let verb = Cow::Owned(method.as_str().to_ascii_lowercase());
    let mut refused = malformed.then(|| Failure::bad_request("the path has a malformed escape"));
    let trimmed = path.trim_matches('/');
    let mut segments = trimmed.split('/');
    let is_core = match segments.next() {
        Some("api") => true,
        Some("apis") => false,
        _ => return (RequestInfo { verb, resource: None, path: path.into_owned() }, refused),
    };
    let rest: Vec<&str> = segments.collect();
    let needed = if is_core { 2 } else { 3 };
    if rest.len() < needed {
        return (RequestInfo { verb, resource: None, path: path.into_owned() }, refused);
    }
    if rest.iter().any(|segment| segment.is_empty()) {
        refused = refused.or_else(|| Some(no_such_resource()));
    }
    let (group, version, parts) = if is_core { ("", rest[0], &rest[1..]) } else { (rest[0], rest[1], &rest[2..]) };
    let (info, verb) = parse_resource(method, (group, version), parts, query);
    refused = refused.or_else(|| refuse(&info));
    (RequestInfo { verb, resource: Some(Arc::new(info)), path: path.into_owned() }, refused)
}

fn parse_resource(method: &Method, (group, version): (&str, &str), mut parts: &[&str], query: &Query) -> (ResourceInfo, Cow<'static, str>) {
    let mut info = ResourceInfo { group: group.to_owned(), version: version.to_owned(), ..ResourceInfo::default() };
    let mut verb = Cow::Borrowed(match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    });
    if parts[0] == "watch" && parts.len() > 1 {
        verb = Cow::Borrowed("watch");
        info.legacy_watch = true;
        parts = &parts[1..];
    }
    if parts[0] == "namespaces" && parts.len() > 1 {
        parts[1].clone_into(&mut info.namespace);
        if parts.len() > 2 && !matches!(parts[2], "status" | "finalize") {
            parts = &parts[2..];
            info.in_namespace = true;
        }
    }
    info.segments = parts.len();
    parts[0].clone_into(&mut info.resource);
    if let Some(name) = parts.get(1) {
        (*name).clone_into(&mut info.name);
    }
    if let Some(subresource) = parts.get(2) {
        (*subresource).clone_into(&mut info.subresource);
    }
    let verb = collection_verb(verb, &mut info, query);
    (info, verb)
}

/// `get` of a collection is `list` or `watch`, `delete` of one is `deletecollection`.
fn collection_verb(verb: Cow<'static, str>, info: &mut ResourceInfo, query: &Query) -> Cow<'static, str> {
    if !info.name.is_empty() {
        return verb;
    }
    match &*verb {
        "get" => {
            let verb = if query.flag("watch") == Some(true) { "watch" } else { "list" };
            name_from_selector(info, query);
            Cow::Borrowed(verb)
        }
        "watch" => {
            name_from_selector(info, query);
            verb
        }
        "delete" => Cow::Borrowed("deletecollection"),
        _ => verb,
    }
}

/// A list or watch of one name is authorized as one of that name.
fn name_from_selector(info: &mut ResourceInfo, query: &Query) {
    let text = query.text("fieldSelector");
    if text.len() < "metadata.name=".len() || text.len() > 1000 || !text.contains("metadata.name") {
        return;
    }
    if let Some(name) = FieldSelector::parse(text).ok().as_ref().and_then(|selector| selector.exact("metadata.name"))
        && !matches!(name, "." | "..")
        && !name.contains(['/', '%'])
    {
        name.clone_into(&mut info.name);
    }
}

/// Segments that cannot be part of a storage key never get to authorization (fault 40). The codes are the recorded ones.
fn refuse(info: &ResourceInfo) -> Refused {
    if info.in_namespace && matches!(info.namespace.as_str(), "." | "..") {
        return Some(Failure::bare(500, format!("invalid namespace {:?}", info.namespace)));
    }
    if info.group.contains('\0') || info.version.contains('\0') || info.namespace.contains('\0') {
        return Some(no_such_resource());
    }
    if info.segments == 2 && matches!(info.name.as_str(), "." | "..") {
        return Some(Failure::bad_request(format!("name may not be {:?}", info.name)));
    }
    if info.segments > 1 && info.name.contains('\0') {
        return Some(Failure::not_found(&info.group_resource(), &info.name));
    }
    (info.segments > 1 && matches!(info.name.as_str(), "." | "..")).then(no_such_resource)
}

/// Decodes the escapes of a path; the flag tells whether one was malformed.
fn decode(raw: &str) -> (Cow<'_, str>, bool) {
    if !raw.contains('%') {
        return (Cow::Borrowed(raw), false);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    let mut malformed = false;
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        match (bytes.next().and_then(hex), bytes.next().and_then(hex)) {
            (Some(high), Some(low)) => out.push(high << 4 | low),
            _ => malformed = true,
        }
    }
    let text = String::from_utf8(out).unwrap_or_else(|error| lossy(error.as_bytes()));
    (Cow::Owned(text), malformed)
}

/// One U+FFFD for each bad byte, as upstream's JSON writer shows such names.
fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn info(method: &str, path: &str) -> (RequestInfo, Refused) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        parse(&method.parse().unwrap(), path, &Query::parse(Some(query)))
    }

    fn brief(method: &str, path: &str) -> String {
        let (info, _) = info(method, path);
        match &info.resource {
            None => format!("{} {}", info.verb, info.path),
            Some(r) => format!("{} [{}/{}] {}/{}/{}/{}", info.verb, r.group, r.version, r.namespace, r.resource, r.name, r.subresource),
        }
    }

    #[test]
    fn paths_read_as_upstream() {
        let cases = [
            ("GET", "/api/v1/namespaces", "list [/v1] /namespaces//"),
            ("GET", "/api/v1/namespaces/x", "get [/v1] x/namespaces/x/"),
            ("PUT", "/api/v1/namespaces/x/status", "update [/v1] x/namespaces/x/status"),
            ("PUT", "/api/v1/namespaces/x/finalize", "update [/v1] x/namespaces/x/finalize"),
            ("GET", "/api/v1/namespaces/x/pods", "list [/v1] x/pods//"),
            ("GET", "/api/v1/namespaces/x/pods/", "list [/v1] x/pods//"),
            ("HEAD", "/api/v1/namespaces/x/pods/p", "get [/v1] x/pods/p/"),
            ("DELETE", "/api/v1/namespaces/x/pods", "deletecollection [/v1] x/pods//"),
            ("POST", "/api/v1/namespaces/x/pods/p/eviction", "create [/v1] x/pods/p/eviction"),
            ("GET", "/apis/apps/v1/deployments?watch=1", "watch [apps/v1] /deployments//"),
            ("GET", "/apis/apps/v1/deployments?watch=0", "list [apps/v1] /deployments//"),
            ("GET", "/apis/apps/v1/namespaces/x/deployments/d?watch=1", "get [apps/v1] x/deployments/d/"),
            ("GET", "/api/v1/watch/namespaces/x/pods", "watch [/v1] x/pods//"),
            ("GET", "/api/v1/watch/namespaces/x/pods/p", "watch [/v1] x/pods/p/"),
            ("BREW", "/api/v1/pods", " [/v1] /pods//"),
            ("GET", "/api/v1", "get /api/v1"),
            ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
            ("HEAD", "/apis", "head /apis"),
            ("POST", "/healthz", "post /healthz"),
        ];
        for (method, path, want) in cases {
            assert_eq!(brief(method, path), want, "{method} {path}");
        }
    }

    #[test]
    fn fault_40_hostile_paths_are_refused_before_authorization() {
        let ns = "/api/v1/namespaces/n/configmaps";
        let cases = [
            (format!("{ns}/%2e%2e"), 400),
            (format!("{ns}/%2e"), 400),
            (format!("{ns}/%2e%2e%2fsecrets"), 404),
            (format!("{ns}/../secrets"), 404),
            (format!("{ns}/./a"), 404),
            (format!("{ns}/a%00b"), 404),
            (format!("{ns}/a/../../configmaps"), 0),
            ("/api/v1/namespaces/n//configmaps".into(), 404),
            ("/api/v1/namespaces/%2e%2e/configmaps".into(), 500),
            ("/api/v1/namespaces/a%00/configmaps".into(), 404),
            (format!("{ns}/%zz"), 400),
            (format!("{ns}/%F0%9F%98%80"), 0),
        ];
        for (path, code) in cases {
            let (_, refused) = info("GET", &path);
            assert_eq!(refused.map_or(0, |failure| failure.code), code, "{path}");
        }
        assert_eq!(info("GET", &format!("{ns}/%ff%fe")).0.resource.unwrap().name, "\u{fffd}\u{fffd}");
        // An escaped slash is a slash for everybody.
        assert_eq!(info("GET", &format!("{ns}/a%2fb")).0.resource, info("GET", &format!("{ns}/a/b")).0.resource);
    }

    proptest! {
        #[test]
        fn any_path_parses_without_panic_and_names_are_path_segments(path in "(/(api|apis|v1|namespaces|watch|apps|pods|%2[eEfF]|%00|%|\\.|\\.\\.|[a-z]{0,3}|\u{e9}))*/?", method in "(GET|PUT|POST|DELETE|HEAD|X)") {
            let (info, refused) = info(&method, &path);
            if let Some(resource) = info.resource {
                // What authorization is asked about is exactly what was between slashes, so that the storage key cannot differ.
                for part in [&resource.group, &resource.version, &resource.namespace, &resource.resource, &resource.name, &resource.subresource] {
                    prop_assert!(!part.contains('/'));
                    prop_assert!(part.is_empty() || info.path.split('/').any(|segment| segment == part));
                }
                if refused.is_none() {
                    prop_assert!(!matches!(resource.name.as_str(), "." | "..") && !resource.name.contains('\0'));
                    prop_assert!(!resource.in_namespace || (!matches!(resource.namespace.as_str(), "." | "..") && !resource.namespace.is_empty()));
                }
            }
        }
    }
}
