//! The downward API: fields of a pod, and of its containers' resources, as text.

use crate::node::cpus;
use crate::objects::PodObjectError;
use crate::pod::NodePod;
use ferrokube_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, ResourceFieldSelector};
use std::collections::BTreeMap;

/// Addresses and names that are known only on the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFacts {
    pub(crate) node: String,
    /// Bytes of the node's memory.
    pub(crate) memory: u64,
    pub(crate) host_ips: Vec<String>,
    pub(crate) pod_ips: Vec<String>,
}

/// A field by its path.
pub(crate) fn field(
    pod: &NodePod,
    facts: &NodeFacts,
    path: &str,
) -> Result<String, PodObjectError> {
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = match map {
            "metadata.labels" => &pod.labels,
            "metadata.annotations" => &pod.annotations,
            _ => return Err(PodObjectError::Invalid(format!("unsupported fieldPath: {path}"))),
        };
        return Ok(map.get(key).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => pod.name.clone(),
        "metadata.namespace" => pod.namespace.clone(),
        "metadata.uid" => pod.uid.clone(),
        "metadata.labels" => lines(&pod.labels),
        "metadata.annotations" => lines(&pod.annotations),
        "spec.nodeName" => facts.node.clone(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => facts.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => facts.host_ips.join(","),
        "status.podIP" => facts.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => facts.pod_ips.join(","),
        _ => return Err(PodObjectError::Invalid(format!("unsupported fieldPath: {path}"))),
    })
}

/// One line per entry, with a quoted value.
fn lines(map: &BTreeMap<String, String>) -> String {
    map.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
}

/// A container's request or limit in units of the divisor, rounded up.
pub(crate) fn resource(
    pod: &NodePod,
    facts: &NodeFacts,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
) -> Result<String, PodObjectError> {
    let invalid = |why: String| PodObjectError::Invalid(why);
    let named = |name: &String| pod.all_containers().find(|container| container.name == *name);
    let container = match &selector.container_name {
        Some(name) if !name.is_empty() => named(name),
        _ => own,
    };
    let container = container.ok_or_else(|| {
        let name = selector.container_name.clone().unwrap_or_default();
        invalid(format!("container {name} not found"))
    })?;
    let wanted = selector.resource.as_str();
    let (list, name) = wanted
        .split_once('.')
        .ok_or_else(|| invalid(format!("unsupported container resource : {wanted}")))?;
    let resources = container.resources.clone().unwrap_or_default();
    let (limits, requests) = (resources.limits, resources.requests);
    let amount = |list: Option<BTreeMap<_, _>>| list?.remove(name);
    let found: Option<k8s_openapi::apimachinery::pkg::api::resource::Quantity> = match list {
        "limits" => amount(limits),
        "requests" => amount(requests),
        _ => return Err(invalid(format!("unsupported container resource : {wanted}"))),
    };
    let milli = |text: &str| {
        let parsed = Quantity::parse(text);
        parsed.map(|amount| amount.milli_value()).map_err(|_| invalid(format!("quantity {text}")))
    };
    // Without a limit, kubelet reports the node's capacity.
    let found = match found {
        Some(found) => milli(&found.0)?,
        None if list == "limits" => node_amount(name, facts.memory),
        None => 0,
    };
    let divisor = selector.divisor.as_ref().map_or("1", |divisor| &divisor.0);
    let divisor = milli(if divisor == "0" { "1" } else { divisor })?.max(1);
    Ok((found / divisor + i64::from(found % divisor > 0)).to_string())
}

/// The machine's capacity, in thousandths.
fn node_amount(name: &str, memory: u64) -> i64 {
    let whole = match name {
        "cpu" => i64::try_from(cpus()),
        "memory" => i64::try_from(memory),
        _ => Ok(0),
    };
    whole.unwrap_or(i64::MAX).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> NodePod {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ns, labels: {b: '2', \
                    a: 'x\"y'}}\nspec: {containers: [{name: c, image: i, resources: {limits: \
                    {cpu: 1500m, memory: 64Mi}}}]}";
        NodePod::from_file(text.as_bytes(), "n").unwrap()
    }

    #[test]
    fn fields_of_the_pod_and_its_node() {
        let facts = NodeFacts {
            node: "n".to_owned(),
            memory: 0,
            host_ips: vec!["10.0.0.1".to_owned()],
            pod_ips: vec!["10.1.0.1".to_owned(), "fd00::1".to_owned()],
        };
        let check = |path: &str, expected: &str| {
            assert_eq!(field(&pod(), &facts, path).as_deref(), Ok(expected), "{path}");
        };
        check("metadata.name", "p-n");
        check("metadata.labels['b']", "2");
        check("metadata.labels['none']", "");
        check("metadata.labels", "a=\"x\\\"y\"\nb=\"2\"");
        check("status.podIPs", "10.1.0.1,fd00::1");
        check("status.hostIP", "10.0.0.1");
        assert!(field(&pod(), &facts, "spec.containers").is_err());
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let pod = pod();
        let of = |name: &str, divisor: &str| {
            let selector = ResourceFieldSelector {
                resource: name.to_owned(),
                divisor: Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity(
                    divisor.to_owned(),
                )),
                container_name: None,
            };
            let facts = NodeFacts { memory: 3 << 30, ..NodeFacts::default() };
            resource(&pod, &facts, pod.all_containers().next(), &selector)
        };
        assert_eq!(of("limits.cpu", "0").as_deref(), Ok("2"));
        assert_eq!(of("limits.cpu", "1m").as_deref(), Ok("1500"));
        assert_eq!(of("limits.memory", "1Mi").as_deref(), Ok("64"));
        assert_eq!(of("requests.cpu", "1").as_deref(), Ok("0"));
        assert!(of("limits", "1").is_err());
    }
}
