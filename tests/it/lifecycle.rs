//! Process lifecycle: readiness, restart, signals, files left behind.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Cluster, Launch, raw, wait_until};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::process::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_restart_keeps_everything() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"a": "b"}});
    let created = admin.post("/api/v1/namespaces/default/configmaps", &body).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text);
    let ca = fs::read(cluster.data_dir().join("pki/ca.crt")).unwrap();
    assert!(cluster.terminate().unwrap().success(), "{}", cluster.log());
    cluster.restart().unwrap();
    assert_eq!(fs::read(cluster.data_dir().join("pki/ca.crt")).unwrap(), ca);
    let got =
        cluster.admin().unwrap().get("/api/v1/namespaces/default/configmaps/kept").await.unwrap();
    assert_eq!(got.body, created.body);
}

#[test]
fn fault_09_a_data_directory_without_its_state_is_refused() {
    let mut cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let data = cluster.data_dir();
    assert!(cluster.terminate().unwrap().success(), "{}", cluster.log());
    let store = data.join("store");
    let refused = |how: &str| {
        let output = Launch::new(FERROKUBE).role("apiserver").command(&data).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{how}: {said}");
        assert!(output.stdout.is_empty(), "{how}: it is ready");
        for words in [
            format!("{} contains no journal, but did before: restore it", store.display()),
            format!("remove {} to start", data.join("store.made").display()),
        ] {
            assert!(said.contains(&words), "{how}: {said}");
        }
    };
    let kept = data.join("elsewhere");
    fs::rename(&store, &kept).unwrap();
    refused("missing");
    assert!(!store.exists(), "nothing is left where it belongs");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&store).unwrap();
    refused("emptied");
    // Nothing of what is wanted back is lost.
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&kept, &store).unwrap();
    cluster.restart().unwrap();
    cluster.kill().unwrap();
    // An empty state only on explicit request.
    fs::remove_dir_all(&store).unwrap();
    fs::remove_file(data.join("store.made")).unwrap();
    cluster.restart().unwrap();
}

#[tokio::test]
async fn memory_storage_does_not_persist() {
    let mut cluster = Launch::new(FERROKUBE).flag("--storage=memory").start().unwrap();
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gone"}});
    assert_eq!(
        cluster
            .admin()
            .unwrap()
            .post("/api/v1/namespaces/default/configmaps", &body)
            .await
            .unwrap()
            .status,
        201
    );
    cluster.restart().unwrap();
    assert_eq!(
        cluster
            .admin()
            .unwrap()
            .get("/api/v1/namespaces/default/configmaps/gone")
            .await
            .unwrap()
            .status,
        404
    );
}

#[tokio::test]
async fn the_administrators_certificate_is_short_lived_and_renewed() {
    let cluster = Launch::new(FERROKUBE).flag("--admin-certificate-lifetime=4s").start().unwrap();
    let path = cluster.data_dir().join("admin.kubeconfig");
    // On a slow machine the first one may expire before it is used.
    let (before, copied) = wait_until("a certificate is used in time", BOUND, async || {
        let (before, copied) = (fs::read(&path).unwrap(), cluster.admin().unwrap());
        let answer = copied.get("/api/v1/namespaces").await.map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok((before, copied)) } else { Err(answer.text) }
    })
    .await;
    let is = |is: bool| if is { Ok(()) } else { Err("not yet".to_owned()) };
    wait_until("the kubeconfig is written again", BOUND, async || {
        is(fs::read(&path).unwrap() != before)
    })
    .await;
    wait_until("the copy expires", BOUND, async || {
        is(copied.get("/api/v1/namespaces").await.is_ok_and(|answer| answer.status == 401))
    })
    .await;
    wait_until("the next one is used in time", BOUND, async || {
        let answer = cluster.admin().unwrap().get("/api/v1/namespaces").await;
        is(answer.is_ok_and(|answer| answer.status == 200))
    })
    .await;
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn files_are_private() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let mode = |name: &str| {
        fs::metadata(cluster.data_dir().join(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!([mode(""), mode("pki")], [0o700, 0o700]);
    assert_eq!(
        [
            mode("admin.kubeconfig"),
            mode("pki/ca.key"),
            mode("pki/client-ca.key"),
            mode("pki/sa.key")
        ],
        [0o600; 4]
    );
}

#[tokio::test]
async fn a_signal_ends_watches_and_exits_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut cluster = Cluster::start(FERROKUBE).unwrap();
        let mut watch =
            cluster.admin().unwrap().watch("/api/v1/namespaces?watch=true").await.unwrap();
        assert!(watch.next().await.unwrap().is_some());
        cluster.signal(signal).unwrap();
        let ended = async { while let Ok(Some(_)) = watch.next().await {} };
        tokio::time::timeout(BOUND, ended).await.unwrap();
        let status = tokio::task::spawn_blocking(move || {
            cluster.wait().map(|status| (status, cluster.log()))
        })
        .await
        .unwrap()
        .unwrap();
        assert_eq!(status.0.code(), Some(0), "{}", status.1);
    }
}

#[tokio::test]
async fn a_second_signal_exits_at_once() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    // A request whose body never arrives blocks the drain. "Continue" shows that the server waits
    // for it.
    let mut stuck = raw(&cluster, "http/1.1").await.unwrap();
    let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n";
    stuck.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 64];
    let read = stuck.read(&mut answer).await.unwrap();
    assert!(
        answer[..read].starts_with(b"HTTP/1.1 100"),
        "{:?}",
        String::from_utf8_lossy(&answer[..read])
    );
    cluster.signal(Signal::TERM).unwrap();
    cluster.wait_for_log("ending").await;
    cluster.signal(Signal::TERM).unwrap();
    // A drain that ends has the code 0.
    assert_eq!(cluster.wait().unwrap().code(), Some(143));
}

#[test]
fn names_from_flags_are_in_the_certificate() {
    let cluster =
        Launch::new(FERROKUBE).flag("--tls-san=api.example.com,192.0.2.7").start().unwrap();
    let address = cluster.url().trim_start_matches("https://").to_owned();
    let script = format!(
        "openssl s_client -connect {address} </dev/null 2>&1 | openssl x509 -noout -ext subjectAltName"
    );
    let names =
        String::from_utf8(Command::new("sh").args(["-c", &script]).output().unwrap().stdout)
            .unwrap();
    assert!(
        names.contains("DNS:api.example.com") && names.contains("IP Address:192.0.2.7"),
        "{names}"
    );
    let refused = Launch::new(FERROKUBE).flag("--tls-san=b\u{e4}d").start().unwrap_err();
    assert!(refused.to_string().contains("cannot stand in a certificate"), "{refused}");
}

#[tokio::test]
async fn tokens_from_a_file_authenticate() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens.csv");
    ferrokube_testkit::write_secret(&tokens, "s3cret-token,alice,1,\"system:masters\"\n");
    let cluster = Launch::new(FERROKUBE)
        .flag(format!("--token-auth-file={}", tokens.display()))
        .start()
        .unwrap();
    assert_eq!(
        cluster.with_token("s3cret-token").unwrap().get("/api/v1/namespaces").await.unwrap().status,
        200
    );
    assert_eq!(
        cluster.with_token("wrong").unwrap().get("/api/v1/namespaces").await.unwrap().status,
        401
    );
    assert_eq!(cluster.anonymous().unwrap().get("/api/v1/namespaces").await.unwrap().status, 403);
    assert_eq!(cluster.anonymous().unwrap().get("/livez").await.unwrap().status, 200);
}
