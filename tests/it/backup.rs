//! Backups of a running server, restored.

use crate::FERROKUBE;
use ferrokube_testkit::{Client, Cluster};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn ferrokube(words: &[&str], paths: &[&Path]) -> Command {
    let mut command = Command::new(FERROKUBE);
    command.args(words).args(paths).stdin(Stdio::null());
    command
}

fn run(words: &[&str], paths: &[&Path]) -> Output {
    ferrokube(words, paths).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

async fn create(admin: &Client, name: &str) -> u64 {
    let map = json!({"metadata": {"name": name}, "data": {"x": "x".repeat(500)}});
    let created = admin.post(MAPS, &map).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text);
    created.body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_09_a_restored_server_continues_above_what_was_shown() {
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let mut server = Cluster::start(FERROKUBE).unwrap();
    let data = server.data_dir();
    let from = format!("--data-dir={}", data.display());
    let admin = server.admin().unwrap();
    let before = create(&admin, "before").await;
    let taken = run(&["backup", &from], &[&backup]);
    assert!(taken.status.success() && text(&taken).contains("of it new"), "{}", text(&taken));
    let lost = create(&admin, "lost").await;
    let pki = |data: &Path| std::fs::read(data.join("pki/ca.key")).unwrap();
    let key = pki(&data);
    // Not over the state of a server, running or not.
    let refused = run(&["restore", &from], &[&backup]);
    let advice = "in use by another process: stop it, or choose another directory";
    assert!(!refused.status.success() && text(&refused).contains(advice), "{}", text(&refused));
    server.kill().unwrap();
    let refused = run(&["restore", &from], &[&backup]);
    let advice = "store is not empty: choose a directory without state";
    assert!(text(&refused).contains(advice), "{}", text(&refused));
    std::fs::rename(&data, folder.path().join("old")).unwrap();
    let restored = run(&["restore", &from], &[&backup]);
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(pki(&data), key, "clients go on trusting the server");
    server.restart().unwrap();
    let admin = server.admin().unwrap();
    let found = admin.get(&format!("{MAPS}/before")).await.unwrap();
    assert_eq!(found.body["metadata"]["resourceVersion"], before.to_string());
    assert_eq!(admin.get(&format!("{MAPS}/lost")).await.unwrap().status, 404);
    let path = format!("{MAPS}?watch=true&resourceVersion={lost}");
    let watched = admin.get(&path).await.unwrap();
    assert!(watched.text.contains("410"), "{} {}", watched.status, watched.text);
    assert!(create(&admin, "after").await > lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_03_a_killed_backup_leaves_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup");
    let server = Cluster::start(FERROKUBE).unwrap();
    let from = format!("--data-dir={}", server.data_dir().display());
    let admin = server.admin().unwrap();
    assert!(run(&["backup", &from], &[&backup]).status.success());
    for round in 0..12 {
        for number in 0..20 {
            create(&admin, &format!("n{round}-{number}")).await;
        }
        let mut child =
            ferrokube(&["backup", &from], &[&backup]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let checked = run(&["backup", "verify"], &[&backup]);
        assert!(checked.status.success() && text(&checked).contains("whole"), "{}", text(&checked));
    }
    assert!(run(&["backup", &from], &[&backup]).status.success());
    let wrong = run(&["backup", "--data-dir=/nonexistent/ferrokube"], &[&backup]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong).contains("/nonexistent/ferrokube/store"), "{}", text(&wrong));
}

#[test]
fn a_directory_without_state_is_named_with_its_flag() {
    let folder = tempfile::tempdir().unwrap();
    let missing = format!("{}/store does not exist: choose", folder.path().display());
    let said = |words: &[&str], path: &Path, flag: &str| {
        let ended = run(words, &[path]);
        assert_eq!(ended.status.code(), Some(1));
        let text = text(&ended);
        assert!(text.contains(&missing) && text.contains(&format!("with {flag};")), "{text}");
    };
    let backup = folder.path().join("backup");
    let data = format!("--data-dir={}", folder.path().display());
    said(&["backup", &data], &backup, "--data-dir");
    assert!(!backup.exists());
    said(&["migrate", "--to=etcd://127.0.0.1:1", "--from"], folder.path(), "--from");
}
