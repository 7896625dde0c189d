//! The KubeletConfiguration file: read as kubelet reads it, then defaults and checks.
//!
//! Unknown and repeated fields are dropped with a warning, as kubelet does for v1beta1. A field of
//! the wrong type is an error. A field that is not implemented here is named in a warning, never
//! silently ignored.

pub(crate) mod dns;
mod eviction;
mod fields;
mod housekeeping;
mod server;
mod taints;

use crate::eviction::threshold::EvictionPolicy;
use dns::ClusterDns;
pub use eviction::EvictionSettings;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::yaml;
use ferrokube_images::{CredentialVerification, ImageCollection, PullConfig};
use fields::{ConfigFieldType, UNUSED, USED};
pub use housekeeping::{HousekeepingSettings, LogRotation};
pub use server::{ServerConfig, ServerSettings};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
pub use taints::NodeTaint;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";
/// Max processes of a pod unless configured. kubelet has no limit: any pod can end its node.
const POD_PIDS: i64 = 4096;

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum KubeletConfigError {
    /// Not a KubeletConfiguration.
    #[error("failed to decode: {0}")]
    Decode(String),
    /// All invalid or contradictory values.
    #[error("{}", list(.0))]
    Invalid(Vec<String>),
}

/// Formats several errors as Go does.
fn list(errors: &[String]) -> String {
    match errors {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

/// Settings that flags may replace; `None`: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletSettings {
    /// The runtime's socket.
    pub container_runtime_endpoint: Option<String>,
    /// The image service's socket, if it is a different one.
    pub image_service_endpoint: Option<String>,
    /// Directory of static pods.
    pub static_pod_path: Option<String>,
    /// Interval between scans of it.
    pub file_check_frequency: Option<Duration>,
    /// Directory of the containers' logs.
    pub pod_logs_dir: Option<String>,
    /// Limit of a runtime call.
    pub runtime_request_timeout: Option<Duration>,
    /// One pull at a time.
    pub serialize_image_pulls: Option<bool>,
    /// Pulls in parallel; 0: no limit.
    pub max_parallel_image_pulls: Option<i64>,
    /// The same by the name of the proposal.
    pub max_parallel_image_pulling: Option<i64>,
    /// Pulls per second; 0: no limit.
    pub registry_pull_qps: Option<i64>,
    /// Pulls above the rate.
    pub registry_burst: Option<i64>,
    /// Whether the client certificate of a bootstrap is renewed.
    pub rotate_certificates: Option<bool>,
    /// Whether to create the Node object.
    pub register_node: Option<bool>,
    /// Taints that it is created with.
    pub register_with_taints: Option<Vec<NodeTaint>>,
    /// Max number of pods.
    pub max_pods: Option<i64>,
    /// Max number of a pod's processes; not positive: no limit.
    pub pod_pids_limit: Option<i64>,
    /// Interval at which the node status is computed.
    pub node_status_update_frequency: Option<Duration>,
    /// Interval at which an unchanged node status is written.
    pub node_status_report_frequency: Option<Duration>,
    /// Duration of the node's lease.
    pub node_lease_duration_seconds: Option<i64>,
    /// Name servers of the cluster.
    pub cluster_dns: Option<Vec<String>>,
    /// Domain of its services.
    pub cluster_domain: Option<String>,
    /// The node's own resolver.
    pub resolv_conf: Option<String>,
    /// Settings of the kubelet's own server.
    pub server: ServerSettings,
    /// Settings of what the kubelet cleans up.
    pub housekeeping: HousekeepingSettings,
}

/// A parsed file, and its warnings.
#[derive(Debug, Default)]
pub struct KubeletConfigFile {
    /// Values.
    pub settings: KubeletSettings,
    /// For the log.
    pub warnings: Vec<String>,
}

/// A checked configuration, with defaults.
#[derive(Clone, Debug)]
pub struct KubeletConfig {
    /// The runtime's socket.
    pub container_runtime_endpoint: String,
    /// The image service's.
    pub image_service_endpoint: String,
    /// Directory of static pods, if any.
    pub static_pod_path: Option<String>,
    /// Interval between scans of it.
    pub file_check_frequency: Duration,
    /// Directory of the containers' logs.
    pub pod_logs_dir: String,
    /// Limit of a runtime call.
    pub runtime_request_timeout: Duration,
    /// Bounds of image pulls.
    pub pulls: PullConfig,
    /// Whether the client certificate of a bootstrap is renewed; `None`: if there is a bootstrap.
    pub rotate_certificates: Option<bool>,
    /// Whether to create the Node object.
    pub register_node: bool,
    /// Taints that it is created with.
    pub register_with_taints: Vec<NodeTaint>,
    /// Max number of pods.
    pub max_pods: u32,
    /// Max number of a pod's processes.
    pub pod_pids_limit: Option<u64>,
    /// Whether it was configured, so that the kubelet must enforce it.
    pub is_pids_limit_given: bool,
    /// Interval at which the node status is computed.
    pub node_status_update_frequency: Duration,
    /// Interval at which an unchanged node status is written.
    pub node_status_report_frequency: Duration,
    /// Duration of the node's lease.
    pub node_lease_duration: Duration,
    /// The kubelet's own server; `None`: there is none.
    pub server: Option<ServerConfig>,
    /// Rotation of the containers' logs.
    pub log_rotation: LogRotation,
    /// When unused images are removed.
    pub image_collection: ImageCollection,
    /// Images that pods may use only if they may pull them.
    pub image_verification: CredentialVerification,
    /// When pods are evicted.
    pub eviction: EvictionPolicy,
    /// Where pods resolve names.
    pub(crate) dns: ClusterDns,
}

impl KubeletConfigFile {
    /// Reads a file: YAML or JSON.
    ///
    /// # Errors
    /// [`KubeletConfigError::Decode`].
    pub fn parse(body: &[u8]) -> Result<Self, KubeletConfigError> {
        let decode = |why: String| KubeletConfigError::Decode(why);
        let decoded = yaml::read(body).map_err(|error| decode(error.to_string()))?;
        let document = decoded.document;
        check_kind(&document, body)?;
        let mut strict = yaml::repeated_keys(body);
        if strict.is_empty() {
            let known = decoded.duplicates.iter();
            strict.extend(known.map(|path| format!("duplicate field {path:?}")));
        }
        let mut file = Self::default();
        for (name, value) in document.fields().iter() {
            let name: &str = name.as_ref();
            if matches!(name, "apiVersion" | "kind") || value.is_null() {
                continue;
            }
            let by_name = |(known, _): &&(&str, ConfigFieldType)| *known == name;
            if let Some((name, kind)) = USED.iter().find(by_name) {
                check_type(name, *kind, value).map_err(decode)?;
                file.settings.set(name, value).map_err(decode)?;
            } else if let Some((name, kind)) = UNUSED.iter().find(by_name) {
                check_type(name, *kind, value).map_err(decode)?;
                file.warnings.push(format!("{name} has no effect in this version"));
            } else {
                strict.push(format!("unknown field {name:?}"));
            }
        }
        if !strict.is_empty() {
            file.warnings.push(format!(
                "Using lenient decoding as strict decoding failed: strict decoding error: {}",
                strict.join(", ")
            ));
        }
        Ok(file)
    }
}

fn check_kind(document: &Document, body: &[u8]) -> Result<(), KubeletConfigError> {
    let (version, kind) = (document.api_version(), document.kind());
    let shown = || go::summary(body);
    let why = if kind.is_empty() {
        format!("Object 'Kind' is missing in '{}'", shown())
    } else if version.is_empty() {
        format!("Object 'apiVersion' is missing in '{}'", shown())
    } else if version != API_VERSION || kind != KIND {
        format!("no kind {kind:?} is registered for version {version:?}")
    } else {
        return Ok(());
    };
    Err(KubeletConfigError::Decode(why))
}

/// Refuses a value as Go's decoder does.
fn check_type(name: &str, kind: ConfigFieldType, value: &Value) -> Result<(), String> {
    let is_list_of = |is_item: fn(&Value) -> bool| {
        value.as_array().is_some_and(|items| items.as_slice().iter().all(is_item))
    };
    let (fits, go_type) = match kind {
        ConfigFieldType::Bool => (value.is_boolean(), "bool"),
        ConfigFieldType::Int32 => {
            (value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()), "int32")
        }
        ConfigFieldType::Int64 => (value.is_i64(), "int64"),
        ConfigFieldType::Float => (value.is_number(), "float64"),
        ConfigFieldType::Text => (value.is_string(), "string"),
        ConfigFieldType::Duration => {
            let text = value.as_str().ok_or_else(|| unfit(name, value, "v1.Duration"))?;
            return duration(text).map(drop);
        }
        ConfigFieldType::Texts => (is_list_of(Value::is_string), "[]string"),
        ConfigFieldType::Numbers => (is_list_of(Value::is_i64), "[]int32"),
        ConfigFieldType::Object => (value.is_object(), "map[string]interface {}"),
        ConfigFieldType::Objects => (is_list_of(Value::is_object), "[]map[string]interface {}"),
    };
    if fits { Ok(()) } else { Err(unfit(name, value, go_type)) }
}

fn unfit(name: &str, value: &Value, go_type: &str) -> String {
    let given = if value.is_number() {
        format!("number {}", String::from_utf8_lossy(&json::to_vec(value)))
    } else if value.is_string() {
        "string".to_owned()
    } else if value.is_boolean() {
        "bool".to_owned()
    } else if value.is_array() {
        "array".to_owned()
    } else {
        "object".to_owned()
    };
    format!("json: cannot unmarshal {given} into Go struct field {KIND}.{name} of type {go_type}")
}

/// A Go duration of whole nanoseconds: `1m30s`, `1.5h`, `100ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || go::duration_fault(text);
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let (number, unit) = rest.split_at(digits.ok_or_else(wrong)?);
        let end = unit.find(|letter: char| letter.is_ascii_digit() || letter == '.');
        let (unit, next) = unit.split_at(end.unwrap_or(unit.len()));
        let scale = match unit {
            "ns" => 1e-9,
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        seconds += number.parse::<f64>().map_err(|_| wrong())? * scale;
        rest = next;
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

impl KubeletSettings {
    /// Sets a field of [`USED`], whose type was checked.
    fn set(&mut self, name: &str, value: &Value) -> Result<(), String> {
        if self.server.set(name, value)? || self.housekeeping.set(name, value)? {
            return Ok(());
        }
        // An empty text or a zero duration is unset, as in Go.
        let text = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let number = value.as_i64();
        let time = match (name, &text) {
            (
                "fileCheckFrequency"
                | "nodeStatusReportFrequency"
                | "nodeStatusUpdateFrequency"
                | "runtimeRequestTimeout",
                Some(text),
            ) => Some(duration(text)?).filter(|time| !time.is_zero()),
            _ => None,
        };
        match name {
            "containerRuntimeEndpoint" => self.container_runtime_endpoint = text,
            "imageServiceEndpoint" => self.image_service_endpoint = text,
            "clusterDNS" => {
                let all = value.as_array().into_iter().flat_map(|all| all.as_slice().iter());
                let all: Vec<String> = all.filter_map(Value::as_str).map(str::to_owned).collect();
                self.cluster_dns = Some(all).filter(|all| !all.is_empty());
            }
            "clusterDomain" => self.cluster_domain = text,
            "resolvConf" => self.resolv_conf = text,
            "staticPodPath" => self.static_pod_path = text,
            "fileCheckFrequency" => self.file_check_frequency = time,
            "podLogsDir" => self.pod_logs_dir = text,
            "runtimeRequestTimeout" => self.runtime_request_timeout = time,
            "serializeImagePulls" => self.serialize_image_pulls = value.as_bool(),
            "maxParallelImagePulls" => self.max_parallel_image_pulls = number,
            "maxParallelImagePulling" => self.max_parallel_image_pulling = number,
            "registryPullQPS" => self.registry_pull_qps = number,
            "rotateCertificates" => self.rotate_certificates = value.as_bool(),
            "registerNode" => self.register_node = value.as_bool(),
            "registerWithTaints" => self.register_with_taints = Some(NodeTaint::read_all(value)?),
            "maxPods" => self.max_pods = number.filter(|pods| *pods != 0),
            "podPidsLimit" => self.pod_pids_limit = number,
            "nodeLeaseDurationSeconds" => {
                self.node_lease_duration_seconds = number.filter(|seconds| *seconds != 0);
            }
            "nodeStatusReportFrequency" => self.node_status_report_frequency = time,
            "nodeStatusUpdateFrequency" => self.node_status_update_frequency = time,
            "registryBurst" => self.registry_burst = number.filter(|burst| *burst != 0),
            other => return Err(format!("{other} is not read")),
        }
        Ok(())
    }

    /// These settings, with unset ones taken from `below`: flags over a file.
    pub fn over(self, below: Self) -> Self {
        // Of the two names, a flag's replaces both of the file.
        let has_limit =
            self.max_parallel_image_pulls.is_some() || self.max_parallel_image_pulling.is_some();
        let below_limit = |limit: Option<i64>| limit.filter(|_| !has_limit);
        Self {
            container_runtime_endpoint: self
                .container_runtime_endpoint
                .or(below.container_runtime_endpoint),
            image_service_endpoint: self.image_service_endpoint.or(below.image_service_endpoint),
            static_pod_path: self.static_pod_path.or(below.static_pod_path),
            file_check_frequency: self.file_check_frequency.or(below.file_check_frequency),
            pod_logs_dir: self.pod_logs_dir.or(below.pod_logs_dir),
            runtime_request_timeout: self.runtime_request_timeout.or(below.runtime_request_timeout),
            serialize_image_pulls: self.serialize_image_pulls.or(below.serialize_image_pulls),
            max_parallel_image_pulls: self
                .max_parallel_image_pulls
                .or(below_limit(below.max_parallel_image_pulls)),
            max_parallel_image_pulling: self
                .max_parallel_image_pulling
                .or(below_limit(below.max_parallel_image_pulling)),
            registry_pull_qps: self.registry_pull_qps.or(below.registry_pull_qps),
            registry_burst: self.registry_burst.or(below.registry_burst),
            rotate_certificates: self.rotate_certificates.or(below.rotate_certificates),
            register_node: self.register_node.or(below.register_node),
            register_with_taints: self.register_with_taints.or(below.register_with_taints),
            max_pods: self.max_pods.or(below.max_pods),
            pod_pids_limit: self.pod_pids_limit.or(below.pod_pids_limit),
            node_status_update_frequency: self
                .node_status_update_frequency
                .or(below.node_status_update_frequency),
            node_status_report_frequency: self
                .node_status_report_frequency
                .or(below.node_status_report_frequency),
            node_lease_duration_seconds: self
                .node_lease_duration_seconds
                .or(below.node_lease_duration_seconds),
            cluster_dns: self.cluster_dns.or(below.cluster_dns),
            cluster_domain: self.cluster_domain.or(below.cluster_domain),
            resolv_conf: self.resolv_conf.or(below.resolv_conf),
            server: self.server.over(below.server),
            housekeeping: self.housekeeping.over(below.housekeeping),
        }
    }

    /// Checks the settings and adds defaults: kubelet's.
    ///
    /// # Errors
    /// [`KubeletConfigError::Invalid`].
    pub fn finish(self) -> Result<KubeletConfig, KubeletConfigError> {
        let mut errors = Vec::new();
        let mut wrong = |text: String| errors.push(format!("invalid configuration: {text}"));
        let limit = match (self.max_parallel_image_pulls, self.max_parallel_image_pulling) {
            (Some(one), Some(other)) if one != other => {
                wrong(format!(
                    "maxParallelImagePulls {one} and its alias maxParallelImagePulling {other} \
                     must not differ"
                ));
                Some(one)
            }
            (one, other) => one.or(other),
        };
        if let Some(limit) = limit.filter(|limit| *limit < 0) {
            wrong(format!("maxParallelImagePulls {limit} must be a positive number"));
        }
        // As kubelet's defaults: a limit of two or more means parallel pulls.
        let is_serial =
            self.serialize_image_pulls.unwrap_or_else(|| limit.is_none_or(|limit| limit < 2));
        if is_serial && limit.is_some_and(|limit| limit > 1) {
            wrong(
                "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls \
                 (--serialize-image-pulls) is set to false"
                    .to_owned(),
            );
        }
        let burst = self.registry_burst.unwrap_or(10);
        if burst < 0 {
            wrong(format!(
                "registryBurst (--registry-burst) {burst} must not be a negative number"
            ));
        }
        let qps = self.registry_pull_qps.unwrap_or(5);
        if qps < 0 {
            wrong(format!("registryPullQPS (--registry-qps) {qps} must not be a negative number"));
        }
        let max_pods = self.max_pods.unwrap_or(110);
        if max_pods < 0 {
            wrong(format!("maxPods (--max-pods) {max_pods} must not be a negative number"));
        }
        let lease = self.node_lease_duration_seconds.unwrap_or(40);
        if lease <= 0 {
            wrong("nodeLeaseDurationSeconds must be greater than 0".to_owned());
        }
        let server = self.server.finish(&mut wrong);
        let log_rotation = self.housekeeping.log_rotation(&mut wrong);
        let image_collection = self.housekeeping.image_collection(&mut wrong);
        let image_verification = self.housekeeping.image_verification(&mut wrong);
        for server in self.cluster_dns.iter().flatten() {
            if server.parse::<IpAddr>().is_err() {
                wrong(format!("clusterDNS: {server:?} is not an IP address"));
            }
        }
        let dns = dns(self.cluster_dns, self.cluster_domain, self.resolv_conf);
        let eviction = self.housekeeping.eviction.finish(&mut wrong);
        if !errors.is_empty() {
            return Err(KubeletConfigError::Invalid(errors));
        }
        // Checked above; 32 bits, as decoded.
        let number = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
        let runtime = "unix:///run/containerd/containerd.sock".to_owned();
        let runtime = self.container_runtime_endpoint.unwrap_or(runtime);
        Ok(KubeletConfig {
            image_service_endpoint: self.image_service_endpoint.unwrap_or_else(|| runtime.clone()),
            container_runtime_endpoint: runtime,
            static_pod_path: self.static_pod_path,
            file_check_frequency: self.file_check_frequency.unwrap_or(Duration::from_secs(20)),
            pod_logs_dir: self.pod_logs_dir.unwrap_or_else(|| "/var/log/pods".to_owned()),
            runtime_request_timeout: self
                .runtime_request_timeout
                .unwrap_or(Duration::from_secs(120)),
            pulls: PullConfig {
                is_serial,
                is_serial_without_limit: self.serialize_image_pulls.is_none(),
                max_parallel: limit.map(number),
                registry_qps: number(qps),
                registry_burst: number(burst),
                ..PullConfig::default()
            },
            rotate_certificates: self.rotate_certificates,
            register_node: self.register_node.unwrap_or(true),
            register_with_taints: self.register_with_taints.unwrap_or_default(),
            max_pods: number(max_pods),
            pod_pids_limit: positive(self.pod_pids_limit.unwrap_or(POD_PIDS)),
            is_pids_limit_given: self.pod_pids_limit.is_some(),
            node_status_update_frequency: self
                .node_status_update_frequency
                .unwrap_or(Duration::from_secs(10)),
            node_status_report_frequency: self
                .node_status_report_frequency
                .unwrap_or(Duration::from_secs(300)),
            node_lease_duration: Duration::from_secs(u64::from(number(lease))),
            server,
            log_rotation,
            image_collection,
            image_verification,
            eviction,
            dns,
        })
    }
}

/// `None`: no limit.
fn positive(limit: i64) -> Option<u64> {
    u64::try_from(limit).ok().filter(|limit| *limit > 0)
}

fn dns(servers: Option<Vec<String>>, domain: Option<String>, file: Option<String>) -> ClusterDns {
    let default = ClusterDns::default();
    ClusterDns {
        servers: servers.unwrap_or_default(),
        domain: domain.unwrap_or(default.domain),
        resolv_conf: file.map_or(default.resolv_conf, PathBuf::from),
    }
}
