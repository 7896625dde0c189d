//! `deploy/container/image`: the archive is whole, and its file system suffices for the roles.

use crate::FERROKUBE;
use ferrokube_testkit::Client;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/container/image");
const USER: &str = "65532:65532";

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Path of a blob, whose content has the digest.
fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let path = layout.join("blobs/sha256").join(digest);
    let sum = run(Command::new("sha256sum").arg(&path));
    assert_eq!(sum.split(' ').next(), Some(digest));
    assert_eq!(fs::metadata(&path).unwrap().len(), descriptor["size"].as_u64().unwrap());
    path
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn extract(archive: &Path, directory: &Path) {
    fs::create_dir(directory).unwrap();
    let mut tar = Command::new("tar");
    run(tar.arg("-xpf").arg(archive).arg("-C").arg(directory));
}

/// Killed on drop.
struct Contained(Child);

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_images_share_a_layer_that_is_enough_for_the_roles() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut script = Command::new(SCRIPT);
    run(script.args(["--level", "1", FERROKUBE]).arg(path("images.tar")));
    extract(&path("images.tar"), &path("layout"));
    let index = json(&path("layout/index.json"));
    let mut entrypoints = Vec::new();
    let mut layers = Vec::new();
    for descriptor in index["manifests"].as_array().unwrap() {
        let manifest = json(&blob(&path("layout"), descriptor));
        let config = json(&blob(&path("layout"), &manifest["config"]));
        let entrypoint = config["config"]["Entrypoint"][0].as_str().unwrap();
        let user = if entrypoint == "/usr/bin/kubelet" { "0:0" } else { USER };
        assert_eq!(config["config"]["User"], user);
        entrypoints.push((entrypoint.to_owned(), config["config"]["Cmd"].clone()));
        layers.push(manifest["layers"].clone());
    }
    layers.dedup();
    assert_eq!((entrypoints.len(), layers.len()), (5, 1));
    extract(&blob(&path("layout"), &layers[0][0]), &path("root"));
    // As the user of the images with nothing else in sight; for that the test must be root.
    if !geteuid().is_root() {
        return;
    }
    let role = |entrypoint: &str| {
        // The environment has no PATH.
        let mut command = Command::new("/usr/sbin/chroot");
        command.args(["--userspec", USER]).arg(path("root")).arg(entrypoint).env_clear();
        command
    };
    for (entrypoint, _) in &entrypoints {
        let help = run(role(entrypoint).arg("--help"));
        assert!(help.contains("Usage: "), "{entrypoint}: {help}");
    }
    let (entrypoint, flags) = &entrypoints[0];
    // As shown, but for what would reach other machines or meet other tests.
    let flags = flags.as_array().unwrap().iter().map(|flag| {
        flag.as_str().unwrap().replace("--bind-address=0.0.0.0", "--bind-address=127.0.0.1")
    });
    let mut command = role(entrypoint);
    command.args(flags).arg("--secure-port=0");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut running = Contained(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready in "), "{line}");
    let kubeconfig = path("root/var/lib/ferrokube/admin.kubeconfig");
    let admin = Client::from_kubeconfig(&kubeconfig).unwrap();
    assert_eq!(admin.get("/api/v1/namespaces/default").await.unwrap().status, 200);
    kill_process(Pid::from_child(&running.0), Signal::TERM).unwrap();
    assert!(running.0.wait().unwrap().success());
}
