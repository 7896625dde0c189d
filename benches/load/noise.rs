//! The machine and its noise, for judging the figures.

use crate::measure::own_cpu;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Environment of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// CPU model from `/proc/cpuinfo`.
    pub(crate) cpu: String,
    /// Number of cores.
    pub(crate) cores: usize,
    /// Kernel from `/proc/version`.
    pub(crate) kernel: String,
    /// Start time in seconds since 1970.
    pub(crate) unix_seconds: u64,
    /// Command line of the load generator.
    pub(crate) command: String,
}

impl Machine {
    /// The current machine.
    pub(crate) fn here() -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info
            .lines()
            .find_map(|line| line.strip_prefix("model name"))
            .map_or("unknown", |rest| rest.trim_start_matches(['\t', ' ', ':']));
        let version = std::fs::read_to_string("/proc/version").unwrap_or_default();
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Self {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: version.split(' ').nth(2).unwrap_or("unknown").to_owned(),
            unix_seconds: now,
            command: std::env::args()
                .skip(1)
                .filter(|word| word != "--bench")
                .map(|word| without_folders(&word))
                .collect::<Vec<_>>()
                .join(" "),
        }
    }
}

/// Shortens paths in a command line argument to their last component: reports must not name local
/// directories.
fn without_folders(word: &str) -> String {
    let last = |value: &str| {
        if value.contains("://") {
            value.to_owned()
        } else {
            value.rsplit('/').next().unwrap_or_default().to_owned()
        }
    };
    let values = |part: &str| part.split(',').map(last).collect::<Vec<_>>().join(",");
    word.split('=').map(values).collect::<Vec<_>>().join("=")
}

/// One noise sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Noise {
    /// Load average of the last minute, including our own load.
    pub(crate) load: f64,
    /// CPU milliseconds of a fixed workload: shows contention for caches and the sibling thread.
    pub(crate) loop_cpu_ms: f64,
    /// Wall-clock time of that workload divided by its CPU time; 1.0 on an idle machine.
    pub(crate) waiting: f64,
}

impl Noise {
    /// Takes a sample, in a few milliseconds.
    pub(crate) fn sample() -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let (before, begun) = (own_cpu(), Instant::now());
        std::hint::black_box(work());
        let (used, wall) =
            (own_cpu().saturating_sub(before).as_secs_f64(), begun.elapsed().as_secs_f64());
        Self {
            load: load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0),
            loop_cpu_ms: used * 1e3,
            waiting: if used > 0.0 { wall / used } else { 1.0 },
        }
    }
}

/// About 10 ms of arithmetic over 256 KiB, sensitive to clock rate, sibling thread and shared
/// cache.
fn work() -> u64 {
    let mut cells: Vec<u64> = (0..32_768).collect();
    let mut mixed = 1u64;
    for turn in 0..100 {
        for cell in &mut cells {
            mixed = (mixed ^ *cell).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(turn % 63);
            *cell = mixed;
        }
    }
    mixed
}
