//! Capacity and availability of the machine's resources.

use std::fs;
use std::path::Path;

/// Capacity and availability of a resource, in bytes or counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceFigure {
    /// Total.
    pub capacity: u64,
    /// Not used.
    pub available: u64,
}

/// A node's resources; `None`: unknown, treated as sufficient.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Bytes.
    pub memory: Option<ResourceFigure>,
    /// Bytes of the file system of pods.
    pub node_disk: Option<ResourceFigure>,
    /// Inodes of that file system.
    pub node_inodes: Option<ResourceFigure>,
    /// Bytes of the file system of images.
    pub image_disk: Option<ResourceFigure>,
    /// Inodes of that file system.
    pub image_inodes: Option<ResourceFigure>,
    /// Processes that the kernel allows.
    pub processes: Option<ResourceFigure>,
}

/// Source of resource figures: the machine, or a test.
pub trait FigureSource: Send + Sync {
    /// Reads the figures; may block. `root` is a directory on the file system of pods, `images` one
    /// on that of images, if known.
    fn read(&self, root: &Path, images: Option<&Path>) -> NodeFigures;
}

/// Reads `/proc` and file system statistics.
pub(crate) struct MachineFigures;

impl FigureSource for MachineFigures {
    fn read(&self, root: &Path, images: Option<&Path>) -> NodeFigures {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory = text("/proc/meminfo");
        let [node_disk, node_inodes] = disk(root);
        let [image_disk, image_inodes] = images.map_or([None, None], disk);
        let of = |capacity: Option<u64>, available: Option<u64>| {
            Some(ResourceFigure { capacity: capacity?, available: available? })
        };
        // "0.1 0.2 0.3 2/345 6789": running and all.
        let load = text("/proc/loadavg");
        let used: Option<u64> = load.split([' ', '/']).nth(4).and_then(|word| word.parse().ok());
        let most: Option<u64> = text("/proc/sys/kernel/pid_max").trim().parse().ok();
        NodeFigures {
            memory: of(bytes(&memory, "MemTotal:"), bytes(&memory, "MemAvailable:")),
            node_disk,
            node_inodes,
            image_disk,
            image_inodes,
            processes: of(most, most.zip(used).map(|(most, used)| most.saturating_sub(used))),
        }
    }
}

fn disk(path: &Path) -> [Option<ResourceFigure>; 2] {
    let Ok(disk) = rustix::fs::statvfs(path) else { return [None, None] };
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let room = ResourceFigure { capacity: bytes(disk.f_blocks), available: bytes(disk.f_bavail) };
    let inodes = ResourceFigure { capacity: disk.f_files, available: disk.f_favail };
    // Some file systems report no inodes.
    [room, inodes].map(|figure| Some(figure).filter(|figure| figure.capacity > 0))
}

/// Bytes of a line such as `MemTotal:  123 kB`.
fn bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_disk_and_processes() {
        let figures = MachineFigures.read(Path::new("/"), Some(Path::new("/none")));
        let is_there = |figure: Option<ResourceFigure>| {
            figure.is_some_and(|figure| figure.capacity > 0 && figure.available <= figure.capacity)
        };
        assert!(is_there(figures.memory) && is_there(figures.node_disk), "{figures:?}");
        assert!(is_there(figures.processes), "{figures:?}");
        assert_eq!(figures.image_disk, None);
    }
}
