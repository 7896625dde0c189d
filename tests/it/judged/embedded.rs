//! The embedded store under `kill -9`.

use super::clients::{JudgedClients, ServerSlot, WatchEnd, follow};
use super::{revision, wished};
use crate::FERROKUBE;
use ferrokube_storage::Revision;
use ferrokube_storage::testing::{Dice, JudgedEvent};
use ferrokube_testkit::Launch;
use std::time::{Duration, Instant};

/// Kills without `FERROKUBE_JUDGED_SECONDS`, which goes on for that long.
const KILLS: usize = 6;

/// Everything that happened, from a watch that is resumed after each kill.
async fn history(slot: ServerSlot, after: Revision) -> Vec<JudgedEvent> {
    let (mut position, mut events) = (after, Vec::new());
    loop {
        match follow(&slot.client(), &mut position, &mut events).await {
            WatchEnd::Last => return events,
            WatchEnd::Interrupted => tokio::time::sleep(Duration::from_millis(10)).await,
            WatchEnd::Expired => panic!("the history has a gap after {position}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_01_what_clients_saw_across_kills_is_the_history() {
    let mut server = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let slot = ServerSlot::new(server.admin().unwrap());
    let start = server.admin().unwrap().get(super::clients::MAPS).await.unwrap();
    let history = tokio::spawn(history(slot.clone(), revision(&start.body)));
    let clients = JudgedClients::start(std::slice::from_ref(&slot));
    let seconds = wished("FERROKUBE_JUDGED_SECONDS").map(|seconds| seconds as u64);
    let (began, mut kills, mut dice) = (Instant::now(), 0, Dice::new(1));
    while seconds.map_or(kills < KILLS, |seconds| began.elapsed().as_secs() < seconds) {
        clients.progress(1 + dice.below(50)).await;
        server.kill().unwrap();
        server.restart().unwrap();
        slot.set(server.admin().unwrap());
        kills += 1;
    }
    let recorder = clients.recorder.clone();
    let violations = clients.finish(async |_last| history.await.unwrap()).await;
    assert!(violations.is_empty(), "{violations:#?}");
    let [writes, reads, events] = recorder.counts();
    println!("{kills} kills, {writes} writes, {reads} reads, {events} events");
    assert!(writes > kills && reads > kills && events > kills, "{writes} {reads} {events}");
}
