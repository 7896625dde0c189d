//! Discovery, version.

use crate::support::TestServer;
use ferrokube_apimachinery::document::{Value, json};

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

fn named<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|item| item[key] == name).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn the_old_documents() {
    let server = TestServer::new().await;
    let core = server.get("/api").await.json();
    assert_eq!((core["kind"].as_str(), &core["versions"]), (Some("APIVersions"), &json!(["v1"])));
    let groups = server.get("/apis").await.json();
    let leases = named(&groups["groups"], "name", "coordination.k8s.io");
    assert_eq!(leases["preferredVersion"]["groupVersion"], "coordination.k8s.io/v1");
    let group = server.get("/apis/events.k8s.io/").await.json();
    let version = json!({"groupVersion": "events.k8s.io/v1", "version": "v1"});
    assert_eq!(
        group,
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": "events.k8s.io", "versions": [version], "preferredVersion": version})
    );
    let resources = server.get("/apis/coordination.k8s.io/v1").await.json();
    let lease = named(&resources["resources"], "name", "leases");
    assert_eq!(
        (lease["storageVersionHash"].as_str(), lease["singularName"].as_str()),
        (Some("gqkMMb/YqFM="), Some("lease"))
    );
    let events = server.get("/apis/events.k8s.io/v1").await.json();
    assert_eq!(
        named(&events["resources"], "name", "events")["storageVersionHash"],
        "r2yiGXH7wu8=",
        "events are stored in the core group"
    );
    let status = server.get("/api/v1").await.json();
    assert_eq!(
        named(&status["resources"], "name", "namespaces/status")["verbs"],
        json!(["get", "patch", "update"])
    );
    assert_eq!(server.get("/apis/coordination.k8s.io/v99").await.json()["details"], json!({}));
    assert_eq!(
        server.get("/apis/none.example.com").await.header("content-type"),
        "text/plain; charset=utf-8"
    );
}

#[tokio::test]
async fn the_aggregated_document_has_an_etag() {
    let server = TestServer::new().await;
    let answer = server.get_as("/apis", AGGREGATED).await;
    assert_eq!(
        answer.header("content-type"),
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    );
    let etag = answer.header("etag").to_owned();
    assert!(etag.starts_with('"') && etag.len() > 10);
    let list = answer.json();
    let group = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|item| item["metadata"]["name"] == "coordination.k8s.io")
        .unwrap();
    assert_eq!(
        named(&group["versions"][0]["resources"], "resource", "leases")["responseKind"],
        json!({"group": "", "version": "", "kind": "Lease"}),
        "kube-apiserver leaves out the fields that equal the resource's"
    );
    let core = server.get_as("/api", AGGREGATED).await.json();
    let accounts =
        named(&core["items"][0]["versions"][0]["resources"], "resource", "serviceaccounts").clone();
    let tokens = accounts["subresources"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["subresource"] == "token")
        .map(|one| one["responseKind"].clone());
    assert!(tokens.is_none_or(|kind| kind
        == json!({"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"})));
    assert_eq!(
        server.get_as("/apis/", AGGREGATED).await.json()["kind"],
        "APIGroupList",
        "only the exact path has the aggregated form"
    );
    let again =
        server.send("GET", "/apis", &[("accept", AGGREGATED), ("if-none-match", &etag)], "").await;
    assert_eq!((again.code, again.bytes.len()), (304, 0));
    assert_eq!(
        server.get_as("/apis/coordination.k8s.io/v1", AGGREGATED).await.json()["kind"],
        "APIResourceList"
    );
    let only = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    assert_eq!(server.get_as("/apis/coordination.k8s.io/v1", only).await.code, 406);
}

#[tokio::test]
async fn a_new_definition_shows_at_once() {
    let server = TestServer::new().await;
    let before = server.get_as("/apis", AGGREGATED).await.header("etag").to_owned();
    let catalog = server.plane.registry().catalog();
    let mut definition =
        (*catalog.find("coordination.k8s.io", "v1", "leases").unwrap().definition).clone();
    definition.group = "example.com".into();
    definition.dialect = ferrokube_resource::Dialect::Custom;
    catalog.put(std::sync::Arc::new(definition));
    assert_ne!(server.get_as("/apis", AGGREGATED).await.header("etag"), before);
    assert_eq!(server.get("/apis/example.com/v1").await.code, 200);
    assert_eq!(server.get("/openapi/v3/apis/example.com/v1").await.code, 200);
    let missing = server.get("/apis/example.com/v1/nothing").await;
    assert_eq!(
        (missing.code, missing.header("content-type")),
        (404, "text/plain; charset=utf-8"),
        "custom groups have no router of their own"
    );
    catalog.remove("example.com", "leases");
    assert_eq!(server.get("/apis/example.com/v1").await.code, 404);
    assert_eq!(server.get("/openapi/v3/apis/example.com/v1").await.code, 404);
}

#[tokio::test]
async fn version_and_methods() {
    let server = TestServer::new().await;
    let version = server.get("/version").await.json();
    assert_eq!((version["major"].as_str(), version["minor"].as_str()), (Some("1"), Some("36")));
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.36."));
    let cases = [
        ("POST", "/version", 405),
        ("HEAD", "/version", 405),
        ("GET", "/version/", 200),
        ("HEAD", "/api/v1", 405),
        ("HEAD", "/api/v2", 404),
        ("POST", "/apis/coordination.k8s.io/v9", 404),
        ("DELETE", "/api/v1", 405),
        ("PATCH", "/apis/coordination.k8s.io/v1", 405),
        ("POST", "/apis", 200),
        ("HEAD", "/apis", 200),
        ("POST", "/healthz", 200),
        ("HEAD", "/openapi/v3", 200),
        ("POST", "/openapi/v2", 200),
        ("GET", "/index.html", 200),
    ];
    for (method, path, code) in cases {
        assert_eq!(server.send(method, path, &[], "").await.code, code, "{method} {path}");
    }
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let routed = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let handled = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let negotiated = [
        (
            "/version",
            "text/html",
            Some("406: Not Acceptable\n\nAvailable representations: application/json"),
        ),
        ("/version", table, None),
        ("/api", "text/html", Some(routed)),
        ("/api/v1", "application/*", Some(routed)),
        ("/api/v1", table, Some(handled)),
        ("/apis", "application/*", None),
        ("/apis", "text/html", Some(handled)),
        ("/apis/coordination.k8s.io", "application/*", None),
    ];
    for (path, accept, message) in negotiated {
        let answer = server.get_as(path, accept).await;
        assert_eq!(
            (answer.code, answer.json()["message"].as_str()),
            (if message.is_some() { 406 } else { 200 }, message),
            "{path} {accept}"
        );
    }
}
