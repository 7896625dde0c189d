//! A Kubernetes API server with its controllers inside a test, for users of kube-rs: no process, no
//! executable, nothing to download; in memory, on a port of its own, gone with its value.
//!
//! ```
//! use ferrokube_testing::{TestCluster, kube::Api};
//! use k8s_openapi::api::core::v1::Namespace;
//!
//! # #[tokio::main(flavor = "multi_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = TestCluster::start().await?;
//! let namespaces: Api<Namespace> = Api::all(cluster.client()?);
//! assert_eq!(namespaces.get("default").await?.metadata.name.as_deref(), Some("default"));
//! cluster.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! The value is real: RBAC, admission, server-side apply, watches, custom resources, garbage
//! collection, deletion of namespaces and quotas are those of the server. Nothing runs pods.
//! A test may have several. Must never know the kubelet or flags. Start at [`TestCluster`].

use ferrokube_client::{Connection, ConnectionError};
use ferrokube_controllers::{ControllerManager, ManagerError};
use ferrokube_pki::{ADMIN, CONTROLLER_MANAGER, LEAF_LIFETIME, PkiError, Subject};
use ferrokube_server::serve::TlsError;
use ferrokube_server::{BuildError, ControlPlane, RunningControlPlane, ServeError, StorageConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use tempfile::TempDir;
use tokio::sync::watch;

pub use kube;

/// Why a cluster does not start.
#[derive(Debug, thiserror::Error)]
pub enum TestClusterError {
    /// There is no directory for its keys.
    #[error("cannot create a directory")]
    Directory(#[from] std::io::Error),
    /// It cannot be put together, or cannot listen.
    #[error("cannot build the API server")]
    Build(#[from] BuildError),
    /// It did not become ready.
    #[error("cannot start the API server")]
    Serve(#[from] ServeError),
    /// A certificate cannot be issued.
    #[error("cannot issue a certificate")]
    Pki(#[from] PkiError),
    /// A client cannot be created.
    #[error("cannot create a client")]
    Connection(#[from] ConnectionError),
    /// A new certificate cannot be used.
    #[error("cannot use a certificate")]
    Certificate(#[from] TlsError),
    /// Names of controllers are unknown.
    #[error("cannot run the controllers")]
    Controllers(#[from] ManagerError),
}

/// Settings of a cluster.
#[derive(Clone, Debug)]
pub struct TestClusterConfig {
    /// Kinds of containers, such as pods and deployments, besides the generic ones. Default: true.
    pub workloads: bool,
    /// Controllers: names, `*` for all, `-name` to leave one out. Default: all but the one that
    /// fills secrets with tokens.
    pub controllers: Vec<String>,
}

impl Default for TestClusterConfig {
    fn default() -> Self {
        let controllers = ["*", "-serviceaccount-token-controller"].map(str::to_owned).to_vec();
        Self { workloads: true, controllers }
    }
}

/// A running cluster. Dropping it cuts off its connections; [`Self::stop`] ends them in order.
pub struct TestCluster {
    server: RunningControlPlane,
    admin: Connection,
    /// Keys and kubeconfig. Dropped after the server.
    _directory: TempDir,
}

impl TestCluster {
    /// Starts one with the default configuration, and waits until it is ready. Within a runtime of
    /// Tokio.
    ///
    /// # Errors
    /// [`TestClusterError`].
    pub async fn start() -> Result<Self, TestClusterError> {
        Self::with(TestClusterConfig::default()).await
    }

    /// Starts one with a configuration.
    ///
    /// # Errors
    /// [`TestClusterError`].
    pub async fn with(config: TestClusterConfig) -> Result<Self, TestClusterError> {
        let directory = TempDir::with_prefix("ferrokube-testing-")?;
        let mut builder = ControlPlane::builder()
            .bundle(ferrokube_resources::bundle())
            .handlers(ferrokube_cluster::install)
            .storage(StorageConfig::memory())
            .without_audit()
            .with_controllers(true)
            .data_dir(directory.path().join("data"))
            .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        if config.workloads {
            builder = builder.bundle(ferrokube_workloads::bundle());
        }
        let mut server = builder.build()?.start().await?;
        let manager = ControllerManager::builder(connect(&server, &CONTROLLER_MANAGER).await?)
            .counted_as(ferrokube_admission::quota::names)
            .root_ca(server.pki().ca_pem())
            .controllers(config.controllers)
            .build()?;
        let shutdown = server.shutdown();
        server.spawn(async move {
            let (leading, _) = watch::channel(false);
            if let Err(error) = manager.run(shutdown, leading).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the controllers of a test cluster ended");
            }
        });
        let admin = connect(&server, &ADMIN).await?;
        Ok(Self { server, admin, _directory: directory })
    }

    /// A client of the administrator.
    ///
    /// # Errors
    /// [`TestClusterError::Connection`].
    pub fn client(&self) -> Result<kube::Client, TestClusterError> {
        Ok(self.admin.client()?)
    }

    /// A client of a user with groups, whose rights are up to RBAC.
    ///
    /// # Errors
    /// [`TestClusterError`].
    pub async fn client_of(
        &self,
        user: &str,
        groups: &[&str],
    ) -> Result<kube::Client, TestClusterError> {
        let subject = Subject { common_name: user, organizations: groups };
        Ok(connect(&self.server, &subject).await?.client()?)
    }

    /// URL of the API server.
    pub fn url(&self) -> &str {
        self.server.url()
    }

    /// The administrator's kubeconfig, for kubectl and the like.
    pub fn kubeconfig(&self) -> &Path {
        self.server.kubeconfig()
    }

    /// Ends it: requests in flight are finished.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

/// A user's requests stay in the process.
async fn connect(
    server: &RunningControlPlane,
    subject: &Subject<'_>,
) -> Result<Connection, TestClusterError> {
    let (pki, in_process) = (server.pki(), server.in_process());
    let own = in_process.client(&pki.client(subject, LEAF_LIFETIME)?)?;
    let anonymous = in_process.anonymous_client();
    Ok(Connection::in_process(server.url(), pki.ca_pem(), own, anonymous).await?)
}
