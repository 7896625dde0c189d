//! Subresources that connect the client to another server: pod logs, `exec`, `attach` and
//! `portforward` at the node's kubelet, and the proxies of nodes, pods and services.
//!
//! Requests arrive authenticated and authorized. Here their options pass admission (CONNECT), the
//! object determines the destination, and `relay` forwards them. Users control the addresses, so
//! loopback and link-local ones are never connected to, redirects are not followed, and only
//! kubelets get this server's client certificate, whose user has no other rights.
//!
//! A program's own kinds may have such subresources, too: a [`ConnectResource`] locates their
//! backends.
//!
//! Must never know HTTP routing or authentication. Start reading at [`Connections::connect`].

mod backend;
mod dial;
#[cfg(test)]
mod fuzz;
mod kind;
mod location;
mod pod;
mod spdy;
mod translate;
mod websocket;

pub use backend::{BackendLocation, BackendServer, ConnectResource, LocateCall, LocateFuture};
use dial::{ConnectDialer, RemoteEndpoint};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Details, Failure};
use ferrokube_flow::{BudgetCaller, Loan, QueueLimit, Share};
use ferrokube_registry::{Registry, RequestContext, Target};
pub use ferrokube_relay::DelegationError;
pub use ferrokube_relay::tls::ClientIdentity;
use ferrokube_relay::{
    LocationBase, OnUpgrade, Relay, Tunnels, UpgradeCall, client_headers, encoded_query, exchanged,
    target_uri, upgrade_protocol, upgraded,
};
use ferrokube_resource::{Definition, Scope, Verbs};
use ferrokube_serve::{Body, Response};
use ferrokube_trace::{Span, SpanInfo, SpanSide, inject};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use kind::ConnectKind;
use rustls::client::danger::ServerCertVerifier;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use translate::{TranslatedCall, Translation, translated};

/// Max concurrent connections, shared fairly: the oldest ones of the largest holder are closed for
/// callers with fewer.
const MAX_CONNECTIONS: usize = 512;
/// Max waiting requests.
const QUEUE: QueueLimit = QueueLimit { per_caller: 16, total: 256 };
/// Max wait for a connection permit.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Max bytes read of a kubelet's error.
const ERROR_BYTES: usize = 50_000;

/// Types of node addresses in order of preference: those that need no name resolution first, as in
/// kube-apiserver.
pub const ADDRESS_TYPES: [&str; 5] =
    ["InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"];

/// Which serving certificates of kubelets are accepted.
#[derive(Clone, Debug, Default)]
pub enum KubeletTrust {
    /// Any: kube-apiserver's default, as kubelets use self-signed ones.
    #[default]
    Any,
    /// Those accepted by the verifier.
    Authorities(Arc<dyn ServerCertVerifier>),
}

impl KubeletTrust {
    /// Accepts certificates issued by the CAs in a PEM bundle.
    ///
    /// # Errors
    /// The bundle has no usable certificate.
    pub fn authorities(pem: &[u8]) -> Result<Self, String> {
        ferrokube_webhook::bundle_verifier(pem).map(Self::Authorities)
    }
}

/// Settings of connections.
#[derive(Clone, Debug, Default)]
pub struct ConnectSettings {
    /// The client certificate for kubelets.
    pub identity: ClientIdentity,
    /// Which serving certificates are accepted.
    pub trust: KubeletTrust,
    /// Types of node addresses, the preferred one first; empty: [`ADDRESS_TYPES`].
    pub address_types: Vec<String>,
}

/// Connects.
pub struct Connections {
    dialer: ConnectDialer,
    address_types: Vec<String>,
    share: Share,
    tunnels: Tunnels,
    ended: watch::Sender<bool>,
    /// By group, plural and subresource.
    own: BTreeMap<(String, String, String), Arc<dyn ConnectResource>>,
}

/// An authorized request.
pub struct ConnectCall<'a> {
    /// The registry with the stored objects.
    pub registry: &'a Registry,
    /// Context of the caller.
    pub context: &'a RequestContext,
    /// The subresource.
    pub target: &'a Target,
    /// As authorized.
    pub method: Method,
    /// The decoded path that was authorized.
    pub path: &'a str,
    /// The raw query; empty if absent.
    pub query: &'a str,
    /// The client's.
    pub headers: &'a HeaderMap,
    /// Not read yet.
    pub body: Body,
    /// The client's connection, if it can be upgraded.
    pub upgrade: Option<OnUpgrade>,
    /// The client's address.
    pub peer: Option<IpAddr>,
    /// The caller charged for the connection.
    pub caller: BudgetCaller,
    /// Name and attributes of the call's span.
    pub span: SpanInfo<'a>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Rejected here, with a Status.
    #[error("{}", .0.message)]
    Failure(Failure),
    /// The other server did not respond.
    #[error(transparent)]
    Delegation(#[from] DelegationError),
}

impl From<Failure> for ConnectError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl Connections {
    /// Creates the value without opening connections.
    pub fn new(settings: &ConnectSettings) -> Self {
        let given = settings.address_types.clone();
        let ended = watch::Sender::new(false);
        let default = || ADDRESS_TYPES.map(str::to_owned).to_vec();
        Self {
            dialer: ConnectDialer::new(settings.trust.clone(), &settings.identity),
            address_types: if given.is_empty() { default() } else { given },
            share: Share::new(MAX_CONNECTIONS, QUEUE),
            tunnels: Tunnels::new(ended.subscribe()),
            ended,
            own: BTreeMap::new(),
        }
    }

    /// Adds a subresource of a program's own.
    #[must_use]
    pub fn with(
        mut self,
        resource: &GroupResource,
        subresource: &str,
        handler: Arc<dyn ConnectResource>,
    ) -> Self {
        let GroupResource { group, resource } = resource.clone();
        self.own.insert((group, resource, subresource.to_owned()), handler);
        self
    }

    /// Whether a subresource is one of these.
    pub fn serves(definition: &Definition, subresource: &str) -> bool {
        ConnectKind::of(definition, subresource).is_some() || Self::is_own(definition, subresource)
    }

    /// Whether the subresource needs a [`ConnectResource`] of the program.
    pub fn is_own(definition: &Definition, subresource: &str) -> bool {
        let mut all = definition.versions.iter().flat_map(|version| &version.subresources);
        all.any(|known| known.name == subresource && known.verbs.has(Verbs::CONNECT))
    }

    /// Whether paths below the subresource belong to the other server.
    pub fn is_proxy(target: &Target) -> bool {
        let kind = ConnectKind::of(&target.served.definition, &target.subresource);
        kind.is_some_and(ConnectKind::is_proxy)
    }

    /// Closes all connections.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Connects a client. Dropped when the client disconnects.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(&self, call: ConnectCall<'_>) -> Result<Response, ConnectError> {
        let kind = ConnectKind::of(&call.target.served.definition, &call.target.subresource);
        let Some(kind) = kind else { return self.connect_own(call).await };
        let (prefix, below) = split(&call.target.served.definition, call.path);
        let mut options = kind.read(below, call.query)?;
        if kind == ConnectKind::Log {
            kind::check_log(&options, call.target.name.as_deref().unwrap_or_default())?;
        }
        let loan = self.lend(call.caller).await?;
        if kind != ConnectKind::Log {
            options = call.registry.admit_connect(call.context, call.target, options).await?;
        }
        let given = ConnectQuery { options: &options, query: call.query, below };
        let Some(located) = self.locate(kind, call.registry, call.target, given).await? else {
            // Nothing runs yet.
            let mut none = Response::new(ferrokube_serve::empty());
            *none.status_mut() = StatusCode::NO_CONTENT;
            return Ok(none);
        };
        let is_stream = !kind.is_proxy() && kind != ConnectKind::Log;
        if is_stream && call.protocol().is_none() {
            return Err(Failure::bad_request("Upgrade request required").into());
        }
        let redirects = kind
            .is_proxy()
            .then(|| LocationBase { authority: located.authority(), prefix: prefix.to_owned() });
        let translation = Translation::of(kind, call.headers, &options);
        let (target, may_upgrade) = (call.target, kind != ConnectKind::Log);
        let relayed = RelayedCall { located: &located, may_upgrade, translation };
        let response = self.relay(call, relayed, self.relay_with(loan, redirects)).await?;
        if kind == ConnectKind::Log && response.status() != StatusCode::OK {
            return Err(log_failure(target, response).await.into());
        }
        Ok(response)
    }

    /// A subresource of a program's own.
    async fn connect_own(&self, call: ConnectCall<'_>) -> Result<Response, ConnectError> {
        let (target, definition) = (call.target, &call.target.served.definition);
        let name =
            (definition.group.clone(), definition.plural.clone(), target.subresource.clone());
        let handler = self.own.get(&name);
        let handler = handler.ok_or_else(|| Failure::internal("this is no connection"))?;
        let (_, below) = split(definition, call.path);
        let kind = definition.subresource(target.served.version, &target.subresource);
        let mut options = Document::new();
        if let Some(subresource) = kind {
            options.set(&["kind"], subresource.kind.kind.as_str());
            options.set(&["apiVersion"], subresource.kind.api_version());
        }
        if !below.is_empty() {
            options.set(&["path"], below);
        }
        let loan = self.lend(call.caller).await?;
        call.registry.admit_connect(call.context, target, options).await?;
        let (registry, context, query) = (call.registry, call.context, call.query);
        let locate = LocateCall { registry, context, target, below, query };
        let BackendLocation { backend, path, query, headers } = handler.locate(locate).await?;
        let located =
            ConnectLocation { destination: Destination::Own(backend), path, query, headers };
        let relayed = RelayedCall { located: &located, may_upgrade: true, translation: None };
        self.relay(call, relayed, self.relay_with(loan, None)).await
    }

    /// A permit, before anything else is waited for: nothing else bounds a caller's requests.
    async fn lend(&self, caller: BudgetCaller) -> Result<Loan, DelegationError> {
        self.share.lend(caller, 1, MAX_WAIT).await.ok_or(DelegationError::Full)
    }

    fn relay_with(&self, loan: Loan, redirects: Option<LocationBase>) -> Relay {
        Relay {
            loan: Some(loan),
            deadline: None,
            ended: self.tunnels.ended(),
            place: None,
            redirects,
        }
    }

    /// `None`: no destination yet.
    async fn locate(
        &self,
        kind: ConnectKind,
        registry: &Registry,
        target: &Target,
        given: ConnectQuery<'_>,
    ) -> Result<Option<ConnectLocation>, Failure> {
        let ConnectQuery { options, query, below } = given;
        let name = target.name.as_deref().unwrap_or_default();
        let namespace = target.namespace.as_deref().unwrap_or_default();
        let proxied = |endpoint| {
            let path = if below.is_empty() { "/" } else { below };
            Some(ConnectLocation::remote(endpoint, path.to_owned(), query.to_owned()))
        };
        match kind {
            ConnectKind::NodeProxy => return Ok(proxied(self.node(registry, name).await?)),
            ConnectKind::PodProxy => {
                return Ok(proxied(location::pod(registry, namespace, name).await?));
            }
            ConnectKind::ServiceProxy => {
                return Ok(proxied(location::service(registry, namespace, name).await?));
            }
            _ => {}
        }
        let pod = location::object(registry, "pods", namespace, name).await?;
        let of_container = kind != ConnectKind::PortForward;
        let container = match of_container {
            true => pod::container(&pod, options.str(&["container"]).unwrap_or_default())?,
            false => String::new(),
        };
        let node = pod.str(&["spec", "nodeName"]).unwrap_or_default().to_owned();
        // Many requests for large ones may wait at a time.
        drop(pod);
        if node.is_empty() {
            return match kind {
                ConnectKind::Log => Ok(None),
                _ => {
                    let why = format!("pod {name} does not have a host assigned");
                    Err(Failure::bad_request(why))
                }
            };
        }
        let is_verified = options.get(&["insecureSkipTLSVerifyBackend"]).is_none();
        let endpoint = self.kubelet(registry, &node, is_verified).await?;
        let path = match kind {
            ConnectKind::Log => format!("/containerLogs/{namespace}/{name}/{container}"),
            ConnectKind::Exec => format!("/exec/{namespace}/{name}/{container}"),
            ConnectKind::Attach => format!("/attach/{namespace}/{name}/{container}"),
            _ => format!("/portForward/{namespace}/{name}"),
        };
        Ok(Some(ConnectLocation::remote(endpoint, path, kubelet_query(options))))
    }

    async fn relay(
        &self,
        call: ConnectCall<'_>,
        relayed: RelayedCall<'_>,
        mut relay: Relay,
    ) -> Result<Response, ConnectError> {
        let RelayedCall { located, may_upgrade, translation } = relayed;
        let protocol = call.protocol();
        let mut headers = client_headers(call.headers, call.peer);
        headers.extend(located.headers.clone());
        let (context, mut span) = Span::part(SpanSide::Client, &call.span);
        if let Some(context) = context {
            inject(&context, &mut headers);
        }
        let mut request = Request::new(call.body);
        *request.method_mut() = call.method;
        *request.uri_mut() = located.uri()?;
        *request.headers_mut() = headers;
        let answered = async {
            let dialed = async {
                match &located.destination {
                    Destination::Remote(endpoint) => self.dialer.dial(endpoint).await,
                    Destination::Own(backend) => dial::within_limit(backend.dial()).await,
                }
            };
            let connection = relay.unless_interrupted(dialed).await?;
            let translation = translation.filter(|_| protocol == Some("websocket"));
            match (protocol, call.upgrade, translation) {
                (_, Some(client), Some(translation)) => {
                    let client_headers = call.headers;
                    let call =
                        TranslatedCall { translation, client, client_headers, relay, request };
                    translated(connection, &self.tunnels, call).await
                }
                (Some(protocol), Some(client), _) if may_upgrade => {
                    let call = UpgradeCall { protocol, client, relay, request };
                    upgraded(connection, &self.tunnels, call).await
                }
                _ => exchanged(connection, &self.tunnels, request, relay).await,
            }
        };
        let answered: Result<Response, DelegationError> = answered.await;
        Ok(answered.inspect_err(|_| span.fail())?)
    }
}

impl ConnectCall<'_> {
    /// The protocol that the client switches to.
    fn protocol(&self) -> Option<&'static str> {
        self.upgrade.as_ref().and_then(|_| upgrade_protocol(self.headers))
    }
}

/// How a request is relayed.
struct RelayedCall<'a> {
    located: &'a ConnectLocation,
    may_upgrade: bool,
    translation: Option<Translation>,
}

/// The destination according to the request.
struct ConnectQuery<'a> {
    /// Parsed.
    options: &'a Document,
    query: &'a str,
    /// The path below the subresource.
    below: &'a str,
}

/// Destination of a request.
struct ConnectLocation {
    destination: Destination,
    path: String,
    query: String,
    /// Added to the client's.
    headers: HeaderMap,
}

enum Destination {
    Remote(RemoteEndpoint),
    Own(BackendServer),
}

impl ConnectLocation {
    fn remote(endpoint: RemoteEndpoint, path: String, query: String) -> Self {
        let (destination, headers) = (Destination::Remote(endpoint), HeaderMap::new());
        Self { destination, path, query, headers }
    }

    fn authority(&self) -> String {
        match &self.destination {
            Destination::Remote(endpoint) => endpoint.authority(),
            Destination::Own(backend) => backend.authority(),
        }
    }

    fn uri(&self) -> Result<Uri, DelegationError> {
        let scheme = match &self.destination {
            Destination::Remote(endpoint) => endpoint.scheme(),
            Destination::Own(backend) => backend.scheme(),
        };
        target_uri(scheme, &self.authority(), &self.path, &self.query)
            .ok_or_else(|| DelegationError::Unreachable("its address is malformed".to_owned()))
    }
}

/// Splits a path into that of the subresource and the rest.
fn split<'a>(definition: &Definition, path: &'a str) -> (&'a str, &'a str) {
    split_after(segments(&definition.group, definition.scope), path)
}

/// Segments of the path of a subresource.
fn segments(group: &str, scope: Scope) -> usize {
    // `/api/v1` or `/apis/GROUP/VERSION`
    let version = if group.is_empty() { 2 } else { 3 };
    // `/namespaces/NAMESPACE`
    let namespace = if scope == Scope::Namespaced { 2 } else { 0 };
    // `/pods/NAME/proxy`
    version + namespace + 3
}

fn split_after(segments: usize, path: &str) -> (&str, &str) {
    let end = path.match_indices('/').nth(segments);
    path.split_at(end.map_or(path.len(), |(at, _)| at))
}

fn kubelet_query(options: &Document) -> String {
    let mut pairs: Vec<(&str, String)> = Vec::new();
    let names = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
    let is_log = options.kind() == "PodLogOptions";
    for (field, value) in options.fields().iter() {
        let field: &str = field.as_ref();
        let name = names.iter().find(|(given, _)| *given == field).map(|(_, name)| *name);
        let flag = if is_log { "true" } else { "1" };
        match field {
            "kind" | "apiVersion" | "container" | "insecureSkipTLSVerifyBackend" => {}
            "command" | "ports" => {
                let name = if field == "ports" { "port" } else { field };
                let all = value.as_array().map(|all| all.as_slice()).unwrap_or_default();
                pairs.extend(all.iter().map(|one| (name, shown(one))));
            }
            _ if value.is_boolean() => pairs.push((name.unwrap_or(field), flag.to_owned())),
            _ => pairs.push((name.unwrap_or(field), shown(value))),
        }
    }
    encoded_query(pairs.iter().map(|(name, value)| (*name, value.as_str())))
}

fn shown(value: &Value) -> String {
    let text = value.as_str().map(str::to_owned);
    text.or_else(|| value.as_i64().map(|number| number.to_string())).unwrap_or_default()
}

/// The text of a response, truncated.
async fn error_text(response: Response) -> String {
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            let left = ERROR_BYTES - text.len();
            let data = data.into_bytes();
            text.extend_from_slice(&data[..data.len().min(left)]);
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Converts a kubelet's error text to a failure, as kube-apiserver does.
async fn log_failure(target: &Target, response: Response) -> Failure {
    let status = response.status();
    let text = tokio::time::timeout(MAX_WAIT, error_text(response)).await.unwrap_or_default();
    let resource = GroupResource::new("", "pods");
    let name = target.name.as_deref().unwrap_or_default();
    match status {
        StatusCode::BAD_REQUEST => Failure::bad_request(text),
        StatusCode::NOT_FOUND => {
            let message = format!("the server could not find the requested resource ( {text})");
            let mut failure = Failure::not_found(&resource, name);
            failure.message = message;
            failure
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            // The error is this server's, not the client's.
            tracing::warn!(status = status.as_u16(), text, "a kubelet rejected this server");
            Failure::internal("the kubelet refuses this server; see --kubelet-client-certificate")
        }
        _ => Failure::internal(text).with_details(Details::of(&resource, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_a_proxy_are_the_other_servers() {
        let node = |path| split_after(segments("", Scope::Cluster), path);
        assert_eq!(node("/api/v1/nodes/n/proxy"), ("/api/v1/nodes/n/proxy", ""));
        assert_eq!(node("/api/v1/nodes/n/proxy/a/b"), ("/api/v1/nodes/n/proxy", "/a/b"));
        let pod = "/api/v1/namespaces/n/pods/p:80/proxy";
        let path = format!("{pod}/x");
        assert_eq!(split_after(segments("", Scope::Namespaced), &path), (pod, "/x"));
        let own = "/apis/toy.example.com/v1/namespaces/n/toys/t/proxy";
        let path = format!("{own}/x");
        assert_eq!(split_after(segments("toy.example.com", Scope::Namespaced), &path), (own, "/x"));
    }

    #[test]
    fn options_reach_the_kubelet_by_its_names() {
        let query = |kind: ConnectKind, query: &str| {
            let options = kind.read("", query).map_err(|failure| failure.message)?;
            Ok::<String, String>(kubelet_query(&options))
        };
        let exec = "command=sh&command=a%20b&stdin=true&stdout=1&tty=false&container=c&x=y";
        assert_eq!(
            query(ConnectKind::Exec, exec).unwrap(),
            "command=sh&command=a%20b&input=1&output=1"
        );
        let log = "follow=true&tailLines=5&container=c&previous=0";
        assert_eq!(query(ConnectKind::Log, log).unwrap(), "follow=true&tailLines=5");
        assert_eq!(query(ConnectKind::PortForward, "ports=80,81").unwrap(), "port=80&port=81");
        let wrong = query(ConnectKind::Log, "tailLines=x").unwrap_err();
        assert_eq!(wrong, "strconv.ParseInt: parsing \"x\": invalid syntax");
        let log = ConnectKind::Log.read("", "tailLines=-1&sinceSeconds=1&sinceTime=t").unwrap();
        let why = kind::check_log(&log, "p").unwrap_err().message;
        assert!(why.contains("tailLines: Invalid value: -1"), "{why}");
        assert!(why.contains("at most one of"), "{why}");
    }
}
