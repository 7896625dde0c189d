//! Pods of the API server on a real runtime, run by `ferrokube kubelet` as a process.

use super::node::{NODE, NodeUnderTest, PODS};
use super::streams::{Kube, lines, trusts};
use bytes::Bytes;
use ferrokube_cri::ListPodSandboxRequest;
use ferrokube_testkit::{BOUND, newest_kubectl, wait_until};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

fn with(mut object: Value, fields: Value) -> Value {
    let Value::Object(fields) = fields else { panic!("an object") };
    object.as_object_mut().unwrap().extend(fields);
    object
}

pub(super) fn condition<'a>(pod: &'a Value, kind: &str) -> &'a Value {
    let conditions = pod["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|it| it["type"] == kind);
    found.map_or(&Value::Null, |it| &it["status"])
}

pub(super) fn main_status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// Runs until it is stopped.
pub(super) const WAIT: &str = "trap 'exit 0' TERM; while :; do sleep 1; done";

/// A pod `web` with an init container, a sidecar, probes, hooks and a config map `page`. Its
/// container's probes want `alive` and `ready` in `shared`.
pub(super) fn web(node: &NodeUnderTest, shared: &str) -> Value {
    let www = json!({"name": "www", "mountPath": "/www"});
    let prepare = with(
        node.busybox("prepare", "cp /config/page /www/index.html"),
        json!({"volumeMounts": [www, {"name": "config", "mountPath": "/config"}]}),
    );
    let side = with(
        node.busybox("side", "trap 'exit 0' TERM; busybox httpd -f -p 8080 -h /www & wait"),
        json!({
            "restartPolicy": "Always",
            "ports": [{"name": "http", "containerPort": 8080}],
            "volumeMounts": [www],
            "startupProbe": {"httpGet": {"path": "/index.html", "port": "http"},
                "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 60},
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1,
                "timeoutSeconds": 30},
        }),
    );
    let shell = |script: &str| json!({"command": ["sh", "-c", script]});
    let main = with(
        node.busybox("main", &format!("echo hello; {WAIT}")),
        json!({
            "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
            "livenessProbe": {"exec": shell("test -e /shared/alive"), "periodSeconds": 1,
                "timeoutSeconds": 30, "failureThreshold": 1},
            "readinessProbe": {"exec": shell("test -e /shared/ready"), "periodSeconds": 1,
                "timeoutSeconds": 30, "failureThreshold": 1},
            "lifecycle": {"postStart": {"exec": shell("touch /shared/alive")},
                "preStop": {"exec": shell("touch /shared/stopped")}},
        }),
    );
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web"},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            // For hooks on a busy machine: all containers end at once on TERM.
            "terminationGracePeriodSeconds": 120,
            "initContainers": [prepare, side],
            "containers": [main],
            "volumes": [
                {"name": "www", "emptyDir": {}},
                {"name": "config", "configMap": {"name": "page"}},
                {"name": "shared", "hostPath": {"path": shared, "type": "Directory"}},
            ],
        },
    })
}

/// Stock kubectl reads the log of [`web`], and runs a command in it.
pub(super) async fn log_and_exec(node: &NodeUnderTest, pod: &str) {
    trusts(node).await;
    let kube = Kube { kubectl: newest_kubectl(), node, websockets: "true" };
    lines(&kube, &["logs", pod], "hello\n").await;
    let command = ["exec", pod, "-c", "main", "--", "sh", "-c", "test -e /shared/alive && echo it"];
    assert_eq!(kube.prints(&command), "it\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_sidecar_probes_hooks_and_a_config_map_runs_restarts_and_ends() {
    let Some(mut node) = NodeUnderTest::start().await else { return };
    let shared = node.containerd.path("shared");
    fs::create_dir(&shared).unwrap();
    let map = json!({"metadata": {"name": "page"}, "data": {"page": "hello"}});
    node.create("/api/v1/namespaces/default/configmaps", &map).await;
    node.create(PODS, &web(&node, shared.to_str().unwrap())).await;
    let running =
        node.until("web", "its container runs", |pod| main_status(pod)["started"] == true).await;
    assert_eq!(condition(&running, "Ready"), "False", "its readiness probe fails: {running}");
    assert_eq!(running["status"]["phase"], "Running");
    let side = &running["status"]["initContainerStatuses"][1];
    assert_eq!(side["started"], true, "the startup probe over HTTP has passed: {side}");
    assert!(shared.join("alive").exists(), "the postStart hook has run");

    fs::write(shared.join("ready"), "").unwrap();
    let ready = |pod: &Value| condition(pod, "Ready") == "True";
    let first = node.until("web", "it is ready", ready).await;
    log_and_exec(&node, "web").await;
    let id = |pod: &Value| main_status(pod)["containerID"].as_str().unwrap_or_default().to_owned();
    fs::remove_file(shared.join("alive")).unwrap();
    let again = |pod: &Value| main_status(pod)["restartCount"] == 1 && ready(pod);
    let second = node.until("web", "it is started again, and ready", again).await;
    assert_ne!(id(&first), id(&second));
    assert!(shared.join("stopped").exists(), "the preStop hook of the killed container has run");

    // The next kubelet continues with the same containers.
    node.restart_kubelet();
    fs::remove_file(shared.join("ready")).unwrap();
    let unready = |pod: &Value| condition(pod, "Ready") == "False";
    let adopted = node.until("web", "the new kubelet probes it", unready).await;
    assert_eq!((id(&adopted), 1), (id(&second), adopted_restarts(&adopted)));

    fs::remove_file(shared.join("stopped")).unwrap();
    node.admin.delete(&format!("{PODS}/web")).await.unwrap();
    node.until_gone("web").await;
    assert!(shared.join("stopped").exists(), "the preStop hook has run");
    let left = node.containerd.runtime().list_pod_sandbox(ListPodSandboxRequest::default()).await;
    assert!(left.unwrap().items.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_not_root_uses_the_volumes_of_its_group() {
    let Some(node) = NodeUnderTest::start().await else { return };
    let map = json!({"metadata": {"name": "page"}, "data": {"page": "hello"}});
    node.create("/api/v1/namespaces/default/configmaps", &map).await;
    let script = "set -ex; id -G; id -G | grep -qw 4242; id -G | grep -qw 5000; \
        echo x > /empty/a; test \"$(stat -c '%g %a' /empty)\" = '4242 2777'; \
        test \"$(stat -c %g /empty/a)\" = 4242; \
        test \"$(stat -Lc '%g %a' /config/page)\" = '4242 440'; test \"$(cat /config/page)\" = hello";
    let main = with(
        node.busybox("main", script),
        json!({"volumeMounts": [{"name": "empty", "mountPath": "/empty"},
            {"name": "config", "mountPath": "/config"}]}),
    );
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "grouped"},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 4242,
                "supplementalGroups": [5000]},
            "containers": [main],
            "volumes": [{"name": "empty", "emptyDir": {}},
                {"name": "config", "configMap": {"name": "page", "defaultMode": 0o400}}],
        },
    });
    node.create(PODS, &pod).await;
    let is_over =
        |pod: &Value| ["Succeeded", "Failed"].iter().any(|it| pod["status"]["phase"] == *it);
    let ended = node.until("grouped", "it ends", is_over).await;
    assert_eq!(ended["status"]["phase"], "Succeeded", "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_in_memory_and_parts_of_volumes_are_mounted_and_released() {
    let Some(node) = NodeUnderTest::start().await else { return };
    let script = "set -ex; grep ' /fast tmpfs ' /proc/mounts; echo a > /fast/a; \
        if head -c 2000000 /dev/zero > /fast/b; then exit 9; fi; rm /fast/b; \
        echo part > /part/file; test \"$(cat /whole/one/file)\" = part; \
        test ! -e /part/one; test \"$(cat /page.txt)\" = hello; \
        until test -e /whole/seen; do sleep 0.1; done";
    let main = with(
        node.busybox("main", script),
        json!({"volumeMounts": [{"name": "fast", "mountPath": "/fast"},
            {"name": "disk", "mountPath": "/whole"},
            {"name": "disk", "mountPath": "/part", "subPath": "one"},
            {"name": "config", "mountPath": "/page.txt", "subPath": "page"}]}),
    );
    let map = json!({"metadata": {"name": "page"}, "data": {"page": "hello"}});
    node.create("/api/v1/namespaces/default/configmaps", &map).await;
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mounts"},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "containers": [main],
            "volumes": [{"name": "fast", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "disk", "emptyDir": {}},
                {"name": "config", "configMap": {"name": "page"}}],
        },
    });
    node.create(PODS, &pod).await;
    let is_over =
        |pod: &Value| ["Succeeded", "Failed"].iter().any(|it| pod["status"]["phase"] == *it);
    let mounted = || {
        let all = fs::read_to_string("/proc/self/mounts").unwrap();
        let own = node.containerd.path("kubelet").display().to_string();
        all.lines().filter(|line| line.contains(&own)).count()
    };
    let runs_or_is_over = |pod: &Value| pod["status"]["phase"] == "Running" || is_over(pod);
    let pod = node.until("mounts", "it runs", runs_or_is_over).await;
    assert_eq!(pod["status"]["phase"], "Running", "{pod}\n{}", node.log());
    assert_eq!(mounted(), 3, "the volume in memory, and two parts");
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let disk = format!("kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/disk/seen");
    fs::write(node.containerd.path(&disk), "").unwrap();
    let ended = node.until("mounts", "it ends", is_over).await;
    assert_eq!(ended["status"]["phase"], "Succeeded", "{ended}\n{}", node.log());
    node.admin.delete(&format!("{PODS}/mounts")).await.unwrap();
    node.until_gone("mounts").await;
    let unmounted = || async {
        let left = mounted();
        if left == 0 { Ok(()) } else { Err(format!("{left} mounts\n{}", node.log())) }
    };
    wait_until("the volumes are unmounted", BOUND, unmounted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_no_more_processes_than_its_node_allows() {
    let taint = json!({"key": "example.com/few", "effect": "NoSchedule"});
    let settings = json!({"podPidsLimit": 24, "registerWithTaints": [taint]});
    let Some(node) = NodeUnderTest::start_with(settings).await else { return };
    // A shell that cannot fork ends; its children stay.
    let script = "(i=0; while [ $i -lt 64 ]; do sleep 300 & i=$((i+1)); done) 2>/dev/null; \
        set -- /proc/[0-9]*; echo $# processes; [ $# -ge 12 ] && [ $# -le 24 ]";
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "forks"},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "containers": [node.busybox("main", script)],
        },
    });
    node.create(PODS, &pod).await;
    let is_over =
        |pod: &Value| ["Succeeded", "Failed"].iter().any(|it| pod["status"]["phase"] == *it);
    let ended = node.until("forks", "it ends", is_over).await;
    assert_eq!(ended["status"]["phase"], "Succeeded", "{ended}\n{}", node.log());
    let own = node.admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap().body;
    let taints = own["spec"]["taints"].as_array().cloned().unwrap_or_default();
    assert!(taints.contains(&taint), "{own}");
    node.admin.delete(&format!("{PODS}/forks")).await.unwrap();
    node.until_gone("forks").await;
    let name = format!("kubepods/pod{}", ended["metadata"]["uid"].as_str().unwrap());
    // The object of a pod that has ended goes first.
    let released = || async {
        let controllers = fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
        let groups = controllers.map(|entry| entry.path().join(&name));
        let left: Vec<_> = groups.filter(|path| path.exists()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}\n{}", node.log())) }
    };
    wait_until("its control groups are removed", BOUND, released).await;
}

fn adopted_restarts(pod: &Value) -> i64 {
    main_status(pod)["restartCount"].as_i64().unwrap_or(-1)
}

/// A gRPC server with the health protocol; its service `web` serves while the flag is set.
async fn health_server(is_serving: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let is_serving = Arc::clone(&is_serving);
            let answer = service_fn(move |request: Request<Incoming>| {
                let is_serving = Arc::clone(&is_serving);
                async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().collect().await?.to_bytes();
                    // A field of a message: the service's name.
                    let is_known =
                        path == "/grpc.health.v1.Health/Check" && body[5..] == *b"\n\x03web";
                    let status = if is_serving.load(Ordering::Relaxed) { 1 } else { 2 };
                    let message = Frame::data(Bytes::from(vec![0, 0, 0, 0, 2, 8, status]));
                    let mut trailers = HeaderMap::new();
                    trailers.insert("grpc-status", (if is_known { 0 } else { 5 }).into());
                    let frames = [message, Frame::trailers(trailers)].map(Ok::<_, hyper::Error>);
                    let body = StreamBody::new(futures::stream::iter(frames));
                    let response = Response::builder().header("content-type", "application/grpc");
                    Ok::<_, hyper::Error>(response.body(body).unwrap())
                }
            });
            let connection = http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), answer);
            tokio::spawn(connection);
        }
    });
    port
}

/// On the node's network: the test's own server is the container's.
#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_probe_asks_the_health_of_a_service() {
    let Some(node) = NodeUnderTest::start().await else { return };
    let is_serving = Arc::<AtomicBool>::default();
    let port = health_server(Arc::clone(&is_serving)).await;
    let probe = |service: &str| {
        json!({"grpc": {"port": port, "service": service}, "periodSeconds": 1, "timeoutSeconds": 30,
            "failureThreshold": 1})
    };
    let pod = |name: &str, service: &str| {
        let container = with(node.busybox(name, WAIT), json!({"readinessProbe": probe(service)}));
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"nodeName": NODE, "hostNetwork": true, "containers": [container],
                "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1},
        })
    };
    node.create(PODS, &pod("asks-web", "web")).await;
    node.create(PODS, &pod("asks-other", "other")).await;
    let has_event = async |text: &str| {
        let found = || async {
            let events = node.admin.get("/api/v1/namespaces/default/events").await.unwrap().text;
            if events.contains(text) { Ok(()) } else { Err(format!("{events}\n{}", node.log())) }
        };
        wait_until(text, BOUND, found).await;
    };
    has_event(r#"Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")"#)
        .await;
    is_serving.store(true, Ordering::Relaxed);
    node.until("asks-web", "it is ready", |pod| condition(pod, "Ready") == "True").await;
    is_serving.store(false, Ordering::Relaxed);
    node.until("asks-web", "it is not", |pod| condition(pod, "Ready") == "False").await;
    let other =
        node.until("asks-other", "it runs", |pod| main_status(pod)["state"]["running"].is_object());
    assert_eq!(condition(&other.await, "Ready"), "False", "an unknown service");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_container_is_resized_in_place() {
    let Some(node) = NodeUnderTest::start().await else { return };
    let shared = node.containerd.path("shared");
    fs::create_dir(&shared).unwrap();
    // Control groups of version 1 or 2.
    let script = "while :; do cat /sys/fs/cgroup/memory/memory.limit_in_bytes \
                  /sys/fs/cgroup/memory.max >/shared/new 2>/dev/null; mv /shared/new /shared/limit; \
                  sleep 1; done";
    let resources = |memory: &str| json!({"limits": {"memory": memory, "cpu": "100m"}});
    let container = |memory: &str| {
        with(
            node.busybox("main", script),
            json!({"resources": resources(memory),
                "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}),
        )
    };
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "grows"},
        "spec": {"nodeName": NODE, "containers": [container("64Mi")],
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "shared", "hostPath": {"path": shared}}]},
    });
    node.create(PODS, &pod).await;
    let has_limit = async |limit: u64| {
        let read = || async {
            let seen = fs::read_to_string(shared.join("limit")).unwrap_or_default();
            let is_it = seen.trim() == limit.to_string();
            if is_it { Ok(()) } else { Err(format!("{seen}\n{}", node.log())) }
        };
        wait_until("the container has its limit", BOUND, read).await;
    };
    has_limit(64 << 20).await;
    let before = node
        .until("grows", "its resources are reported", |pod| {
            main_status(pod)["resources"]["limits"]["memory"] == "64Mi"
        })
        .await;
    let change = json!({"spec": {"containers": [container("96Mi")]}});
    let resized = node.admin.merge(&format!("{PODS}/grows/resize"), &change).await.unwrap();
    assert_eq!(resized.status, 200, "{}", resized.text);
    has_limit(96 << 20).await;
    let after = node
        .until("grows", "the new ones are", |pod| {
            main_status(pod)["resources"]["limits"]["memory"] == "96Mi"
        })
        .await;
    assert_eq!(main_status(&after)["containerID"], main_status(&before)["containerID"]);
    assert_eq!(main_status(&after)["allocatedResources"]["memory"], "96Mi");
}
