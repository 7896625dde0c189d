//! The node's Lease: its heartbeat.

use super::NodeIdentity;
use ferrokube_client::{LeaseUses, Outage};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;

const NAMESPACE: &str = "kube-node-lease";

/// Renews the lease until dropped.
pub(crate) async fn run(
    client: &Client,
    identity: &NodeIdentity,
    uses: Option<&LeaseUses>,
    mut node_uid: watch::Receiver<Option<String>>,
) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let mut outage = Outage::new("renew the lease of this node");
    let mut last: Option<Lease> = None;
    // Without an owner the lease would outlive the node.
    if node_uid.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let uid = node_uid.borrow().clone().unwrap_or_default();
    loop {
        match renew(&leases, identity, &uid, uses, last.take()).await {
            Ok(lease) => {
                let _ = outage.works();
                last = Some(lease);
            }
            Err(error) => _ = outage.failed(&error),
        }
        tokio::time::sleep(identity.lease_duration / 4).await;
    }
}

async fn renew(
    leases: &Api<Lease>,
    identity: &NodeIdentity,
    uid: &str,
    uses: Option<&LeaseUses>,
    last: Option<Lease>,
) -> Result<Lease, kube::Error> {
    let found = match last {
        Some(lease) => Some(lease),
        None => leases.get_opt(&identity.name).await?,
    };
    let is_new = found.is_none();
    let mut lease = found.unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(identity.name.clone()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: identity.name.clone(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    if let Some(uses) = uses {
        uses.annotate(&mut lease.metadata);
    }
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(identity.name.clone());
    spec.lease_duration_seconds = i32::try_from(identity.lease_duration.as_secs()).ok();
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    let parameters = PostParams::default();
    if is_new {
        leases.create(&parameters, &lease).await
    } else {
        leases.replace(&identity.name, &parameters, &lease).await
    }
}
