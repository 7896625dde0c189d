//! Schemas of custom resources: an `openAPIV3Schema` becomes a [`Schema`], if it is structural.

mod keywords;
mod lists;
mod nested;
#[cfg(test)]
mod tests;

use crate::schema::{Kind, MapType, Node, Property, Schema};
use crate::validate::{self, Checks};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use keywords::{Keywords, kind_of};
use std::sync::Arc;

/// A schema has at most so many nodes.
const MAX_NODES: usize = 50_000;
/// And at most so many levels.
const MAX_LEVELS: usize = 200;
/// At most so many errors are collected.
const MAX_ERRORS: usize = 50;

/// What a schema is loaded for.
#[derive(Clone, Debug, Default)]
pub struct Loading<'a> {
    /// Where errors say the schema is: `spec.validation.openAPIV3Schema`, or `spec.versions[0].schema.openAPIV3Schema`.
    pub path: &'a str,
    /// The definition's name in OpenAPI, such as `com.example.v1.Thing`.
    pub name: Option<Arc<str>>,
    /// The schema of `metadata` (ObjectMeta of the native tables); without it metadata is free-form.
    pub metadata: Option<Arc<Schema>>,
}

/// Loads a schema.
///
/// # Errors
/// What is wrong with it, each with its place.
pub fn from_json_schema(schema: &Value, loading: &Loading<'_>) -> Result<Schema, Vec<FieldError>> {
    let mut loader = Loader { errors: Vec::new(), nodes: 0, metadata: loading.metadata.clone() };
    let mut root = loader.structural(schema, loading.path, &Place { root: true, ..Place::default() });
    if loader.errors.is_empty() {
        loader.defaults(&root, loading.path, false, 0);
    }
    if !loader.errors.is_empty() {
        return Err(loader.errors);
    }
    root.name = loading.name.clone();
    loader.complete_root(&mut root);
    Ok(root)
}

/// Where a node is.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    root: bool,
    depth: usize,
}

impl Place {
    fn below(self) -> Self {
        Self { root: false, depth: self.depth + 1 }
    }
}

struct Loader {
    errors: Vec<FieldError>,
    nodes: usize,
    metadata: Option<Arc<Schema>>,
}

impl Loader {
    fn report(&mut self, reason: FieldReason, path: String, why: &str) {
        if self.errors.len() >= MAX_ERRORS {
            return;
        }
        let message = match reason {
            FieldReason::Required => format!("Required value: {why}"),
            FieldReason::Forbidden => format!("Forbidden: {why}"),
            FieldReason::NotSupported => format!("Unsupported value: {why}"),
            _ => format!("Invalid value: {why}"),
        };
        self.errors.push(FieldError::new(reason, path, message));
    }

    /// Counts a node; false: too many, or too deep.
    fn enter(&mut self, path: &str, depth: usize) -> bool {
        self.nodes += 1;
        let fits = self.nodes <= MAX_NODES && depth <= MAX_LEVELS;
        if !fits && self.nodes <= MAX_NODES + 1 {
            self.report(FieldReason::Invalid, path.to_owned(), "the schema is too large or too deep");
        }
        fits
    }

    /// A node that gives its value a shape.
    fn structural(&mut self, schema: &Value, path: &str, place: &Place) -> Schema {
        let Value::Object(map) = schema else {
            self.report(FieldReason::TypeInvalid, path.to_owned(), "a schema must be an object");
            return Schema::default();
        };
        if !self.enter(path, place.depth) {
            return Schema::default();
        }
        let keywords = Keywords { map, path };
        self.forbidden(&keywords);
        let mut out = Schema {
            format: keywords.text("format").map(Arc::from),
            nullable: keywords.flag("nullable"),
            default: keywords.get("default").cloned(),
            enumeration: keywords.list("enum").to_vec(),
            description: keywords.text("description").map(Arc::from),
            ..Schema::default()
        };
        self.kind(&keywords, place, &mut out);
        self.children(&keywords, place, &mut out);
        self.list_type(&keywords, &mut out);
        self.map_type(&keywords, &mut out);
        let mut checks = self.checks(&keywords);
        self.compositions(&keywords, &mut checks, &out, place);
        self.required(&keywords, &mut out, &mut checks);
        if place.root {
            self.metadata_of_root(map, path, &mut out, &mut checks);
        }
        if out.embedded {
            self.embed(&mut out);
        }
        if !checks.is_empty() {
            out.checks = Some(Box::new(checks));
        }
        out
    }

    /// The type, and the extensions that stand for one.
    fn kind(&mut self, keywords: &Keywords<'_>, place: &Place, out: &mut Schema) {
        out.preserve_unknown = keywords.flag("x-kubernetes-preserve-unknown-fields");
        if keywords.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
            self.report(FieldReason::Invalid, keywords.at("x-kubernetes-preserve-unknown-fields"), "must be true or undefined");
        }
        out.embedded = keywords.flag("x-kubernetes-embedded-resource");
        let int_or_string = keywords.flag("x-kubernetes-int-or-string");
        match keywords.text("type").unwrap_or_default() {
            "" if int_or_string => out.kind = Kind::IntOrString,
            "" if place.root => self.report(FieldReason::Required, keywords.at("type"), "must not be empty at the root"),
            "" if out.preserve_unknown => out.kind = Kind::Any,
            "" => self.report(FieldReason::Required, keywords.at("type"), "must not be empty for specified fields"),
            _ if int_or_string => self.report(FieldReason::Invalid, keywords.at("type"), "must be empty if x-kubernetes-int-or-string is true"),
            "null" => self.report(FieldReason::Forbidden, keywords.at("type"), "type cannot be null, use nullable as an alternative"),
            text => match kind_of(text) {
                Some(kind) => out.kind = kind,
                None => self.report(FieldReason::NotSupported, keywords.at("type"), "supported values: array, boolean, integer, number, object, string"),
            },
        }
        if place.root && out.kind != Kind::Object && keywords.text("type").is_some_and(|text| !text.is_empty()) {
            self.report(FieldReason::Invalid, keywords.at("type"), "must be object at the root");
        }
        if out.embedded && out.kind != Kind::Object {
            self.report(FieldReason::Invalid, keywords.at("type"), "must be object if x-kubernetes-embedded-resource is true");
        }
        if out.embedded && !out.preserve_unknown && keywords.fields("properties").is_none_or(Map::is_empty) {
            let why = "must be true if x-kubernetes-embedded-resource is true and properties are not specified";
            self.report(FieldReason::Required, keywords.at("x-kubernetes-preserve-unknown-fields"), why);
        }
    }

    fn children(&mut self, keywords: &Keywords<'_>, place: &Place, out: &mut Schema) {
        for (name, child) in keywords.fields("properties").into_iter().flatten() {
            let node = self.structural(child, &format!("{}.properties[{name}]", keywords.path), &place.below());
            out.properties.insert(name.as_str().into(), Property::new(node, false));
        }
        match keywords.get("additionalProperties") {
            None => {}
            Some(_) if !out.properties.is_empty() => {
                self.report(FieldReason::Forbidden, keywords.at("additionalProperties"), "additionalProperties and properties are mutually exclusive");
            }
            Some(Value::Bool(true)) => out.additional = Some(Schema { preserve_unknown: true, ..Schema::default() }.into()),
            Some(Value::Bool(false)) => {
                self.report(FieldReason::Forbidden, keywords.at("additionalProperties"), "additionalProperties cannot be set to false");
            }
            Some(values) => out.additional = Some(self.structural(values, &keywords.at("additionalProperties"), &place.below()).into()),
        }
        match keywords.get("items") {
            None if out.kind == Kind::Array => self.report(FieldReason::Required, keywords.at("items"), "must be specified"),
            None => {}
            Some(Value::Array(_)) => self.report(FieldReason::Forbidden, keywords.at("items"), "items must be a schema object and not an array"),
            Some(items) => out.items = Some(self.structural(items, &keywords.at("items"), &place.below()).into()),
        }
    }

    fn map_type(&mut self, keywords: &Keywords<'_>, out: &mut Schema) {
        match keywords.text("x-kubernetes-map-type") {
            None => return,
            Some("atomic") => out.map_type = MapType::Atomic,
            Some("granular") => {}
            Some(_) => self.report(FieldReason::NotSupported, keywords.at("x-kubernetes-map-type"), "supported values: atomic, granular"),
        }
        if out.kind != Kind::Object {
            self.report(FieldReason::Invalid, keywords.at("type"), "must be object if x-kubernetes-map-type is specified");
        }
    }

    /// Required fields: of declared properties at the property, of others as a check.
    fn required(&mut self, keywords: &Keywords<'_>, out: &mut Schema, checks: &mut Checks) {
        for name in keywords.list("required").iter().filter_map(Value::as_str) {
            match out.properties.get_mut(name) {
                Some(property) => property.required = true,
                None => checks.required.push(name.into()),
            }
        }
    }

    /// Metadata has its own schema; a definition may only restrict two names in it.
    fn metadata_of_root(&mut self, map: &Map<String, Value>, path: &str, out: &mut Schema, checks: &mut Checks) {
        let Some(Value::Object(given)) = map.get("properties").and_then(|properties| properties.get("metadata")) else {
            return;
        };
        let only_names =
            given.get("properties").and_then(Value::as_object).into_iter().flatten().all(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
        if !only_names {
            let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            self.report(FieldReason::Forbidden, format!("{path}.properties[metadata]"), why);
        }
        if let Some(property) = out.properties.get("metadata") {
            checks.metadata = Some(property.schema.clone());
        }
    }

    fn embed(&self, out: &mut Schema) {
        self.type_meta(out);
    }

    fn type_meta(&self, out: &mut Schema) {
        let text = || Property::new(Schema { kind: Kind::String, ..Schema::default() }, false);
        for field in ["apiVersion", "kind"] {
            out.properties.entry(field.into()).or_insert_with(text);
        }
        let metadata: Node = match &self.metadata {
            Some(schema) => schema.clone().into(),
            None => Schema { preserve_unknown: true, kind: Kind::Object, ..Schema::default() }.into(),
        };
        out.properties.insert("metadata".into(), Property::new(metadata, false));
    }

    fn complete_root(&self, root: &mut Schema) {
        self.type_meta(root);
    }

    /// Defaults must fit the schema that they are in, and be complete in themselves.
    fn defaults(&mut self, schema: &Schema, path: &str, in_metadata: bool, depth: usize) {
        if depth > MAX_LEVELS || schema.native {
            return;
        }
        if let Some(default) = &schema.default {
            self.check_default(schema, default, &format!("{path}.default"), in_metadata);
        }
        for (name, property) in &schema.properties {
            let metadata = in_metadata || (&**name == "metadata" && (depth == 0 || schema.embedded));
            self.defaults(&property.schema, &format!("{path}.properties[{name}]"), metadata, depth + 1);
        }
        if let Some(items) = schema.items.as_deref() {
            self.defaults(items, &format!("{path}.items"), in_metadata, depth + 1);
        }
        if let Some(values) = schema.additional.as_deref() {
            self.defaults(values, &format!("{path}.additionalProperties"), in_metadata, depth + 1);
        }
    }

    fn check_default(&mut self, schema: &Schema, default: &Value, path: &str, in_metadata: bool) {
        if in_metadata {
            self.report(FieldReason::Forbidden, path.to_owned(), "must not be set in metadata");
            return;
        }
        let mut value = default.clone();
        if !validate::prune_value(schema, &mut value).is_empty() {
            self.report(FieldReason::Invalid, path.to_owned(), "must not have unknown fields");
            return;
        }
        validate::default_value(schema, &mut value);
        for error in validate::validate_value(schema, &value) {
            let field = match error.field.as_str() {
                "" | "<nil>" => path.to_owned(),
                below => format!("{path}.{below}"),
            };
            if self.errors.len() < MAX_ERRORS {
                self.errors.push(FieldError { field, ..error });
            }
        }
    }
}
