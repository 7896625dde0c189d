//! A pass over the pods that have no node.

use crate::fit::OccupiedNode;
use crate::report;
use crate::rival::RivalScheduler;
use ferrokube_client::{Outage, ReconcileTrace};
use ferrokube_trace::SpanInfo;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::json;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// `spec.schedulerName` of the pods that are bound here.
const OWN_NAME: &str = "default-scheduler";
/// Pause after a failed request for a pod; doubles with each further one.
const BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// State that one pass leaves to the next.
pub(crate) struct SchedulingPass {
    client: Client,
    node: String,
    rival: RivalScheduler,
    is_idle: bool,
    /// Pods by UID whose binding succeeded, but is not in the watch yet.
    assumed: BTreeSet<String>,
    /// By UID.
    failures: BTreeMap<String, RequestFailures>,
    outage: Outage,
}

struct RequestFailures {
    count: u32,
    not_before: Instant,
}

impl SchedulingPass {
    pub(crate) fn new(client: Client, node: String) -> Self {
        Self {
            client,
            node,
            rival: RivalScheduler::default(),
            is_idle: false,
            assumed: BTreeSet::new(),
            failures: BTreeMap::new(),
            outage: Outage::new("bind a pod"),
        }
    }

    /// Binds the pods that fit. Returns when to retry even without a change; `None`: never.
    pub(crate) async fn run(
        &mut self,
        pods: &[Arc<Pod>],
        nodes: &[Arc<Node>],
        leases: &[Arc<Lease>],
    ) -> Option<Duration> {
        let lease = leases.first().map(Arc::as_ref);
        let left = self.rival.holds(lease, Instant::now());
        if left.is_some() != self.is_idle {
            self.is_idle = left.is_some();
            let message = if self.is_idle {
                "another scheduler holds the lease kube-system/kube-scheduler: it binds the pods"
            } else {
                "no other scheduler holds the lease kube-system/kube-scheduler: binding pods"
            };
            tracing::info!(node = self.node, "{message}");
        }
        if left.is_some() {
            return left;
        }
        self.forget(pods);
        let node = nodes.iter().find(|node| node.metadata.name.as_ref() == Some(&self.node));
        let mut occupied = node.map(|node| OccupiedNode::new(node));
        for pod in pods {
            let is_here = node_of(pod) == self.node || self.assumed.contains(uid(pod));
            if let (true, Some(occupied)) = (is_here, &mut occupied) {
                occupied.take(pod);
            }
        }
        let now = Instant::now();
        let is_due = |pod: &&Arc<Pod>| {
            let failed = self.failures.get(uid(pod));
            let is_bound = self.assumed.contains(uid(pod));
            !is_bound && waits(pod) && failed.is_none_or(|failed| failed.not_before <= now)
        };
        let mut waiting: Vec<&Arc<Pod>> = pods.iter().filter(is_due).collect();
        waiting.sort_by_key(|pod| queue_position(pod));
        for pod in waiting {
            // A pod that does not fit has no other await.
            tokio::task::yield_now().await;
            let trace = ReconcileTrace::of(&pod.metadata);
            let attempt =
                SchedulingAttempt { client: trace.client(&self.client), pod, node: &self.node };
            let info = SpanInfo {
                name: "schedule",
                resource: "pods",
                namespace: attempt.namespace(),
                object: attempt.name(),
            };
            match trace.run(info, attempt.run(occupied.as_ref())).await {
                Ok(is_bound) => {
                    self.outage.works();
                    self.failures.remove(uid(pod));
                    if is_bound {
                        self.assumed.insert(uid(pod).to_owned());
                        occupied.iter_mut().for_each(|occupied| occupied.take(pod));
                    }
                }
                Err(error) => {
                    self.outage.failed(&error);
                    self.pause(pod);
                }
            }
        }
        let now = Instant::now();
        let pauses = self.failures.values().map(|it| it.not_before.saturating_duration_since(now));
        pauses.min()
    }

    /// Forgets pods that are gone, or whose binding the watch has delivered.
    fn forget(&mut self, pods: &[Arc<Pod>]) {
        let open: BTreeSet<&str> =
            pods.iter().filter(|pod| node_of(pod).is_empty()).map(|pod| uid(pod)).collect();
        self.assumed.retain(|uid| open.contains(uid.as_str()));
        let waiting: BTreeSet<&str> =
            pods.iter().filter(|pod| waits(pod)).map(|pod| uid(pod)).collect();
        self.failures.retain(|uid, _| waiting.contains(uid.as_str()));
    }

    fn pause(&mut self, pod: &Pod) {
        let first = RequestFailures { count: 0, not_before: Instant::now() };
        let failed = self.failures.entry(uid(pod).to_owned()).or_insert(first);
        let pause = BACKOFF.saturating_mul(1 << failed.count.min(6)).min(MAX_BACKOFF);
        failed.count = failed.count.saturating_add(1);
        failed.not_before = Instant::now() + pause;
    }
}

/// An attempt to bind a pod, which gets the node or a condition with the reason.
struct SchedulingAttempt<'a> {
    client: Client,
    pod: &'a Pod,
    node: &'a str,
}

impl SchedulingAttempt<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether the pod was bound.
    async fn run(&self, node: Option<&OccupiedNode<'_>>) -> Result<bool, kube::Error> {
        let why = match node.map(|node| node.refusals(self.pod)) {
            None => "no nodes available to schedule pods".to_owned(),
            Some(reasons) if reasons.is_empty() => {
                self.bind().await?;
                return Ok(true);
            }
            Some(reasons) => {
                let each: Vec<String> = reasons.iter().map(|why| format!("1 {why}")).collect();
                format!("0/1 nodes are available: {}.", each.join(", "))
            }
        };
        report::unschedulable(&self.client, self.pod, &why).await?;
        Ok(false)
    }

    async fn bind(&self) -> Result<(), kube::Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace());
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": self.name(), "namespace": self.namespace(), "uid": uid(self.pod)},
            "target": {"kind": "Node", "name": self.node},
        });
        let parameters = kube::api::PostParams::default();
        let bound: Result<Status, _> =
            pods.create_subresource("binding", self.name(), &parameters, &binding).await;
        match bound {
            Ok(_) => {}
            // Deleted, or bound by another scheduler: the watch will show it.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return Ok(()),
            Err(error) => return Err(error),
        }
        tracing::info!(node = self.node, "pod bound");
        report::scheduled(&self.client, self.pod, self.node).await;
        Ok(())
    }
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// Whether it needs a node from this scheduler.
fn waits(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    node_of(pod).is_empty()
        && pod.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Some("Succeeded" | "Failed"))
        && spec.scheduler_name.as_deref().unwrap_or(OWN_NAME) == OWN_NAME
        && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
}

/// Higher priority first, then the older one, then by name.
fn queue_position(pod: &Pod) -> (Reverse<i32>, i64, String, String) {
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
    let created = pod.metadata.creation_timestamp.as_ref();
    let created = created.map_or(0, |time| time.0.as_second());
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let name = (text(&pod.metadata.namespace), text(&pod.metadata.name));
    (Reverse(priority), created, name.0, name.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn pod(name: &str, spec: Value, created: &str) -> Pod {
        let mut all = json!({"containers": []});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let metadata = json!({"name": name, "namespace": "x", "creationTimestamp": created});
        serde_json::from_value(json!({"metadata": metadata, "spec": all})).unwrap()
    }

    #[test]
    fn pods_without_a_node_wait_for_their_scheduler_only() {
        let at = "2026-01-01T00:00:00Z";
        let is_waiting = |spec: Value| waits(&pod("p", spec, at));
        assert!(is_waiting(json!({})));
        assert!(is_waiting(json!({"schedulerName": "default-scheduler"})));
        assert!(!is_waiting(json!({"schedulerName": "other"})));
        assert!(!is_waiting(json!({"nodeName": "n"})));
        assert!(!is_waiting(json!({"schedulingGates": [{"name": "g"}]})));
        let mut ended = pod("p", json!({}), at);
        ended.status = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
        assert!(!waits(&ended));
    }

    #[test]
    fn priority_comes_before_age() {
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let mut pods = [
            pod("young", json!({}), new),
            pod("urgent", json!({"priority": 5}), new),
            pod("b", json!({}), old),
            pod("a", json!({}), old),
        ];
        pods.sort_by_key(queue_position);
        let names: Vec<_> = pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect();
        assert_eq!(names, ["urgent", "a", "b", "young"]);
    }
}
