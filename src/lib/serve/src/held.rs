//! Memory that answers hold while their clients take them, over all connections, and its pressure:
//! above the bound a client that takes nothing is cut within two seconds instead of
//! [`Limits::stall`](crate::Limits::stall), and a connection that waits for its client with more
//! than its share begins no further request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::watch;

/// The bytes that answers hold. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Holdings(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bytes: AtomicUsize,
    /// What others hold for answers: see [`Holdings::set_pinned`].
    pinned: AtomicUsize,
    bound: usize,
    /// Others that wait until something is given back: see [`Holdings::want`].
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
    /// With a bound, in bytes.
    pub fn new(bound: usize) -> Self {
        let (bytes, pinned, wanting) = Default::default();
        Self(Arc::new(Inner {
            bytes,
            pinned,
            bound,
            wanting,
            is_pressed: AtomicBool::new(false),
            pressed: watch::Sender::new(false),
        }))
    }

    /// Bytes that answers hold now: pieces that wait to be sent, and what was counted by
    /// [`Self::hold`]. Less than 4 KiB of each connection are missing.
    pub fn bytes(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Counts what an answer holds, until it is dropped.
    pub fn hold(&self, bytes: usize) -> Held {
        self.change(0, bytes);
        Held { of: self.clone(), bytes }
    }

    /// Sets how much more memory answers keep from being freed, such as versions of objects that
    /// are stored no more. Called by who can tell, now and then.
    pub fn set_pinned(&self, bytes: usize) {
        self.0.pinned.store(bytes, Ordering::Relaxed);
        self.press();
    }

    /// There is pressure until the result is dropped: an answer waits for memory that others hold.
    pub fn want(&self) -> Wanting {
        self.0.wanting.fetch_add(1, Ordering::Relaxed);
        self.press();
        Wanting(self.clone())
    }

    /// One who held so much holds so much now.
    pub(crate) fn change(&self, before: usize, after: usize) {
        // Wraps around when it is less.
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

    /// Shows whether more is held than may be.
    pub(crate) fn pressure(&self) -> watch::Receiver<bool> {
        self.0.pressed.subscribe()
    }

    /// What each of all connections may hold while there is pressure; `None` while there is none.
    pub(crate) fn share(&self, connections: impl FnOnce() -> u64) -> Option<usize> {
        self.0
            .is_pressed
            .load(Ordering::Relaxed)
            .then(|| self.0.bound / usize::try_from(connections()).unwrap_or(usize::MAX).max(1))
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
        self.of.change(self.bytes, 0);
    }
}

/// Pressure that one who waits makes.
#[derive(Debug)]
pub struct Wanting(Holdings);

impl Drop for Wanting {
    fn drop(&mut self) {
        self.0.0.wanting.fetch_sub(1, Ordering::Relaxed);
        self.0.press();
    }
}

/// A connection that holds less than this more or less than it has reported does not report it: no
/// event of a watch should touch what all connections share.
pub(crate) const UNREPORTED_BYTES: usize = 4 * 1024;

/// What one connection holds. Given back when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    bytes: AtomicUsize,
    reported: AtomicUsize,
    of: Holdings,
}

impl Holding {
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

    /// Whoever changes the bytes looks at what is reported after it, and whoever reports looks at
    /// the bytes again: the last of them leaves both near each other.
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

impl Drop for Holding {
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
        let (one, other) = (holdings.want(), holdings.want());
        drop(one);
        assert!(*pressure.borrow(), "somebody waits");
        drop(other);
        assert!(!*pressure.borrow());
    }
    #[test]
    fn a_connection_reports_what_is_worth_it_and_gives_all_of_it_back() {
        let holdings = Holdings::new(100 << 10);
        let holding = Holding::new(holdings.clone());
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
    fn streams_that_count_at_a_time_leave_the_sum_right() {
        let holdings = Holdings::new(usize::MAX);
        let holding = Holding::new(holdings.clone());
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
