//! The features that exist, by name.

use crate::descriptor::{Answer, Descriptor};
use crate::gate::{Gate, Spec, Stage, Version};

/// The three ids on objects and log lines (KEP-1668).
pub static LOG_TRACKING: Gate = Gate { name: "LogTracking", specs: &[Spec { since: Version::new(1, 36), stage: Stage::Beta, default: true, locked: false }] };

/// Every feature, by name.
pub static ALL: [&Descriptor; 1] = [&LOG_TRACKING_DESCRIPTOR];

static LOG_TRACKING_DESCRIPTOR: Descriptor = Descriptor {
    gate: &LOG_TRACKING,
    summary: "Every change carries the trace id, span id and initial trace id of the request behind it through objects, requests and log lines",
    source: "KEP-1668",
    components: &["apiserver", "controller-manager", "kubelet"],
    owner: "sig-instrumentation",
    metrics: &["ferrokube_trace_contexts_total", "ferrokube_trace_stamps_total"],
    answers: &[
        Answer { id: "P01", text: "Gate LogTracking on the command line of each component; takes effect when the component restarts; no downtime of others" },
        Answer {
            id: "P02",
            text: "Yes: spec-changing writes gain three annotations, log lines gain three fields. Off, responses and log lines are byte-equal to a server without the feature",
        },
        Answer { id: "P03", text: "Yes. Annotations already stored stay and can be removed like any other; nothing reads them" },
        Answer { id: "P04", text: "Objects keep the initial trace id that they were given before; the next spec-changing write stamps again" },
        Answer { id: "P05", text: "Tests switch on -> use -> off -> on with stored annotations in place" },
        Answer {
            id: "P06",
            text: "It cannot fail a rollout: malformed ids are treated as absent. With servers that differ, writes through one are stamped, through the other not",
        },
        Answer { id: "P07", text: "ferrokube_trace_stamps_total that grows faster than writes do, or a rise of write latency" },
        Answer { id: "P10", text: "ferrokube_trace_contexts_total and ferrokube_trace_stamps_total grow" },
        Answer { id: "P11", text: "The object has the annotation trace.kubernetes.io/trace-id, and the same id is in the log lines of the request" },
        Answer { id: "P16", text: "None" },
        Answer { id: "P17", text: "None" },
        Answer { id: "P19", text: "At most 200 bytes of annotations for each object" },
        Answer { id: "P20", text: "At most 4 us of CPU for each write" },
        Answer { id: "P23", text: "Nothing of its own: ids travel with requests and objects" },
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gates;

    #[test]
    fn descriptors_are_complete_and_in_order() {
        assert!(ALL.is_sorted_by_key(|descriptor| descriptor.gate.name));
        for descriptor in ALL {
            assert!(!descriptor.components.is_empty() && !descriptor.metrics.is_empty() && !descriptor.owner.is_empty(), "{}", descriptor.gate.name);
            assert!(!descriptor.gate.specs.is_empty() && descriptor.gate.specs.is_sorted_by_key(|spec| spec.since), "{}", descriptor.gate.name);
            for id in ["P01", "P02", "P03", "P10"] {
                assert!(descriptor.answers.iter().any(|answer| answer.id == id), "{} answers {id}", descriptor.gate.name);
            }
        }
    }

    #[test]
    fn log_tracking_is_on_by_default() {
        assert!(Gates::default().enabled(&LOG_TRACKING));
    }
}
