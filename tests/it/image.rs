//! `deploy/container/image`: the archive is whole, and its file system suffices for the roles.

use crate::FERROKUBE;
use base64::Engine;
use ferrokube_testkit::Client;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
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

/// The CA in a kubeconfig.
fn ca_of(kubeconfig: &Path) -> Vec<u8> {
    let text = fs::read_to_string(kubeconfig).unwrap();
    let line =
        text.lines().find_map(|line| line.trim().strip_prefix("certificate-authority-data: "));
    base64::engine::general_purpose::STANDARD.decode(line.unwrap()).unwrap()
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
    let executable = Path::new(FERROKUBE);
    // By its name alone, as in the directory of a tarball.
    script.current_dir(executable.parent().unwrap()).args(["--level", "1"]);
    run(script.arg(executable.file_name().unwrap()).arg(path("images.tar")));
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
        let health = &config["config"]["Healthcheck"]["Test"];
        let is_server = config["config"]["ExposedPorts"].is_object();
        assert_eq!(health.is_array(), is_server, "{entrypoint}");
        entrypoints.push((entrypoint.to_owned(), config["config"]["Cmd"].clone()));
        layers.push(manifest["layers"].clone());
    }
    // What `podman load` and `docker load` read: the same images, with names.
    let listed = json(&path("layout/manifest.json"));
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), entrypoints.len());
    for (image, descriptor) in listed.iter().zip(index["manifests"].as_array().unwrap()) {
        let role = descriptor["annotations"]["org.opencontainers.image.ref.name"].as_str().unwrap();
        assert_eq!(image["RepoTags"][1], format!("localhost/ferrokube/{role}:latest"));
        let config = json(&path("layout").join(image["Config"].as_str().unwrap()));
        assert!(config["config"]["Entrypoint"].is_array());
        assert!(path("layout").join(image["Layers"][0].as_str().unwrap()).is_file());
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
    // Of root, for the group of the user: as a kubelet mounts a Secret.
    let tokens = path("root/tokens");
    fs::write(&tokens, "secret-token,alice,1\n").unwrap();
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o440)).unwrap();
    std::os::unix::fs::chown(&tokens, Some(0), Some(65532)).unwrap();
    let mut command = role(entrypoint);
    command.args(flags).args(["--secure-port=0", "--token-auth-file=/tokens"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut running = Contained(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready in "), "{line}");
    let kubeconfig = path("root/var/lib/ferrokube/admin.kubeconfig");
    let admin = Client::from_kubeconfig(&kubeconfig).unwrap();
    assert_eq!(admin.get("/api/v1/namespaces/default").await.unwrap().status, 200);
    let alice = Client::new(admin.url(), &ca_of(&kubeconfig), None, Some("secret-token")).unwrap();
    assert_eq!(alice.get("/api").await.unwrap().status, 200);
    // As the health check of the image, at the port of this test.
    let probe = |path: &str| {
        let mut probe = role("/usr/bin/ferrokube");
        probe.args(["probe", &format!("{}{path}", admin.url())]).output().unwrap()
    };
    assert!(probe("/readyz").status.success());
    let refused = probe("/no-such-path");
    assert_eq!(refused.status.code(), Some(1));
    kill_process(Pid::from_child(&running.0), Signal::TERM).unwrap();
    assert!(running.0.wait().unwrap().success());
}
