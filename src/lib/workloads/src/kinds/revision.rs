//! ControllerRevision: an immutable snapshot of a template.

use crate::cells::{CellValue, list_at};
use crate::checks::{FieldErrors, is_true, text};
use crate::hooks::KindCode;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Change;
use std::time::SystemTime;

#[derive(Debug)]
pub(crate) struct ControllerRevision;

impl KindCode for ControllerRevision {
    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let data = |object: &'_ Document| object.get(&["data"]).cloned();
        let (root, name) = (FieldPath::Root, "data");
        let path = root.field(name);
        let Some(old) = change.old else {
            return match data(object) {
                None | Some(Value::Null) => errors.required(path, "data is mandatory"),
                Some(Value::Object(_)) => {}
                Some(_) => errors.required(path, "data must be a valid JSON object"),
            };
        };
        if data(old) != data(object) {
            errors.invalid(path, data(object).as_ref(), "field is immutable");
        }
    }

    fn cell(&self, _word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let owners = list_at(object, &["metadata", "ownerReferences"]).iter();
        let controller = owners.clone().find(|owner| is_true(owner, "controller"));
        let Some(owner) = controller else { return CellValue::text("<none>") };
        let kind = match text(owner, "apiVersion").split_once('/') {
            Some((group, _)) => format!("{}.{group}", text(owner, "kind")),
            None => text(owner, "kind").to_owned(),
        };
        CellValue::text(format!("{}/{}", kind.to_lowercase(), text(owner, "name")))
    }
}
