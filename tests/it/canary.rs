//! Fault 54: secrets that a client sends never appear in what the server logs.

use crate::FERROKUBE;
use ferrokube_testkit::Launch;
use reqwest::Method;
use serde_json::json;
use std::fs;

#[tokio::test]
async fn fault_54_planted_secrets_are_in_no_log() {
    const CANARIES: [&str; 7] = [
        "canary-token-1",
        "canary-bearer-2",
        "Y2FuYXJ5LWRhdGEtMw==",
        "canary-stringdata-4",
        "canary-broken-5",
        "canary-query-6",
        "canary-patch-7",
    ];
    let directory = tempfile::tempdir().unwrap();
    let tokens = directory.path().join("tokens.csv");
    ferrokube_testkit::write_secret(&tokens, "canary-token-1,alice,1,\"system:masters\"\n");
    let mut cluster = Launch::new(FERROKUBE)
        .flag(format!("--token-auth-file={}", tokens.display()))
        .flag("-v=10")
        .start()
        .unwrap();
    let alice = cluster.with_token("canary-token-1").unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "Y2FuYXJ5LWRhdGEtMw=="}, "stringData": {"b": "canary-stringdata-4"}});
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(alice.post(secrets, &secret).await.unwrap().status, 201);
    assert_eq!(alice.get(&format!("{secrets}/s")).await.unwrap().status, 200);
    assert_eq!(
        alice
            .merge(&format!("{secrets}/s"), &json!({"stringData": {"b": "canary-patch-7"}}))
            .await
            .unwrap()
            .status,
        200
    );
    assert_eq!(
        cluster.with_token("canary-bearer-2").unwrap().get(secrets).await.unwrap().status,
        401
    );
    let broken = alice
        .request(Method::POST, secrets)
        .header("content-type", "application/json")
        .body("{\"data\": {\"a\": \"canary-broken-5\"");
    assert_eq!(alice.send(broken).await.unwrap().status, 400);
    let wrong = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "w"}, "data": {"a": "canary-broken-5 not base64"}});
    assert!(alice.post(secrets, &wrong).await.unwrap().status >= 400);
    let _ = alice.get("/api/v1/secrets?access_token=canary-query-6").await.unwrap();
    assert!(cluster.terminate().unwrap().success());
    let mut outputs = vec![("log".to_owned(), cluster.log())];
    let audit = cluster.data_dir().join("audit.log");
    outputs.push(("audit.log".into(), fs::read_to_string(audit).unwrap()));
    for (name, text) in outputs {
        assert!(text.contains(&format!("{secrets}/s")), "{name} does not tell of the requests");
        for canary in CANARIES {
            // The query is part of the URI in the audit event, as in kube-apiserver.
            if name == "audit.log" && canary == "canary-query-6" {
                continue;
            }
            let line = text.lines().find(|line| line.contains(canary)).unwrap_or_default();
            assert!(line.is_empty(), "{canary} in {name}: {line}");
        }
    }
}
