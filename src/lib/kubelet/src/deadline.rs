//! `activeDeadlineSeconds`: how long a pod may be active on its node, in the time of the API.

use crate::pod::NodePod;
use std::time::Duration;

/// kubelet's reason and message of a pod past its deadline.
pub(crate) const EXCEEDED: (&str, &str) =
    ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline");

/// Time until the deadline, zero once it has passed; `None`: the pod has none. Both times are in
/// nanoseconds since 1970.
pub(crate) fn time_left(pod: &NodePod, started_at: i64, now: i64) -> Option<Duration> {
    let seconds = pod.spec.active_deadline_seconds?;
    let end = started_at.saturating_add(seconds.saturating_mul(1_000_000_000));
    Some(Duration::from_nanos(end.saturating_sub(now).max(0).unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_counts_from_the_start_and_never_overflows() {
        let pod = |fields: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{{fields}containers: \
                 [{{name: c, image: i}}]}}}}"
            );
            NodePod::from_file(text.as_bytes(), "n").unwrap()
        };
        let second = 1_000_000_000;
        let five = pod("activeDeadlineSeconds: 5, ");
        assert_eq!(time_left(&pod(""), 0, i64::MAX), None);
        assert_eq!(time_left(&five, second, 4 * second), Some(Duration::from_secs(2)));
        assert_eq!(time_left(&five, second, 6 * second), Some(Duration::ZERO));
        assert_eq!(time_left(&five, second, i64::MAX), Some(Duration::ZERO));
        let longest = pod("activeDeadlineSeconds: 9223372036854775807, ");
        assert!(time_left(&longest, second, 2 * second) > Some(Duration::from_secs(1 << 32)));
    }
}
