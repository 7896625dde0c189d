//! Random histories with crashes, restarts and faults, compared with a map.

use crate::load::{Run, block_on, open};
use ferrokube_storage::testing::{Crash, Fault, SimDisk, check_present, check_store};
use ferrokube_storage::{Revision, Store, WatchError};
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
    /// History is dropped.
    Compact { back: u64 },
    /// Everything is compared.
    Check,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..8, any::<u64>()).prop_map(|(groups, seed)| Step::Write { groups, seed }),
        1 => Just(Step::Restart),
        2 => (0u64..40, 0u8..4, any::<u64>()).prop_map(|(calls, crash, seed)| Step::PowerCut { calls, crash, seed }),
        2 => (0u64..20, any::<bool>()).prop_map(|(calls, space)| Step::Fail { calls, space }),
        1 => (0u64..30).prop_map(|back| Step::Compact { back }),
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
                self.reopen(Crash::Kept, 0).await;
            }
            Step::PowerCut { calls, crash, seed } => {
                self.disk.fail_at(self.disk.calls() + calls, Fault::PowerCut);
                self.run.load(&self.store, 12, seed).await;
                self.store.close().await;
                let crash = [Crash::Kept, Crash::Dropped, Crash::Torn, Crash::Reordered][usize::from(crash)];
                self.reopen(crash, seed).await;
            }
            Step::Fail { calls, space } => self.disk.fail_at(self.disk.calls() + calls, if space { Fault::Enospc } else { Fault::Eio }),
            Step::Compact { back } => {
                let to = Revision(self.store.revision().0.saturating_sub(back));
                self.store.compact(to);
                assert!(self.store.compacted() >= to);
            }
            Step::Check => check_store(&self.store, &self.run.model).await,
        }
        if self.run.failed {
            self.store.close().await;
            self.reopen(Crash::Dropped, 1).await;
        }
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
            check_store(&subject.store, &subject.run.model).await;
            let prefix = ferrokube_storage::Prefix::new("configmaps").unwrap();
            let compacted = subject.store.compacted();
            if compacted.0 > 0 {
                let before = subject.store.watch(&prefix, Revision(compacted.0 - 1));
                assert!(matches!(before, Err(WatchError::Compacted(_))));
            }
            subject.store.close().await;
        });
    }
}
