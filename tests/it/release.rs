//! `deploy/release`: the tarball starts, the SBOM names what is linked, the same input gives the
//! same bytes.

use crate::FERROKUBE;
use ferrokube_testkit::newest_kubectl;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/release");

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn release(directory: &Path) {
    let mut script = Command::new(SCRIPT);
    script.arg(directory).args(["--binary", FERROKUBE, "--without-images", "--level=1"]);
    // The sources may have no commit, as in an archive of them.
    run(script.env("SOURCE_DATE_EPOCH", "1700000000").env("CARGO_NET_OFFLINE", "true"));
}

fn the_file(directory: &Path, ending: &str) -> PathBuf {
    let mut names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    names.find(|path| path.display().to_string().ends_with(ending)).unwrap()
}

#[test]
fn a_release_is_whole_and_repeatable() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = (scratch.path().join("first"), scratch.path().join("second"));
    release(&first);
    release(&second);
    let sums = |directory: &Path| fs::read_to_string(directory.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&first), sums(&second));
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&first));

    let tarball = the_file(&first, ".tar.gz");
    run(Command::new("tar").arg("-xzf").arg(&tarball).arg("-C").arg(scratch.path()));
    let name = tarball.file_name().unwrap().to_str().unwrap().trim_end_matches(".tar.gz");
    let unpacked = scratch.path().join(name);
    assert!(run(Command::new(unpacked.join("ferrokube")).arg("version")).starts_with("ferrokube "));
    for file in ["LICENSE", "README.md", "docs/install.md", "deploy/systemd/ferrokube.service"] {
        assert!(unpacked.join(file).is_file(), "{file}");
    }
    // What the README says to do with it.
    let data_dir = scratch.path().join("data");
    let mut command = Command::new(unpacked.join("ferrokube"));
    command.arg("all-in-one").arg("--data-dir").arg(&data_dir).arg("--secure-port=0");
    let mut server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let kubeconfig = data_dir.join("admin.kubeconfig");
    let ran = newest_kubectl().run(&kubeconfig, &["get", "namespace", "default", "-o", "name"]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(line.starts_with("ready in ") && ran.stdout.contains("namespace/default"), "{ran:?}");
    let page = fs::read_to_string(unpacked.join("man/man1/ferrokube-all-in-one.1")).unwrap();
    assert!(page.contains("\\-\\-secure\\-port"), "{page}");
    let mut install = Command::new(unpacked.join("ferrokube"));
    run(install.arg("install").arg("--root").arg(scratch.path().join("root")));

    let text = fs::read(the_file(&first, ".cdx.json")).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    let components = document["components"].as_array().unwrap();
    let names: BTreeSet<&str> =
        components.iter().map(|component| component["name"].as_str().unwrap()).collect();
    assert!(["rustls", "tokio", "ferrokube-server"].iter().all(|name| names.contains(name)));
    assert!(!names.contains("proptest"), "of tests only");
    for component in components {
        let name = component["name"].as_str().unwrap();
        assert!(component["licenses"][0]["expression"].is_string(), "{name}");
        let is_ours = name.starts_with("ferrokube-");
        assert_eq!(component["hashes"][0]["content"].is_string(), !is_ours, "{name}");
    }
}
