//! Renders [`Schema`] nodes as OpenAPI v2 and v3.
//!
//! Named nodes become definitions that are referred to; everything else is inlined.

mod validations;

use crate::schema::{Emit, Kind, ListType, MAX_WALK, MapType, Property, Schema};
use ferrokube_apimachinery::document::{Map, Value, json};

/// Adds the definition and all that it refers to as OpenAPI v3 `components.schemas` (with
/// `x-kubernetes-*` extensions and `$ref`s). The caller adds `x-kubernetes-group-version-kind` to
/// the kinds.
pub fn components_v3(schema: &Schema, into: &mut Map) {
    definitions(schema, OpenApiVersion::V3, into);
}

/// As [`components_v3`], for OpenAPI v2 `definitions`.
pub fn definitions_v2(schema: &Schema, into: &mut Map) {
    definitions(schema, OpenApiVersion::V2, into);
}

/// A node inlined into another one's keywords.
fn inline_v3(schema: &Schema) -> Value {
    Value::Object(Renderer { version: OpenApiVersion::V3, referred: Vec::new() }.body(schema, 0))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OpenApiVersion {
    V2,
    V3,
}

impl OpenApiVersion {
    fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => Value::from(format!("#/definitions/{name}")),
            Self::V3 => Value::from(format!("#/components/schemas/{name}")),
        }
    }
}

/// Renders definitions until all references resolve.
fn definitions<'a>(schema: &'a Schema, version: OpenApiVersion, into: &mut Map) {
    let mut missing: Vec<&'a Schema> = vec![schema];
    while let Some(schema) = missing.pop() {
        let Some(name) = schema.name.as_deref().filter(|name| !into.contains_key(name)) else {
            continue;
        };
        let mut renderer = Renderer { version, referred: Vec::new() };
        let rendered = renderer.body(schema, 0);
        missing.append(&mut renderer.referred);
        into.insert(name.to_owned(), Value::Object(rendered));
    }
}

struct Renderer<'a> {
    version: OpenApiVersion,
    referred: Vec<&'a Schema>,
}

impl<'a> Renderer<'a> {
    /// Renders a node inline, even if it has a name.
    fn body(&mut self, schema: &'a Schema, depth: usize) -> Map {
        let mut out = Map::new();
        let is_open = self.version == OpenApiVersion::V2
            && !schema.native
            && (schema.preserve_unknown || schema.nullable);
        // Version 2 clients refuse unknown fields wherever any are declared.
        if is_open && schema.preserve_unknown && schema.name.is_some() {
            out.insert("type".to_owned(), Value::from("object"));
            return out;
        }
        if let Some(description) = &schema.description {
            out.insert("description".to_owned(), Value::from(&**description));
        }
        if is_open {
            self.open(schema, depth, &mut out);
            return out;
        }
        self.kind(schema, &mut out);
        if depth > MAX_WALK {
            return out;
        }
        self.fields(schema, depth, &mut out);
        if let Some(items) = schema.items.as_deref() {
            let items = self.element(items, depth + 1);
            out.insert("items".to_owned(), items);
        }
        if let Some(values) = schema.additional.as_deref() {
            let values = self.additional(schema, values, depth);
            out.insert("additionalProperties".to_owned(), values);
        }
        self.values(schema, &mut out);
        extensions(schema, &mut out);
        if schema.name.is_none() {
            patches(schema, &mut out);
        }
        out
    }

    /// In version 2, nodes that are nullable or preserve unknown fields have no type and declare
    /// nothing.
    fn open(&mut self, schema: &'a Schema, depth: usize, out: &mut Map) {
        if schema.kind == Kind::IntOrString
            || (!schema.nullable && !matches!(schema.kind, Kind::Object | Kind::Array))
        {
            self.kind(schema, out);
        } else if let Some(format) = &schema.format {
            out.insert("format".to_owned(), Value::from(&**format));
        }
        if let Some(values) = schema.additional.as_deref().filter(|_| depth <= MAX_WALK) {
            let values = self.additional(schema, values, depth);
            out.insert("additionalProperties".to_owned(), values);
        }
        self.required(schema, out);
        self.values(schema, out);
        extensions(schema, out);
    }

    fn fields(&mut self, schema: &'a Schema, depth: usize, out: &mut Map) {
        if !schema.properties.is_empty() {
            let is_kind = schema.embedded
                || (schema.name.is_some() && schema.properties.contains_key("metadata"));
            let properties: Map = schema
                .properties
                .iter()
                .map(|(name, property)| {
                    let mut out = self.property(name, property, depth + 1);
                    if &**name == "items"
                        && is_kind
                        && property.schema.list_type == ListType::Atomic
                    {
                        // Of a list of objects.
                        out.remove("x-kubernetes-list-type");
                    }
                    if let Some(text) = type_meta(name).filter(|_| is_kind) {
                        out.insert("description".to_owned(), Value::from(text));
                    }
                    (name.to_string(), Value::Object(out))
                })
                .collect();
            out.insert("properties".to_owned(), Value::Object(properties));
        }
        self.required(schema, out);
    }

    fn required(&self, schema: &Schema, out: &mut Map) {
        let may_be_null =
            |node: &Schema| self.version == OpenApiVersion::V2 && !node.native && node.nullable;
        let declared = schema
            .properties
            .iter()
            .filter(|(_, property)| property.required && !may_be_null(&property.schema))
            .map(|(name, _)| name);
        let others = schema.checks.iter().flat_map(|checks| &checks.required);
        let mut required: Vec<Value> =
            declared.chain(others).map(|name| Value::from(&**name)).collect();
        if schema.embedded && !(self.version == OpenApiVersion::V2 && schema.preserve_unknown) {
            for name in ["kind", "apiVersion"].map(Value::from) {
                if !required.contains(&name) {
                    required.push(name);
                }
            }
        }
        if !required.is_empty() {
            out.insert("required".to_owned(), Value::from(required));
        }
    }

    fn property(&mut self, name: &str, property: &'a Property, depth: usize) -> Map {
        let node: &'a Schema = &property.schema;
        let description = property.description.or_else(|| metadata(name, property));
        let mut out = if node.name.is_some() {
            self.link(node, property.emit == Emit::Always && node.kind == Kind::Object)
        } else {
            self.body(node, depth)
        };
        if let Some(description) = description {
            out.insert("description".to_owned(), Value::from(description));
        }
        if self.version == OpenApiVersion::V3
            && property.emit == Emit::Always
            && matches!(node.kind, Kind::String | Kind::Integer | Kind::Number | Kind::Boolean)
            && node.name.is_none()
            && !node.zero().is_null()
        {
            out.entry("default").or_insert_with(|| node.zero().clone());
        }
        out
    }

    /// A field's reference. In v3 a `$ref` allows no siblings, so it moves into an `allOf`.
    fn link(&mut self, schema: &'a Schema, default: bool) -> Map {
        let mut reference = self.reference(schema);
        if self.version == OpenApiVersion::V2 {
            patches(schema, &mut reference);
            return reference;
        }
        let mut out = Map::new();
        out.insert("allOf".to_owned(), Value::from(vec![Value::Object(reference)]));
        if default {
            out.insert("default".to_owned(), json!({}));
        }
        patches(schema, &mut out);
        out
    }

    fn reference(&mut self, schema: &'a Schema) -> Map {
        self.referred.push(schema);
        let mut out = Map::new();
        let reference = self.version.reference(schema.name.as_deref().unwrap_or_default());
        out.insert("$ref".to_owned(), reference);
        out
    }

    /// A list item or map value. Native ones do not say how they merge.
    fn element(&mut self, schema: &'a Schema, depth: usize) -> Value {
        if schema.name.is_some() {
            return Value::Object(self.reference(schema));
        }
        let mut out = self.body(schema, depth);
        if schema.native {
            out.remove("x-kubernetes-list-type");
        }
        Value::Object(out)
    }

    /// Map values: a schema, or whether there may be any.
    fn additional(&mut self, map: &'a Schema, values: &'a Schema, depth: usize) -> Value {
        if map.checks.as_ref().is_some_and(|checks| checks.closed) {
            return Value::Bool(false);
        }
        let is_open = !values.native && values.kind == Kind::Any && !values.preserve_unknown;
        if is_open { Value::Bool(true) } else { self.element(values, depth + 1) }
    }

    fn kind(&self, schema: &Schema, out: &mut Map) {
        let kind = match schema.kind {
            Kind::Object => "object",
            Kind::Array => "array",
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Boolean => "boolean",
            Kind::IntOrString if !schema.native => {
                out.insert("x-kubernetes-int-or-string".to_owned(), Value::Bool(true));
                return;
            }
            Kind::IntOrString => return self.int_or_string(schema, out),
            // Native free-form structures are objects; arbitrary JSON has no type.
            Kind::Any if matches!(schema.short_name(), "RawExtension" | "FieldsV1" | "Patch") => {
                "object"
            }
            Kind::Any => return,
        };
        out.insert("type".to_owned(), Value::from(kind));
        if let Some(format) = &schema.format {
            out.insert("format".to_owned(), Value::from(&**format));
        }
    }

    fn int_or_string(&self, schema: &Schema, out: &mut Map) {
        let quantity = schema.format.as_deref() == Some("quantity");
        if !quantity {
            out.insert("format".to_owned(), Value::from("int-or-string"));
        }
        match self.version {
            OpenApiVersion::V2 => out.insert("type".to_owned(), Value::from("string")),
            OpenApiVersion::V3 if quantity => {
                out.insert("oneOf".to_owned(), json!([{"type": "string"}, {"type": "number"}]))
            }
            OpenApiVersion::V3 => {
                out.insert("oneOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]))
            }
        };
    }

    fn values(&self, schema: &Schema, out: &mut Map) {
        if let Some(default) =
            schema.default.as_ref().filter(|_| self.version == OpenApiVersion::V3)
        {
            out.insert("default".to_owned(), default.clone());
        }
        if !schema.enumeration.is_empty() {
            out.insert("enum".to_owned(), Value::from(schema.enumeration.clone()));
        }
        if schema.nullable && self.version == OpenApiVersion::V3 {
            out.insert("nullable".to_owned(), Value::Bool(true));
        }
        if let Some(checks) = &schema.checks {
            validations::render(checks, self.version, out);
        }
        if schema.kind == Kind::IntOrString && !schema.native && self.version == OpenApiVersion::V3
        {
            unfold_int_or_string(out);
        }
    }
}

/// Says in standard keywords that the value is an integer or a string, unless the schema does.
fn unfold_int_or_string(out: &mut Map) {
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let first = out.get("allOf").and_then(|all| all.get(0)).and_then(|first| first.get("anyOf"));
    if out.get("anyOf") == Some(&either) || first == Some(&either) {
        return;
    }
    if !out.contains_key("anyOf") {
        out.insert("anyOf".to_owned(), either);
        return;
    }
    let mut all = vec![json!({"anyOf": either})];
    all.extend(out.get("allOf").and_then(Value::as_array).into_iter().flatten().cloned());
    out.insert("allOf".to_owned(), Value::from(all));
}

/// How a strategic patch merges a field: said at the field, not at the definition of its type.
fn patches(schema: &Schema, out: &mut Map) {
    if let Some(strategy) = &schema.patch_strategy {
        out.insert("x-kubernetes-patch-strategy".to_owned(), Value::from(&**strategy));
    }
    if let Some(key) = &schema.patch_merge_key {
        out.insert("x-kubernetes-patch-merge-key".to_owned(), Value::from(&**key));
    }
}

fn extensions(schema: &Schema, out: &mut Map) {
    let mut put = |name: &str, value: Value| out.insert(format!("x-kubernetes-{name}"), value);
    match &schema.list_type {
        ListType::Set => {
            put("list-type", Value::from("set"));
        }
        ListType::Map(keys) => {
            put("list-type", Value::from("map"));
            put("list-map-keys", json!(keys));
        }
        ListType::Atomic if schema.native && schema.kind == Kind::Array => {
            put("list-type", Value::from("atomic"));
        }
        ListType::Atomic => {}
    }
    if schema.map_type == MapType::Atomic && schema.kind != Kind::Any {
        put("map-type", Value::from("atomic"));
    }
    if schema.preserve_unknown && !schema.native {
        put("preserve-unknown-fields", Value::Bool(true));
    }
    if schema.embedded {
        put("embedded-resource", Value::Bool(true));
    }
}

/// Description of the field `apiVersion` of every kind: that of all Kubernetes APIs, which clients
/// compare.
pub const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
/// The same for `kind`.
pub const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

/// Description of a field of every kind's type.
fn type_meta(name: &str) -> Option<&'static str> {
    match name {
        "apiVersion" => Some(API_VERSION),
        "kind" => Some(KIND),
        _ => None,
    }
}

/// Description of the `metadata` of a kind.
fn metadata(name: &str, property: &Property) -> Option<&'static str> {
    // The definition describes itself; the field's purpose is described here.
    if property.schema.description.is_some() && property.schema.name.is_none() {
        return None;
    }
    let is_metadata =
        name == "metadata" && matches!(property.schema.short_name(), "ObjectMeta" | "ListMeta");
    is_metadata.then_some(
        "More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Tables;
    use crate::testing::{core, schema, tables};

    fn v3(definition: &str) -> Map {
        let mut out = Map::new();
        components_v3(&schema(definition), &mut out);
        out
    }

    #[test]
    fn every_kind_describes_its_version_and_name_as_all_apis_do() {
        let out = v3("io.k8s.api.core.v1.ConfigMap");
        let config_map = &out["io.k8s.api.core.v1.ConfigMap"]["properties"];
        assert_eq!(config_map["apiVersion"]["description"], API_VERSION);
        assert_eq!(config_map["kind"]["description"], KIND);
    }

    #[test]
    fn open_nodes_declare_no_fields_in_version_2() {
        use crate::custom::{SchemaContext, from_json_schema};
        let of = |given: Value| {
            let schema = from_json_schema(
                &given,
                &SchemaContext {
                    path: "",
                    name: Some("com.example.v1.Thing".into()),
                    ..SchemaContext::default()
                },
            )
            .expect("structural");
            let mut out = Map::new();
            definitions_v2(&schema, &mut out);
            out.remove("com.example.v1.Thing").expect("itself")
        };
        assert_eq!(
            of(
                json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"spec": {"type": "object"}}})
            ),
            json!({"type": "object"})
        );
        let spec = json!({"type": "object", "required": ["n"], "properties": {
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": {"type": "string"}}},
            "n": {"type": "array", "nullable": true, "items": {"type": "string"}},
        }});
        let rendered = of(json!({"type": "object", "properties": {"spec": spec}}));
        assert_eq!(
            rendered["properties"]["spec"],
            json!({"type": "object", "properties": {"free": {"x-kubernetes-preserve-unknown-fields": true}, "n": {}}})
        );
    }

    #[test]
    fn a_kind_refers_to_its_parts() {
        let all = v3("io.k8s.api.coordination.v1.Lease");
        let lease = &all["io.k8s.api.coordination.v1.Lease"];
        let spec = json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.api.coordination.v1.LeaseSpec"}], "default": {}, "description": lease["properties"]["spec"]["description"]});
        assert_eq!(lease["properties"]["spec"], spec);
        assert_eq!(lease["type"], "object");
        assert!(all.contains_key("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"));
        let spec = &all["io.k8s.api.coordination.v1.LeaseSpec"]["properties"];
        assert_eq!(spec["holderIdentity"]["type"], "string");
        assert_eq!(spec["leaseDurationSeconds"]["format"], "int32");
    }

    #[test]
    fn fields_are_described_in_our_words() {
        let described = Tables::parse("heading\na.b.Thing\tkind\tstring\n\tsize\tstring\n")
            .unwrap()
            .described("*.kind\tA kind.\nThing\tA thing.\nThing.size\tA size.\n");
        let mut out = Map::new();
        components_v3(&described.get("a.b.Thing").unwrap(), &mut out);
        let expected = json!({"a.b.Thing": {"type": "object", "description": "A thing.", "properties": {
            "kind": {"type": "string", "description": "A kind."}, "size": {"type": "string", "description": "A size."}}}});
        assert_eq!(Value::Object(out), expected);
    }

    #[test]
    fn merging_is_published() {
        let all = v3("io.k8s.api.core.v1.ServiceAccount");
        let secrets = &all["io.k8s.api.core.v1.ServiceAccount"]["properties"]["secrets"];
        for (name, value) in [
            ("list-type", json!("map")),
            ("list-map-keys", json!(["name"])),
            ("patch-strategy", json!("merge")),
            ("patch-merge-key", json!("name")),
        ] {
            assert_eq!(secrets[format!("x-kubernetes-{name}")], value);
        }
        assert_eq!(all["io.k8s.api.core.v1.ObjectReference"]["x-kubernetes-map-type"], "atomic");
    }

    #[test]
    fn v2_has_plain_references() {
        let mut out = Map::new();
        definitions_v2(&core("ConfigMap"), &mut out);
        let config = &out["io.k8s.api.core.v1.ConfigMap"];
        assert_eq!(config["properties"]["data"]["type"], "object");
        assert_eq!(
            config["properties"]["metadata"]["$ref"],
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let (mut v2, mut v3) = (Map::new(), Map::new());
        for name in tables().names() {
            components_v3(&schema(name), &mut v3);
            definitions_v2(&schema(name), &mut v2);
        }
        for (all, prefix) in [(v2, "#/definitions/"), (v3, "#/components/schemas/")] {
            let text = Value::Object(all.clone()).to_string();
            for part in text.split("\"$ref\":\"").skip(1) {
                let target = part.split('"').next().unwrap().strip_prefix(prefix).unwrap();
                assert!(all.contains_key(target), "{target}");
            }
        }
    }
}
