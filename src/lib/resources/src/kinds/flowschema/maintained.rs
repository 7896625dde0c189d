//! The schemas that the server maintains: kube-apiserver's.

use ferrokube_apimachinery::document::{Value, json};
use ferrokube_resource::MaintainedObject;
use std::sync::LazyLock;

pub(super) static SCHEMAS: LazyLock<Vec<MaintainedObject>> = LazyLock::new(|| {
    let everyone = || groups(&["system:unauthenticated", "system:authenticated"]);
    let kube_system = json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "kube-system"}});
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let (manager, scheduler) =
        (user("system:kube-controller-manager"), user("system:kube-scheduler"));
    let nodes = || groups(&["system:nodes"]);
    let masters = groups(&["system:masters"]);
    let accounts = groups(&["system:serviceaccounts"]);
    let probes = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]);
    let leases = |verbs: &[&str]| json!({"verbs": verbs, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "namespaces": ["*"]});
    let nodes_and_status = json!({
        "verbs": ["*"], "apiGroups": [""], "resources": ["nodes", "nodes/status"],
        "clusterScope": true, "namespaces": ["*"],
    });
    let leading = [manager.clone(), scheduler.clone(), kube_system.clone()];
    let election =
        json!({"subjects": leading, "resourceRules": [leases(&["get", "create", "update"])]});
    let node_high =
        json!({"subjects": nodes(), "resourceRules": [nodes_and_status, leases(&["*"])]});
    let probing = json!({"subjects": everyone(), "nonResourceRules": probes});
    let one = |subject: Value| json!([subject]);
    vec![
        mandatory(schema("exempt", "exempt", 1, "", all_of(masters))),
        suggested(schema("probes", "exempt", 2, "", probing)),
        suggested(schema("system-leader-election", "leader-election", 100, "ByUser", election)),
        suggested(schema("system-node-high", "node-high", 400, "ByUser", node_high)),
        suggested(schema("system-nodes", "system", 500, "ByUser", all_of(nodes()))),
        suggested(schema(
            "kube-controller-manager",
            "workload-high",
            800,
            "ByNamespace",
            all_of(one(manager)),
        )),
        suggested(schema(
            "kube-scheduler",
            "workload-high",
            800,
            "ByNamespace",
            all_of(one(scheduler)),
        )),
        suggested(schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            "ByNamespace",
            all_of(one(kube_system)),
        )),
        suggested(schema("service-accounts", "workload-low", 9000, "ByUser", all_of(accounts))),
        suggested(schema("global-default", "global-default", 9900, "ByUser", all_of(everyone()))),
        mandatory(schema("catch-all", "catch-all", 10_000, "ByUser", all_of(everyone()))),
    ]
});

fn mandatory(object: Value) -> MaintainedObject {
    MaintainedObject::new(object, true)
}

fn suggested(object: Value) -> MaintainedObject {
    MaintainedObject::new(object, false)
}

fn groups(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect()
}

/// Every request of the subjects.
fn all_of(subjects: Value) -> Value {
    json!({
        "subjects": subjects,
        "resourceRules": [{
            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true,
            "namespaces": ["*"],
        }],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    })
}

/// `level`: the priority level; `method`: of the distinguisher, empty for one flow.
fn schema(name: &str, level: &str, precedence: i64, method: &str, rule: Value) -> Value {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": precedence,
        "rules": [rule],
    });
    if !method.is_empty() {
        spec["distinguisherMethod"] = json!({ "type": method });
    }
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        "metadata": {"name": name},
        "spec": spec,
    })
}
