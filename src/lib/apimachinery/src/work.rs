//! Step counts of algorithms on user input: tests assert linear growth, which a clock on a busy
//! machine cannot show.
//!
//! Every walk, unindexed lookup, shift and comparison of input-dependent size calls [`count`].
//! Without debug assertions nothing is counted.

#[cfg(debug_assertions)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts steps of this thread: visited nodes, shifted or compared elements, bytes copied more than
/// once.
#[inline]
pub fn count(steps: usize) {
    #[cfg(debug_assertions)]
    STEPS.with(|counted| counted.set(counted.get().saturating_add(steps as u64)));
    #[cfg(not(debug_assertions))]
    let _ = steps;
}

/// Runs a closure on this thread and returns the steps it counted; 0 without debug assertions.
pub fn counted<T>(run: impl FnOnce() -> T) -> (T, u64) {
    #[cfg(debug_assertions)]
    {
        let before = STEPS.with(std::cell::Cell::get);
        let result = run();
        (result, STEPS.with(std::cell::Cell::get) - before)
    }
    #[cfg(not(debug_assertions))]
    {
        (run(), 0)
    }
}

/// A key whose comparisons count: a set or map of these counts about one step for a lookup, a list
/// that is searched counts each element.
#[derive(Clone, Copy, Debug)]
pub struct CountedKey<T>(pub T);

impl<T: PartialEq> PartialEq for CountedKey<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        count(1);
        self.0 == other.0
    }
}

impl<T: Eq> Eq for CountedKey<T> {}

impl<T: std::hash::Hash> std::hash::Hash for CountedKey<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
