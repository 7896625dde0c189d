//! Store benchmark: `cargo run --release -p ferrokube-storage --example bench [DIR [recover]]`.
//! With `recover`, only measures recovery of the directory that an earlier run left.
#![allow(clippy::unwrap_used)]

use ferrokube_storage::testing::key;
use ferrokube_storage::{Config, Guard, Prefix, Put, Revision, Sidecar, Store, Txn, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const VALUE: usize = 1400;

fn put(name: &str) -> Txn {
    let key = key("configmaps", "bench", name);
    let sidecar = Sidecar { revision_at: 20, comma: true, ..Sidecar::default() };
    let put = Put { key: key.clone(), value: vec![b'x'; VALUE].into(), sidecar, ttl: None };
    Txn { guards: vec![Guard::Absent(key)], writes: vec![Write::Put(put)] }
}

/// CPU seconds used by this process.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn writers(store: &Store, count: usize, total: usize, tag: &str) {
    let before = store.stats();
    let (began, cpu_before) = (Instant::now(), cpu());
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..count {
        let (store, tag) = (store.clone(), tag.to_owned());
        tasks.spawn(async move {
            for number in 0..total / count {
                store
                    .submit(put(&format!("{tag}-{writer}-{number}")))
                    .unwrap()
                    .committed()
                    .await
                    .unwrap();
            }
        });
    }
    tasks.join_all().await;
    let (took, used, after) = (began.elapsed(), cpu() - cpu_before, store.stats());
    let commits = (after.commits - before.commits) as f64;
    println!(
        "{tag:>10}: {count:3} writers {:8.0} commits/s, {:6.1} per sync, {:5.1} us CPU each, sync {:6.1} us",
        commits / took.as_secs_f64(),
        commits / (after.syncs - before.syncs).max(1) as f64,
        used / commits * 1e6,
        (after.sync_time - before.sync_time).as_secs_f64()
            / (after.syncs - before.syncs).max(1) as f64
            * 1e6,
    );
}

async fn fill(store: &Store, count: usize) {
    let mut tickets = Vec::new();
    for number in 0..count {
        tickets.push(store.submit(put(&format!("fill-{:07}", number * 7919 % count))).unwrap());
        if tickets.len() == 1000 {
            for ticket in tickets.drain(..) {
                ticket.committed().await.unwrap();
            }
        }
    }
    for ticket in tickets {
        ticket.committed().await.unwrap();
    }
}

async fn recovery(dir: &Path) {
    let config = Config { history_bytes: 32 << 20, ..Config::embedded(dir.join("recovery")) };
    let store = Store::open(config.clone()).unwrap();
    let (began, cpu_before) = (Instant::now(), cpu());
    fill(&store, 100_000).await;
    println!(
        "  fill 100k: {:.0} ms, {:.1} us CPU each",
        began.elapsed().as_secs_f64() * 1e3,
        (cpu() - cpu_before) * 10.0
    );
    store.close().await;
    drop(store);
    for _ in 0..3 {
        start(&config).await;
    }
}

async fn start(config: &Config) {
    let before = rss_kib();
    let (began, cpu_before) = (Instant::now(), cpu());
    let store = Store::open(config.clone()).unwrap();
    let (took, used) = (began.elapsed(), cpu() - cpu_before);
    let count = store.snapshot(&Prefix::new("configmaps").unwrap()).count(None, None);
    println!(
        "   recovery: {count} entries in {:.0} ms, {:.0} ms CPU; RSS {} -> {} KiB",
        took.as_secs_f64() * 1e3,
        used * 1e3,
        before,
        rss_kib()
    );
    let began = Instant::now();
    let snapshot = store.snapshot(&Prefix::new("configmaps").unwrap());
    let bytes: usize = snapshot.range(Some("bench"), None).map(|entry| entry.bytes.len()).sum();
    println!("  list walk: {bytes} bytes in {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    drop(snapshot);
    let (began, cpu_before) = (Instant::now(), cpu());
    for number in 0..100_000 {
        assert!(store.get(&key("configmaps", "bench", &format!("fill-{number:07}"))).is_some());
    }
    println!(
        "        get: {:.0} ns, {:.0} ns CPU, key construction included",
        began.elapsed().as_secs_f64() * 1e4,
        (cpu() - cpu_before) * 1e4
    );
    store.close().await;
}

async fn watchers(dir: &Path) {
    let store = Arc::new(Store::open(Config::embedded(dir.join("watchers"))).unwrap());
    let prefix = Prefix::new("configmaps").unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    let before = rss_kib();
    for _ in 0..10_000 {
        let mut cursor = store.watch(&prefix, Revision(0)).unwrap();
        tasks.spawn(async move {
            let mut seen = 0;
            while seen < 100 {
                seen += cursor.next(16).await.unwrap().len();
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("   watchers: 10000 cost {} KiB", rss_kib() - before);
    let (began, cpu_before) = (Instant::now(), cpu());
    for number in 0..100 {
        store.submit(put(&format!("w{number}"))).unwrap().committed().await.unwrap();
    }
    let written = began.elapsed();
    tasks.join_all().await;
    println!(
        "   watchers: 100 commits in {:.0} ms, all 1M events after {:.0} ms, {:.2} us CPU per event",
        written.as_secs_f64() * 1e3,
        began.elapsed().as_secs_f64() * 1e3,
        (cpu() - cpu_before)
    );
    store.close().await;
}

#[tokio::main(worker_threads = 2)]
async fn main() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = std::env::args().nth(1).map_or_else(|| temporary.path().to_owned(), Into::into);
    if std::env::args().nth(2).is_some() {
        start(&Config { history_bytes: 32 << 20, ..Config::embedded(dir.join("recovery")) }).await;
        return;
    }
    for (name, config) in
        [("memory", Config::memory()), ("embedded", Config::embedded(dir.join("commits")))]
    {
        let store = Store::open(config).unwrap();
        for (count, total) in [(1, 2000), (16, 16_000), (64, 32_000)] {
            writers(&store, count, total, &format!("{name}{count}")).await;
        }
        store.close().await;
    }
    recovery(&dir).await;
    watchers(&dir).await;
}
