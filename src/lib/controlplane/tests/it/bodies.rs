//! Bodies that are no objects, and their media types.

use crate::custom::things;
use crate::support::{CONFIGMAPS, TestServer};
use ferrokube_apimachinery::document::json;

#[tokio::test]
async fn merge_patches_that_are_no_objects() {
    let server = TestServer::new().await;
    assert_eq!(server.configmap("a").await.code, 201);
    let list = "patch: Invalid value: \"[1,{},[null]]\": couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type";
    let given = "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}";
    let neither = "Invalid JSON Patch";
    for (validation, patch, code, want) in [
        ("Ignore", r#"[1,{"a":null},[null]]"#, 422, list),
        ("Ignore", r#""x""#, 400, neither),
        ("Ignore", "1", 400, neither),
        ("Ignore", "null", 400, neither),
        ("Warn", "[]", 400, given),
        ("Strict", "[]", 400, given),
    ] {
        let path = format!("{CONFIGMAPS}/a?fieldValidation={validation}");
        let headers = [("content-type", "application/merge-patch+json")];
        let answer = server.send("PATCH", &path, &headers, patch).await;
        let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(want), "{patch}: {message}");
        assert_eq!(answer.code, code, "{patch}: {message}");
    }
}

#[tokio::test]
async fn parameters_of_content_types() {
    let server = TestServer::new().await;
    for (parameters, code) in [
        ("; charset=utf-8; charset=utf-8", 201),
        ("; charset=utf-8; charset=utf-16", 415),
        (r#"; charset="utf-8; x""#, 201),
        ("; charset=utf 8", 415),
    ] {
        let content_type = format!("application/json{parameters}");
        let headers = [("content-type", content_type.as_str())];
        let path = format!("{CONFIGMAPS}?dryRun=All");
        let body = r#"{"metadata":{"name":"a"}}"#;
        let answer = server.send("POST", &path, &headers, body).await;
        assert_eq!(answer.code, code, "{parameters}: {}", answer.text());
    }
}

#[tokio::test]
async fn lists_of_content_types_of_a_patch() {
    let server = TestServer::new().await;
    assert_eq!(server.configmap("a").await.code, 201);
    let known = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml";
    let merge = "application/merge-patch+json";
    for (content_type, want) in [
        (format!("{merge},x"), known),
        (format!("x, {merge} ;a"), known),
        ("text/plain".to_owned(), "415: Unsupported Media Type"),
    ] {
        let headers = [("content-type", content_type.as_str())];
        let answer = server.send("PATCH", &format!("{CONFIGMAPS}/a"), &headers, "{}").await;
        assert_eq!((answer.code, answer.json()["message"].as_str()), (415, Some(want)));
    }
}

/// A body that is no object gets no warnings, unlike an object that is refused later.
#[tokio::test]
async fn warnings_are_about_objects_that_are_decoded() {
    let server = TestServer::new().await;
    let path = format!("{CONFIGMAPS}?dryRun=All");
    let noted =
        [r#"299 - "duplicate field \"metadata.name\"""#, r#"299 - "unknown field \"odd\"""#];
    for (body, code, wanted) in [
        (r#"{"metadata":{"name":"w","name":"w"},"odd":1,"data":{"a":1}}"#, 400, &noted[..0]),
        (r#"{"kind":"Other","metadata":{"name":"w"},"odd":1}"#, 400, &noted[..0]),
        (r#"{"metadata":{"name":"W","name":"W"},"odd":1}"#, 422, &noted[..]),
        (r#"{"metadata":{"name":"w","name":"w"},"odd":1}"#, 201, &noted[..]),
    ] {
        let answer = server.send("POST", &path, &[], body).await;
        let found = answer.headers.get_all("warning").iter();
        let found: Vec<&str> = found.map(|warning| warning.to_str().unwrap()).collect();
        assert_eq!((answer.code, &found[..]), (code, wanted), "{body}");
    }
}

/// A message shows all of the object that a patch leaves, its managers included.
#[tokio::test]
async fn results_of_patches_are_shown_whole() {
    let server = things(json!({"schema": {"openAPIV3Schema": {"type": "object"}}})).await;
    let path = "/apis/example.com/v1/namespaces/default/things";
    let metadata = json!({"name": "a", "labels": {"l": "1"}});
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata});
    assert_eq!(server.post(path, &thing).await.code, 201);
    let headers = [("content-type", "application/merge-patch+json")];
    let path = format!("{path}/a");
    let answer = server.send("PATCH", &path, &headers, r#"{"kind":1}"#).await;
    let message = answer.json()["message"].as_str().unwrap_or_default().to_owned();
    let managers = r#"\"managedFields\":[{\"apiVersion\":\"example.com/v1\""#;
    assert!(answer.code == 422 && message.contains(managers), "{}: {message}", answer.code);
}
