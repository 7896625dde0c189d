//! What the typed decoder of native kinds refuses.

use super::formats;
use super::path::Path;
use crate::schema::{Kind, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Number, Value};
use ferrokube_apimachinery::quantity::Quantity;
use std::fmt::Display;

/// Decodes as upstream's typed decoder would: wrong JSON types are errors (400), numbers must fit, times and base64 must parse. Nulls pass: they are
/// absent fields, or empty values of maps and lists. Unknown fields pass too (see [`prune`](super::prune())).
///
/// # Errors
/// A sentence with the path, as the body of a 400. It never quotes the value, which may be a secret.
pub fn check_types(schema: &Schema, value: &Value) -> Result<(), String> {
    check(schema, value, &Path::ROOT)
}

/// The types of what embedded resources in a custom object have in common with all others.
///
/// # Errors
/// As [`check_types`].
pub fn check_embedded(schema: &Schema, object: &Document) -> Result<(), String> {
    if !schema.has_embedded() {
        return Ok(());
    }
    object.fields().iter().try_for_each(|(name, value)| match schema.child(name) {
        Some(node) => embedded(node, value, &Path::ROOT.field(name)),
        None => Ok(()),
    })
}

fn embedded(schema: &Schema, value: &Value, path: &Path<'_>) -> Result<(), String> {
    if schema.native || path.depth() > MAX_WALK {
        return Ok(());
    }
    match value {
        Value::Object(map) => map.iter().try_for_each(|(name, child)| {
            let path = path.field(name);
            match (schema.embedded, name.as_str(), schema.child(name)) {
                (true, "kind" | "apiVersion", _) if !child.is_string() => wrong(&path, "a string", child),
                (true, "metadata", Some(node)) => check(node, child, &path),
                (_, _, Some(node)) => embedded(node, child, &path),
                (_, _, None) => Ok(()),
            }
        }),
        Value::Array(items) => {
            let Some(node) = schema.items.as_deref() else { return Ok(()) };
            items.iter().enumerate().try_for_each(|(index, item)| embedded(node, item, &path.index(index)))
        }
        _ => Ok(()),
    }
}

/// The same for the fields of an object.
pub(crate) fn check_fields(schema: &Schema, fields: &Map) -> Result<(), String> {
    object(schema, fields, &Path::ROOT)
}

fn object(schema: &Schema, fields: &Map, path: &Path<'_>) -> Result<(), String> {
    for (name, child) in fields {
        if let Some(node) = schema.child(name) {
            check(node, child, &path.field(name))?;
        }
    }
    Ok(())
}

fn check(schema: &Schema, value: &Value, path: &Path<'_>) -> Result<(), String> {
    if path.depth() > MAX_WALK {
        return Err(format!("{path}: nested too deep"));
    }
    match (schema.kind, value) {
        (Kind::Any, _) | (_, Value::Null) => Ok(()),
        (Kind::Object, Value::Object(map)) => object(schema, map, path),
        (Kind::Array, Value::Array(items)) => {
            let Some(node) = schema.items.as_deref() else {
                return Ok(());
            };
            items.iter().enumerate().try_for_each(|(index, item)| check(node, item, &path.index(index)))
        }
        (Kind::String, Value::String(text)) => string(schema, text, path),
        (Kind::Boolean, Value::Bool(_)) | (Kind::Number, Value::Number(_)) => Ok(()),
        (Kind::Integer, Value::Number(number)) => integer(schema, number, path),
        (Kind::IntOrString, Value::Number(number)) if is_quantity(schema) => quantity(&number.to_string(), path),
        (Kind::IntOrString, Value::String(text)) if is_quantity(schema) => quantity(text.trim(), path),
        (Kind::IntOrString, Value::Number(number)) => integer(schema, number, path),
        (Kind::IntOrString, Value::String(_)) => Ok(()),
        (kind, value) => wrong(path, expected(kind), value),
    }
}

fn wrong(path: &Path<'_>, expected: &str, value: &Value) -> Result<(), String> {
    fails(path, format_args!("expected {expected}, got {}", json_type(value)))
}

fn fails(path: &Path<'_>, why: impl Display) -> Result<(), String> {
    let place = path.to_string();
    let place = if place.is_empty() { "the object" } else { &place };
    Err(format!("{place}: {why}"))
}

fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Any => "a value",
        Kind::Object => "an object",
        Kind::Array => "an array",
        Kind::String => "a string",
        Kind::Integer => "an integer",
        Kind::Number => "a number",
        Kind::Boolean => "a boolean",
        Kind::IntOrString => "an integer or a string",
    }
}

pub(super) fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn is_quantity(schema: &Schema) -> bool {
    schema.format.as_deref() == Some("quantity")
}

fn quantity(text: &str, path: &Path<'_>) -> Result<(), String> {
    // Plain small integers, the usual case, need no decimal arithmetic.
    let plain = !text.is_empty() && text.len() < 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain || Quantity::parse(text).is_ok() { Ok(()) } else { fails(path, "not a quantity") }
}

/// Integers must be written as such: `1.0` and `1e3` are refused, as upstream does.
fn integer(schema: &Schema, number: &Number, path: &Path<'_>) -> Result<(), String> {
    let narrow = schema.kind == Kind::IntOrString || schema.format.as_deref() == Some("int32");
    match number.as_i64() {
        Some(integer) if !narrow || i32::try_from(integer).is_ok() => Ok(()),
        Some(_) => fails(path, "the number does not fit 32 bits"),
        None => fails(path, "expected an integer of at most 64 bits"),
    }
}

fn string(schema: &Schema, text: &str, path: &Path<'_>) -> Result<(), String> {
    let Some(format) = schema.format.as_deref() else {
        return Ok(());
    };
    match format {
        "byte" if !formats::is_base64(text) => fails(path, "not base64"),
        "date-time" if schema.short_name() == "MicroTime" && !formats::is_micro_time(text) => fails(path, "not an RFC 3339 time with microseconds"),
        "date-time" if !formats::is_rfc3339(text) => fails(path, "not an RFC 3339 time"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{core, schema};
    use ferrokube_apimachinery::document::json;

    fn refused(kind: &str, value: Value) -> String {
        check_types(&core(kind), &value).unwrap_err()
    }

    #[test]
    fn wrong_json_types_are_named() {
        assert_eq!(refused("ConfigMap", json!({"metadata": {"labels": {"k": 1}}})), "metadata.labels.k: expected a string, got a number");
        assert_eq!(refused("ConfigMap", json!({"data": ["x"]})), "data: expected an object, got an array");
        assert_eq!(refused("ConfigMap", json!({"metadata": "a"})), "metadata: expected an object, got a string");
        assert_eq!(refused("ConfigMap", json!({"metadata": {"managedFields": "x"}})), "metadata.managedFields: expected an array, got a string");
        assert_eq!(refused("ServiceAccount", json!({"secrets": [{"name": true}]})), "secrets[0].name: expected a string, got a boolean");
        assert_eq!(refused("ConfigMap", json!([])), "the object: expected an object, got an array");
    }

    #[test]
    fn nulls_and_unknown_fields_pass() {
        check_types(&core("Secret"), &json!({"data": {"k": null}, "metadata": null, "immutable": null, "nope": [1]})).unwrap();
    }

    #[test]
    fn base64_is_checked_without_quoting_it() {
        for bad in ["***", "dg", "dgo", "d===", "a b="] {
            let error = refused("Secret", json!({"data": {"k": bad}}));
            assert_eq!(error, "data.k: not base64");
        }
        for good in ["", "dg==", "dgo=", "dg==\n", "Zm9v\r\nYmFy"] {
            check_types(&core("Secret"), &json!({"data": {"k": good}})).unwrap();
        }
    }

    #[test]
    fn integers_fit_and_are_written_as_integers() {
        let lease = schema("io.k8s.api.coordination.v1.Lease");
        let check = |value: Value| check_types(&lease, &json!({"spec": {"leaseTransitions": value}}));
        check(json!(2147483647)).unwrap();
        for bad in [json!(2147483648_i64), json!(1000.0), json!(1.5), json!("15"), json!(true)] {
            check(bad).unwrap_err();
        }
    }

    #[test]
    fn lease_times_have_exactly_microseconds() {
        let lease = schema("io.k8s.api.coordination.v1.Lease");
        let check = |text: &str| check_types(&lease, &json!({"spec": {"renewTime": text}}));
        check("2024-01-02T03:04:05.000000Z").unwrap();
        check("2024-01-02T03:04:05.123456+02:00").unwrap();
        for bad in ["2024-01-02T03:04:05Z", "2024-01-02T03:04:05.123Z", "2024-01-02T03:04:05.1234567Z", "junk", ""] {
            check(bad).unwrap_err();
        }
        let event = |text: &str| check_types(&core("Event"), &json!({"firstTimestamp": text}));
        event("2024-01-02T03:04:05Z").unwrap();
        event("2024-01-02T03:04:05.5+01:30").unwrap();
        event("2024-02-30T03:04:05Z").unwrap_err();
        event("2024-01-02 03:04:05Z").unwrap_err();
    }
}
