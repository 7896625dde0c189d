//! Certificates of nodes: a kubelet with a bootstrap token gets one, keeps it private, and renews
//! it; a node gets none of another node. Certificates of users, whom people approve.

use crate::FERROKUBE;
use crate::controllers::ManagerProcess;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_pki::{NODES, RequestedKey, Subject};
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, newest_kubectl, wait_until};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const TOKEN: &str = "abcdef.0123456789abcdef";

/// A server, and the files of a node.
struct BootstrapFixture {
    cluster: Cluster,
    admin: Client,
    folder: tempfile::TempDir,
}

impl BootstrapFixture {
    /// With a bootstrap token, and rights for it and for nodes, as kubeadm grants them.
    async fn start() -> Self {
        let cluster = Launch::new(FERROKUBE)
            .flag("--profile=kubernetes")
            .flag("--enable-bootstrap-token-auth")
            .start()
            .unwrap();
        let admin = cluster.admin().unwrap();
        let fixture = Self { cluster, admin, folder: tempfile::tempdir().unwrap() };
        let (id, secret) = TOKEN.split_once('.').unwrap();
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "stringData": {"token-id": id, "token-secret": secret,
                "usage-bootstrap-authentication": "true"}});
        fixture.create("/api/v1/namespaces/kube-system/secrets", &secret).await;
        let requests = "system:certificates.k8s.io:certificatesigningrequests";
        for (group, role) in [
            ("system:bootstrappers", "system:node-bootstrapper".to_owned()),
            ("system:bootstrappers", format!("{requests}:nodeclient")),
            (NODES, "system:node".to_owned()),
            (NODES, format!("{requests}:selfnodeclient")),
        ] {
            let api = "rbac.authorization.k8s.io";
            let binding = json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding",
                "metadata": {"generateName": "test-"},
                "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": api, "kind": "Group", "name": group}]});
            fixture.create(BINDINGS, &binding).await;
        }
        fixture
    }

    async fn create(&self, path: &str, object: &Value) {
        let created = self.admin.post(path, object).await.unwrap();
        assert_eq!(created.status, 201, "{}", created.text);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn current(&self) -> PathBuf {
        self.path("kubelet/pki/kubelet-client-current.pem")
    }

    fn ca(&self) -> Vec<u8> {
        fs::read(self.cluster.data_dir().join("pki/ca.crt")).unwrap()
    }

    /// A kubelet whose runtime does not answer: its certificates need none.
    fn kubelet(&self, log: &str) -> ManagerProcess {
        let bootstrap = self.path("bootstrap.kubeconfig");
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": self.cluster.url(),
                "certificate-authority-data": STANDARD.encode(self.ca())}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        fs::write(&bootstrap, kubeconfig.to_string()).unwrap();
        let mut command = Command::new(FERROKUBE);
        command
            .args(["kubelet", "--hostname-override=node-a", "--node-ip=127.0.0.1"])
            .args(["--address=127.0.0.1", "--port=0"])
            .arg("--bootstrap-kubeconfig")
            .arg(&bootstrap)
            .arg("--kubeconfig")
            .arg(self.path("kubeconfig"))
            .arg("--root-dir")
            .arg(self.path("kubelet"))
            .arg("--container-runtime-endpoint")
            .arg(format!("unix://{}", self.path("none.sock").display()));
        ManagerProcess::spawn(&mut command, self.path(log))
    }

    /// Waits until the current pair is another one.
    async fn pair_after(&self, last: &str, kubelet: &ManagerProcess) -> String {
        wait_until("the node has a certificate", BOUND, || async {
            let pair = fs::read_to_string(self.current()).map_err(|_| kubelet.log())?;
            if pair != last && self.path("kubeconfig").exists() {
                Ok(pair)
            } else {
                Err(kubelet.log())
            }
        })
        .await
    }

    fn client_of(&self, pair: &str) -> Client {
        Client::new(self.cluster.url(), &self.ca(), Some(pair.as_bytes()), None).unwrap()
    }

    /// Messages of the conditions of all requests.
    async fn decisions(&self) -> Vec<(String, Vec<String>)> {
        let requests = self.admin.get(REQUESTS).await.unwrap().body;
        let texts = |request: &Value| {
            let conditions = request["status"]["conditions"].as_array().cloned();
            let text = |it: Value| format!("{}: {}", it["type"], it["message"]).replace('"', "");
            conditions.unwrap_or_default().into_iter().map(text).collect()
        };
        let name = |request: &Value| request["metadata"]["name"].as_str().unwrap().to_owned();
        requests["items"].as_array().unwrap().iter().map(|it| (name(it), texts(it))).collect()
    }

    /// A pair of the node that is valid, but due for renewal.
    fn due_pair(&self) -> String {
        let pki = self.cluster.data_dir().join("pki");
        let read = |name: &str| fs::read_to_string(pki.join(name)).unwrap();
        let ca_key = KeyPair::from_pem(&read("client-ca.key")).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&read("client-ca.crt"), ca_key).unwrap();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "system:node:node-a");
        parameters.distinguished_name.push(DnType::OrganizationName, NODES);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
        parameters.not_before = (now - hour * 10).into();
        parameters.not_after = (now + hour).into();
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &issuer).unwrap();
        format!("{}{}", certificate.pem(), key.serialize_pem())
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

async fn user(client: &Client) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    client.post(path, &review).await.unwrap().body["status"]["userInfo"].clone()
}

#[tokio::test]
async fn a_node_gets_its_certificate_keeps_it_private_and_renews_it() {
    let fixture = BootstrapFixture::start().await;
    let kubelet = fixture.kubelet("first.log");
    let pair = fixture.pair_after("", &kubelet).await;
    for (path, expected) in [("kubeconfig", 0o600), ("kubelet/pki", 0o700)] {
        assert_eq!(mode(&fixture.path(path)), expected, "{path}");
    }
    assert_eq!(mode(&fixture.current()), 0o600);
    let node = fixture.client_of(&pair);
    let own = user(&node).await;
    assert_eq!(own["username"], "system:node:node-a");
    assert_eq!(own["groups"], json!(["system:nodes", "system:authenticated"]));
    let decisions = fixture.decisions().await;
    let approved = "Approved: Auto approving kubelet client certificate after SubjectAccessReview.";
    assert_eq!(decisions.iter().map(|it| &*it.1).collect::<Vec<_>>(), [[approved]]);
    let log = kubelet.log();
    assert!(!log.contains(TOKEN) && !log.contains("PRIVATE KEY"), "{log}");

    // A node has no right to be another one, or an administrator.
    for (name, common_name, organization) in [
        ("other-node", "system:node:node-b", NODES),
        ("masters", "system:node:node-a", "system:masters"),
    ] {
        let subject = Subject { common_name, organizations: &[organization] };
        let request = RequestedKey::generate().unwrap().request(&subject, &[], &[]).unwrap();
        let request = json!({"apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"request": STANDARD.encode(request),
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["client auth", "digital signature"]}});
        let created = node.post(REQUESTS, &request).await.unwrap();
        assert_eq!(created.status, 201, "{}", created.text);
    }

    // Started again with a certificate that is due, it renews that as itself.
    drop(kubelet);
    fs::write(fixture.current(), fixture.due_pair()).unwrap();
    let due = fs::read_to_string(fixture.current()).unwrap();
    let kubelet = fixture.kubelet("second.log");
    let renewed = fixture.pair_after(&due, &kubelet).await;
    assert_eq!(user(&fixture.client_of(&renewed)).await["username"], "system:node:node-a");
    let own = "Approved: Auto approving self kubelet client certificate after SubjectAccessReview.";
    let decisions = fixture.decisions().await;
    assert!(decisions.iter().any(|it| it.1 == [own]), "{decisions:?}");
    for name in ["other-node", "masters"] {
        assert!(decisions.contains(&(name.to_owned(), vec![])), "{decisions:?}");
    }

    // Even if an administrator approves it, the signer refuses what is no node's.
    let approve = async |name: &str| {
        let path = format!("{REQUESTS}/{name}");
        let mut request = fixture.admin.get(&path).await.unwrap().body;
        request["status"]["conditions"] =
            json!([{"type": "Approved", "status": "True", "reason": "Test", "message": "by hand"}]);
        let approved = fixture.admin.put(&format!("{path}/approval"), &request).await.unwrap();
        assert_eq!(approved.status, 200, "{}", approved.text);
        wait_until("the request is answered", BOUND, || async {
            let request = fixture.admin.get(&path).await.map_err(|error| error.to_string())?;
            let conditions = request.body["status"]["conditions"].as_array().map_or(0, Vec::len);
            let is_issued = request.body["status"]["certificate"].is_string();
            if conditions > 1 || is_issued { Ok(is_issued) } else { Err(request.text) }
        })
        .await
    };
    assert!(!approve("masters").await);
    assert!(approve("other-node").await, "an administrator may");
}

/// As Kubernetes documents it, with stock kubectl.
#[tokio::test]
async fn a_user_gets_a_client_certificate_once_a_person_has_approved_it() {
    let fixture = BootstrapFixture::start().await;
    let key = RequestedKey::generate().unwrap();
    let subject = Subject { common_name: "jane", organizations: &["devs"] };
    let request = STANDARD.encode(key.request(&subject, &[], &[]).unwrap());
    let request = json!({"apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest", "metadata": {"name": "jane"},
        "spec": {"request": request, "signerName": "kubernetes.io/kube-apiserver-client",
            "expirationSeconds": 3600, "usages": ["client auth"]}});
    fixture.create(REQUESTS, &request).await;
    // The approver has seen it once this later one has its certificate.
    fixture.pair_after("", &fixture.kubelet("kubelet.log")).await;
    assert!(fixture.decisions().await.contains(&("jane".to_owned(), vec![])));
    let approved =
        newest_kubectl().run(&fixture.cluster.kubeconfig(), &["certificate", "approve", "jane"]);
    assert!(approved.ok, "{}", approved.stderr);
    let issued = wait_until("it is signed", BOUND, || async {
        let request = fixture.admin.get(&format!("{REQUESTS}/jane")).await.unwrap();
        let certificate = request.body["status"]["certificate"].as_str().map(str::to_owned);
        certificate.ok_or(request.text)
    })
    .await;
    let certificate = String::from_utf8(STANDARD.decode(issued).unwrap()).unwrap();
    let jane = user(&fixture.client_of(&format!("{certificate}{}", key.pem()))).await;
    assert_eq!(jane["username"], "jane");
    assert_eq!(jane["groups"], json!(["devs", "system:authenticated"]));
}
