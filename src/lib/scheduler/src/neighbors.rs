//! Required affinity and anti-affinity between pods, where all pods are on one node.

use crate::selection::is_met;
use k8s_openapi::api::core::v1::{Affinity, Node, Pod, PodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Why a pod cannot run next to those of the node; kube-scheduler's message.
pub(crate) fn refusal(pod: &Pod, node: &Node, others: &[&Pod]) -> Option<&'static str> {
    let affinity = affinity_terms(pod);
    let anti_affinity = anti_affinity_terms(pod);
    let needs_namespaces = |term: &PodAffinityTerm| {
        let selector = term.namespace_selector.as_ref();
        selector.is_some_and(|selector| !is_empty(selector))
    };
    if affinity.iter().chain(anti_affinity).any(needs_namespaces) {
        return Some("node(s) could not be compared: namespaceSelector is not implemented");
    }
    let has_topology = |term: &PodAffinityTerm| {
        node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(&term.topology_key))
    };
    let joins = |other: &Pod| affinity.iter().all(|term| selects(term, pod, other));
    // The first pod of a group with affinity to itself has none to join.
    let is_met = others.iter().any(|other| joins(other)) || joins(pod);
    if !(affinity.iter().all(has_topology) && is_met) {
        return Some("node(s) didn't match pod affinity rules");
    }
    let repels = |term: &PodAffinityTerm| {
        has_topology(term) && others.iter().any(|other| selects(term, pod, other))
    };
    if anti_affinity.iter().any(repels) {
        return Some("node(s) didn't match pod anti-affinity rules");
    }
    let repelled = others.iter().any(|other| {
        let terms = anti_affinity_terms(other);
        terms.iter().any(|term| has_topology(term) && selects(term, other, pod))
    });
    repelled.then_some("node(s) didn't satisfy existing pods anti-affinity rules")
}

fn affinity(pod: &Pod) -> Option<&Affinity> {
    pod.spec.as_ref()?.affinity.as_ref()
}

fn affinity_terms(pod: &Pod) -> &[PodAffinityTerm] {
    let own = affinity(pod).and_then(|all| all.pod_affinity.as_ref());
    let terms =
        own.and_then(|own| own.required_during_scheduling_ignored_during_execution.as_ref());
    terms.map(Vec::as_slice).unwrap_or_default()
}

fn anti_affinity_terms(pod: &Pod) -> &[PodAffinityTerm] {
    let own = affinity(pod).and_then(|all| all.pod_anti_affinity.as_ref());
    let terms =
        own.and_then(|own| own.required_during_scheduling_ignored_during_execution.as_ref());
    terms.map(Vec::as_slice).unwrap_or_default()
}

/// Whether a term of `owner` is about `other`.
fn selects(term: &PodAffinityTerm, owner: &Pod, other: &Pod) -> bool {
    let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
    let listed = term.namespaces.as_deref().unwrap_or_default();
    let is_there = match &term.namespace_selector {
        Some(selector) if is_empty(selector) => true,
        _ if listed.is_empty() => owner.metadata.namespace.as_deref() == Some(namespace),
        _ => listed.iter().any(|one| one == namespace),
    };
    is_there && term.label_selector.as_ref().is_some_and(|selector| matches(selector, other))
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.as_ref().is_none_or(|expressions| expressions.is_empty())
}

fn matches(selector: &LabelSelector, pod: &Pod) -> bool {
    let label = |key: &str| {
        let labels = pod.metadata.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    };
    let mut equal = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    equal.all(|(key, value)| label(key) == Some(value))
        && expressions.all(|one| {
            let values = one.values.as_deref().unwrap_or_default();
            is_met(&one.operator, values, label(&one.key))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, affinity: Value) -> Pod {
        let metadata = json!({"name": name, "namespace": "x", "labels": {"app": name}});
        let spec = json!({"containers": [], "affinity": affinity});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    fn term(app: &str) -> Value {
        json!({"topologyKey": "host", "labelSelector": {"matchLabels": {"app": app}}})
    }

    fn required(kind: &str, term: Value) -> Value {
        json!({kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    }

    fn node() -> Node {
        serde_json::from_value(json!({"metadata": {"labels": {"host": "n"}}})).unwrap()
    }

    #[test]
    fn pods_that_repel_each_other_are_not_on_one_node() {
        let (web, db) = (pod("web", json!({})), pod("db", json!({})));
        let shy = pod("shy", required("podAntiAffinity", term("web")));
        assert_eq!(refusal(&web, &node(), &[&db]), None);
        assert_eq!(refusal(&shy, &node(), &[&db]), None);
        let why = "node(s) didn't match pod anti-affinity rules";
        assert_eq!(refusal(&shy, &node(), &[&db, &web]), Some(why));
        let why = "node(s) didn't satisfy existing pods anti-affinity rules";
        assert_eq!(refusal(&web, &node(), &[&shy]), Some(why));
        let mut elsewhere = term("web");
        elsewhere["namespaces"] = json!(["y"]);
        let other = pod("other", required("podAntiAffinity", elsewhere.clone()));
        assert_eq!(refusal(&other, &node(), &[&web]), None);
        elsewhere["namespaceSelector"] = json!({});
        let all = pod("all", required("podAntiAffinity", elsewhere.clone()));
        assert!(refusal(&all, &node(), &[&web]).is_some(), "an empty selector is all namespaces");
        elsewhere["namespaceSelector"] = json!({"matchLabels": {"a": "b"}});
        let unknown = pod("unknown", required("podAntiAffinity", elsewhere));
        assert!(refusal(&unknown, &node(), &[]).is_some());
        let mut expressions = term("web");
        expressions["labelSelector"] =
            json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["db"]}]});
        let picky = pod("picky", required("podAntiAffinity", expressions));
        assert_eq!(refusal(&picky, &node(), &[&db]), None);
        assert!(refusal(&picky, &node(), &[&web]).is_some());
    }

    #[test]
    fn a_pod_joins_those_it_wants_to_be_with() {
        let friend = pod("friend", required("podAffinity", term("web")));
        let why = Some("node(s) didn't match pod affinity rules");
        assert_eq!(refusal(&friend, &node(), &[]), why);
        assert_eq!(refusal(&friend, &node(), &[&pod("web", json!({}))]), None);
        assert_eq!(refusal(&friend, &Node::default(), &[&pod("web", json!({}))]), why);
        let first = pod("web", required("podAffinity", term("web")));
        assert_eq!(refusal(&first, &node(), &[]), None, "the first of its group");
    }
}
