//! OpenAPI v3 (KEP-2896): a feature without stored state, which may be dynamic.

use crate::descriptor::{Descriptor, FeatureSetting, answer};
use crate::gate::{Gate, GateSpec, Stage};
use crate::version::KubernetesVersion;

/// While off, the path answers 404.
pub static OPENAPI_V3: Gate = Gate {
    name: "OpenAPIV3",
    specs: &[GateSpec {
        since: KubernetesVersion::new(1, 24),
        stage: Stage::Beta,
        default: true,
        locked: false,
        min_compatibility: None,
    }],
    dependencies: &[],
};

pub(crate) static OPENAPI_V3_DESCRIPTOR: Descriptor = Descriptor {
    gate: &OPENAPI_V3,
    summary: "The schemas of each group are published at `/openapi/v3`, next to the single document of `/openapi/v2`",
    source: "KEP-2896",
    components: &["apiserver"],
    owner: "sig-api-machinery",
    metrics: &["kubernetes_feature_enabled"],
    setting: FeatureSetting::Central,
    tasks: &[],
    answers: &[
        answer(
            "P01",
            "Gate `OpenAPIV3` on the command line of the API server; with the Feature API it may be dynamic (`--dynamic-features=OpenAPIV3`), and needs no restart.",
        ),
        answer(
            "P02",
            "No: it is on. Off, `/openapi/v3` is not found, and clients such as kubectl fall back to `/openapi/v2`.",
        ),
        answer("P03", "Yes. Nothing is stored."),
        answer("P04", "Nothing is left from before."),
        answer(
            "P05",
            "Yes: on, use, off, on again (test `f14_every_feature_goes_on_and_off_and_on`).",
        ),
        answer("P06", "It cannot: clients fall back to `/openapi/v2`."),
        answer("P07", "Clients fail to validate, or read `/openapi/v2` much more often."),
        answer("P08", "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`)."),
        answer("P09", "No."),
        answer("P10", "Requests for `/openapi/v3` succeed."),
        answer("P11", "`kubectl explain` works without `/openapi/v2`."),
        answer("P12", "A document is served within 1 s of a change of its group."),
        answer("P13", "`apiserver_request_duration_seconds` (component: apiserver)."),
        answer("P14", "None is known."),
        answer("P15", "None."),
        answer("P16", "Clients read one document a group; they cache by its hash."),
        answer("P17", "None."),
        answer("P18", "None."),
        answer("P19", "None."),
        answer("P20", "None: documents are made when they are asked for."),
        answer(
            "P21",
            "Documents that were asked for are kept in memory until definitions change, or no client asks for two minutes.",
        ),
        answer("P22", "No."),
        answer("P23", "It has no component of its own."),
        answer(
            "P24",
            "Aggregated servers that are away: their documents are missing, those of others are served.",
        ),
        answer("P25", "Turn it off; with the Feature API without a restart."),
        answer(
            "P26",
            "This page, `docs/features.md`, and a row in `docs/features-tests.md` for what is tested.",
        ),
        answer(
            "P27",
            "`controlplane/tests/it/openapi.rs`; on and off in a running server in `controlplane/tests/it/every_feature.rs` (test `f37_a_stateless_feature_is_switched_in_a_running_server`).",
        ),
        answer(
            "P28",
            "GA upstream since 1.27; here Beta, as the story of the proposal wants to switch it.",
        ),
        answer("P29", "Any client: those without v3 use v2."),
        answer(
            "P30",
            "KEP-2896. Alternative: the single document of v2, which loses what v3 can say.",
        ),
    ],
    sources: &[
        "src/lib/controlplane/src/openapi/discovery.rs",
        "src/lib/controlplane/src/openapi/documents.rs",
        "src/lib/controlplane/src/openapi/gnostic.rs",
        "src/lib/controlplane/src/openapi/mod.rs",
        "src/lib/controlplane/src/openapi/parameters.rs",
        "src/lib/controlplane/src/openapi/paths.rs",
        "src/lib/controlplane/src/openapi/routes.rs",
    ],
};
