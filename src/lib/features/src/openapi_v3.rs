//! OpenAPI v3 (KEP-2896): a feature without stored state, which may be dynamic.

use crate::descriptor::{Descriptor, FeatureSetting, PrrAnswer};
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
    }],
    dependencies: &[],
};

const fn answer(id: &'static str, text: &'static str) -> PrrAnswer {
    PrrAnswer { id, text }
}

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
        answer("P08", "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`)."),
        answer("P10", "Requests for `/openapi/v3` succeed."),
        answer("P19", "None."),
    ],
};
