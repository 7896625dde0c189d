//! The controllers beside the API server in one process. They speak HTTPS to it like everybody else, as a user of their own.

use super::server::{Companion, KeyFiles, ServerSetup};
use ferrokube_apimachinery::name;
use ferrokube_auth::token::SecretToken;
use ferrokube_client::{Connection, ConnectionError, LeaseTiming};
use ferrokube_controllers::{ManagerError, Signer, TokenSubject};
use ferrokube_pki::{CONTROLLER_MANAGER, LEAF_LIFETIME, Pki, PkiError};
use ferrokube_serve::Shutdown;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Until the controllers are started again after they failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Which controllers run in `all-in-one`.
pub(crate) struct Controllers<'a> {
    pub(crate) chosen: &'a [String],
}

/// Why a run of the controllers ended early; they are started again.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot make their certificate")]
    Pki(#[from] PkiError),
    #[error("cannot connect them")]
    Connection(#[from] ConnectionError),
    #[error("they stopped")]
    Manager(#[from] ManagerError),
}

impl Companion for Controllers<'_> {
    fn check(&self) -> anyhow::Result<()> {
        Ok(ferrokube_controllers::check_names(self.chosen)?)
    }

    fn start(&self, setup: &ServerSetup<'_>, pki: &Pki, url: &str, shutdown: Shutdown, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        let run = ControllersRun { chosen: self.chosen.to_vec(), pki: pki.clone(), url: url.to_owned(), signer: signer(KeyFiles::new(setup)) };
        tasks.spawn(run.run_with_restart(shutdown));
        Ok(())
    }
}

/// Signs the tokens of secrets with the key as it is then.
pub(crate) fn signer(keys: KeyFiles) -> Signer {
    let sign = move |subject: &TokenSubject<'_>| match keys.keys() {
        Ok(keys) => {
            let token = SecretToken { namespace: subject.namespace, account: subject.account, account_uid: subject.account_uid, secret: subject.secret };
            Some(token.sign(&keys))
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the token of a secret cannot be signed");
            None
        }
    };
    Signer { sign: Arc::new(sign), is_account: |name| name::dns1123_subdomain(name).is_empty() }
}

/// What a run of the controllers needs.
struct ControllersRun {
    chosen: Vec<String>,
    pki: Pki,
    url: String,
    signer: Signer,
}

impl ControllersRun {
    async fn run_with_restart(self, shutdown: Shutdown) {
        while !shutdown.is_begun() {
            if let Err(error) = self.run_once(&shutdown).await {
                tracing::error!(error = &error as &dyn std::error::Error, "the controllers failed and are started again");
                tokio::select! {
                    () = shutdown.begun() => {}
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }

    /// Until the shutdown, or until their certificate should be renewed.
    async fn run_once(&self, shutdown: &Shutdown) -> Result<(), RunError> {
        let pair = self.pki.client(&CONTROLLER_MANAGER, LEAF_LIFETIME)?;
        let config = ferrokube_controllers::ManagerConfig {
            connection: Connection::from_parts(&self.url, self.pki.ca_pem(), &pair.chain_pem, &pair.key_pem).await?,
            controllers: self.chosen.clone(),
            // The data directory belongs to one process: nobody else can lead.
            leader_elect: false,
            timing: LeaseTiming::default(),
            identity: "all-in-one".to_owned(),
            root_ca: self.pki.ca_pem().into(),
            counted_as: ferrokube_admission::quota::names,
            signer: Some(self.signer.clone()),
        };
        let (leading, _) = watch::channel(false);
        tokio::select! {
            ended = ferrokube_controllers::run(config, shutdown.clone(), leading) => Ok(ended?),
            () = pair.renewal.due() => Ok(()),
        }
    }
}
