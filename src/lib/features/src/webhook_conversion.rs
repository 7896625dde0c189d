//! Conversion webhooks of custom resources (KEP-598): a feature whose uses only users can remove.

use crate::descriptor::{Descriptor, FeatureSetting, FeatureTask, PrrAnswer};
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
    }],
    dependencies: &[],
};

const fn answer(id: &'static str, text: &'static str) -> PrrAnswer {
    PrrAnswer { id, text }
}

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
        answer("P08", "Yes (test `f14_every_feature_survives_upgrade_downgrade_upgrade`)."),
        answer("P10", "CustomResourceDefinitions have the strategy `Webhook`."),
        answer("P19", "None."),
    ],
};
