//! What webhooks and policies cost a create.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::measure::Sample;
use crate::namespace::{BenchNamespace, JSON, unique};
use crate::reviewer::Reviewer;
use serde_json::{Value, json};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
/// Validations of the policy.
const VALIDATIONS: usize = 100;

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "webhook",
        what: "creates over one connection, reviewed by a local webhook; the round trip is what the median has over that of creates without it",
        starts: false,
        run: webhook,
    },
    Scenario {
        name: "policy",
        what: "creates under a ValidatingAdmissionPolicy of 100 simple validations; evaluations/s/core from the CPU over that of creates without it",
        starts: false,
        run: policy,
    },
];

/// Creates `objects`, runs, and deletes them.
async fn with_objects(
    space: &BenchNamespace,
    objects: Vec<(&str, Value)>,
    run: impl AsyncFnOnce() -> anyhow::Result<Sample>,
) -> anyhow::Result<Sample> {
    let mut connection = space.connect().await?;
    let mut paths = Vec::new();
    for (plural, object) in objects {
        let path = format!("{GROUP}/{plural}");
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        paths.push(format!("{path}/{name}"));
        connection.send(&LoadRequest::write("POST", path, JSON, object.to_string())).await?;
    }
    let sample = run().await;
    for path in paths.into_iter().rev() {
        connection.send(&LoadRequest::delete(path)).await?;
    }
    sample
}

fn rules(space: &BenchNamespace, field: &str) -> Value {
    json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name}},
        (field): [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["configmaps"]}],
    })
}

fn webhook<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let reviewer = Reviewer::start().await?;
        let count = plan.requests;
        let without = space.fill_range(0..count, 1).await?;
        let mut webhook = rules(space, "rules");
        webhook["name"] = json!("load.example.com");
        webhook["clientConfig"] = reviewer.config.clone();
        webhook["sideEffects"] = json!("None");
        webhook["admissionReviewVersions"] = json!(["v1"]);
        let configuration = json!({"metadata": {"name": unique()}, "webhooks": [webhook]});
        let objects = vec![("validatingwebhookconfigurations", configuration)];
        let mut sample =
            with_objects(space, objects, async || space.fill_range(count..2 * count, 1).await)
                .await?;
        let trip = sample.percentile(0.5) - without.percentile(0.5);
        sample.figures.push(("round trip ms", trip));
        Ok(sample)
    })
}

fn policy<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let count = plan.requests;
        let without = space.fill_range(0..count, plan.connections).await?;
        let validations: Vec<Value> = (0..VALIDATIONS)
            .map(|number| {
                let expression =
                    format!("object.metadata.name != 'n{number}' && size(object.data) < 3");
                json!({"expression": expression})
            })
            .collect();
        let name = unique();
        let policy = json!({"metadata": {"name": name},
            "spec": {"matchConstraints": rules(space, "resourceRules"), "validations": validations}});
        let binding = json!({"metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]}});
        let objects = vec![
            ("validatingadmissionpolicies", policy),
            ("validatingadmissionpolicybindings", binding),
        ];
        let mut sample = with_objects(space, objects, async || {
            // Compiled by the first.
            space.fill_range(count..count + 1, 1).await?;
            space.fill_range(count + 1..2 * count, plan.connections).await
        })
        .await?;
        let each_ms = (sample.cpu_ms() - without.cpu_ms()) / VALIDATIONS as f64;
        sample.figures.push(("evaluations/s/core", 1e3 / each_ms.max(1e-9)));
        Ok(sample)
    })
}
