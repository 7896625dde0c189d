//! Static pods: a directory of files, each one pod.

use crate::supported::unsupported;
use ferrokube_apimachinery::{json, yaml};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

/// Largest file.
const MAX_FILE: u64 = 10 << 20;

/// A pod of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct StaticPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Of the content: a changed file is another pod.
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) spec: PodSpec,
}

/// A file that is no pod to run.
#[derive(Debug, thiserror::Error)]
pub enum StaticPodError {
    /// Not readable.
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

impl StaticPod {
    /// Reads a pod; its name gets the node's appended.
    ///
    /// # Errors
    /// [`StaticPodError`].
    pub fn parse(body: &[u8], node: &str) -> Result<Self, StaticPodError> {
        let decode = StaticPodError::Decode;
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
            return Err(StaticPodError::Unsupported(unsupported));
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
            spec,
        })
    }

    /// Init containers and containers, in this order.
    pub(crate) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.spec.init_containers.iter().flatten().chain(&self.spec.containers)
    }
}

/// What would reach paths or the runtime: names, and volumes that are mounted.
fn check(name: &str, spec: &PodSpec) -> Result<(), StaticPodError> {
    let invalid = |text: String| Err(StaticPodError::Invalid(text));
    if !is_name(name, 253) {
        return invalid(format!("metadata.name: Invalid value: {name:?}"));
    }
    if spec.containers.is_empty() {
        return invalid("spec.containers: Required value".to_owned());
    }
    let volumes = spec.volumes.iter().flatten();
    for volume in volumes.clone() {
        if !is_name(&volume.name, 63) {
            return invalid(format!("spec.volumes.name: Invalid value: {:?}", volume.name));
        }
    }
    let mut seen = Vec::new();
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
    }
    Ok(())
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

/// The pods of all files in a directory; what is wrong is logged, by file.
///
/// # Errors
/// The directory cannot be listed: the pods of before are to stay.
pub(crate) fn read_directory(path: &Path, node: &str) -> io::Result<Vec<StaticPod>> {
    let mut files = fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut pods: Vec<StaticPod> = Vec::new();
    for file in files {
        let is_hidden = file.file_name().to_string_lossy().starts_with('.');
        if is_hidden || !file.path().is_file() {
            continue;
        }
        let file_name = file.file_name();
        let file_name = file_name.to_string_lossy();
        match read_file(&file.path(), node) {
            Ok(pod) if pods.iter().any(|other| other.name == pod.name) => {
                tracing::warn!(file = &*file_name, pod = pod.name, "a pod of this name exists");
            }
            Ok(pod) => pods.push(pod),
            Err(error) => {
                tracing::warn!(file = &*file_name, %error, "cannot use the file of a static pod");
            }
        }
    }
    Ok(pods)
}

fn read_file(path: &Path, node: &str) -> Result<StaticPod, StaticPodError> {
    let file = fs::File::open(path).map_err(StaticPodError::Read)?;
    let mut body = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut body).map_err(StaticPodError::Read)?;
    if body.len() as u64 > MAX_FILE {
        return Err(StaticPodError::Invalid("larger than 10 MiB".to_owned()));
    }
    StaticPod::parse(&body, node)
}
