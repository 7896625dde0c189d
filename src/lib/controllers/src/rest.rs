//! Untyped requests on resources known only by discovery. Bodies are JSON values.

use futures::AsyncReadExt;
use http::{Method, Request};
use kube::Client;
use kube::core::response::StatusDetails;
use kube::discovery::ApiResource;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, de};
use serde_json::Value;

/// Levels of a response; the API server accepts 512 of an object, which a list puts two lower.
const MAX_DEPTH: usize = 520;

/// Characters to escape in a path segment. RBAC names may contain almost anything, and names in
/// owner references are arbitrary client input.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'/')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Path of an object, or of a collection if `name` is empty.
pub(crate) fn path(resource: &ApiResource, namespace: Option<&str>, name: &str) -> String {
    let root = if resource.group.is_empty() {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{}", resource.api_version)
    };
    let within = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
    let last = if name.is_empty() {
        String::new()
    } else {
        format!("/{}", utf8_percent_encode(name, SEGMENT))
    };
    format!("{root}{within}/{}{last}", resource.plural)
}

/// Requested representation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Representation {
    /// Full objects.
    #[default]
    Whole,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `PartialObjectMetadataList`.
    MetadataList,
}

#[derive(Default)]
pub(crate) struct RequestOptions<'a> {
    /// Requested representation.
    pub(crate) representation: Representation,
    /// Body: a merge patch for PATCH, else JSON.
    pub(crate) body: Option<&'a Value>,
}

const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Sends a request and parses the JSON response.
///
/// # Errors
/// Any failure of the request.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    ask: RequestOptions<'_>,
) -> Result<Value, kube::Error> {
    let text = client.request_text(request(method, path, ask)?).await?;
    parse(&text).map_err(kube::Error::SerdeError)
}

/// Sends a request whose response is of no use, and is not read: that of a collection has all of
/// its objects.
///
/// # Errors
/// Any failure of the request.
pub(crate) async fn send_only(
    client: &Client,
    method: Method,
    path: &str,
    ask: RequestOptions<'_>,
) -> Result<(), kube::Error> {
    client.request_stream(request(method, path, ask)?).await.map(drop)
}

fn request(
    method: Method,
    path: &str,
    ask: RequestOptions<'_>,
) -> Result<Request<Vec<u8>>, kube::Error> {
    let mut request = Request::builder().method(&method).uri(path);
    request = match ask.representation {
        Representation::Whole => request,
        Representation::Metadata => request.header(http::header::ACCEPT, METADATA),
        Representation::MetadataList => request.header(http::header::ACCEPT, METADATA_LIST),
    };
    let body = match ask.body {
        Some(body) => {
            let kind = if method == Method::PATCH {
                "application/merge-patch+json"
            } else {
                "application/json"
            };
            request = request.header(http::header::CONTENT_TYPE, kind);
            serde_json::to_vec(body).map_err(kube::Error::SerdeError)?
        }
        None => Vec::new(),
    };
    request.body(body).map_err(kube::Error::HttpError)
}

/// The fields of an object's metadata that controllers read. The rest, which users make as long as
/// whole objects, is skipped.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ObjectFacts {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "or_none")]
    pub(crate) finalizers: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListedObject {
    metadata: ObjectFacts,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListFacts {
    resource_version: String,
    #[serde(rename = "continue")]
    token: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ListedPage {
    metadata: ListFacts,
    #[serde(deserialize_with = "or_none")]
    items: Vec<ListedObject>,
}

/// `null` is an empty list, which other servers send.
fn or_none<'de, D: de::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A page of a list.
pub(crate) struct MetadataPage {
    /// Revision of the list.
    pub(crate) resource_version: String,
    pub(crate) objects: Vec<ObjectFacts>,
}

/// Lists the metadata of a collection, in pages of about [`PAGE_BYTES`].
pub(crate) struct MetadataPages<'a> {
    client: &'a Client,
    collection: &'a str,
    limit: usize,
    /// `None`: it is over.
    token: Option<String>,
}

/// Objects of the first page, whose length is not known.
const FIRST_PAGE: usize = 16;
const MAX_PAGE: usize = 500;
const PAGE_BYTES: usize = 1 << 20;
/// More of a page is not read, unless it has a single object: it is requested again, shorter.
const MAX_PAGE_BYTES: usize = 4 << 20;
/// By how much.
const SHORTER: usize = 8;
/// Longer pages are parsed on a thread that may block.
const INLINE_BYTES: usize = 64 << 10;

impl<'a> MetadataPages<'a> {
    /// `collection`: its path.
    pub(crate) fn new(client: &'a Client, collection: &'a str) -> Self {
        Self { client, collection, limit: FIRST_PAGE, token: Some(String::new()) }
    }

    /// Whether the last page was returned.
    pub(crate) fn is_over(&self) -> bool {
        self.token.is_none()
    }

    /// The next page; `None` after the last one.
    ///
    /// # Errors
    /// See [`send`].
    pub(crate) async fn next(&mut self) -> Result<Option<MetadataPage>, kube::Error> {
        let Some(token) = self.token.take() else { return Ok(None) };
        let text = loop {
            match self.read(&token).await? {
                Some(text) => break text,
                // The objects are longer than those of the page before.
                None => self.limit = (self.limit / SHORTER).max(1),
            }
        };
        self.limit = (self.limit * PAGE_BYTES / text.len().max(1)).clamp(1, MAX_PAGE);
        let page = if text.len() > INLINE_BYTES {
            let parsing = tokio::task::spawn_blocking(move || serde_json::from_slice(&text));
            parsing.await.map_err(|error| kube::Error::Service(error.into()))?
        } else {
            serde_json::from_slice(&text)
        };
        let ListedPage { metadata, items } = page.map_err(kube::Error::SerdeError)?;
        let rest = metadata.token.filter(|rest| !rest.is_empty());
        self.token =
            rest.map(|rest| format!("&continue={}", utf8_percent_encode(&rest, NON_ALPHANUMERIC)));
        let objects = items.into_iter().map(|item| item.metadata).collect();
        Ok(Some(MetadataPage { resource_version: metadata.resource_version, objects }))
    }

    /// The text of a page; `None` if it is too long. `token`: a part of the query.
    async fn read(&self, token: &str) -> Result<Option<Vec<u8>>, kube::Error> {
        let path = format!("{}?limit={}{token}", self.collection, self.limit);
        let ask = RequestOptions { representation: Representation::MetadataList, body: None };
        let page = self.client.request_stream(request(Method::GET, &path, ask)?).await?;
        let most = if self.limit == 1 { usize::MAX } else { MAX_PAGE_BYTES };
        let mut text = Vec::new();
        let mut page = std::pin::pin!(page.take(most.saturating_add(1) as u64));
        page.read_to_end(&mut text).await.map_err(|error| kube::Error::Service(error.into()))?;
        Ok((text.len() <= most).then_some(text))
    }
}

/// Parses JSON as deep as the API server accepts and shows it; serde_json's own limit is 128, below
/// which managedFields or a custom object can be nested by any writer.
fn parse(text: &str) -> Result<Value, serde_json::Error> {
    if depth(text) > MAX_DEPTH {
        return Err(de::Error::custom(format!("nested deeper than {MAX_DEPTH} levels")));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    let value = Value::deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

fn depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in text.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Reads an object; `None` only if the server denies that this object exists ([`is_absent`]).
///
/// # Errors
/// See [`send`]. A 404 among them means that the resource is not served; it says nothing about the
/// object.
pub(crate) async fn get(
    client: &Client,
    resource: &ApiResource,
    namespace: Option<&str>,
    name: &str,
    ask: RequestOptions<'_>,
) -> Result<Option<Value>, kube::Error> {
    match send(client, Method::GET, &path(resource, namespace, name), ask).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_absent(&error, resource, name) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error proves that the object does not exist: a 404 that names the object. Any other
/// 404 concerns the path: its version of the resource is not served, and the object may exist in
/// another version.
pub(crate) fn is_absent(error: &kube::Error, resource: &ApiResource, name: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let about_it = |details: &StatusDetails| {
        details.name == name
            && details.group == resource.group
            && (details.kind == resource.plural || details.kind == resource.kind)
    };
    status.code == 404 && status.details.as_ref().is_some_and(about_it)
}

/// HTTP status of a refused request; 0 for other errors.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use kube::client::Body;
    use kube::core::{GroupVersionKind, Status};
    use parking_lot::Mutex;
    use serde_json::json;
    use std::sync::Arc;

    fn refusal(status: &Value) -> kube::Error {
        kube::Error::Api(Box::new(serde_json::from_value::<Status>(status.clone()).unwrap()))
    }

    #[test]
    fn fault_50_responses_are_read_as_deep_as_objects_are_accepted() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        // The stack of a worker.
        let run = move || {
            assert!(parse(&nested(MAX_DEPTH)).is_ok());
            assert!(parse(&nested(MAX_DEPTH + 1)).is_err());
            assert!(parse(&format!(r#"{{"a":"\"{}"}}"#, "[".repeat(1000))).is_ok(), "in a string");
            assert!(parse("{} {}").is_err());
        };
        std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
    }

    /// Limits of the pages in which 1,000 objects are read, with labels of this length by number.
    async fn limits(label_bytes: fn(usize) -> usize) -> Vec<usize> {
        const OBJECTS: usize = 1000;
        let asked: Arc<Mutex<Vec<usize>>> = Arc::default();
        let seen = asked.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let number = |name: &str| {
                let value = query.split('&').find_map(|one| one.strip_prefix(name));
                value.map_or(0, |value| value.parse::<usize>().expect("a number"))
            };
            let (limit, from) = (number("limit="), number("continue="));
            seen.lock().push(limit);
            let until = OBJECTS.min(from + limit);
            let item = |n| {
                let labels = json!({"a": "x".repeat(label_bytes(n))});
                json!({"metadata": {"name": format!("o{n}"), "uid": "u", "labels": labels}})
            };
            let items: Vec<Value> = (from..until).map(item).collect();
            let rest = if until < OBJECTS { Value::from(until.to_string()) } else { Value::Null };
            let page =
                json!({"metadata": {"resourceVersion": "7", "continue": rest}, "items": items});
            let response = Response::new(Body::from(page.to_string().into_bytes()));
            std::future::ready(Ok::<_, std::io::Error>(response))
        });
        let client = Client::new(server, "default");
        let mut pages = MetadataPages::new(&client, "/api/v1/namespaces/n/secrets");
        let mut names = Vec::new();
        while let Some(page) = pages.next().await.expect("a page") {
            assert_eq!((page.resource_version.as_str(), &*page.objects[0].uid), ("7", "u"));
            names.extend(page.objects.into_iter().map(|object| object.name));
        }
        assert!(
            pages.is_over() && names == (0..OBJECTS).map(|n| format!("o{n}")).collect::<Vec<_>>()
        );
        std::mem::take(&mut *asked.lock())
    }

    #[tokio::test]
    async fn fault_34_pages_of_metadata_are_short_however_long_it_is() {
        let limits = [limits(|_| 10).await, limits(|_| 20_000).await];
        assert_eq!(limits[0], [FIRST_PAGE, MAX_PAGE, MAX_PAGE]);
        assert_eq!(limits[1][0], FIRST_PAGE);
        assert!(limits[1][1..].iter().all(|limit| (20..=PAGE_BYTES / 20_000).contains(limit)));
        let none: ListedPage = serde_json::from_str(r#"{"items":null}"#).unwrap();
        assert!(none.items.is_empty());
    }

    /// Short objects before long ones say nothing of their length.
    #[tokio::test]
    async fn fault_34_a_long_page_of_metadata_is_not_read_to_its_end() {
        let limits = limits(|n| if (16..20).contains(&n) { 5 << 20 } else { 10 }).await;
        let shorter = [MAX_PAGE, MAX_PAGE / SHORTER, MAX_PAGE / SHORTER / SHORTER];
        assert_eq!(limits[..4], [FIRST_PAGE, shorter[0], shorter[1], shorter[2]]);
        assert_eq!(limits[4..8], [1; 4], "each is longer than a page of several may be");
        assert_eq!(limits.len(), 8 + 1 + 2, "and then as before");
    }

    #[test]
    fn names_stay_in_their_segment() {
        let roles = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", "Role"),
            "roles",
        );
        let root = "/apis/rbac.authorization.k8s.io/v1/namespaces/n/roles";
        assert_eq!(path(&roles, Some("n"), ""), root);
        for (name, segment) in [
            ("system:a-b.c", "system:a-b.c"),
            ("a b?c#d", "a%20b%3Fc%23d"),
            ("a/../b", "a%2F..%2Fb"),
            ("50%", "50%25"),
            ("\u{e9}", "%C3%A9"),
        ] {
            assert_eq!(path(&roles, Some("n"), name), format!("{root}/{segment}"));
        }
    }

    #[test]
    fn fault_25_only_a_404_that_names_the_object_proves_its_absence() {
        let gears = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("ex.com", "v1", "Gear"),
            "gears",
        );
        let maps = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("", "v1", "ConfigMap"),
            "configmaps",
        );
        let about = |details: Value| {
            refusal(
                &json!({"status": "Failure", "reason": "NotFound", "code": 404, "details": details}),
            )
        };
        assert!(is_absent(
            &about(json!({"name": "a", "group": "ex.com", "kind": "gears"})),
            &gears,
            "a"
        ));
        assert!(is_absent(&about(json!({"name": "a", "kind": "configmaps"})), &maps, "a"));
        for details in [
            json!({"name": "b", "group": "ex.com", "kind": "gears"}),
            json!({"name": "a", "kind": "gears"}),
            json!({"name": "a", "group": "ex.com", "kind": "wheels"}),
            json!({"name": "ex.com", "kind": "gears"}),
            json!({}),
        ] {
            assert!(!is_absent(&about(details.clone()), &gears, "a"), "{details}");
        }
        // Responses for a version that is not served: no Status, or one without details.
        assert!(!is_absent(
            &refusal(&json!({"status": "Failure", "code": 404, "message": "404 page not found"})),
            &gears,
            "a"
        ));
        let conflict = json!({"status": "Failure", "code": 409, "details": {"name": "a", "group": "ex.com", "kind": "gears"}});
        assert!(!is_absent(&refusal(&conflict), &gears, "a"));
    }
}
