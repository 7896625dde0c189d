//! The allocator, and returning freed memory to the system while nothing happens.
//!
//! mimalloc returns freed pages after a delay, and only during a later allocation: a process that goes quiet after a burst would keep all of it
//! (250 MB after 100,000 deleted objects). Under load its default of 1 s keeps up to 100 MB that large objects have just left (64 writers of an
//! object of 500 KB: 295 MB resident, with 25 ms 200 MB); no scenario of `benches/load` slows down with 25 ms, lists do with none at all.

use std::cell::Cell;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often memory is looked at; freed memory is given back after one to two of these.
const PERIOD: Duration = Duration::from_secs(1);
/// Every so many looks all that is free goes, however short it was so: also the pages that a worker holds back for itself.
const ALL: u32 = 8;

#[expect(unsafe_code, reason = "a declaration of the allocator's own function, linked in with it")]
mod allocator {
    unsafe extern "C" {
        /// Gives back what the calling thread and the whole process have freed for long enough (with `force`: all of it).
        pub(super) safe fn mi_collect(force: bool);
        /// Sets one of `mi_option_t`, whatever the environment says.
        pub(super) safe fn mi_option_set(option: std::ffi::c_int, value: std::ffi::c_long);
        #[cfg(test)]
        pub(super) safe fn mi_option_get(option: std::ffi::c_int) -> std::ffi::c_long;
    }
}

/// `mi_option_purge_delay` of mimalloc 3, in milliseconds.
const PURGE_DELAY: std::ffi::c_int = 15;
const PURGE_DELAY_MS: std::ffi::c_long = 25;

/// Call it before the first thread starts.
pub(crate) fn set_up() {
    allocator::mi_option_set(PURGE_DELAY, PURGE_DELAY_MS);
}

/// A thread that is no worker and has nothing to do ends after this. Until then it holds what it has freed, and nobody else can use that: some megabytes if it
/// has computed on large objects.
pub(crate) const IDLE_THREAD: Duration = Duration::from_secs(1);

thread_local! {
    /// When this worker gave back last, and how often it has.
    static LAST: Cell<(Option<Instant>, u32)> = const { Cell::new((None, 0)) };
}

/// A worker has nothing to do: it gives back what it holds, at most once in a while. Only it can: what others free of its memory waits for it.
pub(crate) fn at_rest() {
    LAST.with(|last| {
        let ((before, looks), now) = (last.get(), Instant::now());
        if before.is_none_or(|before| now.duration_since(before) >= PERIOD) {
            last.set((Some(now), looks.wrapping_add(1)));
            allocator::mi_collect(looks % ALL == ALL - 1);
        }
    });
}

/// Wakes a worker now and then, so that one comes to rest after what was freed while all slept.
pub(crate) async fn wake() {
    loop {
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another release of mimalloc may number its options differently.
    #[test]
    fn the_option_is_the_purge_delay() {
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), 1000, "mimalloc 3's default");
        set_up();
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
