//! Protobuf encodings of OpenAPI documents (gnostic's `openapi.v2` and `openapi.v3` messages),
//! requested by older kubectl versions.
//!
//! Field numbers are gnostic's. Fields that our documents do not use are not implemented.

use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json;

/// Deeper schemas are cut off.
const MAX_DEPTH: u8 = 64;

#[derive(Default)]
struct MessageWriter(Vec<u8>);

impl MessageWriter {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u64, value: Option<&Value>) {
        if let Some(Value::String(text)) = value {
            self.bytes(field, text.as_bytes());
        }
    }

    fn texts(&mut self, field: u64, value: Option<&Value>) {
        for item in value.and_then(Value::as_array).into_iter().flatten() {
            self.text(field, Some(item));
        }
    }

    fn flag(&mut self, field: u64, value: Option<&Value>) {
        if value == Some(&Value::Bool(true)) {
            self.varint(field << 3);
            self.varint(1);
        }
    }

    fn integer(&mut self, field: u64, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_u64) {
            self.varint(field << 3);
            self.varint(number);
        }
    }

    fn double(&mut self, field: u64, value: Option<&Value>) {
        if let Some(number) = value.and_then(Value::as_f64) {
            self.varint(field << 3 | 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn message(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// An `Any` with YAML text; JSON is valid YAML.
    fn any(&mut self, field: u64, value: &Value) {
        let text = json::to_vec(value);
        self.message(field, |any| any.bytes(2, &text));
    }

    fn optional_any(&mut self, field: u64, value: Option<&Value>) {
        if let Some(value) = value {
            self.any(field, value);
        }
    }

    fn anys(&mut self, field: u64, value: Option<&Value>) {
        for item in value.and_then(Value::as_array).into_iter().flatten() {
            self.any(field, item);
        }
    }

    /// The members of an object as pairs of name and value.
    fn named(&mut self, field: u64, value: Option<&Value>, write: impl Fn(&mut Self, &Value)) {
        for (name, value) in value.and_then(Value::as_object).into_iter().flatten() {
            self.message(field, |named| {
                named.bytes(1, name.as_bytes());
                named.message(2, |inner| write(inner, value));
            });
        }
    }

    /// Members that start with `x-`.
    fn extensions(&mut self, field: u64, value: &Value) {
        for (name, value) in
            value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-"))
        {
            self.message(field, |named| {
                named.bytes(1, name.as_bytes());
                named.any(2, value);
            });
        }
    }
}

/// `openapi.v2.Document`
pub(super) fn v2(document: &Value) -> Vec<u8> {
    let mut out = MessageWriter::default();
    out.text(1, document.get("swagger"));
    out.message(2, |info| {
        info.text(1, document["info"].get("title"));
        info.text(2, document["info"].get("version"));
    });
    out.message(8, |paths| paths.named(2, document.get("paths"), v2_path));
    out.message(9, |definitions| {
        definitions.named(1, document.get("definitions"), |out, value| v2_schema(out, value, 0))
    });
    if let Some(parameters) = document.get("parameters") {
        out.message(10, |all| all.named(1, Some(parameters), v2_parameter));
    }
    out.0
}

fn v2_path(out: &mut MessageWriter, path: &Value) {
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(operation) = path.get(method) {
            out.message(field, |out| v2_operation(out, operation));
        }
    }
    v2_parameters(out, 9, path.get("parameters"));
}

fn v2_operation(out: &mut MessageWriter, operation: &Value) {
    out.texts(1, operation.get("tags"));
    out.text(3, operation.get("description"));
    out.text(5, operation.get("operationId"));
    out.texts(6, operation.get("produces"));
    out.texts(7, operation.get("consumes"));
    v2_parameters(out, 8, operation.get("parameters"));
    out.message(9, |responses| {
        responses.named(1, operation.get("responses"), |value, response| {
            value.message(1, |out| v2_response(out, response))
        })
    });
    out.texts(10, operation.get("schemes"));
    out.extensions(13, operation);
}

fn v2_response(out: &mut MessageWriter, response: &Value) {
    out.text(1, response.get("description"));
    if let Some(schema) = response.get("schema") {
        out.message(2, |item| item.message(1, |out| v2_schema(out, schema, 0)));
    }
}

fn v2_parameters(out: &mut MessageWriter, field: u64, parameters: Option<&Value>) {
    for parameter in parameters.and_then(Value::as_array).into_iter().flatten() {
        out.message(field, |item| match parameter.get("$ref") {
            Some(reference) => item.message(2, |out| out.text(1, Some(reference))),
            None => item.message(1, |out| v2_parameter(out, parameter)),
        });
    }
}

fn v2_parameter(out: &mut MessageWriter, parameter: &Value) {
    let place = parameter.get("in").and_then(Value::as_str).unwrap_or_default();
    if place == "body" {
        return out.message(1, |body| {
            body.text(2, parameter.get("name"));
            body.text(3, parameter.get("in"));
            body.flag(4, parameter.get("required"));
            body.message(5, |out| v2_schema(out, &parameter["schema"], 0));
        });
    }
    // Path parameters lack `allow_empty_value`, which shifts the numbers after it.
    let (field, type_field, unique_field) = if place == "path" { (4, 5, 19) } else { (3, 6, 20) };
    out.message(2, |other| {
        other.message(field, |out| {
            out.flag(1, parameter.get("required"));
            out.text(2, parameter.get("in"));
            out.text(3, parameter.get("description"));
            out.text(4, parameter.get("name"));
            out.text(type_field, parameter.get("type"));
            out.flag(unique_field, parameter.get("uniqueItems"));
        });
    });
}

fn v2_schema(out: &mut MessageWriter, schema: &Value, depth: u8) {
    if depth > MAX_DEPTH {
        return;
    }
    out.text(1, schema.get("$ref"));
    out.text(2, schema.get("format"));
    out.text(3, schema.get("title"));
    out.text(4, schema.get("description"));
    out.optional_any(5, schema.get("default"));
    out.double(6, schema.get("multipleOf"));
    out.double(7, schema.get("maximum"));
    out.flag(8, schema.get("exclusiveMaximum"));
    out.double(9, schema.get("minimum"));
    out.flag(10, schema.get("exclusiveMinimum"));
    out.integer(11, schema.get("maxLength"));
    out.integer(12, schema.get("minLength"));
    out.text(13, schema.get("pattern"));
    out.integer(14, schema.get("maxItems"));
    out.integer(15, schema.get("minItems"));
    out.flag(16, schema.get("uniqueItems"));
    out.integer(17, schema.get("maxProperties"));
    out.integer(18, schema.get("minProperties"));
    out.texts(19, schema.get("required"));
    out.anys(20, schema.get("enum"));
    match schema.get("additionalProperties") {
        Some(Value::Bool(flag)) => out.message(21, |item| item.flag(2, Some(&Value::Bool(*flag)))),
        Some(inner) => {
            out.message(21, |item| item.message(1, |out| v2_schema(out, inner, depth + 1)))
        }
        None => {}
    }
    if let Some(kind) = schema.get("type") {
        out.message(22, |item| item.text(1, Some(kind)));
    }
    if let Some(items) = schema.get("items") {
        out.message(23, |item| item.message(1, |out| v2_schema(out, items, depth + 1)));
    }
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        out.message(24, |out| v2_schema(out, part, depth + 1));
    }
    if let Some(properties) = schema.get("properties") {
        out.message(25, |out| {
            out.named(1, Some(properties), |out, value| v2_schema(out, value, depth + 1))
        });
    }
    out.extensions(31, schema);
}

/// `openapi.v3.Document`
pub(super) fn v3(document: &Value) -> Vec<u8> {
    let mut out = MessageWriter::default();
    out.text(1, document.get("openapi"));
    out.message(2, |info| {
        info.text(1, document["info"].get("title"));
        info.text(6, document["info"].get("version"));
    });
    out.message(4, |paths| paths.named(1, document.get("paths"), v3_path));
    out.message(5, |components| {
        components.message(1, |schemas| {
            schemas.named(1, document["components"].get("schemas"), |out, value| {
                v3_schema(out, value, 0)
            })
        });
    });
    out.0
}

fn v3_path(out: &mut MessageWriter, path: &Value) {
    for (field, method) in [(4, "get"), (5, "put"), (6, "post"), (7, "delete"), (10, "patch")] {
        if let Some(operation) = path.get(method) {
            out.message(field, |out| v3_operation(out, operation));
        }
    }
    v3_parameters(out, 13, path.get("parameters"));
}

fn v3_operation(out: &mut MessageWriter, operation: &Value) {
    out.texts(1, operation.get("tags"));
    out.text(3, operation.get("description"));
    out.text(5, operation.get("operationId"));
    v3_parameters(out, 6, operation.get("parameters"));
    if let Some(body) = operation.get("requestBody") {
        out.message(7, |item| {
            item.message(1, |out| {
                out.message(2, |types| types.named(1, body.get("content"), v3_media_type));
                out.flag(3, body.get("required"));
            });
        });
    }
    out.message(8, |responses| {
        responses.named(2, operation.get("responses"), |item, response| {
            item.message(1, |out| v3_response(out, response))
        })
    });
    out.extensions(13, operation);
}

fn v3_response(out: &mut MessageWriter, response: &Value) {
    out.text(1, response.get("description"));
    if let Some(content) = response.get("content") {
        out.message(3, |types| types.named(1, Some(content), v3_media_type));
    }
}

fn v3_media_type(out: &mut MessageWriter, media_type: &Value) {
    out.message(1, |out| v3_schema(out, &media_type["schema"], 0));
}

fn v3_parameters(out: &mut MessageWriter, field: u64, parameters: Option<&Value>) {
    for parameter in parameters.and_then(Value::as_array).into_iter().flatten() {
        out.message(field, |item| {
            item.message(1, |out| {
                out.text(1, parameter.get("name"));
                out.text(2, parameter.get("in"));
                out.text(3, parameter.get("description"));
                out.flag(4, parameter.get("required"));
                out.message(10, |out| v3_schema(out, &parameter["schema"], 0));
            });
        });
    }
}

/// A `SchemaOrReference`.
fn v3_schema(out: &mut MessageWriter, schema: &Value, depth: u8) {
    if depth > MAX_DEPTH {
        return;
    }
    if schema.get("$ref").is_some() {
        return out.message(2, |reference| reference.text(1, schema.get("$ref")));
    }
    out.message(1, |out| v3_plain_schema(out, schema, depth));
}

fn v3_plain_schema(out: &mut MessageWriter, schema: &Value, depth: u8) {
    out.flag(1, schema.get("nullable"));
    out.double(11, schema.get("maximum"));
    out.double(13, schema.get("minimum"));
    out.integer(15, schema.get("maxLength"));
    out.integer(16, schema.get("minLength"));
    out.text(17, schema.get("pattern"));
    out.integer(18, schema.get("maxItems"));
    out.integer(19, schema.get("minItems"));
    out.flag(20, schema.get("uniqueItems"));
    out.texts(23, schema.get("required"));
    out.anys(24, schema.get("enum"));
    out.text(25, schema.get("type"));
    for (field, key) in [(26, "allOf"), (27, "oneOf"), (28, "anyOf")] {
        for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
            out.message(field, |out| v3_schema(out, part, depth + 1));
        }
    }
    if let Some(items) = schema.get("items") {
        out.message(30, |item| item.message(1, |out| v3_schema(out, items, depth + 1)));
    }
    if let Some(properties) = schema.get("properties") {
        out.message(31, |out| {
            out.named(1, Some(properties), |out, value| v3_schema(out, value, depth + 1))
        });
    }
    match schema.get("additionalProperties") {
        Some(Value::Bool(flag)) => out.message(32, |item| item.flag(2, Some(&Value::Bool(*flag)))),
        Some(inner) => {
            out.message(32, |item| item.message(1, |out| v3_schema(out, inner, depth + 1)))
        }
        None => {}
    }
    match schema.get("default") {
        Some(number @ Value::Number(_)) => out.message(33, |out| out.double(1, Some(number))),
        Some(flag @ Value::Bool(_)) => out.message(33, |out| out.flag(2, Some(flag))),
        Some(text @ Value::String(_)) => out.message(33, |out| out.text(3, Some(text))),
        _ => {}
    }
    out.text(34, schema.get("description"));
    out.text(35, schema.get("format"));
    out.extensions(36, schema);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn a_small_document_has_gnostics_field_numbers() {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/d"}}, "x-kubernetes-group-version-kind": [{"kind": "K"}]});
        let mut out = MessageWriter::default();
        v2_schema(&mut out, &schema, 0);
        let want = [
            b"\xb2\x01\x08\x0a\x06object".as_slice(),
            b"\xca\x01\x0c\x0a\x0a\x0a\x01a\x12\x05\x0a\x03#/d",
            b"\xfa\x01\x33\x0a\x1fx-kubernetes-group-version-kind\x12\x10\x12\x0e[{\"kind\":\"K\"}]",
        ];
        assert_eq!(out.0, want.concat());
        let mut out = MessageWriter::default();
        v3_schema(&mut out, &json!({"$ref": "#/c"}), 0);
        assert_eq!(out.0, b"\x12\x05\x0a\x03#/c");
    }
}
