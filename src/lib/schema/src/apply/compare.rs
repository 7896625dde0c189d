//! The difference between two objects, as field sets.
//!
//! A field that the typed API always writes counts as its zero value when absent, so that it does
//! not matter whether an object was completed already, and a created object is compared with the
//! empty object of its kind.

use super::element;
use super::set::{Fields, assemble, insert, unite};
use super::skip::Skip;
use crate::schema::{Kind, ListType, MAX_WALK, MapType, Schema};
use ferrokube_apimachinery::document::{Array, Map, Value};
use ferrokube_apimachinery::work;
use std::collections::HashMap;

/// The difference between two objects.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// Added or modified.
    pub(super) written: Fields,
    /// Deleted.
    pub(super) removed: Fields,
    /// A changed list has an item without a unique key.
    pub(super) is_nameless: bool,
}

/// The difference below one node; `None` if there is none.
#[derive(Default)]
struct NodeDifference {
    written: Option<Fields>,
    removed: Option<Fields>,
    is_nameless: bool,
}

impl NodeDifference {
    fn of(written: Option<Fields>, removed: Option<Fields>) -> Self {
        Self { written, removed, is_nameless: false }
    }
}

/// Compares two objects.
pub(super) fn compare(schema: &Schema, old: &Map, new: &Map, skip: &Skip<'_>) -> Difference {
    let mut out = Difference::default();
    maps::<false>(Some(schema), Some(old), Some(new), skip, 0, &mut out);
    out
}

/// Compares an object with what an apply makes of it. A value that is owned as a whole differs if
/// the applied one lacks a field that is always written.
pub(super) fn compare_applied(
    schema: &Schema,
    live: &Map,
    merged: &Map,
    skip: &Skip<'_>,
) -> Difference {
    let mut out = Difference::default();
    maps::<true>(Some(schema), Some(live), Some(merged), skip, 0, &mut out);
    out
}

/// Comparison of two values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Leaf,
    Map,
    List,
}

fn comparison(schema: Option<&Schema>, value: Option<&Value>) -> Comparison {
    let Some(schema) = schema.filter(|schema| schema.is_typed()) else {
        return if matches!(value, Some(Value::Object(_))) {
            Comparison::Map
        } else {
            Comparison::Leaf
        };
    };
    match (schema.kind, value) {
        (Kind::Object | Kind::Any, Some(Value::Object(_) | Value::Null) | None)
            if schema.map_type == MapType::Granular =>
        {
            Comparison::Map
        }
        (Kind::Array, Some(Value::Array(_) | Value::Null) | None)
            if schema.list_type != ListType::Atomic =>
        {
            Comparison::List
        }
        _ => Comparison::Leaf,
    }
}

fn values<const EXACT: bool>(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
    skip: &Skip<'_>,
    depth: usize,
) -> NodeDifference {
    if (old.is_none() && new.is_none()) || depth > MAX_WALK {
        return NodeDifference::default();
    }
    let known = |value: Option<&Value>| value.is_some_and(|value| !value.is_null());
    match (comparison(schema, old), comparison(schema, new)) {
        (Comparison::Leaf, Comparison::Leaf) => leaf::<EXACT>(schema, old, new),
        (Comparison::List, Comparison::List) => match schema {
            Some(schema) => lists::<EXACT>(schema, old, new, depth),
            None => leaf::<EXACT>(schema, old, new),
        },
        (left, right) if left == right || !known(old) || !known(new) => {
            branch::<EXACT>(schema, old, new, skip, depth)
        }
        // A free-form value changed its type: the field is modified, and entries below a map are
        // added or removed.
        (left, _) => {
            let mut change = branch::<EXACT>(schema, old, new, skip, depth);
            change.written = assemble(true, change.written.unwrap_or_default());
            if left == Comparison::Leaf {
                change.removed = None;
            }
            change
        }
    }
}

fn leaf<const EXACT: bool>(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
) -> NodeDifference {
    match (old, new) {
        (None, None) => NodeDifference::default(),
        (None, Some(_)) => NodeDifference::of(Some(Fields::new()), None),
        (Some(_), None) => NodeDifference::of(None, Some(Fields::new())),
        (Some(old), Some(new)) if same::<EXACT>(schema, old, new) => NodeDifference::default(),
        (Some(_), Some(_)) => NodeDifference::of(Some(Fields::new()), None),
    }
}

/// Whether two values are equal for the typed API.
fn same<const EXACT: bool>(schema: Option<&Schema>, old: &Value, new: &Value) -> bool {
    if old == new {
        return true;
    }
    let Some(schema) = schema.filter(|schema| schema.native) else {
        return same_numerically(old, new);
    };
    match (old, new) {
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(key)));
            keys.into_iter().all(|key| {
                let absent = Some(schema).filter(|_| !EXACT);
                match (field_of(absent, left, key), field_of(absent, right, key)) {
                    (Some(left), Some(right)) => same::<EXACT>(schema.child(key), left, right),
                    (left, right) => left.is_none() && right.is_none(),
                }
            })
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| same::<EXACT>(schema.items.as_deref(), left, right))
        }
        _ => false,
    }
}

/// Whether two values of a custom object are equal with numbers compared by value: `1.0` equals
/// `1`.
fn same_numerically(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Number(old), Value::Number(new)) if old.is_f64() || new.is_f64() => {
            old.as_f64() == new.as_f64()
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(name, left)| {
                    right.get(name).is_some_and(|right| same_numerically(left, right))
                })
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same_numerically(left, right))
        }
        (old, new) => old == new,
    }
}

/// A field's value, or its stand-in when absent.
fn field_of<'a>(schema: Option<&Schema>, map: &'a Map, name: &str) -> Option<&'a Value> {
    map.get(name).or_else(|| schema?.properties.get(name)?.absent())
}

/// Down to this depth (a field of metadata or of spec) equal values are skipped as a whole, since
/// most of an object is unchanged. Below, comparing twice at each level would cost more than it
/// saves.
const WHOLE_VALUE_DEPTH: usize = 1;

/// Compares maps that may be absent or null on a side.
fn branch<const EXACT: bool>(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
    skip: &Skip<'_>,
    depth: usize,
) -> NodeDifference {
    let shown = |value: Option<&Value>| {
        value.and_then(Value::as_object).is_none_or(|map| !skip.hides(map.keys()))
    };
    let (old, new) = (old.filter(|old| shown(Some(old))), new.filter(|new| shown(Some(new))));
    let (left, right) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
    let has_always = schema.is_some_and(|schema| !schema.always().is_empty());
    let empty = |map: Option<&Map>| map.is_none_or(|map| map.is_empty() && !has_always);
    if empty(left) && empty(right) {
        return leaf::<EXACT>(schema, old, new);
    }
    let mut below = Difference::default();
    maps::<EXACT>(schema, left, right, skip, depth, &mut below);
    // Metadata itself always exists.
    let member = |absent: bool| absent && !skip.is_metadata();
    NodeDifference {
        written: assemble(member(old.is_none()), below.written),
        removed: assemble(member(new.is_none()), below.removed),
        is_nameless: below.is_nameless,
    }
}

fn maps<const EXACT: bool>(
    schema: Option<&Schema>,
    old: Option<&Map>,
    new: Option<&Map>,
    skip: &Skip<'_>,
    depth: usize,
    out: &mut Difference,
) {
    work::count(old.map_or(0, Map::len) + new.map_or(0, Map::len));
    work::breathe();
    let mut field = |name: &str| {
        if skip.has(name) {
            return;
        }
        let left = old.and_then(|map| field_of(schema, map, name));
        let right = new.and_then(|map| field_of(schema, map, name));
        if depth <= WHOLE_VALUE_DEPTH && left == right {
            return;
        }
        let node = schema.and_then(|schema| schema.child(name));
        let change = values::<EXACT>(node, left, right, &skip.below(name), depth + 1);
        out.is_nameless |= change.is_nameless;
        if change.written.is_some() || change.removed.is_some() {
            let element = element::field(name);
            insert(&mut out.removed, element.clone(), change.removed);
            insert(&mut out.written, element, change.written);
        }
    };
    if let Some(old) = old {
        old.keys().for_each(|name| field(name));
    }
    if let Some(new) = new {
        new.keys()
            .filter(|name| old.is_none_or(|old| !old.contains_key(name)))
            .for_each(|name| field(name));
    }
    // Fields that are always written, but absent from a map that only one side has.
    if old.is_some() != new.is_some()
        && let Some(schema) = schema
    {
        let given = old.or(new);
        let absent = |name: &str| given.is_some_and(|map| !map.contains_key(name));
        schema.always().iter().filter(|name| absent(name)).for_each(|name| field(name));
    }
}

/// Items by path element; an element with several items has duplicates.
type Items<'a> = HashMap<String, Vec<&'a Value>>;

fn index<'a>(
    schema: &Schema,
    list: Option<&'a Value>,
    order: &mut Vec<String>,
) -> Result<Items<'a>, String> {
    let mut items = Items::new();
    for value in list.and_then(Value::as_array).map_or(&[][..], Array::as_slice) {
        let element = element::item(schema, value)?;
        match items.get_mut(&element) {
            Some(all) => all.push(value),
            None => {
                order.push(element.clone());
                items.insert(element, vec![value]);
            }
        }
    }
    Ok(items)
}

/// Compares sets or keyed lists; one that has items without a unique key is compared as one value.
fn lists<const EXACT: bool>(
    schema: &Schema,
    old: Option<&Value>,
    new: Option<&Value>,
    depth: usize,
) -> NodeDifference {
    let empty =
        |list: Option<&Value>| list.and_then(Value::as_array).is_none_or(|list| list.is_empty());
    if (empty(old) && empty(new)) || old == new {
        return leaf::<EXACT>(Some(schema), old, new);
    }
    let mut order = Vec::new();
    let (Ok(left), Ok(right)) = (index(schema, old, &mut order), index(schema, new, &mut order))
    else {
        return NodeDifference { is_nameless: true, ..leaf::<EXACT>(Some(schema), old, new) };
    };
    let (mut written, mut removed, mut is_nameless) = (Fields::new(), Fields::new(), false);
    for element in order {
        let change = items::<EXACT>(
            schema,
            left.get(&element).map_or(&[][..], Vec::as_slice),
            right.get(&element).map_or(&[][..], Vec::as_slice),
            depth,
        );
        is_nameless |= change.is_nameless;
        insert(&mut removed, element.clone(), change.removed);
        insert(&mut written, element, change.written);
    }
    NodeDifference {
        written: assemble(old.is_none(), written),
        removed: assemble(new.is_none(), removed),
        is_nameless,
    }
}

/// Compares items with the same key. Duplicates, which an update may store but an apply may not,
/// are compared as one value.
fn items<const EXACT: bool>(
    schema: &Schema,
    old: &[&Value],
    new: &[&Value],
    depth: usize,
) -> NodeDifference {
    let node = schema.items.as_deref();
    let one = |old: Option<&Value>, new: Option<&Value>| {
        values::<EXACT>(node, old, new, &Skip::default(), depth + 1)
    };
    match (old, new) {
        ([] | [_], [] | [_]) => one(old.first().copied(), new.first().copied()),
        ([_, _, ..], [_, _, ..]) => {
            let equal = old.len() == new.len()
                && old.iter().zip(new).all(|(old, new)| same::<EXACT>(node, old, new));
            NodeDifference::of((!equal).then(Fields::new), None)
        }
        ([_, _, ..], _) => {
            let mut change = one(None, new.first().copied());
            let mut removed = change.removed.take().unwrap_or_default();
            removed = assemble(true, removed).unwrap_or_default();
            NodeDifference { removed: Some(removed), ..change }
        }
        (_, _) => {
            let change = one(old.first().copied(), None);
            let mut written = Fields::new();
            unite(&mut written, &change.written.unwrap_or_default());
            NodeDifference {
                written: assemble(true, written),
                removed: change.removed,
                is_nameless: change.is_nameless,
            }
        }
    }
}
