//! The process dies, another one starts and publishes what it finds, then the power fails: whatever
//! was published must survive.

use crate::load::{LoadRun, block_on, open};
use ferrokube_storage::testing::{Crash, DiskFault, SimDisk, check_present};
use ferrokube_storage::{Revision, Store};

/// Runs the load with a fault at a call.
async fn run(call: u64, fault: DiskFault) -> (SimDisk, LoadRun) {
    let disk = SimDisk::default();
    disk.fail_at(call, fault);
    let mut run = LoadRun::default();
    if let Ok(store) = open(&disk) {
        run.load(&store, 12, 5).await;
        store.close().await;
    }
    (disk, run)
}

fn calls() -> u64 {
    block_on(run(u64::MAX, DiskFault::PowerCut)).0.calls()
}

/// What a start shows survives a power cut.
async fn check(disk: &SimDisk, run: &LoadRun, crash: Crash, seed: u64) {
    let again = disk.crash(Crash::Killed, 0);
    let Ok(store) = open(&again) else { panic!("recovery after a kill") };
    let mut found = run.model.clone();
    for (open, txn) in run.open.iter().filter(|(open, _)| *open <= store.revision()) {
        found.record(*open, txn);
    }
    check_present(&store, &found);
    let shown: Revision = store.revision();
    // A power cut while running: nothing was closed.
    let cut = again.crash(crash, seed);
    store.close().await;
    let store: Store =
        open(&cut).unwrap_or_else(|error| panic!("recovery after a power cut: {error}"));
    assert_eq!(store.revision(), shown, "a start has shown {shown}");
    check_present(&store, &found);
    store.close().await;
}

fn every_call(fault: DiskFault) {
    for call in 0..calls() {
        let (disk, run) = block_on(run(call, fault));
        for crash in [Crash::Dropped, Crash::Torn, Crash::Reordered] {
            block_on(check(&disk, &run, crash, call));
        }
    }
}

/// Fault 4: a kill between a write and its sync leaves frames only in the page cache.
#[test]
fn fault_04_what_a_start_shows_survives_the_next_power_cut() {
    every_call(DiskFault::PowerCut);
}

/// Fault 5: after a failed sync the page cache holds what the platter lacks, and considers it
/// clean.
#[test]
fn fault_05_what_a_start_shows_after_a_failed_sync_survives_the_next_power_cut() {
    every_call(DiskFault::Eio);
}
