//! Rules for node and pod selectors.

use super::field::{CheckFn, RuledField};
use crate::checks::{FieldErrors, given, items, text};
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::Word;
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::work::CountedKey;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

pub(super) fn function(word: &str) -> Option<CheckFn> {
    Some(match word {
        "nodeterms" => |it, errors| {
            if it.set().is_none() {
                errors.required(it.path, "must have at least one node selector term");
            }
            for (at, one) in it.items().iter().enumerate() {
                term(one, true, it.path.index(at), errors);
            }
        },
        // Values of preferences are not checked.
        "nodeterm" => |it, errors| {
            if let Some(one) = it.given() {
                term(one, false, it.path, errors);
            }
        },
        "labelkeys" => label_keys,
        "topologyterm" => topology,
        "topologies" => topologies,
        _ => return None,
    })
}

fn term(term: &Value, checks_values: bool, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let list = path.field("matchExpressions");
    for (at, requirement) in items(term, "matchExpressions").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        expression(requirement, checks_values, list.index(at), errors);
    }
    let list = path.field("matchFields");
    for (at, requirement) in items(term, "matchFields").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        field(requirement, list.index(at), errors);
    }
}

fn expression(
    requirement: &Value,
    checks_values: bool,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let (values, place) = (items(requirement, "values"), path.field("values"));
    match text(requirement, "operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(place, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => errors
            .forbidden(place, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.required(place, why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => {
            errors.invalid(path.field("operator"), Word(other), "not a valid selector operator");
        }
    }
    let key = text(requirement, "key");
    errors.all_invalid(path.field("key"), key, name::qualified_name(key));
    for (at, value) in values.iter().enumerate().filter(|_| checks_values) {
        if errors.is_full() {
            return;
        }
        let value = value.as_str().unwrap_or_default();
        errors.all_invalid(place.index(at), value, name::label_value(value));
    }
}

fn field(requirement: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let (values, place) = (items(requirement, "values"), path.field("values"));
    match text(requirement, "operator") {
        "In" | "NotIn" if values.len() != 1 => errors.required(
            place,
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        "In" | "NotIn" => {}
        other => {
            errors.invalid(path.field("operator"), Word(other), "not a valid selector operator");
        }
    }
    let key = text(requirement, "key");
    if key != "metadata.name" {
        return errors.invalid(path.field("key"), key, "not a valid field selector key");
    }
    for (at, value) in values.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let value = value.as_str().unwrap_or_default();
        errors.all_invalid(place.index(at), value, name::dns1123_subdomain(value));
    }
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys`.
fn label_keys(it: &RuledField<'_>, errors: &mut FieldErrors) {
    const BOTH: &str = "exists in both matchLabelKeys and labelSelector";
    let object = Value::Object(it.object.clone());
    let selector = given(&object, "labelSelector");
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        let (keys, place) = (items(&object, field), it.path.field(field));
        if !keys.is_empty() && selector.is_none() {
            errors.forbidden(place, "must not be specified when labelSelector is not set");
            continue;
        }
        for (at, key) in keys.iter().filter_map(Value::as_str).enumerate() {
            errors.all_invalid(place.index(at), key, name::qualified_name(key));
        }
    }
    let keys: Vec<&str> =
        items(&object, "matchLabelKeys").iter().filter_map(Value::as_str).collect();
    // The last place of each.
    let places: HashMap<CountedKey<&str>, usize> =
        keys.iter().enumerate().map(|(at, key)| (CountedKey(*key), at)).collect();
    let exact = selector.and_then(|selector| selector.get("matchLabels")?.as_object());
    let mut seen: HashSet<&str> =
        exact.into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    for one in selector.map_or(&[][..], |selector| items(selector, "matchExpressions")) {
        let key = text(one, "key");
        if let Some(at) = places.get(&CountedKey(key)).filter(|_| seen.contains(key)) {
            errors.invalid(it.path.index(*at), key, BOTH);
        }
        seen.insert(key);
    }
    let others = items(&object, "mismatchLabelKeys").iter().filter_map(Value::as_str);
    let others: HashSet<CountedKey<&str>> = others.map(CountedKey).collect();
    for (at, key) in keys.iter().enumerate() {
        if others.contains(&CountedKey(key)) {
            let why = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.invalid(it.path.field("matchLabelKeys").index(at), *key, why);
        }
    }
}

/// Terms must be unique. kube-apiserver compares each also with empty ones, so none may be empty.
fn topologies(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let mut seen: HashMap<CountedKey<BTreeMap<&str, BTreeSet<&str>>>, usize> = HashMap::new();
    for (at, term) in it.items().iter().enumerate() {
        let requirement = |one| {
            let values = items(one, "values").iter().filter_map(Value::as_str);
            (text(one, "key"), values.collect())
        };
        let term: BTreeMap<&str, BTreeSet<&str>> =
            items(term, "matchLabelExpressions").iter().map(requirement).collect();
        let always = if term.is_empty() { it.items().len() } else { 0 };
        let before = seen.entry(CountedKey(term)).or_default();
        for _ in 0..*before + always {
            if errors.is_full() {
                return;
            }
            errors.duplicate(it.path.index(at).field("matchLabelExpressions"), "");
        }
        *before += 1;
    }
}

/// Topologies such as zones in which a volume may be.
fn topology(it: &RuledField<'_>, errors: &mut FieldErrors) {
    let mut keys = HashSet::new();
    for (at, requirement) in it.items().iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = it.path.index(at);
        let (values, place) = (items(requirement, "values"), path.field("values"));
        if values.is_empty() {
            errors.required(place, "");
        }
        let mut seen = HashSet::new();
        for (at, value) in values.iter().filter_map(Value::as_str).enumerate() {
            if !seen.insert(value) {
                errors.duplicate(place.index(at), value);
            }
        }
        let key = text(requirement, "key");
        errors.all_invalid(path.field("key"), key, name::qualified_name(key));
        if !keys.insert(key) {
            errors.duplicate(path.field("key"), key);
        }
    }
}
