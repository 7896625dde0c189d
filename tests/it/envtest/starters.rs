//! Starters other than controller-runtime: flags of Go with one dash, addresses of all interfaces,
//! RSA keys in PKCS#1, self-signed certificates that are their own CA.

use super::{ATTEMPTS, Asset, assets, created};
use crate::apiserver::openssl;
use ferrokube_etcd::testing::free_port;
use ferrokube_testkit::{BOUND, Client, wait_until};
use serde_json::json;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The configuration of `openssl req` without extensions: by default certificates are CAs.
const NO_EXTENSIONS: &str = "[req]\ndistinguished_name = name\n[name]\n";

/// Writes a pair as suites in Java do.
fn self_signed(directory: &Path, name: &str, subject: &str, extension: &str) {
    fs::write(directory.join("openssl.cnf"), NO_EXTENSIONS).unwrap();
    openssl(
        directory,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -config openssl.cnf -days 2 -subj {subject} -addext {extension} -keyout {name}.pkcs8 -out {name}.crt"
        ),
    );
    openssl(directory, &format!("rsa -traditional -in {name}.pkcs8 -out {name}.key"));
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

async fn etcd(assets: &TempDir, directory: &Path) -> (Asset, u16) {
    for _ in 0..ATTEMPTS {
        let (port, peer) = (free_port(), free_port());
        let at = directory.display();
        let arguments = words(&format!(
            "-data-dir {at}/data -wal-dir {at}/wal --listen-client-urls http://0.0.0.0:{port} --advertise-client-urls http://0.0.0.0:{port} --initial-cluster default=http://localhost:{peer} --initial-advertise-peer-urls http://localhost:{peer} --listen-peer-urls http://localhost:{peer}"
        ));
        let log = directory.join("etcd.log");
        let mut etcd = Asset::start(&assets.path().join("etcd"), &arguments, log);
        if etcd.is_healthy(&format!("http://127.0.0.1:{port}/health")).await {
            return (etcd, port);
        }
    }
    panic!("etcd does not start: {}", fs::read_to_string(directory.join("etcd.log")).unwrap());
}

async fn apiserver(assets: &TempDir, directory: &Path, etcd: u16) -> (Asset, String) {
    for _ in 0..ATTEMPTS {
        let (port, at) = (free_port(), directory.display());
        let arguments = words(&format!(
            "--cert-dir {at} --secure-port {port} --etcd-servers http://0.0.0.0:{etcd} --authorization-mode RBAC --service-account-issuer https://localhost --service-account-signing-key-file {at}/apiserver.key --service-account-signing-key-file {at}/apiserver.key --service-account-key-file {at}/apiserver.key --service-account-issuer {at}/apiserver.crt --disable-admission-plugins ServiceAccount --client-ca-file {at}/client.crt --service-cluster-ip-range 10.0.0.0/24 --allow-privileged"
        ));
        let log = directory.join("apiserver.log");
        let mut server = Asset::start(&assets.path().join("kube-apiserver"), &arguments, log);
        let url = format!("https://127.0.0.1:{port}");
        if server.is_healthy(&format!("{url}/readyz")).await {
            return (server, url);
        }
    }
    let log = fs::read_to_string(directory.join("apiserver.log")).unwrap();
    panic!("kube-apiserver does not start: {log}");
}

/// As fabric8's kube-api-test.
#[tokio::test(flavor = "multi_thread")]
async fn a_suite_in_java_runs() {
    let (assets, directory) = (assets(), tempfile::tempdir().unwrap());
    let at = directory.path();
    self_signed(at, "apiserver", "/CN=example.org", "subjectAltName=IP:127.0.0.1");
    self_signed(at, "client", "/O=system:masters/CN=suite", "keyUsage=digitalSignature");
    let (_etcd, port) = etcd(&assets, at).await;
    let (_server, url) = apiserver(&assets, at, port).await;
    let ca = fs::read(at.join("apiserver.crt")).unwrap();
    let pair = ["client.crt", "client.key"].map(|name| fs::read(at.join(name)).unwrap()).concat();
    let admin = Client::new(&url, &ca, Some(&pair), None).unwrap();
    assert_eq!(admin.get("/api/v1/namespaces/default").await.unwrap().status, 200);
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    wait_until("the default service account", BOUND, || async {
        let response = admin.get(account).await.map_err(|error| error.to_string())?;
        if response.status == 200 { Ok(()) } else { Err(response.text) }
    })
    .await;
    let token = created(&admin, &format!("{account}/token"), json!({})).await;
    let token = token["status"]["token"].as_str().unwrap();
    let user = Client::new(&url, &ca, None, Some(token)).unwrap();
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let review = created(&user, reviews, review).await;
    let name = &review["status"]["userInfo"]["username"];
    assert_eq!(name, "system:serviceaccount:default:default", "{review}");
    // The first issuer counts.
    let discovery = admin.get("/.well-known/openid-configuration").await.unwrap();
    assert_eq!(discovery.body["issuer"], "https://localhost", "{}", discovery.text);
}
