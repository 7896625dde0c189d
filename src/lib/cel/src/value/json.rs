//! Views of JSON by schema: escaped field names, typed times.

use super::{List, Map, Text, Value, time};
use crate::lex::RESERVED;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_apimachinery::document::{Map as JsonMap, Value as Json};
use ferrokube_apimachinery::go;
use ferrokube_schema::{Kind, ListType, Schema, pattern};
use std::sync::Arc;

/// Schema of a JSON value.
#[derive(Clone, Copy, Debug)]
pub enum JsonShape<'a> {
    /// Nothing: as written.
    Free,
    /// A schema node, and whether it is a resource, with kind, apiVersion and metadata.
    Node(&'a Schema, bool),
    /// A resource's metadata, of which only two names are visible.
    Metadata,
}

/// A field name.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// As in the expression.
    pub(crate) given: Arc<str>,
    /// Unescaped, as in the object.
    pub(crate) real: Arc<str>,
}

impl Field {
    pub(crate) fn new(given: &str) -> Self {
        Self { given: given.into(), real: unescape(given).into() }
    }
}

/// CEL keywords besides [`RESERVED`].
const TOKENS: [&str; 4] = ["true", "false", "null", "in"];
/// Escapes in names. The underscores come first, since the others contain them.
const ESCAPES: [(&str, &str); 5] =
    [("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"), ("", "")];

/// Whether a name is a CEL keyword.
pub(crate) fn is_reserved(name: &str) -> bool {
    TOKENS.contains(&name) || RESERVED.contains(&name)
}

/// A property's name in expressions; `None` if it cannot be escaped.
pub(crate) fn escape(name: &str) -> Option<String> {
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(fits)
    {
        return None;
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let (from, to) =
            ESCAPES.into_iter().find(|(from, _)| rest.starts_with(from)).unwrap_or_default();
        if from.is_empty() {
            out.push(first);
            rest = &rest[1..];
        } else {
            out.push_str(to);
            rest = &rest[from.len()..];
        }
    }
    Some(out)
}

fn unescape(name: &str) -> String {
    if let Some(word) = name.strip_prefix("__").and_then(|name| name.strip_suffix("__"))
        && is_reserved(word)
    {
        return word.to_owned();
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        match ESCAPES.into_iter().find(|(_, to)| !to.is_empty() && rest.starts_with(to)) {
            Some((from, to)) => {
                out.push_str(from);
                rest = &rest[to.len()..];
            }
            None => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    out
}

pub(crate) fn view<'a>(value: &'a Json, shape: JsonShape<'a>) -> Value<'a> {
    let kind = match shape {
        JsonShape::Node(schema, _) => schema.kind,
        _ => Kind::Any,
    };
    match (value, kind) {
        (Json::Null, _) => Value::Null,
        (Json::Bool(flag), Kind::Any | Kind::Boolean) => Value::Bool(*flag),
        (Json::Number(number), Kind::Number) => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
        (Json::Number(number), Kind::Any | Kind::Integer | Kind::IntOrString) => {
            match number.as_i64() {
                Some(whole) => Value::Int(whole),
                None if kind == Kind::Any => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
                None => mistyped(kind, value),
            }
        }
        (Json::String(text), Kind::Any | Kind::String | Kind::IntOrString) => string(text, shape),
        (Json::Array(items), Kind::Any | Kind::Array) => list(items, shape),
        (Json::Object(map), Kind::Any) => Value::Map(Map::Json { map, shape: JsonShape::Free }),
        (Json::Object(map), Kind::Object) => Value::Map(Map::Json { map, shape }),
        _ => mistyped(kind, value),
    }
}

#[cold]
fn mistyped<'a>(kind: Kind, value: &Json) -> Value<'a> {
    let wanted = match kind {
        Kind::IntOrString => "XIntOrString value to be either a string or integer",
        Kind::Object => "a map for the provided schema with type=object",
        Kind::Array => "an array for the provided schema with type=array",
        Kind::Integer => "int",
        Kind::Number => "float",
        Kind::Boolean => "bool",
        Kind::String | Kind::Any => "string",
    };
    let given = match kind {
        Kind::IntOrString | Kind::Object | Kind::Array => String::new(),
        _ => format!(", got {}", go::type_of(value)),
    };
    Value::Mistyped(format!("invalid data, expected {wanted}{given}").into())
}

fn list<'a>(items: &'a [Json], shape: JsonShape<'a>) -> Value<'a> {
    let (below, list_type) = match shape {
        JsonShape::Node(schema, _) => match schema.items.as_deref() {
            Some(node) => (JsonShape::Node(node, node.embedded), &schema.list_type),
            None => (JsonShape::Free, &ListType::Atomic),
        },
        _ => (JsonShape::Free, &ListType::Atomic),
    };
    Value::List(List::Json { items, shape: below, list_type })
}

/// A string that is not a valid time stays a string; time functions refuse it.
fn string<'a>(text: &'a str, shape: JsonShape<'a>) -> Value<'a> {
    let plain = || Value::String(Text::Of(text));
    let JsonShape::Node(schema, _) = shape else { return plain() };
    let special = match schema.format.as_deref().filter(|_| schema.kind == Kind::String) {
        Some("date-time") => time::timestamp(text)
            // UTC if it has no zone.
            .or_else(|| time::timestamp(&format!("{text}Z")))
            .map(Value::Timestamp),
        Some("date") => time::timestamp(&format!("{text}T00:00:00Z")).map(Value::Timestamp),
        Some("duration") => {
            time::duration(text).or_else(|| pattern::worded_duration(text)).map(Value::Duration)
        }
        Some("byte") => STANDARD.decode(text).ok().map(|bytes| Value::Bytes(bytes.into())),
        _ => None,
    };
    special.unwrap_or_else(plain)
}

/// A declared field of an object or an entry of a map.
pub(crate) fn field<'a>(
    map: &'a JsonMap,
    shape: JsonShape<'a>,
    field: &Field,
) -> Option<Value<'a>> {
    match shape {
        JsonShape::Node(schema, _) if schema.additional.is_none() => entry(map, shape, &field.real),
        _ => entry(map, shape, &field.given),
    }
}

/// An entry by its unescaped name. Null in an object with declared fields counts as absent.
pub(crate) fn entry<'a>(map: &'a JsonMap, shape: JsonShape<'a>, name: &str) -> Option<Value<'a>> {
    let value = map.get(name)?;
    match shape {
        JsonShape::Free => Some(view(value, JsonShape::Free)),
        JsonShape::Metadata => {
            matches!(name, "name" | "generateName").then(|| view(value, JsonShape::Free))
        }
        JsonShape::Node(_, true) if matches!(name, "apiVersion" | "kind") => {
            Some(view(value, JsonShape::Free))
        }
        JsonShape::Node(_, true) if name == "metadata" => Some(view(value, JsonShape::Metadata)),
        JsonShape::Node(schema, _) => {
            match (schema.properties.get(name), schema.additional.as_deref()) {
                (Some(property), _) => (!value.is_null()).then(|| {
                    view(value, JsonShape::Node(&property.schema, property.schema.embedded))
                }),
                (None, Some(values)) => Some(view(value, JsonShape::Node(values, values.embedded))),
                (None, None) => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_expressions() {
        let cases = [
            ("a", "a"),
            ("a_b", "a_b"),
            ("a__b", "a__underscores__b"),
            ("x-y.z/w", "x__dash__y__dot__z__slash__w"),
            ("namespace", "__namespace__"),
        ];
        for (name, escaped) in cases {
            assert_eq!(escape(name).as_deref(), Some(escaped));
            assert_eq!(unescape(escaped), name);
        }
        assert_eq!(escape("1a"), None);
        assert_eq!(escape("a b"), None);
    }
}
