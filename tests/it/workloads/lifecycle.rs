//! Deletes, scales, selections and changes of workloads, as kube-apiserver 1.36 answers them.

use super::{PODS, create, pod, start, status};
use ferrokube_testkit::{ApiResponse, Client};
use serde_json::{Value, json};

/// The grace period that the pod has after a delete; `None` once it is gone.
async fn delete(admin: &Client, name: &str, query: &str) -> Option<Value> {
    let path = format!("{PODS}/{name}");
    let answer = admin.delete(&format!("{path}{query}")).await.unwrap();
    assert_eq!((answer.status, &answer.body["kind"]), (200, &json!("Pod")), "{}", answer.text);
    let left = admin.get(&path).await.unwrap();
    (left.status != 404).then(|| left.body["metadata"]["deletionGracePeriodSeconds"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_deleted_gracefully() {
    let (_cluster, admin) = start();
    create(&admin, PODS, pod("pending", "")).await;
    assert_eq!(delete(&admin, "pending", "").await, None, "no kubelet runs it");
    let mut slow = pod("slow", "n");
    slow["spec"]["terminationGracePeriodSeconds"] = json!(600);
    create(&admin, PODS, slow).await;
    for (query, period) in [
        ("", Some(json!(600))),
        ("?gracePeriodSeconds=400", Some(json!(400))),
        // No delete makes it longer.
        ("?gracePeriodSeconds=500", Some(json!(400))),
        ("?gracePeriodSeconds=0", None),
    ] {
        assert_eq!(delete(&admin, "slow", query).await, period, "{query}");
    }
    create(&admin, PODS, pod("negative", "n")).await;
    let negative = delete(&admin, "negative", "?gracePeriodSeconds=-1").await;
    assert_eq!(negative, Some(json!(1)));
    create(&admin, PODS, pod("finished", "n")).await;
    status(&admin, &format!("{PODS}/finished"), json!({"phase": "Succeeded"})).await;
    assert_eq!(delete(&admin, "finished", "").await, None);
    let mut held = pod("held", "n");
    held["metadata"]["finalizers"] = json!(["example.com/x"]);
    create(&admin, PODS, held).await;
    assert_eq!(delete(&admin, "held", "?gracePeriodSeconds=0").await, Some(json!(0)));
    let path = format!("{PODS}/held");
    admin.merge(&path, &json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert_eq!(admin.get(&path).await.unwrap().status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_selected_by_their_fields() {
    let (_cluster, admin) = start();
    create(&admin, PODS, pod("bound", "n")).await;
    let mut other = pod("other", "");
    other["spec"]["restartPolicy"] = json!("Never");
    other["spec"]["schedulerName"] = json!("mine");
    other["spec"]["hostNetwork"] = json!(true);
    create(&admin, PODS, other).await;
    let running = json!({"phase": "Running", "podIP": "10.0.0.1"});
    status(&admin, &format!("{PODS}/bound"), running).await;
    for (selector, names) in [
        ("spec.nodeName=n", "bound"),
        ("spec.nodeName=", "other"),
        ("spec.nodeName!=", "bound"),
        ("spec.restartPolicy=Never", "other"),
        ("spec.schedulerName=default-scheduler", "bound"),
        ("spec.serviceAccountName=robot", "bound other"),
        ("spec.hostNetwork=false", "bound"),
        ("status.phase=Pending", "other"),
        ("status.podIP=10.0.0.1", "bound"),
        ("status.nominatedNodeName=,metadata.name=other", "other"),
        ("spec.nodeName=n,status.phase=Pending", ""),
    ] {
        let list = admin.get(&format!("{PODS}?fieldSelector={selector}")).await.unwrap();
        let items = list.body["items"].as_array().unwrap().iter();
        let found: Vec<&str> = items.map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(found.join(" "), names, "{selector}");
    }
    let refused = admin.get(&format!("{PODS}?fieldSelector=status.qosClass=x")).await.unwrap();
    says(&refused, 400, "field label not supported: status.qosClass");
}

/// The code, and the beginning of the message: details about Go structs follow some.
#[track_caller]
fn says(answer: &ApiResponse, code: u16, message: &str) {
    let found = answer.body["message"].as_str().unwrap_or_default();
    assert!(answer.status == code && found.starts_with(message), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scalable_kind_has_a_scale() {
    let (_cluster, admin) = start();
    let labels = json!({"app": "w"});
    let template = json!({"metadata": {"labels": labels}, "spec": pod("t", "")["spec"]});
    for (version, plural, kind) in [
        ("/apis/apps/v1", "deployments", "Deployment"),
        ("/apis/apps/v1", "replicasets", "ReplicaSet"),
        ("/apis/apps/v1", "statefulsets", "StatefulSet"),
        ("/api/v1", "replicationcontrollers", "ReplicationController"),
    ] {
        let base = format!("{version}/namespaces/default/{plural}");
        let is_controller = kind == "ReplicationController";
        let selector = if is_controller { labels.clone() } else { json!({"matchLabels": labels}) };
        let spec = json!({"replicas": 2, "selector": selector, "template": template});
        create(&admin, &base, json!({"metadata": {"name": "s"}, "spec": spec})).await;
        let (path, whole) = (format!("{base}/s/scale"), format!("{base}/s"));
        let scale = admin.get(&path).await.unwrap().body;
        let shown = json!({"replicas": 0, "selector": "app=w"});
        assert_eq!((&scale["spec"], &scale["status"]), (&json!({"replicas": 2}), &shown));
        assert_eq!([&scale["apiVersion"], &scale["kind"]], ["autoscaling/v1", "Scale"]);
        let scaled = admin.merge(&path, &json!({"spec": {"replicas": 3}})).await.unwrap();
        assert_eq!((scaled.status, &scaled.body["spec"]), (200, &json!({"replicas": 3})));
        let negative = admin.merge(&path, &json!({"spec": {"replicas": -1}})).await.unwrap();
        let why = "Scale.autoscaling \"s\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0";
        says(&negative, 422, why);
        let of = |name: &str, version: &str| json!({"metadata": {"name": name, "resourceVersion": version}, "spec": {"replicas": 5}});
        let stale = admin.put(&path, &of("s", "1")).await.unwrap();
        says(&stale, 409, &format!("Operation cannot be fulfilled on {plural}"));
        let renamed = admin.put(&path, &of("t", "")).await.unwrap();
        says(&renamed, 400, "the name of the object (t) does not match the name on the URL (s)");
        let missing = admin.put(&format!("{base}/none/scale"), &of("none", "")).await.unwrap();
        says(&missing, 404, plural);
        // A status changes no spec, and a scale no status.
        let both = json!({"status": {"replicas": 1}, "spec": {"replicas": 9}});
        let reported = admin.merge(&format!("{whole}/status"), &both).await.unwrap();
        assert_eq!(reported.status, 200, "{kind}: {}", reported.text);
        let stored = admin.get(&whole).await.unwrap().body;
        let counts = [&stored["spec"]["replicas"], &stored["status"]["replicas"]];
        assert_eq!(
            (counts, &stored["metadata"]["generation"]),
            ([&json!(3), &json!(1)], &json!(2))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn running_pods_change_only_through_their_subresources() {
    let (_cluster, admin) = start();
    create(&admin, PODS, pod("p", "n")).await;
    let path = format!("{PODS}/p");
    let change = async |subresource: &str, field: &str, value: Value| {
        let patch = json!({"spec": {field: value}});
        admin.merge(&format!("{path}{subresource}"), &patch).await.unwrap()
    };
    let of_debugger = |image: &str| json!([{"name": "dbg", "image": image}]);
    let ephemeral = "ephemeralContainers";
    let added = change("/ephemeralcontainers", ephemeral, of_debugger("example.com/d:1")).await;
    assert_eq!((added.status, &added.body["metadata"]["generation"]), (200, &json!(2)));
    let invalid = "Pod \"p\" is invalid: spec.ephemeralContainers";
    let existing =
        format!("{invalid}: Forbidden: existing ephemeral containers \"dbg\" may not be");
    let other = change("/ephemeralcontainers", ephemeral, of_debugger("other")).await;
    says(&other, 422, &format!("{existing} changed"));
    let removed = change("/ephemeralcontainers", ephemeral, json!([])).await;
    says(&removed, 422, &format!("{existing} removed"));
    let mut both = of_debugger("example.com/d:1");
    both.as_array_mut().unwrap().push(json!({"name": "c", "image": "x"}));
    let taken = change("/ephemeralcontainers", ephemeral, both).await;
    says(&taken, 422, &format!("{invalid}[1].name: Duplicate value: \"c\""));
    let container = |image: &str, resources: Value| json!([{"name": "c", "image": image, "resources": resources}]);
    let cpu = json!({"requests": {"cpu": "1"}});
    let resized = change("/resize", "containers", container("example.com/c:1", cpu.clone())).await;
    let why = "Pod \"p\" is invalid: spec: Invalid value: \"BestEffort\": Pod QOS Class may not change as a result of resizing";
    says(&resized, 422, why);
    // A resize keeps the image, and an update the resources.
    let resized = change("/resize", "containers", container("other", json!({}))).await;
    let image = &resized.body["spec"]["containers"][0]["image"];
    assert_eq!((resized.status, image), (200, &json!("example.com/c:1")));
    let refused = "Pod \"p\" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`";
    says(&change("", "containers", container("example.com/c:1", cpu)).await, 422, refused);
    says(&change("", ephemeral, of_debugger("other")).await, 422, refused);
    says(&change("", "terminationGracePeriodSeconds", json!(1)).await, 422, refused);
    let updated = change("", "containers", container("example.com/c:2", json!({}))).await;
    assert_eq!((updated.status, &updated.body["metadata"]["generation"]), (200, &json!(3)));
}
