//! Requests of pods, and amounts of a node, by name of the resource.

use ferrokube_apimachinery::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as GivenQuantity;
use std::collections::BTreeMap;

/// Thousandths of cores for `cpu`, whole units for all others.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// A quantity that cannot be read counts as zero: the API server has validated it.
pub(crate) fn amounts(given: Option<&BTreeMap<String, GivenQuantity>>) -> Amounts {
    let amount = |name: &str, quantity: &GivenQuantity| {
        let quantity = Quantity::parse(&quantity.0).unwrap_or_default();
        if name == "cpu" { quantity.milli_value() } else { quantity.value() }
    };
    let all = given.into_iter().flatten();
    all.map(|(name, quantity)| (name.clone(), amount(name, quantity))).collect()
}

pub(crate) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let total = sum.entry(name.clone()).or_default();
        *total = total.saturating_add(*amount);
    }
}

/// The larger of both, resource by resource.
fn at_least(sum: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let total = sum.entry(name.clone()).or_default();
        *total = (*total).max(*amount);
    }
}

fn requests(resources: Option<&ResourceRequirements>) -> Amounts {
    amounts(resources.and_then(|resources| resources.requests.as_ref()))
}

fn of_container(container: &Container) -> Amounts {
    requests(container.resources.as_ref())
}

/// The pod's peak requests: its containers and sidecars, or an init container with
/// the sidecars before it; and its overhead. Requests of the pod itself replace those of
/// containers.
pub(crate) fn of_pod(spec: &PodSpec) -> Amounts {
    let mut sidecars = Amounts::new();
    let mut peak = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let mut own = of_container(container);
        add(&mut own, &sidecars);
        at_least(&mut peak, &own);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = own;
        }
    }
    let mut total = sidecars;
    spec.containers.iter().for_each(|container| add(&mut total, &of_container(container)));
    at_least(&mut total, &peak);
    total.extend(requests(spec.resources.as_ref()));
    add(&mut total, &amounts(spec.overhead.as_ref()));
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn cpu(spec: Value) -> i64 {
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        of_pod(&spec).get("cpu").copied().unwrap_or_default()
    }

    fn asks(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn a_pod_needs_what_it_needs_at_its_peak() {
        assert_eq!(cpu(json!({"containers": [asks("100m"), asks("1")]})), 1100);
        assert_eq!(cpu(json!({"containers": [{"name": "c"}]})), 0);
        let init = json!({"containers": [asks("100m")], "initContainers": [asks("500m")]});
        assert_eq!(cpu(init), 500);
        let mut sidecar = asks("200m");
        sidecar["restartPolicy"] = "Always".into();
        let with = json!({"containers": [asks("100m")], "initContainers": [sidecar, asks("500m")]});
        assert_eq!(cpu(with), 700, "the init container next to the sidecar");
        let after = json!({"containers": [asks("100m")], "initContainers": [asks("50m"), sidecar]});
        assert_eq!(cpu(after), 300, "the container next to the sidecar");
        let pod = json!({"containers": [asks("100m")], "overhead": {"cpu": "10m"},
            "resources": {"requests": {"cpu": "250m"}}});
        assert_eq!(cpu(pod), 260);
    }
}
