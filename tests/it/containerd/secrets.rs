//! Secrets of pods on a real runtime: credentials of a registry, and a client in a pod.

use super::node::{NodeUnderTest, PODS};
use super::streams::pod;
use ferrokube_testkit::{BOUND, wait_until};
use serde_json::{Value, json};

const PASSWORD: &str = "canary-of-a-password";

fn private(node: &NodeUnderTest, name: &str) -> Value {
    let mut main = node.busybox("main", super::pods::WAIT);
    main["image"] = node.containerd.registry.image("private").into();
    main["imagePullPolicy"] = "Always".into();
    pod(name, &[main])
}

fn is_running(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["started"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_image_is_pulled_with_the_secrets_of_the_pod_or_its_service_account() {
    let Some(mut node) = NodeUnderTest::start().await else { return };
    node.containerd.registry.protect("private", "user", PASSWORD);
    let host = format!("127.0.0.1:{}", node.containerd.registry.port());
    let auth = |password: &str| json!({"username": "user", "password": password});
    // The more specific one is tried first, and is wrong.
    let config =
        json!({"auths": {&host: auth(PASSWORD), format!("{host}/private"): auth("wrong")}});
    let secret = json!({
        "metadata": {"name": "pull"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": config.to_string()},
    });
    node.create("/api/v1/namespaces/default/secrets", &secret).await;
    node.create(PODS, &private(&node, "without")).await;
    let mut with = private(&node, "with");
    with["spec"]["imagePullSecrets"] = json!([{"name": "missing"}, {"name": "pull"}]);
    node.create(PODS, &with).await;
    node.until("with", "it runs", is_running).await;
    let is_refused = |pod: &Value| {
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        ["ErrImagePull", "ImagePullBackOff"].contains(&waiting["reason"].as_str().unwrap_or(""))
    };
    node.until("without", "its image cannot be pulled", is_refused).await;
    // That the image is there gives no right to it, not even at the next kubelet.
    for name in ["present", "present-later"] {
        let mut present = private(&node, name);
        present["spec"]["containers"][0]["imagePullPolicy"] = "IfNotPresent".into();
        node.create(PODS, &present).await;
        node.until(name, "its image is another pod's", is_refused).await;
        node.restart_kubelet();
    }
    let account = "/api/v1/namespaces/default/serviceaccounts";
    let named = json!({"metadata": {"name": "puller"}, "imagePullSecrets": [{"name": "pull"}]});
    node.create(account, &named).await;
    let mut by_account = private(&node, "by-account");
    by_account["spec"]["serviceAccountName"] = "puller".into();
    node.create(PODS, &by_account).await;
    node.until("by-account", "it runs", is_running).await;
    wait_until("the missing secret is named in an event", BOUND, || async {
        let events = node.admin.get("/api/v1/namespaces/default/events").await.unwrap();
        let text = "Unable to retrieve some image pull secrets (missing); attempting to pull";
        if events.text.contains(text) { Ok(()) } else { Err(events.text) }
    })
    .await;
    assert!(!node.log().contains(PASSWORD), "a password in the log");
}

/// What the API server's admission adds to a pod.
fn access() -> Value {
    json!({"name": "kube-api-access", "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_client_in_a_pod_is_its_service_account_for_the_api_server() {
    let Some(node) = NodeUnderTest::start().await else { return };
    let kubectl = ferrokube_testkit::newest_kubectl().command(&node.server.kubeconfig());
    let program = kubectl.get_program().to_str().unwrap();
    let port = node.server.url().rsplit(':').next().unwrap_or_default();
    let mut main = node.busybox("main", "exec /kubectl auth whoami -o json > /shared/whoami 2>&1");
    main["env"] = json!([
        {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        {"name": "HOME", "value": "/tmp"},
    ]);
    let shared = node.containerd.path("shared");
    std::fs::create_dir(&shared).unwrap();
    main["volumeMounts"] = json!([
        {"name": "kubectl", "mountPath": "/kubectl", "readOnly": true},
        {"name": "shared", "mountPath": "/shared"},
        {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            "readOnly": true},
    ]);
    let mut client = pod("client", &[main]);
    client["spec"]["hostNetwork"] = true.into();
    client["spec"]["restartPolicy"] = "Never".into();
    // Without an admission step that names it.
    client["spec"]["serviceAccountName"] = "default".into();
    client["spec"]["volumes"] = json!([
        {"name": "kubectl", "hostPath": {"path": program, "type": "File"}},
        {"name": "shared", "hostPath": {"path": shared}},
        access(),
    ]);
    node.create(PODS, &client).await;
    node.until("client", "it ends", |pod| {
        ["Succeeded", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap_or(""))
    })
    .await;
    let seen = std::fs::read_to_string(shared.join("whoami")).unwrap();
    let review: Value = serde_json::from_str(&seen).unwrap_or_else(|_| panic!("{seen}"));
    let user = &review["status"]["userInfo"];
    assert_eq!(user["username"], "system:serviceaccount:default:default");
    assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"], json!(["client"]));
}
