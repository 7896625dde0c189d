//! `ferrokube doctor`: a sound installation passes, faults are named with advice, and hostile
//! directories do not stop it.

use crate::FERROKUBE;
use ferrokube_testkit::{Cluster, Launch};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// The exit code and the output.
fn doctor(data_dir: &Path, root: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(FERROKUBE);
    command.arg("doctor").arg("--data-dir").arg(data_dir).arg("--root").arg(root).args(flags);
    let output = command.env_remove("RUST_LOG").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn state<'a>(text: &'a str, check: &str) -> Vec<&'a str> {
    let rows = text.lines().take_while(|line| !line.is_empty());
    rows.filter(|line| line.starts_with(check))
        .map(|line| line.split_whitespace().nth(1).unwrap())
        .collect()
}

#[test]
fn a_server_that_runs_is_sound() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let root = tempfile::tempdir().unwrap();
    let mut install = Command::new(FERROKUBE);
    assert!(
        install.args(["install", "--root"]).arg(root.path()).output().unwrap().status.success()
    );
    let (code, text) = doctor(&cluster.data_dir(), root.path(), &["--secure-port=0"]);
    assert_eq!(code, Some(0), "{text}");
    for check in [
        "flags",
        "installation",
        "settings",
        "directory",
        "files",
        "format",
        "store",
        "certificates",
    ] {
        let states = state(&text, check);
        assert!(!states.is_empty() && states.iter().all(|state| *state == "ok"), "{check}: {text}");
    }
    assert!(text.contains("ready, and of this version"), "{text}");

    // Faults, each with advice.
    cluster.terminate().unwrap();
    let data_dir = cluster.data_dir();
    let key = data_dir.join("pki/sa.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(data_dir.join("pki/ca.crt"), "half").unwrap();
    fs::write(data_dir.join("version"), "99").unwrap();
    fs::write(root.path().join("etc/ferrokube/apiserver.env"), "FLAGS=--no-such-flag\n").unwrap();
    fs::remove_file(root.path().join("usr/local/bin/kubelet")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--secure-port={}", taken.local_addr().unwrap().port());
    let (code, text) = doctor(&data_dir, root.path(), &[&port, "--audit-policy-file=/none"]);
    assert_eq!(code, Some(1), "{text}");
    for words in [
        "sa.key: open to others",
        "chmod -R go=",
        "ca.crt: contains no certificate",
        "format 99",
        "--no-such-flag",
        "changed: kubelet",
        "is in use by another process",
        "/none does not exist",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn whatever_a_directory_has_is_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let data_dir = scratch.path().join("data");
    fs::create_dir_all(data_dir.join("store")).unwrap();
    fs::set_permissions(&data_dir, fs::Permissions::from_mode(0o700)).unwrap();
    let path = |name: &str| data_dir.join(name);
    for name in ["version", "admin.kubeconfig", "store/1.journal", "lock"] {
        mknodat(CWD, path(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
    }
    // A loop, a file in place of a directory, and one that would move a terminal's cursor.
    std::os::unix::fs::symlink(".", path("store/loop")).unwrap();
    fs::write(path("pki"), [0xff; 4096]).unwrap();
    fs::write(path("\u{1b}[2J.kubeconfig"), [0; 100]).unwrap();
    let (code, text) = doctor(&data_dir, scratch.path(), &["--secure-port=0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("neither file nor directory"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let (code, text) = doctor(&path("pki"), scratch.path(), &[]);
    assert_eq!((code, state(&text, "directory")), (Some(1), vec!["FAILED"]), "{text}");
    let (_, text) = doctor(&path("none"), scratch.path(), &["--secure-port=0"]);
    assert_eq!(state(&text, "directory"), ["-"], "{text}");
}

/// etcd that does not respond, and a directory whose server is another's.
#[test]
fn an_etcd_that_does_not_respond_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--etcd-servers=http://{}", silent.local_addr().unwrap());
    let data_dir = scratch.path().join("data");
    let (code, text) = doctor(&data_dir, scratch.path(), &[&url, "--secure-port=0"]);
    assert_eq!((code, state(&text, "etcd")), (Some(1), vec!["FAILED"]), "{text}");
    assert!(!data_dir.exists(), "it writes nothing");
    let memory = Launch::new(FERROKUBE).flag("--storage=memory").start().unwrap();
    let (code, text) = doctor(&memory.data_dir(), scratch.path(), &["--secure-port=0"]);
    assert_eq!((code, state(&text, "store")), (Some(0), vec!["-"]), "{text}");
}
