//! Random histories with crashes, restarts and faults, checked against the model.

use crate::load::{LoadRun, block_on, open};
use ferrokube_storage::Store;
use ferrokube_storage::testing::{Crash, DiskFault, SimDisk, check_present, check_store};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum ModelStep {
    /// Groups of writes.
    Write { groups: usize, seed: u64 },
    /// Close and reopen.
    Restart,
    /// A power cut during writes, after `calls` disk calls.
    PowerCut { calls: u64, crash: u8, seed: u64 },
    /// An IO or space error after `calls` disk calls.
    Fail { calls: u64, space: bool },
    /// Compare everything.
    Check,
}

fn step() -> impl Strategy<Value = ModelStep> {
    prop_oneof![
        6 => (1usize..8, any::<u64>()).prop_map(|(groups, seed)| ModelStep::Write { groups, seed }),
        1 => Just(ModelStep::Restart),
        2 => (0u64..40, 0u8..4, any::<u64>()).prop_map(|(calls, crash, seed)| ModelStep::PowerCut { calls, crash, seed }),
        2 => (0u64..20, any::<bool>()).prop_map(|(calls, space)| ModelStep::Fail { calls, space }),
        1 => Just(ModelStep::Check),
    ]
}

struct StoreUnderTest {
    disk: SimDisk,
    store: Store,
    run: LoadRun,
}

impl StoreUnderTest {
    async fn apply(&mut self, step: ModelStep) {
        match step {
            ModelStep::Write { groups, seed } => self.run.load(&self.store, groups, seed).await,
            ModelStep::Restart => {
                self.store.close().await;
                self.reopen(Crash::Killed, 0).await;
            }
            ModelStep::PowerCut { calls, crash, seed } => {
                self.disk.fail_at(self.disk.calls() + calls, DiskFault::PowerCut);
                self.run.load(&self.store, 12, seed).await;
                self.store.close().await;
                let crash = [Crash::Killed, Crash::Dropped, Crash::Torn, Crash::Reordered]
                    [usize::from(crash)];
                self.reopen(crash, seed).await;
            }
            ModelStep::Fail { calls, space } => self.disk.fail_at(
                self.disk.calls() + calls,
                if space { DiskFault::Enospc } else { DiskFault::Eio },
            ),
            ModelStep::Check => self.check().await,
        }
        if self.run.failed {
            self.store.close().await;
            self.reopen(Crash::Dropped, 1).await;
        }
    }

    /// With the fault disarmed: archived events that cannot be read would be reported as compacted.
    async fn check(&self) {
        self.disk.fail_at(u64::MAX, DiskFault::Eio);
        check_store(&self.store, &self.run.model).await;
    }

    /// A prefix of the open transactions may have been committed.
    async fn reopen(&mut self, crash: Crash, seed: u64) {
        self.disk = self.disk.crash(crash, seed);
        self.store = open(&self.disk).unwrap_or_else(|error| panic!("recovery: {error:?}"));
        let revision = self.store.revision();
        assert!(revision >= self.run.model.revision());
        for (open, txn) in std::mem::take(&mut self.run.open) {
            if open <= revision {
                self.run.model.record(open, &txn);
            }
        }
        self.run.failed = false;
        check_present(&self.store, &self.run.model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_is_a_map_with_a_history(steps in prop::collection::vec(step(), 1..24)) {
        block_on(async {
            let disk = SimDisk::default();
            let store = open(&disk).unwrap();
            let mut subject = StoreUnderTest { disk, store, run: LoadRun::default() };
            for step in steps {
                subject.apply(step).await;
            }
            subject.check().await;
            subject.store.close().await;
        });
    }
}
