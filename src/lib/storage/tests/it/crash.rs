//! Power cuts, IO errors and full disks at every single call of a scripted load. Test names state
//! the disk model.

use crate::load::{LoadRun, block_on, open};
use ferrokube_storage::testing::{Crash, DiskFault, SimDisk, check_present, settle};
use ferrokube_storage::{OpenError, Revision};

const GROUPS: usize = 30;
const SEED: u64 = 11;

/// Runs the load with a fault at a call. Returns the disk.
async fn run(fault: Option<(u64, DiskFault)>) -> (SimDisk, LoadRun) {
    let disk = SimDisk::default();
    if let Some((call, fault)) = fault {
        disk.fail_at(call, fault);
    }
    let mut run = LoadRun::default();
    if let Ok(store) = open(&disk) {
        run.load(&store, GROUPS, SEED).await;
        store.close().await;
    } else {
        assert!(fault.is_some(), "opening fails only because of a fault");
    }
    (disk, run)
}

/// Number of disk calls of the load.
fn calls() -> u64 {
    let (disk, run) = block_on(run(None));
    assert!(!run.failed && run.refused == 0);
    assert!(disk.calls() > 200, "the load is long enough: {} calls", disk.calls());
    disk.calls()
}

fn power_cuts(crash: Crash, seeds: u64) {
    for call in 0..calls() {
        let (disk, run) = block_on(run(Some((call, DiskFault::PowerCut))));
        for seed in 0..seeds {
            block_on(run.check(&disk.crash(crash, call * 31 + seed), call % 4 == 0));
        }
    }
}

/// Faults 1, 2, 3 and 4: no unsynced data survives.
#[test]
fn fault_01_power_cut_at_every_call_unsynced_writes_dropped() {
    power_cuts(Crash::Dropped, 1);
}

#[test]
fn fault_04_power_cut_at_every_call_unsynced_writes_torn() {
    power_cuts(Crash::Torn, 2);
}

#[test]
fn fault_04_power_cut_at_every_call_unsynced_writes_reordered() {
    power_cuts(Crash::Reordered, 2);
}

/// The process dies, not the machine.
#[test]
fn fault_01_kill_at_every_call() {
    power_cuts(Crash::Killed, 1);
}

/// Fault 5: after an IO error at any call the store either continues or fails for good; a sync is
/// not retried, and nothing is acknowledged on top of it.
#[test]
fn fault_05_io_error_at_every_call() {
    let mut dead = 0;
    for call in 0..calls() {
        let (disk, run) = block_on(run(Some((call, DiskFault::Eio))));
        dead += usize::from(run.failed);
        for crash in [Crash::Killed, Crash::Dropped, Crash::Reordered] {
            block_on(run.check(&disk.crash(crash, call), call % 8 == 0));
        }
    }
    assert!(dead > 20, "writes and syncs of the load are fatal: {dead}");
}

/// Fault 7: no space, at any call.
#[test]
fn fault_07_no_space_at_every_call() {
    let (mut dead, mut refused) = (0, 0);
    for call in 0..calls() {
        let (disk, run) = block_on(run(Some((call, DiskFault::Enospc))));
        dead += usize::from(run.failed);
        refused += usize::from(run.refused > 0);
        for crash in [Crash::Killed, Crash::Dropped, Crash::Torn] {
            block_on(run.check(&disk.crash(crash, call), call % 8 == 0));
        }
    }
    // None where only a new log could not be made: the old one continues.
    assert!(refused > 15, "a write without space is refused: {refused}");
    assert!(dead > 15, "a sync without space is fatal: {dead}");
}

/// Fault 3: a second power cut at every call of the recovery of a torn journal.
#[test]
fn fault_03_power_cut_at_every_call_of_recovery() {
    for call in (5..calls()).step_by(17) {
        let (disk, run) = block_on(run(Some((call, DiskFault::PowerCut))));
        let image = disk.crash(Crash::Torn, call);
        for second in 0.. {
            let again = image.crash(Crash::Killed, 0);
            again.fail_at(second, DiskFault::PowerCut);
            let opened = block_on(async {
                let store = open(&again);
                if let Ok(store) = &store {
                    store.close().await;
                }
                store.is_ok()
            });
            block_on(run.check(&again.crash(Crash::Dropped, second), false));
            block_on(run.check(&again.crash(Crash::Reordered, second), false));
            if opened && again.calls() <= second {
                break;
            }
        }
    }
}

/// Fault 6: a disk whose syncs become no-ops while a store is open. Either a tail of the unsynced
/// data is lost, or the damage is reported; never a hole, and no revision that was shown is
/// assigned again.
#[test]
fn fault_06_lying_syncs() {
    let (mut opened, mut lost) = (0, 0);
    let begin = block_on(async {
        let disk = SimDisk::default();
        open(&disk).unwrap().close().await;
        disk.calls()
    });
    for call in (begin..calls()).step_by(3) {
        let disk = SimDisk::default();
        disk.fail_at(call, DiskFault::LyingSyncs);
        let (mut run, mut honest) = (LoadRun::default(), Revision(0));
        // Not closed: power cut while running.
        let store = open(&disk).unwrap();
        for group in 0..GROUPS as u64 {
            block_on(run.load(&store, 1, group));
            if !disk.is_lying() {
                honest = run.model.revision();
            }
        }
        settle(&store);
        let images =
            [Crash::Dropped, Crash::Torn, Crash::Reordered].map(|crash| disk.crash(crash, call));
        block_on(store.close());
        for image in images {
            let store = match open(&image) {
                Ok(store) => store,
                Err(OpenError::Damaged { .. }) => continue,
                Err(error) => panic!("{error:?}"),
            };
            opened += 1;
            let found = store.revision();
            assert!(found >= honest, "synced up to {honest}, found up to {found}");
            lost += usize::from(found < run.model.revision());
            let mut prefix = run.model.clone();
            prefix.forget_after(found);
            check_present(&store, &prefix);
            let mut again = LoadRun { model: prefix, ..LoadRun::default() };
            block_on(again.load(&store, 2, 3));
            let first = again.model.first_after(found).unwrap();
            assert!(
                first > run.model.revision(),
                "{first} was shown before, up to {}",
                run.model.revision()
            );
            block_on(store.close());
        }
    }
    assert!(opened > 20 && lost > 10, "{opened} opened, {lost} with a loss");
}
