//! Maximum unavailable pods of StatefulSets (KEP-961): its gate, and the field that it stores.

use crate::descriptor::{Descriptor, FeatureSetting, FeatureTask, PrrAnswer};
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
        },
        GateSpec {
            since: KubernetesVersion::new(1, 35),
            stage: Stage::Beta,
            default: false,
            locked: false,
        },
    ],
    dependencies: &[],
};

const fn answer(id: &'static str, text: &'static str) -> PrrAnswer {
    PrrAnswer { id, text }
}

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
        answer("P08", "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`)."),
        answer("P10", "StatefulSets have the field."),
        answer("P19", "By the field of a StatefulSet."),
    ],
};
