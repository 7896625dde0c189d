//! Merges an applied object onto the live one.

use super::element;
use super::skip::Skip;
use crate::schema::{Kind, ListType, MAX_WALK, MapType, Schema};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::work::{self, CountedKey};
use std::collections::{HashMap, HashSet, VecDeque};

/// Merges the applied fields into the live ones. Unowned fields are merged, too, unless they are
/// null; the trace annotations never are. A null name leaves the object without one.
pub(super) fn merge(schema: &Schema, live: &mut Map, applied: &Map, skip: &Skip<'_>) {
    maps(Some(schema), live, applied, skip, 0);
}

fn maps(schema: Option<&Schema>, live: &mut Map, applied: &Map, skip: &Skip<'_>, depth: usize) {
    for (name, value) in applied {
        let below = skip.below(name);
        let is_name = name == "name" && skip.is_metadata();
        let server_owned = skip.has(name)
            && (value.is_null() && !is_name || name.starts_with("trace.kubernetes.io/"));
        if server_owned || value.as_object().is_some_and(|map| below.hides(map.keys())) {
            continue;
        }
        match live.get_mut(name) {
            Some(own) => {
                values(schema.and_then(|schema| schema.child(name)), own, value, &below, depth + 1)
            }
            None => {
                let mut fresh = value.clone();
                if let Some(map) = fresh.as_object_mut() {
                    map.retain(|name, _| {
                        !below.has(name) || !name.starts_with("trace.kubernetes.io/")
                    });
                }
                live.insert(name.clone(), fresh);
            }
        }
    }
}

fn values(
    schema: Option<&Schema>,
    live: &mut Value,
    applied: &Value,
    skip: &Skip<'_>,
    depth: usize,
) {
    let typed = schema.filter(|schema| schema.is_typed());
    let granular =
        typed.is_none_or(|schema| schema.map_type == MapType::Granular) && depth <= MAX_WALK;
    match (&mut *live, applied, typed) {
        (Value::Object(own), Value::Object(map), _) if granular && !own.is_empty() => {
            maps(schema, own, map, skip, depth)
        }
        // Null leaves a granular value as it is.
        (Value::Object(own), Value::Null, _)
            if granular
                && typed.is_none_or(|schema| schema.kind == Kind::Object)
                && !own.is_empty() => {}
        (Value::Array(own), Value::Null, Some(schema))
            if schema.list_type != ListType::Atomic && !own.is_empty() => {}
        (Value::Array(own), Value::Array(items), Some(schema))
            if schema.list_type != ListType::Atomic =>
        {
            *own = lists(schema, std::mem::take(own).into(), items, depth).into();
        }
        _ => live.clone_from(applied),
    }
}

/// Merges a set or keyed list: each item once, in the order of the applied list for items that both
/// have, and of the live list for the others.
fn lists(schema: &Schema, live: Vec<Value>, applied: &[Value], depth: usize) -> Vec<Value> {
    work::count(live.len() + applied.len());
    let name = |value: &Value| element::item(schema, value).unwrap_or_default();
    let theirs: Vec<(String, &Value)> = applied.iter().map(|value| (name(value), value)).collect();
    let named: HashMap<CountedKey<&str>, &str> =
        theirs.iter().map(|(name, _)| (CountedKey(name.as_str()), name.as_str())).collect();
    let mut ours: VecDeque<(String, Value)> =
        live.into_iter().map(|value| (name(&value), value)).collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    // Live values that an applied item merges with; duplicates merge with nothing.
    let mut base: HashMap<&str, Value> = HashMap::new();
    for (name, value) in &mut ours {
        if let Some(name) = named.get(&CountedKey(name.as_str())).copied() {
            let count = counts.entry(name).or_default();
            *count += 1;
            if *count == 1 {
                // Moved: an item on both sides is emitted only once, merged.
                base.insert(name, std::mem::take(value));
            } else {
                base.remove(name);
            }
        }
    }
    let mut shared: VecDeque<&str> = theirs
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| counts.contains_key(name))
        .collect();
    let mut next = shared.pop_front();
    let mut out = Vec::with_capacity(ours.len() + theirs.len());
    let mut taken: HashSet<CountedKey<&str>> = HashSet::new();
    let mut take = |name: &str, value: &Value| match base.remove(name) {
        Some(mut own) => {
            values(schema.items.as_deref(), &mut own, value, &Skip::default(), depth + 1);
            own
        }
        None => value.clone(),
    };
    let mut place = 0;
    while !ours.is_empty() || place < theirs.len() {
        if let (Some((own, _)), Some((name, value))) = (ours.front(), theirs.get(place)) {
            if own == name {
                out.push(take(name, value));
                taken.insert(CountedKey(name));
                ours.pop_front();
                place += 1;
                next = shared.pop_front();
                continue;
            }
            if named.contains_key(&CountedKey(own.as_str())) && next.is_some_and(|next| next != own)
            {
                ours.pop_front();
                continue;
            }
        }
        if let Some((own, _)) = ours.front() {
            if !named.contains_key(&CountedKey(own.as_str())) {
                out.extend(ours.pop_front().map(|(_, value)| value));
                continue;
            }
            if taken.contains(&CountedKey(own.as_str())) {
                ours.pop_front();
            }
        }
        if let Some((name, value)) = theirs.get(place) {
            out.push(take(name, value));
            taken.insert(CountedKey(name));
            place += 1;
            if next == Some(name) {
                next = shared.pop_front();
            }
        }
    }
    out
}
