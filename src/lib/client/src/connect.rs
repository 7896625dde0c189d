//! A connection to an API server: one configuration, from which clients with different identities are made.

use crate::identity::ServiceAccountIdentity;
use crate::pool::{Pool, ResponseBody, TlsSource};
use base64::Engine;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use std::path::Path;
use std::time::Duration;
use tower::retry::RetryLayer;
use tower::timeout::TimeoutLayer;
use tower::util::BoxService;
use tower::{BoxError, ServiceBuilder};

/// Who writes, in managedFields: the name that upstream's controllers have there.
const AGENT: &str = concat!("kube-controller-manager/ferrokube-", env!("CARGO_PKG_VERSION"));

/// Until the head of a response: a little longer than API servers work on a request, so that a server that vanished (unplugged, paused) does not hold a
/// worker for as long as TCP waits. What streams after it (a watch) has limits of its own.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(65);

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The kubeconfig cannot be read or does not fit together.
    #[error("cannot use the kubeconfig {path}: {why}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why, down to the last cause: kube's errors tell their sources themselves, so that they are no source here.
        why: String,
    },
    /// TLS or another part of the client cannot be set up; why, down to the last cause.
    #[error("cannot make a client: {0}")]
    Client(String),
}

/// Where the API server is, how it is verified, and who we are towards it. Clones share its connections.
#[derive(Clone)]
pub struct Connection {
    config: Config,
    /// With the client certificate, if there is one.
    with_certificate: Pool,
    /// Without: a server takes a certificate for who we are even when there is a token, too.
    without_certificate: Pool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Connection {
    /// From a kubeconfig's current context.
    ///
    /// # Errors
    /// [`ConnectionError::Kubeconfig`].
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, ConnectionError> {
        let failed = |error| kubeconfig_error(&path.display().to_string(), &error);
        let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
        let config = configure(kubeconfig).await.map_err(failed)?;
        let source = |shows_certificate| TlsSource::File { path: path.to_owned(), shows_certificate };
        Ok(Self { config, with_certificate: Pool::new(source(true)), without_certificate: Pool::new(source(false)) })
    }

    /// From its parts, all PEM: where the server is, the CA that verifies it, and our certificate.
    ///
    /// # Errors
    /// [`ConnectionError::Kubeconfig`].
    pub async fn from_parts(server: &str, ca_pem: &str, chain_pem: &str, key_pem: &str) -> Result<Self, ConnectionError> {
        let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        // As a kubeconfig in memory: kube then reads the certificates in the one way that it has.
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"{server}\", certificate-authority-data: {}}}}}]\n\
             users: [{{name: c, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n",
            encode(ca_pem),
            encode(chain_pem),
            encode(key_pem)
        );
        let failed = |error| kubeconfig_error("in memory", &error);
        let config = configure(Kubeconfig::from_yaml(&text).map_err(failed)?).await.map_err(failed)?;
        let pool = |config| Pool::new(TlsSource::Fixed(Box::new(config)));
        Ok(Self { with_certificate: pool(config.clone()), without_certificate: pool(without_identity(&config)), config })
    }

    /// The PEM text of the CA that verifies the server; empty when it is not in the configuration.
    pub fn ca_pem(&self) -> String {
        let pem = |der: &Vec<u8>| {
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
            format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
        };
        self.config.root_cert.iter().flatten().map(pem).collect()
    }

    /// A client with the connection's own identity.
    ///
    /// # Errors
    /// [`ConnectionError::Client`].
    pub fn client(&self) -> Result<Client, ConnectionError> {
        if self.needs_default_client() {
            let builder = ClientBuilder::try_from(self.config.clone()).map_err(client_error)?;
            return Ok(builder.with_layer(&TimeoutLayer::new(RESPONSE_TIMEOUT)).build());
        }
        Ok(shared(&self.config, self.with_certificate.clone())?.build())
    }

    /// A client that acts as a service account, with tokens that `identity` keeps fresh.
    ///
    /// # Errors
    /// [`ConnectionError::Client`].
    pub fn client_as(&self, identity: &ServiceAccountIdentity) -> Result<Client, ConnectionError> {
        let config = without_identity(&self.config);
        if self.needs_default_client() {
            let builder = ClientBuilder::try_from(config).map_err(client_error)?;
            return Ok(builder.with_layer(&TimeoutLayer::new(RESPONSE_TIMEOUT)).with_layer(&identity.layer()).build());
        }
        Ok(shared(&config, self.without_certificate.clone())?.with_layer(&identity.layer()).build())
    }

    /// Whether the server is behind a proxy, or without TLS (`kubectl proxy`): connections are then not shared.
    fn needs_default_client(&self) -> bool {
        self.config.proxy_url.is_some() || self.config.cluster_url.scheme() != Some(&http::uri::Scheme::HTTPS)
    }
}

async fn configure(kubeconfig: Kubeconfig) -> Result<Config, KubeconfigError> {
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(10));
    // Bodies go over loopback or a cluster network: compressing them costs more than it saves.
    config.disable_compression = true;
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    Ok(config)
}

fn without_identity(config: &Config) -> Config {
    let mut config = config.clone();
    config.auth_info = AuthInfo::default();
    config
}

type HttpService = BoxService<Request<Body>, Response<ResponseBody>, BoxError>;

/// What kube's client does for each request, over shared connections.
fn shared(config: &Config, pool: Pool) -> Result<ClientBuilder<HttpService>, ConnectionError> {
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(RESPONSE_TIMEOUT))
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer().map_err(client_error)?)
        .layer(config.extra_headers_layer().map_err(client_error)?)
        .map_err(BoxError::from)
        .service(pool);
    Ok(ClientBuilder::new(BoxService::new(service), config.default_namespace.clone()))
}

fn client_error(error: kube::Error) -> ConnectionError {
    ConnectionError::Client(error.to_string())
}

fn kubeconfig_error(path: &str, error: &KubeconfigError) -> ConnectionError {
    let why = match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        other => other.to_string(),
    };
    ConnectionError::Kubeconfig { path: path.to_owned(), why }
}
