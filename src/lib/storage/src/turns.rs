//! Turns: writers of one key compute sequentially, first come, first served.
//!
//! Waiters are futures and hold no thread. The mutexes are held for a few instructions, never
//! during a turn.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Shards of the table of keys in use.
const LISTS: usize = 1024;
/// Waiters per key; further ones are refused.
pub(crate) const MAX_WAITING: usize = 1000;

/// The keys in use.
pub(crate) struct KeyTurns {
    lists: Box<[Mutex<Vec<KeyQueue>>]>,
    hasher: RandomState,
}

/// A key in use and its waiters. Keys are identified by a keyed hash; two keys that collide merely
/// wait for each other.
struct KeyQueue {
    key: u64,
    waiting: VecDeque<oneshot::Sender<TurnHandoff>>,
}

/// A turn in transit to its next owner. Passes itself on when dropped unclaimed.
pub(crate) struct TurnHandoff {
    turns: Arc<KeyTurns>,
    key: Option<u64>,
}

/// Result of [`KeyTurns::acquire`].
pub(crate) enum Acquired {
    /// Owned by the caller, who must release it.
    Taken(u64),
    Queued(oneshot::Receiver<TurnHandoff>),
    Full,
}

impl KeyTurns {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            lists: (0..LISTS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
        })
    }

    fn list(&self, key: u64) -> &Mutex<Vec<KeyQueue>> {
        &self.lists[key as usize % LISTS]
    }

    pub(crate) fn acquire(&self, key: &str) -> Acquired {
        let key = self.hasher.hash_one(key);
        let mut list = self.list(key).lock();
        match list.iter_mut().find(|line| line.key == key) {
            None => {
                list.push(KeyQueue { key, waiting: VecDeque::new() });
                Acquired::Taken(key)
            }
            Some(line) => {
                if line.waiting.len() >= MAX_WAITING {
                    line.waiting.retain(|waiter| !waiter.is_closed());
                }
                if line.waiting.len() >= MAX_WAITING {
                    return Acquired::Full;
                }
                let (sender, receiver) = oneshot::channel();
                line.waiting.push_back(sender);
                Acquired::Queued(receiver)
            }
        }
    }

    /// Ends a turn and hands it to the first live waiter.
    pub(crate) fn release(self: &Arc<Self>, key: u64) {
        while let Some(waiter) = self.next(key) {
            match waiter.send(TurnHandoff { turns: Arc::clone(self), key: Some(key) }) {
                Ok(()) => return,
                // Disarm: its drop would recurse for each dead waiter.
                Err(mut unwanted) => unwanted.key = None,
            }
        }
    }

    fn next(&self, key: u64) -> Option<oneshot::Sender<TurnHandoff>> {
        let mut list = self.list(key).lock();
        let place = list.iter().position(|line| line.key == key)?;
        let waiter = list[place].waiting.pop_front();
        if waiter.is_none() {
            list.swap_remove(place);
        }
        waiter
    }
}

impl TurnHandoff {
    /// Takes over a turn, which ends when this is dropped.
    pub(crate) fn new(turns: &Arc<KeyTurns>, key: u64) -> Self {
        Self { turns: Arc::clone(turns), key: Some(key) }
    }

    /// Claims the turn, which must then be released.
    pub(crate) fn take(mut self) -> u64 {
        self.key.take().expect("only a disarmed handoff has no key")
    }
}

impl Drop for TurnHandoff {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.turns.release(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(asked: Acquired) -> u64 {
        match asked {
            Acquired::Taken(key) => key,
            _ => panic!("key is in use"),
        }
    }

    fn queued(asked: Acquired) -> oneshot::Receiver<TurnHandoff> {
        match asked {
            Acquired::Queued(receiver) => receiver,
            _ => panic!("key is free, or its queue full"),
        }
    }

    #[test]
    fn turns_go_to_waiters_in_order() {
        let turns = KeyTurns::new();
        let first = taken(turns.acquire("a"));
        let other = taken(turns.acquire("b"));
        let [mut second, gone, mut third] = [(); 3].map(|()| queued(turns.acquire("a")));
        assert!(second.try_recv().is_err());
        drop(gone);
        turns.release(first);
        assert!(third.try_recv().is_err());
        let second = second.try_recv().expect("next in line").take();
        turns.release(second);
        // Handed over, then dropped: the key is free.
        drop(third);
        taken(turns.acquire("a"));
        turns.release(other);
        taken(turns.acquire("b"));
    }

    #[test]
    fn a_line_is_bounded() {
        let turns = KeyTurns::new();
        let key = taken(turns.acquire("a"));
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| queued(turns.acquire("a"))).collect();
        assert!(matches!(turns.acquire("a"), Acquired::Full));
        drop(waiting);
        // Dead waiters do not count.
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| queued(turns.acquire("a"))).collect();
        assert!(matches!(turns.acquire("a"), Acquired::Full));
        drop(waiting);
        turns.release(key);
        taken(turns.acquire("a"));
        assert_eq!(turns.lists.iter().map(|list| list.lock().len()).sum::<usize>(), 1);
    }
}
