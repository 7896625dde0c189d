//! Starts that fail, planes that are dropped, and ends in order: nothing stays locked or open.

use crate::choices::NoMaps;
use crate::support::{TestPlane, TokenGroups, builder};
use ferrokube_apimachinery::document::json;
use ferrokube_features::{Gates, KubernetesVersion};
use ferrokube_pki::{LEAF_LIFETIME, Subject};
use ferrokube_serve::InProcessClient;
use ferrokube_server::api::StepError;
use ferrokube_server::{ControlPlane, ControlPlaneBuilder, ServeError};
use http::StatusCode;
use http_body_util::{BodyExt, Empty};
use hyper::service::Service;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Far beyond what the end of a watch takes.
const BOUND: Duration = Duration::from_secs(60);

fn no() -> StepError {
    StepError::Failed("no".to_owned())
}

/// With the embedded engine.
fn durable(directory: &Path) -> ControlPlaneBuilder {
    ControlPlane::builder()
        .bundle(ferrokube_resources::bundle().only(["namespaces", "configmaps"]))
        .data_dir(directory.join("data"))
        .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .authenticator(|_| Arc::new(TokenGroups))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_leaves_nothing_locked() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        let wrong = durable(directory.path())
            .admission(|_| Arc::new(NoMaps))
            .admission(|_| Arc::new(NoMaps));
        wrong.build().map(drop).expect_err("two steps of one name");
        drop(durable(directory.path()).build().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_leaves_address_and_directory_free() {
    let directory = tempfile::tempdir().unwrap();
    // An address of its own: no connection of other tests is given its port in between.
    let [.., high, low] = std::process::id().to_be_bytes();
    let mut address = SocketAddr::from(([127, 77, high, low], 0));
    for _ in 0..10 {
        let fails = durable(directory.path())
            .listener(address)
            .post_start("mine", Box::new(|_| Box::pin(async { Err(no()) })))
            .build()
            .unwrap();
        address = fails.url().trim_start_matches("https://").parse().unwrap();
        let error = fails.start().await.map(drop).expect_err("a step that fails");
        assert!(matches!(error, ServeError::Start(_)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_that_is_dropped_can_be_built_again() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        drop(durable(directory.path()).build().unwrap().start().await.unwrap());
    }
}

/// What a client in the process gets for the namespace `default`.
async fn asked(client: &InProcessClient) -> std::io::Result<StatusCode> {
    let request = http::Request::get("/api/v1/namespaces/default").body(Empty::new()).unwrap();
    client.call(request).await.map(|response| response.status())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_in_the_process_end_with_their_plane_and_keep_nothing_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let masters = Subject { common_name: "me", organizations: &["system:masters"] };
    let mut ended = Vec::new();
    for round in 0..4 {
        let plane = durable(directory.path()).build().unwrap().start().await.unwrap();
        let identity = plane.pki().client(&masters, LEAF_LIFETIME).unwrap();
        let client = plane.in_process().client(&identity).unwrap();
        assert_eq!(asked(&client).await.unwrap(), StatusCode::OK);
        let anonymous = plane.in_process().anonymous_client();
        assert_eq!(asked(&anonymous).await.unwrap(), StatusCode::FORBIDDEN);
        let request = http::Request::get("/api/v1/configmaps?watch=true");
        let watch = client.call(request.body(Empty::new()).unwrap()).await.unwrap();
        let watch = tokio::spawn(watch.into_body().collect());
        ended.extend([client, anonymous]);
        let is_stopped = round % 2 == 0;
        match is_stopped {
            true => plane.stop().await,
            false => drop(plane),
        }
        let watched = tokio::time::timeout(BOUND, watch).await;
        let watched = watched.unwrap_or_else(|_| panic!("round {round}: it is open")).unwrap();
        assert_eq!(watched.is_ok(), is_stopped, "{:?}", watched.err());
        for client in &ended {
            let error = asked(client).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
        }
    }
}

/// A task of the program that ignores the shutdown is cut off; the store is closed all the same.
#[tokio::test]
async fn a_task_that_does_not_end_does_not_keep_the_store_open() {
    let directory = tempfile::tempdir().unwrap();
    let mut plane = builder(&directory).build().unwrap().start().await.unwrap();
    let store = plane.api().registry().store().clone();
    plane.spawn(std::future::pending());
    tokio::time::pause();
    plane.stop().await;
    let refused = store.submit(ferrokube_storage::Txn::default()).map(drop);
    assert!(refused.is_err(), "the store is open");
}

#[tokio::test(flavor = "multi_thread")]
async fn features_start_without_any_bootstrap_step() {
    let features = ferrokube_resources::bundle()
        .only(["features.features.k8s.io", "leases.coordination.k8s.io"]);
    let settings = "FeatureAPI=true".parse().unwrap();
    let (gates, _) = Gates::new(KubernetesVersion::CURRENT, &settings).unwrap();
    let plane = TestPlane::start(|builder| builder.bundle(features).gates(gates)).await;
    let list = plane.json("/apis/features.k8s.io/v1alpha1/features").await;
    assert!(!list["items"].as_array().unwrap().is_empty(), "{list:?}");
}

async fn restart(plane: TestPlane) -> TestPlane {
    let TestPlane { server, directory } = plane;
    server.stop().await;
    TestPlane::of(durable_all(&directory), directory).await
}

fn durable_all(directory: &TempDir) -> ControlPlaneBuilder {
    ControlPlane::builder()
        .bundle(ferrokube_resources::bundle())
        .data_dir(directory.path().join("data"))
        .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .authenticator(|_| Arc::new(TokenGroups))
}

/// What the server restores at its start may have been deleted, and forbidden since.
#[tokio::test(flavor = "multi_thread")]
async fn objects_do_not_prevent_a_start() {
    let directory = tempfile::tempdir().unwrap();
    let plane = TestPlane::of(durable_all(&directory), directory).await;
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {
        "count/configmaps": "0",
        "count/roles.rbac.authorization.k8s.io": "0",
        "count/rolebindings.rbac.authorization.k8s.io": "0",
    }}});
    let system = "/api/v1/namespaces/kube-system";
    assert_eq!(plane.post(&format!("{system}/resourcequotas"), &none).await.0, 201);
    let info = format!("{system}/configmaps/extension-apiserver-authentication");
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system";
    let role = format!("{rbac}/roles/system:controller:token-cleaner");
    for path in [&info, &role] {
        let (code, text) = plane.send("DELETE", path, "system:masters", "").await;
        assert_eq!(code, 200, "{path}: {text}");
    }
    let plane = restart(plane).await;
    assert_eq!((plane.get(&info).await.0, plane.get(&role).await.0), (200, 200));
    // One that others made, with other certificates, and that cannot be changed.
    let (code, _) = plane.send("DELETE", &info, "system:masters", "").await;
    assert_eq!(code, 200);
    let (code, _) =
        plane.send("DELETE", &format!("{system}/resourcequotas/none"), "system:masters", "").await;
    assert_eq!(code, 200);
    let sealed =
        json!({"metadata": {"name": "extension-apiserver-authentication"}, "immutable": true});
    let (code, text) = plane.post(&format!("{system}/configmaps"), &sealed).await;
    assert_eq!(code, 201, "{text}");
    let plane = restart(plane).await;
    assert_eq!(plane.get("/readyz").await.0, 200);
}
