//! Server-side apply: field sets, managedFields of every operation, conflicts, ownership.

use crate::schema::Schema;
use ferrokube_apimachinery::document::Document;

/// Who writes, and how: the key of a managedFields entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manager {
    /// `fieldManager`, or the first word of the User-Agent.
    pub name: String,
    /// `Apply` or `Update`.
    pub operation: Operation,
    /// `apiVersion` of the written object.
    pub api_version: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// RFC 3339 seconds: the entry's time if it changes.
    pub time: String,
}

/// The operation of a managedFields entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Server-side apply.
    Apply,
    /// Every other write.
    Update,
}

/// Why an apply is refused.
#[derive(Debug)]
pub enum ApplyError {
    /// Other managers own fields with other values (409, causes `FieldManagerConflict`): (manager's description, field path such as `.data.k`).
    Conflicts(Vec<(String, String)>),
    /// The applied object does not fit the schema (upstream answers 500 without a reason).
    Malformed(String),
    /// managedFields may not be given in an apply (400).
    ManagedFieldsGiven,
}

/// Paths that no manager owns for a resource: (subresource or empty, field sets to strip such as `status`). From the definition.
#[derive(Clone, Debug, Default)]
pub struct ResetFields {
    /// Top-level or dotted field paths such as `status` or `metadata.deletionTimestamp`.
    pub paths: Vec<String>,
}

/// After a create, update or patch: rewrites `new.metadata.managedFields` from the stored ones (`old`) and what this write changed. Tolerates garbage in the given managedFields as upstream does (an empty list resets, undecodable entries are dropped).
pub fn track_update(_schema: &Schema, _reset: &ResetFields, _old: Option<&Document>, _new: &mut Document, _manager: &Manager) {
    unimplemented!("schema owner")
}

/// Applies `applied` onto `live` (`None`: create). The result carries the new managedFields. Fields that this manager owned and no longer applies are removed unless others own them.
///
/// # Errors
/// [`ApplyError`].
pub fn apply(
    _schema: &Schema,
    _reset: &ResetFields,
    _live: Option<&Document>,
    _applied: &Document,
    _manager: &Manager,
    _force: bool,
) -> Result<Document, ApplyError> {
    unimplemented!("schema owner")
}
