//! Schedules of several lives of one store. Each life opens what the last one left, works, and is
//! closed, killed or loses power, at any call, with disk faults on the way. The store must never
//! contradict what a client that watched all along was shown.
//!
//! A schedule is determined by its seed: batches are gathered by hand, rewrites step between the
//! committer's calls, the clock is manual.

use crate::load::block_on;
use crate::power_topics::LifeTopics;
use crate::saboteur::{BUGS, Bug, Saboteur};
use ferrokube_storage::testing::{
    Crash, Dice, DiskFault, ManualClock, Rot, SimDisk, hold, key, put, release, rewind, settle,
};
use ferrokube_storage::{
    CommitError, Config, Cursor, Entry, Environment, Event, Guard, JournalLimits, Key, OpenError,
    Prefix, Put, Rejected, Revision, Rewrites, Stats, Store, StoreLimits, Ticket, Txn, WatchError,
    Write,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const DIR: &str = "/sim/data/store";
const RESOURCES: [&str; 3] = ["configmaps", "secrets", "events"];

/// Revision and bytes of a value in an event, or none.
type ShownValue = Option<(u64, Vec<u8>)>;

/// One event as shown to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenEvent {
    revision: u64,
    key: String,
    value: ShownValue,
}

impl SeenEvent {
    fn of(event: &Event) -> Self {
        let entry = &event.entry;
        let value = (!event.deleted).then(|| (entry.revision.0, entry.bytes.to_vec()));
        Self { revision: entry.revision.0, key: entry.key.as_str().to_owned(), value }
    }
}

/// Everything shown to clients over all lives.
#[derive(Default)]
struct ClientView {
    /// By resource.
    history: [Vec<SeenEvent>; 3],
    /// What was submitted, and not refused: values by revision and key; `None`: deleted.
    maybe: BTreeMap<(u64, String), Option<Vec<u8>>>,
    last: u64,
}

impl ClientView {
    fn see(&mut self, resource: usize, event: &Event) -> Result<(), String> {
        let seen = SeenEvent::of(event);
        let before = self.history[resource].last().map_or(0, |seen| seen.revision);
        if seen.revision <= before {
            return Err(format!(
                "revision {} of {} was shown after {before}",
                seen.revision, seen.key
            ));
        }
        self.last = self.last.max(seen.revision);
        self.history[resource].push(seen);
        Ok(())
    }

    fn state(&self, resource: usize) -> BTreeMap<&str, &(u64, Vec<u8>)> {
        let mut state = BTreeMap::new();
        for seen in &self.history[resource] {
            match &seen.value {
                Some(value) => _ = state.insert(seen.key.as_str(), value),
                None => _ = state.remove(seen.key.as_str()),
            }
        }
        state
    }
}

/// Event counts, to check that schedules cover enough.
#[derive(Clone, Debug, Default)]
struct ScheduleTally {
    lives: usize,
    commits: usize,
    rewrites: u64,
    killed_then_cut: usize,
    refused: usize,
    failed: usize,
    expired: usize,
    /// Events given by watches of topics.
    topics: usize,
    /// Transactions acknowledged on a full disk.
    squeezed: usize,
    /// Closed files that went bad; how often that was found, and repaired, while the store ran, and
    /// how often a start refused it.
    rotten: usize,
    found: usize,
    repaired: usize,
    healed: usize,
}

impl ScheduleTally {
    fn count(&mut self, store: &Store) {
        let Stats { rewrites, repairs, damaged, .. } = store.stats();
        self.rewrites += rewrites;
        self.repaired += usize::try_from(repairs).unwrap();
        self.found += usize::try_from(repairs).unwrap() + usize::from(damaged);
    }

    fn add(&mut self, other: &Self) {
        let Self { lives, commits, rewrites, killed_then_cut, refused, failed, .. } = other;
        self.lives += lives;
        self.commits += commits;
        self.rewrites += rewrites;
        self.killed_then_cut += killed_then_cut;
        self.refused += refused;
        self.failed += failed;
        let Self { expired, topics, squeezed, rotten, found, repaired, healed, .. } = other;
        self.expired += expired;
        self.topics += topics;
        self.squeezed += squeezed;
        self.rotten += rotten;
        self.found += found;
        self.repaired += repaired;
        self.healed += healed;
    }

    /// The counts, each of which must be frequent.
    fn least(&self) -> usize {
        let Self { lives, commits, rewrites, killed_then_cut, refused, failed, .. } = *self;
        let Self { expired, topics, squeezed, rotten, found, repaired, healed, .. } = *self;
        let rewrites = usize::try_from(rewrites).unwrap();
        let counts = [lives, commits, rewrites, killed_then_cut, refused, failed, expired];
        let others = [topics, squeezed, rotten, found, repaired, healed];
        counts.into_iter().chain(others).min().unwrap()
    }
}

struct Schedule {
    dice: Dice,
    seed: u64,
    bug: Option<Bug>,
    disk: SimDisk,
    clock: Arc<ManualClock>,
    client: ClientView,
    tally: ScheduleTally,
    was_killed: bool,
    /// Number of groups for which the disk stays full, across starts and power cuts, with other
    /// processes taking any free space.
    full_for: usize,
    /// Bytes that went bad in files that are still there.
    rots: Vec<Rot>,
}

/// An open store, with the client's positions in its history.
struct StoreLife {
    store: Store,
    cursors: Vec<Cursor>,
    /// By resource, at the same positions.
    topics: Vec<LifeTopics>,
    /// Revisions named by tickets.
    given: BTreeSet<u64>,
}

fn prefix(resource: usize) -> Prefix {
    Prefix::new(RESOURCES[resource]).unwrap()
}

fn named(entry: &Entry) -> (u64, String) {
    (entry.revision.0, entry.key.as_str().to_owned())
}

fn spliced(put: &Put, revision: Revision) -> Vec<u8> {
    let mut bytes = put.value.to_vec();
    let at = put.sidecar.revision_at as usize;
    bytes.splice(at..at, format!(",\"resourceVersion\":\"{revision}\"").into_bytes());
    bytes
}

impl Schedule {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        Self {
            dice: Dice::new(seed),
            seed,
            bug,
            disk: SimDisk::default(),
            clock: Arc::default(),
            client: ClientView::default(),
            tally: ScheduleTally::default(),
            was_killed: false,
            full_for: 0,
            rots: Vec::new(),
        }
    }

    async fn run(mut self) -> Result<ScheduleTally, String> {
        for _ in 0..2 + self.dice.below(4) {
            self.live().await?;
        }
        // The last life has no faults: everything that was shown must be there.
        self.disk.set_capacity(None);
        let Some(life) = self.open(None).await? else {
            return Err("the last start failed".to_owned());
        };
        life.store.close().await;
        Ok(self.tally)
    }

    async fn live(&mut self) -> Result<(), String> {
        let fault = match self.dice.below(8) {
            0..3 => Some(DiskFault::PowerCut),
            3 => Some(DiskFault::Eio),
            4 => Some(DiskFault::Enospc),
            5 => Some(DiskFault::Full),
            _ => None,
        };
        let at = self.dice.below(90) as u64;
        let Some(mut life) = self.open(fault.map(|fault| (at, fault))).await? else {
            return Ok(());
        };
        self.tally.lives += 1;
        for _ in 0..1 + self.dice.below(7) {
            if !self.group(&mut life).await? {
                break;
            }
        }
        if self.dice.below(4) == 0 {
            life.store.close().await;
            self.tally.count(&life.store);
            self.disk = self.disk.crash(Crash::Killed, 0);
            return Ok(());
        }
        settle(&life.store);
        let next = self.crash();
        self.tally.count(&life.store);
        life.store.close().await;
        self.disk = next;
        Ok(())
    }

    /// The disk as the next life finds it.
    fn crash(&mut self) -> SimDisk {
        let crash = [Crash::Killed, Crash::Killed, Crash::Dropped, Crash::Torn, Crash::Reordered]
            [self.dice.below(5)];
        self.tally.killed_then_cut += usize::from(self.was_killed && crash != Crash::Killed);
        self.was_killed = crash == Crash::Killed;
        self.disk.crash(crash, self.dice.below(1 << 30) as u64)
    }

    /// Opens a store and compares it with what was shown; `None` if a fault interfered.
    async fn open(&mut self, fault: Option<(u64, DiskFault)>) -> Result<Option<StoreLife>, String> {
        self.clock = Arc::default();
        if let Some((at, fault)) = fault {
            self.disk.fail_at(at, fault);
        }
        let io = Saboteur::new(&self.disk, DIR, self.bug);
        let journal = JournalLimits {
            segment_bytes: 1200,
            retain_bytes: 2400,
            watermark_bytes: 0,
            ballast_bytes: 4 << 10,
            rewrites: Rewrites::Stepped(self.seed),
        };
        let limits = StoreLimits {
            quiet_history_bytes: 1500,
            young: Duration::from_millis(1),
            ..StoreLimits::default()
        };
        let parts = Environment {
            io: Arc::new(io.clone()),
            clock: self.clock.clone(),
            journal,
            limits,
            ..Environment::default()
        };
        io.starting(true);
        let opened =
            Store::open_with(Config { history_bytes: 12_000, ..Config::embedded(DIR) }, parts);
        let store = match opened {
            Ok(store) => store,
            Err(OpenError::Damaged { .. }) if !self.rots.is_empty() => {
                // Put back from a copy: every step of a repair must leave a journal that is whole
                // but for the bytes that went bad.
                self.tally.healed += 1;
                // The last first: a byte may have gone bad twice.
                self.rots.drain(..).rev().for_each(|rot| self.disk.heal(&rot));
                return Box::pin(self.open(fault)).await;
            }
            Err(OpenError::Io { .. }) if fault.is_some() || self.disk.is_limited() => {
                self.disk.set_capacity(None);
                self.disk = self.crash();
                return Ok(None);
            }
            Err(error) => return Err(format!("the start was refused: {error} {error:?}")),
        };
        settle(&store);
        if self.disk.is_off() {
            let next = self.crash();
            store.close().await;
            self.disk = next;
            return Ok(None);
        }
        io.starting(false);
        let mut life =
            StoreLife { store, cursors: Vec::new(), topics: Vec::new(), given: BTreeSet::new() };
        // Faults are meant for the workload, not for the comparison.
        let armed = self.disk.disarm();
        self.compare(&mut life).await?;
        self.disk.arm(armed);
        Ok(Some(life))
    }

    /// A start must show everything shown before, then possibly committed transactions, and nothing
    /// else.
    async fn compare(&mut self, life: &mut StoreLife) -> Result<(), String> {
        let (found, last) = (life.store.revision().0, self.client.last);
        let is_rotten = !self.rots.is_empty() || self.disk.is_off();
        if found < last {
            return Err(format!("revision {last} was shown, {found} is found"));
        }
        for (resource, name) in RESOURCES.iter().enumerate() {
            let mut cursor = life
                .store
                .watch(&prefix(resource), Revision(last))
                .map_err(|error| format!("a watch after {last}: {error}"))?;
            let events = drain(&mut cursor).await?;
            for event in &events {
                let value = (!event.deleted).then(|| event.entry.bytes.to_vec());
                let expires = event.deleted && *name == "events";
                if !expires && self.client.maybe.get(&named(&event.entry)) != Some(&value) {
                    return Err(format!("{event:?} was never submitted, or was refused"));
                }
                self.client.see(resource, event)?;
            }
            self.compare_state(&life.store, resource)?;
            life.cursors.push(cursor);
            let (initial, prefix) = (if *name == "events" { "e" } else { "n" }, prefix(resource));
            let mut topics =
                LifeTopics::start(&life.store, prefix, initial, Revision(last), self.bug)?;
            self.tally.topics += topics.follow(&life.store, &events, is_rotten).await?;
            life.topics.push(topics);
        }
        let resource = self.dice.below(RESOURCES.len());
        self.compare_history(&life.store, resource).await
    }

    fn compare_state(&self, store: &Store, resource: usize) -> Result<(), String> {
        let snapshot = store.snapshot(&prefix(resource));
        let found: BTreeMap<&str, (u64, &[u8])> = snapshot
            .range(None, None)
            .map(|entry| (entry.key.as_str(), (entry.revision.0, &entry.bytes[..])))
            .collect();
        let expected: BTreeMap<&str, (u64, &[u8])> = self
            .client
            .state(resource)
            .into_iter()
            .map(|(key, (revision, bytes))| (key, (*revision, &bytes[..])))
            .collect();
        if found == expected {
            Ok(())
        } else {
            Err(format!(
                "{} differ: found {:?}, shown {:?}",
                RESOURCES[resource],
                revisions(&found),
                revisions(&expected)
            ))
        }
    }

    /// A watch from any revision shown returns what followed it, or is compacted.
    async fn compare_history(&mut self, store: &Store, resource: usize) -> Result<(), String> {
        let history = &self.client.history[resource];
        if history.is_empty() {
            return Ok(());
        }
        let from = self.dice.below(history.len());
        let after = history[from].revision;
        match store.watch(&prefix(resource), Revision(after)) {
            Ok(mut cursor) => {
                let found: Vec<SeenEvent> =
                    drain(&mut cursor).await?.iter().map(SeenEvent::of).collect();
                if found != history[from + 1..] {
                    return Err(format!(
                        "a watch of {} after {after} gave other events than before",
                        RESOURCES[resource]
                    ));
                }
            }
            Err(WatchError::Compacted(_))
                if Revision(after) < store.history(&prefix(resource)).watched => {}
            Err(error) => return Err(format!("a watch after {after}: {error}")),
        }
        Ok(())
    }

    /// Runs one batch. Returns whether the store still works.
    async fn group(&mut self, life: &mut StoreLife) -> Result<bool, String> {
        let mut tickets = Vec::new();
        let mut closed = false;
        if self.full_for > 0 {
            self.full_for -= 1;
            self.disk.set_capacity((self.full_for > 0).then(|| self.disk.used()));
        } else if self.dice.below(24) == 0 {
            self.full_for = 1 + self.dice.below(16);
        }
        hold(&life.store);
        for _ in 0..1 + self.dice.below(3) {
            let txn = self.txn(&life.store);
            match life.store.submit(txn.clone()) {
                Ok(ticket) => tickets.push((ticket, txn)),
                Err(Rejected::Guard(_)) => {}
                Err(_) => closed = true,
            }
        }
        for (ticket, txn) in &tickets {
            self.note(life, ticket, txn)?;
        }
        release(&life.store);
        let mut acknowledged = Vec::new();
        for (ticket, _) in tickets {
            let refused: Vec<_> = ticket.entries().iter().map(|entry| named(entry)).collect();
            match ticket.committed().await {
                Ok(done) => acknowledged.push(done),
                Err(CommitError::DiskFull) => {
                    self.tally.refused += 1;
                    // Nothing of it may ever be shown.
                    self.client.maybe.retain(|known, _| !refused.contains(known));
                    if self.bug == Some(Bug::ReuseRevisions) {
                        rewind(&life.store);
                    }
                }
                Err(CommitError::Failed(_)) => closed = true,
                Err(error) => panic!("of a remote engine: {error}"),
            }
        }
        settle(&life.store);
        self.follow(life).await?;
        if self.dice.below(4) == 0 {
            self.clock.advance(Duration::from_secs(self.dice.below(20) as u64));
            settle(&life.store);
        }
        if self.full_for == 0 && self.dice.below(3) == 0 {
            self.disk.set_capacity(None);
        }
        self.tally.commits += acknowledged.len();
        self.tally.squeezed += if self.full_for > 0 { acknowledged.len() } else { 0 };
        self.follow(life).await?;
        for done in acknowledged {
            for entry in done.entries {
                let resource =
                    RESOURCES.iter().position(|name| prefix_is(&entry.key, name)).unwrap();
                let seen = self.client.history[resource]
                    .iter()
                    .rev()
                    .find(|seen| seen.revision == entry.revision.0);
                if seen.is_none_or(|seen| seen.key != entry.key.as_str()) {
                    return Err(format!(
                        "{:?} was acknowledged at {}, but not published",
                        entry.key, entry.revision
                    ));
                }
            }
        }
        self.tally.failed += usize::from(closed);
        if self.dice.below(10) == 0 {
            self.rot(life).await?;
        }
        self.rots.retain(|rot| self.disk.has_rot(rot));
        Ok(!closed)
    }

    /// A bit flips in a file that is not written to any more, and is perhaps found by watches;
    /// otherwise by a rewrite or the next start.
    async fn rot(&mut self, life: &mut StoreLife) -> Result<(), String> {
        let is_segment =
            |path: &PathBuf| path.extension().is_some_and(|kind| kind == "log" || kind == "base");
        let mut files = self.disk.files();
        files.retain(|path, _| is_segment(path));
        let active = files.keys().rfind(|path| path.extension().is_some_and(|kind| kind == "log"));
        let active = active.cloned();
        files.retain(|path, _| Some(path) != active.as_ref());
        if files.is_empty() {
            return Ok(());
        }
        let (path, bytes) = files.iter().nth(self.dice.below(files.len())).unwrap();
        self.rots.push(self.disk.rot(path, self.dice.below(bytes.len())));
        self.tally.rotten += 1;
        for resource in 0..self.dice.below(RESOURCES.len() + 1) {
            let from = life.store.history(&prefix(resource)).watched;
            let watched = match life.store.watch(&prefix(resource), from) {
                Ok(mut cursor) => drain(&mut cursor).await.map(drop),
                Err(error) => Err(format!("a watch after {from}: {error}")),
            };
            settle(&life.store);
            if let Err(reason) = watched
                && !reason.ends_with("is compacted")
            {
                return Err(reason);
            }
        }
        // Time for a repair, of which each moment gives it a few steps.
        for _ in 0..self.dice.below(3) * 8 {
            self.clock.advance(Duration::from_millis(300));
            settle(&life.store);
        }
        self.follow(life).await
    }

    /// Reads new events as the client.
    async fn follow(&mut self, life: &mut StoreLife) -> Result<(), String> {
        let armed = self.disk.disarm();
        let is_rotten = !self.rots.is_empty() || self.disk.is_off();
        for (resource, name) in RESOURCES.iter().enumerate() {
            let events = drain(&mut life.cursors[resource]).await?;
            for event in &events {
                self.tally.expired += usize::from(event.deleted && *name == "events");
                self.client.see(resource, event)?;
            }
            let topics = &mut life.topics[resource];
            self.tally.topics += topics.follow(&life.store, &events, is_rotten).await?;
            settle(&life.store);
        }
        self.disk.arm(armed);
        Ok(())
    }

    /// Records a transaction as possibly committed; its revisions must be new.
    fn note(&mut self, life: &mut StoreLife, ticket: &Ticket, txn: &Txn) -> Result<(), String> {
        let revisions: BTreeSet<u64> =
            ticket.entries().iter().map(|entry| entry.revision.0).collect();
        for revision in revisions {
            if !life.given.insert(revision) || revision <= self.client.last {
                return Err(format!("revision {revision} was assigned twice"));
            }
        }
        for (write, entry) in txn.writes.iter().zip(ticket.entries()) {
            let value = match write {
                Write::Put(put) => Some(spliced(put, entry.revision)),
                Write::Delete { .. } => None,
            };
            // A delete shows its last state, which may differ in a watch after a restart: compare
            // only the key.
            self.client.maybe.insert(named(entry), value);
        }
        Ok(())
    }

    fn txn(&mut self, store: &Store) -> Txn {
        let dice = &mut self.dice;
        let mut txn = Txn::default();
        if dice.below(6) == 0 {
            let key = key("events", "ns", &format!("e{}", dice.below(4)));
            txn.writes.push(Write::Put(Put {
                ttl: Some(Duration::from_secs(1 + dice.below(15) as u64)),
                ..put(&key, "event")
            }));
            return txn;
        }
        let first = dice.below(2);
        for resource in &RESOURCES[first..(first + 1 + dice.below(2)).min(2)] {
            let key = key(resource, "ns", &format!("n{}", dice.below(4)));
            let len = if dice.below(8) == 0 { 1500 } else { dice.below(160) };
            let text = format!("{:x}{}", dice.below(1 << 30), "v".repeat(len));
            match store.pending(&key) {
                None => {
                    txn.guards.push(Guard::Absent(key.clone()));
                    txn.writes.push(Write::Put(put(&key, &text)));
                }
                Some(entry) => {
                    txn.guards.push(Guard::At(key.clone(), entry.revision));
                    txn.writes.push(match dice.below(3) {
                        0 => Write::Delete {
                            last: dice.below(2).eq(&0).then(|| put(&key, &text)),
                            key,
                        },
                        _ => Write::Put(put(&key, &text)),
                    });
                }
            }
        }
        txn
    }
}

fn prefix_is(key: &Key, resource: &str) -> bool {
    key.prefix()
        .strip_prefix("/registry/")
        .is_some_and(|rest| rest.trim_end_matches('/') == resource)
}

fn revisions<'a>(state: &BTreeMap<&'a str, (u64, &[u8])>) -> Vec<(&'a str, u64)> {
    state.iter().map(|(key, (revision, _))| (*key, *revision)).collect()
}

/// Everything published after the cursor.
async fn drain(cursor: &mut Cursor) -> Result<Vec<Event>, String> {
    let mut events = Vec::new();
    while cursor.bookmark().is_none() {
        events.extend(
            cursor
                .next(64)
                .await
                .map_err(|error| format!("a watch after {}: {error}", cursor.position()))?,
        );
    }
    Ok(events)
}

fn run(seed: u64, bug: Option<Bug>) -> Result<ScheduleTally, String> {
    block_on(Schedule::new(seed, bug).run())
}

/// Number of schedules.
fn count() -> u64 {
    std::env::var("FERROKUBE_POWER_SCHEDULES")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(1500)
}

/// Faults 1 to 7 and 9 over several lives: no acknowledged write is lost, no revision repeats,
/// every watch matches the history.
#[test]
fn fault_04_lives_of_a_store_through_kills_and_power_cuts() {
    let (first, count) = (
        std::env::var("FERROKUBE_POWER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1),
        count(),
    );
    let mut all = ScheduleTally::default();
    for seed in first..first + count {
        let tally = run(seed, None).unwrap_or_else(|what| panic!("schedule {seed}: {what}"));
        all.add(&tally);
    }
    println!("{count} schedules: {all:?}");
    if count >= 500 {
        let least = all.least() as u64;
        assert!(least > count / 20, "schedules cover too little: {all:?}");
    }
}

/// A seed determines its schedule.
#[test]
fn schedules_can_be_repeated() {
    for seed in 1..40 {
        let [first, second] = [(); 2].map(|()| format!("{:?}", run(seed, None)));
        assert_eq!(first, second, "schedule {seed}");
    }
}

/// Validates the checker: it finds each seeded bug.
#[test]
fn every_seeded_bug_is_found() {
    let mut missed = Vec::new();
    for bug in BUGS {
        match (1..1500).find_map(|seed| run(seed, Some(bug)).err().map(|what| (seed, what))) {
            Some((seed, what)) => {
                println!("{bug:?}: schedule {seed}: {}", what.chars().take(160).collect::<String>())
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "{missed:?} were not found");
}
