//! A connection to an API server: one configuration, from which clients with different identities are made.

use crate::identity::ServiceAccountIdentity;
use crate::patience::PatienceLayer;
use base64::Engine;
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use std::path::Path;
use std::time::Duration;

/// Who writes, in managedFields: the name that upstream's controllers have there.
const AGENT: &str = concat!("kube-controller-manager/ferrokube-", env!("CARGO_PKG_VERSION"));

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
        let failed = |error| unusable(&path.display().to_string(), &error);
        let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
        Self::from(kubeconfig).await.map_err(failed)
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
        let failed = |error| unusable("in memory", &error);
        Self::from(Kubeconfig::from_yaml(&text).map_err(failed)?).await.map_err(failed)
    }

    async fn from(kubeconfig: Kubeconfig) -> Result<Self, KubeconfigError> {
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.connect_timeout = Some(Duration::from_secs(10));
        // Bodies go over loopback or a cluster network: compressing them costs more than it saves.
        config.disable_compression = true;
        config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
        Ok(Self { config })
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
        let builder = ClientBuilder::try_from(self.config.clone()).map_err(|error| ConnectionError::Client(error.to_string()))?;
        Ok(builder.with_layer(&PatienceLayer).build())
    }

    /// A client that acts as a service account, with tokens that `identity` keeps fresh.
    ///
    /// # Errors
    /// [`ConnectionError::Client`].
    pub fn client_as(&self, identity: &ServiceAccountIdentity) -> Result<Client, ConnectionError> {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo::default();
        let builder = ClientBuilder::try_from(config).map_err(|error| ConnectionError::Client(error.to_string()))?;
        Ok(builder.with_layer(&PatienceLayer).with_layer(&identity.layer()).build())
    }
}

fn unusable(path: &str, error: &KubeconfigError) -> ConnectionError {
    let why = match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        other => other.to_string(),
    };
    ConnectionError::Kubeconfig { path: path.to_owned(), why }
}
