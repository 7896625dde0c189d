//! [`Io`] on the simulated disk.

use super::{DIR, DataOp, DiskEvent, NameOp, SimDisk, SimNode, SimState};
use crate::journal::io::{DirLock, File, Io};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Io for SimDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.change(
            |state| {
                let missing: Vec<&Path> =
                    dir.ancestors().filter(|dir| !state.is_dir(Some(dir))).collect();
                missing
                    .into_iter()
                    .rev()
                    .for_each(|dir| state.name(NameOp::Set(dir.to_owned(), DIR)));
                Ok(())
            },
            |_| (),
        )
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn DirLock>>> {
        let held = self.change(|state| Ok(state.locks.insert(path.to_owned())), |_| ())?;
        Ok(held.then(|| {
            Box::new(SimLock { disk: self.clone(), path: path.to_owned() }) as Box<dyn DirLock>
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let name =
            |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        self.look(|state| {
            Ok(state
                .names
                .keys()
                .filter(|path| path.parent() == Some(dir))
                .filter_map(name)
                .collect())
        })
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let node = self.change(
            |state| {
                if let Some(node) = state.names.get(path).copied() {
                    state.node(node).reserved = 0;
                    state.node(node).op(DataOp::Truncate(0));
                    return Ok(node);
                }
                if !state.is_dir(path.parent()) {
                    return Err(ErrorKind::NotFound.into());
                }
                if state.capacity.is_some() && state.room() == 0 {
                    return Err(ErrorKind::StorageFull.into());
                }
                let node = state.next_node;
                state.next_node += 1;
                state.nodes.insert(node, SimNode::default());
                state.name(NameOp::Set(path.to_owned(), node));
                Ok(node)
            },
            |_| (),
        )?;
        Ok(Arc::new(SimFile { disk: self.clone(), node, path: path.to_owned() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let node = self.look(|state| {
            state.names.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
        })?;
        Ok(Arc::new(SimFile { disk: self.clone(), node, path: path.to_owned() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(
            |state| {
                let node = state.names.get(from).copied().ok_or(ErrorKind::NotFound)?;
                state.name(NameOp::Rename(from.to_owned(), to.to_owned(), node));
                Ok(())
            },
            |_| (),
        )
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(
            |state| {
                state.names.get(path).ok_or(ErrorKind::NotFound)?;
                state.name(NameOp::Remove(path.to_owned()));
                Ok(())
            },
            |_| (),
        )
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.change(
            |state| {
                if !state.lying {
                    let (mine, others) = std::mem::take(&mut state.pending_names)
                        .into_iter()
                        .partition(|op: &NameOp| op.dir() == Some(dir));
                    state.pending_names = others;
                    mine.iter().for_each(|op| op.apply(&mut state.durable_names));
                }
                Ok(())
            },
            |_| (),
        )
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        self.look(|state| Ok(state.room()))
    }
}

struct SimLock {
    disk: SimDisk,
    path: PathBuf,
}

impl DirLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.state().locks.remove(&self.path);
    }
}

struct SimFile {
    disk: SimDisk,
    node: u64,
    path: PathBuf,
}

impl SimFile {
    fn wait_while_held(&self) {
        let mut state = self.disk.state();
        state.syncs_waiting += 1;
        self.disk.0.changed.notify_all();
        while state.syncs_held && state.syncs_let == 0 {
            self.disk.0.changed.wait(&mut state);
        }
        state.syncs_let = state.syncs_let.saturating_sub(1);
        state.syncs_waiting -= 1;
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.disk.look(|state| Ok(state.node(self.node).len()))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.disk.look(|state| {
            let seen = &state.node(self.node).seen;
            let rest = usize::try_from(offset)
                .ok()
                .and_then(|offset| seen.get(offset..))
                .unwrap_or_default();
            let len = rest.len().min(buffer.len());
            buffer[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        {
            let mut state = self.disk.state();
            if let Some((_, fault)) =
                state.write_fault.take_if(|(name, _)| self.path.to_string_lossy().contains(*name))
            {
                state.fault = Some((state.calls, fault));
            }
        }
        let put = |state: &mut SimState, bytes: &[u8]| {
            state.node(self.node).op(DataOp::Write(offset, bytes.to_vec()));
            state.traced(|| DiskEvent::Wrote(self.path.clone(), bytes.to_vec()));
        };
        self.disk.change(
            |state| {
                let occupied = usize::try_from(state.node(self.node).len()).unwrap();
                let grows = (offset + bytes.len()).saturating_sub(occupied);
                let room = usize::try_from(state.room()).unwrap_or(usize::MAX);
                if grows > room {
                    put(state, &bytes[..bytes.len() - (grows - room).min(bytes.len())]);
                    return Err(ErrorKind::StorageFull.into());
                }
                put(state, bytes);
                Ok(())
            },
            |state| put(state, &bytes[..bytes.len() / 2]),
        )
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.disk.change(
            |state| {
                let node = state.node(self.node);
                node.reserved = node.reserved.min(len);
                node.op(DataOp::Truncate(usize::try_from(len).unwrap()));
                Ok(())
            },
            |_| (),
        )
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.disk.change(
            |state| {
                let more = len.saturating_sub(state.node(self.node).len());
                if state.room() < more {
                    return Err(ErrorKind::StorageFull.into());
                }
                let node = state.node(self.node);
                node.reserved = node.reserved.max(len);
                Ok(())
            },
            |_| (),
        )
    }

    fn sync(&self) -> io::Result<()> {
        self.wait_while_held();
        self.disk.change(
            |state| {
                if !state.lying {
                    let node = state.node(self.node);
                    let pending = std::mem::take(&mut node.pending);
                    pending.iter().for_each(|op| op.apply(&mut node.durable));
                }
                state.syncs += 1;
                state.traced(|| DiskEvent::Synced(self.path.clone()));
                Ok(())
            },
            // As the kernel does: the dirty pages are dropped and marked clean, so a second sync
            // succeeds.
            |state| state.node(self.node).pending.clear(),
        )
    }
}
