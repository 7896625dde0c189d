//! Lists, Tables, compression.

use crate::support::{CONFIGMAPS, Server};
use ferrokube_apimachinery::document::{Value, json};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn items_are_the_objects_without_their_type() {
    let server = Server::new().await;
    server.configmap("b").await;
    let mut object = server.configmap("a").await.json();
    let answer = server.get(CONFIGMAPS).await;
    let list = answer.json();
    assert_eq!(names(&list), ["a", "b"]);
    object.as_object_mut().unwrap().remove("kind");
    object.as_object_mut().unwrap().remove("apiVersion");
    assert_eq!(list["items"][0], object);
    assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("ConfigMapList"), Some("v1")));

    let partial = server.get_as(CONFIGMAPS, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").await.json();
    assert_eq!(partial["items"][1]["kind"], "PartialObjectMetadata");
    assert_eq!(partial["items"][0]["metadata"], object["metadata"]);
    assert_eq!(partial["items"][0].get("data"), None);
}

#[tokio::test]
async fn fault_24_all_forms_of_a_list_agree() {
    let server = Server::new().await;
    for name in ["a", "b", "c"] {
        server.configmap(name).await;
    }
    let json = server.get(CONFIGMAPS).await.json();
    let bytes = server.get_as(CONFIGMAPS, "application/vnd.kubernetes.protobuf").await.bytes;
    let messages = ferrokube_resources::messages();
    let mut protobuf = messages.read("k8s.io.api.core.v1.ConfigMapList", &bytes).unwrap().into_value();
    for item in protobuf["items"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("kind");
        item.as_object_mut().unwrap().remove("apiVersion");
    }
    assert_eq!(protobuf, json);
    let yaml = server.get_as(CONFIGMAPS, "application/yaml").await;
    let read = ferrokube_apimachinery::yaml::read(&yaml.bytes).unwrap().document.into_value();
    assert_eq!(read, json);
    // Of the forms that leave something out: the same objects in the same versions.
    let whole: Vec<&Value> = json["items"].as_array().unwrap().iter().map(|item| &item["metadata"]).collect();
    let partial = server.get_as(CONFIGMAPS, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").await.json();
    assert_eq!(partial["items"].as_array().unwrap().iter().map(|item| &item["metadata"]).collect::<Vec<_>>(), whole);
    let table = server.get_as(CONFIGMAPS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.json();
    assert_eq!(table["rows"].as_array().unwrap().iter().map(|row| &row["object"]["metadata"]).collect::<Vec<_>>(), whole);
    assert_eq!([&partial["metadata"], &table["metadata"]], [&json["metadata"]; 2]);
    let one = server.get_as(&format!("{CONFIGMAPS}/b"), "application/yaml").await;
    let one = ferrokube_apimachinery::yaml::read(&one.bytes).unwrap().document.into_value();
    assert_eq!(one["metadata"], *whole[1]);
}

#[tokio::test]
async fn pages_carry_on() {
    let server = Server::new().await;
    for name in ["a", "b", "c"] {
        server.configmap(name).await;
    }
    let first = server.get(&format!("{CONFIGMAPS}?limit=2")).await.json();
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a", "b"], &json!(1)));
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = server.get(&format!("{CONFIGMAPS}?limit=2&continue={token}")).await.json();
    assert_eq!((names(&second), second["metadata"].get("continue")), (vec!["c"], None));
    let forged = server.get(&format!("{CONFIGMAPS}?limit=2&continue=forged")).await;
    assert_eq!(forged.code, 400);
    for (query, code) in
        [("limit=-1", 200), ("limit=", 400), ("limit=abc", 400), ("limit=99999999999999999999", 400), ("labelSelector=!!", 400), ("fieldSelector=x%3D1", 400)]
    {
        assert_eq!(server.get(&format!("{CONFIGMAPS}?{query}")).await.code, code, "{query}");
    }
}

#[tokio::test]
async fn tables_have_columns_and_rows() {
    let server = Server::new().await;
    let object = server.configmap("a").await.json();
    let table = server.get_as(CONFIGMAPS, TABLE).await.json();
    assert_eq!((table["kind"].as_str(), table["columnDefinitions"][0]["name"].as_str()), (Some("Table"), Some("Name")));
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..2], [json!("a"), json!(1)]);
    assert_eq!(table["rows"][0]["object"]["metadata"], object["metadata"]);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let none = server.get_as(&format!("{CONFIGMAPS}?includeObject=None"), TABLE).await.json();
    assert_eq!(none["rows"][0]["object"], Value::Null);
    let whole = server.get_as(&format!("{CONFIGMAPS}/a?includeObject=Object"), TABLE).await.json();
    assert_eq!(whole["rows"][0]["object"], object);
    assert_eq!(server.get_as(&format!("{CONFIGMAPS}?includeObject=Everything"), TABLE).await.code, 400);
    let missing = server.get_as(&format!("{CONFIGMAPS}/none"), TABLE).await.json();
    assert_eq!(missing["kind"], "Status");
}

#[tokio::test]
async fn large_lists_are_streamed_and_compressed_for_those_who_ask() {
    let server = Server::new().await;
    for at in 0..40 {
        server.post(CONFIGMAPS, &json!({"metadata": {"name": format!("c{at:03}")}, "data": {"k": "v".repeat(8000)}})).await;
    }
    let plain = server.get(CONFIGMAPS).await;
    assert_eq!(names(&plain.json()).len(), 40);
    assert_eq!(plain.header("content-encoding"), "");
    let zipped = server.send("GET", CONFIGMAPS, &[("accept-encoding", "gzip")], "").await;
    assert_eq!((zipped.header("content-encoding"), zipped.header("vary")), ("gzip", "Accept-Encoding"));
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&zipped.bytes[..]), &mut bytes).unwrap();
    assert_eq!(bytes, plain.bytes);
    assert_eq!(server.send("GET", &format!("{CONFIGMAPS}/c000"), &[("accept-encoding", "gzip")], "").await.header("content-encoding"), "");
}

#[tokio::test]
async fn a_collection_is_deleted_as_listed() {
    let server = Server::new().await;
    for name in ["a", "b"] {
        server.configmap(name).await;
    }
    let answer = server.send("DELETE", &format!("{CONFIGMAPS}?labelSelector=n%3Da"), &[], "").await.json();
    assert_eq!((answer["kind"].as_str(), names(&answer)), (Some("ConfigMapList"), vec!["a"]));
    assert_eq!(names(&server.get(CONFIGMAPS).await.json()), ["b"]);
}

#[tokio::test]
async fn events_are_seen_through_both_groups() {
    let server = Server::new().await;
    let event =
        json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "namespace": "default", "name": "a"}, "reason": "R", "type": "Normal"});
    assert_eq!(server.post("/api/v1/namespaces/default/events", &event).await.code, 201);
    let list = server.get("/apis/events.k8s.io/v1/namespaces/default/events").await.json();
    assert_eq!((list["apiVersion"].as_str(), list["items"][0]["regarding"]["name"].as_str()), (Some("events.k8s.io/v1"), Some("a")));
    assert_eq!(list["items"][0].get("kind"), None);
}
