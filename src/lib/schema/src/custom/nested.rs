//! Schemas inside compositions: they add value checks to the structural part.

use super::keywords::{Keywords, kind_of};
use super::{Loader, NodeContext, NodeRole};
use crate::schema::{Kind, Node, Property, Schema};
use crate::validate::Checks;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;

/// Keywords that only the structural part may use, and the error elsewhere.
const STRUCTURAL_ONLY: [(&str, &str); 12] = [
    ("type", "empty"),
    ("title", "empty"),
    ("description", "empty"),
    ("nullable", "false"),
    ("x-kubernetes-preserve-unknown-fields", "false"),
    ("x-kubernetes-embedded-resource", "false"),
    ("x-kubernetes-int-or-string", "false"),
    ("x-kubernetes-list-map-keys", "empty"),
    ("x-kubernetes-list-type", "undefined"),
    ("x-kubernetes-map-type", "undefined"),
    ("x-kubernetes-validations", "empty"),
    ("default", "undefined"),
];

/// The structural node that a composition is about; `None` if there is none, or below the root,
/// where kube-apiserver does not require one.
#[derive(Clone, Copy)]
pub(super) struct Outer<'a> {
    pub(super) shape: Option<&'a Schema>,
    pub(super) path: &'a str,
}

/// `anyOf: [{type: integer}, {type: string}]`, the only composition that may name types.
fn is_int_or_string(keywords: &Map) -> bool {
    let Some(Value::Array(alternatives)) = keywords.get("anyOf") else { return false };
    let names = |alternative: &Value, wanted: &str| {
        alternative.as_object().is_some_and(|map| {
            let keywords = Keywords { map, path: "" };
            keywords.text("type") == Some(wanted)
                && map.keys().all(|name| name == "type" || keywords.is_zero(name))
        })
    };
    matches!(alternatives.as_slice(), [one, other] if names(one, "integer") && names(other, "string"))
}

impl Loader {
    /// Loads a node's `allOf`, `anyOf`, `oneOf` and `not`.
    pub(super) fn compositions(
        &mut self,
        keywords: &Keywords<'_>,
        checks: &mut Checks,
        outer: &Outer<'_>,
        at: NodeContext,
    ) {
        let at = at.below(NodeRole::Field);
        checks.all_of = self.alternatives(keywords, "allOf", outer, at);
        checks.any_of = self.alternatives(keywords, "anyOf", outer, at);
        checks.one_of = self.alternatives(keywords, "oneOf", outer, at);
        checks.not = keywords
            .get("not")
            .map(|schema| self.nested(schema, &keywords.at("not"), outer, at, false).into());
    }

    fn alternatives(
        &mut self,
        keywords: &Keywords<'_>,
        name: &str,
        outer: &Outer<'_>,
        at: NodeContext,
    ) -> Vec<Node> {
        let may_name_types = name == "anyOf" && is_int_or_string(keywords.map);
        let schemas = keywords.list(name).iter().enumerate();
        let fits = |loader: &Self| !loader.is_full();
        schemas
            .map_while(|(index, schema)| {
                fits(self).then(|| {
                    self.nested(
                        schema,
                        &format!("{}[{index}]", keywords.at(name)),
                        outer,
                        at,
                        may_name_types,
                    )
                    .into()
                })
            })
            .collect()
    }

    fn nested(
        &mut self,
        schema: &Value,
        path: &str,
        outer: &Outer<'_>,
        at: NodeContext,
        may_name_types: bool,
    ) -> Schema {
        let Some(keywords) = self.keywords(schema, path, at.depth) else {
            return Schema::default();
        };
        self.known_type(&keywords, keywords.text("type").unwrap_or_default());
        self.check_metadata_keywords(&keywords, &at);
        let misplaced =
            STRUCTURAL_ONLY.into_iter().filter(|(name, _)| !(may_name_types && *name == "type"));
        for (name, wanted) in misplaced {
            let is_there = if wanted == "undefined" {
                keywords.get(name).is_some()
            } else {
                !keywords.is_zero(name)
            };
            if is_there {
                self.report(FieldError::forbidden(
                    keywords.at(name),
                    format!("must be {wanted} to be structural"),
                ));
            }
        }
        if keywords.get("additionalProperties").is_some() {
            self.report(FieldError::forbidden(
                keywords.at("additionalProperties"),
                "must be undefined to be structural",
            ));
        }
        let mut out = Schema {
            kind: if may_name_types {
                keywords.text("type").and_then(kind_of).unwrap_or_default()
            } else {
                Kind::Any
            },
            format: keywords.text("format").map(std::sync::Arc::from),
            enumeration: keywords.list("enum").to_vec(),
            ..Schema::default()
        };
        let mut checks = self.checks(&keywords);
        self.nested_children(&keywords, outer, at, &mut out);
        self.compositions(&keywords, &mut checks, outer, at);
        self.required(&keywords, &mut out, &mut checks);
        if !checks.is_empty() {
            out.checks = Some(Box::new(checks));
        }
        out
    }

    /// A composition's properties and items, which the structural part must have, too.
    fn nested_children(
        &mut self,
        keywords: &Keywords<'_>,
        outer: &Outer<'_>,
        at: NodeContext,
        out: &mut Schema,
    ) {
        let below = at.below(NodeRole::Field);
        for (name, child) in keywords.fields("properties").into_iter().flatten() {
            if self.is_full() {
                return;
            }
            let path = format!("{}.properties[{name}]", keywords.path);
            let outer_path = format!("{}.properties[{name}]", outer.path);
            let known = outer
                .shape
                .and_then(|shape| shape.properties.get(name))
                .map(|property| &*property.schema);
            if known.is_none() && outer.shape.is_some() {
                self.report(FieldError::required(
                    outer_path.clone(),
                    format!("because it is defined in {path}"),
                ));
            }
            if name == "metadata" {
                self.report(FieldError::forbidden(
                    path.clone(),
                    "must not be specified in a nested context",
                ));
            }
            let node =
                self.nested(child, &path, &Outer { shape: known, path: &outer_path }, below, false);
            out.properties.insert(name.as_str().into(), Property::new(node, false));
        }
        if let Some(items) = keywords.get("items").filter(|items| items.is_object()) {
            let (path, outer_path) = (keywords.at("items"), format!("{}.items", outer.path));
            let known = outer.shape.and_then(|shape| shape.items.as_deref());
            if known.is_none() && outer.shape.is_some() {
                self.report(FieldError::required(
                    outer_path.clone(),
                    format!("because it is defined in {path}"),
                ));
            }
            out.items = Some(
                self.nested(items, &path, &Outer { shape: known, path: &outer_path }, below, false)
                    .into(),
            );
        }
    }
}
