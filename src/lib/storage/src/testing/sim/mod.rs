//! A disk in memory: a page cache, which outlives the process, and a platter, which outlives the power.
//!
//! The model is harsher than real file systems: a file's bytes reach the platter only with a successful sync, a name only with a sync of its directory (a
//! directory's own name included); whatever came after may be lost, torn or reordered, sector by sector. After a failed sync of a file its pages are clean
//! but not on the platter: they are read back, a later sync succeeds and writes nothing (Linux since 4.13). A failed sync of a directory leaves its names
//! pending: file systems that journal metadata either write it later or stop.

mod io;

use super::Dice;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

const SECTOR: usize = 512;

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The power goes: this call may have had an effect, nothing after it has.
    PowerCut,
    /// The call fails once with an IO error.
    Eio,
    /// The call fails once for lack of space, having written half.
    Enospc,
    /// From here on there is no space, until [`SimDisk::set_capacity`].
    Full,
    /// From here on syncs say yes and do nothing.
    LyingSyncs,
}

/// What a power cut leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// All of it, in the page cache: only the process died. What was not synced can still be lost to a later power cut.
    Killed,
    /// None of it.
    Dropped,
    /// What came first, the last of it in part.
    Torn,
    /// Any of its sectors and names.
    Reordered,
}

/// What happened, for tests of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskEvent {
    /// Bytes were written.
    Wrote(PathBuf, Vec<u8>),
    /// A sync of a file has succeeded.
    Synced(PathBuf),
    /// A note of the test.
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

/// The node of every directory.
const DIR: u64 = u64::MAX;

#[derive(Clone)]
enum NameOp {
    /// A new file, or a new directory.
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
    /// Of the syncs that are held, so many may go on.
    syncs_let: usize,
    syncs_waiting: usize,
    syncs: u64,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk(Arc<SimDiskInner>);

#[derive(Default)]
struct SimDiskInner {
    state: Mutex<SimState>,
    changed: Condvar,
}

/// What a call asks of its fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Read,
    TxnEvent,
}

/// What a call must do instead of its work.
enum Injected {
    Nothing,
    Half(Error),
    Effect(Error),
}

impl SimDisk {
    /// One fault at the call with this number, counted from 0.
    pub fn fail_at(&self, call: u64, fault: DiskFault) {
        self.state().fault = Some((call, fault));
    }

    /// One fault at the next write to a file whose name holds this.
    pub fn fail_next_write(&self, name: &'static str, fault: DiskFault) {
        self.state().write_fault = Some((name, fault));
    }

    /// Takes away the fault that is to come, and how many calls it is away.
    pub fn disarm(&self) -> Option<(u64, DiskFault)> {
        let mut state = self.state();
        let calls = state.calls;
        state.fault.take().and_then(|(at, fault)| Some((at.checked_sub(calls)?, fault)))
    }

    /// Puts it back.
    pub fn arm(&self, fault: Option<(u64, DiskFault)>) {
        let mut state = self.state();
        state.fault = fault.map(|(away, fault)| (state.calls + away, fault));
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// How many syncs of files have succeeded.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// How many bytes fit; `None`: without end.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Whether there is an end to them.
    pub fn is_limited(&self) -> bool {
        self.state().capacity.is_some()
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state().dead
    }

    /// Whether syncs do nothing by now.
    pub fn is_lying(&self) -> bool {
        self.state().lying
    }

    /// Bytes that are occupied.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    /// From now on syncs of files wait.
    pub fn hold_syncs(&self) {
        self.state().syncs_held = true;
    }

    /// Lets one that is held go on.
    pub fn let_one_sync(&self) {
        self.state().syncs_let += 1;
        self.0.changed.notify_all();
    }

    /// Lets them go on.
    pub fn release_syncs(&self) {
        self.state().syncs_held = false;
        self.0.changed.notify_all();
    }

    /// Waits (the thread) until a sync waits.
    pub fn wait_for_held_sync(&self) {
        let mut state = self.state();
        while state.syncs_waiting == 0 {
            state = self.0.changed.wait(state).unwrap();
        }
    }

    /// From now on it is recorded what happens.
    pub fn record(&self) {
        self.state().trace.get_or_insert_default();
    }

    /// Puts a note into the trace.
    pub fn note(&self, note: u64) {
        self.state().traced(|| DiskEvent::Note(note));
    }

    /// What happened since [`Self::record`].
    pub fn trace(&self) -> Vec<DiskEvent> {
        self.state().trace.clone().unwrap_or_default()
    }

    /// The files and their bytes, as they are seen.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let state = self.state();
        let files = state.names.iter().filter(|(_, node)| **node != DIR);
        files.map(|(path, node)| (path.clone(), state.nodes[node].seen.clone())).collect()
    }

    /// Another disk, with these durable files.
    pub fn with_files(files: &BTreeMap<PathBuf, Vec<u8>>) -> Self {
        let disk = Self::default();
        let mut state = disk.state();
        for (number, (path, bytes)) in (0u64..).zip(files) {
            state.nodes.insert(number, SimNode { seen: bytes.clone(), durable: bytes.clone(), ..SimNode::default() });
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

    /// The disk as the next process finds it; after a power cut all that is left is on the platter.
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
                let chosen: Vec<NameOp> = state.pending_names.iter().filter(|_| dice.below(2) == 0).cloned().collect();
                survive(&state.durable_names, chosen.iter())
            }
        };
        let mut after = SimState { next_node: state.next_node, capacity: state.capacity, ..SimState::default() };
        for (path, node) in &names {
            // What lies in a directory that was lost is lost with it.
            if !path.ancestors().skip(1).all(|dir| dir.parent().is_none() || names.get(dir) == Some(&DIR)) {
                continue;
            }
            if *node != DIR {
                after.nodes.entry(*node).or_insert_with(|| {
                    let bytes = state.nodes[node].survive(crash, &mut dice);
                    SimNode { seen: bytes.clone(), durable: bytes, reserved: state.nodes[node].reserved, ..SimNode::default() }
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
        self.0.state.lock().unwrap()
    }

    /// Counts a call; gives what to do.
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
            Some(DiskFault::Enospc) if call == CallKind::TxnEvent => Injected::Half(ErrorKind::StorageFull.into()),
            Some(DiskFault::Full) => {
                state.capacity = Some(state.used());
                Injected::Nothing
            }
            Some(DiskFault::Eio | DiskFault::Enospc) => Injected::Half(Error::other("input/output error")),
            Some(DiskFault::LyingSyncs) => {
                state.lying = true;
                Injected::Nothing
            }
        };
        (state, instead)
    }

    /// A call with an effect on the state, or with half of it.
    fn change<T>(&self, full: impl FnOnce(&mut SimState) -> Result<T>, half: impl FnOnce(&mut SimState)) -> Result<T> {
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

fn survive<'a>(durable: &BTreeMap<PathBuf, u64>, ops: impl Iterator<Item = &'a NameOp>) -> BTreeMap<PathBuf, u64> {
    let mut names = durable.clone();
    ops.for_each(|op| op.apply(&mut names));
    names
}

impl SimState {
    /// What outlives a process.
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
        self.names.values().filter(|node| **node != DIR).map(|node| &self.nodes[node]).map(SimNode::len).sum()
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
    /// Its length, which is what it occupies.
    fn len(&self) -> u64 {
        self.reserved.max(self.seen.len() as u64)
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
                    DataOp::Write(*offset, new[..dice.below(new.len() + 1)].to_vec()).apply(&mut bytes);
                }
            }
            Crash::Reordered => self.pending.iter().for_each(|op| reorder(op, &mut bytes, dice)),
        }
        bytes
    }
}

/// Applies any of the sectors of a write. The length may have reached the disk without them.
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
