//! Coordinated leader election (KEP-4355): its gate, and its stored fields.

use crate::descriptor::{Descriptor, FeatureSetting, FeatureTask, answer};
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
        min_compatibility: None,
    }],
    dependencies: &[],
};

const GROUP: &str = "coordination.k8s.io";

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
            "Gate `CoordinatedLeaderElection` on the command line of the API server, which then serves LeaseCandidates, and of controller managers; it takes effect when they restart. No node has to.",
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
        answer(
            "P06",
            "Controller managers with the gate need an API server with it: without LeaseCandidates they wait, without a leader, and log it. So API servers come first when it is turned on, and last when it is turned off. Of two API servers only one of which has it, the other one drops the two fields from writes; the feature stays TurningOn, and its conditions name that server.",
        ),
        answer(
            "P07",
            "`leader_election_master_status` is 0 in all controller managers for longer than their lease duration.",
        ),
        answer(
            "P08",
            "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`), and with the program of the commit before the Feature API and its data directory (test `p08_features_survive_upgrade_downgrade_upgrade_of_the_program`).",
        ),
        answer("P09", "No."),
        answer("P10", "Leases have the field `spec.strategy`."),
        answer(
            "P11",
            "The Lease has a holder and the strategy; `kubectl get leasecandidates -A` shows the candidates.",
        ),
        answer(
            "P12",
            "A lease whose holder died has another one within its duration and 5 s for the answers to pings; a candidate of an older version holds the lease within as long.",
        ),
        answer(
            "P13",
            "`leader_election_master_status` of the controller managers: the maximum over them is 1.",
        ),
        answer("P14", "The duration of elections."),
        answer(
            "P15",
            "The API server elects. While it is away, no lease changes hands, and no holder can renew: as without the feature.",
        ),
        answer(
            "P16",
            "Each candidate creates one LeaseCandidate and reads it each retry period (2 s), and writes it every 5 minutes and once an election. The API server watches Leases and LeaseCandidates in process, without requests.",
        ),
        answer(
            "P17",
            "LeaseCandidate: one for each process that wants a lease. More than 10,000 are ignored.",
        ),
        answer("P18", "None."),
        answer("P19", "By the two fields of a Lease."),
        answer("P20", "None: the election is not part of a request."),
        answer(
            "P21",
            "The API server keeps candidates and the leases that they name in memory, about 2 KB each.",
        ),
        answer("P22", "No."),
        answer(
            "P23",
            "The holder gives up at its renew deadline; elections continue when the API server is back.",
        ),
        answer(
            "P24",
            "(1) A candidate that does not answer within 5 s is not chosen; one that is silent for 30 minutes is deleted. (2) A user who may write LeaseCandidates can become the holder: the right is that of components. (3) A candidate with a malformed version is refused when it is written. Test `the_coordinator_replaces_a_dead_leader_and_prefers_an_older_version`.",
        ),
        answer(
            "P25",
            "Start the controller managers without the gate: they elect among themselves.",
        ),
        answer(
            "P26",
            "This page, `docs/features.md`, and a row in `docs/features-tests.md` for what is tested.",
        ),
        answer(
            "P27",
            "The choice alone (`controlplane/src/election/choice.rs`); processes that die, prefer and are preempted in `tests/it/coordinated_election.rs`; fields, schema and stored objects in `controlplane/tests/it/features.rs`.",
        ),
        answer(
            "P28",
            "Alpha: elections and the removal of what is stored. Beta: on by default, after a release in use. GA: as upstream.",
        ),
        answer(
            "P29",
            "An older controller manager elects by the lease alone and leaves the strategy as it is. One of an older emulated version is preferred, so that it leads during an upgrade.",
        ),
        answer(
            "P30",
            "KEP-4355, alpha since 1.31 upstream, where it leaves the stored fields when turned off. Drawback: the API server decides. Alternative: elections by the lease alone, where a newer version may lead next to older API servers.",
        ),
    ],
    sources: &[
        "src/lib/client/src/candidacy.rs",
        "src/lib/client/src/leader.rs",
        "src/lib/controlplane/src/election/choice.rs",
        "src/lib/controlplane/src/election/mod.rs",
        "src/lib/resources/src/kinds/leasecandidate.rs",
    ],
};
