//! Bounded image pulls (KEP-3673): the gate of the kubelet's limit of parallel pulls.

use crate::descriptor::{Descriptor, FeatureSetting, answer};
use crate::gate::{Gate, GateSpec, Stage};
use crate::version::KubernetesVersion;

/// Gate of the kubelet's `maxParallelImagePulls`.
pub static MAX_PARALLEL_IMAGE_PULLS: Gate = Gate {
    name: "MaxParallelImagePulls",
    specs: &[GateSpec {
        since: KubernetesVersion::new(1, 36),
        stage: Stage::Beta,
        default: true,
        locked: false,
        min_compatibility: None,
    }],
    dependencies: &[],
};

pub(crate) static MAX_PARALLEL_IMAGE_PULLS_DESCRIPTOR: Descriptor = Descriptor {
    gate: &MAX_PARALLEL_IMAGE_PULLS,
    summary: "The kubelet bounds image pulls in progress by `maxParallelImagePulls`, itself or by a runtime that takes the limit",
    source: "KEP-3673",
    components: &["kubelet"],
    owner: "sig-node",
    metrics: &[
        "kubernetes_feature_enabled",
        "kubelet_image_pulls_in_flight",
        "kubelet_image_pulls_queued",
        "kubelet_image_pull_wait_seconds",
        "kubelet_image_pull_refusals_total",
    ],
    setting: FeatureSetting::Central,
    tasks: &[],
    answers: &[
        answer(
            "P01",
            "Gate `MaxParallelImagePulls` on the command line of the kubelet, where it takes effect when that restarts; pods keep running. With the Feature API the API server's sets it for all kubelets, without their restart, and it may be dynamic.",
        ),
        answer(
            "P02",
            "No: without `maxParallelImagePulls` in the kubelet's configuration, nothing is bounded by it.",
        ),
        answer(
            "P03",
            "Yes, in a running kubelet: pulls in the queue begin within a second, those in progress continue, and the runtime is not offered a limit. While it is off, pulls are made as if the setting were absent: one at a time, unless `serializeImagePulls: false` is set, too.",
        ),
        answer("P04", "Pulls that begin later are bounded again; those in progress count."),
        answer(
            "P05",
            "Yes (tests `the_limit_is_lifted_while_its_gate_is_off`, `a_limit_whose_gate_is_off_is_not_offered`, `f05_f16_the_api_lifts_the_limit_of_a_running_kubelet`).",
        ),
        answer(
            "P06",
            "It cannot: each kubelet bounds its own pulls. Kubelets that differ pull differently; the Feature stays in transition, and its uses show the version that differs.",
        ),
        answer(
            "P07",
            "`kubelet_image_pulls_queued` stays above 0 while `kubelet_image_pulls_in_flight` is at the limit; `kubelet_image_pull_refusals_total` grows.",
        ),
        answer(
            "P08",
            "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`). Nothing is stored.",
        ),
        answer("P09", "No."),
        answer(
            "P10",
            "`kubelet_image_pulls_queued` was above 0, or `kubelet_image_pull_refusals_total` grows.",
        ),
        answer(
            "P11",
            "The pod has the event `Queued` before `Pulling`, and `Pulled` says how long it waited.",
        ),
        answer(
            "P12",
            "Never more pulls in progress than the limit; a pull waits for no more than the pulls ahead of it take.",
        ),
        answer(
            "P13",
            "`kubelet_image_pulls_in_flight`, `kubelet_image_pull_wait_seconds` (component: kubelet).",
        ),
        answer("P14", "None is known."),
        answer(
            "P15",
            "None. A runtime that lists the limit in its status enforces it; with any other one the kubelet does.",
        ),
        answer("P16", "None."),
        answer("P17", "None."),
        answer("P18", "None."),
        answer("P19", "None."),
        answer("P20", "The start of pods, by the time that their images wait."),
        answer("P21", "Less of each at a time; a few hundred bytes for a pull that waits."),
        answer("P22", "No: it bounds the use of network and disk."),
        answer(
            "P23",
            "Pulls continue without the API server. A kubelet that starts without it has the value of its own command line, so that its limit holds (also with `serializeImagePulls: false`, where nothing else would bound pulls), until it reads that the feature is off; a kubelet that runs keeps the value that it read last. The list is in memory: after a restart of the kubelet, pulls that the runtime continues are not counted.",
        ),
        answer(
            "P24",
            "(1) A stuck pull holds a place until it has made no progress for 10 minutes. (2) A runtime that refuses a pull: the pod shows `TooManyPullingInParallelErr`, and backs off. (3) A pod that goes leaves the queue at once. `docs/kubelet-tests.md` has the tests.",
        ),
        answer("P25", "Raise the limit, or turn the gate off."),
        answer("P26", "This page, `docs/features.md`, and `docs/kubelet-tests.md`."),
        answer(
            "P27",
            "The image manager with a runtime in memory and a paused clock (`images/tests/it`); a kubelet as a process that follows the API; a real containerd with a registry that holds layers back (`tests/it/containerd`). `docs/kubelet-tests.md` maps the requirements (I01 to I18) to tests.",
        ),
        answer(
            "P28",
            "Beta: on by default, as only a configured limit has an effect. GA: a release in use.",
        ),
        answer("P29", "Any: only the kubelet participates."),
        answer(
            "P30",
            "KEP-3673, whose first text has the runtime refuse pulls over the limit; upstream shipped a limit in the kubelet alone, without a gate. Drawback: a place is held by the slowest registry. Alternative: QPS and burst, which do not bound pulls in progress.",
        ),
    ],
    sources: &[
        "src/lib/images/src/flights.rs",
        "src/lib/images/src/list.rs",
        "src/lib/images/src/manager.rs",
        "src/lib/images/src/metrics.rs",
        "src/lib/images/src/progress.rs",
    ],
};
