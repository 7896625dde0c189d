//! Differences that generated requests showed between this server and kube-apiserver, one test per
//! class, with kube-apiserver's codes and messages. Classes about one kind's rules are tested in
//! the crate of the rule.

use crate::support::{CONFIGMAPS, TestResponse, TestServer};
use ferrokube_apimachinery::document::{Value, json};

const BODY: (&str, &str) = ("content-type", "application/json");
const JSON: (&str, &str) = ("content-type", "application/json-patch+json");
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");
const STRATEGIC: (&str, &str) = ("content-type", "application/strategic-merge-patch+json");
const APPLY: (&str, &str) = ("content-type", "application/apply-patch+yaml");
const TEXT: (&str, &str) = ("content-type", "text/plain");
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
const ALICE: (&str, &str) = ("authorization", "Bearer alice");
const REJECTED: &str = "the server rejected our request due to an error in our request";

/// A request to a server with the config map `a`: expected code, and a part of the message (for a
/// success, of the whole response).
type DifferenceCase<'a> = ((&'a str, &'a str), (&'a str, &'a str), Value, u16, &'a str);

async fn server() -> TestServer {
    let server = TestServer::new().await;
    assert_eq!(server.configmap("a").await.code, 201);
    server
}

async fn ask(
    server: &TestServer,
    ((method, path), header, body): ((&str, &str), (&str, &str), &Value),
) -> TestResponse {
    let body = match body {
        Value::Null => String::new(),
        text if text.is_string() => text.as_str().unwrap().to_owned(),
        tree => tree.to_string(),
    };
    let path = match path.chars().next() {
        Some('/') => path.to_owned(),
        Some('?') => format!("{CONFIGMAPS}{path}"),
        _ => format!("{CONFIGMAPS}/{path}"),
    };
    server.send(method, &path, &[header], body).await
}

async fn check(server: &TestServer, cases: &[DifferenceCase<'_>]) {
    for (request, header, body, code, part) in cases {
        let answer = ask(server, (*request, *header, body)).await;
        let text = answer.text();
        let found = if *code < 300 {
            text.contains(part)
        } else {
            answer.json()["message"].as_str().is_some_and(|message| message.contains(part))
        };
        assert!(answer.code == *code && found, "{request:?} {body}: {} {text}", answer.code);
    }
}

#[tokio::test]
async fn patches_of_type_fields() {
    let server = server().await;
    let of_type = |field: &'static str, kind: &'static str| {
        format!("json: cannot unmarshal {kind} into Go struct field .{field} of type string")
    };
    let (number, object, list) =
        (of_type("kind", "number"), of_type("apiVersion", "object"), of_type("kind", "array"));
    let bool = of_type("kind", "bool");
    let one = ("PATCH", "a");
    let cases: [DifferenceCase<'_>; 12] = [
        (one, MERGE, json!({"kind": 1}), 422, &number),
        (one, MERGE, json!({"apiVersion": {}}), 422, &object),
        // In any spelling.
        (one, MERGE, json!({"Kind": true}), 422, &bool),
        (("PATCH", "a?fieldValidation=Strict"), MERGE, json!({"kinD": true}), 422, &bool),
        (one, MERGE, json!({"Kind": null}), 200, "\"kind\":\"ConfigMap\""),
        (one, MERGE, json!({"kind": null}), 200, "\"kind\":\"ConfigMap\""),
        (one, JSON, json!([{"op": "replace", "path": "/kind", "value": []}]), 422, &list),
        (one, JSON, json!([{"op": "remove", "path": "/kind"}]), 200, "\"kind\":\"ConfigMap\""),
        (
            one,
            JSON,
            json!([{"op": "copy", "from": "/none", "path": "/kind"}]),
            200,
            "\"kind\":\"ConfigMap\"",
        ),
        (one, JSON, json!([{"op": "move", "from": "/none", "path": "/apiVersion"}]), 422, REJECTED),
        (
            one,
            STRATEGIC,
            json!({"kind": "Other", "apiVersion": "x"}),
            200,
            "\"kind\":\"ConfigMap\"",
        ),
        (one, STRATEGIC, json!({"apiVersion": 1}), 422, "cannot convert int64 to string"),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn json_patches_with_unknown_fields() {
    let server = server().await;
    let odd = json!([{"op": "test", "path": "/kind", "value": "ConfigMap", "odd": 1}]);
    for (query, code, warning) in [
        ("", 200, "299 - \"json patch unknown field \\\"[0].odd\\\"\""),
        ("?fieldValidation=Ignore", 200, ""),
        ("?fieldValidation=Strict", 422, ""),
    ] {
        let answer = ask(&server, (("PATCH", &format!("a{query}")), JSON, &odd)).await;
        assert_eq!((answer.code, answer.header("warning")), (code, warning), "{query}");
        assert!(
            code == 200
                || answer.text().contains("strict decoding error: json patch unknown field"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn versions_that_are_no_numbers() {
    let server = server().await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/new";
    let events = [
        "/api/v1/namespaces/default/events/none?resourceVersion=x",
        "/apis/events.k8s.io/v1/namespaces/default/events/none?resourceVersion=x",
    ];
    let fault = "strconv.ParseUint: parsing \"x\": invalid syntax";
    let signed = "strconv.ParseUint: parsing \"+1\": invalid syntax";
    let put = |kind: &str, version: &str, name: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "resourceVersion": "x"}});
    let plain = ("content-type", "application/json");
    let of_events =
        format!("invalid resource version: resourceVersion: Invalid value: \"x\": {fault}");
    let with_sign = json!({"metadata": {"name": "a", "resourceVersion": "+1"}});
    let cases: [DifferenceCase<'_>; 6] = [
        (("PUT", "a"), plain, with_sign, 500, signed),
        (("PUT", lease), plain, put("Lease", "coordination.k8s.io/v1", "new"), 500, fault),
        (("PUT", "a"), plain, put("ConfigMap", "v1", "a"), 500, fault),
        (("GET", events[0]), plain, Value::Null, 400, &of_events),
        (("GET", events[1]), plain, Value::Null, 400, &of_events),
        (("GET", "none?resourceVersion=x"), plain, Value::Null, 500, fault),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn a_missing_object_comes_before_an_error_in_the_patch() {
    let server = server().await;
    let missing = "configmaps \"none\" not found";
    let status = "/api/v1/namespaces/none/status?fieldManager=m";
    let applied =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "none", "uid": "x"}});
    let no_namespace = "namespaces \"none\" not found";
    let cases: [DifferenceCase<'_>; 9] = [
        (("PATCH", status), APPLY, applied, 404, no_namespace),
        (("PATCH", status), APPLY, json!("{"), 404, no_namespace),
        // An apply of the whole would create it.
        (("PATCH", "none?fieldManager=m"), APPLY, json!("{"), 400, "error decoding YAML"),
        (("PATCH", "none"), MERGE, json!("{"), 404, missing),
        (("PATCH", "none"), JSON, json!({"op": 1}), 404, missing),
        (("PATCH", "none"), STRATEGIC, json!("[]"), 404, missing),
        (("PATCH", "none"), TEXT, json!("{"), 415, "415: Unsupported Media Type"),
        (("PATCH", "a"), STRATEGIC, json!("null"), 200, "\"data\":{\"k\":\"v\"}"),
        (("PATCH", "a"), MERGE, json!("null"), 400, "Invalid JSON Patch"),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn percent_signs_in_names() {
    let server = server().await;
    let json = ("accept", "application/json");
    let cases: [DifferenceCase<'_>; 3] = [
        (
            ("GET", "a%25b"),
            json,
            Value::Null,
            400,
            "Name parameter invalid: \"a%b\": may not contain '%'",
        ),
        (
            ("DELETE", "%25"),
            json,
            Value::Null,
            400,
            "Name parameter invalid: \"%\": may not contain '%'",
        ),
        (
            ("GET", "/api/v1/namespaces/a%25b/configmaps/x"),
            json,
            Value::Null,
            404,
            "configmaps \"x\" not found",
        ),
    ];
    check(&server, &cases).await;
    // HTTP itself rejects it, from any caller.
    let malformed =
        ask(&server, (("GET", "a%"), ("authorization", "Bearer x"), &Value::Null)).await;
    assert_eq!((malformed.code, &*malformed.text()), (400, "400 Bad Request"));
}

#[tokio::test]
async fn watch_options_of_a_deletecollection() {
    let server = server().await;
    let json = ("accept", "application/json");
    let for_list = "sendInitialEvents is forbidden for list";
    let for_watch =
        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
    let cases: [DifferenceCase<'_>; 3] = [
        (("DELETE", "?sendInitialEvents=true"), json, Value::Null, 422, for_list),
        (
            ("DELETE", "?watch=true&resourceVersionMatch=Exact&resourceVersion=1"),
            json,
            Value::Null,
            422,
            for_watch,
        ),
        (
            ("DELETE", "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"),
            json,
            Value::Null,
            200,
            "\"kind\":\"ConfigMapList\"",
        ),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn watches_in_a_form_without_frames() {
    let server = server().await;
    let yaml = ("accept", "application/yaml");
    let answer = ask(&server, (("GET", "?watch=true"), yaml, &Value::Null)).await;
    let streams = "only the following media types are accepted: application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    assert!(answer.code == 406 && answer.text().contains(streams), "{}", answer.text());
}

#[tokio::test]
async fn lists_in_place_of_base64() {
    let server = server().await;
    let one = ("PATCH", "a");
    let data = |value: Value| json!({"binaryData": {"a": value}});
    let refused = "unrecognized type: uint8";
    let list = "json: cannot unmarshal array into Go struct field ConfigMap.binaryData";
    let cases: [DifferenceCase<'_>; 4] = [
        (one, STRATEGIC, data(json!([])), 422, refused),
        (one, STRATEGIC, data(json!([97])), 422, refused),
        (one, STRATEGIC, json!({"binaryData": {"$retainKeys": ["b"]}}), 422, refused),
        (one, MERGE, data(json!([97])), 422, list),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn applied_values_of_a_wrong_type() {
    let server = server().await;
    let applied = |field: &str, value: Value| {
        let mut object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        object.as_object_mut().unwrap().extend([(field.to_owned(), value)]);
        object
    };
    let one = ("PATCH", "a?fieldManager=m");
    let typed = "failed to create typed patch object (/a; /v1, Kind=ConfigMap): ";
    let managers = format!("{typed}.metadata.managedFields: expected list, got &{{x}}");
    let boolean = format!("{typed}.immutable: expected boolean, got &{{x}}");
    let cases: [DifferenceCase<'_>; 5] = [
        (
            one,
            APPLY,
            applied("data", json!({"a": 1})),
            500,
            &format!("{typed}.data.a: expected string, got &value.valueUnstructured{{Value:1}}"),
        ),
        (one, APPLY, applied("immutable", json!("x")), 500, &boolean),
        (
            one,
            APPLY,
            applied("metadata", json!({"name": "a", "managedFields": "x"})),
            500,
            &managers,
        ),
        (
            one,
            APPLY,
            applied("metadata", json!({"name": "a", "managedFields": [{}]})),
            400,
            "metadata.managedFields must be nil",
        ),
        // Not an entry: it fails as any other wrong type.
        (
            one,
            APPLY,
            applied("metadata", json!({"name": "a", "managedFields": [{"operation": 1}]})),
            500,
            ".metadata.managedFields[0].operation: expected string",
        ),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn creates_with_a_version() {
    let server = server().await;
    let body = json!({"metadata": {"name": "dry", "resourceVersion": "1"}});
    let json = ("content-type", "application/json");
    let dry = format!("{CONFIGMAPS}?dryRun=All");
    let list = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let taken = json!({"metadata": {"name": "a", "resourceVersion": "1"}});
    let signed = json!({"metadata": {"name": "signed", "resourceVersion": "+1"}});
    let cases: [DifferenceCase<'_>; 4] = [
        (("POST", &dry), json, body.clone(), 201, "\"name\":\"dry\""),
        (("POST", CONFIGMAPS), json, signed, 201, "\"name\":\"signed\""),
        (
            ("POST", CONFIGMAPS),
            ("accept", list),
            taken,
            500,
            "resourceVersion should not be set on objects to be created",
        ),
        (
            ("POST", CONFIGMAPS),
            json,
            body,
            500,
            "resourceVersion should not be set on objects to be created",
        ),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn the_first_of_several_faults() {
    let server = server().await;
    let json = ("content-type", "application/json");
    let timeout = "invalid timeout specified in the request URL - time: invalid duration \"x\"";
    let options = "DeleteOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"x\"]: supported values: \"All\"";
    let of = |query: &str| format!("{CONFIGMAPS}{query}");
    let update = "UpdateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"x\"]: supported values: \"All\"";
    let cases: [DifferenceCase<'_>; 11] = [
        (("PUT", "a?dryRun=x"), TEXT, json!("{}"), 422, update),
        (
            ("DELETE", &of("?sendInitialEvents=true")),
            json,
            json!({"propagationPolicy": "x"}),
            422,
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        ),
        (
            ("GET", &of("?watch=1&timeout=x&labelSelector=a+in+(")),
            json,
            Value::Null,
            400,
            "unable to parse requirement",
        ),
        (
            ("POST", "/api/v1/watch/namespaces/default/configmaps?timeout=x"),
            json,
            json!({}),
            405,
            "the server does not allow this method",
        ),
        (
            ("DELETE", &of("?labelSelector=a+in+(")),
            json,
            json!({"dryRun": ["x"]}),
            400,
            "unable to parse requirement",
        ),
        (
            ("DELETE", &of("?dryRun=x")),
            json,
            json!("{"),
            400,
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
        ),
        (("DELETE", &of("?dryRun=x")), json, Value::Null, 422, options),
        (("GET", "a/nothing?timeout=x"), json, Value::Null, 400, timeout),
        (("GET", "a?timeout=x"), json, Value::Null, 400, timeout),
        (("POST", &of("?timeout=x")), json, json!({"metadata": {"name": "t"}}), 400, timeout),
        (("GET", &of("?timeout=-1s")), json, Value::Null, 200, "ConfigMapList"),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn rejections_name_the_requested_type() {
    let server = server().await;
    let cases = [
        (
            "GET",
            "/api/v1/namespaces/n/configmaps/a",
            json!({"kind": "configmaps", "name": "a"}),
            "configmaps \"a\" is forbidden: User \"alice\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"n\"",
        ),
        (
            "GET",
            "/api/v1/namespaces/n/configmaps/a/status",
            json!({"kind": "configmaps", "name": "a"}),
            "configmaps \"a\" is forbidden: User \"alice\" cannot get resource \"configmaps/status\" in API group \"\" in the namespace \"n\"",
        ),
        (
            "GET",
            "/api/v1/pods?fieldSelector=metadata.name%3Dp",
            json!({"kind": "pods", "name": "p"}),
            "pods \"p\" is forbidden: User \"alice\" cannot list resource \"pods\" in API group \"\" at the cluster scope",
        ),
        (
            "DELETE",
            "/apis/example.com/v1/things/x",
            json!({"group": "example.com", "kind": "things", "name": "x"}),
            "things.example.com \"x\" is forbidden: User \"alice\" cannot delete resource \"things\" in API group \"example.com\" at the cluster scope",
        ),
        (
            "GET",
            "/api/v1//namespaces",
            json!({"name": "namespaces"}),
            "forbidden: User \"alice\" cannot get resource \"\" in API group \"\" at the cluster scope",
        ),
        ("GET", "/nothing", json!({}), "forbidden: User \"alice\" cannot get path \"/nothing\""),
    ];
    for (method, path, details, message) in cases {
        let answer = ask(&server, ((method, path), ALICE, &Value::Null)).await;
        let status = answer.json();
        assert_eq!(
            (answer.code, answer.header("x-content-type-options")),
            (403, "nosniff"),
            "{path}"
        );
        assert_eq!((&status["message"], &status["details"]), (&json!(message), &details), "{path}");
    }
}

#[tokio::test]
async fn tables_without_rows_and_views_that_there_are_not() {
    let server = server().await;
    let none = format!("{CONFIGMAPS}?labelSelector=none");
    let empty = ask(&server, (("GET", &none), TABLE, &Value::Null)).await;
    assert_eq!((empty.code, &empty.json()["rows"]), (200, &json!([])), "a list, not null");
    let refused = ask(&server, (("GET", CONFIGMAPS), ("accept", "text/html"), &Value::Null)).await;
    assert_eq!((refused.code, &refused.json()["details"]), (406, &json!({})), "the router's");
    let unknown = ask(
        &server,
        (("GET", "a"), ("accept", "application/json;as=Table;v=v9;g=meta.k8s.io"), &Value::Null),
    )
    .await;
    assert_eq!((unknown.code, &unknown.json()["details"]), (406, &Value::Null), "the handler's");
    for (path, spec) in [
        (
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            json!({"nonResourceAttributes": {"path": "/", "verb": "get"}}),
        ),
        ("/apis/authentication.k8s.io/v1/tokenreviews", json!({"token": "x"})),
    ] {
        assert_eq!(
            ask(&server, (("POST", path), TABLE, &json!({"spec": spec}))).await.code,
            406,
            "{path}"
        );
    }
}

#[tokio::test]
async fn strict_decoding_errors_of_a_rejected_body() {
    let server = server().await;
    let json = ("content-type", "application/json");
    let cases: [DifferenceCase<'_>; 2] = [
        (
            ("POST", CONFIGMAPS),
            json,
            json!(r#"{"metadata":{"name":"w","name":"w"},"odd":1,"data":{"a":1}}"#),
            400,
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            ("POST", "/api/v1/namespaces/default/configmaps?fieldValidation=Strict"),
            json,
            json!(r#"{"metadata":{"name":"w","name":"w"},"odd":1}"#),
            400,
            "strict decoding error: duplicate field \"metadata.name\", unknown field \"odd\"",
        ),
    ];
    check(&server, &cases).await;
}

#[tokio::test]
async fn unknown_methods_are_rejected_without_an_allow_header() {
    let server = server().await;
    for (method, path) in
        [("PUT", CONFIGMAPS), ("BREW", CONFIGMAPS), ("POST", "/api/v1"), ("PATCH", "/version")]
    {
        let answer = ask(&server, ((method, path), MERGE, &json!({}))).await;
        assert_eq!(
            (answer.code, answer.headers.contains_key("allow")),
            (405, false),
            "{method} {path}"
        );
    }
}

#[tokio::test]
async fn hundreds_of_impersonated_groups() {
    let server = server().await;
    let groups: Vec<String> = (0..400).map(|at| format!("group-{at}")).collect();
    let groups = groups.iter().map(|group| ("impersonate-group", group.as_str()));
    let headers: Vec<(&str, &str)> =
        [("impersonate-user", "jane")].into_iter().chain(groups).collect();
    let answer = server.send("GET", &format!("{CONFIGMAPS}/a"), &headers, "").await;
    assert_eq!(answer.code, 403, "{}", answer.text());
    assert!(
        answer.text().contains("User \\\"jane\\\" cannot get resource"),
        "as jane: {}",
        answer.text()
    );
}

/// Quantities as JSON numbers keep their notation; what cannot be counted is accepted.
#[tokio::test]
async fn quantities_given_as_numbers() {
    let server = server().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas?dryRun=All";
    let strict = format!("{quotas}&fieldValidation=Strict");
    for (given, stored) in [
        (r#""cpu":1e30"#, r#""cpu":"1e30""#),
        (r#""cpu":1E3"#, r#""cpu":"1E3""#),
        (r#""cpu":0.1"#, r#""cpu":"100m""#),
        (r#""pods":9223372036854775808"#, r#""pods":"9223372036854775808""#),
        (r#""pods":"18446744073709551616""#, r#""pods":"18446744073709551616""#),
        (r#""pods":"99999999999999999999""#, r#""pods":"99999999999999999999""#),
        (r#""cpu":100000000000000000000"#, r#""cpu":"100E""#),
    ] {
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ResourceQuota","metadata":{{"name":"a"}},"spec":{{"hard":{{{given}}}}}}}"#
        );
        for path in [quotas, strict.as_str()] {
            let answer = server.send("POST", path, &[BODY], body.clone()).await;
            let (text, warning) = (answer.text(), answer.header("warning"));
            assert!(
                answer.code == 201 && text.contains(stored) && warning.is_empty(),
                "{given}: {} {text} {warning}",
                answer.code
            );
        }
    }
    let body = r#"{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"a"},"spec":{"hard":{"pods":"1.5","cpu":-1}}}"#;
    let refused = server.send("POST", quotas, &[BODY], body).await;
    let causes: Vec<String> = refused.json()["details"]["causes"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|cause| cause["message"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        causes,
        [
            "Invalid value: \"-1\": must be greater than or equal to 0",
            "Invalid value: \"1500m\": must be an integer",
        ]
    );
}

/// A status that a create drops is still read: its unknown fields are reported.
#[tokio::test]
async fn unknown_fields_of_a_dropped_status() {
    let server = TestServer::new().await;
    let texts = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": texts, "status": texts}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}}, "schema": schema}],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(server.post(definitions, &definition).await.code, 201);
    let gadgets = "/apis/example.com/v1/namespaces/default/gadgets?dryRun=All";
    for (status, unknown) in [
        (r#"{"c":1}"#, "status.c"),
        (r#"{"a":{"x":1}}"#, "status.a.x"),
        (r#"[{"a":1}]"#, "status[0].a"),
        (r#"[[{"q":2}]]"#, "status[0][0].q"),
    ] {
        let body = format!(
            r#"{{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{{"name":"x"}},"spec":{{"z":1}},"status":{status}}}"#
        );
        let warned = server.send("POST", gadgets, &[BODY], body.clone()).await;
        let warnings: Vec<&str> = warned
            .headers
            .get_all("warning")
            .iter()
            .map(|warning| warning.to_str().expect("text"))
            .collect();
        let unknown_field = |field: &str| format!(r#"299 - "unknown field \"{field}\"""#);
        assert_eq!(warned.code, 201, "{}", warned.text());
        assert_eq!(warnings, [unknown_field("spec.z"), unknown_field(unknown)]);
        assert!(warned.json().get("status").is_none(), "{}", warned.text());
        let strict = format!("{gadgets}&fieldValidation=Strict");
        let strict = server.send("POST", &strict, &[BODY], body).await;
        let wanted = format!(
            "Gadget in version \"v1\" cannot be handled as a Gadget: strict decoding error: unknown field \"spec.z\", unknown field \"{unknown}\""
        );
        assert_eq!((strict.code, strict.json()["message"].as_str()), (400, Some(&*wanted)));
    }
}

/// Timeouts are Go durations, for reads and writes alike.
#[tokio::test]
async fn timeouts_of_requests() {
    let server = server().await;
    let of = |why: &str| format!("invalid timeout specified in the request URL - time: {why}");
    for (given, why) in [
        ("x", of("invalid duration \"x\"")),
        ("1", of("missing unit in duration \"1\"")),
        ("1y", of("unknown unit \"y\" in duration \"1y\"")),
    ] {
        for (method, path) in
            [("GET", CONFIGMAPS.to_owned()), ("DELETE", format!("{CONFIGMAPS}/a"))]
        {
            let answer = server.send(method, &format!("{path}?timeout={given}"), &[], "").await;
            assert_eq!((answer.code, answer.json()["message"].as_str()), (400, Some(&*why)));
        }
    }
    for given in ["1h", "-1s", "0", "1.5m"] {
        assert_eq!(server.get(&format!("{CONFIGMAPS}?timeout={given}")).await.code, 200, "{given}");
    }
}

/// kube-apiserver validates the metadata of an update once for all kinds, and once more, in part,
/// with the kind's own rules: a bad annotation is reported as often.
#[tokio::test]
async fn metadata_errors_of_an_update_are_repeated_by_kind() {
    let server = server().await;
    let flow = json!({"kind": "FlowSchema", "metadata": {"name": "f"}, "spec": {"priorityLevelConfiguration": {"name": "global-default"}}});
    let lease = json!({"kind": "Lease", "metadata": {"name": "l"}});
    let service = json!({"kind": "APIService", "metadata": {"name": "v1.s.example.com"}, "spec": {"group": "s.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}});
    let configmap = json!({"kind": "ConfigMap", "metadata": {"name": "c"}});
    let cases = [
        ("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", "f", flow, 3),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases", "l", lease, 3),
        ("/apis/apiregistration.k8s.io/v1/apiservices", "v1.s.example.com", service, 4),
        (CONFIGMAPS, "c", configmap, 4),
    ];
    for (collection, name, mut object, want) in cases {
        let created = server.post(collection, &object).await;
        assert_eq!(created.code, 201, "{}", created.text());
        object["metadata"]["annotations"] = json!({"A_/x": "y"});
        let path = format!("{collection}/{name}");
        // The server may write the status in between.
        let refused = loop {
            let stored = server.get(&path).await.json();
            object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
            let refused = server.send("PUT", &path, &[BODY], object.to_string()).await;
            if refused.code != 409 {
                break refused;
            }
        };
        let causes = refused.json()["details"]["causes"].clone();
        let count = causes.as_array().map_or(0, |causes| causes.len());
        assert_eq!((refused.code, count), (422, want), "{path}: {}", refused.text());
    }
}

/// A write of the status changes no metadata, where kube-apiserver's does not, so that nothing of
/// it is refused either.
#[tokio::test]
async fn status_writes_keep_metadata() {
    let server = server().await;
    let flow = |metadata: Value| json!({"kind": "FlowSchema", "metadata": metadata, "spec": {"priorityLevelConfiguration": {"name": "global-default"}}});
    let collection = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    let made = json!({"name": "f", "labels": {"a": "b"}});
    assert_eq!(server.post(collection, &flow(made)).await.code, 201);
    let given = json!({
        "name": "f", "labels": {"c": "d"}, "annotations": {"a": "b"}, "finalizers": ["x"],
        "generateName": "g-", "deletionGracePeriodSeconds": 5,
    });
    let path = format!("{collection}/f/status");
    let written = server.send("PUT", &path, &[BODY], flow(given).to_string()).await;
    assert_eq!(written.code, 200, "{}", written.text());
    let metadata = written.json()["metadata"].clone();
    assert_eq!(metadata["labels"], json!({"a": "b"}));
    for field in ["annotations", "finalizers", "generateName", "deletionGracePeriodSeconds"] {
        assert_eq!(metadata.get(field), None, "{field}");
    }
}

/// The parts of kube-apiserver know their own kinds, and types by their names in Go.
#[tokio::test]
async fn api_services_are_decoded_by_the_aggregator() {
    let server = server().await;
    let path = "/apis/apiregistration.k8s.io/v1/apiservices";
    let scheme = r#"no kind "APIService" is registered for version "a" in scheme "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28""#;
    let named = "Go struct field APIServiceCondition.status.conditions.type of type v1.APIServiceConditionType";
    let cases: [DifferenceCase<'_>; 2] = [
        (("POST", path), BODY, json!({"apiVersion": "a", "kind": "APIService"}), 400, scheme),
        (
            ("POST", path),
            BODY,
            json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "status": {"conditions": [{"type": 1}]}}),
            400,
            named,
        ),
    ];
    check(&server, &cases).await;
    let only = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let status = format!("{path}/v1.none.example.com/status");
    check(&server, &[(("GET", status.as_str()), TABLE, Value::Null, 406, only)]).await;
}

/// A write of the scale sets the replicas and no defaults.
#[tokio::test]
async fn scales_set_no_defaults() {
    let server = server().await;
    let spec = json!({"type": "object", "required": ["color"], "properties": {"color": {"type": "string", "default": "red"}, "replicas": {"type": "integer"}}});
    let scale =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "scaled.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "scaled", "kind": "Scaled"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"scale": scale}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(server.post(definitions, &definition).await.code, 201);
    let scaled = "/apis/example.com/v1/namespaces/default/scaled";
    let object =
        json!({"apiVersion": "example.com/v1", "kind": "Scaled", "metadata": {"name": "a"}});
    assert_eq!(server.post(scaled, &object).await.code, 201);
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a", "namespace": "default"}, "spec": {"replicas": 2}});
    let path = format!("{scaled}/a/scale");
    check(&server, &[(("PUT", path.as_str()), BODY, scale, 422, "spec.color: Required value")])
        .await;
}

/// Replicas that the schema prunes are still no negative number.
#[tokio::test]
async fn negative_replicas_at_a_pruned_path() {
    let server = server().await;
    let scale =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let spec = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "pruned.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "pruned", "kind": "Pruned"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"scale": scale}, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(server.post(definitions, &definition).await.code, 201);
    let pruned = "/apis/example.com/v1/namespaces/default/pruned";
    let object = json!({"apiVersion": "example.com/v1", "kind": "Pruned", "metadata": {"name": "a"}, "spec": {"a": "x"}});
    assert_eq!(server.post(pruned, &object).await.code, 201);
    let path = format!("{pruned}/a/scale");
    let scale = |count: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a", "namespace": "default"}, "spec": {"replicas": count}});
    let why = ".spec.replicas: Invalid value: -1: should be a non-negative integer";
    let cases: [DifferenceCase<'_>; 2] = [
        (("PUT", path.as_str()), BODY, scale(-1), 422, why),
        (("PUT", path.as_str()), BODY, scale(1), 200, r#""spec":{}"#),
    ];
    check(&server, &cases).await;
}

/// `kind` in another case counts as `kind`, and the last one in the body decides; the object gets
/// the names of its type in any case.
#[tokio::test]
async fn kinds_in_another_case() {
    let server = server().await;
    let foreign = r#"no kind "x" is registered"#;
    let cases: Vec<(&str, u16, &str)> = vec![
        (r#""Kind":"ConfigMap""#, 201, r#""kind":"ConfigMap","apiVersion":"v1""#),
        (r#""kind":"ConfigMap","ApiVersion":"v1""#, 201, r#""kind":"ConfigMap","apiVersion":"v1""#),
        (r#""kind":"ConfigMap","Kind":"x""#, 400, foreign),
        (r#""Kind":"x","kind":"ConfigMap""#, 201, r#""kind":"ConfigMap","apiVersion":"v1""#),
        (r#""kind":"ConfigMap","Kind":null"#, 201, r#""kind":"ConfigMap","apiVersion":"v1""#),
    ];
    for (fields, code, part) in cases {
        let body = Value::from(format!(r#"{{{fields},"metadata":{{"name":"k"}}}}"#));
        let path = format!("{CONFIGMAPS}?dryRun=All");
        check(&server, &[(("POST", path.as_str()), BODY, body, code, part)]).await;
    }
}
