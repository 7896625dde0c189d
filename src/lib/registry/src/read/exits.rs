//! Objects that left a selection: DELETED events with the last matching state, at the revision of
//! the event. Watchers with the same selection share it; otherwise every slow watcher would hold a
//! copy.

use bytes::Bytes;
use ferrokube_storage::{Entry, Revision};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Cached states, as long as a watcher still holds them.
const REMEMBERED: usize = 64;

/// Cache of recent exits, by revision.
pub(crate) struct Exits(Box<[Mutex<Exit>]>);

#[derive(Default)]
struct Exit {
    previous: Weak<Entry>,
    shown: Weak<Entry>,
}

impl Default for Exits {
    fn default() -> Self {
        Self((0..REMEMBERED).map(|_| Mutex::default()).collect())
    }
}

impl Exits {
    /// The previous state, at the revision of the entry that replaced it.
    pub(crate) fn at(&self, previous: &Arc<Entry>, entry: &Entry) -> Arc<Entry> {
        let at = usize::try_from(entry.revision.0 % REMEMBERED as u64).unwrap_or(0);
        let mut exit = self.0[at].lock();
        // The weak reference keeps the address from being reused.
        if std::ptr::eq(exit.previous.as_ptr(), Arc::as_ptr(previous))
            && let Some(shown) =
                exit.shown.upgrade().filter(|shown| shown.revision == entry.revision)
        {
            return shown;
        }
        let shown = Arc::new(at_revision(previous, entry.revision));
        *exit = Exit { previous: Arc::downgrade(previous), shown: Arc::downgrade(&shown) };
        shown
    }
}

/// The same state with another resourceVersion.
fn at_revision(entry: &Entry, revision: Revision) -> Entry {
    let [head, tail] = entry.value();
    let mut bytes = Vec::with_capacity(entry.bytes.len() + 8);
    bytes.extend_from_slice(head);
    ferrokube_apimachinery::json::forms::append_revision(
        &mut bytes,
        entry.sidecar.comma,
        revision.0,
    );
    bytes.extend_from_slice(tail);
    Entry {
        key: entry.key.clone(),
        revision,
        create_revision: entry.create_revision,
        bytes: Bytes::from(bytes),
        sidecar: entry.sidecar.clone(),
        checked: entry.checked.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_storage::{CheckedEpoch, Prefix, Sidecar};

    #[test]
    fn watchers_share_objects_that_left_their_selection() {
        let key = Prefix::new("things").and_then(|prefix| prefix.key(None, "a")).unwrap();
        let sidecar = Sidecar { revision_at: 1, ..Sidecar::default() };
        let entry = |number| {
            let bytes = format!("{{\"resourceVersion\":\"{number}\"}}").into();
            Arc::new(Entry {
                key: key.clone(),
                revision: Revision(number),
                create_revision: Revision(1),
                bytes,
                sidecar: sidecar.clone(),
                checked: CheckedEpoch::default(),
            })
        };
        let (exits, previous, next, other) =
            (Exits::default(), entry(99), entry(100), entry(100 + REMEMBERED as u64));
        let shown = exits.at(&previous, &next);
        assert_eq!(
            (&shown.bytes[..], shown.revision),
            (b"{\"resourceVersion\":\"100\"}".as_slice(), next.revision)
        );
        assert!(Arc::ptr_eq(&shown, &exits.at(&previous, &next)));
        assert_eq!(exits.at(&previous, &other).revision, other.revision, "one in the same place");
        assert!(!Arc::ptr_eq(&shown, &exits.at(&entry(99), &next)), "of another state");
    }
}
