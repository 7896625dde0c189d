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
/// `mi_option_arena_reserve`, in KiB.
const ARENA: std::ffi::c_int = 23;
/// Address space that is reserved at a time. The default, 1 GiB, takes 2 MB of memory for tables.
const ARENA_KIB: std::ffi::c_long = 64 << 10;

/// Run by the C library: the first allocation, before `main`, reserves the first arena.
#[expect(unsafe_code, reason = "a constructor, which calls nothing but the allocator")]
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn set_arena() {
        allocator::mi_option_set(ARENA, ARENA_KIB);
    }
    set_arena
};

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

/// Interval at which mapped code is counted.
const CODE_PERIOD: Duration = Duration::from_secs(1);
/// Code that is unmapped: this much more than was in use a second after the last time, in pages.
const UNUSED_CODE: u64 = 128;
/// Code is unmapped at least every this many periods.
const CODE_PERIODS: u32 = 15;

/// Unmaps code, and its constants, that are not in use, regularly. Runs until dropped.
///
/// The executable has the code of all roles, and the kernel maps 64 KiB and more around each page
/// that is touched: 28 MB by the start of a kubelet, 13 MB by its tasks of every ten seconds. What
/// is in use is mapped again within a millisecond: the pages stay in the page cache, from where the
/// kernel can reclaim the others.
pub(crate) async fn release_code() {
    let table = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let code = code_in(&table);
    let mut since = CodeInUse::default();
    loop {
        tokio::time::sleep(CODE_PERIOD).await;
        let counts = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        if since.has_grown(file_pages(&counts)) {
            code.iter().for_each(unmap);
        }
    }
}

/// Resident pages of files, from `/proc/self/statm`.
fn file_pages(counts: &str) -> u64 {
    counts.split_ascii_whitespace().nth(2).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Mapped code since it was last unmapped.
#[derive(Default)]
struct CodeInUse {
    /// Pages in the first period.
    first: Option<u64>,
    periods: u32,
}

impl CodeInUse {
    /// Takes the pages that are mapped now. Whether to unmap them.
    fn has_grown(&mut self, pages: u64) -> bool {
        let first = *self.first.get_or_insert(pages);
        self.periods += 1;
        let has_grown = pages > first + UNUSED_CODE || self.periods >= CODE_PERIODS;
        if has_grown {
            *self = Self::default();
        }
        has_grown
    }
}

/// The parts of the address space with code of the executable and its libraries, and constants
/// directly before it. Those after it may have been relocated, which would be lost.
fn code_in(table: &str) -> Vec<Range<usize>> {
    let mut code = Vec::new();
    let mut constants: Option<(Range<usize>, &str)> = None;
    for line in table.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        let before = constants.take();
        // Neither the kernel's code nor memory without a file.
        let Some(file) = fields.nth(3).filter(|file| file.starts_with('/')) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).ok());
        let Some((own, end)) = start.zip(end) else { continue };
        let before = before.filter(|(before, of)| before.end == own && *of == file);
        let start = before.map_or(own, |(before, _)| before.start);
        match access {
            "r-xp" => code.push(start..end),
            "r--p" => constants = Some((start..end, file)),
            _ => {}
        }
    }
    code
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
            8100-8200 rw-p 00000000 00:00 0\n\
            8200-8210 r--p 00000000 00:00 0   [vvar]\n\
            8210-8220 r-xp 00000000 00:00 0   [vdso]\n";
        assert_eq!(code_in(table), [0x7f00..0x7fa0, 0x8000..0x8100]);
        let own = std::fs::read_to_string("/proc/self/maps").unwrap();
        let code = code_in(&own);
        let own = (code_in as *const ()).addr();
        assert!(code.iter().any(|code| code.contains(&own)), "{own:x} {code:x?}");
        code.iter().for_each(unmap);
        assert_eq!(code_in(table).len(), 2);
    }

    #[test]
    fn code_is_unmapped_when_more_is_mapped_than_is_in_use() {
        let mut code = CodeInUse::default();
        for pages in [1000, 1000 + UNUSED_CODE, 900] {
            assert!(!code.has_grown(pages), "{pages}");
        }
        assert!(code.has_grown(1001 + UNUSED_CODE));
        // Then at the latest: the first period may have had a rare task.
        let periods = (1..).find(|_| code.has_grown(5000));
        assert_eq!(periods, Some(CODE_PERIODS));
        assert_eq!(file_pages("9000 700 500 1 0 800 0\n"), 500);
    }

    /// Other releases of mimalloc may number their options differently.
    #[test]
    fn the_options_are_the_purge_delay_and_the_size_of_arenas() {
        assert_eq!(allocator::mi_option_get(ARENA), ARENA_KIB, "set before main");
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), 1000, "mimalloc 3's default");
        set_up();
        assert_eq!(allocator::mi_option_get(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
