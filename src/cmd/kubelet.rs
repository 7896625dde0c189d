//! `ferrokube kubelet`: runs the pods of this machine on a container runtime; with an API server,
//! those that are bound to its node.

use super::flags::{FeatureFlags, LogFlags, duration};
use super::notify;
use super::process::{self, Signals};
use super::server::report;
use super::tracing::TracingFlags;
use anyhow::{Context, ensure};
use clap::Args;
use ferrokube_client::{Connection, report_uses};
use ferrokube_cri::{CriError, Runtime, RuntimeSocket};
use ferrokube_features::{Gates, KubernetesVersion, MAX_PARALLEL_IMAGE_PULLS};
use ferrokube_images::{ImageAccess, ImageManager, PullMetrics};
use ferrokube_kubelet::{
    BootstrapFiles, CredentialProviders, EventSink, Kubelet, KubeletConfig, KubeletConfigFile,
    KubeletPaths, KubeletServer, KubeletSettings, NodeApi, NodeCertificates, NodeIdentity,
    NodeTaint, ProcessLimit, RuntimeOperations, ServerSettings,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// User agent, which becomes the manager in managedFields.
const AGENT: &str = concat!("kubelet/ferrokube-", env!("CARGO_PKG_VERSION"));
/// Interval of attempts to reach the runtime.
const RUNTIME_RETRY: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct KubeletFlags {
    /// KubeletConfiguration, YAML or JSON; flags take precedence over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig of the API server, with the node's identity; without it only static pods run
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    certificates: CertificateFlags,
    /// Name of the node [default: the host name in lower case]
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// Addresses of the node, the main one first [default: that of the default route]
    #[arg(long, value_name = "IP,...", value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    /// Labels to register the node with
    #[arg(long, value_name = "KEY=VALUE,...", value_delimiter = ',', value_parser = label)]
    node_labels: Vec<(String, String)>,
    /// Taints to register the node with
    #[arg(long, value_name = "KEY=VALUE:EFFECT,...", value_delimiter = ',')]
    register_with_taints: Vec<NodeTaint>,
    /// Create the Node object
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    register_node: Option<bool>,
    /// Directory of pod files, such as volumes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// The runtime's socket [default: unix:///run/containerd/containerd.sock]
    #[arg(long, value_name = "URL")]
    container_runtime_endpoint: Option<String>,
    /// The image service's socket [default: the runtime's]
    #[arg(long, value_name = "URL")]
    image_service_endpoint: Option<String>,
    /// Directory of static pods
    #[arg(long, value_name = "DIR")]
    pod_manifest_path: Option<String>,
    /// Timeout of runtime calls [default: 2m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    runtime_request_timeout: Option<Duration>,
    /// Max number of pods [default: 110]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=1 << 20))]
    max_pods: Option<i64>,
    /// Max number of a pod's processes and threads; -1: no limit [default: 4096]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pod_max_pids: Option<i64>,
    /// One image pull at a time [default: unless a limit above 1 is set]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    serialize_image_pulls: Option<bool>,
    /// Image pulls in parallel; 0: no limit
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    max_parallel_image_pulls: Option<i64>,
    /// Image pulls per second; 0: no limit [default: 5]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    registry_qps: Option<i64>,
    /// Image pulls above the rate [default: 10]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    registry_burst: Option<i64>,
    /// CredentialProviderConfig: plug-ins that have credentials for images
    #[arg(long, value_name = "FILE", requires = "image_credential_provider_bin_dir")]
    image_credential_provider_config: Option<PathBuf>,
    /// Directory of the plug-ins' executables
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    image_credential_provider_bin_dir: Option<PathBuf>,
    /// Name servers of the cluster, for pods [default: those of the node]
    #[arg(long, value_name = "IP,...", value_delimiter = ',')]
    cluster_dns: Vec<String>,
    /// Domain of the cluster's services [default: cluster.local]
    #[arg(long, value_name = "DOMAIN")]
    cluster_domain: Option<String>,
    #[command(flatten)]
    server: KubeletServerFlags,
    #[command(flatten)]
    features: FeatureFlags,
    #[command(flatten)]
    log: LogFlags,
    #[command(flatten)]
    tracing: TracingFlags,
}

/// Flags of certificates that the kubelet requests.
#[derive(Debug, Args)]
struct CertificateFlags {
    /// Kubeconfig that may request the node's client certificate; used while --kubeconfig does not
    /// exist or its certificate has expired. Writes --kubeconfig
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    bootstrap_kubeconfig: Option<PathBuf>,
    /// Directory of certificates that are requested [default: pki in --root-dir]
    #[arg(long, value_name = "DIR")]
    cert_dir: Option<PathBuf>,
    /// Renew the client certificate of a bootstrap [default: with --bootstrap-kubeconfig]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    rotate_certificates: Option<bool>,
    /// Request the serving certificate, and its successors, from the API server
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    rotate_server_certificates: Option<bool>,
}

/// Flags of the server for logs, exec, attach and port-forward, which runs with `--kubeconfig`.
#[derive(Debug, Args)]
struct KubeletServerFlags {
    /// IP address of the kubelet's server [default: 0.0.0.0]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Port of the kubelet's server; 0: any free one [default: 10250]
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Serving certificate chain [default: self-signed]
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<String>,
    /// Key of --tls-cert-file
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<String>,
    /// CAs of client certificates [default: those that the API server publishes]
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<String>,
    /// Authenticate bearer tokens by TokenReviews of the API server [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    authentication_token_webhook: Option<bool>,
}

impl KubeletServerFlags {
    fn settings(&self) -> ServerSettings {
        ServerSettings {
            address: self.address.map(|address| address.to_string()),
            port: self.port.map(i64::from),
            tls_cert_file: self.tls_cert_file.clone(),
            tls_private_key_file: self.tls_private_key_file.clone(),
            client_ca_file: self.client_ca_file.clone(),
            token_webhook: self.authentication_token_webhook,
            ..ServerSettings::default()
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

impl KubeletFlags {
    fn settings(&self) -> KubeletSettings {
        KubeletSettings {
            container_runtime_endpoint: self.container_runtime_endpoint.clone(),
            image_service_endpoint: self.image_service_endpoint.clone(),
            static_pod_path: self.pod_manifest_path.clone(),
            runtime_request_timeout: self.runtime_request_timeout,
            serialize_image_pulls: self.serialize_image_pulls,
            max_parallel_image_pulls: self.max_parallel_image_pulls,
            registry_pull_qps: self.registry_qps,
            registry_burst: self.registry_burst,
            rotate_certificates: self.certificates.rotate_certificates,
            register_node: self.register_node,
            register_with_taints: Some(self.register_with_taints.clone())
                .filter(|taints| !taints.is_empty()),
            max_pods: self.max_pods,
            pod_pids_limit: self.pod_max_pids,
            cluster_dns: Some(self.cluster_dns.clone()).filter(|servers| !servers.is_empty()),
            cluster_domain: self.cluster_domain.clone(),
            server: ServerSettings {
                requests_certificate: self.certificates.rotate_server_certificates,
                ..self.server.settings()
            },
            ..KubeletSettings::default()
        }
    }

    /// The configuration from file and flags, and the file's warnings.
    fn read_config(&self) -> anyhow::Result<(KubeletConfig, Vec<String>)> {
        let file = read_file(self.config.as_deref())?;
        Ok((self.settings().over(file.settings).finish()?, file.warnings))
    }

    /// Reads their configuration; without one there are none.
    fn credential_providers(&self) -> anyhow::Result<CredentialProviders> {
        let directory = self.image_credential_provider_bin_dir.as_deref();
        Ok(match self.image_credential_provider_config.as_deref().zip(directory) {
            Some((file, directory)) => CredentialProviders::read(file, directory)?,
            None => CredentialProviders::default(),
        })
    }

    fn identity(&self, config: &KubeletConfig) -> anyhow::Result<NodeIdentity> {
        let mut identity = identity(self.hostname_override.as_deref(), &self.node_ip, config)?;
        identity.labels = self.node_labels.iter().cloned().collect::<BTreeMap<_, _>>();
        Ok(identity)
    }
}

/// The node of this machine, unless it is given another name or addresses.
pub(super) fn identity(
    name: Option<&str>,
    addresses: &[IpAddr],
    config: &KubeletConfig,
) -> anyhow::Result<NodeIdentity> {
    let host_name = host_name();
    let name = name.unwrap_or(&host_name).trim().to_lowercase();
    ensure!(
        ferrokube_apimachinery::name::dns1123_subdomain(&name).is_empty(),
        "cannot use {name:?} as the name of the node: not a DNS name; set --hostname-override"
    );
    let addresses = if addresses.is_empty() { vec![main_address()] } else { addresses.to_vec() };
    Ok(NodeIdentity {
        name,
        host_name,
        addresses,
        server_port: None,
        version: format!(
            "v{}.0+ferrokube-{}",
            KubernetesVersion::CURRENT,
            env!("CARGO_PKG_VERSION")
        ),
        labels: BTreeMap::new(),
        taints: config.register_with_taints.clone(),
        is_registered: config.register_node,
        max_pods: config.max_pods,
        status_interval: config.node_status_update_frequency,
        report_interval: config.node_status_report_frequency,
        lease_duration: config.node_lease_duration,
    })
}

/// Reads a KubeletConfiguration; without a path it sets nothing.
pub(super) fn read_file(path: Option<&Path>) -> anyhow::Result<KubeletConfigFile> {
    let Some(path) = path else { return Ok(KubeletConfigFile::default()) };
    let shown = path.display();
    let body = std::fs::read(path)
        .with_context(|| format!("cannot read the KubeletConfiguration {shown}"))?;
    KubeletConfigFile::parse(&body)
        .with_context(|| format!("cannot use the KubeletConfiguration {shown}"))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_lowercase()
}

/// Names of a self-signed serving certificate.
fn serving_names(identity: &NodeIdentity) -> Vec<String> {
    let addresses = identity.addresses.iter().map(ToString::to_string);
    let mut names: Vec<String> = [identity.name.clone(), identity.host_name.clone()].into();
    names.retain(|name| !name.is_empty());
    names.extend(addresses);
    names.sort();
    names.dedup();
    names
}

/// The address from which packets leave; loopback without a default route. Nothing is sent.
pub(super) fn main_address() -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let probe = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // An address of documentation: any that is not local.
        socket.connect(SocketAddr::from(([203, 0, 113, 1], 9)))?;
        Ok(socket.local_addr()?.ip())
    };
    probe().unwrap_or(loopback)
}

/// Runs until a signal; pods keep running without it.
pub(crate) fn run(flags: KubeletFlags) -> anyhow::Result<ExitCode> {
    let (gates, warnings) = flags.features.gates()?;
    let spans = flags.tracing.config("kubelet")?;
    let log = flags.log.config(&gates, None);
    process::check_log(&log)?;
    let (config, doubts) = flags.read_config()?;
    let providers = flags.credential_providers()?;
    let identity = flags.identity(&config)?;
    let _telemetry = process::set_up(&log, &gates, &warnings, spans.as_ref())?;
    log_doubts(&doubts);
    let root = flags.root_dir.clone();
    let directory = flags.certificates.cert_dir.clone().unwrap_or_else(|| root.join("pki"));
    let certificates = NodeCertificates::new(&directory, &identity.name);
    let is_bootstrapped = flags.certificates.bootstrap_kubeconfig.is_some();
    let renews_client = config.rotate_certificates.unwrap_or(is_bootstrapped);
    let setup = KubeletSetup { config, identity, root, gates, certificates, renews_client };
    process::block_on(work(flags, setup, providers))
}

/// Logs what is doubtful in a file.
pub(super) fn log_doubts(doubts: &[String]) {
    for warning in doubts {
        tracing::warn!(warning, "KubeletConfiguration");
    }
}

async fn work(
    flags: KubeletFlags,
    setup: KubeletSetup,
    providers: CredentialProviders,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    tokio::select! {
        done = bootstrap(&flags, &setup.certificates) => done?,
        (name, _) = signals.next() => {
            tracing::info!(signal = name, "ending before the node has a certificate");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let connection = match &flags.kubeconfig {
        Some(path) => Some(Connection::from_kubeconfig(path).await?),
        None => None,
    };
    let name = setup.identity.name.clone();
    let mut kubelet = setup.assemble(connection)?;
    kubelet.kubelet = kubelet.kubelet.credential_providers(providers);
    let said = |runtime: RuntimeState<'_>| match runtime {
        RuntimeState::Missing(why) => {
            notify::status(&format!("waiting for the container runtime: {why}"));
        }
        RuntimeState::Answers => {
            report(&format!("ready: node {name}"));
            notify::ready(&format!("node {name}"));
        }
    };
    tokio::select! {
        () = kubelet.run(said) => {}
        () = crate::memory::release_code() => {}
        (name, _) = signals.next() => tracing::info!(signal = name, "ending"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the node's first certificate, if it has to request one.
async fn bootstrap(flags: &KubeletFlags, certificates: &NodeCertificates) -> anyhow::Result<()> {
    let bootstrap = flags.certificates.bootstrap_kubeconfig.as_ref();
    if let Some((bootstrap, kubeconfig)) = bootstrap.zip(flags.kubeconfig.as_ref()) {
        let (bootstrap, kubeconfig) = (bootstrap.clone(), kubeconfig.clone());
        let files = BootstrapFiles { kubeconfig, bootstrap };
        certificates
            .bootstrap(&files, AGENT)
            .await
            .context("cannot get the node's certificate with --bootstrap-kubeconfig")?;
    }
    Ok(())
}

/// Inputs of a kubelet, without its API server.
#[derive(Clone, Debug)]
pub(super) struct KubeletSetup {
    pub(super) config: KubeletConfig,
    pub(super) identity: NodeIdentity,
    /// Files of pods.
    pub(super) root: PathBuf,
    pub(super) gates: Gates,
    /// That the kubelet requests.
    pub(super) certificates: NodeCertificates,
    /// Whether the client certificate is one of them.
    pub(super) renews_client: bool,
}

/// A kubelet that waits for its runtime.
pub(super) struct AssembledKubelet {
    kubelet: Kubelet,
    images: ImageManager,
    /// Reports the uses of feature gates to the API server, and renews the client certificate; ends
    /// at once without one.
    background: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Reported before the first pod runs.
pub(super) enum RuntimeState<'a> {
    /// Does not answer yet, and why.
    Missing(&'a CriError),
    Answers,
}

impl AssembledKubelet {
    /// Runs until dropped; pods keep running. `report` is called when the runtime is missed, and
    /// when it answers.
    pub(super) async fn run(self, report: impl Fn(RuntimeState<'_>)) {
        let Self { kubelet, images, background } = self;
        let running = async {
            learn_capabilities(&images, &report).await;
            kubelet.run().await;
        };
        // Also while the runtime does not answer.
        tokio::join!(running, background);
    }
}

impl KubeletSetup {
    /// Opens the kubelet's directory and its port. With a connection it runs the node's pods of
    /// that API server, too.
    pub(super) fn assemble(
        self,
        connection: Option<Connection>,
    ) -> anyhow::Result<AssembledKubelet> {
        let Self { config, mut identity, root, gates, certificates, renews_client } = self;
        // What is in it is of pods, and of no other user.
        let mut directory = std::fs::DirBuilder::new();
        directory
            .recursive(true)
            .mode(0o750)
            .create(&root)
            .with_context(|| format!("cannot create the kubelet's directory {}", root.display()))?;
        let operations = RuntimeOperations::default();
        let socket = |endpoint: &str| -> anyhow::Result<Runtime> {
            Ok(Runtime::new(operations.counted(Arc::new(RuntimeSocket::new(endpoint)?))))
        };
        let runtime = socket(&config.container_runtime_endpoint)?
            .within(Some(config.runtime_request_timeout));
        let image_service = socket(&config.image_service_endpoint)?;
        let (sink, queue) = EventSink::new();
        let sink = Arc::new(sink);
        let metrics = Arc::<PullMetrics>::default();
        let images = ImageManager::new(
            image_service,
            config.pulls,
            Arc::clone(&sink) as Arc<_>,
            Arc::clone(&metrics),
        )
        .limited_by(gates.live(&MAX_PARALLEL_IMAGE_PULLS))
        .accessed_by(image_access(&root, &config)?);
        let paths = KubeletPaths { root, logs: config.pod_logs_dir.clone().into() };
        let mut kubelet = Kubelet::new(&identity.name, &config, runtime, images.clone(), paths)
            .process_limit(process_limit(&config)?)
            .events(sink)
            .addresses(&identity.addresses);
        let mut background: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async {});
        if let Some(connection) = connection {
            if let Some(server) = config.server {
                let names = serving_names(&identity);
                let is_requested = server.requests_certificate;
                let mut server = KubeletServer::bind(server, names, |all| {
                    metrics.register(all);
                    operations.register(all);
                })?;
                if is_requested {
                    server = server.requesting(certificates.clone());
                }
                let shown = gates.clone();
                let server = server.metrics(Box::new(move |text| {
                    ferrokube_features::metrics::write(text, &shown)
                }));
                identity.server_port = Some(server.port());
                kubelet = kubelet.server(server);
            }
            let client = connection.with_agent(AGENT).client()?;
            let reporter = report_uses(client.clone(), gates, identity.name.clone());
            let uses = reporter.lease_uses();
            let own = client.clone();
            background = Box::pin(async move {
                let renewing = async {
                    if renews_client {
                        certificates.renew_client(&own).await;
                    }
                };
                tokio::join!(reporter, renewing);
            });
            kubelet = kubelet.api(NodeApi::new(client, identity, queue).uses(uses));
        }
        Ok(AssembledKubelet { kubelet, images, background })
    }
}

/// Access to pulled images, from the last run.
fn image_access(root: &Path, config: &KubeletConfig) -> anyhow::Result<ImageAccess> {
    let file = root.join("pulled-images.json");
    let shown = file.display().to_string();
    ImageAccess::open(file, config.image_verification.clone())
        .with_context(|| format!("cannot read {shown}, which says which pods may use which images"))
}

/// The default limit is left out on machines that cannot enforce it.
fn process_limit(config: &KubeletConfig) -> anyhow::Result<ProcessLimit> {
    match ProcessLimit::of_machine(config.pod_pids_limit) {
        Err(error) if !config.is_pids_limit_given => {
            tracing::warn!(%error, "the number of a pod's processes is not limited");
            Ok(ProcessLimit::Unlimited)
        }
        other => other.context("cannot limit the number of a pod's processes (podPidsLimit)"),
    }
}

/// Waits for the runtime, and learns whether it bounds pulls itself.
async fn learn_capabilities(images: &ImageManager, report: &impl Fn(RuntimeState<'_>)) {
    let mut is_missed = false;
    while let Err(error) = images.learn_capabilities().await {
        if !is_missed {
            tracing::warn!(
                %error,
                "the container runtime does not answer; waiting for it: install one, or name its \
                 socket with --container-runtime-endpoint"
            );
            report(RuntimeState::Missing(&error));
            is_missed = true;
        }
        tokio::time::sleep(RUNTIME_RETRY).await;
    }
    if is_missed {
        tracing::info!("the container runtime answers");
    }
    report(RuntimeState::Answers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct KubeletCli {
        #[command(flatten)]
        flags: KubeletFlags,
    }

    #[test]
    fn flags_are_settings_of_their_names() {
        let settings = |flags: &[&str]| {
            let cli = KubeletCli::try_parse_from([&["x"], flags].concat()).unwrap();
            cli.flags.settings()
        };
        let given = settings(&[
            "--cluster-dns=10.0.0.10,fd00::10",
            "--cluster-domain=example.org",
            "--serialize-image-pulls=false",
            "--max-parallel-image-pulls=3",
            "--register-with-taints=a=b:NoSchedule,c:NoExecute",
        ]);
        let taints = ["a=b:NoSchedule", "c:NoExecute"];
        let taints = taints.map(|text| text.parse::<NodeTaint>().unwrap());
        assert_eq!(given.register_with_taints, Some(taints.to_vec()));
        assert_eq!(given.cluster_dns.unwrap(), ["10.0.0.10", "fd00::10"]);
        assert_eq!(given.cluster_domain.unwrap(), "example.org");
        assert_eq!(given.serialize_image_pulls, Some(false));
        assert_eq!(given.max_parallel_image_pulls, Some(3));
        assert_eq!(settings(&[]).cluster_dns, None, "the file's count");
    }
}
