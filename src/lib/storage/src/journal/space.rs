//! What happens when there is no space.
//!
//! Two files hold space back. The *ballast* is given up piece by piece for what must be appended: deletes, and changes that make nothing larger. The *spare*
//! becomes the file that is written when old files are merged, so that nobody else gets that space meanwhile, and is made again of what the merge regains.
//! While one of them is missing, what would grow is refused. So whatever others do to the disk: deletes are journaled, and make space by themselves.

use crate::committer::AppendError;
use crate::head::QueuedTxn;
use crate::journal::Journal;
use crate::journal::dir::{JournalDir, ROOM_BYTES, Reserve};
use crate::journal::frame::SEGMENT_HEADER;
use crate::journal::merge::SpacePressure;

/// After so many appended bytes the free space is looked at again.
const SPACE_CHECK_BYTES: u64 = 1 << 20;
/// So much must have been replaced before files are merged on a full disk.
const RECLAIM_BYTES: u64 = 1 << 20;
/// And such a part of the journal.
const RECLAIM_PART: u64 = 32;

pub(super) struct DiskSpace {
    /// What would grow is refused.
    pub(super) full: bool,
    /// What the next merge spares.
    pub(super) pressure: SpacePressure,
    /// Bytes since the free space was looked at.
    pub(super) unchecked: u64,
    /// Bytes that are held back.
    ballast: u64,
    spare: u64,
    /// What was no value in the journal's files when the last merge had ended.
    overhead: u64,
    /// The last revision when a merge that spares nothing began: there is nothing new for another one before the next.
    tried: Option<u64>,
    /// Regaining space failed in a way that the next append must report.
    pub(super) broken: Option<String>,
}

impl DiskSpace {
    /// As the last process has left it.
    pub(super) fn find(journal_dir: &JournalDir) -> Self {
        let [ballast, spare] = [Reserve::Ballast, Reserve::Spare].map(|reserve| journal_dir.held_bytes(reserve));
        Self { full: false, pressure: SpacePressure::High, unchecked: SPACE_CHECK_BYTES, ballast, spare, overhead: 0, tried: None, broken: None }
    }

    /// Gives up some of what is held back, but for what must be left; whether there was any.
    fn give_up(&mut self, journal_dir: &JournalDir, reserve: Reserve, (bytes, left): (u64, u64)) -> bool {
        let held = match reserve {
            Reserve::Ballast => &mut self.ballast,
            Reserve::Spare => &mut self.spare,
        };
        if *held <= left {
            return false;
        }
        let rest = held.saturating_sub(bytes).max(left);
        let outcome = journal_dir.shrink(reserve, rest);
        *held = if outcome.is_ok() { rest } else { 0 };
        outcome.is_ok()
    }
}

impl Journal {
    /// Appends what makes nothing larger, when there is no space: gives up what is held back for it, then regains what was replaced.
    pub(super) fn append_anyway(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        // No more than needed: others take the rest.
        let mut bytes = (self.writer.len() as u64).max(self.journal_dir.limits.ballast_bytes / 64).max(1);
        loop {
            let has_more = self.space.give_up(&self.journal_dir, Reserve::Ballast, (bytes, self.room())) || self.reclaim_all()? || self.give_up_spare(bytes);
            if !has_more {
                return Err(AppendError::Full);
            }
            match self.try_append(batch) {
                Err(AppendError::Full) => bytes += bytes.div_ceil(2),
                outcome => {
                    // What was given up and not used.
                    self.hold_back();
                    return outcome;
                }
            }
        }
    }

    /// Without space the active log must not outgrow the spare file: no merge could write it anew.
    pub(super) fn keep_mergeable(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        let after = self.end.len + batch.iter().map(|job| job.bytes as u64).sum::<u64>();
        if !self.space.full || self.end.len <= SEGMENT_HEADER as u64 || self.space.spare == 0 || after <= self.space.spare {
            return Ok(());
        }
        match self.reclaim_all() {
            Ok(_) | Err(AppendError::Full) => Ok(()),
            Err(fatal) => Err(fatal),
        }
    }

    /// So much of the ballast is for the new log with which a merge begins.
    fn room(&self) -> u64 {
        ROOM_BYTES.min(self.journal_dir.limits.ballast_bytes / 8)
    }

    /// Gives up what no merge needs.
    fn give_up_spare(&mut self, bytes: u64) -> bool {
        let largest = self.layout.with(|files| files.largest());
        self.space.give_up(&self.journal_dir, Reserve::Spare, (bytes, largest))
    }

    /// Waits for every byte that was replaced; false when there is none.
    fn reclaim_all(&mut self) -> Result<bool, AppendError> {
        self.rewriter.finish().map_err(AppendError::Fatal)?;
        if self.space.tried.replace(self.end.revision) == Some(self.end.revision) {
            return Ok(false);
        }
        self.space.pressure = SpacePressure::Full;
        let begun = self.merge();
        self.space.pressure = SpacePressure::High;
        begun?;
        self.rewriter.finish().map_err(AppendError::Fatal)?;
        self.merged();
        self.hold_back();
        // The spare file gets what was regained first.
        let missing = (self.journal_dir.limits.ballast_bytes / 2).saturating_sub(self.space.ballast);
        if missing > 0 && self.give_up_spare(missing) {
            self.hold_back();
        }
        Ok(true)
    }

    /// Closes the active log, if there is anything in it, and begins a merge.
    fn merge(&mut self) -> Result<(), AppendError> {
        if self.end.len <= SEGMENT_HEADER as u64 {
            return self.rewriter.start((self.live_bytes)(), self.space.pressure).map_err(AppendError::Fatal);
        }
        let next = self.layout.with(|files| files.active.last + 1);
        loop {
            match self.roll(next) {
                Err(AppendError::Full)
                    if self.space.pressure == SpacePressure::Full && self.space.give_up(&self.journal_dir, Reserve::Ballast, (self.room() / 4, 0)) => {}
                outcome => return outcome,
            }
        }
    }

    /// On a full disk: regains what was replaced, if it is much.
    fn reclaim(&mut self) {
        if self.rewriter.is_running() {
            return;
        }
        let live = (self.live_bytes)();
        let total = self.layout.with(|files| files.len());
        let least = RECLAIM_BYTES.min(self.journal_dir.limits.segment_bytes).max(total / RECLAIM_PART);
        if total.saturating_sub(live) < self.space.overhead + least {
            return;
        }
        match self.merge() {
            Ok(()) => {}
            Err(AppendError::Full) => tracing::debug!("no space can be regained yet"),
            // The next append reports it.
            Err(AppendError::Fatal(reason)) => self.space.broken = Some(reason),
        }
    }

    /// Makes what is held back as large as it is to be; whether it is.
    pub(super) fn hold_back(&mut self) -> bool {
        let ballast = self.journal_dir.limits.ballast_bytes / 2;
        self.space.ballast = self.journal_dir.hold(Reserve::Ballast, self.space.ballast, ballast);
        // A merge uses it, and makes it again.
        if self.rewriter.is_running() {
            return false;
        }
        let spare = self.layout.with(|files| files.spare_bytes(&self.journal_dir.limits));
        self.space.spare = self.journal_dir.hold(Reserve::Spare, self.space.spare, spare);
        self.space.ballast >= ballast && self.space.spare >= spare
    }

    /// Takes note of a merge that has ended.
    fn merged(&mut self) {
        if self.rewriter.take_ended() {
            let total = self.layout.with(|files| files.len());
            self.space.overhead = total.saturating_sub((self.live_bytes)());
            // It was used, and made again in whole or in part.
            self.space.spare = self.journal_dir.held_bytes(Reserve::Spare);
        }
    }

    /// Whether something may grow.
    pub(super) fn check_space(&mut self, probe: bool) -> bool {
        if !probe && !self.space.full && self.space.unchecked < SPACE_CHECK_BYTES.min(self.journal_dir.limits.ballast_bytes / 8) {
            return true;
        }
        let Ok(free) = self.journal_dir.io.free_bytes(&self.journal_dir.dir) else { return !self.space.full };
        self.space.unchecked = 0;
        let watermark = self.journal_dir.limits.watermark_bytes;
        self.space.full |= free < watermark;
        if !self.space.full {
            self.space.full = !self.rewriter.is_running() && !self.hold_back();
            return !self.space.full;
        }
        self.rewriter.advance();
        if let Err(reason) = self.rewriter.check() {
            self.space.broken = Some(reason);
        }
        self.merged();
        let is_held = self.hold_back();
        self.reclaim();
        self.space.full = !is_held || free < watermark + watermark / 4;
        !self.space.full
    }
}
