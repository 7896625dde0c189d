//! Runs the controllers alongside the API server in one process. Their requests are those of any
//! other client, as a user of their own, but stay in the process.

use super::server::{Companion, ServerSetup};
use clap::Args;
use ferrokube_apimachinery::name;
use ferrokube_auth::token::SecretToken;
use ferrokube_client::{Connection, ConnectionError};
use ferrokube_controllers::{ControllerManager, ManagerError, Signer, TokenSubject};
use ferrokube_features::Gates;
use ferrokube_pki::{CONTROLLER_MANAGER, LEAF_LIFETIME, Pair, Pki, PkiError, RequestSigner};
use ferrokube_serve::{InProcess, Shutdown, TlsError};
use ferrokube_server::{KeyFiles, RunningControlPlane};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Delay before failed controllers are restarted.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct ControllersFlag {
    /// Controllers to run: names, * for all, -name to exclude one, -* to exclude all
    #[arg(
        long = "controllers",
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    pub(crate) chosen: Vec<String>,
}

/// Controllers of `all-in-one`.
pub(crate) struct Controllers<'a> {
    pub(crate) chosen: &'a [String],
}

/// The API server for clients in its process.
pub(crate) struct ProcessServer {
    pub(crate) pki: Pki,
    in_process: InProcess,
    url: String,
}

/// Why a client in the process cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessServerError {
    #[error("cannot use the certificate")]
    Certificate(#[from] TlsError),
    #[error(transparent)]
    Client(#[from] ConnectionError),
}

impl ProcessServer {
    pub(crate) fn new(server: &RunningControlPlane) -> Self {
        let (pki, url) = (server.pki().clone(), server.url().to_owned());
        Self { pki, in_process: server.in_process(), url }
    }

    /// A connection with the identity of a certificate.
    pub(crate) async fn connect(&self, identity: &Pair) -> Result<Connection, ProcessServerError> {
        let own = self.in_process.client(identity)?;
        let anonymous = self.in_process.anonymous_client();
        Ok(Connection::in_process(&self.url, self.pki.ca_pem(), own, anonymous).await?)
    }
}

/// Why the controllers stopped; they are restarted.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot issue their certificate")]
    Pki(#[from] PkiError),
    #[error("cannot connect them to the API server")]
    Connect(#[from] ProcessServerError),
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
            server: ProcessServer::new(server),
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
    server: ProcessServer,
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
        let pair = self.server.pki.client(&CONTROLLER_MANAGER, LEAF_LIFETIME)?;
        let connection = self.server.connect(&pair).await?;
        // The data directory is locked by this process: there is no other manager to elect.
        let manager = ControllerManager::builder(connection)
            .controllers(&self.chosen)
            .root_ca(self.server.pki.ca_pem())
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
