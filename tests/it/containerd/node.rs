//! A node: `ferrokube kubelet` as a process on a containerd of the test's own.

use super::engine::Containerd;
use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(super) const NODE: &str = "node-under-test";

/// What runs as the kubelet, and how.
pub(super) struct KubeletProgram {
    pub(super) binary: PathBuf,
    pub(super) log_level: &'static str,
    /// Fields of its KubeletConfiguration.
    pub(super) settings: Value,
}

/// A kubelet, killed with -9 on drop.
pub(super) struct KubeletProcess(Child);

impl KubeletProcess {
    fn start(containerd: &Containerd, server: &Cluster, program: &KubeletProgram) -> Self {
        let config = containerd.path("kubelet.yaml");
        let logs = containerd.path("pod-logs");
        let mut text = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "podLogsDir": logs,
            "registryPullQPS": 0,
            "serializeImagePulls": false,
            // Whatever is free on the machine of the test.
            "evictionHard": {"memory.available": "0%"},
            "imageGCHighThresholdPercent": 100,
        });
        let fields = program.settings.as_object().unwrap().clone();
        text.as_object_mut().unwrap().extend(fields);
        fs::write(&config, text.to_string()).unwrap();
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(containerd.path("kubelet.log"))
            .unwrap();
        let process = Command::new(&program.binary)
            .arg("kubelet")
            .args(["--hostname-override", NODE, "--node-ip", "127.0.0.1"])
            .args(["--address", "127.0.0.1", "--port", "0"])
            .arg("--kubeconfig")
            .arg(server.kubeconfig())
            .arg("--config")
            .arg(&config)
            .arg("--root-dir")
            .arg(containerd.path("kubelet"))
            .args(["--container-runtime-endpoint", &containerd.endpoint()])
            .arg(format!("--log-level={}", program.log_level))
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(process)
    }
}

impl Drop for KubeletProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) struct NodeUnderTest {
    pub(super) containerd: Containerd,
    pub(super) server: Cluster,
    pub(super) admin: Client,
    program: KubeletProgram,
    kubelet: KubeletProcess,
}

impl NodeUnderTest {
    pub(super) async fn start() -> Option<Self> {
        Self::start_with(json!({})).await
    }

    /// With these fields of its KubeletConfiguration.
    pub(super) async fn start_with(settings: Value) -> Option<Self> {
        Self::run(KubeletProgram { binary: FERROKUBE.into(), log_level: "debug", settings }).await
    }

    pub(super) async fn run(program: KubeletProgram) -> Option<Self> {
        let containerd = Containerd::start().await?;
        let server = Launch::new(FERROKUBE)
            .flag("--profile=kubernetes")
            .flag("--log-level=debug")
            .start()
            .unwrap();
        let admin = server.admin().unwrap();
        let kubelet = KubeletProcess::start(&containerd, &server, &program);
        Some(Self { containerd, server, admin, program, kubelet })
    }

    /// Kills the kubelet with -9 and starts another.
    pub(super) fn restart_kubelet(&mut self) {
        let _ = self.kubelet.0.kill();
        let _ = self.kubelet.0.wait();
        self.kubelet = KubeletProcess::start(&self.containerd, &self.server, &self.program);
    }

    /// Process id of the kubelet.
    pub(super) fn pid(&self) -> u32 {
        self.kubelet.0.id()
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.containerd.path("kubelet.log")).unwrap_or_default()
    }

    /// Creates an object; the namespace's service account comes a little later than the server.
    pub(super) async fn create(&self, path: &str, object: &Value) {
        let create = || async {
            let response = self.admin.post(path, object).await.unwrap();
            if response.status == 201 { Ok(()) } else { Err(response.text) }
        };
        wait_until("the object is created", BOUND, create).await;
    }

    /// Waits until a pod satisfies a condition.
    pub(super) async fn until(
        &self,
        pod: &str,
        what: &str,
        is_it: impl Fn(&Value) -> bool,
    ) -> Value {
        let path = format!("{PODS}/{pod}");
        let probe = || async {
            let response = self.admin.get(&path).await.unwrap();
            let is_it = response.status == 200 && is_it(&response.body);
            let seen = || format!("{}\n{}", response.text, self.log());
            if is_it { Ok(response.body.clone()) } else { Err(seen()) }
        };
        wait_until(what, BOUND, probe).await
    }

    pub(super) async fn until_gone(&self, pod: &str) {
        let path = format!("{PODS}/{pod}");
        let probe = || async {
            let response = self.admin.get(&path).await.unwrap();
            if response.status == 404 { Ok(()) } else { Err(response.text) }
        };
        wait_until("the pod is gone", BOUND, probe).await;
    }

    pub(super) fn busybox(&self, name: &str, script: &str) -> Value {
        let image = self.containerd.registry.image("busybox");
        json!({"name": name, "image": image, "command": ["sh", "-c", script]})
    }
}
