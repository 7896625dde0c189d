//! Lookup and list of the node's pods for requests.
//!
//! Pods are as large as their authors make them: a request copies one at a time.

use super::ServedNode;
use super::failure::ServerFailure;
use crate::observe::observe;
use crate::pod::{MIRROR, NodePod};
use ferrokube_cri::{ContainerPhase, ContainerReport};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::api::ObjectMeta;
use std::sync::Arc;

impl ServedNode {
    /// Pods of the API, without the mirrors of static ones.
    fn bound(&self) -> impl Iterator<Item = Arc<Pod>> + use<> {
        let listed = self.pods.all().unwrap_or_default();
        listed.into_iter().filter(|pod| {
            pod.metadata.annotations.as_ref().is_none_or(|all| !all.contains_key(MIRROR))
        })
    }

    /// A pod with its current local status.
    fn with_status(&self, mut pod: Pod) -> Pod {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(status) = self.node.statuses.of(uid) {
            pod.status = Some(status);
        }
        pod
    }

    /// A `PodList`.
    pub(super) fn list(&self) -> String {
        let files = self.files.borrow().clone();
        let bound = self.bound().map(|pod| Pod::clone(&pod));
        let mut list =
            String::from(r#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#);
        for (index, pod) in bound.chain(files.into_iter().map(as_object)).enumerate() {
            if index > 0 {
                list.push(',');
            }
            let pod = serde_json::to_string(&self.with_status(pod));
            list.push_str(&pod.expect("the keys of its maps are strings"));
        }
        list.push_str("]}");
        list
    }

    /// A pod by name, and by UID if one is given.
    pub(super) fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<Pod> {
        let is_it = |meta: &ObjectMeta| {
            meta.namespace.as_deref() == Some(namespace)
                && meta.name.as_deref() == Some(name)
                && uid.is_none_or(|uid| meta.uid.as_deref() == Some(uid))
        };
        let of_file = |pod: &&NodePod| {
            (pod.namespace.as_str(), pod.name.as_str()) == (namespace, name)
                && uid.is_none_or(|uid| pod.uid == uid)
        };
        let pod = match self.bound().find(|pod| is_it(&pod.metadata)) {
            Some(pod) => Pod::clone(&pod),
            None => as_object(self.files.borrow().iter().find(of_file)?.clone()),
        };
        Some(self.with_status(pod))
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
