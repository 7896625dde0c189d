//! ResourceClaim and ResourceSlice: dynamic allocation of devices.

use crate::cells::{CellValue, at, list_at, str_at};
use crate::hooks::KindCode;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_resource::Change;
use std::time::SystemTime;

/// ResourceClaim: a request for devices.
#[derive(Debug)]
pub(crate) struct ResourceClaim;

impl KindCode for ResourceClaim {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status"], json!({}));
        }
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let is_set = |path: &[&str]| at(object, path).is_some_and(|value| !value.is_null());
        let deleted = is_set(&["metadata", "deletionTimestamp"]);
        let mut states = Vec::new();
        if deleted {
            states.push("deleted");
        }
        if is_set(&["status", "allocation"]) {
            states.push("allocated");
            if !list_at(object, &["status", "reservedFor"]).is_empty() {
                states.push("reserved");
            }
        } else if !deleted {
            states.push("pending");
        }
        CellValue::text(states.join(","))
    }
}

/// ResourceSlice: devices of a pool.
#[derive(Debug)]
pub(crate) struct ResourceSlice;

impl KindCode for ResourceSlice {
    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(str_at(object, &["spec", "nodeName"]))
    }
}
