//! CSIDriver: a driver of volumes.

use crate::cells::{CellValue, at, list_at};
use crate::checks::text;
use crate::hooks::KindCode;
use crate::rules::same_before_completion;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Change;
use std::time::SystemTime;

#[derive(Debug)]
pub(crate) struct CsiDriver;

impl KindCode for CsiDriver {
    /// The generation of a new object is not set.
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        let Some(old) = change.old else { return };
        if !same_before_completion(old.get(&["spec"]), object.get(&["spec"])) {
            let generation = |object: &Document| {
                object.get(&["metadata", "generation"]).and_then(Value::as_i64).unwrap_or_default()
            };
            object.set(&["metadata", "generation"], generation(old) + 1);
        }
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let flag = |field: &str, unset: bool| {
            let set = at(object, &["spec", field]).and_then(Value::as_bool);
            CellValue::Value(set.unwrap_or(unset).into())
        };
        match word {
            "attach-required" => flag("attachRequired", true),
            "pod-info" => flag("podInfoOnMount", false),
            "storage-capacity" => flag("storageCapacity", false),
            "requires-republish" => flag("requiresRepublish", false),
            "modes" => {
                let modes = list_at(object, &["spec", "volumeLifecycleModes"]).iter();
                let modes: Vec<&str> = modes.filter_map(Value::as_str).collect();
                CellValue::text(if modes.is_empty() {
                    "<none>".to_owned()
                } else {
                    modes.join(",")
                })
            }
            _ => {
                let requests = list_at(object, &["spec", "tokenRequests"]);
                let audiences: Vec<&str> =
                    requests.iter().map(|request| text(request, "audience")).collect();
                CellValue::text(match requests {
                    [] => "<unset>".to_owned(),
                    _ => audiences.join(","),
                })
            }
        }
    }
}
