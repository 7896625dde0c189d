//! Replaces the files of a journal in which damage was found.
//!
//! The state in memory is complete, so nothing needs to be read from a damaged file: the active log
//! is closed, and every file up to there is written again from the state as of then. What was
//! replaced before is lost, and with it the history, which moves up to that revision.
//!
//! This is a merge with another source, and as safe at every step. The group with the last log goes
//! first: afterwards all other files only matter for keys whose last change they hold. Each of them
//! can then be replaced on its own, in any order. The first group also deletes what is not in the
//! state but may be in a file before it; a delete too much does no harm.
//!
//! A start in between refuses what is still damaged. It may also read it well, as bad memory or a
//! bad cable show bytes that the disk does not hold; then too the journal must be whole. Of one
//! damaged file every key that was deleted later is known by its delete. With two, a value and its
//! delete may both be out of sight: then all files from the first of them on are one group.

use crate::entry::Entry;
use crate::image::StateImage;
use crate::journal::codec;
use crate::journal::frame::{OP_HEADER, Op, OpFlags, OpHeader};
use crate::journal::merge::{BaseOutput, Merge, MergeError};
use crate::txn::{Event, TxnEvent};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Delays between attempts double this many times, from one [`RepairTurns::waits`].
const DOUBLINGS: u32 = 6;

/// Spaces out attempts to repair.
#[derive(Default)]
pub(super) struct RepairTurns {
    attempts: u32,
    wait: u32,
}

impl RepairTurns {
    /// Whether it is too early for another attempt. Otherwise counts one.
    pub(super) fn waits(&mut self) -> bool {
        if self.wait > 0 {
            self.wait -= 1;
            return true;
        }
        self.wait = (1 << self.attempts.min(DOUBLINGS)) - 1;
        self.attempts += 1;
        false
    }
}

/// Keys that are not in the state, with the lengths of their prefixes.
type AbsentKeys = HashMap<Box<str>, usize>;

impl Merge {
    /// Replaces every suspect file, and all history.
    pub(super) fn repair(&self, image: &StateImage) -> Result<(), MergeError> {
        let end = self.old.files.last().map_or(0, |segment| segment.last);
        let outcome = self.replace(image).and_then(|()| {
            // Only the files that are left say whether it is over.
            match self.layout.repaired(end, &self.counters) {
                true => Ok(()),
                false => Err(MergeError::Later("damaged files are left".to_owned())),
            }
        });
        if let Err(MergeError::Later(reason)) = &outcome {
            self.counters.repair_failed(reason);
        }
        outcome
    }

    fn replace(&self, image: &StateImage) -> Result<(), MergeError> {
        let entries = image.entries();
        let end = self.old.files.last().map_or(0, |segment| segment.last);
        if entries.last().is_some_and(|entry| entry.revision.0 > end) {
            return Err(MergeError::Later("the state is not that of the closed logs".to_owned()));
        }
        let mut groups = self.groups(&self.sizes(&entries));
        let Some(mut last) = groups.pop() else { return Ok(()) };
        if self.old.logs > 0 || self.is_suspect(&last) {
            let (absent, damaged) = self.absent(image, last.start)?;
            if let [first, _, ..] = damaged[..] {
                last.start = last.start.min(first);
            }
            self.rewrite(&last, |output| {
                self.fill(output, image, self.part(&entries, &last))?;
                absent.iter().try_for_each(|(key, prefix_len)| output.absent(key, *prefix_len, end))
            })?;
        }
        let mut outcome = Ok(());
        let others = groups.iter().map(|group| group.start..group.end.min(last.start));
        for group in &others.filter(|group| !group.is_empty()).collect::<Vec<_>>() {
            if !self.is_suspect(group) {
                continue;
            }
            let fill =
                |output: &mut BaseOutput<'_>| self.fill(output, image, self.part(&entries, group));
            match self.rewrite(group, fill) {
                // Smaller groups may still fit.
                Err(error @ MergeError::Later(_)) => outcome = Err(error),
                other => other?,
            }
        }
        outcome
    }

    fn is_suspect(&self, group: &Range<usize>) -> bool {
        let files = &self.old.files[group.clone()];
        self.layout.with(|layout| {
            layout.suspects.iter().any(|path| files.iter().any(|file| file.path == *path))
        })
    }

    /// Per file: bytes to write, and bytes of the entries whose last change it holds.
    fn sizes(&self, entries: &[&Arc<Entry>]) -> Vec<(u64, u64)> {
        (0..self.old.files.len())
            .map(|index| {
                let bytes = |entry: &&Arc<Entry>| {
                    (OP_HEADER + entry.key.as_str().len() + entry.bytes.len()) as u64
                };
                let live = self.part(entries, &(index..index + 1)).iter().map(bytes).sum();
                (live, live)
            })
            .collect()
    }

    /// The entries of a group of files.
    fn part<'a>(&self, entries: &'a [&Arc<Entry>], group: &Range<usize>) -> &'a [&'a Arc<Entry>]
    where
        Self: 'a,
    {
        let before = group.start.checked_sub(1).map_or(0, |index| self.old.files[index].last);
        let last = self.old.files[group.end - 1].last;
        let from = entries.partition_point(|entry| entry.revision.0 <= before);
        let to = entries.partition_point(|entry| entry.revision.0 <= last);
        &entries[from..to]
    }

    fn fill(
        &self,
        output: &mut BaseOutput<'_>,
        image: &StateImage,
        entries: &[&Arc<Entry>],
    ) -> Result<(), MergeError> {
        for entry in entries {
            let event = Event { entry: Arc::clone(entry), previous: None, deleted: false };
            let expires = image.expires(&entry.key);
            let change = TxnEvent { event, own_last: false, expires };
            codec::write(&mut output.writer, &change, &*self.journal_dir.transformer);
            output.pushed()?;
        }
        Ok(())
    }

    /// Keys that are not in the state, but may be in a file before `start`: what can be read of
    /// those files has them, or a later file changes them without having created them. Also returns
    /// which files cannot be read as a whole.
    fn absent(
        &self,
        image: &StateImage,
        start: usize,
    ) -> Result<(AbsentKeys, Vec<usize>), MergeError> {
        let (mut absent, mut created) = (AbsentKeys::new(), HashSet::<Box<str>>::new());
        let mut damaged = Vec::new();
        for index in 0..self.old.files.len() {
            let mut take = |op: &Op<'_>| {
                let prefix = op.key.get(..op.header.prefix_len).unwrap_or_default();
                if image.has(prefix, op.key) || created.contains(op.key) {
                    return Ok(());
                }
                let is_create = !op.header.flags.has(OpFlags::DELETE)
                    && op.header.revision == op.header.create_revision;
                if index >= start && is_create && !absent.contains_key(op.key) {
                    created.insert(op.key.into());
                } else {
                    absent.insert(op.key.into(), op.header.prefix_len);
                }
                Ok(())
            };
            match self.scan(index, &mut take) {
                Ok(()) => {}
                Err(MergeError::Damaged) => damaged.push(index),
                Err(error) => return Err(error),
            }
        }
        Ok((absent, damaged))
    }
}

impl BaseOutput<'_> {
    fn absent(&mut self, key: &str, prefix_len: usize, revision: u64) -> Result<(), MergeError> {
        let flags = OpFlags::default().with(OpFlags::DELETE, true);
        let header = OpHeader { revision, prefix_len, flags, ..OpHeader::default() };
        self.writer.op(header, key, |_| ());
        self.pushed()
    }
}
