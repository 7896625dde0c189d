//! Conversion webhooks of custom resources (KEP-598): a feature whose uses only users can remove.

use crate::descriptor::{Descriptor, FeatureSetting, FeatureTask, answer};
use crate::gate::{Gate, GateSpec, Stage};
use crate::version::KubernetesVersion;

/// Gate of `spec.conversion.strategy: Webhook` of CustomResourceDefinitions.
pub static WEBHOOK_CONVERSION: Gate = Gate {
    name: "CustomResourceWebhookConversion",
    specs: &[GateSpec {
        since: KubernetesVersion::new(1, 15),
        stage: Stage::Beta,
        default: true,
        locked: false,
        min_compatibility: None,
    }],
    dependencies: &[],
};

pub(crate) static WEBHOOK_CONVERSION_DESCRIPTOR: Descriptor = Descriptor {
    gate: &WEBHOOK_CONVERSION,
    summary: "Webhooks convert custom resources between versions",
    source: "KEP-598",
    components: &["apiserver"],
    owner: "sig-api-machinery",
    metrics: &["kubernetes_feature_enabled"],
    setting: FeatureSetting::Central,
    tasks: &[FeatureTask::HoldUntilUnused {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        path: &["spec", "conversion", "strategy"],
        value: "Webhook",
    }],
    answers: &[
        answer(
            "P01",
            "Gate `CustomResourceWebhookConversion` on the command line of the API server; with the Feature API it may be dynamic.",
        ),
        answer(
            "P02",
            "No: it is on. Off, definitions that would begin to convert by a webhook are refused.",
        ),
        answer(
            "P03",
            "Yes. Definitions that use it keep working, and with the Feature API hold the feature in TurningOff, by name, until users change or delete them: objects may exist that only the webhook can convert.",
        ),
        answer("P04", "Nothing is left from before."),
        answer(
            "P05",
            "Yes: on, use, off, on again (test `f14_every_feature_goes_on_and_off_and_on`).",
        ),
        answer(
            "P06",
            "Definitions that begin to convert are accepted by API servers with it and refused by those without; stored objects are read alike by both. The feature stays in transition, and its conditions name the server that differs.",
        ),
        answer(
            "P07",
            "Requests for custom resources that fail with `conversion webhook for ... failed`; `apiserver_request_total` with the code 500 of their resources.",
        ),
        answer("P08", "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`)."),
        answer("P09", "No."),
        answer("P10", "CustomResourceDefinitions have the strategy `Webhook`."),
        answer("P11", "Objects are returned in the requested version."),
        answer("P12", "A conversion takes as long as its webhook, at most 30 s."),
        answer(
            "P13",
            "`apiserver_request_duration_seconds` of the resource (component: apiserver).",
        ),
        answer("P14", "The time of conversions on their own."),
        answer(
            "P15",
            "The webhooks. Without one, requests for versions other than the stored one fail; those for the stored one work.",
        ),
        answer(
            "P16",
            "A ConversionReview to the webhook, for each page of a list and each object that is written or read in another version.",
        ),
        answer("P17", "None."),
        answer("P18", "None."),
        answer("P19", "None."),
        answer(
            "P20",
            "Reads and writes in other versions than the stored one: by the response time of the webhook.",
        ),
        answer("P21", "What a page of objects takes, while it is converted."),
        answer("P22", "No."),
        answer("P23", "It has no component of its own."),
        answer(
            "P24",
            "(1) A webhook that is away, slow, or changes what it must not (name, uid): the request fails, and says so. (2) Definitions that still use it when it is turned off: they are named in the condition Blocked (test `f35_f39_a_hold_names_the_objects_and_waits_for_their_users`).",
        ),
        answer("P25", "Have clients use the stored version, or store the version that they use."),
        answer(
            "P26",
            "This page, `docs/features.md`, and a row in `docs/features-tests.md` for what is tested.",
        ),
        answer(
            "P27",
            "`controlplane/tests/it/every_feature.rs`, `apiextensions` (webhooks that answer wrongly), `tests/it/admission_webhooks` for the calls.",
        ),
        answer(
            "P28",
            "GA upstream since 1.16. Here Beta while it has a gate, which no release has had to turn off.",
        ),
        answer("P29", "Any: only the API server converts."),
        answer(
            "P30",
            "KEP-598. Drawback: the availability of the resource is that of the webhook. Alternative: versions of one schema (strategy `None`).",
        ),
    ],
    sources: &["src/lib/apiextensions/src/webhook.rs"],
};
