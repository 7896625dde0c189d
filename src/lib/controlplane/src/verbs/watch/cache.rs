//! Encoded recent events, shared by all watchers of one form.

use super::frames::EventEncoder;
use crate::negotiate::Accepted;
use bytes::Bytes;
use ferrokube_resource::Definition;
use ferrokube_storage::Entry;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Number of cached events.
pub(super) const CACHED_EVENTS: usize = 256;
/// Longer frames are only cached while some connection is sending them.
const CACHED_BYTES: usize = 32 * 1024;

/// Indexed by revision, modulo [`CACHED_EVENTS`].
pub(crate) struct EventCache(Box<[Mutex<Option<CachedEvent>>]>);

struct CachedEvent {
    entry: Weak<Entry>,
    definition: Arc<Definition>,
    version: usize,
    accepted: Accepted,
    kind: &'static str,
    frame: CachedFrame,
}

enum CachedFrame {
    Kept(Bytes),
    SharedFrame(Weak<SharedFrame>),
}

/// A long frame, owned by the connections that are sending it.
struct SharedFrame(Bytes);

/// A connection's reference to [`SharedFrame`].
struct FrameRef(Arc<SharedFrame>);

impl AsRef<[u8]> for FrameRef {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

impl Default for EventCache {
    fn default() -> Self {
        Self((0..CACHED_EVENTS).map(|_| Mutex::default()).collect())
    }
}

impl EventCache {
    /// Whether an event matches cached.
    pub(super) fn has(&self, encoder: &EventEncoder, kind: &str, entry: &Arc<Entry>) -> bool {
        self.lookup(index_of(entry), encoder, kind, entry).is_some()
    }

    /// Returns a cached event, or encodes and caches it.
    pub(super) fn get(
        &self,
        encoder: &EventEncoder,
        kind: &'static str,
        entry: &Arc<Entry>,
        make: impl FnOnce() -> Bytes,
    ) -> Bytes {
        let at = index_of(entry);
        if let Some(frame) = self.lookup(at, encoder, kind, entry) {
            return frame;
        }
        let made = make();
        let (bytes, frame) = if made.len() <= CACHED_BYTES {
            (made.clone(), CachedFrame::Kept(made))
        } else {
            let sent = Arc::new(SharedFrame(made));
            (
                Bytes::from_owner(FrameRef(Arc::clone(&sent))),
                CachedFrame::SharedFrame(Arc::downgrade(&sent)),
            )
        };
        let cached = CachedEvent {
            entry: Arc::downgrade(entry),
            definition: Arc::clone(&encoder.served.definition),
            version: encoder.served.version,
            accepted: encoder.accepted,
            kind,
            frame,
        };
        let before = self.0[at].lock().replace(cached);
        drop(before);
        bytes
    }

    fn lookup(
        &self,
        at: usize,
        encoder: &EventEncoder,
        kind: &str,
        entry: &Arc<Entry>,
    ) -> Option<Bytes> {
        let cached = self.0[at].lock();
        match &cached.as_ref().filter(|cached| cached.matches(encoder, kind, entry))?.frame {
            CachedFrame::Kept(bytes) => Some(bytes.clone()),
            CachedFrame::SharedFrame(sent) => {
                sent.upgrade().map(|sent| Bytes::from_owner(FrameRef(sent)))
            }
        }
    }
}

fn index_of(entry: &Entry) -> usize {
    usize::try_from(entry.revision.0 % CACHED_EVENTS as u64).unwrap_or(0)
}

impl CachedEvent {
    fn matches(&self, encoder: &EventEncoder, kind: &str, entry: &Arc<Entry>) -> bool {
        // The cache keeps the entry's address from being reused, even by a weak reference.
        std::ptr::eq(self.entry.as_ptr(), Arc::as_ptr(entry))
            && self.kind == kind
            && self.accepted == encoder.accepted
            && self.version == encoder.served.version
            && Arc::ptr_eq(&self.definition, &encoder.served.definition)
    }
}
