//! Lists: merged by key or as sets, then ordered.

use super::{
    ELEMENT_ORDER, FieldSlot, MergePosition, PATCH, bad, fresh, merge_map, strategy,
    unknown_directive,
};
use crate::schema::Schema;
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::go::{dump, type_of};
use ferrokube_apimachinery::patch::PatchError;
use ferrokube_apimachinery::work::CountedKey;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// The type of a list's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    Maps,
    Scalars,
}

/// Both lists must have elements of one type, which must not be lists.
fn elements(original: &[Value], patch: &[Value]) -> Result<Elements, PatchError> {
    let mut all = original.iter().chain(patch);
    let first = all.next().ok_or_else(|| bad("no elements in any of the given slices"))?;
    if first.is_array() {
        return Err(PatchError::DoesNotApply("lists of lists are not supported".to_owned()));
    }
    if first.is_null() || !all.all(|value| type_of(value) == type_of(first)) {
        let lists = [original, patch].map(|list| dump(&Value::from(list.to_vec())));
        return Err(bad(format!("list element types are not identical: [{}]", lists.join(" "))));
    }
    Ok(if first.is_object() { Elements::Maps } else { Elements::Scalars })
}

/// An element's identity: its merge key's value, or the scalar itself.
fn identity<'a>(value: &'a Value, merge_key: &str) -> Result<Cow<'a, str>, PatchError> {
    let key = match value {
        Value::Object(map) => map.get(merge_key).ok_or_else(|| {
            bad(format!("map: {} does not contain declared merge key: {merge_key}", dump(value)))
        })?,
        scalar => scalar,
    };
    Ok(match key {
        Value::String(text) => Cow::Borrowed(text),
        // No string begins with this prefix.
        other => Cow::Owned(format!("\u{0}{other}")),
    })
}

fn identities(values: &[Value], merge_key: &str) -> Result<Vec<String>, PatchError> {
    values.iter().map(|value| identity(value, merge_key).map(Cow::into_owned)).collect()
}

fn merge_key(node: Option<&Schema>) -> &str {
    node.and_then(|node| node.patch_merge_key.as_deref()).unwrap_or_default()
}

/// Merges a list with strategy `merge`.
pub(super) fn merge(
    node: Option<&Schema>,
    original: Vec<Value>,
    patch: &[Value],
    at: MergePosition<'_>,
) -> Result<Vec<Value>, PatchError> {
    at.budget.charge(original.len() + patch.len())?;
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let key = merge_key(node);
    if elements(&original, patch)? == Elements::Scalars {
        let server = identities(&original, key)?;
        let order = identities(patch, key)?;
        let mut seen = HashSet::new();
        let mut merged = original;
        merged.extend(patch.iter().cloned());
        let mut kept = Vec::with_capacity(merged.len());
        for value in merged {
            if seen.insert(identity(&value, key)?.into_owned()) {
                kept.push(value);
            }
        }
        return ordered(kept, &order, &server, key);
    }
    if key.is_empty() {
        return Err(bad("cannot merge lists without merge key for struct"));
    }
    let (original, patch) = special(original, patch, key)?;
    // A patch without keys is refused before a list without them.
    let server = identities(&original, key);
    let merged =
        merge_maps(node.and_then(|node| node.items.as_deref()), original, &patch, key, at)?;
    let server = server?;
    let order = patch
        .iter()
        .map(|value| identity(value, key).map(Cow::into_owned))
        .collect::<Result<Vec<_>, _>>()?;
    ordered(merged, &order, &server, key)
}

/// Takes elements with `$patch` out of the patch and executes them on the original.
fn special<'a>(
    mut original: Vec<Value>,
    patch: &'a [Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<&'a Value>), PatchError> {
    let (mut plain, mut deleted, mut replace) =
        (Vec::with_capacity(patch.len()), HashSet::new(), false);
    for item in patch {
        match item.get(PATCH) {
            None => plain.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    deleted.insert(CountedKey(identity(item, key)?));
                }
                Some("replace") => replace = true,
                Some("merge") => {
                    return Err(bad("merging lists cannot yet be specified in the patch"));
                }
                _ => {
                    let map = item.as_object().expect("it holds the directive");
                    return Err(unknown_directive(directive, map));
                }
            },
        }
    }
    if replace {
        return Ok((plain.into_iter().cloned().collect(), Vec::new()));
    }
    if !deleted.is_empty() {
        original.retain(|item| {
            identity(item, key).map_or(true, |identity| !deleted.contains(&CountedKey(identity)))
        });
    }
    Ok((original, plain))
}

fn merge_maps(
    node: Option<&Schema>,
    mut original: Vec<Value>,
    patch: &[&Value],
    key: &str,
    at: MergePosition<'_>,
) -> Result<Vec<Value>, PatchError> {
    let mut places: HashMap<CountedKey<Cow<'_, str>>, usize> =
        HashMap::with_capacity(original.len() + patch.len());
    for (place, item) in original.iter().enumerate() {
        if let Ok(identity) = identity(item, key) {
            places.entry(CountedKey(identity.into_owned().into())).or_insert(place);
        }
    }
    for item in patch {
        let identity = CountedKey(identity(item, key)?);
        match (places.get(&identity).and_then(|place| original.get_mut(*place)), item) {
            (Some(Value::Object(map)), Value::Object(patch)) => merge_map(node, map, patch, at)?,
            _ => {
                places.insert(identity, original.len());
                original.push(Value::clone(item));
            }
        }
    }
    Ok(original)
}

/// Removes members from a list of scalars.
pub(super) fn delete(items: &mut Vec<Value>, members: &[Value]) -> Result<(), PatchError> {
    if items.is_empty() && members.is_empty() {
        return Ok(());
    }
    if elements(items, members)? == Elements::Maps {
        return Err(bad("a list of maps is no list of scalars"));
    }
    let gone = members
        .iter()
        .map(|value| identity(value, "").map(CountedKey))
        .collect::<Result<HashSet<_>, _>>()?;
    items.retain(|item| {
        identity(item, "").map_or(true, |identity| !gone.contains(&CountedKey(identity)))
    });
    Ok(())
}

/// `$setElementOrder/field`: merges the field's patch, if any, and orders the result.
///
/// Lists that do not merge keep the order of the patch; kube-apiserver's handler panics there.
pub(super) fn order_field(
    slot: FieldSlot<'_>,
    original: &mut Map,
    patch: Option<&Value>,
    order: &Value,
) -> Result<(), PatchError> {
    let order = order.as_array().ok_or_else(|| not_a_list(order))?;
    slot.at.budget.charge(
        order.len()
            + original.get(slot.field).and_then(Value::as_array).map_or(0, |list| list.len()),
    )?;
    let node = slot.node()?;
    let key = merge_key(node);
    let patch = match patch {
        None => None,
        Some(Value::Array(items)) => Some(items),
        Some(other) => return Err(not_a_list(other)),
    };
    if strategy(node) != "merge" {
        if let Some(patch) = patch {
            original.insert(slot.field.to_owned(), Value::Array(patch.clone()));
        }
        return Ok(());
    }
    if let Some(patch) = patch {
        check_order(patch, order, key)?;
    }
    let live = original.get(slot.field).and_then(Value::as_array).map(|items| &**items);
    let elements = elements(live.unwrap_or_default(), patch.map_or(&[], |items| &**items));
    let (merged, server) = match (original.remove(slot.field), patch) {
        (Some(Value::Array(items)), None) => {
            let server = identities(&items, key)?;
            (items.into(), server)
        }
        (Some(Value::Array(items)), Some(patch)) => {
            let server = identities(&items, key);
            (merge(node, items.into(), patch, slot.at.below())?, server?)
        }
        (None, Some(patch)) => match fresh(&Value::Array(patch.clone()), slot.at.depth)? {
            Some(Value::Array(items)) => (items.into(), Vec::new()),
            _ => return Ok(()),
        },
        (None, None) => return Ok(()),
        (Some(other), _) => return Err(not_a_list(&other)),
    };
    let merged = if merged.is_empty() {
        if elements? == Elements::Maps {
            identities(order, key)?;
        }
        merged
    } else {
        ordered(merged, &identities(order, key)?, &server, key)?
    };
    original.insert(slot.field.to_owned(), Value::from(merged));
    Ok(())
}

fn not_a_list(value: &Value) -> PatchError {
    unexpected("[]interface {}", value)
}

fn unexpected(expected: &str, value: &Value) -> PatchError {
    let found = if value.is_null() { "%!s(<nil>)" } else { type_of(value) };
    bad(format!("expected a {expected}, but received a {found}"))
}

/// The patch's elements must be in the order of the order list.
fn check_order(patch: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let keyed = |value: &Value| match value {
        other if !key.is_empty() && !other.is_object() => {
            Err(unexpected("map[string]interface {}", other))
        }
        _ => Ok(()),
    };
    patch.iter().try_for_each(keyed)?;
    let mut rest = order.iter();
    for item in patch.iter().filter(|item| item.get(PATCH).is_none()) {
        loop {
            let Some(candidate) = rest.next() else {
                let [items, order] = [patch, order].map(|list| dump(&Value::from(list.to_vec())));
                let prefix = ELEMENT_ORDER.trim_end_matches('/');
                return Err(bad(format!(
                    "The order in patch list:\n{items}\n doesn't match {prefix} list:\n{order}\n"
                )));
            };
            keyed(candidate)?;
            let wanted = identity(item, key)?;
            if identity(candidate, key)? == wanted {
                break;
            }
        }
    }
    Ok(())
}

/// The first place of each identity.
fn places(list: &[String]) -> HashMap<CountedKey<&str>, usize> {
    let mut places = HashMap::with_capacity(list.len());
    for (place, identity) in list.iter().enumerate() {
        places.entry(CountedKey(identity.as_str())).or_insert(place);
    }
    places
}

/// Orders elements: those in `order` by it, the others by `server`, then interleaves both by
/// `server`, with an element that only one side knows as early as the known ones allow.
fn ordered(
    merged: Vec<Value>,
    order: &[String],
    server: &[String],
    key: &str,
) -> Result<Vec<Value>, PatchError> {
    let (order, server) = (places(order), places(server));
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for value in merged {
        let identity = identity(&value, key)?;
        let identity = CountedKey(&*identity);
        let at = server.get(&identity).copied();
        match order.get(&identity) {
            Some(place) => named.push((*place, at, value)),
            None => others.push((at, value)),
        }
    }
    named.sort_by_key(|(place, ..)| *place);
    others.sort_by_key(|(at, _)| at.unwrap_or(usize::MAX));
    let mut out = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let other_first = match (named.peek(), others.peek()) {
            (Some((_, Some(named), _)), Some((Some(other), _))) => other < named,
            (Some(_), _) => false,
            (None, Some(_)) => true,
            (None, None) => break,
        };
        let next = if other_first {
            others.next().map(|(_, value)| value)
        } else {
            named.next().map(|(.., value)| value)
        };
        out.extend(next);
    }
    Ok(out)
}
