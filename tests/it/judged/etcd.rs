//! Two API servers on an etcd of three members, each in a network namespace of its own, of which
//! one fails or is cut off at a time, while the history is compacted up to where this test has read
//! it.

use super::clients::{JudgedClients, MAPS, OWN, ServerSlot, object_key};
use super::process_clock::ProcessClock;
use super::{PATIENCE, wished};
use crate::FERROKUBE;
use ferrokube_etcd::testing::{EtcdGateway, EtcdProcess};
use ferrokube_etcd::{Etcd, EtcdConfig, EtcdTls};
use ferrokube_server::registry::StorageMediaType;
use ferrokube_storage::remote::{FeedItem, RemoteChange, RemoteEngine};
use ferrokube_storage::testing::JudgedEvent;
use ferrokube_storage::{Revision, ValueCodec};
use ferrokube_testkit::{Cluster, Launch, TestHosts, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// The form of values in etcd.
static VALUES: LazyLock<Arc<dyn ValueCodec>> = LazyLock::new(|| {
    ferrokube_server::value_codec(&[ferrokube_resources::bundle()], StorageMediaType::Protobuf)
        .unwrap()
});

/// Fails the test instead of skipping it where there are no network namespaces.
const MUST: &str = "FERROKUBE_MUST_NETNS";
/// Hosts of members are the first, those of API servers follow.
const MEMBERS: usize = 3;
const SERVERS: usize = 2;
const PREFIX: &str = "/registry/configmaps/default/";
const COMPACTION: Duration = Duration::from_millis(100);
/// By which a clock jumps, in seconds: certificates of before a jump back are not valid yet.
const JUMP: i64 = 3600;

/// What happens to a member, or to an API server. Cut off: packets are lost in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClusterFault {
    KillMember,
    /// From the members; the API servers still reach it.
    CutOffLeader,
    PauseMember,
    PauseServer,
    KillLeader,
    /// From the members; the API servers still reach it.
    CutOffMember,
    PauseLeader,
    KillServer,
    /// From all members.
    CutOffServer,
    /// From members and API servers.
    IsolateLeader,
    PartServerAndLeader,
    /// What it sends to the members is lost, and what they send arrives.
    MuteLeader,
    ClockAhead,
    ClockBehind,
}

const FAULTS: [ClusterFault; 14] = [
    ClusterFault::KillMember,
    ClusterFault::CutOffLeader,
    ClusterFault::PauseMember,
    ClusterFault::PauseServer,
    ClusterFault::KillLeader,
    ClusterFault::CutOffMember,
    ClusterFault::PauseLeader,
    ClusterFault::KillServer,
    ClusterFault::CutOffServer,
    ClusterFault::IsolateLeader,
    ClusterFault::PartServerAndLeader,
    ClusterFault::MuteLeader,
    ClusterFault::ClockAhead,
    ClusterFault::ClockBehind,
];

/// The history, read straight from etcd.
pub(super) struct EtcdHistory {
    events: mpsc::UnboundedReceiver<(Revision, Vec<JudgedEvent>)>,
    /// Everything up to here was read.
    position: Arc<AtomicU64>,
    /// Ends with this, so that it meets no other etcd at the same address.
    _following: JoinSet<()>,
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
        let started =
            async { while !matches!(feed.next().await, FeedItem::State { is_last: true, .. }) {} };
        tokio::time::timeout(PATIENCE, started).await.expect("etcd answers");
        let reached = Arc::clone(&position);
        let mut following = JoinSet::new();
        following.spawn(async move {
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
        Self { events, position, _following: following, _engine: engine }
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

/// All processes, on their hosts.
struct JudgedCluster<'a> {
    hosts: &'a TestHosts,
    members: Vec<EtcdProcess>,
    servers: Vec<Cluster>,
    /// Clock of each server.
    clocks: [ProcessClock; SERVERS],
    slots: Vec<ServerSlot>,
}

impl<'a> JudgedCluster<'a> {
    fn new(hosts: &'a TestHosts, executable: &Path, directory: &Path) -> Self {
        let addresses: Vec<Ipv4Addr> = (0..MEMBERS).map(|member| hosts.address(member)).collect();
        let member = |index| EtcdProcess::on_host(executable, directory, &addresses, index);
        let members = (0..MEMBERS).map(|index| hosts.run_on(index, || member(index)));
        let members: Vec<EtcdProcess> = members.collect();
        let urls: Vec<String> = members.iter().map(EtcdProcess::url).collect();
        let flags = [
            format!("--etcd-servers={}", urls.join(",")),
            // Compaction is this test's.
            "--etcd-compaction-interval=0".to_owned(),
        ];
        let clocks = [(); SERVERS].map(|()| ProcessClock::new());
        let start = |(index, clock): (usize, &ProcessClock)| {
            let host = MEMBERS + index;
            let launch = clock.given_to(Launch::new(FERROKUBE).role("apiserver"));
            let launch = launch.flag(format!("--bind-address={}", hosts.address(host)));
            let launch = flags.iter().fold(launch, |launch, flag| launch.flag(flag));
            hosts.run_on(host, || launch.start().unwrap())
        };
        let servers: Vec<Cluster> = clocks.iter().enumerate().map(start).collect();
        let slot = |server: &Cluster| ServerSlot::new(server.admin().unwrap());
        let slots = servers.iter().map(slot).collect();
        Self { hosts, members, servers, clocks, slots }
    }

    /// The leader, and a member that follows it.
    async fn roles(&self) -> [usize; 2] {
        let gateways: Vec<EtcdGateway> = self.members.iter().map(EtcdProcess::gateway).collect();
        let gateways = &gateways;
        wait_until("the members agree on a leader", PATIENCE, || async move {
            let ids: Vec<(u64, u64)> =
                gateways.iter().map(|member| member.ids().unwrap_or_default()).collect();
            let leader = ids.iter().position(|(id, leader)| *id != 0 && id == leader);
            let agreed = leader.filter(|leader| ids.iter().all(|(_, of)| *of == ids[*leader].0));
            let leader = agreed.ok_or_else(|| format!("{ids:?}"))?;
            Ok([leader, (leader + 1) % ids.len()])
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

    /// Cuts a host off from others, of which it may be one.
    fn cut_off(&self, host: usize, others: Range<usize>) {
        let others = others.filter(|other| *other != host);
        others.for_each(|other| self.hosts.cut(host, other));
    }

    fn restart_member(&mut self, member: usize) {
        let process = &mut self.members[member];
        self.hosts.run_on(member, || process.restart());
    }

    async fn suffer(&mut self, fault: ClusterFault, round: usize, clients: &JudgedClients) {
        let [leader, follower] = self.roles().await;
        let server = round % SERVERS;
        let host = MEMBERS + server;
        match fault {
            ClusterFault::KillMember => self.members[follower].kill(),
            ClusterFault::KillLeader => self.members[leader].kill(),
            ClusterFault::CutOffMember => self.cut_off(follower, 0..MEMBERS),
            ClusterFault::CutOffLeader => self.cut_off(leader, 0..MEMBERS),
            ClusterFault::CutOffServer => self.cut_off(host, 0..MEMBERS),
            ClusterFault::IsolateLeader => self.cut_off(leader, 0..MEMBERS + SERVERS),
            ClusterFault::PartServerAndLeader => self.hosts.cut(host, leader),
            ClusterFault::MuteLeader => {
                let others = (0..MEMBERS).filter(|other| *other != leader);
                others.for_each(|other| self.hosts.lose(leader, other));
            }
            ClusterFault::PauseMember => self.members[follower].pause(true),
            ClusterFault::PauseLeader => self.members[leader].pause(true),
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
            ClusterFault::KillMember => self.restart_member(follower),
            ClusterFault::KillLeader => self.restart_member(leader),
            ClusterFault::CutOffMember
            | ClusterFault::CutOffLeader
            | ClusterFault::CutOffServer
            | ClusterFault::IsolateLeader
            | ClusterFault::PartServerAndLeader
            | ClusterFault::MuteLeader => self.hosts.heal(),
            ClusterFault::PauseMember => self.members[follower].pause(false),
            ClusterFault::PauseLeader => self.members[leader].pause(false),
            ClusterFault::PauseServer => self.servers[server].signal(Signal::CONT).unwrap(),
            ClusterFault::KillServer => {
                let process = &mut self.servers[server];
                self.hosts.run_on(host, || process.restart().unwrap());
                self.slots[server].set(self.servers[server].admin().unwrap());
            }
            ClusterFault::ClockAhead | ClusterFault::ClockBehind => self.set_clock(server, 0).await,
        }
        clients.progress(10).await;
    }
}

#[test]
fn fault_15_servers_agree_with_the_history_whatever_fails() {
    // Installed from here: the hosts do not reach the Internet.
    let executables = EtcdProcess::executables();
    let hosts = match TestHosts::new(MEMBERS + SERVERS) {
        Ok(hosts) => hosts,
        Err(why) => {
            assert!(std::env::var_os(MUST).is_none(), "there are no network namespaces: {why}");
            return eprintln!("skipped: there are no network namespaces: {why}");
        }
    };
    let judged = || judge_on(&hosts, &executables);
    hosts.run(|| tokio::runtime::Runtime::new().unwrap().block_on(judged()));
}

async fn judge_on(hosts: &TestHosts, executables: &[PathBuf]) {
    let rounds = wished("FERROKUBE_JUDGED_ROUNDS");
    for (index, executable) in executables.iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let mut setup = JudgedCluster::new(hosts, executable, directory.path());
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
                let began = Instant::now();
                setup.suffer(*fault, round, &clients).await;
                println!("{fault:?}: {} ms", began.elapsed().as_millis());
                count += 1;
            }
        }
        compactor.abort();
        let recorder = clients.recorder.clone();
        let violations = clients.finish(async |last| truth.until(last).await).await;
        let logs = || setup.servers.iter().map(Cluster::log).collect::<Vec<_>>().join("\n---\n");
        assert!(violations.is_empty(), "{violations:#?}\n{}", logs());
        let [writes, reads, events] = recorder.counts();
        println!("{count} faults, {writes} writes, {reads} reads, {events} events");
        assert!(writes > count && reads > count && events > count, "{writes} {reads} {events}");
    }
}
