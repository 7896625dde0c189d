//! The loop that writes the results of type checks into the status of ValidatingAdmissionPolicies.
//! In Kubernetes kube-controller-manager does this; here the server, which has the schemas, does it
//! once a controller manager is running.

use super::GROUP;
use super::type_check::type_checking;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::offload::{INTERNAL, block_in_place, compute};
use ferrokube_registry::{Informer, Local, Notice, Registry};
use std::collections::BTreeSet;
use std::time::Duration;

const PLURAL: &str = "validatingadmissionpolicies";
/// The field manager.
const MANAGER: &str = "validatingadmissionpolicy-status";
/// Delay before failed writes are tried again, doubled each time.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(300);
/// Interval of checks for a controller manager, while there is something to do for it.
const POLL: Duration = Duration::from_secs(10);
/// The Lease of controller managers.
const LEASE: &str = "kube-controller-manager";

/// The loop.
pub struct PolicyStatus {
    registry: Registry,
    client: Local,
    informer: Informer,
    /// Policies whose status may be outdated.
    dirty: BTreeSet<String>,
    /// Whether there has been a controller manager.
    is_managed: bool,
}

impl PolicyStatus {
    /// Over the policies of a server; `None` if it serves none. `is_managed`: its process runs the
    /// controllers, too.
    pub fn new(registry: &Registry, is_managed: bool) -> Option<Self> {
        let client = Local::new(registry, GROUP, "v1", PLURAL)?;
        let informer = Informer::new(registry, GROUP, "v1", PLURAL)?;
        let (registry, dirty) = (registry.clone(), BTreeSet::new());
        Some(Self { registry, client, informer, dirty, is_managed })
    }

    /// Runs until the store closes.
    pub async fn run(mut self) {
        let all = self.informer.snapshot();
        self.observe(vec![Notice::Replaced(all)]);
        let mut retry = RETRY;
        loop {
            self.is_managed = self.is_managed || !self.dirty.is_empty() && self.has_manager().await;
            if self.is_managed {
                self.settle().await;
            }
            retry = match (self.is_managed, self.dirty.is_empty()) {
                (false, _) => POLL,
                (true, true) => RETRY,
                (true, false) => MAX_RETRY.min(2 * retry),
            };
            let found = tokio::select! {
                found = self.informer.next() => match found {
                    Some(found) => block_in_place(|| found.read()),
                    None => return,
                },
                () = tokio::time::sleep(retry), if !self.dirty.is_empty() => continue,
            };
            self.observe(found);
        }
    }

    /// Whether a controller manager holds its Lease, or has.
    async fn has_manager(&self) -> bool {
        let Some(leases) = Local::new(&self.registry, "coordination.k8s.io", "v1", "leases") else {
            return false;
        };
        let lease = leases.get("kube-system", LEASE).await.ok().flatten();
        lease.is_some_and(|lease| lease.str(&["spec", "holderIdentity"]).is_some())
    }

    fn observe(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Replaced(all) => {
                    let outdated = all.iter().filter(|(_, policy)| is_outdated(policy));
                    self.dirty.extend(outdated.map(|(key, _)| key.name().to_owned()));
                }
                Notice::Changed(key, policy) if is_outdated(&policy) => {
                    self.dirty.insert(key.name().to_owned());
                }
                Notice::Changed(key, _) | Notice::Removed(key) => _ = self.dirty.remove(key.name()),
            }
        }
    }

    /// Writes the outdated statuses; failures stay.
    async fn settle(&mut self) {
        for name in std::mem::take(&mut self.dirty) {
            if let Err(failure) = self.write(&name).await {
                tracing::warn!(
                    k8s.name = name,
                    error = failure.message,
                    "the status of a policy cannot be written"
                );
                self.dirty.insert(name);
            }
        }
    }

    async fn write(&self, name: &str) -> Result<(), Failure> {
        let Some(policy) = self.client.get("", name).await? else { return Ok(()) };
        if !is_outdated(&policy) {
            return Ok(());
        }
        let catalog = self.registry.catalog();
        let checked = compute(INTERNAL, || type_checking(&policy, catalog)).await;
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "status": {"observedGeneration": generation(&policy), "typeChecking": checked},
        });
        let configuration = Document::from_value(configuration).unwrap_or_default();
        self.client.apply(name, "status", MANAGER, configuration).await.map(drop)
    }
}

fn is_outdated(policy: &Document) -> bool {
    let observed = policy.get(&["status", "observedGeneration"]).and_then(Value::as_i64);
    observed.unwrap_or(0) < generation(policy)
}

fn generation(policy: &Document) -> i64 {
    policy.get(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or(0)
}
