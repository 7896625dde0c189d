//! Coordinated leader election (KEP-4355): its gate, and its stored fields.

use crate::descriptor::{Descriptor, FeatureSetting, FeatureTask, PrrAnswer};
use crate::gate::{Gate, GateSpec, Stage};
use crate::version::KubernetesVersion;

/// Gate of `strategy` and `preferredHolder` of Leases.
pub static COORDINATED_LEADER_ELECTION: Gate = Gate {
    name: "CoordinatedLeaderElection",
    specs: &[GateSpec {
        since: KubernetesVersion::new(1, 36),
        stage: Stage::Alpha,
        default: false,
        locked: false,
    }],
    dependencies: &[],
};

const GROUP: &str = "coordination.k8s.io";

const fn answer(id: &'static str, text: &'static str) -> PrrAnswer {
    PrrAnswer { id, text }
}

pub(crate) static COORDINATED_LEADER_ELECTION_DESCRIPTOR: Descriptor = Descriptor {
    gate: &COORDINATED_LEADER_ELECTION,
    summary: "Leases have the fields `strategy` and `preferredHolder`, by which the API server chooses their holder among LeaseCandidates",
    source: "KEP-4355",
    components: &["apiserver", "controller-manager"],
    owner: "sig-api-machinery",
    metrics: &["kubernetes_feature_enabled"],
    setting: FeatureSetting::Local,
    // A preferred holder is invalid without a strategy.
    tasks: &[
        FeatureTask::ClearField {
            group: GROUP,
            plural: "leases",
            path: &["spec", "preferredHolder"],
        },
        FeatureTask::ClearField { group: GROUP, plural: "leases", path: &["spec", "strategy"] },
        FeatureTask::DeleteCollection { group: GROUP, plural: "leasecandidates" },
    ],
    answers: &[
        answer(
            "P01",
            "Gate `CoordinatedLeaderElection` on the command line of the API server, which then serves LeaseCandidates, and of controller managers; it takes effect when they restart.",
        ),
        answer(
            "P02",
            "Leases keep the two fields; without the gate, writes drop them. A controller manager with the gate waits until the API server chooses it, and ends when another one is preferred: the one that emulates the oldest version.",
        ),
        answer(
            "P03",
            "Yes. With the Feature API, the two fields are removed from all Leases, LeaseCandidates are deleted, and OpenAPI no longer shows the fields (test `f36_the_fields_of_leases_come_and_go`). Without it, stored fields stay until their objects are written without them.",
        ),
        answer("P04", "Nothing is left from before."),
        answer("P05", "Yes: on, use, off, on again (test `f36_the_fields_of_leases_come_and_go`)."),
        answer("P10", "Leases have the field `spec.strategy`."),
        answer("P19", "By the two fields of a Lease."),
    ],
};
