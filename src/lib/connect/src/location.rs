//! The destination of a request, from stored objects, whose addresses are controlled by users.

use crate::Connections;
use crate::dial::{AllowedHosts, RemoteEndpoint, Security};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::offload::pause;
use ferrokube_registry::{Local, Registry};

/// Pods of a service that are looked up: the first address is nearly always of its pod, and each
/// look-up reads a pod of any size.
const MAX_PODS: usize = 16;
/// Port of kubelets whose Node has none.
const KUBELET_PORT: u16 = 10250;

/// `[scheme:]name[:port]`
struct ProxyName<'a> {
    scheme: &'a str,
    name: &'a str,
    port: &'a str,
}

impl<'a> ProxyName<'a> {
    fn parse(text: &'a str, kind: &str) -> Result<Self, Failure> {
        let parts: Vec<&str> = text.split(':').collect();
        let (scheme, name, port) = match parts.as_slice() {
            [name] => ("", *name, ""),
            [name, port] => ("", *name, *port),
            [scheme, name, port] => (*scheme, *name, *port),
            _ => ("", "", ""),
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            return Err(Failure::bad_request(format!("invalid {kind} request {text:?}")));
        }
        Ok(Self { scheme, name, port })
    }

    fn endpoint(&self, host: &str, port: u16) -> Result<RemoteEndpoint, Failure> {
        let address = host.parse().ok().filter(|address| ferrokube_relay::is_global(*address));
        if address.is_none() {
            return Err(Failure::bad_request("address not allowed"));
        }
        let security = if self.scheme == "https" { Security::Encrypted } else { Security::Plain };
        Ok(RemoteEndpoint { host: host.to_owned(), port, security, allowed: AllowedHosts::Others })
    }

    /// The port number; `default` if there is none.
    fn number(&self, default: u16) -> Result<u16, Failure> {
        if self.port.is_empty() {
            return Ok(default);
        }
        let number = self.port.parse::<u16>().ok().filter(|port| *port > 0);
        number.ok_or_else(|| Failure::bad_request(format!("invalid port {:?}", self.port)))
    }

    fn default_port(&self) -> u16 {
        if self.scheme == "https" { 443 } else { 80 }
    }
}

pub(crate) async fn object(
    registry: &Registry,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<Document, Failure> {
    let unserved = || Failure::internal(format!("{plural} are not served"));
    let objects = Local::new(registry, "", "v1", plural).ok_or_else(unserved)?;
    let found = objects.get(namespace, name).await?;
    found.ok_or_else(|| Failure::not_found(&GroupResource::new("", plural), name))
}

fn port_of(value: Option<&Value>) -> Option<u16> {
    value.and_then(Value::as_i64).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
}

impl Connections {
    /// A node's kubelet.
    pub(crate) async fn kubelet(
        &self,
        registry: &Registry,
        node: &str,
        is_verified: bool,
    ) -> Result<RemoteEndpoint, Failure> {
        let node = object(registry, "nodes", "", node).await?;
        let addresses = node.list(&["status", "addresses"]);
        let text = |address: &Value, field: &str| {
            address.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let host = self.address_types.iter().find_map(|wanted| {
            let mut of_type = addresses.iter().filter(|address| text(address, "type") == *wanted);
            of_type.next().map(|address| text(address, "address"))
        });
        let host = host.filter(|host| !host.is_empty()).ok_or_else(|| {
            let known: Vec<String> =
                addresses.iter().map(|address| text(address, "type")).collect();
            let known = known.join(" ");
            Failure::bare(500, format!("no preferred addresses found; known addresses: [{known}]"))
        })?;
        let port = port_of(node.get(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]));
        let security = if is_verified { Security::Kubelet } else { Security::UnverifiedKubelet };
        let port = port.unwrap_or(KUBELET_PORT);
        Ok(RemoteEndpoint { host, port, security, allowed: AllowedHosts::Kubelets })
    }

    /// `nodes/proxy`: the kubelet, or another port of its machine.
    pub(crate) async fn node(
        &self,
        registry: &Registry,
        name: &str,
    ) -> Result<RemoteEndpoint, Failure> {
        let wanted = ProxyName::parse(name, "node")?;
        let kubelet = self.kubelet(registry, wanted.name, true).await?;
        match wanted.number(kubelet.port)? {
            port if port == kubelet.port => Ok(kubelet),
            port => wanted.endpoint(&kubelet.host, port),
        }
    }
}

/// `pods/proxy`: a port of the pod's address.
pub(crate) async fn pod(
    registry: &Registry,
    namespace: &str,
    name: &str,
) -> Result<RemoteEndpoint, Failure> {
    let wanted = ProxyName::parse(name, "pod")?;
    let pod = object(registry, "pods", namespace, wanted.name).await?;
    let containers = pod.list(&["spec", "containers"]).iter();
    let first = containers.filter_map(|one| one.get("ports")?.as_array()?.as_slice().first());
    let first = first.filter_map(|port| port_of(port.get("containerPort"))).next();
    let port = wanted.number(first.unwrap_or(wanted.default_port()))?;
    wanted.endpoint(pod.str(&["status", "podIP"]).unwrap_or_default(), port)
}

/// `services/proxy`: an endpoint of the service that belongs to a pod. Holds no object while it
/// waits, as many requests for large ones may wait at a time.
pub(crate) async fn service(
    registry: &Registry,
    namespace: &str,
    name: &str,
) -> Result<RemoteEndpoint, Failure> {
    let wanted = ProxyName::parse(name, "service")?;
    let unavailable = |why: String| {
        let mut failure = Failure::bare(503, why);
        failure.reason = Some(Reason::ServiceUnavailable);
        failure
    };
    let mut port_name = wanted.port.to_owned();
    let service = object(registry, "services", namespace, wanted.name).await?;
    if let Ok(number) = wanted.port.parse::<i64>() {
        let ports = service.list(&["spec", "ports"]).iter();
        let is_it = |port: &&Value| port.get("port").and_then(Value::as_i64) == Some(number);
        let Some(port) = ports.clone().find(is_it) else {
            let why = format!("no service port {number} found for service {:?}", wanted.name);
            return Err(unavailable(why));
        };
        port_name = port.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    drop(service);
    let none = || unavailable(format!("no endpoints available for service {name:?}"));
    let endpoints = object(registry, "endpoints", namespace, wanted.name).await;
    let claimed = claimed(endpoints.map_err(|_| none())?, namespace, &port_name);
    for claim in claimed {
        if is_of_pod(registry, namespace, &claim).await {
            return wanted.endpoint(&claim.ip, claim.port);
        }
        pause().await;
    }
    Err(none())
}

/// An address in Endpoints, which users can write, that is said to be a pod's.
#[derive(Debug, PartialEq, Eq)]
struct ClaimedAddress {
    ip: String,
    port: u16,
    pod: String,
}

fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The first addresses with a port of that name which are said to be of pods of the namespace.
fn claimed(endpoints: Document, namespace: &str, port_name: &str) -> Vec<ClaimedAddress> {
    fn items<'a>(value: &'a Value, name: &str) -> &'a [Value] {
        value.get(name).and_then(Value::as_array).map_or(&[], |list| list.as_slice())
    }
    let claims = endpoints.list(&["subsets"]).iter().flat_map(move |subset| {
        let port = items(subset, "ports").iter().find(|port| field(port, "name") == port_name);
        let port = port.and_then(|port| port_of(port.get("port")));
        items(subset, "addresses").iter().filter_map(move |address| {
            let target = address.get("targetRef")?;
            let of = field(target, "namespace");
            let is_pod = field(target, "kind") == "Pod" && (of.is_empty() || of == namespace);
            let [ip, pod] = [field(address, "ip"), field(target, "name")].map(str::to_owned);
            is_pod.then_some(ClaimedAddress { ip, port: port?, pod })
        })
    });
    claims.take(MAX_PODS).collect()
}

/// Whether the address is the pod's.
async fn is_of_pod(registry: &Registry, namespace: &str, claim: &ClaimedAddress) -> bool {
    let Ok(pod) = object(registry, "pods", namespace, &claim.pod).await else { return false };
    let mut all = pod.list(&["status", "podIPs"]).iter();
    let ip = Some(claim.ip.as_str());
    pod.str(&["status", "podIP"]) == ip || all.any(|one| Some(field(one, "ip")) == ip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn only_addresses_that_are_said_to_be_of_pods_are_looked_up() {
        let address = |ip: &str, kind: &str, namespace: &str| json!({"ip": ip, "targetRef": {"kind": kind, "namespace": namespace, "name": "p"}});
        let subset = |port: &str, addresses: Value| {
            let ports = json!([{"name": "other", "port": 1}, {"name": port, "port": 80}]);
            json!({"ports": ports, "addresses": addresses})
        };
        let own = json!([
            {"ip": "10.0.0.1"},
            address("10.0.0.2", "Node", ""),
            address("10.0.0.3", "Pod", "elsewhere"),
            address("10.0.0.4", "Pod", "n"),
            address("10.0.0.5", "Pod", ""),
        ]);
        let subsets = json!([subset("b", own.clone()), subset("a", own)]);
        let endpoints = Document::from_value(json!({ "subsets": subsets })).unwrap();
        let claim = |ip: &str| ClaimedAddress { ip: ip.to_owned(), port: 80, pod: "p".to_owned() };
        let found = claimed(endpoints.clone(), "n", "a");
        assert_eq!(found, [claim("10.0.0.4"), claim("10.0.0.5")]);
        assert!(claimed(endpoints, "n", "none").is_empty());
        let many = json!([subset("a", vec![address("10.0.0.4", "Pod", "n"); 1000].into())]);
        let endpoints = Document::from_value(json!({ "subsets": many })).unwrap();
        assert_eq!(claimed(endpoints, "n", "a").len(), MAX_PODS);
    }
}
