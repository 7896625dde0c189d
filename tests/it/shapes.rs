//! One suite, three shapes (KEP-4080): processes of one file by subcommand, by the name of the
//! executable, and all in one.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Cluster, Kubectl, Launch, newest_kubectl, wait_until};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// How server and controllers are processes.
#[derive(Clone, Copy, Debug)]
enum ProcessLayout {
    Subcommands,
    Links,
    AllInOne,
}

/// A running control plane; processes are killed on drop.
struct Deployment {
    cluster: Cluster,
    manager: Option<Child>,
    kubectl: Kubectl,
    _links: TempDir,
}

impl Drop for Deployment {
    fn drop(&mut self) {
        if let Some(manager) = &mut self.manager {
            let _ = manager.kill();
            let _ = manager.wait();
        }
    }
}

impl Deployment {
    fn start(layout: ProcessLayout) -> Self {
        let links = tempfile::tempdir().unwrap();
        for name in ["kube-apiserver", "kube-controller-manager"] {
            symlink(FERROKUBE, links.path().join(name)).unwrap();
        }
        let link = |name: &str| links.path().join(name);
        let launch = match layout {
            ProcessLayout::Subcommands => Launch::new(FERROKUBE).role("apiserver"),
            ProcessLayout::Links => Launch::new(link("kube-apiserver")).role(""),
            ProcessLayout::AllInOne => Launch::new(FERROKUBE),
        };
        let cluster = launch.start().unwrap();
        let manager = match layout {
            ProcessLayout::Subcommands => {
                let mut command = Command::new(FERROKUBE);
                command.arg("controller-manager");
                Some(command)
            }
            ProcessLayout::Links => Some(Command::new(link("kube-controller-manager"))),
            ProcessLayout::AllInOne => None,
        };
        let manager = manager.map(|mut command| {
            let keys = cluster.data_dir().join("pki/sa.key");
            let log = std::fs::File::create(links.path().join("manager.log")).unwrap();
            command
                .arg("--kubeconfig")
                .arg(cluster.kubeconfig())
                .arg("--service-account-private-key-file")
                .arg(keys)
                .arg("--secure-port=0")
                .env_remove("RUST_LOG")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap()
        });
        Self { cluster, manager, kubectl: newest_kubectl(), _links: links }
    }

    /// Runs kubectl; its output.
    fn kubectl(&self, arguments: &[&str]) -> String {
        let ran = self.kubectl.run(&self.cluster.kubeconfig(), arguments);
        assert!(ran.ok, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    async fn until(&self, what: &str, arguments: &[&str], fits: impl Fn(&str) -> bool) {
        wait_until(what, BOUND, async || {
            let output = self.kubectl(arguments);
            if fits(&output) { Ok(()) } else { Err(output) }
        })
        .await;
    }

    fn apply(&self, yaml: &str) {
        let path = self.cluster.data_dir().with_file_name("applied.yaml");
        std::fs::write(&path, yaml).unwrap();
        self.kubectl(&["apply", "-f", &path.display().to_string()]);
    }
}

const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: boats, kind: Boat}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
";

/// What a generic control plane does, for users and by its controllers.
async fn suite(layout: ProcessLayout) {
    let plane = Deployment::start(layout);
    plane.kubectl(&["create", "namespace", "harbor"]);
    plane.kubectl(&["-n", "harbor", "create", "configmap", "owner", "--from-literal=a=b"]);
    plane.kubectl(&["auth", "can-i", "create", "configmaps"]);
    // Accounts and the published CA.
    plane
        .until("the account", &["-n", "harbor", "get", "serviceaccounts", "-o", "name"], |output| {
            output.contains("serviceaccount/default")
        })
        .await;
    plane
        .until("the CA", &["-n", "harbor", "get", "configmaps", "-o", "name"], |output| {
            output.contains("kube-root-ca.crt")
        })
        .await;
    // Custom resources.
    plane.apply(DEFINITION);
    plane.kubectl(&[
        "wait",
        "--for=condition=Established",
        "--timeout=180s",
        "crd/boats.example.com",
    ]);
    // Garbage collection.
    let uid = plane.kubectl(&[
        "-n",
        "harbor",
        "get",
        "configmap",
        "owner",
        "-o",
        "jsonpath={.metadata.uid}",
    ]);
    plane.apply(&format!(
        "apiVersion: example.com/v1\nkind: Boat\nmetadata:\n  name: owned\n  namespace: harbor\n  ownerReferences: [{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}}}]\n"
    ));
    plane.kubectl(&["-n", "harbor", "delete", "configmap", "owner"]);
    plane
        .until("the boat is collected", &["-n", "harbor", "get", "boats"], |output| {
            output.is_empty()
        })
        .await;
    // Quotas.
    plane.kubectl(&["-n", "harbor", "create", "quota", "few", "--hard=count/secrets=1"]);
    let used = ["-n", "harbor", "get", "quota", "few", "-o", "jsonpath={.status.used}"];
    plane.until("the quota is counted", &used, |output| output.contains("count/secrets")).await;
    // Namespace deletion.
    plane.kubectl(&["delete", "namespace", "harbor", "--timeout=180s"]);
    let left = plane.kubectl(&["get", "namespaces", "-o", "name"]);
    assert!(!left.contains("harbor"), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_by_subcommand() {
    suite(ProcessLayout::Subcommands).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_by_the_name_of_the_executable() {
    suite(ProcessLayout::Links).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process() {
    suite(ProcessLayout::AllInOne).await;
}
