//! Whether the engine can be reached: told by the feed, and by probes.
//!
//! The feed alone does not tell: a watch stays open, and silent, on a member that has lost the
//! others, or for a user who has lost the rights. Nor do probes: they are answered while the feed
//! is late, without which no read and no write succeeds. And an engine that answers both may take
//! no writes, such as from a user who may only read.

use crate::key::Revision;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Consecutive failed probes that make an outage. A single one may be late on a busy machine.
const MAX_FAILED: u32 = 2;
/// Max delay of the feed without an outage: longer than a busy machine causes.
const MAX_LATE: Duration = Duration::from_secs(10);
const LATE: &str = "its watch is late";
/// How long a refused write tells of the next ones. Servers write every few seconds.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Whether the engine responds, and why not.
#[derive(Default)]
pub(super) struct Reach(Mutex<ReachState>);

#[derive(Default)]
struct ReachState {
    /// Why the feed is interrupted.
    feed: Option<String>,
    /// Number of probes that failed since the last that did not, and why the last one did.
    failed: (u32, String),
    /// The revision that the feed has not reached.
    awaited: Option<AwaitedRevision>,
    is_late: bool,
    /// The last write that was refused; `None` once one was taken.
    refused: Option<RefusedWrite>,
    /// When one was last taken.
    wrote: Option<Instant>,
}

/// A write that an engine refused in the end, although it answered, and took no other meanwhile.
struct RefusedWrite {
    why: String,
    since: Instant,
}

/// A revision that a probe found and the feed had not reached.
struct AwaitedRevision {
    revision: Revision,
    since: Instant,
}

impl ReachState {
    fn trouble(&self) -> Option<&str> {
        let (failed, why) = &self.failed;
        let unanswered = || (*failed >= MAX_FAILED).then_some(why.as_str());
        self.feed.as_deref().or_else(unanswered).or(self.is_late.then_some(LATE))
    }

    fn refusal(&self) -> Option<&str> {
        let lasting = self.refused.as_ref().filter(|it| it.since.elapsed() < REFUSED_FOR);
        lasting.map(|refused| refused.why.as_str())
    }
}

impl Reach {
    /// Why the engine cannot be reached, if it cannot.
    pub(super) fn trouble(&self) -> Option<String> {
        self.0.lock().trouble().map(str::to_owned)
    }

    /// Why the engine takes no writes, if it answers and takes none.
    pub(super) fn refusal(&self) -> Option<String> {
        self.0.lock().refusal().map(str::to_owned)
    }

    /// A write that had begun then was refused to the end. It may be for its key alone, if another
    /// one was taken since.
    pub(super) fn refused(&self, why: &str, began: Instant) {
        let mut state = self.0.lock();
        if state.trouble().is_some() || state.wrote.is_some_and(|wrote| wrote >= began) {
            return;
        }
        if state.refusal().is_none() {
            tracing::warn!(why, "the storage refuses writes");
        }
        state.refused = Some(RefusedWrite { why: why.to_owned(), since: Instant::now() });
    }

    /// A write was taken.
    pub(super) fn wrote(&self) {
        let mut state = self.0.lock();
        state.wrote = Some(Instant::now());
        if state.refused.take().is_some() {
            tracing::info!("the storage takes writes again");
        }
    }

    /// Whether the last probe failed.
    pub(super) fn is_doubtful(&self) -> bool {
        self.0.lock().failed.0 > 0
    }

    /// The feed is interrupted.
    pub(super) fn lost(&self, why: String) {
        self.change(|outage| outage.feed = Some(why));
    }

    /// The feed continues.
    pub(super) fn found(&self) {
        self.change(|outage| outage.feed = None);
    }

    /// The outcome of a probe.
    pub(super) fn probed(&self, error: Option<&String>) {
        self.change(|outage| {
            outage.failed = match error {
                Some(why) => (outage.failed.0.saturating_add(1), why.clone()),
                None => (0, String::new()),
            }
        });
    }

    /// Compares the revision that a probe found with the published one.
    pub(super) fn compared(&self, found: Revision, published: Revision) {
        self.change(|outage| match &outage.awaited {
            Some(awaited) if published < awaited.revision => {
                outage.is_late = awaited.since.elapsed() > MAX_LATE;
            }
            _ => {
                let since = Instant::now();
                let is_behind = published < found;
                outage.awaited = is_behind.then_some(AwaitedRevision { revision: found, since });
                outage.is_late = false;
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut ReachState)) {
        let mut outage = self.0.lock();
        let was_in_trouble = outage.trouble().is_some();
        change(&mut outage);
        match outage.trouble() {
            Some(why) if !was_in_trouble => tracing::warn!(
                why,
                "the storage is unavailable: reads and writes fail until it is back"
            ),
            Some(why) => tracing::debug!(why, "the storage is still unavailable"),
            None if was_in_trouble => tracing::info!("the storage is available again"),
            None => {}
        }
    }
}
