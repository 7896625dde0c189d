//! The conformance suite, on every engine.

use ferrokube_storage::journal::unsynced::UnsyncedDisk;
use ferrokube_storage::testing::{CaseConfig, SimDisk, suite};
use ferrokube_storage::{Config, Engine, Environment, JournalLimits, Revision, Store};
use std::sync::Arc;

fn parts(wish: &CaseConfig) -> Environment {
    Environment { clock: wish.clock.clone(), ..Environment::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    suite(|wish| {
        Store::open_with(
            Config {
                engine: Engine::Memory,
                history_bytes: wish.history_bytes,
                origin: Some(Revision(0)),
                must_exist: false,
            },
            parts(wish),
        )
        .unwrap()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let dir = tempfile::tempdir().unwrap();
    let open = |wish: &CaseConfig| {
        Store::open_with(
            Config {
                engine: Engine::Embedded(dir.path().join(wish.name)),
                history_bytes: wish.history_bytes,
                origin: Some(Revision(0)),
                must_exist: false,
            },
            parts(wish),
        )
        .unwrap()
    };
    suite(open).await;
}

/// What test suites get.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_without_syncs() {
    let dir = tempfile::tempdir().unwrap();
    let open = |wish: &CaseConfig| {
        Store::open_with(
            Config {
                engine: Engine::Embedded(dir.path().join(wish.name)),
                history_bytes: wish.history_bytes,
                origin: Some(Revision(0)),
                must_exist: false,
            },
            Environment { io: Arc::new(UnsyncedDisk), ..parts(wish) },
        )
        .unwrap()
    };
    suite(open).await;
}

/// Many small segments under constant rewriting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_with_small_segments() {
    let open = |wish: &CaseConfig| {
        let journal = JournalLimits {
            segment_bytes: 2048,
            retain_bytes: 16 << 10,
            ..JournalLimits::default()
        };
        let parts = Environment { io: Arc::new(SimDisk::default()), journal, ..parts(wish) };
        Store::open_with(
            Config {
                engine: Engine::Embedded("/sim".into()),
                history_bytes: wish.history_bytes,
                origin: Some(Revision(0)),
                must_exist: false,
            },
            parts,
        )
        .unwrap()
    };
    suite(open).await;
}
