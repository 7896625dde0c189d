//! Maximum unavailable pods of StatefulSets (KEP-961): its gate, and the field that it stores.

use crate::descriptor::{Descriptor, FeatureSetting, FeatureTask, answer};
use crate::gate::{Gate, GateSpec, Stage};
use crate::version::KubernetesVersion;

/// Gate of `spec.updateStrategy.rollingUpdate.maxUnavailable` of StatefulSets.
pub static MAX_UNAVAILABLE_STATEFUL_SET: Gate = Gate {
    name: "MaxUnavailableStatefulSet",
    specs: &[
        GateSpec {
            since: KubernetesVersion::new(1, 24),
            stage: Stage::Alpha,
            default: false,
            locked: false,
            min_compatibility: None,
        },
        GateSpec {
            since: KubernetesVersion::new(1, 35),
            stage: Stage::Beta,
            default: false,
            locked: false,
            min_compatibility: None,
        },
    ],
    dependencies: &[],
};

pub(crate) static MAX_UNAVAILABLE_STATEFUL_SET_DESCRIPTOR: Descriptor = Descriptor {
    gate: &MAX_UNAVAILABLE_STATEFUL_SET,
    summary: "StatefulSets have the field `spec.updateStrategy.rollingUpdate.maxUnavailable`, by default 1; controllers that act on it are not part of this version",
    source: "KEP-961",
    components: &["apiserver"],
    owner: "sig-apps",
    metrics: &["kubernetes_feature_enabled"],
    setting: FeatureSetting::Central,
    tasks: &[FeatureTask::ClearField {
        group: "apps",
        plural: "statefulsets",
        path: &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"],
    }],
    answers: &[
        answer(
            "P01",
            "Gate `MaxUnavailableStatefulSet` on the command line of the API server (profile kubernetes); with the Feature API it may be dynamic.",
        ),
        answer("P02", "StatefulSets keep the field, or get 1. Without the gate, writes drop it."),
        answer(
            "P03",
            "Yes. With the Feature API, the field is removed from all StatefulSets and from OpenAPI. Without it, stored fields stay until their objects are written without them.",
        ),
        answer("P04", "Nothing is left from before; StatefulSets get the default when read."),
        answer(
            "P05",
            "Yes: on, use, off, on again (test `f14_every_feature_goes_on_and_off_and_on`).",
        ),
        answer(
            "P06",
            "Of two API servers only one of which has it, the other one drops the field from writes of objects that lack it. The feature stays in transition, and its conditions name that server.",
        ),
        answer("P07", "`feature_blocked{name=\"MaxUnavailableStatefulSet\"}` stays 1."),
        answer("P08", "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`)."),
        answer("P09", "No."),
        answer("P10", "StatefulSets have the field."),
        answer("P11", "The StatefulSet shows the field."),
        answer("P12", "None: a field is stored."),
        answer("P13", "None."),
        answer("P14", "None is known."),
        answer("P15", "A controller that acts on the field, which is not part of this version."),
        answer("P16", "None."),
        answer("P17", "None."),
        answer("P18", "None."),
        answer("P19", "By the field of a StatefulSet."),
        answer("P20", "None that can be measured."),
        answer("P21", "As P19."),
        answer("P22", "No."),
        answer("P23", "It has no component of its own."),
        answer(
            "P24",
            "(1) A controller without the feature updates one pod at a time. (2) StatefulSets that cannot be written when it is turned off, since a webhook refuses it: the condition Blocked names them, and why (test `an_object_that_cannot_be_cleared_is_named_until_it_can`).",
        ),
        answer("P25", "Turn it off: the field is removed."),
        answer(
            "P26",
            "This page, `docs/features.md`, and a row in `docs/features-tests.md` for what is tested.",
        ),
        answer(
            "P27",
            "`controlplane/tests/it/every_feature.rs`; the default and the guard in `workloads/tests/kinds`.",
        ),
        answer("P28", "As upstream: Beta, off by default, since 1.35."),
        answer("P29", "A controller that does not know the field ignores it."),
        answer(
            "P30",
            "KEP-961. Upstream leaves stored fields when it is turned off; here they are removed. Alternative: an annotation.",
        ),
    ],
    sources: &["src/lib/resource/src/guard.rs", "src/lib/workloads/src/kinds/templated.rs"],
};
