//! Statuses of the node's pods: workers post them, and the writer in `api/` takes changed ones.

use crate::pod::{MIRROR, NodePod};
use crate::status::merged;
use ferrokube_images::PodIdentity;
use ferrokube_trace::TraceContext;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use tokio::sync::Notify;

/// The newest status of each pod, by UID. Bounded by the pods of the node.
#[derive(Default)]
pub(crate) struct StatusBoard {
    posted: Mutex<BTreeMap<String, PostedStatus>>,
    changed: Notify,
}

/// A pod's status, to be written.
#[derive(Clone, Debug)]
pub(crate) struct PostedStatus {
    pub(crate) pod: PodIdentity,
    pub(crate) is_static: bool,
    pub(crate) context: TraceContext,
    /// `None`: only the deletion is written.
    pub(crate) status: Option<PodStatus>,
    /// Whether the pod has ended and is to be removed from the API.
    pub(crate) is_ended: bool,
    is_new: bool,
}

impl PostedStatus {
    /// Whether an object of the API is the pod or its mirror.
    pub(crate) fn is_of(&self, pod: &Pod) -> bool {
        let mirrored = || pod.metadata.annotations.as_ref()?.get(MIRROR);
        let uid = if self.is_static { mirrored() } else { pod.metadata.uid.as_ref() };
        uid == Some(&self.pod.uid)
    }
}

impl StatusBoard {
    /// Posts a status unless it is unchanged.
    pub(crate) fn post(&self, pod: &NodePod, status: PodStatus) {
        let mut posted = self.posted.lock();
        let old = posted.get(&pod.uid).and_then(|posted| posted.status.as_ref());
        let status = match old {
            Some(old) => merged(old, status),
            None => status,
        };
        if old == Some(&status) {
            return;
        }
        let is_ended = posted.get(&pod.uid).is_some_and(|posted| posted.is_ended);
        let new = PostedStatus {
            pod: pod.identity(),
            is_static: pod.is_static,
            context: pod.context(),
            status: Some(status),
            is_ended,
            is_new: true,
        };
        posted.insert(pod.uid.clone(), new);
        drop(posted);
        self.changed.notify_one();
    }

    /// Posts that a pod from the API was rejected, and why.
    pub(crate) fn reject(
        &self,
        pod: PodIdentity,
        context: TraceContext,
        reason: &str,
        message: &str,
    ) {
        let status = PodStatus {
            phase: Some("Failed".to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(format!("Pod was rejected: {message}")),
            ..PodStatus::default()
        };
        let mut posted = self.posted.lock();
        if posted.contains_key(&pod.uid) {
            return;
        }
        let (uid, status) = (pod.uid.clone(), Some(status));
        let new =
            PostedStatus { pod, is_static: false, context, status, is_ended: false, is_new: true };
        posted.insert(uid, new);
        drop(posted);
        self.changed.notify_one();
    }

    /// Posts that a deleted pod has terminated, so that its object is removed.
    pub(crate) fn ended(&self, pod: PodIdentity, context: TraceContext) {
        let mut posted = self.posted.lock();
        let uid = pod.uid.clone();
        let is_static = false;
        let fresh =
            || PostedStatus { pod, is_static, context, status: None, is_ended: true, is_new: true };
        let entry = posted.entry(uid).or_insert_with(fresh);
        entry.is_ended = true;
        entry.is_new = true;
        drop(posted);
        self.changed.notify_one();
    }

    /// Forgets all pods but these.
    pub(crate) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.posted.lock().retain(|uid, _| is_known(uid));
    }

    /// Takes the changed statuses. They count as written unless [`Self::again`] returns them.
    pub(crate) async fn take(&self) -> Vec<PostedStatus> {
        loop {
            let changed = self.changed.notified();
            let new: Vec<PostedStatus> = {
                let mut posted = self.posted.lock();
                let new = posted.values_mut().filter(|posted| posted.is_new);
                new.map(|posted| {
                    posted.is_new = false;
                    posted.clone()
                })
                .collect()
            };
            if !new.is_empty() {
                return new;
            }
            changed.await;
        }
    }

    /// Queues a status again after a failed write.
    pub(crate) fn again(&self, uid: &str) {
        if let Some(posted) = self.posted.lock().get_mut(uid) {
            posted.is_new = true;
        }
        self.changed.notify_one();
    }

    /// The newest status of a pod.
    pub(crate) fn of(&self, uid: &str) -> Option<PodStatus> {
        self.posted.lock().get(uid)?.status.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> NodePod {
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: \
                    a, image: i}]}}";
        NodePod::from_file(text.as_bytes(), "n").unwrap()
    }

    fn phase(name: &str) -> PodStatus {
        PodStatus { phase: Some(name.to_owned()), ..PodStatus::default() }
    }

    #[tokio::test]
    async fn a_status_is_taken_once_and_the_newest_wins() {
        let (board, pod) = (StatusBoard::default(), pod());
        board.post(&pod, phase("Pending"));
        board.post(&pod, phase("Running"));
        let taken = board.take().await;
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].status.as_ref().unwrap().phase.as_deref(), Some("Running"));
        board.post(&pod, phase("Running"));
        assert_eq!(board.of(&pod.uid).unwrap().phase.as_deref(), Some("Running"));
        let mut next = Box::pin(board.take());
        let is_pending = std::future::poll_fn(|context| {
            std::task::Poll::Ready(next.as_mut().poll(context).is_pending())
        });
        assert!(is_pending.await, "the same status again is not new");
        drop(next);
        board.again(&pod.uid);
        assert_eq!(board.take().await.len(), 1);
    }
}
