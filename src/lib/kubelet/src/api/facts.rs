//! Facts of this machine, as a Node shows them. What cannot be read is empty.

use k8s_openapi::api::core::v1::NodeSystemInfo;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// kubelet's defaults of hard eviction.
const LEAST_MEMORY: u64 = 100 << 20;
const LEAST_DISK_PERCENT: u64 = 10;

/// What the machine has and what is left of it; bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MachineUse {
    pub(super) cpus: u64,
    pub(super) memory: u64,
    pub(super) free_memory: u64,
    pub(super) disk: u64,
    pub(super) free_disk: u64,
    pub(super) max_processes: u64,
    pub(super) processes: u64,
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

impl MachineUse {
    /// Reads it; `root`: a directory on the file system of pods.
    pub(super) fn read(root: &Path) -> Self {
        let memory = text("/proc/meminfo");
        let disk = rustix::fs::statvfs(root).ok();
        let bytes = |blocks: fn(&rustix::fs::StatVfs) -> u64| {
            disk.as_ref().map_or(0, |disk| blocks(disk).saturating_mul(disk.f_frsize))
        };
        // "0.1 0.2 0.3 2/345 6789": running and all.
        let load = text("/proc/loadavg");
        let all = load.split([' ', '/']).nth(4).and_then(|word| word.parse().ok());
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
            memory: field(&memory, "MemTotal:"),
            free_memory: field(&memory, "MemAvailable:"),
            disk: bytes(|disk| disk.f_blocks),
            free_disk: bytes(|disk| disk.f_bavail),
            max_processes: text("/proc/sys/kernel/pid_max").parse().unwrap_or(0),
            processes: all.unwrap_or(0),
        }
    }

    pub(super) fn is_short_of_memory(&self) -> bool {
        self.memory > 0 && self.free_memory < LEAST_MEMORY
    }

    pub(super) fn is_short_of_disk(&self) -> bool {
        self.disk > 0 && self.free_disk < self.disk / 100 * LEAST_DISK_PERCENT
    }

    pub(super) fn is_short_of_processes(&self) -> bool {
        self.max_processes > 0 && self.processes >= self.max_processes
    }

    /// What there is, and what pods may have of it.
    pub(super) fn quantities(&self, max_pods: u32) -> [BTreeMap<String, Quantity>; 2] {
        let all = |memory: u64, disk: u64| {
            let amounts = [
                ("cpu", self.cpus.to_string()),
                ("ephemeral-storage", format!("{}Ki", disk / 1024)),
                ("memory", format!("{}Ki", memory / 1024)),
                ("pods", max_pods.to_string()),
            ];
            amounts.map(|(name, amount)| (name.to_owned(), Quantity(amount))).into()
        };
        let left = self.disk / 100 * (100 - LEAST_DISK_PERCENT);
        [all(self.memory, self.disk), all(self.memory.saturating_sub(LEAST_MEMORY), left)]
    }
}

/// Bytes of a line such as `MemTotal:  123 kB`.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Names and versions of the machine; the runtime's is not known here.
pub(super) fn system_info(kubelet_version: &str) -> NodeSystemInfo {
    let release = text("/etc/os-release");
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let machine_id = text("/etc/machine-id");
    let uuid = text("/sys/class/dmi/id/product_uuid");
    NodeSystemInfo {
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .to_owned(),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: String::new(),
        kernel_version: text("/proc/sys/kernel/osrelease"),
        kube_proxy_version: String::new(),
        kubelet_version: kubelet_version.to_owned(),
        system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
        machine_id,
        operating_system: std::env::consts::OS.to_owned(),
        os_image: pretty.unwrap_or_default().trim_matches('"').to_owned(),
        swap: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_begins_at_kubelets_thresholds() {
        let machine = MachineUse {
            memory: 1 << 30,
            free_memory: LEAST_MEMORY,
            disk: 1000,
            free_disk: 100,
            max_processes: 10,
            processes: 9,
            cpus: 2,
        };
        let is_short = |it: &MachineUse| {
            (it.is_short_of_memory(), it.is_short_of_disk(), it.is_short_of_processes())
        };
        assert_eq!(is_short(&machine), (false, false, false));
        let full =
            MachineUse { free_memory: LEAST_MEMORY - 1, free_disk: 99, processes: 10, ..machine };
        assert_eq!(is_short(&full), (true, true, true));
        assert_eq!(is_short(&MachineUse::default()), (false, false, false), "unknown");
        let [_, allocatable] = machine.quantities(110);
        assert_eq!(allocatable["memory"].0, "946176Ki");
    }

    #[test]
    fn this_machine_has_memory_and_a_kernel() {
        let machine = MachineUse::read(Path::new("/"));
        assert!(machine.memory > 0 && machine.cpus > 0 && machine.disk > 0, "{machine:?}");
        assert!(!system_info("v1").kernel_version.is_empty());
    }
}
