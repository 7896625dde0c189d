//! Lookup and list of the node's pods for requests.

use super::ServedNode;
use super::failure::ServerFailure;
use crate::observe::observe;
use crate::pod::{MIRROR, NodePod};
use ferrokube_cri::{ContainerPhase, ContainerReport};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::api::ObjectMeta;
use serde_json::json;

impl ServedNode {
    /// All pods: those of the API with their current local status, and static ones.
    fn all(&self) -> Vec<Pod> {
        let is_mirror = |pod: &Pod| {
            pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR))
        };
        let listed = self.pods.all().unwrap_or_default();
        let bound = listed.iter().filter(|pod| !is_mirror(pod)).map(|pod| Pod::clone(pod));
        let files = self.files.borrow().clone();
        let mut pods: Vec<Pod> = bound.chain(files.into_iter().map(as_object)).collect();
        for pod in &mut pods {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            if let Some(status) = self.node.statuses.of(uid) {
                pod.status = Some(status);
            }
        }
        pods
    }

    /// A `PodList`.
    pub(super) fn list(&self) -> String {
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.all()})
            .to_string()
    }

    /// A pod by name, and by UID if one is given.
    pub(super) fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Pod> {
        self.all().into_iter().find(|pod| {
            let meta = &pod.metadata;
            meta.namespace.as_deref() == Some(namespace)
                && meta.name.as_deref() == Some(name)
                && uid.is_none_or(|uid| meta.uid.as_deref() == Some(uid))
        })
    }

    /// A container that runs.
    pub(super) async fn running(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<ContainerReport, ServerFailure> {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let seen = observe(&self.node, uid).await;
        let seen = seen.map_err(|error| ServerFailure::Runtime(error.to_string()))?;
        let latest = seen.latest(container);
        let running = latest.filter(|report| report.state() == ContainerPhase::Running);
        running
            .cloned()
            .ok_or_else(|| ServerFailure::Runtime(format!("container not found ({container:?})")))
    }
}

fn as_object(pod: NodePod) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(pod.name),
            namespace: Some(pod.namespace),
            uid: Some(pod.uid),
            labels: Some(pod.labels),
            annotations: Some(pod.annotations),
            ..ObjectMeta::default()
        },
        spec: Some(pod.spec),
        status: None,
    }
}

/// Statuses of all containers.
pub(super) fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten()
}
