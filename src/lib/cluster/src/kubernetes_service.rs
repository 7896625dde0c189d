//! The Service `default/kubernetes` and its Endpoints, by which clients in the cluster find the API
//! servers. Maintained as by kube-apiserver, and jointly with kube-apiservers on the same state.
//!
//! Each server renews a lease of its address (`ferrokube_registry::MasterLeases`); addresses with a
//! valid lease are the endpoints. A crashed server is removed when its lease expires, one that
//! stops immediately.

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{DeleteOptions, Local, MasterLeases, Registry};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::time::{sleep, timeout};

const NAMESPACE: &str = "default";
const NAME: &str = "kubernetes";
const SKIP_MIRROR: &str = "endpointslice.kubernetes.io/skip-mirror";
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Renewal interval.
const INTERVAL: Duration = Duration::from_secs(10);
/// Duration of a lease.
const TTL: Duration = Duration::from_secs(15);
/// Timeout for removing the endpoint at shutdown.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses of the API server.
#[derive(Clone, Copy, Debug)]
pub struct KubernetesService {
    /// `clusterIP` of the Service.
    pub service_address: IpAddr,
    /// Address by which the cluster reaches this server; `None`: endpoints are not maintained.
    pub advertised: Option<IpAddr>,
    /// Port of this server.
    pub port: u16,
}

impl KubernetesService {
    /// Creates a missing Service. Failures are logged: they are retried, and must not prevent
    /// startup.
    pub async fn prepare(&self, registry: &Registry) {
        let Some(keeper) = Keeper::new(registry, *self) else { return };
        if let Err(failure) = keeper.make_service().await {
            warn(&failure, "make it");
        }
    }

    /// Maintains Service and endpoints until `end`, then removes this server's endpoint.
    pub async fn maintain(self, registry: Registry, end: impl Future<Output = ()>) {
        let Some(keeper) = Keeper::new(&registry, self) else { return };
        let Some(address) = self.advertised else { return };
        tokio::pin!(end);
        let mut is_first = true;
        loop {
            let renewed = async {
                match keeper.renew(address, is_first).await {
                    Ok(()) => is_first = false,
                    Err(failure) => warn(&failure, "keep its endpoints"),
                }
                sleep(INTERVAL).await;
            };
            tokio::select! {
                () = renewed => {}
                () = &mut end => break,
            }
        }
        match timeout(LEAVE_TIMEOUT, keeper.leave(address)).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => warn(&failure, "remove the own endpoint"),
            Err(_) => tracing::warn!("the own endpoint was not removed in time"),
        }
    }
}

fn warn(failure: &Failure, step: &'static str) {
    // Another server wrote first; the next round reads its result.
    if failure.reason != Some(Reason::Conflict) {
        tracing::warn!(step, why = failure.message, "the Service kubernetes is not up to date");
    }
}

struct Keeper {
    service: KubernetesService,
    services: Local,
    endpoints: Local,
    slices: Local,
    leases: MasterLeases,
}

impl Keeper {
    /// `None` if Services are not served.
    fn new(registry: &Registry, service: KubernetesService) -> Option<Self> {
        Some(Self {
            service,
            services: Local::new(registry, "", "v1", "services")?,
            endpoints: Local::new(registry, "", "v1", "endpoints")?,
            slices: Local::new(registry, "discovery.k8s.io", "v1", "endpointslices")?,
            leases: MasterLeases::new(registry),
        })
    }

    async fn make_service(&self) -> Result<(), Failure> {
        if self.services.get(NAMESPACE, NAME).await?.is_some() {
            return Ok(());
        }
        let service = document(json!({
            "kind": "Service",
            "apiVersion": "v1",
            "metadata": {
                "name": NAME,
                "namespace": NAMESPACE,
                "labels": {"component": "apiserver", "provider": "kubernetes"},
            },
            "spec": {
                "clusterIP": self.service.service_address.to_string(),
                "ipFamilyPolicy": "SingleStack",
                "sessionAffinity": "None",
                "type": "ClusterIP",
                "ports": [{
                    "name": "https",
                    "protocol": "TCP",
                    "port": 443,
                    "targetPort": self.service.port,
                }],
            },
        }));
        unless_there(self.services.create(NAMESPACE, service).await)
    }

    async fn renew(&self, address: IpAddr, is_first: bool) -> Result<(), Failure> {
        self.make_service().await?;
        // An earlier run of this server may have listened on another port.
        let resets_ports =
            is_first && self.leases.addresses().await?.contains(&address.to_string());
        self.leases.renew(address, TTL).await?;
        let addresses = self.leases.addresses().await?;
        // Our own lease is missing, so the list is not trustworthy.
        if addresses.is_empty() {
            let why = "no API server IP addresses were listed in storage, refusing to erase all endpoints for the kubernetes Service";
            return Err(Failure::internal(why));
        }
        self.reconcile(addresses, resets_ports).await
    }

    /// Removes this server's lease and address.
    async fn leave(&self, address: IpAddr) -> Result<(), Failure> {
        let had_lease = self.leases.remove(address).await?;
        if !had_lease || self.endpoints.get(NAMESPACE, NAME).await?.is_none() {
            return Ok(());
        }
        let addresses = self.leases.addresses().await?;
        self.reconcile(addresses, true).await
    }

    async fn reconcile(
        &self,
        mut addresses: Vec<String>,
        resets_ports: bool,
    ) -> Result<(), Failure> {
        addresses.sort();
        let stored = self.endpoints.get(NAMESPACE, NAME).await?;
        let wanted = self.wanted_endpoints(stored.as_ref(), &addresses, resets_ports);
        let endpoints = match stored {
            Some(stored) if stored == wanted => stored,
            Some(_) => {
                tracing::info!(?addresses, "the endpoints of the Service kubernetes change");
                self.endpoints.update(wanted, "").await?
            }
            None => {
                tracing::info!(?addresses, "made the endpoints of the Service kubernetes");
                let made = self.endpoints.create(NAMESPACE, wanted.clone()).await;
                unless_there(made)?;
                wanted
            }
        };
        self.mirror(&endpoints).await
    }

    fn ports(&self) -> Value {
        json!([{"name": "https", "port": self.service.port, "protocol": "TCP"}])
    }

    /// The Endpoints with these addresses. Existing ports are kept unless `resets_ports`: all
    /// servers must have the same.
    fn wanted_endpoints(
        &self,
        stored: Option<&Document>,
        addresses: &[String],
        resets_ports: bool,
    ) -> Document {
        let mut endpoints = stored.cloned().unwrap_or_else(|| {
            document(json!({
                "kind": "Endpoints",
                "apiVersion": "v1",
                "metadata": {"name": NAME, "namespace": NAMESPACE},
            }))
        });
        endpoints.set(&["metadata", "labels", SKIP_MIRROR], "true");
        let ports = match endpoints.list(&["subsets"]) {
            [subset] if !resets_ports => subset.get("ports").cloned(),
            _ => None,
        };
        if addresses.is_empty() {
            endpoints.remove(&["subsets"]);
            return endpoints;
        }
        let unchanged = match endpoints.list(&["subsets"]) {
            [subset] => same_addresses(subset, addresses),
            _ => false,
        };
        if !unchanged || resets_ports {
            let listed: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
            let ports = ports.unwrap_or_else(|| self.ports());
            let subset = json!({"addresses": listed, "ports": ports});
            endpoints.set(&["subsets"], Value::from(vec![subset]));
        }
        endpoints
    }

    /// Maintains an EndpointSlice with the same content.
    async fn mirror(&self, endpoints: &Document) -> Result<(), Failure> {
        let wanted = slice_of(endpoints);
        let Some(stored) = self.slices.get(NAMESPACE, NAME).await? else {
            return unless_there(self.slices.create(NAMESPACE, wanted).await);
        };
        if stored.get(&["addressType"]) != wanted.get(&["addressType"]) {
            // The address type is immutable.
            self.slices.delete(NAMESPACE, NAME, &DeleteOptions::default()).await?;
            return unless_there(self.slices.create(NAMESPACE, wanted).await);
        }
        let mut changed = stored.clone();
        for path in [&["endpoints"][..], &["ports"], &["metadata", "labels"]] {
            let is_same = match path {
                ["metadata", "labels"] => stored.get(path) == wanted.get(path),
                path => stored.list(path) == wanted.list(path),
            };
            if !is_same {
                changed.set(path, wanted.get(path).cloned().unwrap_or(Value::Null));
            }
        }
        match changed == stored {
            true => Ok(()),
            false => self.slices.update(changed, "").await.map(drop),
        }
    }
}

fn document(value: Value) -> Document {
    Document::from_value(value).expect("an object literal")
}

/// Another server may have created it.
fn unless_there(made: Result<Document, Failure>) -> Result<(), Failure> {
    match made {
        Err(failure) if failure.reason == Some(Reason::AlreadyExists) => Ok(()),
        made => made.map(drop),
    }
}

/// Whether a subset has exactly these addresses, sorted or not.
fn same_addresses(subset: &Value, addresses: &[String]) -> bool {
    let listed = subset.get("addresses").and_then(Value::as_array);
    let ip = |address: &Value| address.get("ip").and_then(Value::as_str).map(str::to_owned);
    let mut found: Vec<Option<String>> = listed.into_iter().flatten().map(ip).collect();
    found.sort();
    found.iter().map(Option::as_deref).eq(addresses.iter().map(|ip| Some(ip.as_str())))
}

/// The EndpointSlice of Endpoints with at most one subset.
fn slice_of(endpoints: &Document) -> Document {
    let subset = endpoints.list(&["subsets"]).first();
    let items = |field: &str| {
        let items = subset.and_then(|subset| subset.get(field)).and_then(Value::as_array);
        items.into_iter().flatten()
    };
    let listed: Vec<&str> =
        items("addresses").filter_map(|address| address.get("ip")?.as_str()).collect();
    let is_v6 = |ip: &str| ip.parse::<Ipv6Addr>().is_ok();
    let is_six = !listed.is_empty() && listed.iter().all(|ip| is_v6(ip));
    let of_family = listed.iter().filter(|ip| is_v6(ip) == is_six);
    let points: Vec<Value> =
        of_family.map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    let ports: Vec<Value> = items("ports").cloned().collect();
    document(json!({
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "labels": {SERVICE_NAME: NAME},
        },
        "addressType": if is_six { "IPv6" } else { "IPv4" },
        "endpoints": points,
        "ports": ports,
    }))
}

/// The first usable address of a CIDR such as `10.0.0.0/24`, which is kube-apiserver's choice for
/// the Service. `None` if the CIDR is invalid or has no such address.
pub fn first_service_address(range: &str) -> Option<IpAddr> {
    let (base, length) = range.split_once('/')?;
    let length: u32 = length.parse().ok()?;
    match base.parse().ok()? {
        IpAddr::V4(base) => {
            let mask = u32::MAX.checked_shl(32_u32.checked_sub(length)?).unwrap_or(0);
            let first = (base.to_bits() & mask) + 1;
            (length <= 30).then(|| Ipv4Addr::from_bits(first).into())
        }
        IpAddr::V6(base) => {
            let mask = u128::MAX.checked_shl(128_u32.checked_sub(length)?).unwrap_or(0);
            let first = (base.to_bits() & mask) + 1;
            (length <= 126).then(|| Ipv6Addr::from_bits(first).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_first_address() {
        let first = |range| first_service_address(range).map(|address| address.to_string());
        assert_eq!(first("10.0.0.0/24").as_deref(), Some("10.0.0.1"));
        assert_eq!(first("10.96.3.7/12").as_deref(), Some("10.96.0.1"));
        assert_eq!(first("fd00::/108").as_deref(), Some("fd00::1"));
        for wrong in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/31", "x/8", "fd00::/129"] {
            assert_eq!(first(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_slice_has_the_addresses_of_one_family() {
        let endpoints = |addresses: Value| {
            let subset =
                json!({"addresses": addresses, "ports": [{"name": "https", "port": 6443}]});
            document(json!({"subsets": [subset]}))
        };
        let mixed = slice_of(&endpoints(json!([{"ip": "10.1.1.1"}, {"ip": "fd00::1"}])));
        assert_eq!(mixed.str(&["addressType"]), Some("IPv4"));
        let points = json!([{"addresses": ["10.1.1.1"], "conditions": {"ready": true}}]);
        assert_eq!(mixed.get(&["endpoints"]), Some(&points));
        let six = slice_of(&endpoints(json!([{"ip": "fd00::1"}])));
        assert_eq!(six.str(&["addressType"]), Some("IPv6"));
        let none = slice_of(&document(json!({})));
        assert!(none.list(&["endpoints"]).is_empty());
    }
}
