//! Value encryption, at the boundary to the journal.

use crate::key::Key;
use std::borrow::Cow;

/// Seals values on their way to the journal. Bound to the key, so that a value cannot be moved to
/// another one.
pub trait Transformer: Send + Sync + 'static {
    /// Appends the sealed form of a value, which is passed in parts (selectable fields first).
    fn seal(&self, key: &Key, parts: &[&[u8]], sealed: &mut Vec<u8>);

    /// Opens a sealed value.
    ///
    /// # Errors
    /// Not sealed for this key, or an unknown secret. The message must not contain the value.
    fn open<'a>(&self, key: &Key, sealed: &'a [u8]) -> Result<OpenedValue<'a>, String>;
}

/// A value as its writer gave it.
pub struct OpenedValue<'a> {
    /// Plain value.
    pub value: Cow<'a, [u8]>,
    /// Sealed in an outdated way: the next write is not a no-op.
    pub stale: bool,
}

/// Stores values as they are.
#[derive(Debug, Default)]
pub struct PlainValues;

impl Transformer for PlainValues {
    fn seal(&self, _key: &Key, parts: &[&[u8]], sealed: &mut Vec<u8>) {
        for part in parts {
            sealed.extend_from_slice(part);
        }
    }

    fn open<'a>(&self, _key: &Key, sealed: &'a [u8]) -> Result<OpenedValue<'a>, String> {
        Ok(OpenedValue { value: Cow::Borrowed(sealed), stale: false })
    }
}
