//! ConfigMap: strings and bytes by key, at most 1 MiB; may be immutable.

use crate::checks::{ErrorList, IMMUTABLE, MAX_DATA_BYTES, all_invalid, entries, is_true};
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
        let mut errors = ErrorList::default();
        errors.extend(change.old.map_or_else(Vec::new, |old| unchanged(old, object)));
        errors.check_each(entries(object, &["data"]), |(key, _)| {
            let field = format!("data[{key}]");
            let repeated = object.get(&["binaryData", key]).map(|_| {
                let why = "duplicate of key present in binaryData";
                FieldError::invalid(field.as_str(), key.as_str(), why)
            });
            all_invalid(&field, key, name::config_key(key)).chain(repeated).collect::<Vec<_>>()
        });
        errors.check_each(entries(object, &["binaryData"]), |(key, _)| {
            all_invalid(&format!("binaryData[{key}]"), key, name::config_key(key))
                .collect::<Vec<_>>()
        });
        let texts =
            |path: &'static [&'static str]| entries(object, path).filter_map(|(_, v)| v.as_str());
        let bytes: usize = texts(&["data"]).map(str::len).sum();
        if bytes + texts(&["binaryData"]).map(decoded_bytes).sum::<usize>() > MAX_DATA_BYTES {
            // kube-apiserver's path of the whole object.
            errors.extend([FieldError::too_long("[]", MAX_DATA_BYTES)]);
        }
        errors.into_vec()
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
