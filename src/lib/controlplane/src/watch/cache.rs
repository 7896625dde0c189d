//! Frames of recent events, so that a thousand watchers of one form share one encoding.

use super::frames::Frames;
use crate::negotiate::Accepted;
use bytes::Bytes;
use ferrokube_resource::Definition;
use ferrokube_storage::Entry;
use std::sync::{Arc, Mutex, Weak};

/// How many events are remembered.
pub(super) const CACHED_EVENTS: usize = 256;
/// A frame that is longer is remembered only as long as some connection still sends it.
const CACHED_BYTES: usize = 32 * 1024;

/// Frames of recent events.
pub(crate) struct EventCache(Box<[Mutex<Option<Cached>>]>);

struct Cached {
    entry: Weak<Entry>,
    definition: Arc<Definition>,
    version: usize,
    accepted: Accepted,
    kind: &'static str,
    frame: Frame,
}

enum Frame {
    Kept(Bytes),
    Sent(Weak<Sent>),
}

/// A long frame, shared by the connections that send it.
struct Sent(Bytes);

/// A frame's part in [`Sent`].
struct Share(Arc<Sent>);

impl AsRef<[u8]> for Share {
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
    /// Whether the frame of an event is there.
    pub(super) fn has(&self, frames: &Frames, kind: &str, entry: &Arc<Entry>) -> bool {
        self.known(place(entry), frames, kind, entry).is_some()
    }

    /// The frame of an event, made if it is not there.
    pub(super) fn get(
        &self,
        frames: &Frames,
        kind: &'static str,
        entry: &Arc<Entry>,
        make: impl FnOnce() -> Bytes,
    ) -> Bytes {
        let at = place(entry);
        if let Some(frame) = self.known(at, frames, kind, entry) {
            return frame;
        }
        let made = make();
        let (bytes, frame) = if made.len() <= CACHED_BYTES {
            (made.clone(), Frame::Kept(made))
        } else {
            let sent = Arc::new(Sent(made));
            (Bytes::from_owner(Share(Arc::clone(&sent))), Frame::Sent(Arc::downgrade(&sent)))
        };
        let cached = Cached {
            entry: Arc::downgrade(entry),
            definition: Arc::clone(&frames.served.definition),
            version: frames.served.version,
            accepted: frames.accepted,
            kind,
            frame,
        };
        let before = self.0[at].lock().expect("no panic while held").replace(cached);
        drop(before);
        bytes
    }

    fn known(&self, at: usize, frames: &Frames, kind: &str, entry: &Arc<Entry>) -> Option<Bytes> {
        let cached = self.0[at].lock().expect("no panic while held");
        match &cached.as_ref().filter(|cached| cached.is(frames, kind, entry))?.frame {
            Frame::Kept(bytes) => Some(bytes.clone()),
            Frame::Sent(sent) => sent.upgrade().map(|sent| Bytes::from_owner(Share(sent))),
        }
    }
}

fn place(entry: &Entry) -> usize {
    usize::try_from(entry.revision.0 % CACHED_EVENTS as u64).unwrap_or(0)
}

impl Cached {
    fn is(&self, frames: &Frames, kind: &str, entry: &Arc<Entry>) -> bool {
        // Nothing else has the address of an entry while it is remembered, weakly too.
        std::ptr::eq(self.entry.as_ptr(), Arc::as_ptr(entry))
            && self.kind == kind
            && self.accepted == frames.accepted
            && self.version == frames.served.version
            && Arc::ptr_eq(&self.definition, &frames.served.definition)
    }
}
