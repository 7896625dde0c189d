//! Where values are encrypted: on their way to the journal and back.

use crate::key::Key;
use std::borrow::Cow;

/// Changes values at the journal. Bound to the key, so that a value cannot be moved to another one.
pub trait Transformer: Send + Sync + 'static {
    /// Appends the sealed form of a value (with its selectable fields), which comes in parts.
    fn seal(&self, key: &Key, parts: &[&[u8]], sealed: &mut Vec<u8>);

    /// The value again.
    ///
    /// # Errors
    /// It was not sealed for this key, or its secret is not known; the text names the reason and holds no value.
    fn open<'a>(&self, key: &Key, sealed: &'a [u8]) -> Result<OpenedValue<'a>, String>;
}

/// An opened value.
pub struct OpenedValue<'a> {
    /// The value.
    pub value: Cow<'a, [u8]>,
    /// It was sealed in a way that is no longer used: the next write is not a no-op.
    pub stale: bool,
}

/// Leaves values as they are.
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
