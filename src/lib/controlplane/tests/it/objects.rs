//! Single objects: forms, views, methods, options.

use crate::support::{CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::json;

#[tokio::test]
async fn an_object_in_every_form_is_the_same() {
    let server = TestServer::new().await;
    let created = server.configmap("a").await;
    assert_eq!((created.code, created.header("content-type")), (201, "application/json"));
    let path = format!("{CONFIGMAPS}/a");
    let json = server.get(&path).await;
    assert_eq!(json.bytes, created.bytes);
    assert!(
        json.text().starts_with(
            "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\""
        ),
        "{}",
        json.text()
    );
    assert!(json.text().ends_with("}\n"));

    let yaml = server.get_as(&path, "application/yaml").await;
    assert_eq!(yaml.header("content-type"), "application/yaml");
    assert!(yaml.text().contains("\nkind: ConfigMap\n"), "{}", yaml.text());

    let protobuf = server.get_as(&path, "application/vnd.kubernetes.protobuf").await;
    assert_eq!(protobuf.header("content-type"), "application/vnd.kubernetes.protobuf");
    let read = ferrokube_resources::messages()
        .read("k8s.io.api.core.v1.ConfigMap", &protobuf.bytes)
        .unwrap();
    assert_eq!(read.into_value(), json.json());

    let pretty = server.get(&format!("{path}?pretty=true")).await;
    assert!(pretty.text().contains("\n  \"metadata\": {\n"));
    assert_eq!(pretty.json(), json.json());

    let partial = server
        .get_as(&path, "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
        .await
        .json();
    assert_eq!(
        partial,
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": json.json()["metadata"]})
    );
}

#[tokio::test]
async fn a_large_object_is_whole() {
    let server = TestServer::new().await;
    let value = "x".repeat(100_000);
    let created =
        server.post(CONFIGMAPS, &json!({"metadata": {"name": "a"}, "data": {"k": value}})).await;
    let read = server.get(&format!("{CONFIGMAPS}/a")).await;
    assert_eq!(read.bytes, created.bytes);
    assert_eq!(read.json()["data"]["k"], value);
}

#[tokio::test]
async fn protobuf_goes_both_ways() {
    let server = TestServer::new().await;
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pb", "labels": {"a": "b"}}, "data": {"k": "v"}});
    let document = ferrokube_apimachinery::document::Document::from_value(object).unwrap();
    let bytes =
        ferrokube_resources::messages().write("k8s.io.api.core.v1.ConfigMap", &document).unwrap();
    let kind = "application/vnd.kubernetes.protobuf";
    let answer = server
        .send("POST", CONFIGMAPS, &[("content-type", kind), ("accept", "application/json")], bytes)
        .await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    assert_eq!(answer.json()["metadata"]["labels"]["a"], "b");
    let missing = server.get_as(&format!("{CONFIGMAPS}/none"), kind).await;
    assert_eq!((missing.code, missing.header("content-type")), (404, kind));
    for junk in [&b"k8s\0\x12\xff\xff\xff\xff\x07abc"[..], b"", b"k8s\0", b"xxxx", b"k8s\0\x0a"] {
        let answer = server.send("POST", CONFIGMAPS, &[("content-type", kind)], junk).await;
        assert_eq!(answer.code, 400, "{junk:?}");
    }
}

#[tokio::test]
async fn a_version_in_protobuf_that_cannot_be_read_counts_as_none() {
    let server = TestServer::new().await;
    let object = json!({"apiVersion": "x/y/z", "kind": "ConfigMap", "metadata": {"name": "a"}});
    let document = ferrokube_apimachinery::document::Document::from_value(object).unwrap();
    let bytes =
        ferrokube_resources::messages().write("k8s.io.api.core.v1.ConfigMap", &document).unwrap();
    let kind = [("content-type", "application/vnd.kubernetes.protobuf")];
    let made = server.send("POST", CONFIGMAPS, &kind, bytes).await;
    assert_eq!(made.code, 201, "{}", made.text());
    let options = ferrokube_apimachinery::protobuf::envelope("x/y/z", "DeleteOptions", &[]);
    let deleted = server.send("DELETE", &format!("{CONFIGMAPS}/a"), &kind, options).await;
    assert_eq!(deleted.code, 200, "{}", deleted.text());
}

#[tokio::test]
async fn methods_that_a_path_lacks_are_405_and_paths_without_methods_404() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    let item = format!("{CONFIGMAPS}/a");
    let cases = [
        ("PUT", CONFIGMAPS, 405),
        ("POST", &item, 405),
        ("PATCH", CONFIGMAPS, 405),
        ("HEAD", CONFIGMAPS, 405),
        ("BREW", CONFIGMAPS, 405),
        ("OPTIONS", &item, 405),
        ("DELETE", "/api/v1/namespaces", 405),
        ("POST", "/api/v1/configmaps", 405),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews", 405),
        ("GET", "/apis/authentication.k8s.io/v1/tokenreviews/a", 404),
        ("GET", &format!("{item}/nothing"), 404),
        ("GET", &format!("{item}/a/b/c"), 404),
        ("GET", "/api/v1/namespaces/default/nothing", 404),
        ("GET", "/api/v2/configmaps", 404),
        ("POST", "/api/v1/watch/namespaces/default/configmaps", 405),
    ];
    for (method, path, code) in cases {
        let answer = server.send(method, path, &[], "").await;
        assert_eq!(answer.code, code, "{method} {path}");
        assert_eq!(answer.json()["details"], json!({}), "{method} {path}");
    }
    let text = server.get("/apis/none.example.com/v1/things").await;
    assert_eq!((text.code, text.text().as_str()), (404, "404 page not found\n"));
}

#[tokio::test]
async fn unsupported_content_types_and_accepts() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    let item = format!("{CONFIGMAPS}/a");
    let answer = server.send("POST", CONFIGMAPS, &[("content-type", "text/plain")], "x").await;
    assert_eq!((answer.code, answer.reason().as_str()), (415, "UnsupportedMediaType"));
    let answer = server.send("PATCH", &item, &[("content-type", "application/json")], "{}").await;
    assert_eq!((answer.code, answer.json()["details"].clone()), (415, json!({})));
    let answer = server.get_as(&item, "text/html").await;
    assert_eq!((answer.code, answer.header("content-type")), (406, "application/json"));
    // A write with an unacceptable response form must not be carried out.
    let answer = server
        .send("POST", CONFIGMAPS, &[("accept", "image/png")], r#"{"metadata":{"name":"z"}}"#)
        .await;
    assert_eq!(answer.code, 406);
    assert_eq!(server.get(&format!("{CONFIGMAPS}/z")).await.code, 404);
}

#[tokio::test]
async fn options_are_checked() {
    let server = TestServer::new().await;
    server.configmap("a").await;
    let item = format!("{CONFIGMAPS}/a");
    let body = r#"{"metadata":{"name":"b"}}"#;
    let invalid = |answer: &crate::support::TestResponse| {
        (answer.code, answer.json()["details"]["kind"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(
        invalid(&server.send("POST", &format!("{CONFIGMAPS}?dryRun=true"), &[], body).await),
        (422, "CreateOptions".into())
    );
    assert_eq!(
        invalid(&server.send("POST", &format!("{CONFIGMAPS}?fieldValidation=x"), &[], body).await),
        (422, "CreateOptions".into())
    );
    let merge = [("content-type", "application/merge-patch+json")];
    assert_eq!(
        invalid(&server.send("PATCH", &format!("{item}?force=true"), &merge, "{}").await),
        (422, "PatchOptions".into())
    );
    let apply = [("content-type", "application/apply-patch+yaml")];
    assert_eq!(
        invalid(&server.send("PATCH", &item, &apply, "{}").await),
        (422, "PatchOptions".into())
    );
    let long = format!("{item}?fieldManager={}", "x".repeat(129));
    assert_eq!(
        invalid(&server.send("PATCH", &long, &merge, "{}").await),
        (422, "PatchOptions".into())
    );
    assert_eq!(
        invalid(
            &server.send("DELETE", &format!("{item}?propagationPolicy=Sideways"), &[], "").await
        ),
        (422, "DeleteOptions".into())
    );
    assert_eq!(
        server.send("DELETE", &format!("{item}?gracePeriodSeconds=abc"), &[], "").await.code,
        400
    );
    assert_eq!(server.send("DELETE", &item, &[], "{junk").await.code, 400);
    let dry = server.send("POST", &format!("{CONFIGMAPS}?dryRun=All"), &[], body).await;
    assert_eq!((dry.code, dry.json()["metadata"].get("resourceVersion").cloned()), (201, None));
    assert_eq!(server.get(&format!("{CONFIGMAPS}/b")).await.code, 404);
}

#[tokio::test]
async fn a_delete_answers_with_a_status() {
    let server = TestServer::new().await;
    let uid = server.configmap("a").await.json()["metadata"]["uid"].clone();
    let answer = server.send("DELETE", &format!("{CONFIGMAPS}/a"), &[], "").await;
    assert_eq!(answer.code, 200);
    assert_eq!(
        answer.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": {"name": "a", "kind": "configmaps", "uid": uid}})
    );
    let held = json!({"metadata": {"name": "b", "finalizers": ["example.com/f"]}});
    server.post(CONFIGMAPS, &held).await;
    let answer = server.send("DELETE", &format!("{CONFIGMAPS}/b"), &[], "").await;
    assert_eq!(answer.json()["kind"], "ConfigMap");
    assert!(answer.json()["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn warnings_are_sent_quoted() {
    let server = TestServer::new().await;
    let answer = server.post(CONFIGMAPS, &json!({"metadata": {"name": "a"}, "bogus\"x": 1})).await;
    assert_eq!(answer.code, 201, "{}", answer.text());
    assert!(
        answer.header("warning").starts_with("299 - \"unknown field"),
        "{}",
        answer.header("warning")
    );
}

#[tokio::test]
async fn many_warnings_are_sent_and_long_ones_cut() {
    let server = TestServer::new().await;
    let sent = async |count: usize, name: &str| {
        let mut object = json!({"metadata": {"name": "a"}});
        for number in 0..count {
            object[format!("{name}{number}").as_str()] = json!(1);
        }
        let path = format!("{CONFIGMAPS}?dryRun=All");
        let answer = server.post(&path, &object).await;
        assert_eq!(answer.code, 201, "{}", answer.text());
        let lengths = |value: &http::HeaderValue| value.len() - "299 - \"\"".len();
        answer.headers.get_all("warning").iter().map(lengths).collect::<Vec<_>>()
    };
    assert_eq!(sent(80, "bogus").await.len(), 80);
    // 256 characters of each, and the escape of a quote.
    assert_eq!(sent(40, &"b".repeat(300)).await, [257; 16]);
}

#[tokio::test]
async fn null_is_an_object_without_fields_and_an_empty_body_is_none() {
    let server = TestServer::new().await;
    for (body, code) in [("", 400), ("null", 422), ("[]", 400), ("\"x\"", 400), ("{", 400)] {
        assert_eq!(server.send("POST", CONFIGMAPS, &[], body).await.code, code, "{body}");
    }
}

/// What cannot be shown as its client accepts it is refused like other writes: nothing was written.
#[tokio::test]
async fn a_write_that_is_refused_for_its_view_was_not_carried_out() {
    const LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    const ONE: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let server = TestServer::new().await;
    let held = json!({"metadata": {"name": "a", "finalizers": ["example.com/held"]}});
    assert_eq!(server.post(CONFIGMAPS, &held).await.code, 201);
    server.configmap("gone").await;
    let before = server.written().await;
    let (a, b) = (format!("{CONFIGMAPS}/a"), format!("{CONFIGMAPS}/b"));
    let odd = |path: &str| format!("{path}?includeObject=Odd");
    let object = |name: &str| format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"k":"v"}}}}"#);
    let send = async |(method, path): (&str, &str), (kind, accept), body: &str| {
        server
            .send(method, path, &[("content-type", kind), ("accept", accept)], body.to_owned())
            .await
    };
    let (json_type, merge) = ("application/json", "application/merge-patch+json");
    let apply = ("application/apply-patch+yaml", LIST);
    let applied = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"b"}}"#;
    let cases = [
        (("POST", CONFIGMAPS), (json_type, LIST), object("b"), 406),
        (("POST", &odd(CONFIGMAPS)), (json_type, TABLE), object("b"), 400),
        (("PUT", &a), (json_type, LIST), object("a"), 406),
        (("PUT", &odd(&a)), (json_type, TABLE), object("a"), 400),
        (("PATCH", &a), (merge, LIST), r#"{"data":{"k":"v"}}"#.to_owned(), 406),
        (("PATCH", &format!("{b}?fieldManager=m")), apply, applied.to_owned(), 406),
        (("DELETE", &a), (json_type, LIST), String::new(), 406),
        (("DELETE", &odd(&a)), (json_type, TABLE), String::new(), 400),
        (("DELETE", CONFIGMAPS), (json_type, ONE), String::new(), 406),
        (("DELETE", &odd(CONFIGMAPS)), (json_type, TABLE), String::new(), 400),
        // Other errors come first, as upstream's.
        (("POST", CONFIGMAPS), (json_type, LIST), object("_"), 422),
        (("POST", CONFIGMAPS), (json_type, LIST), object("a"), 409),
        (("DELETE", &b), (json_type, LIST), String::new(), 404),
    ];
    for ((method, path), types, body, code) in cases {
        let answer = send((method, path), types, &body).await;
        assert_eq!(answer.code, code, "{method} {path} {types:?}: {}", answer.text());
        assert_eq!(server.written().await, before, "{method} {path} {types:?} wrote");
    }
    // A Status is shown in every view.
    let gone = send(("DELETE", &format!("{CONFIGMAPS}/gone")), (json_type, LIST), "").await;
    assert_eq!((gone.code, &gone.json()["kind"]), (200, &json!("Status")));
    assert_eq!(server.get(&format!("{CONFIGMAPS}/gone")).await.code, 404);
}
