//! `ferrokube certs`: what it makes works with a server, and what it renews stays trusted.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn certs(data_dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(FERROKUBE);
    command.arg("certs").args(arguments).arg("--data-dir").arg(data_dir).output().unwrap()
}

fn done(data_dir: &Path, arguments: &[&str]) -> String {
    let output = certs(data_dir, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The user that a kubeconfig is of, as the server sees it.
async fn user(kubeconfig: &Path) -> String {
    let client = Client::from_kubeconfig(kubeconfig).unwrap();
    let review =
        serde_json::json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let response = client.post(path, &review).await.unwrap();
    response.body["status"]["userInfo"]["username"].as_str().unwrap_or(&response.text).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfigs_of_components_are_made_and_cas_are_renewed() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let data_dir = cluster.data_dir();
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let made = |component: &[&str], url: &str, name: &str| {
        let output = path(name).display().to_string();
        let flags = ["--server", url, "--output", &output];
        done(&data_dir, &[&["kubeconfig"], component, &flags].concat());
        path(name)
    };
    for (component, name) in [
        (&["controller-manager"][..], "system:kube-controller-manager"),
        (&["scheduler"], "system:kube-scheduler"),
        (&["kubelet", "--node", "node-a"], "system:node:node-a"),
        (&["admin"], "kubernetes-admin"),
        (&["--user", "alice", "--group", "shop"], "alice"),
    ] {
        let kubeconfig = made(component, cluster.url(), "component.kubeconfig");
        assert_eq!(fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(user(&kubeconfig).await, name);
    }
    let refused = certs(&data_dir, &["kubeconfig", "kubelet", "--server=https://a", "-o", "-"]);
    assert_eq!(refused.status.code(), Some(2), "no --node");

    // The keys stay: a client with the CA and the certificate from before is served.
    let old = path("old.kubeconfig");
    fs::copy(cluster.kubeconfig(), &old).unwrap();
    let before = fs::read_to_string(data_dir.join("pki/ca.crt")).unwrap();
    let text = done(&data_dir, &["renew"]);
    assert!(text.contains("front-proxy-ca.crt is valid for 36"), "{text}");
    assert_ne!(fs::read_to_string(data_dir.join("pki/ca.crt")).unwrap(), before);
    assert_eq!(user(&old).await, "kubernetes-admin");
    let url = cluster.url().to_owned();
    cluster.terminate().unwrap();
    cluster.restart().unwrap();
    let text = fs::read_to_string(&old).unwrap().replace(&url, cluster.url());
    fs::write(&old, text).unwrap();
    assert_eq!(user(&old).await, "kubernetes-admin");
    assert_eq!(user(&cluster.kubeconfig()).await, "kubernetes-admin");

    let list = done(&data_dir, &["list"]);
    for words in
        ["FILE", "client-ca.crt", "CN=ferrokube-ca", "O=system:masters, CN=kubernetes-admin"]
    {
        assert!(list.contains(words), "{list}");
    }
    fs::write(path("half.crt"), &before[..before.len() / 2]).unwrap();
    let half = path("half.crt").display().to_string();
    let output = certs(&data_dir, &["list", &half]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("no certificate"), "{output:?}");
}

#[test]
fn without_cas_the_command_that_makes_them_is_named() {
    let scratch = tempfile::tempdir().unwrap();
    let data_dir = scratch.path().join("none");
    for arguments in [&["renew"][..], &["kubeconfig", "admin", "--server=https://a", "-o", "-"]] {
        let refused = certs(&data_dir, arguments);
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{text}");
        let words = format!("there is no CA in {}", data_dir.join("pki").display());
        assert!(text.contains(&words) && text.contains("or choose another --data-dir"), "{text}");
        assert!(!data_dir.exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_of_the_user_signs_what_the_server_shows() {
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    done(&path("company"), &["init"]);
    let file = |name: &str| path("company/pki").join(name).display().to_string();
    let import = ["import", "ca", "--certificate", &file("ca.crt"), "--key", &file("ca.key")];
    done(&path("server"), &import);
    let again = certs(&path("server"), &import);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--replace"), "{again:?}");

    // A pair for the flags of a server; its metric has the end of it.
    let pair = [path("serving.crt"), path("serving.key")].map(|path| path.display().to_string());
    let names = ["serving", "127.0.0.1", "localhost", "--certificate", &pair[0], "--key", &pair[1]];
    done(&path("server"), &names);
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(format!("--tls-cert-file={}", pair[0]))
        .flag(format!("--tls-private-key-file={}", pair[1]))
        .start()
        .unwrap();
    let kubeconfig = path("admin.kubeconfig");
    let ca = fs::read(file("ca.crt")).unwrap();
    let output = kubeconfig.display().to_string();
    let flags = ["kubeconfig", "admin", "--server", cluster.url(), "-o", &output];
    done(&cluster.data_dir(), &flags);
    let anonymous = Client::new(cluster.url(), &ca, None, None).unwrap();
    assert_eq!(anonymous.get("/version").await.unwrap().status, 200, "by the company's CA");

    // The identity of a controller manager in another process, with its rights only.
    let manager = cluster.data_dir().join("controller-manager.kubeconfig");
    assert_eq!(fs::metadata(&manager).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn expiry_is_a_metric() {
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    wait_until("the metric", BOUND, || async {
        let response = admin.get("/metrics").await.map_err(|error| error.to_string())?;
        let count = response
            .text
            .lines()
            .filter(|line| line.starts_with("ferrokube_certificate_expiration_timestamp_seconds{"))
            .count();
        if count == 3 { Ok(()) } else { Err(format!("{count} files")) }
    })
    .await;
    let manager = cluster.data_dir().join("controller-manager.kubeconfig");
    assert_eq!(user(&manager).await, "system:kube-controller-manager");
}
