//! What kubectl does with a custom resource: it is as good as any other.

use super::Session;
use crate::FERROKUBE;
use ferrokube_testkit::{Cluster, write_script};

const DEFINITION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kubectl/widgets.yaml");

fn widget(session: &Session<'_>, spec: &str) -> String {
    let text = format!(
        "apiVersion: kubectl.example.com/v1\nkind: Widget\nmetadata: {{name: a}}\nspec: {{{spec}}}\n"
    );
    session.file("widget.yaml", &text).display().to_string()
}

/// Runs it; it must fail with these words.
fn refuse(session: &Session<'_>, arguments: &[&str], words: &str) {
    let mut all = vec!["--namespace", session.namespace.as_str()];
    all.extend(arguments);
    let ran = session.kubectl.run(&session.cluster.kubeconfig(), &all);
    assert!(!ran.ok && ran.stderr.contains(words), "{arguments:?}: {}{}", ran.stdout, ran.stderr);
}

fn explained(session: &Session<'_>) {
    let plain = session.check(&["explain", "widget"], "A widget is a thing.");
    assert!(
        plain.contains("spec\t<Object> -required-") && plain.contains("What is wanted."),
        "{plain}"
    );
    assert!(
        plain.contains("metadata\t<ObjectMeta>")
            && !plain.contains("metadata\t<ObjectMeta>\n    <no description>"),
        "{plain}"
    );
    let field = session.check(&["explain", "wg.spec.size"], "The size in cm.");
    assert!(field.contains("FIELD: size <integer>"), "{field}");
    for output in ["plaintext", "plaintext-openapiv2"] {
        let all = session
            .check(&["explain", "widgets", "--recursive", "--output", output], "ownerReferences");
        for line in [
            "color\t<string>",
            "parts\t<[]Object>",
            "count\t<integer>",
            "tags\t<map[string]string>",
            "conditions\t<[]Object>",
        ] {
            assert!(all.contains(line), "{output}: {line}: {all}");
        }
    }
    refuse(session, &["explain", "widget.spec.nothing"], "does not exist");
    session.check(&["api-resources", "--api-group", "kubectl.example.com"], "wg");
}

fn columns(session: &Session<'_>) {
    let words = |arguments: &[&str]| -> Vec<Vec<String>> {
        let text = session.check(arguments, "NAME");
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let rows = words(&["get", "wg"]);
    assert_eq!(rows[0], ["NAME", "SIZE", "READY", "AGE"]);
    assert_eq!(rows[1][..3], ["a", "3", "True"]);
    let wide = words(&["get", "widgets", "-o", "wide"]);
    assert_eq!(
        (wide[0].join(" "), wide[1][3].as_str()),
        ("NAME SIZE READY HIDDEN AGE".to_owned(), "blue")
    );
    assert!(
        words(&["get", "all"])
            .iter()
            .any(|row| row.first().is_some_and(|name| name == "a" || name.ends_with("/a"))),
        "its category"
    );
    assert_eq!(session.check(&["get", "wg", "a", "-o", "jsonpath={.spec.size}"], "3"), "3");
}

fn written(session: &Session<'_>) {
    session.check(&["apply", "-f", &widget(session, "size: 3")], "created");
    session.check(&["apply", "-f", &widget(session, "size: 3")], "unchanged");
    refuse(session, &["apply", "-f", &widget(session, "size: 0")], "spec.size");
    refuse(
        session,
        &["apply", "-f", &widget(session, "size: 3, seize: 1")],
        "unknown field \"spec.seize\"",
    );
    let two = widget(session, "size: 4, parts: [{name: p, count: 1}]");
    refuse(session, &["apply", "--server-side", "-f", &two, "--field-manager=other"], "conflict");
    session.check(
        &["apply", "--server-side", "-f", &two, "--field-manager=other", "--force-conflicts"],
        "serverside-applied",
    );
    let three = widget(session, "parts: [{name: q, count: 2}], size: 4");
    session.check(
        &["apply", "--server-side", "-f", &three, "--field-manager=third"],
        "serverside-applied",
    );
    assert_eq!(
        session.check(&["get", "wg", "a", "-o", "jsonpath={.spec.parts[*].name}"], "p"),
        "p q",
        "a list map has parts of both"
    );
    session.check(&["patch", "wg", "a", "--type=merge", "-p", r#"{"spec":{"size":3}}"#], "patched");
    session.check(
        &[
            "patch",
            "wg",
            "a",
            "--type=json",
            "-p",
            r#"[{"op":"add","path":"/spec/tags","value":{"a":"b"}}]"#,
        ],
        "patched",
    );
    refuse(session, &["patch", "wg", "a", "-p", r#"{"spec":{"size":9}}"#], "patch");
    let status = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}],"replicas":1},"spec":{"size":99}}"#;
    session.check(
        &["patch", "wg", "a", "--subresource=status", "--type=merge", "-p", status],
        "patched",
    );
    session.check(&["wait", "wg/a", "--for=condition=Ready", "--timeout=180s"], "condition met");
    session.check(
        &["wait", "wg/a", "--for=jsonpath={.status.replicas}=1", "--timeout=180s"],
        "condition met",
    );
}

fn scaled_and_replaced(session: &Session<'_>) {
    session.check(&["scale", "wg/a", "--replicas=4"], "scaled");
    session.check(
        &[
            "get",
            "wg",
            "a",
            "--subresource=scale",
            "-o",
            "jsonpath={.kind} {.spec.replicas} {.status.replicas}",
        ],
        "Scale 4 1",
    );
    refuse(session, &["scale", "wg/a", "--replicas=5", "--current-replicas=3"], "3");
    let editor = session.path("editor");
    write_script(&editor, "#!/bin/sh\nsed -i 's/size: 3/size: 9/' \"$1\"\n");
    let mut edit = session.kubectl.command(&session.cluster.kubeconfig());
    let output = edit
        .args(["-n", &session.namespace, "edit", "wg", "a"])
        .env("EDITOR", &editor)
        .env("KUBE_EDITOR", &editor)
        .output()
        .unwrap();
    assert!(output.status.success(), "edit: {}", String::from_utf8_lossy(&output.stderr));
    let read = session.check(&["get", "wg", "a", "-o", "json"], "\"size\": 9");
    let replaced = session.file("replaced.json", &read.replace("\"size\": 9", "\"size\": 11"));
    session.check(&["replace", "-f", &replaced.display().to_string()], "replaced");
    refuse(session, &["replace", "-f", &replaced.display().to_string()], "modified");
    assert_eq!(session.check(&["get", "wg", "a", "-o", "jsonpath={.spec.size}"], "11"), "11");
    let described = session.check(&["describe", "wg", "a"], "Kind:         Widget");
    assert!(
        described.contains("Size:      11") && described.contains("Type:    Ready"),
        "{described}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_is_as_good_as_any_to_kubectl() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    for (index, kubectl) in ferrokube_testkit::kubectls().iter().enumerate() {
        let session = Session { cluster: &cluster, kubectl, namespace: format!("custom-{index}") };
        session.check(&["create", "namespace", &session.namespace], "created");
        session.check(&["apply", "-f", DEFINITION], "widgets.kubectl.example.com created");
        session.check(
            &[
                "wait",
                "--for=condition=Established",
                "crd/widgets.kubectl.example.com",
                "--timeout=180s",
            ],
            "condition met",
        );
        explained(&session);
        written(&session);
        columns(&session);
        scaled_and_replaced(&session);
        session.check(&["delete", "wg", "a", "--timeout=180s"], "deleted");
        session
            .check(&["delete", "crd", "widgets.kubectl.example.com", "--timeout=180s"], "deleted");
        refuse(&session, &["get", "wg"], "the server");
    }
}
