//! Writes pod statuses, and removes terminated pods that are marked as deleted.

use crate::board::{PostedStatus, StatusBoard};
use crate::status::merged;
use ferrokube_client::{Outage, traced};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use parking_lot::Mutex;
use std::time::Duration;

/// Max concurrent writes.
const WRITERS: usize = 10;
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until dropped.
pub(crate) async fn run(client: &Client, board: &StatusBoard) {
    let outage = Mutex::new(Outage::new("write the status of a pod"));
    loop {
        let new = board.take().await;
        let has_failed = Mutex::new(false);
        let write = async |posted: PostedStatus| match write(client, &posted).await {
            Ok(()) => _ = outage.lock().works(),
            Err(error) => {
                // After a conflict, retry with the newer object.
                if !matches!(&error, kube::Error::Api(status) if status.code == 409) {
                    outage.lock().failed(&error);
                }
                board.again(&posted.pod.uid);
                *has_failed.lock() = true;
            }
        };
        futures::stream::iter(new).for_each_concurrent(WRITERS, write).await;
        if *has_failed.lock() {
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn write(client: &Client, posted: &PostedStatus) -> Result<(), kube::Error> {
    let client = traced(client, &posted.context);
    let pods: Api<Pod> = Api::namespaced(client, &posted.pod.namespace);
    let name = &posted.pod.name;
    let Some(mut pod) = pods.get_opt(name).await?.filter(|pod| posted.is_of(pod)) else {
        return Ok(());
    };
    let old = pod.status.take().unwrap_or_default();
    let new = posted.status.as_ref().map(|status| merged(&old, status.clone()));
    let is_over = |phase: &Option<String>| matches!(phase.as_deref(), Some("Failed" | "Succeeded"));
    // A terminated pod is never restarted.
    let new = new.filter(|new| !is_over(&old.phase) || is_over(&new.phase));
    if let Some(new) = new.filter(|new| *new != old) {
        pod.status = Some(new);
        pods.replace_status(name, &PostParams::default(), &pod).await?;
    }
    if posted.is_ended && !posted.is_static {
        let preconditions =
            Preconditions { uid: Some(posted.pod.uid.clone()), resource_version: None };
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        match pods.delete(name, &parameters).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404) => {}
            other => _ = other?,
        }
    }
    Ok(())
}
