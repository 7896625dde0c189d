//! The Feature API (KEP-3920): its gate, and its answers to the production readiness questionnaire.

use crate::descriptor::{Descriptor, FeatureSetting, answer};
use crate::gate::{Gate, GateSpec, Stage};
use crate::version::KubernetesVersion;

/// Gate of `features.k8s.io/v1alpha1` and of all flows behind it.
pub static FEATURE_API: Gate = Gate {
    name: "FeatureAPI",
    specs: &[GateSpec {
        since: KubernetesVersion::new(1, 36),
        stage: Stage::Alpha,
        default: false,
        locked: false,
        min_compatibility: None,
    }],
    dependencies: &[],
};

pub(crate) static FEATURE_API_DESCRIPTOR: Descriptor = Descriptor {
    gate: &FEATURE_API,
    summary: "Feature objects show which features are on, who uses them, and what remains to be done before they are off",
    source: "KEP-3920",
    components: &["apiserver"],
    owner: "sig-api-machinery",
    metrics: &[
        "kubernetes_feature_enabled",
        "feature_state",
        "feature_tasks_remaining",
        "feature_blocked",
        "feature_uses",
        "feature_dangling_references",
        "feature_leader",
        "feature_transition_duration_seconds",
    ],
    setting: FeatureSetting::Local,
    tasks: &[],
    answers: &[
        answer(
            "P01",
            "Gate `FeatureAPI` on the command line of the API server; it takes effect when that restarts. Other components report once the API is served.",
        ),
        answer(
            "P02",
            "The group `features.k8s.io/v1alpha1` is served, the API server has an identity Lease in kube-system, and turning a feature off clears what it stored.",
        ),
        answer(
            "P03",
            "Yes, by the gate. Feature objects stay stored and are not served; nothing reads them.",
        ),
        answer(
            "P04",
            "The stored objects are served again. A feature whose gate was changed in the meantime starts its transition then.",
        ),
        answer(
            "P05",
            "Yes: a feature is on, used, off and on again while the API is served (tests `f36_the_fields_of_leases_come_and_go`, `f09_off_clears_what_is_stored_and_on_again_works`); without the gate nothing of it is there (test `the_feature_api_is_absent_while_it_is_off`).",
        ),
        answer(
            "P06",
            "API servers with the gate and without it: those without do not participate, so a transition waits for them, and its condition Blocked names them. A rollback stops transitions where they are: their tasks are stored, and continue when the gate is on again.",
        ),
        answer(
            "P07",
            "`feature_blocked` stays 1, or `feature_transition_duration_seconds` is many times the evaluation time.",
        ),
        answer(
            "P08",
            "By the state machine, in 200 random schedules of servers that crash, lag and disagree (test `random_schedules_reach_the_right_state_and_never_a_wrong_one`); for objects of features that a version lacks (test `f30_an_unknown_feature_is_left_as_it_is_for_three_versions`); with the program of the commit before it and its data directory (test `p08_features_survive_upgrade_downgrade_upgrade_of_the_program`).",
        ),
        answer("P09", "No."),
        answer(
            "P10",
            "`feature_state` is there; `kubectl get features -n kube-system` lists the features.",
        ),
        answer(
            "P11",
            "The events TransitionStarted and TransitionCompleted of a Feature, its status, and the page `/ui/features/`.",
        ),
        answer(
            "P12",
            "A transition without objects to clear ends within the evaluation time and 5 s; tasks write at most 2,000 objects a second.",
        ),
        answer(
            "P13",
            "`feature_transition_duration_seconds` and `feature_tasks_remaining` of the API servers.",
        ),
        answer("P14", "None is known."),
        answer(
            "P15",
            "API servers see each other by Leases in the storage. While it is away, transitions stop, and guarded fields close after 25 s.",
        ),
        answer(
            "P16",
            "A renewal of the API server's identity Lease every 10 s; a watch of the Features in kube-system by each component; one write for each value that no component of that version has reported.",
        ),
        answer(
            "P17",
            "Feature: one for each gate, and those of others in their namespaces. `feature-admin` lists pages of 500; the board shows 1,000.",
        ),
        answer("P18", "None."),
        answer(
            "P19",
            "An annotation of about 100 bytes in the Leases of kubelets and of the controller manager that leads. Turning a feature off makes objects smaller.",
        ),
        answer(
            "P20",
            "None to requests: nothing is done for a request. Turning a feature off writes each object that uses it once, at most 16 at a time.",
        ),
        answer(
            "P21",
            "An API server reads the objects that use a feature at rest every 10 minutes, only of the resources that the feature is about.",
        ),
        answer("P22", "No."),
        answer(
            "P23",
            "Components keep the values that they have. One that starts meanwhile has those features off that store something, and its own values of others, until it reads them. Reports are sent when the API server is back, within 20 s at random.",
        ),
        answer(
            "P24",
            "(1) A server or a component that is configured differently, an API server that vanished, an object that cannot be written: the transition waits, and the condition Blocked names the cause; `feature-admin describe` says how to unblock it. (2) A component that lies about its version fills the 32 values of a Feature, and holds transitions while it does. (3) Stored objects use a feature that is off, such as after a restored backup: the condition DanglingReferences counts them.",
        ),
        answer(
            "P25",
            "`feature-admin describe FEATURE` names what blocks; the gate off stops all transitions.",
        ),
        answer(
            "P26",
            "This page, `docs/features.md`, and the table of requirements and tests `docs/features-tests.md`.",
        ),
        answer(
            "P27",
            "The state machine alone against a model; the server flow in process, stopped after each step; real processes with stock kubectl and a browser in `tests/it`; a program outside of the workspace. `docs/features-tests.md` maps the requirements to tests.",
        ),
        answer(
            "P28",
            "Alpha: transitions of features of this version. Beta: on by default, with the same names, after a release in use. GA: no open reports.",
        ),
        answer(
            "P29",
            "Any: a component that neither reports nor says in its Lease which value it has, as those of versions before this feature, is not waited for; one that has an old value is. API servers of different versions: those that have the feature lead it.",
        ),
        answer(
            "P30",
            "The proposal (kubernetes/enhancements 3920) was not merged; names follow its last text. Drawback: a transition waits for the slowest component. Alternative: leaving stored fields in place, as Kubernetes does, which makes a rollback unsafe.",
        ),
    ],
    sources: &[
        "src/lib/client/src/central.rs",
        "src/lib/client/src/features.rs",
        "src/lib/client/src/lease_uses.rs",
        "src/lib/controlplane/src/features/components.rs",
        "src/lib/controlplane/src/features/leading.rs",
        "src/lib/controlplane/src/features/mod.rs",
        "src/lib/controlplane/src/features/record.rs",
        "src/lib/controlplane/src/features/settings.rs",
        "src/lib/controlplane/src/features/stats.rs",
        "src/lib/controlplane/src/features/sweep.rs",
        "src/lib/controlplane/src/identity_leases.rs",
        "src/lib/feature-admin/src/admin.rs",
        "src/lib/feature-admin/src/board.rs",
        "src/lib/feature-admin/src/check.rs",
        "src/lib/feature-admin/src/follow.rs",
        "src/lib/feature-admin/src/report.rs",
        "src/lib/feature-admin/src/request_log.rs",
        "src/lib/feature-admin/src/text.rs",
        "src/lib/features/src/gate.rs",
        "src/lib/features/src/gates.rs",
        "src/lib/features/src/settings.rs",
        "src/lib/features/src/transition.rs",
        "src/lib/features/src/version.rs",
        "src/lib/resources/src/kinds/feature.rs",
    ],
};
