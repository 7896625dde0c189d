//! Finds, names and removes unknown fields in one walk.

use super::path::Path;
use crate::schema::{Kind, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::metadata::{is_omitted, replace_nulls};
use ferrokube_apimachinery::{time, work};
use std::sync::LazyLock;

/// Declares no field of anything.
static NOTHING: LazyLock<Schema> = LazyLock::new(Schema::default);
/// Max reported unknown fields; all are removed.
const MAX_NAMED: usize = 100;

/// Removes fields unknown to the schema and returns their paths (`spec.foo`, `items[0].bar`), in
/// order, at most 100; for custom objects those of their metadata first and those of embedded
/// resources' metadata last. The top-level `kind`, `apiVersion` and `metadata` are always known;
/// fields of metadata follow the ObjectMeta schema.
///
/// From custom objects it also removes, unreported, nulls of non-nullable fields without a default,
/// as kube-apiserver's decoder does.
pub fn prune(schema: &Schema, object: &mut Document) -> Vec<String> {
    let mut pruner = Pruner { drops_nulls: true, ..Pruner::default() };
    pruner.fields(schema, object.fields_mut(), &Path::ROOT);
    pruner.all()
}

/// Removes fields unknown to the schema, but no nulls: validation refuses those.
pub fn prune_unknown(schema: &Schema, object: &mut Document) {
    Pruner::default().fields(schema, object.fields_mut(), &Path::ROOT);
}

/// Prunes a value outside of an object, such as a default.
pub(crate) fn prune_value(schema: &Schema, value: &mut Value) -> Vec<String> {
    let (mut pruner, root) = (Pruner::default(), Path::ROOT);
    // Below the root, so that the value's own `kind` and `apiVersion` are no exception.
    pruner.value(schema, value, &root.field("default"));
    pruner.all()
}

/// State of a walk.
#[derive(Default)]
struct Pruner {
    unknown: Vec<String>,
    /// Paths in embedded resources' metadata, with map keys in brackets.
    embedded: Vec<String>,
    is_embedded: bool,
    drops_nulls: bool,
}

impl Pruner {
    fn all(mut self) -> Vec<String> {
        self.unknown.append(&mut self.embedded);
        self.unknown.truncate(MAX_NAMED);
        self.unknown
    }

    /// Prunes metadata: the object's own is reported first, that of embedded resources last.
    fn metadata(&mut self, schema: &Schema, value: &mut Value, path: &Path<'_>, is_embedded: bool) {
        let (since, outer) =
            (self.unknown.len(), std::mem::replace(&mut self.is_embedded, is_embedded));
        self.value(schema, value, path);
        self.is_embedded = outer;
        let found = self.unknown.split_off(since);
        if is_embedded {
            self.embedded.extend(found);
        } else if !found.is_empty() {
            self.unknown.splice(0..0, found);
        }
    }

    fn value(&mut self, schema: &Schema, value: &mut Value, path: &Path<'_>) {
        if path.depth() > MAX_WALK {
            return;
        }
        if let Some(node) = schema.inside.as_deref() {
            return self.unnamed(node, value, path);
        }
        match value {
            Value::Object(map) => self.fields(schema, map, path),
            Value::Array(items) => {
                // Items of an unknown field or of anything else than a list are unknown, too.
                let known = match schema.items.as_deref() {
                    None if schema.native || schema.preserve_unknown => None,
                    None => Some(&*NOTHING),
                    items => items,
                };
                let Some(node) = known.filter(|node| may_prune(node) || is_scalar(node)) else {
                    return;
                };
                for (index, item) in items.iter_mut().enumerate() {
                    self.value(node, item, &path.index(index));
                }
            }
            _ => {}
        }
    }

    /// Values with their own decoder: their unknown fields are removed without a report.
    fn unnamed(&mut self, node: &Schema, value: &mut Value, path: &Path<'_>) {
        let mut pruner = Self { drops_nulls: self.drops_nulls, ..Self::default() };
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| pruner.value(node, item, path)),
            other => pruner.value(node, other, path),
        }
    }

    fn fields(&mut self, schema: &Schema, map: &mut Map, path: &Path<'_>) {
        if let Some(node) = schema.additional.as_deref().filter(|_| schema.properties.is_empty()) {
            if self.drops_nulls && is_needed(node) && map.values().any(Value::is_null) {
                map.retain(|_, child| !child.is_null());
            }
            if may_prune(node) || map.values().any(|child| is_misplaced(node, child)) {
                map.iter_mut().for_each(|(name, child)| self.value(node, child, &path.key(name)));
            }
            return;
        }
        work::count(map.len());
        work::breathe();
        let type_meta = path.depth() == 0 || schema.embedded;
        map.retain(|name, child| {
            if let Some(node) = schema.child(name) {
                if may_prune(node) || is_misplaced(node, child) {
                    match type_meta && name == "metadata" && !schema.native {
                        true => self.metadata(node, child, &path.field(name), schema.embedded),
                        false => self.value(node, child, &path.field(name)),
                    }
                }
                if schema.embedded && name == "metadata" && self.drops_nulls {
                    normalize_metadata(child);
                }
                return !(self.drops_nulls && child.is_null() && is_needed(node));
            }
            let known = schema.preserve_unknown
                || (type_meta && matches!(name.as_str(), "kind" | "apiVersion" | "metadata"));
            if !known && self.unknown.len() < MAX_NAMED {
                let place = path.field(name);
                self.unknown.push(if self.is_embedded {
                    place.bracketed()
                } else {
                    place.to_string()
                });
            }
            known
        });
    }
}

/// Decodes embedded resources' metadata: drops empty values; a null in a map of strings becomes an
/// empty string; times are in seconds, in UTC.
fn normalize_metadata(metadata: &mut Value) {
    let Value::Object(metadata) = metadata else { return };
    for field in ["creationTimestamp", "deletionTimestamp"] {
        if let Some(Value::String(text)) = metadata.get_mut(field)
            && let Some(read) = time::parse_rfc3339(text)
        {
            *text = time::rfc3339_seconds(read).into();
        }
    }
    replace_nulls(metadata);
    metadata.retain(|field, value| !is_omitted(field, value));
}

/// Whether null is invalid for a custom object's field and no default replaces it.
fn is_needed(schema: &Schema) -> bool {
    !schema.native && !schema.nullable && schema.default.is_none()
}

fn is_scalar(schema: &Schema) -> bool {
    !schema.native
        && matches!(
            schema.kind,
            Kind::String | Kind::Integer | Kind::Number | Kind::Boolean | Kind::IntOrString
        )
}

/// Whether a custom object has an object or a list in place of a scalar; its content is unknown
/// then.
fn is_misplaced(schema: &Schema, value: &Value) -> bool {
    matches!(value, Value::Object(_) | Value::Array(_)) && is_scalar(schema)
}

/// Whether to walk the values: scalars, as in most maps and lists, have nothing to prune.
fn may_prune(schema: &Schema) -> bool {
    matches!(schema.kind, Kind::Object | Kind::Array)
        || (schema.kind == Kind::Any
            && (!schema.properties.is_empty() || schema.inside.is_some() || is_hollow(schema)))
}

/// Values of `additionalProperties: true`: any type, but all their fields are unknown.
fn is_hollow(schema: &Schema) -> bool {
    schema.kind == Kind::Any && !schema.native && !schema.preserve_unknown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Property;
    use crate::testing::{core, document};
    use ferrokube_apimachinery::document::json;

    #[test]
    fn unknown_fields_are_named_and_removed() {
        let mut object = document(json!({
            "metadata": {"name": "a", "unknown": 1, "ownerReferences": [{"uid": "u", "bar": 1}]}, "data": {"k": "v"}, "Data": {}, "spec": {"x": 1}
        }));
        let unknown = prune(&core("ConfigMap"), &mut object);
        assert_eq!(
            unknown,
            ["Data", "metadata.ownerReferences[0].bar", "metadata.unknown", "spec"]
        );
        assert_eq!(
            object.into_value(),
            json!({"metadata": {"name": "a", "ownerReferences": [{"uid": "u"}]}, "data": {"k": "v"}})
        );
    }

    #[test]
    fn items_of_what_is_no_list_are_unknown() {
        let status = Schema {
            kind: Kind::Object,
            properties: [("a".into(), Property::new(Schema::default(), false))].into(),
            ..Schema::default()
        };
        let open = Schema { preserve_unknown: true, ..status.clone() };
        let schema = Schema {
            kind: Kind::Object,
            properties: [
                ("status".into(), Property::new(status, false)),
                ("open".into(), Property::new(open, false)),
            ]
            .into(),
            ..Schema::default()
        };
        let mut object = document(
            json!({"status": [{"a": 1}, [{"b": 2}], 3], "open": [{"a": 1}], "kind": "Thing"}),
        );
        assert_eq!(prune(&schema, &mut object), ["status[0].a", "status[1][0].b"]);
    }

    #[test]
    fn free_form_values_are_kept() {
        let mut object = document(
            json!({"metadata": {"managedFields": [{"fieldsV1": {"f:x": {}}}], "labels": {"any": "1"}}}),
        );
        assert!(prune(&core("ConfigMap"), &mut object).is_empty());
        assert_eq!(object.get(&["metadata", "labels", "any"]), Some(&json!("1")));
    }

    #[test]
    fn invalid_nulls_are_dropped_when_an_object_is_decoded() {
        let node = |nullable, default: Option<Value>| {
            Property::new(
                Schema { kind: Kind::String, nullable, default, ..Schema::default() },
                false,
            )
        };
        let inner = Schema {
            kind: Kind::Object,
            properties: [("plain".into(), node(false, None))].into(),
            ..Schema::default()
        };
        let map = |nullable| Schema {
            kind: Kind::Object,
            additional: Some(Schema { kind: Kind::String, nullable, ..Schema::default() }.into()),
            ..Schema::default()
        };
        let list =
            Schema { kind: Kind::Array, items: Some(inner.clone().into()), ..Schema::default() };
        let properties = [
            ("plain".into(), node(false, None)),
            ("nullable".into(), node(true, None)),
            ("defaulted".into(), node(false, Some(json!("d")))),
            ("map".into(), Property::new(map(false), false)),
            ("open".into(), Property::new(map(true), false)),
            ("list".into(), Property::new(list, false)),
        ];
        let schema =
            Schema { kind: Kind::Object, properties: properties.into(), ..Schema::default() };
        let given = json!({"plain": null, "nullable": null, "defaulted": null, "map": {"a": null, "b": "1"}, "open": {"a": null}, "list": [null, {"plain": null}]});
        let mut object = document(given.clone());
        assert!(prune(&schema, &mut object).is_empty(), "a null is no unknown field");
        let expected = json!({"nullable": null, "defaulted": null, "map": {"b": "1"}, "open": {"a": null}, "list": [null, {}]});
        assert_eq!(object.into_value(), expected);
        let mut value = given.clone();
        prune_value(&schema, &mut value);
        assert_eq!(value, given, "a default is validated as it is");
        let mut object = document(given.clone());
        object.set(&["unknown"], 1);
        prune_unknown(&schema, &mut object);
        assert_eq!(object.into_value(), given);
    }

    #[test]
    fn metadata_of_embedded_resources_is_decoded() {
        let metadata = (*core("ConfigMap").properties["metadata"].schema).clone();
        let embedded = Schema {
            kind: Kind::Object,
            embedded: true,
            properties: [("metadata".into(), Property::new(metadata, false))].into(),
            ..Schema::default()
        };
        let schema = Schema {
            kind: Kind::Object,
            properties: [("e".into(), Property::new(embedded, false))].into(),
            ..Schema::default()
        };
        let given = json!({"name": "a", "creationTimestamp": null, "labels": {"k": null}, "annotations": {}, "finalizers": [], "generateName": "", "bogus": 1});
        let mut object =
            document(json!({"e": {"kind": "K", "apiVersion": "v1", "metadata": given}}));
        assert_eq!(prune(&schema, &mut object), ["e.metadata.bogus"]);
        assert_eq!(
            object.get(&["e", "metadata"]),
            Some(&json!({"name": "a", "labels": {"k": ""}}))
        );
    }

    #[test]
    fn metadata_is_reported_first_and_that_of_embedded_resources_last() {
        let metadata =
            || Property::new((*core("ConfigMap").properties["metadata"].schema).clone(), false);
        let embedded = Schema {
            kind: Kind::Object,
            embedded: true,
            properties: [("metadata".into(), metadata())].into(),
            ..Schema::default()
        };
        let map = Schema {
            kind: Kind::Object,
            additional: Some(embedded.clone().into()),
            ..Schema::default()
        };
        let properties = [
            ("a".into(), Property::new(embedded, false)),
            ("m".into(), Property::new(map, false)),
            ("metadata".into(), metadata()),
        ];
        let schema =
            Schema { kind: Kind::Object, properties: properties.into(), ..Schema::default() };
        let below = json!({"metadata": {"bogus": 1}, "x": 1});
        let mut object = document(
            json!({"A": 1, "a": below, "m": {"k": below}, "metadata": {"wrong": 1}, "z": 1}),
        );
        let wanted =
            ["metadata.wrong", "A", "a.x", "m.k.x", "z", "a.metadata.bogus", "m[k].metadata.bogus"];
        assert_eq!(prune(&schema, &mut object), wanted);
    }

    #[test]
    fn fields_of_an_object_in_place_of_a_scalar_are_unknown() {
        let scalar = || Property::new(Schema { kind: Kind::String, ..Schema::default() }, false);
        let map = Schema {
            kind: Kind::Object,
            additional: Some(Schema { kind: Kind::Integer, ..Schema::default() }.into()),
            ..Schema::default()
        };
        let properties = [
            ("a".into(), scalar()),
            ("l".into(), scalar()),
            ("m".into(), Property::new(map, false)),
        ];
        let schema =
            Schema { kind: Kind::Object, properties: properties.into(), ..Schema::default() };
        let mut object =
            document(json!({"a": {"x": 1}, "l": [{"y": 1}, 2], "m": {"k": {"z": 1}, "n": 1}}));
        assert_eq!(prune(&schema, &mut object), ["a.x", "l[0].y", "m.k.z"]);
        assert_eq!(object.into_value(), json!({"a": {}, "l": [{}, 2], "m": {"k": {}, "n": 1}}));
    }

    #[test]
    fn schemas_below_items_lose_their_unknown_fields_silently() {
        let validation = crate::testing::schema(
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceValidation",
        );
        let below = json!({"type": "object", "readOnly": true, "properties": {"a": {"bogus": 1}}});
        let given = json!({"openAPIV3Schema": {"type": "array", "bogus": 1, "items": below, "additionalProperties": below}});
        let mut object = document(given);
        assert_eq!(prune(&validation, &mut object), ["openAPIV3Schema.bogus"]);
        let left = json!({"type": "object", "properties": {"a": {}}});
        assert_eq!(
            object.into_value(),
            json!({"openAPIV3Schema": {"type": "array", "items": left, "additionalProperties": left}})
        );
        for wrong in [
            json!({"items": {"minLength": "x"}}),
            json!({"items": [{"type": 1}]}),
            json!({"additionalProperties": {"properties": []}}),
            json!({"additionalProperties": "x"}),
        ] {
            assert!(
                crate::validate::check_types(&validation, &json!({"openAPIV3Schema": wrong}))
                    .is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn the_report_is_bounded() {
        let junk: Map = (0..1000).map(|number| (format!("junk{number}"), json!(1))).collect();
        let mut object = document(Value::Object(junk));
        assert_eq!(prune(&core("ConfigMap"), &mut object).len(), MAX_NAMED);
        assert!(object.fields().is_empty());
    }

    #[test]
    fn times_of_embedded_metadata_are_in_seconds_in_utc() {
        let mut metadata = json!({"creationTimestamp": "2024-01-02T03:04:05.5+01:00", "deletionTimestamp": "x", "name": ""});
        normalize_metadata(&mut metadata);
        let expected =
            json!({"creationTimestamp": "2024-01-02T02:04:05Z", "deletionTimestamp": "x"});
        assert_eq!(metadata, expected);
    }
}
