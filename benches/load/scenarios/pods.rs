//! Pods, on servers of the profile `kubernetes` that are started for it.

use super::list::repeat;
use super::start::binary;
use super::{LoadPlan, Measuring, Scenario};
use crate::connection::LoadRequest;
use crate::measure::Sample;
use crate::namespace::{BenchNamespace, JSON};
use crate::process::OwnServer;
use crate::target::LoadTarget;
use std::sync::Arc;

/// Connections that create what is listed.
const WRITERS: usize = 16;
/// Environment variables that make a Pod of about 4 KiB as stored JSON.
const VARIABLES: usize = 36;

pub(crate) const ALL: &[Scenario] = &[
    Scenario {
        name: "pod-create",
        what: "creates of a Pod of one container, as by kubectl run",
        starts: true,
        run: |space, plan| {
            Box::pin(async {
                let own = PodServer::start(space).await?;
                let sample = own.create(plan.requests, plan.connections, 0).await?;
                own.server.stop().await?;
                Ok(sample)
            })
        },
    },
    Scenario {
        name: "pod-list",
        what: "LIST of --objects Pods of 4 KiB, and CPU for each byte next to ConfigMaps of 4 KiB",
        starts: true,
        run: lists,
    },
];

/// A server with a namespace for Pods.
struct PodServer {
    server: OwnServer,
    space: BenchNamespace,
}

impl PodServer {
    async fn start(space: &BenchNamespace) -> anyhow::Result<Self> {
        let binary = binary(space)?.with_flag("--profile=kubernetes");
        let server = OwnServer::start(Arc::new(binary)).await?;
        let space = BenchNamespace::make(Arc::new(LoadTarget::of(&server)?)).await?;
        Ok(Self { server, space })
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.space.name)
    }

    async fn create(
        &self,
        count: usize,
        connections: usize,
        variables: usize,
    ) -> anyhow::Result<Sample> {
        let path = self.pods();
        let write = move |number| {
            LoadRequest::write("POST", path.clone(), JSON, pod(&format!("p{number}"), variables))
        };
        self.space.load(count, connections, write).await
    }
}

fn lists<'a>(space: &'a BenchNamespace, plan: &'a LoadPlan) -> Measuring<'a> {
    Box::pin(async {
        let own = PodServer::start(space).await?;
        own.create(plan.objects, WRITERS, VARIABLES).await?;
        let mut pods = repeat(&own.space, LoadRequest::get(own.pods())).await?;
        let path = own.space.objects();
        let write = move |number| {
            LoadRequest::write("POST", path.clone(), JSON, config_map(&format!("m{number}")))
        };
        own.space.load(plan.objects, WRITERS, write).await?;
        let maps = repeat(&own.space, LoadRequest::get(own.space.objects())).await?;
        pods.figures.extend([("ns/byte", per_byte(&pods)), ("map-ns/byte", per_byte(&maps))]);
        own.server.stop().await?;
        Ok(pods)
    })
}

/// CPU nanoseconds for each byte of a list.
fn per_byte(sample: &Sample) -> f64 {
    let megabytes = sample.figures.iter().find(|(name, _)| *name == "MB");
    sample.cpu_ms() / megabytes.map_or(f64::NAN, |(_, megabytes)| *megabytes)
}

fn pod(name: &str, variables: usize) -> String {
    let variables: Vec<_> = (0..variables)
        .map(|number| format!(r#"{{"name":"VARIABLE_{number}","value":"{}"}}"#, "x".repeat(50)))
        .collect();
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{name}","labels":{{"run":"{name}"}}}},"spec":{{"containers":[{{"name":"{name}","image":"registry.example.com/app:1","env":[{}]}}]}}}}"#,
        variables.join(",")
    )
}

/// About as long as a Pod that is listed.
fn config_map(name: &str) -> String {
    format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"{name}"}},"data":{{"value":"{}"}}}}"#,
        "x".repeat(3800)
    )
}
