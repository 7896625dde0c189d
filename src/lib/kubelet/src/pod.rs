//! A pod of this node: from a file or from the API server.

use crate::supported::unsupported;
use ferrokube_apimachinery::{json, yaml};
use ferrokube_images::PodIdentity;
use ferrokube_trace::TraceContext;
use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};

/// Annotation of mirror pods: the UID of the static pod.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod to run.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// For a static pod the digest of its file, so that a changed file is a new pod.
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) spec: PodSpec,
    pub(crate) ephemeral: Vec<EphemeralTarget>,
    pub(crate) is_static: bool,
    /// `status.startTime` of the API in nanoseconds since 1970: when a kubelet first had the pod.
    pub(crate) started_at: Option<i64>,
    /// Conditions in the API that its readiness gates name, with their status if there is one.
    pub(crate) gates: Vec<(String, Option<String>)>,
    /// Resources that the last kubelet has reported in the API, by id of the container.
    pub(crate) reported: BTreeMap<String, ResourceRequirements>,
}

/// An ephemeral container, which a user adds to a running pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EphemeralTarget {
    pub(crate) container: Container,
    /// The container whose processes it sees.
    pub(crate) target: Option<String>,
}

/// A pod that cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum NodePodError {
    /// A file that is not readable.
    #[error("cannot read it")]
    Read(#[source] io::Error),
    /// Neither YAML nor JSON of a pod.
    #[error("not a pod: {0}")]
    Decode(String),
    /// Fields that are not implemented.
    #[error("not implemented: {}", .0.join(", "))]
    Unsupported(Vec<String>),
    /// Wrong values.
    #[error("{0}")]
    Invalid(String),
}

impl NodePod {
    /// Parses a static pod, and appends the node's name to its name.
    ///
    /// # Errors
    /// [`NodePodError`].
    pub fn from_file(body: &[u8], node: &str) -> Result<Self, NodePodError> {
        let decode = NodePodError::Decode;
        let decoded = yaml::read(body).map_err(|error| decode(error.to_string()))?;
        let document = decoded.document;
        if (document.api_version(), document.kind()) != ("v1", "Pod") {
            return Err(decode(format!("{} {}", document.api_version(), document.kind())));
        }
        if !decoded.duplicates.is_empty() {
            return Err(decode(format!("repeated: {}", decoded.duplicates.join(", "))));
        }
        let value = document.into_value();
        let unsupported = unsupported(&value);
        if !unsupported.is_empty() {
            return Err(NodePodError::Unsupported(unsupported));
        }
        let bytes = json::to_vec(&value);
        let pod: Pod = serde_json::from_slice(&bytes).map_err(|error| decode(error.to_string()))?;
        let meta = pod.metadata;
        let spec = pod.spec.unwrap_or_default();
        check(meta.name.as_deref().unwrap_or_default(), &spec)?;
        let digest = Sha256::new().chain_update(node).chain_update(&bytes).finalize();
        let uid: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let mut annotations = meta.annotations.unwrap_or_default();
        annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
        annotations.insert("kubernetes.io/config.hash".to_owned(), uid.clone());
        Ok(Self {
            namespace: meta.namespace.unwrap_or_else(|| "default".to_owned()),
            name: format!("{}-{node}", meta.name.unwrap_or_default()),
            uid,
            labels: meta.labels.unwrap_or_default(),
            annotations,
            started_at: None,
            gates: gates(&spec, None),
            spec,
            ephemeral: Vec::new(),
            reported: BTreeMap::new(),
            is_static: true,
        })
    }

    /// A pod that the API server has bound to this node.
    ///
    /// # Errors
    /// [`NodePodError`].
    pub fn from_api(pod: &Pod) -> Result<Self, NodePodError> {
        let decode = |error: String| NodePodError::Decode(error);
        // Through JSON, so that one table of supported fields serves both sources.
        let bytes = serde_json::to_vec(pod).map_err(|error| decode(error.to_string()))?;
        let read = json::read(&bytes).map_err(|error| decode(error.to_string()))?;
        let unsupported = unsupported(&read.document.into_value());
        if !unsupported.is_empty() {
            return Err(NodePodError::Unsupported(unsupported));
        }
        let meta = pod.metadata.clone();
        let spec = pod.spec.clone().unwrap_or_default();
        let name = meta.name.unwrap_or_default();
        check(&name, &spec)?;
        // The UID becomes part of paths.
        let uid = meta.uid.unwrap_or_default();
        if !is_name(&uid, 63) {
            return Err(NodePodError::Invalid(format!("metadata.uid: Invalid value: {uid:?}")));
        }
        Ok(Self {
            namespace: meta.namespace.unwrap_or_default(),
            name,
            uid,
            labels: meta.labels.unwrap_or_default(),
            annotations: meta.annotations.unwrap_or_default(),
            started_at: start_time(pod),
            gates: gates(&spec, pod.status.as_ref()),
            reported: reported(pod.status.as_ref()),
            ephemeral: ephemeral(&spec).map_err(|error| decode(error.to_string()))?,
            spec,
            is_static: false,
        })
    }

    /// Init containers and containers, in this order.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().flatten().chain(&self.spec.containers)
    }

    /// Any container by name, ephemeral ones included.
    pub(crate) fn container(&self, name: &str) -> Option<&Container> {
        let ephemeral = self.ephemeral.iter().map(|one| &one.container);
        self.all_containers().chain(ephemeral).find(|container| container.name == name)
    }

    /// Path of a container, as events name it: `spec.containers{main}`.
    pub(crate) fn field(&self, container: &str) -> String {
        let is_init = self.spec.init_containers.iter().flatten().any(|it| it.name == container);
        let is_ephemeral = self.ephemeral.iter().any(|one| one.container.name == container);
        let list = match (is_init, is_ephemeral) {
            (true, _) => "initContainers",
            (false, true) => "ephemeralContainers",
            (false, false) => "containers",
        };
        format!("spec.{list}{{{container}}}")
    }

    pub(crate) fn identity(&self) -> PodIdentity {
        PodIdentity {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
        }
    }

    /// The ids of the pod's last change; without any, a trace of its own.
    pub(crate) fn context(&self) -> TraceContext {
        let cause =
            ferrokube_trace::annotation::read(|key| self.annotations.get(key).map(String::as_str));
        cause.map_or_else(TraceContext::root, |cause| cause.child())
    }

    /// Name of its service account.
    pub(crate) fn service_account(&self) -> &str {
        let given = self.spec.service_account_name.as_deref();
        given.filter(|name| !name.is_empty()).unwrap_or("default")
    }

    /// The group of its volumes' files.
    pub(crate) fn fs_group(&self) -> Option<u32> {
        let group = self.spec.security_context.as_ref().and_then(|context| context.fs_group);
        group.and_then(|group| u32::try_from(group).ok())
    }

    /// Whether volumes whose root has the group already keep their files' groups.
    pub(crate) fn gives_files_if_needed(&self) -> bool {
        let context = self.spec.security_context.as_ref();
        let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
        policy == Some("OnRootMismatch")
    }

    /// Namespace and name, unique among the pods running on a node.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Their fields are those of containers, and the target.
fn ephemeral(spec: &PodSpec) -> Result<Vec<EphemeralTarget>, serde_json::Error> {
    let list = spec.ephemeral_containers.iter().flatten();
    list.map(|one| {
        let target = one.target_container_name.clone().filter(|name| !name.is_empty());
        let container = serde_json::from_value(serde_json::to_value(one)?)?;
        Ok(EphemeralTarget { container, target })
    })
    .collect()
}

fn start_time(pod: &Pod) -> Option<i64> {
    let time = pod.status.as_ref()?.start_time.as_ref()?;
    i64::try_from(time.0.as_nanosecond()).ok()
}

fn reported(status: Option<&PodStatus>) -> BTreeMap<String, ResourceRequirements> {
    let lists = status.map(|it| [&it.init_container_statuses, &it.container_statuses]);
    let statuses = lists.into_iter().flatten().flatten().flatten();
    let of = |status: &ContainerStatus| {
        let (_, id) = status.container_id.as_deref()?.split_once("://")?;
        Some((id.to_owned(), status.resources.clone()?))
    };
    statuses.filter_map(of).collect()
}

fn gates(spec: &PodSpec, status: Option<&PodStatus>) -> Vec<(String, Option<String>)> {
    let conditions = || status.and_then(|it| it.conditions.as_ref()).into_iter().flatten();
    let gates = spec.readiness_gates.iter().flatten().map(|gate| &gate.condition_type);
    gates
        .map(|kind| {
            let found = conditions().find(|condition| condition.type_ == *kind);
            (kind.clone(), found.map(|condition| condition.status.clone()))
        })
        .collect()
}

/// kubelet's annotation of containers: a digest of the fields whose change restarts them.
pub(crate) const DEFINITION: &str = "io.kubernetes.container.hash";

/// The digest: of name and image as JSON, by kubelet's function (FNV-1a).
pub(crate) fn definition(container: &Container) -> String {
    let fields = serde_json::json!({"image": container.image, "name": container.name});
    let digest = fields
        .to_string()
        .bytes()
        .fold(0x811c_9dc5_u32, |digest, byte| (digest ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{digest:x}")
}

/// Validates what reaches paths or the runtime: names and mounted volumes.
fn check(name: &str, spec: &PodSpec) -> Result<(), NodePodError> {
    let invalid = |text: String| Err(NodePodError::Invalid(text));
    if !is_name(name, 253) {
        return invalid(format!("metadata.name: Invalid value: {name:?}"));
    }
    if spec.containers.is_empty() {
        return invalid("spec.containers: Required value".to_owned());
    }
    if let Some(name) = spec.hostname_override.as_deref().filter(|name| !is_name(name, 64)) {
        return invalid(format!("spec.hostnameOverride: Invalid value: {name:?}"));
    }
    let volumes = spec.volumes.iter().flatten();
    for volume in volumes.clone() {
        if !is_name(&volume.name, 63) {
            return invalid(format!("spec.volumes.name: Invalid value: {:?}", volume.name));
        }
    }
    let profiles = spec.security_context.iter().filter_map(|it| it.seccomp_profile.as_ref());
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let contexts = containers.filter_map(|container| container.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let contexts = contexts.chain(ephemeral.filter_map(|one| one.security_context.as_ref()));
    for profile in profiles.chain(contexts.filter_map(|it| it.seccomp_profile.as_ref())) {
        let path = profile.localhost_profile.as_deref().unwrap_or_default();
        if profile.type_ == "Localhost" && !is_below(path) {
            return invalid(format!("seccompProfile.localhostProfile: Invalid value: {path:?}"));
        }
    }
    let mut seen = Vec::new();
    for container in spec.ephemeral_containers.iter().flatten() {
        if !is_name(&container.name, 63) {
            return invalid(format!(
                "spec.ephemeralContainers.name: Invalid value: {:?}",
                container.name
            ));
        }
    }
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        if !is_name(&container.name, 63) || seen.contains(&&container.name) {
            return invalid(format!("spec.containers.name: Invalid value: {:?}", container.name));
        }
        seen.push(&container.name);
        for mount in container.volume_mounts.iter().flatten() {
            if !volumes.clone().any(|volume| volume.name == mount.name) {
                return invalid(format!("volumeMounts.name: Not found: {:?}", mount.name));
            }
        }
        for device in container.volume_devices.iter().flatten() {
            if !volumes.clone().any(|volume| volume.name == device.name) {
                return invalid(format!("volumeDevices.name: Not found: {:?}", device.name));
            }
        }
    }
    Ok(())
}

/// Whether a relative path stays within its directory.
fn is_below(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// A DNS label or subdomain.
fn is_name(name: &str, longest: usize) -> bool {
    let is_end = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    name.len() <= longest
        && name.starts_with(is_end)
        && name.ends_with(is_end)
        && name.chars().all(|letter| is_end(letter) || letter == '-' || letter == '.')
        && !name.contains("..")
}
