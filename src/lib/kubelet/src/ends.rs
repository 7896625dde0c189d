//! Why pods terminate, and how far each termination is.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Why a pod terminates, and what the API shows of it afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodEnd {
    /// No source lists it any longer. Afterwards it may start again, as when its manifest is
    /// restored.
    Removed,
    /// The object is marked as deleted, and is removed afterwards. Final.
    Deleted,
    /// Evicted under resource pressure, beyond a limit of its own, or active past its deadline: it
    /// remains as Failed. [`Self::Deleted`] may follow.
    Failed {
        /// Shown on the pod, with the message.
        reason: &'static str,
        message: String,
        /// Seconds that it has to end.
        grace: i64,
    },
    /// Never admitted, for lack of resources, or finished as another client has it: it remains as
    /// it is. [`Self::Deleted`] may follow.
    Refused,
}

/// Terminating and terminated pods, by UID. Bounded by the number of pods on the node.
#[derive(Default)]
pub(crate) struct PodEnds(Mutex<BTreeMap<String, (PodEnd, bool)>>);

impl PodEnds {
    /// Requests the termination of a pod that is not terminating.
    pub(crate) fn want(&self, uid: &str, end: PodEnd) {
        self.0.lock().entry(uid.to_owned()).or_insert((end, false));
    }

    /// Records that a pod terminates now; overrides earlier requests.
    pub(crate) fn begin(&self, uid: &str, end: PodEnd) {
        self.0.lock().insert(uid.to_owned(), (end, false));
    }

    /// Records that a pod has terminated.
    pub(crate) fn over(&self, uid: &str) {
        let mut all = self.0.lock();
        match all.get_mut(uid) {
            Some((PodEnd::Removed, _)) => _ = all.remove(uid),
            Some((_, is_over)) => *is_over = true,
            None => {}
        }
    }

    /// A pod's end.
    pub(crate) fn get(&self, uid: &str) -> Option<PodEnd> {
        self.0.lock().get(uid).map(|(end, _)| end.clone())
    }

    /// Whether a pod's termination is complete.
    pub(crate) fn is_over(&self, uid: &str) -> bool {
        self.0.lock().get(uid).is_none_or(|(_, is_over)| *is_over)
    }

    /// Forgets all pods but these.
    pub(crate) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        self.0.lock().retain(|uid, _| is_known(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_has_begun_is_not_replaced_by_a_wanted_one() {
        let ends = PodEnds::default();
        ends.begin("a", PodEnd::Deleted);
        ends.want("a", PodEnd::Failed { reason: "Evicted", message: String::new(), grace: 0 });
        assert_eq!(ends.get("a"), Some(PodEnd::Deleted));
        assert!(!ends.is_over("a"));
        ends.over("a");
        assert!(ends.is_over("a"));
    }

    #[test]
    fn a_removed_pod_may_come_back_and_a_deleted_one_may_not() {
        let ends = PodEnds::default();
        for (uid, end) in [("a", PodEnd::Removed), ("b", PodEnd::Deleted)] {
            ends.begin(uid, end);
            ends.over(uid);
        }
        assert_eq!((ends.get("a"), ends.get("b")), (None, Some(PodEnd::Deleted)));
        ends.retain(|_| false);
        assert_eq!(ends.get("b"), None);
    }
}
