//! Custom resources: objects of 20 fields and 1.1 KB, and the time until a new definition accepts
//! its first object.

use super::{LoadPlan, Measuring, Scenario};
use crate::connection::{LoadConnection, LoadRequest};
use crate::measure::{Sample, cpu};
use crate::namespace::{BenchNamespace, JSON, MERGE, unique};
use anyhow::{bail, ensure};
use std::time::{Duration, Instant};

const GROUP: &str = "load.example.com";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "custom-first",
        what: "a new CustomResourceDefinition: until its first object is stored",
        starts: false,
        run: first,
    },
    Scenario {
        name: "custom-create",
        what: "creates of a custom object with 20 fields, 1.1 KB",
        starts: false,
        run: creates,
    },
    Scenario {
        name: "custom-patch",
        what: "merge patches of such objects, each of another",
        starts: false,
        run: patches,
    },
    Scenario {
        name: "custom-one",
        what: "merge patches of one such object by 64 clients",
        starts: false,
        run: one,
    },
    Scenario {
        name: "custom-table",
        what: "Table of --objects such objects",
        starts: false,
        run: table,
    },
    Scenario {
        name: "custom-list",
        what: "LIST of --objects such objects",
        starts: false,
        run: list,
    },
];

/// A definition created for a measurement.
pub(crate) struct BenchDefinition {
    plural: String,
}

impl BenchDefinition {
    /// Creates the definition and waits until it accepts an object, which is deleted again. Returns
    /// how long that took.
    pub(crate) async fn make(
        space: &BenchNamespace,
        connection: &mut LoadConnection,
    ) -> anyhow::Result<(Self, Duration)> {
        let definition = Self { plural: unique().replace('-', "x") };
        let begun = Instant::now();
        connection
            .send(&LoadRequest::write("POST", DEFINITIONS, JSON, definition.manifest()))
            .await?;
        let probe =
            LoadRequest::write("POST", definition.path(space), JSON, definition.object("probe"));
        loop {
            let (status, body) = connection.ask(&probe).await?;
            if status.is_success() {
                break;
            }
            // 404 means not served yet; any other error is permanent.
            ensure!(
                status == http::StatusCode::NOT_FOUND,
                "the first object was answered with {status}: {}",
                String::from_utf8_lossy(&body)
            );
            if begun.elapsed() > Duration::from_secs(60) {
                bail!("no object was accepted within 60 s");
            }
        }
        let took = begun.elapsed();
        connection.send(&LoadRequest::delete(format!("{}/probe", definition.path(space)))).await?;
        Ok((definition, took))
    }

    /// Deletes the definition with its objects.
    pub(crate) async fn remove(&self, connection: &mut LoadConnection) -> anyhow::Result<()> {
        connection
            .send(&LoadRequest::delete(format!("{DEFINITIONS}/{}.{GROUP}", self.plural)))
            .await
            .map(drop)
    }

    /// Creates `count` objects.
    pub(crate) async fn fill(
        &self,
        space: &BenchNamespace,
        count: usize,
        connections: usize,
    ) -> anyhow::Result<Sample> {
        let (path, whole) = (self.path(space), self.object("NAME"));
        space
            .load(count, connections, move |index| {
                LoadRequest::write(
                    "POST",
                    path.clone(),
                    JSON,
                    whole.replace("NAME", &format!("o{index}")),
                )
            })
            .await
    }

    /// Path of the objects.
    pub(crate) fn path(&self, space: &BenchNamespace) -> String {
        format!("/apis/{GROUP}/v1/namespaces/{}/{}", space.name, self.plural)
    }

    fn kind(&self) -> String {
        format!("L{}", &self.plural[1..])
    }

    fn manifest(&self) -> String {
        let (plural, kind) = (&self.plural, self.kind());
        let fields: Vec<String> =
            (0..20).map(|index| format!("\"{}\":{}", field(index), schema(index))).collect();
        format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"{plural}.{GROUP}"}},"spec":{{"group":"{GROUP}","scope":"Namespaced","names":{{"plural":"{plural}","singular":"{plural}","kind":"{kind}","listKind":"{kind}List"}},"versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{{"type":"object","properties":{{"spec":{{"type":"object","required":["field0"],"properties":{{{}}}}}}}}}}}}}]}}}}"#,
            fields.join(",")
        )
    }

    /// An object of 1.1 KB.
    pub(crate) fn object(&self, name: &str) -> String {
        let fields: Vec<String> =
            (0..20).map(|index| format!("\"{}\":{}", field(index), value(index))).collect();
        let kind = self.kind();
        format!(
            r#"{{"apiVersion":"{GROUP}/v1","kind":"{kind}","metadata":{{"name":"{name}"}},"spec":{{{}}}}}"#,
            fields.join(",")
        )
    }
}

fn field(index: usize) -> String {
    format!("field{index}")
}

/// Strings, numbers, enumerations, lists and objects in turn.
fn schema(index: usize) -> &'static str {
    match index % 5 {
        0 => r#"{"type":"string","minLength":1,"maxLength":200}"#,
        1 => r#"{"type":"integer","minimum":0,"maximum":100000}"#,
        2 => r#"{"type":"string","enum":["red","green","blue"]}"#,
        3 => r#"{"type":"array","items":{"type":"string"},"maxItems":8}"#,
        _ => {
            r#"{"type":"object","properties":{"host":{"type":"string"},"port":{"type":"integer"},"on":{"type":"boolean"}}}"#
        }
    }
}

fn value(index: usize) -> String {
    match index % 5 {
        0 => format!("\"{}\"", "t".repeat(100)),
        1 => format!("{}", 1000 + index),
        2 => "\"green\"".to_owned(),
        3 => r#"["one","two","three"]"#.to_owned(),
        _ => format!(r#"{{"host":"node-{index}.example.com","port":8443,"on":true}}"#),
    }
}

fn first<'a>(space: &'a BenchNamespace, _: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let mut connection = space.connect().await?;
        let before = cpu(&space.target.pids);
        let (definition, took) = BenchDefinition::make(space, &mut connection).await?;
        let cpu = cpu(&space.target.pids).since(before);
        definition.remove(&mut connection).await?;
        Ok(Sample { count: 1, wall: took, cpu, latencies: vec![took], figures: Vec::new() })
    })
}

/// Runs with a definition that has `count` objects.
async fn with_objects(
    space: &BenchNamespace,
    count: usize,
    connections: usize,
) -> anyhow::Result<(BenchDefinition, Sample)> {
    let (definition, _) = BenchDefinition::make(space, &mut space.connect().await?).await?;
    let sample = definition.fill(space, count, connections).await?;
    Ok((definition, sample))
}

fn creates<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let (definition, sample) = with_objects(space, plan.requests, plan.connections).await?;
        definition.remove(&mut space.connect().await?).await?;
        Ok(sample)
    })
}

fn patches<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let (definition, _) = with_objects(space, plan.requests, plan.connections).await?;
        let path = definition.path(space);
        let ask = move |index: usize| {
            LoadRequest::write(
                "PATCH",
                format!("{path}/o{index}"),
                MERGE,
                format!(r#"{{"spec":{{"field1":{index}}}}}"#),
            )
        };
        let sample = space.load(plan.requests, plan.connections, ask).await?;
        definition.remove(&mut space.connect().await?).await?;
        Ok(sample)
    })
}

/// Clients writing the same object.
const RIVALS: usize = 64;

fn one<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let (definition, _) = with_objects(space, 1, 1).await?;
        let path = format!("{}/o0", definition.path(space));
        let ask = move |index: usize| {
            LoadRequest::write(
                "PATCH",
                path.clone(),
                MERGE,
                format!(r#"{{"spec":{{"field1":{}}}}}"#, index % 100_000),
            )
        };
        let sample = space.load(plan.requests, RIVALS, ask).await?;
        definition.remove(&mut space.connect().await?).await?;
        Ok(sample)
    })
}

fn table<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let (definition, _) = with_objects(space, plan.objects, plan.connections).await?;
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let sample = super::list::repeat(
            space,
            LoadRequest { accept, ..LoadRequest::get(definition.path(space)) },
        )
        .await?;
        definition.remove(&mut space.connect().await?).await?;
        Ok(sample)
    })
}

fn list<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let (definition, _) = with_objects(space, plan.objects, plan.connections).await?;
        let sample = super::list::repeat(space, LoadRequest::get(definition.path(space))).await?;
        definition.remove(&mut space.connect().await?).await?;
        Ok(sample)
    })
}
