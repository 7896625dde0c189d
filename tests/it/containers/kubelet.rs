//! The kubelet's image, by the commands of docs/containers.md, on a containerd of the test's own: a
//! pod runs with mounts that the runtime must see, and kubectl reads its log.

use super::podman::{LIMITS, Podman, check};
use crate::FERROKUBE;
use crate::containerd::Containerd;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, newest_kubectl, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

const NODE: &str = "contained";
const IMAGE: &str = "localhost/ferrokube/kubelet";
const MACHINE: &str = "0123456789abcdef0123456789abcdef";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// Fails without the tmpfs and the part of a volume, which the kubelet mounts.
const SCRIPT: &str = "trap 'exit 0' TERM; grep -q ' /memory tmpfs ' /proc/mounts && \
                      touch /part/file && echo ready; while :; do sleep 0.2; done";

/// The page with paths, names and addresses of a test.
struct TranslatedPage(String);

impl TranslatedPage {
    fn new(containerd: &Containerd, server: &Cluster) -> Self {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/containers.md");
        let mut text = fs::read_to_string(page).unwrap().replace("\\\n", " ");
        let path = |name: &str| containerd.path(name).display().to_string();
        for (shown, own) in [
            ("/var/lib/kubelet", path("kubelet")),
            ("/var/log/pods", path("pod-logs")),
            ("/run/containerd", path("state")),
            ("/var/lib/containerd", path("root")),
            ("/etc/ferrokube/kubelet.kubeconfig", path("kubelet.kubeconfig")),
            ("-o kubelet.kubeconfig", format!("-o {}", path("kubelet.kubeconfig"))),
            ("/etc/machine-id:/", format!("{}:/", path("machine-id"))),
            ("https://api.example.com:6443", server.url().to_owned()),
            ("node-a", NODE.to_owned()),
        ] {
            assert!(text.contains(shown), "the page lacks {shown}");
            text = text.replace(shown, &own);
        }
        Self(text)
    }

    /// Arguments of the first command that begins with these words.
    fn arguments(&self, start: &str) -> Vec<&str> {
        let (_, rest) = self.0.split_once(&format!("\n    {start} ")).expect(start);
        rest.lines().next().unwrap_or_default().split_whitespace().collect()
    }
}

fn pod(containerd: &Containerd) -> Value {
    let mounts = json!([{"name": "memory", "mountPath": "/memory"},
        {"name": "disk", "mountPath": "/part", "subPath": "part"}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "nodeName": NODE,
        "automountServiceAccountToken": false,
        "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "disk", "emptyDir": {}}],
        "containers": [{"name": "main", "image": containerd.registry.image("busybox"),
            "command": ["sh", "-c", SCRIPT], "volumeMounts": mounts}]}})
}

/// Makes the node's kubeconfig and its rights, as the page says.
fn admit(page: &TranslatedPage, server: &Cluster) {
    let made = Command::new(FERROKUBE)
        .args(["certs", "kubeconfig", "kubelet", "--data-dir"])
        .arg(server.data_dir())
        .args(page.arguments("ferrokube certs kubeconfig kubelet"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let create = ["create", "clusterrolebinding"];
    let binding = page.arguments("kubectl create clusterrolebinding");
    let arguments = [&create[..], &binding].concat();
    check(&newest_kubectl(), &server.kubeconfig(), &arguments, "created");
}

/// Starts the image as the page says, with the flags that this machine needs.
fn start(podman: &Podman, page: &TranslatedPage, containerd: &Containerd) {
    for name in ["kubelet", "pod-logs"] {
        fs::create_dir(containerd.path(name)).unwrap();
    }
    fs::write(containerd.path("machine-id"), MACHINE).unwrap();
    let config = containerd.path("kubelet.yaml");
    let settings = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "podLogsDir": containerd.path("pod-logs"),
        // Whatever is free on the machine of the test.
        "evictionHard": {"memory.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    });
    fs::write(&config, settings.to_string()).unwrap();
    let config = config.display();
    let volume = format!("--volume={config}:{config}:ro");
    let flags = [
        format!("--config={config}"),
        format!("--root-dir={}", containerd.path("kubelet").display()),
        format!("--container-runtime-endpoint={}", containerd.endpoint()),
        format!("--hostname-override={NODE}"),
    ];
    let words = page.arguments("podman run");
    let image = words.iter().position(|word| *word == IMAGE).expect(IMAGE);
    let (options, command) = words.split_at(image);
    let loopback = ["--node-ip=127.0.0.1", "--address=127.0.0.1", "--port=0"];
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(loopback).collect();
    podman.run(&[&["run"][..], options, &LIMITS, &[&volume], command, &flags].concat());
}

/// Ends the container of a test that fails: before containerd, in whose directory it writes.
struct EndedKubelet<'a>(&'a Podman);

impl Drop for EndedKubelet<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.kill("kubelet");
        }
    }
}

/// Waits until the pod runs; the pod.
async fn until_it_runs(podman: &Podman, admin: &Client) -> Value {
    wait_until("the pod runs", BOUND, || async {
        let response = admin.get(&format!("{PODS}/web")).await.unwrap();
        let is_running = response.body["status"]["phase"] == "Running";
        let seen = || format!("{}\n{}", response.text, podman.logs("kubelet"));
        if is_running { Ok(response.body.clone()) } else { Err(seen()) }
    })
    .await
}

/// Skipped with a message where containerd cannot run.
pub(super) async fn runs_a_pod(podman: &Podman) {
    let Some(containerd) = Containerd::start().await else { return };
    let _ended = EndedKubelet(podman);
    let server = Launch::new(FERROKUBE).flag("--profile=kubernetes").start().unwrap();
    let admin = server.admin().unwrap();
    let page = TranslatedPage::new(&containerd, &server);
    admit(&page, &server);
    start(podman, &page, &containerd);
    let web = pod(&containerd);
    // The namespace's service account comes a little later than the server.
    wait_until("the pod is created", BOUND, || async {
        let response = admin.post(PODS, &web).await.unwrap();
        if response.status == 201 { Ok(()) } else { Err(response.text) }
    })
    .await;
    let web = until_it_runs(podman, &admin).await;
    let kubectl = newest_kubectl();
    let log = wait_until("kubectl reads the log", BOUND, || async {
        let ran = kubectl.run(&server.kubeconfig(), &["logs", "web"]);
        let is_read = ran.ok && !ran.stdout.is_empty();
        if is_read { Ok(ran.stdout) } else { Err(format!("{ran:?}\n{}", podman.logs("kubelet"))) }
    })
    .await;
    assert_eq!(log, "ready\n");
    let uid = web["metadata"]["uid"].as_str().unwrap();
    let volume = format!("kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/disk");
    assert!(containerd.path(&volume).join("part/file").is_file());
    let node = admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap();
    let info = &node.body["status"]["nodeInfo"];
    assert_eq!(info["machineID"], MACHINE);
    assert_ne!(info["osImage"], "", "{info}");
    podman.stop("kubelet");
}
