//! Log tracking (KEP-1668): its gates, and its answers to the production readiness questionnaire.

use crate::descriptor::{Descriptor, FeatureSetting, FeatureTask, answer};
use crate::gate::{Gate, GateSpec, Stage};
use crate::version::KubernetesVersion;

/// Gate of the three ids on objects and log lines (KEP-1668).
pub static LOG_TRACKING: Gate = Gate {
    name: "LogTracking",
    specs: &[GateSpec {
        since: KubernetesVersion::new(1, 36),
        stage: Stage::Beta,
        default: true,
        locked: false,
        min_compatibility: None,
    }],
    dependencies: &[],
};

/// Gate of the initial id in W3C baggage, and of KEP-5915's annotation.
pub static LOG_TRACKING_INTEROP: Gate = Gate {
    name: "LogTrackingInterop",
    specs: &[GateSpec {
        since: KubernetesVersion::new(1, 36),
        stage: Stage::Alpha,
        default: false,
        locked: false,
        min_compatibility: None,
    }],
    dependencies: &[&LOG_TRACKING],
};

pub(crate) static LOG_TRACKING_DESCRIPTOR: Descriptor = Descriptor {
    gate: &LOG_TRACKING,
    summary: "Every change carries the trace id, span id and initial trace id of the request behind it through objects, requests and log lines",
    source: "KEP-1668",
    components: &["apiserver", "controller-manager", "kubelet", "trace-webhook"],
    owner: "sig-instrumentation",
    metrics: &[
        "ferrokube_trace_contexts_total",
        "ferrokube_trace_stamps_total",
        "ferrokube_trace_spans_exported_total",
        "ferrokube_trace_spans_dropped_total",
    ],
    setting: FeatureSetting::Central,
    tasks: &[FeatureTask::ClearAnnotations {
        keys: &[
            "trace.kubernetes.io/trace-id",
            "trace.kubernetes.io/span-id",
            "trace.kubernetes.io/initial-trace-id",
        ],
    }],
    answers: &[
        answer(
            "P01",
            "Gate `LogTracking` on the command line of each component, where it takes effect when the component restarts. With the Feature API the API server's sets it for all, without their restart, and it may be dynamic. There is no node downtime.",
        ),
        answer(
            "P02",
            "Yes: writes that change an object's content gain three annotations, log lines and audit events gain three ids. Off, responses and log lines are byte-equal to those of a server without the feature (test `p02_l07_off_is_byte_equal`).",
        ),
        answer(
            "P03",
            "Yes, by the gate. With the Feature API, the three annotations are removed from all objects (test `f09_off_clears_what_is_stored_and_on_again_works`). Without it, stored annotations stay, and nothing reads them: while the gate is off the three keys are ordinary annotations, which any writer of the object may change (test `p02_off_the_three_keys_are_annotations_like_any_other`).",
        ),
        answer(
            "P04",
            "Nothing is left if the Feature API has cleared it. Without that, objects keep their initial trace id; the next change of content stamps them again, and drops an initial id that was edited into something malformed. An object created while the gate was off gets an initial trace id only from a controller whose request brings one.",
        ),
        answer(
            "P05",
            "Yes: on, use, off with stored ids, on again, with the real binary (test `p04_p05_on_off_on`).",
        ),
        answer(
            "P06",
            "It cannot: absent or malformed ids are ignored. While servers differ, writes through one are stamped and writes through the other are not; reads are the same. Components need no particular order.",
        ),
        answer(
            "P07",
            "`ferrokube_trace_stamps_total{outcome=\"stamped\"}` growing faster than changes of content do; a rise of `apiserver_request_duration_seconds` of writes that goes away with the gate off.",
        ),
        answer(
            "P08",
            "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`), and with the program of the commit before the Feature API and its data directory (test `p08_features_survive_upgrade_downgrade_upgrade_of_the_program`).",
        ),
        answer("P09", "None."),
        answer(
            "P10",
            "`ferrokube_trace_contexts_total` (by origin: adopted, started, linked) and `ferrokube_trace_stamps_total{outcome=\"stamped\"}` grow.",
        ),
        answer(
            "P11",
            "The object has the annotation `trace.kubernetes.io/trace-id`; `ferrokube trace KIND/NAME` prints the requests and log lines behind it.",
        ),
        answer(
            "P12",
            "A create takes no more than 4 us of CPU longer, 25 us with every request exported; every change of content made by a request has the ids of that request.",
        ),
        answer(
            "P13",
            "`ferrokube_trace_stamps_total` by outcome, `apiserver_request_duration_seconds` of writes (component: apiserver).",
        ),
        answer(
            "P14",
            "The extra cost of a write is not exposed at run time; `benches/log-tracking` measures it.",
        ),
        answer(
            "P15",
            "None. A span collector, if configured, is never waited for: while it is unavailable, spans are dropped and counted in `ferrokube_trace_spans_dropped_total`.",
        ),
        answer("P16", "None. Existing requests carry one or two more headers (at most 122 bytes)."),
        answer("P17", "None."),
        answer("P18", "None."),
        answer(
            "P19",
            "By three annotations on each object whose content was written while it was on: 189 bytes, 205 where the object has no others (test `p19_ids_take_189_bytes_of_an_object`).",
        ),
        answer(
            "P20",
            "A create takes no more than 4 us of CPU longer, 25 us with every request exported as spans (P12). Updates and deletions have no limit and take longer than that: stored ids are read, compared and copied. `docs/log-tracking.md` has what was measured.",
        ),
        answer(
            "P21",
            "CPU as in P20; memory and disk as in P19. With export: at most 4 MiB of spans that wait, and one thread.",
        ),
        answer("P22", "No."),
        answer("P23", "It has no component that could fail: ids travel with requests and objects."),
        answer(
            "P24",
            "(1) A controller that copies annotations from a parent to its children, or a user who edits them: the server replaces the ids. (2) A client sends a foreign initial id: ignored without the right to `propagate` on `/trace-context`, and shown in the audit annotation `trace.kubernetes.io/refused-initial-trace-id`. (3) The collector is away: P15. (4) The stand-alone webhook has no API client, so its gate is not reported: what it stamps while the feature is off is counted in the condition DanglingReferences. The tests of these and of all other bad input are in `docs/log-tracking-tests.md`.",
        ),
        answer("P25", "Turn the gate off on the API server; if writes stay slow, it was not this."),
        answer(
            "P26",
            "Enhancement text and questionnaire (this page), tests for enabling and disabling, user documentation (README, `docs/log-tracking.md`).",
        ),
        answer(
            "P27",
            "Unit tests in the crates trace, admission, registry, controlplane and client; real processes and stock kubectl in `tests/it`; a real OpenTelemetry receiver in `tests/tracing/run`. `docs/log-tracking-tests.md` maps the requirements (L01 to L38) to tests.",
        ),
        answer(
            "P28",
            "Alpha: ids in storage and headers. Beta: this page complete, on by default, cost measured. GA: a release in use without a change of names.",
        ),
        answer(
            "P29",
            "Any: a kubelet or controller manager without the feature sends no ids, so its requests start new traces, and treats stored ids as ordinary annotations.",
        ),
        answer(
            "P30",
            "Upstream's proposals (kubernetes/enhancements 1348, 1961, 2312) were not merged; kept from their review: status writes never overwrite, no new object type. Drawback: three annotations on every object. Alternatives: UIDs of root objects (does not tell requests apart), audit ids (one request only).",
        ),
    ],
    sources: &[
        "src/lib/trace/src/annotation.rs",
        "src/lib/trace/src/carrier.rs",
        "src/lib/trace/src/context.rs",
        "src/lib/trace/src/id.rs",
        "src/lib/trace/src/log.rs",
        "src/lib/trace/src/propagator.rs",
        "src/lib/trace/src/scope.rs",
    ],
};

pub(crate) static LOG_TRACKING_INTEROP_DESCRIPTOR: Descriptor = Descriptor {
    gate: &LOG_TRACKING_INTEROP,
    summary: "The initial trace id is also read and written as W3C baggage, and KEP-5915's annotation is read where an object has no ids of ours",
    source: "KEP-1668, KEP-5915",
    components: &["apiserver", "controller-manager"],
    owner: "sig-instrumentation",
    metrics: &["ferrokube_trace_baggage_total"],
    setting: FeatureSetting::Local,
    tasks: &[],
    answers: &[
        answer(
            "P01",
            "Gate `LogTrackingInterop` on the command line of each component; takes effect when the component restarts.",
        ),
        answer(
            "P02",
            "No response changes. Requests with the baggage member `initial-trace-id`, from senders allowed to propagate, join that family; controllers send the member.",
        ),
        answer("P03", "Yes, by the gate. Nothing is stored that would not be stored without it."),
        answer("P04", "Nothing is left from before."),
        answer(
            "P05",
            "Yes, of both values (tests `d2_d3_p05_both_values_of_the_gate`, `d2_baggage_brings_the_initial_id_where_the_gate_is_on`).",
        ),
        answer("P06", "It cannot: baggage is read where the gate is on and ignored elsewhere."),
        answer("P07", "None: what is malformed is ignored."),
        answer("P08", "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`)."),
        answer("P09", "No."),
        answer("P10", "`ferrokube_trace_baggage_total` grows."),
        answer("P11", "The object has the initial trace id that the sender put into the baggage."),
        answer("P12", "Those of LogTracking."),
        answer("P13", "Those of LogTracking."),
        answer("P14", "None is known."),
        answer("P15", "LogTracking must be on."),
        answer("P16", "None."),
        answer("P17", "None."),
        answer("P18", "None."),
        answer("P19", "None."),
        answer("P20", "Reading a header of at most 8 KiB."),
        answer("P21", "None that can be measured."),
        answer("P22", "No."),
        answer("P23", "It has no component that could fail."),
        answer(
            "P24",
            "Baggage that is malformed, too large (8 KiB, 180 members) or names the id twice is ignored. The annotation can be written by any user that may write the object: that is why this is off by default.",
        ),
        answer("P25", "Turn the gate off."),
        answer(
            "P26",
            "This page, `docs/features.md`, and a row in `docs/features-tests.md` for what is tested.",
        ),
        answer(
            "P27",
            "`trace/tests/interop.rs`; the cases D2 and D3 in `docs/log-tracking-tests.md`.",
        ),
        answer("P28", "Alpha until KEP-5915 has names that do not change."),
        answer("P29", "Any: a component without it does not send the member."),
        answer(
            "P30",
            "KEP-5915 was not merged yet. Drawback: writers of an object choose what is read from its annotation. Alternative: our own header alone.",
        ),
    ],
    sources: &["src/lib/trace/src/interop.rs"],
};
