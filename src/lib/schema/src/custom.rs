//! Schemas of custom resources: turns a structural `openAPIV3Schema` into a [`Schema`].

mod defaults;
mod keywords;
mod lists;
mod metadata;
mod nested;
mod paths;
#[cfg(test)]
mod tests;

pub use paths::field_path;

use crate::index::NodeIndex;
use crate::schema::{Kind, MapType, Node, Property, Schema};
use crate::validate::Checks;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::work;
use keywords::{Keywords, TYPES, kind_of};
use std::collections::HashSet;
use std::sync::Arc;

/// Max nodes of a schema.
const MAX_NODES: usize = 50_000;
/// Max levels of a schema.
const MAX_LEVELS: usize = 200;
/// Max bytes of all nodes' paths, which may be far longer than the schema: some ten times what real
/// ones take.
const MAX_PATH_BYTES: usize = 64 * 1024 * 1024;
/// Max keys of a keyed list: each item is named by all of them.
const MAX_LIST_KEYS: usize = 64;
/// Max collected errors.
const MAX_ERRORS: usize = 50;
/// Max bytes that all patterns of a schema compile to: less than a second.
const MAX_PATTERNS: usize = 64 << 20;

/// Facts about a schema's definition.
#[derive(Clone, Debug, Default)]
pub struct SchemaContext<'a> {
    /// The schema's path in errors: `spec.validation.openAPIV3Schema` or
    /// `spec.versions[0].schema.openAPIV3Schema`.
    pub path: &'a str,
    /// The definition's name in OpenAPI, such as `com.example.v1.Thing`.
    pub name: Option<Arc<str>>,
    /// The schema of `metadata` (the native ObjectMeta); `None` leaves metadata free-form.
    pub metadata: Option<Arc<Schema>>,
}

/// A parsed schema, valid or not.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The schema, as far as it could be read.
    pub schema: Schema,
    /// kube-apiserver's message.
    pub errors: Vec<FieldError>,
    /// Whether it is structural, with valid defaults: the precondition for compiling rules.
    pub is_structural: bool,
}

/// Loads a valid schema.
///
/// # Errors
/// The schema's errors.
pub fn from_json_schema(
    schema: &Value,
    options: &SchemaContext<'_>,
) -> Result<Schema, Vec<FieldError>> {
    let loaded = load(schema, options);
    if loaded.errors.is_empty() { Ok(loaded.schema) } else { Err(loaded.errors) }
}

/// Loads a schema, valid or not.
pub fn load(schema: &Value, options: &SchemaContext<'_>) -> Loaded {
    let mut loader = Loader {
        structural: Vec::new(),
        plain: Vec::new(),
        unsupported: false,
        nodes: 0,
        path_bytes: 0,
        pattern_room: MAX_PATTERNS,
        metadata: options.metadata.clone(),
    };
    let mut root = loader.node(
        schema,
        options.path,
        &NodeContext { role: NodeRole::Root, depth: 0, meta: Meta::Outside },
    );
    let (errors, is_structural) = loader.finish(&root, options.path);
    root.name = options.name.clone();
    loader.type_meta(&mut root);
    Loaded { schema: root, errors, is_structural }
}

/// The role of a node, for the error about a missing type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeRole {
    Root,
    Item,
    Field,
}

/// Whether a node belongs to the metadata, kind or apiVersion of a resource, where defaults are
/// restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meta {
    Outside,
    /// Metadata of an embedded resource.
    Embedded,
    /// Where no default may be: the words for the resource itself, or for map values.
    Bare(&'static str),
}

/// The position of a node.
#[derive(Clone, Copy, Debug)]
struct NodeContext {
    role: NodeRole,
    depth: usize,
    meta: Meta,
}

impl NodeContext {
    fn below(self, role: NodeRole) -> Self {
        Self { role, depth: self.depth + 1, meta: self.meta }
    }
}

/// Collects the same two kinds of errors as kube-apiserver: violations of the structural rules
/// (`report`), which are only returned for schemas without unsupported keywords, and other errors
/// (`refuse`), which are always returned. Defaults are only checked in structural schemas.
struct Loader {
    structural: Vec<FieldError>,
    plain: Vec<FieldError>,
    /// There is a keyword that no structural schema supports.
    unsupported: bool,
    nodes: usize,
    path_bytes: usize,
    /// Remaining budget of compiled pattern bytes.
    pattern_room: usize,
    metadata: Option<Arc<Schema>>,
}

impl Loader {
    /// Adds an error that makes the schema non-structural.
    fn report(&mut self, error: FieldError) {
        if self.structural.len() < MAX_ERRORS {
            self.structural.push(error);
        }
    }

    /// Adds an error that is always returned.
    fn refuse(&mut self, error: FieldError) {
        if self.plain.len() < MAX_ERRORS {
            self.plain.push(error);
        }
    }

    /// All errors, and whether the schema is structural.
    fn finish(&mut self, root: &Schema, path: &str) -> (Vec<FieldError>, bool) {
        let mut errors = std::mem::take(&mut self.structural);
        errors
            .sort_by(|one, other| (&one.field, &one.message).cmp(&(&other.field, &other.message)));
        if self.unsupported {
            errors.clear();
        } else if errors.is_empty() {
            self.defaults(root, path, Meta::Outside, 0);
            errors = std::mem::take(&mut self.structural);
        }
        let is_structural = errors.is_empty() && !self.unsupported;
        errors.append(&mut self.plain);
        if errors.is_empty() && self.unsupported {
            // All others were refused by name.
            errors.push(FieldError::invalid(path, "", "OpenAPIV3Schema 'schema' is not supported"));
        }
        (errors, is_structural)
    }

    /// Counts a node; `false` if there are too many or it is too deep.
    fn enter(&mut self, path: &str, depth: usize) -> bool {
        work::count(1 + path.len());
        work::breathe();
        self.nodes += 1;
        self.path_bytes += path.len();
        let fits = !self.is_full() && depth <= MAX_LEVELS;
        if !fits {
            self.refuse(FieldError::invalid_unshown(path, "the schema is too large or too deep"));
        }
        fits
    }

    /// Enters a node and refuses unsupported keywords; `None` if the node itself is refused.
    fn keywords<'a>(
        &mut self,
        schema: &'a Value,
        path: &'a str,
        depth: usize,
    ) -> Option<Keywords<'a>> {
        let Value::Object(map) = schema else {
            self.refuse(FieldError::type_invalid(path, schema, "a schema must be an object"));
            return None;
        };
        if !self.enter(path, depth) {
            return None;
        }
        let keywords = Keywords { map, path };
        self.forbidden(&keywords);
        Some(keywords)
    }

    /// Whether the schema was refused for its size, and the rest is skipped.
    fn is_full(&self) -> bool {
        self.nodes > MAX_NODES || self.path_bytes > MAX_PATH_BYTES
    }

    /// Loads a node of the structural part.
    fn node(&mut self, schema: &Value, path: &str, at: &NodeContext) -> Schema {
        let Some(keywords) = self.keywords(schema, path, at.depth) else {
            return Schema::default();
        };
        let mut out = Schema {
            format: keywords.text("format").map(Arc::from),
            nullable: keywords.flag("nullable"),
            default: keywords.get("default").cloned(),
            enumeration: keywords.list("enum").to_vec(),
            description: keywords.text("description").map(Arc::from),
            ..Schema::default()
        };
        self.kind(&keywords, at, &mut out);
        let mut checks = self.checks(&keywords);
        self.children(&keywords, at, &mut out, &mut checks);
        self.list_type(&keywords, &mut out);
        self.map_type(&keywords, &mut out);
        self.compositions(
            &keywords,
            &mut checks,
            &nested::Outer { shape: (at.role == NodeRole::Root).then_some(&out), path },
            *at,
        );
        self.required(&keywords, &mut out, &mut checks);
        self.restrict_metadata(&keywords, at, &mut out, &mut checks);
        if out.embedded {
            self.type_meta(&mut out);
        }
        if !checks.is_empty() {
            out.checks = Some(Box::new(checks));
        }
        out
    }

    /// The type, and the extensions that replace one.
    fn kind(&mut self, keywords: &Keywords<'_>, at: &NodeContext, out: &mut Schema) {
        out.preserve_unknown = keywords.flag("x-kubernetes-preserve-unknown-fields");
        out.embedded = keywords.flag("x-kubernetes-embedded-resource");
        let int_or_string = keywords.flag("x-kubernetes-int-or-string");
        let given = keywords.text("type").unwrap_or_default();
        self.known_type(keywords, given);
        match given {
            "" if int_or_string => out.kind = Kind::IntOrString,
            "" => {}
            text => out.kind = kind_of(text).unwrap_or_default(),
        }
        if out.embedded && given != "object" {
            self.report(
                keywords.wrong_type("must be object if x-kubernetes-embedded-resource is true"),
            );
        } else if given.is_empty() && !int_or_string && !out.preserve_unknown {
            let why = match at.role {
                NodeRole::Root => "must not be empty at the root",
                NodeRole::Item => "must not be empty for specified array items",
                NodeRole::Field => "must not be empty for specified object fields",
            };
            self.report(FieldError::required(keywords.at("type"), why));
        }
        if at.role == NodeRole::Root && !matches!(given, "" | "object") {
            self.report(FieldError::invalid(
                keywords.at("type"),
                given,
                "must be object at the root",
            ));
        }
        for (flag, name) in [
            (out.preserve_unknown, "x-kubernetes-preserve-unknown-fields"),
            (out.embedded, "x-kubernetes-embedded-resource"),
        ] {
            if flag && int_or_string {
                self.report(FieldError::invalid(
                    keywords.at(name),
                    true,
                    "must be false if x-kubernetes-int-or-string is true",
                ));
            }
        }
        if out.embedded
            && !out.preserve_unknown
            && keywords.fields("properties").is_none_or(Map::is_empty)
        {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            self.report(FieldError::required(keywords.at("properties"), why));
        }
        self.check_metadata_keywords(keywords, at);
    }

    /// Restrictions within metadata.
    fn check_metadata_keywords(&mut self, keywords: &Keywords<'_>, at: &NodeContext) {
        if at.meta != Meta::Outside && keywords.flag("x-kubernetes-embedded-resource") {
            self.refuse(FieldError::forbidden(
                keywords.at("x-kubernetes-embedded-resource"),
                "must not be used inside of resource meta",
            ));
        }
        if let Meta::Bare(at) = at.meta
            && keywords.get("default").is_some()
        {
            self.refuse(FieldError::forbidden(
                keywords.at("default"),
                format!("must not be set {at}"),
            ));
        }
    }

    /// Refuses unknown types.
    fn known_type(&mut self, keywords: &Keywords<'_>, given: &str) {
        if !given.is_empty() && kind_of(given).is_none() {
            self.refuse(FieldError::not_supported(keywords.at("type"), given, TYPES));
        }
        if given == "null" {
            self.refuse(FieldError::forbidden(
                keywords.at("type"),
                "type cannot be set to null, use nullable as an alternative",
            ));
        }
    }

    fn children(
        &mut self,
        keywords: &Keywords<'_>,
        at: &NodeContext,
        out: &mut Schema,
        checks: &mut Checks,
    ) {
        for (name, child) in keywords.fields("properties").into_iter().flatten() {
            if self.is_full() {
                return;
            }
            let mut below = at.below(NodeRole::Field);
            if matches!(name.as_str(), "metadata" | "kind" | "apiVersion")
                && (at.role == NodeRole::Root || out.embedded)
            {
                below.meta = match (at.role, name.as_str(), below.meta) {
                    (NodeRole::Root, "metadata", _) => Meta::Bare("in top-level metadata"),
                    (NodeRole::Root, "kind", _) => Meta::Bare("in top-level kind"),
                    (NodeRole::Root, ..) => Meta::Bare("in top-level apiVersion"),
                    // Where no default is allowed, none is allowed below either.
                    (.., bare @ Meta::Bare(_)) => bare,
                    _ => Meta::Embedded,
                };
            }
            let node = self.node(child, &format!("{}.properties[{name}]", keywords.path), &below);
            out.properties.insert(name.as_str().into(), Property::new(node, false));
        }
        out.properties.shrink_to_fit();
        self.additional(keywords, at, out, checks);
        match keywords.get("items") {
            // Arrays of schemas were refused with the other unsupported keywords.
            Some(Value::Array(_)) => {}
            // A value that is not a schema counts as absent.
            None | Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_))
                if out.kind == Kind::Array =>
            {
                self.report(FieldError::required(keywords.at("items"), "must be specified"));
            }
            None | Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {}
            Some(items) => {
                out.items =
                    Some(self.node(items, &keywords.at("items"), &at.below(NodeRole::Item)).into())
            }
        }
    }

    fn additional(
        &mut self,
        keywords: &Keywords<'_>,
        at: &NodeContext,
        out: &mut Schema,
        checks: &mut Checks,
    ) {
        let Some(given) = keywords.get("additionalProperties") else { return };
        let path = keywords.at("additionalProperties");
        if !out.properties.is_empty() && given != &Value::Bool(true) {
            self.refuse(FieldError::forbidden(
                path.clone(),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
        if at.role == NodeRole::Root {
            self.report(FieldError::forbidden(path.clone(), "must not be used at the root"));
        }
        if out.embedded {
            self.report(FieldError::forbidden(
                path.clone(),
                "must not be used if x-kubernetes-embedded-resource is set",
            ));
        }
        out.additional = Some(match given {
            Value::Bool(allowed) => {
                checks.closed = !allowed;
                // Any scalar stays; an object stays, but all its fields are unknown.
                Schema { nullable: true, ..Schema::default() }.into()
            }
            values => {
                let mut below = at.below(NodeRole::Field);
                if below.meta != Meta::Outside {
                    below.meta =
                        Meta::Bare("inside additionalProperties applying to object metadata");
                }
                self.node(values, &path, &below).into()
            }
        });
    }

    fn map_type(&mut self, keywords: &Keywords<'_>, out: &mut Schema) {
        let Some(given) = keywords.text("x-kubernetes-map-type") else { return };
        match given {
            "atomic" => out.map_type = MapType::Atomic,
            "granular" => {}
            _ => self.refuse(FieldError::not_supported(
                keywords.at("x-kubernetes-map-type"),
                given,
                ["atomic", "granular"],
            )),
        }
        self.must_be(keywords, "object", "must be object if x-kubernetes-map-type is specified");
    }

    /// Refuses a keyword that needs another type.
    fn must_be(&mut self, keywords: &Keywords<'_>, wanted: &str, why: &str) {
        if keywords.text("type") != Some(wanted) {
            self.refuse(keywords.wrong_type(why));
        }
    }

    /// Required fields: of declared properties on the property, of others as a check.
    fn required(&mut self, keywords: &Keywords<'_>, out: &mut Schema, checks: &mut Checks) {
        let mut seen = HashSet::new();
        for name in keywords.list("required").iter().filter_map(Value::as_str) {
            match out.properties.get_mut(name) {
                Some(property) => property.required = true,
                // Once: each is looked up in each value.
                None if seen.insert(name) => checks.required.push(name.into()),
                None => {}
            }
        }
    }

    /// Adds the fields that every resource has.
    fn type_meta(&self, out: &mut Schema) {
        let text = || Property::new(Schema { kind: Kind::String, ..Schema::default() }, false);
        for field in ["apiVersion", "kind"] {
            if !out.properties.contains_key(field) {
                out.properties.insert(field.into(), text());
            }
        }
        let metadata: Node = match &self.metadata {
            Some(schema) => schema.clone().into(),
            None => {
                Schema { preserve_unknown: true, kind: Kind::Object, ..Schema::default() }.into()
            }
        };
        out.properties.insert("metadata".into(), Property::new(metadata, false));
        out.index = NodeIndex::default();
    }
}
