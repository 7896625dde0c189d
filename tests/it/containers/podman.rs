//! The images in containers: where podman is installed and can run one. `FERROKUBE_MUST_PODMAN`
//! fails instead of skipping.

use super::{FERROKUBE, free_port};
use ferrokube_testkit::{BOUND, Client, Kubectl, newest_kubectl, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const MUST: &str = "FERROKUBE_MUST_PODMAN";
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/container/image");
/// Options of containers other than the kubelet's: no rights.
const CONTAINED: [&str; 4] =
    ["--network=host", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"];
/// Options of all containers: the limits of small machines.
pub(super) const LIMITS: [&str; 5] = [
    "--ulimit=nofile=4096:4096",
    "--ulimit=nproc=1024:1024",
    "--memory=512m",
    "--pull=never",
    "--log-driver=k8s-file",
];

/// podman with images and containers of its own, which are removed on drop.
pub(super) struct Podman {
    directory: TempDir,
    runtime: &'static str,
}

impl Podman {
    fn new(runtime: &'static str) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), runtime }
    }

    fn command(&self) -> Command {
        let path = |name: &str| self.directory.path().join(name);
        let mut command = Command::new("podman");
        command.arg("--root").arg(path("root")).arg("--runroot").arg(path("run"));
        command.args(["--cgroup-manager=cgroupfs", "--events-backend=file", "--runtime"]);
        command.arg(self.runtime);
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    pub(super) fn run(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.output(arguments);
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{arguments:?}: {stderr}");
        String::from_utf8(stdout).unwrap().trim().to_owned()
    }

    fn start(&self, name: &str, image: &str, volume: &str, flags: &[&str]) {
        let image = format!("localhost/ferrokube/{image}");
        let name = format!("--name={name}");
        let options = ["run", "--detach", &name, "--volume", volume];
        self.run(&[&options[..], &CONTAINED, &LIMITS, &[&image], flags].concat());
    }

    /// Runs a container to its end, which is a success; its output.
    fn once(&self, image: &str, volume: &str, flags: &[&str]) -> String {
        let image = format!("localhost/ferrokube/{image}");
        let options = ["run", "--rm", "--volume", volume];
        self.run(&[&options[..], &CONTAINED, &LIMITS, &[&image], flags].concat())
    }

    /// Ends a container, however it is.
    pub(super) fn kill(&self, name: &str) {
        self.output(&["rm", "--force", "--time=0", name]);
    }

    /// By the probe in the container.
    async fn is_ready(&self, name: &str, url: &str) {
        wait_until(name, BOUND, || async {
            let asked = self.output(&["exec", name, "/usr/bin/ferrokube", "probe", url]);
            if asked.status.success() { Ok(()) } else { Err(self.logs(name)) }
        })
        .await;
    }

    pub(super) fn logs(&self, name: &str) -> String {
        let output = self.output(&["logs", name]);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Ends a container by SIGTERM; it has exited with 0.
    pub(super) fn stop(&self, name: &str) {
        self.run(&["stop", "--time=60", name]);
        assert_eq!(self.run(&["inspect", "--format={{.State.ExitCode}}", name]), "0");
        self.run(&["rm", name]);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.output(&["rm", "--all", "--force", "--time=0"]);
        // Otherwise its mounts keep the directory from being removed.
        self.output(&["system", "reset", "--force"]);
    }
}

/// podman with the images and a runtime that can start one, or why there is none.
fn podman(archive: &Path) -> Result<Podman, String> {
    let mut why = "podman is not installed".to_owned();
    for runtime in ["crun", "runc"] {
        let podman = Podman::new(runtime);
        let loading = podman.command().args(["load", "--input"]).arg(archive).output();
        let Ok(loaded) = loading else { return Err(why) };
        let text = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        // A runtime that is not installed, too.
        if !loaded.status.success() {
            why = text(&loaded);
            continue;
        }
        let image = "localhost/ferrokube/feature-admin";
        let options = [&["run", "--rm"][..], &CONTAINED, &LIMITS, &[image]];
        let tried = podman.output(&options.concat());
        if tried.status.success() {
            let help = String::from_utf8_lossy(&tried.stdout);
            assert!(help.contains("Usage: feature-admin"), "{help}");
            return Ok(podman);
        }
        why = text(&tried);
    }
    Err(why)
}

pub(super) fn check(kubectl: &Kubectl, kubeconfig: &Path, arguments: &[&str], words: &str) {
    let ran = kubectl.run(kubeconfig, arguments);
    assert!(ran.ok && ran.stdout.contains(words), "{arguments:?}: {ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn images_run_without_rights_on_read_only_roots() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("images.tar");
    if Command::new("podman").arg("--version").output().is_ok() {
        let mut script = Command::new(SCRIPT);
        let made = script.args(["--level", "1", FERROKUBE]).arg(&archive).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let podman = match podman(&archive) {
        Ok(podman) => podman,
        Err(why) => {
            assert!(std::env::var_os(MUST).is_none(), "podman cannot run a container: {why}");
            eprintln!("skipped: podman cannot run a container: {why}");
            return;
        }
    };
    let [port, manager_port] = [free_port(), free_port()];
    let secure = format!("--secure-port={port}");
    let manager_secure = format!("--secure-port={manager_port}");
    let data = ["--data-dir=/var/lib/ferrokube", "--bind-address=127.0.0.1"];
    let url = format!("https://127.0.0.1:{port}/readyz");
    const STATE: &str = "state:/var/lib/ferrokube";

    // Separate roles; then one process takes over their state.
    let features = "--feature-gates=FeatureAPI=true";
    podman.start("apiserver", "apiserver", STATE, &[&data[..], &[&secure, features]].concat());
    podman.is_ready("apiserver", &url).await;
    let manager = [
        "--kubeconfig=/var/lib/ferrokube/controller-manager.kubeconfig",
        "--service-account-private-key-file=/var/lib/ferrokube/pki/sa.key",
        &manager_secure,
    ];
    let read_only = format!("{STATE}:ro");
    podman.start("manager", "controller-manager", &read_only, &manager);
    podman.is_ready("manager", &format!("https://127.0.0.1:{manager_port}/healthz")).await;
    let volume = podman.run(&["volume", "inspect", "--format={{.Mountpoint}}", "state"]);
    let kubeconfig = PathBuf::from(volume).join("admin.kubeconfig");
    let kubectl = newest_kubectl();
    check(&kubectl, &kubeconfig, &["create", "namespace", "shop"], "created");
    let account = "/api/v1/namespaces/shop/serviceaccounts/default";
    wait_until("the account of the namespace", BOUND, || async {
        let admin = Client::from_kubeconfig(&kubeconfig).map_err(|error| error.to_string())?;
        let response = admin.get(account).await.map_err(|error| error.to_string())?;
        if response.status == 200 { Ok(()) } else { Err(response.text) }
    })
    .await;
    let list = ["list", "--kubeconfig=/var/lib/ferrokube/admin.kubeconfig"];
    let listed = podman.once("feature-admin", &read_only, &list);
    assert!(listed.starts_with("NAME  ") && listed.contains("LogTracking  "), "{listed}");
    podman.stop("manager");
    podman.stop("apiserver");
    podman.start("all-in-one", "all-in-one", STATE, &[&data[..], &[&secure]].concat());
    podman.is_ready("all-in-one", &url).await;
    check(&kubectl, &kubeconfig, &["get", "namespace", "shop", "-o", "name"], "namespace/shop");
    podman.stop("all-in-one");
    let kubelet = ["--hostname-override=node-a", "--container-runtime-endpoint=unix:///none.sock"];
    podman.start("kubelet", "kubelet", "pods:/var/lib/kubelet", &kubelet);
    wait_until("the kubelet waits for its runtime", BOUND, || async {
        let log = podman.logs("kubelet");
        if log.contains("the container runtime does not answer") { Ok(()) } else { Err(log) }
    })
    .await;
    podman.stop("kubelet");
    super::kubelet::runs_a_pod(&podman).await;
}
