//! ConfigMap: strings and bytes by key, at most 1 MiB; may be immutable.

use crate::checks::{IMMUTABLE, MAX_DATA_BYTES, all_invalid, entries, is_true};
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::name;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, Hooks, Printable, TableRow};
use std::sync::Arc;

pub(crate) fn body() -> KindBody {
    KindBody {
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text(
                    "Data",
                    "Data contains the configuration data. Each key must consist of alphanumeric characters, '-', '_' or '.'. Values with non-UTF-8 byte sequences must use the BinaryData field. The keys stored in Data must not overlap with the keys in the BinaryData field, this is enforced during validation process.",
                ),
                NativeColumn::AGE,
            ]
        },
        storage: Some("configmaps"),
        hooks: Arc::new(ConfigMap),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct ConfigMap;

impl Hooks for ConfigMap {
    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = change.old.map_or_else(Vec::new, |old| unchanged(old, object));
        let mut bytes = 0;
        for (key, value) in entries(object, &["data"]) {
            let field = format!("data[{key}]");
            errors.extend(all_invalid(&field, key, name::config_key(key)));
            if object.get(&["binaryData", key]).is_some() {
                errors.push(FieldError::invalid(
                    field,
                    key.as_str(),
                    "duplicate of key present in binaryData",
                ));
            }
            bytes += value.as_str().map_or(0, str::len);
        }
        for (key, value) in entries(object, &["binaryData"]) {
            errors.extend(all_invalid(&format!("binaryData[{key}]"), key, name::config_key(key)));
            bytes += value.as_str().map_or(0, decoded_bytes);
        }
        if bytes > MAX_DATA_BYTES {
            // kube-apiserver's path of the whole object.
            errors.push(FieldError::too_long("[]", MAX_DATA_BYTES));
        }
        errors
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.value(&object.count(&["data", "binaryData"]).into());
        row.age(object);
    }
}

/// Errors in an update of an immutable object.
fn unchanged(old: &Document, object: &Document) -> Vec<FieldError> {
    if !is_true(old, &["immutable"]) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if !is_true(object, &["immutable"]) {
        errors.push(FieldError::forbidden("immutable", IMMUTABLE));
    }
    for field in ["data", "binaryData"] {
        // kube-apiserver distinguishes a missing map from an empty one.
        if old.get(&[field]) != object.get(&[field]) {
            errors.push(FieldError::forbidden(field, IMMUTABLE));
        }
    }
    errors
}

/// Length of decoded base64.
pub(crate) fn decoded_bytes(text: &str) -> usize {
    text.len() / 4 * 3
        - text.bytes().rev().take(2).filter(|byte| *byte == b'=').count().min(text.len())
}
