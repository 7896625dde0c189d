//! An HTTPS server that answers reviews as its path says.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_pki as pki;
use ferrokube_testkit::Client;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A received review.
#[derive(Clone, Debug)]
pub(super) struct ReceivedReview {
    /// Request line and headers.
    pub(super) head: String,
    pub(super) review: Value,
}

/// The server; stops when dropped with its runtime.
pub(super) struct ReviewServer {
    pub(super) port: u16,
    /// PEM in base64.
    pub(super) ca_bundle: String,
    received: Arc<Mutex<Vec<ReceivedReview>>>,
    /// Connections so far.
    pub(super) accepted: Arc<AtomicUsize>,
    /// As whom `creates` writes.
    pub(super) admin: Arc<OnceLock<Client>>,
}

impl ReviewServer {
    pub(super) async fn start() -> Self {
        Self::with_clients(None).await
    }

    /// A server that requires client certificates of this CA (PEM).
    pub(super) async fn with_clients(ca: Option<&str>) -> Self {
        Self::listen(Ipv4Addr::LOCALHOST.into(), ca).await
    }

    /// A server at an address of this machine.
    pub(super) async fn at(address: IpAddr) -> Self {
        Self::listen(address, None).await
    }

    async fn listen(address: IpAddr, ca: Option<&str>) -> Self {
        let names = ["localhost", "127.0.0.1", "reviews.hooks.svc"].map(str::to_owned);
        let pair = pki::self_signed(&names).unwrap();
        let chain = CertificateDer::pem_slice_iter(pair.chain_pem.as_bytes());
        let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key_pem.as_bytes()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = match ca {
            None => config.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                config.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let config = config.with_single_cert(chain, key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (seen, admin) = (Arc::clone(&received), Arc::new(OnceLock::new()));
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let writer = Arc::clone(&admin);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
                let writer = Arc::clone(&writer);
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, &seen, &writer).await;
                    }
                });
            }
        });
        Self { port, ca_bundle: STANDARD.encode(pair.chain_pem), received, accepted, admin }
    }

    /// A client config of the server.
    pub(super) fn config(&self, path: &str) -> Value {
        let url = format!("https://127.0.0.1:{}/{path}", self.port);
        json!({"url": url, "caBundle": self.ca_bundle})
    }

    /// A client config of the service `reviews` in `hooks`.
    pub(super) fn service_config(&self, path: &str) -> Value {
        let service = json!({"name": "reviews", "namespace": "hooks", "path": path});
        json!({"service": service, "caBundle": self.ca_bundle})
    }

    /// The reviews of a path so far.
    pub(super) fn reviews(&self, path: &str) -> Vec<ReceivedReview> {
        let start = format!("POST /{path}?");
        let received = self.received.lock().unwrap();
        received.iter().filter(|one| one.head.starts_with(&start)).cloned().collect()
    }
}

async fn serve(
    mut stream: TlsStream<TcpStream>,
    seen: &Mutex<Vec<ReceivedReview>>,
    admin: &OnceLock<Client>,
) {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if !more(&mut stream, &mut bytes).await {
                return;
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
            .map_or(0, |(_, value)| value.parse().unwrap());
        while bytes.len() < end + length {
            if !more(&mut stream, &mut bytes).await {
                return;
            }
        }
        let review: Value = serde_json::from_slice(&bytes[end..end + length]).unwrap();
        bytes.drain(..end + length);
        let path = head.split(['/', '?', ' ']).nth(2).unwrap_or_default().to_owned();
        seen.lock().unwrap().push(ReceivedReview { head, review: review.clone() });
        if path == "creates" {
            create_part(admin.get().unwrap(), &review["request"]).await;
        }
        if !answer(&mut stream, &path, &review).await {
            return;
        }
    }
}

/// Converts things: `spec.size` of v1 is `spec.amount` of v2.
fn converted(review: &Value) -> String {
    let wanted = &review["request"]["desiredAPIVersion"];
    let (from, to) = match wanted == "ex.com/v2" {
        true => ("size", "amount"),
        false => ("amount", "size"),
    };
    let objects = review["request"]["objects"].as_array().unwrap().iter().map(|object| {
        let mut object = object.clone();
        object["apiVersion"] = wanted.clone();
        object["spec"] = json!({to: object["spec"][from]});
        object
    });
    json!({"kind": "ConversionReview", "apiVersion": review["apiVersion"], "response": {
        "uid": review["request"]["uid"], "result": {"status": "Success"},
        "convertedObjects": objects.collect::<Vec<_>>()}})
    .to_string()
}

/// Makes another object that the webhook reviews, too.
async fn create_part(admin: &Client, request: &Value) {
    let name = request["name"].as_str().unwrap();
    if name.starts_with("part-") || request["dryRun"] == true {
        return;
    }
    let mut part = request["object"].clone();
    part["metadata"] = json!({"name": format!("part-of-{name}"),
        "labels": request["object"]["metadata"]["labels"]});
    let path = format!("/api/v1/namespaces/{}/configmaps", request["namespace"].as_str().unwrap());
    let made = admin.post(&path, &part).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
}

async fn more(stream: &mut TlsStream<TcpStream>, bytes: &mut Vec<u8>) -> bool {
    stream.read_buf(bytes).await.is_ok_and(|read| read > 0)
}

/// Whether the connection can be used again.
async fn answer(stream: &mut TlsStream<TcpStream>, path: &str, review: &Value) -> bool {
    let uid = &review["request"]["uid"];
    let patch = |operations: Value| {
        let patch = STANDARD.encode(operations.to_string());
        json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch})
    };
    let (status, kind, body) = match path {
        "hang" => std::future::pending().await,
        "redirect" => {
            ("302 Found\r\nLocation: https://127.0.0.1:1/", "text/plain".to_owned(), String::new())
        }
        "html" => {
            ("200 OK", "text/html".to_owned(), "<html>secret-of-the-backend</html>".to_owned())
        }
        "broken" => ("500 Oops", "text/plain".to_owned(), "secret-of-the-backend".to_owned()),
        "long-head" => ("200 OK", "x".repeat(1 << 20), String::new()),
        "many-fields" => ("200 OK", "text/plain\r\nx: y".repeat(200), String::new()),
        "huge" => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 30);
            let chunk = vec![b' '; 1 << 16];
            let mut sent = stream.write_all(head.as_bytes()).await;
            while sent.is_ok() {
                sent = stream.write_all(&chunk).await;
            }
            return false;
        }
        _ => {
            let response = match path {
                "kube-rs" => return send(stream, "200 OK", &by_kube(review)).await,
                "convert" => return send(stream, "200 OK", &converted(review)).await,
                "deny" => json!({"uid": uid, "allowed": false, "status": {"message": "not today",
                    "code": 403, "reason": "OfTheWebhook"}, "warnings": ["think again"],
                    "auditAnnotations": {"why": "it is late"}}),
                "lie" => json!({"uid": "another", "allowed": true}),
                "label" => patch(json!([
                    {"op": "add", "path": "/metadata/labels", "value": {"reviewed": "yes"}}])),
                "creates" => patch(json!([
                    {"op": "add", "path": "/data", "value": {"seen": "1"}}])),
                path if path.starts_with("label-") => patch(json!([
                    {"op": "add", "path": format!("/metadata/labels/{path}"), "value": "1"}])),
                "retype" => patch(json!([{"op": "replace", "path": "/kind", "value": "Other"}])),
                "nothing" => patch(json!([{"op": "add", "path": "/immutable", "value": null}])),
                "mark" => patch(json!([{"op": "add", "path": "/data", "value": {"mark": "1"}}])),
                "managers" => patch(json!([{"op": "add", "path": "/metadata/managedFields",
                    "value": [{"manager": "evil", "operation": "Apply", "fieldsType": "X"}]}])),
                "identity" => patch(json!([
                    {"op": "replace", "path": "/metadata/uid", "value": "mine"},
                    {"op": "add", "path": "/metadata/annotations",
                        "value": {"trace.kubernetes.io/trace-id": "mine"}}])),
                "grow" => patch(json!([
                    {"op": "add", "path": "/data", "value": {"k": "v".repeat(2 << 20)}}])),
                _ => json!({"uid": uid, "allowed": true}),
            };
            let answer = json!({"kind": "AdmissionReview", "apiVersion": review["apiVersion"],
                "response": response});
            ("200 OK", "application/json".to_owned(), answer.to_string())
        }
    };
    send(stream, &format!("{status}\r\nContent-Type: {kind}"), &body).await
}

async fn send(stream: &mut TlsStream<TcpStream>, status: &str, body: &str) -> bool {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.is_ok()
        && stream.write_all(body.as_bytes()).await.is_ok()
}

/// What a webhook made with kube-rs answers: it labels config maps with the user who writes them,
/// and refuses some.
fn by_kube(review: &Value) -> String {
    let review: AdmissionReview<ConfigMap> = serde_json::from_value(review.clone()).unwrap();
    let request: AdmissionRequest<ConfigMap> = review.try_into().unwrap();
    let response = AdmissionResponse::from(&request);
    let object = request.object.unwrap();
    let response = match object.data.unwrap_or_default().contains_key("refused") {
        true => response.deny("no such key"),
        false => {
            let user = request.user_info.username.unwrap_or_default();
            let label = json!([{"op": "add", "path": "/metadata/labels",
                "value": {"writer": user.replace(':', "-"), "operation": request.operation}}]);
            response.with_patch(serde_json::from_value(label).unwrap()).unwrap()
        }
    };
    serde_json::to_string(&response.into_review()).unwrap()
}
