//! Path elements: the names of set and keyed list items, and how conflicts print paths.

use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::work;
use std::fmt::Write;

/// The element of a field.
pub(super) fn field(name: &str) -> String {
    let mut element = String::with_capacity(name.len() + 2);
    element.push_str("f:");
    element.push_str(name);
    element
}

/// The element of a list item.
///
/// # Errors
/// Why the item has none; the schema names the list.
pub(crate) fn item(list: &Schema, value: &Value) -> Result<String, String> {
    match &list.list_type {
        ListType::Map(keys) => keyed(list, keys, value),
        _ => match value {
            Value::Object(_) | Value::Array(_) => Err(match value.is_object() {
                true => "associative list without keys has an element that's a map type".to_owned(),
                false => "not supported: associative list with lists as elements".to_owned(),
            }),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null"
                    .to_owned())
            }
            scalar => Ok(format!("v:{}", Scalar(scalar))),
        },
    }
}

/// A value as it will be stored: `1.0` is named `1`.
struct Scalar<'a>(&'a Value);

impl std::fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Value::Number(number) if number.is_f64() => {
                let mut rounded = self.0.clone();
                json::round_trip_floats(&mut rounded);
                rounded.fmt(f)
            }
            other => other.fmt(f),
        }
    }
}

/// An item's value of a key. kube-apiserver's typed schemas have defaults for fields that are
/// always written, and for the name of a reference.
fn key_value<'a>(list: &'a Schema, item: &'a Map, key: &str) -> Option<&'a Value> {
    let default = || {
        let schema = list.items.as_deref()?;
        let property = schema.properties.get(key)?;
        let is_written = property.required || schema.short_name() == "LocalObjectReference";
        let zero = (list.native && is_written).then(|| property.schema.zero());
        property.schema.default.as_ref().or(zero)
    };
    item.get(key).or_else(default)
}

/// Whether [`item`] has a name for it.
fn is_named(list: &Schema, value: &Value) -> bool {
    match (&list.list_type, value) {
        (ListType::Map(keys), Value::Object(map)) => {
            keys.iter().any(|key| key_value(list, map, key).is_some())
        }
        (ListType::Map(_), _) | (_, Value::Object(_) | Value::Array(_) | Value::Null) => false,
        _ => true,
    }
}

/// Whether a set or keyed list below a map has an item without a name.
pub(super) fn has_nameless(schema: &Schema, map: &Map, depth: usize) -> bool {
    work::count(map.len());
    depth <= MAX_WALK
        && map.iter().any(|(name, value)| {
            matches!(value, Value::Object(_) | Value::Array(_))
                && schema.child(name).is_some_and(|node| is_nameless(node, value, depth + 1))
        })
}

fn is_nameless(schema: &Schema, value: &Value, depth: usize) -> bool {
    match value {
        Value::Object(map) => has_nameless(schema, map, depth),
        Value::Array(items) if schema.kind == Kind::Array && depth <= MAX_WALK => {
            items.iter().any(|item| {
                (schema.list_type != ListType::Atomic && !is_named(schema, item))
                    || schema
                        .items
                        .as_deref()
                        .is_some_and(|node| is_nameless(node, item, depth + 1))
            })
        }
        _ => false,
    }
}

fn keyed(list: &Schema, keys: &[String], value: &Value) -> Result<String, String> {
    let Value::Object(map) = value else {
        return Err(match value.is_null() {
            true => "associative list with keys may not have a null element".to_owned(),
            false => "associative list with keys may not have non-map elements".to_owned(),
        });
    };
    work::count(keys.len());
    let mut parts: Vec<(&str, &Value)> = keys
        .iter()
        .filter_map(|key| key_value(list, map, key).map(|value| (key.as_str(), value)))
        .collect();
    if parts.is_empty() {
        let keys: Vec<String> = keys.iter().map(|key| quote(key)).collect();
        let why = "associative list with keys has an element that omits all key fields";
        return Err(format!(
            "{why} [{}] (and doesn't have default values for any key fields)",
            keys.join(" ")
        ));
    }
    parts.sort_unstable_by_key(|(key, _)| *key);
    let mut element = String::from("k:{");
    for (number, (key, value)) in parts.into_iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        let _ = write!(element, "{comma}\"{key}\":{}", Scalar(value));
    }
    element.push('}');
    Ok(element)
}

/// Normalizes an element written by a client. `Ok(None)`: of a type unknown to this version.
///
/// # Errors
/// Not a path element.
pub(super) fn normalize(element: &str) -> Result<Option<String>, ()> {
    let (Some(kind), Some(rest)) = (element.get(..2), element.get(2..)) else {
        return Err(());
    };
    match kind {
        "f:" => Ok(Some(element.to_owned())),
        "v:" => {
            json::read_value(rest.as_bytes()).map(|value| Some(format!("v:{value}"))).map_err(drop)
        }
        "k:" => match json::read_value(rest.as_bytes()) {
            Ok(value @ Value::Object(_)) => Ok(Some(format!("k:{value}"))),
            _ => Err(()),
        },
        "i:" => rest.parse::<i32>().map(|_| Some(element.to_owned())).map_err(drop),
        _ if kind.ends_with(':') => Ok(None),
        _ => Err(()),
    }
}

/// A path as printed in conflicts: `.spec.containers[name="a"].image`.
pub(super) fn display(path: &[&str]) -> String {
    let mut out = String::new();
    for element in path {
        let (kind, rest) = element.split_at_checked(2).unwrap_or(("f:", element));
        let _ = match kind {
            "k:" => write!(out, "[{}]", keys(rest)),
            "v:" => write!(out, "[={}]", item_value(rest)),
            "i:" => write!(out, "[{rest}]"),
            _ => write!(out, ".{rest}"),
        };
    }
    out
}

fn item_value(text: &str) -> String {
    json::read_value(text.as_bytes()).map_or_else(|_| text.to_owned(), |value| shown(&value))
}

fn keys(text: &str) -> String {
    let map = match json::read_value(text.as_bytes()) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    map.iter().map(|(key, value)| format!("{key}={}", shown(value))).collect::<Vec<_>>().join(",")
}

/// A value as structured-merge-diff prints it.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            map.iter().map(|(key, value)| format!("{key}={}", shown(value))).collect()
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(","))
        }
        Value::Number(_) => go::dump(value),
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Manager, ManagerOperation, ResetFields, track_update};
    use crate::testing::{core, document};
    use ferrokube_apimachinery::document::{Value, json};

    /// The managedFields that an update leaves.
    fn tracked(old: &Value, new: &Value) -> Option<Value> {
        let manager = Manager {
            name: "m".to_owned(),
            operation: ManagerOperation::Update,
            api_version: "v1".to_owned(),
            subresource: String::new(),
            time: "2024-01-02T03:04:05Z".to_owned(),
            ids_are_servers: true,
            other_versions: None,
        };
        let (old, mut new) = (document(old.clone()), document(new.clone()));
        let reset = ResetFields::default();
        track_update(&core("ServiceAccount"), &reset, Some(&old), &mut new, &manager);
        new.get(&["metadata", "managedFields"]).cloned()
    }

    #[test]
    fn nothing_is_tracked_next_to_unchanged_items_without_names() {
        let entry = json!({"manager": "z", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:imagePullSecrets": {}}});
        for (secret, is_tracked) in [(json!({}), false), (json!({"name": "s"}), true)] {
            let account = |metadata: &Value| json!({"metadata": metadata, "secrets": [secret]});
            let entries = json!([entry]);
            let labeled = json!({"name": "a", "labels": {"l": "v"}, "managedFields": entries});
            // Entries that a client gives to an untracked object, and those of a tracked one.
            for metadata in [json!({"name": "a"}), json!({"name": "a", "managedFields": entries})] {
                let managers = tracked(&account(&metadata), &account(&labeled));
                assert_eq!(managers.is_some(), is_tracked, "{metadata} {secret}: {managers:?}");
            }
        }
    }
}
