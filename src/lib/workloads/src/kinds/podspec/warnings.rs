//! Warnings about combinations of fields: duplicates and overlaps.

use super::containers;
use crate::cells::at;
use crate::checks::{given, items, number, text};
use crate::paths::FieldPath;
use crate::warnings::{self, Warnings};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::quantity::Quantity;
use std::collections::{HashMap, HashSet};

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];

/// Adds warnings for a pod or template at a path.
pub(crate) fn warn(template: &Value, path: FieldPath<'_>, out: &mut Warnings) {
    let Some(spec) = template.get("spec") else { return };
    let notes = at(template, &["metadata", "annotations"]).and_then(Value::as_object);
    let own = path.field("spec");
    for (key, _) in at(spec, &["nodeSelector"]).and_then(Value::as_object).into_iter().flatten() {
        if let Some(why) = warnings::label(key) {
            out.at(own.field("nodeSelector").key(key), why);
        }
    }
    annotations(notes, spec, path, out);
    overlaps(spec, out);
    twice(spec, "hostAliases", "ip", own, out);
    twice(spec, "imagePullSecrets", "name", own, out);
    let list = own.field("imagePullSecrets");
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            out.at(list.index(index).field("name"), "invalid empty name \"\"");
        }
    }
    for (list, index, container) in visited(spec) {
        let list = own.field(list);
        in_container(container, list.index(index), out);
    }
    ports(spec, own, out);
}

/// All containers, those of the start first.
fn visited(spec: &Value) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    let is_first = |(list, _, _): &(&str, usize, &Value)| *list == "initContainers";
    containers(spec).filter(is_first).chain(containers(spec).filter(move |it| !is_first(it)))
}

fn annotations(notes: Option<&Map>, spec: &Value, path: FieldPath<'_>, out: &mut Warnings) {
    let Some(notes) = notes else { return };
    let metadata = path.field("metadata");
    let place = metadata.field("annotations");
    for (key, why) in ANNOTATIONS {
        if notes.contains_key(key) {
            out.at(place.key(key), why);
        }
    }
    const SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
    let profile = |object: &Value, kind: &str| {
        at(object, &["securityContext", kind]).is_some_and(Value::is_object)
    };
    if notes.contains_key(SECCOMP_POD) && !profile(spec, "seccompProfile") {
        out.at(place.key(SECCOMP_POD), SECCOMP);
    }
    for (_, _, container) in containers(spec) {
        let key = format!("{SECCOMP_CONTAINER}{}", text(container, "name"));
        if notes.contains_key(key.as_str()) && !profile(container, "seccompProfile") {
            out.at(place.key(&key), SECCOMP);
        }
        let key = format!("{APP_ARMOR}{}", text(container, "name"));
        if notes.contains_key(key.as_str()) && !profile(container, "appArmorProfile") {
            let why = "deprecated since v1.30; use the \"appArmorProfile\" field instead";
            out.at(place.key(&key), why);
        }
    }
}

fn twice(spec: &Value, list: &str, field: &str, path: FieldPath<'_>, out: &mut Warnings) {
    let (place, mut seen) = (path.field(list), HashSet::new());
    for (index, item) in items(spec, list).iter().enumerate() {
        let value = text(item, field);
        if !seen.insert(value) {
            out.at(place.index(index).field(field), &format!("duplicate {field} {value:?}"));
        }
    }
}

fn in_container(container: &Value, path: FieldPath<'_>, out: &mut Warnings) {
    let own = path.field("resources");
    for resource in ["memory", "ephemeral-storage"] {
        for map in ["limits", "requests"] {
            let amount = at(container, &["resources", map, resource]);
            if let Some(amount) = amount.and_then(|value| Quantity::from_value(value).ok()) {
                warnings::fraction(&amount, own.field(map).key(resource), out);
            }
        }
    }
    let (list, mut seen) = (path.field("env"), HashSet::new());
    for (index, variable) in items(container, "env").iter().enumerate() {
        let name = text(variable, "name");
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let value = text(variable, "value");
        let hides = given(variable, "valueFrom").is_some()
            || value == reference
            || !value.contains(&reference);
        if hides {
            let why = format!(
                "hides previous definition of {name:?}, which may be dropped when using apply"
            );
            out.at(list.index(index), &why);
        }
    }
}

fn ports(spec: &Value, path: FieldPath<'_>, out: &mut Warnings) {
    type Known<'a> = (String, &'a Value);
    let mut all: HashMap<(i64, &str), Vec<Known<'_>>> = HashMap::new();
    let mut names: HashMap<&str, String> = HashMap::new();
    let mut of_names = Vec::new();
    for (list, index, container) in visited(spec) {
        let list = path.field(list);
        let own = list.index(index);
        let ports = own.field("ports");
        for (at_port, port) in items(container, "ports").iter().enumerate() {
            let place = ports.index(at_port);
            host_ip(port, place, out);
            let key = (number(port, "containerPort"), text(port, "protocol"));
            let known = all.entry(key).or_default();
            for (other_place, other) in known.iter().take(8) {
                overlap(port, other, other_place, place, out);
            }
            known.push((place.to_string(), port));
            let name = text(port, "name");
            if name.is_empty() {
                continue;
            }
            match names.get(name) {
                Some(other) => of_names.push(format!(
                    "{place}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                )),
                None => _ = names.insert(name, place.to_string()),
            }
        }
    }
    of_names.into_iter().for_each(|text| out.push(text));
}

fn host_ip(port: &Value, place: FieldPath<'_>, out: &mut Warnings) {
    let ip = text(port, "hostIP");
    if !ip.is_empty() && number(port, "hostPort") == 0 {
        let (name, protocol) = (text(port, "name"), text(port, "protocol"));
        let number = number(port, "containerPort");
        let why = format!(
            "hostIP set without hostPort: {{Name:{name} HostPort:0 ContainerPort:{number} Protocol:{protocol} HostIP:{ip}}}"
        );
        out.at(place, &why);
    }
}

fn overlap(
    port: &Value,
    other: &Value,
    other_place: &str,
    place: FieldPath<'_>,
    out: &mut Warnings,
) {
    let (host, others) = (number(port, "hostPort"), number(other, "hostPort"));
    let (ip, other_ip) = (text(port, "hostIP"), text(other, "hostIP"));
    let kind = if ip == other_ip && host == others {
        "duplicate"
    } else if host == 0 || others == 0 {
        "overlapping"
    } else if host == others && ip.is_empty() != other_ip.is_empty() {
        "dangerously ambiguous"
    } else {
        return;
    };
    out.at(place, &format!("{kind} port definition with {other_place}"));
}

/// Files of a projected volume at the same path, or one below another.
fn overlaps(spec: &Value, out: &mut Warnings) {
    for volume in items(spec, "volumes") {
        let name = text(volume, "name");
        let plain = |source: &Value| -> Vec<(String, String)> {
            let file = |item: &Value| (text(item, "path").to_owned(), String::new());
            items(source, "items").iter().map(file).collect()
        };
        if let Some(source) = given(volume, "configMap") {
            colliding(name, &format!("ConfigMap {:?}", text(source, "name")), plain(source), out);
        }
        if let Some(source) = given(volume, "secret") {
            let what = format!("Secret {:?}", text(source, "secretName"));
            colliding(name, &what, plain(source), out);
        }
        if let Some(source) = given(volume, "downwardAPI") {
            colliding(name, "DownwardAPI", plain(source), out);
        }
        let Some(projected) = given(volume, "projected") else { continue };
        let mut files = Vec::new();
        for source in items(projected, "sources") {
            let named = |kind: &str, shown: &str, files: &mut Vec<(String, String)>| {
                let Some(content) = given(source, kind) else { return };
                let from = match shown {
                    "DownwardAPI" => shown.to_owned(),
                    _ => format!("{shown} {:?}", text(content, "name")),
                };
                let paths = items(content, "items").iter();
                files.extend(paths.map(|item| (text(item, "path").to_owned(), from.clone())));
            };
            named("configMap", "ConfigMap", &mut files);
            named("secret", "Secret", &mut files);
            named("downwardAPI", "DownwardAPI", &mut files);
            if let Some(token) = given(source, "serviceAccountToken") {
                files.push((text(token, "path").to_owned(), "ServiceAccountToken".to_owned()));
            }
            if source.as_object().is_some_and(Map::is_empty) {
                out.push(format!("volume {name:?} (Projected) has no sources provided"));
            }
        }
        colliding(name, "Projected", files, out);
    }
}

fn colliding(volume: &str, what: &str, files: Vec<(String, String)>, out: &mut Warnings) {
    /// Max compared paths.
    const MOST: usize = 200;
    let shown = |(path, from): &(String, String)| match from.as_str() {
        "" => format!("{path:?}"),
        from => format!("{path:?} ({from})"),
    };
    let mut known: Vec<(String, String)> = Vec::new();
    for (path, from) in files.into_iter().take(MOST) {
        let file = (path.trim_end_matches('/').to_owned(), from);
        let below = |one: &str, other: &str| {
            one.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        for other in known.iter().filter(|other| {
            !file.0.is_empty()
                && !other.0.is_empty()
                && (below(&other.0, &file.0) || below(&file.0, &other.0))
        }) {
            let both = format!("{} with {}", shown(&file), shown(other));
            out.push(format!("volume {volume:?} ({what}): overlapping paths: {both}"));
        }
        known.push(file);
    }
}
