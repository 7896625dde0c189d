//! A containerd of the test's own, with a registry, a network and namespaces of its own.
//!
//! It runs in new PID and mount namespaces: when it is killed, its containers and mounts end with
//! it, whatever state a failed test left them in.

use super::registry::ImageRegistry;
use ferrokube_cri::{Runtime, RuntimeSocket, VersionRequest};
use ferrokube_testkit::{BOUND, wait_until};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Fails tests instead of skipping them when containers cannot run here.
const MUST: &str = "FERROKUBE_MUST_CONTAINERD";
/// Longest wait for the processes of containers to end.
const CLEANING: Duration = Duration::from_secs(10);
const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/install-containerd");

/// A containerd, killed on drop.
pub(crate) struct Containerd {
    pub(crate) registry: ImageRegistry,
    directory: TempDir,
    process: Child,
}

impl Containerd {
    /// Starts one. `None`, with a message, where containers cannot run.
    ///
    /// Panics if they cannot, and `FERROKUBE_MUST_CONTAINERD` is set.
    pub(crate) async fn start() -> Option<Self> {
        match Self::try_start().await {
            Ok(containerd) => Some(containerd),
            Err(why) => {
                skip(&format!(
                    "cannot run containers; pulls and pods are tested with the runtime in memory \
                     only: {why}"
                ));
                None
            }
        }
    }

    async fn try_start() -> Result<Self, String> {
        let installed = installed()?;
        if !rustix::process::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        let busybox = fs::read(installed.join("bin/busybox")).map_err(|error| error.to_string())?;
        let registry = ImageRegistry::start(busybox).await;
        let directory =
            TempDir::with_prefix("ferrokube-cri-").map_err(|error| error.to_string())?;
        let spawned =
            share(directory.path()).and_then(|()| spawn(&installed, directory.path(), &registry));
        let process = spawned.inspect_err(|_| unmount(directory.path()))?;
        let mut containerd = Self { registry, directory, process };
        let runtime = containerd.runtime();
        let answers = || async {
            let version = runtime.version(VersionRequest::default()).await;
            version.map_err(|error| error.to_string())
        };
        // An unusable kernel ends it at once.
        let ready = wait_until("containerd answers", BOUND, answers);
        tokio::select! {
            _ = ready => Ok(containerd),
            why = ended(&mut containerd.process) => {
                Err(format!("{why}: {}", containerd.log()))
            }
        }
    }

    /// `unix:///...`.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.directory.path().join("state/c.sock").display())
    }

    pub(super) fn runtime(&self) -> Runtime {
        Runtime::new(Arc::new(RuntimeSocket::new(&self.endpoint()).unwrap()))
    }

    /// A directory for other files of the test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let tasks = self.path("state/io.containerd.runtime.v2.task/k8s.io");
        let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
        let left: Vec<_> = tasks.map(|entry| entry.file_name()).collect();
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Control groups are of the machine: those of removed pods are gone already. Its processes
        // end some time after the process that was waited for.
        let roots = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let mut roots: Vec<_> = roots.map(|entry| entry.path().join("k8s.io")).collect();
        roots.push("/sys/fs/cgroup/k8s.io".into());
        // Those that a kubelet has made for pods.
        let pods =
            roots.iter().filter_map(|root| fs::read_dir(root.parent()?.join("kubepods")).ok());
        let pods: Vec<_> = pods.flatten().flatten().map(|entry| entry.path()).collect();
        let is_own = |pod: &&PathBuf| left.iter().any(|id| pod.join(id).exists());
        let own: Vec<_> = pods.iter().filter(is_own).cloned().collect();
        roots.extend(own.iter().cloned());
        let groups = || {
            let of_containers =
                left.iter().flat_map(|id| roots.iter().map(move |root| root.join(id)));
            of_containers.chain(own.iter().cloned())
        };
        let until = Instant::now() + CLEANING;
        while groups().any(|group| group.exists()) && Instant::now() < until {
            groups().for_each(|group| _ = fs::remove_dir(group));
            std::thread::yield_now();
        }
        unmount(self.directory.path());
    }
}

/// Says why a test is skipped on this machine.
///
/// Panics if `FERROKUBE_MUST_CONTAINERD` is set.
pub(super) fn skip(why: &str) {
    assert!(std::env::var_os(MUST).is_none(), "{why}");
    eprintln!("skipped: {why}");
}

fn installed() -> Result<PathBuf, String> {
    let ran = Command::new(INSTALL).stdin(Stdio::null()).output();
    let output = ran.map_err(|error| format!("{INSTALL} failed to run: {error}"))?;
    if !output.status.success() {
        return Err(format!("not installed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// Lets what a kubelet mounts below a directory reach the mount namespace of the runtime.
fn share(directory: &Path) -> Result<(), String> {
    let shared = rustix::mount::mount_bind(directory, directory)
        .and_then(|()| rustix::mount::mount_change(directory, MountPropagationFlags::SHARED));
    shared.map_err(|error| format!("cannot mount: {error}"))
}

/// Undoes [`share`], with what kubelets have mounted below.
fn unmount(directory: &Path) {
    let _ = rustix::mount::unmount(directory, UnmountFlags::DETACH);
}

async fn ended(process: &mut Child) -> String {
    loop {
        match process.try_wait() {
            Ok(None) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            Ok(Some(status)) => return format!("containerd ended with {status}"),
            Err(error) => return error.to_string(),
        }
    }
}

fn spawn(installed: &Path, own: &Path, registry: &ImageRegistry) -> Result<Child, String> {
    let text = |error: std::io::Error| error.to_string();
    fs::create_dir(own.join("net.d")).map_err(text)?;
    // The port is free while the test runs: no two tests share a network.
    let [high, low] = registry.port().to_be_bytes();
    let network = format!(
        r#"{{"cniVersion": "0.4.0", "name": "test", "plugins": [{{"type": "ptp", "ipam":
        {{"type": "host-local", "dataDir": "{}", "ranges": [[{{"subnet": "10.{}.{low}.0/24"}}]]}}}}]}}"#,
        own.join("addresses").display(),
        128 | high,
    );
    fs::write(own.join("net.d/10-test.conflist"), network).map_err(text)?;
    let config = format!(
        r#"version = 2
root = "{own}/root"
state = "{own}/state"
disabled_plugins = [
    "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
address = "{own}/state/c.sock"
[ttrpc]
address = "{own}/t.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
restrict_oom_score_adj = true
disable_apparmor = true
disable_hugetlb_controller = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{installed}/cni"
conf_dir = "{own}/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{installed}/bin/runc"
"#,
        own = own.display(),
        installed = installed.display(),
        image = registry.image("pause"),
    );
    fs::write(own.join("config.toml"), config).map_err(text)?;
    let log = fs::File::create(own.join("log")).map_err(text)?;
    let bin = installed.join("bin");
    let search = std::env::var("PATH").unwrap_or_default();
    Command::new("unshare")
        .args(["--fork", "--pid", "--mount-proc", "--kill-child", "--propagation", "slave"])
        .arg(bin.join("containerd"))
        .arg("--config")
        .arg(own.join("config.toml"))
        .env("PATH", format!("{}:{search}", bin.display()))
        .env("LD_LIBRARY_PATH", installed.join("lib"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(text)?)
        .stderr(log)
        .spawn()
        .map_err(|error| format!("cannot run unshare: {error}"))
}
