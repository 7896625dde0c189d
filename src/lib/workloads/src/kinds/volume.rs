//! PersistentVolume and PersistentVolumeClaim.

use crate::cells::{CellValue, at, list_at, str_at};
use crate::checks::{FieldErrors, text};
use crate::hooks::KindCode;
use crate::kinds::podspec::resources;
use crate::paths::FieldPath;
use crate::rules::same;
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_resource::Change;
use std::time::SystemTime;

/// Fields of a volume's spec besides its source.
const SHARED_FIELDS: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];
/// The deprecated place of a class's name.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// PersistentVolume: storage that exists.
#[derive(Debug)]
pub(crate) struct PersistentVolume;

impl KindCode for PersistentVolume {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        const SINCE: [&str; 2] = ["status", "lastPhaseTransitionTime"];
        if let Some(old) = change.old.filter(|_| change.subresource == "status") {
            let (before, after) = (old.get(&SINCE).cloned(), object.get(&SINCE).cloned());
            let same_phase = old.str(&["status", "phase"]) == object.str(&["status", "phase"]);
            match (same_phase, after) {
                (true, None) => {
                    if let Some(before) = before {
                        object.set(&SINCE, before);
                    }
                }
                (false, after) if after.is_none() || after == before => {
                    let now = ferrokube_apimachinery::time::rfc3339_seconds(change.now);
                    object.set(&SINCE, now);
                }
                _ => {}
            }
        }
        if change.old.is_none() {
            let now = ferrokube_apimachinery::time::rfc3339_seconds(change.now);
            object.set(&["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let Some(old) = change.old.filter(|_| change.subresource.is_empty()) else { return };
        let source = |object: &Document| {
            let spec = object.get(&["spec"]).and_then(Value::as_object).cloned();
            let mut spec = spec.unwrap_or_default();
            SHARED_FIELDS.iter().for_each(|field| {
                spec.remove(field);
            });
            Value::Object(spec)
        };
        let root = FieldPath::Root;
        let spec = root.field("spec");
        if !same(Some(&source(old)), Some(&source(object))) {
            let why = "spec.persistentvolumesource is immutable after creation";
            errors.forbidden(spec.field("persistentvolumesource"), why);
        }
        let pair = |field: &str| (old.get(&["spec", field]), object.get(&["spec", field]));
        let (before, after) = pair("volumeMode");
        if !same(before, after) {
            errors.invalid(root.field("volumeMode"), after, "field is immutable");
        }
        let (before, after) = pair("nodeAffinity");
        if before.is_some_and(|value| !value.is_null()) && !same(before, after) {
            errors.invalid(
                root.field("nodeAffinity"),
                after,
                "field is immutable, except for updating from beta label to GA",
            );
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        old_annotations(object, out);
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(match word {
            "capacity" => quantity(object, &["spec", "capacity", "storage"]),
            "access-modes" => modes(list_at(object, &["spec", "accessModes"])),
            "claim" => match at(object, &["spec", "claimRef"]).filter(|claim| !claim.is_null()) {
                Some(claim) => format!("{}/{}", text(claim, "namespace"), text(claim, "name")),
                None => String::new(),
            },
            _ => shared(word, object),
        })
    }

    fn selectable(&self, path: &str, object: &Document) -> Option<String> {
        (path == "name").then(|| object.name().to_owned())
    }
}

/// PersistentVolumeClaim: a request for storage.
#[derive(Debug)]
pub(crate) struct VolumeClaim;

impl KindCode for VolumeClaim {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status"], json!({"phase": "Pending"}));
        }
        if change.subresource.is_empty() {
            data_sources(object);
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if !change.subresource.is_empty() {
            return allocated(object, errors);
        }
        let root = FieldPath::Root;
        let spec = root.field("spec");
        let given = |field: &str| object.get(&["spec", field]).filter(|value| !value.is_null());
        if let (Some(source), Some(reference)) = (given("dataSource"), given("dataSourceRef"))
            && text(reference, "namespace").is_empty()
            && !same(Some(source), Some(reference))
        {
            errors.invalid(spec, "", "must match dataSourceRef");
        }
        let Some(old) = change.old else { return };
        let is_bound = object.str(&["status", "phase"]) == Some("Bound");
        let fixed = |object: &Document| {
            let mut spec = object.get(&["spec"]).cloned().unwrap_or_default();
            if let Some(map) = spec.as_object_mut() {
                if is_bound {
                    map.remove("volumeAttributesClassName");
                }
                // The default class may come later.
                if old.get(&["spec", "storageClassName"]).is_none_or(Value::is_null) {
                    map.remove("storageClassName");
                }
                // Empty: a controller may bind it.
                if old.str(&["spec", "volumeName"]).unwrap_or_default().is_empty() {
                    map.remove("volumeName");
                }
            }
            let requests = spec.get_mut("resources").and_then(|resources| {
                resources.as_object_mut()?.get_mut("requests")?.as_object_mut()
            });
            if let Some(requests) = requests.filter(|_| is_bound) {
                requests.remove("storage");
            }
            spec
        };
        if !same(Some(&fixed(old)), Some(&fixed(object))) {
            let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";
            errors.forbidden(spec, why);
        }
        let path = ["spec", "resources", "requests", "storage"];
        let amount = |object: &Document| Quantity::from_value(object.get(&path)?).ok();
        if let (Some(before), Some(after)) = (amount(old), amount(object))
            && after.sub(&before).is_negative()
        {
            let why = "field can not be less than status.capacity";
            errors.forbidden(root.field("spec.resources.requests.storage"), why);
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        old_annotations(object, out);
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let is_bound = !str_at(object, &["spec", "volumeName"]).is_empty();
        CellValue::text(match word {
            "capacity" if is_bound => quantity(object, &["status", "capacity", "storage"]),
            "access-modes" if is_bound => modes(list_at(object, &["status", "accessModes"])),
            "capacity" | "access-modes" => String::new(),
            _ => shared(word, object),
        })
    }

    fn selectable(&self, path: &str, object: &Document) -> Option<String> {
        (path == "name").then(|| object.name().to_owned())
    }
}

/// What is allocated to a claim: storage alone, and how its resize goes.
fn allocated(object: &Document, errors: &mut FieldErrors) {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let root = FieldPath::Root;
    for (field, of_states) in [("allocatedResourceStatuses", true), ("allocatedResources", false)] {
        let status = root.field("status");
        let path = status.field(field);
        let map = object.get(&["status", field]).and_then(Value::as_object);
        for (name, value) in map.into_iter().flatten() {
            if errors.is_full() {
                return;
            }
            let whys = ferrokube_apimachinery::name::qualified_name(name);
            let is_odd =
                whys.is_empty() && resources::is_native(name) && name.as_str() != "storage";
            errors.all_invalid(path, name, whys);
            if is_odd {
                errors.not_supported(path, name.as_str(), &["storage"]);
            }
            if of_states && !STATES.contains(&value.as_str().unwrap_or_default()) {
                errors.not_supported(path, name.as_str(), &STATES);
            } else if !of_states && !is_odd {
                resources::amount("storage", value, path.key(name), errors);
            }
        }
    }
}

/// `dataSource` and `dataSourceRef` name the same object, unless it is in another namespace.
fn data_sources(object: &mut Document) {
    let find = |field: &str| object.get(&["spec", field]).filter(|value| !value.is_null()).cloned();
    match (find("dataSource"), find("dataSourceRef")) {
        (Some(source), None) => object.set(&["spec", "dataSourceRef"], source),
        (None, Some(reference)) if text(&reference, "namespace").is_empty() => {
            let (group, kind) = (text(&reference, "apiGroup"), text(&reference, "kind"));
            let is_known = matches!(
                (group, kind),
                ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
            );
            if is_known {
                object.set(&["spec", "dataSource"], reference);
            }
        }
        _ => {}
    }
}

fn old_annotations(object: &Document, out: &mut Warnings) {
    const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
    let (root, place) = (FieldPath::Root, "metadata.annotations");
    let path = root.field(place);
    let has = |key: &str| object.get(&["metadata", "annotations", key]).is_some();
    if has(CLASS) {
        let why = "deprecated since v1.8; use \"storageClassName\" attribute instead";
        out.at(path.key(CLASS), why);
    }
    if has(MOUNT_OPTIONS) && object.kind() == "PersistentVolume" {
        let why = "deprecated since v1.31; use \"mountOptions\" attribute instead";
        out.at(path.key(MOUNT_OPTIONS), why);
    }
}

fn shared(word: &str, object: &Value) -> String {
    match word {
        "status" => {
            let deleted = at(object, &["metadata", "deletionTimestamp"]);
            match deleted.is_some_and(|time| !time.is_null()) {
                true => "Terminating".to_owned(),
                false => str_at(object, &["status", "phase"]).to_owned(),
            }
        }
        "class" => {
            let annotated = at(object, &["metadata", "annotations", CLASS]);
            let class = at(object, &["spec", "storageClassName"]);
            annotated.or(class).and_then(Value::as_str).unwrap_or_default().to_owned()
        }
        "attributes-class" => {
            let class = at(object, &["spec", "volumeAttributesClassName"]);
            class.and_then(Value::as_str).unwrap_or("<unset>").to_owned()
        }
        _ => String::new(),
    }
}

fn quantity(object: &Value, path: &[&str]) -> String {
    match str_at(object, path) {
        "" => "0".to_owned(),
        amount => amount.to_owned(),
    }
}

/// Short names of access modes, in a fixed order.
fn modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.iter().any(|one| one.as_str() == Some(mode));
    let short: Vec<&str> =
        SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    short.join(",")
}
