//! Connection settings for an API server, from which clients with different identities are made.

use crate::identity::ServiceAccountIdentity;
use crate::kubeconfig::{self, KubeconfigFileError};
use crate::pool::{Pool, TlsSource};
use crate::transport::{RequestTransport, ResponseBody};
use base64::Engine;
use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tower::retry::RetryLayer;
use tower::timeout::TimeoutLayer;
use tower::util::BoxService;
use tower::{BoxError, ServiceBuilder};

/// User agent, which becomes the manager in managedFields: the name kube-controller-manager has
/// there.
const AGENT: &str = concat!("kube-controller-manager/ferrokube-", env!("CARGO_PKG_VERSION"));

/// Timeout until the head of a response: slightly longer than API servers' request timeout, so that
/// a vanished server (unplugged, paused) does not block a worker for TCP's timeout. Streams
/// (watches) have their own limits.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(65);

/// Why a client cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The kubeconfig cannot be read, or is inconsistent.
    #[error("cannot use the kubeconfig {path}: {why}")]
    Kubeconfig {
        /// File.
        path: String,
        /// The error chain as text. Not a `source`: kube's errors already print theirs.
        why: String,
    },
    /// The kubeconfig has no such context.
    #[error("there is no context {context:?} in {path}, which has {known}")]
    Context {
        /// Given name.
        context: String,
        /// Files.
        path: String,
        /// Names of the contexts.
        known: String,
    },
    /// The client cannot be set up, for example its TLS configuration. The error chain as text.
    #[error("cannot create a client: {0}")]
    Client(String),
}

/// Address and CA of an API server, and our identity. Clones share its connections.
#[derive(Clone)]
pub struct Connection {
    config: Config,
    /// With the client certificate, if any.
    with_certificate: RequestTransport,
    /// Without a certificate: a server prefers it over a token.
    without_certificate: RequestTransport,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Connection {
    /// Reads the current context of a kubeconfig.
    ///
    /// # Errors
    /// [`ConnectionError::Kubeconfig`].
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, ConnectionError> {
        let failed = |error| kubeconfig_error(&path.display().to_string(), error);
        let kubeconfig = kubeconfig::read(path).map_err(failed)?;
        let config = configure(kubeconfig).await.map_err(failed)?;
        let source =
            |shows_certificate| TlsSource::File { path: path.to_owned(), shows_certificate };
        Ok(Self {
            config,
            with_certificate: pooled(source(true)),
            without_certificate: pooled(source(false)),
        })
    }

    /// As kubectl: reads several kubeconfigs, of which earlier ones win, and a context of them
    /// instead of the current one. Files that do not exist are passed over, unless none does.
    ///
    /// # Errors
    /// [`ConnectionError::Kubeconfig`], [`ConnectionError::Context`].
    pub async fn from_kubeconfigs(
        paths: &[PathBuf],
        context: Option<&str>,
    ) -> Result<Self, ConnectionError> {
        let there: Vec<&PathBuf> = paths.iter().filter(|path| path.exists()).collect();
        let list = |paths: &[&PathBuf]| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let all: Vec<&PathBuf> = paths.iter().collect();
        let read = if there.is_empty() { all } else { there };
        let names = list(&read);
        let failed = |error: KubeconfigFileError| kubeconfig_error(&names, error);
        let mut merged = Kubeconfig::default();
        for path in &read {
            let next = kubeconfig::read(path)
                .map_err(|error| kubeconfig_error(&path.display().to_string(), error))?;
            merged = merged.merge(next).map_err(|error| failed(error.into()))?;
        }
        if let Some(context) = context {
            let known: Vec<String> = merged.contexts.iter().map(|one| one.name.clone()).collect();
            if !known.iter().any(|name| name == context) {
                let context = context.to_owned();
                let known = known.join(", ");
                return Err(ConnectionError::Context { context, path: names, known });
            }
            merged.current_context = Some(context.to_owned());
        }
        let config = configure(merged).await.map_err(failed)?;
        let pool = |config| pooled(TlsSource::Fixed(Box::new(config)));
        Ok(Self {
            with_certificate: pool(config.clone()),
            without_certificate: pool(without_identity(&config)),
            config,
        })
    }

    /// From a server URL, and a CA, certificate chain and key in PEM.
    ///
    /// # Errors
    /// [`ConnectionError::Kubeconfig`].
    pub async fn from_parts(
        server: &str,
        ca_pem: &str,
        chain_pem: &str,
        key_pem: &str,
    ) -> Result<Self, ConnectionError> {
        let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
        // Via an in-memory kubeconfig, which is how kube parses certificates.
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"{server}\", certificate-authority-data: {}}}}}]\n\
             users: [{{name: c, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n",
            encode(ca_pem),
            encode(chain_pem),
            encode(key_pem)
        );
        let failed = |error| kubeconfig_error("in memory", error);
        let kubeconfig = kubeconfig::parse(text.as_bytes(), None).map_err(failed)?;
        let config = configure(kubeconfig).await.map_err(failed)?;
        let pool = |config| pooled(TlsSource::Fixed(Box::new(config)));
        Ok(Self {
            with_certificate: pool(config.clone()),
            without_certificate: pool(without_identity(&config)),
            config,
        })
    }

    /// To a server in the same process (`InProcess` of `ferrokube_serve`): with the identity of
    /// `with_certificate`, or through `without_certificate` with a token. `server` is its URL, as
    /// over the network, and the CA that of [`Self::ca_pem`].
    ///
    /// # Errors
    /// [`ConnectionError::Kubeconfig`].
    pub async fn in_process<S, B>(
        server: &str,
        ca_pem: &str,
        with_certificate: S,
        without_certificate: S,
    ) -> Result<Self, ConnectionError>
    where
        S: hyper::service::Service<Request<Body>, Response = Response<B>, Error = io::Error>
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = bytes::Bytes, Error = io::Error> + Send + 'static,
    {
        let mut base = Self::from_parts(server, ca_pem, "", "").await?;
        // From the environment; requests do not leave the process.
        base.config.proxy_url = None;
        let transport = |server: S| {
            RequestTransport::InProcess(Arc::new(move |request| {
                let response = server.call(request);
                Box::pin(async move {
                    let response = response.await?;
                    Ok(response.map(|body| ResponseBody::InProcess(Box::pin(body))))
                })
            }))
        };
        Ok(Self {
            with_certificate: transport(with_certificate),
            without_certificate: transport(without_certificate),
            ..base
        })
    }

    /// With another user agent, which becomes the manager in managedFields.
    #[must_use]
    pub fn with_agent(mut self, agent: &'static str) -> Self {
        self.config.headers.retain(|(name, _)| name != USER_AGENT);
        self.config.headers.push((USER_AGENT, HeaderValue::from_static(agent)));
        self
    }

    /// The CA that verifies the server, in PEM; empty if not configured.
    pub fn ca_pem(&self) -> String {
        let pem = |der: &Vec<u8>| {
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            let lines: Vec<&str> =
                (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
            format!(
                "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
                lines.join("\n")
            )
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

    /// A client that acts as a service account, with tokens kept fresh by `identity`.
    ///
    /// # Errors
    /// [`ConnectionError::Client`].
    pub fn client_as(&self, identity: &ServiceAccountIdentity) -> Result<Client, ConnectionError> {
        let config = without_identity(&self.config);
        if self.needs_default_client() {
            let builder = ClientBuilder::try_from(config).map_err(client_error)?;
            return Ok(builder
                .with_layer(&TimeoutLayer::new(RESPONSE_TIMEOUT))
                .with_layer(&identity.layer())
                .build());
        }
        Ok(shared(&config, self.without_certificate.clone())?.with_layer(&identity.layer()).build())
    }

    /// Whether the server is behind a proxy or without TLS (`kubectl proxy`), which shared
    /// connections do not support.
    fn needs_default_client(&self) -> bool {
        self.config.proxy_url.is_some()
            || self.config.cluster_url.scheme() != Some(&http::uri::Scheme::HTTPS)
    }
}

async fn configure(kubeconfig: Kubeconfig) -> Result<Config, KubeconfigFileError> {
    // Unless the program has chosen: kube would panic in one that links two crypto libraries.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(10));
    // On loopback or a cluster network, compression costs more than it saves.
    config.disable_compression = true;
    config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    Ok(config)
}

fn pooled(source: TlsSource) -> RequestTransport {
    RequestTransport::Pool(Pool::new(source))
}

fn without_identity(config: &Config) -> Config {
    let mut config = config.clone();
    config.auth_info = AuthInfo::default();
    config
}

type HttpService = BoxService<Request<Body>, Response<ResponseBody>, BoxError>;

/// kube's request layers over a transport.
fn shared(
    config: &Config,
    transport: RequestTransport,
) -> Result<ClientBuilder<HttpService>, ConnectionError> {
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(RESPONSE_TIMEOUT))
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer().map_err(client_error)?)
        .layer(config.extra_headers_layer().map_err(client_error)?)
        .map_err(BoxError::from)
        .service(transport);
    Ok(ClientBuilder::new(BoxService::new(service), config.default_namespace.clone()))
}

fn client_error(error: kube::Error) -> ConnectionError {
    ConnectionError::Client(error.to_string())
}

fn kubeconfig_error(path: &str, error: KubeconfigFileError) -> ConnectionError {
    ConnectionError::Kubeconfig { path: path.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_unanswered;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_request_without_a_response_fails() {
        // The kernel accepts; nobody reads.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config =
            Config::new(format!("http://{}", silent.local_addr().unwrap()).parse().unwrap());
        let pool = || pooled(TlsSource::Fixed(Box::new(config.clone())));
        let connection = Connection {
            with_certificate: pool(),
            without_certificate: pool(),
            config: config.clone(),
        };
        let begun = Instant::now();
        let error = connection
            .client()
            .unwrap()
            .request_text(Request::get("/version").body(Vec::new()).unwrap())
            .await
            .unwrap_err();
        assert!(is_unanswered(&error), "{error}");
        assert!(
            (RESPONSE_TIMEOUT..2 * RESPONSE_TIMEOUT).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
    }
}
