//! `--profile kubernetes` in the real process: subresources that act on pods, and tokens that are
//! bound to pods and nodes.

mod lifecycle;

use crate::FERROKUBE;
use ferrokube_testkit::{ApiResponse, Client, Cluster, Launch};
use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// The API server alone, called as in a kubeadm cluster.
fn start() -> (Cluster, Client) {
    let cluster = Launch::new(FERROKUBE).role("kube-apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    (cluster, admin)
}

async fn create(admin: &Client, path: &str, object: Value) -> Value {
    let answer = admin.post(path, &object).await.unwrap();
    assert_eq!(answer.status, 201, "{path}: {}", answer.text);
    answer.body
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "w"}},
        "spec": {"serviceAccountName": "robot", "nodeName": node, "containers": [{"name": "c", "image": "example.com/c:1"}]},
    })
}

async fn status(admin: &Client, path: &str, status: Value) {
    let answer = admin.merge(&format!("{path}/status"), &json!({ "status": status })).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
}

async fn act(admin: &Client, name: &str, subresource: &str, body: Value) -> ApiResponse {
    let mut body = body;
    body["metadata"]["name"] = json!(name);
    admin.post(&format!("{PODS}/{name}/{subresource}"), &body).await.unwrap()
}

fn node(name: &str) -> Value {
    json!({"target": {"kind": "Node", "name": name}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_bound_once() {
    let (_cluster, admin) = start();
    create(&admin, PODS, pod("p", "")).await;
    let path = format!("{PODS}/p");
    let dry = format!("{path}/binding?dryRun=All");
    let mut body = node("n");
    body["metadata"] = json!({"name": "p", "labels": {"zone": "z"}});
    assert_eq!(admin.post(&dry, &body).await.unwrap().status, 201);
    assert_eq!(admin.get(&path).await.unwrap().body["spec"]["nodeName"], Value::Null);
    let answer = admin.post(&format!("{path}/binding"), &body).await.unwrap();
    let success = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    assert_eq!((answer.status, answer.body), (201, success));
    let bound = admin.get(&path).await.unwrap().body;
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(bound["metadata"]["labels"], json!({"app": "w", "zone": "z"}));
    assert_eq!(bound["metadata"]["generation"], 1, "a binding is no change of the spec");
    let scheduled = &bound["status"]["conditions"][0];
    assert_eq!(
        (&scheduled["type"], &scheduled["status"]),
        (&json!("PodScheduled"), &json!("True"))
    );
    // The older path.
    let old = "/api/v1/namespaces/default/bindings";
    let again = admin.post(old, &body).await.unwrap();
    assert_eq!(again.status, 409, "{}", again.text);
    create(&admin, PODS, pod("q", "")).await;
    body["metadata"] = json!({"name": "q"});
    assert_eq!(admin.post(old, &body).await.unwrap().status, 201);
    assert_eq!(admin.get(&format!("{PODS}/q")).await.unwrap().body["spec"]["nodeName"], "n");
    // Names that do not fit, and unknown pods.
    let other = admin.post(&format!("{path}/binding"), &body).await.unwrap();
    assert_eq!(other.status, 400, "{}", other.text);
    assert_eq!(act(&admin, "none", "binding", node("n")).await.status, 404);
    let nameless = act(&admin, "p", "binding", node("")).await;
    assert_eq!((nameless.status, &nameless.body["reason"]), (500, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_limits_evictions() {
    let (_cluster, admin) = start();
    let selector = json!({"matchLabels": {"app": "w"}});
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}});
    create(&admin, BUDGETS, budget.clone()).await;
    let ready = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    for name in ["p", "q", "r"] {
        create(&admin, PODS, pod(name, "n")).await;
        status(&admin, &format!("{PODS}/{name}"), ready.clone()).await;
    }
    let unseen = act(&admin, "p", "eviction", json!({})).await;
    assert_eq!(unseen.status, 429, "{}", unseen.text);
    assert_eq!(unseen.headers["retry-after"], "10");
    let path = format!("{BUDGETS}/b");
    let numbers = json!({"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2});
    status(&admin, &path, numbers).await;
    let dry = json!({"deleteOptions": {"dryRun": ["All"]}});
    assert_eq!(act(&admin, "p", "eviction", dry).await.status, 201);
    assert_eq!(admin.get(&path).await.unwrap().body["status"]["disruptionsAllowed"], 1);
    let odd = act(&admin, "p", "eviction", json!({"deleteOptions": {"dryRun": ["x"]}})).await;
    assert_eq!(odd.status, 422, "{}", odd.text);
    // Both at once: one is evicted.
    let (one, other) = tokio::join!(
        act(&admin, "p", "eviction", json!({})),
        act(&admin, "q", "eviction", json!({}))
    );
    let mut codes = [one.status, other.status];
    codes.sort_unstable();
    assert_eq!(codes, [201, 429], "{} {}", one.text, other.text);
    let refused = if one.status == 429 { one } else { other };
    let cause = &refused.body["details"]["causes"][0];
    assert_eq!(cause["reason"], "DisruptionBudget");
    assert!(!refused.headers.contains_key("retry-after"));
    let spent = admin.get(&path).await.unwrap().body;
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
    let disrupted = spent["status"]["disruptedPods"].as_object().unwrap();
    assert_eq!(disrupted.len(), 1, "{disrupted:?}");
    let evicted = admin.get(&format!("{PODS}/{}", disrupted.keys().next().unwrap())).await.unwrap();
    let conditions = evicted.body["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().any(|one| one["reason"] == "EvictionByEvictionAPI"),
        "{conditions:?}"
    );
    assert!(evicted.body["metadata"]["deletionTimestamp"].is_string());
    // A finished pod is not counted; the older version of the body is read.
    status(&admin, &format!("{PODS}/r"), json!({"phase": "Succeeded"})).await;
    let older = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction"});
    let finished = act(&admin, "r", "eviction", older).await;
    assert_eq!(finished.status, 201, "{}", finished.text);
    assert_eq!(admin.get(&format!("{PODS}/r")).await.unwrap().status, 404);
    // Two budgets of one pod.
    let mut second = budget;
    second["metadata"]["name"] = json!("c");
    create(&admin, BUDGETS, second).await;
    create(&admin, PODS, pod("s", "n")).await;
    status(&admin, &format!("{PODS}/s"), ready).await;
    assert_eq!(act(&admin, "s", "eviction", json!({})).await.status, 500);
}

/// The rows of a Table.
async fn rows(admin: &Client, path: &str) -> Value {
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    // Replaces the client's own.
    let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(TABLE))]);
    let answer = admin.send(admin.request(Method::GET, path).headers(accept)).await.unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    answer.body["rows"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_show_what_is_stored() {
    let (_cluster, admin) = start();
    let metric = |name: &str, target: Value| json!({"type": "Resource", "resource": {"name": name, "target": target}});
    let cpu = metric("cpu", json!({"type": "Utilization", "averageUtilization": 50}));
    let memory = metric("memory", json!({"type": "AverageValue", "averageValue": "1Mi"}));
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 3, "metrics": [cpu, memory]},
    });
    let path = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    create(&admin, &path("v2"), autoscaler).await;
    let targets = "cpu: <unknown>/50%, memory: <unknown>/1Mi";
    for place in [path("v1"), path("v2"), format!("{}/h", path("v2"))] {
        let rows = rows(&admin, &place).await;
        assert_eq!(rows[0]["cells"][2], targets, "{place}: {rows}");
        // What v1 keeps in annotations is none of the stored object's.
        let annotations = &rows[0]["object"]["metadata"]["annotations"];
        assert_eq!(annotations.get("autoscaling.alpha.kubernetes.io/metrics"), None, "{place}");
    }
    let whole = rows(&admin, &format!("{}?includeObject=Object", path("v1"))).await;
    assert_eq!(whole[0]["object"]["apiVersion"], "autoscaling/v1");
    assert_eq!(whole[0]["object"]["spec"]["targetCPUUtilizationPercentage"], 50);
    assert_eq!(whole[0]["object"]["status"]["currentReplicas"], 0);
    for name in ["p", "q"] {
        create(&admin, PODS, pod(name, "n")).await;
    }
    status(&admin, &format!("{PODS}/q"), json!({"phase": "Succeeded"})).await;
    let rows = rows(&admin, PODS).await;
    assert_eq!(rows[0].get("conditions"), None);
    let condition = json!({"type": "Completed", "status": "True", "reason": "Succeeded", "message": "The pod has completed successfully."});
    assert_eq!(rows[1]["conditions"], json!([condition]));
    let missing = admin.get("/api/v1/componentstatuses/none").await.unwrap();
    assert_eq!(
        (missing.status, &missing.body["details"]["kind"]),
        (404, &json!("componentstatus"))
    );
    // A node without addresses.
    let bare = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    create(&admin, "/api/v1/nodes", bare).await;
    let log = admin.get(&format!("{PODS}/p/log")).await.unwrap();
    let message = "no preferred addresses found; known addresses: []";
    assert_eq!((log.status, log.body.get("reason")), (500, None), "{}", log.text);
    assert_eq!(log.body["message"], message);
}

/// What kube-apiserver's internal types have as fields is none of the metadata on its own.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_on_its_own_lacks_annotations_of_internal_fields() {
    let (_cluster, admin) = start();
    let path = "/apis/apps/v1/namespaces/default/daemonsets";
    let labels = json!({"app": "w"});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]},
        }},
    });
    let made = create(&admin, path, set).await;
    let generation = "deprecated.daemonset.template.generation";
    assert_eq!(made["metadata"]["annotations"][generation], "1", "{made}");
    // Its writer owns it.
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:annotations"];
    assert_eq!(owned[format!("f:{generation}")], json!({}), "{made}");
    const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    const LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let one = format!("{path}/d");
    for (place, form, pointer) in
        [(one.as_str(), METADATA, ""), (path, LIST, "/items/0"), (path, "", "/0/object")]
    {
        let body = if form.is_empty() {
            rows(&admin, place).await
        } else {
            let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(form))]);
            admin.send(admin.request(Method::GET, place).headers(accept)).await.unwrap().body
        };
        let metadata = &body.pointer(pointer).unwrap()["metadata"];
        assert_eq!(metadata["name"], "d", "{form}");
        assert_eq!(metadata["annotations"].get(generation), None, "{form}");
    }
}

/// Fields and messages of the causes of a refusal.
fn causes(answer: &ApiResponse) -> Vec<(&str, &str)> {
    assert_eq!(answer.status, 422, "{}", answer.text);
    let causes = answer.body["details"]["causes"].as_array().unwrap();
    causes
        .iter()
        .map(|cause| (cause["field"].as_str().unwrap(), cause["message"].as_str().unwrap()))
        .collect()
}

/// Rules by which both servers differed over generated requests.
#[tokio::test(flavor = "multi_thread")]
async fn objects_are_judged_as_kube_apiserver_does() {
    let (_cluster, admin) = start();
    let address = json!({"metadata": {"generateName": "gen-"}, "spec": {"parentRef": {"resource": "r", "name": "n"}}});
    let addresses = "/apis/networking.k8s.io/v1/ipaddresses";
    let refused = admin.post(addresses, &address).await.unwrap();
    assert_eq!(refused.body["details"]["name"], "gen-", "{}", refused.text);

    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    let range = |cidrs: Value| json!({"metadata": {"name": "r"}, "spec": {"cidrs": cidrs}});
    create(&admin, ranges, range(json!(["192.168.0.0/24"]))).await;
    let path = format!("{ranges}/r");
    let refused = admin.put(&path, &range(json!(["192.168.0.1/24"]))).await.unwrap();
    assert_eq!(
        causes(&refused),
        [("spec.cidrs[0]", "Invalid value: \"192.168.0.1/24\": field is immutable")]
    );
    let refused = admin.put(&path, &range(json!(["192.168.0.0/24", "x"]))).await.unwrap();
    assert!(causes(&refused).iter().any(|(field, _)| *field == "spec.cidrs[1]"));

    let service = json!({
        "metadata": {"name": "s"},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}], "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {}}},
    });
    let made = create(&admin, "/api/v1/namespaces/default/services", service).await;
    assert_eq!(made["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10800);
    let labels = json!({"app": "w"});
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "r"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "managedFields": []}, "spec": {"containers": [{"name": "c", "image": "example.com/c:1"}]},
        }},
    });
    let made = create(&admin, "/apis/apps/v1/namespaces/default/replicasets", set).await;
    assert_eq!(made["spec"]["template"]["metadata"], json!({ "labels": labels }));

    let metric = json!({
        "object": {"describedObject": {"kind": "K", "name": "n"}, "metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}},
        "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}},
    });
    let scaler = |metric: &Value| json!({"metadata": {"name": "h"}, "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 3, "metrics": [metric]}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let refused = admin.post(path, &scaler(&metric)).await.unwrap();
    let only = "Forbidden: must populate the given metric source only";
    for field in ["spec.metrics[0].object", "spec.metrics[0].pods"] {
        assert!(causes(&refused).contains(&(field, only)), "{}", refused.text);
    }
    let single = json!({"type": "Object", "pods": metric["pods"]});
    let refused = admin.post(path, &scaler(&single)).await.unwrap();
    let missing = "Required value: must populate information for the given metric source";
    assert_eq!(causes(&refused), [("spec.metrics[0].object", missing)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_repeated_and_named_as_by_kube_apiserver() {
    let (_cluster, admin) = start();
    let volume = |label: &str| json!({"metadata": {"name": "v", "labels": {"a": label}}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/d"}}});
    create(&admin, "/api/v1/persistentvolumes", volume("b")).await;
    let refused = admin.put("/api/v1/persistentvolumes/v", &volume("-x")).await.unwrap();
    let fields: Vec<&str> = causes(&refused).iter().map(|(field, _)| *field).collect();
    assert_eq!(fields, ["metadata.labels"; 4], "{}", refused.text);
    create(&admin, PODS, pod("p", "n")).await;
    let older = json!({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": "a"});
    let refused = admin.post(&format!("{PODS}/p/eviction"), &older).await.unwrap();
    let start = "Eviction in version \"v1beta1\" cannot be handled as a Eviction: ";
    assert!(refused.body["message"].as_str().unwrap().starts_with(start), "{}", refused.text);
}

/// Administrators' access needs a label of the namespace; the allocation and each driver's status
/// need rights of their own.
#[tokio::test(flavor = "multi_thread")]
async fn devices_need_rights() {
    let (_cluster, admin) = start();
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = |name: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "adminAccess": true}}]}},
        })
    };
    let refused = admin.post(claims, &claim("a")).await.unwrap();
    let why = "Forbidden: admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace";
    assert_eq!(causes(&refused), [("spec.devices.requests[0].adminAccess", why)]);
    let label = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    admin.merge("/api/v1/namespaces/default", &label).await.unwrap();
    create(&admin, claims, claim("a")).await;

    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |rules: Value| json!({"metadata": {"name": "devices"}, "rules": rules});
    let rule = |resource: &str, verbs: Value| json!({"apiGroups": ["resource.k8s.io"], "resources": [resource], "verbs": verbs});
    let status = rule("resourceclaims/status", json!(["update", "patch"]));
    create(&admin, &format!("{rbac}/clusterroles"), role(json!([status]))).await;
    let binding = json!({
        "metadata": {"name": "devices"}, "subjects": [{"kind": "User", "name": "driver"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "devices"},
    });
    create(&admin, &format!("{rbac}/clusterrolebindings"), binding).await;
    let path = format!("{claims}/a/status");
    let allocation = json!({"devices": {"results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "v", "adminAccess": true}]}});
    let as_driver = |status: &Value| {
        admin
            .request(Method::PATCH, &path)
            .header("impersonate-user", "driver")
            .header("content-type", "application/merge-patch+json")
            .body(json!({ "status": status }).to_string())
    };
    let allocated = json!({ "allocation": allocation });
    let binds = "Forbidden: changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"patch\" permission: resourceclaims.resource.k8s.io is forbidden: User \"driver\" cannot patch resource \"resourceclaims/binding\" in API group \"resource.k8s.io\" at the cluster scope";
    let refused = admin.send(as_driver(&allocated)).await.unwrap();
    assert_eq!(causes(&refused), [("status.allocation", binds)]);
    let allowed = admin.merge(&path, &json!({ "status": allocated })).await.unwrap();
    assert_eq!(allowed.status, 200, "{}", allowed.text);
    let device = json!({"driver": "d.example.com", "pool": "p", "device": "v", "data": {"a": 1}});
    let reported = json!({ "devices": [device] });
    let refused = admin.send(as_driver(&reported)).await.unwrap();
    let drives = "Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[arbitrary-node:patch]\" permission: resourceclaims.resource.k8s.io \"d.example.com\" is forbidden: User \"driver\" cannot arbitrary-node:patch resource \"resourceclaims/driver\" in API group \"resource.k8s.io\" in the namespace \"default\"";
    assert_eq!(causes(&refused), [("status.devices", drives)]);
    let driver = rule("resourceclaims/driver", json!(["arbitrary-node:patch"]));
    let path_of_role = format!("{rbac}/clusterroles/devices");
    let granted = admin.put(&path_of_role, &role(json!([status, driver]))).await.unwrap();
    assert_eq!(granted.status, 200, "{}", granted.text);
    let allowed = admin.send(as_driver(&reported)).await.unwrap();
    assert_eq!(allowed.status, 200, "{}", allowed.text);
}

/// Connections are published, too; enumerations, and how fields merge, stand at the fields.
#[tokio::test(flavor = "multi_thread")]
async fn openapi_says_what_kube_apiserver_s_does() {
    let (_cluster, admin) = start();
    let core = admin.get("/openapi/v3/api/v1").await.unwrap().body;
    let pods = "/api/v1/namespaces/{namespace}/pods/{name}";
    for (path, method, id) in [
        (format!("{pods}/exec"), "post", "connectCoreV1PostNamespacedPodExec"),
        (format!("{pods}/log"), "get", "readCoreV1NamespacedPodLog"),
        (
            "/api/v1/nodes/{name}/proxy/{path}".to_owned(),
            "put",
            "connectCoreV1PutNodeProxyWithPath",
        ),
    ] {
        assert_eq!(core["paths"][&path][method]["operationId"], id, "{path}");
    }
    let proxy = &core["paths"]["/api/v1/nodes/{name}/proxy/{path}"]["parameters"];
    let places: Vec<&str> =
        proxy.as_array().unwrap().iter().map(|one| one["in"].as_str().unwrap()).collect();
    assert_eq!(places, ["path", "path", "query"], "{proxy}");
    let field = |document: &Value, name: &str, field: &str| {
        document["components"]["schemas"][format!("io.k8s.api.{name}")]["properties"][field].clone()
    };
    assert_eq!(
        field(&core, "core.v1.PodSpec", "restartPolicy")["enum"],
        json!(["Always", "Never", "OnFailure"])
    );
    let items = field(&core, "core.v1.ConfigMapProjection", "items");
    assert_eq!(items["x-kubernetes-list-type"], "atomic");
    assert_eq!(field(&core, "core.v1.PodList", "items").get("x-kubernetes-list-type"), None);
    let apps = admin.get("/openapi/v3/apis/apps/v1").await.unwrap().body;
    let strategy = "x-kubernetes-patch-strategy";
    assert_eq!(field(&apps, "apps.v1.DeploymentSpec", "strategy")[strategy], "retainKeys");
    let definition = &apps["components"]["schemas"]["io.k8s.api.apps.v1.DeploymentStrategy"];
    assert_eq!(definition.get(strategy), None);
}

/// v1 shows the CPU utilization apart from the other metrics, so it cannot tell their order.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_in_a_version_without_the_order_writes_that_versions_order() {
    let (_cluster, admin) = start();
    let metric = |name: &str, target: Value| json!({"type": "Resource", "resource": {"name": name, "target": target}});
    let cpu = metric("cpu", json!({"type": "Utilization", "averageUtilization": 50}));
    let memory = metric("memory", json!({"type": "AverageValue", "averageValue": "1Mi"}));
    let path = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}, "maxReplicas": 3, "metrics": [cpu, memory]},
    });
    create(&admin, &path("v2"), autoscaler).await;
    let (old, new) = (format!("{}/h", path("v1")), format!("{}/h", path("v2")));
    for _ in 0..2 {
        let shown = admin.get(&old).await.unwrap().body;
        let updated = admin.put(&old, &shown).await.unwrap();
        assert_eq!(updated.status, 200, "{}", updated.text);
        let stored = admin.get(&new).await.unwrap().body;
        assert_eq!(stored["spec"]["metrics"], json!([memory, cpu]));
        assert_eq!(
            stored["metadata"]["resourceVersion"],
            updated.body["metadata"]["resourceVersion"]
        );
    }
    let before = admin.get(&old).await.unwrap().body;
    let again = admin.put(&old, &before).await.unwrap().body;
    let version = "resourceVersion";
    assert_eq!(again["metadata"][version], before["metadata"][version], "nothing changed");
}

/// Annotations that kube-apiserver's internal types have as numbers.
#[tokio::test(flavor = "multi_thread")]
async fn a_generation_that_is_no_number_cannot_be_read() {
    let (_cluster, admin) = start();
    let path = "/apis/apps/v1/namespaces/default/daemonsets";
    let labels = json!({"app": "w"});
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod("p", "")["spec"].clone()}},
    });
    create(&admin, path, set.clone()).await;
    let why = r#"strconv.ParseInt: parsing "x": invalid syntax"#;
    let annotations = json!({"deprecated.daemonset.template.generation": "x"});
    set["metadata"] = json!({"name": "e", "annotations": annotations});
    let created = admin.post(path, &set).await.unwrap();
    assert_eq!((created.status, &created.body["reason"]), (400, &json!("BadRequest")));
    assert!(created.body["message"].as_str().unwrap().ends_with(why), "{}", created.text);
    let one = format!("{path}/d");
    let body = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"annotations": annotations}});
    let patched = admin.merge(&one, &body).await.unwrap();
    let causes = &patched.body["details"]["causes"];
    assert_eq!((patched.status, &causes[0]["field"]), (422, &json!("patch")), "{}", patched.text);
    let applied = format!("{one}?fieldManager=m&force=true");
    let types = [("strategic-merge-patch+json", &one), ("apply-patch+yaml", &applied)];
    for (media_type, path) in types {
        let request = admin.request(Method::PATCH, path);
        let request = request.header("content-type", format!("application/{media_type}"));
        let answer = admin.send(request.body(body.to_string())).await.unwrap();
        assert_eq!((answer.status, answer.body.get("reason")), (500, None), "{}", answer.text);
        assert!(answer.body["message"].as_str().unwrap().ends_with(why), "{}", answer.text);
    }
}

async fn review(admin: &Client, token: &str) -> Value {
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    create(admin, REVIEWS, body).await["status"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_live_as_long_as_their_pod_or_node() {
    let (cluster, admin) = start();
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    create(&admin, "/api/v1/namespaces/default/serviceaccounts", account).await;
    let of_node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    let of_node = create(&admin, "/api/v1/nodes", of_node).await;
    let of_pod = create(&admin, PODS, pod("p", "n")).await;
    let token = async |kind: &str, name: &str| {
        let bound = json!({"apiVersion": "v1", "kind": kind, "name": name});
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}});
        let path = "/api/v1/namespaces/default/serviceaccounts/robot/token";
        let answer = create(&admin, path, request).await;
        answer["status"]["token"].as_str().unwrap().to_owned()
    };
    let (by_pod, by_node) = (token("Pod", "p").await, token("Node", "n").await);
    let reviewed = review(&admin, &by_pod).await;
    assert_eq!(reviewed["authenticated"], true, "{reviewed}");
    let extra = &reviewed["user"]["extra"];
    let of = |field: &str| extra[format!("authentication.kubernetes.io/{field}")][0].clone();
    assert_eq!([of("pod-name"), of("node-name")], ["p", "n"]);
    assert_eq!(of("pod-uid"), of_pod["metadata"]["uid"]);
    assert_eq!(of("node-uid"), of_node["metadata"]["uid"]);
    assert_eq!(review(&admin, &by_node).await["authenticated"], true);
    let who = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let robot = cluster.with_token(&by_pod).unwrap();
    assert_eq!(robot.post(who, &body).await.unwrap().status, 201);
    // Evicted at once; one recreated under its name is another.
    let now = json!({"deleteOptions": {"gracePeriodSeconds": 0}});
    assert_eq!(act(&admin, "p", "eviction", now).await.status, 201);
    create(&admin, PODS, pod("p", "n")).await;
    assert_eq!(robot.post(who, &body).await.unwrap().status, 401);
    assert_eq!(review(&admin, &by_pod).await["authenticated"], Value::Null);
    assert_eq!(review(&admin, &by_node).await["authenticated"], true);
    assert_eq!(admin.delete("/api/v1/nodes/n").await.unwrap().status, 200);
    assert_eq!(review(&admin, &by_node).await["authenticated"], Value::Null);
}
