//! The controllers beside the API server in one process. They speak HTTPS to it like everybody else, as a user of their own.

use super::server::{Companion, Plan};
use ferrokube_client::{Connection, ConnectionError, Timing};
use ferrokube_controllers::ManagerError;
use ferrokube_serve::Shutdown;
use ferrokube_serve::pki::{CONTROLLER_MANAGER, Pki, PkiError};
use std::time::{Duration, SystemTime};
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
    fn start(&self, _plan: &Plan<'_>, pki: &Pki, url: &str, shutdown: Shutdown, tasks: &mut JoinSet<()>) -> anyhow::Result<()> {
        ferrokube_controllers::check_names(self.chosen)?;
        tasks.spawn(keep_running(self.chosen.to_vec(), pki.clone(), url.to_owned(), shutdown));
        Ok(())
    }
}

async fn keep_running(chosen: Vec<String>, pki: Pki, url: String, shutdown: Shutdown) {
    while !shutdown.is_begun() {
        if let Err(error) = run_once(&chosen, &pki, &url, &shutdown).await {
            tracing::error!(error = &error as &dyn std::error::Error, "the controllers failed and are started again");
            tokio::select! {
                () = shutdown.begun() => {}
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }
}

/// Until the shutdown, or until their certificate should be renewed.
async fn run_once(chosen: &[String], pki: &Pki, url: &str, shutdown: &Shutdown) -> Result<(), RunError> {
    let pair = pki.client(&CONTROLLER_MANAGER)?;
    let config = ferrokube_controllers::Config {
        connection: Connection::from_parts(url, pki.ca_pem(), &pair.chain_pem, &pair.key_pem).await?,
        controllers: chosen.to_vec(),
        // The data directory belongs to one process: nobody else can lead.
        leader_elect: false,
        timing: Timing::default(),
        identity: "all-in-one".to_owned(),
        root_ca: pki.ca_pem().into(),
    };
    let (leading, _) = watch::channel(false);
    let lasts = pair.renew_at.duration_since(SystemTime::now()).unwrap_or(PAUSE);
    match tokio::time::timeout(lasts, ferrokube_controllers::run(config, shutdown.clone(), leading)).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Ok(()),
    }
}
