//! A pod's quality of service class, derived from its requests and limits.

use crate::cells::{at, list_at};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::quantity::Quantity;

const COUNTED: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub(super) fn class(pod: &Document) -> &'static str {
    let Some(spec) = pod.get(&["spec"]) else { return "BestEffort" };
    let own = at(spec, &["resources"]).filter(|value| !value.is_null());
    let all: Vec<&Value> = match own {
        Some(resources) => vec![resources],
        None => ["containers", "initContainers"]
            .into_iter()
            .flat_map(|list| list_at(spec, &[list]))
            .map(|container| container.get("resources").unwrap_or(&Value::Null))
            .collect(),
    };
    let amounts = |resources: &Value, field: &str| -> Vec<(&'static str, Quantity)> {
        let map = resources.get(field).and_then(Value::as_object);
        COUNTED.into_iter().filter_map(|name| Some((name, amount(map?, name)?))).collect()
    };
    let has_any = |resources: &&Value| {
        ["requests", "limits"].iter().any(|field| !amounts(resources, field).is_empty())
    };
    if !all.iter().any(has_any) {
        return "BestEffort";
    }
    let is_guaranteed = |resources: &Value| {
        let (requests, limits) = (amounts(resources, "requests"), amounts(resources, "limits"));
        let same = |(one, other): (&(&str, Quantity), &(&str, Quantity))| {
            one.0 == other.0 && one.1.canonical() == other.1.canonical()
        };
        limits.len() == COUNTED.len()
            && requests.len() == limits.len()
            && requests.iter().zip(&limits).all(same)
    };
    if all.iter().all(|resources| is_guaranteed(resources)) { "Guaranteed" } else { "Burstable" }
}

/// A positive amount of a resource.
fn amount(map: &Map, name: &str) -> Option<Quantity> {
    let amount = Quantity::from_value(map.get(name)?).ok()?;
    (!amount.is_zero() && !amount.is_negative()).then_some(amount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn classes_follow_requests_and_limits() {
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}});
        for (resources, expected) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"example.com/gpu": "1"}}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}), "Burstable"),
            (full, "Guaranteed"),
        ] {
            let pod = json!({"spec": {"containers": [{"resources": resources.clone()}]}});
            assert_eq!(class(&Document::from_value(pod).unwrap()), expected, "{resources}");
        }
    }
}
