//! Static pods on a runtime in memory.

use crate::node::StaticNode;
use ferrokube_cri::testing::{FakeRuntime, PullScript};
use ferrokube_cri::{CallCode, CriError, path};
use ferrokube_kubelet::NodePod;
use serde_json::json;
use std::fs;
use std::path::Path;
use std::time::Duration;

const WEB: &str = "metadata: {name: web}\nspec:\n  initContainers: [{name: init, image: r.io/i:v1}]\n  \
                   containers: [{name: web, image: r.io/web:v1, volumeMounts: [{name: data, \
                   mountPath: /data}]}]\n  volumes: [{name: data, emptyDir: {}}]\n";

#[tokio::test(start_paused = true)]
async fn a_static_pod_runs_and_ends_with_its_file() {
    let node = StaticNode::new();
    node.write("web.yaml", WEB);
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| !runtime.running("init").is_empty()).await;
    assert!(node.runtime.running("web").is_empty(), "after the init container");
    let init = node.runtime.running("init").remove(0);
    node.runtime.exit(&init.report.id, 0);
    node.runtime.until(|runtime| !runtime.running("web").is_empty()).await;
    let web = node.runtime.running("web").remove(0);
    let mount = &web.config.mounts[0];
    assert_eq!(mount.container_path, "/data");
    assert!(fs::metadata(&mount.host_path).expect("the emptyDir").is_dir());
    let sandbox = node.runtime.sandboxes().remove(0);
    assert_eq!(sandbox.labels["io.kubernetes.pod.name"], "web-n1");
    node.remove("web.yaml");
    node.runtime.until(|runtime| runtime.sandboxes().is_empty()).await;
    assert_eq!(node.runtime.count(path::stop_container), 1, "gracefully, first");
    assert_eq!(node.runtime.count(path::run_pod_sandbox), 1);
}

#[tokio::test(start_paused = true)]
async fn fault_62_after_kill_9_pods_are_adopted_and_nothing_is_started_twice() {
    let node = StaticNode::new();
    node.write("a.yaml", "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1}]}");
    node.write("b.yaml", "metadata: {name: b}\nspec: {containers: [{name: b, image: r.io/b:v1}]}");
    // Killed at every moment: after each of the first calls that change something.
    for calls in 1..40 {
        let kubelet = node.kubelet();
        node.runtime
            .until(|runtime| runtime.calls().len() >= calls * 2 || !runtime.running("b").is_empty())
            .await;
        kubelet.abort();
        let _ = kubelet.await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(node.runtime.running("a").len() <= 1);
        assert!(node.runtime.running("b").len() <= 1);
    }
    let _kubelet = node.kubelet();
    node.runtime
        .until(|runtime| runtime.running("a").len() == 1 && runtime.running("b").len() == 1)
        .await;
    let started = node.runtime.count(path::start_container);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(node.runtime.count(path::start_container), started);
    assert_eq!(node.runtime.sandboxes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_changed_file_is_another_pod_after_the_end_of_the_first() {
    let node = StaticNode::new();
    let pod = |image: &str| {
        format!("metadata: {{name: a}}\nspec: {{containers: [{{name: a, image: {image}}}]}}")
    };
    node.write("a.yaml", &pod("r.io/one:v1"));
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
    let first = node.runtime.running("a").remove(0).sandbox;
    node.write("a.yaml", &pod("r.io/two:v1"));
    let is_second = |runtime: &FakeRuntime| {
        let running = runtime.running("a");
        assert!(runtime.sandboxes().len() <= 1, "never both");
        running.first().is_some_and(|seen| seen.sandbox != first)
    };
    node.runtime.until(is_second).await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_does_not_exist_has_no_pods() {
    let node = StaticNode::new();
    node.write("a.yaml", "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1}]}");
    let kubelet = node.kubelet();
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
    kubelet.abort();
    node.remove_all();
    let _kubelet = node.kubelet();
    let ended = node.runtime.until(|runtime| runtime.sandboxes().is_empty());
    tokio::time::timeout(Duration::from_secs(600), ended).await.expect("it ends");
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_file_goes_cancels_its_pull() {
    let node = StaticNode::new();
    node.runtime.script("r.io/a:v1", PullScript::Waits);
    node.write("a.yaml", "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1}]}");
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| runtime.in_flight() == 1).await;
    node.remove("a.yaml");
    node.runtime.until(|runtime| runtime.sandboxes().is_empty()).await;
    assert!(node.runtime.pulls()[0].cancelled);
}

#[tokio::test(start_paused = true)]
async fn l14_every_call_for_a_pod_carries_its_ids() {
    let node = StaticNode::new();
    let (trace, initial) = ("0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c");
    let pod = format!(
        "metadata:\n  name: a\n  annotations:\n    trace.kubernetes.io/trace-id: {trace}\n    \
         trace.kubernetes.io/span-id: b7ad6b7169203331\n    \
         trace.kubernetes.io/initial-trace-id: {initial}\nspec: {{containers: [{{name: a, image: \
         r.io/a:v1}}]}}"
    );
    node.write("a.yaml", &pod);
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
    let acts = [
        path::run_pod_sandbox,
        path::pull_image,
        path::create_container,
        path::start_container,
        path::image_status,
    ];
    let calls = node.runtime.calls();
    for call in calls.iter().filter(|call| acts.contains(&call.path)) {
        let context = call.context.unwrap_or_else(|| panic!("{} without ids", call.path));
        assert_eq!(context.trace_id.hex().as_str(), trace, "{}", call.path);
        assert_eq!(context.initial.map(|id| id.to_string()).as_deref(), Some(initial));
    }
    assert!(calls.len() >= acts.len());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_is_tried_again_after_a_pause() {
    let node = StaticNode::new();
    let refused = CriError::new(CallCode::Unknown, "no such program");
    node.runtime.fail(path::start_container, Some(refused));
    node.write("a.yaml", "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1}]}");
    let _kubelet = node.kubelet();
    tokio::time::sleep(Duration::from_secs(120)).await;
    let tries = node.runtime.count(path::start_container);
    assert!((5..=12).contains(&tries), "{tries} in two minutes");
    assert!(node.runtime.containers().is_empty(), "what did not start is removed");
    node.runtime.fail(path::start_container, None);
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_wrong_file_stops_no_other() {
    let node = StaticNode::new();
    node.write("bad.yaml", "metadata: {name: [}");
    node.write("other.yaml", "metadata: {name: ../x}\nspec: {containers: [{name: a, image: i}]}");
    node.write(
        "good.yaml",
        "metadata: {name: a}\nspec: {containers: [{name: a, image: r.io/a:v1}]}",
    );
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| !runtime.running("a").is_empty()).await;
    assert_eq!(node.runtime.sandboxes().len(), 1);
}

#[test]
fn a_field_without_an_implementation_is_refused_by_its_name() {
    let why = |spec: &str| {
        let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}");
        NodePod::from_file(text.as_bytes(), "n1").unwrap_err().to_string()
    };
    assert_eq!(
        why(
            "{hostUsers: false, containers: [{name: a, image: i, restartPolicyRules: [], livenessProbe: {other: 1}, lifecycle: {stopSignal: A}, env: [{name: A, \
             valueFrom: {fileKeyRef: {}}}]}], volumes: [{name: v, nfs: {}}, {name: w, projected: \
             {sources: [{clusterTrustBundle: {}}]}}]}"
        ),
        "not implemented: spec.hostUsers, spec.volumes[0].nfs, \
         spec.volumes[1].projected.sources[0].clusterTrustBundle, \
         spec.containers[0].restartPolicyRules, spec.containers[0].lifecycle.stopSignal, \
         spec.containers[0].livenessProbe.other, spec.containers[0].env[0].valueFrom.fileKeyRef"
    );
    assert_eq!(
        why("{os: {name: windows}, hostIPC: true, securityContext: {supplementalGroupsPolicy: \
             Strict, sysctls: [{name: net.ipv4.tcp_syncookies}, {name: kernel.msgmax}, {name: \
             kernel.shm_rmid_forced}]}, containers: [{name: a, image: i, securityContext: \
             {procMount: Unmasked}, volumeMounts: [{name: v, recursiveReadOnly: Enabled}]}]}"),
        "not implemented: spec.os.name, spec.securityContext.supplementalGroupsPolicy, \
         spec.securityContext.sysctls[1].name, spec.securityContext.sysctls[2].name, \
         spec.containers[0].securityContext.procMount, \
         spec.containers[0].volumeMounts[0].recursiveReadOnly"
    );
    assert_eq!(why("{containers: []}"), "spec.containers: Required value");
    let missing = "{containers: [{name: a, image: i, volumeMounts: [{name: v, mountPath: /v}]}]}";
    assert_eq!(why(missing), "volumeMounts.name: Not found: \"v\"");
}

#[test]
fn fault_61_a_profile_of_any_container_stays_in_its_directory() {
    let profile = |path: &str| {
        json!({"seccompProfile": {"type": "Localhost",
        "localhostProfile": path}})
    };
    let why = |list: &str, path: &str| {
        let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        pod["spec"][list] = json!([{"name": "x", "image": "i", "securityContext": profile(path)}]);
        let pod = serde_json::from_value(pod).unwrap();
        NodePod::from_api(&pod).map(drop).map_err(|error| error.to_string())
    };
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        assert_eq!(why(list, "profiles/own.json"), Ok(()));
        for path in ["../../etc/own.json", "/etc/own.json", ""] {
            let expected = format!("seccompProfile.localhostProfile: Invalid value: {path:?}");
            assert_eq!(why(list, path), Err(expected), "{list}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn fault_56_a_part_of_a_volume_is_bound_and_one_outside_is_refused() {
    let node = StaticNode::new();
    let pod = |name: &str, part: &str| {
        format!(
            "metadata: {{name: {name}}}\nspec:\n  containers: [{{name: {name}, image: r.io/i:v1, \
             volumeMounts: [{{name: data, mountPath: /data, subPath: {part}}}]}}]\n  volumes: \
             [{{name: data, emptyDir: {{}}}}]\n"
        )
    };
    node.write("out.yaml", &pod("out", "a/../.."));
    node.write("in.yaml", &pod("in", "a/b"));
    let _kubelet = node.kubelet();
    let refused = "Error: unable to provision SubPath `a/../..`: must not contain '..'";
    let unbound = "Error: failed to prepare subPath for volumeMount \"data\" of container \"in\"";
    let has = |text: &str| node.events("Failed").iter().any(|own| own == text);
    node.runtime.until(|_| has(refused)).await;
    node.runtime.until(|runtime| !runtime.running("in").is_empty() || has(unbound)).await;
    assert!(node.runtime.running("out").is_empty());
    let Some(container) = node.runtime.running("in").pop() else {
        eprintln!("skipped: this process may not mount");
        return;
    };
    let place = container.config.mounts[0].host_path.clone();
    assert!(place.ends_with("/volume-subpaths/data/in/0"), "{place}");
    assert!(fs::metadata(&place).expect("it is bound").is_dir());
    node.remove("in.yaml");
    while fs::exists(&place).expect("a readable directory") {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for what is no change of the runtime.
async fn soon(condition: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("never");
}

/// What is below a place of a part of a volume is the volume's content, as long as it is mounted.
#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_end_says_why_once_and_ends_when_it_can() {
    let node = StaticNode::new();
    let pod = WEB.replace("initContainers: [{name: init, image: r.io/i:v1}]", "");
    node.write("web.yaml", &pod);
    let _kubelet = node.kubelet();
    node.runtime.until(|runtime| !runtime.running("web").is_empty()).await;
    let volume = node.runtime.running("web")[0].config.mounts[0].host_path.clone();
    let own = Path::new(&volume).ancestors().nth(3).expect("its pod's directory").to_owned();
    let parts = own.join("volume-subpaths");
    fs::create_dir_all(parts.join("data/web/0/content")).expect("a writable directory");
    node.remove("web.yaml");
    let said = || node.events("FailedKillPod");
    soon(|| !said().is_empty()).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(said().len() == 1 && said()[0].starts_with("error killing pod: "), "{:?}", said());
    assert!(parts.join("data/web/0/content").exists());
    fs::remove_dir_all(&parts).expect("a writable directory");
    soon(|| !own.exists()).await;
}
