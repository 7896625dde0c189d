//! The kubelet's watches and writes at the API server. HTTP only, through `client`.

mod claims;
mod csi_node;
mod events;
mod facts;
mod lease;
mod listing;
mod mirrors;
mod node;
mod node_events;
mod objects;
mod statuses;
mod tokens;

pub use events::EventSink;
pub(crate) use listing::{ApiPods, ApiServices};
pub(crate) use objects::ApiObjects;

use crate::config::NodeTaint;
use crate::node::PodNode;
use crate::pod::NodePod;
use events::WaitingEvents;
use ferrokube_client::LeaseUses;
use kube::Client;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Addresses, labels and versions in the Node.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Name of the Node object.
    pub name: String,
    /// Host name, which is an address of the node.
    pub host_name: String,
    /// Addresses, the main one first.
    pub addresses: Vec<IpAddr>,
    /// Port of the kubelet's own server, if it has one.
    pub server_port: Option<u16>,
    /// Version that is shown, as `v1.36.0`.
    pub version: String,
    /// Labels to register with, besides the well-known ones.
    pub labels: BTreeMap<String, String>,
    /// Taints to register with.
    pub taints: Vec<NodeTaint>,
    /// Whether to create the Node object.
    pub is_registered: bool,
    /// Max number of pods.
    pub max_pods: u32,
    /// Interval at which the node's status is computed.
    pub status_interval: Duration,
    /// Interval at which an unchanged status is written.
    pub report_interval: Duration,
    /// Duration of the lease, which is renewed four times as often.
    pub lease_duration: Duration,
}

/// The API server as a kubelet uses it.
pub struct NodeApi {
    pub(crate) client: Client,
    pub(crate) identity: NodeIdentity,
    pub(crate) pods: Arc<ApiPods>,
    pub(crate) services: Arc<ApiServices>,
    pub(crate) events: WaitingEvents,
    uses: Option<LeaseUses>,
}

impl NodeApi {
    /// `client` has the node's identity; `events` is the queue of the image manager's
    /// [`EventSink`].
    pub fn new(client: Client, identity: NodeIdentity, events: WaitingEvents) -> Self {
        let (pods, services) = (Arc::default(), Arc::default());
        Self { client, identity, pods, services, events, uses: None }
    }

    /// Says in the node's Lease which features the kubelet uses.
    #[must_use]
    pub fn uses(mut self, uses: LeaseUses) -> Self {
        self.uses = Some(uses);
        self
    }

    /// Watches and writes until dropped.
    pub(crate) async fn run(self, node: &PodNode, static_pods: watch::Receiver<Vec<NodePod>>) {
        let Self { client, identity, pods, services, events, uses } = self;
        let name = identity.name.as_str();
        let uid = watch::channel(None);
        tokio::join!(
            node::run(&client, &identity, node, &uid.0),
            lease::run(&client, &identity, uses.as_ref(), uid.1.clone()),
            pods.watch_node(&client, name),
            services.watch_all(&client),
            statuses::run(&client, &node.statuses),
            mirrors::run(&client, name, uid.1.clone(), static_pods, &pods, &node.statuses),
            events.run(&client, name),
            csi_node::run(&client, name, &node.csi, uid.1.clone()),
        );
    }
}
