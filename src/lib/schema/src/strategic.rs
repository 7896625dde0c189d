//! Strategic merge patch with all directives (`$patch`, `$retainKeys`, `$deleteFromPrimitiveList`,
//! `$setElementOrder`).

mod list;
#[cfg(test)]
mod tests;

use crate::schema::{MAX_WALK, Schema};
use ferrokube_apimachinery::document::{Document, Map, Text, Value};
use ferrokube_apimachinery::go::{dump, dump_text};
use ferrokube_apimachinery::patch::PatchError;
use ferrokube_apimachinery::work::{self, CountedKey};
use std::cell::Cell;
use std::collections::HashSet;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch. The result may have fields unknown to the schema (prune it)
/// and, after `$patch: replace`, a root without kind or name, which the caller fills in or refuses.
///
/// # Errors
/// [`PatchError`]; drop `target` then.
pub fn strategic_merge(
    schema: &Schema,
    target: &mut Document,
    patch: &Document,
) -> Result<(), PatchError> {
    merge_map(
        Some(schema),
        target.fields_mut(),
        patch.fields(),
        MergePosition { budget: &MergeBudget::default(), depth: 0 },
    )
}

/// Max elements of original lists and maps that one patch scans. Each merge of a list scans all of
/// it, and a patch may name one list many times (elements with the same merge key). Takes about 300
/// ms, and is three times what the largest object and patch without repeats need.
const MAX_ELEMENTS: usize = 1_000_000;

/// Elements scanned so far.
#[derive(Default)]
struct MergeBudget(Cell<usize>);

impl MergeBudget {
    fn charge(&self, elements: usize) -> Result<(), PatchError> {
        work::count(elements);
        self.0.set(self.0.get() + elements);
        if self.0.get() > MAX_ELEMENTS {
            Err(PatchError::TooLarge("it compares too many list elements".to_owned()))
        } else {
            Ok(())
        }
    }
}

/// Position and budget of a merge.
#[derive(Clone, Copy)]
struct MergePosition<'a> {
    budget: &'a MergeBudget,
    depth: usize,
}

impl MergePosition<'_> {
    fn below(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }
}

fn bad(why: impl Into<String>) -> PatchError {
    PatchError::Directive(why.into())
}

/// Merges maps. Without a schema (free-form values) lists are replaced.
fn merge_map(
    schema: Option<&Schema>,
    original: &mut Map,
    patch: &Map,
    at: MergePosition<'_>,
) -> Result<(), PatchError> {
    if at.depth > MAX_WALK {
        return Err(PatchError::TooLarge("nested too deep".to_owned()));
    }
    if let Some(directive) = patch.get(PATCH) {
        return whole_map(original, patch, directive);
    }
    if let Some(keys) = patch.get(RETAIN_KEYS) {
        at.budget.charge(original.len())?;
        retain_keys(original, patch, keys)?;
    }
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(ELEMENT_ORDER) {
            list::order_field(FieldSlot { schema, field, at }, original, patch.get(field), order)?;
        }
    }
    for (key, value) in patch {
        if key == RETAIN_KEYS || key.starts_with(ELEMENT_ORDER) {
            continue;
        }
        if let Some(field) = key.strip_prefix(DELETE_FROM) {
            delete_from(original, field, value, at)?;
        } else if !(value.is_array() && patch.contains_key(&format!("{ELEMENT_ORDER}{key}"))) {
            // Done above, with its order.
            merge_field(FieldSlot { schema, field: key, at }, original, value)?;
        }
    }
    Ok(())
}

/// `$patch: replace` and `$patch: delete` inside a map.
fn whole_map(original: &mut Map, patch: &Map, directive: &Value) -> Result<(), PatchError> {
    match directive.as_str() {
        Some("replace") => {
            *original = patch
                .iter()
                .filter(|(key, _)| *key != PATCH)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            Ok(())
        }
        Some("delete") => {
            original.clear();
            Ok(())
        }
        _ => Err(unknown_directive(directive, patch)),
    }
}

fn unknown_directive(directive: &Value, map: &Map) -> PatchError {
    let map = dump(&Value::Object(map.clone()));
    bad(format!("unknown patch type: {} in map: {map}", dump_text(directive)))
}

/// Drops fields that the list of keys does not name; it must name everything that the patch sets.
fn retain_keys(original: &mut Map, patch: &Map, keys: &Value) -> Result<(), PatchError> {
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".to_owned());
    let keys = keys.as_array().ok_or_else(malformed)?;
    let keys: HashSet<CountedKey<&str>> =
        keys.iter().filter_map(Value::as_str).map(CountedKey).collect();
    let names = |field: &str| keys.contains(&CountedKey(field));
    let sets = |(key, value): &(&Text, &Value)| {
        !value.is_null()
            && *key != RETAIN_KEYS
            && !key.starts_with(DELETE_FROM)
            && !key.starts_with(ELEMENT_ORDER)
    };
    if !patch.iter().filter(sets).all(|(key, _)| names(key)) {
        return Err(malformed());
    }
    original.retain(|key, _| names(key));
    Ok(())
}

/// A field of the map being merged.
#[derive(Clone, Copy)]
struct FieldSlot<'a> {
    schema: Option<&'a Schema>,
    field: &'a str,
    at: MergePosition<'a>,
}

impl<'a> FieldSlot<'a> {
    /// The field's schema; `None` in free-form values.
    fn node(&self) -> Result<Option<&'a Schema>, PatchError> {
        let Some(schema) = self.schema else {
            return Ok(None);
        };
        let node = schema.child(self.field);
        if node.is_none()
            && schema.is_closed()
            && !matches!(self.field, "kind" | "apiVersion" | "metadata")
        {
            return Err(bad(format!(
                "unable to find api field in struct {} for the json field {:?}",
                schema.short_name(),
                self.field
            )));
        }
        Ok(node)
    }
}

/// The strategy without `retainKeys`, which only concerns clients.
fn strategy(node: Option<&Schema>) -> &str {
    let all = node.and_then(|node| node.patch_strategy.as_deref()).unwrap_or_default();
    all.split(',').find(|strategy| *strategy != "retainKeys").unwrap_or_default()
}

fn merge_field(slot: FieldSlot<'_>, original: &mut Map, patch: &Value) -> Result<(), PatchError> {
    if patch.is_null() {
        original.remove(slot.field);
        return Ok(());
    }
    match (original.get_mut(slot.field), patch) {
        (Some(Value::Object(map)), Value::Object(patch)) => {
            let node = slot.node()?;
            if strategy(node) == "replace" {
                *map = patch.clone();
                return Ok(());
            }
            merge_map(node, map, patch, slot.at.below())
        }
        (Some(Value::Array(items)), Value::Array(patch)) => {
            let node = slot.node()?;
            if strategy(node) == "merge" {
                let merged =
                    list::merge(node, std::mem::take(items).into(), patch, slot.at.below())?;
                *items = merged.into();
            } else {
                items.clone_from(patch);
            }
            Ok(())
        }
        (Some(value), Value::String(_) | Value::Number(_) | Value::Bool(_)) => {
            *value = patch.clone();
            Ok(())
        }
        _ => {
            match fresh(patch, slot.at.depth)? {
                Some(value) => original.insert(slot.field.to_owned(), value),
                None => original.remove(slot.field),
            };
            Ok(())
        }
    }
}

/// A patch value where the original has none of its type: without nulls in maps, and without maps
/// that contain a `$patch` of any kind.
fn fresh(patch: &Value, depth: usize) -> Result<Option<Value>, PatchError> {
    if depth > MAX_WALK {
        return Err(PatchError::TooLarge("nested too deep".to_owned()));
    }
    match patch {
        Value::Object(map) if map.get(PATCH).is_some_and(|directive| !directive.is_null()) => {
            Ok(None)
        }
        Value::Object(map) => {
            let mut out = Map::new();
            for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
                if let Some(value) = fresh(value, depth + 1)? {
                    out.insert(key.clone(), value);
                }
            }
            Ok(Some(Value::Object(out)))
        }
        Value::Array(items) => {
            let mut out = Vec::with_capacity(items.len());
            for item in items {
                out.extend(fresh(item, depth + 1)?);
            }
            Ok(Some(Value::from(out)))
        }
        scalar => Ok(Some(scalar.clone())),
    }
}

/// `$deleteFromPrimitiveList/field`; no effect without such a list.
fn delete_from(
    original: &mut Map,
    field: &str,
    members: &Value,
    at: MergePosition<'_>,
) -> Result<(), PatchError> {
    if members.is_null() {
        original.remove(field);
        return Ok(());
    }
    let (Some(Value::Array(items)), Value::Array(members)) = (original.get_mut(field), members)
    else {
        return Ok(());
    };
    at.budget.charge(items.len() + members.len())?;
    list::delete(items.as_vec(), members)
}
