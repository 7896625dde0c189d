//! How pods end.

use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Why a pod ends, and what the API server shows of it afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PodEnd {
    /// No source has it any longer: nothing is shown. When that is over the pod may begin again, as a
    /// file that comes back.
    Removed,
    /// The API server has marked it as deleted: it leaves the API. Nothing follows.
    Deleted,
    /// The node was short of something: it stays, as failed, with this message. [`Self::Deleted`] may
    /// follow.
    Evicted(String),
    /// It was never let in, for what the node lacks: it stays, as failed. [`Self::Deleted`] may
    /// follow.
    Refused,
}

/// The pods that end or have ended, by UID. Bounded by the pods of the node.
#[derive(Default)]
pub(crate) struct PodEnds(Mutex<BTreeMap<String, (PodEnd, bool)>>);

impl PodEnds {
    /// Wants an end of a pod that has none.
    pub(crate) fn want(&self, uid: &str, end: PodEnd) {
        self.0.lock().entry(uid.to_owned()).or_insert((end, false));
    }

    /// Notes the end that a pod comes to now, whatever was wanted before.
    pub(crate) fn begin(&self, uid: &str, end: PodEnd) {
        self.0.lock().insert(uid.to_owned(), (end, false));
    }

    /// Records that a pod has ended.
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

    /// Whether nothing is left to be done for a pod's end.
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
        ends.want("a", PodEnd::Evicted(String::new()));
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
