//! Serves archived events to watchers: each block is decoded once for all watchers near it, in
//! bounded memory.
//!
//! After a restart or an outage every watcher of a resource resumes at nearly the same revision.
//! Decoding the journal per watcher would multiply the work and the memory.

use crate::cursor::WatchError;
use crate::key::{Prefix, Revision};
use crate::log::ReadLimit;
use crate::published::{Archive, ArchivedEvents, event_bytes};
use crate::topic::Topic;
use crate::txn::Event;
use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Events decoded per block.
const BLOCK: ReadLimit = ReadLimit { events: 4096, bytes: 1 << 20 };
/// Cache bounds: bytes, and number of blocks.
const KEPT_BYTES: usize = 16 << 20;
const KEPT_BLOCKS: usize = 256;
/// Idle time after which a block is dropped.
const COLD: Duration = Duration::from_secs(10);
/// Concurrent decodes; never two of one resource, since the second may find its events in the first
/// block.
const READERS: usize = 4;

/// Events of one resource in `after < revision <= reached`.
struct Block {
    prefix: Prefix,
    after: Revision,
    reached: Revision,
    events: Vec<Event>,
    bytes: usize,
}

impl Block {
    fn has(&self, prefix: &Prefix, after: Revision) -> bool {
        self.after <= after && after < self.reached && self.prefix.as_str() == prefix.as_str()
    }

    /// The block's events of a topic after a revision.
    fn older(&self, after: Revision, most: ReadLimit, topic: &Topic) -> ArchivedEvents {
        let from = self.events.partition_point(|event| event.revision() <= after);
        let (events, reached) = most.of(topic, self.events[from..].iter());
        let last = self.events.last().map(Event::revision);
        let reached = reached.filter(|reached| Some(*reached) != last).unwrap_or(self.reached);
        ArchivedEvents { events, reached }
    }
}

/// Decoded blocks, least recently used first.
#[derive(Default)]
struct BlockCache {
    blocks: Vec<(Arc<Block>, Instant)>,
    bytes: usize,
    /// A sweeper task is running.
    swept: bool,
}

impl BlockCache {
    fn find(&mut self, prefix: &Prefix, after: Revision) -> Option<Arc<Block>> {
        let at = self.blocks.iter().rposition(|(block, _)| block.has(prefix, after))?;
        let (block, _) = self.blocks.remove(at);
        self.blocks.push((Arc::clone(&block), Instant::now()));
        Some(block)
    }

    /// Returns the evicted blocks, to be freed outside the lock.
    fn keep(&mut self, block: &Arc<Block>) -> Vec<(Arc<Block>, Instant)> {
        self.bytes += block.bytes;
        self.blocks.push((Arc::clone(block), Instant::now()));
        let (mut bytes, mut left) = (self.bytes, self.blocks.len());
        for (block, _) in &self.blocks {
            if left == 1 || (bytes <= KEPT_BYTES && left <= KEPT_BLOCKS) {
                break;
            }
            bytes -= block.bytes;
            left -= 1;
        }
        self.drop_first(self.blocks.len() - left)
    }

    fn drop_cold(&mut self) -> Vec<(Arc<Block>, Instant)> {
        let cold = self.blocks.iter().take_while(|(_, used)| used.elapsed() >= COLD).count();
        self.drop_first(cold)
    }

    fn drop_first(&mut self, count: usize) -> Vec<(Arc<Block>, Instant)> {
        let dropped: Vec<_> = self.blocks.drain(..count).collect();
        self.bytes -= dropped.iter().map(|(block, _)| block.bytes).sum::<usize>();
        dropped
    }
}

/// Drops cold blocks until none are left or the cache is gone.
async fn sweep(inner: Weak<ReplayCacheInner>) {
    loop {
        tokio::time::sleep(COLD / 2).await;
        let Some(inner) = inner.upgrade() else { return };
        let mut kept = inner.kept.lock();
        let dropped = kept.drop_cold();
        kept.swept = !kept.blocks.is_empty();
        let is_over = !kept.swept;
        drop(kept);
        drop(dropped);
        if is_over {
            return;
        }
    }
}

/// Cached access to the archive. Clones share one cache.
#[derive(Clone, Default)]
pub(crate) struct ReplayCache(Arc<ReplayCacheInner>);

#[derive(Default)]
struct ReplayCacheInner {
    archive: OnceLock<Arc<dyn Archive>>,
    kept: Mutex<BlockCache>,
    readers: [Arc<tokio::sync::Mutex<()>>; READERS],
    reads: AtomicU64,
}

impl ReplayCache {
    /// Sets the archive. Called once, while opening.
    pub(crate) fn set_archive(&self, archive: Arc<dyn Archive>) {
        // `Store::open` is the only caller.
        let _ = self.0.archive.set(archive);
    }

    pub(crate) fn archive(&self) -> Option<&Arc<dyn Archive>> {
        self.0.archive.get()
    }

    /// Number of archive reads, and bytes cached.
    pub(crate) fn stats(&self) -> (u64, usize) {
        (self.0.reads.load(Ordering::Relaxed), self.0.kept.lock().bytes)
    }

    /// The next events of a resource and topic in `after < revision <= until`. Cancel safe: a
    /// decode that was started ends up in the cache.
    ///
    /// # Errors
    /// [`WatchError::Compacted`] if the events are gone.
    pub(crate) async fn read(
        &self,
        prefix: &Prefix,
        after: Revision,
        until: Revision,
        most: ReadLimit,
        topic: &Topic,
    ) -> Result<ArchivedEvents, WatchError> {
        let gone = WatchError::Compacted(after);
        let Some(archive) = self.archive().cloned() else { return Err(gone) };
        if let Some(block) = self.find(prefix, after) {
            return Ok(block.older(after, most, topic));
        }
        let reader = Arc::clone(&self.0.readers[reader_of(prefix)]).lock_owned().await;
        if let Some(block) = self.find(prefix, after) {
            return Ok(block.older(after, most, topic));
        }
        let (this, prefix) = (self.clone(), prefix.clone());
        let read = tokio::task::spawn_blocking(move || {
            // Held until the decode ends, even if its watcher is gone.
            let _reader = reader;
            let block = this.decode(&*archive, prefix, after, until)?;
            if !std::mem::replace(&mut this.0.kept.lock().swept, true) {
                tokio::spawn(sweep(Arc::downgrade(&this.0)));
            }
            Ok(block)
        });
        let block = read.await.map_err(|_| gone)??;
        Ok(block.older(after, most, topic))
    }

    fn find(&self, prefix: &Prefix, after: Revision) -> Option<Arc<Block>> {
        self.0.kept.lock().find(prefix, after)
    }

    fn decode(
        &self,
        archive: &dyn Archive,
        prefix: Prefix,
        after: Revision,
        until: Revision,
    ) -> Result<Arc<Block>, WatchError> {
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        let ArchivedEvents { events, reached } =
            archive.events(prefix.as_str(), after, until, BLOCK)?;
        let bytes = events.iter().map(event_bytes).sum();
        let block = Arc::new(Block { prefix, after, reached, events, bytes });
        // Never cache a block that does not advance.
        let dropped = if reached > after { self.0.kept.lock().keep(&block) } else { Vec::new() };
        drop(dropped);
        Ok(block)
    }
}

fn reader_of(prefix: &Prefix) -> usize {
    let mut hasher = DefaultHasher::new();
    prefix.as_str().hash(&mut hasher);
    usize::try_from(hasher.finish() % READERS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{CheckedEpoch, Entry, Sidecar};

    /// Has an event at every tenth revision; counts concurrent decodes.
    struct Tenths {
        value: usize,
    }

    impl Archive for Tenths {
        fn floor(&self) -> Revision {
            Revision(0)
        }

        fn events(
            &self,
            prefix: &str,
            after: Revision,
            until: Revision,
            most: ReadLimit,
        ) -> Result<ArchivedEvents, WatchError> {
            let prefix =
                Prefix::new(prefix.trim_start_matches("/registry/").trim_end_matches('/')).unwrap();
            let all: Vec<Event> = (after.0 + 1..=until.0)
                .filter(|number| number % 10 == 0)
                .map(|number| event(&prefix, number, self.value))
                .collect();
            let events = most.of(&Topic::everything(), all.iter()).0;
            let reached =
                if events.len() < all.len() { events[events.len() - 1].revision() } else { until };
            Ok(ArchivedEvents { events, reached })
        }
    }

    fn event(prefix: &Prefix, number: u64, value: usize) -> Event {
        let (key, revision) = (prefix.key(None, "a").unwrap(), Revision(number));
        let entry = Entry {
            key,
            revision,
            create_revision: revision,
            bytes: vec![b' '; value].into(),
            sidecar: Sidecar::default(),
            checked: CheckedEpoch::default(),
        };
        Event { entry: Arc::new(entry), previous: None, deleted: false }
    }

    fn replay_cache(value: usize) -> ReplayCache {
        let replay_cache = ReplayCache::default();
        replay_cache.set_archive(Arc::new(Tenths { value }));
        replay_cache
    }

    async fn read(
        replay_cache: &ReplayCache,
        prefix: &Prefix,
        after: Revision,
        until: Revision,
    ) -> Result<ArchivedEvents, WatchError> {
        let most = ReadLimit { events: 7, bytes: 16 << 10 };
        replay_cache.read(prefix, after, until, most, &Topic::everything()).await
    }

    async fn all(
        replay_cache: &ReplayCache,
        prefix: &Prefix,
        mut after: Revision,
        until: Revision,
    ) -> Vec<u64> {
        let mut seen = Vec::new();
        while after < until {
            let older = read(replay_cache, prefix, after, until).await.unwrap();
            assert!(
                older.events.len() <= 7
                    && older
                        .events
                        .iter()
                        .rev()
                        .skip(1)
                        .map(|event| event.entry.bytes.len())
                        .sum::<usize>()
                        < 16 << 10
            );
            seen.extend(older.events.iter().map(|event| event.revision().0));
            assert!(older.reached > after, "it advances");
            after = older.reached;
        }
        seen
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_of_watchers_decodes_each_block_once() {
        let (replay_cache, until) = (replay_cache(10_000), Revision(5000));
        let mut watchers = tokio::task::JoinSet::new();
        for watcher in 0..200_u64 {
            let replay_cache = replay_cache.clone();
            watchers.spawn(async move {
                (
                    watcher,
                    all(
                        &replay_cache,
                        &Prefix::new("configmaps").unwrap(),
                        Revision(watcher),
                        until,
                    )
                    .await,
                )
            });
        }
        while let Some(watched) = watchers.join_next().await {
            let (watcher, seen) = watched.unwrap();
            assert!(
                seen.into_iter().eq((1..=500).map(|at| at * 10).filter(|number| *number > watcher)),
                "{watcher}"
            );
        }
        let (reads, kept) = replay_cache.stats();
        assert!(reads <= 8, "500 events of 10 kB fit 5 blocks; read {reads} times");
        assert!(kept > 0 && kept < 6 << 20, "{kept}");
        tokio::time::sleep(2 * COLD).await;
        assert_eq!(replay_cache.stats().1, 0, "cold blocks are dropped");
        all(&replay_cache, &Prefix::new("configmaps").unwrap(), Revision(0), until).await;
        assert!(replay_cache.0.kept.lock().swept, "the sweeper runs again");
    }

    #[tokio::test(start_paused = true)]
    async fn blocks_of_departed_watchers_are_dropped() {
        let (replay_cache, prefix) = (replay_cache(10_000), Prefix::new("configmaps").unwrap());
        tokio::select! {
            biased;
            _ = read(&replay_cache, &prefix, Revision(0), Revision(100)) => {}
            () = std::future::ready(()) => {}
        }
        while replay_cache.stats().1 == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(2 * COLD).await;
        assert_eq!(replay_cache.stats().1, 0);
    }

    #[tokio::test]
    async fn a_block_does_not_serve_earlier_positions() {
        let (replay_cache, prefix) = (replay_cache(10), Prefix::new("configmaps").unwrap());
        assert_eq!(all(&replay_cache, &prefix, Revision(30), Revision(60)).await, [40, 50, 60]);
        assert_eq!(
            all(&replay_cache, &prefix, Revision(5), Revision(60)).await,
            [10, 20, 30, 40, 50, 60]
        );
        assert_eq!(
            all(&replay_cache, &Prefix::new("secrets").unwrap(), Revision(50), Revision(60)).await,
            [60]
        );
    }

    #[tokio::test]
    async fn a_block_does_not_serve_the_position_at_its_end() {
        let (replay_cache, prefix) = (replay_cache(10), Prefix::new("configmaps").unwrap());
        assert_eq!(all(&replay_cache, &prefix, Revision(0), Revision(30)).await, [10, 20, 30]);
        let next = read(&replay_cache, &prefix, Revision(30), Revision(60)).await.unwrap();
        assert_eq!((next.events.len(), next.reached), (3, Revision(60)));
    }

    #[tokio::test]
    async fn blocks_are_bounded_in_bytes_and_one_may_be_larger() {
        let replay_cache = replay_cache(3 << 20);
        for resource in 0..20 {
            let prefix = Prefix::new(&format!("r{resource}")).unwrap();
            assert_eq!(
                all(&replay_cache, &prefix, Revision(0), Revision(40)).await,
                [10, 20, 30, 40]
            );
            assert!(replay_cache.stats().1 <= KEPT_BYTES, "{:?}", replay_cache.stats());
        }
        let large = self::replay_cache(2 * KEPT_BYTES);
        assert_eq!(
            all(&large, &Prefix::new("a").unwrap(), Revision(0), Revision(20)).await,
            [10, 20]
        );
        assert_eq!(large.0.kept.lock().blocks.len(), 1, "the last block stays");
    }
}
