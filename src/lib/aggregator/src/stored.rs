//! Addresses of services from Service objects and their endpoints, for servers that serve them.
//!
//! Read from the published state whenever a connection is made, so that nothing is kept that could
//! be outdated. Addresses are what users of the API wrote: those of this machine's loopback
//! interface, of links and of groups are never connected to (fault 47), nor are names resolved.

use crate::resolve::ListedServices;
use ferrokube_apimachinery::document::{Array, Document, Value};
use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_apimachinery::selector::{CompiledLabels, LabelSelector};
use ferrokube_registry::offload::compute_shared;
use ferrokube_registry::{Catalog, Served, view};
use ferrokube_relay::is_global;
use ferrokube_storage::{Entry, Prefix, Store};
use ferrokube_webhook::{Resolution, ServiceError, ServiceResolver};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Addresses of a service that are tried.
const MAX_ADDRESSES: usize = 8;
/// EndpointSlices of a service that are read; the endpoints controllers fill 100 endpoints a slice.
const MAX_SLICES: usize = 32;
/// EndpointSlices of a namespace that are scanned, and bytes of all objects that are read,
/// on a worker.
const FEW_SLICES: usize = 64;
const FEW_BYTES: usize = 64 * 1024;
/// Label of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Which addresses of a service connections go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceRouting {
    /// At its ready endpoints, in turn: needs no proxy of services on this machine.
    #[default]
    Endpoints,
    /// At its cluster IP.
    ClusterIp,
}

/// The services of the store; those of the operator's list take precedence.
pub struct StoredServices {
    store: Store,
    catalog: Arc<Catalog>,
    listed: ListedServices,
    routing: ServiceRouting,
    /// Spreads connections over endpoints.
    next: AtomicUsize,
}

/// A port of endpoints: its name is that of the service's port.
struct EndpointPort<'a>(&'a str);

impl StoredServices {
    /// Over the objects in the store.
    pub fn new(
        store: Store,
        catalog: Arc<Catalog>,
        listed: ListedServices,
        routing: ServiceRouting,
    ) -> Self {
        Self { store, catalog, listed, routing, next: AtomicUsize::new(0) }
    }

    fn prefix(&self, group: &str, plural: &str) -> Option<(Served, Prefix)> {
        let served = self.catalog.find(group, "v1", plural)?;
        let prefix = Prefix::new(served.definition.storage_prefix.as_deref()?).ok()?;
        Some((served, prefix))
    }

    /// An object of the core group.
    fn entry(&self, plural: &str, namespace: &str, name: &str) -> Option<(Arc<Entry>, Served)> {
        let (served, prefix) = self.prefix("", plural)?;
        Some((self.store.get(&prefix.key(Some(namespace), name).ok()?)?, served))
    }

    fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Document> {
        let (entry, served) = self.entry(plural, namespace, name)?;
        Some(view(&entry, &served))
    }

    /// Whether looking a service up may take long: tenants make large objects, and many.
    fn is_long(&self, namespace: &str, name: &str) -> bool {
        let objects = ["services", "endpoints"].map(|plural| self.entry(plural, namespace, name));
        let mut bytes: usize = objects.iter().flatten().map(|(entry, _)| entry.bytes.len()).sum();
        if let Some((_, prefix)) = self.prefix("discovery.k8s.io", "endpointslices") {
            let snapshot = self.store.snapshot(&prefix);
            let mut slices = snapshot.range(Some(namespace), None);
            let few = slices.by_ref().take(FEW_SLICES);
            bytes += few.map(|entry| entry.bytes.len()).sum::<usize>();
            if slices.next().is_some() {
                return true;
            }
        }
        bytes > FEW_BYTES
    }

    /// Addresses in the EndpointSlices of a service, parsed one at a time; `None` without any.
    fn in_slices(
        &self,
        namespace: &str,
        name: &str,
        port: &EndpointPort<'_>,
    ) -> Option<Vec<SocketAddr>> {
        let (served, prefix) = self.prefix("discovery.k8s.io", "endpointslices")?;
        // The name is that of a service.
        let wanted = LabelSelector::parse(&format!("{SERVICE_NAME}={name}")).ok()?;
        let wanted = CompiledLabels::new(&wanted);
        let snapshot = self.store.snapshot(&prefix);
        let entries = snapshot.range(Some(namespace), None).filter(|entry| {
            let layout = Layout::from_marks(entry.sidecar.marks, entry.sidecar.revision_at);
            wanted.matches(forms::labels(&entry.bytes, &layout)).0
        });
        let mut found: Option<Vec<SocketAddr>> = None;
        for entry in entries.take(MAX_SLICES) {
            found.get_or_insert_default().extend(port.of_slice(&view(entry, &served)));
        }
        found
    }

    /// Addresses of the ready endpoints; `None` without objects that could have any. Those of
    /// Endpoints count where the Service has no EndpointSlices.
    fn endpoints(
        &self,
        namespace: &str,
        name: &str,
        port: &EndpointPort<'_>,
    ) -> Option<Vec<SocketAddr>> {
        if let Some(found) = self.in_slices(namespace, name, port) {
            return Some(found);
        }
        let endpoints = self.object("endpoints", namespace, name)?;
        let subsets = endpoints.list(&["subsets"]).iter();
        Some(subsets.flat_map(|subset| port.of_subset(subset)).collect())
    }

    fn at_endpoints(
        &self,
        namespace: &str,
        name: &str,
        port: &EndpointPort<'_>,
    ) -> Result<Vec<SocketAddr>, ServiceError> {
        let found = self
            .endpoints(namespace, name, port)
            .ok_or_else(|| ServiceError::NoEndpoints(name.to_owned()))?;
        let mut found: Vec<_> =
            found.into_iter().filter(|address| is_global(address.ip())).collect();
        if found.is_empty() {
            let (service, port_name) = (name.to_owned(), port.0.to_owned());
            return Err(ServiceError::NotReady { service, port_name });
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed) % found.len();
        found.rotate_left(first);
        found.truncate(MAX_ADDRESSES);
        Ok(found)
    }

    fn look_up(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, ServiceError> {
        let service = self
            .object("services", namespace, name)
            .ok_or_else(|| ServiceError::NotFound(name.to_owned()))?;
        let of_service = service
            .list(&["spec", "ports"])
            .iter()
            .find(|known| number(known, "port") == Some(port))
            .ok_or_else(|| ServiceError::NoPort { service: name.to_owned(), port })?;
        match service.str(&["spec", "type"]).unwrap_or_default() {
            "" | "ClusterIP" | "LoadBalancer" | "NodePort" => {}
            other => {
                let why = format!("unsupported service type {other:?}");
                return Err(ServiceError::Unroutable(why));
            }
        }
        match self.routing {
            ServiceRouting::ClusterIp => Ok(vec![Self::at_cluster_ip(&service, port)?]),
            ServiceRouting::Endpoints => {
                self.at_endpoints(namespace, name, &EndpointPort(text(of_service, "name")))
            }
        }
    }

    fn at_cluster_ip(service: &Document, port: u16) -> Result<SocketAddr, ServiceError> {
        let unroutable = |why: &str| ServiceError::Unroutable(why.to_owned());
        let address = service.str(&["spec", "clusterIP"]).unwrap_or_default();
        if address == "None" {
            return Err(unroutable("cannot route to service with ClusterIP \"None\""));
        }
        let address = address.parse::<IpAddr>().ok().filter(|address| is_global(*address));
        let address = address.ok_or_else(|| unroutable("the service has no ClusterIP"))?;
        Ok((address, port).into())
    }
}

impl fmt::Debug for StoredServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredServices").field("routing", &self.routing).finish_non_exhaustive()
    }
}

impl ServiceResolver for StoredServices {
    fn resolve<'a>(&'a self, namespace: &'a str, name: &'a str, port: u16) -> Resolution<'a> {
        Box::pin(async move {
            if self.listed.has(namespace, name) {
                return self.listed.find(namespace, name, port);
            }
            let look_up = || self.look_up(namespace, name, port);
            if self.is_long(namespace, name) {
                // All callers share the connection, and the permits of a webhook: it must not wait
                // in the queue of one of them.
                let mut hasher = DefaultHasher::new();
                (namespace, name).hash(&mut hasher);
                return compute_shared(hasher.finish(), look_up).await;
            }
            look_up()
        })
    }
}

impl EndpointPort<'_> {
    /// Number of the port of that name in a slice or subset.
    fn number(&self, ports: &[Value]) -> Option<u16> {
        let is_it = |port: &&Value| {
            text(port, "name") == self.0 && matches!(text(port, "protocol"), "" | "TCP")
        };
        number(ports.iter().find(is_it)?, "port")
    }

    fn of_slice(&self, slice: &Document) -> Vec<SocketAddr> {
        let is_ip = matches!(slice.str(&["addressType"]), Some("IPv4" | "IPv6"));
        let Some(port) = self.number(slice.list(&["ports"])).filter(|_| is_ip) else {
            return Vec::new();
        };
        let is_ready = |endpoint: &&Value| {
            let ready = endpoint.get("conditions").and_then(|conditions| conditions.get("ready"));
            ready.and_then(Value::as_bool).unwrap_or(true)
        };
        // Only the first address of an endpoint counts, as in kube-proxy.
        let endpoints = slice.list(&["endpoints"]).iter().filter(is_ready);
        let addresses = endpoints.filter_map(|endpoint| items(endpoint, "addresses").first());
        addresses.filter_map(|address| socket(address.as_str()?, port)).collect()
    }

    fn of_subset(&self, subset: &Value) -> Vec<SocketAddr> {
        let Some(port) = self.number(items(subset, "ports")) else { return Vec::new() };
        let addresses = items(subset, "addresses").iter();
        addresses.filter_map(|address| socket(text(address, "ip"), port)).collect()
    }
}

fn socket(address: &str, port: u16) -> Option<SocketAddr> {
    Some((address.parse::<IpAddr>().ok()?, port).into())
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map_or(&[], Array::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, field: &str) -> Option<u16> {
    u16::try_from(value.get(field)?.as_u64()?).ok().filter(|port| *port > 0)
}
