//! Upgrades of state: a data directory of each format since journal 4, kept in `tests/formats`, and
//! servers of two versions on one etcd. Earlier formats were never released.

use crate::FERROKUBE;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_testkit::{BOUND, Client, Launch, wait_until};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// A server on a copy of a directory, killed on drop.
struct UpgradedServer(Child);

impl Drop for UpgradedServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kept() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

/// Copies a directory with the modes that a server gives it, which git does not keep.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copied = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &copied);
        } else {
            fs::copy(&path, &copied).unwrap();
            fs::set_permissions(&copied, Permissions::from_mode(0o600)).unwrap();
        }
    }
}

/// Starts a server and waits until it is ready.
fn start(data_dir: &Path) -> UpgradedServer {
    let mut command = Launch::new(FERROKUBE).role("all-in-one").command(data_dir);
    let log = data_dir.with_extension("log");
    command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
    let mut server = UpgradedServer(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("ready in "), "{line}{}", fs::read_to_string(log).unwrap());
    server
}

fn format(store: &Path) -> String {
    fs::read_to_string(store.join("store/FORMAT")).unwrap()
}

async fn get(admin: &Client, path: &str) -> Value {
    let response = admin.get(path).await.unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text);
    response.body
}

/// The objects that `tests/formats/make` makes, each read in its place.
async fn has_its_state(admin: &Client) {
    let shop = "/api/v1/namespaces/shop";
    for (path, field, value) in [
        (format!("{shop}/configmaps/page"), "/data/color", json!("green")),
        (format!("{shop}/secrets/key"), "/data/word", json!("b3Blbg==")),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/reader".into(),
            "/rules/0/verbs/0",
            json!("get"),
        ),
        ("/apis/formats.example/v1/namespaces/shop/mugs/tea".into(), "/spec/color", json!("white")),
        ("/apis/formats.example/v1/namespaces/shop/mugs/tea".into(), "/spec/size", json!(3)),
        (format!("{shop}/serviceaccounts/default"), "/metadata/namespace", json!("shop")),
    ] {
        let object = get(admin, &path).await;
        assert_eq!(object.pointer(field), Some(&value), "{path}: {object}");
        assert!(object["metadata"]["uid"].is_string(), "{object}");
    }
    assert_eq!(admin.get(&format!("{shop}/configmaps/gone")).await.unwrap().status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kept_format_is_upgraded_with_its_state() {
    let scratch = tempfile::tempdir().unwrap();
    let fresh = Launch::new(FERROKUBE).start().unwrap();
    let current = format(&fresh.data_dir());
    drop(fresh);
    let kept = kept();
    let formats: Vec<String> = kept.iter().map(|directory| format(directory)).collect();
    assert!(
        formats.contains(&current),
        "tests/formats has none of the format that is written now: tests/formats/make adds it"
    );
    for directory in &kept {
        let name = directory.file_name().unwrap().to_str().unwrap();
        let data_dir = scratch.path().join(name);
        copy(directory, &data_dir);
        let server = start(&data_dir);
        let admin = Client::from_kubeconfig(&data_dir.join("admin.kubeconfig")).unwrap();
        has_its_state(&admin).await;
        let before = get(&admin, "/api/v1/namespaces/shop/configmaps/page").await;
        let revision = |object: &Value| -> u64 {
            object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
        };
        let made = admin
            .post("/api/v1/namespaces/shop/configmaps", &json!({"metadata": {"name": "new"}}))
            .await
            .unwrap();
        assert_eq!(made.status, 201, "{name}: {}", made.text);
        assert!(revision(&made.body) > revision(&before), "{name}: revisions rise");
        drop(server);
        assert_eq!(format(&data_dir), current, "{name}");
        // Again, as the upgraded directory.
        let server = start(&data_dir);
        let admin = Client::from_kubeconfig(&data_dir.join("admin.kubeconfig")).unwrap();
        has_its_state(&admin).await;
        get(&admin, "/api/v1/namespaces/shop/configmaps/new").await;
        drop(server);
    }
}

/// A downgrade is refused by both numbers, and changes nothing.
#[test]
fn formats_of_newer_versions_are_refused_and_left_alone() {
    let scratch = tempfile::tempdir().unwrap();
    for (index, file, text, words) in [
        (0, "version", "9\n", "has format 9, this version writes format"),
        (1, "store/FORMAT", "ferrokube-storage format 99\n", "99"),
    ] {
        let data_dir = scratch.path().join(index.to_string());
        copy(kept().last().unwrap(), &data_dir);
        fs::write(data_dir.join(file), text).unwrap();
        let command = &mut Launch::new(FERROKUBE).role("all-in-one").command(&data_dir);
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
        assert_eq!(fs::read_to_string(data_dir.join(file)).unwrap(), text);
    }
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A server of the version before: `$FERROKUBE_PREVIOUS`, else this one, emulating it.
fn previous(etcd: &str) -> Launch {
    match std::env::var_os("FERROKUBE_PREVIOUS") {
        Some(binary) => Launch::new(binary),
        None => Launch::new(FERROKUBE).flag("--emulated-version=1.35"),
    }
    .role("apiserver")
    .flag(format!("--etcd-servers={etcd}"))
}

fn current(etcd: &str) -> Launch {
    Launch::new(FERROKUBE).role("apiserver").flag(format!("--etcd-servers={etcd}"))
}

/// Writes by each server what the other one reads and changes.
async fn agree(servers: [&Client; 2], round: &str) {
    for (writer, reader, name) in [(0, 1, "first"), (1, 0, "second")] {
        let (writer, reader) = (servers[writer], servers[reader]);
        let name = format!("{round}-{name}");
        let labels = json!({"round": round});
        let map = json!({"metadata": {"name": name, "labels": labels}, "data": {"a": "b"}});
        let made = writer.post(MAPS, &map).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
        let found = get(reader, &format!("{MAPS}/{name}")).await;
        assert_eq!(found, made.body, "{round}");
        let changed = reader.merge(&format!("{MAPS}/{name}"), &json!({"data": {"a": "c"}})).await;
        assert_eq!(changed.unwrap().status, 200);
        assert_eq!(get(writer, &format!("{MAPS}/{name}")).await["data"]["a"], "c");
        let lease = json!({"metadata": {"name": name}, "spec": {"holderIdentity": round}});
        assert_eq!(writer.post(LEASES, &lease).await.unwrap().status, 201);
        let list = get(reader, &format!("{LEASES}?fieldSelector=metadata.name%3D{name}")).await;
        assert_eq!(list["items"][0]["spec"]["holderIdentity"], round);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_on_etcd_are_upgraded_one_after_the_other_and_back() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = EtcdProcess::start(&executable, &directory.path().join("etcd"));
        let url = etcd.url();
        let [mut one, mut other] = [(); 2].map(|()| previous(&url).start().unwrap());
        agree([&one.admin().unwrap(), &other.admin().unwrap()], "old").await;
        // A watch of the one that stays sees what the others write meanwhile.
        let mut watch = other.admin().unwrap().watch(&format!("{MAPS}?watch=true")).await.unwrap();
        one.terminate().unwrap();
        one = current(&url).start().unwrap();
        agree([&one.admin().unwrap(), &other.admin().unwrap()], "mixed").await;
        let mut seen = 0;
        while seen < 2 {
            let event = watch.next().await.unwrap().expect("the watch continues");
            let labels = &event["object"]["metadata"]["labels"];
            seen += usize::from(event["type"] == "ADDED" && labels["round"] == "mixed");
        }
        other.terminate().unwrap();
        other = current(&url).start().unwrap();
        agree([&one.admin().unwrap(), &other.admin().unwrap()], "new").await;
        // And back: what the new ones wrote is read by the old.
        one.terminate().unwrap();
        one = previous(&url).start().unwrap();
        agree([&one.admin().unwrap(), &other.admin().unwrap()], "back").await;
        let admin = one.admin().unwrap();
        wait_until("all of it", BOUND, || async {
            let list = admin.get(MAPS).await.map_err(|error| error.to_string())?.body;
            let items = list["items"]
                .as_array()
                .map_or(0, |items| items.iter().filter(|item| item["data"]["a"] == "c").count());
            if items == 8 { Ok(()) } else { Err(format!("{items} of 8")) }
        })
        .await;
    }
}
