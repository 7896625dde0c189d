//! Controller managers as processes: one of two leads, random kill -9 leaves nothing undone or
//! wrongly deleted, a thousand objects are deleted.

use crate::FERROKUBE;
use ferrokube_etcd::testing::free_port;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Kills of a manager; `FERROKUBE_MANAGER_KILLS=50` is the long form.
const KILLS: u64 = 6;
/// Lease times for a fast takeover.
const SHORT: [&str; 3] = [
    "--leader-elect-lease-duration=2s",
    "--leader-elect-renew-deadline=1500ms",
    "--leader-elect-retry-period=200ms",
];
/// Default lease times with a short retry period.
const LONG: [&str; 3] = [
    "--leader-elect-lease-duration=15s",
    "--leader-elect-renew-deadline=10s",
    "--leader-elect-retry-period=200ms",
];
/// Before one of this many kills, the leader is paused until it has lost the lease.
const PAUSES: u64 = 5;
/// Log lines, and remaining objects, shown when a test fails.
const TAIL: usize = 40;
/// Dependents per owner, and objects per namespace.
const WIDTH: usize = 4;
const THOUSAND: usize = 1000;
const NAMESPACES: &str = "/api/v1/namespaces";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";

#[tokio::test]
async fn a_controller_survives_the_deletion_of_its_account() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let account = "/api/v1/namespaces/kube-system/serviceaccounts/namespace-controller";
    let first = || async {
        admin
            .get(account)
            .await
            .map_err(|error| error.to_string())
            .and_then(|answer| (answer.status == 200).then_some(answer.body).ok_or(answer.text))
    };
    let before = wait_until("the account is there", BOUND, first).await;
    delete(&admin, account).await;
    create(
        &admin,
        NAMESPACES,
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "brief"}}),
    )
    .await;
    delete(&admin, &format!("{NAMESPACES}/brief")).await;
    let gone = || async {
        let answer =
            admin.get(&format!("{NAMESPACES}/brief")).await.map_err(|error| error.to_string())?;
        (answer.status == 404).then_some(()).ok_or(answer.text)
    };
    wait_until("the namespace is gone", BOUND, gone).await;
    assert_ne!(
        first().await.unwrap()["metadata"]["uid"],
        before["metadata"]["uid"],
        "it was made again"
    );
}

#[tokio::test]
async fn an_all_in_one_serves_without_controllers() {
    let cluster = Launch::new(FERROKUBE).flag("--controllers=-*").start().unwrap();
    let admin = cluster.admin().unwrap();
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "alone"}});
    create(&admin, CONFIGMAPS, &object).await;
    assert_eq!(admin.get(&format!("{CONFIGMAPS}/alone")).await.unwrap().status, 200);
    // Written by a controller in every namespace.
    let root_ca = admin.get(&format!("{CONFIGMAPS}/kube-root-ca.crt")).await.unwrap();
    assert_eq!(root_ca.status, 404, "{}", root_ca.text);
}

/// The lines of a manager's log with both words.
fn told(manager: &ManagerProcess, level: &str, word: &str) -> Vec<String> {
    manager
        .log()
        .lines()
        .filter(|line| line.contains(level) && line.contains(word))
        .map(str::to_owned)
        .collect()
}

/// Forwards connections, so that a server can be down and come back at the same address.
async fn relay(listener: TcpListener, to: String) {
    let mut connections = JoinSet::new();
    while let Ok((mut near, _)) = listener.accept().await {
        let to = to.clone();
        connections.spawn(async move {
            if let Ok(mut far) = TcpStream::connect(to).await {
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            }
        });
    }
}

/// Without leader election nothing else reports that a server is down.
#[tokio::test]
async fn a_manager_logs_once_that_its_server_is_down_and_once_that_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let address = ("127.0.0.1", free_port());
    let listener = TcpListener::bind(address).await.unwrap();
    let to = cluster.url().trim_start_matches("https://").to_owned();
    let way = tokio::spawn(relay(listener, to.clone()));
    let kubeconfig = directory.path().join("kubeconfig");
    let admin = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    std::fs::write(
        &kubeconfig,
        admin.replace(cluster.url(), &format!("https://{}:{}", address.0, address.1)),
    )
    .unwrap();

    let manager =
        ManagerProcess::start(&kubeconfig, directory.path().join("log"), &["--leader-elect=false"]);
    let line = |level: &'static str, word: &'static str| {
        let manager = &manager;
        wait_until("the line is there", BOUND, move || {
            let found = told(manager, level, word)
                .pop()
                .ok_or_else(|| format!("{level} {word}: {}", manager.log()));
            async move { found }
        })
    };
    line("INFO", "controllers started").await;
    way.abort();
    let warned = line("WARN", "").await;
    assert!(
        warned.contains("cannot ") && warned.contains("check that the API server runs"),
        "what was tried, and what to do: {warned}"
    );
    let way = tokio::spawn(relay(TcpListener::bind(address).await.unwrap(), to));
    line("INFO", " again").await;
    assert_eq!(
        told(&manager, "WARN", "").len(),
        1,
        "all watches and questions share one outage: {}",
        manager.log()
    );
    way.abort();
}

/// Nor that it refuses requests.
#[tokio::test]
async fn a_manager_without_rights_logs_it_once() {
    let directory = tempfile::tempdir().unwrap();
    let (tokens, kubeconfig) =
        (directory.path().join("tokens"), directory.path().join("kubeconfig"));
    ferrokube_testkit::write_secret(&tokens, "nobody,nobody,u1\n");
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(format!("--token-auth-file={}", tokens.display()))
        .start()
        .unwrap();
    let admin = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let ca = admin
        .split("certificate-authority-data")
        .nth(1)
        .unwrap()
        .trim_start_matches(['"', ':', ' '])
        .split(['"', '\n'])
        .next()
        .unwrap()
        .trim();
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": cluster.url(), "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": "nobody"}}]});
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let manager =
        ManagerProcess::start(&kubeconfig, directory.path().join("log"), &["--leader-elect=false"]);
    let warned = wait_until("it warns", BOUND, async || {
        told(&manager, "WARN", "forbidden").pop().ok_or_else(|| manager.log())
    })
    .await;
    assert!(
        warned.contains("cannot get a token") && warned.contains("grant this user the permission"),
        "{warned}"
    );
    assert_eq!(told(&manager, "WARN", "").len(), 1, "{}", manager.log());
}

/// A controller-manager process with its own log; killed on drop.
pub(crate) struct ManagerProcess {
    process: Child,
    log: PathBuf,
}

impl ManagerProcess {
    pub(crate) fn start(kubeconfig: &Path, log: PathBuf, flags: &[&str]) -> Self {
        Self::start_of(FERROKUBE.as_ref(), kubeconfig, log, flags)
    }

    /// Starts another program.
    pub(crate) fn start_of(binary: &Path, kubeconfig: &Path, log: PathBuf, flags: &[&str]) -> Self {
        let mut command = Command::new(binary);
        command
            .arg("controller-manager")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--secure-port", "0"])
            .args(flags);
        Self::spawn(&mut command, log)
    }

    /// A process of another role.
    pub(crate) fn spawn(command: &mut Command, log: PathBuf) -> Self {
        let process = command
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { process, log }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has logged that it leads. It logs that once, and exits when it stops leading.
    fn leads(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none() && self.log().contains("became leader")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it runs, and the end of its log.
    fn report(&mut self) -> String {
        let state = match self.process.try_wait().unwrap() {
            Some(status) => format!("ended with {status}"),
            None => "runs".to_owned(),
        };
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "--- {} {state}; of {} lines:\n{}\n",
            self.log.display(),
            lines.len(),
            lines[lines.len().saturating_sub(TAIL)..].join("\n")
        )
    }
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two managers of one server.
struct ManagerPair {
    kubeconfig: PathBuf,
    logs: tempfile::TempDir,
    started: usize,
    /// Managers that exited because they could not renew the lease in time.
    deposed: u64,
    /// Lease times of newly started managers.
    lease: [&'static str; 3],
    managers: Vec<ManagerProcess>,
}

impl ManagerPair {
    fn start(kubeconfig: PathBuf, lease: [&'static str; 3]) -> Self {
        let mut pair = Self {
            kubeconfig,
            logs: tempfile::tempdir().unwrap(),
            started: 0,
            deposed: 0,
            lease,
            managers: Vec::new(),
        };
        pair.managers = vec![pair.another(), pair.another()];
        pair
    }

    fn another(&mut self) -> ManagerProcess {
        self.started += 1;
        ManagerProcess::start(
            &self.kubeconfig,
            self.logs.path().join(self.started.to_string()),
            &self.lease,
        )
    }

    fn replace(&mut self, index: usize) {
        // Drops, and so kills, the old one first: there are never three.
        drop(self.managers.remove(index));
        let manager = self.another();
        self.managers.insert(index, manager);
    }

    /// Restarts managers that exited because they lost the lease (on a slow machine), as systemd or
    /// a Deployment would. No other reason to exit is accepted.
    fn supervise(&mut self) {
        for index in 0..self.managers.len() {
            if let Some(status) = self.managers[index].process.try_wait().unwrap() {
                let log = self.managers[index].log();
                assert!(
                    log.contains("could not be renewed in time"),
                    "a manager ended by itself: {status}\n{log}"
                );
                self.deposed += 1;
                self.replace(index);
            }
        }
    }

    /// Pauses the leader until the other one leads, then resumes it, deposed, in the middle of its
    /// work.
    async fn depose(&mut self, leader: usize) {
        let paused = Pid::from_child(&self.managers[leader].process);
        kill_process(paused, Signal::STOP).unwrap();
        let deadline = Instant::now() + BOUND;
        while !self.managers[1 - leader].leads() {
            self.supervise();
            assert!(Instant::now() < deadline, "the other does not lead\n{}", self.report());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        kill_process(paused, Signal::CONT).unwrap();
    }

    /// The state of both and the ends of their logs.
    fn report(&mut self) -> String {
        let managers: String = self.managers.iter_mut().map(ManagerProcess::report).collect();
        format!(
            "{} managers were started, {} lost the lease\n{managers}",
            self.started, self.deposed
        )
    }

    /// Keeps the managers running until the expected state is reached. The time depends on the
    /// machine; progress must not stop.
    ///
    /// Managers restarted from here on use the default lease times: on a slow machine nobody would
    /// hold a short lease for long enough to finish one pass.
    async fn converge(&mut self, admin: &Client, expected: &ExpectedState) {
        self.lease = LONG;
        let (mut fewest, mut since) = (usize::MAX, Instant::now());
        loop {
            self.supervise();
            let left = expected.left(admin).await;
            if left.is_empty() {
                return;
            }
            if left.len() < fewest {
                (fewest, since) = (left.len(), Instant::now());
            }
            let shown = &left[..left.len().min(TAIL)];
            assert!(
                since.elapsed() < BOUND,
                "{} things are left and do not get fewer: {}\n{}",
                left.len(),
                shown.join(", "),
                self.report()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The index of the leader.
    async fn leader(&mut self, admin: &Client) -> usize {
        let deadline = Instant::now() + BOUND;
        loop {
            self.supervise();
            let leading: Vec<usize> =
                (0..self.managers.len()).filter(|index| self.managers[*index].leads()).collect();
            let lease = admin.get(LEASE).await.unwrap();
            let holder =
                lease.body["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            if let [one] = leading[..]
                && holder.contains(&format!("_{}_", self.managers[one].process.id()))
            {
                return one;
            }
            assert!(
                Instant::now() < deadline,
                "leading: {leading:?}, the lease: {}\n{}",
                lease.text,
                self.report()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The final state.
#[derive(Default)]
struct ExpectedState {
    /// Configmaps that stay: uid, and the uids of their remaining owners.
    kept: BTreeMap<String, (String, Vec<String>)>,
    gone: Vec<String>,
    namespaces: Vec<String>,
}

fn configmap(name: &str, owners: &[&Value]) -> Value {
    let owner = |owner: &&Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners.iter().map(owner).collect::<Vec<_>>()}})
}

async fn create(admin: &Client, path: &str, object: &Value) -> Value {
    let answer = admin.post(path, object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body
}

async fn delete(admin: &Client, path: &str) {
    let answer = admin.delete(path).await.unwrap();
    assert!(matches!(answer.status, 200 | 202), "{}", answer.text);
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

impl ExpectedState {
    fn keep(&mut self, object: &Value, owners: &[&Value]) {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.kept.insert(name, (uid(object), owners.iter().map(|owner| uid(owner)).collect()));
    }

    /// Creates an owner with dependents, some of which have a second, living owner; deletes the
    /// owner with a policy, or leaves it.
    async fn tree(&mut self, admin: &Client, number: usize, policy: Option<&str>) {
        let owner = create(admin, CONFIGMAPS, &configmap(&format!("owner-{number}"), &[])).await;
        let anchor = create(admin, CONFIGMAPS, &configmap(&format!("anchor-{number}"), &[])).await;
        self.keep(&anchor, &[]);
        for index in 0..WIDTH {
            let single = create(
                admin,
                CONFIGMAPS,
                &configmap(&format!("single-{number}-{index}"), &[&owner]),
            )
            .await;
            let shared = create(
                admin,
                CONFIGMAPS,
                &configmap(&format!("shared-{number}-{index}"), &[&owner, &anchor]),
            )
            .await;
            let below = create(
                admin,
                CONFIGMAPS,
                &configmap(&format!("below-{number}-{index}"), &[&single]),
            )
            .await;
            match policy {
                None => {
                    self.keep(&single, &[&owner]);
                    self.keep(&shared, &[&owner, &anchor]);
                    self.keep(&below, &[&single]);
                }
                Some("Orphan") => {
                    self.keep(&single, &[]);
                    self.keep(&shared, &[&anchor]);
                    self.keep(&below, &[&single]);
                }
                Some(_) => {
                    self.keep(&shared, &[&anchor]);
                    self.gone.extend([
                        format!("single-{number}-{index}"),
                        format!("below-{number}-{index}"),
                    ]);
                }
            }
        }
        match policy {
            None => self.keep(&owner, &[]),
            Some(policy) => {
                self.gone.push(format!("owner-{number}"));
                delete(admin, &format!("{CONFIGMAPS}/owner-{number}?propagationPolicy={policy}"))
                    .await;
            }
        }
    }

    async fn namespace(&mut self, admin: &Client, number: usize) {
        let name = format!("churn-{number}");
        create(
            admin,
            NAMESPACES,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )
        .await;
        let path = format!("{NAMESPACES}/{name}/configmaps");
        let owner = create(admin, &path, &configmap("owner", &[])).await;
        for index in 0..WIDTH {
            create(admin, &path, &configmap(&format!("dependent-{index}"), &[&owner])).await;
        }
        delete(admin, &format!("{NAMESPACES}/{name}")).await;
        self.namespaces.push(name);
    }

    /// What is not in the final state yet. A wrongly deleted object never comes back, so it fails
    /// at once.
    async fn left(&self, admin: &Client) -> Vec<String> {
        let list = admin.get(CONFIGMAPS).await.unwrap();
        let present: BTreeMap<&str, &Value> = list.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| (item["metadata"]["name"].as_str().unwrap(), item))
            .collect();
        let mut wrong = Vec::new();
        for (name, (uid, owners)) in &self.kept {
            let Some(item) = present.get(name.as_str()) else {
                panic!("{name} is gone: it has a living owner, or none, or was orphaned")
            };
            assert_eq!(item["metadata"]["uid"], uid.as_str(), "{item}");
            assert!(
                item["metadata"]["deletionTimestamp"].is_null(),
                "{name} is being deleted: {item}"
            );
            let left: Vec<&str> = item["metadata"]["ownerReferences"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|owner| owner["uid"].as_str())
                .collect();
            if left != *owners {
                wrong.push(format!("{name} has the owners {left:?}"));
            }
        }
        wrong.extend(
            self.gone
                .iter()
                .filter(|name| present.contains_key(name.as_str()))
                .map(|name| format!("{name} is left")),
        );
        let namespaces = admin.get(NAMESPACES).await.unwrap();
        let names: Vec<&str> = namespaces.body["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .collect();
        wrong.extend(
            self.namespaces
                .iter()
                .filter(|name| names.contains(&name.as_str()))
                .map(|name| format!("the namespace {name} is left")),
        );
        wrong
    }
}

/// Creates and deletes until stopped; returns the expected state.
async fn churn(admin: Client, stop: Arc<AtomicBool>) -> ExpectedState {
    let mut expected = ExpectedState::default();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        for policy in [Some("Background"), Some("Foreground"), Some("Orphan"), None] {
            expected.tree(&admin, number, policy).await;
            number += 1;
        }
        expected.namespace(&admin, number).await;
        // Not a wait: spreads the work over all kills.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    expected
}

/// xorshift; the seed is printed and can be set.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 16
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_29_two_managers_killed_at_random_converge() {
    let kills = std::env::var("FERROKUBE_MANAGER_KILLS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(KILLS);
    let chosen = std::env::var("FERROKUBE_MANAGER_SEED").ok().and_then(|seed| seed.parse().ok());
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    // Zero would stay zero.
    let mut state = chosen.unwrap_or_else(clock).max(1);
    println!("FERROKUBE_MANAGER_SEED={state}");
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    let mut pair = ManagerPair::start(cluster.kubeconfig(), SHORT);
    let stop = Arc::new(AtomicBool::new(false));
    let work = tokio::spawn(churn(admin.clone(), stop.clone()));
    let mut leaders_killed = 0;
    for number in 0..kills {
        let mut leader = pair.leader(&admin).await;
        if number % PAUSES == 0 {
            pair.depose(leader).await;
            leader = pair.leader(&admin).await;
        }
        // Not a wait: varies where in its work the manager is killed.
        tokio::time::sleep(Duration::from_millis(random(&mut state) % 400)).await;
        let victim = if random(&mut state).is_multiple_of(3) { 1 - leader } else { leader };
        leaders_killed += u64::from(victim == leader);
        pair.replace(victim);
    }
    stop.store(true, Ordering::Relaxed);
    while !work.is_finished() {
        pair.supervise();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let expected = work.await.unwrap();
    let killed = Instant::now();
    pair.converge(&admin, &expected).await;
    pair.leader(&admin).await;
    println!(
        "{leaders_killed} of {kills} kills hit the leader, {} managers lost the lease; converged {} ms after the last; {} kept, {} gone, {} namespaces",
        pair.deposed,
        killed.elapsed().as_millis(),
        expected.kept.len(),
        expected.gone.len(),
        expected.namespaces.len()
    );
    assert!(!expected.gone.is_empty() && !expected.namespaces.is_empty());
    assert!(
        pair.deposed >= kills.div_ceil(PAUSES),
        "each leader that was paused lost the lease, ended and was started again"
    );
}

/// A leader paused for longer than its lease (a VM snapshot, a stuck disk) exits when it resumes,
/// without acting.
#[tokio::test(flavor = "multi_thread")]
async fn fault_31_a_paused_leader_exits_and_the_other_leads() {
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    // Nobody restarts them here: the new leader must keep its lease on a slow machine, too.
    let mut pair = ManagerPair::start(cluster.kubeconfig(), LONG);
    let leader = pair.leader(&admin).await;
    let paused = Pid::from_child(&pair.managers[leader].process);
    kill_process(paused, Signal::STOP).unwrap();
    let other = 1 - leader;
    wait_until("the other leads", BOUND, || {
        std::future::ready(if pair.managers[other].leads() { Ok(()) } else { Err(String::new()) })
    })
    .await;
    let lease = admin.get(LEASE).await.unwrap().body;
    let transitions = lease["spec"]["leaseTransitions"].as_i64();
    let holder = lease["spec"]["holderIdentity"].clone();
    kill_process(paused, Signal::CONT).unwrap();
    wait_until("the one that was paused ends", BOUND, || {
        let manager = &mut pair.managers[leader];
        let ended = manager.process.try_wait().unwrap();
        std::future::ready(ended.map(drop).ok_or_else(|| manager.log()))
    })
    .await;
    assert!(
        pair.managers[leader].log().contains("could not be renewed in time"),
        "{}",
        pair.managers[leader].log()
    );
    let lease = admin.get(LEASE).await.unwrap().body;
    assert_eq!(
        (lease["spec"]["leaseTransitions"].as_i64(), &lease["spec"]["holderIdentity"]),
        (transitions, &holder),
        "the lease was not taken back: {lease}"
    );
    // The new leader works.
    let mut expected = ExpectedState::default();
    expected.tree(&admin, 0, Some("Background")).await;
    pair.converge(&admin, &expected).await;
}

/// A namespace with a thousand configmaps, with or without an owner.
async fn thousand(admin: &Client, namespace: &str, owner: Option<&Value>) {
    let path = format!("{NAMESPACES}/{namespace}/configmaps");
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (admin, path, owner) = (admin.clone(), path.clone(), owner.cloned());
            tokio::spawn(async move {
                for index in (writer..THOUSAND).step_by(8) {
                    let owners: Vec<&Value> = owner.iter().collect();
                    create(&admin, &path, &configmap(&format!("object-{index}"), &owners)).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_of_a_thousand_and_a_thousand_dependents_are_deleted() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    for name in ["full", "trees"] {
        create(
            &admin,
            NAMESPACES,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )
        .await;
    }
    thousand(&admin, "full", None).await;
    let started = Instant::now();
    delete(&admin, &format!("{NAMESPACES}/full")).await;
    wait_until("the namespace goes", BOUND, async || {
        match admin.get(&format!("{NAMESPACES}/full")).await.unwrap() {
            answer if answer.status == 404 => Ok(()),
            answer => Err(answer.text),
        }
    })
    .await;
    println!("a namespace of {THOUSAND} configmaps: {} ms", started.elapsed().as_millis());
    let path = format!("{NAMESPACES}/trees/configmaps");
    let owner = create(&admin, &path, &configmap("owner", &[])).await;
    let bystander = create(&admin, &path, &configmap("bystander", &[])).await;
    create(&admin, &path, &configmap("spared", &[&bystander])).await;
    thousand(&admin, "trees", Some(&owner)).await;
    let started = Instant::now();
    delete(&admin, &format!("{path}/owner?propagationPolicy=Background")).await;
    let left = wait_until("the dependents go", BOUND, async || {
        let list = admin.get(&path).await.unwrap().body;
        let names: Vec<String> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        if names.iter().any(|name| name.starts_with("object-")) {
            Err(format!("{} are left", names.len()))
        } else {
            Ok(names)
        }
    })
    .await;
    println!("{THOUSAND} dependents: {} ms", started.elapsed().as_millis());
    assert!(
        left.iter().any(|name| name == "bystander") && left.iter().any(|name| name == "spared"),
        "{left:?}"
    );
}
