//! The allocator, and returning freed memory to the system while nothing happens.
//!
//! mimalloc gives freed memory back a second after it was freed, but only on the way of a later allocation: a process that falls silent after a burst
//! would hold all of it for ever (250 MB after 100,000 deleted objects). Giving back at once (`MIMALLOC_PURGE_DELAY=0`) was measured, too: it costs
//! every list a round of page faults.

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
    }
}

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
