//! Apply configurations of mutating policies: merged into an object, with no owners.

use super::{conform, merge, skip::Skip};
use crate::schema::{Kind, ListType, MapType, Schema};
use ferrokube_apimachinery::document::{Document, Map, Value};

/// Max depth of a configuration.
const MAX_DEPTH: usize = 128;

/// Merges a configuration into an object, as an apply would.
///
/// # Errors
/// kube-apiserver's message: the configuration or the object does not fit the schema, or the
/// configuration sets an atomic list, map or struct, which would drop the fields that it lacks.
pub fn merge_configuration(
    schema: &Schema,
    live: &Document,
    configuration: &Document,
) -> Result<Document, String> {
    conform::check(schema, configuration.fields())
        .map_err(|why| format!("failed to convert patch object to typed object: {why}"))?;
    let mut atomics = Vec::new();
    in_map(schema, configuration.fields(), "", 0, &mut atomics);
    if !atomics.is_empty() {
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {}",
            atomics.join(", ")
        ));
    }
    conform::check_live(schema, live.fields())
        .map_err(|why| format!("failed to convert original object to typed object: {why}"))?;
    let mut object = live.clone();
    merge::merge(schema, object.fields_mut(), configuration.fields(), &Skip::default());
    Ok(object)
}

fn in_value(schema: &Schema, value: &Value, path: &str, depth: usize, found: &mut Vec<String>) {
    if depth > MAX_DEPTH {
        return;
    }
    match (value, schema.kind) {
        (Value::Object(fields), _) => {
            if schema.map_type == MapType::Atomic {
                found.push(path.to_owned());
            }
            in_map(schema, fields, path, depth, found);
        }
        (Value::Array(items), Kind::Array) => {
            if schema.list_type == ListType::Atomic {
                found.push(path.to_owned());
            }
            let below = schema.items.as_deref();
            for (index, item) in items.iter().enumerate() {
                if let Some(below) = below {
                    in_value(below, item, &format!("{path}[{index}]"), depth + 1, found);
                }
            }
        }
        _ => {}
    }
}

/// Declared fields only: entries of maps are merged one by one.
fn in_map(schema: &Schema, fields: &Map, path: &str, depth: usize, found: &mut Vec<String>) {
    for (name, value) in fields {
        if let Some(property) = schema.properties.get(name.as_str()) {
            in_value(&property.schema, value, &format!("{path}.{name}"), depth + 1, found);
        }
    }
}
