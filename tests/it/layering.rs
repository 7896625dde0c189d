//! Allowed dependencies between crates, as data, compared with `cargo metadata`. Code that needs
//! another edge is in the wrong crate.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The allowed edges. Only `ferrokube` (src/cmd) sees server, controllers and kubelet together.
const EDGES: &[(&str, &[&str])] = &[
    ("apimachinery", &[]),
    ("schema", &["apimachinery"]),
    ("trace", &[]),
    ("features", &[]),
    ("storage", &[]),
    ("etcd", &["trace", "storage"]),
    ("backup", &["storage"]),
    ("cri", &["trace"]),
    ("csi", &["cri"]),
    ("doctor", &["trace", "pki", "storage"]),
    ("envtest", &["pki"]),
    ("install", &[]),
    ("images", &["trace", "cri"]),
    (
        "kubelet",
        &["apimachinery", "trace", "client", "cri", "csi", "images", "pki", "relay", "serve"],
    ),
    ("scheduler", &["apimachinery", "trace", "client"]),
    ("relay", &["trace", "serve", "flow"]),
    (
        "connect",
        &["apimachinery", "trace", "serve", "resource", "registry", "flow", "relay", "webhook"],
    ),
    ("migrate", &["storage", "etcd"]),
    ("pki", &[]),
    ("serve", &["pki"]),
    ("cel", &["apimachinery", "schema"]),
    ("resource", &["apimachinery", "schema"]),
    ("registry", &["apimachinery", "schema", "trace", "storage", "resource"]),
    ("auth", &["apimachinery", "trace", "storage", "registry"]),
    (
        "admission",
        &[
            "apimachinery",
            "schema",
            "cel",
            "trace",
            "features",
            "storage",
            "pki",
            "flow",
            "resource",
            "registry",
            "webhook",
        ],
    ),
    ("flow", &["apimachinery", "serve"]),
    ("webhook", &["apimachinery", "trace", "pki", "flow"]),
    (
        "aggregator",
        &[
            "apimachinery",
            "trace",
            "storage",
            "serve",
            "resource",
            "registry",
            "flow",
            "relay",
            "webhook",
        ],
    ),
    (
        "apiextensions",
        &["apimachinery", "schema", "storage", "cel", "resource", "registry", "flow", "webhook"],
    ),
    (
        "controlplane",
        &[
            "apimachinery",
            "schema",
            "trace",
            "features",
            "storage",
            "serve",
            "flow",
            "connect",
            "aggregator",
            "apiextensions",
            "resource",
            "registry",
            "auth",
        ],
    ),
    ("resources", &["apimachinery", "schema", "cel", "resource"]),
    ("workloads", &["apimachinery", "cel", "resource"]),
    ("cluster", &["apimachinery", "schema", "resource", "registry", "workloads"]),
    (
        "server",
        &[
            "apimachinery",
            "schema",
            "features",
            "storage",
            "pki",
            "serve",
            "resource",
            "registry",
            "auth",
            "admission",
            "controlplane",
            "resources",
        ],
    ),
    ("client", &["apimachinery", "trace", "features"]),
    ("controllers", &["trace", "features", "serve", "client", "pki"]),
    ("feature-admin", &["trace", "features", "client"]),
    ("timeline", &["trace"]),
    ("fuzz", &[]),
    (
        "testing",
        &[
            "admission",
            "client",
            "cluster",
            "controllers",
            "pki",
            "resources",
            "server",
            "workloads",
        ],
    ),
    ("testkit", &["csi"]),
    ("benches", &["testkit"]),
    (
        "ferrokube",
        &[
            "apimachinery",
            "trace",
            "features",
            "storage",
            "etcd",
            "backup",
            "doctor",
            "envtest",
            "install",
            "migrate",
            "pki",
            "serve",
            "resource",
            "auth",
            "admission",
            "controlplane",
            "server",
            "resources",
            "client",
            "controllers",
            "feature-admin",
            "timeline",
            "workloads",
            "cluster",
            "cri",
            "images",
            "kubelet",
            "scheduler",
        ],
    ),
];

/// Third-party crates that only some of our crates may name.
const FENCES: &[(&str, &[&str])] = &[
    ("axum", &[]),
    ("compact_str", &["apimachinery"]),
    ("h2", &["serve", "etcd"]),
    ("hyper", &["serve", "client", "aggregator", "relay", "testkit"]),
    ("hyper-util", &["serve", "client", "aggregator", "relay", "testkit"]),
    ("jsonwebtoken", &["auth"]),
    ("k8s-openapi", &["client", "controllers", "kubelet", "scheduler"]),
    ("kube", &["client", "controllers", "feature-admin", "kubelet", "scheduler", "testing"]),
    ("opentelemetry", &["trace"]),
    ("opentelemetry-otlp", &["trace"]),
    ("opentelemetry_sdk", &["trace"]),
    ("rcgen", &["pki"]),
    ("reqwest", &["client", "testkit", "webhook"]),
    (
        "rustls",
        &[
            "serve",
            "client",
            "aggregator",
            "connect",
            "etcd",
            "ferrokube",
            "relay",
            "testkit",
            "webhook",
        ],
    ),
    (
        "serde_json",
        &[
            "apimachinery",
            "auth",
            "client",
            "controllers",
            "feature-admin",
            "images",
            "kubelet",
            "scheduler",
            "timeline",
            "testkit",
        ],
    ),
    ("tokio-rustls", &["serve", "client", "aggregator", "connect", "etcd", "testkit"]),
    ("tonic", &["cri", "etcd"]),
    ("tracing-subscriber", &["trace"]),
];

/// Each package's dependencies, without dev-dependencies.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    let of = |package: &Value| {
        package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .map(name)
            .collect()
    };
    packages.iter().map(|package| (name(package), of(package))).collect()
}

fn short(package: &str) -> &str {
    package.strip_prefix("ferrokube-").unwrap_or(package)
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    let mut wrong = Vec::new();
    let mut unused: BTreeSet<_> = EDGES
        .iter()
        .flat_map(|(name, allowed)| allowed.iter().map(|below| (*name, *below)))
        .collect();
    for (package, dependencies) in dependencies() {
        for dependency in &dependencies {
            unused.retain(|edge| *edge != (short(&package), short(dependency)));
        }
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == short(&package)) else {
            wrong.push(format!("{package} has no row in EDGES"));
            continue;
        };
        let ours =
            dependencies.iter().filter_map(|dependency| dependency.strip_prefix("ferrokube-"));
        wrong.extend(
            ours.filter(|dependency| !allowed.contains(dependency))
                .map(|dependency| format!("{package} -> {dependency}")),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(unused.is_empty(), "nobody uses these edges: {unused:#?}");
}

#[test]
fn third_party_crates_stay_behind_their_fences() {
    let mut wrong = Vec::new();
    for (package, dependencies) in dependencies() {
        for (fenced, allowed) in FENCES {
            if dependencies.contains(*fenced) && !allowed.contains(&short(&package)) {
                wrong.push(format!("{package} -> {fenced}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_allowed_edges_have_no_cycle() {
    let mut rows: Vec<_> = EDGES.to_vec();
    while !rows.is_empty() {
        let left: BTreeSet<_> = rows.iter().map(|(name, _)| *name).collect();
        let before = rows.len();
        rows.retain(|(_, allowed)| allowed.iter().any(|name| left.contains(name)));
        assert!(rows.len() < before, "a cycle among {left:?}");
    }
}

/// The function tables of `cel` know values and rows: no library names another, nor what runs it.
#[test]
fn the_function_tables_of_cel_are_independent() {
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib/cel/src/library");
    let mut wrong = Vec::new();
    let mut files = 0;
    for entry in fs::read_dir(tables).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        files += 1;
        wrong.extend(
            text.lines()
                .filter(|line| {
                    line.starts_with("use super::") && !line.starts_with("use super::function::")
                        || ["admission", "check", "evaluator", "library", "program"]
                            .iter()
                            .any(|module| line.contains(&format!("crate::{module}")))
                })
                .map(|line| format!("{}: {line}", path.display())),
        );
    }
    assert!(files > 10, "only {files} files");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// docs/dependencies.md says what each linked library is for.
#[test]
fn the_document_of_dependencies_names_each_of_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let document = fs::read_to_string(root.join("docs/dependencies.md")).unwrap();
    let used = document.split("## Ours").next().unwrap();
    let is_part = |char: char| char.is_alphanumeric() || matches!(char, '-' | '_');
    let named: BTreeSet<&str> = used.split(|char| !is_part(char)).collect();
    let linked: Vec<&str> = manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
        .filter(|name| !name.starts_with("ferrokube-"))
        .collect();
    assert!(linked.len() > 50, "{linked:?}");
    let missing: Vec<_> = linked.into_iter().filter(|name| !named.contains(name)).collect();
    assert!(missing.is_empty(), "not in docs/dependencies.md: {missing:?}");
}
