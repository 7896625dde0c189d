//! `--tracing-config-file`: strictly parses kube-apiserver's `TracingConfiguration`.

use anyhow::{Context, anyhow, bail};
use clap::Args;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::yaml;
use ferrokube_pki::files;
use ferrokube_trace::export::{Endpoint, ExportConfig, Sampler};
use std::path::{Path, PathBuf};

/// Span export flags.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Tracing")]
pub(crate) struct TracingFlags {
    /// Export spans according to this TracingConfiguration (endpoint, samplingRatePerMillion); an
    /// endpoint http://host:port uses OTLP over HTTP, any other gRPC. The OTEL_* variables supply
    /// what the file omits [default: no export]
    #[arg(long, value_name = "FILE")]
    tracing_config_file: Option<PathBuf>,
}

/// Equivalent API versions.
const VERSIONS: [&str; 3] = [
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
/// Sampling rate for all traces.
const MAX_RATE: i64 = 1_000_000;

impl TracingFlags {
    /// `None` without the flag. `service` names the role.
    pub(crate) fn config(&self, service: &str) -> anyhow::Result<Option<ExportConfig>> {
        let Some(path) = &self.tracing_config_file else { return Ok(None) };
        read(path, service).map(Some).with_context(|| format!("cannot use {}", path.display()))
    }
}

fn read(path: &Path, service: &str) -> anyhow::Result<ExportConfig> {
    let bytes = files::read(path)?.ok_or_else(|| anyhow!("file not found"))?;
    let (endpoint, rate) = parse(&bytes)?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let instance = format!("{}_{}", host.trim(), std::process::id());
    Ok(ExportConfig {
        endpoint,
        sampler: rate.map(Sampler::per_million),
        service: service.to_owned(),
        instance,
    })
}

/// Endpoint and sampling rate, if set.
fn parse(bytes: &[u8]) -> anyhow::Result<(Option<Endpoint>, Option<u32>)> {
    let decoded = yaml::read(bytes)?;
    let document: Document = decoded.document;
    if !VERSIONS.contains(&document.api_version()) || document.kind() != "TracingConfiguration" {
        bail!("not a TracingConfiguration of {}", VERSIONS.join(", "));
    }
    if let Some(duplicate) = decoded.duplicates.first() {
        bail!("duplicate field {duplicate}");
    }
    let known = ["kind", "apiVersion", "endpoint", "samplingRatePerMillion"];
    if let Some(unknown) = document.fields().keys().find(|field| !known.contains(&field.as_str())) {
        bail!("unknown field {unknown:?}");
    }
    let endpoint = match document.get(&["endpoint"]) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if text.is_empty() => None,
        Some(Value::String(text)) => Some(text.parse()?),
        Some(_) => bail!("endpoint must be a string"),
    };
    let rate = match document.get(&["samplingRatePerMillion"]) {
        None | Some(Value::Null) => None,
        Some(value) => {
            let rate = value.as_i64().filter(|rate| (0..=MAX_RATE).contains(rate));
            let rate = rate.and_then(|rate| u32::try_from(rate).ok());
            Some(rate.ok_or_else(|| {
                anyhow!("samplingRatePerMillion must be a number from 0 to {MAX_RATE}")
            })?)
        }
    };
    Ok((endpoint, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(fields: &str) -> anyhow::Result<(Option<Endpoint>, Option<u32>)> {
        parse(format!("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\n{fields}\n").as_bytes())
    }

    #[test]
    fn reads_the_format_of_kube_apiserver_strictly() {
        assert_eq!(parsed("").unwrap(), (None, None));
        assert_eq!(parsed("endpoint: ''").unwrap(), (None, None));
        let (endpoint, rate) =
            parsed("endpoint: http://127.0.0.1:4318\nsamplingRatePerMillion: 1000000").unwrap();
        assert!(matches!(endpoint, Some(Endpoint::Http(_))));
        assert_eq!(rate, Some(1_000_000));
        for wrong in [
            "endpoint: 5",
            "endpoint: tcp://x:1",
            "samplingRatePerMillion: -1",
            "samplingRatePerMillion: 1000001",
            "samplingRatePerMillion: many",
            "sampling: 1",
            "endpoint: a:1\nendpoint: b:1",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!(parse(b"apiVersion: v1\nkind: TracingConfiguration\n").is_err());
        assert!(parse(b"- a").is_err());
    }
}
