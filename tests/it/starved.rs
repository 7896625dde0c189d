//! Processes short of resources: file descriptors, readers of the log.

use crate::FERROKUBE;
use crate::audit::sockets_to;
use crate::controllers::ManagerProcess;
use ferrokube_testkit::{BOUND, Client, Launch, wait_until};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::tempdir;

/// A started process; killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a command without testkit's supervision, and waits for its ready line.
fn start(command: &mut Command, data: &Path) -> (Running, Client) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let running = Running(child);
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("ready in "), "{line:?}");
    // Kept open but never read; nothing more is written to it.
    std::mem::forget(output);
    (running, Client::from_kubeconfig(&data.join("admin.kubeconfig")).unwrap())
}

#[tokio::test]
async fn fault_13_an_unread_log_blocks_nothing() {
    let directory = tempdir().unwrap();
    let data = directory.path().join("data");
    let (_running, admin) =
        start(Launch::new(FERROKUBE).flag("-v=10").command(&data).stderr(Stdio::piped()), &data);
    // More lines than the pipe and the log queue hold.
    for round in 0..3000 {
        let answer = admin.get("/api/v1/namespaces/default").await.unwrap();
        assert_eq!(answer.status, 200, "request {round}");
    }
}

/// As a VM is, or a process whose machine swaps: longer than its lease, its pings and many limits.
#[tokio::test(flavor = "multi_thread")]
async fn fault_13_a_server_that_was_paused_goes_on_where_it_was() {
    const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    let object =
        |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let before = admin.post(CONFIGMAPS, &object("before")).await.unwrap();
    assert_eq!(before.status, 201, "{}", before.text);
    let version = before.body["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{CONFIGMAPS}?watch=1&resourceVersion={version}");
    let mut watch = admin.watch(&path).await.unwrap();
    cluster.signal(Signal::STOP).unwrap();
    let waiting: Vec<_> = (0..10)
        .map(|number| {
            let (admin, object) = (admin.clone(), object(&format!("during-{number}")));
            tokio::spawn(async move { admin.post(CONFIGMAPS, &object).await.unwrap() })
        })
        .collect();
    // Not a wait: how long it is paused.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(waiting.iter().all(|write| !write.is_finished()), "it is paused");
    cluster.signal(Signal::CONT).unwrap();
    let mut written = BTreeSet::new();
    for write in waiting {
        let answer = write.await.unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text);
        written.insert(answer.body["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
    }
    let mut seen = BTreeSet::new();
    while seen.len() < written.len() {
        let event = tokio::time::timeout(BOUND, watch.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(event["type"], "ADDED", "{event}");
        let version = &event["object"]["metadata"]["resourceVersion"];
        assert!(seen.insert(version.as_str().unwrap().to_owned()), "each once: {event}");
    }
    assert_eq!(seen, written);
    assert_eq!(admin.get("/readyz").await.unwrap().status, 200);
}

/// Silent sockets take no descriptor that the journal needs: connections are refused first.
#[tokio::test]
async fn fault_38_sockets_leave_descriptors_to_the_journal() {
    const DESCRIPTORS: usize = 600;
    const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
    let directory = tempdir().unwrap();
    let data = directory.path().join("data");
    // In a debug build with segments of 64 KiB: the writes below begin some.
    let launch =
        Launch::new(FERROKUBE).role("apiserver").environment("FERROKUBE_FAILPOINT", "none");
    let server = launch.command(&data);
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("ulimit -n {DESCRIPTORS} && exec \"$0\" \"$@\"")]);
    limited.arg(server.get_program()).args(server.get_args());
    for (name, value) in server.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let (_running, admin) = start(limited.stdin(Stdio::null()).stderr(Stdio::null()), &data);
    assert_eq!(admin.get("/readyz").await.unwrap().status, 200);
    let refused = async || {
        let metrics = admin.get("/metrics").await.unwrap().text;
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix("ferrokube_connections_refused "));
        count.unwrap().trim().parse::<u64>().unwrap()
    };
    let kubeconfig = std::fs::read_to_string(data.join("admin.kubeconfig")).unwrap();
    let (_, address) = kubeconfig.split_once("https://").unwrap();
    let address = address.split(['"', '\n', '\'', ' ']).next().unwrap();
    let segments = || -> BTreeSet<_> {
        std::fs::read_dir(data.join("store")).unwrap().map(|file| file.unwrap().path()).collect()
    };
    let (before, mut silent) = (segments(), Vec::new());
    // At most all that the process may have.
    while silent.len() < DESCRIPTORS && refused().await == 0 {
        silent.extend((0..50).map(|_| TcpStream::connect(address).unwrap()));
    }
    for number in 0..20 {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("c{number}")},
            "data": {"k": "v".repeat(60_000)}});
        let made = admin.post(CONFIGMAPS, &object).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
    }
    let has_begun = !segments().is_subset(&before);
    assert!(has_begun || !cfg!(debug_assertions), "a segment was begun");
    assert_eq!(admin.get("/readyz").await.unwrap().status, 200);
    assert!(refused().await > 0, "{} sockets", silent.len());
}

#[tokio::test]
async fn fault_38_without_file_handles_the_listener_waits_and_recovers() {
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let process = Pid::from_raw(cluster.pid().cast_signed()).unwrap();
    let connected = cluster.admin().unwrap();
    assert_eq!(connected.get("/readyz").await.unwrap().status, 200);
    // The process may have no descriptor more than it has.
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit { current: Some(3), ..before };
    prlimit(Some(process), Resource::Nofile, none).unwrap();
    let address = cluster.url().trim_start_matches("https://").to_owned();
    let waiting = TcpStream::connect(&address).unwrap();
    let said = || cluster.log().matches("cannot accept connections").count();
    wait_until("the listener meets the error", BOUND, || async {
        if said() > 0 { Ok(()) } else { Err(cluster.log()) }
    })
    .await;
    assert!(cluster.log().contains("os error 24"), "{}", cluster.log());
    // Connections go on meanwhile.
    assert_eq!(connected.get("/version").await.unwrap().status, 200);
    prlimit(Some(process), Resource::Nofile, before).unwrap();
    wait_until("a new client is answered", BOUND, || async {
        match cluster.admin().unwrap().get("/readyz").await {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(said(), 1, "one line, however many attempts: {}", cluster.log());
    drop(waiting);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_38_the_controllers_watch_hundreds_of_kinds_over_few_connections() {
    const KINDS: u64 = 150;
    /// A hundred requests each, with the manager's certificate and without it.
    const MAX_SOCKETS: usize = 8;
    // The controllers of `all-in-one` open no connection: here they have a process of their own.
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    for at in 0..KINDS {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("k{at}s.ex.com")},
            "spec": {"group": "ex.com", "scope": "Namespaced", "names": {"plural": format!("k{at}s"), "kind": format!("K{at}")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
        let answer = admin
            .post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)
            .await
            .unwrap();
        assert_eq!(answer.status, 201, "{}", answer.text);
    }
    let port = cluster.url().rsplit(':').next().unwrap().parse().unwrap();
    let directory = tempdir().unwrap();
    let manager = ManagerProcess::start(
        &cluster.kubeconfig(),
        directory.path().join("log"),
        &["--leader-elect=false"],
    );
    wait_until("all of them are watched", BOUND, async || {
        let metrics = admin.get("/metrics").await.unwrap().text;
        let value = |name: &str| {
            let mut lines = metrics.lines();
            lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok()).unwrap()
        };
        let (watches, connections) =
            (value("apiserver_longrunning_requests "), value("ferrokube_connections_open "));
        let sockets = sockets_to(manager.pid(), port);
        assert!(sockets <= MAX_SOCKETS, "{sockets} connections for {watches} watches");
        // And ours.
        assert!(connections <= MAX_SOCKETS as u64 + 5, "{connections} for {watches} watches");
        if watches >= KINDS && sockets > 0 {
            Ok(())
        } else {
            Err(format!("{watches} watches, {sockets} connections: {}", manager.log()))
        }
    })
    .await;
}
