//! LimitRange: default and allowed resource amounts in a namespace.

use crate::cells::list_at;
use crate::checks::{FieldErrors, text};
use crate::hooks::KindCode;
use crate::paths::FieldPath;
use crate::resource_names;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_resource::Change;

#[derive(Debug)]
pub(crate) struct LimitRange;

impl KindCode for LimitRange {
    /// For containers, the limit defaults to the maximum, the request to the limit or the minimum.
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

/// Two amounts of a resource of which one must not exceed the other.
struct Order {
    /// The field with the lower amount.
    low: &'static str,
    high: &'static str,
    /// The field of the error.
    place: &'static str,
    /// The field whose amount is shown in the error.
    shown: &'static str,
    /// `low` in the message.
    low_name: &'static str,
    high_name: &'static str,
}

impl Order {
    /// An order whose errors are at the lower field, with the fields' own names in the message.
    const fn of(low: &'static str, high: &'static str) -> Self {
        Self { low, high, place: low, shown: low, low_name: low, high_name: high }
    }
}

const ORDERS: [Order; 6] = [
    Order::of("min", "max"),
    Order {
        place: "defaultRequest",
        shown: "defaultRequest",
        high_name: "default request",
        ..Order::of("min", "defaultRequest")
    },
    Order { low_name: "default request", ..Order::of("defaultRequest", "max") },
    Order {
        low_name: "default request",
        high_name: "default limit",
        ..Order::of("defaultRequest", "default")
    },
    Order { place: "default", ..Order::of("min", "default") },
    Order { shown: "max", ..Order::of("default", "max") },
];

/// Checks the order of each resource's bounds.
fn bounds(item: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const ALL: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let kind = text(item, "type");
    // Those of pods have no defaults: other errors say so.
    let fields = || ALL.iter().filter(|field| kind != "Pod" || !field.starts_with("default"));
    for field in fields() {
        let own = path.field(field);
        let map = item.get(*field).and_then(Value::as_object);
        for (name, _) in map.into_iter().flatten() {
            match kind {
                "Pod" | "Container" => {
                    resource_names::container_resource_name(name, own.key(name), errors);
                }
                _ => _ = resource_names::resource_name(name, own.key(name), errors),
            }
        }
    }
    let mut names: Vec<&str> = fields()
        .filter_map(|field| item.get(*field)?.as_object())
        .flat_map(|map| map.keys().map(|key| key.as_str()))
        .collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        if errors.is_full() {
            return;
        }
        of_resource(item, name, path, errors);
    }
    if kind == "PersistentVolumeClaim"
        && amount(item, "min", "storage").is_none()
        && amount(item, "max", "storage").is_none()
    {
        errors.required(
            path.field("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
}

fn of_resource(item: &Value, name: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let is_of_pods = text(item, "type") == "Pod";
    let given = |field: &str| {
        amount(item, field, name).filter(|_| !is_of_pods || !field.starts_with("default"))
    };
    for order in &ORDERS {
        let (Some(low), Some(high)) = (given(order.low), given(order.high)) else { continue };
        if is_above(&low, &high) {
            let shown = if order.shown == order.low { &low } else { &high };
            let why = format!(
                "{} value {} is greater than {} value {}",
                order.low_name,
                low.canonical(),
                order.high_name,
                high.canonical()
            );
            let field = path.field(order.place);
            errors.invalid(field.key(name), shown.canonical().as_str(), &why);
        }
    }
    ratio(item, name, path, errors);
    if let (false, Some(limit), Some(request)) =
        (resource_names::may_overcommit(name), given("default"), given("defaultRequest"))
        && !limit.sub(&request).is_zero()
    {
        let (limit, request) = (limit.canonical(), request.canonical());
        let why =
            format!("default value {limit} must equal to defaultRequest value {request} in {name}");
        errors.invalid(path.field("defaultRequest").key(name), request.as_str(), &why);
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
    #[test]
    fn the_bound_that_is_broken_is_shown() {
        let item = |kind: &str, resource: &str, amounts: Value| {
            let mut item = json!({ "type": kind });
            for (field, amount) in amounts.as_object().unwrap() {
                let map = json!({ resource: amount.clone() });
                item.as_object_mut().unwrap().insert(field.clone(), map);
            }
            let mut errors = FieldErrors::default();
            bounds(&item, FieldPath::Root, &mut errors);
            let mut shown: Vec<String> = errors
                .into_vec()
                .iter()
                .map(|error| format!("{}: {}", error.field, error.message))
                .collect();
            shown.sort_unstable();
            shown
        };
        assert_eq!(
            item("Container", "cpu", json!({"max": "-1", "default": "1"})),
            ["default[cpu]: Invalid value: \"-1\": default value 1 is greater than max value -1"]
        );
        assert_eq!(
            item("Container", "cpu", json!({"min": "2", "default": "1"})),
            ["default[cpu]: Invalid value: \"2\": min value 2 is greater than default value 1"]
        );
        // Those of pods have no defaults to compare with.
        assert!(item("Pod", "cpu", json!({"max": "-1", "defaultRequest": "1"})).is_empty());
        assert_eq!(
            item("Container", "hugepages-2Mi", json!({"default": "2", "defaultRequest": "1"})),
            [
                "defaultRequest[hugepages-2Mi]: Invalid value: \"1\": default value 2 must equal to defaultRequest value 1 in hugepages-2Mi"
            ]
        );
    }
}
