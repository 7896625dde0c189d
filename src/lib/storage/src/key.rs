//! Keys and revisions.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The store's transaction counter; starts at 1, never repeats or goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The largest, as etcd's are signed. A larger one is damaged or forged.
    pub const MAX: Self = Self(i64::MAX as u64);
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A resource's part of the key space, `/registry/<prefix>/`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(Arc<str>);

/// A segment that is not allowed in a key.
#[derive(Debug, thiserror::Error)]
#[error("{segment:?} cannot be part of a storage key")]
pub struct KeyError {
    /// Offending segment.
    pub segment: String,
}

impl Prefix {
    /// `resource` is `configmaps`, or `<group>/<plural>` for custom resources.
    ///
    /// # Errors
    /// A segment is empty, `.` or `..`, or contains NUL.
    pub fn new(resource: &str) -> Result<Self, KeyError> {
        for segment in resource.split('/') {
            check(segment)?;
        }
        Ok(Self(["/registry/", resource, "/"].concat().into()))
    }

    /// Common prefix of all keys of the resource; ends with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Builds `/registry/<prefix>/<namespace>/<name>`, without the namespace for cluster scope. No
    /// other function builds keys.
    ///
    /// # Errors
    /// A segment is empty, `.` or `..`, or contains `/` or NUL.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> Result<Key, KeyError> {
        check(name)?;
        let text = match namespace {
            Some(namespace) => {
                check(namespace)?;
                [&self.0, namespace, "/", name].concat()
            }
            None => [&self.0, name].concat(),
        };
        Ok(Key {
            text: text.into(),
            prefix: u32::try_from(self.0.len()).expect("a prefix is short"),
        })
    }
}

impl Borrow<str> for Prefix {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Whether a name or namespace can be part of a key.
pub fn is_key_segment(segment: &str) -> bool {
    !matches!(segment, "" | "." | "..") && !segment.contains(['/', '\0'])
}

fn check(segment: &str) -> Result<(), KeyError> {
    match is_key_segment(segment) {
        true => Ok(()),
        false => Err(KeyError { segment: segment.to_owned() }),
    }
}

/// A validated key, ordered by its joined bytes. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Key {
    text: Arc<str>,
    prefix: u32,
}

impl Key {
    /// Parses a key from a journal; `None` if it is malformed.
    pub(crate) fn from_journal(text: &str, prefix: usize) -> Option<Self> {
        let resource = text.get(..prefix)?.strip_prefix("/registry/")?.strip_suffix('/')?;
        if resource.is_empty() || text.len() == prefix || text.contains('\0') {
            return None;
        }
        Some(Self { text: text.into(), prefix: u32::try_from(prefix).ok()? })
    }

    /// Prefix length in bytes.
    pub(crate) fn prefix_len(&self) -> usize {
        self.prefix as usize
    }

    /// The resource's prefix, shared.
    pub fn to_prefix(&self) -> Prefix {
        Prefix(self.prefix().into())
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The resource's prefix; ends with `/`.
    pub fn prefix(&self) -> &str {
        &self.text[..self.prefix as usize]
    }

    /// The key without its prefix: `<namespace>/<name>` or `<name>`.
    pub fn rest(&self) -> &str {
        &self.text[self.prefix as usize..]
    }

    /// Namespace; `None` for cluster scope.
    pub fn namespace(&self) -> Option<&str> {
        self.rest().split_once('/').map(|(namespace, _)| namespace)
    }

    /// Object name.
    pub fn name(&self) -> &str {
        self.rest().split_once('/').map_or_else(|| self.rest(), |(_, name)| name)
    }
}

// Ordered, compared and hashed as the joined bytes, so that maps can be searched by `&str`.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_segments_are_refused() {
        let prefix = Prefix::new("configmaps").unwrap();
        for bad in ["", ".", "..", "a/b", "a\0b", "../x"] {
            assert!(prefix.key(Some(bad), "ok").is_err(), "{bad:?} as a namespace");
            assert!(prefix.key(Some("ok"), bad).is_err(), "{bad:?} as a name");
            assert!(prefix.key(None, bad).is_err(), "{bad:?} as a cluster-scoped name");
        }
        assert!(Prefix::new("a//b").is_err());
        assert!(Prefix::new("..").is_err());
    }

    #[test]
    fn parts_of_a_key() {
        let key = Prefix::new("example.com/widgets").unwrap().key(Some("ns"), "a").unwrap();
        assert_eq!(key.as_str(), "/registry/example.com/widgets/ns/a");
        assert_eq!(
            (key.prefix(), key.rest(), key.namespace(), key.name()),
            ("/registry/example.com/widgets/", "ns/a", Some("ns"), "a")
        );
        let same = Key::from_journal(key.as_str(), key.prefix_len()).unwrap();
        assert_eq!((same.prefix(), same.rest()), (key.prefix(), key.rest()));
        assert!(Key::from_journal("/registry/x/", 12).is_none());
        assert!(Key::from_journal("/elsewhere/x/y", 13).is_none());
    }
}
