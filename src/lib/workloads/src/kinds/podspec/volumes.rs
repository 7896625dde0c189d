//! Volumes of pod specs, and their mounts in containers.

use super::validate::SpecOwner;
use crate::cells::{at, list_at};
use crate::checks::{FieldErrors, given, is_true, items, local_path, text};
use crate::paths::FieldPath;
use crate::rules::texts;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use std::collections::{HashMap, HashSet};

/// Names of usable volumes, with whether each is a claim.
pub(super) type VolumeNames<'a> = HashMap<&'a str, bool>;

const KEY_TYPES: [&str; 6] =
    ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
const CONFLICT: &str = "conflicting duplicate paths";

/// The volumes in which the rows found no errors.
pub(super) fn volumes<'a>(
    spec: &'a Value,
    owner: SpecOwner<'a>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) -> VolumeNames<'a> {
    let mut volumes = VolumeNames::new();
    let pod = owner.pod.map_or("", |metadata| text(metadata, "name"));
    let all = list_at(spec, &["volumes"]);
    let made: HashSet<String> = all
        .iter()
        .filter(|volume| !pod.is_empty() && given(volume, "ephemeral").is_some())
        .map(|volume| format!("{pod}-{}", text(volume, "name")))
        .collect();
    let list = path.field("volumes");
    for (index, volume) in all.iter().enumerate() {
        let (name, path) = (text(volume, "name"), list.index(index));
        if let Some(projected) = given(volume, "projected") {
            sources(projected, path.field("projected"), errors);
        }
        portal(volume, name, path, errors);
        if given(volume, "ephemeral").is_some() && !pod.is_empty() && !name.is_empty() {
            let claim = format!("{pod}-{name}");
            for why in name::dns1123_subdomain(&claim) {
                errors.invalid(path.field("name"), name, &format!("PVC name {claim:?}: {why}"));
            }
        }
        if !name.is_empty() && volumes.contains_key(name) {
            errors.duplicate(path.field("name"), name);
        }
        if !errors.are_below(path) {
            let is_claim = given(volume, "persistentVolumeClaim").is_some()
                || given(volume, "ephemeral").is_some();
            volumes.insert(name, is_claim);
        }
        let claim = at(volume, &["persistentVolumeClaim", "claimName"]).and_then(Value::as_str);
        if let Some(claim) = claim.filter(|claim| made.contains(*claim)) {
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(path.field("persistentVolumeClaim.claimName"), claim, why);
        }
    }
    volumes
}

fn portal(volume: &Value, name: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const MOST: usize = 64;
    let Some(iscsi) = given(volume, "iscsi") else { return };
    let bytes = name.len() + 1 + text(iscsi, "targetPortal").len();
    if given(iscsi, "initiatorName").is_some() && bytes > MOST {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.invalid(path.field("name"), name, why);
    }
}

/// Checks the sources of a projected volume for conflicting paths.
fn sources(projected: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const KINDS: [&str; 6] = [
        "secret",
        "configMap",
        "downwardAPI",
        "serviceAccountToken",
        "clusterTrustBundle",
        "podCertificate",
    ];
    let (list, mut taken) = (path.field("sources"), HashSet::new());
    for (index, source) in items(projected, "sources").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let own = list.index(index);
        for kind in ["secret", "configMap", "downwardAPI"] {
            let Some(content) = given(source, kind) else { continue };
            for item in items(content, "items") {
                let file = text(item, "path");
                if !file.is_empty() && !taken.insert(file) {
                    let shown = if kind == "downwardAPI" { file } else { text(content, "name") };
                    errors.invalid(path, shown, CONFLICT);
                }
            }
        }
        if let Some(bundle) = given(source, "clusterTrustBundle") {
            trust_bundle(bundle, own.field("clusterTrustBundle"), errors);
            if !taken.insert(text(bundle, "path")) {
                errors.invalid(path, text(bundle, "path"), CONFLICT);
            }
        }
        if let Some(certificate) = given(source, "podCertificate") {
            let own = own.field("podCertificate");
            pod_certificate(certificate, own, errors);
            for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
                let file = text(certificate, field);
                if file.is_empty() {
                    continue;
                }
                local_path(file, own.field(field), errors);
                if !taken.insert(file) {
                    errors.invalid(path, file, CONFLICT);
                }
            }
        }
        if KINDS.iter().filter(|kind| given(source, kind).is_some()).count() > 1 {
            errors.forbidden(own, "may not specify more than 1 volume type per source");
        }
    }
}

fn trust_bundle(bundle: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let name_given = given(bundle, "name").and_then(Value::as_str);
    let signer = given(bundle, "signerName").and_then(Value::as_str);
    match (name_given, signer) {
        (Some(_), Some(_)) => {
            errors.invalid(path, bundle, "only one of name and signerName may be used");
        }
        (Some(name), None) => {
            if name.is_empty() {
                errors.required(path.field("name"), "must be a valid object name");
            }
            for why in name::dns1123_subdomain(name.rsplit(':').next().unwrap_or(name)) {
                let why = format!("not a valid clustertrustbundlename: {why}");
                errors.invalid(path.field("name"), name, &why);
            }
            if let Some(selector) = given(bundle, "labelSelector") {
                let why = "labelSelector must be unset if name is specified";
                errors.invalid(path.field("labelSelector"), selector, why);
            }
        }
        (None, Some(signer)) => {
            if signer.is_empty() {
                errors.required(path.field("signerName"), "must be a valid signer name");
            }
            signer_name(signer, path.field("signerName"), errors);
            if let Some(selector) = given(bundle, "labelSelector") {
                texts::selector(selector, path.field("labelSelector"), errors);
            }
        }
        (None, None) => errors.required(path, "either name or signerName must be specified"),
    }
    if text(bundle, "path").is_empty() {
        errors.required(path.field("path"), "");
    }
    local_path(text(bundle, "path"), path.field("path"), errors);
}

fn signer_name(signer: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if signer.is_empty() {
        return errors.required(path, "");
    }
    let Some((domain, rest)) = signer.split_once('/').filter(|(_, rest)| !rest.contains('/'))
    else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return errors.invalid(path, signer, why);
    };
    for why in name::dns1123_subdomain(domain) {
        errors.invalid(path, domain, &format!("validating domain component: {why}"));
    }
    for why in name::dns1123_subdomain(rest) {
        errors.invalid(path, rest, &format!("validating path component: {why}"));
    }
}

fn pod_certificate(certificate: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const LEAST: i64 = 3600;
    const MOST: i64 = 91 * 24 * 3600;
    const MOST_OF_KUBERNETES: i64 = 24 * 3600;
    let signer = text(certificate, "signerName");
    signer_name(signer, path.field("signerName"), errors);
    let kind = text(certificate, "keyType");
    if !KEY_TYPES.contains(&kind) {
        errors.not_supported(path.field("keyType"), kind, &KEY_TYPES);
    }
    if let Some(seconds) = certificate.get("maxExpirationSeconds").and_then(Value::as_i64) {
        let place = path.field("maxExpirationSeconds");
        if seconds < LEAST {
            errors.invalid(place, seconds, "if provided, maxExpirationSeconds must be >= 3600");
        }
        let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
        let own = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
        let most = if own { MOST_OF_KUBERNETES } else { MOST };
        if seconds > most {
            let why = format!("if provided, maxExpirationSeconds must be <= {most}");
            errors.invalid(place, seconds, &why);
        }
    }
    let paths = ["credentialBundlePath", "keyPath", "certificateChainPath"];
    if paths.iter().all(|field| text(certificate, field).is_empty()) {
        let why = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        errors.required(path, why);
    }
}

/// Mounts and devices of a container.
pub(super) fn mounts(
    container: &Value,
    volumes: &VolumeNames<'_>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let pairs = |list: &str, field: &str| -> HashMap<String, String> {
        let of = |item: &Value| (text(item, "name").to_owned(), text(item, field).to_owned());
        items(container, list).iter().map(of).collect()
    };
    let devices = pairs("volumeDevices", "devicePath");
    let device_paths: HashSet<&str> = devices.values().map(String::as_str).collect();
    let list = path.field("volumeMounts");
    let mut points = HashSet::new();
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let (name, point, path) =
            (text(mount, "name"), text(mount, "mountPath"), list.index(index));
        if !volumes.contains_key(name) {
            errors.push(|| FieldError::not_found(path.field("name"), name));
        }
        if !points.insert(point) {
            errors.invalid(path.field("mountPath"), point, "must be unique");
        }
        if devices.contains_key(name) {
            errors.invalid(path.field("name"), name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(point) {
            let why = "must not already exist as a path in volumeDevices";
            errors.invalid(path.field("mountPath"), point, why);
        }
        // kube-apiserver's paths lack the index.
        for field in ["subPath", "subPathExpr"] {
            let sub = text(mount, field);
            if sub.starts_with('/') {
                errors.invalid(list.field(field), sub, "must be a relative path");
            }
            if sub.split('/').any(|part| part == "..") {
                errors.invalid(list.field(field), sub, "must not contain '..'");
            }
        }
        propagation(mount, container, list, errors);
    }
    let mounts = pairs("volumeMounts", "mountPath");
    block_devices(container, volumes, &mounts, path.field("volumeDevices"), errors);
}

fn propagation(mount: &Value, container: &Value, list: FieldPath<'_>, errors: &mut FieldErrors) {
    let known = ["Bidirectional", "HostToContainer", "None"];
    let mode = mount.get("mountPropagation").and_then(Value::as_str);
    if let Some(mode) = mode.filter(|mode| !known.contains(mode)) {
        errors.not_supported(list.field("mountPropagation"), mode, &known);
    }
    let privileged =
        at(container, &["securityContext"]).is_some_and(|context| is_true(context, "privileged"));
    if mode == Some("Bidirectional") && !privileged {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        errors.forbidden(list.field("mountPropagation"), why);
    }
    let place = list.field("recursiveReadOnly");
    match mount.get("recursiveReadOnly").and_then(Value::as_str) {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !is_true(mount, "readOnly") {
                errors.forbidden(place, "may only be specified when readOnly is true");
            }
            if mode.is_some_and(|mode| mode != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(place, why);
            }
        }
        Some(other) => {
            errors.not_supported(place, other, &["Disabled", "Enabled", "IfPossible"]);
        }
    }
}

fn block_devices(
    container: &Value,
    volumes: &VolumeNames<'_>,
    mounts: &HashMap<String, String>,
    list: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let points: HashSet<&str> = mounts.values().map(String::as_str).collect();
    let (mut paths, mut names) = (HashSet::new(), HashSet::new());
    for (index, device) in items(container, "volumeDevices").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let (name, point, path) =
            (text(device, "name"), text(device, "devicePath"), list.index(index));
        let mut refuse = |field: &str, value: &str, why: &str| {
            errors.invalid(path.field(field), value, why);
        };
        if !name.is_empty() && !names.insert(name) {
            refuse("name", name, "must be unique");
        }
        if volumes.get(name) == Some(&false) {
            let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
            refuse("name", name, why);
        }
        if point.split('/').any(|part| part == "..") {
            refuse("devicePath", point, "can not contain backsteps ('..')");
        } else if !paths.insert(point) {
            refuse("devicePath", point, "must be unique");
        }
        if mounts.contains_key(name) {
            refuse("name", name, "must not already exist in volumeMounts");
        }
        if points.contains(point) {
            refuse("devicePath", point, "must not already exist as a path in volumeMounts");
        }
        if !volumes.contains_key(name) {
            errors.push(|| FieldError::not_found(path.field("name"), name));
        }
    }
}
