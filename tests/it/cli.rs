//! The command line: output and exit codes.

use crate::FERROKUBE;
use crate::trails::Process;
use ferrokube_testkit::{BOUND, Cluster, Launch};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn end(command: &mut Command) -> Ended {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

fn run(arguments: &[&str]) -> Ended {
    end(Command::new(FERROKUBE).args(arguments))
}

/// Expects one line on standard error with these words, no output, and exit code 1.
fn refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(ended.stdout, "");
    let message: Vec<_> =
        ended.stderr.lines().filter(|line| line.starts_with("ferrokube: ")).collect();
    assert_eq!(message.len(), 1, "{}", ended.stderr);
    for word in words {
        assert!(message[0].contains(word), "{word:?} in {}", message[0]);
    }
}

#[test]
fn help_names_the_roles_and_their_flags() {
    let help = run(&["--help"]);
    assert_eq!(help.code, Some(0));
    for word in ["all-in-one", "apiserver", "version", "completions"] {
        assert!(help.stdout.contains(word), "{word} in {}", help.stdout);
    }
    let flags = run(&["help", "all-in-one"]).stdout;
    for flag in [
        "--data-dir",
        "--bind-address",
        "--secure-port",
        "--tls-san",
        "--storage",
        "--token-auth-file",
        "--profile",
        "--feature-gates",
        "--log-format",
    ] {
        assert!(flags.contains(flag), "{flag} in {flags}");
    }
    let flags = run(&["apiserver", "--help"]).stdout;
    for flag in [
        "--tls-cert-file",
        "--client-ca-file",
        "--requestheader-client-ca-file",
        "--service-account-issuer",
        "--audit-log-path",
        "--anonymous-auth",
    ] {
        assert!(flags.contains(flag), "{flag} in {flags}");
    }
    assert_eq!(run(&[]).code, Some(2));
}

#[test]
fn version_and_completions() {
    let version = run(&["version"]);
    assert_eq!((version.code, version.stderr.as_str()), (Some(0), ""));
    assert!(
        version.stdout.starts_with("ferrokube ") && version.stdout.contains("1.36"),
        "{}",
        version.stdout
    );
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).stdout.contains("all-in-one"));
    }
}

#[test]
fn an_unknown_role_lists_the_existing_ones() {
    for ended in [run(&["scheduler"]), run(&["scheduler", "--help"])] {
        assert_eq!(ended.code, Some(2));
        assert!(
            ended.stderr.contains("unknown role") && ended.stderr.contains("all-in-one, apiserver"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains("`ferrokube --help`"), "{}", ended.stderr);
    }
    let similar = run(&["bakup"]).stderr;
    assert!(similar.contains("unknown role \"bakup\", similar to backup; "), "{similar}");
    assert!(run(&["help", "scheduler"]).stderr.contains("unknown role \"scheduler\""));
}

#[test]
fn the_kubelet_names_what_is_wrong_with_its_configuration() {
    let directory = tempdir().unwrap();
    let file = directory.path().join("config.yaml");
    let path = file.to_str().unwrap();
    let wrong = run(&["kubelet", "--config", path]);
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("cannot read the KubeletConfiguration"), "{}", wrong.stderr);
    std::fs::write(&file, "apiVersion: v1\nkind: Pod").unwrap();
    let wrong = run(&["kubelet", "--config", path]);
    assert!(wrong.stderr.contains("no kind \"Pod\" is registered"), "{}", wrong.stderr);
    let kind = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    std::fs::write(&file, format!("{kind}maxParallelImagePulls: -1")).unwrap();
    let wrong = run(&["kubelet", "--config", path]);
    assert!(wrong.stderr.contains("must be a positive number"), "{}", wrong.stderr);
    let wrong = run(&["kubelet", "--hostname-override", "not a name"]);
    assert!(wrong.stderr.contains("set --hostname-override"), "{}", wrong.stderr);
}

#[test]
fn a_kubelet_without_a_runtime_names_its_socket_and_is_not_ready() {
    let directory = tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let manager = UnixDatagram::bind(path("notify")).unwrap();
    manager.set_read_timeout(Some(BOUND)).unwrap();
    let runtime = path("runtime.sock");
    let mut command = Command::new(FERROKUBE);
    command
        .args(["kubelet", "--hostname-override=node-a", "--node-ip=127.0.0.1", "--root-dir"])
        .arg(path("root"))
        .arg(format!("--container-runtime-endpoint=unix://{}", runtime.display()))
        .env("NOTIFY_SOCKET", path("notify"));
    let _kubelet = Process::start(command, &path("log"));
    let mut first = [0; 1024];
    let length = manager.recv(&mut first).unwrap();
    let first = String::from_utf8_lossy(&first[..length]);
    let why = format!("cannot connect to {}: No such file", runtime.display());
    assert!(first.starts_with("STATUS=waiting for the container runtime: "), "{first}");
    assert!(first.contains(&why), "{first}");
}

#[test]
fn the_name_of_the_executable_is_the_role() {
    let directory = tempdir().unwrap();
    for name in ["apiserver", "kube-apiserver", "all-in-one"] {
        let link = directory.path().join(name);
        symlink(FERROKUBE, &link).unwrap();
        let ended = end(Command::new(&link).arg("--help"));
        assert_eq!(ended.code, Some(0));
        assert!(ended.stdout.contains("--secure-port"), "{}", ended.stdout);
        let profile = ended.stdout.lines().skip_while(|line| !line.contains("--profile"));
        let profile = profile.take_while(|line| !line.contains("--runtime-config"));
        let default = if name == "kube-apiserver" { "kubernetes" } else { "generic" };
        let text = profile.collect::<Vec<_>>().join(" ");
        assert!(text.contains(&format!("[default: {default}]")), "{name}: {text}");
    }
}

#[test]
fn an_unknown_flag_names_the_nearest() {
    let ended = run(&["all-in-one", "--secure-prt=0"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("'--secure-port'"), "{}", ended.stderr);
    assert_eq!(run(&["all-in-one", "--feature-gates=Nonsense"]).code, Some(2));
    assert_eq!(run(&["all-in-one", "--secure-port=65536"]).code, Some(2));
    assert_eq!(run(&["all-in-one", "--storage=paper"]).code, Some(2));
}

fn start_in(path: &Path) -> Ended {
    end(&mut Launch::new(FERROKUBE).command(path))
}

#[test]
fn a_directory_that_cannot_be_used_is_one_clear_line() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("data");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    refused(&start_in(&path), &["data", "chmod go="]);
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&start_in(&file.join("data")), &["data"]);
    refused(&start_in(&file), &["file"]);
}

#[test]
fn a_newer_format_is_refused_and_left_alone() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("data");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(path.join("version"), "999\n").unwrap();
    refused(&start_in(&path), &["format 999", "newer"]);
    assert!(!path.join("pki").exists() && !path.join("store").exists());
}

#[test]
fn keys_that_others_can_read_are_refused() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    cluster.terminate().unwrap();
    fs::set_permissions(cluster.data_dir().join("pki/ca.key"), fs::Permissions::from_mode(0o644))
        .unwrap();
    refused(&start_in(&cluster.data_dir()), &["ca.key", "chmod go="]);
}

#[test]
fn fault_12_a_port_in_use_and_a_second_process_are_one_clear_line() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    refused(&start_in(&cluster.data_dir()), &["in use by process", &cluster.pid().to_string()]);
    let directory = tempdir().unwrap();
    let port = cluster.url().rsplit_once(':').unwrap().1;
    let mut second = Launch::new(FERROKUBE).command(&directory.path().join("data"));
    // The later flag wins over the port 0 of the test support.
    let ended = end(Command::new(FERROKUBE)
        .args(["all-in-one", "--secure-port", port, "--data-dir"])
        .arg(directory.path().join("data2")));
    refused(&ended, &[port, "--secure-port"]);
    refused(
        &end(second.args(["--token-auth-file", "/nonexistent/tokens"])),
        &["/nonexistent/tokens"],
    );
}
