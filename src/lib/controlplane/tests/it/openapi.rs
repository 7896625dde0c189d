//! OpenAPI documents.

use crate::support::{BOUND, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

#[tokio::test]
async fn openapi_v3_is_found_by_its_hash() {
    let server = TestServer::new().await;
    let index = server.get("/openapi/v3").await;
    assert_eq!(index.header("content-type"), "text/plain; charset=utf-8");
    let url = index.json()["paths"]["apis/coordination.k8s.io/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap()
        .to_owned();
    let document = server.get(&url).await;
    assert_eq!(
        (document.header("cache-control"), document.header("vary")),
        ("public, immutable", "Accept")
    );
    let value = document.json();
    let item = &value["paths"]["/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"];
    assert_eq!(
        item["patch"]["x-kubernetes-group-version-kind"],
        json!({"group": "coordination.k8s.io", "kind": "Lease", "version": "v1"})
    );
    assert!(
        item["patch"]["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .any(|parameter| parameter["name"] == "fieldValidation"),
        "kubectl looks for it"
    );
    let lease = &value["components"]["schemas"]["io.k8s.api.coordination.v1.Lease"];
    assert_eq!(lease["x-kubernetes-group-version-kind"][0]["kind"], "Lease");
    let etag = document.header("etag");
    assert_eq!(server.send("GET", &url, &[("if-none-match", etag)], "").await.code, 304);
    let wrong = server.get("/openapi/v3/apis/coordination.k8s.io/v1?hash=WRONG").await;
    assert_eq!((wrong.code, wrong.header("location")), (301, url.as_str()));
    let plain = server.get("/openapi/v3/apis/coordination.k8s.io/v1").await;
    assert_eq!((plain.code, plain.header("cache-control")), (200, "no-cache, private"));
}

#[tokio::test]
async fn openapi_v2_has_two_forms() {
    let server = TestServer::new().await;
    let json = server.get("/openapi/v2").await;
    assert_eq!(
        json.json()["paths"]["/api/v1/namespaces/{namespace}/configmaps"]["get"]["x-kubernetes-action"],
        "list"
    );
    assert_eq!(
        json.json()["definitions"]["io.k8s.api.core.v1.ConfigMap"]["properties"]["data"]["type"],
        "object"
    );
    let protobuf = server
        .get_as("/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
        .await;
    assert_eq!(
        protobuf.header("content-type"),
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    assert!(protobuf.bytes.starts_with(b"\x0a\x032.0"));
    assert_eq!(server.get_as("/openapi/v2", "text/html").await.code, 406);
}

/// kubectl refuses unknown fields by this document, so a kind whose fields are free has none.
#[tokio::test]
async fn custom_kinds_without_fields_are_bare_objects_in_openapi_v2() {
    let server = TestServer::new().await;
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let nested = json!({"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}}}});
    for (plural, kind, schema) in [("opens", "Open", open), ("nesteds", "Nested", nested)] {
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [version]},
        });
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(server.post(definitions, &definition).await.code, 201);
    }
    let published = async {
        loop {
            let document = server.get("/openapi/v2").await.json();
            if document["definitions"].get("com.example.v1.Nested").is_some() {
                return document;
            }
            tokio::task::yield_now().await;
        }
    };
    let document = tokio::time::timeout(BOUND, published).await.expect("it is published");
    let open = &document["definitions"]["com.example.v1.Open"];
    assert_eq!(open["type"], "object", "{open}");
    assert!(open.get("properties").is_none(), "{open}");
    assert!(open.get("x-kubernetes-preserve-unknown-fields").is_none(), "{open}");
    let spec = &document["definitions"]["com.example.v1.Nested"]["properties"]["spec"];
    assert_eq!(*spec, json!({"x-kubernetes-preserve-unknown-fields": true}));
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    let server = TestServer::new().await;
    let index = server.get("/openapi/v3").await.json();
    for entry in index["paths"].as_object().unwrap().values() {
        let document = server.get(entry["serverRelativeURL"].as_str().unwrap()).await.json();
        check_references(&document, &document["components"]["schemas"], "#/components/schemas/");
    }
    let document = server.get("/openapi/v2").await.json();
    check_references(&document, &document["definitions"], "#/definitions/");
    check_references(&document, &document["parameters"], "#/parameters/");
}

fn check_references(value: &Value, schemas: &Value, prefix: &str) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str)
                && let Some(name) = reference.strip_prefix(prefix)
            {
                assert!(schemas.get(name).is_some(), "{reference} leads nowhere");
            }
            fields.values().for_each(|inner| check_references(inner, schemas, prefix));
        }
        Value::Array(items) => {
            items.iter().for_each(|inner| check_references(inner, schemas, prefix))
        }
        _ => {}
    }
}

/// Every document of version 3 by its path.
async fn documents(server: &TestServer) -> BTreeMap<String, Value> {
    let index = server.get("/openapi/v3").await.json();
    let mut all = BTreeMap::new();
    for (path, entry) in index["paths"].as_object().unwrap() {
        let document = server.get(entry["serverRelativeURL"].as_str().unwrap()).await;
        all.insert(path.to_string(), document.json());
    }
    all
}

/// Adds a definition of the kind in `example.com/v1` with status and scale, and waits until it is
/// published.
async fn publish(server: &TestServer, plural: &str, kind: &str) {
    let replicas = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    let schema =
        json!({"type": "object", "properties": {"spec": replicas.clone(), "status": replicas}});
    let scale =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": scale},
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [version]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(server.post(definitions, &definition).await.code, 201);
    let path = format!("/apis/example.com/v1/{plural}");
    let served = async {
        while server.get(&path).await.code != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(BOUND, served).await.expect("it is served");
}

/// Document, method, path (below), id, tag, body with its media types (`?`: optional), codes, kind
/// in responses.
const OPERATIONS: &str = "
api/v1 get /namespaces/{namespace}/configmaps listCoreV1NamespacedConfigMap core_v1 - 200,401 ConfigMapList
api/v1 post /namespaces/{namespace}/configmaps createCoreV1NamespacedConfigMap core_v1 ConfigMap:any 200,201,202,401 ConfigMap
api/v1 delete /namespaces/{namespace}/configmaps deleteCoreV1CollectionNamespacedConfigMap core_v1 DeleteOptions?:any 200,401 Status
api/v1 put /namespaces/{namespace}/configmaps/{name} replaceCoreV1NamespacedConfigMap core_v1 ConfigMap:any 200,201,401 ConfigMap
api/v1 patch /namespaces/{namespace}/configmaps/{name} patchCoreV1NamespacedConfigMap core_v1 Patch:apply,json,merge,strategic 200,201,401 ConfigMap
api/v1 delete /namespaces/{namespace}/configmaps/{name} deleteCoreV1NamespacedConfigMap core_v1 DeleteOptions?:any 200,202,401 Status
api/v1 get /configmaps listCoreV1ConfigMapForAllNamespaces core_v1 - 200,401 ConfigMapList
api/v1 get /watch/configmaps watchCoreV1ConfigMapListForAllNamespaces core_v1 - 200,401 WatchEvent
api/v1 get /namespaces/{name}/status readCoreV1NamespaceStatus core_v1 - 200,401 Namespace
api/v1 delete /namespaces/{name} deleteCoreV1Namespace core_v1 DeleteOptions?:any 200,202,401 Status
api/v1 get / getCoreV1APIResources core_v1 - 200,401 APIResourceList
api/v1 delete /namespaces/{namespace}/serviceaccounts/{name} deleteCoreV1NamespacedServiceAccount core_v1 DeleteOptions?:any 200,202,401 ServiceAccount
api/v1 post /namespaces/{namespace}/serviceaccounts/{name}/token createCoreV1NamespacedServiceAccountToken core_v1 TokenRequest:any 200,201,202,401 TokenRequest
apis/authorization.k8s.io/v1 post /subjectaccessreviews createAuthorizationV1SubjectAccessReview authorization_v1 SubjectAccessReview:any 200,201,202,401 SubjectAccessReview
apis/rbac.authorization.k8s.io/v1 get /clusterroles/{name} readRbacAuthorizationV1ClusterRole rbacAuthorization_v1 - 200,401 ClusterRole
apis/example.com/v1 get /namespaces/{namespace}/things listExampleComV1NamespacedThing exampleCom_v1 - 200,401 ThingList
apis/example.com/v1 delete /namespaces/{namespace}/things deleteExampleComV1CollectionNamespacedThing exampleCom_v1 - 200,401 Status
apis/example.com/v1 delete /namespaces/{namespace}/things/{name} deleteExampleComV1NamespacedThing exampleCom_v1 DeleteOptions?:json,yaml 200,202,401 Status
apis/example.com/v1 put /namespaces/{namespace}/things/{name}/scale replaceExampleComV1NamespacedThingScale exampleCom_v1 Scale:json,yaml 200,201,401 Scale
apis/example.com/v1 patch /namespaces/{namespace}/things/{name}/scale patchExampleComV1NamespacedThingScale exampleCom_v1 Patch:apply,json,merge 200,401 Scale
apis/coordination.k8s.io get / getCoordinationAPIGroup coordination - 200,401 APIGroup
apis get / getAPIVersions apis - 200,401 APIGroupList
api get / getCoreAPIVersions core - 200,401 APIVersions
version get / getCodeVersion version - 200,401 Info";

/// The columns of [`OPERATIONS`] after the path.
fn summary(operation: &Value) -> String {
    let kind = |content: &Value| {
        let schema = &content.as_object().unwrap().iter().next().unwrap().1["schema"];
        schema["$ref"].as_str().unwrap().rsplit(['/', '.']).next().unwrap().to_owned()
    };
    let body = operation.get("requestBody").map_or("-".to_owned(), |body| {
        let types = body["content"].as_object().unwrap().keys().map(|media_type| {
            let (_, subtype) = media_type.split_once('/').unwrap();
            subtype.split('-').next().unwrap().replace('*', "any")
        });
        let optional = if body["required"] == true { "" } else { "?" };
        format!("{}{optional}:{}", kind(&body["content"]), types.collect::<Vec<_>>().join(","))
    });
    let responses = operation["responses"].as_object().unwrap();
    let codes: Vec<&str> = responses.keys().map(|code| &**code).collect();
    let result = kind(&responses.get("200").unwrap()["content"]);
    let [id, tag] = [&operation["operationId"], &operation["tags"][0]].map(|text| text.as_str());
    format!("{} {} {body} {} {result}", id.unwrap(), tag.unwrap(), codes.join(","))
}

#[tokio::test]
async fn operations_are_those_of_kube_apiserver() {
    let server = TestServer::new().await;
    publish(&server, "things", "Thing").await;
    let documents = documents(&server).await;
    for row in OPERATIONS.trim().lines() {
        let mut columns = row.splitn(4, ' ');
        let [document, method, path, want] = [(); 4].map(|()| columns.next().unwrap());
        let operation = &documents[document]["paths"][&*format!("/{document}{path}")][method];
        assert_eq!(summary(operation), want);
    }
    let item = &documents["api/v1"]["paths"]["/api/v1/namespaces/{namespace}/configmaps"];
    let names = |list: &Value| -> Vec<String> {
        let names = list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    assert_eq!(names(&item["parameters"]), ["namespace", "pretty"]);
    let deleting = names(&item["delete"]["parameters"]);
    assert!(deleting.contains(&"propagationPolicy".to_owned()), "{deleting:?}");
    assert!(deleting.contains(&"labelSelector".to_owned()), "{deleting:?}");
}

/// Generators of clients depend on these.
#[tokio::test]
async fn documents_are_valid() {
    let server = TestServer::new().await;
    publish(&server, "things", "Thing").await;
    let mut ids = BTreeSet::new();
    for (document, value) in documents(&server).await {
        for (path, item) in value["paths"].as_object().unwrap() {
            let shared = item.get("parameters").and_then(Value::as_array);
            let mut declared: Vec<&str> = Vec::new();
            for parameter in shared.into_iter().flatten() {
                declared.push(parameter["name"].as_str().unwrap());
            }
            for variable in path.split('/').filter_map(|part| part.strip_prefix('{')) {
                assert!(declared.contains(&variable.trim_end_matches('}')), "{document} {path}");
            }
            for (method, operation) in item.as_object().unwrap() {
                if &**method == "parameters" {
                    continue;
                }
                let id = operation["operationId"].as_str().unwrap().to_owned();
                assert!(ids.insert(id.clone()), "{id} twice");
            }
        }
        for (name, schema) in value["components"]["schemas"].as_object().unwrap() {
            check_defaults(schema, &format!("{document} {name}"));
        }
    }
    let merged = server.get("/openapi/v2").await.json();
    let count: usize = merged["paths"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(_, item)| {
            item.as_object().unwrap().len() - usize::from(item.get("parameters").is_some())
        })
        .sum();
    assert_eq!(count, ids.len(), "version 2 has the operations of all documents of version 3");
}

/// A default has the type of its schema.
fn check_defaults(value: &Value, path: &str) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let path = format!("{path}.{name}");
                match (&**name, inner) {
                    // Names of fields, not keywords.
                    ("properties", Value::Object(properties)) => properties
                        .iter()
                        .for_each(|(name, inner)| check_defaults(inner, &format!("{path}.{name}"))),
                    _ => check_defaults(inner, &path),
                }
            }
            let (Some(default), Some(kind)) = (fields.get("default"), fields.get("type")) else {
                return;
            };
            let fits = match kind.as_str().unwrap_or_default() {
                "object" => default.is_object(),
                "array" => default.is_array(),
                "string" => default.is_string(),
                "boolean" => default.is_boolean(),
                _ => default.is_number(),
            };
            assert!(fits, "{path}: {default} is no {kind}");
        }
        Value::Array(items) => items.iter().for_each(|inner| check_defaults(inner, path)),
        _ => {}
    }
}

#[tokio::test]
async fn hashes_do_not_depend_on_the_order_of_definitions() {
    let (one, other) = (TestServer::new().await, TestServer::new().await);
    for (plural, kind) in [("things", "Thing"), ("widgets", "Widget")] {
        publish(&one, plural, kind).await;
    }
    for (plural, kind) in [("widgets", "Widget"), ("things", "Thing")] {
        publish(&other, plural, kind).await;
    }
    let (one, other) = (one.get("/openapi/v3").await.json(), other.get("/openapi/v3").await.json());
    assert_eq!(one["paths"]["apis/example.com/v1"], other["paths"]["apis/example.com/v1"]);
    assert_eq!(one, other);
}
