//! Methods, paths and queries, and the actions parsed from them.

use super::*;
use proptest::prelude::*;
use std::path::Path;

fn parse(method: &str, path: &str) -> Action {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    Action::parse(&method.parse().unwrap(), path, Some(query))
}

fn brief(method: &str, path: &str) -> String {
    let action = parse(method, path);
    match action.resource() {
        None => format!("{} {}", action.verb(), action.path()),
        Some(r) => format!(
            "{} [{}/{}] {}/{}/{}/{}",
            action.verb(),
            r.group(),
            r.version(),
            r.namespace(),
            r.plural(),
            r.name(),
            r.subresource()
        ),
    }
}

#[test]
fn writes_and_connections_must_be_recorded() {
    let pod = "/api/v1/namespaces/x/pods/p";
    for (method, path, must) in [
        ("GET", pod.to_owned(), false),
        ("GET", format!("{pod}/log"), false),
        ("GET", format!("{pod}/exec?command=ls"), true),
        ("GET", format!("{pod}/attach"), true),
        ("GET", format!("{pod}/portforward"), true),
        ("GET", "/api/v1/nodes/n/proxy/run/x/p/c".to_owned(), true),
        ("GET", "/api/v1/namespaces/x/pods/exec".to_owned(), false),
        ("DELETE", pod.to_owned(), true),
        ("GET", "/healthz".to_owned(), false),
    ] {
        assert_eq!(parse(method, &path).must_be_recorded(), must, "{method} {path}");
    }
}

#[test]
fn paths_parse_as_in_kube_apiserver() {
    let cases = [
        ("GET", "/api/v1/namespaces", "list [/v1] /namespaces//"),
        ("GET", "/api/v1/namespaces/x", "get [/v1] x/namespaces/x/"),
        ("PUT", "/api/v1/namespaces/x/status", "update [/v1] x/namespaces/x/status"),
        ("PUT", "/api/v1/namespaces/x/finalize", "update [/v1] x/namespaces/x/finalize"),
        ("GET", "/api/v1/namespaces/x/pods", "list [/v1] x/pods//"),
        ("GET", "/api/v1/namespaces/x/pods/", "list [/v1] x/pods//"),
        ("HEAD", "/api/v1/namespaces/x/pods/p", "get [/v1] x/pods/p/"),
        ("DELETE", "/api/v1/namespaces/x/pods", "deletecollection [/v1] x/pods//"),
        ("POST", "/api/v1/namespaces/x/pods/p/eviction", "create [/v1] x/pods/p/eviction"),
        ("GET", "/apis/apps/v1/deployments?watch=1", "watch [apps/v1] /deployments//"),
        ("GET", "/apis/apps/v1/deployments?watch=0", "list [apps/v1] /deployments//"),
        (
            "GET",
            "/apis/apps/v1/namespaces/x/deployments/d?watch=1",
            "get [apps/v1] x/deployments/d/",
        ),
        ("GET", "/api/v1/watch/namespaces/x/pods", "watch [/v1] x/pods//"),
        ("GET", "/api/v1/watch/namespaces/x/pods/p", "watch [/v1] x/pods/p/"),
        ("BREW", "/api/v1/pods", " [/v1] /pods//"),
        (
            "POST",
            "/api/v1/watch/namespaces/x/serviceaccounts/s/token",
            "watch [/v1] x/serviceaccounts/s/token",
        ),
        ("POST", "/api/v1/proxy/namespaces/x/pods/p/a/b", "proxy [/v1] x/pods/p/"),
        ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dp", "list [/v1] /pods/p/"),
        ("GET", "/api/v1/pods?watch=&fieldSelector=metadata.name%3Dp", "watch [/v1] /pods/p/"),
        (
            "GET",
            "/api/v1/pods?watch=1&limit=x&fieldSelector=metadata.name%3Dp",
            "watch [/v1] /pods//",
        ),
        ("GET", "/api/v1/watch/pods?fieldSelector=metadata.name%3Dp", "watch [/v1] /pods//"),
        (
            "DELETE",
            "/api/v1/pods?fieldSelector=metadata.name%3Dp",
            "deletecollection [/v1] /pods//",
        ),
        ("GET", "/api/v1", "get /api/v1"),
        ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
        ("HEAD", "/apis", "head /apis"),
        ("POST", "/healthz", "post /healthz"),
    ];
    for (method, path, want) in cases {
        assert_eq!(brief(method, path), want, "{method} {path}");
    }
}

#[test]
fn fault_40_hostile_paths_are_refused_before_authorization() {
    let ns = "/api/v1/namespaces/n/configmaps";
    let cases = [
        (format!("{ns}/%2e%2e"), 400),
        (format!("{ns}/%2e"), 400),
        (format!("{ns}/%2e%2e%2fsecrets"), 404),
        (format!("{ns}/../secrets"), 404),
        (format!("{ns}/./a"), 404),
        (format!("{ns}/a%00b"), 404),
        (format!("{ns}/a/../../configmaps"), 0),
        ("/api/v1/namespaces/n//configmaps".into(), 1),
        ("/api/v1/namespaces/%2e%2e/configmaps".into(), 500),
        ("/api/v1/namespaces/a%00/configmaps".into(), 404),
        (format!("{ns}/%zz"), 1),
        (format!("{ns}/%F0%9F%98%80"), 0),
    ];
    for (path, code) in cases {
        let code_of = |refusal: &Refusal| {
            if let Refusal::Hostile(failure) = refusal { failure.code } else { 1 }
        };
        assert_eq!(parse("GET", &path).refusal().map_or(0, code_of), code, "{path}");
    }
    assert_eq!(
        parse("GET", &format!("{ns}/%ff%fe")).resource().unwrap().name(),
        "\u{fffd}\u{fffd}"
    );
    // An escaped slash is decoded before splitting.
    assert_eq!(brief("GET", &format!("{ns}/a%2fb")), brief("GET", &format!("{ns}/a/b")));
}

#[test]
fn the_path_below_a_proxy_is_the_backends() {
    let is_nowhere = |path: &str| {
        let action = parse("GET", &format!("/api/v1/namespaces/n/{path}"));
        matches!(action.refusal(), Some(Refusal::Nowhere))
    };
    for path in ["services/s/proxy//a", "pods/p/proxy/a//b", "pods/p/proxy//"] {
        assert!(!is_nowhere(path), "{path}");
    }
    for path in ["services//s/proxy/a", "services/s//proxy/a", "pods/p/log//a", "pods//proxy//a"] {
        assert!(is_nowhere(path), "{path}");
    }
}

#[test]
fn fault_50_only_the_action_parses_the_query() {
    fn visit(directory: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, found);
            } else if !path.ends_with("action/tests.rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.extend(
                    text.lines()
                        .filter(|line| line.contains(".query()"))
                        .map(|_| path.file_stem().unwrap().to_str().unwrap().to_owned()),
                );
            }
        }
    }
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found.sort_unstable();
    // For another server, for a connection (a proxy's query is the backend's, and no other is
    // authorized by), for probes before there is a server, for the action, and for its length.
    assert_eq!(found, ["action", "connect", "early", "info", "limits"]);
}

#[test]
fn the_authorized_name_is_the_listed_one() {
    let action = parse(
        "GET",
        "/api/v1/pods?fieldSelector=metadata.name%3Dp,spec.x%3Dy&labelSelector=a&limit=5&watch=0",
    );
    assert_eq!(action.resource().unwrap().name(), "p");
    let list = action.options().list().unwrap();
    assert_eq!(
        (list.fields.exact("metadata.name"), list.labels.to_string().as_str(), list.limit),
        (Some("p"), "a", 5)
    );
    let kept = action.without_options();
    assert_eq!(
        (kept.path(), kept.verb(), kept.resource().unwrap().name()),
        (action.path(), action.verb(), "p")
    );
    assert_eq!(kept.options().list().unwrap().limit, 0, "without_options keeps no query");
}

proptest! {
    #[test]
    fn any_path_parses_without_panic_and_names_are_path_segments(path in "(/(api|apis|v1|namespaces|watch|apps|pods|%2[eEfF]|%00|%|\\.|\\.\\.|[a-z]{0,3}|\u{e9}))*/?", method in "(GET|PUT|POST|DELETE|HEAD|X)") {
        let action = parse(&method, &path);
        if let Some(resource) = action.resource() {
            // Authorization sees exactly the segments, so the storage key cannot differ.
            let access = resource.access();
            for part in [access.group, access.version, access.namespace, access.resource, access.name, access.subresource] {
                prop_assert!(!part.contains('/'));
                prop_assert!(part.is_empty() || action.path().split('/').any(|segment| segment == part));
            }
            if action.refusal().is_none() {
                prop_assert!(!matches!(access.name, "." | "..") && !access.name.contains('\0'));
                prop_assert!(!matches!(access.namespace, "." | ".."));
            }
        }
    }
}
