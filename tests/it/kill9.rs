//! Fault 1: kill -9 of the real process under load, again and again, half of the time at a place
//! where its journal meets the disk. No acknowledged write is lost, no revision comes twice, and a
//! watch that goes on from the last revision it saw misses nothing.

use crate::FERROKUBE;
use anyhow::Context;
use ferrokube_storage::testing::{Dice, Failpoint};
use ferrokube_testkit::{ApiResponse, BOUND, Client, Cluster, Launch, WatchLines};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the process is killed; `FERROKUBE_KILLS=500` is the long form.
const KILLS: usize = 12;
/// Writers at a time, each with an object of its own and a key in one that they share.
const WRITERS: usize = 8;
const PATH: &str = "/api/v1/namespaces/default/configmaps";
const SHARED: &str = "shared";
const FINALIZER: &str = "example.com/held";

/// What there is of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Held {
    #[default]
    Absent,
    /// With its number.
    Live(u64),
    /// Marked for deletion, held by a finalizer.
    Marked(u64),
}

/// What was acknowledged for one object, and what was sent without an answer.
#[derive(Clone, Copy, Debug, Default)]
struct Expected {
    acknowledged: Held,
    /// Of the last acknowledged write that says one.
    revision: u64,
    maybe: Option<Held>,
    /// The writer's number in the shared object, and perhaps.
    shared: u64,
    shared_maybe: u64,
}

type All = Arc<Mutex<BTreeMap<String, Expected>>>;

fn revision(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn held(object: &Value) -> Held {
    let number = object["data"]["number"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
    if object["metadata"]["deletionTimestamp"].is_null() {
        Held::Live(number)
    } else {
        Held::Marked(number)
    }
}

/// One who writes to an object until the server is gone.
struct Writer {
    client: Client,
    name: String,
    all: All,
    number: u64,
}

impl Writer {
    fn with<T>(&self, run: impl FnOnce(&mut Expected) -> T) -> T {
        run(self.all.lock().unwrap().entry(self.name.clone()).or_default())
    }

    async fn run(mut self) {
        loop {
            self.number += 1;
            let before = self.with(|own| own.acknowledged);
            let next =
                match before {
                    Held::Absent => Held::Live(self.number),
                    Held::Live(number) if self.number.is_multiple_of(5) => {
                        if number.is_multiple_of(2) { Held::Marked(number) } else { Held::Absent }
                    }
                    Held::Live(_) => Held::Live(self.number),
                    Held::Marked(_) => Held::Absent,
                };
            self.with(|own| own.maybe = Some(next));
            let Some(answer) = self.send(before, next).await else { return };
            self.with(|own| {
                (own.acknowledged, own.maybe) = (next, None);
                let found = revision(&answer.body);
                // What goes is shown at the revision that it had.
                let is_new = found > own.revision
                    || (next == Held::Absent && (found == 0 || found == own.revision));
                assert!(is_new, "the revision went back: {found} after {}", own.revision);
                own.revision = own.revision.max(found);
            });
            if self.number.is_multiple_of(3) && !self.share().await {
                return;
            }
        }
    }

    /// The answer, if there was one.
    async fn send(&self, before: Held, next: Held) -> Option<ApiResponse> {
        let path = format!("{PATH}/{}", self.name);
        let object = |number: u64, finalizers: &[&str]| {
            let metadata = json!({"name": self.name, "finalizers": finalizers});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"number": number.to_string(), "pad": "x".repeat(500)}})
        };
        // A deletion of an even number is held.
        let finalizers =
            |number: u64| if number.is_multiple_of(2) { vec![FINALIZER] } else { Vec::new() };
        let client = &self.client;
        let answer = match (before, next) {
            (Held::Absent, Held::Live(number)) => client.post(PATH, &object(number, &finalizers(number))).await,
            (_, Held::Live(number)) if number.is_multiple_of(3) => client.put(&path, &object(number, &finalizers(number))).await,
            (_, Held::Live(number)) => {
                client.merge(&path, &json!({"metadata": {"finalizers": finalizers(number)}, "data": {"number": number.to_string()}})).await
            }
            (Held::Marked(_), _) => client.merge(&path, &json!({"metadata": {"finalizers": null}})).await,
            (..) => client.delete(&path).await,
        };
        let answer = answer.ok()?;
        assert!(
            answer.status == 200 || answer.status == 201,
            "{before:?} -> {next:?}: {}",
            answer.text
        );
        Some(answer)
    }

    /// Patches its key of the object that all share; false when there was no answer.
    async fn share(&self) -> bool {
        let next = self.with(|own| {
            own.shared_maybe = own.shared + 1;
            own.shared_maybe
        });
        let Ok(answer) = self
            .client
            .merge(
                &format!("{PATH}/{SHARED}"),
                &json!({"data": {self.name.as_str(): next.to_string()}}),
            )
            .await
        else {
            return false;
        };
        assert_eq!(answer.status, 200, "{}", answer.text);
        self.with(|own| own.shared = next);
        true
    }
}

/// One who watches from the first revision on, over all lives of the server.
#[derive(Default)]
struct Watcher {
    last: u64,
    state: BTreeMap<String, (u64, Held)>,
    events: usize,
    resumed: usize,
}

impl Watcher {
    fn see(&mut self, event: &Value) {
        let (object, kind) = (&event["object"], event["type"].as_str().unwrap());
        let found = revision(object);
        if kind == "BOOKMARK" {
            assert!(found >= self.last);
            self.last = found;
            return;
        }
        assert!(found > self.last, "{kind} at {found} after {}: {event}", self.last);
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let before = match kind {
            "DELETED" => self.state.remove(&name),
            "ADDED" | "MODIFIED" => self.state.insert(name, (found, held(object))),
            other => panic!("{other}: {event}"),
        };
        assert_eq!(before.is_none(), kind == "ADDED", "{event}");
        (self.last, self.events) = (found, self.events + 1);
    }

    /// Goes on where it was until it has seen what a list shows.
    async fn catch_up(&mut self, client: &Client, list: &List) -> anyhow::Result<WatchLines> {
        let mut lines = client
            .watch(&format!(
                "{PATH}?watch=true&allowWatchBookmarks=true&resourceVersion={}",
                self.last
            ))
            .await?;
        self.resumed += 1;
        while self.state != list.state {
            let event = tokio::time::timeout(BOUND, lines.next()).await;
            let event = event.unwrap_or_else(|_| {
                panic!(
                    "a watch after {} lacks events: {:?} instead of {:?}",
                    self.last, self.state, list.state
                )
            });
            let event = event?.context("the watch ended")?;
            assert!(
                revision(&event["object"]) <= list.revision,
                "events are missing before {event}: {:?} instead of {:?}",
                self.state,
                list.state
            );
            self.see(&event);
        }
        Ok(lines)
    }

    /// Until the server is gone.
    async fn follow(mut self, mut lines: WatchLines) -> Self {
        while let Ok(Some(event)) = lines.next().await {
            self.see(&event);
        }
        self
    }
}

/// What a list shows.
struct List {
    revision: u64,
    state: BTreeMap<String, (u64, Held)>,
}

/// What there is, compared with what was acknowledged.
async fn check(client: &Client, all: &All, before: u64) -> anyhow::Result<List> {
    let list = client.get(PATH).await?;
    assert_eq!(list.status, 200, "{}", list.text);
    let now = revision(&list.body);
    assert!(now >= before, "the revision went back: {now} after {before}");
    let items = list.body["items"].as_array().unwrap();
    let stored: BTreeMap<String, &Value> = items
        .iter()
        .map(|item| (item["metadata"]["name"].as_str().unwrap().to_owned(), item))
        .collect();
    for (name, own) in all.lock().unwrap().iter_mut() {
        let found = stored.get(name).map_or(Held::Absent, |item| held(item));
        assert!(
            found == own.acknowledged || Some(found) == own.maybe,
            "{name} is {found:?}: {own:?}"
        );
        if let Some(item) = stored.get(name) {
            assert!(revision(item) >= own.revision && revision(item) <= now, "{name}: {item}");
            own.revision = revision(item);
        }
        let shared = stored[SHARED]["data"][name].as_str().map_or(0, |text| text.parse().unwrap());
        assert!(
            shared == own.shared || shared == own.shared_maybe,
            "{name} in the shared object is {shared}: {own:?}"
        );
        // What was read is there from now on.
        (own.acknowledged, own.maybe, own.shared) = (found, None, shared);
    }
    Ok(List {
        revision: now,
        state: stored
            .into_iter()
            .map(|(name, item)| (name, (revision(item), held(item))))
            .collect(),
    })
}

/// Starts it, with a place to die at; false when it died there before it was ready.
fn start(cluster: &mut Cluster, failpoint: Option<&str>) -> bool {
    cluster.set_environment("FERROKUBE_FAILPOINT", failpoint.unwrap_or("none"));
    match cluster.restart() {
        Ok(()) => true,
        Err(error) => {
            assert!(failpoint.is_some() && has_died(cluster), "{error}");
            false
        }
    }
}

/// Whether it has killed itself, or is about to.
fn has_died(cluster: &mut Cluster) -> bool {
    cluster.wait().is_ok_and(|status| status.signal() == Some(9))
}

/// A place in or around one of its first calls, and how often a server gets there: the journal's
/// own files first.
fn failpoint(round: usize, dice: &mut Dice) -> String {
    let place = Failpoint::PLACES[round % Failpoint::PLACES.len()];
    let moments: &[&str] = if place.starts_with("write") {
        &["before", "half", "after"]
    } else {
        &["before", "after"]
    };
    let most = if ["write log", "sync log", "write manifest"].contains(&place) { 60 } else { 2 };
    format!("{place} {} {}", moments[dice.below(moments.len())], 1 + dice.below(most))
}

/// All lives of one server.
struct Lives {
    cluster: Cluster,
    all: All,
    watcher: Watcher,
    highest: u64,
    /// Of the writes of the next life.
    number: u64,
    at_failpoints: usize,
}

impl Lives {
    async fn new() -> Self {
        let cluster =
            Launch::new(FERROKUBE).environment("FERROKUBE_FAILPOINT", "none").start().unwrap();
        let (all, client) = (All::default(), cluster.admin().unwrap());
        let list = check(&client, &all, 0).await.unwrap();
        let watcher = Watcher { last: list.revision, state: list.state, ..Watcher::default() };
        let shared = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SHARED}});
        assert_eq!(client.post(PATH, &shared).await.unwrap().status, 201);
        Self { cluster, all, watcher, highest: list.revision, number: 0, at_failpoints: 0 }
    }

    /// Compares what is there with what was acknowledged and with what the watcher saw.
    async fn compare(&mut self, client: &Client) -> anyhow::Result<WatchLines> {
        let list = check(client, &self.all, self.highest).await?;
        self.highest = list.revision;
        self.watcher.catch_up(client, &list).await
    }

    /// Load until the server dies at its failpoint, or is killed.
    async fn live(&mut self, for_most: Duration, has_failpoint: bool) {
        let client = self.cluster.admin().unwrap();
        let lines = match self.compare(&client).await {
            Ok(lines) => lines,
            // It is compared after the next start.
            Err(error) => {
                assert!(has_failpoint && has_died(&mut self.cluster), "{error:#}");
                self.at_failpoints += 1;
                return;
            }
        };
        let following = tokio::spawn(std::mem::take(&mut self.watcher).follow(lines));
        self.number += 1_000_000;
        let writer = |index: usize| Writer {
            client: client.clone(),
            name: format!("object-{index}"),
            all: self.all.clone(),
            number: self.number,
        };
        let writers: Vec<_> = (0..WRITERS).map(|index| tokio::spawn(writer(index).run())).collect();
        // Not to wait for anything: to be killed at another point of the work each time.
        let begun = Instant::now();
        while begun.elapsed() < for_most && !self.cluster.is_killed() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.at_failpoints += usize::from(self.cluster.is_killed());
        self.cluster.kill().unwrap();
        for writer in writers {
            writer.await.unwrap();
        }
        self.watcher = following.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_01_kill_9_under_load_loses_nothing_acknowledged() {
    let kills =
        std::env::var("FERROKUBE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let (begun, mut dice, mut lives) = (Instant::now(), Dice::new(11), Lives::new().await);
    let (mut starting, mut armed) = (0, 0);
    for round in 0..kills {
        // Some places are not reached before the time is up.
        let failpoint = (lives.at_failpoints * 2 < round).then(|| failpoint(armed, &mut dice));
        armed += usize::from(failpoint.is_some());
        if round > 0 && !start(&mut lives.cluster, failpoint.as_deref()) {
            (lives.at_failpoints, starting) = (lives.at_failpoints + 1, starting + 1);
            continue;
        }
        let for_most = if failpoint.is_some() { 1000 } else { 20 + (round as u64 * 37) % 200 };
        lives.live(Duration::from_millis(for_most), failpoint.is_some()).await;
    }
    start(&mut lives.cluster, None);
    let client = lives.cluster.admin().unwrap();
    drop(lives.compare(&client).await.unwrap());
    let Watcher { events, resumed, .. } = lives.watcher;
    println!(
        "{kills} kills, {} at failpoints ({starting} of these in a start), {events} events, {resumed} watches, {:?}",
        lives.at_failpoints,
        begun.elapsed()
    );
    assert!(
        events > kills && lives.at_failpoints > kills / 4,
        "{events} events, {} of {kills} deaths at failpoints",
        lives.at_failpoints
    );
}
