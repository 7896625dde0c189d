//! StorageClass and VolumeAttachment.

use crate::cells::{CellValue, at, str_at};
use crate::checks::{FieldErrors, text};
use crate::hooks::KindCode;
use crate::paths::FieldPath;
use crate::rules::same;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Change;
use std::collections::HashMap;
use std::time::SystemTime;

/// StorageClass: how volumes are provisioned.
#[derive(Debug)]
pub(crate) struct StorageClass;

const DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

impl KindCode for StorageClass {
    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let or = |field: &str, unset: &str| match str_at(object, &[field]) {
            "" => unset.to_owned(),
            text => text.to_owned(),
        };
        CellValue::text(match word {
            "name" => named(object, &DEFAULT_CLASS),
            "reclaim-policy" => or("reclaimPolicy", "Delete"),
            "binding-mode" => or("volumeBindingMode", "Immediate"),
            "expansion" => {
                let allowed = at(object, &["allowVolumeExpansion"]).and_then(Value::as_bool);
                return CellValue::Value(allowed.unwrap_or_default().into());
            }
            _ => String::new(),
        })
    }
}

/// CSINode: the drivers on a node, and their ids for it.
#[derive(Debug)]
pub(crate) struct CsiNode;

impl KindCode for CsiNode {
    /// Only the allocatable volumes of a driver may change.
    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let Some(old) = change.old else { return };
        let fixed = |driver: &Value| {
            let mut driver = driver.clone();
            if let Some(map) = driver.as_object_mut() {
                map.remove("allocatable");
            }
            driver
        };
        let root = FieldPath::Root;
        let path = root.field("spec.drivers");
        let by_name: HashMap<&str, &Value> =
            object.list(&["spec", "drivers"]).iter().map(|one| (text(one, "name"), one)).collect();
        for before in old.list(&["spec", "drivers"]) {
            let Some(after) = by_name.get(text(before, "name")) else { continue };
            if !same(Some(&fixed(before)), Some(&fixed(after))) && !errors.is_full() {
                errors.invalid(path, fixed(after), "field is immutable");
            }
        }
    }
}

/// The name, marked if an annotation makes the object the default.
pub(crate) fn named(object: &Value, annotations: &[&str]) -> String {
    let name = str_at(object, &["metadata", "name"]);
    let annotated = |key: &str| str_at(object, &["metadata", "annotations", key]);
    if annotations.iter().any(|key| annotated(key) == "true") {
        format!("{name} (default)")
    } else {
        name.to_owned()
    }
}

/// VolumeAttachment: a volume on a node.
#[derive(Debug)]
pub(crate) struct VolumeAttachment;

impl KindCode for VolumeAttachment {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status", "attached"], false);
        }
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(str_at(object, &["spec", "source", "persistentVolumeName"]))
    }
}
