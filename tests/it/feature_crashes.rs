//! A feature is turned off by servers that are killed between any two steps: one with the embedded
//! store, and two on one etcd.

use crate::FERROKUBE;
use ferrokube_controlplane::FeatureFailpoint;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const FEATURE: &str = "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features/LogTracking";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const OBJECTS: usize = 60;
/// Names the moment at which a server kills itself.
const FAILPOINT: &str = "FERROKUBE_FEATURE_FAILPOINT";
/// Each transition meets the moments that are left, if the one who leads meets them in order.
const MAX_ROUNDS: usize = 8;

fn server(storage: Option<&str>) -> Cluster {
    // Longer than a busy machine takes from a start to the first look.
    let flags = ["--feature-gates=FeatureAPI=true", "--dynamic-features=LogTracking"];
    let launch = Launch::new(FERROKUBE).role("apiserver").flag("--feature-evaluation-time=3s");
    let launch = flags.into_iter().chain(storage).fold(launch, |all, flag| all.flag(flag));
    launch.environment(FAILPOINT, &moment(0)).start().unwrap()
}

/// The moments in their order, then none.
fn moment(number: usize) -> String {
    FeatureFailpoint::ALL
        .get(number)
        .map_or_else(String::new, |failpoint| format!("LogTracking:{failpoint:?}"))
}

async fn feature(admin: &Client) -> Option<Value> {
    let found = admin.get(FEATURE).await.ok()?;
    (found.status == 200).then_some(found.body)
}

/// Sets `spec.desired`, and waits for a state if one is given. A server may have died at the last
/// moment of the transition before.
async fn desire(servers: &mut [Cluster], kills: &mut Kills, desired: &str, state: Option<&str>) {
    let began = Instant::now();
    let patch = json!({ "spec": { "desired": desired } });
    let mut is_set = false;
    loop {
        kills.revive(servers);
        let admin = servers[0].admin().unwrap();
        if !is_set {
            is_set = admin.merge(FEATURE, &patch).await.is_ok_and(|set| set.status == 200);
        }
        let seen = feature(&admin).await.unwrap_or_default();
        if is_set && state.is_none_or(|state| seen["status"]["state"] == state) {
            return;
        }
        assert!(began.elapsed() < BOUND, "{desired}, {kills:?}: {seen}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Objects with ids, as of before the feature is turned off.
async fn stamped(admin: &Client, round: usize) {
    wait_until("objects have ids", BOUND, || async {
        let probe = json!({"metadata": {"name": "probe"}});
        let made = admin.post(&format!("{MAPS}?dryRun=All"), &probe).await.unwrap().text;
        if made.contains("trace.kubernetes.io/") { Ok(()) } else { Err(made) }
    })
    .await;
    for number in 0..OBJECTS {
        let map = json!({"metadata": {"name": format!("m{round}-{number}")}});
        let made = admin.post(MAPS, &map).await.unwrap();
        assert!(made.text.contains("trace.kubernetes.io/"), "{}", made.text);
    }
}

/// Numbers of moments.
#[derive(Debug)]
struct Kills {
    /// At which a server died.
    met: BTreeSet<usize>,
    /// At which each server dies next.
    armed: Vec<usize>,
}

impl Kills {
    fn new(servers: usize) -> Self {
        Self { met: BTreeSet::new(), armed: vec![0; servers] }
    }

    /// Starts dead servers again, which die at the first moment that is left, perhaps before they
    /// are ready. Whether there were any.
    fn revive(&mut self, servers: &mut [Cluster]) -> bool {
        let mut is_any = false;
        for (server, armed) in servers.iter_mut().zip(&mut self.armed) {
            let mut is_dead = server.is_killed();
            is_any |= is_dead;
            while is_dead {
                self.met.insert(*armed);
                *armed = (0..).find(|number| !self.met.contains(number)).unwrap();
                server.set_environment(FAILPOINT, &moment(*armed));
                let Err(error) = server.restart() else { break };
                let status = server.wait().unwrap();
                is_dead = status.signal() == Some(9);
                assert!(is_dead, "{error}");
            }
        }
        is_any
    }
}

/// The maps as each server lists them, if all of them respond.
async fn maps(servers: &[Cluster]) -> Option<Vec<String>> {
    let mut read = Vec::new();
    for server in servers {
        read.push(server.admin().ok()?.get(MAPS).await.ok()?.text);
    }
    Some(read)
}

/// Turns the feature off and on again until the leader was killed at each moment.
async fn survives_a_kill_at_every_moment(servers: &mut [Cluster]) {
    let mut kills = Kills::new(servers.len());
    for round in 0..MAX_ROUNDS {
        desire(servers, &mut kills, "Enabled", Some("On")).await;
        stamped(&servers[0].admin().unwrap(), round).await;
        desire(servers, &mut kills, "Disabled", None).await;
        let began = Instant::now();
        let read = loop {
            if kills.revive(servers) {
                continue;
            }
            let seen = feature(&servers[0].admin().unwrap()).await.unwrap_or_default();
            if seen["status"]["state"] == "Off" {
                // A server may die at the last step, too.
                let read = maps(servers).await;
                if let Some(read) = read.filter(|_| !servers.iter_mut().any(Cluster::is_killed)) {
                    break read;
                }
            }
            assert!(began.elapsed() < 4 * BOUND, "{kills:?}: {seen}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        for maps in read {
            let left = maps.matches("\"trace.kubernetes.io/").count();
            assert!(maps.contains(&format!("\"m{round}-1\"")) && left == 0, "{left}: {maps}");
        }
        if kills.met.len() == FeatureFailpoint::ALL.len() {
            return;
        }
    }
    panic!("in {MAX_ROUNDS} transitions: {kills:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_server_killed_between_any_two_steps_loses_no_task() {
    survives_a_kill_at_every_moment(&mut [server(None)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_etcd_killed_between_any_two_steps_lose_no_task() {
    let Some(executable) = EtcdProcess::executables().pop() else { return };
    let directory = tempfile::tempdir().unwrap();
    let etcd = EtcdProcess::start(&executable, &directory.path().join("etcd"));
    let storage = format!("--etcd-servers={}", etcd.url());
    let both = || server(Some(&storage));
    survives_a_kill_at_every_moment(&mut [both(), both()]).await;
}
