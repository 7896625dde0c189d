//! Whether a pod may be on a node: selectors, affinity to nodes, taints.

use k8s_openapi::api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};
use std::collections::BTreeMap;

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Whether the node's labels and name match the pod's node selector and required affinity.
pub(crate) fn is_selected(spec: &PodSpec, node: &Node) -> bool {
    let none = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&none);
    let mut wanted = spec.node_selector.iter().flatten();
    if wanted.any(|(key, value)| labels.get(key) != Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|all| all.node_affinity.as_ref());
    let required =
        affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let Some(selector) = required else { return true };
    selector.node_selector_terms.iter().any(|term| has_term(term, labels, name))
}

/// A term without requirements selects nothing.
fn has_term(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let has = |one: &NodeSelectorRequirement, value: Option<&str>| {
        is_met(&one.operator, one.values.as_deref().unwrap_or_default(), value)
    };
    let of_label =
        |one: &NodeSelectorRequirement| has(one, labels.get(&one.key).map(String::as_str));
    let of_field =
        |one: &NodeSelectorRequirement| one.key == "metadata.name" && has(one, Some(name));
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(of_label)
        && fields.iter().all(of_field)
}

/// Whether a label with this value, or its absence, satisfies a requirement.
pub(crate) fn is_met(operator: &str, values: &[String], value: Option<&str>) -> bool {
    let is_listed = || value.is_some_and(|value| values.iter().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || Some((number(value?)?, number(values.first()?)?));
    match operator {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|(own, bound)| own > bound),
        "Lt" => compared().is_some_and(|(own, bound)| own < bound),
        _ => false,
    }
}

/// The first taint that keeps the pod away. Conditions of the node count as the taints that the
/// node controller would derive from them, since it may not run.
pub(crate) fn untolerated(spec: &PodSpec, node: &Node) -> Option<Taint> {
    let given = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let all = given.into_iter().chain(from_conditions(node));
    let keeps_away = |taint: &Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    all.filter(keeps_away).find(|taint| !tolerations.iter().any(|one| tolerates(one, taint)))
}

fn from_conditions(node: &Node) -> Vec<Taint> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
    let has = |type_: &str, status: &str| {
        conditions.unwrap_or_default().iter().any(|it| it.type_ == type_ && it.status == status)
    };
    let taint = |key: &str| Taint {
        key: key.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let mut taints = Vec::new();
    if !has("Ready", "True") {
        taints.push(taint(NOT_READY));
    }
    for (type_, key) in [
        ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
        ("DiskPressure", "node.kubernetes.io/disk-pressure"),
        ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ] {
        if has(type_, "True") {
            taints.push(taint(key));
        }
    }
    taints
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    let has_effect = effect.is_empty() || effect == taint.effect;
    let has_key = key.is_empty() || key == taint.key;
    let has_value = match text(&toleration.operator).as_str() {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && text(&toleration.value) == text(&taint.value),
        _ => false,
    };
    has_effect && has_key && has_value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(spec: Value, conditions: Value) -> Node {
        let metadata = json!({"name": "n", "labels": {"zone": "a", "size": "5"}});
        let node =
            json!({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}});
        serde_json::from_value(node).unwrap()
    }

    fn ready() -> Value {
        json!([{"type": "Ready", "status": "True"}])
    }

    fn spec(fields: Value) -> PodSpec {
        let mut spec = json!({"containers": []});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_pod_goes_where_its_selectors_say() {
        let node = node(json!({}), ready());
        let selected = |fields: Value| is_selected(&spec(fields), &node);
        assert!(selected(json!({})));
        assert!(selected(json!({"nodeSelector": {"zone": "a"}})));
        assert!(!selected(json!({"nodeSelector": {"zone": "a", "disk": "ssd"}})));
        let terms = |terms: Value| {
            selected(json!({"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
        };
        let one = |operator: &str, key: &str, values: &[&str]| {
            let requirement = json!({"key": key, "operator": operator, "values": values});
            terms(json!([{"matchExpressions": [requirement]}]))
        };
        assert!(one("In", "zone", &["a", "b"]));
        assert!(!one("In", "disk", &["a"]));
        assert!(!one("NotIn", "zone", &["a"]));
        assert!(one("NotIn", "disk", &["a"]), "as no such label is another value");
        assert!(one("Exists", "zone", &[]) && !one("DoesNotExist", "zone", &[]));
        assert!(one("Gt", "size", &["4"]) && !one("Gt", "size", &["5"]));
        assert!(one("Lt", "size", &["6"]) && !one("Lt", "zone", &["6"]));
        assert!(!terms(json!([{}])), "an empty term selects nothing");
        let name = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        assert!(terms(json!([name("m"), name("n")])), "one term suffices");
        assert!(!terms(json!([name("m")])));
    }

    #[test]
    fn a_taint_keeps_pods_away_that_do_not_tolerate_it() {
        let tainted = node(
            json!({"taints": [{"key": "a", "value": "b", "effect": "NoExecute"},
                {"key": "soft", "effect": "PreferNoSchedule"}]}),
            ready(),
        );
        let by = |toleration: Value| {
            let spec = spec(json!({"tolerations": [toleration]}));
            untolerated(&spec, &tainted).map(|taint| taint.key)
        };
        let kept = Some("a".to_owned());
        assert_eq!(untolerated(&spec(json!({})), &tainted).map(|taint| taint.key), kept);
        assert_eq!(by(json!({"key": "a", "value": "b"})), None);
        assert_eq!(by(json!({"key": "a", "value": "c"})), kept);
        assert_eq!(by(json!({"key": "a", "operator": "Exists"})), None);
        assert_eq!(by(json!({"operator": "Exists"})), None);
        assert_eq!(by(json!({"key": "a", "value": "b", "effect": "NoSchedule"})), kept);
        assert_eq!(by(json!({"key": "x", "operator": "Exists"})), kept);
    }

    #[test]
    fn a_node_that_is_not_ready_or_under_pressure_is_as_if_tainted() {
        let of = |conditions: Value| {
            untolerated(&spec(json!({})), &node(json!({}), conditions)).map(|taint| taint.key)
        };
        assert_eq!(of(ready()), None);
        let key = |name: &str| Some(format!("node.kubernetes.io/{name}"));
        assert_eq!(of(json!([])), key("not-ready"));
        assert_eq!(of(json!([{"type": "Ready", "status": "False"}])), key("not-ready"));
        let pressed = json!([{"type": "Ready", "status": "True"},
            {"type": "DiskPressure", "status": "True"}, {"type": "PIDPressure", "status": "False"}]);
        assert_eq!(of(pressed), key("disk-pressure"));
    }
}
