//! The set of fields that an applied object sets.

use super::element;
use super::set::{Fields, assemble, insert};
use super::skip::Skip;
use crate::schema::{Kind, ListType, MAX_WALK, MapType, Schema};
use ferrokube_apimachinery::document::{Map, Value};

pub(super) fn of(schema: &Schema, object: &Map, skip: &Skip<'_>) -> Fields {
    map(Some(schema), object, skip, 0)
}

/// Adapts a set to a schema that may have changed: owners of parts of a now atomic field own all of
/// it.
pub(super) fn reconcile(schema: &Schema, set: &mut Fields) {
    for (element, node) in set.iter_mut() {
        let below = match element.split_at_checked(2) {
            Some(("f:", name)) => schema.child(name),
            Some(("k:", _)) => schema.items.as_deref(),
            _ => None,
        };
        let (Some(below), Value::Object(node)) = (below.filter(|below| !below.native), node) else {
            continue;
        };
        if is_atomic(below) { node.clear() } else { reconcile(below, node) }
    }
}

fn is_atomic(schema: &Schema) -> bool {
    match schema.kind {
        Kind::Array => schema.list_type == ListType::Atomic,
        Kind::Object => schema.map_type == MapType::Atomic,
        _ => false,
    }
}

fn value(schema: Option<&Schema>, value: &Value, skip: &Skip<'_>, depth: usize) -> Option<Fields> {
    if depth > MAX_WALK {
        return Some(Fields::new());
    }
    let typed = schema.filter(|schema| schema.is_typed());
    let atomic_map = typed.is_some_and(|schema| schema.map_type == MapType::Atomic);
    match (value, typed) {
        (Value::Object(fields), _) if !atomic_map => {
            assemble(false, map(schema, fields, skip, depth))
        }
        (Value::Array(items), Some(schema)) if schema.list_type != ListType::Atomic => {
            assemble(false, list(schema, items, depth))
        }
        (Value::Null, Some(schema)) if matches!(schema.kind, Kind::Object | Kind::Array) => None,
        _ => Some(Fields::new()),
    }
}

fn map(schema: Option<&Schema>, fields: &Map, skip: &Skip<'_>, depth: usize) -> Fields {
    let mut out = Fields::new();
    for (name, child) in fields {
        let below = skip.below(name);
        let empty = child.is_null() || child.as_object().is_some_and(Map::is_empty);
        let hidden = child.as_object().is_some_and(|map| below.hides(map.keys()));
        // The metadata itself has no owner.
        if skip.has(name) || hidden || (empty && below.is_metadata()) {
            continue;
        }
        let declared = schema.is_some_and(|schema| schema.properties.contains_key(name.as_str()));
        let set = value(schema.and_then(|schema| schema.child(name)), child, &below, depth + 1);
        let member = empty || !declared || set.as_ref().is_some_and(super::set::is_member);
        insert(&mut out, element::field(name), assemble(member, set.unwrap_or_default()));
    }
    out
}

fn list(schema: &Schema, items: &[Value], depth: usize) -> Fields {
    let mut out = Fields::new();
    for item in items {
        let Ok(element) = element::item(schema, item) else {
            continue;
        };
        let set = value(schema.items.as_deref(), item, &Skip::default(), depth + 1);
        // Of duplicates (in stored objects) only the item itself is a member.
        let set = if out.contains_key(&element) { Fields::new() } else { set.unwrap_or_default() };
        insert(&mut out, element, assemble(true, set));
    }
    out
}
