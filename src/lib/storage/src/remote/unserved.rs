//! Names resources in the storage that are not served, each once.

use parking_lot::Mutex;
use std::collections::BTreeSet;

/// Names remembered; what comes after them is not logged.
const MAX_NAMES: usize = 256;
/// Keys of the store's own, below a name that is neither a resource nor a group.
const OWN: &str = "ferrokube";

#[derive(Default)]
pub(super) struct UnservedResources(Mutex<BTreeSet<Box<str>>>);

impl UnservedResources {
    /// Notes a key of a resource that is not served. False: it is the store's own.
    pub(super) fn note(&self, key: &str) -> bool {
        let name = resource(key);
        if name == OWN {
            return false;
        }
        let mut names = self.0.lock();
        if names.len() < MAX_NAMES && !names.contains(name) {
            names.insert(name.into());
            tracing::info!(
                resource = name,
                "objects of this resource are left alone: not served here"
            );
        }
        true
    }
}

/// The part of a key that names its resource: a group has a dot, and its resource after it.
fn resource(key: &str) -> &str {
    let rest = key.strip_prefix("/registry/").unwrap_or(key);
    let end = |from: usize| rest[from..].find('/').map_or(rest.len(), |at| from + at);
    let first = end(0);
    if rest[..first].contains('.') && first < rest.len() {
        &rest[..end(first + 1)]
    } else {
        &rest[..first]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_named_once() {
        for (key, name) in [
            ("/registry/pods/ns/a", "pods"),
            ("/registry/example.com/widgets/ns/a", "example.com/widgets"),
            ("/registry/example.com/widgets", "example.com/widgets"),
            ("/registry/x.y", "x.y"),
            ("odd", "odd"),
        ] {
            assert_eq!(resource(key), name);
        }
        let unserved = UnservedResources::default();
        for key in ["/registry/pods/a/b", "/registry/pods/a/c", "/registry/ferrokube/barrier"] {
            unserved.note(key);
        }
        assert_eq!(unserved.0.lock().len(), 1);
        for number in 0..1000 {
            assert!(unserved.note(&format!("/registry/n{number}/a")));
        }
        assert_eq!(unserved.0.lock().len(), MAX_NAMES);
    }
}
