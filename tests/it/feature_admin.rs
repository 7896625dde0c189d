//! `ferrokube feature-admin` against a real server: each command, formats, wrong input.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Cluster, Launch, newest_kubectl, wait_until};
use serde_json::{Value, json};
use std::process::{Command, Output};

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const TOYS: &str = "/apis/features.k8s.io/v1alpha1/namespaces/default/features";
const ON: &str = "--feature-gates=FeatureAPI=true";
const OFF: &str = "--feature-gates=FeatureAPI=true,LogTracking=false";
const SHORT: &str = "--feature-evaluation-time=1s";
const LONG: &str = "--feature-evaluation-time=1h";

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn ran(output: &Output) -> Ran {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

fn admin(cluster: &Cluster, line: &str) -> Ran {
    let mut command = Command::new(FERROKUBE);
    command.arg("feature-admin").arg("--kubeconfig").arg(cluster.kubeconfig());
    ran(&command.args(line.split_whitespace()).output().unwrap())
}

fn ok(cluster: &Cluster, line: &str) -> String {
    let ran = admin(cluster, line);
    assert_eq!(ran.code, Some(0), "{line}: {}{}", ran.stdout, ran.stderr);
    ran.stdout
}

/// Expects an exit code and words on standard output or, with 2, in one line of standard error.
fn fails(cluster: &Cluster, line: &str, code: i32, words: &[&str]) {
    let ran = admin(cluster, line);
    assert_eq!(ran.code, Some(code), "{line}: {}{}", ran.stdout, ran.stderr);
    let text = if code == 1 { &ran.stdout } else { &ran.stderr };
    for word in words {
        assert!(text.contains(word), "{line}: {word:?} in {text}");
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

async fn start() -> Cluster {
    let cluster = Launch::new(FERROKUBE).role("all-in-one").flag(SHORT).flag(ON).start().unwrap();
    ok(&cluster, "wait FeatureAPI --for state=On");
    ok(&cluster, "wait LogTracking --for state=On");
    ok(&cluster, "wait CoordinatedLeaderElection --for state=Off");
    // Until no other is in transition.
    ok(&cluster, "watch");
    cluster
}

#[tokio::test]
async fn feature_admin_lists_describes_and_checks_in_every_format() {
    let cluster = start().await;
    let list = ok(&cluster, "list");
    assert!(list.starts_with("NAME  ") && list.contains("LogTracking  "), "{list}");
    let items = json(&ok(&cluster, "list -o json"))["items"].as_array().unwrap().clone();
    assert_eq!(items.len() + 1, list.lines().count());
    let yaml = ok(&cluster, "list -o yaml");
    assert!(yaml.starts_with("apiVersion: v1\nitems:\n- apiVersion: features.k8s.io/"), "{yaml}");
    let page = ok(&cluster, "describe LogTracking");
    for part in ["LogTracking: On\n", "  To change it   --feature-gates=LogTracking=", "Used by\n"]
    {
        assert!(page.contains(part), "{page}");
    }
    assert_eq!(json(&ok(&cluster, "describe LogTracking -o json"))["status"]["state"], "On");
    let uses = ok(&cluster, "uses LogTracking");
    assert!(uses.contains("LogTracking   1.36      on      system:apiserver"), "{uses}");
    assert_eq!(json(&ok(&cluster, "uses LogTracking -o json"))[0]["enabled"], true);
    assert_eq!(ok(&cluster, "tasks").lines().count(), 1);
    assert_eq!(ok(&cluster, "watch"), "no feature is in transition\n");
    assert_eq!(ok(&cluster, "check-upgrade --to 1.37"), "upgrade to 1.37: safe\n");
    let safe = json(&ok(&cluster, "check-upgrade --to 1.37 -o json"));
    assert_eq!((&safe["safe"], &safe["to"]), (&json!(true), &json!("1.37")));
    let why = "LogTracking: stored objects use it";
    fails(&cluster, "check-downgrade --to 1.35", 1, &["downgrade to 1.35: not safe\n", why]);
    // A plugin of kubectl, with kubectl's way to find the cluster.
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("kubectl-features");
    std::os::unix::fs::symlink(FERROKUBE, &link).unwrap();
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    // Flags cannot be placed before the name of a plugin.
    let kubectl = newest_kubectl().command(&cluster.kubeconfig());
    let mut kubectl = Command::new(kubectl.get_program());
    kubectl.args(["features", "list"]).env("PATH", path);
    let plugin = ran(&kubectl.env("KUBECONFIG", cluster.kubeconfig()).output().unwrap());
    assert_eq!(plugin.stdout, list, "{}", plugin.stderr);
}

#[tokio::test]
async fn feature_admin_names_wrong_input() {
    let cluster = start().await;
    let there = "there is no feature \"LogTrakcing\"; there are ";
    for command in ["describe", "enable", "disable", "uses", "prr"] {
        fails(&cluster, &format!("{command} LogTrakcing"), 2, &[there, "LogTracking"]);
    }
    fails(&cluster, "wait LogTrakcing --for state=On", 2, &[there]);
    fails(&cluster, "describe ../leases", 2, &["there is no feature \"../leases\""]);
    fails(&cluster, "wait LogTracking --for state=Gone", 2, &["On, Off, TurningOn, TurningOff"]);
    fails(&cluster, "wait LogTracking --for Off", 2, &["must be of the form state=Off"]);
    fails(&cluster, "check-upgrade --to soon", 2, &["not a version of the form 1.36"]);
    fails(&cluster, "check-upgrade --to 1.36", 2, &["1.36 is not later than 1.36"]);
    fails(&cluster, "check-downgrade --to 1.37", 2, &["1.37 is not earlier than 1.36"]);
    fails(&cluster, "check-upgrade --to 1.38", 1, &["one minor version at a time"]);
    fails(&cluster, "list -o xml", 2, &["xml", "yaml"]);
    fails(&cluster, "list --context nowhere", 2, &["no context \"nowhere\"", "which has "]);
    let flag = "LogTracking is not dynamic: restart with --feature-gates=LogTracking=false of \
                apiserver";
    fails(&cluster, "disable LogTracking", 2, &[flag]);
    fails(&cluster, "wait LogTracking --for state=Off --timeout 10ms", 1, &["LogTracking is On"]);
    let missing = Command::new(FERROKUBE)
        .args(["feature-admin", "list", "--kubeconfig", "/nowhere/config"])
        .output()
        .unwrap();
    let missing = ran(&missing);
    assert_eq!(missing.code, Some(2));
    assert!(
        missing.stderr.contains("cannot use the kubeconfig /nowhere/config"),
        "{}",
        missing.stderr
    );
    let sheet = Command::new(FERROKUBE).args(["feature-admin", "prr", "LogTracking"]).output();
    let sheet = ran(&sheet.unwrap());
    assert!(sheet.code == Some(0) && sheet.stdout.contains("\nP30 "), "{}", sheet.stdout);
    let without = Launch::new(FERROKUBE).role("all-in-one").start().unwrap();
    let words = ["does not serve features", "--feature-gates=FeatureAPI=true"];
    fails(&without, "list", 2, &words);
    fails(&without, "watch", 2, &words);
    fails(&without, "describe LogTracking", 2, &words);
}

#[tokio::test]
async fn feature_admin_writes_with_ids_and_not_in_a_dry_run() {
    let cluster = start().await;
    let client = cluster.admin().unwrap();
    let toys = json!({
        "apiVersion": "features.k8s.io/v1alpha1",
        "kind": "Feature",
        "metadata": {"name": "Toys"},
    });
    assert_eq!(client.post(TOYS, &toys).await.unwrap().status, 201);
    let desired = async || client.get(&format!("{TOYS}/Toys")).await.unwrap().body["spec"].clone();
    let dry = ok(&cluster, "-n default disable Toys --dry-run");
    assert_eq!(dry, "Toys disabled (server dry run)\n");
    assert_eq!(desired().await["desired"], Value::Null);
    // By a context of a second kubeconfig.
    let directory = tempfile::tempdir().unwrap();
    let own = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let name = json(
        &ran(&newest_kubectl()
            .command(&cluster.kubeconfig())
            .args(["config", "view", "-o", "json"])
            .output()
            .unwrap())
        .stdout,
    )["current-context"]
        .as_str()
        .unwrap()
        .to_owned();
    let (first, second) = (directory.path().join("first"), directory.path().join("second"));
    std::fs::write(&first, "apiVersion: v1\nkind: Config\ncurrent-context: none\n").unwrap();
    std::fs::write(&second, own).unwrap();
    let set = Command::new(FERROKUBE)
        .args(["feature-admin", "-n", "default", "-v", "enable", "Toys", "--context", &name])
        .env("KUBECONFIG", std::env::join_paths([&first, &second]).unwrap())
        .output()
        .unwrap();
    let set = ran(&set);
    assert_eq!(set.stdout, "Toys enabled\n", "{}", set.stderr);
    assert_eq!(desired().await["desired"], "Enabled");
    let patch = set.stderr.lines().find(|line| line.starts_with("PATCH ")).unwrap();
    let id = patch.rsplit(' ').next().unwrap();
    assert!(id.len() == 32 && patch.contains(": 200 in "), "{patch}");
    assert!(patch.contains(&format!("traceparent 00-{id}-")), "{patch}");
    assert!(set.stderr.lines().all(|line| line.ends_with(id)), "{}", set.stderr);
    let audit = std::fs::read_to_string(cluster.data_dir().join("audit.log")).unwrap();
    let event = audit.lines().find(|line| line.contains(id) && line.contains("\"patch\""));
    assert!(event.is_some_and(|event| event.contains("\"Toys\"")), "{audit}");
}

#[tokio::test]
async fn feature_admin_follows_a_transition() {
    const OBJECTS: usize = 300;
    let mut cluster = start().await;
    let client = cluster.admin().unwrap();
    for number in 0..OBJECTS {
        let name = format!("m{number}");
        let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        assert_eq!(client.post(CONFIGMAPS, &made).await.unwrap().status, 201);
    }
    cluster.terminate().unwrap();
    cluster.restart_with(&[LONG, OFF]).unwrap();
    wait_until("the uses are evaluated", BOUND, async || {
        let page = ok(&cluster, "describe LogTracking");
        if page.contains("  Now: components have until ") { Ok(()) } else { Err(page) }
    })
    .await;
    let page = ok(&cluster, "describe LogTracking");
    for part in ["LogTracking: TurningOff\n", "Before it is Off\n  1. WaitForUses\n"] {
        assert!(page.contains(part), "{page}");
    }
    let tasks = ok(&cluster, "tasks");
    assert!(tasks.contains("LogTracking   TurningOff   WaitForUses"), "{tasks}");
    let why = "LogTracking: the feature is TurningOff";
    fails(&cluster, "check-upgrade --to 1.37", 1, &["upgrade to 1.37: not safe\n", why]);
    let verdict = admin(&cluster, "check-upgrade --to 1.37 -o json");
    assert_eq!(json(&verdict.stdout)["reasons"][0]["feature"], "LogTracking");
    let late = ["LogTracking is TurningOff after 0 s\n"];
    fails(&cluster, "wait LogTracking --for state=Off --timeout 100ms", 1, &late);
    cluster.terminate().unwrap();
    cluster.restart_with(&[SHORT, ON]).unwrap();
    ok(&cluster, "wait LogTracking --for state=On");
    cluster.terminate().unwrap();
    // Longer than a busy machine needs to start the command.
    cluster.restart_with(&["--feature-evaluation-time=15s", OFF]).unwrap();
    let watched = ok(&cluster, "watch");
    let first = watched.lines().next().unwrap_or_default();
    assert!(first.starts_with("LogTracking TurningOff "), "{watched}");
    assert!(watched.ends_with("LogTracking is Off\nno feature is in transition\n"), "{watched}");
    assert_eq!(ok(&cluster, "wait LogTracking --for state=Off"), "LogTracking is Off\n");
}
