//! What a request does. Parsed once from method, path and query; authorization, impersonation, flow
//! control, audit, metrics, spans, dispatch and the registry's target read this value and nothing
//! else, so that what runs is what was authorized.
//!
//! 1. Only [`Action::parse`] makes one, and nothing changes it afterwards.
//! 2. The path is decoded once and then split, so that an escaped slash is a slash for everybody
//!    (fault 40). Every part is a piece of the decoded path, except for a name that a field
//!    selector asks for.
//! 3. The verb comes from here. Dispatch matches on it; the method may refuse a request after that,
//!    never choose another verb.
//! 4. The query is its [`Options`]: no other module can read one, so that a list is made of the
//!    very selectors that were authorized.
//!
//! The rules are those of kube-apiserver's `RequestInfoFactory`; `oracle.rs` is a second reading of
//! them.

mod options;
#[cfg(test)]
mod oracle;
mod query;
#[cfg(test)]
mod tests;

use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Details, Failure, Reason};
use ferrokube_auth::{Access, ResourceAccess};
use ferrokube_registry::UserInfo;
use ferrokube_resource::Verbs;
use http::Method;
pub(crate) use options::{Options, WriteKind};
use query::hex;
#[cfg(test)]
pub(crate) use query::parse_duration;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

/// `/apis/<group>/<version>/watch/namespaces/<namespace>/<resource>/<name>/<subresource>/<one more>`:
/// parts after these are only counted as empty or not.
const MAX_PARTS: usize = 10;

/// What a request does.
#[derive(Debug)]
pub(crate) struct Action {
    /// Decoded.
    path: String,
    subject: Subject,
    options: Options,
    refusal: Option<Box<Refusal>>,
}

#[derive(Clone, Debug)]
enum Subject {
    /// Any path but those of resources; the verb is the method in lower case.
    Path(Cow<'static, str>),
    Resource(Parts),
}

/// What is done to a resource: `/api/<version>/...` and `/apis/<group>/<version>/...`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceAction<'a> {
    path: &'a str,
    parts: &'a Parts,
}

#[derive(Clone, Debug, Default)]
struct Parts {
    verb: Verb,
    group: Part,
    version: Part,
    namespace: Part,
    resource: Part,
    subresource: Part,
    name: Part,
    /// A name that a field selector asks for, in place of one in the path.
    selected: Option<String>,
    depth: Depth,
    in_namespace: bool,
    verb_in_path: bool,
    /// And not HEAD.
    is_get: bool,
}

/// A piece of the decoded path; empty when the path has none.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    start: usize,
    end: usize,
}

impl Part {
    fn of(self, path: &str) -> &str {
        &path[self.start..self.end]
    }
}

/// What is done to a resource, in authorization's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Of one object or subresource.
    Get,
    /// Of a collection, perhaps one name of it.
    List,
    /// Of a collection, or by the legacy prefix also of one object.
    Watch,
    /// Of an object, or of a subresource such as `token`.
    Create,
    /// PUT.
    Update,
    /// PATCH of every type, apply included.
    Patch,
    /// Of one object.
    Delete,
    /// Of a collection.
    DeleteCollection,
    /// The removed `/proxy/` prefix: authorized, never served.
    Proxy,
    /// A method that stands for no verb: authorized as an empty verb, never served.
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

    /// The word that authorizers and audit see.
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

    /// What a definition must serve for it; `None`: nothing serves it.
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

/// How far a path goes below its resource.
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

/// Why a path gets no further than the parser.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// One of the words that may stand before a resource stands alone. Upstream answers before
    /// authentication.
    NoResource,
    /// It could not be part of a storage key: answered once the caller is known, and no authorizer
    /// is asked.
    Hostile(Failure),
    /// Two slashes follow each other in it: authorized as it reads, and 404 for those who may.
    Nowhere,
}

impl Action {
    /// What a request is before it was parsed.
    pub(crate) fn unparsed() -> Arc<Self> {
        static UNPARSED: LazyLock<Arc<Action>> = LazyLock::new(|| {
            Arc::new(Action {
                path: String::new(),
                subject: Subject::Path(Cow::Borrowed("")),
                options: Options::default(),
                refusal: None,
            })
        });
        Arc::clone(&UNPARSED)
    }

    /// Reads what a request does.
    pub(crate) fn parse(method: &Method, raw_path: &str, raw_query: Option<&str>) -> Self {
        let (path, malformed) = decode(raw_path);
        let mut options = Options::parse(raw_query);
        let mut refusal = malformed
            .then(|| Refusal::Hostile(Failure::bad_request("the path has a malformed escape")));
        let segments = Segments::of(&path);
        let subject = match segments.below_version(&path) {
            None => Subject::Path(lower_case(method)),
            Some((group, version, rest)) => {
                let parts = Parts { group, version, ..Parts::default() };
                match parts.parse(&path, method, rest, &mut options) {
                    Ok(parts) => {
                        refusal = refusal.or_else(|| {
                            refuse(ResourceAction { path: &path, parts: &parts })
                                .map(Refusal::Hostile)
                        });
                        refusal = refusal.or(segments.has_empty.then_some(Refusal::Nowhere));
                        Subject::Resource(parts)
                    }
                    Err(parts) => {
                        refusal = Some(Refusal::NoResource);
                        Subject::Resource(parts)
                    }
                }
            }
        };
        Self { path: path.into_owned(), subject, options, refusal: refusal.map(Box::new) }
    }

    /// The same without its options, for what outlives the request.
    pub(crate) fn without_options(&self) -> Self {
        Self {
            path: self.path.clone(),
            subject: self.subject.clone(),
            options: Options::default(),
            refusal: self.refusal.clone(),
        }
    }

    /// The path, decoded.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// What else it asks for.
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The verb as authorizers and audit see it; for other paths than those of resources the method
    /// in lower case.
    pub(crate) fn verb(&self) -> &str {
        match &self.subject {
            Subject::Path(verb) => verb,
            Subject::Resource(parts) => parts.verb.as_str(),
        }
    }

    /// What is done to which resource; `None` for other paths.
    pub(crate) fn resource(&self) -> Option<ResourceAction<'_>> {
        match &self.subject {
            Subject::Path(_) => None,
            Subject::Resource(parts) => Some(ResourceAction { path: &self.path, parts }),
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

    /// Why nothing comes of it.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        self.refusal.as_deref()
    }

    /// Whether the request may run for minutes: it has no deadline, and flow control does not count
    /// it. (Proxied connections are not served.)
    pub(crate) fn is_long_running(&self) -> bool {
        matches!(&self.subject, Subject::Resource(parts) if parts.verb == Verb::Watch)
    }

    /// Whether it changes nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        match &self.subject {
            Subject::Path(verb) => matches!(&**verb, "get" | "head" | "options"),
            Subject::Resource(parts) => matches!(parts.verb, Verb::Get | Verb::List | Verb::Watch),
        }
    }
}

impl<'a> ResourceAction<'a> {
    /// What is done.
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

    /// Empty across namespaces and for cluster scope; for `/namespaces/x` itself it is `x`, as
    /// authorization expects.
    pub(crate) fn namespace(self) -> &'a str {
        self.parts.namespace.of(self.path)
    }

    /// The plural.
    pub(crate) fn plural(self) -> &'a str {
        self.parts.resource.of(self.path)
    }

    /// Empty for the object itself.
    pub(crate) fn subresource(self) -> &'a str {
        self.parts.subresource.of(self.path)
    }

    /// Empty for collections; a list or watch of one `metadata.name` has that.
    pub(crate) fn name(self) -> &'a str {
        self.parts.selected.as_deref().unwrap_or_else(|| self.parts.name.of(self.path))
    }

    /// How far the path goes.
    pub(crate) fn depth(self) -> Depth {
        self.parts.depth
    }

    /// Whether the path is the core group's `/namespaces/x`, or below it without being inside the
    /// namespace.
    pub(crate) fn is_namespace_itself(self) -> bool {
        !self.parts.in_namespace && self.group().is_empty() && self.plural() == "namespaces"
    }

    /// Whether the verb stands in the path (`/watch/`, `/proxy/`) instead of coming from the
    /// method.
    pub(crate) fn is_verb_in_path(self) -> bool {
        self.parts.verb_in_path
    }

    /// Whether the method is GET, which most reads are; HEAD has the same verb and no routes.
    pub(crate) fn is_get(self) -> bool {
        self.parts.is_get
    }

    /// The resource as authorization sees it.
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

    /// How errors name the resource.
    pub(crate) fn group_resource(self) -> GroupResource {
        GroupResource::new(self.group(), self.plural())
    }
}

impl Parts {
    /// What follows the version; the error is a word that may stand before a resource and stands
    /// alone.
    fn parse(
        mut self,
        path: &str,
        method: &Method,
        mut rest: &[Part],
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
        // A proxied path is nobody's subresource.
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

    /// `get` without a name is `list` or `watch`, `delete` without one is `deletecollection`.
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

/// The pieces of a path between its slashes, those at its ends left out.
struct Segments {
    parts: [Part; MAX_PARTS],
    /// At most [`MAX_PARTS`].
    count: usize,
    /// Whether two slashes follow each other between them.
    has_empty: bool,
}

impl Segments {
    fn of(path: &str) -> Self {
        let mut segments = Self { parts: [Part::default(); MAX_PARTS], count: 0, has_empty: false };
        let trimmed = path.trim_matches('/');
        let mut start = path.len() - path.trim_start_matches('/').len();
        for segment in trimmed.split('/') {
            let end = start + segment.len();
            if let Some(part) = segments.parts.get_mut(segments.count) {
                *part = Part { start, end };
                segments.count += 1;
            }
            segments.has_empty |= segment.is_empty();
            start = end + 1;
        }
        segments
    }

    /// Group, version, and what follows them; `None` when nothing does.
    fn below_version(&self, path: &str) -> Option<(Part, Part, &[Part])> {
        let parts = &self.parts[..self.count];
        match (parts[0].of(path), parts) {
            ("api", [_, version, rest @ ..]) if !rest.is_empty() => {
                Some((Part::default(), *version, rest))
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

/// A 404 about no object in particular, as routers answer.
pub(crate) fn no_such_resource() -> Failure {
    Failure::new(Reason::NotFound, "the server could not find the requested resource")
        .with_details(Details::default())
}

/// Segments that cannot be part of a storage key never get to authorization (fault 40). The codes
/// are the recorded ones.
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
