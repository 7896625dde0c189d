//! A feature of a program's own, in a namespace of its own (KEP-3920): announced, reported, turned
//! on and off by `spec.desired`, and off only when nothing that it stored is left.
//!
//! While `Greeting` is on, ConfigMaps of the namespace are greeted by an annotation.

use ferrokube_client::{Connection, report_uses_in};
use ferrokube_features::transition::{FeatureState, FeatureUse};
use ferrokube_features::transition::{TransitionRecord, TransitionStep, TransitionView};
use ferrokube_features::{Gate, GateSettings, GateSpec, Gates, KubernetesVersion, Stage};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{GroupVersionKind, ObjectMeta};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::error::Error;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The program's version.
const VERSION: KubernetesVersion = KubernetesVersion::new(2, 1);

static GREETING: Gate = Gate {
    name: "Greeting",
    specs: &[GateSpec {
        since: KubernetesVersion::new(2, 0),
        stage: Stage::Alpha,
        default: false,
        locked: false,
        min_compatibility: None,
    }],
    dependencies: &[],
};

const ANNOTATION: &str = "greeter.example.com/greeting";
/// The task before the feature is off.
const CLEAR: &str = "ClearGreetings";
/// How long instances of the program have to report.
const EVALUATION: Duration = Duration::from_secs(1);
/// Between looks at the feature.
const LOOK: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: greeter KUBECONFIG NAMESPACE";
    let (kubeconfig, namespace) = arguments.next().zip(arguments.next()).ok_or(usage)?;
    let client = Connection::from_kubeconfig(kubeconfig.as_ref()).await?.client()?;
    let (gates, _) = Gates::of(&[&GREETING], VERSION, &GateSettings::default())?;
    let reports = report_uses_in(client.clone(), namespace.clone(), gates.clone(), String::new());
    tokio::spawn(reports);
    let mut greeter = Greeter::new(&client, &namespace, gates);
    println!("ready: {namespace}");
    loop {
        if let Err(error) = greeter.step().await {
            eprintln!("retrying: {error}");
        }
        sleep(LOOK).await;
    }
}

/// The program, which also leads the transitions of its feature.
struct Greeter {
    features: Api<DynamicObject>,
    configmaps: Api<DynamicObject>,
    gates: Gates,
    /// The last revision of the feature, and when it was seen first.
    seen: (String, Instant),
}

impl Greeter {
    fn new(client: &Client, namespace: &str, gates: Gates) -> Self {
        let api = |group: &str, version: &str, kind: &str| {
            let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            Api::namespaced_with(client.clone(), namespace, &kind)
        };
        Self {
            features: api("features.k8s.io", "v1alpha1", "Feature"),
            configmaps: api("", "v1", "ConfigMap"),
            gates,
            seen: (String::new(), Instant::now()),
        }
    }

    async fn step(&mut self) -> Result<(), kube::Error> {
        let Some(feature) = self.features.get_opt(GREETING.name).await? else {
            let kind = GroupVersionKind::gvk("features.k8s.io", "v1alpha1", "Feature");
            let feature = DynamicObject::new(GREETING.name, &ApiResource::from_gvk(&kind));
            return self.features.create(&PostParams::default(), &feature).await.map(drop);
        };
        let revision = feature.metadata.resource_version.clone().unwrap_or_default();
        if self.seen.0 != revision {
            self.seen = (revision, Instant::now());
        }
        let record = read(&feature.data["status"]);
        self.gates.follow(GREETING.name, record.state.permits_use());
        // Asks the gate, so that the value is reported.
        if self.gates.enabled(&GREETING) {
            self.greet(json!("hello"), |greeted| !greeted).await?;
        }
        let desired = feature.data["spec"]["desired"] == "Enabled";
        let tasks = if desired { Vec::new() } else { vec![CLEAR.to_owned()] };
        let view = TransitionView {
            desired,
            tasks: &tasks,
            others: &[],
            observed: self.seen.1.elapsed(),
            evaluation: EVALUATION,
            canary: 100,
            component: None,
        };
        let next = match record.next(&view) {
            TransitionStep::Rest if feature.data["status"]["state"].is_null() => record,
            TransitionStep::Rest | TransitionStep::Wait(_) => return Ok(()),
            TransitionStep::Blocked(blocker, next) => {
                eprintln!("blocked: {blocker}");
                let Some(next) = next else { return Ok(()) };
                next
            }
            TransitionStep::Write(next) => next,
            TransitionStep::Run(_) => {
                self.greet(Value::Null, |greeted| greeted).await?;
                record.without_first_task()
            }
            TransitionStep::Verify { complete, again } => {
                if self.greeted(|greeted| greeted).await?.is_empty() { complete } else { again }
            }
        };
        self.store(feature, &next, desired).await
    }

    /// Names of the ConfigMaps that are greeted, or not.
    async fn greeted(&self, wanted: impl Fn(bool) -> bool) -> Result<Vec<String>, kube::Error> {
        let all = self.configmaps.list_metadata(&ListParams::default()).await?;
        let is_greeted = |metadata: &ObjectMeta| {
            metadata.annotations.as_ref().is_some_and(|all| all.contains_key(ANNOTATION))
        };
        let metadata = all.items.into_iter().map(|one| one.metadata);
        Ok(metadata.filter(|one| wanted(is_greeted(one))).filter_map(|one| one.name).collect())
    }

    async fn greet(
        &self,
        greeting: Value,
        wanted: impl Fn(bool) -> bool,
    ) -> Result<(), kube::Error> {
        for name in self.greeted(wanted).await? {
            let patch = json!({"metadata": {"annotations": {ANNOTATION: greeting}}});
            self.configmaps.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
        Ok(())
    }

    /// A compare-and-swap: another instance may have been faster.
    async fn store(
        &self,
        mut feature: DynamicObject,
        record: &TransitionRecord,
        desired: bool,
    ) -> Result<(), kube::Error> {
        let is_stable = !record.state.is_turning();
        let value = |enabled: bool| if enabled { "Enabled" } else { "Disabled" };
        let condition = |kind: &str, holds: bool| {
            json!({
                "type": kind,
                "status": if holds { "True" } else { "False" },
                "reason": record.state.as_str(),
                "message": if holds { "" } else { "the feature is not off" },
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let is_off = record.state == FeatureState::Off;
        let mut status = json!({
            "class": feature.metadata.namespace,
            "name": GREETING.name,
            "stability": "Alpha",
            "version": VERSION.to_string(),
            "default": value(false),
            "configured": value(desired),
            "source": "Dynamic",
            "dynamic": true,
            "state": record.state.as_str(),
            "transition": record.number,
            "transitionTasks": record.tasks,
            "conditions": [
                condition("DowngradeSafe", is_off),
                condition("UpgradeSafe", is_stable),
            ],
        });
        if record.evaluating {
            status["useEvaluationTime"] = json!("2026-01-01T00:00:00Z");
        }
        if !record.uses.is_empty() {
            status["uses"] = feature.data["status"]["uses"].clone();
        }
        feature.data["status"] = status;
        self.features
            .replace_status(GREETING.name, &PostParams::default(), &feature)
            .await
            .map(drop)
    }
}

fn read(status: &Value) -> TransitionRecord {
    let texts = |value: &Value| {
        let items = value.as_array().into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let used = |one: &Value| FeatureUse {
        version: one["version"].as_str().and_then(|text| text.parse().ok()),
        enabled: one["enabled"] == true,
    };
    let state = status["state"].as_str().and_then(|text| text.parse().ok());
    TransitionRecord {
        state: state.unwrap_or(FeatureState::Off),
        number: status["transition"].as_u64().unwrap_or(0),
        tasks: texts(&status["transitionTasks"]),
        uses: status["uses"].as_array().into_iter().flatten().map(used).collect(),
        evaluating: !status["useEvaluationTime"].is_null(),
    }
}
