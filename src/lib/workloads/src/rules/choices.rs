//! Rules for unions: objects that set one of several fields.

use super::field::{CheckFn, RuledField};
use crate::checks::FieldErrors;
use crate::conditions::is_set;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;

/// Sources of volumes: the field, and its name in errors about two of them.
const VOLUMES: [(&str, &str); 30] = [
    ("emptyDir", "emptyDir"),
    ("hostPath", "hostPath"),
    ("gitRepo", "gitRepo"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("secret", "secret"),
    ("nfs", "nfs"),
    ("iscsi", "iscsi"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("persistentVolumeClaim", "persistentVolumeClaim"),
    ("rbd", "rbd"),
    ("cinder", "cinder"),
    ("cephfs", "cephFS"),
    ("quobyte", "quobyte"),
    ("downwardAPI", "downwarAPI"),
    ("fc", "fc"),
    ("flexVolume", "flexVolume"),
    ("configMap", "configMap"),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("storageos", "storageos"),
    ("projected", "projected"),
    ("scaleIO", "scaleIO"),
    ("csi", "csi"),
    ("ephemeral", "ephemeral"),
    ("image", "image"),
];
/// A source of persistent volumes that kube-apiserver accidentally allows alongside others.
const BESIDES: &str = "flexVolume";
/// Sources of persistent volumes, likewise.
const PERSISTENT: [(&str, &str); 22] = [
    ("hostPath", "hostPath"),
    ("gcePersistentDisk", "gcePersistentDisk"),
    ("awsElasticBlockStore", "awsElasticBlockStore"),
    ("glusterfs", "glusterfs"),
    ("flocker", "flocker"),
    ("nfs", "nfs"),
    ("rbd", "rbd"),
    ("quobyte", "quobyte"),
    ("cephfs", "cephFS"),
    ("iscsi", "iscsi"),
    ("cinder", "cinder"),
    ("fc", "fc"),
    (BESIDES, ""),
    ("azureFile", "azureFile"),
    ("vsphereVolume", "vsphereVolume"),
    ("photonPersistentDisk", "photonPersistentDisk"),
    ("portworxVolume", "portworxVolume"),
    ("azureDisk", "azureDisk"),
    ("scaleIO", "scaleIO"),
    ("local", "local"),
    ("storageos", "storageos"),
    ("csi", "csi"),
];
/// Sources of metrics by the type that needs them.
const METRICS: [(&str, &str); 5] = [
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("External", "external"),
];

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        // Says only which field is looked into.
        "firstof" | "noneofmany" => |_, _| {},
        "exactlyone" => |it, errors| match it.names().filter(|name| has(it.object, name)).count() {
            0 => errors.invalid(it.path, "", &one_of_these(it)),
            1 => {}
            _ => errors.invalid(it.path, "", MANY),
        },
        "envsource" => |it, errors| {
            let Some(source) = it.value.and_then(Value::as_object) else { return };
            let is_text = it.object.get("value").is_some_and(is_set);
            match it.names().filter(|name| has(source, name)).count() {
                0 => errors.invalid(it.path, "", &one_of_these(it)),
                _ if is_text => {
                    errors.invalid(it.path, "", "may not be specified when `value` is not empty");
                }
                1 => {}
                _ => errors.invalid(it.path, "", MANY),
            }
        },
        "handler" => |it, errors| {
            let given = it.names().filter(|name| has(it.object, name)).map(|name| (name, name));
            one_of(it, given, "may not specify more than 1 handler type", errors);
        },
        "volume" => |it, errors| {
            let given = VOLUMES.into_iter().filter(|(field, _)| has(it.object, field));
            one_of(it, given, "may not specify more than 1 volume type", errors);
        },
        "pvsource" => |it, errors| {
            let given = PERSISTENT.into_iter().filter(|(field, _)| has(it.object, field));
            one_of(it, given, "may not specify more than 1 volume type", errors);
        },
        "metric" => metric,
        "exactlyonerequest" => |it, errors| {
            let why = "exactly one of `exactly` or `firstAvailable` is required";
            let both = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            let alternatives = it.object.get("firstAvailable").and_then(Value::as_array);
            let many = alternatives.is_some_and(|list| !list.as_slice().is_empty());
            match (has(it.object, "exactly"), many) {
                (false, false) => errors.required(it.path, why),
                (true, true) => errors.push(|| FieldError::invalid(it.path, None::<&Value>, both)),
                _ => {}
            }
        },
        _ => return None,
    })
}

const MANY: &str = "may not have more than one field specified at a time";

/// The message about a choice that was not made.
fn one_of_these(it: &RuledField<'_>) -> String {
    let names: Vec<String> = it.names().map(|name| format!("`{name}`")).collect();
    let (last, rest) = names.split_last().expect("a name in the table");
    format!("must specify one of: {} or {last}", rest.join(", "))
}

/// Fields that are validated only if no other of them is given.
pub(super) fn exclusive(word: &str, argument: &'static str) -> Vec<&'static str> {
    match word {
        "noneofmany" => argument.split(',').collect(),
        "exactlyonerequest" => vec!["exactly", "firstAvailable"],
        _ => Vec::new(),
    }
}

/// Fields of which only the first one set counts.
pub(super) fn order(word: &str, argument: &'static str) -> Vec<&'static str> {
    match word {
        "handler" | "firstof" => argument.split(',').collect(),
        "volume" => VOLUMES.iter().map(|(field, _)| *field).collect(),
        "metric" => vec!["object", "external", "pods", "resource", "containerResource"],
        "pvsource" => PERSISTENT.iter().map(|(field, _)| *field).collect(),
        _ => Vec::new(),
    }
}

/// Fields among these that are validated regardless of the choice.
pub(super) fn besides(word: &str) -> Vec<&'static str> {
    if word == "pvsource" { vec![BESIDES] } else { Vec::new() }
}

fn has(object: &Map, field: &str) -> bool {
    object.get(field).is_some_and(|value| !value.is_null())
}

/// Accepts the first one set, forbids further ones, and requires one.
fn one_of(
    it: &RuledField<'_>,
    given: impl Iterator<Item = (&'static str, &'static str)>,
    many: &str,
    errors: &mut FieldErrors,
) {
    let mut given = given.peekable();
    if given.peek().is_none() {
        return errors
            .required(it.path, NONE.get(usize::from(many.contains("handler"))).unwrap_or(&""));
    }
    for (_, name) in given.skip(1).filter(|(_, name)| !name.is_empty()) {
        errors.forbidden(it.path.field(name), many);
    }
}

const NONE: [&str; 2] = ["must specify a volume type", "must specify a handler type"];

fn metric(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let kind = it.object.get("type").and_then(Value::as_str).unwrap_or_default();
    let wanted = METRICS.iter().find(|(known, _)| *known == kind).map(|(_, field)| *field);
    match wanted {
        Some(field) if !has(it.object, field) => {
            let why = "must populate information for the given metric source";
            errors.required(it.path.field(field), why);
        }
        Some(_) => {}
        None => {
            // Once more than the row of the type.
            let mut known = METRICS.map(|(known, _)| known);
            known.sort_unstable();
            errors.not_supported(it.path.field("type"), kind, &known);
        }
    }
    // A single one of another type is only missed.
    let present = || METRICS.iter().map(|(_, field)| *field).filter(|field| has(it.object, field));
    if present().count() > 1 {
        for field in present().filter(|field| Some(*field) != wanted) {
            let why = "must populate the given metric source only";
            errors.forbidden(it.path.field(field), why);
        }
    }
}
