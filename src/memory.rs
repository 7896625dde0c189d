//! The allocator, and returning freed memory to the system while idle.
//!
//! mimalloc returns freed pages after a delay, and only during a later allocation: a process that
//! goes idle after a burst would keep all of it (250 MB after 100,000 deleted objects). Under load,
//! its default delay of 1 s keeps up to 100 MB freed by large objects (64 writers of an object of
//! 500 KB: 295 MB resident, with 25 ms 200 MB). No scenario of `benches/load` slows down with 25
//! ms; lists do with no delay at all.

use ferrokube_apimachinery::work;
use std::cell::Cell;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Purge interval; freed memory is returned after one to two of them.
const PERIOD: Duration = Duration::from_secs(1);
/// Every this many purges all free memory is returned, however recently freed, including pages that
/// workers retain.
const ALL: u32 = 8;

#[expect(unsafe_code, reason = "declares a function of the linked allocator")]
mod allocator {
    unsafe extern "C" {
        /// Returns memory of the calling thread and of the process that has been free long enough;
        /// all of it with `force`.
        pub(super) safe fn mi_collect(force: bool);
        /// Sets a `mi_option_t`, overriding the environment.
        pub(super) safe fn mi_option_set(option: std::ffi::c_int, value: std::ffi::c_long);
        #[cfg(test)]
        pub(super) safe fn mi_option_get(option: std::ffi::c_int) -> std::ffi::c_long;
    }
}

/// `mi_option_purge_delay` of mimalloc 3, in milliseconds.
const PURGE_DELAY: std::ffi::c_int = 15;
const PURGE_DELAY_MS: std::ffi::c_long = 25;

/// Must be called before the first thread starts.
pub(crate) fn set_up() {
    allocator::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
    work::set_memory_trimmer(|| allocator::mi_collect(true));
}

/// Idle time after which a blocking thread exits. Until then its allocator cache keeps memory that
/// no other thread can use: some megabytes after computations on large objects.
pub(crate) const IDLE_THREAD: Duration = Duration::from_secs(1);

thread_local! {
    /// This worker's last purge, and its number of purges.
    static LAST: Cell<(Option<Instant>, u32)> = const { Cell::new((None, 0)) };
}

/// Called by an idle worker: returns its free memory, rate limited. Only the worker itself can;
/// memory freed by other threads waits for it.
pub(crate) fn at_rest() {
    LAST.with(|last| {
        let ((before, looks), now) = (last.get(), Instant::now());
        if before.is_none_or(|before| now.duration_since(before) >= PERIOD) {
            last.set((Some(now), looks.wrapping_add(1)));
            allocator::mi_collect(looks % ALL == ALL - 1);
        }
    });
}

/// Wakes a worker regularly, so that memory freed before all of them went idle is returned.
pub(crate) async fn wake() {
    loop {
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other releases of mimalloc may number their options differently.
    #[test]
    fn the_option_is_the_purge_delay() {
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), 1000, "mimalloc 3's default");
        set_up();
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
