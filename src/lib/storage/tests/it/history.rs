//! History in memory: large while young, small when idle; evicted events are read from the journal.

use crate::load::block_on;
use ferrokube_storage::testing::{
    ManualClock, PATIENCE, SimDisk, commit, create, delete, hold, key, release, write,
};
use ferrokube_storage::{
    Config, Engine, Environment, JournalLimits, Prefix, ReadLimit, Revision, Store, StoreLimits,
};
use std::sync::Arc;
use std::time::Duration;

const QUIET: usize = 16 << 10;

fn parts(clock: &Arc<ManualClock>) -> Environment {
    let limits = StoreLimits {
        quiet_history_bytes: QUIET,
        young: Duration::from_secs(5),
        ..StoreLimits::default()
    };
    Environment { clock: clock.clone(), limits, ..Environment::default() }
}

/// Lets time pass without writes. More than once: the rest may begin after the clock was advanced.
async fn until_at_rest(
    store: &Store,
    clock: &ManualClock,
    condition: impl Fn(&ferrokube_storage::Stats) -> bool,
) {
    let begun = std::time::Instant::now();
    while !condition(&store.stats()) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", store.stats());
        clock.advance(Duration::from_secs(6));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn history_shrinks_when_nothing_happens_and_is_read_from_the_journal() {
    block_on(async {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
        let config =
            Config { history_bytes: 1 << 20, ..Config::embedded(dir.path().join("storage")) };
        let store = Store::open_with(config, parts(&clock)).unwrap();
        for n in 0..200 {
            let key = key("configmaps", "ns", &format!("n{n}"));
            commit(&store, create(&key, &"x".repeat(500))).await.unwrap();
            commit(&store, delete(&key)).await.unwrap();
        }
        assert!(store.stats().history_bytes > 4 * QUIET, "young events stay: {:?}", store.stats());
        until_at_rest(&store, &clock, |stats| stats.history_bytes <= QUIET).await;
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
            let store = Store::open_with(
                Config { engine, history_bytes: 1 << 20, ..Config::memory() },
                parts(&clock),
            )
            .unwrap();
            for n in 0..200 {
                commit(&store, write(&key("configmaps", "ns", &format!("n{n}")), &"x".repeat(500)))
                    .await
                    .unwrap();
            }
            let all = store.stats().history_bytes;
            clock.advance(Duration::from_secs(6));
            // Gives the committer work, after which it has seen the time.
            commit(&store, create(&key("secrets", "ns", "a"), "a")).await.unwrap();
            let (live, left) =
                (usize::try_from(store.stats().live_bytes).unwrap(), store.stats().history_bytes);
            if memory {
                assert!(left > all);
            } else {
                assert!(left < all && left > live / 5, "{left} of {all} with {live} present");
            }
            store.close().await;
        }
    });
}

/// Deleted data leaves the disk after the burst, not when the next segment is full.
#[test]
fn a_journal_of_deleted_objects_becomes_small_at_rest() {
    block_on(async {
        let (dir, clock) = (tempfile::tempdir().unwrap(), Arc::new(ManualClock::default()));
        let config =
            Config { history_bytes: 1 << 20, ..Config::embedded(dir.path().join("storage")) };
        let journal = JournalLimits {
            segment_bytes: 16 << 10,
            retain_bytes: 128 << 10,
            ..JournalLimits::default()
        };
        let store =
            Store::open_with(config.clone(), Environment { journal, ..parts(&clock) }).unwrap();
        let keys: Vec<_> = (0..200).map(|n| key("configmaps", "ns", &format!("n{n}"))).collect();
        for key in &keys {
            commit(&store, create(key, &"x".repeat(1000))).await.unwrap();
        }
        let stored = store.stats().journal_bytes;
        until_at_rest(&store, &clock, |stats| stats.history_bytes < 200_000).await;
        assert!(store.stats().journal_bytes >= stored, "what is present stays");
        for key in &keys {
            commit(&store, delete(key)).await.unwrap();
        }
        until_at_rest(&store, &clock, |stats| stats.journal_bytes < 64 << 10 && stats.rewrites > 0)
            .await;
        commit(&store, create(&keys[0], "again")).await.unwrap();
        let revision = store.revision();
        store.close().await;
        let store = Store::open(config).unwrap();
        assert_eq!(
            (
                store.revision(),
                store.snapshot(&Prefix::new("configmaps").unwrap()).count(None, None)
            ),
            (revision, 1)
        );
        store.close().await;
    });
}

/// Values referenced by history only count against its bound, however short their replacements.
#[test]
fn replaced_values_are_counted() {
    block_on(async {
        let clock = Arc::new(ManualClock::default());
        let store =
            Store::open_with(Config { history_bytes: 1 << 20, ..Config::memory() }, parts(&clock))
                .unwrap();
        let keys: Vec<_> = (0..40).map(|n| key("configmaps", "ns", &format!("n{n}"))).collect();
        for key in &keys {
            commit(&store, create(key, &"x".repeat(100_000))).await.unwrap();
        }
        let present = store.stats().history_bytes;
        assert!(present < 40 * 1000, "what is present is the state's: {present}");
        for key in &keys {
            commit(&store, write(key, "short")).await.unwrap();
        }
        let stats = store.stats();
        assert!(stats.history_bytes <= 1 << 20 && stats.history_events < 20, "{stats:?}");
        store.close().await;
    });
}

/// After a restart every watcher resumes: the journal is decoded once for all of them.
#[test]
fn fault_21_a_storm_of_resumed_watches_reads_the_journal_once() {
    block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let config = Config { history_bytes: 4096, ..Config::embedded(dir.path().join("storage")) };
        let store = Store::open(config).unwrap();
        for n in 0..300 {
            commit(
                &store,
                write(&key("configmaps", "ns", &format!("n{}", n % 10)), &"x".repeat(1000)),
            )
            .await
            .unwrap();
        }
        let mut watchers = tokio::task::JoinSet::new();
        for from in 0..100 {
            let mut cursor =
                store.watch(&Prefix::new("configmaps").unwrap(), Revision(from)).unwrap();
            watchers.spawn(async move {
                let mut seen = from;
                while seen < 300 {
                    for event in
                        cursor.next_within(ReadLimit { events: 100, bytes: 8 << 10 }).await.unwrap()
                    {
                        seen += 1;
                        assert_eq!(event.revision(), Revision(seen));
                    }
                }
            });
        }
        while let Some(watched) = watchers.join_next().await {
            watched.unwrap();
        }
        let stats = store.stats();
        assert!((1..=3).contains(&stats.replay_cache) && stats.replay_bytes > 0, "{stats:?}");
        store.close().await;
    });
}

/// A batch of small values may replace large ones, which its events keep alive.
#[test]
fn a_read_of_the_journal_is_bounded_by_replaced_values() {
    block_on(async {
        let disk = SimDisk::default();
        let parts = crate::load::parts(&disk);
        let journal =
            JournalLimits { segment_bytes: 64 << 20, retain_bytes: 64 << 20, ..parts.journal };
        let config = Config { history_bytes: 1000, ..Config::embedded("/sim/storage") };
        let store = Store::open_with(config, Environment { journal, ..parts }).unwrap();
        let keys: Vec<_> = (0..60).map(|n| key("configmaps", "ns", &format!("n{n}"))).collect();
        for key in &keys {
            commit(&store, create(key, &"x".repeat(100_000))).await.unwrap();
        }
        let before = store.revision();
        hold(&store);
        let tickets: Vec<_> =
            keys.iter().map(|key| store.submit(write(key, "short")).unwrap()).collect();
        release(&store);
        for ticket in tickets {
            ticket.committed().await.unwrap();
        }
        let mut cursor = store.watch(&Prefix::new("configmaps").unwrap(), before).unwrap();
        let most = ReadLimit { events: 100, bytes: 250_000 };
        let mut seen = cursor.next_within(most).await.unwrap().len();
        assert_eq!(seen, 3);
        let held = store.stats().replay_bytes;
        assert!(held < 1_300_000, "{held} bytes were read for them");
        while cursor.bookmark().is_none() {
            seen += cursor.next_within(most).await.unwrap().len();
        }
        assert_eq!(seen, keys.len());
        store.close().await;
    });
}

/// One batch may hold more events than one read of the journal.
#[test]
fn a_watch_through_a_batch_of_thousands_misses_nothing() {
    block_on(async {
        let disk = SimDisk::default();
        let config = Config { history_bytes: 1000, ..Config::embedded("/sim/storage") };
        let store = Store::open_with(config, crate::load::parts(&disk)).unwrap();
        hold(&store);
        let tickets: Vec<_> = (0..5000)
            .map(|number| {
                store.submit(create(&key("configmaps", "ns", &format!("n{number}")), "v")).unwrap()
            })
            .collect();
        release(&store);
        for ticket in tickets {
            ticket.committed().await.unwrap();
        }
        assert_eq!(store.stats().batches, 1);
        let mut cursor = store.watch(&Prefix::new("configmaps").unwrap(), Revision(0)).unwrap();
        let mut seen = 0;
        while cursor.bookmark().is_none() {
            for event in cursor.next(1000).await.unwrap() {
                seen += 1;
                assert_eq!(event.revision(), Revision(seen));
            }
        }
        assert_eq!(seen, 5000);
        store.close().await;
    });
}
