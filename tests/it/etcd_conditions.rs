//! What a server shows on `/readyz` and in its log of an etcd that is full, asks for credentials,
//! was restored, or has values that are no objects; and what two servers on one etcd agree on.

use crate::FERROKUBE;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_testkit::{ApiResponse, BOUND, Client, Launch, wait_until};
use serde_json::{Value, json};
use std::path::Path;
use tokio::task::JoinSet;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// An etcd with flags of its own.
fn etcd_with(executable: &Path, directory: &tempfile::TempDir, flags: &[String]) -> EtcdProcess {
    EtcdProcess::start_with(executable, &directory.path().join("etcd"), "http", flags)
}

fn launch(etcd: &EtcdProcess) -> Launch {
    Launch::new(FERROKUBE).role("apiserver").flag(format!("--etcd-servers={}", etcd.url()))
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// Waits until a probe has these words.
async fn shows(client: &Client, path: &str, words: &str) -> ApiResponse {
    wait_until(words, BOUND, || async {
        let reply = client.get(path).await.map_err(|error| format!("{error:#}"))?;
        if reply.text.contains(words) { Ok(reply) } else { Err(reply.text) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_is_shown_and_takes_deletes() {
    let large = "x".repeat(500 << 10);
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd =
            etcd_with(&executable, &directory, &["--quota-backend-bytes=4194304".to_owned()]);
        let server = launch(&etcd).start().unwrap();
        let admin = server.admin().unwrap();
        let mut kept = 0;
        let refused = loop {
            let object = json!({"metadata": {"name": format!("m{kept}")}, "data": {"x": large}});
            let made = admin.post(MAPS, &object).await.unwrap();
            if made.status != 201 {
                break made;
            }
            kept += 1;
            assert!(kept < 20, "the quota holds");
        };
        assert_eq!((refused.status, &refused.body["kind"]), (507, &json!("Status")));
        let ready = shows(&admin, "/readyz", "[-]disk-space failed").await;
        assert_eq!(ready.status, 500);
        assert_eq!(admin.get("/livez").await.unwrap().status, 200, "a restart frees nothing");
        server.wait_for_log("the storage is full").await;
        for number in 0..kept {
            let path = format!("{MAPS}/m{number}");
            assert_eq!(admin.get(&path).await.unwrap().status, 200, "nothing is lost");
            assert_eq!(admin.delete(&path).await.unwrap().status, 200, "deletes go on");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_no_object_is_named_and_left_alone() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = etcd_with(&executable, &directory, &[]);
        let key = STANDARD.encode("/registry/configmaps/default/foreign");
        let value = STANDARD.encode(b"k8s\0\xff\xff no object");
        // The second has no name at all.
        for key in [&key, &STANDARD.encode("/registry/configmaps/")] {
            etcd.post("/v3/kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#));
        }
        let server = launch(&etcd).start().unwrap();
        let admin = server.admin().unwrap();
        server.wait_for_log("a value in the storage cannot be read: it is not served").await;
        server.wait_for_log("a key in the storage is malformed: it is not served").await;
        assert!(server.log().contains("/registry/configmaps/default/foreign"), "{}", server.log());
        assert_eq!(admin.post(MAPS, &map("own")).await.unwrap().status, 201);
        let listed = admin.get(MAPS).await.unwrap();
        assert_eq!(listed.status, 200);
        assert!(listed.text.contains("\"own\"") && !listed.text.contains("foreign"));
        let path = format!("{MAPS}/foreign");
        assert_eq!(admin.get(&path).await.unwrap().status, 404);
        assert_ne!(admin.delete(&path).await.unwrap().status, 200);
        assert_ne!(admin.post(MAPS, &map("foreign")).await.unwrap().status, 201);
        assert_eq!(admin.delete(MAPS).await.unwrap().status, 200);
        let found = etcd.post("/v3/kv/range", &format!(r#"{{"key":"{key}"}}"#));
        assert!(found.contains(&value), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_asks_for_credentials_is_shown() {
    const ASKS: &str = "user name is empty";
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = etcd_with(&executable, &directory, &[]);
        let server = launch(&etcd).start().unwrap();
        let admin = server.admin().unwrap();
        for (path, body) in [
            ("user/add", r#"{"name":"root","password":"p"}"#),
            ("role/add", r#"{"name":"root"}"#),
            ("user/grant", r#"{"user":"root","role":"root"}"#),
            ("enable", "{}"),
        ] {
            let reply = etcd.post(&format!("/v3/auth/{path}"), body);
            assert!(reply.contains("header"), "{path}: {reply}");
        }
        // Fails closed.
        assert_eq!(admin.post(MAPS, &map("a")).await.unwrap().status, 503);
        assert_eq!(admin.get(&format!("{MAPS}/a")).await.unwrap().status, 503);
        shows(&admin, "/readyz", "[-]etcd failed").await;
        server.wait_for_log(ASKS).await;
        let other = launch(&etcd).begin().unwrap();
        other.wait_for_log(ASKS).await;
        wait_until("it answers probes", BOUND, || async {
            let client = other.admin().map_err(|error| format!("{error:#}"))?;
            let reply = client.get("/readyz").await.map_err(|error| format!("{error:#}"))?;
            let is_shown = reply.status == 500 && reply.text.contains("[-]etcd failed");
            if is_shown { Ok(()) } else { Err(reply.text) }
        })
        .await;
    }
}

/// The member that is left keeps the watch open, and accepts neither reads nor writes.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_without_a_majority_is_shown() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let mut members = EtcdProcess::cluster(&executable, directory.path(), 3);
        // Connected to one that stays.
        let server = launch(&members[0]).start().unwrap();
        let admin = server.admin().unwrap();
        assert_eq!(admin.post(MAPS, &map("before")).await.unwrap().status, 201);
        members[1..].iter_mut().for_each(EtcdProcess::kill);
        shows(&admin, "/readyz", "[-]etcd failed").await;
        server.wait_for_log("the storage is unavailable").await;
        assert_eq!(admin.get(&format!("{MAPS}/before")).await.unwrap().status, 503);
        members[1..].iter_mut().for_each(EtcdProcess::restart);
        wait_until("it is ready again", BOUND, || async {
            let reply = admin.get("/readyz").await.map_err(|error| format!("{error:#}"))?;
            if reply.status == 200 { Ok(()) } else { Err(reply.text) }
        })
        .await;
        assert_eq!(admin.get(&format!("{MAPS}/before")).await.unwrap().status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_leaves_an_etcd_that_was_restored() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let mut etcd = etcd_with(&executable, &directory, &[]);
        let mut server = launch(&etcd).start().unwrap();
        let admin = server.admin().unwrap();
        assert_eq!(admin.post(MAPS, &map("a")).await.unwrap().status, 201);
        etcd.kill();
        etcd.forget();
        etcd.restart();
        assert!(!server.wait().unwrap().success());
        let log = server.log();
        assert!(log.contains("another etcd cluster") || log.contains("went back"), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_without_reliable_progress_is_named() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = etcd_with(&executable, &directory, &[]);
        let version = etcd.post("/v3/maintenance/status", "{}");
        let is_old = version.contains("\"version\":\"3.4.23\"");
        let server = launch(&etcd).start().unwrap();
        let admin = server.admin().unwrap();
        assert_eq!(admin.post(MAPS, &map("a")).await.unwrap().status, 201);
        assert_eq!(admin.get(&format!("{MAPS}/a")).await.unwrap().status, 200);
        let log = server.log();
        let warned = log.matches("no reliable progress notifications").count();
        assert_eq!(warned, usize::from(is_old), "{version}: {log}");
    }
}

/// No two servers give the last room of a quota.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_across_servers() {
    const ROOM: usize = 10;
    const SECRETS: &str = "/api/v1/namespaces/tight/secrets";
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = etcd_with(&executable, &directory, &[]);
        let flag = format!("--etcd-servers={}", etcd.url());
        let one = Launch::new(FERROKUBE).role("all-in-one").flag(flag).start().unwrap();
        let other = launch(&etcd).start().unwrap();
        let clients = [one.admin().unwrap(), other.admin().unwrap()];
        let made = clients[0].post("/api/v1/namespaces", &map("tight")).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
        let quota = "/api/v1/namespaces/tight/resourcequotas";
        let wanted = json!({"metadata": {"name": "q"}, "spec": {"hard": {"secrets": "10"}}});
        assert_eq!(clients[0].post(quota, &wanted).await.unwrap().status, 201);
        wait_until("the quota is counted", BOUND, || async {
            let found = clients[1].get(&format!("{quota}/q")).await.unwrap();
            let is_counted = found.body["status"]["used"]["secrets"] == "0";
            if is_counted { Ok(()) } else { Err(found.text) }
        })
        .await;
        let mut creates = JoinSet::new();
        for number in 0..4 * ROOM {
            let client = clients[number % 2].clone();
            creates.spawn(async move {
                client.post(SECRETS, &map(&format!("s{number}"))).await.unwrap().status
            });
        }
        let statuses = creates.join_all().await;
        let of = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
        assert_eq!((of(201), of(403)), (ROOM, 3 * ROOM), "{statuses:?}");
        let listed = clients[1].get(SECRETS).await.unwrap();
        assert_eq!(listed.body["items"].as_array().unwrap().len(), ROOM);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_have_the_form_of_the_flag_and_both_are_read() {
    let Some(executable) = EtcdProcess::executables().pop() else { return };
    let directory = tempfile::tempdir().unwrap();
    let etcd = etcd_with(&executable, &directory, &[]);
    let protobuf = launch(&etcd).start().unwrap();
    let json = launch(&etcd).flag("--storage-media-type=application/json").start().unwrap();
    for (server, other, name, begin) in
        [(&protobuf, &json, "proto", "k8s\0"), (&json, &protobuf, "text", "{\"")]
    {
        let made = server.admin().unwrap().post(MAPS, &map(name)).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
        let key = STANDARD.encode(format!("/registry/configmaps/default/{name}"));
        let found = etcd.post("/v3/kv/range", &format!(r#"{{"key":"{key}"}}"#));
        let found: Value = serde_json::from_str(&found).unwrap();
        let value = STANDARD.decode(found["kvs"][0]["value"].as_str().unwrap()).unwrap();
        assert!(value.starts_with(begin.as_bytes()), "{name}: {value:?}");
        let read = other.admin().unwrap().get(&format!("{MAPS}/{name}")).await.unwrap();
        assert_eq!(read.body["metadata"]["uid"], made.body["metadata"]["uid"], "{}", read.text);
    }
}
