//! CPU and memory of processes, and latencies.

use std::time::Duration;

/// CPU time that processes have used, all their living threads.
pub(crate) fn cpu(pids: &[u32]) -> Duration {
    let mut nanos = 0;
    for pid in pids {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            nanos += text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    Duration::from_nanos(nanos)
}

/// Resident memory of processes, in KiB.
pub(crate) fn resident_kib(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("VmRSS:")).and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    pids.iter().map(of).sum()
}

/// What one round of one scenario gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Operations.
    pub(crate) count: usize,
    /// Wall time of all of them.
    pub(crate) wall: Duration,
    /// CPU of the target's processes.
    pub(crate) cpu: Duration,
    /// Sorted latencies.
    pub(crate) latencies: Vec<Duration>,
    /// Named figures of the scenario itself, such as `KiB/object`.
    pub(crate) extra: Vec<(&'static str, f64)>,
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

    /// A latency by its rank, in milliseconds.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get((last as f64 * share).round() as usize).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
    }
}
