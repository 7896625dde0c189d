//! Several API servers on one state.

use crate::support::{BOUND, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use ferrokube_auth::Rbac;
use ferrokube_controlplane::{ApiServerBuilder, FeatureSettings};
use ferrokube_registry::{Catalog, StorageMediaType, StoredValues};
use ferrokube_storage::testing::{SharedClient, SharedEngine, SharedFault};
use ferrokube_storage::{Environment, Store};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

async fn server(engine: &SharedEngine, identity: &str) -> TestServer {
    connected(engine.client(), identity).await
}

async fn connected(client: SharedClient, identity: &str) -> TestServer {
    let server = stopped(client, identity, |builder| builder).await;
    server.plane.start().await.unwrap();
    server
}

/// Not started.
async fn stopped(
    client: SharedClient,
    identity: &str,
    change: impl FnOnce(ApiServerBuilder) -> ApiServerBuilder,
) -> TestServer {
    let catalog = Arc::new(Catalog::default());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        catalog.put(definition);
    }
    let reader = Arc::new(StoredValues::new(
        catalog,
        ferrokube_resources::messages(),
        StorageMediaType::Protobuf,
    ));
    let store =
        Store::attach(Arc::new(client), reader, 64 << 20, Environment::default()).await.unwrap();
    let identity = identity.to_owned();
    let settings = FeatureSettings { identity, ..FeatureSettings::default() };
    let catalog = Arc::new(Catalog::default());
    for definition in ferrokube_resources::definitions(ferrokube_resources::tables()) {
        catalog.put(definition);
    }
    let rbac = Arc::new(Rbac::of(&store, &catalog));
    TestServer::over(store, |builder| change(builder.features(settings).authorizer(rbac)))
}

/// The check of a bootstrap step fails, and says that it waits for the storage.
async fn waits_for_storage(server: &TestServer, step: &str) {
    let begun = Instant::now();
    loop {
        let check = server.get(&format!("/readyz/poststarthook/{step}")).await;
        if check.code == 500 && check.text().contains("the storage is unavailable") {
            break;
        }
        assert!(begun.elapsed() < BOUND, "{} {}", check.code, check.text());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(server.get("/readyz").await.code, 500);
    assert_eq!(server.get("/livez/ping").await.code, 200);
}

#[tokio::test]
async fn fault_15_a_start_waits_for_the_storage_at_each_step() {
    let engine = SharedEngine::default();
    let client = engine.client();
    let cut = client.clone();
    let server = stopped(client.clone(), "one", |builder| {
        builder.post_start(
            "mine",
            Box::new(move |_| {
                cut.cut(true);
                Box::pin(async { Ok(()) })
            }),
        )
    })
    .await;
    tokio::time::pause();
    client.cut(true);
    let plane = server.plane.clone();
    let starting = tokio::spawn(async move { plane.start().await });
    waits_for_storage(&server, "start-system-namespaces-controller").await;
    client.cut(false);
    // The storage is gone again after the step before this one.
    waits_for_storage(&server, "kube-apiserver-autoregistration").await;
    assert_eq!(server.get("/readyz/poststarthook/mine").await.code, 200);
    assert!(!starting.is_finished() && !server.plane.is_ready());
    client.cut(false);
    starting.await.unwrap().unwrap();
    assert_eq!(server.get("/readyz").await.text(), "ok");
    let services = "/apis/apiregistration.k8s.io/v1/apiservices/v1.";
    assert_eq!(server.get(services).await.code, 200);
}

/// Such as by an etcd whose user may only read.
#[tokio::test]
async fn a_server_whose_writes_are_refused_is_not_ready() {
    let engine = SharedEngine::default();
    let server = server(&engine, "one").await;
    let (maps, map) = ("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "a"}}));
    tokio::time::pause();
    engine.fail_next(&[SharedFault::Unavailable; 1000]);
    let refused = {
        let mut refused = pin!(server.post(maps, &map));
        loop {
            tokio::select! {
                biased;
                response = &mut refused => break response,
                () = tokio::time::advance(Duration::from_millis(100)) => {}
            }
        }
    };
    assert_eq!(refused.code, 503);
    assert_eq!(server.get("/readyz/etcd-readiness").await.code, 500);
    assert_eq!(server.get("/readyz").await.code, 500);
    assert_eq!(server.get("/livez").await.code, 200, "a restart would not help");
    engine.heal();
    assert_eq!(server.post(maps, &map).await.code, 201);
    assert_eq!(server.get("/readyz").await.code, 200);
}

/// Names of identity Leases, once there are as many.
async fn identities(server: &TestServer, count: usize) -> Vec<String> {
    for _ in 0..10_000 {
        let query =
            format!("{LEASES}?labelSelector=apiserver.kubernetes.io/identity=kube-apiserver");
        let leases = server.get(&query).await.json();
        let items = leases["items"].as_array().unwrap().clone();
        if items.len() == count {
            let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
            return items.iter().map(name).collect();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("never {count} identity Leases");
}

#[tokio::test]
async fn servers_on_one_state_keep_identity_leases() {
    let engine = SharedEngine::default();
    let one = server(&engine, "one").await;
    let first = identities(&one, 1).await;
    assert!(first[0].starts_with("apiserver-"), "{first:?}");
    let other = server(&engine, "other").await;
    let both = identities(&one, 2).await;
    let again = server(&engine, "other").await;
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(identities(&again, 2).await, both, "the same after a restart");
    // One that is gone, and another object of such a name, without the label.
    for (name, labels) in [
        ("apiserver-gone", json!({"apiserver.kubernetes.io/identity": "kube-apiserver"})),
        ("apiserver-unlabeled", json!({})),
    ] {
        let lease = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {"leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z"},
        });
        assert_eq!(one.post(LEASES, &lease).await.code, 201);
    }
    assert_eq!(identities(&other, 3).await.len(), 3);
    assert_eq!(identities(&other, 2).await, both, "collected an hour later");
    assert_eq!(one.get(&format!("{LEASES}/apiserver-unlabeled")).await.code, 200);
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Sends a request to a server that lags, which then catches up.
async fn lagging(
    client: &SharedClient,
    one: impl Future<Output = ()>,
    other: &TestServer,
    path: &str,
    token: &str,
) -> u16 {
    client.hold(true);
    one.await;
    let (server, path) = (other.clone(), path.to_owned());
    let token = format!("Bearer {token}");
    let asked = tokio::spawn(async move {
        server.send("GET", &path, &[("authorization", &token)], "").await.code
    });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!asked.is_finished(), "it has not seen what its client may have");
    client.hold(false);
    asked.await.unwrap()
}

#[tokio::test]
async fn requests_see_what_their_clients_were_shown_by_another_server() {
    let engine = SharedEngine::default();
    let client = engine.client();
    let one = server(&engine, "one").await;
    let other = connected(client.clone(), "other").await;
    let post = async |path: &str, object: Value| {
        let made = one.post(path, &object).await;
        assert_eq!(made.code, 201, "{}", made.text());
    };
    let grant = async {
        let rule = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]});
        let role = json!({"metadata": {"name": "maps"}, "rules": [rule]});
        post(&format!("{RBAC}/clusterroles"), role).await;
        let subject =
            json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"});
        let of =
            json!({"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "maps"});
        let binding = json!({"metadata": {"name": "maps"}, "subjects": [subject], "roleRef": of});
        post(&format!("{RBAC}/clusterrolebindings"), binding).await;
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(lagging(&client, grant, &other, maps, "jane").await, 200);
    let cached = format!("{maps}?resourceVersion=0");
    client.hold(true);
    assert_eq!(other.get(&cached).await.code, 200, "any state will do");
    client.hold(false);
    let revoke = async {
        let path = format!("{RBAC}/clusterrolebindings/maps");
        assert_eq!(one.send("DELETE", &path, &[], "").await.code, 200);
    };
    assert_eq!(lagging(&client, revoke, &other, maps, "jane").await, 403);
    let define = async {
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let names = json!({"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"});
        let spec = json!({"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]});
        let definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": spec});
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        post(path, definition).await;
    };
    let widgets = "/apis/example.com/v1/namespaces/default/widgets";
    assert_eq!(lagging(&client, define, &other, widgets, "admin").await, 200);
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// Lets a server find out that it writes alone.
async fn write_alone(server: &TestServer, client: &SharedClient) {
    for _ in 0..100 {
        let before = client.barriers();
        assert_eq!(server.post(MAPS, &map("probe")).await.code, 201);
        let is_alone = client.barriers() == before;
        let path = format!("{MAPS}/probe");
        assert_eq!(server.send("DELETE", &path, &[], "").await.code, 200);
        if is_alone {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("it waits for the storage before every write");
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Lets jane make configmaps.
async fn bind_jane(server: &TestServer) -> u16 {
    let binding = json!({
        "metadata": {"name": "maps"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "maps"},
    });
    server.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.code
}

async fn unbind_jane(server: &TestServer) -> u16 {
    server.send("DELETE", &format!("{RBAC}/clusterrolebindings/maps"), &[], "").await.code
}

async fn post_as_jane(server: &TestServer, name: &str) -> u16 {
    let jane = [("authorization", "Bearer jane")];
    server.send("POST", MAPS, &jane, map(name).to_string()).await.code
}

/// A server that writes alone, where jane has no rights, and its connection.
async fn alone(engine: &SharedEngine) -> (TestServer, SharedClient) {
    let client = engine.client();
    let server = connected(client.clone(), "one").await;
    let rights = json!({
        "metadata": {"name": "maps"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}],
    });
    assert_eq!(server.post(&format!("{RBAC}/clusterroles"), &rights).await.code, 201);
    tokio::time::pause();
    write_alone(&server, &client).await;
    (server, client)
}

#[tokio::test]
async fn a_server_that_writes_alone_asks_the_storage_only_to_write() {
    let engine = SharedEngine::default();
    let (one, client) = alone(&engine).await;
    assert_eq!(bind_jane(&one).await, 201);
    let before = client.barriers();
    assert_eq!(post_as_jane(&one, "a").await, 201);
    assert_eq!(client.barriers(), before);
    assert_eq!(post_as_jane(&one, "a").await, 409);
    assert!(client.barriers() > before, "what is not written may be outdated");
    // Another server takes the right away, which the first one does not see.
    client.hold(true);
    let other = server(&engine, "other").await;
    assert_eq!(unbind_jane(&other).await, 200);
    assert_eq!(post_as_jane(&one, "b").await, 503, "it relied on being alone");
    assert_eq!(other.get(&format!("{MAPS}/b")).await.code, 404);
    client.hold(false);
    assert_eq!(post_as_jane(&one, "b").await, 403);
    // It waits before its writes now.
    let before = client.barriers();
    assert_eq!(one.post(MAPS, &map("c")).await.code, 201);
    assert!(client.barriers() > before);
}

/// Not as a refusal, after which clients write again.
#[tokio::test]
async fn a_server_that_writes_alone_tells_that_an_outcome_is_unknown() {
    let engine = SharedEngine::default();
    let (one, client) = alone(&engine).await;
    client.hold(true);
    let written = {
        let body = map("a");
        let mut written = pin!(one.post(MAPS, &body));
        loop {
            tokio::select! {
                biased;
                response = &mut written => break response,
                () = tokio::time::advance(Duration::from_millis(100)) => {}
            }
        }
    };
    assert_eq!(written.code, 504, "{}", written.text());
    client.hold(false);
    assert_eq!(one.get(&format!("{MAPS}/a")).await.code, 200);
}

/// Otherwise a client would be refused what it was just allowed.
#[tokio::test]
async fn a_server_that_wrote_alone_denies_nothing_in_doubt() {
    let engine = SharedEngine::default();
    let (one, client) = alone(&engine).await;
    client.hold(true);
    let other = server(&engine, "other").await;
    assert_eq!(bind_jane(&other).await, 201);
    let server = one.clone();
    let denied = tokio::spawn(async move { post_as_jane(&server, "a").await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!denied.is_finished());
    client.hold(false);
    assert_eq!(denied.await.unwrap(), 503, "to be repeated, which is allowed");
    assert_eq!(post_as_jane(&one, "a").await, 201);
}
