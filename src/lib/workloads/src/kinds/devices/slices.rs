//! ResourceSlice: the devices of a pool, the nodes that can access them, and how they are shared.

use super::capacities;
use crate::checks::{FieldErrors, given, is_true, items, text};
use crate::conditions::is_given;
use crate::paths::FieldPath;
use crate::rules::devices::device_name;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, FormattedValue};
use ferrokube_apimachinery::name;
use std::collections::HashSet;

const MAX_DEVICES: usize = 128;
/// Max devices of a slice in which any has taints or counters.
const MAX_ADVANCED_DEVICES: usize = 64;
/// Attributes and capacities of a device.
const MAX_ENTRIES: usize = 32;
/// Values of an attribute, as Go's type names and orders them.
const VALUES: [(&str, &str); 8] = [
    ("int", "IntValue"),
    ("bool", "BoolValue"),
    ("string", "StringValue"),
    ("version", "VersionValue"),
    ("ints", "IntValues"),
    ("bools", "BoolValues"),
    ("strings", "StringValues"),
    ("versions", "VersionValues"),
];

/// Validates a slice's spec beyond the rows.
pub(super) fn check(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if given(spec, "nodeName").is_some() && text(spec, "nodeName").is_empty() {
        let why = "must be either unset or set to a non-empty string";
        errors.invalid(path.field("nodeName"), "", why);
    }
    let chosen = chosen(spec, &["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"]);
    if chosen.len() > 1 {
        let why = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required, but multiple fields are set";
        errors.invalid(path, listed(&chosen).as_str(), why);
    }
    let list = items(spec, "devices");
    let is_advanced = |device: &Value| {
        ["taints", "consumesCounters"].iter().any(|field| !items(device, field).is_empty())
    };
    let most = if list.iter().any(is_advanced) { MAX_ADVANCED_DEVICES } else { MAX_DEVICES };
    let devices = path.field("devices");
    if list.len() > most {
        return errors.push(|| FieldError::too_many(devices, list.len(), most));
    }
    for (index, device) in list.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        check_device(device, is_true(spec, "perDeviceNodeSelection"), devices.index(index), errors);
    }
}

fn check_device(
    device: &Value,
    selects_nodes: bool,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let (attributes, capacity) = (entries(device, "attributes"), entries(device, "capacity"));
    let count = attributes.map_or(0, Map::len) + capacity.map_or(0, Map::len);
    if count > MAX_ENTRIES {
        let why =
            format!("the total number of attributes and capacities must not exceed {MAX_ENTRIES}");
        errors.invalid(path, Value::from(count), &why);
    }
    let below = path.field("attributes");
    for (name, attribute) in attributes.into_iter().flatten() {
        if errors.is_full() {
            return;
        }
        device_name(name, false, below, errors);
        check_attribute(attribute, below.key(name), errors);
    }
    let below = path.field("capacity");
    for (name, capacity) in capacity.into_iter().flatten() {
        if errors.is_full() {
            return;
        }
        device_name(name, false, below, errors);
        let policy_path = below.key(name);
        let policy_path = policy_path.field("requestPolicy");
        match given(capacity, "requestPolicy") {
            Some(policy) if is_true(device, "allowMultipleAllocations") => {
                capacities::check_policy(policy, capacity, policy_path, errors);
            }
            Some(_) => errors.forbidden(policy_path, "allowMultipleAllocations must be true"),
            None => {}
        }
    }
    if selects_nodes {
        check_nodes(device, path, errors);
    } else if ["nodeName", "nodeSelector", "allNodes"].iter().any(|it| given(device, it).is_some())
    {
        let why = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        errors.invalid(path, Value::Null, why);
    }
    check_conditions(device, path, errors);
}

/// Checks that an attribute has exactly one value; rows check that it has any.
fn check_attribute(attribute: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let set = VALUES.iter().filter(|(field, _)| given(attribute, field).is_some());
    if set.count() > 1 {
        let shown = |field: &str| given(attribute, field).unwrap_or(&Value::Null).clone();
        let shown = VALUES.iter().map(|(field, name)| (*name, FormattedValue::new(shown(field))));
        errors.invalid(path, FormattedValue::object(shown), "exactly one value must be specified");
    }
}

/// Validates per-device node selection.
fn check_nodes(device: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const WHY: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    match given(device, "nodeName").and_then(Value::as_str) {
        Some("") => errors.invalid(path.field("nodeName"), "", "must not be empty"),
        Some(node) => {
            errors.all_invalid(path.field("nodeName"), node, name::dns1123_subdomain(node));
        }
        None => {}
    }
    if device.get("allNodes").and_then(Value::as_bool) == Some(false) {
        let why = "must be either unset or set to true";
        errors.invalid(path.field("allNodes"), Value::from(false), why);
    }
    let chosen = chosen(device, &["nodeName", "nodeSelector", "allNodes"]);
    match chosen.len() {
        0 => errors.required(path, WHY),
        1 => {}
        _ => errors.invalid(path, listed(&chosen).as_str(), WHY),
    }
}

/// Validates binding conditions, which need failure conditions and vice versa.
pub(super) fn check_conditions(device: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let (good, bad) = ("bindingConditions", "bindingFailureConditions");
    let below = path.field(bad);
    let known: HashSet<&str> = items(device, good).iter().filter_map(Value::as_str).collect();
    for (index, condition) in items(device, bad).iter().enumerate() {
        if errors.is_full() {
            return;
        }
        if condition.as_str().is_some_and(|condition| known.contains(condition)) {
            let why = "bindingFailureConditions must not overlap with bindingConditions";
            errors.invalid(below.index(index), condition, why);
        }
    }
    for (missing, other) in [(good, bad), (bad, good)] {
        if items(device, missing).is_empty() && !items(device, other).is_empty() {
            let why = format!("{missing} are required to use {other}");
            errors.invalid(path.field(missing), Value::Null, &why);
        }
    }
}

fn entries<'a>(value: &'a Value, field: &str) -> Option<&'a Map> {
    value.get(field).and_then(Value::as_object)
}

/// The fields that are set, where `false` counts as unset.
fn chosen<'a>(value: &Value, fields: &[&'a str]) -> Vec<&'a str> {
    let is_chosen = |field: &&&str| {
        given(value, field).is_some_and(|value| is_given(value) && value.as_bool() != Some(false))
    };
    fields.iter().filter(is_chosen).copied().collect()
}

/// Formats a list of fields as kube-apiserver does.
fn listed(fields: &[&str]) -> String {
    let quoted: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
    format!("{{{}}}", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    fn errors(spec: Value) -> Vec<String> {
        let (mut errors, root) = (FieldErrors::default(), FieldPath::Root);
        check(&spec, root.field("spec"), &mut errors);
        let shown = |error: FieldError| format!("{}: {}", error.field, error.message);
        errors.into_vec().into_iter().map(shown).collect()
    }

    fn of_device(device: Value) -> Vec<String> {
        errors(json!({"nodeName": "n", "devices": [device]}))
    }

    #[test]
    fn a_slice_is_for_one_choice_of_nodes() {
        let found =
            errors(json!({"nodeName": "", "allNodes": true, "perDeviceNodeSelection": true}));
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("spec.nodeName: Invalid value: \"\": must be either unset"));
        let both = "spec: Invalid value: \"{`allNodes`, `perDeviceNodeSelection`}\": exactly one";
        assert!(found[1].starts_with(both), "{found:?}");
        let devices = json!([{"nodeName": "", "allNodes": false}, {"nodeName": "a", "allNodes": true}, {"allNodes": true}]);
        let found = errors(json!({"perDeviceNodeSelection": true, "devices": devices}));
        let fields: Vec<&str> =
            found.iter().filter_map(|it| Some(it.split_once(": ")?.0)).collect();
        let first = "spec.devices[0]";
        assert_eq!(
            fields,
            [&format!("{first}.nodeName"), &format!("{first}.allNodes"), first, "spec.devices[1]"]
        );
        assert_eq!(of_device(json!({"nodeName": "x"})).len(), 1);
    }

    #[test]
    fn devices_are_bounded() {
        let devices = |count: usize, device: Value| {
            errors(json!({"nodeName": "n", "devices": vec![device; count]}))
        };
        assert!(devices(128, json!({"name": "d"})).is_empty());
        assert_eq!(
            devices(129, json!({"name": "d"})),
            ["spec.devices: Too many: 129: must have at most 128 items"]
        );
        let tainted = json!({"taints": [{"key": "k", "effect": "None"}]});
        assert_eq!(
            devices(65, tainted),
            ["spec.devices: Too many: 65: must have at most 64 items"]
        );
        let mut attributes = Map::new();
        for index in 0..33 {
            attributes.insert(format!("a{index}"), json!({"int": 1}));
        }
        assert_eq!(
            of_device(json!({"attributes": attributes})),
            [
                "spec.devices[0]: Invalid value: 33: the total number of attributes and capacities must not exceed 32"
            ]
        );
    }

    #[test]
    fn attributes_have_one_value_and_a_name() {
        let found =
            of_device(json!({"attributes": {"a": {"int": 1, "bool": true}, "/b": {"int": 1}}}));
        let twice = r#"spec.devices[0].attributes[a]: Invalid value: {"IntValue":1,"BoolValue":true,"StringValue":null,"VersionValue":null,"IntValues":null,"BoolValues":null,"StringValues":null,"VersionValues":null}: exactly one value must be specified"#;
        let unnamed =
            r#"spec.devices[0].attributes: Invalid value: "": the domain must not be empty"#;
        assert!(found.len() == 2 && found.iter().any(|it| it == twice), "{found:?}");
        assert!(found.iter().any(|it| it == unnamed), "{found:?}");
    }

    #[test]
    fn binding_conditions_come_with_failure_conditions() {
        assert_eq!(
            of_device(json!({"bindingConditions": ["a"]})),
            [
                "spec.devices[0].bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions"
            ]
        );
        let both = json!({"bindingConditions": ["a"], "bindingFailureConditions": ["b", "a"]});
        assert_eq!(
            of_device(both),
            [
                "spec.devices[0].bindingFailureConditions[1]: Invalid value: \"a\": bindingFailureConditions must not overlap with bindingConditions"
            ]
        );
    }

    #[test]
    fn only_shared_devices_have_request_policies() {
        let capacity = json!({"a": {"value": "1", "requestPolicy": {"validRange": {"min": "1"}}}});
        assert_eq!(
            of_device(json!({"capacity": capacity.clone()})),
            [
                "spec.devices[0].capacity[a].requestPolicy: Forbidden: allowMultipleAllocations must be true"
            ]
        );
        let shared = json!({"capacity": capacity, "allowMultipleAllocations": true});
        assert_eq!(
            of_device(shared),
            [
                "spec.devices[0].capacity[a].requestPolicy.default: Required value: required when validRange is defined"
            ]
        );
    }
}
