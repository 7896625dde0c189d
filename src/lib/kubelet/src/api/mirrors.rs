//! Mirror pods, which represent static pods in the API.

use super::ApiPods;
use crate::board::StatusBoard;
use crate::pod::{MIRROR, NodePod};
use ferrokube_client::Outage;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Resync interval in the absence of events.
const RESYNC: Duration = Duration::from_secs(20);
/// Pause after a failure, and minimum interval between reconciliations.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps a mirror pod for each static pod, until dropped.
pub(crate) async fn run(
    client: &Client,
    node: &str,
    mut node_uid: watch::Receiver<Option<String>>,
    mut wanted: watch::Receiver<Vec<NodePod>>,
    listed: &ApiPods,
    board: &StatusBoard,
) {
    if node_uid.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: node_uid.borrow().clone().unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let mut outage = Outage::new("keep the mirror pods of static pods");
    let mut changes = listed.changes();
    loop {
        changes.mark_unchanged();
        let pods = wanted.borrow_and_update().clone();
        if let Some(existing) = listed.all() {
            match sync(client, node, &owner, &pods, &existing, board).await {
                Ok(()) => _ = outage.works(),
                Err(error) => _ = outage.failed(&error),
            }
        }
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            _ = wanted.changed() => {}
            _ = changes.changed() => {}
            () = tokio::time::sleep(RESYNC) => {}
        }
    }
}

/// Creates and deletes mirrors. Returns the first one that the API server refused, after trying the
/// others.
async fn sync(
    client: &Client,
    node: &str,
    owner: &OwnerReference,
    wanted: &[NodePod],
    existing: &[Arc<Pod>],
    board: &StatusBoard,
) -> Result<(), kube::Error> {
    let mirrored = |pod: &Pod| pod.metadata.annotations.as_ref()?.get(MIRROR).cloned();
    // One that is refused, as in a namespace that does not exist, keeps no other from its mirror.
    let mut first = Ok(());
    for pod in existing {
        let Some(uid) = mirrored(pod) else { continue };
        let is_wanted = wanted.iter().any(|wanted| wanted.uid == uid);
        let (meta, is_deleted) = (&pod.metadata, pod.metadata.deletion_timestamp.is_some());
        if is_wanted && !is_deleted {
            continue;
        }
        let pods: Api<Pod> =
            Api::namespaced(client.clone(), meta.namespace.as_deref().unwrap_or("default"));
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: meta.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        match pods.delete(meta.name.as_deref().unwrap_or_default(), &parameters).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error @ kube::Error::Api(_)) => first = first.and(Err(error)),
            other => _ = other?,
        }
    }
    for pod in wanted {
        let is_shown = existing.iter().any(|it| mirrored(it).as_ref() == Some(&pod.uid));
        if is_shown {
            continue;
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
        match pods.create(&PostParams::default(), &mirror(pod, node, owner)).await {
            // Another pod has this name; its deletion wakes the watch.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error @ kube::Error::Api(_)) => first = first.and(Err(error)),
            // Until now its status had no object to be written to.
            other => other.map(|_| board.again(&pod.uid))?,
        }
    }
    first
}

fn mirror(pod: &NodePod, node: &str, owner: &OwnerReference) -> Pod {
    let mut annotations = pod.annotations.clone();
    annotations.insert(MIRROR.to_owned(), pod.uid.clone());
    let mut spec = pod.spec.clone();
    spec.node_name = Some(node.to_owned());
    Pod {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            namespace: Some(pod.namespace.clone()),
            labels: Some(pod.labels.clone()),
            annotations: Some(annotations),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    }
}
