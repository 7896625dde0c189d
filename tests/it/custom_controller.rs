//! A controller independent of this server (`examples/garden`: kube-rs with
//! `derive(CustomResource)`), as a process: its finalizer, status by server-side apply and events,
//! and its reaction to defaults, scale and delete.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Client, Cluster, newest_kubectl, wait_until};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PLANTS: &str = "/apis/garden.example.com/v1/namespaces/default/plants";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A process; killed on drop.
struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Builds the example as a user would; returns its path.
fn example() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "build",
        "--example",
        "garden",
        "--locked",
        "--offline",
    ]);
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let output = build.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Path::new(FERROKUBE).with_file_name("examples").join("garden")
}

/// Polls until the object matches.
async fn until(admin: &Client, what: &str, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
    wait_until(what, BOUND, async || {
        let answer = admin.get(path).await.unwrap();
        if answer.status == 200 && fits(&answer.body) { Ok(answer.body) } else { Err(answer.text) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_of_kube_rs_reconciles_its_custom_resource() {
    let example = example();
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let kubectl = newest_kubectl();
    let applied = kubectl.run(
        &cluster.kubeconfig(),
        &["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/examples/garden/garden.yaml")],
    );
    assert!(applied.ok, "{}{}", applied.stdout, applied.stderr);
    let _controller = Controller(
        Command::new(example)
            .env("KUBECONFIG", cluster.kubeconfig())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );

    let plant = json!({"apiVersion": "garden.example.com/v1", "kind": "Plant", "metadata": {"name": "fern"}, "spec": {"leaves": 3}});
    let made = admin.post(PLANTS, &plant).await.unwrap();
    assert_eq!((made.status, &made.body["spec"]["color"]), (201, &json!("green")), "{}", made.text);
    let fern = format!("{PLANTS}/fern");
    let grown = until(&admin, "the status", &fern, |fern| fern["status"]["leaves"] == 3).await;
    assert_eq!(grown["metadata"]["finalizers"], json!(["garden.example.com/rake"]));
    assert_eq!(grown["status"]["observedGeneration"], grown["metadata"]["generation"]);
    let owners = grown["metadata"]["managedFields"].as_array().unwrap();
    assert!(
        owners.iter().any(|entry| entry["manager"] == "gardener"
            && entry["operation"] == "Apply"
            && entry["subresource"] == "status"),
        "{grown}"
    );
    until(&admin, "the pot", &format!("{CONFIGMAPS}/fern"), |pot| {
        pot["data"] == json!({"leaves": "3", "color": "green"})
    })
    .await;
    wait_until("the event", BOUND, async || {
        let events = admin.get("/apis/events.k8s.io/v1/namespaces/default/events").await.unwrap();
        if events.text.contains("\"Grown\"") { Ok(()) } else { Err(events.text) }
    })
    .await;

    let request = admin
        .request(Method::PATCH, &format!("{fern}/scale"))
        .header("content-type", "application/merge-patch+json");
    let scaled =
        admin.send(request.body(json!({"spec": {"replicas": 12}}).to_string())).await.unwrap();
    assert_eq!(
        (scaled.status, &scaled.body["spec"]["replicas"]),
        (200, &json!(12)),
        "{}",
        scaled.text
    );
    let grown = until(&admin, "the new status", &fern, |fern| fern["status"]["leaves"] == 12).await;
    assert_eq!(grown["status"]["observedGeneration"], grown["metadata"]["generation"]);
    until(&admin, "the new pot", &format!("{CONFIGMAPS}/fern"), |pot| {
        pot["data"]["leaves"] == "12"
    })
    .await;
    let refused = admin.merge(&fern, &json!({"spec": {"color": "red"}})).await.unwrap();
    assert_eq!(
        (refused.status, &refused.body["details"]["causes"][0]["field"]),
        (422, &json!("spec")),
        "{}",
        refused.text
    );

    admin.delete(&fern).await.unwrap();
    until(&admin, "the leaves", &format!("{CONFIGMAPS}/fern-leaves"), |heap| {
        heap["data"]["leaves"] == "12"
    })
    .await;
    wait_until("the plant is gone", BOUND, async || match admin.get(&fern).await.unwrap() {
        answer if answer.status == 404 => Ok(()),
        answer => Err(answer.text),
    })
    .await;
}
