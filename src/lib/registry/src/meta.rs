//! Metadata of every object: sets system fields, keeps what clients must not change, drops empty
//! fields.

mod owners;
mod rules;

pub(crate) use owners::{
    DedupPhase, check_count as check_owner_count, complete as complete_owners,
    dedup as dedup_owners,
};
pub(crate) use rules::{check_change, check_object, check_prefix, warnings};

use crate::context::Target;
use crate::random;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::metadata::{is_omitted, replace_nulls};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::time::{parse_readable, rfc3339_seconds};
use ferrokube_resource::Scope;
use std::time::SystemTime;

/// In Go, no time.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

/// Metadata as a map. A missing or mistyped one is replaced.
pub(crate) fn metadata_mut(object: &mut Document) -> &mut Map {
    let slot = object.fields_mut().entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made an object just above")
}

/// Drops fields that kube-apiserver's encoder omits: nulls, empty strings, maps and lists,
/// generation 0, selfLink. Empty managedFields are kept: they request a reset.
pub(crate) fn normalize(object: &mut Document) {
    let metadata = metadata_mut(object);
    replace_nulls(metadata);
    metadata.retain(|field, value| match field.as_str() {
        "selfLink" => false,
        "managedFields" => !value.is_null(),
        field => !is_omitted(field, value),
    });
}

pub(crate) fn drop_empty_managed_fields(object: &mut Document) {
    if object
        .get(&["metadata", "managedFields"])
        .is_some_and(|value| value.as_array().is_none_or(|list| list.is_empty()))
    {
        metadata_mut(object).remove("managedFields");
    }
}

/// Sets the request's namespace; a different one is an error. In cluster scope it is dropped
/// silently, as in kube-apiserver.
pub(crate) fn ensure_namespace(target: &Target, object: &mut Document) -> Result<(), Failure> {
    let expected =
        target.namespace.as_deref().filter(|_| target.served.definition.scope == Scope::Namespaced);
    let Some(expected) = expected else {
        metadata_mut(object).remove("namespace");
        return Ok(());
    };
    match object.namespace() {
        "" => _ = metadata_mut(object).insert("namespace", Value::from(expected)),
        given if given == expected => {}
        _ => {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    Ok(())
}

/// 400: the object has no name.
pub(crate) fn nameless(target: &Target) -> Failure {
    let expected = target.name.as_deref().unwrap_or_default();
    Failure::bad_request(format!(
        "the name of the object ({expected} based on URL) was undeterminable: name must be provided"
    ))
}

/// 400 if the object's name is not the path's.
pub(crate) fn check_name(target: &Target, object: &Document) -> Result<(), Failure> {
    let expected = target.name.as_deref().unwrap_or_default();
    match object.name() {
        "" => Err(nameless(target)),
        name if name == expected => Ok(()),
        name => Err(Failure::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({expected})"
        ))),
    }
}

/// Sets uid and creation time of a new object.
pub(crate) fn fill_new(object: &mut Document, now: SystemTime) {
    let metadata = metadata_mut(object);
    metadata.insert("uid", Value::from(random::uuid()));
    metadata.insert("creationTimestamp", Value::from(rfc3339_seconds(now)));
}

/// Drops deletion fields of a POST. A PUT or apply that creates may set them, as in kube-apiserver.
pub(crate) fn drop_deletion(object: &mut Document) {
    let metadata = metadata_mut(object);
    metadata.remove("deletionTimestamp");
    metadata.remove("deletionGracePeriodSeconds");
}

/// Drops system fields of a wrong type, and the zero time, from an applied custom object, as
/// kube-apiserver does, which reads them without types.
pub(crate) fn drop_unreadable(object: &mut Document) {
    let Some(metadata) = object.get_mut(&["metadata"]) else { return };
    json::round_trip_floats(metadata);
    let Value::Object(metadata) = metadata else { return };
    for field in ["generation", "deletionGracePeriodSeconds"] {
        if metadata.get(field).is_some_and(|value| !value.is_i64()) {
            metadata.remove(field);
        }
    }
    let deleted =
        metadata.get("deletionTimestamp").and_then(Value::as_str).and_then(parse_readable);
    match deleted.map(rfc3339_seconds).filter(|at| at != ZERO_TIME) {
        Some(at) => _ = metadata.insert("deletionTimestamp", Value::from(at)),
        None => _ = metadata.remove("deletionTimestamp"),
    }
}

/// Restores the fields that an update must not change: generation and creation time; uid and
/// deletion fields if missing.
pub(crate) fn keep_system_fields(old: &Document, object: &mut Document) {
    let stored =
        |field: &str| old.get(&["metadata", field]).filter(|value| !value.is_null()).cloned();
    let metadata = metadata_mut(object);
    for field in ["generation", "creationTimestamp"] {
        match stored(field) {
            Some(value) => _ = metadata.insert(field, value),
            None => _ = metadata.remove(field),
        }
    }
    if let Some(deleted) = stored("deletionTimestamp") {
        metadata.insert("deletionTimestamp", deleted);
    }
    for field in ["uid", "deletionGracePeriodSeconds"] {
        if !metadata.contains_key(field)
            && let Some(value) = stored(field)
        {
            metadata.insert(field, value);
        }
    }
}

/// Marks an object as terminating from `at`, with a grace period or (namespaces) without one.
pub(crate) fn mark_deleted(object: &mut Document, at: SystemTime, grace_seconds: Option<i64>) {
    let metadata = metadata_mut(object);
    metadata.insert("deletionTimestamp", Value::from(rfc3339_seconds(at)));
    if let Some(seconds) = grace_seconds {
        metadata.insert("deletionGracePeriodSeconds", Value::from(seconds));
    }
}

/// Increments the generation, if the object has one.
pub(crate) fn bump_generation(object: &mut Document) {
    if let Some(generation) = generation(object).filter(|generation| *generation > 0) {
        metadata_mut(object).insert("generation", Value::from(generation.saturating_add(1)));
    }
}

/// `metadata.generation`.
pub(crate) fn generation(object: &Document) -> Option<i64> {
    object.get(&["metadata", "generation"]).and_then(Value::as_i64)
}

/// `metadata.deletionGracePeriodSeconds`.
pub(crate) fn grace_seconds(object: &Document) -> Option<i64> {
    object.get(&["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64)
}

/// `metadata.finalizers`.
pub(crate) fn finalizers(object: &Document) -> impl Iterator<Item = &str> {
    object.list(&["metadata", "finalizers"]).iter().filter_map(Value::as_str)
}
