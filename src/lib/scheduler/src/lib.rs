//! A small scheduler for a cluster of one node: binds pods that fit to it, until there is a real
//! scheduler.
//!
//! - **Fit** (`fit.rs`) is a pure function of the pod, the node and the pods that it has: taints
//!   and conditions, selectors and node affinity, host ports, requests, affinity between pods.
//!   Nothing is preempted, and volumes are not checked: the kubelet reports what is wrong with
//!   them.
//! - **A real scheduler** that holds the lease `kube-system/kube-scheduler` (`rival.rs`) binds all
//!   pods; this one never takes the lease, so that a real one need not wait for it. Should both
//!   act, the API server accepts the first binding of a pod only.
//! - **A pass** (`pass.rs`) tries all pods without a node, by priority and age. It runs after each
//!   change of a pod, the node or the lease; a failed request is tried again after a pause.
//!
//! Must never know the API server's insides or other kinds than pods, nodes and leases. Start at
//! [`Scheduler`].

mod fit;
mod neighbors;
mod pass;
mod report;
mod requests;
mod rival;
mod selection;

use ferrokube_client::Outage;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use pass::SchedulingPass;
use std::future::Future;
use tokio::sync::Notify;

/// Namespace and name of the lease of schedulers.
const LEASE: (&str, &str) = ("kube-system", "kube-scheduler");

/// Binds pods to one node.
pub struct Scheduler {
    client: Client,
    node: String,
}

impl Scheduler {
    /// With a client that has the rights of `system:kube-scheduler`.
    pub fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned() }
    }

    /// Runs until dropped.
    pub async fn run(self) {
        let Self { client, node } = self;
        let changed = Notify::new();
        let by_name =
            |name: &str| watcher::Config::default().fields(&format!("metadata.name={name}"));
        let pods: Api<Pod> = Api::all(client.clone());
        let (pods, watching_pods) =
            follow(pods, watcher::Config::default().streaming_lists(), &changed);
        let nodes: Api<Node> = Api::all(client.clone());
        let (nodes, watching_nodes) = follow(nodes, by_name(&node), &changed);
        let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE.0);
        let (leases, watching_leases) = follow(leases, by_name(LEASE.1), &changed);
        let passes = async {
            // Otherwise the node would seem empty, or without another scheduler.
            let lists =
                (pods.wait_until_ready(), nodes.wait_until_ready(), leases.wait_until_ready());
            let (pods_known, nodes_known, leases_known) = tokio::join!(lists.0, lists.1, lists.2);
            // The watches run as long as this waits.
            if pods_known.is_err() || nodes_known.is_err() || leases_known.is_err() {
                return;
            }
            let mut pass = SchedulingPass::new(client, node);
            loop {
                let next = pass.run(&pods.state(), &nodes.state(), &leases.state()).await;
                let again = async {
                    match next {
                        Some(pause) => tokio::time::sleep(pause).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = changed.notified() => {}
                    () = again => {}
                }
            }
        };
        tokio::join!(watching_pods, watching_nodes, watching_leases, passes);
    }
}

/// The objects of a watch, and the watch, which notifies of each change.
fn follow<'a, K>(
    api: Api<K>,
    config: watcher::Config,
    changed: &'a Notify,
) -> (Store<K>, impl Future<Output = ()> + use<'a, K>)
where
    K: Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let (reader, writer) = reflector::store();
    let mut outage = Outage::of_watch(&K::plural(&()));
    let watching = async move {
        let events = watcher(api, config).default_backoff();
        // managedFields are never read.
        let events = events.modify(|one| one.meta_mut().managed_fields = None);
        let mut events = std::pin::pin!(reflector::reflector(writer, events));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if !matches!(event, watcher::Event::Init) {
                        outage.works();
                    }
                    changed.notify_one();
                }
                Err(error) => _ = outage.failed(&error),
            }
        }
    };
    (reader, watching)
}
