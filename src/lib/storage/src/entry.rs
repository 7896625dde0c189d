//! What the store holds for a key.

use crate::key::{Key, Revision};
use bytes::Bytes;

/// What the writer of a value wants back beside it, without parsing the value: kept in memory and in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sidecar {
    /// Positions in the value; opaque here. (The codec keeps `type_end`, `metadata`, `labels`.)
    pub marks: [u32; 3],
    /// Where `"resourceVersion":"<revision>"` is spliced into the value when it is published.
    pub revision_at: u32,
    /// Whether the splice needs a comma before it.
    pub comma: bool,
    /// Values of the fields that the resource declares as selectable, in its order; empty for most resources.
    pub fields: Box<[Box<str>]>,
    /// Version of the schema that the value was written under.
    pub schema_epoch: u32,
    /// Written under an older version, codec or key: the next write is not a no-op even if nothing else changed.
    pub stale: bool,
}

/// One published or pending value. Shared by the current state, the history and every reader.
#[derive(Debug)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// The revision that wrote it; also spliced into `bytes`.
    pub revision: Revision,
    /// The revision that created it.
    pub create_revision: Revision,
    /// The value with the revision spliced in.
    pub bytes: Bytes,
    /// What its writer wanted back; positions after `revision_at` are those of the unspliced value.
    pub sidecar: Sidecar,
}
