//! A test of an operator as its author writes it: a reconciler against a cluster in the process.

use ferrokube_testing::kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use ferrokube_testing::kube::runtime::{WatchStreamExt, watcher};
use ferrokube_testing::kube::{self, Client, Resource, ResourceExt};
use ferrokube_testing::{TestCluster, TestClusterConfig};
use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use serde_json::json;

/// The operator: a deployment for each page, owned by it.
async fn reconcile(client: &Client, page: &ConfigMap) -> Result<(), kube::Error> {
    let namespace = page.namespace().unwrap_or_default();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    let name = page.name_any();
    let labels = json!({"page": name});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "ownerReferences": [page.controller_owner_ref(&())]},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "web", "image": "nginx"}]},
            },
        },
    });
    let apply = PatchParams::apply("operator").force();
    deployments.patch(&name, &apply, &Patch::Apply(deployment)).await.map(drop)
}

async fn is_gone(deployments: &Api<Deployment>, name: &str) -> bool {
    deployments.get_opt(name).await.expect("a response").is_none()
}

/// Waits by a watch until an object is there, or gone.
async fn until(deployments: &Api<Deployment>, name: &str, is_there: bool) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut seen = std::pin::pin!(watcher(deployments.clone(), config).default_backoff());
    while let Some(event) = seen.next().await {
        match event.expect("an event") {
            watcher::Event::Apply(_) | watcher::Event::InitApply(_) if is_there => return,
            watcher::Event::Delete(_) if !is_there => return,
            watcher::Event::InitDone if !is_there && is_gone(deployments, name).await => return,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_an_operator_go_with_their_owner() {
    let cluster = TestCluster::start().await.unwrap();
    let client = cluster.client().unwrap();
    let page = |name: &str| ConfigMap {
        metadata: kube::core::ObjectMeta { name: Some(name.into()), ..Default::default() },
        ..ConfigMap::default()
    };
    let pages: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let blue = pages.create(&PostParams::default(), &page("blue")).await.unwrap();
    reconcile(&client, &blue).await.unwrap();
    // Again: nothing changes.
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let first = deployments.get("blue").await.unwrap();
    reconcile(&client, &blue).await.unwrap();
    assert_eq!(deployments.get("blue").await.unwrap().resource_version(), first.resource_version());
    until(&deployments, "blue", true).await;
    // By the garbage collector, which envtest lacks.
    pages.delete("blue", &DeleteParams::default()).await.unwrap();
    until(&deployments, "blue", false).await;

    // Rights are real, too.
    let nobody = cluster.client_of("nobody", &[]).await.unwrap();
    let error = Api::<Namespace>::all(nobody).list(&Default::default()).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
    assert!(cluster.kubeconfig().is_file());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_of_one_process_know_nothing_of_each_other() {
    let generic = TestClusterConfig { workloads: false, ..TestClusterConfig::default() };
    let (one, other) = tokio::join!(TestCluster::start(), TestCluster::with(generic));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_ne!(one.url(), other.url());
    let namespaces = |cluster: &TestCluster| Api::<Namespace>::all(cluster.client().unwrap());
    let shop: Namespace = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    namespaces(&one).create(&PostParams::default(), &shop).await.unwrap();
    assert!(namespaces(&other).get_opt("shop").await.unwrap().is_none());
    let deployments: Api<Deployment> = Api::all(other.client().unwrap());
    assert!(deployments.list(&Default::default()).await.is_err(), "no workloads");
}
