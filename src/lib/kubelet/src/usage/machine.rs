//! Resource usage of the whole machine, from `/proc`.

use super::summary::{CpuSample, FsSample, MemorySample, NodeUsage, ProcessSample, SwapSample};
use crate::next::WallTime;
use std::fs;
use std::path::Path;

/// Nanoseconds per tick in `/proc/stat`: `USER_HZ` is 100 on all supported architectures.
const TICK: u64 = 10_000_000;

/// Reads it; `root`: a directory on the file system of pods.
pub(super) fn read(name: &str, root: &Path, time: WallTime) -> NodeUsage {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (stat, memory) = (text("/proc/stat"), text("/proc/meminfo"));
    NodeUsage {
        node_name: name.to_owned(),
        start_time: boot(&stat),
        cpu: cpu(&stat, time),
        memory: memory_sample(&memory, &text("/proc/vmstat"), time),
        fs: FsSample::of(root, time),
        runtime: None,
        rlimit: processes(&text("/proc/sys/kernel/pid_max"), &text("/proc/loadavg"), time),
        swap: swap(&memory, time),
    }
}

/// Cumulative non-idle CPU time.
fn cpu(stat: &str, time: WallTime) -> Option<CpuSample> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq; guest time is included in user, stolen time is not
    // ours.
    let ticks: Vec<u64> =
        line.split_whitespace().map_while(|word| word.parse().ok()).take(7).collect();
    let [user, nice, system, _, _, irq, softirq] = ticks.try_into().ok()?;
    let used = [user, nice, system, irq, softirq].into_iter().fold(0, u64::saturating_add);
    let usage_core_nano_seconds = Some(used.saturating_mul(TICK));
    Some(CpuSample { time, usage_nano_cores: None, usage_core_nano_seconds })
}

fn boot(stat: &str) -> WallTime {
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "));
    let seconds: i64 = seconds.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000)
}

/// As kubelet computes it for the root cgroup: usage is what is not free, the working set excludes
/// inactive file pages.
fn memory_sample(meminfo: &str, vmstat: &str, time: WallTime) -> Option<MemorySample> {
    let total = bytes(meminfo, "MemTotal:")?;
    let usage = total.saturating_sub(bytes(meminfo, "MemFree:")?);
    let working_set = usage.saturating_sub(bytes(meminfo, "Inactive(file):")?);
    Some(MemorySample {
        time,
        available_bytes: Some(total.saturating_sub(working_set)),
        usage_bytes: Some(usage),
        working_set_bytes: Some(working_set),
        rss_bytes: bytes(meminfo, "AnonPages:"),
        page_faults: field(vmstat, "pgfault "),
        major_page_faults: field(vmstat, "pgmajfault "),
    })
}

fn swap(meminfo: &str, time: WallTime) -> Option<SwapSample> {
    let (total, free) = (bytes(meminfo, "SwapTotal:")?, bytes(meminfo, "SwapFree:")?);
    let swap_usage_bytes = total.saturating_sub(free);
    Some(SwapSample { time, swap_available_bytes: free, swap_usage_bytes })
}

fn processes(pid_max: &str, loadavg: &str, time: WallTime) -> Option<ProcessSample> {
    // "0.1 0.2 0.3 2/345 6789": running and all.
    let curproc = loadavg.split([' ', '/']).nth(4)?.parse().ok()?;
    Some(ProcessSample { time, maxpid: pid_max.trim().parse().ok()?, curproc })
}

/// Bytes in a line such as `MemTotal:  123 kB`.
fn bytes(text: &str, name: &str) -> Option<u64> {
    field(text, name).map(|kibibytes| kibibytes.saturating_mul(1024))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_idle_waiting_or_stolen_is_not_used() {
        let stat = "cpu  100 20 3 9000 8000 1 2 7000 50 60\ncpu0 1 1 1 1 1 1 1\nbtime 1700000000\n";
        let used = cpu(stat, 5).and_then(|sample| sample.usage_core_nano_seconds);
        assert_eq!(used, Some(126 * TICK));
        assert_eq!(boot(stat), 1_700_000_000_000_000_000);
        assert_eq!((cpu("cpu  1 2 3", 5), boot("")), (None, 0));
    }

    #[test]
    fn pages_of_files_that_nobody_uses_are_no_working_set() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 200 kB\n\
                       AnonPages: 100 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n";
        let sample = memory_sample(meminfo, "pgfault 7\npgmajfault 1\n", 5).expect("all fields");
        let wanted = MemorySample {
            time: 5,
            available_bytes: Some(500 << 10),
            usage_bytes: Some(700 << 10),
            working_set_bytes: Some(500 << 10),
            rss_bytes: Some(100 << 10),
            page_faults: Some(7),
            major_page_faults: Some(1),
        };
        assert_eq!(sample, wanted);
        let swap = swap(meminfo, 5).expect("both fields");
        assert_eq!((swap.swap_available_bytes, swap.swap_usage_bytes), (20 << 10, 30 << 10));
        assert_eq!(memory_sample("", "", 5), None);
    }

    #[test]
    fn all_processes_count_not_those_that_run() {
        let sample = processes("4194304\n", "0.1 0.2 0.3 2/345 6789\n", 5).expect("both fields");
        assert_eq!((sample.maxpid, sample.curproc), (4_194_304, 345));
        assert!(processes("", "", 5).is_none());
    }

    /// Only what every kernel and sandbox has.
    #[test]
    fn this_machine_is_used() {
        let node = read("n1", Path::new("/"), 5);
        assert!(node.cpu.is_some() && node.memory.is_some() && node.fs.is_some(), "{node:?}");
    }
}
