//! The allocator, and returning memory to the system while idle: what was freed, and code.
//!
//! mimalloc returns freed pages after a delay, and only during a later allocation: a process that
//! goes idle after a burst would keep all of it (250 MB after 100,000 deleted objects). Under load,
//! its default delay of 1 s keeps up to 100 MB freed by large objects (64 writers of an object of
//! 500 KB: 295 MB resident, with 25 ms 200 MB). No scenario of `benches/load` slows down with 25
//! ms; lists do with no delay at all.

use ferrokube_apimachinery::work;
use std::cell::Cell;
use std::ops::Range;
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

/// Interval at which unused code is unmapped. What is in use is mapped again within a millisecond.
const CODE_PERIOD: Duration = Duration::from_secs(10);

/// Unmaps code, and its constants, that are not in use, regularly. Runs until dropped.
///
/// The executable has the code of all roles, and the kernel maps 64 KiB around each page that is
/// touched: 28 MB by the start of a kubelet, which then touches 5 in ten seconds. The pages stay in
/// the page cache, from where they are mapped when they are used again; the kernel can reclaim the
/// others.
pub(crate) async fn release_code() {
    let table = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let executable = std::env::current_exe().unwrap_or_default();
    let code = code_in(&table, &executable.to_string_lossy());
    let Some(code) = code else { return std::future::pending().await };
    loop {
        tokio::time::sleep(CODE_PERIOD).await;
        unmap(&code);
    }
}

/// The part of the address space with the executable's code, and constants directly before it.
/// Those after it may have been relocated, which would be lost.
fn code_in(table: &str, executable: &str) -> Option<Range<usize>> {
    let mut constants: Option<Range<usize>> = None;
    for line in table.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (range, access) = (fields.next()?, fields.next()?);
        if fields.nth(3) != Some(executable) {
            continue;
        }
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
        let (own, end) = (start?, end?);
        let before = constants.take().filter(|before| before.end == own);
        let start = before.map_or(own, |before| before.start);
        match access {
            "r-xp" => return Some(start..end),
            "r--p" => constants = Some(start..end),
            _ => {}
        }
    }
    None
}

#[expect(unsafe_code, reason = "calls a function of the C library")]
fn unmap(code: &Range<usize>) {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }
    /// `MADV_DONTNEED` of Linux.
    const DONTNEED: c_int = 4;
    let start = std::ptr::with_exposed_provenance_mut(code.start);
    // SAFETY: a private mapping of a file whose pages were never written: they are read again.
    let _ = unsafe { madvise(start, code.len(), DONTNEED) };
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

    #[test]
    fn code_is_found_and_runs_after_it_was_unmapped() {
        let table = "7f00-7f10 r--p 00000000 08:01 9   /bin/a\n\
            7f10-7fa0 r-xp 00001000 08:01 9   /bin/a\n\
            7fa0-7fb0 r--p 0000a000 08:01 9   /bin/a\n\
            7fe0-7ff0 r--p 00000000 08:01 8   /lib/c.so\n\
            7ff0-7ff8 rw-p 00000000 08:01 8   /lib/c.so\n\
            8000-8100 r-xp 00000000 08:01 8   /lib/c.so\n\
            8100-8200 rw-p 00000000 00:00 0\n";
        assert_eq!(code_in(table, "/bin/a"), Some(0x7f00..0x7fa0));
        assert_eq!(code_in(table, "/bin/b"), None);
        let own = std::fs::read_to_string("/proc/self/maps").unwrap();
        let executable = std::env::current_exe().unwrap();
        let code = code_in(&own, executable.to_str().unwrap()).unwrap();
        let own = (code_in as *const ()).addr();
        assert!(code.contains(&own), "{own:x} {code:x?}");
        unmap(&code);
        assert_eq!(code_in(table, "/lib/c.so"), Some(0x8000..0x8100));
    }

    /// Other releases of mimalloc may number their options differently.
    #[test]
    fn the_option_is_the_purge_delay() {
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), 1000, "mimalloc 3's default");
        set_up();
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
