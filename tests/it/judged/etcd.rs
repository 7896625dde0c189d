//! Two API servers on an etcd of three members, of which one fails at a time, while the history is
//! compacted up to where this test has read it.

use super::clients::{JudgedClients, MAPS, OWN, ServerSlot, object_key};
use super::process_clock::ProcessClock;
use super::{PATIENCE, wished};
use crate::FERROKUBE;
use ferrokube_etcd::testing::{EtcdGateway, EtcdProcess, PeerNetwork};
use ferrokube_etcd::{Etcd, EtcdConfig, EtcdTls};
use ferrokube_server::registry::StorageMediaType;
use ferrokube_storage::remote::{FeedItem, RemoteChange, RemoteEngine};
use ferrokube_storage::testing::JudgedEvent;
use ferrokube_storage::{Revision, ValueCodec};
use ferrokube_testkit::{Cluster, Launch, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// The form of values in etcd.
static VALUES: LazyLock<Arc<dyn ValueCodec>> = LazyLock::new(|| {
    ferrokube_server::value_codec(&[ferrokube_resources::bundle()], StorageMediaType::Protobuf)
        .unwrap()
});

const PREFIX: &str = "/registry/configmaps/default/";
const COMPACTION: Duration = Duration::from_millis(100);
/// By which a clock jumps, in seconds: certificates of before a jump back are not valid yet.
const JUMP: i64 = 3600;

/// What happens to a member, or to an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClusterFault {
    KillMember,
    CutOffLeader,
    PauseMember,
    PauseServer,
    KillLeader,
    CutOffMember,
    PauseLeader,
    KillServer,
    ClockAhead,
    ClockBehind,
}

const FAULTS: [ClusterFault; 10] = [
    ClusterFault::KillMember,
    ClusterFault::CutOffLeader,
    ClusterFault::PauseMember,
    ClusterFault::PauseServer,
    ClusterFault::KillLeader,
    ClusterFault::CutOffMember,
    ClusterFault::PauseLeader,
    ClusterFault::KillServer,
    ClusterFault::ClockAhead,
    ClusterFault::ClockBehind,
];

/// The history, read straight from etcd.
pub(super) struct EtcdHistory {
    events: mpsc::UnboundedReceiver<(Revision, Vec<JudgedEvent>)>,
    /// Everything up to here was read.
    position: Arc<AtomicU64>,
    _engine: Etcd,
}

impl EtcdHistory {
    pub(super) async fn new(servers: Vec<String>) -> Self {
        let engine = Etcd::new(&EtcdConfig {
            servers,
            prefix: "/registry".to_owned(),
            renamed: &[],
            tls: EtcdTls::default(),
            tls_source: None,
            compaction_interval: Duration::ZERO,
            remembered: None,
        });
        let engine = engine.unwrap();
        let mut feed = engine.open();
        let (sender, events) = mpsc::unbounded_channel();
        let position = Arc::new(AtomicU64::new(0));
        let started = async { while !matches!(feed.next().await, FeedItem::State { .. }) {} };
        tokio::time::timeout(PATIENCE, started).await.expect("etcd answers");
        let reached = Arc::clone(&position);
        tokio::spawn(async move {
            loop {
                let (revision, changes) = match feed.next().await {
                    FeedItem::State { .. } => panic!("the history has a gap"),
                    FeedItem::Changes { revision, changes } => (revision, changes),
                    FeedItem::Lost(_) => continue,
                    FeedItem::Failed(why) => panic!("{why}"),
                };
                let events = changes.iter().filter_map(judged).collect();
                if sender.send((revision, events)).is_err() {
                    return;
                }
                reached.store(revision.0, Ordering::Release);
            }
        });
        Self { events, position, _engine: engine }
    }

    pub(super) async fn until(mut self, last: Revision) -> Vec<JudgedEvent> {
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

fn judged(change: &RemoteChange) -> Option<JudgedEvent> {
    let name = change.key.strip_prefix(PREFIX).filter(|name| name.starts_with(OWN))?;
    let key = object_key(name);
    let text = change.value.as_ref().map(|value| {
        let (value, _) = VALUES.read(&key, value).unwrap();
        let object: Value = serde_json::from_slice(&value).unwrap();
        object["data"]["v"].as_str().unwrap().to_owned()
    });
    Some(JudgedEvent { key, revision: change.revision, text })
}

/// Compacts to where the history was read, by whichever member answers.
fn start_compactor(members: Vec<EtcdGateway>, position: Arc<AtomicU64>) -> AbortHandle {
    tokio::spawn(async move {
        for round in 0_usize.. {
            tokio::time::sleep(COMPACTION).await;
            let revision = position.load(Ordering::Acquire);
            let (member, body) =
                (members[round % members.len()], format!("{{\"revision\":\"{revision}\"}}"));
            let call = move || member.try_post("/v3/kv/compaction", &body);
            let _ = tokio::task::spawn_blocking(call).await;
        }
    })
    .abort_handle()
}

/// All processes.
struct JudgedCluster {
    members: Vec<EtcdProcess>,
    network: PeerNetwork,
    servers: Vec<Cluster>,
    /// Clock of each server.
    clocks: [ProcessClock; 2],
    slots: Vec<ServerSlot>,
}

impl JudgedCluster {
    async fn new(executable: &Path, directory: &Path) -> Self {
        let network = PeerNetwork::new(3).await;
        let members = EtcdProcess::cluster_on(&network, executable, directory);
        let urls: Vec<String> = members.iter().map(EtcdProcess::url).collect();
        let flags = [
            format!("--etcd-servers={}", urls.join(",")),
            // Compaction is this test's.
            "--etcd-compaction-interval=0".to_owned(),
        ];
        let clocks = [ProcessClock::new(), ProcessClock::new()];
        let start = |clock: &ProcessClock| {
            let launch = clock.given_to(Launch::new(FERROKUBE).role("apiserver"));
            flags.iter().fold(launch, |launch, flag| launch.flag(flag)).start().unwrap()
        };
        let servers: Vec<Cluster> = clocks.iter().map(start).collect();
        let slot = |server: &Cluster| ServerSlot::new(server.admin().unwrap());
        let slots = servers.iter().map(slot).collect();
        Self { members, network, servers, clocks, slots }
    }

    /// The leader, and a member that follows it, with their ids.
    async fn roles(&self) -> [(usize, u64); 2] {
        let gateways: Vec<EtcdGateway> = self.members.iter().map(EtcdProcess::gateway).collect();
        let gateways = &gateways;
        wait_until("the members agree on a leader", PATIENCE, || async move {
            let ids: Vec<(u64, u64)> =
                gateways.iter().map(|member| member.ids().unwrap_or_default()).collect();
            let leader = ids.iter().position(|(id, leader)| *id != 0 && id == leader);
            let agreed = leader.filter(|leader| ids.iter().all(|(_, of)| *of == ids[*leader].0));
            let leader = agreed.ok_or_else(|| format!("{ids:?}"))?;
            let follower = (leader + 1) % ids.len();
            Ok([(leader, ids[leader].0), (follower, ids[follower].0)])
        })
        .await
    }

    /// Sets a server's clock, and waits until its administrator's certificate is valid by it.
    async fn set_clock(&self, server: usize, seconds: i64) {
        self.clocks[server].set(seconds);
        let cluster = &self.servers[server];
        let admin = wait_until("the certificate is valid", PATIENCE, || async move {
            let admin = cluster.admin().map_err(|error| format!("{error:#}"))?;
            let reply = admin.get(MAPS).await.map_err(|error| format!("{error:#}"))?;
            if reply.status == 200 { Ok(admin) } else { Err(reply.text) }
        });
        self.slots[server].set(admin.await);
    }

    /// Time that a server gives to an object.
    async fn stamp(&self, server: usize) -> String {
        let object = &json!({"metadata": {"generateName": "stamp-"}});
        let client = &self.slots[server].client();
        wait_until("an object is created", PATIENCE, || async move {
            let made = client.post(MAPS, object).await.map_err(|error| format!("{error:#}"))?;
            let time = made.body["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
            time.ok_or(made.text)
        })
        .await
    }

    async fn suffer(&mut self, fault: ClusterFault, round: usize, clients: &JudgedClients) {
        let [leader, follower] = self.roles().await;
        let server = round % self.servers.len();
        match fault {
            ClusterFault::KillMember => self.members[follower.0].kill(),
            ClusterFault::KillLeader => self.members[leader.0].kill(),
            ClusterFault::CutOffMember => self.network.cut_off(follower.0, follower.1),
            ClusterFault::CutOffLeader => self.network.cut_off(leader.0, leader.1),
            ClusterFault::PauseMember => self.members[follower.0].pause(true),
            ClusterFault::PauseLeader => self.members[leader.0].pause(true),
            ClusterFault::PauseServer => self.servers[server].signal(Signal::STOP).unwrap(),
            ClusterFault::KillServer => self.servers[server].kill().unwrap(),
            ClusterFault::ClockAhead => {
                self.set_clock(server, JUMP).await;
                assert!(self.stamp(server).await > self.stamp(1 - server).await);
            }
            ClusterFault::ClockBehind => {
                self.set_clock(server, -JUMP).await;
                assert!(self.stamp(server).await < self.stamp(1 - server).await);
            }
        }
        clients.progress(10).await;
        match fault {
            ClusterFault::KillMember => self.members[follower.0].restart(),
            ClusterFault::KillLeader => self.members[leader.0].restart(),
            ClusterFault::CutOffMember | ClusterFault::CutOffLeader => self.network.heal(),
            ClusterFault::PauseMember => self.members[follower.0].pause(false),
            ClusterFault::PauseLeader => self.members[leader.0].pause(false),
            ClusterFault::PauseServer => self.servers[server].signal(Signal::CONT).unwrap(),
            ClusterFault::KillServer => {
                self.servers[server].restart().unwrap();
                self.slots[server].set(self.servers[server].admin().unwrap());
            }
            ClusterFault::ClockAhead | ClusterFault::ClockBehind => self.set_clock(server, 0).await,
        }
        clients.progress(10).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_servers_agree_with_the_history_whatever_fails() {
    let rounds = wished("FERROKUBE_JUDGED_ROUNDS");
    for (index, executable) in EtcdProcess::executables().iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let mut setup = JudgedCluster::new(executable, directory.path()).await;
        let truth = EtcdHistory::new(setup.members.iter().map(EtcdProcess::url).collect()).await;
        let gateways = setup.members.iter().map(EtcdProcess::gateway).collect();
        let compactor = start_compactor(gateways, Arc::clone(&truth.position));
        let clients = JudgedClients::start(&setup.slots);
        clients.progress(10).await;
        let mut count = 0;
        for round in 0..rounds.unwrap_or(1) {
            // In a short run each version has half of the faults.
            let faults = FAULTS.iter().enumerate();
            for (_, fault) in faults.filter(|(at, _)| rounds.is_some() || at % 2 == index % 2) {
                setup.suffer(*fault, round, &clients).await;
                count += 1;
            }
        }
        compactor.abort();
        let recorder = clients.recorder.clone();
        let violations = clients.finish(async |last| truth.until(last).await).await;
        assert!(violations.is_empty(), "{violations:#?}");
        let [writes, reads, events] = recorder.counts();
        println!("{count} faults, {writes} writes, {reads} reads, {events} events");
        assert!(writes > count && reads > count && events > count, "{writes} {reads} {events}");
    }
}
