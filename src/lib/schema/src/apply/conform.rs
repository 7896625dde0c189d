//! Whether an applied object fits its schema. Apply is strict whatever the field validation is: what cannot be owned cannot be applied.

use super::element;
use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use std::collections::HashSet;

/// Checks an object.
///
/// # Errors
/// The first field that does not fit, and why.
pub(super) fn check(schema: &Schema, object: &Map<String, Value>) -> Result<(), String> {
    fields(schema, object, true, 0)
}

fn fields(schema: &Schema, object: &Map<String, Value>, type_meta: bool, depth: usize) -> Result<(), String> {
    for (name, child) in object {
        let result = match schema.child(name) {
            Some(node) => value(node, child, depth + 1),
            None if schema.preserve_unknown || schema.kind == Kind::Any => Ok(()),
            None if type_meta && matches!(name.as_str(), "kind" | "apiVersion" | "metadata") => Ok(()),
            None => Err(": field not declared in schema".to_owned()),
        };
        result.map_err(|why| format!(".{name}{why}"))?;
    }
    Ok(())
}

fn value(schema: &Schema, value: &Value, depth: usize) -> Result<(), String> {
    if depth > MAX_WALK {
        return Err(": nested too deep".to_owned());
    }
    match (schema.kind, value) {
        (_, Value::Null) => Ok(()),
        (Kind::Object | Kind::Any, Value::Object(map)) => fields(schema, map, schema.embedded, depth),
        (Kind::Array, Value::Array(items)) => list(schema, items, depth),
        (Kind::Any, _)
        | (Kind::String, Value::String(_))
        | (Kind::Integer | Kind::Number, Value::Number(_))
        | (Kind::Boolean, Value::Bool(_))
        | (Kind::IntOrString, Value::String(_) | Value::Number(_) | Value::Bool(_)) => Ok(()),
        (kind, _) => Err(format!(": expected {kind:?}")),
    }
}

fn list(schema: &Schema, items: &[Value], depth: usize) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if schema.list_type != ListType::Atomic {
            let element = element::item(schema, item).map_err(|why| format!(": element {index}: {why}"))?;
            if !seen.insert(element) {
                return Err(format!(": duplicate entries for element {index}"));
            }
        }
        if let Some(node) = schema.items.as_deref() {
            value(node, item, depth + 1).map_err(|why| format!("[{index}]{why}"))?;
        }
    }
    Ok(())
}
