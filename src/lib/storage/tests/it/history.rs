//! How much history stays in memory: much while it is young, little when nothing happens; what left it is read from the journal.

use crate::load::block_on;
use ferrokube_storage::testing::{ManualClock, commit, create, delete, key, write};
use ferrokube_storage::{Config, Engine, Limits, Parts, Prefix, Revision, Store};
use std::sync::Arc;
use std::time::Duration;

const QUIET: usize = 16 << 10;

fn parts(clock: &Arc<ManualClock>) -> Parts {
    let limits = Limits { quiet_history_bytes: QUIET, young: Duration::from_secs(5), ..Limits::default() };
    Parts { clock: clock.clone(), limits, ..Parts::default() }
}

async fn until(store: &Store, condition: impl Fn(&ferrokube_storage::Stats) -> bool) {
    for _ in 0..2000 {
        if condition(&store.stats()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{:?}", store.stats());
}

#[test]
fn history_shrinks_when_nothing_happens_and_is_read_from_the_journal() {
    block_on(async {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
        let config = Config { engine: Engine::Embedded(dir.path().join("storage")), history_bytes: 1 << 20 };
        let store = Store::open_with(config, parts(&clock)).unwrap();
        for n in 0..200 {
            let key = key("configmaps", "ns", &format!("n{n}"));
            commit(&store, create(&key, &"x".repeat(500))).await.unwrap();
            commit(&store, delete(&key)).await.unwrap();
        }
        assert!(store.stats().history_bytes > 4 * QUIET, "young events stay: {:?}", store.stats());
        clock.advance(Duration::from_secs(6));
        until(&store, |stats| stats.history_bytes <= QUIET).await;
        let mut cursor = store.watch(&Prefix::new("configmaps").unwrap(), Revision(0)).unwrap();
        let mut seen = 0;
        while seen < 400 {
            for event in cursor.next(64).await.unwrap() {
                seen += 1;
                assert_eq!(event.revision(), Revision(seen));
            }
        }
        store.close().await;
    });
}

#[test]
fn history_of_much_data_stays_and_the_memory_engine_keeps_all() {
    block_on(async {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
        for engine in [Engine::Embedded(dir.path().join("storage")), Engine::Memory] {
            let memory = matches!(engine, Engine::Memory);
            let store = Store::open_with(Config { engine, history_bytes: 1 << 20 }, parts(&clock)).unwrap();
            for n in 0..200 {
                commit(&store, write(&key("configmaps", "ns", &format!("n{n}")), &"x".repeat(500))).await.unwrap();
            }
            let all = store.stats().history_bytes;
            clock.advance(Duration::from_secs(6));
            // Something for the committer to do: afterwards it has seen the time.
            commit(&store, create(&key("secrets", "ns", "a"), "a")).await.unwrap();
            let (live, left) = (usize::try_from(store.stats().live_bytes).unwrap(), store.stats().history_bytes);
            if memory {
                assert!(left > all);
            } else {
                assert!(left < all && left > live / 5, "{left} of {all} with {live} present");
            }
            store.close().await;
        }
    });
}
