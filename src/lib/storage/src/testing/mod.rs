//! Test support: the conformance suite for engines ([`suite`]), a simulated disk that fails, tears
//! and forgets ([`SimDisk`]), a real disk on which the process dies ([`FailpointDisk`]), a manual
//! clock, and clients of several stores ([`RunningClients`]) with a judge of what they saw
//! ([`ClientRecorder`]).
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

mod clients;
mod clock;
mod failpoint;
mod judge;
mod model;
mod shared;
mod sim;
mod step_gate;
mod suite;
mod topics;

pub use clients::{ClientLoad, RunningClients};
pub use clock::ManualClock;
pub use failpoint::{Failpoint, FailpointDisk};
pub use judge::{
    Acknowledgement, ClientRecorder, JudgedEvent, JudgedWrite, SeenValue, WatchRecord,
};
pub use model::{Model, check_present, check_store};
pub use shared::{SharedClient, SharedEngine, SharedFault, TextValues};
pub use sim::{Crash, DiskEvent, DiskFault, Rot, SimDisk};
pub(crate) use step_gate::StepGate;
pub use suite::{CaseConfig, remote_suite, suite};
pub use topics::{CheckedTopic, TopicWatches, miss};

use crate::{
    CommitError, Committed, FieldValues, Guard, Key, Prefix, Put, Sidecar, Store, Txn, ValueForm,
    Write,
};
use std::time::Duration;

/// Far beyond what anything takes on the slowest machine; only failing tests wait that long.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Builds a key.
pub fn key(resource: &str, namespace: &str, name: &str) -> Key {
    Prefix::new(resource).unwrap().key(Some(namespace), name).unwrap()
}

/// Schema epoch of values made by [`put`].
pub const PUT_EPOCH: u32 = 7;

/// Whether a value made by [`put`] of this text has fields. The first one is the text.
pub fn has_fields(text: &str) -> bool {
    !text.len().is_multiple_of(2)
}

/// A put of a JSON-like value that contains `text`; the revision is spliced in after its first
/// member.
pub fn put(key: &Key, text: &str) -> Put {
    let value = format!("{{\"v\":\"{text}\",\"z\":1}}");
    let at = u32::try_from(text.len() + 7).unwrap();
    let fields = if has_fields(text) {
        [text, ""].map(Box::from).into_iter().collect()
    } else {
        FieldValues::default()
    };
    let sidecar = Sidecar {
        marks: [1, 2, at],
        revision_at: at - 1,
        comma: true,
        fields,
        schema_epoch: PUT_EPOCH,
        form: if text.len().is_multiple_of(3) { ValueForm::STALE } else { ValueForm::OWN },
    };
    Put { key: key.clone(), value: value.into(), sidecar, ttl: None }
}

/// A transaction of one unguarded put.
pub fn write(key: &Key, text: &str) -> Txn {
    Txn { guards: Vec::new(), writes: vec![Write::Put(put(key, text))] }
}

/// A transaction that creates a key.
pub fn create(key: &Key, text: &str) -> Txn {
    Txn { guards: vec![Guard::Absent(key.clone())], ..write(key, text) }
}

/// A transaction of one unguarded delete.
pub fn delete(key: &Key) -> Txn {
    Txn { guards: Vec::new(), writes: vec![Write::Delete { key: key.clone(), last: None }] }
}

/// Submits a transaction and waits for it.
///
/// # Errors
/// [`CommitError`].
pub async fn commit(store: &Store, txn: Txn) -> Result<Committed, CommitError> {
    store.submit(txn).expect("accepted").committed().await
}

/// Makes the committer accept transactions without committing them.
pub fn hold(store: &Store) {
    store.core().head().held = true;
}

/// Resumes commits; what was queued becomes one batch.
pub fn release(store: &Store) {
    store.core().head().held = false;
    store.core().work.notify_one();
}

/// Blocks until the store is idle or has failed.
pub fn settle(store: &Store) {
    loop {
        {
            let head = store.core().head();
            if (head.idle && !head.tick && !head.probe && head.queued().0 == 0)
                || store.core().has_ended()
            {
                return;
            }
        }
        std::thread::yield_now();
    }
}

/// Seeded bug, which a checker must find: assigned revisions are assigned again.
pub fn rewind(store: &Store) {
    store.core().head().rewind(store.revision());
}

/// The text of an entry made by [`put`].
pub fn text(entry: &crate::Entry) -> String {
    let value = String::from_utf8(entry.value().concat()).unwrap();
    value.strip_prefix("{\"v\":\"").unwrap().strip_suffix("\",\"z\":1}").unwrap().to_owned()
}

/// Deterministic pseudorandom numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Each seed gives a sequence of its own.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % bound as u64).unwrap()
    }
}
