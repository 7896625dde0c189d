//! Identity Leases of API servers (KEP-1965): the servers that share this state, and the features
//! that each uses and has observed.
//!
//! - A server's Lease is `kube-system/apiserver-<hash>` with kube-apiserver's label. The hash is of
//!   host name, address and data directory: the same after a restart, different between servers.
//! - It is renewed every 10 s. A Lease is fresh while this server sees it renewed, whatever the
//!   clocks say, and for 30 s after that. A clean stop leaves it.
//! - After an hour without a renewal, as this server sees it, any server deletes it.
//! - Written where several servers can share the state, or while the Feature API needs it.
//!
//! Others use [`IdentityLeases::fresh`] (every other live server with its Lease),
//! [`IdentityLeases::leads`] (whether this server is the one for a feature) and
//! [`IdentityLeases::others`] (what the others report of a feature). The owner drives it: `observe`
//! and `renew` in one loop, as [`IdentityLeases::keep`] does where only the Lease is needed.
//!
//! Writers in kube-system can forge a server, so a fresh Lease may delay a step, but never trigger
//! one.

use crate::features::settings::FeatureSettings;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::time::rfc3339_micros;
use ferrokube_features::transition::{ServerReport, leader};
use ferrokube_registry::offload::block_in_place;
use ferrokube_registry::{DeleteOptions, Informer, Local, Notice, Registry};
use ferrokube_storage::Key;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep_until};

const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";
/// Values of all gates of the server.
const GATES: &str = "features.k8s.io/gates";
/// The latest revision of a Feature that the server has seen.
const OBSERVED: &str = "features.k8s.io/observed";
/// After one that failed.
const RETRY: Duration = Duration::from_secs(1);
/// Without a renewal for as many intervals, a server does not count.
const FRESH: u32 = 3;
/// Without a renewal for as many half intervals, a server permits no new uses: before others stop
/// counting it.
const PERMITTED: u32 = 5;
/// Without a renewal for this long, its Lease is deleted; `leaseDurationSeconds`.
const EXPIRED: Duration = Duration::from_secs(3600);

struct SeenLease {
    document: Arc<Document>,
    /// When its `renewTime` was last seen to change.
    renewed: Instant,
    /// Deleting the Lease of a server does not end the server.
    is_deleted: bool,
}

impl SeenLease {
    fn is_fresh(&self, interval: Duration) -> bool {
        self.renewed.elapsed() < interval * FRESH
    }

    /// Reported value of a gate; `None` if not reported.
    fn value(&self, feature: &str) -> Option<bool> {
        let gates = self.document.annotation(GATES).unwrap_or_default();
        let mut gates = gates.split(',').filter_map(|one| one.split_once('='));
        gates.find(|(name, _)| *name == feature)?.1.parse().ok()
    }
}

/// Another server whose Lease is fresh.
pub(crate) struct FreshServer<'a> {
    /// Identity of the server: the name of the Lease.
    pub(crate) id: &'a str,
    seen: &'a SeenLease,
}

impl FreshServer<'_> {
    fn takes_part(&self) -> bool {
        self.seen.document.annotation(GATES).is_some()
    }
}

/// The own Lease, and those of other servers.
pub(crate) struct IdentityLeases {
    leases: Local,
    informer: Informer,
    /// Name of the own Lease.
    name: String,
    /// Differs between runs.
    holder: String,
    seen: BTreeMap<String, SeenLease>,
    observed: u64,
    /// Between renewals; the same in all servers.
    interval: Duration,
    renewal: Instant,
    /// Begin of the last renewal that succeeded.
    renewed: Option<Instant>,
}

impl IdentityLeases {
    /// `None` if Leases are not served.
    pub(crate) fn new(registry: &Registry, settings: &FeatureSettings) -> Option<Self> {
        let digest = Sha256::digest(settings.identity.as_bytes());
        let hex: String = digest.iter().take(13).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("apiserver-{hex}");
        let mut leases = Self {
            leases: Local::new(registry, "coordination.k8s.io", "v1", "leases")?,
            informer: Informer::new(registry, "coordination.k8s.io", "v1", "leases")?
                .within(NAMESPACE),
            holder: format!("{name}_{}", uuid::Uuid::new_v4()),
            name,
            seen: BTreeMap::new(),
            observed: 0,
            interval: settings.renewal,
            renewal: Instant::now(),
            renewed: None,
        };
        let first = Notice::Replaced(leases.informer.snapshot());
        leases.take(vec![first]);
        Some(leases)
    }

    /// Renews the own Lease and deletes expired ones, until the store closes.
    pub(crate) async fn keep(mut self) {
        loop {
            let renewal = self.renewal();
            tokio::select! {
                found = self.observe() => if !found { return },
                () = sleep_until(renewal) => self.renew(None).await,
            }
        }
    }

    /// When the own Lease is due.
    pub(crate) fn renewal(&self) -> Instant {
        self.renewal
    }

    /// Notes the revision of a Feature. If a transition began with it, others wait for this server.
    pub(crate) fn has_observed(&mut self, revision: &str, begins: bool) {
        self.observed = self.observed.max(revision.parse().unwrap_or(0));
        if begins {
            self.renewal = Instant::now();
        }
    }

    /// How long this server counts without another renewal.
    pub(crate) fn permitted(&self) -> Duration {
        let permitted = self.interval * PERMITTED / 2;
        self.renewed.map_or(Duration::ZERO, |renewed| permitted.saturating_sub(renewed.elapsed()))
    }

    /// Waits for changes of other servers' Leases. False if the store closes. Cancel safe.
    pub(crate) async fn observe(&mut self) -> bool {
        loop {
            let Some(found) = self.informer.next().await else { return false };
            let notices = block_in_place(|| found.read());
            if self.take(notices) {
                return true;
            }
        }
    }

    /// Whether there is another server's Lease among them.
    fn take(&mut self, notices: Vec<Notice>) -> bool {
        let mut is_relevant = false;
        for notice in notices {
            match notice {
                Notice::Replaced(all) => {
                    is_relevant = true;
                    self.seen.values_mut().for_each(|lease| lease.is_deleted = true);
                    all.into_iter().for_each(|(key, lease)| _ = self.put(&key, lease));
                }
                Notice::Changed(key, lease) => is_relevant |= self.put(&key, lease),
                Notice::Removed(key) if key.namespace() == Some(NAMESPACE) => {
                    if let Some(lease) = self.seen.get_mut(key.name()) {
                        lease.is_deleted = true;
                    }
                }
                Notice::Removed(_) => {}
            }
        }
        is_relevant
    }

    fn put(&mut self, key: &Key, document: Arc<Document>) -> bool {
        // One that is known stays a server's, whatever labels it gets.
        let is_server = || {
            document.label(LABEL) == Some("kube-apiserver") || self.seen.contains_key(key.name())
        };
        if key.namespace() != Some(NAMESPACE) || key.name() == self.name || !is_server() {
            return false;
        }
        let now = Instant::now();
        let same = self
            .seen
            .get(key.name())
            .filter(|old| renew_time(&old.document) == renew_time(&document));
        let renewed = same.map_or(now, |old| old.renewed);
        let lease = SeenLease { document, renewed, is_deleted: false };
        self.seen.insert(key.name().to_owned(), lease);
        true
    }

    /// The other servers whose Leases are fresh, by identity.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = FreshServer<'_>> {
        let others = self.seen.iter().filter(|(_, lease)| lease.is_fresh(self.interval));
        others.map(|(id, seen)| FreshServer { id, seen })
    }

    /// Whether this server leads for a feature: among the servers that have it, as only they know
    /// its tasks, else among those that participate in the flow.
    pub(crate) fn leads(&self, feature: &str, is_known: bool) -> bool {
        let others = || self.fresh().filter(FreshServer::takes_part);
        let having = || others().filter(|server| server.seen.value(feature).is_some());
        let own = self.name.as_str();
        let servers: Vec<&str> = match is_known {
            true => having().map(|server| server.id).collect(),
            false if having().next().is_some() => return false,
            false => others().map(|server| server.id).collect(),
        };
        leader(servers.into_iter().chain([own]), feature) == Some(own)
    }

    /// The other servers, with their value of the gate, and whether they have seen a revision.
    pub(crate) fn others(&self, feature: &str, revision: &str) -> Vec<ServerReport> {
        let revision: u64 = revision.parse().unwrap_or(u64::MAX);
        self.fresh()
            .map(|FreshServer { id, seen }| {
                let observed = seen.document.annotation(OBSERVED).unwrap_or_default();
                ServerReport {
                    id: id.to_owned(),
                    enabled: seen.value(feature),
                    has_observed: observed.parse().is_ok_and(|seen: u64| seen >= revision),
                }
            })
            .collect()
    }

    /// Renews the own Lease, and deletes expired ones. `values`: those that features should have,
    /// of a server that participates in the flow.
    pub(crate) async fn renew(&mut self, values: Option<&str>) {
        let began = Instant::now();
        self.renewal = began + self.interval;
        match self.write(values).await {
            Ok(()) => self.renewed = Some(began),
            Err(failure) => {
                self.renewal = began + RETRY;
                if failure.reason != Some(Reason::Conflict) {
                    tracing::warn!(why = failure.message, "cannot renew the identity Lease");
                }
            }
        }
        let interval = self.interval;
        self.seen.retain(|_, lease| !lease.is_deleted || lease.is_fresh(interval));
        let is_expired = |lease: &&SeenLease| lease.renewed.elapsed() > EXPIRED;
        let expired = self.seen.values().filter(is_expired);
        let expired: Vec<_> = expired.map(|lease| Arc::clone(&lease.document)).collect();
        for lease in expired {
            match self.collect(&lease).await {
                Ok(true) => {
                    tracing::info!(k8s.name = lease.name(), "deleted an expired identity Lease");
                }
                Ok(false) => {}
                Err(failure) => {
                    let (name, why) = (lease.name(), failure.message);
                    tracing::warn!(k8s.name = name, why, "cannot delete an identity Lease");
                }
            }
        }
    }

    /// Deletes a Lease unless it was renewed meanwhile: this server may have been paused.
    async fn collect(&self, seen: &Document) -> Result<bool, Failure> {
        let stored = self.leases.get(NAMESPACE, seen.name()).await?;
        let Some(stored) = stored.filter(|stored| renew_time(stored) == renew_time(seen)) else {
            return Ok(false);
        };
        let resource_version = Some(stored.meta("resourceVersion").to_owned());
        let options = DeleteOptions { resource_version, ..DeleteOptions::default() };
        self.leases.delete(NAMESPACE, seen.name(), &options).await.map(|()| true)
    }

    async fn write(&self, values: Option<&str>) -> Result<(), Failure> {
        let now = rfc3339_micros(SystemTime::now());
        let stored = self.leases.get(NAMESPACE, &self.name).await?;
        let exists = stored.is_some();
        let mut lease = stored.unwrap_or_else(|| self.new_lease());
        if lease.str(&["spec", "holderIdentity"]) != Some(&self.holder) {
            lease.set(&["spec", "holderIdentity"], self.holder.as_str());
            lease.set(&["spec", "acquireTime"], now.as_str());
        }
        lease.set(&["spec", "renewTime"], now);
        lease.set(&["metadata", "labels", LABEL], "kube-apiserver");
        if let Some(values) = values {
            lease.set(&["metadata", "annotations", GATES], values);
            lease.set(&["metadata", "annotations", OBSERVED], self.observed.to_string());
        } else {
            lease.remove(&["metadata", "annotations", GATES]);
            lease.remove(&["metadata", "annotations", OBSERVED]);
        }
        if exists {
            self.leases.update(lease, "").await.map(drop)
        } else {
            self.leases.create(NAMESPACE, lease).await.map(drop)
        }
    }

    fn new_lease(&self) -> Document {
        let seconds = i64::try_from(EXPIRED.as_secs()).unwrap_or(i64::MAX);
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name.as_str(),
                "namespace": NAMESPACE,
                "labels": { LABEL: "kube-apiserver" },
            },
            "spec": { "leaseDurationSeconds": Value::from(seconds) },
        });
        Document::from_value(lease).expect("an object literal")
    }
}

fn renew_time(lease: &Document) -> Option<&str> {
    lease.str(&["spec", "renewTime"])
}
