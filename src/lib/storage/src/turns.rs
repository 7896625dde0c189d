//! Turns: writers of one key compute one after the other, in the order in which they came.
//!
//! A waiter is a future and holds no thread. The mutexes here are held for a few instructions, never while anybody computes.

use crate::sync;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// The keys in use are spread over so many lists, so that each is short.
const LISTS: usize = 1024;
/// So many writers wait for one key; the next one is refused.
pub(crate) const MAX_WAITING: usize = 1000;

/// Who may compute on which key.
pub(crate) struct KeyTurns {
    lists: Box<[Mutex<Vec<KeyQueue>>]>,
    hasher: RandomState,
}

/// A key in use. Keys are told apart by a keyed hash: two of one hash would only wait for each other.
struct KeyQueue {
    key: u64,
    waiting: VecDeque<oneshot::Sender<TurnHandoff>>,
}

/// A turn that is passed on. Dropped on the way (its waiter is gone) it goes to the next one.
pub(crate) struct TurnHandoff {
    turns: Arc<KeyTurns>,
    key: Option<u64>,
}

/// What came of asking for a turn.
pub(crate) enum Acquired {
    /// It is the caller's, who must release it.
    Taken(u64),
    Queued(oneshot::Receiver<TurnHandoff>),
    Full,
}

impl KeyTurns {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { lists: (0..LISTS).map(|_| Mutex::default()).collect(), hasher: RandomState::new() })
    }

    fn list(&self, key: u64) -> &Mutex<Vec<KeyQueue>> {
        &self.lists[key as usize % LISTS]
    }

    pub(crate) fn acquire(&self, key: &str) -> Acquired {
        let key = self.hasher.hash_one(key);
        let mut list = sync::lock(self.list(key));
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

    /// Ends a turn: the first waiter that is still there has the next one.
    pub(crate) fn release(self: &Arc<Self>, key: u64) {
        while let Some(waiter) = self.next(key) {
            match waiter.send(TurnHandoff { turns: Arc::clone(self), key: Some(key) }) {
                Ok(()) => return,
                // Not by its drop, which would come back here for each one that is gone.
                Err(mut unwanted) => unwanted.key = None,
            }
        }
    }

    fn next(&self, key: u64) -> Option<oneshot::Sender<TurnHandoff>> {
        let mut list = sync::lock(self.list(key));
        let place = list.iter().position(|line| line.key == key)?;
        let waiter = list[place].waiting.pop_front();
        if waiter.is_none() {
            list.swap_remove(place);
        }
        waiter
    }
}

impl TurnHandoff {
    /// Takes the turn, which must be released.
    pub(crate) fn take(mut self) -> u64 {
        self.key.take().expect("only what nobody wants has none")
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
            _ => panic!("the key is in use"),
        }
    }

    fn queued(asked: Acquired) -> oneshot::Receiver<TurnHandoff> {
        match asked {
            Acquired::Queued(receiver) => receiver,
            _ => panic!("the key is free or its line full"),
        }
    }

    #[test]
    fn turns_go_to_those_who_wait_in_their_order() {
        let turns = KeyTurns::new();
        let first = taken(turns.acquire("a"));
        let other = taken(turns.acquire("b"));
        let [mut second, gone, mut third] = [(); 3].map(|()| queued(turns.acquire("a")));
        assert!(second.try_recv().is_err());
        drop(gone);
        turns.release(first);
        assert!(third.try_recv().is_err());
        let second = second.try_recv().expect("the next one").take();
        turns.release(second);
        // Handed over and dropped: nobody has it.
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
        // Those who are gone are in nobody's way.
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| queued(turns.acquire("a"))).collect();
        assert!(matches!(turns.acquire("a"), Acquired::Full));
        drop(waiting);
        turns.release(key);
        taken(turns.acquire("a"));
        assert_eq!(turns.lists.iter().map(|list| sync::lock(list).len()).sum::<usize>(), 1);
    }
}
