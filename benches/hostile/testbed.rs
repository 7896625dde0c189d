//! The server under attack, its users and objects.

use crate::kubelet::DeafKubelet;
use anyhow::{Context, ensure};
use ferrokube_testkit::{Client, Cluster, Launch};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;

/// Token of the measured user, who may create ConfigMaps in the namespace `victim`.
pub(crate) const VICTIM: &str = "victim-token";
/// Token of the attacker, who reads everything and writes in the namespace `tenant`.
pub(crate) const TENANT: &str = "tenant-token";
/// Token of an attacker who may also create CustomResourceDefinitions.
pub(crate) const AUTHOR: &str = "author-token";

/// Tokens of eight attackers with the rights of [`TENANT`], to contend for what callers share.
pub(crate) const TENANTS: [&str; 8] = [
    "tenant0-token",
    "tenant1-token",
    "tenant2-token",
    "tenant3-token",
    "tenant4-token",
    "tenant5-token",
    "tenant6-token",
    "tenant7-token",
];

/// What a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetServer {
    /// The default.
    Default,
    /// Also the kinds of workloads, Features, and the pages below `/ui/`.
    Full,
}

/// A running server.
pub(crate) struct Testbed {
    cluster: Cluster,
    admin: Client,
    /// `127.0.0.1:port`
    pub(crate) authority: String,
    /// Server name for TLS.
    pub(crate) server_name: ServerName<'static>,
    /// Client configuration that trusts the server, without ALPN.
    pub(crate) tls: rustls::ClientConfig,
    _directory: tempfile::TempDir,
    /// The kubelet of the node `deaf`.
    _kubelet: Option<DeafKubelet>,
}

impl Testbed {
    /// Starts the server and creates users, rights and objects. What attackers need runs on their
    /// runtime.
    pub(crate) async fn set(
        binary: &Path,
        objects: usize,
        served: TargetServer,
        attackers: &Handle,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let tokens = directory.path().join("tokens");
        let mut file =
            std::fs::File::options().create_new(true).write(true).mode(0o600).open(&tokens)?;
        let line = |token: &str, group: &str| {
            format!("{token},{0},{0},{group}\n", token.trim_end_matches("-token"))
        };
        let mut lines =
            vec![line(VICTIM, "victim"), line(TENANT, "tenant"), line(AUTHOR, "author")];
        lines.extend(TENANTS.map(|token| line(token, "tenant")));
        std::io::Write::write_all(&mut file, lines.concat().as_bytes())?;
        let mut launch =
            Launch::new(binary).flag(format!("--token-auth-file={}", tokens.display()));
        if served == TargetServer::Full {
            for flag in ["--profile=kubernetes", "--feature-gates=FeatureAPI=true", "--trace-ui"] {
                launch = launch.flag(flag);
            }
        }
        let cluster = launch.start()?;
        let admin = cluster.admin()?;
        let ca = std::fs::read(cluster.data_dir().join("pki/ca.crt")).context("no CA")?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate?)?;
        }
        let tls =
            rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let authority = cluster.url().trim_start_matches("https://").to_owned();
        let host = authority.rsplit_once(':').context("no port")?.0.to_owned();
        let mut stage = Self {
            admin,
            authority,
            server_name: ServerName::try_from(host)?,
            tls,
            _directory: directory,
            _kubelet: None,
            cluster,
        };
        stage.rights().await?;
        stage.custom().await?;
        if served == TargetServer::Full {
            let kubelet = attackers.spawn(DeafKubelet::start()).await??;
            stage.pod(kubelet.port).await?;
            stage._kubelet = Some(kubelet);
        }
        stage.fill(objects).await?;
        Ok(stage)
    }

    async fn make(&self, path: &str, body: Value) -> anyhow::Result<()> {
        let answer = self.admin.post(path, &body).await?;
        ensure!(answer.status == 201, "POST {path}: {} {}", answer.status, answer.text);
        Ok(())
    }

    async fn rights(&self) -> anyhow::Result<()> {
        for namespace in ["victim", "tenant", "store"] {
            self.make("/api/v1/namespaces", json!({"metadata": {"name": namespace}})).await?;
        }
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let all = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
        let read = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
                {"nonResourceURLs": ["/ui/*"], "verbs": ["get"]}]);
        let define =
            json!([{"apiGroups": ["apiextensions.k8s.io"], "resources": ["*"], "verbs": ["*"]}]);
        for namespace in ["victim", "tenant"] {
            let subjects = json!([{"kind": "Group", "name": namespace, "apiGroup": "rbac.authorization.k8s.io"}]);
            let reference =
                json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"});
            self.make(
                &format!("{rbac}/namespaces/{namespace}/roles"),
                json!({"metadata": {"name": "all"}, "rules": all}),
            )
            .await?;
            let binding =
                json!({"metadata": {"name": "all"}, "subjects": subjects, "roleRef": reference});
            self.make(&format!("{rbac}/namespaces/{namespace}/rolebindings"), binding).await?;
        }
        for (user, rules) in [("tenant", read), ("author", define)] {
            let subjects =
                json!([{"kind": "Group", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]);
            let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user});
            self.make(
                &format!("{rbac}/clusterroles"),
                json!({"metadata": {"name": user}, "rules": rules}),
            )
            .await?;
            self.make(
                &format!("{rbac}/clusterrolebindings"),
                json!({"metadata": {"name": user}, "subjects": subjects, "roleRef": reference}),
            )
            .await?;
        }
        Ok(())
    }

    /// A pod of the namespace `tenant` on a node with this kubelet.
    async fn pod(&self, port: u16) -> anyhow::Result<()> {
        self.make("/api/v1/nodes", json!({"metadata": {"name": "deaf"}})).await?;
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        let placed = self.admin.merge("/api/v1/nodes/deaf/status", &status).await?;
        ensure!(placed.status == 200, "{}", placed.text);
        let containers = json!([{"name": "c", "image": "i"}]);
        let pod = json!({"metadata": {"name": "target"}, "spec": {"nodeName": "deaf", "containers": containers}});
        for _ in 0..500 {
            // Refused until the namespace has its service account.
            if self.admin.post("/api/v1/namespaces/tenant/pods", &pod).await?.status == 201 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("the pod is not accepted")
    }

    /// A custom kind without pruning.
    async fn custom(&self) -> anyhow::Result<()> {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let names =
            json!({"plural": "bags", "kind": "Bag", "singular": "bag", "listKind": "BagList"});
        let spec = json!({"group": "hostile.example.com", "scope": "Namespaced", "names": names, "versions": [version]});
        self.make(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            json!({"metadata": {"name": "bags.hostile.example.com"}, "spec": spec}),
        )
        .await?;
        for _ in 0..500 {
            if self.admin.get("/apis/hostile.example.com/v1/bags").await?.status == 200 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        anyhow::bail!("the custom resource is not served")
    }

    async fn fill(&self, objects: usize) -> anyhow::Result<()> {
        for from in (0..objects).step_by(64) {
            let batch = (from..objects.min(from + 64)).map(|number| {
                let labels = json!({"app": format!("a{}", number % 97), "number": number.to_string()});
                let body = json!({"metadata": {"name": format!("o{number}"), "labels": labels}, "data": {"text": "x".repeat(1000)}});
                async move { self.make("/api/v1/namespaces/store/configmaps", body).await }
            });
            futures::future::try_join_all(batch).await?;
        }
        Ok(())
    }

    /// Deletes what victim and attackers created, so that each attack starts with the same objects.
    pub(crate) async fn clear(&self) -> anyhow::Result<()> {
        let tenant = "/api/v1/namespaces/tenant/configmaps";
        for path in [
            "/api/v1/namespaces/victim/configmaps",
            tenant,
            "/apis/hostile.example.com/v1/namespaces/tenant/bags",
        ] {
            let answer = self.admin.delete(path).await?;
            ensure!(answer.status == 200, "DELETE {path}: {} {}", answer.status, answer.text);
        }
        for path in [
            "/api/v1/namespaces/tenant/resourcequotas?labelSelector=attack",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant/rolebindings?labelSelector=attack",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/tenant/roles?labelSelector=attack",
            "/apis/features.k8s.io/v1alpha1/namespaces/tenant/features?labelSelector=attack",
            "/api/v1/namespaces/tenant/serviceaccounts?labelSelector=attack",
            // Served only after their attacks.
            "/apis/hung.example.com/v1/namespaces/tenant/things",
            "/apis/tables.example.com/v1/namespaces/tenant/wides",
        ] {
            self.admin.delete(path).await?;
        }
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let listed = self.admin.get(definitions).await?;
        for definition in listed.body["items"].as_array().into_iter().flatten() {
            let name = definition["metadata"]["name"].as_str().unwrap_or_default();
            if name.ends_with(".bombs.example.com") {
                self.admin.delete(&format!("{definitions}/{name}")).await?;
            }
        }
        Ok(())
    }

    /// Whether the server still responds to its administrator.
    pub(crate) async fn is_alive(&self) -> bool {
        let asked = tokio::time::timeout(Duration::from_secs(30), self.admin.get("/readyz")).await;
        matches!(asked, Ok(Ok(answer)) if answer.status == 200)
    }

    /// Samples the server's memory until dropped.
    pub(crate) fn watch_memory(&self) -> MemoryWatch {
        let (peak, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (path, thread) = (
            format!("/proc/{}/status", self.cluster.pid()),
            (Arc::clone(&peak), Arc::clone(&stop)),
        );
        std::thread::spawn(move || {
            let (peak, stop) = thread;
            while !stop.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
                let kib =
                    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
                peak.fetch_max(kib, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        MemoryWatch { peak, stop }
    }
}

/// Records the peak resident memory.
pub(crate) struct MemoryWatch {
    peak: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl MemoryWatch {
    /// Peak so far.
    pub(crate) fn peak_mib(&self) -> u64 {
        self.peak.load(Ordering::Relaxed) / 1024
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
