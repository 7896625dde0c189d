//! WATCH: the state as synthetic events where it is asked for, then the history, seen through the
//! selectors.

use super::exits::Exits;
use super::select::{Selection, Work};
use super::{Reading, WatchItem, WatchOptions, check_list, check_watch, parse_version};
use crate::catalog::{Catalog, Served};
use crate::context::Target;
use crate::failure::unknown;
use crate::pipeline::{Registry, prefix};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_storage::{Cursor, Event, Prefix, ReadLimit, Revision, Snapshot, WatchError};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// At most so many frames at once, and about so many bytes: whoever has taken them keeps their
/// objects from being freed while its client takes none.
const BATCH: ReadLimit = ReadLimit { events: 128, bytes: 8 * 1024 };
/// So many objects of the state are looked at before others get their turn.
const LOOKED_AT: usize = 1024;
/// How often bookmarks are sent.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark comes so long before the end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// A bookmark that is due waits so long for the log to be drained, then tries again.
const BOOKMARK_RETRY: Duration = Duration::from_millis(100);

/// A running watch.
pub struct Watch {
    selection: Selection,
    catalog: Arc<Catalog>,
    exits: Arc<Exits>,
    served: Served,
    phase: Phase,
    deadline: Instant,
    /// When the next bookmark is due; `None`: none is wanted any more.
    bookmark: Option<Instant>,
    changes: watch::Receiver<()>,
    ending: watch::Receiver<bool>,
    /// Everything but events that a live watch waits for; none or one. It is kept from event to
    /// event: to register with two channels and a timer for every event of every watcher cost more
    /// than the event. As a set of futures it is polled only when it was woken itself.
    interruption: FuturesUnordered<Interruption>,
    work: Work,
}

/// Resolves when a watch is over, the catalog changed, or a bookmark is due.
type Interruption = Pin<Box<dyn Future<Output = Wake> + Send + Sync>>;

/// Where a watch is. Each leads to a later one; every one may lead to `Ended`.
enum Phase {
    /// Sends the state.
    Initial(Box<Initial>),
    /// Follows the history.
    Live(Cursor),
    /// Has one error to send.
    Failed(Box<Failure>),
    /// Over.
    Ended,
}

/// A state on its way to the client.
struct Initial {
    snapshot: Snapshot,
    /// The last key that was looked at.
    after: Option<String>,
    /// Say when it is complete.
    end_bookmark: bool,
    cursor: Cursor,
    _reading: Option<Arc<Reading>>,
}

impl Registry {
    /// WATCH of a collection, or of one object when the target has a name.
    ///
    /// # Errors
    /// Of the options; everything else comes as an item.
    pub async fn watch(&self, target: &Target, options: WatchOptions) -> Result<Watch, Failure> {
        if options.by_path {
            check_list(&options.list)?
        } else {
            check_watch(&options.list)?
        }
        let prefix = prefix(&target.served)?;
        let selection = Selection::new(self.catalog(), target, &options.list)?;
        // Upstream answers a version that is no number with 500 here, and with 400 on lists.
        let asked =
            parse_version(&options.list.resource_version).map_err(|why| Failure::bare(500, why))?;
        let changes = self.catalog().follow(&target.served.definition);
        // What changed before that would not wake it.
        let current = self.catalog().is_current(&target.served);
        let phase = if current {
            self.first_phase(&prefix, &target.served, &options, asked).await?
        } else {
            Phase::Ended
        };
        let now = Instant::now();
        let deadline = now
            .checked_add(options.timeout)
            .unwrap_or_else(|| now + Duration::from_secs(86_400 * 365));
        let bookmark = options.bookmarks.then(|| next_bookmark(now, deadline)).flatten();
        let (catalog, exits) = (self.catalog().clone(), Arc::clone(&self.parts.exits));
        let (served, ending) = (target.served.clone(), self.parts.ending.subscribe());
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
            work: Work::default(),
        })
    }

    async fn first_phase(
        &self,
        prefix: &Prefix,
        served: &Served,
        options: &WatchOptions,
        asked: Option<u64>,
    ) -> Result<Phase, Failure> {
        let store = self.store();
        if options.timeout.is_zero() {
            return Ok(Phase::Ended);
        }
        let with_state = options.list.initial_events.unwrap_or(asked.unwrap_or(0) == 0);
        if with_state {
            if let Err(failure) = self.wait_for(asked.unwrap_or(0)).await {
                // The stream has begun: what goes wrong now is an event.
                return Ok(Phase::Failed(Box::new(failure)));
            }
            let snapshot = store.snapshot(prefix);
            // A watch that begins with the state is a streaming list, also when it does not say so.
            let end_bookmark = options.bookmarks;
            return Ok(match store.watch(prefix, snapshot.revision) {
                Ok(cursor) => {
                    let _reading = self.parts.readers.begin(&snapshot, snapshot.count(None, None));
                    Phase::Initial(Box::new(Initial {
                        snapshot,
                        after: None,
                        end_bookmark,
                        cursor,
                        _reading,
                    }))
                }
                Err(error) => over(error, snapshot.revision.0, store.revision()),
            });
        }
        let after = asked.filter(|asked| *asked > 0).unwrap_or(store.revision().0);
        // Nothing can have happened to a resource before it existed, but a client that believes so
        // has seen another one.
        if after < served.definition.since {
            return Ok(Phase::Failed(Box::new(too_old(after, store.revision()))));
        }
        let cursor = match store.watch(prefix, Revision(after)) {
            Ok(cursor) => cursor,
            Err(error) => return Ok(over(error, after, store.revision())),
        };
        // Upstream waits for such a version in silence, for ever, while events go by that the
        // client takes for seen. Here revisions never go back: it was given by another store. 410
        // instead of the 504 of lists: every client lists again then (kube-rs would ask again with
        // a 504).
        if self.wait_for(after).await.is_err() {
            return Ok(Phase::Failed(Box::new(unknown(after, store.revision()))));
        }
        Ok(Phase::Live(cursor))
    }
}

fn next_bookmark(now: Instant, deadline: Instant) -> Option<Instant> {
    let last = deadline.checked_sub(BOOKMARK_BEFORE_END).filter(|last| *last > now);
    last.map(|last| last.min(now + BOOKMARK_EVERY))
}

fn too_old(asked: u64, now: Revision) -> Failure {
    Failure::new(Reason::Expired, format!("too old resource version: {asked} ({now})"))
}

/// How a watch ends that the store cannot go on with.
fn over(error: WatchError, asked: u64, now: Revision) -> Phase {
    match error {
        WatchError::Compacted(_) => Phase::Failed(Box::new(too_old(asked, now))),
        _ => Phase::Ended,
    }
}

fn interruption(
    mut ending: watch::Receiver<bool>,
    mut changes: watch::Receiver<()>,
    (deadline, bookmark): (Instant, Option<Instant>),
) -> Interruption {
    Box::pin(async move {
        tokio::select! {
            biased;
            _ = ending.wait_for(|ending| *ending) => Wake::Over,
            // An error, too: what was followed is gone.
            _ = changes.changed() => Wake::CatalogChanged,
            () = tokio::time::sleep_until(bookmark.unwrap_or(deadline).min(deadline)) => if bookmark.is_some() { Wake::BookmarkDue } else { Wake::Over },
        }
    })
}

/// What happened while a live watch waited.
enum Wake {
    Events(Result<Vec<Event>, WatchError>),
    BookmarkDue,
    CatalogChanged,
    Over,
}

impl Watch {
    /// The next frames (at least one), `None` when it ends. Cancel safe.
    pub async fn next(&mut self) -> Option<Vec<WatchItem>> {
        loop {
            self.work.share().await;
            let items = match &mut self.phase {
                Phase::Ended => return None,
                Phase::Failed(_) => self.fail(),
                Phase::Initial(_) if *self.ending.borrow() || Instant::now() >= self.deadline => {
                    None
                }
                Phase::Initial(_) => Some(self.send_state()),
                Phase::Live(_) => self.follow().await,
            };
            match items {
                None => self.phase = Phase::Ended,
                Some(items) if items.is_empty() => match self.phase {
                    // Much was looked at.
                    Phase::Initial(_) => tokio::task::yield_now().await,
                    _ => tokio::task::consume_budget().await,
                },
                Some(items) => return Some(items),
            }
        }
    }

    fn fail(&mut self) -> Option<Vec<WatchItem>> {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Failed(failure) => Some(vec![WatchItem::Error(failure)]),
            _ => None,
        }
    }

    /// A piece of the state; the last piece leads to the history.
    fn send_state(&mut self) -> Vec<WatchItem> {
        let Phase::Initial(initial) = &mut self.phase else {
            return Vec::new();
        };
        let mut items = Vec::new();
        let mut bytes = 0;
        let (mut last, mut complete) = (None, true);
        for (looked_at, entry) in
            initial.snapshot.range(self.selection.namespace(), initial.after.as_deref()).enumerate()
        {
            if items.len() == BATCH.events
                || bytes >= BATCH.bytes
                || looked_at == LOOKED_AT
                || self.work.is_due()
            {
                complete = false;
                break;
            }
            last = Some(entry);
            if self.selection.matches(entry, &mut self.work) {
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
        if let Phase::Initial(initial) = std::mem::replace(&mut self.phase, Phase::Ended) {
            self.phase = Phase::Live(initial.cursor);
        }
        items
    }

    /// The next events, or a bookmark; `None` when the watch is over.
    async fn follow(&mut self) -> Option<Vec<WatchItem>> {
        let Phase::Live(cursor) = &mut self.phase else {
            return Some(Vec::new());
        };
        if self.interruption.is_empty() {
            self.interruption.push(interruption(
                self.ending.clone(),
                self.changes.clone(),
                (self.deadline, self.bookmark),
            ));
        }
        // Interruptions first: events may never end.
        let wake = tokio::select! {
            biased;
            Some(wake) = self.interruption.next() => wake,
            events = cursor.next_within(BATCH) => Wake::Events(events),
        };
        match wake {
            Wake::Over => None,
            Wake::CatalogChanged => self.look_again().then(Vec::new),
            Wake::BookmarkDue => Some(self.bookmark_now()),
            Wake::Events(Ok(events)) => {
                Some(events.into_iter().filter_map(|event| self.see(event)).collect())
            }
            Wake::Events(Err(WatchError::Compacted(revision))) => Some(vec![self.lose(revision)]),
            Wake::Events(Err(_)) => None,
        }
    }

    /// The catalog changed: whether what is watched is still there, as it was.
    fn look_again(&mut self) -> bool {
        // Who removes a definition lets go of its followers; it may be there again by now.
        match self.changes.has_changed() {
            Ok(_) => self.changes.mark_unchanged(),
            Err(_) => self.changes = self.catalog.follow(&self.served.definition),
        }
        self.catalog.is_current(&self.served)
    }

    /// A bookmark says that every event up to it was sent: only a drained log can say so.
    fn bookmark_now(&mut self) -> Vec<WatchItem> {
        let Phase::Live(cursor) = &self.phase else {
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

    fn lose(&mut self, revision: Revision) -> WatchItem {
        self.phase = Phase::Ended;
        WatchItem::Error(Box::new(Failure::new(
            Reason::Expired,
            format!("too old resource version: {revision}"),
        )))
    }

    /// An event as the selectors show it.
    fn see(&mut self, event: Event) -> Option<WatchItem> {
        let Event { entry, previous, deleted } = event;
        let before = previous
            .as_ref()
            .is_some_and(|previous| self.selection.matches(previous, &mut self.work));
        if deleted {
            return before.then_some(WatchItem::Deleted(entry));
        }
        match (before, self.selection.matches(&entry, &mut self.work)) {
            (false, true) => Some(WatchItem::Added(entry)),
            (true, true) => Some(WatchItem::Modified(entry)),
            (true, false) => {
                previous.map(|previous| WatchItem::Deleted(self.exits.at(&previous, &entry)))
            }
            (false, false) => None,
        }
    }
}
