//! Whether an applied object fits its schema. Apply is strict whatever the field validation is: what cannot be owned cannot be applied.

use super::element;
use crate::schema::{Kind, ListType, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use std::collections::HashSet;

/// Checks an object.
///
/// # Errors
/// The first field that does not fit, and why.
pub(super) fn check(schema: &Schema, object: &Map) -> Result<(), String> {
    fields(schema, object, &Place { type_meta: true, open: false, depth: 0 })
}

/// Where a value is.
#[derive(Clone, Copy)]
struct Place {
    /// Its own kind, version and metadata need no declaration.
    type_meta: bool,
    /// Something above it keeps unknown fields: these may be applied everywhere below it, though they are not kept there.
    open: bool,
    depth: usize,
}

impl Place {
    fn below(self, schema: &Schema) -> Self {
        Self { type_meta: false, open: self.open || schema.preserve_unknown, depth: self.depth + 1 }
    }
}

/// An object of which nothing is declared is one of which anything can be owned.
fn is_undeclared(schema: &Schema) -> bool {
    !schema.native && schema.kind == Kind::Object && schema.properties.is_empty() && schema.additional.is_none()
}

fn fields(schema: &Schema, object: &Map, place: &Place) -> Result<(), String> {
    for (name, child) in object {
        let result = match schema.child(name) {
            // Of what is native all is declared.
            Some(node) => value(node, child, Place { open: !node.native && place.below(schema).open, ..place.below(schema) }),
            None if place.open || schema.preserve_unknown || schema.kind == Kind::Any || is_undeclared(schema) => Ok(()),
            None if place.type_meta && matches!(name.as_str(), "kind" | "apiVersion" | "metadata") => Ok(()),
            None => Err(": field not declared in schema".to_owned()),
        };
        result.map_err(|why| format!(".{name}{why}"))?;
    }
    Ok(())
}

fn value(schema: &Schema, value: &Value, place: Place) -> Result<(), String> {
    if place.depth > MAX_WALK {
        return Err(": nested too deep".to_owned());
    }
    match (schema.kind, value) {
        (_, Value::Null) => Ok(()),
        (Kind::Object | Kind::Any, Value::Object(map)) => fields(schema, map, &Place { type_meta: schema.embedded, ..place }),
        (Kind::Array, Value::Array(items)) => list(schema, items, place),
        (Kind::Any, _)
        | (Kind::String, Value::String(_))
        | (Kind::Integer | Kind::Number, Value::Number(_))
        | (Kind::Boolean, Value::Bool(_))
        | (Kind::IntOrString, Value::String(_) | Value::Number(_) | Value::Bool(_)) => Ok(()),
        (kind, _) => Err(format!(": expected {kind:?}")),
    }
}

fn list(schema: &Schema, items: &[Value], place: Place) -> Result<(), String> {
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        if schema.list_type != ListType::Atomic {
            let element = element::item(schema, item).map_err(|why| format!(": element {index}: {why}"))?;
            if !seen.insert(element) {
                return Err(format!(": duplicate entries for element {index}"));
            }
        }
        if let Some(node) = schema.items.as_deref() {
            value(node, item, place.below(schema)).map_err(|why| format!("[{index}]{why}"))?;
        }
    }
    Ok(())
}
