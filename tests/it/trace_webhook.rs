//! `ferrokube trace-webhook` as a process: over TLS, with changing certificates and misbehaving
//! callers.

use crate::FERROKUBE;
use base64::Engine;
use ferrokube_pki::{self as pki, Pair};
use ferrokube_testkit::{BOUND, Client, wait_until};
use reqwest::Method;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const INITIAL: &str = "0af7651916cd43dd8448eb211c80319c";

/// The process; killed on drop.
pub(crate) struct WebhookProcess {
    process: Child,
    url: String,
    directory: TempDir,
    pair: Pair,
}

impl Drop for WebhookProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn certificate(directory: &Path) -> Pair {
    let pair = pki::self_signed(&["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    // Key first: a mismatched pair is skipped until the next check.
    fs::write(directory.join("key.pem"), &pair.key_pem).unwrap();
    fs::set_permissions(directory.join("key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(directory.join("cert.pem"), &pair.chain_pem).unwrap();
    pair
}

pub(crate) fn start(flags: &[&str]) -> WebhookProcess {
    let directory = tempfile::tempdir().unwrap();
    let pair = certificate(directory.path());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let log = fs::File::create(directory.path().join("log")).unwrap();
    let mut process = Command::new(FERROKUBE)
        .args([
            "trace-webhook",
            "--secure-port=0",
            "--log-level=debug",
            "--tls-cert-file",
            &path("cert.pem"),
            "--tls-private-key-file",
            &path("key.pem"),
        ])
        .args(flags)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url = line
        .split_whitespace()
        .find_map(|word| word.strip_suffix("/mutate"))
        .unwrap_or_else(|| panic!("{line:?}"))
        .to_owned();
    WebhookProcess { process, url, directory, pair }
}

impl WebhookProcess {
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url, self.pair.chain_pem.as_bytes(), None, None).unwrap()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

fn review(operation: &str, object: &Value, old: &Value) -> Value {
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": "u-1", "operation": operation, "name": "a", "namespace": "default",
        "kind": {"group": "", "version": "v1", "kind": "ConfigMap"}, "resource": {"group": "", "version": "v1", "resource": "configmaps"},
        "userInfo": {"username": "jane"}, "object": object, "oldObject": old, "dryRun": false}})
}

/// The annotations that the response's patch sets.
pub(crate) fn patched(answer: &Value) -> Value {
    assert_eq!(
        (&answer["response"]["uid"], &answer["response"]["allowed"]),
        (&json!("u-1"), &json!(true)),
        "{answer}"
    );
    let Some(patch) = answer["response"]["patch"].as_str() else { return Value::Null };
    let operations: Value =
        serde_json::from_slice(&base64::engine::general_purpose::STANDARD.decode(patch).unwrap())
            .unwrap();
    let set =
        operations.as_array().unwrap().iter().filter(|operation| operation["value"].is_string());
    set.map(|operation| {
        (
            operation["path"].as_str().unwrap().rsplit("~1").next().unwrap().to_owned(),
            operation["value"].clone(),
        )
    })
    .collect()
}

pub(crate) async fn ask(client: &Client, review: &Value, headers: &[(&str, &str)]) -> Value {
    let mut request = client
        .request(Method::POST, "/mutate?timeout=10s")
        .header("content-type", "application/json")
        .body(review.to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = client.send(request).await.unwrap();
    assert_eq!(
        (answer.status, answer.headers["content-type"].to_str().unwrap()),
        (200, "application/json"),
        "{}",
        answer.text
    );
    answer.body
}

#[tokio::test]
async fn l33_l36_reviews_get_the_ids_of_their_headers() {
    let webhook = start(&[]);
    let client = webhook.client();
    let object = json!({"metadata": {"name": "a"}, "data": {"k": "1"}});
    // A: from a controller, through a server that forwards both headers (as ours).
    let set = patched(
        &ask(
            &client,
            &review("CREATE", &object, &Value::Null),
            &[("traceparent", PARENT), ("initial-trace-id", INITIAL)],
        )
        .await,
    );
    assert_eq!(
        set,
        json!({"trace-id": "4bf92f3577b34da6a3ce929d0e0e4736", "span-id": "00f067aa0ba902b7", "initial-trace-id": INITIAL})
    );
    // B: from a user, through a stock server with tracing on.
    let set = patched(
        &ask(&client, &review("CREATE", &object, &Value::Null), &[("traceparent", PARENT)]).await,
    );
    assert_eq!(set["initial-trace-id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    // Through a stock server without tracing, or with invalid headers: a new trace.
    for headers in [
        &[][..],
        &[("traceparent", "junk"), ("initial-trace-id", "junk")],
        &[("traceparent", PARENT), ("traceparent", PARENT)],
    ] {
        let set = patched(&ask(&client, &review("CREATE", &object, &Value::Null), headers).await);
        assert_eq!(set["trace-id"].as_str().unwrap().len(), 32);
        assert_ne!(set["trace-id"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(set["initial-trace-id"], set["trace-id"]);
    }
    // C: any other write.
    let stored = json!({"metadata": {"name": "a", "annotations": {"trace.kubernetes.io/initial-trace-id": INITIAL}}, "data": {"k": "1"}});
    let mut changed = stored.clone();
    changed["data"]["k"] = json!("2");
    let set = patched(
        &ask(&client, &review("UPDATE", &changed, &stored), &[("traceparent", PARENT)]).await,
    );
    assert_eq!(
        set,
        json!({"trace-id": "4bf92f3577b34da6a3ce929d0e0e4736", "span-id": "00f067aa0ba902b7"})
    );
    assert_eq!(
        patched(
            &ask(&client, &review("UPDATE", &stored, &stored), &[("traceparent", PARENT)]).await
        ),
        Value::Null
    );
    // L38: a deletion is logged.
    assert_eq!(
        patched(
            &ask(&client, &review("DELETE", &Value::Null, &stored), &[("traceparent", PARENT)])
                .await
        ),
        Value::Null
    );
    let logged = || async {
        let log = webhook.log();
        let found = log.lines().any(|line| {
            line.contains("operation=DELETE")
                && line.contains("trace_id=4bf92f3577b34da6a3ce929d0e0e4736")
        });
        if found { Ok(()) } else { Err(log) }
    };
    wait_until("the deletion is in the log", BOUND, logged).await;
    let metrics = client.get("/metrics").await.unwrap().text;
    assert!(metrics.contains("ferrokube_trace_stamps_total{outcome=\"stamped\"} 6"), "{metrics}");
}

#[tokio::test]
async fn invalid_reviews_are_refused_without_harm() {
    let webhook = start(&[]);
    let client = webhook.client();
    let post = |body: Vec<u8>| client.send(client.request(Method::POST, "/mutate").body(body));
    for body in ["", "{", "null", "{\"apiVersion\":\"admission.k8s.io/v1\"}", &"[".repeat(1 << 20)]
    {
        assert_eq!(post(body.as_bytes().to_vec()).await.unwrap().status, 400);
    }
    // Larger than any review: refused by its Content-Length.
    match post(vec![b'x'; (8 << 20) + 1]).await {
        Ok(answer) => assert_eq!(answer.status, 413),
        Err(error) => assert!(webhook.client().get("/healthz").await.is_ok(), "{error}"),
    }
    assert_eq!(client.get("/mutate").await.unwrap().status, 405);
    assert_eq!(client.get("/other").await.unwrap().status, 404);
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(client.get(path).await.unwrap().text, "ok");
    }
    // A non-object in place of the object is allowed unchanged: kube-apiserver validates it.
    let answer =
        ask(&client, &review("CREATE", &json!({"metadata": {"annotations": 5}}), &json!([1])), &[])
            .await;
    assert_eq!(patched(&answer), Value::Null);
    assert!(
        client
            .get("/metrics")
            .await
            .unwrap()
            .text
            .contains("ferrokube_trace_unreadable_reviews_total")
    );
}

#[tokio::test]
async fn certificates_are_read_again_when_they_change() {
    let webhook = start(&[]);
    assert_eq!(webhook.client().get("/healthz").await.unwrap().status, 200);
    let renewed = certificate(webhook.directory.path());
    let trusted = || async {
        let client = Client::new(&webhook.url, renewed.chain_pem.as_bytes(), None, None).unwrap();
        client.get("/healthz").await.map(drop).map_err(|error| error.to_string())
    };
    wait_until("the new certificate is served", BOUND, trusted).await;
    assert!(
        webhook.client().get("/healthz").await.is_err(),
        "who trusts only the old one is refused"
    );
}

#[tokio::test]
async fn p03_off_answers_without_a_patch() {
    let webhook = start(&["--feature-gates=LogTracking=false"]);
    let answer = ask(
        &webhook.client(),
        &review("CREATE", &json!({"metadata": {"name": "a"}}), &Value::Null),
        &[("traceparent", PARENT)],
    )
    .await;
    assert_eq!(
        answer,
        json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": {"uid": "u-1", "allowed": true}})
    );
}

#[tokio::test]
async fn with_a_client_ca_callers_need_a_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let pki = |name: &str| pki::Pki::open(&directory.path().join(name)).unwrap();
    let (callers, strangers) = (pki("callers"), pki("strangers"));
    let ca = directory.path().join("callers.crt");
    fs::write(&ca, callers.client_ca_pem()).unwrap();
    let webhook = start(&[
        "--client-ca-file",
        &ca.display().to_string(),
        "--client-allowed-names=kube-apiserver",
    ]);
    let client = |pair: Option<Pair>| {
        let identity =
            pair.map(|pair| [pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()].concat());
        Client::new(&webhook.url, webhook.pair.chain_pem.as_bytes(), identity.as_deref(), None)
            .unwrap()
    };
    let named = |pki: &pki::Pki, common_name: &str| {
        Some(
            pki.client(&pki::Subject { common_name, organizations: &[] }, pki::LEAF_LIFETIME)
                .unwrap(),
        )
    };
    let create = review("CREATE", &json!({"metadata": {"name": "a"}}), &Value::Null);
    let known = client(named(&callers, "kube-apiserver"));
    assert!(patched(&ask(&known, &create, &[]).await).is_object());
    for refused in [
        client(None),
        client(named(&callers, "someone")),
        client(named(&strangers, "kube-apiserver")),
    ] {
        let answer = refused
            .send(refused.request(Method::POST, "/mutate").body(create.to_string()))
            .await
            .unwrap();
        assert_eq!((answer.status, refused.get("/metrics").await.unwrap().status), (401, 401));
        assert_eq!(refused.get("/healthz").await.unwrap().status, 200);
    }
    assert!(known.get("/metrics").await.unwrap().text.contains("outcome=\"stamped\"} 1"));
}

/// Begins a POST whose body never arrives.
async fn silent(webhook: &WebhookProcess) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(webhook.pair.chain_pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    let socket = TcpStream::connect(webhook.url.trim_start_matches("https://")).await.unwrap();
    let mut stream = TlsConnector::from(Arc::new(config))
        .connect("localhost".try_into().unwrap(), socket)
        .await
        .unwrap();
    stream
        .write_all(b"POST /mutate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n{")
        .await
        .unwrap();
    stream
}

#[tokio::test]
async fn missing_bodies_block_no_other_review() {
    let webhook = start(&[]);
    let mut all = Vec::new();
    // Far more than the concurrent reviews; each would hold its slot for ten seconds.
    for _ in 0..400 {
        all.push(silent(&webhook).await);
    }
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let answer = tokio::time::timeout(
        BOUND,
        ask(&webhook.client(), &review("CREATE", &object, &Value::Null), &[]),
    )
    .await
    .unwrap();
    assert_eq!(answer["response"]["allowed"], true);
}

#[test]
fn a_certificate_is_needed() {
    let output = Command::new(FERROKUBE).arg("trace-webhook").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let output = Command::new(FERROKUBE)
        .args([
            "trace-webhook",
            "--secure-port=0",
            "--tls-cert-file=/nowhere/c",
            "--tls-private-key-file=/nowhere/k",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/"), "{output:?}");
}
