//! Where values are encrypted: on their way to the journal and back.

use crate::key::Key;
use std::borrow::Cow;

/// Changes values at the journal. Bound to the key, so that a value cannot be moved to another one.
pub trait Transformer: Send + Sync + 'static {
    /// Appends the sealed form of a value, which comes in two parts.
    fn seal(&self, key: &Key, value: [&[u8]; 2], sealed: &mut Vec<u8>);

    /// The value again.
    ///
    /// # Errors
    /// It was not sealed for this key, or its secret is not known; the text names the reason and holds no value.
    fn open<'a>(&self, key: &Key, sealed: &'a [u8]) -> Result<Opened<'a>, String>;
}

/// An opened value.
pub struct Opened<'a> {
    /// The value.
    pub value: Cow<'a, [u8]>,
    /// It was sealed in a way that is no longer used: the next write is not a no-op.
    pub stale: bool,
}

/// Leaves values as they are.
#[derive(Debug, Default)]
pub struct Identity;

impl Transformer for Identity {
    fn seal(&self, _key: &Key, value: [&[u8]; 2], sealed: &mut Vec<u8>) {
        sealed.extend_from_slice(value[0]);
        sealed.extend_from_slice(value[1]);
    }

    fn open<'a>(&self, _key: &Key, sealed: &'a [u8]) -> Result<Opened<'a>, String> {
        Ok(Opened { value: Cow::Borrowed(sealed), stale: false })
    }
}
