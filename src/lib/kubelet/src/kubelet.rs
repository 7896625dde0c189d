//! The kubelet as a whole: its settings and loops.

use crate::api::{ApiObjects, ApiPods, NodeApi};
use crate::config::{KubeletConfig, LogRotation};
use crate::csi;
use crate::eviction;
use crate::eviction::figures::FigureSource;
use crate::log_files;
use crate::node::{KubeletPaths, PodNode};
use crate::pod::NodePod;
use crate::pod_loop::{PodLoop, PodSources};
use crate::process_limit::ProcessLimit;
use crate::pull_secrets::providers::CredentialProviders;
use crate::removal;
use crate::server::{KubeletServer, ServedNode};
use crate::volumes::{measure, upkeep};
use ferrokube_cri::Runtime;
use ferrokube_images::{ImageCollection, ImageManager, PullEvents};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A kubelet: runs static pods and, with an API server, the pods bound to its node.
pub struct Kubelet {
    node: PodNode,
    static_pods: Option<PathBuf>,
    interval: Duration,
    rotation: LogRotation,
    collection: ImageCollection,
    api: Option<NodeApi>,
    server: Option<KubeletServer>,
}

impl Kubelet {
    /// A kubelet, inactive until [`Self::run`]. Paths may be relative.
    pub fn new(
        name: &str,
        config: &KubeletConfig,
        runtime: Runtime,
        images: ImageManager,
        paths: KubeletPaths,
    ) -> Self {
        // The runtime has another working directory. Only an empty path fails.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let paths = KubeletPaths { root: absolute(paths.root), logs: absolute(paths.logs) };
        let mut node = PodNode::new(name, runtime, images, paths, config.eviction.clone());
        node.dns = config.dns.clone();
        node.max_pods = usize::try_from(config.max_pods).unwrap_or(usize::MAX);
        Self {
            node,
            static_pods: config.static_pod_path.as_ref().map(PathBuf::from),
            interval: config.file_check_frequency,
            rotation: config.log_rotation,
            collection: config.image_collection,
            api: None,
            server: None,
        }
    }

    /// Sets the sink for pod events.
    #[must_use]
    pub fn events(mut self, events: Arc<dyn PullEvents>) -> Self {
        self.node.events = Some(events);
        self
    }

    /// Sets the credential provider plug-ins.
    #[must_use]
    pub fn credential_providers(mut self, providers: CredentialProviders) -> Self {
        self.node.providers = providers;
        self
    }

    /// Sets the limit on processes of each pod.
    #[must_use]
    pub fn process_limit(self, limit: ProcessLimit) -> Self {
        self.node.limit_processes(limit);
        self
    }

    /// Sets the source of resource figures.
    #[must_use]
    pub fn figures(mut self, figures: Arc<dyn FigureSource>) -> Self {
        self.node.figures = figures;
        self
    }

    /// Sets the node's addresses, which pod statuses report.
    #[must_use]
    pub fn addresses(mut self, addresses: &[IpAddr]) -> Self {
        self.node.host_ips = addresses.iter().map(ToString::to_string).collect();
        self
    }

    /// Also runs the pods that the API server binds to this node.
    #[must_use]
    pub fn api(mut self, api: NodeApi) -> Self {
        self.node.objects =
            Arc::new(ApiObjects::new(api.client.clone(), Arc::clone(&api.services)));
        self.api = Some(api);
        self
    }

    /// Sets the source of referenced objects.
    #[cfg(test)]
    pub(crate) fn objects(mut self, objects: Arc<dyn crate::objects::PodObjects>) -> Self {
        self.node.objects = objects;
        self
    }

    /// Serves logs, exec and port-forward to users authorized by the API server; requires one.
    #[must_use]
    pub fn server(mut self, server: KubeletServer) -> Self {
        self.server = Some(server);
        self
    }

    /// Runs the node's pods. Never returns; when dropped, pods keep running without a kubelet.
    pub async fn run(mut self) {
        let (api, server) = (self.api.take(), self.server.take());
        let (node, files, loops) = self.loops(api.as_ref().map(|api| Arc::clone(&api.pods)));
        match api {
            Some(api) => {
                let served = ServedNode {
                    node: Arc::clone(&node),
                    pods: Arc::clone(&api.pods),
                    files: files.clone(),
                    client: api.client.clone(),
                };
                let serving = async {
                    if let Some(server) = server {
                        server.run(served).await;
                    }
                };
                _ = tokio::join!(loops, api.run(&node, files), serving);
            }
            None => loops.await,
        }
    }

    /// The loops that run with or without an API server, and the channel of static pods.
    pub(crate) fn loops(
        self,
        api: Option<Arc<ApiPods>>,
    ) -> (Arc<PodNode>, watch::Receiver<Vec<NodePod>>, impl Future<Output = ()>) {
        let Self { node, static_pods, interval, rotation, collection, .. } = self;
        // The runtime may have been absent since this kubelet was made.
        *node.listed_at.lock() = Instant::now();
        let node = Arc::new(node);
        let (found, files) = watch::channel(Vec::new());
        let sources = PodSources { static_pods, interval, api, found };
        let pods = PodLoop::new(&node, sources);
        let own = Arc::clone(&node);
        let loops = async move {
            let rotating = log_files::run(&own, rotation);
            let keeping = eviction::run(&own, collection);
            let registering = csi::register(Arc::clone(&own.csi), own.paths.root.clone());
            let unstaging = csi::unstage_unused(&own);
            let (maintaining, measuring) = (upkeep::run(&own), measure::run(&own));
            let removing = removal::run(&own);
            let volumes =
                async { tokio::join!(registering, unstaging, maintaining, measuring, removing) };
            _ = tokio::join!(pods.run(), rotating, keeping, volumes);
        };
        (node, files, loops)
    }
}
