//! Runs the controllers alongside the API server in one process. They use HTTPS like any other
//! client, as a user of their own.

use super::server::{Companion, ServerSetup};
use ferrokube_apimachinery::name;
use ferrokube_auth::token::SecretToken;
use ferrokube_client::{Connection, ConnectionError};
use ferrokube_controllers::{ControllerManager, ManagerError, Signer, TokenSubject};
use ferrokube_features::Gates;
use ferrokube_pki::{CONTROLLER_MANAGER, LEAF_LIFETIME, Pki, PkiError, RequestSigner};
use ferrokube_serve::Shutdown;
use ferrokube_server::{KeyFiles, RunningControlPlane};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Delay before failed controllers are restarted.
const PAUSE: Duration = Duration::from_secs(1);

/// Controllers of `all-in-one`.
pub(crate) struct Controllers<'a> {
    pub(crate) chosen: &'a [String],
}

/// Why the controllers stopped; they are restarted.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot issue their certificate")]
    Pki(#[from] PkiError),
    #[error("cannot connect them to the API server")]
    Connection(#[from] ConnectionError),
    #[error("they stopped unexpectedly")]
    Manager(#[from] ManagerError),
}

impl Companion for Controllers<'_> {
    fn check(&self) -> anyhow::Result<()> {
        Ok(ferrokube_controllers::check_names(self.chosen)?)
    }

    fn start(&self, setup: &ServerSetup<'_>, server: &mut RunningControlPlane) {
        let run = ControllersRun {
            chosen: self.chosen.to_vec(),
            pki: server.pki().clone(),
            url: server.url().to_owned(),
            server_name: server.loopback_name(),
            gates: setup.inputs.gates.separate(),
            signer: signer(setup.key_files(server.directory())),
            request_signer: setup.has_nodes().then(|| server.pki().request_signer()),
        };
        server.spawn(run.run_with_restart(server.shutdown()));
    }
}

/// Signs tokens of secrets with the current key.
pub(crate) fn signer(keys: KeyFiles) -> Signer {
    let sign = move |subject: &TokenSubject<'_>| match keys.keys() {
        Ok(keys) => {
            let token = SecretToken {
                namespace: subject.namespace,
                account: subject.account,
                account_uid: subject.account_uid,
                secret: subject.secret,
            };
            Some(token.sign(&keys))
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(error, "cannot sign the token of a secret");
            None
        }
    };
    Signer { sign: Arc::new(sign), is_account: |name| name::dns1123_subdomain(name).is_empty() }
}

/// Inputs of a run.
struct ControllersRun {
    chosen: Vec<String>,
    pki: Pki,
    url: String,
    server_name: Option<&'static str>,
    gates: Gates,
    signer: Signer,
    /// Signs certificates of kubelets.
    request_signer: Option<RequestSigner>,
}

impl ControllersRun {
    async fn run_with_restart(self, shutdown: Shutdown) {
        while !shutdown.is_begun() {
            if let Err(error) = self.run_once(&shutdown).await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the controllers failed, restarting"
                );
                tokio::select! {
                    () = shutdown.begun() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }

    /// Runs until shutdown, or until their certificate is due for renewal.
    async fn run_once(&self, shutdown: &Shutdown) -> Result<(), RunError> {
        let pair = self.pki.client(&CONTROLLER_MANAGER, LEAF_LIFETIME)?;
        let (ca, chain, key) = (self.pki.ca_pem(), &pair.chain_pem, &pair.key_pem);
        let connection =
            Connection::from_named_parts(&self.url, self.server_name, ca, chain, key).await?;
        // The data directory is locked by this process: there is no other manager to elect.
        let manager = ControllerManager::builder(connection)
            .controllers(&self.chosen)
            .root_ca(self.pki.ca_pem())
            .counted_as(ferrokube_admission::quota::names)
            .gates(self.gates.clone())
            .signer(Some(self.signer.clone()))
            .request_signer(self.request_signer.clone())
            .build()?;
        let (leading, _) = watch::channel(false);
        tokio::select! {
            ended = manager.run(shutdown.clone(), leading) => Ok(ended?),
            () = pair.renewal.due() => Ok(()),
        }
    }
}
