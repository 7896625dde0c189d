//! CPU cost of the schema's hot paths: `cargo run --release -p ferrokube-schema --example
//! schema_cost`.
//!
//! Prints microseconds per call of: parsing the tables; tracking a create, a merge patch and a
//! strategic merge patch of a 1 KiB object; an apply of a 4 KiB object with three managers (target:
//! 500).

use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_schema::Schema;
use ferrokube_schema::apply::{Manager, ManagerOperation, ResetFields, apply, track_update};
use ferrokube_schema::strategic::strategic_merge;
use ferrokube_schema::tables::Tables;
use ferrokube_schema::validate::{check_types, default, prune};
use std::hint::black_box;
use std::time::Instant;

const TABLE: &str = include_str!("../../resources/data/schema.tsv");
const CALLS: u32 = 5_000;

fn manager(name: &str, operation: ManagerOperation) -> Manager {
    Manager {
        name: name.to_owned(),
        operation,
        api_version: "v1".to_owned(),
        subresource: String::new(),
        time: "2024-01-02T03:04:05Z".to_owned(),
        ids_are_servers: true,
        other_versions: None,
    }
}

fn measure(what: &str, mut call: impl FnMut(u32)) {
    (0..CALLS / 10).for_each(&mut call);
    let started = Instant::now();
    (0..CALLS).for_each(&mut call);
    println!("{what:40} {:8.2} us", started.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
}

/// A configmap with `entries` values of 64 bytes.
fn config(entries: usize, mark: &str) -> Document {
    let data: serde_free::Map = (0..entries)
        .map(|number| (format!("key-{mark}-{number:03}"), Value::from("v".repeat(50))))
        .collect();
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": "a", "namespace": "n", "labels": {"app": "a", "tier": "b"}, "annotations": {"n": "1"}},
    });
    Document::from_value(object).expect("it is an object")
}

/// The map type under a short name.
mod serde_free {
    pub(super) type Map = ferrokube_apimachinery::document::Map;
}

fn prepared(schema: &Schema, reset: &ResetFields) -> Document {
    let mut live = config(10, "u");
    track_update(schema, reset, None, &mut live, &manager("updater", ManagerOperation::Update));
    for name in ["m1", "m2", "m3"] {
        let applied = config(16, name);
        live = apply(
            schema,
            reset,
            Some(&live),
            &applied,
            &manager(name, ManagerOperation::Apply),
            true,
        )
        .expect("it is well-formed");
    }
    live
}

fn main() {
    measure("tables: parse and build ConfigMap", |_| {
        let tables = Tables::parse(TABLE).expect("the table is well-formed");
        black_box(
            tables
                .get("io.k8s.api.core.v1.ConfigMap")
                .map(|schema| schema.properties["metadata"].schema.properties.len()),
        );
    });
    let tables = Tables::parse(TABLE).expect("the table is well-formed");
    let schema = tables.get("io.k8s.api.core.v1.ConfigMap").expect("it is in the table");
    let reset = ResetFields::default();
    let small = config(14, "k");
    let value = small.clone().into_value();
    measure("clone of a 1 KiB object", |_| _ = black_box(small.clone()));
    measure("check_types", |_| _ = black_box(check_types(&schema, &value)));
    measure("clone, prune, default", |_| {
        let mut object = small.clone();
        black_box(prune(&schema, &mut object));
        default(&schema, &mut object);
    });
    measure("clone, track a create", |_| {
        let mut object = small.clone();
        track_update(&schema, &reset, None, &mut object, &manager("m", ManagerOperation::Update));
        black_box(&object);
    });
    let mut stored = small.clone();
    track_update(&schema, &reset, None, &mut stored, &manager("m", ManagerOperation::Update));
    let patch = Document::from_value(json!({"data": {"key-k-001": "w", "new": "1"}}))
        .expect("it is an object");
    measure("clone, strategic merge, track", |_| {
        let mut object = stored.clone();
        strategic_merge(&schema, &mut object, &patch).expect("it is well-formed");
        track_update(
            &schema,
            &reset,
            Some(&stored),
            &mut object,
            &manager("p", ManagerOperation::Update),
        );
        black_box(&object);
    });
    let live = prepared(&schema, &reset);
    println!("live object with managers: {} bytes", live.clone().into_value().to_string().len());
    let applied: Vec<Document> = ["m1", "other"].into_iter().map(|mark| config(16, mark)).collect();
    measure("apply, nothing changes", |_| {
        _ = black_box(apply(
            &schema,
            &reset,
            Some(&live),
            &applied[0],
            &manager("m1", ManagerOperation::Apply),
            true,
        ))
    });
    measure("apply, 16 fields replaced by 16 others", |_| {
        _ = black_box(apply(
            &schema,
            &reset,
            Some(&live),
            &applied[1],
            &manager("m1", ManagerOperation::Apply),
            true,
        ));
    });
}
