//! One command that is a cluster with a node: `all-in-one --node`, and stock kubectl.

use super::engine::Containerd;
use super::node::PODS;
use crate::FERROKUBE;
use crate::trails::has_request;
use ferrokube_testkit::{BOUND, Client, Cluster, Kubectl, Launch, newest_kubectl, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

const NODE: &str = "this-machine";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

struct OneCommand {
    containerd: Containerd,
    cluster: Cluster,
    kubectl: Kubectl,
}

impl OneCommand {
    async fn start() -> Option<Self> {
        let containerd = Containerd::start().await?;
        let config = containerd.path("kubelet.yaml");
        let text = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "podLogsDir": containerd.path("pod-logs"),
            // Whatever is free on the machine of the test.
            "evictionHard": {"memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        });
        fs::write(&config, text.to_string()).unwrap();
        let cluster = Launch::new(FERROKUBE)
            .flag("--node")
            .flag(format!("--node-name={NODE}"))
            .flag("--node-ip=127.0.0.1")
            .flag(format!("--container-runtime-endpoint={}", containerd.endpoint()))
            .flag(format!("--kubelet-config={}", config.display()))
            .flag("--kubelet-port=0")
            .flag(format!("--kubelet-root-dir={}", containerd.path("kubelet").display()))
            .start()
            .unwrap();
        Some(Self { containerd, cluster, kubectl: newest_kubectl() })
    }

    fn admin(&self) -> Client {
        self.cluster.admin().unwrap()
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.kubectl.run(&self.cluster.kubeconfig(), arguments);
        if output.ok { Ok(output.stdout) } else { Err(output.stderr) }
    }

    /// Runs a pod as `kubectl run` does; its service account comes a little later than the server.
    async fn run(&self, name: &str, more: &[&str]) {
        let image = format!("--image={}", self.containerd.registry.image("busybox"));
        let begin = ["run", name, &image, "--restart=Never"];
        let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.2; done";
        let end = ["--command", "--", "sh", "-c", script];
        let arguments = [&begin[..], more, &end[..]].concat();
        wait_until("the pod is created", BOUND, || async { self.kubectl(&arguments) }).await;
    }

    async fn until(&self, pod: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let (admin, path) = (self.admin(), format!("{PODS}/{pod}"));
        let probe = || async {
            let response = admin.get(&path).await.unwrap();
            let is_it = response.status == 200 && is_it(&response.body);
            let seen = || format!("{}\n{}", response.text, self.cluster.log());
            if is_it { Ok(response.body.clone()) } else { Err(seen()) }
        };
        wait_until(what, BOUND, probe).await
    }

    async fn until_logged(&self, line: &str) {
        let probe = || async {
            let log = self.cluster.log();
            if log.contains(line) { Ok(()) } else { Err(log) }
        };
        wait_until(line, BOUND, probe).await;
    }
}

fn runs(pod: &Value) -> bool {
    pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
}

fn container_id(pod: &Value) -> String {
    pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_command_runs_pods_that_kubectl_creates() {
    let Some(mut all) = OneCommand::start().await else { return };
    all.run("web", &[]).await;
    let first = all.until("web", "it runs", runs).await;
    assert_eq!(first["spec"]["nodeName"], NODE);
    let log = || async { all.kubectl(&["logs", "web"]) };
    let log = wait_until("the kubelet trusts the API server", BOUND, log).await;
    assert_eq!(log, "ready\n");
    assert_eq!(all.kubectl(&["exec", "web", "--", "sh", "-c", "echo hello"]).unwrap(), "hello\n");
    let shown = all.kubectl(&["describe", "pod", "web"]).unwrap();
    for words in
        ["default-scheduler", "Successfully assigned default/web to this-machine", "Started"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }

    a_command_reads_its_standard_input(&all);
    a_running_pod_is_debugged(&all).await;
    l14_a_failed_mount_and_a_failed_pull_are_traced_from_their_request(&all).await;
    too_big_waits(&all).await;
    a_real_scheduler_takes_over(&all).await;

    // The node is in the process that is killed: the next one goes on with what runs.
    all.cluster.restart().unwrap();
    all.run("after", &[]).await;
    all.until("after", "it runs", runs).await;
    let second = all.until("web", "it runs", runs).await;
    assert_eq!(container_id(&first), container_id(&second), "it was adopted");
    all.kubectl(&["delete", "pod", "--all", "--grace-period=1"]).unwrap();
    let left = all.admin().get(PODS).await.unwrap();
    assert_eq!(left.body["items"], json!([]), "{}", left.text);
}

/// `kubectl run -i`: the input ends with the client (`stdinOnce`), and so does the command.
fn a_command_reads_its_standard_input(all: &OneCommand) {
    let kubectl = all.kubectl.command(&all.cluster.kubeconfig());
    let image = format!("--image={}", all.containerd.registry.image("busybox"));
    // It would wait for its end, were the input left open.
    let mut process = Command::new("timeout")
        .arg(BOUND.as_secs().to_string())
        .arg(kubectl.get_program())
        .args(kubectl.get_args())
        .args(["run", "typed", "--rm", "-i", "--quiet", "--restart=Never", &image])
        .args(["--command", "--", "sh", "-c", "read line; echo got $line; cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(b"hello\nworld\n").unwrap();
    let output = process.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}\n{}", all.cluster.log());
    assert!(text.contains("got hello\nworld\n"), "{output:?}");
}

/// `kubectl debug`: a container is added, which sees the processes of another one.
async fn a_running_pod_is_debugged(all: &OneCommand) {
    let image = format!("--image={}", all.containerd.registry.image("busybox"));
    let script = "grep -q trap /proc/1/cmdline && echo seen";
    let begin = ["debug", "web", &image, "--target=web", "--container=look", "--quiet"];
    let arguments = [&begin[..], &["--", "sh", "-c", script]].concat();
    all.kubectl(&arguments).unwrap();
    let state = |pod: &Value| pod["status"]["ephemeralContainerStatuses"][0]["state"].clone();
    let is_over = |pod: &Value| state(pod)["terminated"].is_object();
    let pod = all.until("web", "the added container ends", is_over).await;
    assert_eq!(state(&pod)["terminated"]["exitCode"], 0, "{pod}");
    assert!(runs(&pod), "{pod}");
    assert_eq!(all.kubectl(&["logs", "web", "-c", "look"]).unwrap(), "seen\n");
}

/// From the request that created a pod to the kubelet's log lines, by one command.
async fn l14_a_failed_mount_and_a_failed_pull_are_traced_from_their_request(all: &OneCommand) {
    // Nothing listens there.
    let image = "127.0.0.1:1/nothing:v1";
    let missing = json!([{"name": "v", "configMap": {"name": "nothing"}}]);
    for (name, overrides, line) in [
        ("unmounted", json!({"spec": {"volumes": missing}}), "MountVolume.SetUp failed"),
        ("unpulled", json!({}), "ErrImagePull"),
    ] {
        let created = all.kubectl(&[
            "run",
            name,
            &format!("--image={image}"),
            &format!("--overrides={overrides}"),
        ]);
        created.unwrap();
        let id = |pod: &Value| {
            let id = &pod["metadata"]["annotations"]["trace.kubernetes.io/initial-trace-id"];
            id.as_str().unwrap_or_default().to_owned()
        };
        let pod = all.until(name, "it has its ids", |pod| !id(pod).is_empty()).await;
        let traced = || async {
            let output = Command::new(FERROKUBE)
                .args(["trace", &id(&pod), "--json", "--data-dir"])
                .arg(all.cluster.data_dir())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let Ok(story) = serde_json::from_str::<Value>(&text) else { return Err(text) };
            let traces = story["traces"].as_array().cloned().unwrap_or_default();
            let actions: Vec<Value> =
                traces.iter().flat_map(|it| it["actions"].as_array().cloned().unwrap()).collect();
            let is_created = has_request(&actions, "create", PODS, "kubernetes-admin");
            if is_created && text.contains(line) { Ok(()) } else { Err(text) }
        };
        wait_until(line, BOUND, traced).await;
        all.kubectl(&["delete", "pod", name, "--grace-period=0", "--force"]).unwrap();
    }
}

async fn too_big_waits(all: &OneCommand) {
    let overrides = json!({"spec": {"containers": [{"name": "big",
        "resources": {"requests": {"cpu": "1000", "memory": "1Mi"}}}]}});
    let overrides = format!("--overrides={overrides}");
    all.run("big", &["--override-type=strategic", &overrides]).await;
    let scheduled = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|it| it["type"] == "PodScheduled").unwrap_or_default()
    };
    let is_refused = |pod: &Value| scheduled(pod)["status"] == "False";
    let big = all.until("big", "it does not fit", is_refused).await;
    let condition = scheduled(&big);
    assert_eq!(condition["reason"], "Unschedulable");
    assert_eq!(condition["message"], "0/1 nodes are available: 1 Insufficient cpu.");
    assert!(big["spec"]["nodeName"].is_null(), "{big}");
    let shown = all.kubectl(&["describe", "pod", "big"]).unwrap();
    assert!(shown.contains("FailedScheduling"), "{shown}");
    all.kubectl(&["delete", "pod", "big", "--grace-period=0", "--force"]).unwrap();
}

async fn a_real_scheduler_takes_over(all: &OneCommand) {
    let admin = all.admin();
    let spec = json!({"holderIdentity": "real", "leaseDurationSeconds": 3600,
        "renewTime": "2026-01-01T00:00:00.000000Z"});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "kube-scheduler"}, "spec": spec});
    assert_eq!(admin.post(LEASES, &lease).await.unwrap().status, 201);
    all.until_logged("another scheduler holds the lease").await;
    all.run("theirs", &[]).await;
    // This one needs no scheduler: once it runs, the other would have been bound long since.
    let bound = format!("--overrides={}", json!({"spec": {"nodeName": NODE}}));
    all.run("bound", &[&bound]).await;
    all.until("bound", "it runs", runs).await;
    let theirs = all.until("theirs", "it is there", |_| true).await;
    assert!(theirs["spec"]["nodeName"].is_null(), "{theirs}");
    let released = json!({"spec": {"holderIdentity": ""}});
    let path = format!("{LEASES}/kube-scheduler");
    assert_eq!(admin.merge(&path, &released).await.unwrap().status, 200);
    all.until("theirs", "it runs", runs).await;
}
