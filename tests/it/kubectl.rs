//! The real kubectl, oldest and newest supported: create, apply, patch, label, list, watch, edit,
//! wait, delete.

mod custom;

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Cluster, Kubectl, kubectls, wait_until, write_script};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

struct Session<'a> {
    cluster: &'a Cluster,
    kubectl: &'a Kubectl,
    namespace: String,
}

impl Session<'_> {
    /// Runs kubectl in the session's namespace; its output must contain the words.
    fn check(&self, arguments: &[&str], words: &str) -> String {
        let namespace = format!("--namespace={}", self.namespace);
        let mut all = vec![namespace.as_str()];
        all.extend(arguments);
        let ran = self.kubectl.run(&self.cluster.kubeconfig(), &all);
        assert!(
            ran.ok,
            "kubectl {} {arguments:?}: {}{}",
            self.kubectl.version, ran.stdout, ran.stderr
        );
        assert!(
            ran.stdout.contains(words),
            "kubectl {} {arguments:?}: {words:?} in {:?} {:?}",
            self.kubectl.version,
            ran.stdout,
            ran.stderr
        );
        ran.stdout
    }

    fn path(&self, name: &str) -> PathBuf {
        self.cluster.data_dir().with_file_name(format!("{}-{name}", self.namespace))
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn manifest(&self, color: &str) -> String {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: page\ndata:\n  color: {color}\n"
        );
        self.file("page.yaml", &text).display().to_string()
    }
}

fn writes(session: &Session<'_>) {
    session.check(&["create", "namespace", &session.namespace], "created");
    session
        .check(&["create", "configmap", "plain", "--from-literal=a=b"], "configmap/plain created");
    session.check(
        &["create", "secret", "generic", "hidden", "--from-literal=a=b"],
        "secret/hidden created",
    );
    session.check(&["apply", "-f", &session.manifest("blue")], "configmap/page created");
    session.check(&["apply", "-f", &session.manifest("blue")], "configmap/page unchanged");
    session.check(&["apply", "-f", &session.manifest("green")], "configmap/page configured");
    session.check(
        &["apply", "--server-side", "--force-conflicts", "-f", &session.manifest("red")],
        "serverside-applied",
    );
    session.check(&["patch", "configmap", "page", "-p", r#"{"data":{"size":"9"}}"#], "patched");
    session.check(
        &[
            "patch",
            "configmap",
            "page",
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/data/json","value":"1"}]"#,
        ],
        "patched",
    );
    session.check(
        &["patch", "configmap", "page", "--type=merge", "-p", r#"{"data":{"json":null}}"#],
        "patched",
    );
    session.check(&["label", "configmap", "page", "tier=front"], "labeled");
    session.check(&["annotate", "configmap", "page", "note=here"], "annotate");
    let editor = session.path("editor");
    write_script(&editor, "#!/bin/sh\nsed -i 's/color: red/color: edited/' \"$1\"\n");
    let mut edit = session.kubectl.command(&session.cluster.kubeconfig());
    let output = edit
        .args(["-n", &session.namespace, "edit", "configmap", "page"])
        .env("EDITOR", &editor)
        .env("KUBE_EDITOR", &editor)
        .output()
        .unwrap();
    assert!(output.status.success(), "edit: {}", String::from_utf8_lossy(&output.stderr));
}

fn reads(session: &Session<'_>) {
    session.check(
        &["get", "configmap", "page", "-o", "jsonpath={.data.color}/{.data.size}/{.data.json}"],
        "edited/9/",
    );
    session.check(&["get", "configmaps", "-l", "tier=front", "-o", "name"], "configmap/page");
    session.check(
        &["get", "configmaps", "--field-selector=metadata.name=plain", "-o", "name"],
        "configmap/plain",
    );
    session.check(&["get", "configmaps"], "NAME");
    session.check(&["get", "--raw=/version"], "1.36");
    session.check(&["get", "secret", "hidden", "-o", "yaml"], "a: Yg==");
    session.check(&["describe", "configmap", "page"], "edited");
    session.check(&["api-resources"], "configmaps");
    session.check(&["explain", "configmap.data"], "data");
    session.check(&["auth", "can-i", "delete", "namespaces"], "yes");
}

async fn watches_and_waits(session: &Session<'_>) {
    let mut watch = session.kubectl.command(&session.cluster.kubeconfig());
    watch.args([
        "-n",
        &session.namespace,
        "get",
        "configmap",
        "page",
        "--watch",
        "-o",
        "jsonpath={.data.color}{\"\\n\"}",
    ]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        lines.map_while(Result::ok).for_each(|line| drop(sender.send(line)))
    });
    let mut seen = Vec::new();
    let mut color = 0;
    wait_until("the watch sees a change", BOUND, || {
        color += 1;
        // Repeatedly: the watch may begin after the first change.
        session.check(
            &["patch", "configmap", "page", "-p", &format!(r#"{{"data":{{"color":"c{color}"}}}}"#)],
            "patched",
        );
        seen.extend(receiver.try_iter());
        let done = seen.iter().any(|line: &String| line.starts_with('c')) && seen.len() > 1;
        let result = if done { Ok(()) } else { Err(format!("{seen:?}")) };
        async move { result }
    })
    .await;
    watch.kill().unwrap();
    watch.wait().unwrap();
    session.check(
        &["wait", "--for=jsonpath={.data.size}=9", "--timeout=180s", "configmap/page"],
        "condition met",
    );
    session.check(&["delete", "configmap", "plain", "--wait=true"], "deleted");
    session.check(&["wait", "--for=delete", "--timeout=180s", "configmap/plain"], "");
    session.check(&["delete", "configmaps,secrets", "--all"], "deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_and_the_newest_kubectl_work() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    for kubectl in &kubectls() {
        let session = Session {
            cluster: &cluster,
            kubectl,
            namespace: format!("with-{}", kubectl.version.replace('.', "-")),
        };
        writes(&session);
        reads(&session);
        watches_and_waits(&session).await;
    }
}
