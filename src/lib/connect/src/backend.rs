//! Servers that the subresources of a program's own kinds connect to.

use crate::dial::{connected, connector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Registry, RequestContext, Target};
use ferrokube_relay::NetworkStream;
use ferrokube_relay::tls::ClientIdentity;
use http::HeaderMap;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::pin::Pin;
use tokio_rustls::TlsConnector;

/// A subresource of a program's own kind that another server answers, as `pods/exec` is answered
/// by kubelets. Its verbs include [`Verbs::CONNECT`](ferrokube_resource::Verbs::CONNECT). One
/// named `proxy` also receives the paths below it.
pub trait ConnectResource: Send + Sync {
    /// Locates the backend of a request that was authorized and whose options passed admission
    /// (CONNECT). Should fail if the object does not exist.
    fn locate<'a>(&'a self, call: LocateCall<'a>) -> LocateFuture<'a>;
}

/// Future of [`ConnectResource::locate`]. An error is a Status for the client.
pub type LocateFuture<'a> =
    Pin<Box<dyn Future<Output = Result<BackendLocation, Failure>> + Send + 'a>>;

/// A request whose backend [`ConnectResource`] locates.
#[derive(Clone, Copy)]
pub struct LocateCall<'a> {
    /// For reads of stored objects.
    pub registry: &'a Registry,
    /// Context of the caller.
    pub context: &'a RequestContext,
    /// The subresource of an object, which may not exist.
    pub target: &'a Target,
    /// The decoded path below the subresource; empty for none.
    pub below: &'a str,
    /// As it came; empty for none.
    pub query: &'a str,
}

/// Destination of a request.
#[derive(Clone, Debug)]
pub struct BackendLocation {
    /// Receives the request.
    pub backend: BackendServer,
    /// Path there, decoded.
    pub path: String,
    /// Query there; empty for none.
    pub query: String,
    /// Added to the client's headers, from which credentials, trace ids and user names are removed.
    pub headers: HeaderMap,
}

/// A server at an address chosen by the program, never by a user of the API. Cheap to clone.
#[derive(Clone)]
pub struct BackendServer {
    address: SocketAddr,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl BackendServer {
    /// Without TLS, for servers on this machine.
    pub fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }

    /// With TLS; its certificate must have the name and be signed by a CA of the PEM bundle.
    ///
    /// # Errors
    /// Name or bundle cannot be used.
    pub fn tls(
        address: SocketAddr,
        name: &str,
        ca_pem: &[u8],
        identity: Option<&ClientIdentity>,
    ) -> Result<Self, String> {
        let verifier = ferrokube_webhook::bundle_verifier(ca_pem)?;
        let name = ServerName::try_from(name.to_owned()).map_err(|error| error.to_string())?;
        Ok(Self { address, tls: Some((connector(verifier, identity), name)) })
    }

    pub(crate) fn authority(&self) -> String {
        match &self.tls {
            Some((_, name)) if matches!(name, ServerName::DnsName(_)) => {
                format!("{}:{}", name.to_str(), self.address.port())
            }
            _ => self.address.to_string(),
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    pub(crate) async fn dial(&self) -> Result<Box<dyn NetworkStream>, &'static str> {
        if !ferrokube_relay::is_allowed(self.address.ip()) {
            return Err("address not allowed");
        }
        let tls = self.tls.as_ref().map(|(connector, name)| (connector, name.clone()));
        connected(self.address, tls).await
    }
}

impl std::fmt::Debug for BackendServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BackendServer").field(&self.authority()).finish()
    }
}
