//! WATCH: the initial state as synthetic events, if requested, then the history, filtered by
//! selectors.

use super::exits::Exits;
use super::select::{MatchCost, Selection};
use super::{Reading, WatchItem, WatchOptions, check_list, check_watch, parse_version};
use crate::catalog::{Catalog, Served};
use crate::context::Target;
use crate::failure::future_version;
use crate::pipeline::{Registry, prefix};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_storage::{Cursor, Event, Prefix, ReadLimit, Revision, Snapshot, Topic, WatchError};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Limits of a batch of events. A client that stops reading keeps the objects of a batch from being
/// freed, and those that they replaced: they are shown when they leave a selection.
const BATCH: ReadLimit = ReadLimit { events: 128, bytes: 16 * 1024 };
/// Objects of the initial state inspected between yields.
const INSPECTED: usize = 1024;
/// Bookmark interval.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark precedes the end by this.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Retry interval of a bookmark that is due while the log is not drained.
const BOOKMARK_RETRY: Duration = Duration::from_millis(100);

/// A running watch.
pub struct Watch {
    selection: Selection,
    catalog: Arc<Catalog>,
    exits: Arc<Exits>,
    served: Served,
    phase: WatchPhase,
    deadline: Instant,
    /// Time of the next bookmark; `None` if none is due before the end.
    bookmark: Option<Instant>,
    changes: watch::Receiver<()>,
    ending: watch::Receiver<bool>,
    /// Everything but events that a live watch waits for: none or one future. It survives events,
    /// since registering with two channels and a timer for each event of each watcher costs more
    /// than the event. In a set it is polled only if its own waker fired.
    interruption: FuturesUnordered<Interruption>,
    cost: MatchCost,
}

/// Resolves when the watch ends, the definition changed, or a bookmark is due.
type Interruption = Pin<Box<dyn Future<Output = Wake> + Send + Sync>>;

/// Successors: `Initial` -> `Live`; `Live` and `Failed` -> `Ended`. Any phase may
/// end.
enum WatchPhase {
    /// Sends the initial state.
    Initial(Box<InitialState>),
    /// Follows the history.
    Live(Cursor),
    /// Sends one error.
    Failed(Box<Failure>),
    Ended,
}

/// Initial state being sent.
struct InitialState {
    snapshot: Snapshot,
    /// Last key inspected.
    after: Option<String>,
    /// Whether a bookmark marks its end.
    end_bookmark: bool,
    cursor: Cursor,
    _reading: Option<Arc<Reading>>,
}

impl Registry {
    /// WATCH of a collection or, if the target has a name, of an object.
    ///
    /// # Errors
    /// Only invalid options. Later errors are events.
    pub async fn watch(&self, target: &Target, options: WatchOptions) -> Result<Watch, Failure> {
        if options.by_path {
            check_list(&options.list)?
        } else {
            check_watch(&options.list)?
        }
        let prefix = prefix(&target.served)?;
        let selection = Selection::new(self.catalog(), target, &options.list)?;
        check_name(target, &options)?;
        // kube-apiserver answers 500 for a version that is not a number, unlike for lists (400).
        let asked =
            parse_version(&options.list.resource_version).map_err(|why| Failure::bare(500, why))?;
        let changes = self.catalog().follow(&target.served.definition);
        // Changes before the subscription do not wake it.
        let current = self.catalog().is_current(&target.served);
        let phase = if current {
            self.first_phase(&prefix, selection.topic(), &target.served, &options, asked).await?
        } else {
            WatchPhase::Ended
        };
        let now = Instant::now();
        let deadline = now
            .checked_add(options.timeout)
            .unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
        let bookmark = options.bookmarks.then(|| next_bookmark(now, deadline)).flatten();
        let (catalog, exits) = (self.catalog().clone(), Arc::clone(&self.state.exits));
        let (served, ending) = (target.served.clone(), self.state.ending.subscribe());
        Ok(Watch {
            selection,
            catalog,
            exits,
            served,
            phase,
            deadline,
            bookmark,
            changes,
            ending,
            interruption: FuturesUnordered::new(),
            cost: MatchCost::default(),
        })
    }

    async fn first_phase(
        &self,
        prefix: &Prefix,
        topic: Topic,
        served: &Served,
        options: &WatchOptions,
        asked: Option<u64>,
    ) -> Result<WatchPhase, Failure> {
        let store = self.store();
        if options.timeout.is_zero() {
            return Ok(WatchPhase::Ended);
        }
        let with_state = options.list.initial_events.unwrap_or(asked.unwrap_or(0) == 0);
        if with_state {
            if let Err(failure) = self.reach(asked).await {
                // The stream has begun: errors are events now.
                return Ok(WatchPhase::Failed(Box::new(failure)));
            }
            let snapshot = store.snapshot(prefix);
            // By default, the parameter (not the path alone) asks for a streaming list from no
            // version and from 0, but not from "00".
            let by_default =
                !options.by_path && matches!(options.list.resource_version.as_str(), "" | "0");
            let end_bookmark =
                options.bookmarks && options.list.initial_events.unwrap_or(by_default);
            return Ok(match store.watch_topic(prefix, topic, snapshot.revision) {
                Ok(cursor) => {
                    let _reading = self.state.readers.begin(&snapshot, snapshot.count(None, None));
                    WatchPhase::Initial(Box::new(InitialState {
                        snapshot,
                        after: None,
                        end_bookmark,
                        cursor,
                        _reading,
                    }))
                }
                Err(error) => phase_after(error, snapshot.revision.0, store.revision()),
            });
        }
        if asked.is_none()
            && let Err(failure) = self.catch_up().await
        {
            return Ok(WatchPhase::Failed(Box::new(failure)));
        }
        let after = asked.filter(|asked| *asked > 0).unwrap_or(store.revision().0);
        // A revision from before the resource existed belongs to another definition of the same
        // name.
        if after < served.definition.since {
            return Ok(WatchPhase::Failed(Box::new(too_old(after, store.revision()))));
        }
        let cursor = match store.watch_topic(prefix, topic, Revision(after)) {
            Ok(cursor) => cursor,
            Err(error) => return Ok(phase_after(error, after, store.revision())),
        };
        // Revisions never go back, so the client has this one from another store. kube-apiserver
        // waits forever, dropping events that the client takes for seen. 410 instead of the 504 of
        // lists: every client lists again then (kube-rs would retry a 504).
        if self.wait_for(after).await.is_err() {
            return Ok(WatchPhase::Failed(Box::new(future_version(after, store.revision()))));
        }
        Ok(WatchPhase::Live(cursor))
    }
}

/// A path that names an object admits no field selector for another name.
fn check_name(target: &Target, options: &WatchOptions) -> Result<(), Failure> {
    let fields = &options.list.fields;
    match &target.name {
        Some(name) if !fields.is_empty() && fields.exact("metadata.name") != Some(name) => {
            Err(Failure::bad_request("fieldSelector metadata.name doesn't match requested name"))
        }
        _ => Ok(()),
    }
}

fn next_bookmark(now: Instant, deadline: Instant) -> Option<Instant> {
    let last = deadline.checked_sub(BOOKMARK_BEFORE_END).filter(|last| *last > now);
    last.map(|last| last.min(now + BOOKMARK_EVERY))
}

fn too_old(asked: u64, now: Revision) -> Failure {
    Failure::new(Reason::Expired, format!("too old resource version: {asked} ({now})"))
}

/// The phase after an error of the store.
fn phase_after(error: WatchError, asked: u64, now: Revision) -> WatchPhase {
    match error {
        WatchError::Compacted(_) => WatchPhase::Failed(Box::new(too_old(asked, now))),
        _ => WatchPhase::Ended,
    }
}

fn interruption(
    mut ending: watch::Receiver<bool>,
    mut changes: watch::Receiver<()>,
    deadline: Instant,
    bookmark: Option<Instant>,
) -> Interruption {
    Box::pin(async move {
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending) => Wake::Over,
            // An error means that the definition was removed.
            _ = changes.changed() => Wake::CatalogChanged,
            () = tokio::time::sleep_until(bookmark.unwrap_or(deadline).min(deadline)) => {
                // A watch that is behind asks for its bookmark repeatedly.
                let is_over = bookmark.is_none() || Instant::now() >= deadline;
                if is_over { Wake::Over } else { Wake::BookmarkDue }
            }
        }
    })
}

/// Cause of a live watch's wake-up.
enum Wake {
    Events(Result<Vec<Event>, WatchError>),
    BookmarkDue,
    CatalogChanged,
    Over,
}

impl Watch {
    /// The next events, at least one. `None` at the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Vec<WatchItem>> {
        loop {
            self.cost.yield_if_due().await;
            let items = match &mut self.phase {
                WatchPhase::Ended => return None,
                WatchPhase::Failed(_) => self.fail(),
                WatchPhase::Initial(_)
                    if *self.ending.borrow() || Instant::now() >= self.deadline =>
                {
                    None
                }
                WatchPhase::Initial(_) => Some(self.send_state()),
                WatchPhase::Live(_) => self.follow().await,
            };
            match items {
                None => self.phase = WatchPhase::Ended,
                Some(items) if items.is_empty() => match self.phase {
                    // Many objects were inspected.
                    WatchPhase::Initial(_) => tokio::task::yield_now().await,
                    _ => tokio::task::consume_budget().await,
                },
                Some(items) => return Some(items),
            }
        }
    }

    fn fail(&mut self) -> Option<Vec<WatchItem>> {
        match std::mem::replace(&mut self.phase, WatchPhase::Ended) {
            WatchPhase::Failed(failure) => Some(vec![WatchItem::Error(failure)]),
            _ => None,
        }
    }

    /// A batch of the initial state; after the last batch the watch is live.
    fn send_state(&mut self) -> Vec<WatchItem> {
        let WatchPhase::Initial(initial) = &mut self.phase else {
            return Vec::new();
        };
        let mut items = Vec::new();
        let mut bytes = 0;
        let (mut last, mut complete) = (None, true);
        for (inspected, entry) in
            initial.snapshot.range(self.selection.namespace(), initial.after.as_deref()).enumerate()
        {
            if items.len() == BATCH.events
                || bytes >= BATCH.bytes
                || inspected == INSPECTED
                || self.cost.is_due()
            {
                complete = false;
                break;
            }
            last = Some(entry);
            if self.selection.matches(entry, &mut self.cost) {
                bytes += entry.bytes.len();
                items.push(WatchItem::Added(entry.clone()));
            }
        }
        if !complete {
            initial.after = last.map(|entry| entry.key.rest().to_owned());
            return items;
        }
        if initial.end_bookmark {
            items.push(WatchItem::Bookmark {
                revision: initial.snapshot.revision,
                initial_events_end: true,
            });
        }
        if let WatchPhase::Initial(initial) = std::mem::replace(&mut self.phase, WatchPhase::Ended)
        {
            self.phase = WatchPhase::Live(initial.cursor);
        }
        items
    }

    /// The next events or a bookmark; `None` if the watch is over.
    async fn follow(&mut self) -> Option<Vec<WatchItem>> {
        let WatchPhase::Live(cursor) = &mut self.phase else {
            return Some(Vec::new());
        };
        if self.interruption.is_empty() {
            self.interruption.push(interruption(
                self.ending.clone(),
                self.changes.clone(),
                self.deadline,
                self.bookmark,
            ));
        }
        // Interruptions first: events may never pause.
        let wake = tokio::select! {
            biased;
            Some(wake) = self.interruption.next() => wake,
            events = cursor.next_within(BATCH) => Wake::Events(events),
        };
        match wake {
            Wake::Over => None,
            Wake::CatalogChanged => self.is_unchanged().then(Vec::new),
            Wake::BookmarkDue => Some(self.bookmark_now()),
            Wake::Events(Ok(events)) => {
                Some(events.into_iter().filter_map(|event| self.filtered(event)).collect())
            }
            Wake::Events(Err(WatchError::Compacted(revision))) => Some(vec![self.expire(revision)]),
            Wake::Events(Err(_)) => None,
        }
    }

    /// Whether the definition is unchanged after a catalog change.
    fn is_unchanged(&mut self) -> bool {
        // Removing a definition drops its subscribers; it may exist again by now.
        match self.changes.has_changed() {
            Ok(_) => self.changes.mark_unchanged(),
            Err(_) => self.changes = self.catalog.follow(&self.served.definition),
        }
        self.catalog.is_current(&self.served)
    }

    /// A bookmark promises that all events up to it were sent, which only holds for a drained log.
    fn bookmark_now(&mut self) -> Vec<WatchItem> {
        let WatchPhase::Live(cursor) = &self.phase else {
            return Vec::new();
        };
        let now = Instant::now();
        let Some(revision) = cursor.bookmark() else {
            self.bookmark = Some(now + BOOKMARK_RETRY);
            return Vec::new();
        };
        self.bookmark = next_bookmark(now, self.deadline);
        vec![WatchItem::Bookmark { revision, initial_events_end: false }]
    }

    fn expire(&mut self, revision: Revision) -> WatchItem {
        self.phase = WatchPhase::Ended;
        WatchItem::Error(Box::new(Failure::new(
            Reason::Expired,
            format!("too old resource version: {revision}"),
        )))
    }

    /// An event as seen through the selectors.
    fn filtered(&mut self, event: Event) -> Option<WatchItem> {
        let Event { entry, previous, deleted } = event;
        let before = previous
            .as_ref()
            .is_some_and(|previous| self.selection.matches(previous, &mut self.cost));
        if deleted {
            return before.then_some(WatchItem::Deleted(entry));
        }
        match (before, self.selection.matches(&entry, &mut self.cost)) {
            (false, true) => Some(WatchItem::Added(entry)),
            (true, true) => Some(WatchItem::Modified(entry)),
            (true, false) => {
                previous.map(|previous| WatchItem::Deleted(self.exits.at(&previous, &entry)))
            }
            (false, false) => None,
        }
    }
}
