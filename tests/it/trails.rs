//! Log tracking with real processes (KEP-1668): the ids in storage, logs and audit log after a
//! user's create, scale and delete of a parent with children by a controller, and `ferrokube trace`
//! from the request to the log lines (L12) and back (L11).

use crate::FERROKUBE;
use crate::objects::{config_map, made};
use ferrokube_testkit::{
    BOUND, Client, Cluster, Kubectl, Launch, json_lines, newest_kubectl, wait_until, write_script,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const NAMESPACES: &str = "/api/v1/namespaces";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const FLEETS: &str = "/apis/example.com/v1/namespaces/default/fleets";

pub(crate) fn id<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["annotations"][format!("trace.kubernetes.io/{name}")]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {object}"))
}

pub(crate) fn audited(event: &Value, name: &str) -> String {
    event["annotations"][format!("trace.kubernetes.io/{name}")]
        .as_str()
        .unwrap_or_else(|| panic!("no {name} in {event}"))
        .to_owned()
}

/// The audit event of a request.
fn audit_event(cluster: &Cluster, verb: &str, resource: &str, name: &str) -> Value {
    let events = json_lines(&cluster.data_dir().join("audit.log"));
    let found = events.iter().find(|event| {
        event["verb"] == verb
            && event["objectRef"]["resource"] == resource
            && event["objectRef"]["name"] == name
    });
    found.unwrap_or_else(|| panic!("no {verb} of {resource} {name} in {events:?}")).clone()
}

/// Watches until the named objects are deleted; returns their last states.
async fn gone(admin: &Client, path: &str, from: &str, names: &[&str]) -> Vec<Value> {
    let mut watch =
        admin.watch(&format!("{path}?watch=true&resourceVersion={from}")).await.unwrap();
    let mut missing: BTreeSet<&str> = names.iter().copied().collect();
    let mut seen = Vec::new();
    while !missing.is_empty() {
        let event = tokio::time::timeout(BOUND, watch.next())
            .await
            .expect("the objects are deleted")
            .unwrap()
            .expect("the watch continues");
        if event["type"] == "DELETED" {
            missing.remove(event["object"]["metadata"]["name"].as_str().unwrap());
            seen.push(event["object"].clone());
        }
    }
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn l31_l38_cascades_belong_to_the_deletion() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    // Deletions before the collector's first list have no known deleter: it must be up first.
    let early = made(&admin, CONFIGMAPS, config_map("early", None)).await;
    let follower = made(&admin, CONFIGMAPS, config_map("follower", Some(&early))).await;
    assert_eq!(admin.delete(&format!("{CONFIGMAPS}/early")).await.unwrap().status, 200);
    gone(
        &admin,
        CONFIGMAPS,
        follower["metadata"]["resourceVersion"].as_str().unwrap(),
        &["follower"],
    )
    .await;

    let owner = made(&admin, CONFIGMAPS, config_map("owner", None)).await;
    let child = made(&admin, CONFIGMAPS, config_map("child", Some(&owner))).await;
    let grandchild = made(&admin, CONFIGMAPS, config_map("grandchild", Some(&child))).await;
    assert_ne!(
        id(&owner, "initial-trace-id"),
        id(&child, "initial-trace-id"),
        "three requests of a user: three families"
    );
    let from = grandchild["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(
        admin
            .delete(&format!("{CONFIGMAPS}/owner?propagationPolicy=Background"))
            .await
            .unwrap()
            .status,
        200
    );
    let last = gone(&admin, CONFIGMAPS, from, &["owner", "child", "grandchild"]).await;
    let deletion = audit_event(&cluster, "delete", "configmaps", "owner");
    assert_eq!(
        audited(&deletion, "initial-trace-id"),
        id(&owner, "initial-trace-id"),
        "the family ends with its own id"
    );
    let mut spans = BTreeSet::new();
    for (object, before) in last.iter().zip([&owner, &child, &grandchild]) {
        assert_eq!(id(object, "trace-id"), audited(&deletion, "trace-id"), "{object}");
        assert_eq!(
            id(object, "initial-trace-id"),
            id(before, "initial-trace-id"),
            "it dies as what it was: {object}"
        );
        spans.insert(id(object, "span-id").to_owned());
    }
    assert_eq!(spans.len(), 3, "each request is an action of its own");

    let namespace = made(
        &admin,
        NAMESPACES,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}}),
    )
    .await;
    let accounts = format!("{NAMESPACES}/doomed/serviceaccounts");
    let account = wait_until("the default service account", BOUND, async || {
        match admin.get(&format!("{accounts}/default")).await.unwrap() {
            answer if answer.status == 200 => Ok(answer.body),
            answer => Err(answer.text),
        }
    })
    .await;
    for name in ["trace-id", "initial-trace-id"] {
        assert_eq!(
            id(&account, name),
            id(&namespace, name),
            "made because of the namespace: {name}"
        );
    }
    assert_ne!(id(&account, "span-id"), id(&namespace, "span-id"));
    let from = account["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(admin.delete(&format!("{NAMESPACES}/doomed")).await.unwrap().status, 200);
    let last = gone(&admin, &accounts, from, &["default"]).await;
    let deletion = audit_event(&cluster, "delete", "namespaces", "doomed");
    assert_eq!(id(&last[0], "trace-id"), audited(&deletion, "trace-id"));
    let last = gone(&admin, NAMESPACES, from, &["doomed"]).await;
    assert_eq!(id(&last[0], "trace-id"), audited(&deletion, "trace-id"));
}

#[tokio::test]
async fn ids_without_the_right_to_propagate_are_refused_and_audited() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    made(&admin, "/api/v1/namespaces/default/serviceaccounts", account).await;
    let subject = json!({"kind": "ServiceAccount", "name": "robot", "namespace": "default"});
    let role =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "robot"},
        "subjects": [&subject], "roleRef": role});
    made(&admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    let token = admin
        .post("/api/v1/namespaces/default/serviceaccounts/robot/token", &json!({"spec": {}}))
        .await
        .unwrap();
    let robot = cluster.with_token(token.body["status"]["token"].as_str().unwrap()).unwrap();
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let request = robot
        .request("POST".parse().unwrap(), CONFIGMAPS)
        .header("traceparent", format!("00-{trace}-{span}-01"))
        .header("initial-trace-id", trace)
        .header("content-type", "application/json")
        .body(config_map("forged", None).to_string());
    let answer = wait_until("the binding is seen", BOUND, async || {
        match robot.send(request.try_clone().unwrap()).await.unwrap() {
            answer if answer.status == 201 => Ok(answer.body),
            answer => Err(answer.text),
        }
    })
    .await;
    assert_ne!(id(&answer, "trace-id"), trace);
    assert_ne!(id(&answer, "initial-trace-id"), trace);
    let event = json_lines(&cluster.data_dir().join("audit.log")).into_iter().find(|event| {
        event["objectRef"]["name"] == "forged" && event["responseStatus"]["code"] == 201
    });
    let event = event.expect("the request is audited");
    assert_eq!(audited(&event, "link"), format!("{trace}-{span}"));
    assert_eq!(audited(&event, "refused-initial-trace-id"), trace);

    // With the default role for it, the caller's ids count.
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:trace-propagator"});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "robot-traces"},
        "subjects": [subject], "roleRef": role});
    made(&admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    wait_until("it is believed", BOUND, async || {
        admin.delete(&format!("{CONFIGMAPS}/forged")).await.unwrap();
        let made = robot.send(request.try_clone().unwrap()).await.unwrap().body;
        if (id(&made, "trace-id"), id(&made, "initial-trace-id")) == (trace, trace) {
            Ok(())
        } else {
            Err(made.to_string())
        }
    })
    .await;
}

/// A process with its own log; killed on drop.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let command = command
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(log).unwrap());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds the example controller as a user would; returns its path.
fn example() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "build",
        "--example",
        "fleet",
        "--locked",
        "--offline",
    ]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let output = build.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Path::new(FERROKUBE).with_file_name("examples").join("fleet")
}

/// API server, controllers and the example controller, a process and a log each.
pub(crate) struct Fleets {
    pub(crate) cluster: Cluster,
    kubectl: Kubectl,
    logs: tempfile::TempDir,
    _processes: Vec<Process>,
}

impl Fleets {
    pub(crate) async fn start(kubectl: Kubectl) -> Self {
        let cluster =
            Launch::new(FERROKUBE).role("apiserver").flag("--log-level=debug").start().unwrap();
        let logs = tempfile::tempdir().unwrap();
        let mut manager = Command::new(FERROKUBE);
        manager.arg("controller-manager").arg("--kubeconfig").arg(cluster.kubeconfig()).args([
            "--secure-port=0",
            "--log-level=debug",
            "--leader-elect=false",
        ]);
        let mut fleets = Self { cluster, kubectl, logs, _processes: Vec::new() };
        let manager = Process::start(manager, &fleets.log("controller-manager"));
        fleets.kubectl(&[
            "apply",
            "-f",
            concat!(env!("CARGO_MANIFEST_DIR"), "/examples/fleet/fleet.yaml"),
        ]);
        fleets.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=180s",
            "crd/fleets.example.com",
        ]);
        let mut controller = Command::new(example());
        controller.env("KUBECONFIG", fleets.robot());
        let controller = Process::start(controller, &fleets.log("fleet"));
        fleets._processes = vec![manager, controller];
        // A cascade's deletion is known only for objects that the collector watches; it looks for
        // new kinds about every second.
        let all_known = |line: &str| {
            line.contains("listed all objects") && line.contains("resource=fleets.example.com")
        };
        wait_until("the collector knows fleets", BOUND, async || {
            let log = fs::read_to_string(fleets.log("controller-manager")).unwrap();
            if log.lines().any(all_known) { Ok(()) } else { Err(log) }
        })
        .await;
        fleets
    }

    pub(crate) fn log(&self, component: &str) -> PathBuf {
        self.logs.path().join(format!("{component}.log"))
    }

    /// A kubeconfig with the controller's own service account.
    fn robot(&self) -> PathBuf {
        let token = self.kubectl(&["create", "token", "fleet-controller"]);
        let ca = self.cluster.data_dir().join("pki/ca.crt");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: c}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"{}\", certificate-authority: {}}}}}]\nusers: [{{name: c, user: {{token: {}}}}}]\n",
            self.cluster.url(),
            ca.display(),
            token.trim()
        );
        let path = self.logs.path().with_extension("kubeconfig");
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let ran = self.kubectl.run(&self.cluster.kubeconfig(), arguments);
        assert!(ran.ok, "kubectl {arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    pub(crate) async fn ships(&self, admin: &Client, count: usize) -> Vec<Value> {
        wait_until("the ships", BOUND, async || {
            let list = admin
                .get(&format!("{CONFIGMAPS}?labelSelector=example.com/fleet"))
                .await
                .unwrap()
                .body;
            let items = list["items"].as_array().cloned().unwrap_or_default();
            let log = || fs::read_to_string(self.log("fleet")).unwrap_or_default();
            if items.len() == count {
                Ok(items)
            } else {
                Err(format!("{} ships; the controller says: {}", items.len(), log()))
            }
        })
        .await
    }

    /// `ferrokube trace` over all logs.
    fn trace(&self, what: &str) -> Output {
        fs::write(self.log("apiserver"), self.cluster.log()).unwrap();
        let mut command = Command::new(FERROKUBE);
        command.args(["trace", what, "--json", "--kubeconfig"]).arg(self.cluster.kubeconfig());
        command
            .arg("--logs")
            .arg(self.logs.path())
            .arg(self.cluster.data_dir().join("audit.log"))
            .output()
            .unwrap()
    }
}

pub(crate) fn story(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) fn actions<'a>(story: &'a Value, trace: &str) -> &'a [Value] {
    let found = story["traces"].as_array().unwrap().iter().find(|found| found["trace_id"] == trace);
    found.unwrap_or_else(|| panic!("no trace {trace} in {story:#}"))["actions"].as_array().unwrap()
}

pub(crate) fn has_request(actions: &[Value], verb: &str, uri: &str, user: &str) -> bool {
    actions.iter().any(|action| {
        let request = &action["request"];
        request["verb"] == verb
            && request["uri"].as_str().unwrap_or_default().starts_with(uri)
            && request["user"] == user
    })
}

pub(crate) fn has_line(actions: &[Value], component: &str, message: &str) -> bool {
    let of = |action: &Value| {
        action["lines"]
            .as_array()
            .unwrap()
            .iter()
            .any(|line| line["message"].as_str().unwrap_or_default().contains(message))
    };
    actions.iter().any(|action| action["component"] == component && of(action))
}

#[test]
fn l11_the_systemd_journal_is_searched() {
    let directory = tempfile::tempdir().unwrap();
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let line =
        format!("2026-11-21T03:00:01Z ERROR x: mount failed trace_id={trace} span_id={span}");
    let entry = json!({"__REALTIME_TIMESTAMP": "1795230001000000", "_SYSTEMD_UNIT": "kubelet.service", "MESSAGE": line});
    let fake = directory.path().join("journalctl");
    write_script(&fake, &format!("#!/bin/sh\ncat <<'END'\n{entry}\n{{}}\nEND\n"));
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let search = |path: &str| {
        Command::new(FERROKUBE)
            .current_dir(directory.path())
            .env("PATH", path)
            .args(["trace", span, "--json", "--logs", "journald"])
            .output()
            .unwrap()
    };
    let found = story(&search(&path));
    assert!(has_line(actions(&found, trace), "kubelet", "mount failed"), "{found:#}");
    let none = search("/nowhere");
    assert_eq!(
        none.status.code(),
        Some(1),
        "without a journal nothing is found, and it says so: {}",
        String::from_utf8_lossy(&none.stdout)
    );
    assert!(String::from_utf8_lossy(&none.stdout).contains("journald"));
}

pub(crate) const ADMIN: &str = "kubernetes-admin";
pub(crate) const ROBOT: &str = "system:serviceaccount:default:fleet-controller";
const ALPHA: &str =
    "apiVersion: example.com/v1\nkind: Fleet\nmetadata: {name: alpha}\nspec: {replicas: 2}\n";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";

#[tokio::test(flavor = "multi_thread")]
async fn l10_l11_l12_a_fleet_is_created_scaled_and_deleted_with_stock_kubectl() {
    let fleets = Fleets::start(newest_kubectl()).await;
    let admin = fleets.cluster.admin().unwrap();

    // Case 1: a user's create. The children share its trace and family (L01, L03, L35, L37).
    let manifest = fleets.log("fleet").with_extension("yaml");
    fs::write(&manifest, ALPHA).unwrap();
    fleets.kubectl(&["create", "-f", &manifest.display().to_string()]);
    let ships = fleets.ships(&admin, 2).await;
    let created = admin.get(&format!("{FLEETS}/alpha")).await.unwrap().body;
    let family = id(&created, "initial-trace-id").to_owned();
    assert_eq!(id(&created, "trace-id"), family);
    for ship in &ships {
        assert_eq!(
            (id(ship, "trace-id"), id(ship, "initial-trace-id")),
            (family.as_str(), family.as_str()),
            "case 3: {ship}"
        );
    }
    let spans: BTreeSet<&str> =
        ships.iter().chain([&created]).map(|object| id(object, "span-id")).collect();
    assert_eq!(spans.len(), 3, "L02: every request is an action of its own");

    // Case 2: a user's update. The family stays (L36), the new ship joins it.
    fleets.kubectl(&["scale", "fleet/alpha", "--replicas=3"]);
    let ships = fleets.ships(&admin, 3).await;
    let scaled = admin.get(&format!("{FLEETS}/alpha")).await.unwrap().body;
    let scaling = id(&scaled, "trace-id").to_owned();
    assert_ne!(scaling, family);
    assert_eq!(id(&scaled, "initial-trace-id"), family);
    let third = ships.iter().find(|ship| ship["metadata"]["name"] == "alpha-2").unwrap();
    assert_eq!(
        (id(third, "trace-id"), id(third, "initial-trace-id")),
        (scaling.as_str(), family.as_str())
    );

    // L12 in one call, by the object: both requests with everything they caused.
    let story_of_object = story(&fleets.trace("fleet/alpha"));
    let creation = actions(&story_of_object, &family);
    assert!(has_request(creation, "create", FLEETS, ADMIN), "{creation:#?}");
    assert!(has_request(creation, "create", CONFIGMAPS, ROBOT), "{creation:#?}");
    assert!(
        has_line(creation, "fleet", "launched") && has_line(creation, "apiserver", "request"),
        "{creation:#?}"
    );
    assert!(
        has_request(
            actions(&story_of_object, &scaling),
            "patch",
            &format!("{FLEETS}/alpha/scale"),
            ADMIN
        ),
        "{story_of_object:#}"
    );
    assert!(has_line(actions(&story_of_object, &scaling), "fleet", "launched"));

    // L11 in one call: from a line of the controller's log to the request.
    let log = fs::read_to_string(fleets.log("fleet")).unwrap();
    let line = log.lines().find(|line| line.contains("ship=alpha-2")).unwrap();
    let span = line.split("span_id=").nth(1).unwrap().split(' ').next().unwrap();
    let story_of_line = story(&fleets.trace(span));
    assert!(
        has_request(
            actions(&story_of_line, &scaling),
            "patch",
            &format!("{FLEETS}/alpha/scale"),
            ADMIN
        ),
        "{story_of_line:#}"
    );

    // Deletion: the ships are deleted in its trace, as the garbage collector's log says.
    fleets.kubectl(&["delete", "fleet", "alpha"]);
    fleets.ships(&admin, 0).await;
    let deletion = audited(&audit_event(&fleets.cluster, "delete", "fleets", "alpha"), "trace-id");
    // The logs lag behind the store a little: the audit log until the collector's response, its own
    // log after it.
    let story_of_family = wait_until("the collector's deletions are in the story", BOUND, || {
        let told = story(&fleets.trace(&family));
        let deleted = actions(&told, &deletion);
        let is_whole = has_request(deleted, "delete", CONFIGMAPS, COLLECTOR)
            && has_line(deleted, "garbage-collector", "deleting a dependent");
        std::future::ready(if is_whole { Ok(told) } else { Err(format!("{deleted:#?}")) })
    })
    .await;
    let deleted = actions(&story_of_family, &deletion);
    assert!(has_request(deleted, "delete", &format!("{FLEETS}/alpha"), ADMIN), "{deleted:#?}");
    assert_eq!(
        story_of_family["traces"].as_array().unwrap().len(),
        3,
        "create, scale, delete: {story_of_family:#}"
    );

    // L06: the same name again starts a new family; nothing of the old one remains.
    fleets.kubectl(&["create", "-f", &manifest.display().to_string()]);
    fleets.ships(&admin, 2).await;
    let again = admin.get(&format!("{FLEETS}/alpha")).await.unwrap().body;
    assert_ne!(id(&again, "initial-trace-id"), family);
}
