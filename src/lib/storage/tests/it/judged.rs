//! Several stores on one engine, judged by its history; and engines with a bug, which the judge
//! must find.

use ferrokube_storage::remote::{
    BoxFuture, FeedItem, ProposalOutcome, RemoteChange, RemoteEngine, RemoteFeed, SoleClaim,
};
use ferrokube_storage::testing::{
    ClientLoad, Dice, JudgedEvent, RunningClients, SharedClient, SharedEngine, SharedFault,
    TextValues,
};
use ferrokube_storage::{Environment, Revision, Store, Txn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::yield_now;

const STORES: usize = 3;
/// Duration of a proposal: others write before one is repeated.
const LATENCY: Duration = Duration::from_millis(2);
/// How late a feed is that reads should wait for.
const LATE: Duration = Duration::from_millis(20);
/// A rest after which a store has claimed its engine.
const QUIET: Duration = Duration::from_secs(20);
/// Limit of what is added to it at random, so that different stores have.
const MORE_QUIET_SECONDS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineBug {
    /// Some writes are acknowledged without being sent.
    AcknowledgeUnsent,
    /// A write that met a conflict is acknowledged.
    AcknowledgeConflict,
    /// Writes are sent without guards.
    SendUnguarded,
    /// A write whose reply is lost is sent again, whatever became of it.
    SendTwice,
    /// A write whose reply is lost is reported as not applied.
    RefuseUnknown,
    /// Reads do not wait for the engine.
    SkipBarrier,
    /// The feed leaves out events.
    DropEvents,
    /// The feed gives events of a batch in another order.
    SwapEvents,
    /// Writes are applied although the claim that they rely on is revoked.
    IgnoreClaim,
    /// Claims are not revoked by others.
    LeaveClaims,
}

const BUGS: [EngineBug; 10] = [
    EngineBug::AcknowledgeUnsent,
    EngineBug::AcknowledgeConflict,
    EngineBug::SendUnguarded,
    EngineBug::SendTwice,
    EngineBug::RefuseUnknown,
    EngineBug::SkipBarrier,
    EngineBug::DropEvents,
    EngineBug::SwapEvents,
    EngineBug::IgnoreClaim,
    EngineBug::LeaveClaims,
];

impl EngineBug {
    /// Whether a store with a prompt feed shows it too rarely.
    fn needs_late_feed(self) -> bool {
        matches!(self, Self::SkipBarrier | Self::IgnoreClaim | Self::LeaveClaims)
    }
}

/// A connection with a bug.
struct FaultyEngine {
    inner: SharedClient,
    bug: Option<EngineBug>,
    /// Since the start.
    proposals: AtomicUsize,
}

impl FaultyEngine {
    fn is_nth(&self, nth: usize) -> bool {
        self.proposals.fetch_add(1, Ordering::Relaxed) % nth == nth - 1
    }
}

/// The last event is left alone: it ends the watches.
fn is_last(change: &RemoteChange) -> bool {
    change.key.contains("/zz-last-")
}

impl RemoteEngine for FaultyEngine {
    fn open(&self) -> Box<dyn RemoteFeed> {
        let (inner, bug) = (self.inner.open(), self.bug);
        Box::new(FaultyFeed { inner, bug, items: 0 })
    }

    fn propose<'a>(
        &'a self,
        txn: &'a Txn,
        relies_on: Option<SoleClaim>,
    ) -> BoxFuture<'a, ProposalOutcome> {
        Box::pin(async move {
            tokio::time::sleep(LATENCY).await;
            let unguarded = Txn { guards: Vec::new(), ..txn.clone() };
            let is_end = txn.writes[0].key().name().starts_with("zz-last-");
            let outcome = match self.bug.filter(|_| !is_end) {
                Some(EngineBug::AcknowledgeUnsent) if self.is_nth(7) => {
                    let now = self.inner.barrier().await;
                    return ProposalOutcome::Committed(now.unwrap_or_default());
                }
                Some(EngineBug::SendUnguarded) => {
                    return self.inner.propose(&unguarded, relies_on).await;
                }
                Some(EngineBug::IgnoreClaim) => self.inner.propose(txn, None).await,
                _ => self.inner.propose(txn, relies_on).await,
            };
            match (self.bug, outcome) {
                (Some(EngineBug::AcknowledgeConflict), ProposalOutcome::Conflict(_, at)) => {
                    ProposalOutcome::Committed(at)
                }
                (Some(EngineBug::SendTwice), ProposalOutcome::Unknown(_)) => {
                    self.inner.propose(&unguarded, relies_on).await
                }
                (Some(EngineBug::RefuseUnknown), ProposalOutcome::Unknown(_)) => {
                    ProposalOutcome::Invalid("refused".to_owned())
                }
                (_, outcome) => outcome,
            }
        })
    }

    fn settle(&self) -> BoxFuture<'_, Result<Revision, String>> {
        self.inner.settle()
    }

    fn barrier(&self) -> BoxFuture<'_, Result<Revision, String>> {
        match self.bug {
            Some(EngineBug::SkipBarrier) => Box::pin(async { Ok(Revision::default()) }),
            _ => self.inner.barrier(),
        }
    }

    fn claim(&self) -> BoxFuture<'_, Result<Option<(SoleClaim, Revision)>, String>> {
        self.inner.claim()
    }

    fn revoke(&self) -> BoxFuture<'_, Result<(), String>> {
        self.inner.revoke()
    }

    fn claimed(&self) -> Option<SoleClaim> {
        self.inner.claimed()
    }

    fn hurry(&self) {
        self.inner.hurry();
    }
}

struct FaultyFeed {
    inner: Box<dyn RemoteFeed>,
    bug: Option<EngineBug>,
    items: usize,
}

impl RemoteFeed for FaultyFeed {
    fn next(&mut self) -> BoxFuture<'_, FeedItem> {
        Box::pin(async move {
            self.items += 1;
            // A feed is late, so that batches have several events.
            for _ in 0..10 {
                yield_now().await;
            }
            match (self.bug, self.inner.next().await) {
                (Some(EngineBug::DropEvents), FeedItem::Changes { revision, mut changes })
                    if self.items.is_multiple_of(5) =>
                {
                    changes.retain(is_last);
                    FeedItem::Changes { revision, changes }
                }
                (Some(EngineBug::SwapEvents), FeedItem::Changes { revision, mut changes }) => {
                    if !changes.iter().any(is_last) {
                        changes.reverse();
                    }
                    FeedItem::Changes { revision, changes }
                }
                (_, item) => item,
            }
        })
    }
}

/// Runs clients, with faults that are no bugs. Returns what the judge found, and what was done.
async fn run(bug: Option<EngineBug>, seed: u64) -> (Vec<String>, [usize; 3]) {
    let engine = SharedEngine::default();
    let mut stores = Vec::new();
    for index in 0..STORES {
        let mut inner = engine.client();
        if index == 1 && bug.map_or(seed % 2 == 1, EngineBug::needs_late_feed) {
            inner = inner.with_late_feed(LATE);
        }
        if index != 1 && bug == Some(EngineBug::LeaveClaims) {
            inner.leave_claims();
        }
        let bug = bug.filter(|_| index == 1);
        let client = FaultyEngine { inner, bug, proposals: AtomicUsize::default() };
        let parts = Environment::default();
        let attached = Store::attach(Arc::new(client), Arc::new(TextValues), 64 << 20, parts).await;
        stores.push(attached.unwrap());
    }
    let load = ClientLoad { clients: 4, keys: 5, operations: 60, seed };
    let clients = RunningClients::start(&stores, load);
    let recorder = clients.recorder.clone();
    let mut dice = Dice::new(seed + 1);
    for round in 0..60 {
        if round % 5 == 4 {
            engine.heal();
            let more = Duration::from_secs(dice.below(MORE_QUIET_SECONDS) as u64);
            clients.rest(QUIET + more).await;
        }
        let fault = match dice.below(7) {
            0 => Some(SharedFault::LoseRequest),
            1 => Some(SharedFault::Unavailable),
            2 => Some(SharedFault::Full),
            3 => Some(SharedFault::FullAtLast),
            _ => Some(SharedFault::LoseReply),
        };
        engine.heal();
        engine.fail_next(fault.as_slice());
        if dice.below(10) == 0 {
            engine.compact();
        }
        let until = recorder.now() + 8;
        while recorder.now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    engine.heal();
    let history = async |_last: Revision| {
        engine.everything().iter().filter_map(JudgedEvent::of).collect::<Vec<_>>()
    };
    let violations = clients.finish(history).await;
    (violations, recorder.counts())
}

#[tokio::test(start_paused = true)]
async fn stores_on_one_engine_agree_with_its_history() {
    for seed in 0..10 {
        let (violations, [writes, reads, events]) = run(None, seed).await;
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
        assert!(writes > 50 && reads > 200 && events > 100, "{writes} {reads} {events}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_judge_finds_seeded_bugs() {
    for bug in BUGS {
        let mut seed = 0;
        while run(Some(bug), seed).await.0.is_empty() {
            seed += 1;
            assert!(seed < 20, "{bug:?} is not found");
        }
    }
}
