//! The kubelet's server: logs, exec, attach, port-forward and resource usage, for the API server.
//!
//! Every request is authenticated (client certificate or TokenReview) and authorized
//! (SubjectAccessReview); there is no unauthenticated port. Exec, attach and port-forward connect
//! the client's upgraded connection to the runtime's streaming URL.

mod access;
mod cache;
mod failure;
mod logs;
mod pods;
mod routes;
mod streams;

use crate::api::ApiPods;
use crate::certificates::{NodeCertificates, StoredCertificate};
use crate::config::ServerConfig;
use crate::node::PodNode;
use crate::pod::NodePod;
use crate::usage::UsageCollector;
use access::KubeletAccess;
use failure::ServerFailure;
use ferrokube_client::Outage;
use ferrokube_pki::{PkiError, self_signed};
use ferrokube_relay::Tunnels;
use ferrokube_serve::reload::{LoadedFiles, ReloadError, TlsFiles};
use ferrokube_serve::{
    Handler, ListenerLimits, Request, Response, Server, ServerError, Shutdown, ShutdownTrigger,
    Tls, TlsError,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Max connections, of which one address gets half.
const CONNECTIONS: usize = 2000;
/// Max concurrent streams: as many as an API server opens (`MAX_CONNECTIONS` of crate connect),
/// which shares them among its users. With fewer here, one of them could take all.
const STREAMS: usize = 512;
/// Poll interval of certificate files.
const RELOAD: Duration = Duration::from_secs(20);
/// Poll intervals of the client CA published by the API server: before and after it is found.
const CA_INTERVALS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];
/// ConfigMap in which the API server publishes the CA.
const CA_MAP: (&str, &str) = ("kube-system", "extension-apiserver-authentication");

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletServerError {
    /// The self-signed serving certificate could not be created.
    #[error("cannot make a serving certificate")]
    Certificate(#[from] PkiError),
    /// A certificate is unusable.
    #[error("cannot use the serving certificate")]
    Tls(#[from] TlsError),
    /// A file is unusable.
    #[error(transparent)]
    Files(#[from] ReloadError),
    /// The port is in use, usually by another kubelet.
    #[error("cannot listen for the API server; set --port")]
    Listen(#[from] ServerError),
}

/// A bound server, which starts serving when its kubelet runs.
pub struct KubeletServer {
    listener: Server,
    tls: Tls,
    files: TlsFiles,
    loaded: LoadedFiles,
    config: ServerConfig,
    names: Vec<String>,
    metrics: Registry,
    written: Option<GateMetrics>,
    certificates: Option<NodeCertificates>,
}

/// Appends the metrics of feature gates in the text format.
type GateMetrics = Box<dyn Fn(&mut String) + Send + Sync>;

/// The node as requests see it.
pub(crate) struct ServedNode {
    pub(crate) node: Arc<PodNode>,
    pub(crate) pods: Arc<ApiPods>,
    pub(crate) files: watch::Receiver<Vec<NodePod>>,
    pub(crate) client: Client,
}

impl KubeletServer {
    /// Binds the port. `names` go into a self-signed serving certificate; `register` adds metrics.
    ///
    /// # Errors
    /// [`KubeletServerError`].
    pub fn bind(
        config: ServerConfig,
        names: Vec<String>,
        register: impl FnOnce(&mut Registry),
    ) -> Result<Self, KubeletServerError> {
        let mut metrics = Registry::default();
        register(&mut metrics);
        let files = TlsFiles {
            serving: config.certificate.clone(),
            client_ca: config.client_ca.clone(),
            ..TlsFiles::default()
        };
        let (chain, key) = match files.read_serving()? {
            Some(pair) => pair,
            None => self_made(&names)?,
        };
        let tls = Tls::new(&chain, &key)?;
        let loaded = files.apply(&tls, &LoadedFiles::default())?;
        let limits = ListenerLimits { connections: CONNECTIONS, ..ListenerLimits::default() };
        let listener = Server::bind(config.address, tls.clone(), limits)?;
        let (written, certificates) = (None, None);
        Ok(Self { listener, tls, files, loaded, config, names, metrics, written, certificates })
    }

    /// Requests its certificate, unless a file has one; until it has been signed the self-signed
    /// one is served.
    #[must_use]
    pub fn requesting(mut self, certificates: NodeCertificates) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Serves these metrics, too: those of feature gates.
    #[must_use]
    pub fn metrics(mut self, write: GateMetrics) -> Self {
        self.written = Some(write);
        self
    }

    /// The actual port if any free one was requested.
    pub fn port(&self) -> u16 {
        self.listener.local_address().port()
    }

    /// Serves until dropped.
    pub(crate) async fn run(self, served: ServedNode) {
        let Self { listener, tls, files, loaded, config, names, metrics, written, certificates } =
            self;
        let (_trigger, shutdown) = ShutdownTrigger::new();
        let ended = watch::channel(false);
        let client = served.client.clone();
        let handler = KubeletHandler {
            access: KubeletAccess::new(client.clone(), &served.node.name, &config),
            usage: UsageCollector::new(
                &served.node.runtime,
                &served.node.name,
                served.node.paths.root.clone(),
            )
            .with_volumes(&served.node.volumes),
            served,
            tunnels: Tunnels::new(ended.1),
            streams: Arc::new(Semaphore::new(STREAMS)),
            metrics,
            written,
        };
        let is_own = files.serving.is_none();
        let follows_api = files.client_ca.is_none();
        tokio::join!(
            async { _ = listener.serve(Arc::new(handler), shutdown.clone()).await },
            files.watch(tls.clone(), loaded, RELOAD, shutdown.clone()),
            async {
                if follows_api {
                    follow_client_ca(&client, &tls).await;
                }
            },
            async {
                match certificates {
                    Some(certificates) if is_own => {
                        let serve = |pair: &StoredCertificate| serve_requested(&tls, pair);
                        certificates.renew_serving(&client, &names, serve).await;
                    }
                    None if is_own => renew(&names, &tls, &shutdown).await,
                    _ => {}
                }
            },
        );
        drop(ended.0);
    }
}

fn self_made(names: &[String]) -> Result<(Vec<u8>, Vec<u8>), PkiError> {
    let pair = self_signed(names)?;
    Ok((pair.chain_pem.into_bytes(), pair.key_pem.into_bytes()))
}

fn serve_requested(tls: &Tls, pair: &StoredCertificate) {
    if let Err(error) = tls.replace_serving(pair.pem.as_bytes(), pair.pem.as_bytes()) {
        tracing::error!(%error, "cannot use the requested serving certificate");
    }
}

/// Replaces the self-signed certificate before it expires.
async fn renew(names: &[String], tls: &Tls, shutdown: &Shutdown) {
    while !shutdown.is_begun() {
        match self_signed(names) {
            Ok(pair) => {
                let (chain, key) = (pair.chain_pem.as_bytes(), pair.key_pem.as_bytes());
                if let Err(error) = tls.replace_serving(chain, key) {
                    tracing::error!(%error, "cannot use the new serving certificate");
                }
                pair.renewal.due().await;
            }
            Err(error) => {
                tracing::error!(%error, "cannot make a serving certificate");
                tokio::time::sleep(CA_INTERVALS[1]).await;
            }
        }
    }
}

/// Keeps the client CA in sync with the one published by the API server.
async fn follow_client_ca(client: &Client, tls: &Tls) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), CA_MAP.0);
    let mut outage =
        Outage::new("read the client CA from kube-system/extension-apiserver-authentication");
    let mut used = String::new();
    loop {
        match maps.get(CA_MAP.1).await {
            Ok(map) => {
                outage.works();
                let pem = map.data.unwrap_or_default().remove("client-ca-file").unwrap_or_default();
                if !pem.is_empty() && pem != used {
                    match tls.replace_client_ca(pem.as_bytes()) {
                        Ok(()) => used = pem,
                        Err(error) => tracing::warn!(%error, "cannot use the published client CA"),
                    }
                }
            }
            Err(error) => _ = outage.failed(&error),
        }
        tokio::time::sleep(CA_INTERVALS[usize::from(!used.is_empty())]).await;
    }
}

/// The HTTP handler.
pub(crate) struct KubeletHandler {
    access: KubeletAccess,
    usage: UsageCollector,
    served: ServedNode,
    tunnels: Tunnels,
    /// Permits for streams.
    streams: Arc<Semaphore>,
    metrics: Registry,
    written: Option<GateMetrics>,
}

impl Handler for KubeletHandler {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(
            async move { self.respond(request).await.unwrap_or_else(ServerFailure::into_response) },
        )
    }
}
