//! LimitRange: defaults and bounds of a namespace's objects.

use crate::cells::list_at;
use crate::checks::{FieldErrors, text};
use crate::hooks::KindCode;
use crate::kinds::podspec::resources;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_resource::Change;

/// See the file.
#[derive(Debug)]
pub(crate) struct LimitRange;

impl KindCode for LimitRange {
    /// Of containers: the limit defaults to the maximum, the request to the limit or the minimum.
    fn default(&self, _version: &str, object: &mut Document) {
        let Some(spec) = object.get_mut(&["spec"]).and_then(Value::as_object_mut) else { return };
        super::podspec::each(spec, "limits", |item| {
            if item.get("type").and_then(Value::as_str) != Some("Container") {
                return;
            }
            fill(item, "max", "default");
            fill(item, "default", "defaultRequest");
            fill(item, "min", "defaultRequest");
        });
    }

    fn validate(&self, _change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        let Some(spec) = object.get(&["spec"]) else { return };
        let (root, limits) = (FieldPath::Root, "spec.limits");
        let limits = root.field(limits);
        for (at, item) in list_at(spec, &["limits"]).iter().enumerate() {
            if errors.is_full() {
                return;
            }
            bounds(item, limits.index(at), errors);
        }
    }

    fn names_itself(&self) -> bool {
        true
    }
}

fn fill(item: &mut Map, from: &str, to: &str) {
    let Some(given) = item.get(from).and_then(Value::as_object).cloned() else { return };
    let slot = item.entry(to).or_insert_with(|| Value::Object(Map::new()));
    let Some(slot) = slot.as_object_mut() else { return };
    for (name, amount) in &given {
        if !slot.contains_key(name) {
            slot.insert(name.clone(), amount.clone());
        }
    }
}

fn amount(item: &Value, field: &str, resource: &str) -> Option<Quantity> {
    Quantity::from_value(item.get(field)?.get(resource)?).ok()
}

fn is_above(one: &Quantity, other: &Quantity) -> bool {
    let difference = one.sub(other);
    !difference.is_negative() && !difference.is_zero()
}

/// The bounds of each resource must be in order.
fn bounds(item: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    // The lower field, the higher one, where the error is, and its words.
    const ORDER: [(&str, &str, &str, &str); 6] = [
        ("min", "max", "min", "min value {} is greater than max value {}"),
        (
            "min",
            "defaultRequest",
            "defaultRequest",
            "min value {} is greater than default request value {}",
        ),
        (
            "defaultRequest",
            "max",
            "defaultRequest",
            "default request value {} is greater than max value {}",
        ),
        (
            "defaultRequest",
            "default",
            "defaultRequest",
            "default request value {} is greater than default limit value {}",
        ),
        ("min", "default", "default", "min value {} is greater than default value {}"),
        ("default", "max", "default", "default value {} is greater than max value {}"),
    ];
    let mut names: Vec<&str> = ["min", "max", "default", "defaultRequest", "maxLimitRequestRatio"]
        .into_iter()
        .filter_map(|field| item.get(field)?.as_object())
        .flat_map(|map| map.keys().map(|key| key.as_str()))
        .collect();
    names.sort_unstable();
    names.dedup();
    let kind = text(item, "type");
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let own = path.field(field);
        let map = item.get(field).and_then(Value::as_object);
        for (name, _) in map.into_iter().flatten() {
            match kind {
                "Pod" | "Container" => {
                    resources::container_resource_name(name, own.key(name), errors);
                }
                _ => _ = resources::resource_name(name, own.key(name), errors),
            }
        }
    }
    for name in names {
        for (low, high, place, why) in ORDER {
            let (Some(one), Some(other)) = (amount(item, low, name), amount(item, high, name))
            else {
                continue;
            };
            if is_above(&one, &other) {
                let why =
                    why.replacen("{}", &one.canonical(), 1).replacen("{}", &other.canonical(), 1);
                let field = path.field(place);
                errors.invalid(field.key(name), one.canonical().as_str(), &why);
            }
        }
        ratio(item, name, path, errors);
    }
    if text(item, "type") == "PersistentVolumeClaim"
        && amount(item, "min", "storage").is_none()
        && amount(item, "max", "storage").is_none()
    {
        errors.required(
            path.field("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
}

fn ratio(item: &Value, name: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some(ratio) = amount(item, "maxLimitRequestRatio", name) else { return };
    let field = path.field("maxLimitRequestRatio");
    let value = ratio.approximate();
    if value < 1.0 {
        let why = format!("ratio {} is less than 1", ratio.canonical());
        errors.invalid(field.key(name), ratio.canonical().as_str(), &why);
    }
    let (min, max) = (amount(item, "min", name), amount(item, "max", name));
    if let (Some(min), Some(max)) = (min, max)
        && min.approximate() > 0.0
        && value > max.approximate() / min.approximate()
    {
        let limit = max.approximate() / min.approximate();
        let why = format!("ratio {} is greater than max/min = {limit:.6}", ratio.canonical());
        errors.invalid(field.key(name), ratio.canonical().as_str(), &why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn bounds_out_of_order_are_reported_where_kube_apiserver_does() {
        let item = |amounts: Value| {
            let mut item = json!({"type": "Container"});
            let fields = item.as_object_mut().unwrap();
            for (field, amount) in amounts.as_object().unwrap() {
                fields.insert(field.clone(), json!({ "cpu": amount.clone() }));
            }
            let mut errors = FieldErrors::default();
            bounds(&item, FieldPath::Root, &mut errors);
            let mut fields: Vec<String> =
                errors.into_vec().into_iter().map(|error| error.field).collect();
            fields.sort_unstable();
            fields
        };
        let both = item(json!({"min": 2, "max": 1, "default": 1, "defaultRequest": 1}));
        assert_eq!(both, ["defaultRequest[cpu]", "default[cpu]", "min[cpu]"]);
        assert_eq!(item(json!({"default": 2, "max": 1})), ["default[cpu]"]);
        assert_eq!(item(json!({"defaultRequest": 2, "default": 1})), ["defaultRequest[cpu]"]);
        assert!(item(json!({"min": 1, "defaultRequest": 1, "default": 2, "max": 2})).is_empty());
    }
}
