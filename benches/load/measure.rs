//! CPU time and memory of processes, and the result of one round of a scenario.

use std::time::Duration;

/// CPU time of processes at a moment.
#[derive(Clone, Copy)]
pub(crate) struct CpuTime {
    /// CPU time of the live threads, in nanoseconds.
    live: Duration,
    /// With ended threads, in steps of 10 ms.
    whole: Duration,
}

impl CpuTime {
    /// CPU time spent since then: in steps of 10 ms if threads have ended meanwhile.
    pub(crate) fn since(self, before: Self) -> Duration {
        let live = self.live.saturating_sub(before.live);
        let whole = self.whole.saturating_sub(before.whole);
        if whole > live + Duration::from_millis(20) { whole } else { live }
    }
}

/// CPU time of processes so far.
pub(crate) fn cpu(pids: &[u32]) -> CpuTime {
    CpuTime {
        live: pids.iter().map(|pid| live_cpu(*pid)).sum(),
        whole: pids.iter().map(|pid| charged_cpu(*pid)).sum(),
    }
}

fn live_cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    Duration::from_nanos(tasks.map(|task| on_cpu(&task.path())).sum())
}

fn charged_cpu(pid: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let words = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    // User and system time are fields 14 and 15; the first two fields were split off.
    let ticks: u64 = words.skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

/// CPU time of a process since its start, including ended threads: in steps of 10 ms, or finer by
/// the live threads.
pub(crate) fn whole_cpu(pid: u32) -> Duration {
    charged_cpu(pid).max(live_cpu(pid))
}

/// CPU time of the calling thread.
pub(crate) fn own_cpu() -> Duration {
    Duration::from_nanos(on_cpu(std::path::Path::new("/proc/thread-self")))
}

/// First number of `schedstat`: nanoseconds on a CPU. `stat` counts ticks of 10 ms.
fn on_cpu(task: &std::path::Path) -> u64 {
    let text = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Resident memory of processes, in KiB.
pub(crate) fn resident_kib(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        text.lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    pids.iter().map(of).sum()
}

/// Local processes that listen on a TCP port: the default for whose CPU counts.
pub(crate) fn listeners(port: u16) -> Vec<u32> {
    let mut inodes = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        inodes.extend(text.lines().skip(1).filter_map(|line| listening_inode(line, port)));
    }
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered =
        processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    numbered.filter(|pid| holds_socket(*pid, &inodes)).collect()
}

fn listening_inode(line: &str, port: u16) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
    let own = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    (own == port && *state == "0A").then(|| format!("socket:[{inode}]"))
}

fn holds_socket(pid: u32, inodes: &[String]) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.any(|link| inodes.iter().any(|inode| link.as_os_str() == inode.as_str()))
}

/// Result of one round of one scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Number of operations.
    pub(crate) count: usize,
    /// Total wall-clock time.
    pub(crate) wall: Duration,
    /// CPU time of the target's processes.
    pub(crate) cpu: Duration,
    /// Sorted latencies.
    pub(crate) latencies: Vec<Duration>,
    /// Additional figures of the scenario, such as `KiB/object`.
    pub(crate) figures: Vec<(&'static str, f64)>,
}

impl Sample {
    /// CPU milliseconds per operation.
    pub(crate) fn cpu_ms(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / self.count.max(1) as f64
    }

    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.count as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Latency percentile in milliseconds.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies
            .get((last as f64 * share).round() as usize)
            .map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    }
}
