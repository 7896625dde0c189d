//! The CSINode object: drivers on this node, for schedulers and attachers. Made with the first
//! driver; labels of the Node say where its drivers find it.

use crate::csi::{CsiDrivers, RegisteredDriver};
use ferrokube_client::Outage;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(2);
/// kubelet's annotation of the Node: its ids, by driver.
const IDS: &str = "csi.volume.kubernetes.io/nodeid";

type DriverMap = BTreeMap<String, Arc<RegisteredDriver>>;

/// Keeps the object until dropped. `uid` is that of the Node, once registered.
pub(crate) async fn run(
    client: &Client,
    name: &str,
    drivers: &CsiDrivers,
    mut uid: watch::Receiver<Option<String>>,
) {
    let mut changes = drivers.changes();
    // Drivers that this kubelet has listed. Others may be about to register after its start.
    let mut listed = BTreeSet::new();
    let mut outage = Outage::new("write the CSINode of this node");
    loop {
        let current = changes.borrow_and_update().clone();
        if current.is_empty() && listed.is_empty() {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        let Ok(Some(uid)) = uid.wait_for(Option::is_some).await.map(|uid| uid.clone()) else {
            return;
        };
        let gone: BTreeSet<String> =
            listed.iter().filter(|name| !current.contains_key(*name)).cloned().collect();
        let written = async {
            write_labels(client, name, &current, &gone).await?;
            write(client, &owner(name, uid), &current, &gone).await
        };
        match written.await {
            Ok(()) => {
                outage.works();
                listed = current.into_keys().collect();
                if changes.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                listed.extend(current.into_keys());
                outage.failed(&error);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn owner(node: &str, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid,
        ..OwnerReference::default()
    }
}

async fn write(
    client: &Client,
    owner: &OwnerReference,
    current: &DriverMap,
    gone: &BTreeSet<String>,
) -> Result<(), kube::Error> {
    let objects: Api<CSINode> = Api::all(client.clone());
    let parameters = PostParams::default();
    let Some(mut object) = objects.get_opt(&owner.name).await? else {
        if current.is_empty() {
            return Ok(());
        }
        let metadata = ObjectMeta {
            name: Some(owner.name.clone()),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        };
        let spec = CSINodeSpec { drivers: merged(Vec::new(), current, gone) };
        return objects.create(&parameters, &CSINode { metadata, spec }).await.map(|_| ());
    };
    let drivers = merged(object.spec.drivers.clone(), current, gone);
    if drivers == object.spec.drivers {
        return Ok(());
    }
    object.spec.drivers = drivers;
    objects.replace(&owner.name, &parameters, &object).await.map(|_| ())
}

/// The drivers of the object: those registered now, and those of before that are not gone.
fn merged(
    before: Vec<CSINodeDriver>,
    current: &DriverMap,
    gone: &BTreeSet<String>,
) -> Vec<CSINodeDriver> {
    let is_left = |driver: &CSINodeDriver| {
        !current.contains_key(&driver.name) && !gone.contains(&driver.name)
    };
    let mut drivers: Vec<CSINodeDriver> = before.into_iter().filter(is_left).collect();
    drivers.extend(current.iter().map(|(name, driver)| {
        CSINodeDriver {
            name: name.clone(),
            node_id: driver.node_id.clone(),
            topology_keys: Some(driver.topology.keys().cloned().collect::<Vec<_>>())
                .filter(|keys| !keys.is_empty()),
            allocatable: driver.max_volumes.map(|count| VolumeNodeResources { count: Some(count) }),
        }
    }));
    drivers.sort_by(|one, other| one.name.cmp(&other.name));
    drivers
}

/// Labels the Node with the topology of its drivers, and annotates it with their ids. A label that
/// has another value is left: it may be another's.
async fn write_labels(
    client: &Client,
    name: &str,
    current: &DriverMap,
    gone: &BTreeSet<String>,
) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let Some(node) = nodes.get_opt(name).await? else { return Ok(()) };
    let known = node.metadata.labels.unwrap_or_default();
    let mut labels = BTreeMap::new();
    for (driver, of) in current {
        for (key, value) in &of.topology {
            match known.get(key) {
                None => _ = labels.insert(key.clone(), value.clone()),
                Some(own) if own != value => {
                    tracing::warn!(
                        driver,
                        key,
                        own,
                        value,
                        "a label of the node differs from the driver's topology"
                    );
                }
                Some(_) => {}
            }
        }
    }
    let annotations = node.metadata.annotations.unwrap_or_default();
    let given = annotations.get(IDS);
    let old: BTreeMap<String, String> =
        given.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut ids = old.clone();
    ids.retain(|name, _| !gone.contains(name));
    ids.extend(current.iter().map(|(name, driver)| (name.clone(), driver.node_id.clone())));
    if labels.is_empty() && ids == old {
        return Ok(());
    }
    let metadata = json!({"labels": labels, "annotations": {IDS: json!(ids).to_string()}});
    let patch = Patch::Merge(json!({"metadata": metadata}));
    nodes.patch(name, &PatchParams::default(), &patch).await.map(|_| ())
}
