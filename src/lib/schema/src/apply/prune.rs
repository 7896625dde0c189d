//! Removes fields that a manager applied before and no longer applies, unless others own them.

use super::element;
use super::fields;
use super::set::{self, Fields, assemble, children, insert, is_member, subtract};
use super::skip::Skip;
use crate::schema::Schema;
use ferrokube_apimachinery::document::{Map, Value};

/// Prunes the merged object. `last` is the manager's previous set, `managed` the union of all
/// current sets, including its new one.
///
/// Three steps, as in kube-apiserver: remove all of `last`, add back owned fields, add back fields
/// that were not in `last`.
pub(super) fn prune(schema: &Schema, merged: &mut Map, last: &Fields, managed: &Fields) {
    let nothing = Skip::default();
    let last = with_named(Some(schema), last);
    let all = with_named(Some(schema), &fields::of(schema, merged, &nothing));
    let mut pruned = merged.clone();
    remove_fields(Some(schema), &mut pruned, &last);

    let mut unowned = all.clone();
    subtract(&mut unowned, &with_named(Some(schema), &fields::of(schema, &pruned, &nothing)));
    subtract(&mut unowned, &with_named(Some(schema), managed));
    pruned.clone_from(merged);
    remove_fields(Some(schema), &mut pruned, &unowned);

    let mut gone = all;
    subtract(&mut gone, &with_named(Some(schema), &fields::of(schema, &pruned, &nothing)));
    remove_fields(Some(schema), merged, &set::intersect(&gone, &last));
}

/// Adds the declared fields on the way to the set's members as members.
fn with_named(schema: Option<&Schema>, set: &Fields) -> Fields {
    let mut out = Fields::new();
    for (element, node) in children(set) {
        let (named, child) = match (element.split_at_checked(2), schema) {
            (Some(("f:", name)), Some(schema)) => {
                (schema.properties.contains_key(name), schema.child(name))
            }
            (Some(("k:", _)), Some(schema)) => (false, schema.items.as_deref()),
            _ => (false, None),
        };
        insert(
            &mut out,
            element.clone(),
            assemble(named || is_member(node), with_named(child, node)),
        );
    }
    out
}

/// Removes members and everything below them. A map or list that loses its last item stays, empty.
fn remove_fields(schema: Option<&Schema>, object: &mut Map, set: &Fields) {
    if set.is_empty() {
        return;
    }
    object.retain(|name, value| {
        let Some(node) = set.get(&element::field(name)).map(set::node) else {
            return true;
        };
        if is_member(node) {
            return false;
        }
        remove(schema.and_then(|schema| schema.child(name)), value, node);
        true
    });
}

fn remove(schema: Option<&Schema>, value: &mut Value, set: &Fields) {
    match value {
        Value::Object(map) => remove_fields(schema, map, set),
        Value::Array(items) => {
            let Some(schema) = schema else {
                return;
            };
            items.as_vec().retain_mut(|item| {
                let Some(node) = element::item(schema, item)
                    .ok()
                    .and_then(|element| set.get(&element))
                    .map(set::node)
                else {
                    return true;
                };
                if !is_member(node) {
                    remove(schema.items.as_deref(), item, node);
                }
                !is_member(node)
            });
        }
        _ => {}
    }
}
