//! `deploy/container`: the compose files and pods start what they say, by their command lines, as
//! processes of this machine; and in containers, where podman can run them.

mod kubelet;
mod manifests;
mod podman;

use crate::FERROKUBE;
use ferrokube_etcd::testing::{EtcdProcess, free_port};
use ferrokube_testkit::{BOUND, Client, wait_until};
use manifests::{ManifestContainer, compose, pod};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Ports in the files, each replaced by a free one.
const PORTS: [u16; 7] = [6443, 6444, 6445, 10257, 10258, 2379, 2380];

/// Containers of a file as processes, with directories as volumes.
struct ManifestMachine {
    volumes: TempDir,
    ports: BTreeMap<u16, u16>,
    running: Vec<StartedContainer>,
}

/// Killed on drop.
struct StartedContainer {
    name: String,
    child: Child,
}

impl Drop for StartedContainer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ManifestMachine {
    fn new() -> Self {
        let ports = PORTS.map(|port| (port, free_port())).into();
        Self { volumes: tempfile::tempdir().unwrap(), ports, running: Vec::new() }
    }

    fn volume(&self, name: &str) -> PathBuf {
        let path = self.volumes.path().join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&path).unwrap();
        path
    }

    /// A word of a command line with this machine's paths and ports.
    fn translated(&self, container: &ManifestContainer, word: &str) -> String {
        let mut word = word.replace("0.0.0.0", "127.0.0.1");
        // The longest first: one may be below another.
        let mut mounts = container.mounts.clone();
        mounts.sort_by_key(|(_, path)| std::cmp::Reverse(path.len()));
        for (volume, path) in &mounts {
            word = word.replace(path, &self.volume(volume).display().to_string());
        }
        with_ports(&word, &self.ports)
    }

    fn command(&self, container: &ManifestContainer) -> Command {
        let words: Vec<String> =
            container.command.iter().map(|word| self.translated(container, word)).collect();
        let (executable, role) = match container.command[0].as_str() {
            "/usr/local/bin/etcd" => (EtcdProcess::executables().pop().unwrap(), None),
            "/usr/bin/ferrokube" => (FERROKUBE.into(), None),
            entrypoint => {
                (FERROKUBE.into(), Some(entrypoint.strip_prefix("/usr/bin/").unwrap().to_owned()))
            }
        };
        let mut command = Command::new(executable);
        // Ports that the file leaves at their defaults.
        let own = match role.as_deref() {
            Some("all-in-one" | "kube-apiserver") => Some(6443),
            Some("kube-controller-manager") => Some(10257),
            _ => None,
        };
        command.args(&role);
        let is_given = words.iter().any(|word| word.starts_with("--secure-port="));
        if let Some(port) = own.filter(|_| !is_given) {
            command.arg(format!("--secure-port={}", self.ports[&port]));
        }
        command.args(&words[1..]).env_clear().stdin(Stdio::null());
        command
    }

    /// Starts a container, and again if it ends before it is healthy, as `restart: on-failure`;
    /// one that is to end does so first.
    async fn start(&mut self, container: &ManifestContainer) {
        if container.ends {
            let output = self.command(container).output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}: {text}", container.name);
            return;
        }
        let log = self.volumes.path().join(format!("{}.log", container.name));
        let spawn = || {
            let log = fs::File::options().append(true).create(true).open(&log).unwrap();
            let child = self.command(container).stdout(Stdio::null()).stderr(log).spawn().unwrap();
            StartedContainer { name: container.name.clone(), child }
        };
        let running = std::cell::RefCell::new(spawn());
        wait_until(&container.name, BOUND, || async {
            if running.borrow_mut().child.try_wait().unwrap().is_some() {
                *running.borrow_mut() = spawn();
            }
            let Some(health) = &container.health else { return Ok(()) };
            let url = self.translated(container, health);
            let asked = Command::new(FERROKUBE).args(["probe", &url]).output().unwrap();
            let log = || fs::read_to_string(&log).unwrap();
            if asked.status.success() { Ok(()) } else { Err(log()) }
        })
        .await;
        self.running.push(running.into_inner());
    }

    /// The administrator's kubeconfig that the file's servers or commands make.
    fn kubeconfig(&self) -> PathBuf {
        let places = ["keys", "keys/data", "state", "state/data"];
        let paths = places.map(|place| self.volumes.path().join(place).join("admin.kubeconfig"));
        paths.into_iter().find(|path| path.exists()).expect("a kubeconfig")
    }

    /// All end by SIGTERM, without an error.
    fn stop(mut self) {
        for mut running in self.running.drain(..).rev() {
            kill_process(Pid::from_child(&running.child), Signal::TERM).unwrap();
            let status = running.child.wait().unwrap();
            // etcd kills itself by the signal.
            assert!(status.success() || running.name == "etcd", "{}: {status}", running.name);
        }
    }
}

/// Replaces ports after `:` and `port=`.
fn with_ports(word: &str, ports: &BTreeMap<u16, u16>) -> String {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let Some(start) = word.find(|letter| ":=".contains(letter)).map(|at| at + 1) else {
        return word.to_owned();
    };
    let (before, rest) = word.split_at(start);
    let (digits, after) =
        rest.split_at(rest.find(|letter| !is_digit(letter)).unwrap_or(rest.len()));
    let is_port = before.ends_with(':') || before.ends_with("port=");
    let port = digits.parse().ok().filter(|_| is_port).and_then(|port| ports.get(&port));
    let digits = port.map_or_else(|| digits.to_owned(), u16::to_string);
    format!("{before}{digits}{}", with_ports(after, ports))
}

/// Starts a file's containers, works with each of their servers, and ends them.
async fn tour(containers: &[ManifestContainer]) {
    let mut machine = ManifestMachine::new();
    for container in containers {
        machine.start(container).await;
    }
    let servers: Vec<u16> = containers
        .iter()
        .filter(|container| container.is_server())
        .map(|container| machine.ports[&container.port().unwrap_or(6443)])
        .collect();
    let text = fs::read_to_string(machine.kubeconfig()).unwrap();
    let first = format!("127.0.0.1:{}", servers[0]);
    assert!(text.contains(&first), "{first}");
    let client = |port: u16| {
        let path = machine.volumes.path().join(format!("{port}.kubeconfig"));
        fs::write(&path, text.replace(&first, &format!("127.0.0.1:{port}"))).unwrap();
        Client::from_kubeconfig(&path).unwrap()
    };
    let shop = json!({"metadata": {"name": "shop"}});
    let made = client(servers[0]).post("/api/v1/namespaces", &shop).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
    // By a controller, seen through every server, with the same certificates.
    for port in servers {
        let client = client(port);
        wait_until("the account of the namespace", BOUND, || async {
            let path = "/api/v1/namespaces/shop/serviceaccounts/default";
            let response = client.get(path).await.map_err(|error| error.to_string())?;
            if response.status == 200 { Ok(()) } else { Err(response.text) }
        })
        .await;
    }
    machine.stop();
}

fn file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/container");
    fs::read_to_string(folder.join(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_container_and_separate_roles_start_by_compose() {
    tour(&compose(&file("compose-all-in-one.yaml"))).await;
    tour(&compose(&file("compose.yaml"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_api_servers_share_an_etcd_by_compose() {
    tour(&compose(&file("compose-three-apiservers.yaml"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_start_as_their_manifests_say() {
    for name in ["all-in-one", "separate-roles", "three-apiservers"] {
        tour(&pod(&file(&format!("pods/{name}.yaml")))).await;
    }
}
