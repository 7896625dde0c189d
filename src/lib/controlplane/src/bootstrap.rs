//! Steps between listening and being ready; the first one makes the system namespaces.
//!
//! Steps are idempotent: one that cannot be done without the storage, or for lack of space, is
//! retried, and `/readyz/poststarthook/NAME` says why. Any other failure ends the process.

use crate::health::Health;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{Local, Registry};
use futures::future::try_join_all;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Wait before a step runs again, doubled each time,
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// up to this.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Result of a [`BootstrapStep`].
pub type BootstrapFuture = Pin<Box<dyn Future<Output = Result<(), StepError>> + Send>>;

/// Runs once the system namespaces exist, and again after [`StepError::Unavailable`]; `/readyz`
/// waits for it.
pub type BootstrapStep = Box<dyn FnMut(Registry) -> BootstrapFuture + Send>;

/// With their names.
pub(crate) type NamedSteps = Vec<(String, BootstrapStep)>;

/// Why a [`BootstrapStep`] failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The storage is unavailable or full, or the outcome of a write unknown: the step runs again.
    #[error("{0}")]
    Unavailable(String),
    /// The process ends.
    #[error("{0}")]
    Failed(String),
}

impl StepError {
    /// An error caused by a failure of the registry.
    pub fn new(message: String, failure: &Failure) -> Self {
        match failure.reason {
            Some(
                Reason::ServiceUnavailable
                | Reason::Timeout
                | Reason::TooManyRequests
                | Reason::InsufficientStorage,
            ) => Self::Unavailable(message),
            _ => Self::Failed(message),
        }
    }
}

/// Runs a step until it succeeds. `position`: among all steps.
///
/// # Errors
/// Why it failed for good.
pub(crate) async fn run(
    name: &str,
    step: &mut BootstrapStep,
    position: usize,
    registry: &Registry,
    health: &Health,
) -> Result<(), String> {
    let mut pause = FIRST_PAUSE;
    loop {
        match step(registry.clone()).await {
            Ok(()) => {
                health.step_done(position);
                return Ok(());
            }
            Err(StepError::Failed(why)) => return Err(why),
            Err(StepError::Unavailable(why)) => {
                if pause == FIRST_PAUSE {
                    tracing::warn!(
                        step = name,
                        why,
                        "storage unavailable, retrying bootstrap step"
                    );
                }
                health.step_waits(position, why);
            }
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

/// Created at every start if missing; `default` cannot be deleted.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates the missing system namespaces, if namespaces are served.
///
/// # Errors
/// The registry's failure.
pub(crate) async fn namespaces(registry: &Registry) -> Result<(), StepError> {
    let Some(client) = Local::new(registry, "", "v1", "namespaces") else { return Ok(()) };
    // Together, so that they share syncs.
    try_join_all(NAMESPACES.map(|name| ensure_namespace(&client, name))).await.map(drop)
}

async fn ensure_namespace(client: &Local, name: &str) -> Result<(), StepError> {
    let found = client.get("", name).await.map_err(|failure| {
        StepError::new(format!("cannot read namespace {name}: {failure}"), &failure)
    })?;
    if found.is_some() {
        return Ok(());
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let namespace = Document::from_value(namespace).expect("an object literal");
    match client.add("", namespace).await {
        Ok(()) => tracing::info!(k8s.namespace = name, "created namespace"),
        Err(failure) if failure.reason == Some(Reason::AlreadyExists) => {}
        Err(failure) => {
            let message = format!("cannot make namespace {name}: {failure}");
            return Err(StepError::new(message, &failure));
        }
    }
    Ok(())
}
