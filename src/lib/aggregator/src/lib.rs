//! Aggregation: group versions that other API servers serve, behind ours.
//!
//! APIServices define who serves a group version. Requests for one with a service are forwarded to
//! it after our own filters, with the user in front-proxy headers. Loops register the local group
//! versions, check the availability of others, and collect their discovery.
//!
//! Must never know HTTP routing, authentication or admission. Start reading at [`Aggregator`], then
//! `backend`.

mod availability;
mod backend;
mod dial;
mod discovery;
mod headers;
#[cfg(test)]
mod hostile;
mod registration;
mod resolve;
mod service;
mod status;
mod stored;
mod swagger;
mod tls;

use arc_swap::ArcSwap;
pub use backend::{Backend, DelegatedRequest};
use bytes::Bytes;
use dial::Dialer;
pub use discovery::AggregatedVersion;
use discovery::Collected;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Informer, Local, Notice, Registry};
use ferrokube_relay::Tunnels;
pub use ferrokube_relay::{DelegationError, take_upgrade};
pub use ferrokube_webhook::{CertificateFaults, Resolution, ServiceError, ServiceResolver};
use parking_lot::{Mutex, MutexGuard};
use registration::Registration;
pub use resolve::{ListedServices, ServiceAddress, is_allowed};
pub use service::{GROUP, PLURAL};
use service::{Known, RegisteredService};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
pub use stored::{ServiceRouting, StoredServices};
pub use swagger::merge as merge_swagger;
pub use tls::{IdentityError, ProxyIdentity};
use tokio::sync::watch;

/// Max bytes of all OpenAPI v2 documents that are kept for merging; further ones are left out.
const SWAGGER_BYTES: usize = 16 << 20;

/// Aggregated group versions: by group, then by version.
type Backends = HashMap<String, Vec<(String, Arc<Backend>)>>;

/// How often an APIService became unavailable for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outages {
    /// Name of the APIService.
    pub name: String,
    /// Reason of the condition.
    pub reason: String,
    /// Since start.
    pub count: u64,
}

/// The aggregated servers of one control plane.
pub struct Aggregator {
    resolver: Arc<dyn ServiceResolver>,
    identity: ProxyIdentity,
    certificates: CertificateFaults,
    backends: ArcSwap<Backends>,
    known: watch::Sender<Known>,
    /// By name of the APIService.
    collected: Mutex<HashMap<String, Collected>>,
    /// By name of the APIService, then by reason.
    outages: Mutex<BTreeMap<String, BTreeMap<String, u64>>>,
    /// Counts the changes of [`Self::versions`].
    changes: AtomicU64,
    tunnels: Arc<Tunnels>,
    ended: watch::Sender<bool>,
    /// Set by [`Aggregator::start`], taken by [`Aggregator::register`].
    registration: Mutex<Option<Registration>>,
}

impl Aggregator {
    /// Nothing is aggregated before [`Self::start`].
    pub fn new(resolver: Arc<dyn ServiceResolver>, identity: ProxyIdentity) -> Self {
        let ended = watch::Sender::new(false);
        Self {
            resolver,
            identity,
            certificates: CertificateFaults::default(),
            backends: ArcSwap::default(),
            known: watch::Sender::default(),
            collected: Mutex::default(),
            outages: Mutex::default(),
            changes: AtomicU64::new(0),
            tunnels: Arc::new(Tunnels::new(ended.subscribe())),
            ended,
            registration: Mutex::default(),
        }
    }

    /// Addresses of services.
    pub fn services(&self) -> &Arc<dyn ServiceResolver> {
        &self.resolver
    }

    /// Counts certificates of aggregated servers that are refused.
    pub fn certificates(&self) -> &CertificateFaults {
        &self.certificates
    }

    /// Whether everything is served here.
    pub fn is_idle(&self) -> bool {
        self.backends.load().is_empty()
    }

    /// The server of a group version; `None` if it is ours.
    pub fn find(&self, group: &str, version: &str) -> Option<Arc<Backend>> {
        let backends = self.backends.load();
        let versions = backends.get(group)?;
        versions.iter().find(|(name, _)| name == version).map(|(_, backend)| Arc::clone(backend))
    }

    /// Changes with [`Self::versions`].
    pub fn change_number(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The aggregated group versions, for discovery.
    pub fn versions(&self) -> Vec<AggregatedVersion> {
        let known = self.known.borrow().clone();
        let collected = self.lock_collected();
        let remote = known.iter().filter(|(_, service)| service.is_routed());
        remote
            .map(|(name, service)| {
                let collected = collected.get(name).cloned().unwrap_or_default();
                AggregatedVersion {
                    group: service.group.clone(),
                    version: service.version.clone(),
                    group_priority: service.group_priority,
                    version_priority: service.version_priority,
                    is_current: collected.is_current,
                    resources: collected.resources,
                    openapi: collected.openapi,
                }
            })
            .collect()
    }

    /// Names of all APIServices, and whether they are available.
    pub fn availability(&self) -> Vec<(String, bool)> {
        let known = self.known.borrow();
        known.iter().map(|(name, service)| (name.clone(), service.is_available())).collect()
    }

    /// For metrics.
    pub fn outages(&self) -> Vec<Outages> {
        let outages = self.outages.lock();
        let each = outages.iter().flat_map(|(name, reasons)| {
            reasons.iter().map(|(reason, count)| Outages {
                name: name.clone(),
                reason: reason.clone(),
                count: *count,
            })
        });
        each.collect()
    }

    fn count_outage(&self, name: &str, reason: &str) {
        let mut outages = self.outages.lock();
        *outages.entry(name.to_owned()).or_default().entry(reason.to_owned()).or_default() += 1;
    }

    /// OpenAPI v2 documents for [`merge_swagger`], the most important group first.
    pub fn swaggers(&self) -> Vec<Bytes> {
        let known = self.known.borrow().clone();
        let routed = || known.iter().filter(|(_, service)| service.is_routed());
        let mut priorities: HashMap<&str, i64> = HashMap::new();
        for (_, service) in routed() {
            let priority = priorities.entry(&service.group).or_default();
            *priority = service.group_priority.max(*priority);
        }
        let collected = self.lock_collected();
        let mut all: Vec<(i64, &String, Bytes)> = routed()
            .filter_map(|(name, service)| {
                let swagger = collected.get(name)?.swagger.as_ref()?;
                Some((priorities[&*service.group], name, swagger.document.clone()))
            })
            .collect();
        all.sort_by(|(one, name, _), (other, next, _)| other.cmp(one).then(name.cmp(next)));
        all.into_iter().map(|(_, _, document)| document).collect()
    }

    fn lock_collected(&self) -> MutexGuard<'_, HashMap<String, Collected>> {
        self.collected.lock()
    }

    fn collected(&self, name: &str) -> Collected {
        self.lock_collected().get(name).cloned().unwrap_or_default()
    }

    fn put_collected(&self, name: &str, mut next: Collected) {
        // Under the lock of `known`, so that what a removed service said is not kept.
        let known = self.known.borrow();
        if !known.get(name).is_some_and(|service| service.is_routed()) {
            return;
        }
        let mut collected = self.lock_collected();
        let bytes = |of: &Collected| of.swagger.as_ref().map_or(0, |all| all.document.len());
        let others = collected.iter().filter(|(other, _)| *other != name);
        if others.map(|(_, other)| bytes(other)).sum::<usize>() + bytes(&next) > SWAGGER_BYTES {
            tracing::warn!(name, "no room for the OpenAPI v2 document of an aggregated server");
            next.swagger = None;
        }
        let last = collected.get(name);
        let is_same = last.is_some_and(|last| {
            (last.is_current, &last.openapi, &last.swagger)
                == (next.is_current, &next.openapi, &next.swagger)
                && Arc::ptr_eq(&last.resources, &next.resources)
        });
        collected.insert(name.to_owned(), next);
        if !is_same {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Reads the APIServices that exist; the loops of [`Self::run`] continue from there. `None` if
    /// APIServices are not served.
    pub fn start(&self, registry: &Registry) -> Option<AggregatorLoops> {
        let mut informer = Informer::new(registry, GROUP, "v1", PLURAL)?;
        let client = Local::new(registry, GROUP, "v1", PLURAL)?;
        self.observe(vec![Notice::Replaced(informer.snapshot())]);
        let registration = Registration::new(registry);
        *self.registration.lock() = registration;
        Some(AggregatorLoops { informer, client })
    }

    /// Writes the APIServices of what this server serves, then keeps them. For the bootstrap.
    ///
    /// # Errors
    /// A write failed; call it again.
    pub async fn register(
        &self,
    ) -> Result<impl Future<Output = ()> + Send + 'static + use<>, Failure> {
        let registration = self.registration.lock().take();
        let known = self.known.subscribe();
        let registration = match registration {
            Some(mut registration) => {
                let current = known.borrow().clone();
                if let Err(failure) = registration.start(&current).await {
                    *self.registration.lock() = Some(registration);
                    return Err(failure);
                }
                Some(registration)
            }
            None => None,
        };
        Ok(async move {
            if let Some(registration) = registration {
                registration.run(known).await;
            }
        })
    }

    /// Follows APIServices and checks aggregated servers, until the store closes.
    pub async fn run(self: Arc<Self>, loops: AggregatorLoops) {
        let AggregatorLoops { mut informer, client } = loops;
        let follower = Arc::clone(&self);
        let following = async move {
            while let Some(found) = informer.next().await {
                follower.observe(found.read());
            }
        };
        tokio::select! {
            () = following => {}
            () = availability::run(self, client) => {}
        }
    }

    /// Ends delegated watches and tunnels.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    fn observe(&self, notices: Vec<Notice>) {
        let parse = |object: Arc<Document>| Arc::new(RegisteredService::of(&object));
        let mut all = BTreeMap::clone(&self.known.borrow());
        for notice in notices {
            match notice {
                Notice::Replaced(objects) => {
                    all = objects
                        .into_iter()
                        .map(|(key, object)| (key.name().to_owned(), parse(object)))
                        .collect();
                }
                Notice::Changed(key, object) => {
                    all.insert(key.name().to_owned(), parse(object));
                }
                Notice::Removed(key) => _ = all.remove(key.name()),
            }
        }
        self.route(&all);
        self.known.send_replace(Arc::new(all));
        let known = self.known.borrow();
        let is_routed = |name: &str| known.get(name).is_some_and(|service| service.is_routed());
        self.lock_collected().retain(|name, _| is_routed(name));
        self.outages.lock().retain(|name, _| is_routed(name));
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Updates the routes. A backend stays while its service does, with its connections.
    fn route(&self, services: &BTreeMap<String, Arc<RegisteredService>>) {
        let before = self.backends.load();
        let mut after = Backends::new();
        for service in services.values().filter(|service| service.is_routed()) {
            let Some(remote) = &service.remote else { continue };
            let kept = before
                .get(&service.group)
                .and_then(|versions| versions.iter().find(|(name, _)| *name == service.version))
                .map(|(_, backend)| backend)
                .filter(|backend| backend.service() == remote)
                .cloned();
            let backend = kept.unwrap_or_else(|| {
                if remote.insecure {
                    tracing::warn!(
                        group = service.group,
                        version = service.version,
                        "insecureSkipTLSVerify: the certificate of an aggregated server is not verified"
                    );
                }
                let certificates = self.certificates.clone();
                let resolver = Arc::clone(&self.resolver);
                let dialer = Dialer::new(remote.clone(), resolver, &self.identity, certificates);
                Arc::new(Backend::new(
                    &service.group,
                    &service.version,
                    dialer,
                    &self.tunnels,
                    self.ended.subscribe(),
                ))
            });
            backend.set_available(service.is_available());
            let versions = after.entry(service.group.clone()).or_default();
            versions.push((service.version.clone(), backend));
        }
        self.backends.store(Arc::new(after));
    }
}

/// State of the loops, from [`Aggregator::start`] to [`Aggregator::run`].
pub struct AggregatorLoops {
    informer: Informer,
    client: Local,
}
