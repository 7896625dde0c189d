//! A program outside of the workspace with a feature of its own, in its own namespace.

use crate::FERROKUBE;
use crate::library::outside_package;
use crate::objects::made;
use crate::trace_page::Helper;
use ferrokube_testkit::{BOUND, Cluster, Launch, wait_until};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

const FEATURES: &str = "/apis/features.k8s.io/v1alpha1/namespaces/greeter/features";
const CONFIGMAPS: &str = "/api/v1/namespaces/greeter/configmaps";

fn feature_admin(cluster: &Cluster, line: &str) -> (Option<i32>, String) {
    let mut command = Command::new(FERROKUBE);
    command.args(["feature-admin", "-n", "greeter", "--kubeconfig"]).arg(cluster.kubeconfig());
    let output = command.args(line.split_whitespace()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_outside_has_features_of_its_own() {
    outside_package();
    let gates = "--feature-gates=FeatureAPI=true";
    let cluster = Launch::new(FERROKUBE).role("all-in-one").flag(gates).start().unwrap();
    let admin = cluster.admin().unwrap();
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "greeter"}});
    made(&admin, "/api/v1/namespaces", namespace).await;
    for number in 0..20 {
        let name = format!("m{number}");
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        made(&admin, CONFIGMAPS, object).await;
    }
    let program = Path::new(FERROKUBE).with_file_name("greeter");
    let start = || {
        let mut command = Command::new(&program);
        Helper::start(command.arg(cluster.kubeconfig()).arg("greeter"), "ready: greeter")
    };
    let (running, _) = start();
    let greeted = async || {
        let all = admin.get(CONFIGMAPS).await.unwrap().body;
        let is_greeted = |one: &&Value| {
            let annotations = &one["metadata"]["annotations"];
            !annotations["greeter.example.com/greeting"].is_null()
        };
        all["items"].as_array().unwrap().iter().filter(is_greeted).count()
    };
    let state = async |wanted: &str| {
        wait_until("the state", BOUND, async || {
            let feature = admin.get(&format!("{FEATURES}/Greeting")).await.unwrap();
            if feature.body["status"]["state"] == wanted {
                Ok(feature.body)
            } else {
                Err(feature.text)
            }
        })
        .await
    };
    state("Off").await;
    assert_eq!(
        feature_admin(&cluster, "check-upgrade --to 2.2"),
        (Some(0), "upgrade to 2.2: safe\n".into())
    );
    let enabled = feature_admin(&cluster, "enable Greeting");
    assert_eq!(enabled, (Some(0), "Greeting enabled\n".to_owned()));
    state("On").await;
    wait_until("all are greeted", BOUND, async || match greeted().await {
        // The namespace has some of its own.
        20.. => Ok(()),
        count => Err(count.to_string()),
    })
    .await;
    let used = |feature: &Value, enabled: bool| {
        let uses = feature["status"]["uses"].as_array().cloned().unwrap_or_default();
        uses.iter().any(|one| one["version"] == "2.1" && one["enabled"] == enabled)
    };
    wait_until("the use is reported", BOUND, async || {
        let feature = state("On").await;
        if used(&feature, true) { Ok(()) } else { Err(feature.to_string()) }
    })
    .await;
    let (code, text) = feature_admin(&cluster, "check-downgrade --to 2.0");
    assert!(code == Some(1) && text.contains("Greeting: the feature is not off"), "{text}");
    // It ends in the middle of the transition; the next instance finishes it.
    assert_eq!(feature_admin(&cluster, "disable Greeting").0, Some(0));
    drop(running);
    let (_running, _) = start();
    state("Off").await;
    assert_eq!(greeted().await, 0);
    assert_eq!(feature_admin(&cluster, "check-downgrade --to 2.0").0, Some(0));
    // The server left the other namespace alone.
    let own = admin.get("/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features").await;
    assert!(!own.unwrap().text.contains("Greeting"));
}
