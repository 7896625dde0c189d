//! The action of a request, parsed once from method, path and query. Authorization, impersonation,
//! flow control, audit, metrics, spans, dispatch and the registry's target all use this value, so
//! that exactly the authorized action runs.
//!
//! 1. Only [`Action::parse`] makes one; it is immutable.
//! 2. The path is decoded once and then split, so that an escaped slash is a slash everywhere
//!    (fault 40). Every segment is a range of the decoded path, except for a name that a field
//!    selector asks for.
//! 3. The verb comes from here. Dispatch matches on it; later checks of the method may only reject.
//! 4. The query is its [`Options`], which no other module can parse: a list uses the very selectors
//!    that were authorized.
//!
//! The rules are those of kube-apiserver's `RequestInfoFactory`; `oracle.rs` implements them a
//! second time.

mod include;
mod options;
#[cfg(test)]
mod oracle;
mod query;
#[cfg(test)]
mod tests;

use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::{Access, ResourceAccess};
use ferrokube_resource::Verbs;
use http::{Method, Uri};
pub(crate) use include::Include;
pub(crate) use options::{Options, WriteKind};
use query::hex;
#[cfg(test)]
pub(crate) use query::parse_duration;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

/// `/apis/<group>/<version>/watch/namespaces/<namespace>/<resource>/<name>/<subresource>/<more>`:
/// of further segments only their presence counts.
const MAX_PATH_PARTS: usize = 10;

#[derive(Debug)]
pub(crate) struct Action {
    /// Decoded.
    path: String,
    subject: ActionTarget,
    options: Options,
    refusal: Option<Box<Refusal>>,
}

#[derive(Clone, Debug)]
enum ActionTarget {
    /// A non-resource path; the verb is the method in lower case.
    Path(Cow<'static, str>),
    Resource(PathParts),
}

/// An action on a resource: `/api/<version>/...` or `/apis/<group>/<version>/...`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceAction<'a> {
    path: &'a str,
    parts: &'a PathParts,
}

#[derive(Clone, Debug, Default)]
struct PathParts {
    verb: Verb,
    group: PathPart,
    version: PathPart,
    namespace: PathPart,
    resource: PathPart,
    subresource: PathPart,
    name: PathPart,
    /// A name from a field selector, in place of one in the path.
    selected: Option<String>,
    depth: Depth,
    in_namespace: bool,
    verb_in_path: bool,
    /// False for HEAD.
    is_get: bool,
}

/// A range of the decoded path; empty if absent.
#[derive(Clone, Copy, Debug, Default)]
struct PathPart {
    start: usize,
    end: usize,
}

impl PathPart {
    fn of(self, path: &str) -> &str {
        &path[self.start..self.end]
    }
}

/// A verb on a resource, as authorization names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verb {
    /// GET of an object or subresource.
    Get,
    /// GET of a collection, possibly of one name in it.
    List,
    /// Watch of a collection; of one object by `/watch/`.
    Watch,
    /// In a collection, or of a subresource such as `token`.
    Create,
    /// PUT.
    Update,
    /// PATCH of any type, apply included.
    Patch,
    /// DELETE of an object.
    Delete,
    DeleteCollection,
    /// The removed `/proxy/` prefix: authorized, never served.
    Proxy,
    /// Any other method: authorized as the empty verb, never served.
    #[default]
    Unknown,
}

impl Verb {
    fn of(method: &Method) -> Self {
        match *method {
            Method::POST => Self::Create,
            Method::GET | Method::HEAD => Self::Get,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ => Self::Unknown,
        }
    }

    /// As authorizers and audit see it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::Unknown => "",
        }
    }

    /// The verb that a definition must serve; `None` if none can.
    pub(crate) const fn needs(self) -> Option<Verbs> {
        Some(match self {
            Self::Get => Verbs::GET,
            Self::List => Verbs::LIST,
            Self::Watch => Verbs::WATCH,
            Self::Create => Verbs::CREATE,
            Self::Update => Verbs::UPDATE,
            Self::Patch => Verbs::PATCH,
            Self::Delete => Verbs::DELETE,
            Self::DeleteCollection => Verbs::DELETE_COLLECTION,
            Self::Proxy | Self::Unknown => return None,
        })
    }
}

/// Depth of a path below its resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    /// `/pods`
    #[default]
    Collection,
    /// `/pods/p`
    Object,
    /// `/pods/p/status`
    Subresource,
    /// `/pods/p/status/x`
    Beyond,
}

/// Why the parser rejects a path.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// A prefix word (`watch`, `proxy`) without a resource. kube-apiserver responds before
    /// authentication.
    NoResource,
    /// A malformed escape. In kube-apiserver HTTP itself rejects such a request, in text.
    Malformed,
    /// A segment that cannot be part of a storage key: rejected after authentication, without
    /// asking the authorizer.
    Hostile(Failure),
    /// Contains `//`: authorized as it is, then 404.
    Nowhere,
}

impl Action {
    /// Stands for the action until the request is parsed.
    pub(crate) fn unparsed() -> Arc<Self> {
        static UNPARSED: LazyLock<Arc<Action>> = LazyLock::new(|| {
            Arc::new(Action {
                path: String::new(),
                subject: ActionTarget::Path(Cow::Borrowed("")),
                options: Options::default(),
                refusal: None,
            })
        });
        Arc::clone(&UNPARSED)
    }

    /// Parses a request.
    pub(crate) fn parse(method: &Method, raw_path: &str, raw_query: Option<&str>) -> Self {
        let (path, malformed) = decode(raw_path);
        let mut options = Options::parse(raw_query);
        let mut refusal = malformed.then_some(Refusal::Malformed);
        let segments = Segments::of(&path);
        let subject = match segments.below_version(&path) {
            None => ActionTarget::Path(lower_case(method)),
            Some((group, version, rest)) => {
                let parts = PathParts { group, version, ..PathParts::default() };
                match parts.parse(&path, method, rest, &mut options) {
                    Ok(parts) => {
                        refusal = refusal.or_else(|| {
                            refuse(ResourceAction { path: &path, parts: &parts })
                                .map(Refusal::Hostile)
                        });
                        // What follows `proxy` is the backend's path.
                        let own = match parts.subresource.of(&path) {
                            "proxy" => parts.subresource.end,
                            _ => path.len(),
                        };
                        let is_nowhere = segments.empty_at.is_some_and(|at| at < own);
                        refusal = refusal.or(is_nowhere.then_some(Refusal::Nowhere));
                        ActionTarget::Resource(parts)
                    }
                    Err(parts) => {
                        refusal = refusal.or(Some(Refusal::NoResource));
                        ActionTarget::Resource(parts)
                    }
                }
            }
        };
        Self { path: path.into_owned(), subject, options, refusal: refusal.map(Box::new) }
    }

    /// The query of a request as [`Options`] read it, encoded again.
    pub(crate) fn encoded_query(uri: &Uri) -> String {
        query::Query::parse(uri.query()).encoded()
    }

    /// Without options, for what outlives the request.
    pub(crate) fn without_options(&self) -> Self {
        Self {
            path: self.path.clone(),
            subject: self.subject.clone(),
            options: Options::default(),
            refusal: self.refusal.clone(),
        }
    }

    /// Decoded.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// As authorizers and audit see it; the lower-case method for non-resource paths.
    pub(crate) fn verb(&self) -> &str {
        match &self.subject {
            ActionTarget::Path(verb) => verb,
            ActionTarget::Resource(parts) => parts.verb.as_str(),
        }
    }

    /// `None` for non-resource paths.
    pub(crate) fn resource(&self) -> Option<ResourceAction<'_>> {
        match &self.subject {
            ActionTarget::Path(_) => None,
            ActionTarget::Resource(parts) => Some(ResourceAction { path: &self.path, parts }),
        }
    }

    /// The question to an authorizer.
    pub(crate) fn access<'a>(&'a self, user: &'a UserInfo) -> Access<'a> {
        Access {
            user,
            verb: self.verb(),
            resource: self.resource().map(|resource| resource.access()),
            path: &self.path,
        }
    }

    /// Group and version of a resource, or of a path to their discovery or OpenAPI document.
    pub(crate) fn group_version(&self) -> Option<(&str, &str)> {
        if let Some(resource) = self.resource() {
            return Some((resource.group(), resource.version()));
        }
        let segments = Segments::of(&self.path);
        match &segments.parts[..segments.count] {
            [api, version] if api.of(&self.path) == "api" => Some(("", version.of(&self.path))),
            [apis, group, version] if apis.of(&self.path) == "apis" => {
                Some((group.of(&self.path), version.of(&self.path)))
            }
            [openapi, v3, apis, group, version]
                if [*openapi, *v3, *apis].map(|part| part.of(&self.path))
                    == ["openapi", "v3", "apis"] =>
            {
                Some((group.of(&self.path), version.of(&self.path)))
            }
            _ => None,
        }
    }

    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_deref()
    }

    /// Long-running requests have no timeout and need no seat.
    pub(crate) fn is_long_running(&self) -> bool {
        let ActionTarget::Resource(parts) = &self.subject else { return false };
        parts.verb == Verb::Watch || self.connects() || self.is_subresource("log")
    }

    /// Whether the audit log must have its event before the client has an answer: writes, and
    /// connections, by which a GET runs commands.
    pub(crate) fn must_be_recorded(&self) -> bool {
        !self.is_read_only() || self.connects()
    }

    fn connects(&self) -> bool {
        ["attach", "exec", "portforward", "proxy"].iter().any(|name| self.is_subresource(name))
    }

    fn is_subresource(&self, name: &str) -> bool {
        let ActionTarget::Resource(parts) = &self.subject else { return false };
        parts.depth >= Depth::Subresource && parts.subresource.of(&self.path) == name
    }

    pub(crate) fn is_read_only(&self) -> bool {
        match &self.subject {
            ActionTarget::Path(verb) => matches!(&**verb, "get" | "head" | "options"),
            ActionTarget::Resource(parts) => {
                matches!(parts.verb, Verb::Get | Verb::List | Verb::Watch)
            }
        }
    }
}

impl<'a> ResourceAction<'a> {
    pub(crate) fn verb(self) -> Verb {
        self.parts.verb
    }

    /// Empty for the core group.
    pub(crate) fn group(self) -> &'a str {
        self.parts.group.of(self.path)
    }

    /// Such as `v1`.
    pub(crate) fn version(self) -> &'a str {
        self.parts.version.of(self.path)
    }

    /// Empty across namespaces and for cluster scope; of `/namespaces/x` itself `x`, as
    /// authorization expects.
    pub(crate) fn namespace(self) -> &'a str {
        self.parts.namespace.of(self.path)
    }

    pub(crate) fn plural(self) -> &'a str {
        self.parts.resource.of(self.path)
    }

    /// Empty for the object itself.
    pub(crate) fn subresource(self) -> &'a str {
        self.parts.subresource.of(self.path)
    }

    /// Empty for collections, unless a list or watch selects one `metadata.name`.
    pub(crate) fn name(self) -> &'a str {
        self.parts.selected.as_deref().unwrap_or_else(|| self.parts.name.of(self.path))
    }

    pub(crate) fn depth(self) -> Depth {
        self.parts.depth
    }

    /// Whether the path is `/namespaces/x` of the core group, or below it without being in the
    /// namespace.
    pub(crate) fn is_namespace_itself(self) -> bool {
        !self.parts.in_namespace && self.group().is_empty() && self.plural() == "namespaces"
    }

    /// Whether the path, not the method, has the verb (`/watch/`, `/proxy/`).
    pub(crate) fn is_verb_in_path(self) -> bool {
        self.parts.verb_in_path
    }

    /// Not HEAD, which has the same verbs but no routes.
    pub(crate) fn is_get(self) -> bool {
        self.parts.is_get
    }

    /// As authorization sees it.
    pub(crate) fn access(self) -> ResourceAccess<'a> {
        ResourceAccess {
            group: self.group(),
            version: self.version(),
            resource: self.plural(),
            subresource: self.subresource(),
            namespace: self.namespace(),
            name: self.name(),
        }
    }

    /// As errors name it.
    pub(crate) fn group_resource(self) -> GroupResource {
        GroupResource::new(self.group(), self.plural())
    }
}

impl PathParts {
    /// Parses the segments after the version; fails for a prefix word without a resource.
    fn parse(
        mut self,
        path: &str,
        method: &Method,
        mut rest: &[PathPart],
        options: &mut Options,
    ) -> Result<Self, Self> {
        self.verb = Verb::of(method);
        self.is_get = *method == Method::GET;
        let before = match rest[0].of(path) {
            "watch" => Some(Verb::Watch),
            "proxy" => Some(Verb::Proxy),
            _ => None,
        };
        if let Some(verb) = before {
            rest = &rest[1..];
            if rest.is_empty() {
                return Err(self);
            }
            (self.verb, self.verb_in_path) = (verb, true);
        }
        if rest.len() > 1 && rest[0].of(path) == "namespaces" {
            self.namespace = rest[1];
            if rest.len() > 2 && !matches!(rest[2].of(path), "status" | "finalize") {
                rest = &rest[2..];
                self.in_namespace = true;
            }
        }
        self.resource = rest[0];
        self.name = rest.get(1).copied().unwrap_or_default();
        // `/proxy/` paths have no subresource.
        self.subresource =
            rest.get(2).copied().filter(|_| self.verb != Verb::Proxy).unwrap_or_default();
        self.depth = match rest.len() {
            1 => Depth::Collection,
            2 => Depth::Object,
            3 => Depth::Subresource,
            _ => Depth::Beyond,
        };
        self.settle_verb(path, options);
        Ok(self)
    }

    /// `get` without a name is `list` or `watch`; `delete` without one is `deletecollection`.
    fn settle_verb(&mut self, path: &str, options: &mut Options) {
        if !self.name.of(path).is_empty() {
            return;
        }
        match self.verb {
            Verb::Get => {
                self.verb = if options.is_watch() { Verb::Watch } else { Verb::List };
                self.selected = options.select_name();
            }
            Verb::Delete => self.verb = Verb::DeleteCollection,
            _ => {}
        }
    }
}

/// The segments of a path.
struct Segments {
    parts: [PathPart; MAX_PATH_PARTS],
    /// At most [`MAX_PATH_PARTS`].
    count: usize,
    /// Where `//` first occurs between segments.
    empty_at: Option<usize>,
}

impl Segments {
    fn of(path: &str) -> Self {
        let mut segments =
            Self { parts: [PathPart::default(); MAX_PATH_PARTS], count: 0, empty_at: None };
        let trimmed = path.trim_matches('/');
        let mut start = path.len() - path.trim_start_matches('/').len();
        for segment in trimmed.split('/') {
            let end = start + segment.len();
            if let Some(part) = segments.parts.get_mut(segments.count) {
                *part = PathPart { start, end };
                segments.count += 1;
            }
            if segment.is_empty() {
                segments.empty_at.get_or_insert(start);
            }
            start = end + 1;
        }
        segments
    }

    /// Group, version and the rest; `None` without a rest.
    fn below_version(&self, path: &str) -> Option<(PathPart, PathPart, &[PathPart])> {
        let parts = &self.parts[..self.count];
        match (parts[0].of(path), parts) {
            ("api", [_, version, rest @ ..]) if !rest.is_empty() => {
                Some((PathPart::default(), *version, rest))
            }
            ("apis", [_, group, version, rest @ ..]) if !rest.is_empty() => {
                Some((*group, *version, rest))
            }
            _ => None,
        }
    }
}

fn lower_case(method: &Method) -> Cow<'static, str> {
    match *method {
        Method::GET => Cow::Borrowed("get"),
        Method::POST => Cow::Borrowed("post"),
        _ => Cow::Owned(method.as_str().to_ascii_lowercase()),
    }
}

/// 404 without details, as kube-apiserver's router responds.
pub(crate) fn no_such_resource() -> Failure {
    Failure::new(Reason::NotFound, "the server could not find the requested resource")
        .with_details(Details::default())
}

/// Rejects segments that cannot be part of a storage key before authorization (fault 40), with
/// kube-apiserver's codes.
fn refuse(action: ResourceAction<'_>) -> Option<Failure> {
    let namespace = action.namespace();
    if action.parts.in_namespace && matches!(namespace, "." | "..") {
        return Some(Failure::bare(500, format!("invalid namespace {namespace:?}")));
    }
    if [action.group(), action.version(), namespace].iter().any(|part| part.contains('\0')) {
        return Some(no_such_resource());
    }
    if action.depth() == Depth::Collection {
        return None;
    }
    let name = action.name();
    match name {
        "." | ".." if action.depth() == Depth::Object => Some(Failure::bad_request(format!(
            "Name parameter invalid: \"{name}\": may not be '{name}'"
        ))),
        "." | ".." => Some(no_such_resource()),
        _ => name.contains('\0').then(|| Failure::not_found(&action.group_resource(), name)),
    }
}

/// Decodes escapes; the flag is set if one is malformed.
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

/// U+FFFD for each invalid byte, as kube-apiserver encodes such names.
fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, chunk.invalid().len()));
    }
    text
}
