//! How a native kind is written: which empty fields are left out, which are always there, and canonical quantities and times.
//!
//! Upstream's form follows from its types: an empty text, number, list or map is left out unless the field is optional on its own (a
//! pointer), a required field or a structure is always written. Most of that is in the schema (`required`, types); a kind's [`Rules`] say the rest.

use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_apimachinery::time;
use ferrokube_schema::{Kind, Schema};

/// What the schema does not say about a kind's form. Paths are dotted; lists and maps on the way are walked through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Fields whose empty value differs from their absence (`immutable: false`).
    pub keep: &'static [&'static str],
    /// Fields that are written even when absent, though not required, with their empty value as JSON text.
    pub always: &'static [(&'static str, &'static str)],
}

/// Rules that every object's metadata follows.
const METADATA: Rules =
    Rules { keep: &["metadata.deletionGracePeriodSeconds", "metadata.ownerReferences.controller", "metadata.ownerReferences.blockOwnerDeletion"], always: &[] };

/// [`Rules`], looked up along a path. The default knows no rules; objects of custom resources have no encoding at all.
#[derive(Clone, Debug, Default)]
pub struct Encoding {
    keep: bool,
    always: Option<Value>,
    children: Vec<(&'static str, Encoding)>,
}

impl Encoding {
    /// Compiles a kind's rules.
    ///
    /// # Panics
    /// When an `always` value is no JSON text: rules are constants, and every kind's are compiled in tests.
    pub fn new(rules: &Rules) -> Self {
        let mut root = Self::default();
        for rules in [&METADATA, rules] {
            for path in rules.keep {
                root.at(path).keep = true;
            }
            for (path, text) in rules.always {
                let value = ferrokube_apimachinery::json::read_value(text.as_bytes()).expect("rules are constants");
                root.at(path).always = Some(value);
            }
        }
        root
    }

    fn at(&mut self, path: &'static str) -> &mut Self {
        path.split('.').fold(self, |node, segment| {
            let found = node.children.iter().position(|(name, _)| *name == segment).unwrap_or_else(|| {
                node.children.push((segment, Self::default()));
                node.children.len() - 1
            });
            &mut node.children[found].1
        })
    }

    fn child(&self, name: &str) -> Option<&Self> {
        self.children.iter().find(|(child, _)| *child == name).map(|(_, node)| node)
    }

    /// Puts a decoded object into canonical form: drops nulls and empty fields, writes quantities and times canonically.
    ///
    /// Fields that [`Self::complete`] adds are dropped too while they are empty, so that no manager owns them.
    pub fn normalize(&self, schema: &Schema, object: &mut Document) {
        fields(schema, Some(self), object.fields_mut());
    }

    /// Adds the fields that are always written, to the object and every structure in it.
    pub fn complete(&self, schema: &Schema, object: &mut Document) {
        complete_fields(schema, Some(self), object.fields_mut());
    }
}

/// Normalizes the fields of a structure.
fn fields(schema: &Schema, rules: Option<&Encoding>, object: &mut Map<String, Value>) {
    object.retain(|name, value| {
        if name == "managedFields" {
            return true;
        }
        let Some(property) = schema.properties.get(name.as_str()) else {
            return true;
        };
        let rules = rules.and_then(|rules| rules.child(name));
        normalize(&property.schema, rules, value);
        let keep = property.required || rules.is_some_and(|rules| rules.keep);
        !value.is_null() && (keep || !is_empty(&property.schema, value)) && rules.and_then(|rules| rules.always.as_ref()) != Some(&*value)
    });
}

/// Whether a field of this type is left out when it is not required; structures never are.
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

fn normalize(schema: &Schema, rules: Option<&Encoding>, value: &mut Value) {
    match value {
        Value::Object(map) => match &schema.additional {
            Some(values) => map.values_mut().for_each(|value| element(values, rules, value)),
            None => fields(schema, rules, map),
        },
        Value::Array(items) => {
            if let Some(node) = &schema.items {
                items.iter_mut().for_each(|value| element(node, rules, value));
            }
        }
        Value::String(_) | Value::Number(_) => canonical_scalar(schema, value),
        Value::Bool(_) | Value::Null => {}
    }
}

/// An item of a list or a value of a map: null is the type's empty value there.
fn element(schema: &Schema, rules: Option<&Encoding>, value: &mut Value) {
    if value.is_null() {
        *value = match schema.kind {
            Kind::String if !is_time(schema) => Value::from(""),
            Kind::IntOrString if is_quantity(schema) => Value::from("0"),
            Kind::Integer | Kind::Number => Value::from(0),
            Kind::Boolean => Value::Bool(false),
            Kind::Object if schema.additional.is_none() => Value::Object(Map::new()),
            _ => Value::Null,
        };
        return;
    }
    normalize(schema, rules, value);
}

fn named(schema: &Schema, suffix: &str) -> bool {
    schema.name.as_deref().is_some_and(|name| name.ends_with(suffix))
}

fn is_time(schema: &Schema) -> bool {
    schema.format.as_deref() == Some("date-time") || named(schema, ".v1.Time") || named(schema, ".v1.MicroTime")
}

fn is_quantity(schema: &Schema) -> bool {
    schema.format.as_deref() == Some("quantity") || named(schema, ".resource.Quantity")
}

/// Rewrites quantities, times and base64; a text that is none of them stays, for validation to refuse.
fn canonical_scalar(schema: &Schema, value: &mut Value) {
    let canonical = match &*value {
        Value::String(text) if is_quantity(schema) => Quantity::parse(text.trim()).ok().map(|quantity| quantity.canonical()),
        Value::Number(number) if is_quantity(schema) => Quantity::parse(&number.to_string()).ok().map(|quantity| quantity.canonical()),
        Value::String(text) if is_time(schema) => canonical_time(schema, text),
        // The decoder skips line ends inside base64, the encoder writes none.
        Value::String(text) if schema.format.as_deref() == Some("byte") && text.contains(['\n', '\r']) => Some(text.replace(['\n', '\r'], "")),
        _ => None,
    };
    if let Some(canonical) = canonical {
        *value = Value::String(canonical);
    }
}

fn canonical_time(schema: &Schema, text: &str) -> Option<String> {
    if named(schema, "MicroTime") {
        return time::parse_rfc3339(text).map(time::rfc3339_micros);
    }
    // The usual form needs no parsing.
    let bytes = text.as_bytes();
    if bytes.len() == 20 && bytes[19] == b'Z' {
        return None;
    }
    time::parse_rfc3339(text).map(time::rfc3339_seconds)
}

fn complete_fields(schema: &Schema, rules: Option<&Encoding>, object: &mut Map<String, Value>) {
    for (name, property) in &schema.properties {
        let rules = rules.and_then(|rules| rules.child(name));
        match object.get_mut(&**name) {
            // An empty required list is null: that is how it comes back from upstream's storage.
            Some(Value::Array(items)) if items.is_empty() && property.required => {
                object.insert(name.to_string(), Value::Null);
            }
            Some(value) if &**name != "managedFields" => complete(&property.schema, rules, value),
            Some(_) => {}
            None => {
                if let Some(zero) = rules.and_then(|rules| rules.always.clone()).or_else(|| property.required.then(|| zero(&property.schema))) {
                    object.insert(name.to_string(), zero);
                }
            }
        }
    }
}

fn complete(schema: &Schema, rules: Option<&Encoding>, value: &mut Value) {
    match value {
        Value::Object(map) => match &schema.additional {
            Some(values) => map.values_mut().for_each(|value| complete(values, rules, value)),
            None => complete_fields(schema, rules, map),
        },
        Value::Array(items) => {
            if let Some(node) = &schema.items {
                items.iter_mut().for_each(|value| complete(node, rules, value));
            }
        }
        _ => {}
    }
}

/// What upstream writes for a required field that is not set.
fn zero(schema: &Schema) -> Value {
    match schema.kind {
        Kind::Object if schema.additional.is_none() => Value::Object(Map::new()),
        Kind::String if !is_time(schema) && schema.format.as_deref() != Some("byte") => Value::from(""),
        Kind::IntOrString if is_quantity(schema) => Value::from("0"),
        Kind::Integer | Kind::Number => Value::from(0),
        Kind::Boolean => Value::Bool(false),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use ferrokube_schema::schema::Property;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn node(kind: Kind) -> Arc<Schema> {
        Arc::new(Schema { kind, ..Schema::default() })
    }

    fn structure(fields: &[(&str, Arc<Schema>, bool)]) -> Arc<Schema> {
        let properties: BTreeMap<Arc<str>, Property> =
            fields.iter().map(|(name, schema, required)| (Arc::from(*name), Property::new(schema.clone(), *required))).collect();
        Arc::new(Schema { kind: Kind::Object, properties, ..Schema::default() })
    }

    fn list(items: Arc<Schema>) -> Arc<Schema> {
        Arc::new(Schema { kind: Kind::Array, items: Some(items.into()), ..Schema::default() })
    }

    fn map(values: Arc<Schema>) -> Arc<Schema> {
        Arc::new(Schema { kind: Kind::Object, additional: Some(values.into()), ..Schema::default() })
    }

    fn check(rules: &Rules, schema: &Schema, given: Value, normal: &Value, complete: &Value) {
        let encoding = Encoding::new(rules);
        let mut object = Document::from_value(given).unwrap();
        encoding.normalize(schema, &mut object);
        assert_eq!(&object.clone().into_value(), normal);
        encoding.complete(schema, &mut object);
        assert_eq!(&object.into_value(), complete);
    }

    #[test]
    fn empty_fields_go_unless_required_or_kept() {
        let schema = structure(&[
            ("text", node(Kind::String), false),
            ("name", node(Kind::String), true),
            ("flag", node(Kind::Boolean), false),
            ("kept", node(Kind::Boolean), false),
            ("data", map(node(Kind::String)), false),
            ("spec", structure(&[("n", node(Kind::Integer), false)]), false),
        ]);
        let rules = Rules { keep: &["kept"], always: &[] };
        let given = json!({"text": "", "name": "", "flag": false, "kept": false, "data": {}, "spec": {"n": 0}, "other": ""});
        let expected = json!({"name": "", "kept": false, "spec": {}, "other": ""});
        check(&rules, &schema, given, &expected, &expected);
        check(&rules, &schema, json!({"data": {"k": null}}), &json!({"data": {"k": ""}}), &json!({"data": {"k": ""}, "name": ""}));
    }

    #[test]
    fn what_is_always_written_is_not_there_before_completion() {
        let item = structure(&[("at", Arc::new(Schema { kind: Kind::String, format: Some("date-time".into()), ..Schema::default() }), false)]);
        let schema = structure(&[("rules", list(node(Kind::String)), true), ("status", structure(&[("conditions", list(item), false)]), false)]);
        let rules = Rules { keep: &[], always: &[("status", "{}"), ("status.conditions.at", "null")] };
        check(&rules, &schema, json!({"rules": [], "status": {}}), &json!({"rules": []}), &json!({"rules": null, "status": {}}));
        let given = json!({"rules": null, "status": {"conditions": [{}]}});
        check(&rules, &schema, given, &json!({"status": {"conditions": [{}]}}), &json!({"rules": null, "status": {"conditions": [{"at": null}]}}));
    }
}
