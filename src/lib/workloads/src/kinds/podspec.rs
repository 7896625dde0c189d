//! Pod specs, in pods and templates.

pub(crate) mod annotations;
mod platform;
pub(crate) mod resources;
pub(crate) mod validate;
mod volumes;
pub(crate) mod warnings;

use crate::cells::list_at;
use crate::checks::text;
use ferrokube_apimachinery::document::{Document, Map, Value, json};

/// An empty path as kube-apiserver prints it.
pub(crate) const NO_FIELD: &str = "[]";
/// Annotations that were the init containers before these had a field: dropped.
const OF_INIT_CONTAINERS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-containers",
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-container-statuses",
];
/// The only field of a volume that is not a source.
const VOLUME_NAME: &str = "name";

/// Defaults that depend on other fields.
pub(crate) fn default(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, list, |container| {
            if !container.contains_key("imagePullPolicy") {
                let policy =
                    pull_policy(container.get("image").and_then(Value::as_str).unwrap_or_default());
                container.insert("imagePullPolicy", policy.into());
            }
        });
    }
    each(spec, "volumes", |volume| {
        if volume.keys().all(|field| field.as_str() == VOLUME_NAME) {
            volume.insert("emptyDir", json!({}));
        }
        if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut)
            && !image.contains_key("pullPolicy")
        {
            let policy =
                pull_policy(image.get("reference").and_then(Value::as_str).unwrap_or_default());
            image.insert("pullPolicy", policy.into());
        }
    });
    // The deprecated name of the same field.
    let account = ["serviceAccountName", "serviceAccount"]
        .iter()
        .find_map(|field| {
            spec.get(field).filter(|value| value.as_str().is_some_and(|name| !name.is_empty()))
        })
        .cloned();
    if let Some(account) = account {
        spec.insert("serviceAccount", account.clone());
        spec.insert("serviceAccountName", account);
    }
}

/// Edits each object in a list.
pub(crate) fn each(spec: &mut Map, list: &str, edit: impl Fn(&mut Map)) {
    if let Some(Value::Array(items)) = spec.get_mut(list) {
        items.iter_mut().filter_map(Value::as_object_mut).for_each(edit);
    }
}

/// Removes the node affinity, and the affinity if there is no other.
pub(crate) fn drop_node_affinity(spec: &mut Map) {
    let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) else { return };
    affinity.remove("nodeAffinity");
    if affinity.is_empty() {
        spec.remove("affinity");
    }
}

/// [`default`] for the pod spec at a path, whose metadata is next to it.
pub(crate) fn default_at(object: &mut Document, path: &[&str]) {
    if let Some(spec) = object.get_mut(path) {
        default(spec);
    }
    let Some((_, parents)) = path.split_last() else { return };
    let place = [parents, &["metadata", "annotations"]].concat();
    let Some(notes) = object.get_mut(&place).and_then(Value::as_object_mut) else { return };
    let before = notes.len();
    OF_INIT_CONTAINERS.iter().for_each(|name| drop(notes.remove(name)));
    if notes.is_empty() && before > 0 {
        object.remove(&place);
    }
}

fn pull_policy(image: &str) -> &'static str {
    if is_image(image) && tag(image) == "latest" { "Always" } else { "IfNotPresent" }
}

/// Whether a text is an image name: a lower-case path, optionally after a host.
fn is_image(text: &str) -> bool {
    const MAX_TAG: usize = 128;
    const MAX_PATH: usize = 255;
    let (name, digest) =
        text.split_once('@').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let last = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match name[last..].split_once(':') {
        Some((end, tag)) => (&name[..last + end.len()], Some(tag)),
        None => (name, None),
    };
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_tag = |tag: &str| {
        tag.len() <= MAX_TAG
            && tag.bytes().next().is_some_and(is_word)
            && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
    };
    let is_part = |part: &str| {
        let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.first().is_some_and(|byte| edge(*byte))
            && bytes.last().is_some_and(|byte| edge(*byte))
            && bytes.iter().all(|byte| edge(*byte) || matches!(byte, b'.' | b'_' | b'-'))
            && !part.contains("..")
            && !part.contains("___")
            && !part.contains("._")
    };
    let is_host = |part: &str| {
        let (host, port) = part.split_once(':').map_or((part, "1"), |(host, port)| (host, port));
        let is_label = |label: &str| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        host.split('.').all(is_label) && port.bytes().all(|byte| byte.is_ascii_digit())
    };
    let parts: Vec<&str> = path.split('/').collect();
    let has_host = parts.len() > 1
        && (parts[0].contains(['.', ':']) || parts[0] == "localhost" || !is_part(parts[0]))
        && is_host(parts[0]);
    let repository = if has_host { &path[parts[0].len() + 1..] } else { path };
    // Where no host is given, a path of one part is below `library/`.
    let prefix = if parts.len() == 1 { "library/".len() } else { 0 };
    prefix + repository.len() <= MAX_PATH
        && parts[usize::from(has_host)..].iter().all(|part| is_part(part))
        && tag.is_none_or(is_tag)
        && digest.is_none_or(|digest| digest.contains(':'))
}

/// The tag of an image; `latest` if it has neither tag nor digest.
fn tag(image: &str) -> &str {
    let (name, digest) = image.split_once('@').map_or((image, ""), |(name, digest)| (name, digest));
    let last = name.rfind('/').map_or(0, |at| at + 1);
    match name[last..].split_once(':') {
        Some((_, tag)) => tag,
        None if digest.is_empty() => "latest",
        None => "",
    }
}

/// All containers of a spec, with the names of their lists.
pub(crate) fn containers(spec: &Value) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(move |list| {
        list_at(spec, &[list]).iter().enumerate().map(move |(at, container)| (list, at, container))
    })
}

/// Whether an init container keeps running alongside the main containers.
pub(crate) fn is_sidecar(container: &Value) -> bool {
    text(container, "restartPolicy") == "Always"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_images_are_always_pulled() {
        for (image, expected) in [
            ("nginx", "latest"),
            ("nginx:1.2", "1.2"),
            ("host:5000/nginx", "latest"),
            ("host:5000/a/nginx:v1", "v1"),
            ("nginx@sha256:00", ""),
            ("nginx:latest@sha256:00", "latest"),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
        let mut spec = json!({"containers": [{"image": "a"}, {"image": "a:1"}], "volumes": [{"name": "v"}], "serviceAccount": "s"});
        default(&mut spec);
        let expected = json!({
            "containers": [{"image": "a", "imagePullPolicy": "Always"}, {"image": "a:1", "imagePullPolicy": "IfNotPresent"}],
            "volumes": [{"name": "v", "emptyDir": {}}], "serviceAccount": "s", "serviceAccountName": "s",
        });
        assert_eq!(spec, expected);
    }
}
