//! Checks whether aggregated servers answer, and writes the result into their APIServices.

use crate::backend::FetchError;
use crate::discovery::{self, Collected};
use crate::service::{Available, RemoteService};
use crate::{Aggregator, Backend, status};
use bytes::Bytes;
use ferrokube_registry::Local;
use ferrokube_webhook::ServiceError;
use http::StatusCode;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// Interval of checks of a server that answers.
const EVERY: Duration = Duration::from_secs(30);
/// First and last delay after a failed check.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), EVERY);
/// Pause before the check after a failed request.
const SUSPECTED: Duration = Duration::from_secs(1);
/// Max bytes of the response to a check.
const ANSWER_BYTES: usize = 4 << 20;

/// A running check and the backend that it is for.
type RunningCheck = (Arc<Backend>, AbortHandle);

/// Runs one check loop per aggregated group version; never returns.
pub(crate) async fn run(aggregator: Arc<Aggregator>, client: Local) {
    let mut known = aggregator.known.subscribe();
    let mut checks: HashMap<(String, String), RunningCheck> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let backends = aggregator.backends.load_full();
        let current: HashMap<(String, String), &Arc<Backend>> = backends
            .values()
            .flatten()
            .map(|(_, backend)| ((backend.group.clone(), backend.version.clone()), backend))
            .collect();
        checks.retain(|name, (backend, task)| {
            let stays = current.get(name).is_some_and(|now| Arc::ptr_eq(now, backend))
                && !task.is_finished();
            if !stays {
                task.abort();
            }
            stays
        });
        for (name, backend) in current {
            checks.entry(name).or_insert_with(|| {
                let aggregator = Arc::clone(&aggregator);
                let task =
                    tasks.spawn(check_forever(aggregator, Arc::clone(backend), client.clone()));
                (Arc::clone(backend), task)
            });
        }
        tokio::select! {
            changed = known.changed() => if changed.is_err() { return },
            // Aborted, or panicked: the next pass starts it again.
            Some(_) = tasks.join_next() => {}
        }
    }
}

async fn check_forever(aggregator: Arc<Aggregator>, backend: Arc<Backend>, client: Local) {
    let name = format!("{}.{}", backend.version, backend.group);
    let mut delay = BACKOFF.0;
    loop {
        let checked = check(&backend).await;
        let last = aggregator.collected(&name);
        let collected = match &checked {
            Ok(listed) => discovery::collect(&backend, &last, listed).await,
            Err(_) => Collected { is_current: false, ..last },
        };
        aggregator.put_collected(&name, collected);
        let condition = match checked {
            Ok(_) => Available::new("True", "Passed", "all checks passed"),
            Err(condition) => condition,
        };
        let written = status::write(&client, &name, &condition).await;
        match &written {
            Ok(true) => aggregator.count_outage(&name, &condition.reason),
            Ok(false) => {}
            Err(failure) => {
                tracing::debug!(name, error = %failure, "cannot write the status of an API service yet");
            }
        }
        if condition.is_true() && written.is_ok() {
            delay = BACKOFF.0;
            let _ = tokio::time::timeout(EVERY, backend.suspected.notified()).await;
            tokio::time::sleep(SUSPECTED).await;
        } else {
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(BACKOFF.1);
        }
    }
}

/// The group version's list of resources, or why it is unavailable.
async fn check(backend: &Backend) -> Result<Bytes, Available> {
    let RemoteService { namespace, name, port, .. } = backend.service();
    let path = if backend.group.is_empty() {
        format!("/api/{}", backend.version)
    } else {
        format!("/apis/{}/{}", backend.group, backend.version)
    };
    let url = format!("https://{name}.{namespace}.svc:{port}{path}");
    let failed = |message: String| Available::new("False", "FailedDiscoveryCheck", message);
    match backend.fetch(&path, "application/json", None, ANSWER_BYTES).await {
        Ok(fetched) if fetched.status == StatusCode::OK => Ok(fetched.body),
        Ok(fetched) => Err(failed(format!(
            "failing or missing response from {url}: bad status from {url}: {}",
            fetched.status.as_u16()
        ))),
        Err(FetchError::Service(why)) => Err(without_service(backend, &why)),
        Err(why) => Err(failed(format!("failing or missing response from {url}: {why}"))),
    }
}

/// The conditions for services that have no address.
fn without_service(backend: &Backend, why: &ServiceError) -> Available {
    let RemoteService { namespace, name, port, .. } = backend.service();
    let service = format!("service/{name} in {namespace:?}");
    let (reason, message) = match why {
        ServiceError::NotFound(_) => ("ServiceNotFound", format!("{service} is not present")),
        ServiceError::NoPort { .. } => {
            ("ServicePortError", format!("{service} is not listening on port {port}"))
        }
        ServiceError::NoEndpoints(_) => {
            ("EndpointsNotFound", format!("cannot find endpoints for {service}"))
        }
        ServiceError::NotReady { port_name, .. } => (
            "MissingEndpoints",
            format!("endpoints for {service} have no addresses with port name {port_name:?}"),
        ),
        ServiceError::Unroutable(why) => {
            ("FailedDiscoveryCheck", format!("failing or missing response: {why}"))
        }
    };
    Available::new("False", reason, message)
}
