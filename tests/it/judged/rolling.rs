//! Two API servers on one etcd are restarted one after the other, under many watches.

use super::PATIENCE;
use super::clients::{JudgedClients, ServerSlot, WatchCounts};
use super::etcd::EtcdHistory;
use crate::FERROKUBE;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_testkit::{Cluster, Launch, wait_until};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const WATCHES: usize = 500;
/// Watches that share the connection of a client.
const SHARING: usize = 50;

/// A server, and the clients that it has.
struct RestartedServer {
    cluster: Cluster,
    slots: Vec<ServerSlot>,
}

impl RestartedServer {
    fn new(etcd: &EtcdProcess) -> Self {
        let flag = format!("--etcd-servers={}", etcd.url());
        let cluster = Launch::new(FERROKUBE).role("apiserver").flag(flag).start().unwrap();
        let slot = |_| ServerSlot::new(cluster.admin().unwrap());
        let slots = (0..WATCHES / SHARING).map(slot).collect();
        Self { cluster, slots }
    }

    async fn restart(&mut self, clients: &JudgedClients) {
        assert!(self.cluster.terminate().unwrap().success());
        clients.progress(20).await;
        self.cluster.restart().unwrap();
        for slot in &self.slots {
            slot.set(self.cluster.admin().unwrap());
        }
        clients.progress(20).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_21_watches_go_on_across_a_rolling_restart() {
    // The newest: with an older one each read costs a write, which tells nothing about restarts.
    let Some(executable) = EtcdProcess::executables().pop() else { return };
    let directory = tempfile::tempdir().unwrap();
    let etcd = EtcdProcess::start(&executable, &directory.path().join("etcd"));
    let mut servers = [RestartedServer::new(&etcd), RestartedServer::new(&etcd)];
    let truth = EtcdHistory::new(vec![etcd.url()]).await;
    let first: Vec<ServerSlot> = servers.iter().map(|server| server.slots[0].clone()).collect();
    let mut clients = JudgedClients::start(&first);
    let counts = Arc::new(WatchCounts::default());
    for number in 0..WATCHES {
        let mut slots = servers.each_ref().map(|server| server.slots[number / SHARING].clone());
        slots.rotate_left(number % 2);
        clients.add_watch(slots.to_vec(), &counts);
    }
    let read = &counts;
    wait_until("all watches have begun", PATIENCE, || async move {
        let lists = read.lists.load(Ordering::Relaxed);
        (lists >= WATCHES).then_some(()).ok_or_else(|| lists.to_string())
    })
    .await;
    clients.progress(20).await;
    for server in &mut servers {
        server.restart(&clients).await;
    }
    let relists = counts.lists.load(Ordering::Relaxed) - WATCHES;
    let resumed = counts.resumed.load(Ordering::Relaxed);
    // The judge says whether each is the history, in its order.
    let violations = clients.finish(async |last| truth.until(last).await).await;
    assert!(violations.is_empty(), "{violations:#?}");
    println!("{WATCHES} watches: {resumed} resumed, {relists} relists");
    assert!(relists <= WATCHES / 100 && resumed > 0, "{relists} of {WATCHES}, {resumed}");
}
