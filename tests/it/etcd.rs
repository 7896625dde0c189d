//! API servers with their state in etcd, of every installed version.

use crate::FERROKUBE;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_testkit::{
    ApiResponse, BOUND, Client, Cluster, Kubectl, Launch, newest_kubectl, wait_until,
};
use serde_json::json;
use std::path::Path;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn launch(etcd: &EtcdProcess) -> Launch {
    Launch::new(FERROKUBE).flag(format!("--etcd-servers={}", etcd.url()))
}

fn etcd_in(executable: &Path, directory: &tempfile::TempDir) -> EtcdProcess {
    EtcdProcess::start(executable, &directory.path().join("etcd"))
}

fn check(kubectl: &Kubectl, server: &Cluster, arguments: &[&str], words: &str) {
    let ran = kubectl.run(&server.kubeconfig(), arguments);
    assert!(
        ran.ok && ran.stdout.contains(words),
        "{arguments:?}: {:?} {:?}",
        ran.stdout,
        ran.stderr
    );
}

async fn is_ready(client: &Client) -> bool {
    client.get("/readyz").await.is_ok_and(|response| response.status == 200)
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_works_on_two_servers_that_share_an_etcd() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = etcd_in(&executable, &directory);
        let one = launch(&etcd).start().unwrap();
        let other = launch(&etcd).role("apiserver").start().unwrap();
        let kubectl = newest_kubectl();
        let (first, second) = (one.admin().unwrap(), other.admin().unwrap());
        let mut watch =
            second.watch(&format!("{MAPS}?watch=true&resourceVersion=0")).await.unwrap();
        check(
            &kubectl,
            &one,
            &["create", "configmap", "page", "--from-literal=color=blue"],
            "created",
        );
        // Read at once elsewhere, without a wait.
        let page = format!("{MAPS}/page");
        assert_eq!(second.get(&page).await.unwrap().body["data"]["color"], "blue");
        check(
            &kubectl,
            &other,
            &["patch", "configmap", "page", "-p", r#"{"data":{"color":"green"}}"#],
            "patched",
        );
        check(
            &kubectl,
            &one,
            &["get", "configmap", "page", "-o", "jsonpath={.data.color}"],
            "green",
        );
        check(&kubectl, &one, &["label", "configmap", "page", "tier=front"], "labeled");
        check(
            &kubectl,
            &other,
            &["get", "configmaps", "-l", "tier=front", "-o", "name"],
            "configmap/page",
        );
        check(&kubectl, &other, &["delete", "configmap", "page"], "deleted");
        assert_eq!(first.get(&page).await.unwrap().status, 404);
        let mut kinds = Vec::new();
        while kinds.last().is_none_or(|kind| kind != "DELETED") {
            let event = watch.next().await.unwrap().expect("the watch goes on");
            if event["object"]["metadata"]["name"] == "page" {
                kinds.push(event["type"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(kinds, ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]);
        custom_resources(&kubectl, &one, &other).await;
    }
}

/// A definition made on one server is served by the other.
async fn custom_resources(kubectl: &Kubectl, one: &Cluster, other: &Cluster) {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kubectl/widgets.yaml");
    check(kubectl, one, &["apply", "-f", manifest], "created");
    let client = other.admin().unwrap();
    let groups = || async {
        let groups = client.get("/apis").await.unwrap().text;
        groups.contains("example.com").then_some(()).ok_or_else(String::new)
    };
    wait_until("the other server serves the definition", BOUND, groups).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_servers_survive_a_dead_etcd() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let mut etcd = etcd_in(&executable, &directory);
        let mut server = launch(&etcd).role("apiserver").start().unwrap();
        let admin = server.admin().unwrap();
        let map = |name: &str| json!({"metadata": {"name": name}});
        assert_eq!(admin.post(MAPS, &map("before")).await.unwrap().status, 201);
        etcd.kill();
        let admin = &admin;
        let unready =
            || async move { (!is_ready(admin).await).then_some(()).ok_or_else(String::new) };
        wait_until("not ready without etcd", BOUND, unready).await;
        // Neither a stale read nor a write that may be lost.
        assert_eq!(admin.get(&format!("{MAPS}/before")).await.unwrap().status, 503);
        assert_eq!(admin.get(&format!("{MAPS}/none")).await.unwrap().status, 503);
        let cached = admin.get(&format!("{MAPS}?resourceVersion=0")).await.unwrap();
        assert_eq!(cached.status, 200, "any revision will do");
        etcd.restart();
        let ready = || async move { is_ready(admin).await.then_some(()).ok_or_else(String::new) };
        wait_until("ready again", BOUND, ready).await;
        let written = || async move {
            let written = admin.post(MAPS, &map("after")).await.unwrap();
            matches!(written.status, 201 | 409).then_some(()).ok_or_else(String::new)
        };
        wait_until("writes again", BOUND, written).await;
        server.restart().unwrap();
        let admin = server.admin().unwrap();
        for name in ["before", "after"] {
            assert_eq!(admin.get(&format!("{MAPS}/{name}")).await.unwrap().status, 200, "{name}");
        }
    }
}

/// The response to a GET, once the server listens.
async fn early(server: &Cluster, path: &str) -> ApiResponse {
    let reply = || async move {
        // Each start writes another.
        let admin = server.admin().map_err(|error| format!("{error:#}"))?;
        admin.get(path).await.map_err(|error| format!("{error:#}"))
    };
    wait_until("the server listens", BOUND, reply).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_a_start_without_etcd_serves_probes_and_waits() {
    const UNAVAILABLE: &str = "the storage is unavailable";
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let mut etcd = etcd_in(&executable, &directory);
        etcd.kill();
        let mut server = launch(&etcd).role("apiserver").begin().unwrap();
        for probe in ["readyz", "livez", "healthz"] {
            let reply = early(&server, &format!("/{probe}")).await;
            assert_eq!(reply.status, 500, "{}", reply.text);
            assert!(reply.text.contains("[+]ping ok\n"), "{}", reply.text);
            assert!(reply.text.contains("[-]etcd failed: reason withheld"), "{}", reply.text);
        }
        assert_eq!(early(&server, "/livez?exclude=etcd").await.status, 200);
        assert_eq!(early(&server, "/version").await.body["major"], "1");
        for path in [MAPS, "/apis", "/readyz/etcd"] {
            let reply = early(&server, path).await;
            assert_eq!((reply.status, &reply.body["reason"]), (503, &"ServiceUnavailable".into()));
            assert_eq!(reply.headers["retry-after"], "5", "{path}");
        }
        server.wait_for_log(UNAVAILABLE).await;
        let log = server.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(UNAVAILABLE)).collect();
        assert!(lines.len() == 1 && lines[0].contains(&etcd.url()), "{log}");
        assert!(server.terminate().unwrap().success(), "{}", server.log());
        server.begin().unwrap();
        assert_eq!(early(&server, "/readyz").await.status, 500);
        etcd.restart();
        server.wait_ready().unwrap();
        let admin = server.admin().unwrap();
        assert!(is_ready(&admin).await);
        let map = json!({"metadata": {"name": "after"}});
        assert_eq!(admin.post(MAPS, &map).await.unwrap().status, 201);
    }
}

#[test]
fn without_an_etcd_a_start_fails_with_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    for (flags, words) in [
        (&["--etcd-servers=127.0.0.1:2379"][..], "is no http or https URL of an etcd server"),
        (&["--etcd-servers=https://127.0.0.1:2379"], "of its servers: set --etcd-cafile"),
        (&["--etcd-servers=http://127.0.0.1:1", "--storage=memory"], "cannot be used with"),
        (&["--etcd-servers=http://127.0.0.1:1", "--etcd-cafile=/nonexistent"], "does not exist"),
        (&["--etcd-cafile=/nonexistent"], "--etcd-servers"),
        (
            &["--etcd-servers=http://127.0.0.1:1", "--etcd-prefix=registry"],
            "--etcd-prefix \"registry\" is no",
        ),
    ] {
        let launch = flags.iter().fold(Launch::new(FERROKUBE), |launch, flag| launch.flag(*flag));
        let output =
            launch.role("apiserver").command(&directory.path().join("d")).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // A file may come later.
        let code = if words == "does not exist" { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {errors}");
        assert!(errors.contains(words), "{flags:?}: {errors}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_continue_each_others_lists_and_know_each_other() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = etcd_in(&executable, &directory);
        let one = launch(&etcd).role("apiserver").start().unwrap();
        let key = one.data_dir().join("pki/sa.key");
        let flag = format!("--service-account-signing-key-file={}", key.display());
        let other = launch(&etcd).role("apiserver").flag(flag).start().unwrap();
        let (first, second) = (one.admin().unwrap(), other.admin().unwrap());
        for name in ["a", "b", "c"] {
            let map = json!({"metadata": {"name": name}});
            assert_eq!(first.post(MAPS, &map).await.unwrap().status, 201);
        }
        let page = first.get(&format!("{MAPS}?limit=1")).await.unwrap().body;
        let token = page["metadata"]["continue"].as_str().unwrap();
        let next = second.get(&format!("{MAPS}?limit=1&continue={token}")).await.unwrap();
        assert_eq!(next.status, 200, "{}", next.text);
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
        let second = &second;
        let both = || async move {
            let label = "apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";
            let found = second.get(&format!("{leases}?labelSelector={label}")).await.unwrap().body;
            let count = found["items"].as_array().map_or(0, Vec::len);
            (count == 2).then_some(()).ok_or_else(|| found.to_string())
        };
        wait_until("both servers have an identity Lease", BOUND, both).await;
    }
}
