//! Regains space by merging old files, one merge at a time, on a thread of its own.

use crate::config::Rewrites;
use crate::image::StateImage;
use crate::journal::dir::JournalDir;
use crate::journal::layout::JournalLayout;
use crate::journal::merge::{Merge, MergeError, MergeInput, SpacePressure};
use crate::stats::Counters;
use crate::testing::{Dice, StepGate};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

pub(crate) struct Rewriter {
    journal_dir: JournalDir,
    layout: Arc<JournalLayout>,
    counters: Arc<Counters>,
    cancelled: Arc<AtomicBool>,
    running: Option<JoinHandle<Result<(), MergeError>>>,
    /// A merge has ended since the last check.
    ended: bool,
    /// Set in reproducible tests.
    driver: Option<Driver>,
}

/// Steps a merge from the committer's thread.
struct Driver {
    gate: Arc<StepGate>,
    dice: Dice,
}

impl Rewriter {
    pub(crate) fn new(
        journal_dir: JournalDir,
        layout: Arc<JournalLayout>,
        counters: Arc<Counters>,
    ) -> Self {
        let driver = match journal_dir.limits.rewrites {
            Rewrites::Stepped(seed) => Some(Driver { gate: Arc::default(), dice: Dice::new(seed) }),
            Rewrites::Background | Rewrites::Inline => None,
        };
        Self {
            journal_dir,
            layout,
            counters,
            cancelled: Arc::default(),
            running: None,
            ended: false,
            driver,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.as_ref().is_some_and(|running| match &self.driver {
            Some(driver) => !driver.gate.is_over(),
            None => !running.is_finished(),
        })
    }

    /// Called where a driven merge may advance.
    pub(crate) fn advance(&mut self) {
        if let Some(driver) = self.driver.as_mut().filter(|_| self.running.is_some()) {
            let steps = driver.dice.below(6);
            driver.gate.advance(steps);
        }
    }

    /// Starts to replace every suspect file, and all history, by the state at the end of the closed
    /// logs. No merge may be running.
    ///
    /// # Errors
    /// A failure that is fatal to the journal.
    pub(crate) fn repair(
        &mut self,
        image: StateImage,
        pressure: SpacePressure,
    ) -> Result<(), String> {
        match self.layout.with(|files| MergeInput::choose(files, 0)) {
            Some(old) => self.run(old, pressure, Some(image)),
            None => Ok(()),
        }
    }

    /// Starts a merge if it pays. Damaged files are left to [`Self::repair`].
    pub(crate) fn start(&mut self, live_bytes: u64, pressure: SpacePressure) -> Result<(), String> {
        if self.running.is_some() || self.counters.is_damaged() {
            return Ok(());
        }
        let limits = &self.journal_dir.limits;
        let retain = if pressure == SpacePressure::Low { limits.retain(live_bytes) } else { 0 };
        let Some(old) = self.layout.with(|files| MergeInput::choose(files, retain)) else {
            return Ok(());
        };
        if pressure == SpacePressure::Low
            && (old.has_no_history() || old.len() <= 2 * live_bytes + limits.segment_bytes)
        {
            return Ok(());
        }
        self.run(old, pressure, None)
    }

    fn run(
        &mut self,
        old: MergeInput,
        pressure: SpacePressure,
        image: Option<StateImage>,
    ) -> Result<(), String> {
        let limits = &self.journal_dir.limits;
        let spare_bytes = self.layout.with(|files| files.spare_bytes(limits));
        let merge = Merge {
            journal_dir: self.journal_dir.clone(),
            layout: self.layout.clone(),
            counters: self.counters.clone(),
            cancelled: self.cancelled.clone(),
            gate: None,
            old,
            pressure,
            spare_bytes,
            image,
        };
        if limits.rewrites == Rewrites::Inline {
            self.ended = true;
            return self.settle(merge.run());
        }
        let merge = match &mut self.driver {
            Some(driver) => {
                driver.gate = Arc::default();
                Merge { gate: Some(driver.gate.clone()), ..merge }
            }
            None => merge,
        };
        match std::thread::Builder::new()
            .name("storage-rewrite".to_owned())
            .spawn(move || run_gated(merge))
        {
            Ok(running) => self.running = Some(running),
            Err(error) => tracing::warn!(%error, "failed to start the merge thread"),
        }
        Ok(())
    }

    /// Blocks until the running merge has ended.
    ///
    /// # Errors
    /// See [`Self::check`].
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        if let Some(driver) = &self.driver {
            driver.gate.open();
        }
        match self.running.take() {
            Some(running) => self.joined(running),
            None => Ok(()),
        }
    }

    fn joined(&mut self, running: JoinHandle<Result<(), MergeError>>) -> Result<(), String> {
        self.ended = true;
        self.settle(
            running.join().unwrap_or_else(|_| Err(MergeError::Later("it panicked".to_owned()))),
        )
    }

    pub(crate) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    fn settle(&self, outcome: Result<(), MergeError>) -> Result<(), String> {
        match outcome {
            Ok(()) | Err(MergeError::Cancelled) => Ok(()),
            Err(MergeError::Later(reason)) => {
                tracing::warn!(reason, "failed to merge segments");
                Ok(())
            }
            Err(MergeError::Damaged) => {
                tracing::warn!("stopped to merge segments, as one is damaged");
                Ok(())
            }
            Err(MergeError::Fatal(reason)) => Err(reason),
        }
    }

    /// Reaps the merge if it has ended.
    ///
    /// # Errors
    /// A failure that is fatal to the journal.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if self.is_running() {
            return Ok(());
        }
        match self.running.take() {
            Some(ended) => self.joined(ended),
            None => Ok(()),
        }
    }
}

impl Drop for Rewriter {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(driver) = &self.driver {
            driver.gate.open();
        }
        if let Some(running) = self.running.take() {
            // The outcome no longer matters: the input files still exist.
            let _ = running.join();
        }
    }
}

fn run_gated(merge: Merge) -> Result<(), MergeError> {
    let gate = merge.gate.clone();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| merge.run()))
        .unwrap_or_else(|_| Err(MergeError::Later("it panicked".to_owned())));
    if let Some(gate) = gate {
        gate.end();
    }
    outcome
}
