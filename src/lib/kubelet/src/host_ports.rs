//! Host ports: mapped by the runtime, each used by at most one pod.

use crate::pod::NodePod;
use ferrokube_cri::{PortMapping, PortProtocol};
use k8s_openapi::api::core::v1::ContainerPort;

/// kubelet's reason and message for a pod whose host ports are in use.
pub(crate) const TAKEN: (&str, &str) = (
    "NodePorts",
    "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
);

/// Port mappings for the runtime; none for a pod in the host network.
pub(crate) fn mappings(pod: &NodePod) -> Vec<PortMapping> {
    if pod.spec.host_network == Some(true) {
        return Vec::new();
    }
    all(pod)
}

/// Whether two pods use the same host port.
pub(crate) fn conflict(one: &NodePod, other: &NodePod) -> bool {
    let theirs = all(other);
    all(one).iter().any(|own| theirs.iter().any(|their| is_same(own, their)))
}

fn is_same(one: &PortMapping, other: &PortMapping) -> bool {
    let is_any = |mapping: &PortMapping| matches!(&*mapping.host_ip, "" | "0.0.0.0" | "::");
    let is_same_address = is_any(one) || is_any(other) || one.host_ip == other.host_ip;
    (one.host_port, one.protocol) == (other.host_port, other.protocol) && is_same_address
}

fn all(pod: &NodePod) -> Vec<PortMapping> {
    let is_on_host = pod.spec.host_network == Some(true);
    let mapping = |port: &ContainerPort| {
        // Defaulted by the API server, but not in manifests.
        let own = if is_on_host { port.container_port } else { 0 };
        let host_port = port.host_port.filter(|port| *port > 0).unwrap_or(own);
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => PortProtocol::Udp,
            Some("SCTP") => PortProtocol::Sctp,
            _ => PortProtocol::Tcp,
        };
        (host_port > 0).then(|| PortMapping {
            protocol: protocol as i32,
            container_port: port.container_port,
            host_port,
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
    };
    let ports = pod.all_containers().flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &str, ports: &str) -> NodePod {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{{spec}containers: [{{name: \
             c, image: i, ports: [{ports}]}}]}}}}"
        );
        NodePod::from_file(text.as_bytes(), "n").unwrap()
    }

    #[test]
    fn ports_of_the_node_are_mapped_unless_the_pod_is_in_its_network() {
        let ports = "{containerPort: 53, hostPort: 5353, protocol: UDP, hostIP: 10.0.0.1}, \
                     {containerPort: 80}";
        let made = mappings(&pod("", ports));
        let expected = PortMapping {
            protocol: PortProtocol::Udp as i32,
            container_port: 53,
            host_port: 5353,
            host_ip: "10.0.0.1".to_owned(),
        };
        assert_eq!(made, [expected]);
        assert!(mappings(&pod("hostNetwork: true, ", ports)).is_empty());
    }

    #[test]
    fn a_port_is_taken_by_protocol_and_address() {
        let one = pod("", "{containerPort: 1, hostPort: 80}");
        assert!(conflict(&one, &pod("", "{containerPort: 2, hostPort: 80}")));
        assert!(conflict(&one, &pod("", "{containerPort: 2, hostPort: 80, hostIP: 10.0.0.1}")));
        assert!(conflict(&one, &pod("hostNetwork: true, ", "{containerPort: 80}")));
        assert!(!conflict(&one, &pod("", "{containerPort: 2, hostPort: 80, protocol: UDP}")));
        assert!(!conflict(&one, &pod("", "{containerPort: 80}, {containerPort: 1, hostPort: 81}")));
        let at = |ip: &str| pod("", &format!("{{containerPort: 1, hostPort: 80, hostIP: {ip}}}"));
        assert!(!conflict(&at("10.0.0.1"), &at("10.0.0.2")));
    }
}
