//! Schema defaults.

use crate::schema::{MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::{json, work};

/// Max bytes of defaults added to one object: with more it could not be stored. The rest is left
/// out, and the object is refused for its size.
const MAX_DEFAULT_BYTES: usize = 4 * 1024 * 1024;

/// Sets absent fields to their defaults, also inside lists and maps; replaces null in non-nullable
/// fields with a default.
///
/// Other nulls stay: in custom objects for [`super::prune`] and validation, in native ones for the
/// encoder. Work and memory are linear in the object and the added defaults, at most 4 MiB.
pub fn default(schema: &Schema, object: &mut Document) {
    if !schema.native || schema.has_defaults() {
        Defaulter { room: MAX_DEFAULT_BYTES }.fields(schema, object.fields_mut(), 0);
    }
}

struct Defaulter {
    /// Bytes of defaults that may still be added.
    room: usize,
}

impl Defaulter {
    /// Charges a default; `false` if it does not fit.
    fn take(&mut self, bytes: usize) -> bool {
        work::count(1);
        let left = self.room.checked_sub(bytes);
        self.room = left.unwrap_or(0);
        left.is_some()
    }

    fn value(&mut self, schema: &Schema, value: &mut Value, depth: usize) {
        if depth > MAX_WALK {
            return;
        }
        match value {
            Value::Object(map) => self.fields(schema, map, depth),
            Value::Array(items) => {
                let Some(node) = schema.items.as_deref() else {
                    return;
                };
                for item in items {
                    self.replace_null(node, item);
                    self.value(node, item, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn replace_null(&mut self, schema: &Schema, value: &mut Value) {
        if value.is_null()
            && !schema.nullable
            && let Some(default) = &schema.default
            && self.take(json::to_vec(default).len())
        {
            *value = default.clone();
        }
    }

    fn fields(&mut self, schema: &Schema, map: &mut Map, depth: usize) {
        work::count(1 + map.len());
        work::breathe();
        for property in schema.defaulted() {
            let node = &schema.properties[&property.name].schema;
            match map.get_mut(&property.name) {
                None if self.take(property.bytes) => {
                    map.insert(property.name.to_string(), node.default.clone().unwrap_or_default());
                }
                None => return,
                Some(value) => self.replace_null(node, value),
            }
        }
        for (name, child) in map.iter_mut() {
            if let Some(node) = schema.child(name) {
                if !schema.native {
                    self.replace_null(node, child);
                }
                self.value(node, child, depth + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Kind, Property};
    use crate::testing::{core, document};
    use ferrokube_apimachinery::document::json;

    fn custom() -> Schema {
        let port = Schema { kind: Kind::String, default: Some(json!("TCP")), ..Schema::default() };
        let item = Schema {
            kind: Kind::Object,
            properties: [("protocol".into(), Property::new(port, false))].into(),
            ..Schema::default()
        };
        let list =
            Schema { kind: Kind::Array, items: Some(item.clone().into()), ..Schema::default() };
        let map = Schema { kind: Kind::Object, additional: Some(item.into()), ..Schema::default() };
        let plain = Schema { kind: Kind::String, ..Schema::default() };
        let nullable = Schema {
            kind: Kind::String,
            nullable: true,
            default: Some(json!("d")),
            ..Schema::default()
        };
        let properties = [("list", list), ("map", map), ("plain", plain), ("nullable", nullable)];
        let properties = properties
            .into_iter()
            .map(|(name, schema)| (name.into(), Property::new(schema, false)))
            .collect();
        Schema { kind: Kind::Object, properties, ..Schema::default() }
    }

    #[test]
    fn defaults_go_deep_and_nulls_follow_nullable() {
        let mut object = document(
            json!({"list": [{}, {"protocol": "UDP"}, {"protocol": null}], "map": {"a": {}}, "plain": null, "nullable": null}),
        );
        default(&custom(), &mut object);
        let list = json!([{"protocol": "TCP"}, {"protocol": "UDP"}, {"protocol": "TCP"}]);
        let expected = json!({"list": list, "map": {"a": {"protocol": "TCP"}}, "plain": null, "nullable": null});
        assert_eq!(object.into_value(), expected);
        let mut empty = Document::new();
        default(&custom(), &mut empty);
        assert_eq!(empty.into_value(), json!({"nullable": "d"}));
    }

    #[test]
    fn native_nulls_are_left_alone() {
        let mut object = document(json!({"data": {"k": null}}));
        default(&core("ConfigMap"), &mut object);
        assert_eq!(object.into_value(), json!({"data": {"k": null}}));
    }
}
