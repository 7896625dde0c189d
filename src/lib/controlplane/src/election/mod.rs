//! Coordinated leader election (KEP-4355): candidates name the lease that they want and their
//! versions, and this loop makes the best of them its holder.
//!
//! Times are durations since this server observed a change, never those of others. Every write is a
//! compare-and-swap, so that several servers may do this at once.

mod choice;

use choice::{Choice, choose};
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::time::rfc3339_micros;
use ferrokube_features::{COORDINATED_LEADER_ELECTION, Gates};
use ferrokube_registry::offload::block_in_place;
use ferrokube_registry::{DeleteOptions, Informer, Local, Notice, Registry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep_until};

const GROUP: &str = "coordination.k8s.io";
/// For candidates to answer a ping; as in kube-apiserver.
const ELECTION: Duration = Duration::from_secs(5);
/// Without a renewal for this long, a candidate does not count; as in kube-apiserver. Half of it
/// starts an election, which renews all candidates.
const VALID: Duration = Duration::from_secs(30 * 60);
/// Duration of a lease that is given to a holder, until that renews it; in seconds.
const LEASE_SECONDS: i64 = 5;
/// Candidates in all: more are ignored.
const MAX_CANDIDATES: usize = 10_000;

/// Namespace and name.
type LeaseKey = (String, String);

struct Candidate {
    document: Arc<Document>,
    /// When it was observed first.
    since: Instant,
    /// When its `renewTime` was last seen to change.
    renewed: Option<Instant>,
    /// When this server pinged it.
    pinged: Option<Instant>,
}

impl Candidate {
    fn text(&self, field: &str) -> &str {
        self.document.str(&["spec", field]).unwrap_or_default()
    }

    fn lease(&self) -> LeaseKey {
        (self.document.namespace().to_owned(), self.text("leaseName").to_owned())
    }

    fn age(&self) -> Duration {
        self.renewed.unwrap_or(self.since).elapsed()
    }

    fn has_answered(&self) -> bool {
        self.renewed.is_some_and(|renewed| renewed.elapsed() < ELECTION)
    }

    /// Whether an answer may still come.
    fn is_awaited(&self) -> bool {
        self.pinged.is_some_and(|pinged| {
            pinged.elapsed() < ELECTION && self.renewed.is_none_or(|renewed| renewed < pinged)
        })
    }

    /// Whether it was asked, and has not answered since: it is not asked again.
    fn is_silent(&self) -> bool {
        self.pinged.is_some_and(|pinged| self.renewed.is_none_or(|renewed| renewed < pinged))
    }
}

struct ObservedLease {
    document: Arc<Document>,
    /// When its holder or `renewTime` was last seen to change.
    since: Instant,
}

impl ObservedLease {
    fn holder(&self) -> &str {
        self.document.str(&["spec", "holderIdentity"]).unwrap_or_default()
    }

    fn is_expired(&self) -> bool {
        let seconds = self.document.get(&["spec", "leaseDurationSeconds"]);
        let seconds = seconds.and_then(|value| value.as_u64()).unwrap_or(0);
        self.since.elapsed() > Duration::from_secs(seconds)
    }
}

/// The loop of one server.
pub(crate) struct Elections {
    leases: Local,
    candidates: Local,
    lease_informer: Informer,
    candidate_informer: Informer,
    /// By namespace and name.
    known: BTreeMap<LeaseKey, Candidate>,
    held: BTreeMap<LeaseKey, ObservedLease>,
    /// Candidates by lease.
    wanted: BTreeMap<LeaseKey, BTreeSet<String>>,
    due: BTreeMap<LeaseKey, Instant>,
}

impl Elections {
    /// `None` if the gate is off, or LeaseCandidates are not served.
    pub(crate) fn start(registry: &Registry, gates: &Gates) -> Option<Self> {
        if !gates.enabled(&COORDINATED_LEADER_ELECTION) {
            return None;
        }
        let mut elections = Self {
            leases: Local::new(registry, GROUP, "v1", "leases")?,
            candidates: Local::new(registry, GROUP, "v1beta1", "leasecandidates")?,
            lease_informer: Informer::new(registry, GROUP, "v1", "leases")?,
            candidate_informer: Informer::new(registry, GROUP, "v1beta1", "leasecandidates")?,
            known: BTreeMap::new(),
            held: BTreeMap::new(),
            wanted: BTreeMap::new(),
            due: BTreeMap::new(),
        };
        let first = Notice::Replaced(elections.candidate_informer.snapshot());
        elections.observe_candidates(vec![first]);
        let first = Notice::Replaced(elections.lease_informer.snapshot());
        elections.observe_leases(vec![first]);
        Some(elections)
    }

    /// Runs until the store closes.
    pub(crate) async fn run(mut self) {
        loop {
            let wake = self.act().await;
            tokio::select! {
                found = self.candidate_informer.next() => {
                    let Some(found) = found else { return };
                    let notices = block_in_place(|| found.read());
                    self.observe_candidates(notices);
                }
                found = self.lease_informer.next() => {
                    let Some(found) = found else { return };
                    let notices = block_in_place(|| found.read());
                    self.observe_leases(notices);
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    fn observe_candidates(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Replaced(all) => {
                    let mut before = std::mem::take(&mut self.known);
                    self.wanted.clear();
                    for (_, document) in all {
                        let key = (document.namespace().to_owned(), document.name().to_owned());
                        let old = before.remove(&key);
                        self.put_candidate(key, document, old);
                    }
                }
                Notice::Changed(_, document) => {
                    let key = (document.namespace().to_owned(), document.name().to_owned());
                    let old = self.known.remove(&key);
                    self.put_candidate(key, document, old);
                }
                Notice::Removed(key) => {
                    let namespace = key.namespace().unwrap_or_default().to_owned();
                    let key = (namespace, key.name().to_owned());
                    if let Some(gone) = self.known.remove(&key) {
                        let lease = gone.lease();
                        if let Some(names) = self.wanted.get_mut(&lease) {
                            names.remove(&key.1);
                        }
                        self.due.insert(lease, Instant::now());
                    }
                }
            }
        }
    }

    fn put_candidate(&mut self, key: LeaseKey, document: Arc<Document>, old: Option<Candidate>) {
        if self.known.len() >= MAX_CANDIDATES {
            return;
        }
        let now = Instant::now();
        let renewal = document.str(&["spec", "renewTime"]);
        let candidate = match old {
            Some(old) => {
                let is_renewed = old.document.str(&["spec", "renewTime"]) != renewal;
                let renewed = if is_renewed { Some(now) } else { old.renewed };
                Candidate { document, renewed, ..old }
            }
            None => Candidate { document, since: now, renewed: None, pinged: None },
        };
        let lease = candidate.lease();
        self.wanted.entry(lease.clone()).or_default().insert(key.1.clone());
        self.due.insert(lease, now);
        self.known.insert(key, candidate);
    }

    /// Only leases that have candidates matter; others are renewed all the time.
    fn observe_leases(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Replaced(all) => {
                    let mut before = std::mem::take(&mut self.held);
                    for (_, document) in all {
                        let key = (document.namespace().to_owned(), document.name().to_owned());
                        let old = before.remove(&key);
                        self.put_lease(key, document, old);
                    }
                    let now = Instant::now();
                    self.due.extend(self.wanted.keys().map(|key| (key.clone(), now)));
                }
                Notice::Changed(_, document) => {
                    let key = (document.namespace().to_owned(), document.name().to_owned());
                    let old = self.held.remove(&key);
                    self.put_lease(key, document, old);
                }
                Notice::Removed(key) => {
                    let namespace = key.namespace().unwrap_or_default().to_owned();
                    let key = (namespace, key.name().to_owned());
                    if self.held.remove(&key).is_some() && self.wanted.contains_key(&key) {
                        self.due.insert(key, Instant::now());
                    }
                }
            }
        }
    }

    fn put_lease(&mut self, key: LeaseKey, document: Arc<Document>, old: Option<ObservedLease>) {
        let now = Instant::now();
        let times = |lease: &Document| {
            let text = |field| lease.str(&["spec", field]).unwrap_or_default().to_owned();
            (text("holderIdentity"), text("renewTime"))
        };
        let same = old.filter(|old| times(&old.document) == times(&document));
        let since = same.map_or(now, |old| old.since);
        if self.wanted.contains_key(&key) {
            self.due.insert(key.clone(), now);
        }
        self.held.insert(key, ObservedLease { document, since });
    }

    /// Performs all possible steps. Returns when to run again.
    async fn act(&mut self) -> Instant {
        let now = Instant::now();
        let due: Vec<LeaseKey> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.due.remove(&key);
            match self.step(&key).await {
                Ok(true) => drop(self.due.insert(key, Instant::now() + ELECTION)),
                Ok(false) => drop(self.wanted.remove(&key)),
                Err(failure) => {
                    // Another writer was faster, or will be: its change is a reason to look again.
                    if failure.reason != Some(Reason::Conflict) {
                        let (namespace, name) = &key;
                        let why = &failure.message;
                        tracing::warn!(
                            k8s.namespace = namespace,
                            k8s.name = name,
                            why,
                            "cannot elect"
                        );
                    }
                    self.due.insert(key, Instant::now() + ELECTION);
                }
            }
        }
        let next = self.due.values().min().copied();
        next.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    /// A step of the election for a lease. Whether there are candidates.
    async fn step(&mut self, key: &LeaseKey) -> Result<bool, Failure> {
        let names: Vec<String> = self.wanted.get(key).into_iter().flatten().cloned().collect();
        let keys: Vec<LeaseKey> = names.into_iter().map(|name| (key.0.clone(), name)).collect();
        self.delete_expired(&keys).await;
        let of = |key: &LeaseKey| self.known.get(key).filter(|one| one.age() < VALID);
        let candidates: Vec<&Candidate> = keys.iter().filter_map(of).collect();
        if candidates.is_empty() {
            return Ok(false);
        }
        if !self.is_needed(key, &candidates)? {
            return Ok(true);
        }
        let unasked = |one: &&Candidate| !one.has_answered() && !one.is_silent();
        let asked: Vec<Document> = candidates.iter().copied().filter(unasked).map(pinged).collect();
        let is_awaited = candidates.iter().any(|one| one.is_awaited());
        let answered: Vec<&Candidate> =
            candidates.into_iter().filter(|one| one.has_answered()).collect();
        if asked.is_empty() && !is_awaited {
            if !answered.is_empty() {
                let choice = choose(&answered).map_err(Failure::internal)?;
                self.elect(key, &choice).await?;
            }
            return Ok(true);
        }
        for document in asked {
            let name = (key.0.clone(), document.name().to_owned());
            if let Some(candidate) = self.known.get_mut(&name) {
                candidate.pinged = Some(Instant::now());
            }
            self.candidates.update(document, "").await?;
        }
        Ok(true)
    }

    async fn delete_expired(&self, keys: &[LeaseKey]) {
        let expired = keys.iter().filter_map(|key| self.known.get(key));
        for candidate in expired.filter(|one| one.age() >= VALID) {
            let document = &candidate.document;
            let revision = Some(document.meta("resourceVersion").to_owned());
            let options = DeleteOptions { resource_version: revision, ..DeleteOptions::default() };
            let (namespace, name) = (document.namespace(), document.name());
            if self.candidates.delete(namespace, name, &options).await.is_ok() {
                tracing::info!(k8s.name = name, "deleted an expired candidate");
            }
        }
    }

    /// Whether the holder is gone, or not the best candidate.
    fn is_needed(&self, key: &LeaseKey, candidates: &[&Candidate]) -> Result<bool, Failure> {
        let Some(lease) = self.held.get(key) else { return Ok(true) };
        let is_stale = candidates.iter().any(|one| one.age() > VALID / 2 && !one.is_silent());
        if lease.is_expired() || lease.holder().is_empty() || is_stale {
            return Ok(true);
        }
        // The dead count for half an hour: without this they would be asked for as long.
        let is_alive = |one: &&&Candidate| !one.is_silent() || one.is_awaited();
        let alive: Vec<&Candidate> = candidates.iter().filter(is_alive).copied().collect();
        if alive.is_empty() {
            return Ok(false);
        }
        match choose(&alive).map_err(Failure::internal)? {
            Choice { holder: Some(holder), .. } => Ok(holder != lease.holder()),
            Choice { holder: None, .. } => Ok(false),
        }
    }

    /// Makes the choice the holder, or, while another one holds the lease, the preferred holder.
    async fn elect(&self, key: &LeaseKey, choice: &Choice) -> Result<(), Failure> {
        let (namespace, name) = key;
        let now = rfc3339_micros(SystemTime::now());
        let given = |lease: &mut Document| {
            if let Some(holder) = &choice.holder {
                lease.set(&["spec", "holderIdentity"], holder.as_str());
            }
            lease.set(&["spec", "strategy"], choice.strategy.as_str());
            lease.set(&["spec", "leaseDurationSeconds"], LEASE_SECONDS);
            lease.set(&["spec", "renewTime"], now.as_str());
        };
        let Some(held) = self.held.get(key) else {
            let mut lease = Document::from_value(json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name.as_str(), "namespace": namespace.as_str()},
            }))
            .expect("an object literal");
            given(&mut lease);
            return self.leases.create(namespace, lease).await.map(drop);
        };
        let mut lease = (*held.document).clone();
        lease.set(&["spec", "strategy"], choice.strategy.as_str());
        if let Some(holder) = &choice.holder {
            let is_other = held.holder() != holder;
            if held.holder().is_empty() || (held.is_expired() && is_other) {
                given(&mut lease);
                lease.remove(&["spec", "preferredHolder"]);
                lease.remove(&["spec", "acquireTime"]);
            } else if is_other {
                lease.set(&["spec", "preferredHolder"], holder.as_str());
            }
        }
        if lease == *held.document {
            return Ok(());
        }
        tracing::info!(
            k8s.namespace = namespace,
            k8s.name = name,
            holder = choice.holder,
            "elected"
        );
        self.leases.update(lease, "").await.map(drop)
    }
}

/// The candidate, asked to renew itself.
fn pinged(candidate: &Candidate) -> Document {
    let mut document = (*candidate.document).clone();
    document.set(&["spec", "pingTime"], rfc3339_micros(SystemTime::now()));
    document
}
