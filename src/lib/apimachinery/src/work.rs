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

/// Callback that long computations call regularly. Set once, by the owner of CPU scheduling.
static BREATHER: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();

thread_local! {
    static BREATHS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    static UNINTERRUPTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Calls of [`breathe`] for each of the breather.
const BREATHS_EACH: u32 = 64;

/// Has [`breathe`] call this.
pub fn set_breather(breather: fn()) {
    let _ = BREATHER.set(breather);
}

/// A point between two steps of some microseconds where a long computation may wait for others.
/// Never under a lock that they may wait for: see [`uninterrupted`].
#[inline]
pub fn breathe() {
    BREATHS.with(|breaths| {
        let next = breaths.get().wrapping_add(1);
        breaths.set(next);
        if next.is_multiple_of(BREATHS_EACH) {
            call_breather();
        }
    });
}

/// Runs a closure on this thread and returns how often it called [`breathe`].
pub fn breaths<T>(run: impl FnOnce() -> T) -> (T, u32) {
    let before = BREATHS.get();
    let result = run();
    (result, BREATHS.get().wrapping_sub(before))
}

/// The same between two steps of some hundred microseconds.
pub fn breathe_now() {
    BREATHS.set(BREATHS.get().wrapping_add(1));
    call_breather();
}

#[cold]
fn call_breather() {
    if let Some(breather) = BREATHER.get()
        && !UNINTERRUPTED.get()
    {
        breather();
    }
}

/// Runs a computation that other threads may wait for.
pub fn uninterrupted<T>(run: impl FnOnce() -> T) -> T {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            UNINTERRUPTED.set(self.0);
        }
    }
    let _reset = Reset(UNINTERRUPTED.replace(true));
    run()
}

/// Callback that returns this thread's free memory to the system. Set once, by the owner of the
/// allocator.
static MEMORY_TRIMMER: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();

/// Has [`trim_memory`] call this.
pub fn set_memory_trimmer(trimmer: fn()) {
    let _ = MEMORY_TRIMMER.set(trimmer);
}

/// Returns this thread's free memory to the system, which no other thread can use until then. Takes
/// about a millisecond: only after computations that took much longer.
pub fn trim_memory() {
    if let Some(trimmer) = MEMORY_TRIMMER.get() {
        trimmer();
    }
}

/// A value that many threads share and the first one makes. The others wait, so making it never
/// gives way to them.
#[derive(Debug)]
pub struct SharedOnce<T>(std::sync::OnceLock<T>);

impl<T> SharedOnce<T> {
    /// Without a value.
    pub const fn new() -> Self {
        Self(std::sync::OnceLock::new())
    }

    /// The value, once it is made.
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }

    /// The value; makes it if it is the first to ask.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        self.0.get_or_init(|| uninterrupted(make))
    }
}

impl<T> Default for SharedOnce<T> {
    fn default() -> Self {
        Self::new()
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    thread_local! {
        static GIVEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    /// How often a closure gives way on this thread.
    pub(crate) fn times_given_way(run: impl FnOnce()) -> usize {
        set_breather(|| GIVEN.set(GIVEN.get() + 1));
        let before = GIVEN.get();
        run();
        GIVEN.get() - before
    }

    #[test]
    fn fault_34_a_shared_value_is_made_without_giving_way() {
        assert_eq!(times_given_way(breathe_now), 1);
        let once = SharedOnce::new();
        assert_eq!(times_given_way(|| *once.get_or_init(breathe_now)), 0);
        assert_eq!(times_given_way(breathe_now), 1);
    }
}
