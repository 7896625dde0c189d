//! The `scale` subresource of custom resources, at the paths that the definition names.

use super::fields::text;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::go;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{ComputedResource, Target};
use ferrokube_resource::native::{CREATION_DESCRIPTION, NAME_DESCRIPTION};
use ferrokube_resource::{Column, Columns};
use ferrokube_schema::apply::Replicas;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use ferrokube_schema::{Kind, Property, Schema};
use std::sync::Arc;

/// Scale paths of one version.
#[derive(Clone, Debug)]
pub(super) struct ScalePaths {
    wanted: Vec<String>,
    actual: Vec<String>,
    selector: Vec<String>,
}

impl ScalePaths {
    /// `None` without a scale subresource.
    pub(super) fn of(version: &Value) -> Option<Self> {
        let scale = version.get("subresources")?.get("scale").filter(|scale| !scale.is_null())?;
        let path = |field: &str| {
            text(scale, field)
                .split('.')
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        Some(Self {
            wanted: path("specReplicasPath"),
            actual: path("statusReplicasPath"),
            selector: path("labelSelectorPath"),
        })
    }

    /// Validates an object's replicas. A write to `status` only checks status replicas.
    pub(super) fn validate(&self, subresource: &str, object: &Document) -> Vec<FieldError> {
        let wanted =
            if subresource == "status" { None } else { replicas_fault(object, &self.wanted) };
        let selector = path_end(object, &self.selector)
            .filter(|end| !end.value.is_string() || end.steps < self.selector.len())
            .map(|end| misplaced(&self.selector, &end, "string"))
            .map(|why| FieldError::invalid(dotted(&self.selector), "", why));
        wanted.into_iter().chain(replicas_fault(object, &self.actual)).chain(selector).collect()
    }
}

/// The printer columns of a scale.
pub(super) fn columns() -> Columns {
    let column = |name: &str, kind: &str, description: &str, path: &str| Column {
        name: name.into(),
        kind: kind.into(),
        format: if path.is_empty() { "name".into() } else { "".into() },
        description: description.into(),
        priority: 0,
        json_path: path.into(),
    };
    [
        column("Name", "string", NAME_DESCRIPTION, ""),
        column("Desired", "integer", "Number of desired replicas", ".spec.replicas"),
        column("Available", "integer", "Number of actual replicas", ".status.replicas"),
        column("Age", "date", CREATION_DESCRIPTION, ".metadata.creationTimestamp"),
    ]
    .into_iter()
    .collect()
}

/// A path as written in a definition.
fn dotted(path: &[String]) -> String {
    format!(".{}", path.join("."))
}

/// Where a path leads, null included; it stops at a value that is no object.
struct PathEnd<'a> {
    value: &'a Value,
    steps: usize,
}

/// The message for a value that has the wrong type.
fn misplaced(path: &[String], end: &PathEnd<'_>, wanted: &str) -> String {
    let PathEnd { value, steps } = *end;
    let wanted = if steps < path.len() { "map[string]interface{}" } else { wanted };
    let place = dotted(&path[..(steps + 1).min(path.len())]);
    format!(
        "{place} accessor error: {} is of the type {}, expected {wanted}",
        go::dump(value),
        go::type_of(value)
    )
}

fn replicas_fault(object: &Document, path: &[String]) -> Option<FieldError> {
    let end = path_end(object, path)?;
    let field = dotted(path);
    match end.value.as_i64().filter(|_| end.steps == path.len()) {
        None => Some(FieldError::invalid(field, 0_i64, misplaced(path, &end, "int64"))),
        Some(count) if count < 0 => Some(not_negative(field, count)),
        Some(count) if count > i64::from(i32::MAX) => Some(FieldError::invalid(
            field,
            count,
            format!("should be less than or equal to {}", i32::MAX),
        )),
        Some(_) => None,
    }
}

fn not_negative(field: String, count: i64) -> FieldError {
    FieldError::invalid(field, count, "should be a non-negative integer")
}

/// Whether a value at this path is stored.
fn keeps(schema: &Schema, path: &[String]) -> bool {
    match path.split_first() {
        None => true,
        Some(_) if schema.preserve_unknown => true,
        Some((first, rest)) => schema.child(first).is_some_and(|below| keeps(below, rest)),
    }
}

fn path_end<'a>(object: &'a Document, path: &[String]) -> Option<PathEnd<'a>> {
    let (first, rest) = path.split_first()?;
    let mut value = object.get(&[first.as_str()])?;
    for (steps, name) in rest.iter().enumerate() {
        match value {
            Value::Null => return None,
            Value::Object(fields) => value = fields.get(name)?,
            other => return Some(PathEnd { value: other, steps: steps + 1 }),
        }
    }
    Some(PathEnd { value, steps: path.len() })
}

fn lookup<'a>(object: &'a Document, path: &[String]) -> Option<&'a Value> {
    if path.is_empty() {
        return None;
    }
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    object.get(&path).filter(|value| !value.is_null())
}

/// The scale subresource of all versions.
pub(super) struct CustomScale {
    /// By index of the version.
    paths: Vec<Option<ScalePaths>>,
    replicas: Replicas,
    schema: Arc<Schema>,
}

impl CustomScale {
    /// With each version's `apiVersion`.
    pub(super) fn new(
        versions: Vec<(String, Option<ScalePaths>)>,
        metadata: Option<Arc<Schema>>,
    ) -> Self {
        let load = |name: &str, properties: &Value, metadata| {
            let options = SchemaContext {
                path: "",
                name: Some(format!("io.k8s.api.autoscaling.v1.{name}").into()),
                metadata,
            };
            from_json_schema(&json!({"type": "object", "properties": properties}), &options)
                .expect("a literal that is structural")
        };
        let count = json!({"type": "integer", "format": "int32"});
        let parts = [
            ("spec", "ScaleSpec", json!({"replicas": count})),
            ("status", "ScaleStatus", json!({"replicas": count, "selector": {"type": "string"}})),
        ];
        let mut schema = load("Scale", &json!({}), metadata);
        for (field, name, properties) in parts {
            // Not the type and metadata of an object.
            let all = load(name, &properties, None).properties;
            let declared = all.iter().filter(|(field, _)| properties.get(&***field).is_some());
            let part = Schema {
                properties: declared.map(|(field, one)| (Arc::clone(field), one.clone())).collect(),
                name: Some(format!("io.k8s.api.autoscaling.v1.{name}").into()),
                kind: Kind::Object,
                ..Schema::default()
            };
            schema.properties.insert(field.into(), Property::new(part, false));
        }
        let replicas = Replicas::new(versions.iter().map(|(version, paths)| {
            (version.clone(), paths.as_ref().map(|paths| paths.wanted.clone()))
        }));
        Self {
            paths: versions.into_iter().map(|(_, paths)| paths).collect(),
            replicas,
            schema: Arc::new(schema),
        }
    }

    fn paths(&self, target: &Target) -> Result<&ScalePaths, Failure> {
        let value_at = self.paths.get(target.served.version).and_then(Option::as_ref);
        value_at.ok_or_else(|| {
            Failure::not_found(
                &target.served.definition.group_resource(),
                target.name.as_deref().unwrap_or_default(),
            )
        })
    }
}

impl ComputedResource for CustomScale {
    fn schema(&self) -> Option<Arc<Schema>> {
        Some(Arc::clone(&self.schema))
    }

    fn is_projection(&self) -> bool {
        true
    }

    fn replicas(&self) -> Option<&Replicas> {
        Some(&self.replicas)
    }

    fn project(&self, target: &Target, object: &Document) -> Result<Document, Failure> {
        let paths = self.paths(target)?;
        let Some(wanted) = lookup(object, &paths.wanted).and_then(Value::as_i64) else {
            return Err(Failure::internal(format!(
                "the spec replicas field {:?} does not exist",
                dotted(&paths.wanted)
            )));
        };
        Ok(scale_of(paths, object, wanted))
    }

    fn project_written(&self, target: &Target, object: &Document) -> Result<Document, Failure> {
        let paths = self.paths(target)?;
        Ok(scale_of(
            paths,
            object,
            lookup(object, &paths.wanted).and_then(Value::as_i64).unwrap_or(0),
        ))
    }

    fn project_for_update(&self, target: &Target, object: &Document) -> Result<Document, Failure> {
        let paths = self.paths(target)?;
        Ok(scale_of(
            paths,
            object,
            lookup(object, &paths.wanted).and_then(Value::as_i64).unwrap_or(UNSET),
        ))
    }

    fn inject(
        &self,
        target: &Target,
        projection: &Document,
        object: &mut Document,
    ) -> Result<(), Failure> {
        let paths = self.paths(target)?;
        let wanted = projection.get(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
        if wanted == UNSET {
            return Err(Failure::bad_request(format!(
                "the spec replicas field {:?} cannot be empty",
                dotted(&paths.wanted)
            )));
        }
        if wanted < 0 && !keeps(&target.served.version().schema, &paths.wanted) {
            // Pruned fields are not validated.
            let definition = &target.served.definition;
            let error = not_negative(dotted(&paths.wanted), wanted);
            return Err(Failure::invalid(
                &definition.group,
                &definition.kind,
                object.name(),
                &[error],
            ));
        }
        let path: Vec<&str> = paths.wanted.iter().map(String::as_str).collect();
        object.set(&path, wanted);
        Ok(())
    }
}

/// Stands for missing replicas while a write may still set them.
const UNSET: i64 = i32::MIN as i64;

/// The scale of an object with this many desired replicas.
fn scale_of(paths: &ScalePaths, object: &Document, wanted: i64) -> Document {
    let actual = lookup(object, &paths.actual).and_then(Value::as_i64).unwrap_or(0);
    let mut scale_of = Document::from_value(
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {}}),
    )
    .expect("an object literal");
    for field in ["name", "namespace", "uid", "creationTimestamp"] {
        if !object.meta(field).is_empty() {
            scale_of.set(&["metadata", field], object.meta(field));
        }
    }
    scale_of.set(&["spec"], if wanted == 0 { json!({}) } else { json!({"replicas": wanted}) });
    scale_of.set(&["status", "replicas"], actual);
    if let Some(selector) = lookup(object, &paths.selector)
        .and_then(Value::as_str)
        .filter(|selector| !selector.is_empty())
    {
        scale_of.set(&["status", "selector"], selector);
    }
    scale_of
}
