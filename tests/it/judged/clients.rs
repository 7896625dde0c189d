//! Clients of API servers that come and go.

use super::{PATIENCE, revision};
use ferrokube_storage::testing::{
    Acknowledgement, ClientRecorder, Dice, JudgedEvent, JudgedWrite, SeenValue, WatchRecord, key,
};
use ferrokube_storage::{Key, Revision};
use ferrokube_testkit::{ApiResponse, Client};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::task::JoinSet;

pub(super) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Start of the names that are judged.
pub(super) const OWN: &str = "j-";
/// Start of the name of the object whose event ends every watch.
const LAST: &str = "j-last";
/// Clients of each server, and the keys that all share.
const CLIENTS: usize = 3;
const KEYS: usize = 6;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(10);

/// A server's client, replaced when the server is started again.
#[derive(Clone)]
pub(super) struct ServerSlot(Arc<RwLock<Client>>);

impl ServerSlot {
    pub(super) fn new(client: Client) -> Self {
        Self(Arc::new(RwLock::new(client)))
    }

    pub(super) fn set(&self, client: Client) {
        *self.0.write().unwrap() = client;
    }

    pub(super) fn client(&self) -> Client {
        self.0.read().unwrap().clone()
    }
}

/// An object's key.
pub(super) fn object_key(name: &str) -> Key {
    key("configmaps", "default", name)
}

/// What is written to an object.
fn text(object: &Value) -> String {
    object["data"]["v"].as_str().unwrap_or_default().to_owned()
}

/// An event of a watch, if it is judged.
pub(super) fn judged(event: &Value) -> Option<JudgedEvent> {
    let object = &event["object"];
    let name = object["metadata"]["name"].as_str().filter(|name| name.starts_with(OWN))?;
    Some(JudgedEvent {
        key: object_key(name),
        revision: revision(object),
        text: (event["type"] != "DELETED").then(|| text(object)),
    })
}

/// Clients and watches at work.
pub(super) struct JudgedClients {
    slots: Vec<ServerSlot>,
    pub(super) recorder: ClientRecorder,
    is_over: Arc<AtomicBool>,
    clients: JoinSet<()>,
    watches: JoinSet<()>,
}

impl JudgedClients {
    pub(super) fn start(slots: &[ServerSlot]) -> Self {
        let (recorder, is_over) = (ClientRecorder::default(), Arc::new(AtomicBool::new(false)));
        let (mut clients, mut watches) = (JoinSet::new(), JoinSet::new());
        for (index, slot) in slots.iter().enumerate() {
            let counts = Arc::default();
            watches.spawn(watch(index, vec![slot.clone()], recorder.clone(), counts));
            for number in 0..CLIENTS {
                let server = (index, slot.clone());
                let (recorder, over) = (recorder.clone(), Arc::clone(&is_over));
                let client = JudgedClient { server, own: index * CLIENTS + number, recorder };
                clients.spawn(client.run(over));
            }
        }
        Self { slots: slots.to_vec(), recorder, is_over, clients, watches }
    }

    /// Starts a watch that goes on at the next server when its own ends.
    pub(super) fn add_watch(&mut self, slots: Vec<ServerSlot>, counts: &Arc<WatchCounts>) {
        let (recorder, counts) = (self.recorder.clone(), Arc::clone(counts));
        self.watches.spawn(watch(0, slots, recorder, counts));
    }

    /// Waits for writes that are acknowledged.
    pub(super) async fn progress(&self, writes: usize) {
        let goal = self.recorder.counts()[0] + writes;
        let reached = async {
            while self.recorder.counts()[0] < goal {
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("writes succeed");
    }

    /// Ends the clients, then the watches by a last event. Returns what contradicts the history,
    /// which `history` gives up to that event.
    pub(super) async fn finish(
        mut self,
        history: impl AsyncFnOnce(Revision) -> Vec<JudgedEvent>,
    ) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        let first = JudgedClient {
            server: (0, self.slots[0].clone()),
            own: usize::MAX,
            recorder: self.recorder.clone(),
        };
        let last = tokio::time::timeout(PATIENCE, first.write_last()).await;
        let last = last.expect("a last write succeeds");
        let watched = async {
            while let Some(ended) = self.watches.join_next().await {
                ended.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, watched).await.expect("watches see the last write");
        for (index, slot) in self.slots.iter().enumerate() {
            let server = (index, slot.clone());
            let client = JudgedClient { server, own: 0, recorder: self.recorder.clone() };
            let listed = async { while client.list().await.is_none() {} };
            tokio::time::timeout(PATIENCE, listed).await.expect("a last list succeeds");
        }
        let history = tokio::time::timeout(PATIENCE, history(last)).await;
        self.recorder.violations(&history.expect("the history has the last write"))
    }
}

struct JudgedClient {
    server: (usize, ServerSlot),
    own: usize,
    recorder: ClientRecorder,
}

impl JudgedClient {
    async fn run(self, is_over: Arc<AtomicBool>) {
        let mut dice = Dice::new(self.own as u64 + 1);
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            number += 1;
            let name = format!("{OWN}k{}", dice.below(KEYS));
            let done = match dice.below(10) {
                0 => self.list().await,
                1..4 => self.read(&name).await.map(drop),
                act => match self.read(&name).await {
                    Some(seen) if act == 4 => self.delete(&name, seen).await,
                    Some(seen) => {
                        let text = format!("c{}-{number}", self.own);
                        self.write(&name, text, seen).await.map(drop)
                    }
                    None => None,
                },
            };
            if done.is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn client(&self) -> Client {
        self.server.1.client()
    }

    /// Reads without a resourceVersion; `None`: no reply.
    async fn read(&self, name: &str) -> Option<SeenValue> {
        let began = self.recorder.now();
        let answer = self.client().get(&format!("{MAPS}/{name}")).await.ok()?;
        let seen = match answer.status {
            200 => Some((revision(&answer.body), text(&answer.body))),
            404 if answer.body["reason"] == "NotFound" => None,
            _ => return None,
        };
        self.recorder.read(self.server.0, began, &object_key(name), seen.clone());
        Some(seen)
    }

    /// Reads all keys.
    async fn list(&self) -> Option<()> {
        let began = self.recorder.now();
        let answer = self.client().get(MAPS).await.ok().filter(|answer| answer.status == 200)?;
        let mut found = BTreeMap::new();
        for item in answer.body["items"].as_array()? {
            let name = item["metadata"]["name"].as_str()?;
            found.insert(name.to_owned(), (revision(item), text(item)));
        }
        for number in 0..KEYS {
            let name = format!("{OWN}k{number}");
            let seen = found.get(&name).cloned();
            self.recorder.read(self.server.0, began, &object_key(&name), seen);
        }
        Some(())
    }

    /// Writes on what was seen; `None`: the outcome is unknown.
    async fn write(&self, name: &str, text: String, seen: SeenValue) -> Option<Acknowledgement> {
        let began = self.recorder.now();
        let (client, guard) = (self.client(), seen.map(|(revision, _)| revision));
        let mut object = json!({"metadata": {"name": name}, "data": {"v": text}});
        let answer = match guard {
            Some(guard) => {
                object["metadata"]["resourceVersion"] = guard.to_string().into();
                client.put(&format!("{MAPS}/{name}"), &object).await
            }
            None => client.post(MAPS, &object).await,
        };
        let written = |answer: &ApiResponse| Acknowledgement::Written(revision(&answer.body));
        let outcome = outcome(answer.ok(), written);
        let write = JudgedWrite { text: Some(text), guard, outcome };
        self.recorder.write(self.server.0, began, &object_key(name), write);
        (outcome != Acknowledgement::Unknown).then_some(outcome)
    }

    async fn delete(&self, name: &str, seen: SeenValue) -> Option<()> {
        let Some((guard, _)) = seen else { return Some(()) };
        let began = self.recorder.now();
        let client = self.client();
        let options = json!({"preconditions": {"resourceVersion": guard.to_string()}});
        let request = client.request(Method::DELETE, &format!("{MAPS}/{name}"));
        let request = request.header("Content-Type", "application/json").body(options.to_string());
        let outcome = outcome(client.send(request).await.ok(), |_| Acknowledgement::Done);
        let write = JudgedWrite { text: None, guard: Some(guard), outcome };
        self.recorder.write(self.server.0, began, &object_key(name), write);
        (outcome != Acknowledgement::Unknown).then_some(())
    }

    async fn write_last(&self) -> Revision {
        let mut number = 0;
        loop {
            number += 1;
            let name = format!("{LAST}-{number}");
            let written = self.write(&name, format!("last-{number}"), None).await;
            if let Some(Acknowledgement::Written(revision)) = written {
                return revision;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn outcome(
    answer: Option<ApiResponse>,
    written: impl Fn(&ApiResponse) -> Acknowledgement,
) -> Acknowledgement {
    match answer {
        Some(answer) if matches!(answer.status, 200 | 201) => written(&answer),
        // 503: clients may repeat the write. What may have happened is 504.
        Some(answer) if matches!(answer.status, 404 | 409 | 429 | 503) => Acknowledgement::Refused,
        // Whatever else it says, it is not believed.
        _ => Acknowledgement::Unknown,
    }
}

/// How a connection of a watch ended.
pub(super) enum WatchEnd {
    /// With the last event.
    Last,
    /// It can be resumed.
    Interrupted,
    /// The position is gone.
    Expired,
}

/// What watches did.
#[derive(Debug, Default)]
pub(super) struct WatchCounts {
    /// Lists, the first ones included.
    pub(super) lists: AtomicUsize,
    /// Connections that ended and were replaced.
    pub(super) resumed: AtomicUsize,
}

/// Watches as clients do, until the last event.
async fn watch(
    index: usize,
    slots: Vec<ServerSlot>,
    recorder: ClientRecorder,
    counts: Arc<WatchCounts>,
) {
    let mut servers = slots.iter().cycle();
    let mut slot = servers.next().unwrap();
    loop {
        let list = slot.client().get(MAPS).await.ok().filter(|list| list.status == 200);
        let Some(list) = list else {
            tokio::time::sleep(PAUSE).await;
            slot = servers.next().unwrap();
            continue;
        };
        counts.lists.fetch_add(1, Ordering::Relaxed);
        let (after, items) = (revision(&list.body), list.body["items"].as_array().unwrap());
        let is_last = |item: &Value| {
            item["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(LAST))
        };
        if items.iter().any(is_last) {
            return;
        }
        let (until, events) = (None, Vec::new());
        let mut record = WatchRecord { store: index, is_of_topic: false, after, until, events };
        let mut position = after;
        let end = loop {
            match follow(&slot.client(), &mut position, &mut record.events).await {
                WatchEnd::Interrupted => {
                    counts.resumed.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
                    slot = servers.next().unwrap();
                }
                end => break end,
            }
        };
        recorder.watch(record);
        if matches!(end, WatchEnd::Last) {
            return;
        }
    }
}

/// Follows one connection.
pub(super) async fn follow(
    client: &Client,
    position: &mut Revision,
    events: &mut Vec<JudgedEvent>,
) -> WatchEnd {
    let path = format!("{MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={position}");
    let mut lines = match client.watch(&path).await {
        Ok(lines) => lines,
        Err(error) => {
            let status = error.downcast_ref::<reqwest::Error>().and_then(reqwest::Error::status);
            let is_gone = status.is_some_and(|status| status.as_u16() == 410);
            return if is_gone { WatchEnd::Expired } else { WatchEnd::Interrupted };
        }
    };
    while let Ok(Some(event)) = lines.next().await {
        if event["type"] == "ERROR" {
            let is_gone = event["object"]["code"] == 410;
            return if is_gone { WatchEnd::Expired } else { WatchEnd::Interrupted };
        }
        *position = revision(&event["object"]).max(*position);
        let Some(event) = judged(&event).filter(|_| event["type"] != "BOOKMARK") else { continue };
        let is_last = event.key.name().starts_with(LAST);
        events.push(event);
        if is_last {
            return WatchEnd::Last;
        }
    }
    WatchEnd::Interrupted
}
