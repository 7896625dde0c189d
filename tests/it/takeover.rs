//! The etcd of a kube-apiserver, taken over as it is, and moved between etcd and a data directory.
//!
//! `takeover/registry.jsonl` is what a kube-apiserver 1.36 had stored, with what it served for each
//! key at that moment.

use crate::FERROKUBE;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_etcd::{EtcdConfig, EtcdKeys, EtcdTls};
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct StoredObject {
    key: String,
    bytes: Vec<u8>,
    path: String,
    object: Value,
}

fn recorded() -> Vec<StoredObject> {
    let text = include_str!("takeover/registry.jsonl");
    let objects = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap().to_owned();
        StoredObject {
            key: text("key"),
            bytes: STANDARD.decode(text("value_base64")).unwrap(),
            path: text("api_path"),
            object: line["object"].clone(),
        }
    });
    objects.collect()
}

async fn keys_of(etcd: &EtcdProcess) -> EtcdKeys {
    let config = EtcdConfig {
        servers: vec![etcd.url()],
        prefix: "/registry".to_owned(),
        renamed: &[],
        tls: EtcdTls::default(),
        tls_source: None,
        compaction_interval: Duration::ZERO,
        remembered: None,
    };
    let keys = EtcdKeys::new(&config).unwrap();
    wait_until("etcd is up", BOUND, || async { keys.migration().await }).await;
    keys
}

/// What is stored, by key.
async fn stored(keys: &EtcdKeys) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut start) = (BTreeMap::new(), None);
    loop {
        let page = keys.page(start, false).await.unwrap();
        let values = page.values.into_iter();
        found.extend(values.map(|one| (one.key.unwrap().into_string(), one.value.to_vec())));
        start = page.next;
        if start.is_none() {
            return found;
        }
    }
}

fn start(etcd: &EtcdProcess, profile: &str) -> Cluster {
    let launch = Launch::new(FERROKUBE).role("apiserver");
    let launch = launch.flag(format!("--etcd-servers={}", etcd.url()));
    launch.flag(format!("--profile={profile}")).flag("--log-level=info").start().unwrap()
}

/// Without what says when it was stored.
fn content(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    object
}

/// Reads what was recorded. Returns the paths of objects that differ, and of those not served.
async fn compare(admin: &Client, objects: &[StoredObject]) -> (Vec<String>, Vec<String>) {
    let (mut different, mut unserved) = (Vec::new(), Vec::new());
    for StoredObject { path, object, .. } in objects {
        let read = admin.get(path).await.unwrap();
        let is_unknown = ["the server could not find", "page not found"];
        if read.status == 404 && is_unknown.iter().any(|text| read.text.contains(text)) {
            unserved.push(path.clone());
        } else if read.status != 200 || content(&read.body) != content(object) {
            different.push(path.clone());
        }
    }
    (different, unserved)
}

/// What the start of an API server writes, kube-apiserver's as well.
fn is_reconciled(path: &str) -> bool {
    ["/apiservices/", "/configmaps/extension-apiserver-authentication"]
        .iter()
        .any(|part| path.contains(part))
}

/// Written again between the two halves of its record.
fn is_blurred(path: &str) -> bool {
    path.contains("/events/") || path.contains("/leases/")
}

/// Stored as v1beta1 by kube-apiserver, and what depends on them: served a little later.
fn is_of_definitions(path: &str) -> bool {
    path.contains("/customresourcedefinitions/") || path.contains("/widgets/")
}

/// Served as recorded; and after a write, which stores a definition as v1, still.
async fn definitions_are_taken_over(admin: &Client, defined: &[StoredObject], keys: &EtcdKeys) {
    let former =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).contains("apiextensions.k8s.io/v1beta1");
    let definition = defined.iter().find(|object| former(&object.bytes)).unwrap();
    let is_taken_over = || async {
        let (different, unserved) = compare(admin, defined).await;
        match different.is_empty() && unserved.is_empty() {
            true => Ok(()),
            false => Err(format!("different: {different:?}, not served: {unserved:?}")),
        }
    };
    wait_until("definitions are served as recorded", BOUND, is_taken_over).await;
    let widgets = defined.iter().find(|object| object.path.contains("/widgets/")).unwrap();
    let widget = json!({"apiVersion": widgets.object["apiVersion"], "kind": widgets.object["kind"],
        "metadata": {"name": "made-after"}, "spec": {}});
    let (collection, _) = widgets.path.rsplit_once('/').unwrap();
    let made = admin.post(collection, &widget).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(made.body["spec"]["size"], 3, "defaults of the definition");
    let mut changed = admin.get(&definition.path).await.unwrap().body;
    changed["metadata"]["labels"] = json!({"taken": "over"});
    let written = admin.put(&definition.path, &changed).await.unwrap();
    assert_eq!(written.status, 200, "{}", written.text);
    let stored = stored(keys).await;
    assert!(!former(&stored[&definition.key]), "it is stored as v1");
    assert_eq!(written.body["spec"], definition.object["spec"]);
    assert_eq!(admin.get(&widgets.path).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_of_a_kube_apiserver_is_taken_over_and_handed_back() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = EtcdProcess::start(&executable, &directory.path().join("etcd"));
        let keys = keys_of(&etcd).await;
        let (defined, objects): (Vec<StoredObject>, Vec<StoredObject>) =
            recorded().into_iter().partition(|object| is_of_definitions(&object.path));
        for StoredObject { key, bytes, .. } in defined.iter().chain(&objects) {
            keys.create(key, bytes.clone().into(), None).await.unwrap();
        }
        let server = start(&etcd, "kubernetes");
        let admin = server.admin().unwrap();
        let (mut different, unserved) = compare(&admin, &objects).await;
        different.retain(|path| !is_reconciled(path) && !is_blurred(path));
        assert!(different.is_empty(), "{different:#?}");
        assert!(unserved.is_empty(), "the profile serves all kinds of the record: {unserved:#?}");
        definitions_are_taken_over(&admin, &defined, &keys).await;
        drop(server);
        // Handed back: what was not written is as it was, byte for byte.
        let now = stored(&keys).await;
        let is_same = |object: &&StoredObject| now.get(&object.key) != Some(&object.bytes);
        let changed: Vec<&str> = objects
            .iter()
            .filter(is_same)
            .map(|object| object.path.as_str())
            .filter(|path| !is_reconciled(path))
            .collect();
        assert!(changed.is_empty(), "{changed:#?}");
        // Kinds that are not served are left alone, and named once.
        let generic = start(&etcd, "generic");
        let (_, unserved) = compare(&generic.admin().unwrap(), &objects).await;
        assert!(unserved.iter().any(|path| path.contains("/deployments/")), "{unserved:?}");
        let log = generic.log();
        for resource in ["deployments", "pods", "minions"] {
            let named = log.lines().filter(|line| {
                line.contains("left alone") && line.contains(&format!("resource={resource}"))
            });
            assert_eq!(named.count(), 1, "{resource}: {log}");
        }
    }
}

fn migrate(from: &str, to: &str) -> Command {
    let mut command = Command::new(FERROKUBE);
    command.args(["migrate", "--from", from, "--to", to]).stdin(Stdio::null());
    command
}

fn migrated(from: &str, to: &str) -> String {
    let output = migrate(from, to).output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

async fn create(admin: &Client, name: &str) -> u64 {
    let map = json!({"metadata": {"name": name}, "data": {"x": "y"}});
    let created = admin.post(MAPS, &map).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text);
    created.body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn is_expired(admin: &Client, revision: u64) -> bool {
    let path = format!("{MAPS}?watch=true&resourceVersion={revision}");
    admin.get(&path).await.unwrap().text.contains("410")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_moves_into_etcd_and_back_through_kills() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = EtcdProcess::start(&executable, &directory.path().join("etcd"));
        keys_of(&etcd).await;
        let url = etcd.url().replace("http://", "etcd://");
        let mut server = Cluster::start(FERROKUBE).unwrap();
        let data = server.data_dir().display().to_string();
        let admin = server.admin().unwrap();
        for number in 0..20 {
            create(&admin, &format!("n{number}")).await;
        }
        let before = create(&admin, "last").await;
        let running = migrate(&data, &url).output().unwrap();
        assert!(!running.status.success());
        let errors = String::from_utf8_lossy(&running.stderr);
        let advice = "in use by another process: stop it, or choose another directory";
        assert!(errors.contains(advice), "{errors}");
        server.terminate().unwrap();
        for round in 0..4 {
            let mut child = migrate(&data, &url).stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(30 * round));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let text = migrated_or_done(&data, &url);
        assert!(text.contains("moved and compared") || text.contains("is not empty"), "{text}");
        server.restart_with(&[&format!("--etcd-servers={}", etcd.url())]).unwrap();
        let admin = server.admin().unwrap();
        let found = admin.get(MAPS).await.unwrap();
        let names = found.body["items"].as_array().unwrap().iter();
        let names = names.filter(|map| map["metadata"]["name"] != "kube-root-ca.crt");
        assert_eq!(names.count(), 21, "with the last one");
        let shown = create(&admin, "in-etcd").await;
        assert!(shown > before && is_expired(&admin, before).await, "{shown} {before}");
        server.terminate().unwrap();
        let back = directory.path().join("back");
        for round in 0..4 {
            let mut child =
                migrate(&url, back.to_str().unwrap()).stdout(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(20 * round));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let unfinished = back.join("store.unfinished");
        let _ = std::fs::remove_dir_all(&unfinished);
        let mut child =
            migrate(&url, back.to_str().unwrap()).stdout(Stdio::null()).spawn().unwrap();
        let is_begun = || async { std::fs::metadata(&unfinished).map_err(|why| why.to_string()) };
        wait_until("the copy is begun", BOUND, is_begun).await;
        child.kill().unwrap();
        child.wait().unwrap();
        is_refused(&back);
        let text = migrated(&url, back.to_str().unwrap());
        assert!(text.contains("an unfinished copy was removed"), "{text}");
        std::fs::remove_dir_all(server.data_dir()).unwrap();
        std::fs::rename(&back, server.data_dir()).unwrap();
        server.restart_with(&[]).unwrap();
        let admin = server.admin().unwrap();
        assert_eq!(admin.get(&format!("{MAPS}/in-etcd")).await.unwrap().status, 200);
        assert!(create(&admin, "home").await > shown && is_expired(&admin, shown).await);
    }
}

/// A server names the unfinished migration, and makes no empty state.
fn is_refused(data: &Path) {
    let output = Launch::new(FERROKUBE).role("apiserver").command(data).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("store.unfinished is of a migration that has not finished"), "{said}");
    assert!(!data.join("store").exists());
}

/// A killed run may have been done just before.
fn migrated_or_done(from: &str, to: &str) -> String {
    let output = migrate(from, to).output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}
