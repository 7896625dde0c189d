//! Conformance suite for engines. Each case runs on a store of its own.

mod context;
mod lifecycle;
mod reads;
mod topics;
mod watches;
mod writes;

use super::ManualClock;
use crate::Store;
use context::CaseContext;
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
    /// Clock. Revisions of a local engine must start at 1.
    pub clock: Arc<ManualClock>,
}

type CaseFunction = fn(CaseContext) -> Pin<Box<dyn Future<Output = ()> + Send>>;

struct Case {
    name: &'static str,
    /// Needs an engine that assigns dense revisions before the commit, and the store's own TTLs.
    is_local: bool,
    history_bytes: usize,
    run: CaseFunction,
}

const ENOUGH: usize = 64 << 20;
const ANY: bool = false;
const LOCAL: bool = true;

macro_rules! cases {
    ($($scope:ident $module:ident::$name:ident $history:expr;)*) => {
        &[$(Case {
            name: stringify!($name),
            is_local: $scope,
            history_bytes: $history,
            run: |bench| Box::pin($module::$name(bench)),
        }),*]
    };
}

const CASES: &[Case] = cases![
    ANY writes::revisions_follow_each_other ENOUGH;
    ANY writes::guards_hold_on_several_keys ENOUGH;
    LOCAL writes::guards_see_what_is_pending ENOUGH;
    ANY writes::a_delete_shows_its_last_state ENOUGH;
    ANY writes::invalid_transactions_are_refused ENOUGH;
    LOCAL writes::several_changes_of_one_resource_are_several_resume_points ENOUGH;
    ANY writes::writers_of_one_key_take_turns ENOUGH;
    ANY writes::a_turn_survives_a_panic ENOUGH;
    ANY writes::a_dropped_ticket_changes_nothing ENOUGH;
    ANY reads::ranges_are_in_key_order ENOUGH;
    ANY reads::pages_of_one_revision_fit_together ENOUGH;
    ANY reads::get_list_and_watch_agree ENOUGH;
    ANY reads::a_snapshot_does_not_change ENOUGH;
    ANY reads::a_resource_that_was_never_written_is_empty ENOUGH;
    ANY reads::batches_become_visible_at_once ENOUGH;
    ANY watches::a_watch_is_exactly_the_history ENOUGH;
    ANY watches::a_small_history_is_never_silently_short 4096;
    ANY watches::history_ends_where_it_says 4096;
    ANY watches::a_cursor_can_be_cancelled ENOUGH;
    LOCAL watches::a_watch_of_the_future_gives_nothing_older ENOUGH;
    ANY watches::a_cursor_is_behind_only_if_there_are_events ENOUGH;
    LOCAL watches::a_bookmark_comes_after_its_events ENOUGH;
    ANY watches::a_thousand_watchers_see_the_same ENOUGH;
    ANY topics::a_watch_of_a_topic_is_the_filtered_history ENOUGH;
    ANY topics::a_topic_in_a_small_history_is_never_silently_short 4096;
    ANY topics::an_idle_topic_keeps_its_place 4096;
    LOCAL lifecycle::entries_expire_by_real_deletes ENOUGH;
    LOCAL lifecycle::a_leap_of_the_wall_clock_expires_nothing ENOUGH;
    LOCAL lifecycle::waiting_for_a_revision ENOUGH;
    ANY lifecycle::closing_finishes_what_was_accepted ENOUGH;
    LOCAL lifecycle::figures ENOUGH;
];

/// Runs every case on an empty store made by `open`.
pub async fn suite(mut open: impl FnMut(&CaseConfig) -> Store) {
    for case in CASES {
        let wish = case.config();
        let store = open(&wish);
        case.check(wish, store).await;
    }
}

/// Runs the cases that hold for remote engines, too. The store is empty, or may have revisions
/// without values.
pub async fn remote_suite(mut open: impl AsyncFnMut(&CaseConfig) -> Store) {
    for case in CASES.iter().filter(|case| !case.is_local) {
        let wish = case.config();
        let store = open(&wish).await;
        case.check(wish, store).await;
    }
}

impl Case {
    fn config(&self) -> CaseConfig {
        let clock = Arc::default();
        CaseConfig { name: self.name, history_bytes: self.history_bytes, clock }
    }

    async fn check(&self, wish: CaseConfig, store: Store) {
        // In a task, so that a panic is reported with the name of its case.
        let bench = CaseContext { store: store.clone(), clock: wish.clock };
        if let Err(error) = tokio::spawn((self.run)(bench)).await {
            panic!("case {}: {error}", self.name);
        }
        store.close().await;
    }
}
