//! The allocator, and returning freed memory to the system while nothing happens.
//!
//! mimalloc gives freed memory back a second after it was freed, but only on the way of a later allocation: a process that falls silent after a burst
//! would hold all of it for ever (250 MB after 100,000 deleted objects). Giving back at once (`MIMALLOC_PURGE_DELAY=0`) was measured, too: it costs
//! every list a round of page faults.

use std::time::Duration;

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

/// Gives back what is free, for ever. It runs on whichever worker wakes for it, so that each gives back its own, too.
pub(crate) async fn give_back() {
    for look in (1..=ALL).cycle() {
        tokio::time::sleep(PERIOD).await;
        allocator::mi_collect(look == ALL);
    }
}
