//! A static pod on a real runtime, and its mirror.

use super::node::{NODE, NodeUnderTest, PODS};
use super::pods::{WAIT, condition, log_and_exec, main_status, web};
use ferrokube_cri::ListPodSandboxRequest;
use ferrokube_testkit::{BOUND, wait_until};
use serde_json::{Value, json};
use std::fs;

#[tokio::test(flavor = "multi_thread")]
async fn a_static_pod_with_a_sidecar_probes_hooks_and_a_config_map_runs_restarts_and_ends() {
    let manifests = tempfile::tempdir().unwrap();
    let settings = json!({"staticPodPath": manifests.path(), "fileCheckFrequency": "1s"});
    let Some(mut node) = NodeUnderTest::start_with(settings).await else { return };
    let shared = node.containerd.path("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("ready"), "").unwrap();
    let map = json!({"metadata": {"name": "page"}, "data": {"page": "hello"}});
    node.create("/api/v1/namespaces/default/configmaps", &map).await;
    // It runs, too, but can have no mirror.
    let stray = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "stray", "namespace": "nowhere"},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [node.busybox("main", WAIT)]}});
    let files = ["a-stray.json", "web.json"].map(|name| manifests.path().join(name));
    fs::write(&files[0], stray.to_string()).unwrap();
    let mut pod = web(&node, shared.to_str().unwrap());
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    fs::write(&files[1], pod.to_string()).unwrap();

    let name = format!("web-{NODE}");
    let ready = |pod: &Value| condition(pod, "Ready") == "True";
    let first = node.until(&name, "its mirror shows that it is ready", ready).await;
    let side = &first["status"]["initContainerStatuses"][1];
    assert_eq!(side["started"], true, "the startup probe over HTTP has passed: {side}");
    assert!(shared.join("alive").exists(), "the postStart hook has run");
    log_and_exec(&node, &name).await;

    // A mirror that is deleted is made again, and what runs stays.
    let id = |pod: &Value| main_status(pod)["containerID"].as_str().unwrap_or_default().to_owned();
    node.admin.delete(&format!("{PODS}/{name}")).await.unwrap();
    let is_new =
        |pod: &Value| pod["metadata"]["uid"] != first["metadata"]["uid"] && !id(pod).is_empty();
    let again = node.until(&name, "it has another mirror", is_new).await;
    assert_eq!((id(&again), restarts(&again)), (id(&first), &json!(0)));

    fs::remove_file(shared.join("alive")).unwrap();
    let has_restarted = |pod: &Value| main_status(pod)["restartCount"] == 1 && ready(pod);
    let second = node.until(&name, "it is started again, and ready", has_restarted).await;
    assert_ne!(id(&first), id(&second));
    assert!(shared.join("stopped").exists(), "the preStop hook of the killed container has run");

    // The next kubelet continues with the same containers.
    node.restart_kubelet();
    fs::remove_file(shared.join("ready")).unwrap();
    let unready = |pod: &Value| condition(pod, "Ready") == "False";
    let adopted = node.until(&name, "the new kubelet probes it", unready).await;
    assert_eq!((id(&adopted), restarts(&adopted)), (id(&second), &json!(1)));

    fs::remove_file(shared.join("stopped")).unwrap();
    files.iter().for_each(|file| fs::remove_file(file).unwrap());
    node.until_gone(&name).await;
    let stopped = || async {
        let request = ListPodSandboxRequest::default();
        let left = node.containerd.runtime().list_pod_sandbox(request).await.unwrap().items;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", node.log())) }
    };
    wait_until("nothing is left", BOUND, stopped).await;
    assert!(shared.join("stopped").exists(), "the preStop hook has run");
}

fn restarts(pod: &Value) -> &Value {
    &main_status(pod)["restartCount"]
}
