//! Canonical form of native kinds: which empty fields are omitted, which are always emitted, and
//! the form of quantities and times.
//!
//! In Go this follows from the types; here it is schema data ([`Emit`]). Custom resources are left
//! alone.

use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_apimachinery::time;
use ferrokube_schema::{Emit, Kind, Schema};

/// Normalizes a decoded object: drops nulls and empty fields, and canonicalizes quantities and
/// times.
///
/// Fields that [`complete`] adds are dropped as well while they have their zero value, so that no
/// manager owns them.
pub fn normalize(schema: &Schema, object: &mut Document) {
    if schema.native {
        normalize_fields(schema, object.fields_mut(), 0);
    }
}

/// Adds the fields that are always emitted, recursively.
pub fn complete(schema: &Schema, object: &mut Document) {
    if schema.native {
        complete_fields(schema, object.fields_mut());
    }
}

/// `level`: how deep the map is in the object.
fn normalize_fields(schema: &Schema, object: &mut Map, level: usize) {
    object.retain(|name, value| {
        let Some(property) = schema.properties.get(name.as_str()) else {
            return true;
        };
        if name == "managedFields" && level == 1 {
            // An empty list requests their reset.
            return !value.is_null();
        }
        normalize_value(&property.schema, value, level);
        match property.emit {
            Emit::AsIs => true,
            Emit::OmitEmpty => !is_empty(&property.schema, value),
            Emit::OmitNull | Emit::AlwaysNull => !value.is_null(),
            Emit::Always => !value.is_null() && *value != zero(&property.schema),
        }
    });
}

/// Whether a field of this type counts as empty; structs never do.
fn is_empty(schema: &Schema, value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0) && schema.kind != Kind::IntOrString,
        Value::Bool(flag) => !flag,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty() && schema.additional.is_some(),
        Value::Null => true,
    }
}

fn normalize_value(schema: &Schema, value: &mut Value, level: usize) {
    if let Some(node) = schema.inside.as_deref() {
        return match value {
            Value::Array(items) => {
                items.iter_mut().for_each(|value| normalize_element(node, value, level + 1))
            }
            other => normalize_value(node, other, level + 1),
        };
    }
    match value {
        Value::Object(map) => match &schema.additional {
            Some(values) => {
                map.values_mut().for_each(|value| normalize_element(values, value, level + 1))
            }
            None => normalize_fields(schema, map, level + 1),
        },
        Value::Array(items) => {
            if let Some(node) = &schema.items {
                items.iter_mut().for_each(|value| normalize_element(node, value, level + 1));
            }
        }
        Value::String(_) | Value::Number(_) => canonical_scalar(schema, value),
        Value::Bool(_) | Value::Null => {}
    }
}

/// A list item or map value, where null stands for the type's zero value.
fn normalize_element(schema: &Schema, value: &mut Value, level: usize) {
    if !value.is_null() {
        normalize_value(schema, value, level);
    } else if schema.format.as_deref() == Some("byte") {
        *value = Value::from("");
    } else {
        *value = zero(schema);
    }
}

fn is_time(schema: &Schema) -> bool {
    schema.format.as_deref() == Some("date-time")
}

fn is_quantity(schema: &Schema) -> bool {
    schema.format.as_deref() == Some("quantity")
}

/// Canonicalizes quantities, times and base64. Invalid text is kept for validation to reject.
fn canonical_scalar(schema: &Schema, value: &mut Value) {
    let canonical = match &*value {
        Value::String(text) if is_quantity(schema) => {
            Quantity::parse(text.trim()).ok().map(|quantity| quantity.canonical())
        }
        Value::Number(number) if is_quantity(schema) => {
            Quantity::parse(&number.as_written()).ok().map(|quantity| quantity.canonical())
        }
        Value::String(text) if is_time(schema) => canonical_time(schema, text),
        // The decoder skips line ends in base64; the encoder emits none.
        Value::String(text)
            if schema.format.as_deref() == Some("byte") && text.contains(['\n', '\r']) =>
        {
            Some(text.replace(['\n', '\r'], ""))
        }
        _ => None,
    };
    if let Some(canonical) = canonical {
        *value = Value::from(canonical);
    }
}

fn canonical_time(schema: &Schema, text: &str) -> Option<String> {
    if schema.short_name() == "MicroTime" {
        return time::parse_rfc3339(text).map(time::rfc3339_micros);
    }
    // Usually canonical already.
    if text.len() == 20 && text.ends_with('Z') {
        return None;
    }
    time::parse_rfc3339(text).map(time::rfc3339_seconds)
}

fn complete_fields(schema: &Schema, object: &mut Map) {
    for (name, value) in object.iter_mut() {
        if !matches!(value, Value::Object(_) | Value::Array(_)) {
            continue;
        }
        let Some(property) = schema.properties.get(name) else { continue };
        // Always-emitted empty lists are null, as when read back from etcd by kube-apiserver.
        let is_empty_list = value.as_array().is_some_and(|list| list.is_empty());
        if is_empty_list && property.emit == Emit::Always {
            *value = Value::Null;
        } else if name != "managedFields" {
            complete_value(&property.schema, value);
        }
    }
    for name in schema.always() {
        if object.contains_key(name) {
            continue;
        }
        let property = &schema.properties[name];
        let mut value = Value::Null;
        if property.emit == Emit::Always {
            value = zero(&property.schema);
            complete_value(&property.schema, &mut value);
        }
        object.insert(&**name, value);
    }
}

fn complete_value(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => match &schema.additional {
            Some(values) => map.values_mut().for_each(|value| complete_value(values, value)),
            None => complete_fields(schema, map),
        },
        Value::Array(items) => {
            if let Some(node) = &schema.items {
                items.iter_mut().for_each(|value| complete_value(node, value));
            }
        }
        _ => {}
    }
}

/// Value that kube-apiserver emits for an unset field.
fn zero(schema: &Schema) -> Value {
    match schema.kind {
        Kind::Object if schema.additional.is_none() => Value::Object(Map::new()),
        Kind::String if !is_time(schema) && schema.format.as_deref() != Some("byte") => {
            Value::from("")
        }
        Kind::IntOrString if is_quantity(schema) => Value::from("0"),
        Kind::Integer | Kind::Number | Kind::IntOrString => Value::from(0),
        Kind::Boolean => Value::Bool(false),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use ferrokube_schema::Property;

    fn node(kind: Kind) -> Schema {
        Schema { kind, native: true, ..Schema::default() }
    }

    fn structure(fields: &[(&str, &Schema, Emit)]) -> Schema {
        let property =
            |schema: &Schema, emit| Property { emit, ..Property::new(schema.clone(), false) };
        let properties = fields
            .iter()
            .map(|(name, schema, emit)| ((*name).into(), property(schema, *emit)))
            .collect();
        Schema { properties, ..node(Kind::Object) }
    }

    fn list(items: Schema) -> Schema {
        Schema { items: Some(items.into()), ..node(Kind::Array) }
    }

    fn map(values: Schema) -> Schema {
        Schema { additional: Some(values.into()), ..node(Kind::Object) }
    }

    fn time() -> Schema {
        Schema { format: Some("date-time".into()), ..node(Kind::String) }
    }

    fn check(schema: &Schema, given: Value, normal: &Value, completed: &Value) {
        let mut object = Document::from_value(given).unwrap();
        normalize(schema, &mut object);
        assert_eq!(&object.clone().into_value(), normal);
        complete(schema, &mut object);
        assert_eq!(&object.into_value(), completed);
    }

    #[test]
    fn empty_fields_go_unless_they_mean_something() {
        let spec = structure(&[("n", &node(Kind::Integer), Emit::OmitEmpty)]);
        let schema = structure(&[
            ("text", &node(Kind::String), Emit::OmitEmpty),
            ("name", &node(Kind::String), Emit::Always),
            ("flag", &node(Kind::Boolean), Emit::OmitEmpty),
            ("pointer", &node(Kind::Boolean), Emit::OmitNull),
            ("data", &map(node(Kind::String)), Emit::OmitEmpty),
            ("spec", &spec, Emit::OmitNull),
        ]);
        let given = json!({"text": "", "name": "", "flag": false, "pointer": false, "data": {}, "spec": {"n": 0}, "other": ""});
        let normal = json!({"pointer": false, "spec": {}, "other": ""});
        check(
            &schema,
            given,
            &normal,
            &json!({"name": "", "pointer": false, "spec": {}, "other": ""}),
        );
        check(
            &schema,
            json!({"data": {"k": null}, "pointer": null}),
            &json!({"data": {"k": ""}}),
            &json!({"data": {"k": ""}, "name": ""}),
        );
    }

    #[test]
    fn always_emitted_fields_are_added_by_completion_only() {
        let item = structure(&[("at", &time(), Emit::Always)]);
        let status = structure(&[("conditions", &list(item), Emit::OmitEmpty)]);
        let schema = structure(&[
            ("rules", &list(node(Kind::String)), Emit::Always),
            ("status", &status, Emit::Always),
            ("seconds", &node(Kind::Integer), Emit::AlwaysNull),
        ]);
        let empty = json!({"rules": null, "status": {}, "seconds": null});
        check(&schema, json!({"rules": [], "status": {}}), &json!({"rules": []}), &empty);
        check(&schema, empty.clone(), &json!({}), &empty);
        let expected =
            json!({"rules": null, "status": {"conditions": [{"at": null}]}, "seconds": 0});
        check(
            &schema,
            json!({"status": {"conditions": [{}]}, "seconds": 0}),
            &json!({"status": {"conditions": [{}]}, "seconds": 0}),
            &expected,
        );
    }

    #[test]
    fn always_emitted_structures_are_complete() {
        let names = structure(&[("plural", &node(Kind::String), Emit::Always)]);
        let spec = structure(&[
            ("names", &names, Emit::Always),
            ("versions", &list(node(Kind::String)), Emit::Always),
            ("scope", &node(Kind::String), Emit::OmitEmpty),
        ]);
        let schema = structure(&[("spec", &spec, Emit::Always)]);
        let completed = json!({"spec": {"names": {"plural": ""}, "versions": null}});
        check(&schema, json!({}), &json!({}), &completed);
        check(&schema, completed.clone(), &json!({}), &completed);
    }

    #[test]
    fn custom_nodes_are_left_alone() {
        let schema =
            Schema { native: false, ..structure(&[("a", &node(Kind::String), Emit::OmitEmpty)]) };
        check(&schema, json!({"a": null}), &json!({"a": null}), &json!({"a": null}));
    }

    #[test]
    fn quantities_and_times_are_canonical() {
        let quantity = Schema { format: Some("quantity".into()), ..node(Kind::IntOrString) };
        let micro = Schema {
            name: Some("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime".into()),
            ..time()
        };
        let schema = structure(&[
            ("hard", &map(quantity), Emit::OmitEmpty),
            ("at", &time(), Emit::OmitNull),
            ("micro", &micro, Emit::OmitNull),
        ]);
        let given = json!({"hard": {"a": 2, "b": "1500m", "c": "1024Mi", "d": null}, "at": "2024-01-02T04:04:05+01:00", "micro": "2024-01-02T03:04:05.000006Z"});
        let expected = json!({"hard": {"a": "2", "b": "1500m", "c": "1Gi", "d": "0"}, "at": "2024-01-02T03:04:05Z", "micro": "2024-01-02T03:04:05.000006Z"});
        check(&schema, given, &expected, &expected);
    }
}
