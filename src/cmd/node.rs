//! The node of `all-in-one --node`: a kubelet and a scheduler next to the API server. Their
//! requests are those of any other client, each as a user of its own, but stay in the process.

use super::controllers::ProcessServer;
use super::kubelet::{self, KubeletSetup, RuntimeState};
use anyhow::{Context, bail, ensure};
use clap::Args;
use ferrokube_features::Gates;
use ferrokube_kubelet::{KubeletSettings, NodeCertificates, ServerSettings};
use ferrokube_pki::{LEAF_LIFETIME, NODES, SCHEDULER, Subject, node_name};
use ferrokube_scheduler::Scheduler;
use ferrokube_serve::Shutdown;
use ferrokube_server::RunningControlPlane;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinSet;

/// User agent of the scheduler, which becomes the manager in managedFields.
const SCHEDULER_AGENT: &str = concat!("kube-scheduler/ferrokube-", env!("CARGO_PKG_VERSION"));
/// Delay before a failed node is restarted.
const PAUSE: Duration = Duration::from_secs(5);
/// Sockets of runtimes, of which the first that exists is used.
const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
];
/// Group of the kubelet's certificate, next to [`NODES`]: it acts with the rights of the process,
/// which has the keys of all users; the certificate never leaves its memory, and no other node
/// gains any right. [`NODES`] suffices once there is a Node authorizer.
const MASTERS: &str = "system:masters";

#[derive(Debug, Args)]
#[command(next_help_heading = "Node")]
pub(crate) struct NodeFlags {
    /// Run pods on this machine: a kubelet on the container runtime, and a scheduler for it, unless
    /// another one holds the lease kube-system/kube-scheduler. With --profile kubernetes, then the
    /// default
    #[arg(long)]
    node: bool,
    /// Name of the node [default: the host name in lower case]
    #[arg(long, value_name = "NAME", requires = "node")]
    node_name: Option<String>,
    /// Addresses of the node, the main one first [default: that of the default route]
    #[arg(long, value_name = "IP,...", value_delimiter = ',', requires = "node")]
    node_ip: Vec<IpAddr>,
    /// The runtime's socket [default: the first that exists of those of containerd, CRI-O and
    /// cri-dockerd]
    #[arg(long, value_name = "URL", requires = "node")]
    container_runtime_endpoint: Option<String>,
    /// KubeletConfiguration of the node, YAML or JSON
    #[arg(long, value_name = "FILE", requires = "node")]
    kubelet_config: Option<PathBuf>,
    /// Port of the kubelet's server, on the main address of the node; 0: any free one [default:
    /// 10250]
    #[arg(long, value_name = "PORT", requires = "node")]
    kubelet_port: Option<u16>,
    /// Files of pods: volumes
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_root_dir: PathBuf,
}

/// A node whose flags and files were read and checked.
pub(crate) struct NodeSetup {
    kubelet: KubeletSetup,
    doubts: Vec<String>,
}

impl NodeFlags {
    /// Reads and checks the node's configuration; `None` without `--node`. Opens no socket.
    pub(crate) fn setup(
        &self,
        serves_pods: bool,
        gates: Gates,
    ) -> anyhow::Result<Option<NodeSetup>> {
        if !self.node {
            return Ok(None);
        }
        ensure!(serves_pods, "--node needs pods and nodes: --profile kubernetes");
        let file = kubelet::read_file(self.kubelet_config.as_deref())?;
        let flags = KubeletSettings {
            container_runtime_endpoint: self.container_runtime_endpoint.clone(),
            server: ServerSettings {
                port: self.kubelet_port.map(i64::from),
                ..ServerSettings::default()
            },
            ..KubeletSettings::default()
        };
        let mut settings = flags.over(file.settings);
        if settings.container_runtime_endpoint.is_none() {
            settings.container_runtime_endpoint = Some(find_socket(&SOCKETS.map(Path::new))?);
        }
        // Not on all addresses, as the API server itself is not by default.
        let main = self.node_ip.first().copied().unwrap_or_else(kubelet::main_address);
        settings.server.address.get_or_insert_with(|| main.to_string());
        let config = settings.finish()?;
        let identity = kubelet::identity(self.node_name.as_deref(), &self.node_ip, &config)
            .context("cannot run a node; its name is --node-name")?;
        let root = self.kubelet_root_dir.clone();
        let certificates = NodeCertificates::new(&root.join("pki"), &identity.name);
        // The client certificate is issued by this process.
        let renews_client = false;
        let kubelet = KubeletSetup { config, identity, root, gates, certificates, renews_client };
        Ok(Some(NodeSetup { kubelet, doubts: file.warnings }))
    }
}

/// The endpoint of the first socket that exists.
fn find_socket(known: &[&Path]) -> anyhow::Result<String> {
    match known.iter().find(|path| path.exists()) {
        Some(path) => Ok(format!("unix://{}", path.display())),
        None => bail!(
            "--node needs a container runtime, and none of {} exists: install containerd, or name \
             the socket of a runtime with --container-runtime-endpoint",
            known.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        ),
    }
}

impl NodeSetup {
    /// Starts kubelet and scheduler as a task of the server.
    pub(crate) fn start(&self, server: &mut RunningControlPlane) {
        kubelet::log_doubts(&self.doubts);
        let run = NodeRun { kubelet: self.kubelet.clone(), server: ProcessServer::new(server) };
        server.spawn(run.run_with_restart(server.shutdown()));
    }
}

/// Inputs of a run.
struct NodeRun {
    kubelet: KubeletSetup,
    server: ProcessServer,
}

impl NodeRun {
    async fn run_with_restart(self, shutdown: Shutdown) {
        while !shutdown.is_begun() {
            if let Err(error) = self.run_once(&shutdown).await {
                tracing::error!(error = format!("{error:#}"), "the node failed, restarting");
                tokio::select! {
                    () = shutdown.begun() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }

    /// Runs until shutdown, or until a certificate is due for renewal; pods keep running.
    async fn run_once(&self, shutdown: &Shutdown) -> anyhow::Result<()> {
        let node = &self.kubelet.identity.name;
        let user = node_name(node);
        let subject = Subject { common_name: &user, organizations: &[NODES, MASTERS] };
        let own = self.server.pki.client(&subject, LEAF_LIFETIME)?;
        let scheduler = self.server.pki.client(&SCHEDULER, LEAF_LIFETIME)?;
        let kubelet = self.kubelet.clone().assemble(Some(self.server.connect(&own).await?))?;
        let connection = self.server.connect(&scheduler).await?.with_agent(SCHEDULER_AGENT);
        // A task of its own: a long pass does not delay the kubelet.
        let mut scheduling = JoinSet::new();
        scheduling.spawn(Scheduler::new(connection.client()?, node).run());
        let said = |runtime: RuntimeState<'_>| {
            if matches!(runtime, RuntimeState::Answers) {
                tracing::info!(node, "the node runs in this process");
            }
        };
        tokio::select! {
            () = kubelet.run(said) => Ok(()),
            ended = scheduling.join_next() => match ended {
                Some(Err(panic)) => Err(panic.into()),
                _ => Ok(()),
            },
            () = shutdown.begun() => Ok(()),
            () = own.renewal.or(scheduler.renewal).due() => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_socket_that_exists_is_used() {
        let folder = tempfile::tempdir().expect("a directory");
        let (first, second) = (folder.path().join("a.sock"), folder.path().join("b.sock"));
        let none = find_socket(&[&first, &second]).expect_err("there is none").to_string();
        assert!(none.contains("a.sock") && none.contains("--container-runtime-endpoint"), "{none}");
        std::fs::write(&second, "").expect("written");
        let found = find_socket(&[&first, &second]).expect("found");
        assert_eq!(found, format!("unix://{}", second.display()));
        std::fs::write(&first, "").expect("written");
        assert!(find_socket(&[&first, &second]).expect("found").ends_with("a.sock"));
    }
}
