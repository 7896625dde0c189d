//! Records how far the last log was acknowledged, separately from the log.
//!
//! In a log, a batch that was never acknowledged looks like damage to one that was: its last frame
//! ends in zeros, is short, or is missing. The manifest tells them apart. It has three slots, each
//! with a checksum and in a page of its own:
//!
//! - Two *durable* slots, written alternately and synced when a journal is opened, a log is begun,
//!   or the journal is closed. One of them is always intact: one that could not be written, for
//!   lack of space, is written again before the other.
//! - The *mark*, written after an acknowledgement that leaves the queue empty, never synced. It
//!   costs no sync because it is optional: it outlives the process, usually the power, and is
//!   always true, being written after the sync it refers to. (A batch followed by another needs no
//!   mark: a frame is only written after the sync of its predecessor.)
//!
//! Every slot is a lower bound; the highest wins.

use crate::journal::frame::{FrameKey, u32_at, u64_at};
use crate::journal::io::{File, is_full};
use std::io;
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"ferrokmf";
/// Distance between slots: what a device may tear together.
const PAGE: u64 = 4096;
const SLOT: usize = 64;
/// Index of the mark's slot.
const MARK: u64 = 2;

/// Length up to which a journal was acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// First revision of the last log, as in its file name.
    pub(crate) log: u64,
    /// Acknowledged length of the log, in bytes.
    pub(crate) len: u64,
    /// Last acknowledged revision.
    pub(crate) revision: u64,
    /// Identifies the log: another journal may have one of this name. Earlier versions left it out.
    pub(crate) key: FrameKey,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ManifestSlot {
    number: u64,
    acknowledged: Acknowledged,
    /// The journal was closed here; nothing was written afterwards.
    closed: bool,
}

impl ManifestSlot {
    fn encode(&self) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        bytes[..8].copy_from_slice(&MAGIC);
        let Acknowledged { log, len, revision, key } = self.acknowledged;
        for (index, number) in
            [self.number, log, len, revision, u64::from(self.closed)].into_iter().enumerate()
        {
            bytes[8 + index * 8..16 + index * 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[48..56].copy_from_slice(&key.to_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < SLOT
            || bytes[..8] != MAGIC
            || u32_at(bytes, 60) != crc32fast::hash(&bytes[..60])
        {
            return None;
        }
        let acknowledged = Acknowledged {
            log: u64_at(bytes, 16),
            len: u64_at(bytes, 24),
            revision: u64_at(bytes, 32),
            key: FrameKey::at(bytes, 48),
        };
        Some(Self { number: u64_at(bytes, 8), acknowledged, closed: u64_at(bytes, 40) == 1 })
    }
}

/// State that an earlier process recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastRun {
    /// Lower bound of what was acknowledged.
    pub(crate) acknowledged: Acknowledged,
    /// The bound is exact: the journal was closed.
    pub(crate) closed: bool,
}

/// A writable manifest.
pub(crate) struct Manifest {
    file: Arc<dyn File>,
    /// Sequence number of the last durable slot.
    number: u64,
    /// There was no space for the next one.
    is_behind: bool,
    /// A call failed for another reason: the state of the file is unknown.
    is_broken: bool,
}

impl Manifest {
    /// Initializes a new file. The caller makes its name durable.
    pub(crate) fn create(file: Arc<dyn File>, acknowledged: Acknowledged) -> io::Result<Self> {
        for number in [1, 2] {
            file.write_at(
                number % 2 * PAGE,
                &ManifestSlot { number, acknowledged, closed: false }.encode(),
            )?;
        }
        // Allocates the pages, so that they can be overwritten in place on a full disk.
        file.write_at(MARK * PAGE, &[0; PAGE as usize])?;
        file.sync()?;
        Ok(Self::at(file, 2))
    }

    fn at(file: Arc<dyn File>, number: u64) -> Self {
        Self { file, number, is_behind: false, is_broken: false }
    }

    /// Whether [`Self::settle`] is to be repeated: there was no space.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Reads a manifest; `None` if neither durable slot is intact.
    pub(crate) fn open(file: Arc<dyn File>) -> io::Result<Option<(Self, LastRun)>> {
        let slot = |at: u64| -> io::Result<Option<ManifestSlot>> {
            let mut bytes = [0; SLOT];
            let len = file.read_at(at * PAGE, &mut bytes)?;
            Ok(ManifestSlot::decode(&bytes[..len]))
        };
        let Some(last) = slot(0)?.into_iter().chain(slot(1)?).max_by_key(|slot| slot.number) else {
            return Ok(None);
        };
        let mark = slot(MARK)?.map_or(last.acknowledged, |mark| mark.acknowledged);
        let left = if mark.revision > last.acknowledged.revision || mark.log > last.acknowledged.log
        {
            LastRun { acknowledged: mark, closed: false }
        } else {
            LastRun { acknowledged: last.acknowledged, closed: last.closed }
        };
        Ok(Some((Self::at(file, last.number), left)))
    }

    /// Writes a durable slot. Returns false if there is no space: the recorded bound remains true,
    /// and the next call writes the same slot again.
    ///
    /// # Errors
    /// Any other IO error; fatal, like a failed sync.
    pub(crate) fn settle(&mut self, acknowledged: Acknowledged, closed: bool) -> io::Result<bool> {
        if self.is_broken {
            return Ok(false);
        }
        let slot = ManifestSlot { number: self.number + 1, acknowledged, closed };
        let written = self
            .file
            .write_at(slot.number % 2 * PAGE, &slot.encode())
            .and_then(|()| self.file.sync());
        match written {
            Ok(()) => {
                self.number = slot.number;
                self.is_behind = false;
                Ok(true)
            }
            Err(error) if is_full(&error) => {
                if !std::mem::replace(&mut self.is_behind, true) {
                    tracing::warn!("no space for the manifest: it is written once there is");
                }
                Ok(false)
            }
            Err(error) => {
                self.is_broken = true;
                Err(error)
            }
        }
    }

    /// Writes the mark, unsynced. Without space it is left out.
    pub(crate) fn mark(&mut self, acknowledged: Acknowledged) {
        if self.is_broken {
            return;
        }
        let slot = ManifestSlot { number: 0, acknowledged, closed: false };
        match self.file.write_at(MARK * PAGE, &slot.encode()) {
            Err(error) if !is_full(&error) => {
                self.is_broken = true;
                tracing::error!(
                    %error,
                    "cannot write the manifest: damage to later writes may be taken for an \
                     incomplete batch"
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::io::Io;
    use crate::testing::{DiskFault, SimDisk};
    use std::path::Path;

    fn at(log: u64, len: u64, revision: u64) -> Acknowledged {
        Acknowledged { log, len, revision, key: FrameKey::at(&log.to_le_bytes(), 0) }
    }

    #[test]
    fn a_slot_without_room_is_written_again_and_the_other_one_left_alone() {
        let disk = SimDisk::default();
        disk.make_dir(Path::new("/m")).unwrap();
        let file = disk.create(Path::new("/m/MANIFEST")).unwrap();
        let left = || Manifest::open(file.clone()).unwrap().unwrap().1.acknowledged;
        let mut manifest = Manifest::create(file.clone(), at(1, 48, 0)).unwrap();
        for log in [4, 6] {
            disk.fail_next_write("MANIFEST", DiskFault::Enospc);
            assert!(!manifest.settle(at(log, 48, 3), false).unwrap() && manifest.is_behind());
            assert_eq!(left(), at(1, 48, 0), "the other slot");
        }
        disk.fail_next_write("MANIFEST", DiskFault::Enospc);
        manifest.mark(at(6, 100, 7));
        assert_eq!(left(), at(1, 48, 0), "a mark without room is left out");
        manifest.mark(at(6, 200, 8));
        assert_eq!(left(), at(6, 200, 8));
        assert!(manifest.settle(at(9, 48, 8), false).unwrap() && !manifest.is_behind());
        assert_eq!(left(), at(9, 48, 8));
        // Now the other one.
        disk.fail_next_write("MANIFEST", DiskFault::Enospc);
        assert!(!manifest.settle(at(12, 48, 9), false).unwrap());
        assert_eq!(left(), at(9, 48, 8));
    }

    #[test]
    fn nothing_is_written_after_another_error() {
        let disk = SimDisk::default();
        disk.make_dir(Path::new("/m")).unwrap();
        let file = disk.create(Path::new("/m/MANIFEST")).unwrap();
        let mut manifest = Manifest::create(file.clone(), at(1, 48, 0)).unwrap();
        disk.fail_next_write("MANIFEST", DiskFault::Eio);
        assert!(manifest.settle(at(4, 48, 3), false).is_err());
        let calls = disk.calls();
        assert!(!manifest.settle(at(9, 48, 8), true).unwrap());
        manifest.mark(at(9, 100, 9));
        assert_eq!(disk.calls(), calls);
        assert_eq!(Manifest::open(file).unwrap().unwrap().1.acknowledged, at(1, 48, 0));
    }

    #[test]
    fn the_highest_whole_slot_counts() {
        let disk = SimDisk::default();
        disk.make_dir(Path::new("/m")).unwrap();
        let file = disk.create(Path::new("/m/MANIFEST")).unwrap();
        let left = || Manifest::open(file.clone()).unwrap().unwrap().1;
        let mut manifest = Manifest::create(file.clone(), at(1, 48, 0)).unwrap();
        assert_eq!(left(), LastRun { acknowledged: at(1, 48, 0), closed: false });
        manifest.mark(at(1, 200, 3));
        assert_eq!(left(), LastRun { acknowledged: at(1, 200, 3), closed: false });
        assert!(manifest.settle(at(4, 48, 3), false).unwrap());
        assert_eq!(left().acknowledged, at(4, 48, 3));
        assert!(manifest.settle(at(4, 100, 5), true).unwrap());
        assert_eq!(left(), LastRun { acknowledged: at(4, 100, 5), closed: true });
        file.write_at(0, &[7]).unwrap();
        assert_eq!(left(), LastRun { acknowledged: at(4, 48, 3), closed: false }, "the other slot");
        manifest.mark(at(4, 90, 4));
        file.write_at(MARK * PAGE + 9, &[7]).unwrap();
        assert_eq!(left().acknowledged, at(4, 48, 3), "a torn mark is ignored");
        file.write_at(PAGE, &[7]).unwrap();
        assert!(Manifest::open(file).unwrap().is_none());
    }
}
