//! The manager: leadership, one identity for each controller, and their life together.

use crate::garbage::GarbageController;
use crate::monitor::{MetadataListener, Monitor};
use crate::namespace::NamespaceTracker;
use crate::resource_quota::{CountedAs, QuotaTracker};
use crate::secret_tokens::Signer;
use crate::{cluster_role_aggregation, namespace, resource_quota, root_ca, secret_tokens, service_account, storage_migration, token_cleaner};
use ferrokube_client::{Connection, ConnectionError, Elector, LeadershipLost, LeaseTiming, Outage, ServiceAccountIdentity};
use ferrokube_serve::Shutdown;
use kube::Client;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Where the service accounts and the leader lease are.
const NAMESPACE: &str = "kube-system";
/// The leader lease's name, as upstream's manager names it: the two never act at once.
const LEASE: &str = "kube-controller-manager";
/// Between two attempts to get the identities (the API server may still be starting).
const RETRY: Duration = Duration::from_millis(200);
/// So many failed attempts are no longer a start.
const MAX_STARTUP_FAILURES: u32 = 5;

// What a controller is called, in flags and in its row.
const LIFECYCLE: &str = "namespace-controller";
const COLLECTOR: &str = "garbage-collector-controller";
const ACCOUNTS: &str = "serviceaccount-controller";
const PUBLISHER: &str = "root-ca-certificate-publisher-controller";
const COUNTER: &str = "resourcequota-controller";
const AGGREGATOR: &str = "clusterrole-aggregation-controller";
const CLEANER: &str = "token-cleaner-controller";
/// The controller that acts as the manager itself, like upstream's: it writes secrets and accounts everywhere.
const TOKENS: &str = "serviceaccount-token-controller";
/// The controller that makes itself an identity only where its API is served.
const MIGRATOR: &str = "storage-version-migrator-controller";
/// Between two looks whether an API is served that is served on request.
const UNSERVED: Duration = Duration::from_secs(300);

/// One controller: its name, its older name, its service account (which its bootstrap role is bound to; empty: the manager's own identity).
struct ControllerSpec {
    name: &'static str,
    alias: &'static str,
    account: &'static str,
}

/// The controllers, a row each.
const CONTROLLERS: [ControllerSpec; 9] = [
    ControllerSpec { name: LIFECYCLE, alias: "namespace", account: "namespace-controller" },
    ControllerSpec { name: COLLECTOR, alias: "garbagecollector", account: "generic-garbage-collector" },
    ControllerSpec { name: ACCOUNTS, alias: "serviceaccount", account: "service-account-controller" },
    ControllerSpec { name: TOKENS, alias: "serviceaccount-token", account: "" },
    ControllerSpec { name: PUBLISHER, alias: "root-ca-cert-publisher", account: "root-ca-cert-publisher" },
    ControllerSpec { name: COUNTER, alias: "resourcequota", account: "resourcequota-controller" },
    ControllerSpec { name: AGGREGATOR, alias: "clusterrole-aggregation", account: "clusterrole-aggregation-controller" },
    ControllerSpec { name: CLEANER, alias: "tokencleaner", account: "token-cleaner" },
    ControllerSpec { name: MIGRATOR, alias: "storage-version-migrator", account: MIGRATOR },
];

/// The controllers' names.
pub const NAMES: [&str; 9] = [LIFECYCLE, COLLECTOR, ACCOUNTS, TOKENS, PUBLISHER, COUNTER, AGGREGATOR, CLEANER, MIGRATOR];

/// How the manager runs.
#[derive(Clone)]
pub struct ManagerConfig {
    /// The API server, with the manager's own identity.
    pub connection: Connection,
    /// Which controllers run: names, `*` for all, `-name` for all but that one, `-*` for none; in order, the last word counts.
    pub controllers: Vec<String>,
    /// Act only while holding the lease `kube-system/kube-controller-manager`.
    pub leader_elect: bool,
    /// How long the lease lasts.
    pub timing: LeaseTiming,
    /// Unique among the managers: the lease's holder.
    pub identity: String,
    /// The PEM text of the CA that verifies the API server, for the root CA publisher.
    pub root_ca: Arc<str>,
    /// How quotas name what they count.
    pub counted_as: CountedAs,
    /// Signs the tokens of secrets; without it those are left as they are.
    pub signer: Option<Signer>,
}

/// Why the manager ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// `controllers` names one that does not exist.
    #[error("no controller is called {0:?}; there are {names}", names = NAMES.join(", "))]
    UnknownController(String),
    /// No client can be made.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// Leadership was lost: the process should end, so that nothing of it acts any more.
    #[error(transparent)]
    LeadershipLost(#[from] LeadershipLost),
}

/// Runs until the shutdown begins, or until leadership is lost. `leading` is told when the controllers begin.
///
/// # Errors
/// [`ManagerError`].
pub async fn run(config: ManagerConfig, shutdown: Shutdown, leading: watch::Sender<bool>) -> Result<(), ManagerError> {
    let chosen = choose(&config.controllers)?;
    let client = config.connection.client()?;
    let mut elector = Elector::new(client.clone(), NAMESPACE, LEASE, config.identity.clone()).timing(config.timing);
    let stopped = shutdown.begun();
    tokio::pin!(stopped);
    if config.leader_elect {
        tokio::select! {
            () = &mut stopped => return Ok(()),
            () = elector.acquire() => tracing::info!(identity = config.identity, "became the leading controller manager"),
        }
    }
    let outcome = tokio::select! {
        () = &mut stopped => Ok(()),
        result = controllers(&config, client, &chosen, &leading) => result,
        lost = elector.hold(), if config.leader_elect => Err(lost.into()),
    };
    leading.send_replace(false);
    if config.leader_elect && outcome.is_ok() {
        elector.release().await;
    }
    outcome
}

/// Refuses a choice that names a controller that does not exist.
///
/// # Errors
/// [`ManagerError::UnknownController`].
pub fn check_names(words: &[String]) -> Result<(), ManagerError> {
    choose(words).map(drop)
}

/// The chosen rows' names.
fn choose(words: &[String]) -> Result<BTreeSet<&'static str>, ManagerError> {
    let mut chosen = BTreeSet::new();
    if words.iter().all(|word| word.starts_with('-')) {
        chosen.extend(NAMES);
    }
    for word in words {
        let (bare, on) = word.strip_prefix('-').map_or((word.as_str(), true), |bare| (bare, false));
        let row = CONTROLLERS.iter().find(|row| row.name == bare || row.alias == bare);
        match (bare, row) {
            ("*", _) if on => chosen.extend(NAMES),
            ("*", _) => chosen.clear(),
            (_, Some(row)) if on => drop(chosen.insert(row.name)),
            (_, Some(row)) => drop(chosen.remove(row.name)),
            _ => return Err(ManagerError::UnknownController(bare.to_owned())),
        }
    }
    Ok(chosen)
}

/// Runs the chosen controllers; ends only by being dropped, which ends them all.
async fn controllers(config: &ManagerConfig, manager: Client, chosen: &BTreeSet<&'static str>, leading: &watch::Sender<bool>) -> Result<(), ManagerError> {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut clients = Vec::new();
    for row in CONTROLLERS.iter().filter(|row| chosen.contains(row.name) && row.name != MIGRATOR && !row.account.is_empty()) {
        let identity = obtain(&manager, row.account).await;
        clients.push((row.name, config.connection.client_as(&identity)?));
        tasks.spawn(identity.keep_fresh(manager.clone()));
    }
    let client_of = |name: &str| clients.iter().find(|(own, _)| *own == name).map(|(_, client)| client.clone());
    start_monitored(&client_of, config.counted_as, &mut tasks);
    let root_ca = config.root_ca.clone();
    if let Some(client) = client_of(ACCOUNTS) {
        tasks.spawn(service_account::run(manager.clone(), client));
    }
    if let Some(signer) = config.signer.clone().filter(|_| chosen.contains(TOKENS)) {
        tasks.spawn(secret_tokens::run(manager.clone(), config.root_ca.clone(), signer));
    }
    if let Some(client) = client_of(PUBLISHER) {
        tasks.spawn(root_ca::run(manager.clone(), client, root_ca));
    }
    if let Some(client) = client_of(AGGREGATOR) {
        tasks.spawn(cluster_role_aggregation::run(client));
    }
    if let Some(client) = client_of(CLEANER) {
        tasks.spawn(token_cleaner::run(client));
    }
    if chosen.contains(MIGRATOR) {
        tasks.spawn(migrations(config.connection.clone(), manager.clone()));
    }
    leading.send_replace(true);
    tracing::info!(controllers = chosen.len(), "controllers started");
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(error = %error, "a controller ended");
        }
    }
    std::future::pending().await
}

/// Migrations are served on request only: without them there is neither an identity nor a watch.
async fn migrations(connection: Connection, manager: Client) {
    loop {
        match storage_migration::is_served(&manager).await {
            Ok(true) => break,
            Ok(false) => tokio::time::sleep(UNSERVED).await,
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
    let identity = obtain(&manager, MIGRATOR).await;
    match connection.client_as(&identity) {
        Ok(client) => _ = tokio::join!(storage_migration::run(client), identity.keep_fresh(manager)),
        Err(error) => tracing::error!(error = %error, "no client for storage migrations"),
    }
}

/// Garbage collection, quota and namespaces share one set of metadata watches; namespaces alone do without.
fn start_monitored(client_of: &impl Fn(&str) -> Option<Client>, counted_as: CountedAs, tasks: &mut JoinSet<()>) {
    let (collector, counter) = (client_of(COLLECTOR), client_of(COUNTER));
    let namespaces = Arc::new(NamespaceTracker::default());
    let lifecycle = client_of(LIFECYCLE);
    if let Some(client) = lifecycle.clone() {
        tasks.spawn(namespace::run(client, namespaces.clone()));
    }
    let Some(watcher) = collector.clone().or_else(|| counter.clone()) else { return };
    let (garbage, quotas) = (GarbageController::new(), Arc::new(QuotaTracker::default()));
    let mut listeners: Vec<Arc<dyn MetadataListener>> = Vec::new();
    if counter.is_some() {
        listeners.push(quotas.clone());
    }
    if lifecycle.is_some() {
        listeners.push(namespaces);
    }
    if collector.is_some() {
        listeners.push(garbage.listener());
    }
    let monitor = Arc::new(Monitor::new(watcher, listeners));
    tasks.spawn(monitor.clone().run());
    if let Some(client) = collector {
        tasks.spawn(garbage.run(client, monitor.clone()));
    }
    if let Some(client) = counter {
        tasks.spawn(resource_quota::run(client, quotas, monitor, counted_as));
    }
}

/// The identity of one controller; waits until the API server gives it.
async fn obtain(client: &Client, account: &str) -> ServiceAccountIdentity {
    let mut outage = Outage::new(format!("get a token for the controller's service account {NAMESPACE}/{account}")).after(MAX_STARTUP_FAILURES);
    loop {
        match ServiceAccountIdentity::obtain(client, NAMESPACE, account).await {
            Ok(identity) => {
                outage.works();
                return identity;
            }
            Err(error) => outage.failed(&error),
        };
        tokio::time::sleep(RETRY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(words: &[&str]) -> Vec<&'static str> {
        choose(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap().into_iter().collect()
    }

    #[test]
    fn controllers_are_chosen_by_name_alias_star_and_minus() {
        assert_eq!(chosen(&[]).len(), NAMES.len());
        assert_eq!(chosen(&["*"]).len(), NAMES.len());
        assert_eq!(chosen(&["namespace"]), ["namespace-controller"]);
        assert_eq!(chosen(&["namespace-controller", "tokencleaner"]), ["namespace-controller", "token-cleaner-controller"]);
        assert!(!chosen(&["*", "-garbagecollector"]).contains(&"garbage-collector-controller"));
        assert_eq!(chosen(&["-garbagecollector"]).len(), NAMES.len() - 1);
        assert_eq!(chosen(&["-*"]), [""; 0]);
        assert_eq!(chosen(&["-*", "namespace"]), ["namespace-controller"]);
        assert_eq!(chosen(&["namespace", "-*"]), [""; 0], "the last word counts");
        for unknown in ["nodeipam", "-nodeipam", "", "-", "--*", "**"] {
            assert!(choose(&[unknown.to_owned()]).is_err(), "{unknown}");
        }
    }
}
