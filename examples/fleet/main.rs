//! An ordinary kube-rs controller with log tracking:
//! `ferrokube_client::tracked` around the reconcile, and a ClusterRole that lets it `propagate` on
//! `/trace-context` (in `fleet.yaml`). A Fleet of `replicas: 3` has three ConfigMaps, its ships.
//!
//!     kubectl apply -f examples/fleet/fleet.yaml
//!     KUBECONFIG=... cargo run --example fleet

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::{Controller, watcher};
use kube::{Api, Client, CustomResource, Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Desired state of a fleet.
#[derive(Clone, Debug, Deserialize, Serialize, CustomResource)]
#[kube(group = "example.com", version = "v1", kind = "Fleet", namespaced, schema = "disabled")]
struct FleetSpec {
    replicas: usize,
}

/// The label of a ship: its fleet.
const FLEET: &str = "example.com/fleet";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Log lines with the ids; the lines of any `tracing` subscriber that shows the spans of target
    // `ferrokube::request` have them too.
    let config = ferrokube_trace::log::LogConfig {
        filter: "warn,fleet=info,ferrokube=info".to_owned(),
        ..Default::default()
    };
    let _flush = ferrokube_trace::log::start(&config, std::io::stderr())?;
    let client = Client::try_default().await?;
    let fleets: Api<Fleet> = Api::all(client.clone());
    let ships: Api<ConfigMap> = Api::all(client.clone());
    let only_ships = watcher::Config::default().labels(FLEET);
    tracing::info!("watching fleets");
    let controller = Controller::new(fleets, watcher::Config::default())
        .owns(ships, only_ships)
        .shutdown_on_signal();
    controller
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), Arc::new(client))
        .for_each(|_| std::future::ready(()))
        .await;
    Ok(())
}

async fn reconcile(fleet: Arc<Fleet>, client: Arc<Client>) -> Result<Action, kube::Error> {
    // This is all: the client in here carries the ids of the last write of the fleet.
    ferrokube_client::tracked(&client, &*fleet, |client| sail(&fleet, client)).await
}

/// Makes the ships that are missing and sinks those that are too many.
async fn sail(fleet: &Fleet, client: Client) -> Result<Action, kube::Error> {
    if fleet.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let ships: Api<ConfigMap> = Api::namespaced(client, &fleet.namespace().unwrap_or_default());
    let wanted: BTreeSet<String> =
        (0..fleet.spec.replicas).map(|number| format!("{}-{number}", fleet.name_any())).collect();
    let present = ships
        .list_metadata(&ListParams::default().labels(&format!("{FLEET}={}", fleet.name_any())))
        .await?
        .items;
    let present: BTreeSet<String> = present.iter().map(ResourceExt::name_any).collect();
    for name in wanted.difference(&present) {
        match ships.create(&PostParams::default(), &ship(fleet, name)).await {
            Ok(_) => tracing::info!(ship = name, "launched"),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => {
                tracing::error!(ship = name, error = %error, "cannot launch");
                return Err(error);
            }
        }
    }
    for name in present.difference(&wanted) {
        ships.delete(name, &DeleteParams::default()).await?;
        tracing::info!(ship = name, "sunk");
    }
    Ok(Action::await_change())
}

/// The ids are not copied from the fleet: they travel with the request.
fn ship(fleet: &Fleet, name: &str) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some(BTreeMap::from([(FLEET.to_owned(), fleet.name_any())])),
        owner_references: Some(fleet.controller_owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    };
    ConfigMap { metadata, ..ConfigMap::default() }
}
