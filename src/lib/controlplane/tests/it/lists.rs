//! Lists, Tables, compression.

use crate::custom::things;
use crate::support::{CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::{Value, json};
use http_body_util::BodyExt;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn items_are_the_objects_without_their_type() {
    let server = TestServer::new().await;
    server.configmap("b").await;
    let mut object = server.configmap("a").await.json();
    let answer = server.get(CONFIGMAPS).await;
    let list = answer.json();
    assert_eq!(names(&list), ["a", "b"]);
    object.as_object_mut().unwrap().remove("kind");
    object.as_object_mut().unwrap().remove("apiVersion");
    assert_eq!(list["items"][0], object);
    assert_eq!(
        (list["kind"].as_str(), list["apiVersion"].as_str()),
        (Some("ConfigMapList"), Some("v1"))
    );

    let partial = server
        .get_as(CONFIGMAPS, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
        .await
        .json();
    assert_eq!(partial["items"][1]["kind"], "PartialObjectMetadata");
    assert_eq!(partial["items"][0]["metadata"], object["metadata"]);
    assert_eq!(partial["items"][0].get("data"), None);
}

#[tokio::test]
async fn fault_24_all_forms_of_a_list_agree() {
    let server = TestServer::new().await;
    for name in ["a", "b", "c"] {
        server.configmap(name).await;
    }
    let json = server.get(CONFIGMAPS).await.json();
    let bytes = server.get_as(CONFIGMAPS, "application/vnd.kubernetes.protobuf").await.bytes;
    let messages = ferrokube_resources::messages();
    let mut protobuf =
        messages.read("k8s.io.api.core.v1.ConfigMapList", &bytes).unwrap().into_value();
    for item in protobuf["items"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("kind");
        item.as_object_mut().unwrap().remove("apiVersion");
    }
    assert_eq!(protobuf, json);
    let yaml = server.get_as(CONFIGMAPS, "application/yaml").await;
    let read = ferrokube_apimachinery::yaml::read(&yaml.bytes).unwrap().document.into_value();
    assert_eq!(read, json);
    // Forms that leave something out: the same objects in the same versions.
    let whole: Vec<&Value> =
        json["items"].as_array().unwrap().iter().map(|item| &item["metadata"]).collect();
    let partial = server
        .get_as(CONFIGMAPS, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
        .await
        .json();
    assert_eq!(
        partial["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| &item["metadata"])
            .collect::<Vec<_>>(),
        whole
    );
    let table =
        server.get_as(CONFIGMAPS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.json();
    assert_eq!(
        table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["object"]["metadata"])
            .collect::<Vec<_>>(),
        whole
    );
    assert_eq!([&partial["metadata"], &table["metadata"]], [&json["metadata"]; 2]);
    let one = server.get_as(&format!("{CONFIGMAPS}/b"), "application/yaml").await;
    let one = ferrokube_apimachinery::yaml::read(&one.bytes).unwrap().document.into_value();
    assert_eq!(one["metadata"], *whole[1]);
}

#[tokio::test]
async fn pages_continue() {
    let server = TestServer::new().await;
    for name in ["a", "b", "c"] {
        server.configmap(name).await;
    }
    let first = server.get(&format!("{CONFIGMAPS}?limit=2")).await.json();
    assert_eq!(
        (names(&first), &first["metadata"]["remainingItemCount"]),
        (vec!["a", "b"], &json!(1))
    );
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = server.get(&format!("{CONFIGMAPS}?limit=2&continue={token}")).await.json();
    assert_eq!((names(&second), second["metadata"].get("continue")), (vec!["c"], None));
    let forged = server.get(&format!("{CONFIGMAPS}?limit=2&continue=forged")).await;
    assert_eq!(forged.code, 400);
    for (query, code) in [
        ("limit=-1", 200),
        ("limit=", 400),
        ("limit=abc", 400),
        ("limit=99999999999999999999", 400),
        ("labelSelector=!!", 400),
        ("fieldSelector=x%3D1", 400),
    ] {
        assert_eq!(server.get(&format!("{CONFIGMAPS}?{query}")).await.code, code, "{query}");
    }
}

#[tokio::test]
async fn tables_have_columns_and_rows() {
    let server = TestServer::new().await;
    let object = server.configmap("a").await.json();
    let table = server.get_as(CONFIGMAPS, TABLE).await.json();
    assert_eq!(
        (table["kind"].as_str(), table["columnDefinitions"][0]["name"].as_str()),
        (Some("Table"), Some("Name"))
    );
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..2], [json!("a"), json!(1)]);
    assert_eq!(table["rows"][0]["object"]["metadata"], object["metadata"]);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let none = server.get_as(&format!("{CONFIGMAPS}?includeObject=None"), TABLE).await.json();
    assert_eq!(none["rows"][0]["object"], Value::Null);
    let whole = server.get_as(&format!("{CONFIGMAPS}/a?includeObject=Object"), TABLE).await.json();
    assert_eq!(whole["rows"][0]["object"], object);
    let refused = server.get_as(&format!("{CONFIGMAPS}?includeObject=x"), TABLE).await;
    let why = "Unable to convert to Table as requested: includeObject: Invalid value: \"x\": must be 'Metadata', 'Object', 'None', or empty";
    assert_eq!((refused.code, refused.json()["message"].as_str()), (400, Some(why)));
    // kube-apiserver's Table of a kind without columns has null rows.
    let rows = async |path: &str| server.get_as(path, TABLE).await.json()["rows"].clone();
    assert_eq!(rows(&format!("{CONFIGMAPS}?labelSelector=no%3Dsuch")).await, json!([]));
    assert_eq!(
        rows("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles").await,
        json!(null)
    );
    let missing = server.get_as(&format!("{CONFIGMAPS}/none"), TABLE).await.json();
    assert_eq!(missing["kind"], "Status");
}

#[tokio::test]
async fn large_lists_are_streamed_and_compressed_on_request() {
    let server = TestServer::new().await;
    for at in 0..40 {
        server.post(CONFIGMAPS, &json!({"metadata": {"name": format!("c{at:03}")}, "data": {"k": "v".repeat(8000)}})).await;
    }
    let plain = server.get(CONFIGMAPS).await;
    assert_eq!(names(&plain.json()).len(), 40);
    assert_eq!(plain.header("content-encoding"), "");
    let zipped = server.send("GET", CONFIGMAPS, &[("accept-encoding", "gzip")], "").await;
    assert_eq!(
        (zipped.header("content-encoding"), zipped.header("vary")),
        ("gzip", "Accept-Encoding")
    );
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&zipped.bytes[..]), &mut bytes)
        .unwrap();
    assert_eq!(bytes, plain.bytes);
    assert_eq!(
        server
            .send("GET", &format!("{CONFIGMAPS}/c000"), &[("accept-encoding", "gzip")], "")
            .await
            .header("content-encoding"),
        ""
    );
}

#[tokio::test]
async fn a_collection_is_deleted_as_listed() {
    let server = TestServer::new().await;
    for name in ["a", "b"] {
        server.configmap(name).await;
    }
    // The selection is validated before the delete options.
    let refused = server
        .send("DELETE", &format!("{CONFIGMAPS}?fieldSelector=x%3Dy&dryRun=x"), &[], "")
        .await
        .json();
    assert_eq!(
        refused["message"],
        "\"x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    );
    let answer =
        server.send("DELETE", &format!("{CONFIGMAPS}?labelSelector=n%3Da"), &[], "").await.json();
    assert_eq!((answer["kind"].as_str(), names(&answer)), (Some("ConfigMapList"), vec!["a"]));
    assert_eq!(names(&server.get(CONFIGMAPS).await.json()), ["b"]);
}

#[tokio::test]
async fn events_are_seen_through_both_groups() {
    let server = TestServer::new().await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "namespace": "default", "name": "a"}, "reason": "R", "type": "Normal"});
    assert_eq!(server.post("/api/v1/namespaces/default/events", &event).await.code, 201);
    let list = server.get("/apis/events.k8s.io/v1/namespaces/default/events").await.json();
    assert_eq!(
        (list["apiVersion"].as_str(), list["items"][0]["regarding"]["name"].as_str()),
        (Some("events.k8s.io/v1"), Some("a"))
    );
    assert_eq!(list["items"][0].get("kind"), None);
}

/// The frames of a response, as sent.
async fn frames(
    server: &TestServer,
    path: &str,
    headers: &[(&str, &str)],
) -> (bool, Vec<bytes::Bytes>) {
    let response = server.open(path, headers).await;
    assert_eq!(response.status(), 200);
    let gzip = response.headers().contains_key("content-encoding");
    let (mut body, mut frames) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        frames.push(frame.unwrap().into_data().unwrap().into_bytes());
    }
    (gzip, frames)
}

/// A client that reads nothing holds one frame: no response is encoded whole.
#[tokio::test]
async fn fault_43_a_list_in_any_form_is_sent_in_bounded_frames() {
    const ACCEPTS: [&str; 8] = [
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf",
        "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/yaml;as=Table;v=v1;g=meta.k8s.io",
    ];
    for (count, length) in [(400, 3000), (30, 100_000)] {
        let server = TestServer::new().await;
        for at in 0..count {
            // Incompressible.
            let text: String = (0..length)
                .map(|n: u64| char::from(b'a' + ((n * n + at * 7919 + n * at) % 26) as u8))
                .collect();
            let labels = json!({"n": at.to_string()});
            assert_eq!(server.post(CONFIGMAPS, &json!({"metadata": {"name": format!("c{at:03}"), "labels": labels}, "data": {"k": text}})).await.code, 201);
        }
        let list = server.get(CONFIGMAPS).await.json();
        for accept in ACCEPTS {
            for query in ["?includeObject=Object", "?pretty=true&includeObject=None"] {
                let path = format!("{CONFIGMAPS}{query}");
                let (_, plain) = frames(&server, &path, &[("accept", accept)]).await;
                let (gzip, zipped) =
                    frames(&server, &path, &[("accept", accept), ("accept-encoding", "gzip")])
                        .await;
                let whole = plain.concat();
                // An object encoded for this response is the smallest unit.
                let most = 128 * 1024 + 2 * usize::try_from(length).unwrap();
                for frame in plain.iter().chain(&zipped) {
                    assert!(
                        frame.len() <= most,
                        "{} of {} bytes at once: {accept} {query}",
                        frame.len(),
                        whole.len()
                    );
                }
                assert_eq!(gzip, whole.len() >= 128 * 1024, "{accept} {query}");
                let mut unzipped = Vec::new();
                std::io::Read::read_to_end(
                    &mut flate2::read::GzDecoder::new(&zipped.concat()[..]),
                    &mut unzipped,
                )
                .unwrap_or_default();
                // Ages differ between requests.
                let parts = |bytes: &[u8]| {
                    let mut value =
                        ferrokube_apimachinery::yaml::read(bytes).unwrap().document.into_value();
                    value["rows"]
                        .as_array_mut()
                        .unwrap()
                        .iter_mut()
                        .for_each(|row| row["cells"][2] = Value::Null);
                    value
                };
                let is_same = !gzip
                    || unzipped == whole
                    || (accept.contains("Table") && parts(&unzipped) == parts(&whole));
                assert!(is_same, "{accept} {query}");
                if accept.contains("protobuf") {
                    continue;
                }
                let value =
                    ferrokube_apimachinery::yaml::read(&whole).unwrap().document.into_value();
                assert_eq!(value["metadata"], list["metadata"]);
                let (items, objects) = if accept.contains("Table") {
                    ("rows", query == "?includeObject=Object")
                } else {
                    ("items", true)
                };
                let items = value[items].as_array().unwrap();
                assert_eq!(items.len() as u64, count, "{accept} {query}");
                for (item, stored) in
                    items.iter().zip(list["items"].as_array().unwrap()).filter(|_| objects)
                {
                    let item = if accept.contains("Table") { &item["object"] } else { item };
                    assert_eq!(item["metadata"], stored["metadata"], "{accept} {query}");
                    assert!(
                        accept.contains("Partial") || item["data"] == stored["data"],
                        "{accept} {query}"
                    );
                }
            }
        }
    }
}

/// A deep value, and definitions of columns of 300 KB: what a client does not take is short, in
/// every form, however often it is asked for.
#[tokio::test]
async fn fault_41_untaken_answers_are_short_in_every_form() {
    let why = "x".repeat(1_000);
    let columns: Vec<Value> = (0..300)
        .map(|number| json!({"name": format!("c{number}"), "type": "string", "jsonPath": ".spec.a", "description": why}))
        .collect();
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"openAPIV3Schema": any});
    let server = things(json!({"schema": schema, "additionalPrinterColumns": columns})).await;
    let zeros = vec!["0"; 100_000].join(",");
    let deep = format!("{}{zeros}{}", "[".repeat(250), "]".repeat(250));
    let body = format!(
        r#"{{"apiVersion":"example.com/v1","kind":"Thing","metadata":{{"name":"deep"}},"spec":{deep}}}"#
    );
    let things = "/apis/example.com/v1/namespaces/default/things";
    assert_eq!(server.send("POST", things, &[], body).await.code, 201);
    let table = "as=Table;v=v1;g=meta.k8s.io";
    let forms = [
        ("", "application/yaml".to_owned()),
        ("?pretty=1", "application/json".to_owned()),
        ("", format!("application/yaml;{table}")),
        ("?pretty=1", format!("application/json;{table}")),
    ];
    for path in [things.to_owned(), format!("{things}/deep")] {
        for (query, accept) in &forms {
            let request = http::Request::get(format!("{path}{query}"))
                .header("authorization", "Bearer admin")
                .header("accept", accept)
                .body(ferrokube_serve::empty())
                .unwrap();
            let answer = server.plane.call(request).await;
            assert_eq!(answer.status(), 200, "{path} {accept}");
            let (mut body, mut bytes, mut longest) = (answer.into_body(), 0, 0);
            while let Some(frame) = body.frame().await {
                let length = bytes::Buf::remaining(&frame.unwrap().into_data().unwrap());
                (bytes, longest) = (bytes + length, longest.max(length));
            }
            assert!(bytes > 200_000, "{path} {accept}: {bytes}");
            assert!(longest <= 160 * 1024, "{path} {accept}: {longest} of {bytes}");
        }
    }
}
