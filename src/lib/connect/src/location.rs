//! The destination of a request, from stored objects, whose addresses are controlled by users.

use crate::Connections;
use crate::dial::{AllowedHosts, RemoteEndpoint, Security};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_registry::{Local, Registry};

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

/// `services/proxy`: an endpoint of the service that belongs to a pod.
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
    let service = object(registry, "services", namespace, wanted.name).await?;
    let mut port_name = wanted.port.to_owned();
    if let Ok(number) = wanted.port.parse::<i64>() {
        let ports = service.list(&["spec", "ports"]).iter();
        let is_it = |port: &&Value| port.get("port").and_then(Value::as_i64) == Some(number);
        let Some(port) = ports.clone().find(is_it) else {
            let why = format!("no service port {number} found for service {:?}", wanted.name);
            return Err(unavailable(why));
        };
        port_name = port.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    let none = || unavailable(format!("no endpoints available for service {name:?}"));
    let endpoints = object(registry, "endpoints", namespace, wanted.name).await;
    let endpoints = endpoints.map_err(|_| none())?;
    for subset in endpoints.list(&["subsets"]) {
        let items = |field: &str| {
            subset.get(field).and_then(Value::as_array).map(|list| list.as_slice().to_vec())
        };
        let ports = items("ports").unwrap_or_default();
        let named = ports
            .iter()
            .find(|port| port.get("name").and_then(Value::as_str).unwrap_or_default() == port_name);
        let Some(port) = named.and_then(|port| port_of(port.get("port"))) else { continue };
        for address in items("addresses").unwrap_or_default() {
            let ip = address.get("ip").and_then(Value::as_str).unwrap_or_default();
            if is_of_pod(registry, namespace, &address, ip).await {
                return wanted.endpoint(ip, port);
            }
        }
    }
    Err(none())
}

/// Whether an address in Endpoints, which users can write, belongs to a pod.
async fn is_of_pod(registry: &Registry, namespace: &str, address: &Value, ip: &str) -> bool {
    let Some(target) = address.get("targetRef") else { return false };
    let text = |field: &str| target.get(field).and_then(Value::as_str).unwrap_or_default();
    let is_here = text("namespace").is_empty() || text("namespace") == namespace;
    if text("kind") != "Pod" || !is_here {
        return false;
    }
    let Ok(pod) = object(registry, "pods", namespace, text("name")).await else { return false };
    let all = pod.list(&["status", "podIPs"]).iter();
    let mut all = all.filter_map(|one| one.get("ip").and_then(Value::as_str));
    pod.str(&["status", "podIP"]) == Some(ip) || all.any(|one| one == ip)
}
