//! An in-memory disk: a page cache, which outlives the process, over a platter, which outlives a
//! power cut.
//!
//! Harsher than real file systems. File contents reach the platter only with a successful sync of
//! the file, names (including a directory's own) only with a sync of their directory; anything
//! later may be lost, torn or reordered, sector by sector. After a failed sync of a file its pages
//! are clean but not on the platter: they read back, and a later sync succeeds without writing
//! anything (Linux since 4.13). A failed sync of a directory leaves its names pending: file systems
//! that journal metadata either write them later or stop.

mod io;

use super::Dice;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SECTOR: usize = 512;

/// Fault injected at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Power cut: this call may take effect, later ones do not.
    PowerCut,
    /// This call fails with an IO error.
    Eio,
    /// This call fails for lack of space after writing half.
    Enospc,
    /// The disk stays full until [`SimDisk::set_capacity`].
    Full,
    /// Syncs report success but do nothing from here on.
    LyingSyncs,
}

/// State of unsynced data after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// All of it, in the page cache: only the process died. A later power cut can still lose it.
    Killed,
    /// None of it.
    Dropped,
    /// A prefix, the last part of it torn.
    Torn,
    /// Any subset of its sectors and names.
    Reordered,
}

/// Recorded operations, for tests of ordering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// Bytes were written to a file.
    Wrote(PathBuf, Vec<u8>),
    /// A file was synced successfully.
    Synced(PathBuf),
    /// A marker left by the test.
    Note(u64),
}

#[derive(Clone)]
enum DataOp {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl DataOp {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(offset, new) => {
                let end = offset + new.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[*offset..end].copy_from_slice(new);
            }
            Self::Truncate(len) => bytes.truncate(*len),
        }
    }
}

/// Node number of directories.
const DIR: u64 = u64::MAX;

#[derive(Clone)]
enum NameOp {
    /// A new file or directory.
    Set(PathBuf, u64),
    Rename(PathBuf, PathBuf, u64),
    Remove(PathBuf),
}

impl NameOp {
    fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Set(path, node) => names.insert(path.clone(), *node),
            Self::Rename(from, to, node) => {
                names.remove(from);
                names.insert(to.clone(), *node)
            }
            Self::Remove(path) => names.remove(path),
        };
    }

    fn dir(&self) -> Option<&Path> {
        match self {
            Self::Set(path, _) | Self::Rename(_, path, _) | Self::Remove(path) => path.parent(),
        }
    }
}

#[derive(Clone, Default)]
struct SimNode {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<DataOp>,
    reserved: u64,
}

#[derive(Default)]
struct SimState {
    nodes: HashMap<u64, SimNode>,
    next_node: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    pending_names: Vec<NameOp>,
    locks: BTreeSet<PathBuf>,
    calls: u64,
    fault: Option<(u64, DiskFault)>,
    write_fault: Option<(&'static str, DiskFault)>,
    dead: bool,
    lying: bool,
    capacity: Option<u64>,
    trace: Option<Vec<DiskEvent>>,
    syncs_held: bool,
    /// Held syncs that may proceed.
    syncs_let: usize,
    syncs_waiting: usize,
    syncs: u64,
}

/// A byte of a file that is not what was written.
#[derive(Clone, Debug)]
pub struct Rot {
    path: PathBuf,
    node: u64,
    at: usize,
    was: u8,
}

/// A simulated disk. Clones share it.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<SimDiskInner>);

#[derive(Default)]
struct SimDiskInner {
    state: Mutex<SimState>,
    changed: Condvar,
}

/// Whether a call can have a partial effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Read,
    TxnEvent,
}

/// Replacement of a call's work.
enum Injected {
    Nothing,
    Half(Error),
    Effect(Error),
}

impl SimDisk {
    /// Injects a fault at call number `call`, counted from 0.
    pub fn fail_at(&self, call: u64, fault: DiskFault) {
        self.state().fault = Some((call, fault));
    }

    /// Injects a fault at the next write to a file whose name contains `name`.
    pub fn fail_next_write(&self, name: &'static str, fault: DiskFault) {
        self.state().write_fault = Some((name, fault));
    }

    /// Removes the pending fault. Returns it with the number of calls left until it.
    pub fn disarm(&self) -> Option<(u64, DiskFault)> {
        let mut state = self.state();
        let calls = state.calls;
        state.fault.take().and_then(|(at, fault)| Some((at.checked_sub(calls)?, fault)))
    }

    /// Restores a fault removed by [`Self::disarm`].
    pub fn arm(&self, fault: Option<(u64, DiskFault)>) {
        let mut state = self.state();
        state.fault = fault.map(|(away, fault)| (state.calls + away, fault));
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Number of successful file syncs.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Capacity in bytes; `None` for unlimited.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Whether the capacity is limited.
    pub fn is_limited(&self) -> bool {
        self.state().capacity.is_some()
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state().dead
    }

    /// Whether syncs have become no-ops.
    pub fn is_lying(&self) -> bool {
        self.state().lying
    }

    /// Occupied bytes.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// Blocks syncs of files from now on.
    pub fn hold_syncs(&self) {
        self.state().syncs_held = true;
    }

    /// Lets one held sync proceed.
    pub fn let_one_sync(&self) {
        self.state().syncs_let += 1;
        self.0.changed.notify_all();
    }

    /// Lets all held syncs proceed.
    pub fn release_syncs(&self) {
        self.state().syncs_held = false;
        self.0.changed.notify_all();
    }

    /// Blocks until a sync is held.
    pub fn wait_for_held_sync(&self) {
        let mut state = self.state();
        while state.syncs_waiting == 0 {
            self.0.changed.wait(&mut state);
        }
    }

    /// Starts recording operations.
    pub fn record(&self) {
        self.state().trace.get_or_insert_default();
    }

    /// Adds a marker to the recording.
    pub fn note(&self, note: u64) {
        self.state().traced(|| DiskEvent::Note(note));
    }

    /// Operations since [`Self::record`].
    pub fn trace(&self) -> Vec<DiskEvent> {
        self.state().trace.clone().unwrap_or_default()
    }

    /// Files and contents as the process sees them.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.state();
        let files = state.names.iter().filter(|(_, node)| **node != DIR);
        files.map(|(path, node)| (path.clone(), state.nodes[node].seen.clone())).collect()
    }

    /// Flips a bit of a file, in the page cache and on the platter.
    pub fn rot(&self, path: &Path, at: usize) -> Rot {
        let mut state = self.state();
        let node = state.names[path];
        let was = state.nodes[&node].seen[at];
        let rot = Rot { path: path.to_owned(), node, at, was };
        state.node(node).set(at, was ^ (1 << (at % 8)));
        rot
    }

    /// Whether the file is still there under its name.
    pub fn has_rot(&self, rot: &Rot) -> bool {
        self.state().names.get(&rot.path) == Some(&rot.node)
    }

    /// Restores the byte, if the file is still there under its name.
    pub fn heal(&self, rot: &Rot) {
        if self.has_rot(rot) {
            self.state().node(rot.node).set(rot.at, rot.was);
        }
    }

    /// A new disk with these durable files.
    pub fn with_files(files: &BTreeMap<PathBuf, Vec<u8>>) -> Self {
        let disk = Self::default();
        let mut state = disk.state();
        for (number, (path, bytes)) in (0u64..).zip(files) {
            state.nodes.insert(
                number,
                SimNode { seen: bytes.clone(), durable: bytes.clone(), ..SimNode::default() },
            );
            state.names.insert(path.clone(), number);
            state.next_node = number + 1;
            for dir in path.ancestors().skip(1).filter(|dir| dir.parent().is_some()) {
                state.names.insert(dir.to_owned(), DIR);
            }
        }
        state.durable_names = state.names.clone();
        drop(state);
        disk
    }

    /// The disk as the next process finds it. After a power cut everything left is on the platter.
    pub fn crash(&self, crash: Crash, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let state = self.state();
        let names = match crash {
            Crash::Killed => return Self::of(state.outlived()),
            Crash::Dropped => state.durable_names.clone(),
            Crash::Torn => {
                let count = dice.below(state.pending_names.len() + 1);
                survive(&state.durable_names, state.pending_names[..count].iter())
            }
            Crash::Reordered => {
                let chosen: Vec<NameOp> =
                    state.pending_names.iter().filter(|_| dice.below(2) == 0).cloned().collect();
                survive(&state.durable_names, chosen.iter())
            }
        };
        let mut after = SimState {
            next_node: state.next_node,
            capacity: state.capacity,
            ..SimState::default()
        };
        for (path, node) in &names {
            // Files in a lost directory are lost with it.
            if !path
                .ancestors()
                .skip(1)
                .all(|dir| dir.parent().is_none() || names.get(dir) == Some(&DIR))
            {
                continue;
            }
            if *node != DIR {
                after.nodes.entry(*node).or_insert_with(|| {
                    let bytes = state.nodes[node].survive(crash, &mut dice);
                    SimNode {
                        seen: bytes.clone(),
                        durable: bytes,
                        reserved: state.nodes[node].reserved,
                        ..SimNode::default()
                    }
                });
            }
            after.names.insert(path.clone(), *node);
        }
        after.durable_names = after.names.clone();
        Self::of(after)
    }

    fn of(state: SimState) -> Self {
        Self(Arc::new(SimDiskInner { state: Mutex::new(state), changed: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, SimState> {
        self.0.state.lock()
    }

    /// Counts a call and returns what it must do.
    fn call(&self, call: CallKind) -> (MutexGuard<'_, SimState>, Injected) {
        let mut state = self.state();
        let number = state.calls;
        state.calls += 1;
        if state.dead {
            return (state, Injected::Half(Error::other("the power is off")));
        }
        let instead = match state.fault.filter(|(at, _)| *at == number).map(|(_, fault)| fault) {
            None => Injected::Nothing,
            Some(DiskFault::PowerCut) => {
                state.dead = true;
                Injected::Effect(Error::other("the power is off"))
            }
            Some(DiskFault::Enospc) if call == CallKind::TxnEvent => {
                Injected::Half(ErrorKind::StorageFull.into())
            }
            Some(DiskFault::Full) => {
                state.capacity = Some(state.used());
                Injected::Nothing
            }
            Some(DiskFault::Eio | DiskFault::Enospc) => {
                Injected::Half(Error::other("input/output error"))
            }
            Some(DiskFault::LyingSyncs) => {
                state.lying = true;
                Injected::Nothing
            }
        };
        (state, instead)
    }

    /// Runs a modifying call, or half of it.
    fn change<T>(
        &self,
        full: impl FnOnce(&mut SimState) -> Result<T>,
        half: impl FnOnce(&mut SimState),
    ) -> Result<T> {
        let (mut state, instead) = self.call(CallKind::TxnEvent);
        match instead {
            Injected::Nothing => full(&mut state),
            Injected::Effect(error) => full(&mut state).and(Err(error)),
            Injected::Half(error) => {
                if !state.dead {
                    half(&mut state);
                }
                Err(error)
            }
        }
    }

    fn look<T>(&self, look: impl FnOnce(&mut SimState) -> Result<T>) -> Result<T> {
        let (mut state, instead) = self.call(CallKind::Read);
        match instead {
            Injected::Nothing => look(&mut state),
            Injected::Effect(error) | Injected::Half(error) => Err(error),
        }
    }
}

fn survive<'a>(
    durable: &BTreeMap<PathBuf, u64>,
    ops: impl Iterator<Item = &'a NameOp>,
) -> BTreeMap<PathBuf, u64> {
    let mut names = durable.clone();
    ops.for_each(|op| op.apply(&mut names));
    names
}

impl SimState {
    /// The files without what the process had open.
    fn outlived(&self) -> Self {
        Self {
            nodes: self.nodes.clone(),
            next_node: self.next_node,
            names: self.names.clone(),
            durable_names: self.durable_names.clone(),
            pending_names: self.pending_names.clone(),
            lying: self.lying,
            capacity: self.capacity,
            ..Self::default()
        }
    }

    fn traced(&mut self, what: impl FnOnce() -> DiskEvent) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .filter(|node| **node != DIR)
            .map(|node| &self.nodes[node])
            .map(SimNode::len)
            .sum()
    }

    fn is_dir(&self, path: Option<&Path>) -> bool {
        path.is_some_and(|path| path.parent().is_none() || self.names.get(path) == Some(&DIR))
    }

    fn room(&self) -> u64 {
        self.capacity.map_or(1 << 50, |capacity| capacity.saturating_sub(self.used()))
    }

    fn node(&mut self, number: u64) -> &mut SimNode {
        self.nodes.get_mut(&number).unwrap()
    }

    fn name(&mut self, op: NameOp) {
        op.apply(&mut self.names);
        self.pending_names.push(op);
    }
}

impl SimNode {
    /// Occupied bytes.
    fn len(&self) -> u64 {
        self.reserved.max(self.seen.len() as u64)
    }

    fn set(&mut self, at: usize, byte: u8) {
        for bytes in [&mut self.seen, &mut self.durable] {
            if let Some(slot) = bytes.get_mut(at) {
                *slot = byte;
            }
        }
    }

    fn op(&mut self, op: DataOp) {
        op.apply(&mut self.seen);
        self.pending.push(op);
    }

    fn survive(&self, crash: Crash, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        match crash {
            Crash::Killed | Crash::Dropped => {}
            Crash::Torn => {
                let count = dice.below(self.pending.len() + 1);
                self.pending[..count].iter().for_each(|op| op.apply(&mut bytes));
                if let Some(DataOp::Write(offset, new)) = self.pending.get(count) {
                    DataOp::Write(*offset, new[..dice.below(new.len() + 1)].to_vec())
                        .apply(&mut bytes);
                }
            }
            Crash::Reordered => self.pending.iter().for_each(|op| reorder(op, &mut bytes, dice)),
        }
        bytes
    }
}

/// Applies a random subset of a write's sectors. The new length may reach the disk without them.
fn reorder(op: &DataOp, bytes: &mut Vec<u8>, dice: &mut Dice) {
    let DataOp::Write(offset, new) = op else {
        if dice.below(2) == 0 {
            op.apply(bytes);
        }
        return;
    };
    if dice.below(2) == 0 {
        bytes.resize(bytes.len().max(offset + new.len()), 0);
    }
    let mut at = 0;
    while at < new.len() {
        let len = (SECTOR - (offset + at) % SECTOR).min(new.len() - at);
        if dice.below(2) == 0 {
            DataOp::Write(offset + at, new[at..at + len].to_vec()).apply(bytes);
        }
        at += len;
    }
}
