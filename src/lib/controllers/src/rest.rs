//! Plain requests on resources that are only known by discovery: bodies are JSON values.

use http::{Method, Request};
use kube::Client;
use kube::discovery::ApiResource;
use serde_json::Value;

/// The path of a collection (`name` empty), an object or a subresource (`name/status`).
pub(crate) fn path(resource: &ApiResource, namespace: Option<&str>, name: &str) -> String {
    let root = if resource.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", resource.api_version) };
    let within = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
    let last = if name.is_empty() { String::new() } else { format!("/{name}") };
    format!("{root}{within}/{}{last}", resource.plural)
}

/// What a request asks for besides its path.
#[derive(Default)]
pub(crate) struct Ask<'a> {
    /// `PartialObjectMetadata` and its list instead of whole objects.
    pub(crate) metadata_only: bool,
    /// The body; its type is merge patch for PATCH, else JSON.
    pub(crate) body: Option<&'a Value>,
}

const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// Sends one request and reads the JSON answer.
///
/// # Errors
/// What the server answered, or that it could not be reached.
pub(crate) async fn send(client: &Client, method: Method, path: &str, ask: Ask<'_>) -> Result<Value, kube::Error> {
    let mut request = Request::builder().method(&method).uri(path);
    if ask.metadata_only {
        request = request.header(http::header::ACCEPT, METADATA);
    }
    let body = match ask.body {
        Some(body) => {
            let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
            request = request.header(http::header::CONTENT_TYPE, kind);
            serde_json::to_vec(body).map_err(kube::Error::SerdeError)?
        }
        None => Vec::new(),
    };
    client.request(request.body(body).map_err(kube::Error::HttpError)?).await
}

/// As [`send`] for a GET; `None` when it does not exist.
///
/// # Errors
/// As [`send`].
pub(crate) async fn get(client: &Client, path: &str, metadata_only: bool) -> Result<Option<Value>, kube::Error> {
    match send(client, Method::GET, path, Ask { metadata_only, body: None }).await {
        Ok(value) => Ok(Some(value)),
        Err(error) if code(&error) == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The HTTP status of a refused request, 0 for everything else.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}
