//! Conformance suite for engines. Each case runs on a store of its own.

mod lifecycle;
mod reads;
mod watches;
mod writes;

use super::ManualClock;
use crate::Store;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Configuration that a case needs. Its store must be empty.
#[derive(Clone)]
pub struct CaseConfig {
    /// Name of the case.
    pub name: &'static str,
    /// Bytes of history in memory.
    pub history_bytes: usize,
    /// Clock. Revisions must start at 1.
    pub clock: Arc<ManualClock>,
}

/// A case's store and clock.
struct CaseContext {
    store: Store,
    clock: Arc<ManualClock>,
}

type Run = fn(CaseContext) -> Pin<Box<dyn Future<Output = ()> + Send>>;

struct Case {
    name: &'static str,
    history_bytes: usize,
    run: Run,
}

const ENOUGH: usize = 64 << 20;

macro_rules! cases {
    ($($module:ident::$name:ident $history:expr;)*) => {
        &[$(Case { name: stringify!($name), history_bytes: $history, run: |bench| Box::pin($module::$name(bench)) }),*]
    };
}

const CASES: &[Case] = cases![
    writes::revisions_follow_each_other ENOUGH;
    writes::guards_hold_on_several_keys ENOUGH;
    writes::guards_see_what_is_pending ENOUGH;
    writes::a_delete_shows_its_last_state ENOUGH;
    writes::invalid_transactions_are_refused ENOUGH;
    writes::several_changes_of_one_resource_are_several_resume_points ENOUGH;
    writes::writers_of_one_key_take_turns ENOUGH;
    writes::a_turn_survives_a_panic ENOUGH;
    writes::a_dropped_ticket_changes_nothing ENOUGH;
    reads::ranges_are_in_key_order ENOUGH;
    reads::pages_of_one_revision_fit_together ENOUGH;
    reads::get_list_and_watch_agree ENOUGH;
    reads::a_snapshot_does_not_change ENOUGH;
    reads::a_resource_that_was_never_written_is_empty ENOUGH;
    reads::batches_become_visible_at_once ENOUGH;
    watches::a_watch_is_exactly_the_history ENOUGH;
    watches::a_small_history_is_never_silently_short 4096;
    watches::history_ends_where_it_says 4096;
    watches::a_cursor_can_be_cancelled ENOUGH;
    watches::a_watch_of_the_future_gives_nothing_older ENOUGH;
    watches::a_bookmark_comes_after_its_events ENOUGH;
    watches::a_thousand_watchers_see_the_same ENOUGH;
    lifecycle::entries_expire_by_real_deletes ENOUGH;
    lifecycle::a_leap_of_the_wall_clock_expires_nothing ENOUGH;
    lifecycle::waiting_for_a_revision ENOUGH;
    lifecycle::closing_finishes_what_was_accepted ENOUGH;
    lifecycle::figures ENOUGH;
];

/// Runs every case on an empty store made by `open`.
pub async fn suite(mut open: impl FnMut(&CaseConfig) -> Store) {
    for case in CASES {
        let wish = CaseConfig {
            name: case.name,
            history_bytes: case.history_bytes,
            clock: Arc::default(),
        };
        let store = open(&wish);
        // In a task, so that a panic is reported with the name of its case.
        let bench = CaseContext { store: store.clone(), clock: wish.clock };
        if let Err(error) = tokio::spawn((case.run)(bench)).await {
            panic!("case {}: {error}", case.name);
        }
        store.close().await;
    }
}
