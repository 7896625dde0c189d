//! Work of algorithms on user input, counted: tests assert that it grows like the input, which a
//! clock on a busy machine cannot show.
//!
//! Each walk, lookup without an index, shift and comparison of hostile size counts its steps with
//! [`count`]. Builds without debug assertions count nothing.

#[cfg(debug_assertions)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts steps of this thread: nodes visited, elements shifted or compared, bytes copied once more
/// than the input demands.
#[inline]
pub fn count(steps: usize) {
    #[cfg(debug_assertions)]
    STEPS.with(|counted| counted.set(counted.get().saturating_add(steps as u64)));
    #[cfg(not(debug_assertions))]
    let _ = steps;
}

/// Runs on this thread and returns the steps that were counted meanwhile; 0 without debug
/// assertions.
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
