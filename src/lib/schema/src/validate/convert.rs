//! Conversion of untyped values to a typed object, as kube-apiserver does after in-memory merges
//! (strategic patches, applies): its errors differ from those of the JSON decoder, and numbers out
//! of range are truncated.

use super::types::{self, is_quantity};
use super::{formats, go_types};
use crate::schema::{Kind, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Map, Number, Value};
use ferrokube_apimachinery::go::{self, kind_of, type_of};
use ferrokube_apimachinery::json::type_name;

/// Converts a native object in place.
///
/// # Errors
/// kube-apiserver's message about the first value that cannot be converted.
pub fn convert(schema: &Schema, object: &mut Map) -> Result<(), String> {
    // Type names and metadata come first in every kind.
    for name in ["kind", "apiVersion"] {
        if let Some(value) = object.get(name) {
            simple(&|| "string".to_owned(), "string", value)?;
        }
    }
    fields(schema, object, 0)
}

fn fields(schema: &Schema, object: &mut Map, depth: usize) -> Result<(), String> {
    if depth == 0
        && let (Some(node), Some(metadata)) = (schema.child("metadata"), object.get_mut("metadata"))
    {
        field(schema, node, "metadata", metadata, depth)?;
    }
    for (name, child) in object.iter_mut() {
        if depth == 0 && name == "metadata" {
            continue;
        }
        if let Some(node) = schema.child(name) {
            field(schema, node, name, child, depth)?;
        }
    }
    Ok(())
}

fn field(
    owner: &Schema,
    node: &Schema,
    name: &str,
    child: &mut Value,
    depth: usize,
) -> Result<(), String> {
    match (node.kind, &*child) {
        // Fast path: most fields are strings.
        (Kind::String, Value::String(_)) if node.format.is_none() => Ok(()),
        // The type's name is only needed for an error.
        _ => value(node, child, depth + 1, &|| go_types::of_field(owner, name, node)),
    }
}

fn value(
    schema: &Schema,
    value: &mut Value,
    depth: usize,
    kind: &dyn Fn() -> String,
) -> Result<(), String> {
    if depth > MAX_WALK {
        return Err("exceeded max depth".to_owned());
    }
    match schema.kind {
        _ if value.is_null() => Ok(()),
        Kind::Any => types::check_at(schema, value),
        Kind::IntOrString if is_quantity(schema) => {
            // kube-apiserver encodes a merged object before decoding it.
            if let Value::Number(number) = value {
                number.forget_text();
            }
            types::check_at(schema, value)
        }
        Kind::IntOrString => own_decoder(schema, value, "int32"),
        Kind::String if schema.format.as_deref() == Some("date-time") => {
            own_decoder(schema, value, "string")
        }
        Kind::String if schema.format.as_deref() == Some("byte") => bytes(value),
        Kind::String => simple(kind, "string", value),
        Kind::Boolean => simple(&|| "bool".to_owned(), "bool", value),
        Kind::Number => number(value),
        Kind::Integer => integer(schema, value),
        Kind::Array => match value {
            Value::Array(items) => {
                let Some(node) = schema.items.as_deref() else { return Ok(()) };
                items.iter_mut().try_for_each(|item| {
                    self::value(node, item, depth + 1, &|| go_types::of_element(&kind(), node))
                })
            }
            other => Err(format!("cannot restore slice from {}", kind_of(other))),
        },
        Kind::Object => match value {
            Value::Object(map) if schema.properties.is_empty() => {
                let Some(node) = schema.additional.as_deref() else { return Ok(()) };
                map.values_mut().try_for_each(|child| {
                    self::value(node, child, depth + 1, &|| go_types::of_element(&kind(), node))
                })
            }
            Value::Object(map) => fields(schema, map, depth),
            other if schema.properties.is_empty() && schema.additional.is_some() => {
                Err(format!("cannot restore map from {}", kind_of(other)))
            }
            // Has its own decoder.
            other if schema.properties.is_empty() => types::check_at(schema, other),
            other => Err(format!("cannot restore struct from: {}", kind_of(other))),
        },
    }
}

/// Types with their own JSON decoder: their errors name no field.
fn own_decoder(schema: &Schema, value: &Value, read_as: &str) -> Result<(), String> {
    match value {
        Value::String(_) => types::check_at(schema, value),
        Value::Number(number) if read_as == "int32" => match number.as_i64() {
            Some(integer) if i32::try_from(integer).is_ok() => Ok(()),
            _ => Err(format!("json: cannot unmarshal number {number} into Go value of type int32")),
        },
        other => Err(format!(
            "json: cannot unmarshal {} into Go value of type {read_as}",
            type_name(other)
        )),
    }
}

fn bytes(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) if formats::is_base64(text) => Ok(()),
        Value::String(text) => Err(format!("error decoding from json: {}", go::base64_fault(text))),
        // Go reads numbers as bytes: see docs/compatibility.md.
        Value::Array(_) => Err("unrecognized type: uint8".to_owned()),
        other => Err(format!("cannot restore slice from {}", kind_of(other))),
    }
}

/// A string or a boolean, whose type may have a name, which only an error needs.
fn simple(named: &dyn Fn() -> String, kind: &str, value: &Value) -> Result<(), String> {
    match (kind, value) {
        ("string", Value::String(_)) | ("bool", Value::Bool(_)) | (_, Value::Null) => Ok(()),
        // Go would convert an integer to a character.
        ("string", Value::Number(number)) if !is_float(number) => {
            Err(format!("cannot convert int64 to {}", named()))
        }
        _ => Err(format!("unrecognized type: {kind}")),
    }
}

fn is_float(number: &Number) -> bool {
    number.as_i64().is_none()
}

fn number(value: &Value) -> Result<(), String> {
    if value.is_number() { Ok(()) } else { Err("unrecognized type: float64".to_owned()) }
}

/// Truncates integers to their width, as Go does.
fn integer(schema: &Schema, value: &mut Value) -> Result<(), String> {
    let kind = if schema.format.as_deref() == Some("int32") { "int32" } else { "int64" };
    let Value::Number(number) = &*value else {
        return Err(format!("unrecognized type: {kind}"));
    };
    let wide = match (number.as_i64(), number.as_f64()) {
        (Some(integer), _) => integer,
        (None, Some(float)) if float.fract() == 0.0 => from_float(float),
        _ => return Err(format!("cannot convert {} to {kind}", type_of(value))),
    };
    let cut = if kind == "int32" { i64::from(wide as i32) } else { wide };
    if number.as_i64() != Some(cut) {
        *value = Value::from(cut);
    }
    Ok(())
}

/// As on amd64: a float that does not fit into 64 bits becomes the smallest integer.
fn from_float(float: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&float) {
        float as i64
    } else {
        i64::MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{core, schema};
    use ferrokube_apimachinery::document::{Document, json};

    fn converted(schema: &Schema, value: Value) -> Result<Value, String> {
        let mut object = Document::from_value(value).unwrap();
        convert(schema, object.fields_mut()).map(|()| object.into_value())
    }

    #[test]
    fn conversion_errors_name_both_types() {
        for (kind, value, why) in [
            ("ConfigMap", json!({"kind": -1}), "cannot convert int64 to string"),
            ("ConfigMap", json!({"apiVersion": {"a": null}}), "unrecognized type: string"),
            ("ConfigMap", json!({"metadata": "a"}), "cannot restore struct from: string"),
            (
                "ConfigMap",
                json!({"metadata": {"name": {}}, "data": 1}),
                "unrecognized type: string",
            ),
            ("ConfigMap", json!({"metadata": {"uid": 1}}), "cannot convert int64 to types.UID"),
            ("ConfigMap", json!({"metadata": {"labels": ["a"]}}), "cannot restore map from slice"),
            ("ConfigMap", json!({"metadata": {"labels": {"a": 1.5}}}), "unrecognized type: string"),
            (
                "ConfigMap",
                json!({"metadata": {"creationTimestamp": 1}}),
                "json: cannot unmarshal number into Go value of type string",
            ),
            (
                "ConfigMap",
                json!({"metadata": {"generation": 1.5}}),
                "cannot convert float64 to int64",
            ),
            ("ConfigMap", json!({"metadata": {"generation": "1"}}), "unrecognized type: int64"),
            ("ConfigMap", json!({"metadata": {"finalizers": {}}}), "cannot restore slice from map"),
            ("ConfigMap", json!({"immutable": "a"}), "unrecognized type: bool"),
            ("Secret", json!({"type": 1}), "cannot convert int64 to v1.SecretType"),
            (
                "Secret",
                json!({"data": {"a": "YQ"}}),
                "error decoding from json: illegal base64 data at input byte 0",
            ),
            ("Secret", json!({"data": {"a": true}}), "cannot restore slice from bool"),
            ("Secret", json!({"data": {"a": ["b"]}}), "unrecognized type: uint8"),
            ("Secret", json!({"data": {"a": []}}), "unrecognized type: uint8"),
            ("ConfigMap", json!({"binaryData": {"a": [97]}}), "unrecognized type: uint8"),
            ("ServiceAccount", json!({"secrets": ["a"]}), "cannot restore struct from: string"),
        ] {
            assert_eq!(
                converted(&core(kind), value.clone()),
                Err(why.to_owned()),
                "{kind} {value}"
            );
        }
    }

    #[test]
    fn numbers_are_truncated_to_their_type() {
        let lease = schema("io.k8s.api.coordination.v1.Lease");
        for (given, cut) in [
            (json!(2147483648_i64), -2147483648_i64),
            (json!(4294967297_i64), 1),
            (json!(3.0), 3),
            (json!(1e30), 0),
            (json!(7), 7),
        ] {
            let object = converted(&lease, json!({"spec": {"leaseTransitions": given}})).unwrap();
            assert_eq!(object["spec"]["leaseTransitions"], json!(cut), "{given}");
        }
        let object = converted(&lease, json!({"metadata": {"generation": 1e30}})).unwrap();
        assert_eq!(object["metadata"]["generation"], json!(i64::MIN));
    }

    #[test]
    fn valid_objects_are_unchanged() {
        let object = json!({"kind": "Secret", "metadata": {"labels": {"a": null}, "managedFields": [{"fieldsV1": {"f:a": {}}}]}, "data": {"a": "YQ==", "b": null}, "nope": [1]});
        assert_eq!(converted(&core("Secret"), object.clone()), Ok(object));
    }
}
