//! Server-side apply: field sets, managedFields of every operation, conflicts, ownership.
//!
//! A write goes through [`track_update`] or [`apply`] before mutating admission: fields added by
//! webhooks have no owner. Objects of different versions are compared as they are; an entry of
//! another version is assumed to use the same field names.

mod adopt;
mod compare;
mod configuration;
mod conform;
pub(crate) mod element;
mod fields;
mod managers;
mod merge;
mod prune;
mod scale;
mod set;
mod skip;
#[cfg(test)]
mod tests;

use crate::schema::Schema;
use compare::{Difference, compare, compare_applied};
pub use configuration::merge_configuration;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::work;
use managers::ManagerEntry;
pub use managers::{Manager, ManagerOperation};
pub use scale::Replicas;
use set::{Fields, intersects, is_subset, subtract, unite};
pub use skip::ResetFields;
use skip::{Skip, Skipped};

/// Max conflicts that are listed, and max bytes of their paths and managers; all are counted.
const MAX_CONFLICTS: usize = 1000;
const MAX_CONFLICT_BYTES: usize = 1024 * 1024;

/// Owns the fields that existed before the first apply of an untracked object.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Why an apply is refused.
#[derive(Debug)]
pub enum ApplyError {
    /// Other managers own fields with other values (409, causes `FieldManagerConflict`): pairs of
    /// the manager's description and a field path such as `.data.k`, at most 1,000, and the total
    /// count.
    Conflicts(Vec<(String, String)>, usize),
    /// The applied object does not match the schema (kube-apiserver answers 500 without a reason).
    Malformed(String),
    /// The live object is untracked and has list items without a unique key (500 as well).
    Untracked(String),
    /// An apply must not contain managedFields (400).
    ManagedFieldsGiven,
}

/// Tracks a create, update or patch: rewrites `new.metadata.managedFields` from the stored ones
/// (`old`) and from what this write changed. Tolerates garbage in the given managedFields as
/// kube-apiserver does: an empty list resets, a list with an undecodable entry is ignored, an entry
/// of a custom resource's unknown version ends tracking.
pub fn track_update(
    schema: &Schema,
    reset: &ResetFields,
    old: Option<&Document>,
    new: &mut Document,
    manager: &Manager,
) {
    let mut entries = managers::given_or_stored(schema, old, new, !manager.subresource.is_empty());
    // An untracked object stays untracked until its first apply.
    if old.is_some() && entries.is_empty() {
        return;
    }
    if manager.other_versions.is_none() {
        // A native kind drops entries of versions that do not exist.
        entries.retain(|entry| manager.knows(entry));
    } else if !entries.iter().all(|entry| manager.knows(entry)) {
        return;
    }
    reconcile(schema, &mut entries);
    let skipped = Skipped::of(reset, manager.ids_are_servers);
    let none = Map::new();
    let difference =
        compare(schema, old.map_or(&none, Document::fields), new.fields(), &skipped.root());
    if difference.is_nameless || element::has_nameless(schema, new.fields(), 0) {
        // Like kube-apiserver, track nothing if list items cannot be told apart, changed or not.
        return;
    }
    record(&mut entries, difference, manager);
    managers::write(new, entries);
}

/// A custom resource's schema may have changed since an entry was written.
fn reconcile(schema: &Schema, entries: &mut [ManagerEntry]) {
    if !schema.native {
        entries.iter_mut().for_each(|entry| fields::reconcile(schema, &mut entry.fields));
    }
}

/// Makes the manager the owner of the written fields, and removes them and deleted fields from all
/// others.
fn record(entries: &mut Vec<ManagerEntry>, difference: Difference, manager: &Manager) {
    for entry in entries.iter_mut() {
        disown(&mut entry.fields, &difference);
    }
    if !difference.written.is_empty() {
        match entries.iter_mut().find(|entry| entry.is_of(manager)) {
            Some(entry) => {
                unite(&mut entry.fields, &difference.written);
                entry.time.clone_from(&manager.time);
            }
            None => {
                entries.push(ManagerEntry::new(manager, difference.written, manager.time.clone()))
            }
        }
    }
    entries.retain(|entry| !entry.fields.is_empty());
    managers::cap(entries);
}

fn disown(fields: &mut Fields, difference: &Difference) {
    for taken in [&difference.written, &difference.removed] {
        if intersects(fields, taken) {
            subtract(fields, taken);
        }
    }
}

/// Applies `applied` onto `live` (`None`: create) and updates managedFields. Fields that this
/// manager owned and no longer applies are removed unless others own them; a map or list left empty
/// by that is null in the result.
///
/// # Errors
/// [`ApplyError`].
pub fn apply(
    schema: &Schema,
    reset: &ResetFields,
    live: Option<&Document>,
    applied: &Document,
    manager: &Manager,
    force: bool,
) -> Result<Document, ApplyError> {
    let skipped = Skipped::of(reset, manager.ids_are_servers);
    let skip = skipped.root();
    let mut object = live.cloned().unwrap_or_default();
    let mut entries = managers::take(&mut object);
    // kube-apiserver cannot even apply while there is an entry of a removed version.
    entries.retain(|entry| manager.knows(entry));
    reconcile(schema, &mut entries);
    if let Some(live) = live.filter(|_| entries.is_empty()) {
        if schema.native {
            conform::check_items(schema, live.fields()).map_err(ApplyError::Untracked)?;
        }
        let before = Manager {
            name: BEFORE_FIRST_APPLY.to_owned(),
            operation: ManagerOperation::Update,
            ..manager.clone()
        };
        record(&mut entries, compare(schema, &Map::new(), object.fields(), &skip), &before);
    }
    // Anything but a list of entries does not match the schema.
    if let Some(Value::Array(given)) = applied.get(&["metadata", "managedFields"])
        && given.iter().all(managers::is_entry)
    {
        return Err(ApplyError::ManagedFieldsGiven);
    }
    conform::check(schema, applied.fields()).map_err(ApplyError::Malformed)?;
    let last = entries
        .iter()
        .position(|entry| entry.is_of(manager))
        .map(|place| entries.swap_remove(place));
    let mut entry =
        ManagerEntry::new(manager, fields::of(schema, applied.fields(), &skip), String::new());

    merge::merge(schema, object.fields_mut(), applied.fields(), &skip);
    if let Some(last) = last.as_ref().filter(|last| !is_subset(&last.fields, &entry.fields)) {
        // Fields that are applied but never owned (the name) must not be pruned.
        let mut managed = fields::of(schema, applied.fields(), &Skip::default());
        entries.iter().for_each(|entry| unite(&mut managed, &entry.fields));
        prune::prune(schema, object.fields_mut(), &last.fields, &managed);
    }
    let none = Document::new();
    let before = live.unwrap_or(&none);
    let difference = compare_applied(schema, before.fields(), object.fields(), &skip);
    if !force {
        conflicts(schema, before, &entries, &difference, manager)?;
    }
    for other in &mut entries {
        disown(&mut other.fields, &difference);
    }
    // A null in metadata (a creation time, a uid) counts as a change, though the server restores
    // the value.
    let forgets = |document: &Document| {
        let metadata = document.get(&["metadata"]).and_then(Value::as_object);
        metadata.is_some_and(|metadata| metadata.values().any(Value::is_null))
    };
    let changed = !equal_but_managers(before.fields(), object.fields()) || forgets(applied);
    entry.time =
        if changed { manager.time.clone() } else { last.map(|last| last.time).unwrap_or_default() };
    entries.push(entry);
    if manager.name == adopt::KUBECTL {
        adopt::refresh(&mut object, applied, &skip);
    }
    // What was applied there is no entry: see above.
    drop(object.remove(&["metadata", "managedFields"]));
    managers::write(&mut object, entries);
    Ok(object)
}

/// Fields that the apply would change and others own.
fn conflicts(
    schema: &Schema,
    live: &Document,
    entries: &[ManagerEntry],
    difference: &Difference,
    manager: &Manager,
) -> Result<(), ApplyError> {
    let mut taken: Vec<(&ManagerEntry, Fields)> = entries
        .iter()
        .filter(|entry| intersects(&entry.fields, &difference.written))
        .map(|entry| (entry, set::intersect(&entry.fields, &difference.written)))
        .collect();
    if taken.is_empty() {
        return Ok(());
    }
    if manager.name == adopt::KUBECTL
        && let Some(allowed) = adopt::allowed(schema, live, &manager.api_version)
    {
        taken.iter_mut().for_each(|(_, fields)| subtract(fields, &allowed));
    }
    let (mut found, mut count, mut room) = (Vec::new(), 0, MAX_CONFLICT_BYTES);
    for (entry, fields) in &taken {
        let manager = entry.describe();
        set::for_each(fields, &mut Vec::new(), &mut |path| {
            count += 1;
            if found.len() == MAX_CONFLICTS || room == 0 {
                return;
            }
            work::count(path.len());
            room = room.saturating_sub(
                manager.len() + path.iter().map(|element| element.len()).sum::<usize>(),
            );
            found.push((manager.clone(), element::display(path)));
        });
    }
    if count == 0 { Ok(()) } else { Err(ApplyError::Conflicts(found, count)) }
}

/// Whether the objects differ at most in managedFields, which `object` lacks.
fn equal_but_managers(live: &Map, object: &Map) -> bool {
    let metadata = |map: &Map| -> usize {
        map.get("metadata")
            .and_then(Value::as_object)
            .map_or(0, |meta| meta.keys().filter(|key| *key != "managedFields").count())
    };
    live.len() == object.len()
        && metadata(live) == metadata(object)
        && live.iter().all(|(name, value)| match (name.as_str(), value, object.get(name)) {
            ("metadata", Value::Object(old), Some(Value::Object(new))) => old
                .iter()
                .filter(|(name, _)| *name != "managedFields")
                .all(|(name, value)| new.get(name) == Some(value)),
            (_, value, other) => other == Some(value),
        })
}
