//! Service environment variables, with kubelet's names.

use crate::objects::PodObjectError;
use crate::variables::{VariableRoom, Variables};
use k8s_openapi::api::core::v1::Service;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Namespace and name of the service whose variables every pod gets.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// Adds the variables of the API server's service and, with service links enabled, of all services
/// of the namespace, within `room`.
pub(crate) fn add_variables(
    all: &mut Variables,
    room: &mut VariableRoom,
    services: &[Arc<Service>],
    namespace: &str,
    has_links: bool,
) -> Result<(), PodObjectError> {
    // A service of the pod's namespace takes precedence over the API server's.
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let own = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        if has_links && own == namespace {
            chosen.insert(name, service);
        } else if (own, name) == API_SERVER {
            chosen.entry(name).or_insert(service);
        }
    }
    chosen.into_iter().try_for_each(|(name, service)| {
        add_links(name, service, |name, value| {
            room.take(name.len() + value.len())?;
            all.insert(name, value);
            Ok(())
        })
    })
}

/// Passes a service's variables to `add` until it fails.
fn add_links(
    name: &str,
    service: &Service,
    mut add: impl FnMut(String, String) -> Result<(), PodObjectError>,
) -> Result<(), PodObjectError> {
    let Some(spec) = &service.spec else { return Ok(()) };
    let address = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None");
    let ports = spec.ports.as_deref().unwrap_or_default();
    let (Some(address), Some(first)) = (address, ports.first()) else { return Ok(()) };
    let name = variable(name);
    let shown = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    add(format!("{name}_SERVICE_HOST"), address.to_owned())?;
    add(format!("{name}_SERVICE_PORT"), first.port.to_string())?;
    for port in ports {
        if let Some(own) = port.name.as_deref().filter(|own| !own.is_empty()) {
            add(format!("{name}_SERVICE_PORT_{}", variable(own)), port.port.to_string())?;
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let given = port.protocol.as_deref().filter(|given| !given.is_empty()).unwrap_or("TCP");
        let (protocol, number) = (given.to_lowercase(), port.port);
        let url = format!("{protocol}://{shown}:{number}");
        if index == 0 {
            add(format!("{name}_PORT"), url.clone())?;
        }
        let prefix = format!("{name}_PORT_{number}_{}", given.to_uppercase());
        add(format!("{prefix}_PROTO"), protocol)?;
        add(format!("{prefix}_PORT"), number.to_string())?;
        add(format!("{prefix}_ADDR"), address.to_owned())?;
        add(prefix, url)?;
    }
    Ok(())
}

fn variable(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variables::MAX_VARIABLES;
    use serde_json::json;

    fn service(namespace: &str, name: &str, ip: &str, ports: serde_json::Value) -> Arc<Service> {
        let metadata = json!({"namespace": namespace, "name": name});
        let spec = json!({"clusterIP": ip, "ports": ports});
        Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
    }

    fn variables(services: &[Arc<Service>], namespace: &str, has_links: bool) -> Variables {
        let mut all = Variables::new();
        add_variables(&mut all, &mut VariableRoom::new(), services, namespace, has_links).unwrap();
        all
    }

    #[test]
    fn names_and_values_are_kubelets() {
        let ports = json!([
            {"name": "web-ui", "port": 80, "protocol": "TCP"},
            {"name": "dns", "port": 53, "protocol": "UDP"}
        ]);
        let made = variables(&[service("n", "my-db", "fd00::1", ports)], "n", true);
        let expected = [
            ("MY_DB_PORT", "tcp://[fd00::1]:80"),
            ("MY_DB_PORT_53_UDP", "udp://[fd00::1]:53"),
            ("MY_DB_PORT_53_UDP_ADDR", "fd00::1"),
            ("MY_DB_PORT_53_UDP_PORT", "53"),
            ("MY_DB_PORT_53_UDP_PROTO", "udp"),
            ("MY_DB_PORT_80_TCP", "tcp://[fd00::1]:80"),
            ("MY_DB_PORT_80_TCP_ADDR", "fd00::1"),
            ("MY_DB_PORT_80_TCP_PORT", "80"),
            ("MY_DB_PORT_80_TCP_PROTO", "tcp"),
            ("MY_DB_SERVICE_HOST", "fd00::1"),
            ("MY_DB_SERVICE_PORT", "80"),
            ("MY_DB_SERVICE_PORT_DNS", "53"),
            ("MY_DB_SERVICE_PORT_WEB_UI", "80"),
        ];
        let made: Vec<_> = made.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(made, expected);
    }

    /// Names count, and nothing is made beyond the bound.
    #[test]
    fn services_of_many_ports_do_not_fill_the_memory() {
        let name = "n".repeat(63);
        let ports: Vec<_> = (0..60_000).map(|port| json!({"port": port})).collect();
        let services = [service("n", &name, "10.0.0.1", json!(ports))];
        let (mut all, mut room) = (Variables::new(), VariableRoom::new());
        let refused = add_variables(&mut all, &mut room, &services, "n", true).unwrap_err();
        assert_eq!(
            refused.to_string(),
            VariableRoom::new().take(usize::MAX).unwrap_err().to_string()
        );
        let bytes: usize = all.iter().map(|(name, value)| name.len() + value.len()).sum();
        let largest = 2 * (name.len() + 100);
        assert!(bytes <= MAX_VARIABLES && bytes + largest > MAX_VARIABLES, "{bytes}");
        assert!(
            add_variables(&mut all, &mut VariableRoom::new(), &services, "other", true).is_ok()
        );
    }

    #[test]
    fn the_api_server_is_named_everywhere_and_others_with_links_in_their_namespace() {
        let port = || json!([{"port": 443}]);
        let all = [
            service("default", "kubernetes", "10.0.0.1", port()),
            service("default", "other", "10.0.0.2", port()),
            service("n", "own", "10.0.0.3", port()),
            service("n", "headless", "None", port()),
            service("n", "external", "", json!([])),
        ];
        let hosts = |namespace: &str, has_links: bool| {
            let made = variables(&all, namespace, has_links).into_iter();
            let hosts = made.filter(|(name, _)| name.ends_with("_SERVICE_HOST"));
            hosts.map(|(_, host)| host).collect::<Vec<_>>()
        };
        assert_eq!(hosts("n", true), ["10.0.0.1", "10.0.0.3"]);
        assert_eq!(hosts("n", false), ["10.0.0.1"]);
        assert_eq!(hosts("default", true), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(hosts("default", false), ["10.0.0.1"]);
    }
}
