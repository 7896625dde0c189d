//! The desired pods: those from files, and those bound to the node in the API.

use crate::assemble::grace;
use crate::ending::EndingPod;
use crate::ends::PodEnd;
use crate::pod::{MIRROR, NodePod};
use ferrokube_images::PodIdentity;
use ferrokube_trace::TraceContext;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::time::Instant;

/// State of the sources: when files were read last, and the number of changes in the API.
pub(crate) type SourceState = (Option<Instant>, Option<u64>);

/// The pods of an unchanged state of the sources, so that they are not converted every second.
#[derive(Default)]
pub(crate) struct LastDesired(Option<(SourceState, DesiredPods)>);

impl LastDesired {
    /// The pods; `read` converts them if the state is new.
    pub(crate) fn of(
        &mut self,
        state: SourceState,
        read: impl FnOnce() -> DesiredPods,
    ) -> &DesiredPods {
        if self.0.as_ref().is_some_and(|(last, _)| *last != state) {
            self.0 = None;
        }
        &self.0.get_or_insert_with(|| (state, read())).1
    }
}

/// The pods reported by the sources.
#[derive(Debug, Default)]
pub(crate) struct DesiredPods {
    /// Pods to run.
    pub(crate) wanted: Vec<Arc<NodePod>>,
    /// Pods to terminate, and then to remove from the API.
    pub(crate) ending: Vec<EndingPod>,
    /// Pods that cannot be run, and why.
    pub(crate) rejected: Vec<(PodIdentity, TraceContext, String)>,
    /// UIDs of pods of the API that have terminated.
    pub(crate) finished: BTreeSet<String>,
    /// Whether all sources were read. Only then are absent pods terminated.
    pub(crate) is_complete: bool,
    known: BTreeSet<String>,
}

impl DesiredPods {
    /// Merges the pods from files with those from the API (`None` without an API server,
    /// `Some(None)` before its first list).
    pub(crate) fn of(files: Option<&[NodePod]>, bound: Option<Option<Vec<Arc<Pod>>>>) -> Self {
        let is_complete = files.is_some() && !matches!(bound, Some(None));
        let mut desired = Self { is_complete, ..Self::default() };
        desired.wanted.extend(files.unwrap_or_default().iter().cloned().map(Arc::new));
        desired.known.extend(desired.wanted.iter().map(|pod| pod.uid.clone()));
        for pod in bound.flatten().unwrap_or_default() {
            desired.add(&pod);
        }
        desired
    }

    fn add(&mut self, pod: &Pod) {
        let meta = &pod.metadata;
        let is_mirror = meta.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
        if is_mirror {
            return;
        }
        let uid = meta.uid.clone().unwrap_or_default();
        self.known.insert(uid.clone());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let node_pod = NodePod::from_api(pod);
        if meta.deletion_timestamp.is_some() {
            let own = node_pod.as_ref().map_or(30, grace);
            self.ending.push(EndingPod {
                grace: meta.deletion_grace_period_seconds.unwrap_or(own).max(0),
                pod: Some(node_pod.unwrap_or_else(|_| bare(pod))),
                uid,
                end: PodEnd::Deleted,
            });
            return;
        }
        // A terminated pod is not run again, even if the runtime still has parts of it.
        if matches!(phase, Some("Succeeded" | "Failed")) {
            self.finished.insert(uid);
            return;
        }
        match node_pod {
            Ok(pod) => self.wanted.push(Arc::new(pod)),
            Err(error) => {
                let pod = bare(pod);
                self.rejected.push((pod.identity(), pod.context(), error.to_string()));
            }
        }
    }

    /// Whether a source lists this pod, in any state.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        self.known.contains(uid)
    }
}

/// The identity of an invalid pod, without its spec.
fn bare(pod: &Pod) -> NodePod {
    let meta = pod.metadata.clone();
    NodePod {
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        labels: meta.labels.unwrap_or_default(),
        annotations: meta.annotations.unwrap_or_default(),
        spec: Default::default(),
        ephemeral: Vec::new(),
        is_static: false,
        started_at: None,
        gates: Vec::new(),
        reported: Default::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, extra: serde_json::Value, phase: &str) -> Arc<Pod> {
        let mut meta = json!({"name": uid, "namespace": "default", "uid": uid});
        for (key, value) in extra.as_object().unwrap() {
            meta[key] = value.clone();
        }
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        let pod = json!({"metadata": meta, "spec": spec, "status": {"phase": phase}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn pods_run_end_or_stay_as_the_api_says() {
        let deleted = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 7
        });
        let mirror = json!({"annotations": {MIRROR: "x"}});
        let bound = vec![
            pod("a", json!({}), "Pending"),
            pod("b", deleted, "Running"),
            pod("c", json!({}), "Succeeded"),
            pod("d", mirror, "Pending"),
        ];
        let desired = DesiredPods::of(Some(&[]), Some(Some(bound)));
        let wanted: Vec<_> = desired.wanted.iter().map(|pod| &*pod.uid).collect();
        assert_eq!(wanted, ["a"]);
        let ending: Vec<_> = desired.ending.iter().map(|pod| (&*pod.uid, pod.grace)).collect();
        assert_eq!(ending, [("b", 7)]);
        assert!(desired.is_complete);
        assert!(desired.knows("c"), "kept until it is deleted");
        assert_eq!(desired.finished, BTreeSet::from(["c".to_owned()]));
        assert!(!desired.knows("d"), "the static pod is known by itself");
    }

    #[test]
    fn pods_are_converted_once_for_each_state_of_the_sources() {
        let (mut last, mut conversions) = (LastDesired::default(), 0);
        let start = Instant::now();
        let read_again = start + std::time::Duration::from_secs(20);
        let states = [(Some(start), None), (Some(start), Some(1)), (Some(read_again), Some(1))];
        for (index, state) in states.into_iter().enumerate() {
            for _ in 0..3 {
                let bound = vec![pod(&format!("u{index}"), json!({}), "Pending")];
                let desired = last.of(state, || {
                    conversions += 1;
                    DesiredPods::of(Some(&[]), Some(Some(bound)))
                });
                assert!(desired.knows(&format!("u{index}")));
            }
            assert_eq!(conversions, index + 1);
        }
    }

    #[test]
    fn until_all_sources_were_read_nothing_is_missing() {
        assert!(!DesiredPods::of(None, None).is_complete);
        assert!(!DesiredPods::of(Some(&[]), Some(None)).is_complete);
        assert!(DesiredPods::of(Some(&[]), None).is_complete);
    }

    #[test]
    fn a_pod_with_fields_that_are_not_implemented_is_rejected() {
        let mut bad = (*pod("a", json!({}), "Pending")).clone();
        bad.spec.as_mut().unwrap().host_users = Some(false);
        let desired = DesiredPods::of(Some(&[]), Some(Some(vec![Arc::new(bad)])));
        assert!(desired.wanted.is_empty());
        assert_eq!(desired.rejected[0].2, "not implemented: spec.hostUsers");
    }
}
