//! Working on a full disk.
//!
//! Two files reserve space. The *ballast* is released bit by bit for appends that must go through:
//! deletes, and changes that grow nothing. The *spare* becomes the output of a merge, so that no
//! other process gets that space in between, and is recreated from what the merge regains. While
//! either is incomplete, growth is refused. So deletes can always be journaled, and free space,
//! whatever other processes do to the disk.

use crate::committer::AppendError;
use crate::head::QueuedTxn;
use crate::image::LiveState;
use crate::journal::Journal;
use crate::journal::dir::{JournalDir, ROOM_BYTES, Reserve};
use crate::journal::frame::SEGMENT_HEADER;
use crate::journal::merge::SpacePressure;

/// Appended bytes between checks of free space.
const SPACE_CHECK_BYTES: u64 = 1 << 20;
/// Replaced bytes that make a merge on a full disk worthwhile.
const RECLAIM_BYTES: u64 = 1 << 20;
/// Likewise, as a fraction of the journal.
const RECLAIM_PART: u64 = 32;

pub(super) struct DiskSpace {
    /// Growth is refused.
    pub(super) full: bool,
    /// Scarcity of space, for the next merge.
    pub(super) pressure: SpacePressure,
    /// Bytes appended since free space was checked.
    pub(super) unchecked: u64,
    /// Size of the ballast in bytes.
    ballast: u64,
    spare: u64,
    /// Bytes in the journal's files that were not live values when the last merge ended.
    overhead: u64,
    /// Last revision when a merge at [`SpacePressure::Full`] began: before another revision there
    /// is nothing to regain.
    tried: Option<u64>,
    /// A fatal failure for the next append to report.
    pub(super) broken: Option<String>,
}

impl DiskSpace {
    /// Measures the reserves left by the last process.
    pub(super) fn find(journal_dir: &JournalDir) -> Self {
        let [ballast, spare] =
            [Reserve::Ballast, Reserve::Spare].map(|reserve| journal_dir.held_bytes(reserve));
        Self {
            full: false,
            pressure: SpacePressure::High,
            unchecked: SPACE_CHECK_BYTES,
            ballast,
            spare,
            overhead: 0,
            tried: None,
            broken: None,
        }
    }

    /// Releases `bytes` of a reserve, keeping at least `left`. Returns whether anything was
    /// released.
    fn give_up(
        &mut self,
        journal_dir: &JournalDir,
        reserve: Reserve,
        bytes: u64,
        left: u64,
    ) -> bool {
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
    /// Appends a batch that grows nothing on a full disk: releases ballast, then regains replaced
    /// bytes.
    pub(super) fn append_anyway(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        // No more than needed: other processes take the rest.
        let mut bytes =
            (self.writer.len() as u64).max(self.journal_dir.limits.ballast_bytes / 64).max(1);
        loop {
            let has_more =
                self.space.give_up(&self.journal_dir, Reserve::Ballast, bytes, self.room())
                    || self.reclaim_all()?
                    || self.give_up_spare(bytes);
            if !has_more {
                return Err(AppendError::Full);
            }
            match self.try_append(batch) {
                Err(AppendError::Full) => bytes += bytes.div_ceil(2),
                outcome => {
                    // Take back what was released but not used.
                    self.hold_back();
                    return outcome;
                }
            }
        }
    }

    /// On a full disk the active log must not outgrow the spare file, or no merge could rewrite it.
    pub(super) fn keep_mergeable(&mut self, batch: &[QueuedTxn]) -> Result<(), AppendError> {
        let after = self.end.len + batch.iter().map(|job| job.bytes as u64).sum::<u64>();
        if !self.space.full
            || self.end.len <= SEGMENT_HEADER as u64
            || self.space.spare == 0
            || after <= self.space.spare
        {
            return Ok(());
        }
        match self.reclaim_all() {
            Ok(_) | Err(AppendError::Full) => Ok(()),
            Err(fatal) => Err(fatal),
        }
    }

    /// Part of the ballast set aside for the new log that a merge begins with.
    fn room(&self) -> u64 {
        ROOM_BYTES.min(self.journal_dir.limits.ballast_bytes / 8)
    }

    /// Releases what no merge needs.
    fn give_up_spare(&mut self, bytes: u64) -> bool {
        let largest = self.layout.with(|files| files.largest());
        self.space.give_up(&self.journal_dir, Reserve::Spare, bytes, largest)
    }

    /// Waits until every replaced byte is regained. Returns false if there is none.
    fn reclaim_all(&mut self) -> Result<bool, AppendError> {
        self.rewriter.finish().map_err(AppendError::Fatal)?;
        if self.counters.is_damaged() {
            // The repair regains it.
            return Ok(false);
        }
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
        // The spare was refilled first.
        let missing =
            (self.journal_dir.limits.ballast_bytes / 2).saturating_sub(self.space.ballast);
        if missing > 0 && self.give_up_spare(missing) {
            self.hold_back();
        }
        Ok(true)
    }

    /// Closes the active log unless it is empty, and begins a merge.
    fn merge(&mut self) -> Result<(), AppendError> {
        if self.end.len <= SEGMENT_HEADER as u64 {
            return self
                .rewriter
                .start((self.live_bytes)(), self.space.pressure)
                .map_err(AppendError::Fatal);
        }
        self.close_active()
    }

    /// Closes the active log; at [`SpacePressure::Full`] with what is held back.
    fn close_active(&mut self) -> Result<(), AppendError> {
        let next = self.layout.with(|files| files.active.last + 1);
        loop {
            match self.roll(next) {
                Err(AppendError::Full)
                    if self.space.pressure == SpacePressure::Full
                        && self.space.give_up(
                            &self.journal_dir,
                            Reserve::Ballast,
                            self.room() / 4,
                            0,
                        ) => {}
                outcome => return outcome,
            }
        }
    }

    /// Begins to replace the files of a damaged journal by what is in memory; on a full disk with
    /// what is held back. No merge may be running.
    pub(super) fn repair(&mut self, state: &LiveState<'_>) {
        if self.repairs.waits() {
            return;
        }
        self.space.full |= !self.has_room_to_repair(SpacePressure::Low);
        let pressure = if self.space.full { SpacePressure::Full } else { SpacePressure::Low };
        if !self.has_room_to_repair(pressure) {
            self.counters.repair_failed("no space");
            return;
        }
        self.space.pressure = pressure;
        let closed =
            if self.end.len > SEGMENT_HEADER as u64 { self.close_active() } else { Ok(()) };
        self.space.pressure = SpacePressure::High;
        let outcome = match closed {
            // Out of descriptors: continue in the active log.
            Ok(()) if self.end.len > SEGMENT_HEADER as u64 => Err(AppendError::Full),
            Ok(()) => self.rewriter.repair(state.image(), pressure).map_err(AppendError::Fatal),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) => {}
            Err(AppendError::Full) => self.counters.repair_failed("cannot begin a log"),
            // Reported by the next append.
            Err(AppendError::Fatal(reason)) => self.space.broken = Some(reason),
        }
    }

    /// Whether one file of usual size fits.
    fn has_room_to_repair(&self, pressure: SpacePressure) -> bool {
        let held = match pressure {
            SpacePressure::Low => 0,
            SpacePressure::High | SpacePressure::Full => {
                self.journal_dir.held_bytes(Reserve::Spare)
            }
        };
        let free = self.journal_dir.io.free_bytes(&self.journal_dir.dir).unwrap_or(u64::MAX);
        free.saturating_add(held) >= self.journal_dir.limits.base_bytes().min((self.live_bytes)())
    }

    /// On a full disk: regains replaced bytes, if there are many.
    fn reclaim(&mut self) {
        if self.rewriter.is_running() || self.counters.is_damaged() {
            return;
        }
        let live = (self.live_bytes)();
        let total = self.layout.with(|files| files.len());
        let least =
            RECLAIM_BYTES.min(self.journal_dir.limits.segment_bytes).max(total / RECLAIM_PART);
        if total.saturating_sub(live) < self.space.overhead + least {
            return;
        }
        match self.merge() {
            Ok(()) => {}
            Err(AppendError::Full) => tracing::debug!("cannot regain space yet"),
            // Reported by the next append.
            Err(AppendError::Fatal(reason)) => self.space.broken = Some(reason),
        }
    }

    /// Refills the reserves. Returns whether they are complete.
    pub(super) fn hold_back(&mut self) -> bool {
        let ballast = self.journal_dir.limits.ballast_bytes / 2;
        self.space.ballast = self.journal_dir.hold(Reserve::Ballast, self.space.ballast, ballast);
        // The running merge uses the spare, and recreates it.
        if self.rewriter.is_running() {
            return false;
        }
        let spare = self.layout.with(|files| files.spare_bytes(&self.journal_dir.limits));
        self.space.spare = self.journal_dir.hold(Reserve::Spare, self.space.spare, spare);
        self.space.ballast >= ballast && self.space.spare >= spare
    }

    /// Handles the end of a merge.
    fn merged(&mut self) {
        if self.rewriter.take_ended() {
            let total = self.layout.with(|files| files.len());
            self.space.overhead = total.saturating_sub((self.live_bytes)());
            // The merge used the spare and recreated it, at least in part.
            self.space.spare = self.journal_dir.held_bytes(Reserve::Spare);
        }
    }

    /// Whether the state may grow.
    pub(super) fn check_space(&mut self, probe: bool) -> bool {
        if !probe
            && !self.space.full
            && self.space.unchecked
                < SPACE_CHECK_BYTES.min(self.journal_dir.limits.ballast_bytes / 8)
        {
            return true;
        }
        let Ok(free) = self.journal_dir.io.free_bytes(&self.journal_dir.dir) else {
            return !self.space.full;
        };
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
