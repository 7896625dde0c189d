//! A scripted load, and checks of what survives its interruption.

use ferrokube_storage::testing::{
    Crash, Dice, ManualClock, Model, SimDisk, check_present, check_store, key, put,
};
use ferrokube_storage::{
    CommitError, Config, Environment, Guard, JournalLimits, OpenError, Rejected, Revision,
    Rewrites, Store, Txn, Write,
};
use std::sync::Arc;

/// Result of a load.
#[derive(Default)]
pub(crate) struct LoadRun {
    /// Acknowledged transactions.
    pub model: Model,
    /// Submitted, neither acknowledged nor refused: may survive, in order.
    pub open: Vec<(Revision, Txn)>,
    /// Transactions refused on a full disk.
    pub refused: usize,
    /// Whether the journal failed.
    pub failed: bool,
}

pub(crate) fn parts(disk: &SimDisk) -> Environment {
    let journal = JournalLimits {
        segment_bytes: 1500,
        retain_bytes: 3000,
        watermark_bytes: 0,
        ballast_bytes: 16 << 10,
        rewrites: Rewrites::Inline,
    };
    Environment {
        io: Arc::new(disk.clone()),
        clock: Arc::new(ManualClock::default()),
        journal,
        ..Environment::default()
    }
}

pub(crate) fn open(disk: &SimDisk) -> Result<Store, OpenError> {
    Store::open_with(
        Config { history_bytes: 2000, ..Config::embedded("/sim/storage") },
        parts(disk),
    )
}

/// A random transaction valid on the pending heads.
pub(crate) fn txn(store: &Store, dice: &mut Dice) -> Txn {
    let mut txn = Txn::default();
    let resources = ["configmaps", "secrets", "example.com/widgets"];
    let first = dice.below(3);
    for resource in &resources[first..(first + 1 + dice.below(2)).min(3)] {
        let key = key(resource, "ns", &format!("n{}", dice.below(5)));
        let text = "v".repeat(dice.below(120));
        match store.pending(&key) {
            None => {
                txn.guards.push(Guard::Absent(key.clone()));
                txn.writes.push(Write::Put(put(&key, &text)));
            }
            Some(entry) => {
                txn.guards.push(Guard::At(key.clone(), entry.revision));
                txn.writes.push(match dice.below(4) {
                    0 => Write::Delete { last: None, key },
                    1 => Write::Delete { last: Some(put(&key, &text)), key },
                    _ => Write::Put(put(&key, &text)),
                });
            }
        }
    }
    txn
}

impl LoadRun {
    /// Runs `groups` groups of transactions, each of which may become one batch, until done or the
    /// journal fails.
    pub(crate) async fn load(&mut self, store: &Store, groups: usize, seed: u64) {
        let mut dice = Dice::new(seed);
        for _ in 0..groups {
            let mut tickets = Vec::new();
            for _ in 0..1 + dice.below(3) {
                let txn = txn(store, &mut dice);
                match store.submit(txn.clone()) {
                    Ok(ticket) => tickets.push((ticket, txn)),
                    Err(Rejected::Closed(_)) => self.failed = true,
                    // A refused batch was removed between the read and the guard.
                    Err(Rejected::Guard(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            for (ticket, txn) in tickets {
                let revision = ticket.entries()[0].revision;
                match ticket.committed().await {
                    Ok(done) => {
                        assert_eq!(done.revision, revision);
                        assert!(self.open.is_empty(), "acknowledged after a failure");
                        self.model.record(revision, &txn);
                    }
                    Err(CommitError::DiskFull) => self.refused += 1,
                    Err(CommitError::Failed(_)) => {
                        self.open.push((revision, txn));
                        self.failed = true;
                    }
                    Err(error) => panic!("of a remote engine: {error}"),
                }
            }
            if self.failed {
                return;
            }
        }
    }

    /// Checks a disk after a crash: everything acknowledged, then a prefix of the open
    /// transactions.
    pub(crate) async fn check(&self, image: &SimDisk, thorough: bool) {
        let store = open(image).unwrap_or_else(|error| panic!("recovery: {error:?}"));
        let mut found = LoadRun { model: self.model.clone(), ..LoadRun::default() };
        let revision = store.revision();
        assert!(
            revision >= self.model.revision(),
            "acknowledged up to {}, found up to {revision}",
            self.model.revision()
        );
        for (open, txn) in self.open.iter().filter(|(open, _)| *open <= revision) {
            found.model.record(*open, txn);
        }
        check_present(&store, &found.model);
        if thorough {
            check_store(&store, &found.model).await;
        }
        // Work continues from there, and a second start finds its result.
        found.load(&store, 2, 99).await;
        assert!(!found.failed && found.model.revision() > revision);
        store.close().await;
        let store = open(&image.crash(Crash::Dropped, 0)).unwrap();
        check_present(&store, &found.model);
        store.close().await;
    }
}

/// A runtime for tests that need many.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}
