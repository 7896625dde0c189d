//! Two stores on an etcd of three members, of which one fails at a time, judged by its history.

use crate::proxy::Proxy;
use crate::{PATIENCE, attach_with, config, soon};
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_etcd::{Etcd, EtcdConfig};
use ferrokube_storage::remote::{FeedItem, RemoteEngine};
use ferrokube_storage::testing::{ClientLoad, JudgedEvent, RunningClients};
use ferrokube_storage::{Revision, Store};
use std::time::Duration;
use tokio::sync::mpsc;

/// Rounds of faults; `FERROKUBE_ETCD_ROUNDS` has more.
const ROUNDS: usize = 8;

/// What there was, read straight from etcd.
struct Truth {
    events: mpsc::UnboundedReceiver<(Revision, Vec<JudgedEvent>)>,
    _engine: Etcd,
}

impl Truth {
    /// From now on.
    async fn new(servers: &[String]) -> Self {
        let engine = Etcd::new(&EtcdConfig { servers: servers.to_vec(), ..config("") }).unwrap();
        let mut feed = engine.open();
        let (sender, events) = mpsc::unbounded_channel();
        soon(async {
            while !matches!(feed.next().await, FeedItem::State { is_last: true, .. }) {}
        })
        .await;
        tokio::spawn(async move {
            loop {
                let item = match feed.next().await {
                    FeedItem::State { .. } => panic!("the history has a gap"),
                    FeedItem::Changes { revision, changes } => {
                        (revision, changes.iter().filter_map(JudgedEvent::of).collect())
                    }
                    FeedItem::Lost(_) => continue,
                    FeedItem::Failed(why) => panic!("{why}"),
                };
                if sender.send(item).is_err() {
                    return;
                }
            }
        });
        Self { events, _engine: engine }
    }

    /// All events up to a revision.
    async fn until(mut self, last: Revision) -> Vec<JudgedEvent> {
        let mut all = Vec::new();
        loop {
            let (revision, events) = self.events.recv().await.expect("the feed goes on");
            all.extend(events);
            if revision >= last {
                return all;
            }
        }
    }
}

/// Waits for writes that succeed.
async fn progress(clients: &RunningClients, writes: usize) {
    let goal = clients.recorder.counts()[0] + writes;
    let reached = async {
        while clients.recorder.counts()[0] < goal {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("writes succeed with two members");
}

/// A store, and its connections to the members.
async fn behind_proxies(servers: &[String]) -> (Store, Vec<Proxy>) {
    let mut proxies = Vec::new();
    for server in servers {
        proxies.push(Proxy::new(server).await);
    }
    let servers = proxies.iter().map(Proxy::url).collect();
    (attach_with(&EtcdConfig { servers, ..config("") }).await, proxies)
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_stores_agree_with_the_history_whatever_a_member_does() {
    let rounds = std::env::var("FERROKUBE_ETCD_ROUNDS").ok().and_then(|text| text.parse().ok());
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let mut members = EtcdProcess::cluster(&executable, directory.path(), 3);
        let servers: Vec<String> = members.iter().map(EtcdProcess::url).collect();
        let mut stores = Vec::new();
        for _ in 0..2 {
            stores.push(behind_proxies(&servers).await);
        }
        let truth = Truth::new(&servers).await;
        let only: Vec<Store> = stores.iter().map(|(store, _)| store.clone()).collect();
        let load = ClientLoad { clients: 3, keys: 6, operations: 0, seed: 1 };
        let clients = RunningClients::start(&only, load);
        for round in 0..rounds.unwrap_or(ROUNDS) {
            let (member, (_, proxies)) = (round % 3, &stores[round % 2]);
            progress(&clients, 5).await;
            match round % 4 {
                0 => members[member].kill(),
                1 => members[member].pause(true),
                2 => proxies[member].hold(),
                _ => proxies[member].sever(),
            }
            progress(&clients, 5).await;
            match round % 4 {
                0 => members[member].restart(),
                1 => members[member].pause(false),
                _ => proxies[member].heal(),
            }
        }
        let recorder = clients.recorder.clone();
        let violations = clients.finish(async |last| soon(truth.until(last)).await).await;
        assert!(violations.is_empty(), "{violations:#?}");
        let [writes, reads, events] = recorder.counts();
        assert!(writes > 50 && reads > 50 && events > 50, "{writes} {reads} {events}");
    }
}
