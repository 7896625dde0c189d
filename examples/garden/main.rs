//! A controller with nothing of ours in it: kube-rs with `derive(CustomResource)`, a finalizer, a
//! status by server-side apply, the scale subresource and events. A Plant of `leaves: 3` gets a
//! ConfigMap that says so, and may not go before the controller has raked its leaves into another
//! one.
//!
//!     kubectl apply -f examples/garden/garden.yaml
//!     KUBECONFIG=... cargo run --example garden

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalizer, finalizer};
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, CustomResource, Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Desired state of a plant.
#[derive(Clone, Debug, Deserialize, Serialize, CustomResource)]
#[kube(
    group = "garden.example.com",
    version = "v1",
    kind = "Plant",
    namespaced,
    status = "PlantStatus",
    schema = "disabled"
)]
#[kube(scale(spec_replicas_path = ".spec.leaves", status_replicas_path = ".status.leaves"))]
struct PlantSpec {
    leaves: i32,
    /// Set by the schema's default.
    color: Option<String>,
}

/// Observed state of a plant.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlantStatus {
    leaves: i32,
    observed_generation: i64,
}

/// Keeps a plant until its leaves are raked.
const FINALIZER: &str = "garden.example.com/rake";
/// The field manager, and the reporter of events.
const GARDENER: &str = "gardener";

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::try_default().await?;
    let plants: Api<Plant> = Api::all(client.clone());
    let pots: Api<ConfigMap> = Api::all(client.clone());
    let controller = Controller::new(plants, watcher::Config::default())
        .owns(pots, watcher::Config::default())
        .shutdown_on_signal();
    controller
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::new(client))
        .for_each(|_| std::future::ready(()))
        .await;
    Ok(())
}

async fn reconcile(
    plant: Arc<Plant>,
    client: Arc<Client>,
) -> Result<Action, kube::runtime::finalizer::Error<kube::Error>> {
    let plants: Api<Plant> =
        Api::namespaced((*client).clone(), &plant.namespace().unwrap_or_default());
    finalizer(&plants, FINALIZER, plant, async |event| match event {
        Finalizer::Apply(plant) => grow(&plant, &client).await,
        Finalizer::Cleanup(plant) => rake(&plant, &client).await,
    })
    .await
}

/// The pot of a plant, and its status.
async fn grow(plant: &Plant, client: &Client) -> Result<Action, kube::Error> {
    let namespace = plant.namespace().unwrap_or_default();
    let color = plant.spec.color.clone().unwrap_or_default();
    let pot = ConfigMap {
        metadata: ObjectMeta {
            name: Some(plant.name_any()),
            owner_references: Some(plant.controller_owner_ref(&()).into_iter().collect()),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([
            ("leaves".to_owned(), plant.spec.leaves.to_string()),
            ("color".to_owned(), color),
        ])),
        ..ConfigMap::default()
    };
    let apply = PatchParams::apply(GARDENER).force();
    Api::<ConfigMap>::namespaced(client.clone(), &namespace)
        .patch(&plant.name_any(), &apply, &Patch::Apply(pot))
        .await?;
    let before = plant.status.clone().unwrap_or_default();
    let generation = plant.meta().generation.unwrap_or_default();
    if (before.leaves, before.observed_generation) == (plant.spec.leaves, generation) {
        return Ok(Action::await_change());
    }
    let status = json!({"apiVersion": "garden.example.com/v1", "kind": "Plant", "status": PlantStatus { leaves: plant.spec.leaves, observed_generation: generation }});
    Api::<Plant>::namespaced(client.clone(), &namespace)
        .patch_status(&plant.name_any(), &apply, &Patch::Apply(status))
        .await?;
    tell(plant, client, "Grown").await?;
    Ok(Action::await_change())
}

/// Cleanup that the finalizer guards.
async fn rake(plant: &Plant, client: &Client) -> Result<Action, kube::Error> {
    let namespace = plant.namespace().unwrap_or_default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let heap = ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("{}-leaves", plant.name_any())),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("leaves".to_owned(), plant.spec.leaves.to_string())])),
        ..ConfigMap::default()
    };
    maps.patch(&heap.name_any(), &PatchParams::apply(GARDENER).force(), &Patch::Apply(&heap))
        .await?;
    match maps.delete(&plant.name_any(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => _ = other?,
    }
    Ok(Action::await_change())
}

async fn tell(plant: &Plant, client: &Client, reason: &str) -> Result<(), kube::Error> {
    let recorder =
        Recorder::new(client.clone(), Reporter { controller: GARDENER.to_owned(), instance: None });
    let event = Event {
        type_: EventType::Normal,
        reason: reason.to_owned(),
        note: None,
        action: reason.to_owned(),
        secondary: None,
    };
    recorder.publish(&event, &plant.object_ref(&())).await
}
