//! Unknown fields: found, named and removed in one walk.

use super::path::Path;
use crate::schema::{Kind, MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Value};

/// At most so many unknown fields are named; all are removed.
const MAX_NAMED: usize = 100;

/// Removes fields that the schema does not know and returns their paths (`spec.foo`, `items[0].bar`), in order, at most 100. `kind`, `apiVersion` and `metadata` of the top are always known; metadata's own fields follow the ObjectMeta schema.
pub fn prune(schema: &Schema, object: &mut Document) -> Vec<String> {
    let mut unknown = Vec::new();
    fields(schema, object.fields_mut(), &Path::ROOT, &mut unknown);
    unknown
}

/// Prunes a value that is part of no object, such as a default.
pub(crate) fn prune_value(schema: &Schema, value: &mut Value) -> Vec<String> {
    let (mut unknown, root) = (Vec::new(), Path::ROOT);
    // Below the root: type names of the value itself are no exception.
    self::value(schema, value, &root.field("default"), &mut unknown);
    unknown
}

fn value(schema: &Schema, value: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) {
    if path.depth() > MAX_WALK {
        return;
    }
    match value {
        Value::Object(map) => fields(schema, map, path, unknown),
        Value::Array(items) => {
            // Items of what is not known are not known either.
            let known = schema.items.as_deref().or_else(|| is_hollow(schema).then_some(schema));
            let Some(node) = known.filter(|node| may_prune(node)) else {
                return;
            };
            for (index, item) in items.iter_mut().enumerate() {
                self::value(node, item, &path.index(index), unknown);
            }
        }
        _ => {}
    }
}

/// Scalars have nothing to prune: most maps and lists need no walk.
fn may_prune(schema: &Schema) -> bool {
    matches!(schema.kind, Kind::Object | Kind::Array) || (schema.kind == Kind::Any && (!schema.properties.is_empty() || is_hollow(schema)))
}

/// What `additionalProperties: true` gives its values: they may be anything, and nothing in them is known.
fn is_hollow(schema: &Schema) -> bool {
    schema.kind == Kind::Any && !schema.native && !schema.preserve_unknown
}

fn fields(schema: &Schema, map: &mut Map<String, Value>, path: &Path<'_>, unknown: &mut Vec<String>) {
    if let Some(node) = schema.additional.as_deref().filter(|_| schema.properties.is_empty()) {
        if may_prune(node) {
            map.iter_mut().for_each(|(name, child)| value(node, child, &path.field(name), unknown));
        }
        return;
    }
    let type_meta = path.depth() == 0 || schema.embedded;
    map.retain(|name, child| {
        if let Some(node) = schema.child(name) {
            if may_prune(node) {
                value(node, child, &path.field(name), unknown);
            }
            return true;
        }
        let known = schema.preserve_unknown || (type_meta && matches!(name.as_str(), "kind" | "apiVersion" | "metadata"));
        if !known && unknown.len() < MAX_NAMED {
            unknown.push(path.field(name).to_string());
        }
        known
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{core, document};
    use ferrokube_apimachinery::document::json;

    #[test]
    fn unknown_fields_are_named_and_removed() {
        let mut object = document(json!({
            "metadata": {"name": "a", "unknown": 1, "ownerReferences": [{"uid": "u", "bar": 1}]}, "data": {"k": "v"}, "Data": {}, "spec": {"x": 1}
        }));
        let unknown = prune(&core("ConfigMap"), &mut object);
        assert_eq!(unknown, ["Data", "metadata.ownerReferences[0].bar", "metadata.unknown", "spec"]);
        assert_eq!(object.into_value(), json!({"metadata": {"name": "a", "ownerReferences": [{"uid": "u"}]}, "data": {"k": "v"}}));
    }

    #[test]
    fn free_form_values_are_kept() {
        let mut object = document(json!({"metadata": {"managedFields": [{"fieldsV1": {"f:x": {}}}], "labels": {"any": "1"}}}));
        assert!(prune(&core("ConfigMap"), &mut object).is_empty());
        assert_eq!(object.get(&["metadata", "labels", "any"]), Some(&json!("1")));
    }

    #[test]
    fn the_report_is_bounded() {
        let junk: Map<String, Value> = (0..1000).map(|number| (format!("junk{number}"), json!(1))).collect();
        let mut object = document(Value::Object(junk));
        assert_eq!(prune(&core("ConfigMap"), &mut object).len(), MAX_NAMED);
        assert!(object.fields().is_empty());
    }
}
