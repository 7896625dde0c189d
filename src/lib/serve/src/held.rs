//! Memory that responses hold while their clients read them, over all connections. Above the limit
//! there is pressure: a client that reads nothing is cut within two seconds instead of
//! [`ListenerLimits::stall`](crate::ListenerLimits::stall), and a connection that holds more than
//! its share accepts no further request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::watch;

/// Bytes held by responses. Clones share the count.
#[derive(Clone, Debug)]
pub struct Holdings(Arc<HoldingsInner>);

#[derive(Debug)]
struct HoldingsInner {
    bytes: AtomicUsize,
    /// See [`Holdings::set_pinned`].
    pinned: AtomicUsize,
    bound: usize,
    /// Number of waiters: see [`Holdings::want`].
    wanting: AtomicUsize,
    is_pressed: AtomicBool,
    pressed: watch::Sender<bool>,
}

impl Default for Holdings {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Holdings {
    /// `bound` in bytes.
    pub fn new(bound: usize) -> Self {
        let (bytes, pinned, wanting) = Default::default();
        Self(Arc::new(HoldingsInner {
            bytes,
            pinned,
            bound,
            wanting,
            is_pressed: AtomicBool::new(false),
            pressed: watch::Sender::new(false),
        }))
    }

    /// Bytes held now: chunks waiting to be sent, and [`Self::hold`]. Up to 4 KiB per connection
    /// are missing.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Counts bytes until the guard is dropped.
    pub fn hold(&self, bytes: usize) -> HeldBytes {
        self.change(0, bytes);
        HeldBytes { of: self.clone(), bytes }
    }

    /// Sets the bytes that responses keep alive elsewhere, such as old versions of stored objects.
    /// Updated periodically.
    pub fn set_pinned(&self, bytes: usize) {
        self.0.pinned.store(bytes, Ordering::Relaxed);
        self.press();
    }

    /// Causes pressure until the guard is dropped: a response waits for memory that others hold.
    pub fn want(&self) -> Wanting {
        self.0.wanting.fetch_add(1, Ordering::Relaxed);
        self.press();
        Wanting(self.clone())
    }

    /// Replaces an earlier amount.
    pub(crate) fn change(&self, before: usize, after: usize) {
        // Wraps around if it is less.
        self.0.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        self.press();
    }

    fn press(&self) {
        let held = self.bytes().saturating_add(self.0.pinned.load(Ordering::Relaxed));
        let is_pressed = held > self.0.bound || self.0.wanting.load(Ordering::Relaxed) > 0;
        if is_pressed != self.0.is_pressed.load(Ordering::Relaxed) {
            self.0.is_pressed.store(is_pressed, Ordering::Relaxed);
            self.0
                .pressed
                .send_if_modified(|pressed| std::mem::replace(pressed, is_pressed) != is_pressed);
        }
    }

    /// Whether there is pressure.
    pub(crate) fn pressure(&self) -> watch::Receiver<bool> {
        self.0.pressed.subscribe()
    }

    /// The bytes that each connection may hold under pressure; `None` without.
    pub(crate) fn share(&self, connections: impl FnOnce() -> u64) -> Option<usize> {
        self.0
            .is_pressed
            .load(Ordering::Relaxed)
            .then(|| self.0.bound / usize::try_from(connections()).unwrap_or(usize::MAX).max(1))
    }
}

/// Bytes held by a response; uncounted when dropped.
#[derive(Debug)]
pub struct HeldBytes {
    of: Holdings,
    bytes: usize,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.of.change(self.bytes, 0);
    }
}

/// Pressure from a waiter; see [`Holdings::want`].
#[derive(Debug)]
pub struct Wanting(Holdings);

impl Drop for Wanting {
    fn drop(&mut self) {
        self.0.0.wanting.fetch_sub(1, Ordering::Relaxed);
        self.0.press();
    }
}

/// Smaller changes of a connection are not reported: events of a watch should not touch shared
/// counters.
pub(crate) const UNREPORTED_BYTES: usize = 4 * 1024;

/// Bytes held by one connection; returned when dropped.
#[derive(Debug, Default)]
pub(crate) struct ConnectionBytes {
    bytes: AtomicUsize,
    reported: AtomicUsize,
    of: Holdings,
}

impl ConnectionBytes {
    pub(crate) fn new(of: Holdings) -> Self {
        let (bytes, reported) = Default::default();
        Self { bytes, reported, of }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        self.report();
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.report();
    }

    /// Writers update the bytes before checking the reported value, and the reporter checks the
    /// bytes again, so that both end up close.
    fn report(&self) {
        loop {
            let (bytes, reported) =
                (self.bytes.load(Ordering::SeqCst), self.reported.load(Ordering::SeqCst));
            let is_near =
                bytes.abs_diff(reported) < UNREPORTED_BYTES && (bytes > 0 || reported == 0);
            if is_near {
                return;
            }
            if self
                .reported
                .compare_exchange(reported, bytes, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                self.of.change(reported, bytes);
            }
        }
    }
}

impl Drop for ConnectionBytes {
    fn drop(&mut self) {
        let reported = *self.reported.get_mut();
        if reported > 0 {
            self.of.change(reported, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_pressure_above_the_limit() {
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
        let (one, other) = (holdings.want(), holdings.want());
        drop(one);
        assert!(*pressure.borrow(), "a response waits");
        drop(other);
        assert!(!*pressure.borrow());
    }
    #[test]
    fn a_connection_reports_large_changes_and_returns_everything() {
        let holdings = Holdings::new(100 << 10);
        let holding = ConnectionBytes::new(holdings.clone());
        holding.add(UNREPORTED_BYTES - 1);
        assert_eq!(holdings.bytes(), 0);
        holding.add(1);
        assert_eq!(holdings.bytes(), UNREPORTED_BYTES);
        holding.remove(UNREPORTED_BYTES - 1);
        assert_eq!((holding.bytes(), holdings.bytes()), (1, UNREPORTED_BYTES));
        holding.remove(1);
        assert_eq!(holdings.bytes(), 0, "who holds nothing has reported that");
        assert_eq!(holdings.share(|| 4), None);
        holding.add(200 << 10);
        assert_eq!((holdings.share(|| 4), holdings.share(|| 0)), (Some(25 << 10), Some(100 << 10)));
        drop(holding);
        assert_eq!((holdings.bytes(), holdings.share(|| 4)), (0, None));
    }

    #[test]
    fn concurrent_streams_keep_the_sum_right() {
        let holdings = Holdings::new(usize::MAX);
        let holding = ConnectionBytes::new(holdings.clone());
        std::thread::scope(|scope| {
            for step in 1..=4 {
                let holding = &holding;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        holding.add(step * 3000);
                        holding.remove(step * 3000);
                    }
                });
            }
        });
        assert_eq!((holding.bytes(), holdings.bytes()), (0, 0));
    }
}
