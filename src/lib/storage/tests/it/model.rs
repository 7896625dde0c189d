//! Random histories with crashes, restarts and faults, compared with a map.

use crate::load::{Run, block_on, open};
use ferrokube_storage::Store;
use ferrokube_storage::testing::{Crash, Fault, SimDisk, check_present, check_store};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// So many groups of writes.
    Write { groups: usize, seed: u64 },
    /// The store is closed and opened again.
    Restart,
    /// The power goes in the middle of writes, after so many calls.
    PowerCut { calls: u64, crash: u8, seed: u64 },
    /// A call fails soon.
    Fail { calls: u64, space: bool },
    /// Everything is compared.
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..8, any::<u64>()).prop_map(|(groups, seed)| Step::Write { groups, seed }),
        1 => Just(Step::Restart),
        2 => (0u64..40, 0u8..4, any::<u64>()).prop_map(|(calls, crash, seed)| Step::PowerCut { calls, crash, seed }),
        2 => (0u64..20, any::<bool>()).prop_map(|(calls, space)| Step::Fail { calls, space }),
        1 => Just(Step::Check),
    ]
}

struct Subject {
    disk: SimDisk,
    store: Store,
    run: Run,
}

impl Subject {
    async fn apply(&mut self, step: Step) {
        match step {
            Step::Write { groups, seed } => self.run.load(&self.store, groups, seed).await,
            Step::Restart => {
                self.store.close().await;
                self.reopen(Crash::Killed, 0).await;
            }
            Step::PowerCut { calls, crash, seed } => {
                self.disk.fail_at(self.disk.calls() + calls, Fault::PowerCut);
                self.run.load(&self.store, 12, seed).await;
                self.store.close().await;
                let crash = [Crash::Killed, Crash::Dropped, Crash::Torn, Crash::Reordered][usize::from(crash)];
                self.reopen(crash, seed).await;
            }
            Step::Fail { calls, space } => self.disk.fail_at(self.disk.calls() + calls, if space { Fault::Enospc } else { Fault::Eio }),
            Step::Check => self.check().await,
        }
        if self.run.failed {
            self.store.close().await;
            self.reopen(Crash::Dropped, 1).await;
        }
    }

    /// Without a fault on the way: older events that cannot be read are told to be gone.
    async fn check(&self) {
        self.disk.fail_at(u64::MAX, Fault::Eio);
        check_store(&self.store, &self.run.model).await;
    }

    /// What was open either happened, in order, or did not.
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
            let mut subject = Subject { disk, store, run: Run::default() };
            for step in steps {
                subject.apply(step).await;
            }
            subject.check().await;
            subject.store.close().await;
        });
    }
}
