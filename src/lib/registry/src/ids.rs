//! Trace ids in object annotations: replaces those sent by clients with the stored ones, and sets
//! those of a write for readers that precede encoding.

use crate::meta::metadata_mut;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_trace::annotation::{ALL, Ids};

/// Sets the annotations.
pub fn show_ids(ids: &Ids, object: &mut Document) {
    let annotations =
        metadata_mut(object).entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    let annotations = annotations.as_object_mut().expect("made an object just above");
    ids.with(|pairs| {
        pairs
            .iter()
            .for_each(|(key, text)| _ = annotations.insert((*key).to_owned(), Value::from(*text)))
    });
}

/// Replaces the object's trace annotations, which the server owns, by the stored ones.
pub fn keep_ids(old: Option<&Document>, object: &mut Document) {
    let (stored, given) = (old.and_then(annotations), annotations(object));
    let is_same = |key: &&str| {
        stored.and_then(|stored| stored.get(key)) == given.and_then(|given| given.get(key))
    };
    // Most updates do not touch annotations, and comparing all of them is cheaper than looking up
    // three keys.
    if stored == given || ALL.iter().all(is_same) {
        return;
    }
    for key in ALL {
        match stored.and_then(|stored| stored.get(key)) {
            Some(value) => object.set(&["metadata", "annotations", key], value.clone()),
            None => drop(object.remove(&["metadata", "annotations", key])),
        }
    }
    if annotations(object).is_some_and(Map::is_empty) {
        metadata_mut(object).remove("annotations");
    }
}

fn annotations(object: &Document) -> Option<&Map> {
    object.get(&["metadata", "annotations"])?.as_object()
}
