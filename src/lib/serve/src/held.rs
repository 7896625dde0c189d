//! Memory that answers hold while their clients take them, over all connections, and its pressure: above the bound a client that takes nothing is cut within
//! two seconds instead of [`Limits::stall`](crate::Limits::stall).
//!
//! Only what is not small is counted: what every stream may hold anyway is bounded by the number of streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::watch;

/// Smaller holdings are not counted.
pub(crate) const SMALL_BYTES: usize = 16 * 1024;

/// The bytes that answers hold. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Holdings(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: AtomicUsize,
    /// What others hold for answers: see [`Holdings::set_pinned`].
    pinned: AtomicUsize,
    bound: usize,
    pressed: watch::Sender<bool>,
}

impl Default for Holdings {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Holdings {
    /// With a bound, in bytes.
    pub fn new(bound: usize) -> Self {
        Self(Arc::new(Inner { bytes: AtomicUsize::new(0), pinned: AtomicUsize::new(0), bound, pressed: watch::Sender::new(false) }))
    }

    /// Bytes that answers hold now: pieces that wait to be sent, and what was counted by [`Self::hold`].
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Counts what an answer holds, until it is dropped.
    pub fn hold(&self, bytes: usize) -> Held {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.press();
        Held { of: self.clone(), bytes }
    }

    /// Sets how much more memory answers keep from being freed, such as versions of objects that are stored no more. Called by who can tell, now and then.
    pub fn set_pinned(&self, bytes: usize) {
        self.0.pinned.store(bytes, Ordering::Relaxed);
        self.press();
    }

    fn press(&self) {
        let is_pressed = self.bytes().saturating_add(self.0.pinned.load(Ordering::Relaxed)) > self.0.bound;
        if is_pressed != *self.0.pressed.borrow() {
            self.0.pressed.send_if_modified(|pressed| std::mem::replace(pressed, is_pressed) != is_pressed);
        }
    }

    /// Shows whether more is held than may be.
    pub(crate) fn pressure(&self) -> watch::Receiver<bool> {
        self.0.pressed.subscribe()
    }
}

/// Bytes that an answer holds; counted until it is dropped.
#[derive(Debug)]
pub struct Held {
    of: Holdings,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.0.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of.press();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_pressure_while_more_is_held_than_may_be() {
        let holdings = Holdings::new(100);
        let pressure = holdings.pressure();
        let first = holdings.hold(60);
        let second = holdings.hold(41);
        assert_eq!((holdings.bytes(), *pressure.borrow()), (101, true));
        drop(first);
        assert!(!*pressure.borrow());
        holdings.set_pinned(60);
        assert!(*pressure.borrow());
        drop(second);
        assert_eq!((holdings.bytes(), *pressure.borrow()), (0, false));
    }
}
