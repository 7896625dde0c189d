//! Value validations as OpenAPI keywords.

use super::{OpenApiVersion, inline_v3};
use crate::validate::Checks;
use ferrokube_apimachinery::document::{Map, Value, json};

/// Writes the keywords to an OpenAPI schema. Compositions are omitted from version 2, since not
/// all clients support them.
pub(super) fn render(checks: &Checks, version: OpenApiVersion, out: &mut Map) {
    let numbers = [
        ("minimum", &checks.minimum),
        ("maximum", &checks.maximum),
        ("multipleOf", &checks.multiple_of),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            out.insert(name.to_owned(), Value::Number(*number));
        }
    }
    for (name, flag) in [
        ("exclusiveMinimum", checks.exclusive_minimum),
        ("exclusiveMaximum", checks.exclusive_maximum),
    ] {
        if flag {
            out.insert(name.to_owned(), Value::Bool(true));
        }
    }
    let bounds = [
        ("minLength", checks.min_length),
        ("maxLength", checks.max_length),
        ("minItems", checks.min_items),
        ("maxItems", checks.max_items),
        ("minProperties", checks.min_properties),
        ("maxProperties", checks.max_properties),
    ];
    for (name, bound) in bounds {
        if let Some(bound) = bound {
            out.insert(name.to_owned(), json!(bound));
        }
    }
    if let Some(pattern) = &checks.pattern {
        out.insert("pattern".to_owned(), Value::from(pattern.as_str()));
    }
    if !checks.rules.is_empty() {
        out.insert("x-kubernetes-validations".to_owned(), Value::from(checks.rules.clone()));
    }
    if version == OpenApiVersion::V3 {
        compositions(checks, out);
    }
}

/// Writes the compositions to an OpenAPI schema.
fn compositions(checks: &Checks, out: &mut Map) {
    for (name, nodes) in
        [("allOf", &checks.all_of), ("anyOf", &checks.any_of), ("oneOf", &checks.one_of)]
    {
        if !nodes.is_empty() {
            out.insert(
                name.to_owned(),
                Value::Array(nodes.iter().map(|node| inline_v3(node)).collect()),
            );
        }
    }
    if let Some(node) = &checks.not {
        out.insert("not".to_owned(), inline_v3(node));
    }
}
