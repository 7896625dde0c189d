//! Connections to kubelets, pods, services, and servers of a program's own.

use crate::KubeletTrust;
use ferrokube_relay::tls::{AnyCertificate, ClientIdentity};
use ferrokube_relay::{DelegationError, NetworkStream};
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, DEFAULT_VERSIONS};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Timeout for TCP and TLS together, over all addresses of a name.
const CONNECT: Duration = Duration::from_secs(10);
/// Max addresses tried per name.
const MAX_ADDRESSES: usize = 4;

/// Which addresses may be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedHosts {
    /// Those of kubelets, which may run on this machine.
    Kubelets,
    /// Those that API users can choose.
    Others,
}

impl AllowedHosts {
    fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Kubelets => ferrokube_relay::is_allowed(address),
            Self::Others => ferrokube_relay::is_global(address),
        }
    }
}

/// Transport security of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    /// TLS to a kubelet, with this server's client certificate.
    Kubelet,
    /// TLS to a kubelet without verifying its certificate, at the client's request.
    UnverifiedKubelet,
    /// TLS without verification or client certificate.
    Encrypted,
    Plain,
}

/// A host and how to connect to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteEndpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) security: Security,
    pub(crate) allowed: AllowedHosts,
}

impl RemoteEndpoint {
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(crate) fn scheme(&self) -> &'static str {
        if self.security == Security::Plain { "http" } else { "https" }
    }

    /// The allowed addresses; empty for an unresolved name.
    async fn addresses(&self) -> Vec<SocketAddr> {
        let found: Vec<SocketAddr> = match self.host.parse::<IpAddr>() {
            Ok(address) => vec![(address, self.port).into()],
            Err(_) => match tokio::net::lookup_host((self.host.as_str(), self.port)).await {
                Ok(found) => found.collect(),
                Err(error) => {
                    tracing::debug!(host = self.host, %error, "cannot resolve a node's name");
                    Vec::new()
                }
            },
        };
        let allowed = found.into_iter().filter(|address| self.allowed.allows(address.ip()));
        allowed.take(MAX_ADDRESSES).collect()
    }
}

/// Connects. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ConnectDialer {
    kubelets: TlsConnector,
    unverified_kubelets: TlsConnector,
    others: TlsConnector,
}

impl ConnectDialer {
    pub(crate) fn new(trust: KubeletTrust, identity: &ClientIdentity) -> Self {
        let any = || Arc::new(AnyCertificate::default()) as Arc<dyn ServerCertVerifier>;
        let verifier = match trust {
            KubeletTrust::Any => any(),
            KubeletTrust::Authorities(verifier) => verifier,
        };
        Self {
            kubelets: connector(verifier, Some(identity)),
            unverified_kubelets: connector(any(), Some(identity)),
            others: connector(any(), None),
        }
    }

    /// # Errors
    /// [`DelegationError::Unreachable`], without addresses and causes, which are only logged.
    pub(crate) async fn dial(
        &self,
        endpoint: &RemoteEndpoint,
    ) -> Result<Box<dyn NetworkStream>, DelegationError> {
        within_limit(self.connect(endpoint)).await
    }

    async fn connect(
        &self,
        endpoint: &RemoteEndpoint,
    ) -> Result<Box<dyn NetworkStream>, &'static str> {
        let connector = match endpoint.security {
            Security::Kubelet => Some(&self.kubelets),
            Security::UnverifiedKubelet => Some(&self.unverified_kubelets),
            Security::Encrypted => Some(&self.others),
            Security::Plain => None,
        };
        let mut last = "address not allowed";
        for address in endpoint.addresses().await {
            let tls = match connector {
                Some(connector) => {
                    let name = ServerName::try_from(endpoint.host.clone());
                    let name = name.map_err(|_| "its name cannot stand in a certificate")?;
                    Some((connector, name))
                }
                None => None,
            };
            match connected(address, tls).await {
                Ok(stream) => return Ok(stream),
                Err(why) => last = why,
            }
        }
        Err(last)
    }
}

/// # Errors
/// [`DelegationError::Unreachable`]; also if it takes too long.
pub(crate) async fn within_limit<T>(
    dial: impl Future<Output = Result<T, &'static str>>,
) -> Result<T, DelegationError> {
    let unreachable = |why: &str| DelegationError::Unreachable(why.to_owned());
    let dialed = tokio::time::timeout(CONNECT, dial).await;
    dialed.map_err(|_| unreachable("it could not be reached"))?.map_err(unreachable)
}

/// A connection to an address. The error is its class; causes are only logged.
pub(crate) async fn connected(
    address: SocketAddr,
    tls: Option<(&TlsConnector, ServerName<'static>)>,
) -> Result<Box<dyn NetworkStream>, &'static str> {
    let socket = TcpStream::connect(address).await.map_err(|error| {
        tracing::debug!(%address, %error, "cannot connect");
        "it could not be reached"
    })?;
    let _ = socket.set_nodelay(true);
    let Some((connector, name)) = tls else { return Ok(Box::new(socket)) };
    match connector.connect(name, socket).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            tracing::debug!(%address, %error, "cannot set up TLS");
            Err("TLS with it failed")
        }
    }
}

pub(crate) fn connector(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<&ClientIdentity>,
) -> TlsConnector {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(DEFAULT_VERSIONS)
        .expect("the provider has suites of both versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(identity.clone())),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config))
}
