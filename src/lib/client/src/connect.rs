//! A connection to an API server: one configuration, from which clients with different identities are made.

use crate::identity::ServiceAccountIdentity;
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::path::Path;
use std::time::Duration;

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The kubeconfig cannot be read or does not fit together.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// Why.
        source: kube::config::KubeconfigError,
    },
    /// TLS or another part of the client cannot be set up.
    #[error("cannot make a client")]
    Client(#[source] kube::Error),
}

/// Where the API server is, how it is verified, and who we are towards it.
#[derive(Clone, Debug)]
pub struct Connection {
    config: Config,
}

impl Connection {
    /// From a kubeconfig's current context.
    ///
    /// # Errors
    /// [`ConnectionError::Kubeconfig`].
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, ConnectionError> {
        let failed = |source| ConnectionError::Kubeconfig { path: path.display().to_string(), source };
        let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)?;
        config.connect_timeout = Some(Duration::from_secs(10));
        // Bodies go over loopback or a cluster network: compressing them costs more than it saves.
        config.disable_compression = true;
        Ok(Self { config })
    }

    /// A client with the connection's own identity.
    ///
    /// # Errors
    /// [`ConnectionError::Client`].
    pub fn client(&self) -> Result<Client, ConnectionError> {
        Client::try_from(self.config.clone()).map_err(ConnectionError::Client)
    }

    /// A client that acts as a service account, with tokens that `identity` keeps fresh.
    ///
    /// # Errors
    /// [`ConnectionError::Client`].
    pub fn client_as(&self, identity: &ServiceAccountIdentity) -> Result<Client, ConnectionError> {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo::default();
        let builder = ClientBuilder::try_from(config).map_err(ConnectionError::Client)?;
        Ok(builder.with_layer(&identity.layer()).build())
    }
}
