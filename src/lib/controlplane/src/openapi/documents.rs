//! Whole documents: OpenAPI v3 of one group version or path, OpenAPI v2 of everything.

use super::names::{META, SpecVersion, key, list_name_of, name_of, reference};
use super::routes::{self, PublishedRoute};
use super::{discovery, parameters, paths};
use crate::version::MINOR;
use ferrokube_apimachinery::document::{Map, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_connect::Connections;
use ferrokube_resource::native::schema_name;
use ferrokube_resource::{Definition, Subresource};
use ferrokube_schema::{Schema, openapi};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Types of the API machinery that are kinds of `v1`.
const KINDS_OF_V1: [&str; 5] =
    ["APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "Status"];

/// Types of the API machinery that are kinds of every group version.
const KINDS_OF_ALL: [&str; 2] = ["DeleteOptions", "WatchEvent"];

/// Definitions by the path of their document: `api/v1`, `apis/<group>/<version>`; documents of
/// other paths have none.
pub(super) type Documents = BTreeMap<String, Vec<Arc<Definition>>>;

/// Schemas by the names of their OpenAPI definitions.
pub type SchemaSource = Arc<dyn Fn(&str) -> Option<Arc<Schema>> + Send + Sync>;

/// Definitions that all documents refer to.
pub(super) struct Machinery {
    pub(super) schemas: SchemaSource,
    /// Groups and versions of the bundled kinds, sorted.
    pub(super) versions: Vec<(String, String)>,
}

impl Machinery {
    /// The group versions that the document of a path names as those of `DeleteOptions`: those of
    /// the bundled kinds; only its own and `v1` in the document of bundled kinds.
    fn versions_of(&self, path: &str, is_bundled: bool) -> Vec<(String, String)> {
        let named = |(group, version): &&(String, String)| {
            !is_bundled || group.is_empty() || key(group, version) == path
        };
        self.versions.iter().filter(named).cloned().collect()
    }
}

/// Whether the definitions include bundled kinds, or are empty. Such documents describe discovery.
fn is_bundled(definitions: &[Arc<Definition>]) -> bool {
    definitions.is_empty() || definitions.iter().any(|one| one.dialect.is_bundled())
}

/// OpenAPI v3 of one group version; `path` is its [`key`].
pub(super) fn v3(path: &str, definitions: &[Arc<Definition>], machinery: &Machinery) -> Value {
    let is_bundled = is_bundled(definitions);
    let mut builder = DocumentBuilder::new(SpecVersion::V3, machinery);
    builder.add(path, definitions);
    let (schemas, routes) = builder.finish(&machinery.versions_of(path, is_bundled));
    let mut components = json!({});
    if !schemas.is_empty() {
        components["schemas"] = Value::Object(schemas);
    }
    if is_bundled {
        components["securitySchemes"] = security();
    }
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths::items(&routes, SpecVersion::V3),
        "components": components,
    })
}

/// OpenAPI v2 of everything.
pub(super) fn v2(documents: &Documents, machinery: &Machinery) -> Value {
    let mut builder = DocumentBuilder::new(SpecVersion::V2, machinery);
    for (path, definitions) in documents {
        builder.add(path, definitions);
    }
    let (schemas, routes) = builder.finish(&machinery.versions);
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths::items(&routes, SpecVersion::V2),
        "definitions": schemas,
        "parameters": parameters::shared(),
        "securityDefinitions": security(),
        "security": [{"BearerToken": []}],
    })
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": format!("v1.{MINOR}.0")})
}

fn security() -> Value {
    let about = "Bearer Token authentication";
    let scheme = json!({
        "type": "apiKey", "description": about, "name": "authorization", "in": "header"
    });
    json!({"BearerToken": scheme})
}

/// Collects the parts of a document.
struct DocumentBuilder<'a> {
    version: SpecVersion,
    machinery: &'a Machinery,
    schemas: Map,
    routes: Vec<PublishedRoute>,
    /// Definitions and fields that features hide.
    hidden: Vec<(String, &'static [&'static str])>,
}

impl<'a> DocumentBuilder<'a> {
    fn new(version: SpecVersion, machinery: &'a Machinery) -> Self {
        Self { version, machinery, schemas: Map::new(), routes: Vec::new(), hidden: Vec::new() }
    }

    fn add(&mut self, path: &str, definitions: &[Arc<Definition>]) {
        // Discovery of custom resources is not published.
        if is_bundled(definitions) {
            self.routes.extend(discovery::route(path));
        }
        for definition in definitions {
            let served = definition.versions.iter().position(|version| {
                version.served && key(&definition.group, &version.name) == path
            });
            if let Some(index) = served {
                self.add_kinds(definition, index);
                self.routes.extend(routes::of_resource(definition, index));
            }
        }
    }

    /// The definitions, those included that the routes refer to, and the routes. `versions`: in
    /// which the kinds of all group versions are named.
    fn finish(mut self, versions: &[(String, String)]) -> (Map, Vec<PublishedRoute>) {
        let routes = std::mem::take(&mut self.routes);
        for route in &routes {
            let body = route.body.as_ref().map(|body| &body.schema);
            for name in body.into_iter().chain(&route.result) {
                self.add_shared(name);
            }
        }
        for kind in KINDS_OF_V1 {
            self.is_a(&format!("{META}.{kind}"), &[GroupVersionKind::new("", "v1", kind)]);
        }
        for kind in KINDS_OF_ALL {
            let kinds: Vec<GroupVersionKind> = versions
                .iter()
                .map(|(group, version)| {
                    GroupVersionKind::new(group.as_str(), version.as_str(), kind)
                })
                .collect();
            self.is_a(&format!("{META}.{kind}"), &kinds);
        }
        // Last, as lists and routes render their references again.
        for (name, path) in &self.hidden {
            remove_field(&mut self.schemas, name, path);
        }
        (self.schemas, routes)
    }

    /// The kind, its list, and the kinds of its subresources.
    fn add_kinds(&mut self, definition: &Definition, index: usize) {
        let version = &definition.versions[index];
        self.render(&version.schema);
        let hidden = definition.guards.iter().filter(|guard| guard.is_hidden());
        let name = name_of(definition, index);
        self.hidden.extend(hidden.map(|guard| (name.clone(), guard.field().path)));
        let kind = definition.gvk(index);
        self.is_a(&name_of(definition, index), std::slice::from_ref(&kind));
        if !definition.list_kind.is_empty() && definition.verbs.has(ferrokube_resource::Verbs::LIST)
        {
            self.add_list(definition, index);
        }
        let is_object = |part: &&Subresource| !Connections::serves(definition, part.name);
        let objects = version.subresources.iter().filter(is_object);
        for subresource in objects.filter(|part| part.kind != kind) {
            let of = &subresource.kind;
            let name = schema_name(&of.group, &of.version, &of.kind);
            self.add_shared(&name);
            self.is_a(&name, std::slice::from_ref(of));
        }
        if !definition.dialect.is_bundled() {
            self.select(definition, index);
        }
    }

    /// Publishes the selectable fields of a custom resource.
    fn select(&mut self, definition: &Definition, index: usize) {
        let fields = &definition.versions[index].selectable;
        let fields: Vec<Value> = fields
            .iter()
            .filter(|path| !path.is_empty())
            .map(|path| json!({"fieldPath": path}))
            .collect();
        for name in [name_of(definition, index), list_name_of(definition, index)] {
            if let (false, Some(Value::Object(schema))) =
                (fields.is_empty(), self.schemas.get_mut(&name))
            {
                let fields = Value::from(fields.clone());
                schema.insert("x-kubernetes-selectable-fields".to_owned(), fields);
            }
        }
    }

    fn add_list(&mut self, definition: &Definition, index: usize) {
        let name = list_name_of(definition, index);
        self.add_shared(&name);
        if !self.schemas.contains_key(&name) {
            self.add_shared(&format!("{META}.ListMeta"));
            let list = list(definition, &name_of(definition, index), self.version);
            self.schemas.insert(name.clone(), list);
        }
        let (group, version) = (&definition.group, &definition.versions[index].name);
        let kind =
            GroupVersionKind::new(group.as_str(), version.as_str(), definition.list_kind.as_str());
        self.is_a(&name, &[kind]);
    }

    /// A definition of the common schemas.
    fn add_shared(&mut self, name: &str) {
        if !self.schemas.contains_key(name)
            && let Some(schema) = (self.machinery.schemas)(name)
        {
            self.render(&schema);
        }
    }

    fn render(&mut self, schema: &Schema) {
        match self.version {
            SpecVersion::V3 => openapi::components_v3(schema, &mut self.schemas),
            SpecVersion::V2 => openapi::definitions_v2(schema, &mut self.schemas),
        }
    }

    /// Names the kinds of a definition, if there is such a definition.
    fn is_a(&mut self, name: &str, kinds: &[GroupVersionKind]) {
        let Some(Value::Object(schema)) = self.schemas.get_mut(name) else { return };
        let kinds: Vec<Value> = kinds
            .iter()
            .map(|kind| json!({"group": kind.group, "kind": kind.kind, "version": kind.version}))
            .collect();
        schema.insert("x-kubernetes-group-version-kind".to_owned(), Value::from(kinds));
    }
}

/// Removes a field of a kind from its own definition or from those that it refers to.
fn remove_field(schemas: &mut Map, kind: &str, path: &[&str]) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut name = kind.to_owned();
    for parent in parents {
        let property = schemas.get(&name).and_then(|schema| schema.get("properties")?.get(*parent));
        let Some(property) = property else { return };
        let reference = property.get("$ref").or_else(|| property["allOf"][0].get("$ref"));
        let Some(reference) = reference.and_then(Value::as_str) else { return };
        name = reference.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let fields = schemas.get_mut(&name).and_then(|schema| schema.get_mut("properties"));
    if let Some(Value::Object(fields)) = fields {
        fields.remove(last);
    }
}

/// The list of a kind that has no schema of its own for it.
fn list(definition: &Definition, item: &str, version: SpecVersion) -> Value {
    let meta = reference(version, &format!("{META}.ListMeta"));
    let meta = if version == SpecVersion::V3 { json!({"allOf": [meta]}) } else { meta };
    json!({
        "type": "object",
        "description": format!("{} is a list of {}", definition.list_kind, definition.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": openapi::API_VERSION},
            "kind": {"type": "string", "description": openapi::KIND},
            "metadata": meta,
            "items": {"type": "array", "items": reference(version, item)},
        },
    })
}
