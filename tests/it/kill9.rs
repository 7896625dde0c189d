//! Fault 1: repeated kill -9 of the real process under load, half of the time where its journal
//! meets the disk. No acknowledged write is lost, no revision is reused, and a watch resumed from
//! its last revision misses nothing.

use crate::FERROKUBE;
use anyhow::Context;
use ferrokube_storage::testing::{Dice, Failpoint};
use ferrokube_testkit::{ApiResponse, BOUND, Client, Cluster, Launch, WatchLines};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Kills of the process; `FERROKUBE_KILLS=500` is the long form.
const KILLS: usize = 12;
/// Concurrent writers, each with its own object and a key in a shared one.
const WRITERS: usize = 8;
const PATH: &str = "/api/v1/namespaces/default/configmaps";
const SHARED: &str = "shared";
const FINALIZER: &str = "example.com/held";

/// The state of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ObjectState {
    #[default]
    Absent,
    /// With its number.
    Live(u64),
    /// Marked for deletion, held by a finalizer.
    Marked(u64),
}

/// Acknowledged and unacknowledged writes of one object.
#[derive(Clone, Copy, Debug, Default)]
struct WriteHistory {
    acknowledged: ObjectState,
    /// Revision of the last acknowledged write whose response has one.
    revision: u64,
    maybe: Option<ObjectState>,
    /// The writer's number in the shared object: acknowledged, and possibly written.
    shared: u64,
    shared_maybe: u64,
}

type All = Arc<Mutex<BTreeMap<String, WriteHistory>>>;

fn revision(value: &Value) -> u64 {
    value["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn held(object: &Value) -> ObjectState {
    let number = object["data"]["number"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
    if object["metadata"]["deletionTimestamp"].is_null() {
        ObjectState::Live(number)
    } else {
        ObjectState::Marked(number)
    }
}

/// Writes to an object until the server is gone.
struct ObjectWriter {
    client: Client,
    name: String,
    all: All,
    number: u64,
}

impl ObjectWriter {
    fn with<T>(&self, run: impl FnOnce(&mut WriteHistory) -> T) -> T {
        run(self.all.lock().unwrap().entry(self.name.clone()).or_default())
    }

    async fn run(mut self) {
        loop {
            self.number += 1;
            let before = self.with(|own| own.acknowledged);
            let next = match before {
                ObjectState::Absent => ObjectState::Live(self.number),
                ObjectState::Live(number) if self.number.is_multiple_of(5) => {
                    if number.is_multiple_of(2) {
                        ObjectState::Marked(number)
                    } else {
                        ObjectState::Absent
                    }
                }
                ObjectState::Live(_) => ObjectState::Live(self.number),
                ObjectState::Marked(_) => ObjectState::Absent,
            };
            self.with(|own| own.maybe = Some(next));
            let Some(answer) = self.send(before, next).await else { return };
            self.with(|own| {
                (own.acknowledged, own.maybe) = (next, None);
                let found = revision(&answer.body);
                // A deletion event has the object's last revision.
                let is_new = found > own.revision
                    || (next == ObjectState::Absent && (found == 0 || found == own.revision));
                assert!(is_new, "the revision went back: {found} after {}", own.revision);
                own.revision = own.revision.max(found);
            });
            if self.number.is_multiple_of(3) && !self.share().await {
                return;
            }
        }
    }

    /// The response, if there was one.
    async fn send(&self, before: ObjectState, next: ObjectState) -> Option<ApiResponse> {
        let path = format!("{PATH}/{}", self.name);
        let object = |number: u64, finalizers: &[&str]| {
            let metadata = json!({"name": self.name, "finalizers": finalizers});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"number": number.to_string(), "pad": "x".repeat(500)}})
        };
        // Objects with even numbers get a finalizer.
        let finalizers =
            |number: u64| if number.is_multiple_of(2) { vec![FINALIZER] } else { Vec::new() };
        let client = &self.client;
        let answer = match (before, next) {
            (ObjectState::Absent, ObjectState::Live(number)) => client.post(PATH, &object(number, &finalizers(number))).await,
            (_, ObjectState::Live(number)) if number.is_multiple_of(3) => client.put(&path, &object(number, &finalizers(number))).await,
            (_, ObjectState::Live(number)) => {
                client.merge(&path, &json!({"metadata": {"finalizers": finalizers(number)}, "data": {"number": number.to_string()}})).await
            }
            (ObjectState::Marked(_), _) => client.merge(&path, &json!({"metadata": {"finalizers": null}})).await,
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

    /// Patches its key of the shared object; `false` without a response.
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

/// Watches from the first revision on, across all lives of the server.
#[derive(Default)]
struct Watcher {
    last: u64,
    state: BTreeMap<String, (u64, ObjectState)>,
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

    /// Resumes the watch until it has seen everything in a list.
    async fn catch_up(
        &mut self,
        client: &Client,
        list: &ListedState,
    ) -> anyhow::Result<WatchLines> {
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

    /// Follows the watch until the server is gone.
    async fn follow(mut self, mut lines: WatchLines) -> Self {
        while let Ok(Some(event)) = lines.next().await {
            self.see(&event);
        }
        self
    }
}

/// The content of a list.
struct ListedState {
    revision: u64,
    state: BTreeMap<String, (u64, ObjectState)>,
}

/// Lists, and compares with the acknowledged writes.
async fn check(client: &Client, all: &All, before: u64) -> anyhow::Result<ListedState> {
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
        let found = stored.get(name).map_or(ObjectState::Absent, |item| held(item));
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
        // What was read counts as acknowledged from now on.
        (own.acknowledged, own.maybe, own.shared) = (found, None, shared);
    }
    Ok(ListedState {
        revision: now,
        state: stored
            .into_iter()
            .map(|(name, item)| (name, (revision(item), held(item))))
            .collect(),
    })
}

/// Starts the server with a failpoint; `false` if it died before it was ready.
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

/// Whether it has died at its failpoint, or is about to.
fn has_died(cluster: &mut Cluster) -> bool {
    cluster.wait().is_ok_and(|status| status.signal() == Some(9))
}

/// A failpoint in or around an early system call, and how often to pass it; the journal's own files
/// first.
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
    /// First number of the next life's writes.
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

    /// Compares the content with the acknowledged writes and with what the watcher saw.
    async fn compare(&mut self, client: &Client) -> anyhow::Result<WatchLines> {
        let list = check(client, &self.all, self.highest).await?;
        self.highest = list.revision;
        self.watcher.catch_up(client, &list).await
    }

    /// Runs load until the server dies at its failpoint or is killed.
    async fn live(&mut self, for_most: Duration, has_failpoint: bool) {
        let client = self.cluster.admin().unwrap();
        let lines = match self.compare(&client).await {
            Ok(lines) => lines,
            // Compared after the next start.
            Err(error) => {
                assert!(has_failpoint && has_died(&mut self.cluster), "{error:#}");
                self.at_failpoints += 1;
                return;
            }
        };
        let following = tokio::spawn(std::mem::take(&mut self.watcher).follow(lines));
        self.number += 1_000_000;
        let writer = |index: usize| ObjectWriter {
            client: client.clone(),
            name: format!("object-{index}"),
            all: self.all.clone(),
            number: self.number,
        };
        let writers: Vec<_> = (0..WRITERS).map(|index| tokio::spawn(writer(index).run())).collect();
        // Not a wait: varies where in its work the server is killed.
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
        // Some failpoints are not reached in time.
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
        events > kills && lives.at_failpoints > kills / 8,
        "{events} events, {} of {kills} deaths at failpoints",
        lives.at_failpoints
    );
}
