//! Keys and revisions.

use std::fmt;
use std::sync::Arc;

/// The store's number of a transaction; starts at 1, never repeats or goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One resource's part of the key space: `/registry/<prefix>/`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(Arc<str>);

/// A segment that cannot stand in a key.
#[derive(Debug, thiserror::Error)]
#[error("{segment:?} cannot be part of a storage key")]
pub struct KeyError {
    /// The offending segment.
    pub segment: String,
}

impl Prefix {
    /// `resource` is `configmaps`, or `<group>/<plural>` for custom resources.
    ///
    /// # Errors
    /// An empty, `.`/`..` or NUL-holding segment.
    pub fn new(resource: &str) -> Result<Self, KeyError> {
        for segment in resource.split('/') {
            check(segment)?;
        }
        Ok(Self(format!("/registry/{resource}/").into()))
    }

    /// The bytes that every key of the resource starts with; ends with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The one function that builds a key: `/registry/<prefix>/<namespace>/<name>`, or without the namespace for cluster scope.
    ///
    /// # Errors
    /// A segment that is empty, `.`, `..`, or holds `/` or NUL.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> Result<Key, KeyError> {
        check(name)?;
        let text = match namespace {
            Some(namespace) => {
                check(namespace)?;
                format!("{}{namespace}/{name}", self.0)
            }
            None => format!("{}{name}", self.0),
        };
        Ok(Key { text: text.into(), prefix: u32::try_from(self.0.len()).expect("a prefix is short") })
    }
}

fn check(segment: &str) -> Result<(), KeyError> {
    if segment.is_empty() || segment == "." || segment == ".." || segment.contains(['/', '\0']) {
        return Err(KeyError { segment: segment.to_owned() });
    }
    Ok(())
}

/// A validated key; ordered by its joined bytes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Key {
    text: Arc<str>,
    prefix: u32,
}

impl Key {
    /// The joined bytes.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The resource's prefix, ending with `/`.
    pub fn prefix(&self) -> &str {
        &self.text[..self.prefix as usize]
    }

    /// What follows the prefix: `<namespace>/<name>` or `<name>`.
    pub fn rest(&self) -> &str {
        &self.text[self.prefix as usize..]
    }

    /// The namespace, when the key has one.
    pub fn namespace(&self) -> Option<&str> {
        self.rest().split_once('/').map(|(namespace, _)| namespace)
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        self.rest().split_once('/').map_or_else(|| self.rest(), |(_, name)| name)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl Eq for Key {}
impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}
impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}
