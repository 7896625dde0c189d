//! Fault 7: a full disk is recoverable, whatever filled it.

use crate::load::{block_on, parts};
use ferrokube_storage::testing::{
    Crash, Model, SimDisk, check_present, check_store, commit, create, delete, hold, key, put,
    release, settle, text, write,
};
use ferrokube_storage::{
    CommitError, Committed, Config, Environment, Guard, JournalLimits, Need, Rewrites, Store, Txn,
    Write,
};

const DIR: &str = "/sim/storage";

fn object(name: &str) -> ferrokube_storage::Key {
    key("configmaps", "ns", name)
}

fn open_with(disk: &SimDisk, rewrites: Rewrites) -> Store {
    let journal = JournalLimits {
        segment_bytes: 8 << 10,
        retain_bytes: 16 << 10,
        watermark_bytes: 4 << 10,
        ballast_bytes: 16 << 10,
        rewrites,
    };
    Store::open_with(
        Config { history_bytes: 4000, ..Config::embedded(DIR) },
        Environment { journal, ..parts(disk) },
    )
    .unwrap()
}

async fn done(store: &Store, model: &mut Model, txn: Txn) {
    let committed = commit(store, txn.clone())
        .await
        .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", txn.writes[0].key(), store.stats()));
    model.record(committed.revision, &txn);
}

/// A delete whose last state is slightly larger than the stored one, like those of the server.
fn delete_of(name: &str, text: &str) -> Txn {
    Txn {
        guards: Vec::new(),
        writes: vec![Write::Delete {
            key: object(name),
            last: Some(put(&object(name), &format!("{text} by me"))),
        }],
    }
}

/// Fills the disk until a put is refused. Returns the names.
async fn fill(store: &Store, model: &mut Model, text: &str) -> Vec<String> {
    for number in 0.. {
        let name = format!("n{number}");
        let txn = create(&object(&name), text);
        match commit(store, txn.clone()).await {
            Ok(Committed { revision, .. }) => model.record(revision, &txn),
            Err(CommitError::DiskFull) => {
                return (0..number).map(|number| format!("n{number}")).collect();
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("it ends")
}

/// After the store, and then other processes, have filled the disk, every object can be marked
/// twice and deleted, one by one, across restarts.
async fn drained(rewrites: Rewrites, len: usize) {
    let mut disk = SimDisk::default();
    disk.set_capacity(Some(128 << 10));
    let mut store = open_with(&disk, rewrites);
    let mut model = Model::default();
    let text = "v".repeat(len);
    let names = fill(&store, &mut model, &text).await;
    let live = store.live_bytes();
    assert!(names.len() > 3 && live > 20 << 10, "{} objects, {live} bytes", names.len());
    // Other processes take all free space. (Not after every write: while files are merged they do
    // not keep up.)
    let every = if rewrites == Rewrites::Inline { 1 } else { 16 };
    let take = |disk: &SimDisk, index: usize| {
        if index.is_multiple_of(every) {
            disk.set_capacity(Some(disk.used()));
        }
    };
    for round in 0..2 {
        for (index, name) in names.iter().enumerate() {
            take(&disk, index);
            let marked = format!("{round}{}", &text[1..]);
            done(&store, &mut model, write(&object(name), &marked)).await;
            if index % 16 == 7 {
                store.close().await;
                let crash = [Crash::Killed, Crash::Dropped, Crash::Torn][index / 16 % 3];
                disk = disk.crash(crash, index as u64);
                take(&disk, 0);
                store = open_with(&disk, rewrites);
            }
        }
    }
    take(&disk, 0);
    assert!(
        matches!(commit(&store, create(&object("more"), &text)).await, Err(CommitError::DiskFull))
            && store.stats().disk_full
    );
    for (index, name) in names.iter().enumerate() {
        take(&disk, index);
        done(
            &store,
            &mut model,
            if index % 2 == 0 { delete(&object(name)) } else { delete_of(name, &text) },
        )
        .await;
    }
    check_present(&store, &model);
    assert!(store.stats().rewrites > 0 && store.failure().is_none());
    settle(&store);
    store.close().await;
    let store = open_with(&disk, rewrites);
    check_store(&store, &model).await;
    assert!(store.live_bytes() == 0, "{:?}", store.stats());
    // Once there is space, everything works without a restart.
    disk.set_capacity(Some(128 << 10));
    while commit(&store, create(&object("more"), &text)).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(!store.stats().disk_full);
    store.close().await;
}

#[test]
fn fault_07_a_full_disk_can_be_emptied() {
    for len in [100, 700, 5000] {
        block_on(drained(Rewrites::Inline, len));
    }
    block_on(drained(Rewrites::Background, 700));
}

/// A put without space fails alone, with what was computed on it; the rest of its batch commits.
#[test]
fn fault_07_a_put_without_space_fails_alone() {
    block_on(async {
        let disk = SimDisk::default();
        let store = open_with(&disk, Rewrites::Inline);
        for name in ["a", "b", "quota"] {
            commit(&store, create(&object(name), "some text")).await.unwrap();
        }
        hold(&store);
        disk.set_capacity(Some(disk.used()));
        let submit = |txn: Txn| store.submit(txn).unwrap();
        let gone = submit(delete(&object("a")));
        let large = submit(create(&object("large"), &"v".repeat(3000)));
        let seen = store.pending(&object("large")).unwrap().revision;
        let on_large =
            submit(Txn { guards: vec![Guard::At(object("large"), seen)], ..delete(&object("b")) });
        let shorter = submit(write(&object("quota"), "less"));
        let again = submit(write(&object("large"), "x"));
        release(&store);
        assert!(matches!(large.committed().await, Err(CommitError::DiskFull)));
        assert!(
            matches!(on_large.committed().await, Err(CommitError::DiskFull)),
            "its guard named a refused put"
        );
        assert!(
            matches!(again.committed().await, Err(CommitError::DiskFull)),
            "it replaces a refused put"
        );
        let (gone, shorter) = (gone.committed().await.unwrap(), shorter.committed().await.unwrap());
        assert!(gone.revision < shorter.revision);
        assert!(store.pending(&object("large")).is_none() && store.pending(&object("b")).is_some());
        assert_eq!(text(&store.pending(&object("quota")).unwrap()), "less");
        // Only transactions that lead to a delete may grow, and only slightly.
        let marked = |len| write(&object("b"), &"m".repeat(len));
        assert!(matches!(commit(&store, marked(10)).await, Err(CommitError::DiskFull)));
        store.submit_needed(marked(200), Need::Essential).unwrap().committed().await.unwrap();
        assert!(matches!(
            store.submit_needed(marked(8000), Need::Essential).unwrap().committed().await,
            Err(CommitError::DiskFull)
        ));
        assert!(!store.has_space());
        // Refused at once now; its revision was seen, and is not given again.
        let refused = submit(create(&object("late"), "x"));
        let seen = refused.entries()[0].revision;
        assert!(matches!(refused.committed().await, Err(CommitError::DiskFull)));
        let gone = submit(delete(&object("b"))).committed().await.unwrap();
        assert!(gone.revision > seen, "{} after {seen}", gone.revision);
        disk.set_capacity(None);
        // A probe triggers a check; the next one sees its result.
        let _ = store.has_space();
        settle(&store);
        assert!(store.has_space());
        store.close().await;
    });
}

/// Replaces an object by one of the same length on a full disk of which every byte is live.
async fn replaced(len: usize) {
    let disk = SimDisk::default();
    disk.set_capacity(Some(128 << 10));
    let store = open_with(&disk, Rewrites::Inline);
    let mut model = Model::default();
    done(&store, &mut model, create(&object("large"), &"v".repeat(len))).await;
    fill(&store, &mut model, &"s".repeat(700)).await;
    disk.set_capacity(Some(disk.used()));
    done(&store, &mut model, write(&object("large"), &"w".repeat(len))).await;
    store.close().await;
    check_store(&open_with(&disk, Rewrites::Inline), &model).await;
}

/// The ballast is enough for 6 KiB here, and there is nothing to reclaim.
#[test]
fn fault_07_a_write_larger_than_the_ballast_uses_what_the_spare_file_does_not_need() {
    for len in [4 << 10, 8 << 10, 10 << 10] {
        block_on(replaced(len));
    }
}
