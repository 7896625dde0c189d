//! The executables of `ferrokube envtest-assets`, started as controller-runtime's envtest starts
//! them: its arguments in its order, its health checks, its files with their modes, its signals.

mod starters;

use crate::FERROKUBE;
use ferrokube_etcd::testing::{EtcdProcess, free_port};
use ferrokube_pki::{ADMIN, LEAF_LIFETIME, Pki, self_signed};
use ferrokube_testkit::{BOUND, Client, wait_until};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// Attempts to start, as a port may be taken meanwhile; envtest has as many.
const ATTEMPTS: usize = 5;

fn assets() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let made =
        Command::new(FERROKUBE).arg("envtest-assets").arg(directory.path()).output().unwrap();
    let text = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success(), "{text}");
    assert_eq!(text, format!("export KUBEBUILDER_ASSETS='{}'\n", directory.path().display()));
    directory
}

/// A started process in a group of its own, killed on drop.
struct Asset {
    child: Child,
    log: PathBuf,
}

impl Asset {
    fn start(executable: &Path, arguments: &[String], log: PathBuf) -> Self {
        let output = fs::File::create(&log).unwrap();
        let child = Command::new(executable)
            .args(arguments)
            .env_remove("RUST_LOG")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it answers a health check with 200; false once it has exited.
    async fn is_healthy(&mut self, url: &str) -> bool {
        // Fails if installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .tls_danger_accept_invalid_certs(true)
            .no_proxy()
            .build()
            .unwrap();
        let (mut healthy, started) = (false, Instant::now());
        while !healthy && self.child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < BOUND, "{url} is not healthy: {}", self.text());
            let response = client.get(url).send().await;
            healthy = response.is_ok_and(|response| response.status() == 200);
            if !healthy {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        }
        healthy
    }

    /// SIGTERM to the group, as envtest; it exits with 0.
    fn stop(mut self) {
        let group = Pid::from_child(&self.child);
        kill_process_group(group, Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.text());
    }
}

impl Drop for Asset {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Flags in envtest's order.
fn sorted(flags: &[(&str, String)]) -> Vec<String> {
    let mut flags: Vec<String> =
        flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
    flags.sort();
    flags
}

/// The files and users of a suite.
struct Suite {
    assets: TempDir,
    directory: TempDir,
    pki: Pki,
}

impl Suite {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(&directory.path().join("pki")).unwrap();
        Self { assets: assets(), directory, pki }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A CertDir with envtest's files.
    fn cert_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        let write = |name: &str, text: &str| {
            fs::write(path.join(name), text).unwrap();
            fs::set_permissions(path.join(name), Permissions::from_mode(0o640)).unwrap();
        };
        let serving = self.pki.serving(&["localhost".into(), "127.0.0.1".into()]).unwrap();
        write("apiserver.crt", &serving.chain_pem);
        write("apiserver.key", &serving.key_pem);
        let signer = self_signed(&["envtest-environment".into()]).unwrap();
        write("sa-signer.crt", &signer.chain_pem);
        write("sa-signer.key", &signer.key_pem);
        write("client-cert-auth-ca.crt", self.pki.client_ca_pem());
        path
    }

    /// Starts etcd; returns it with its URL.
    async fn etcd(&self) -> (Asset, String) {
        let data_dir = self.path("etcd");
        fs::create_dir_all(&data_dir).unwrap();
        for _ in 0..ATTEMPTS {
            let url = format!("http://127.0.0.1:{}", free_port());
            let arguments = sorted(&[
                ("advertise-client-urls", url.clone()),
                ("data-dir", data_dir.display().to_string()),
                ("listen-client-urls", url.clone()),
                ("listen-peer-urls", format!("http://127.0.0.1:{}", free_port())),
                ("unsafe-no-fsync", "true".into()),
            ]);
            let mut etcd =
                Asset::start(&self.assets.path().join("etcd"), &arguments, self.path("etcd.log"));
            if etcd.is_healthy(&format!("{url}/health")).await {
                return (etcd, url);
            }
        }
        panic!("etcd does not start: {}", fs::read_to_string(self.path("etcd.log")).unwrap());
    }

    /// Starts kube-apiserver with a new CertDir; returns it with a client of an administrator.
    async fn apiserver(&self, etcd: &str, name: &str) -> (Asset, Client) {
        let cert_dir = self.cert_dir(name);
        let file = |name: &str| cert_dir.join(name).display().to_string();
        let log = self.path(&format!("{name}.log"));
        for _ in 0..ATTEMPTS {
            let port = free_port();
            let url = format!("https://127.0.0.1:{port}");
            let arguments = sorted(&[
                ("allow-privileged", "true".into()),
                ("authorization-mode", "RBAC".into()),
                ("bind-address", "127.0.0.1".into()),
                ("cert-dir", cert_dir.display().to_string()),
                ("client-ca-file", file("client-cert-auth-ca.crt")),
                ("disable-admission-plugins", "ServiceAccount".into()),
                ("etcd-servers", etcd.into()),
                ("secure-port", port.to_string()),
                ("service-account-issuer", format!("{url}/")),
                ("service-account-key-file", file("sa-signer.crt")),
                ("service-account-signing-key-file", file("sa-signer.key")),
                ("service-cluster-ip-range", "10.0.0.0/24".into()),
            ]);
            let executable = self.assets.path().join("kube-apiserver");
            let mut server = Asset::start(&executable, &arguments, log.clone());
            if server.is_healthy(&format!("{url}/healthz")).await {
                let admin = self.pki.client(&ADMIN, LEAF_LIFETIME).unwrap();
                let identity = format!("{}{}", admin.chain_pem, admin.key_pem);
                let ca = self.pki.ca_pem().as_bytes();
                let client = Client::new(&url, ca, Some(identity.as_bytes()), None).unwrap();
                return (server, client);
            }
        }
        panic!("kube-apiserver does not start: {}", fs::read_to_string(log).unwrap());
    }
}

async fn created(client: &Client, path: &str, body: Value) -> Value {
    let response = client.post(path, &body).await.unwrap();
    assert_eq!(response.status, 201, "{}", response.text);
    response.body
}

async fn gone(client: &Client, path: &str) {
    wait_until(&format!("{path} is gone"), BOUND, || async {
        let response = client.get(path).await.map_err(|error| error.to_string())?;
        if response.status == 404 { Ok(()) } else { Err(response.text) }
    })
    .await;
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

#[test]
fn envtest_reads_the_flags_from_the_help() {
    let assets = assets();
    let help = |name: &str| {
        let Output { status, stdout, stderr } =
            Command::new(assets.path().join(name)).arg("--help").output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        String::from_utf8([stdout, stderr].concat()).unwrap()
    };
    // envtest's pattern is `(?m)^\s*--FLAG\b`.
    let has = |help: &str, flag: &str| {
        help.lines().any(|line| {
            line.trim_start()
                .strip_prefix("--")
                .and_then(|rest| rest.strip_prefix(flag))
                .is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
        })
    };
    let apiserver = help("kube-apiserver");
    assert!(has(&apiserver, "cert-dir"), "{apiserver}");
    assert!(!has(&apiserver, "insecure-port"), "{apiserver}");
    assert!(has(&help("etcd"), "unsafe-no-fsync"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suite_runs_with_controllers_and_keeps_its_state() {
    let suite = Suite::new();
    let (etcd, url) = suite.etcd().await;
    let (server, client) = suite.apiserver(&url, "first").await;
    // What envtest waits for.
    assert_eq!(client.get("/api/v1/namespaces/default").await.unwrap().status, 200);

    // Garbage collection and namespace deletion, which the real assets lack.
    created(&client, "/api/v1/namespaces", named("shop")).await;
    let maps = "/api/v1/namespaces/shop/configmaps";
    let owner = created(&client, maps, named("owner")).await;
    let owned = json!({"metadata": {"name": "owned", "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
    }]}});
    created(&client, maps, owned).await;
    assert_eq!(client.delete(&format!("{maps}/owner")).await.unwrap().status, 200);
    gone(&client, &format!("{maps}/owned")).await;
    created(&client, maps, named("rest")).await;
    client.delete("/api/v1/namespaces/shop").await.unwrap();
    gone(&client, "/api/v1/namespaces/shop").await;
    // The profile has workloads.
    assert_eq!(client.get("/apis/apps/v1/deployments").await.unwrap().status, 200);

    // The service account key is the one of the files, and a certificate verifies it.
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    wait_until("the default service account", BOUND, || async {
        let response = client.get(account).await.map_err(|error| error.to_string())?;
        if response.status == 200 { Ok(()) } else { Err(response.text) }
    })
    .await;
    let token = created(&client, &format!("{account}/token"), json!({})).await;
    let token = token["status"]["token"].as_str().unwrap();
    let ca = suite.pki.ca_pem().as_bytes();
    let user = Client::new(client.url(), ca, None, Some(token)).unwrap();
    let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let review = created(&user, reviews, review).await;
    assert_eq!(
        review["status"]["userInfo"]["username"], "system:serviceaccount:default:default",
        "{review}"
    );

    // Ends while a watch is open; the state outlives the server.
    created(&client, "/api/v1/namespaces/default/configmaps", named("page")).await;
    let watch = client.watch("/api/v1/configmaps?watch=true").await.unwrap();
    server.stop();
    drop(watch);
    let (server, client) = suite.apiserver(&url, "second").await;
    let page = client.get("/api/v1/namespaces/default/configmaps/page").await.unwrap();
    assert_eq!(page.status, 200, "{}", page.text);
    server.stop();
    etcd.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_etcd_is_used_as_etcd() {
    let suite = Suite::new();
    let executable = EtcdProcess::executables().pop().unwrap();
    let etcd = EtcdProcess::start(&executable, &suite.path("real-etcd"));
    let maps = "/api/v1/namespaces/default/configmaps";
    let (server, client) = suite.apiserver(&etcd.url(), "first").await;
    created(&client, maps, named("page")).await;
    server.stop();
    let (server, client) = suite.apiserver(&etcd.url(), "second").await;
    assert_eq!(client.get(&format!("{maps}/page")).await.unwrap().status, 200);
    server.stop();
}

/// Reads a request to its end: a socket closed with bytes unread resets the connection.
fn read_head(socket: &mut std::net::TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}

#[test]
fn anything_else_at_the_address_is_refused() {
    let assets = assets();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        // The descriptor, then the version.
        for _ in 0..2 {
            let (mut socket, _) = listener.accept().unwrap();
            read_head(&mut socket);
            let _ = std::io::Write::write_all(&mut socket, b"HTTP/1.1 404 Not Found\r\n\r\n");
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let cert_dir = directory.path().join("certs");
    let ended = Command::new(assets.path().join("kube-apiserver"))
        .arg(format!("--etcd-servers={url}"))
        .arg(format!("--cert-dir={}", cert_dir.display()))
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    serving.join().unwrap();
    let text = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("{url} is neither etcd nor ferrokube's stand-in")), "{text}");
    assert!(!cert_dir.exists());
}
