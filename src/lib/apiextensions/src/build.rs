//! Builds a resource's [`Definition`] from a CustomResourceDefinition.

use super::fields::{group, plural, text};
use super::hooks::CustomHooks;
use super::names::ResourceNames;
use super::rules::VersionRules;
use super::scale::{self, CustomScale, ScalePaths};
use super::webhook::ConversionWebhook;
use ferrokube_apimachinery::document::{Array, Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_registry::Catalog;
use ferrokube_resource::native::{CREATION_DESCRIPTION, NAME_DESCRIPTION};
use ferrokube_resource::{
    ApiPriority, Column, Columns, Definition, DefinitionVersion, Dialect, FinalizerDomain,
    MetadataRules, Policy, Scope, Subresource, Verbs,
};
use ferrokube_schema::apply::ResetFields;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use ferrokube_schema::{Kind, Schema};
use ferrokube_webhook::WebhookAccess;
use std::sync::Arc;

/// A definition and its computed subresource.
pub(super) struct BuiltDefinition {
    definition: Arc<Definition>,
    scale: Option<CustomScale>,
}

impl BuiltDefinition {
    /// Adds both to the catalog.
    pub(super) fn put(self, catalog: &Catalog) {
        let (group, plural) = (self.definition.group.clone(), self.definition.plural.clone());
        if let Some(scale) = self.scale {
            catalog.put_computed(&group, &plural, "scale", Arc::new(scale));
        }
        catalog.put(self.definition);
    }
}

/// Inputs of all definitions.
#[derive(Clone, Debug)]
pub(super) struct BuildInputs {
    /// Schema of `metadata`, for defaults and descriptions.
    pub(super) metadata: Option<Arc<Schema>>,
    /// Access to conversion webhooks.
    pub(super) access: WebhookAccess,
}

/// Context of a build.
struct DefinitionBuilder<'a> {
    object: &'a Document,
    names: &'a ResourceNames,
    inputs: &'a BuildInputs,
}

/// Builds the definition with these accepted names.
///
/// # Errors
/// A schema is not structural, or no version is stored.
pub(super) fn definition(
    object: &Document,
    names: &ResourceNames,
    inputs: &BuildInputs,
    since: u64,
) -> Result<BuiltDefinition, Vec<FieldError>> {
    let making = DefinitionBuilder { object, names, inputs };
    let listed = object.list(&["spec", "versions"]);
    let versions = listed
        .iter()
        .enumerate()
        .map(|(index, version)| making.version(index, version))
        .collect::<Result<Vec<_>, _>>()?;
    let paths = |version: &Value| {
        (format!("{}/{}", group(object), text(version, "name")), ScalePaths::of(version))
    };
    let paths: Vec<(String, Option<ScalePaths>)> = listed.iter().map(paths).collect();
    let scale = paths
        .iter()
        .any(|(_, paths)| paths.is_some())
        .then(|| CustomScale::new(paths, inputs.metadata.clone()));
    Ok(BuiltDefinition { definition: Arc::new(making.definition(versions, since)?), scale })
}

/// A definition for removing objects, regardless of schemas. Never served.
pub(super) fn for_removal(
    object: &Document,
    inputs: &BuildInputs,
    since: u64,
) -> Option<Arc<Definition>> {
    let names = ResourceNames::requested(object);
    let making = DefinitionBuilder { object, names: &names, inputs };
    let open = Arc::new(open_schema());
    let versions = object
        .list(&["spec", "versions"])
        .iter()
        .map(|version| making.bare(version, Arc::clone(&open)))
        .collect();
    making.definition(versions, since).ok().map(Arc::new)
}

/// Schema of objects that may have any field.
fn open_schema() -> Schema {
    Schema { kind: Kind::Object, preserve_unknown: true, ..Schema::default() }
}

impl DefinitionBuilder<'_> {
    fn definition(
        &self,
        versions: Vec<DefinitionVersion>,
        since: u64,
    ) -> Result<Definition, Vec<FieldError>> {
        let object = self.object;
        let is_stored =
            |version: &Value| version.get("storage").and_then(Value::as_bool).unwrap_or(false);
        let storage_version = object.list(&["spec", "versions"]).iter().position(is_stored);
        let missing = || vec![FieldError::invalid_unshown("spec.versions", "no version is stored")];
        let generation =
            object.get(&["metadata", "generation"]).and_then(Value::as_u64).unwrap_or(1);
        let names = self.names;
        let rules = VersionRules::of(&versions);
        let scope = match object.str(&["spec", "scope"]) {
            Some("Cluster") => Scope::Cluster,
            _ => Scope::Namespaced,
        };
        Ok(Definition {
            group: group(object).to_owned(),
            plural: plural(object).to_owned(),
            singular: names.singular.clone(),
            kind: names.kind.clone(),
            list_kind: names.list_kind.clone(),
            short_names: names.short_names.clone(),
            categories: names.categories.clone(),
            scope,
            verbs: Verbs::ALL,
            storage_version: storage_version.ok_or_else(missing)?,
            versions,
            storage_prefix: Some(format!("{}/{}", group(object), plural(object))),
            dialect: Dialect::Custom,
            policy: Policy {
                metadata_rules: MetadataRules::Changes,
                subresource_metadata_rules: MetadataRules::Changes,
                finalizer_domain: FinalizerDomain::Preferred,
                selects_namespace: scope == Scope::Namespaced,
                unconditional_update: false,
                counts_generation: true,
                ..Policy::DEFAULT
            },
            epoch: u32::try_from(generation).unwrap_or(u32::MAX),
            since,
            guards: Vec::new(),
            hooks: Arc::new(CustomHooks {
                kind: names.kind.clone(),
                terminating: object.is_terminating(),
                rules,
                scales: self.scales(),
                webhook: ConversionWebhook::of(object, &self.inputs.access),
            }),
        })
    }

    fn scales(&self) -> Vec<(String, ScalePaths)> {
        let listed = self.object.list(&["spec", "versions"]).iter();
        listed
            .filter_map(|version| {
                Some((text(version, "name").to_owned(), ScalePaths::of(version)?))
            })
            .collect()
    }

    fn version(&self, index: usize, version: &Value) -> Result<DefinitionVersion, Vec<FieldError>> {
        let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
        let name: Arc<str> = self.openapi_name(text(version, "name")).into();
        let schema = version
            .get("schema")
            .and_then(|schema| schema.get("openAPIV3Schema"))
            .unwrap_or(&Value::Null);
        let schema = if self.preserves_unknown() {
            Schema { name: Some(name), ..open_schema() }
        } else {
            let metadata = self.inputs.metadata.clone();
            from_json_schema(schema, &SchemaContext { path: &path, name: Some(name), metadata })?
        };
        let mut built = self.bare(version, Arc::new(schema));
        self.add_subresources(version, &mut built);
        Ok(built)
    }

    /// Only definitions that others stored do. Their schemas need not be structural, so they are
    /// not enforced: objects that were stored stay readable and writable.
    fn preserves_unknown(&self) -> bool {
        self.object.get(&["spec", "preserveUnknownFields"]) == Some(&Value::Bool(true))
    }

    /// Usual fields of objects without a schema.
    fn undeclared(&self) -> &'static [&'static str] {
        if self.preserves_unknown() { &["metadata", "spec"] } else { &[] }
    }

    /// Without subresources.
    fn bare(&self, version: &Value, schema: Arc<Schema>) -> DefinitionVersion {
        let selectable =
            version.get("selectableFields").and_then(Value::as_array).into_iter().flatten();
        DefinitionVersion {
            name: text(version, "name").to_owned(),
            served: version.get("served").and_then(Value::as_bool).unwrap_or(false),
            deprecation: self.deprecation(version),
            priority: Some(ApiPriority::CUSTOM),
            schema,
            subresources: Vec::new(),
            reset: ResetFields::default(),
            columns: columns(version),
            selectable: selectable
                .map(|field| text(field, "jsonPath").trim_start_matches('.').to_owned())
                .collect(),
            message: None,
        }
    }

    /// `com.example.v1.Thing` for Thing, version v1, in example.com.
    fn openapi_name(&self, version: &str) -> String {
        let mut parts: Vec<&str> = group(self.object).rsplit('.').collect();
        parts.extend([version, &self.names.kind]);
        parts.join(".")
    }

    fn deprecation(&self, version: &Value) -> Option<String> {
        if !version.get("deprecated").and_then(Value::as_bool).unwrap_or(false) {
            return None;
        }
        let given = version.get("deprecationWarning").and_then(Value::as_str).map(str::to_owned);
        Some(given.unwrap_or_else(|| {
            format!(
                "{}/{} {} is deprecated",
                group(self.object),
                text(version, "name"),
                self.names.kind
            )
        }))
    }

    fn add_subresources(&self, version: &Value, built: &mut DefinitionVersion) {
        let has = |name: &str| {
            version
                .get("subresources")
                .and_then(|subresources| subresources.get(name))
                .is_some_and(|given| !given.is_null())
        };
        if has("status") {
            let kind = GroupVersionKind::new(
                group(self.object),
                built.name.as_str(),
                self.names.kind.as_str(),
            );
            let others = built.schema.properties.keys().map(|field| &**field);
            let others = others.chain(self.undeclared().iter().copied());
            let others = others.filter(|field| !matches!(*field, "status" | "kind" | "apiVersion"));
            let reset = ResetFields::of_names(others.map(str::to_owned));
            built.subresources.push(Subresource {
                name: "status",
                kind,
                verbs: Verbs::GET_PATCH_UPDATE,
                reset,
                columns: None,
            });
            built.reset = ResetFields::of_paths(&["status"]);
        }
        if has("scale") {
            let kind = GroupVersionKind::new("autoscaling", "v1", "Scale");
            built.subresources.push(Subresource {
                name: "scale",
                kind,
                verbs: Verbs::GET_PATCH_UPDATE,
                reset: ResetFields::default(),
                columns: Some(scale::columns()),
            });
        }
    }
}

fn columns(version: &Value) -> Columns {
    let name = Column {
        name: "Name".into(),
        kind: "string".into(),
        format: "name".into(),
        description: NAME_DESCRIPTION.into(),
        priority: 0,
        json_path: "".into(),
    };
    let age = json!([{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": CREATION_DESCRIPTION}]);
    let given = version
        .get("additionalPrinterColumns")
        .filter(|columns| columns.as_array().is_some_and(|columns| !columns.is_empty()))
        .unwrap_or(&age);
    let given = given.as_array().map_or(&[][..], Array::as_slice).iter().map(|column| Column {
        name: text(column, "name").into(),
        kind: text(column, "type").into(),
        format: text(column, "format").into(),
        description: match text(column, "description") {
            "" => format!(
                "Custom resource definition column (in JSONPath format): {}",
                text(column, "jsonPath")
            )
            .into(),
            description => description.into(),
        },
        priority: column
            .get("priority")
            .and_then(Value::as_i64)
            .and_then(|priority| i32::try_from(priority).ok())
            .unwrap_or(0),
        json_path: text(column, "jsonPath").into(),
    });
    std::iter::once(name).chain(given).collect()
}
