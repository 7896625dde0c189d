//! Schemas inside compositions: they add value checks to a shape that the structural part gives.

use super::keywords::{Keywords, kind_of};
use super::{Loader, Place};
use crate::schema::{Kind, Node, Property, Schema};
use crate::validate::Checks;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldReason;

/// What only the structural part may say.
const STRUCTURAL_ONLY: [&str; 12] = [
    "type",
    "default",
    "nullable",
    "title",
    "description",
    "additionalProperties",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
];

impl Loader {
    /// `allOf`, `anyOf`, `oneOf` and `not` of a node with that shape.
    pub(super) fn compositions(&mut self, keywords: &Keywords<'_>, checks: &mut Checks, shape: &Schema, place: &Place) {
        let place = place.below();
        checks.all_of = self.alternatives(keywords, "allOf", shape, place);
        checks.any_of = self.alternatives(keywords, "anyOf", shape, place);
        checks.one_of = self.alternatives(keywords, "oneOf", shape, place);
        checks.not = keywords.get("not").map(|schema| self.nested(schema, &keywords.at("not"), shape, place).into());
    }

    fn alternatives(&mut self, keywords: &Keywords<'_>, name: &str, shape: &Schema, place: Place) -> Vec<Node> {
        let schemas = keywords.list(name).iter().enumerate();
        schemas.map(|(index, schema)| self.nested(schema, &format!("{}[{index}]", keywords.at(name)), shape, place).into()).collect()
    }

    fn nested(&mut self, schema: &Value, path: &str, shape: &Schema, place: Place) -> Schema {
        let Value::Object(map) = schema else {
            self.report(FieldReason::TypeInvalid, path.to_owned(), "a schema must be an object");
            return Schema::default();
        };
        if !self.enter(path, place.depth) {
            return Schema::default();
        }
        let keywords = Keywords { map, path };
        self.forbidden(&keywords);
        let int_or_string = shape.kind == Kind::IntOrString;
        for name in STRUCTURAL_ONLY {
            let allowed = (name == "type" && int_or_string) || keywords.get(name) == Some(&Value::Bool(false)) || keywords.text(name) == Some("");
            if keywords.get(name).is_some() && !allowed {
                self.report(FieldReason::Forbidden, keywords.at(name), "must be empty to be structural");
            }
        }
        let mut out = Schema {
            kind: if int_or_string { keywords.text("type").and_then(kind_of).unwrap_or_default() } else { Kind::Any },
            format: keywords.text("format").map(std::sync::Arc::from),
            enumeration: keywords.list("enum").to_vec(),
            ..Schema::default()
        };
        let mut checks = self.checks(&keywords);
        self.nested_children(&keywords, shape, place, &mut out);
        self.compositions(&keywords, &mut checks, shape, &place);
        self.required(&keywords, &mut out, &mut checks);
        if !checks.is_empty() {
            out.checks = Some(Box::new(checks));
        }
        out
    }

    /// What a composition says about children, which must be in the shape too.
    fn nested_children(&mut self, keywords: &Keywords<'_>, shape: &Schema, place: Place, out: &mut Schema) {
        let anything = Schema { preserve_unknown: true, ..Schema::default() };
        for (name, child) in keywords.fields("properties").into_iter().flatten() {
            let path = format!("{}.properties[{name}]", keywords.path);
            let known = shape.child(name);
            if known.is_none() && !(place.depth <= 1 && matches!(name.as_str(), "metadata" | "kind" | "apiVersion")) {
                self.report(FieldReason::Required, path.clone(), "must also be specified outside of the composition");
            }
            let node = self.nested(child, &path, known.unwrap_or(&anything), place.below());
            out.properties.insert(name.as_str().into(), Property::new(node, false));
        }
        if let Some(items) = keywords.get("items") {
            let path = keywords.at("items");
            if shape.items.is_none() {
                self.report(FieldReason::Required, path.clone(), "must also be specified outside of the composition");
            }
            let node = self.nested(items, &path, shape.items.as_deref().unwrap_or(&anything), place.below());
            out.items = Some(node.into());
        }
    }
}
