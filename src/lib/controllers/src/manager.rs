//! The manager: leader election, an identity per controller, and their lifecycle.

use crate::garbage::GarbageController;
use crate::monitor::{MetadataListener, Monitor};
use crate::namespace::NamespaceTracker;
use crate::resource_quota::{CountedAs, QuotaTracker};
use crate::secret_tokens::Signer;
use crate::{
    certificates, cluster_role_aggregation, namespace, resource_quota, root_ca, secret_tokens,
    service_account, storage_migration, token_cleaner,
};
use ferrokube_client::{
    CandidateVersions, Connection, ConnectionError, Elector, LeadershipLost, LeaseTiming, Outage,
    ServiceAccountIdentity, report_uses,
};
use ferrokube_features::{COORDINATED_LEADER_ELECTION, Gates, KubernetesVersion};
use ferrokube_pki::RequestSigner;
use ferrokube_serve::Shutdown;
use kube::Client;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Namespace of the service accounts and of the leader lease.
const NAMESPACE: &str = "kube-system";
/// Name of the leader lease, as in kube-controller-manager: the two never act at the same time.
const LEASE: &str = "kube-controller-manager";
/// Interval of attempts to get the identities, as the API server may still be starting.
const RETRY: Duration = Duration::from_millis(200);
/// Failed attempts before that is reported.
const MAX_STARTUP_FAILURES: u32 = 5;

// Names of controllers that code refers to.
const LIFECYCLE: &str = "namespace-controller";
const COLLECTOR: &str = "garbage-collector-controller";
const COUNTER: &str = "resourcequota-controller";
/// Creates its identity, an account of the same name, only where its API is served.
const MIGRATOR: &str = "storage-version-migrator-controller";
/// Account of the controllers of certificate requests, which run only with a CA.
const CERTIFICATES: &str = "certificate-controller";
/// Interval of checks whether an optional API is served.
const UNSERVED: Duration = Duration::from_secs(300);

struct ControllerSpec {
    /// As in flags.
    name: &'static str,
    /// Deprecated name.
    alias: &'static str,
    /// Service account, to which its bootstrap role is bound. Empty: the manager's own identity.
    account: &'static str,
    start: Start,
}

enum Start {
    /// Independently: a future that runs until dropped.
    Alone(fn(ControllerLaunch<'_>) -> ControllerFuture),
    /// By [`start_monitored`], together with the others that share metadata watches.
    Monitored,
}

pub(crate) type ControllerFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Inputs of a controller's start.
struct ControllerLaunch<'a> {
    config: &'a ManagerConfig,
    /// Acts as the manager.
    manager: Client,
    /// Acts as the controller's service account.
    client: Client,
}

const CONTROLLERS: &[ControllerSpec] = &[
    ControllerSpec {
        name: LIFECYCLE,
        alias: "namespace",
        account: "namespace-controller",
        start: Start::Monitored,
    },
    ControllerSpec {
        name: COLLECTOR,
        alias: "garbagecollector",
        account: "generic-garbage-collector",
        start: Start::Monitored,
    },
    ControllerSpec {
        name: "serviceaccount-controller",
        alias: "serviceaccount",
        account: "service-account-controller",
        start: Start::Alone(|launch| Box::pin(service_account::run(launch.manager, launch.client))),
    },
    ControllerSpec {
        name: "serviceaccount-token-controller",
        alias: "serviceaccount-token",
        // The manager itself, as in kube-controller-manager: it writes in every namespace.
        account: "",
        start: Start::Alone(start_tokens),
    },
    ControllerSpec {
        name: "root-ca-certificate-publisher-controller",
        alias: "root-ca-cert-publisher",
        account: "root-ca-cert-publisher",
        start: Start::Alone(|launch| {
            Box::pin(root_ca::run(
                launch.manager,
                launch.client,
                Arc::clone(&launch.config.root_ca),
            ))
        }),
    },
    ControllerSpec {
        name: COUNTER,
        alias: "resourcequota",
        account: "resourcequota-controller",
        start: Start::Monitored,
    },
    ControllerSpec {
        name: "clusterrole-aggregation-controller",
        alias: "clusterrole-aggregation",
        account: "clusterrole-aggregation-controller",
        start: Start::Alone(|launch| Box::pin(cluster_role_aggregation::run(launch.client))),
    },
    ControllerSpec {
        name: "token-cleaner-controller",
        alias: "tokencleaner",
        account: "token-cleaner",
        start: Start::Alone(|launch| Box::pin(token_cleaner::run(launch.client))),
    },
    ControllerSpec {
        name: "certificatesigningrequest-approving-controller",
        alias: "csrapproving",
        account: CERTIFICATES,
        start: Start::Alone(|launch| Box::pin(certificates::approve(launch.client))),
    },
    ControllerSpec {
        name: "certificatesigningrequest-cleaner-controller",
        alias: "csrcleaner",
        account: CERTIFICATES,
        start: Start::Alone(|launch| Box::pin(certificates::clean(launch.client))),
    },
    ControllerSpec {
        name: "certificatesigningrequest-signing-controller",
        alias: "csrsigning",
        account: CERTIFICATES,
        start: Start::Alone(start_signing),
    },
    ControllerSpec {
        name: MIGRATOR,
        alias: "storage-version-migrator",
        account: "",
        start: Start::Alone(|launch| {
            Box::pin(migrations(launch.config.connection.clone(), launch.manager))
        }),
    },
];

/// Names of all controllers.
pub const NAMES: [&str; CONTROLLERS.len()] = {
    let mut names = [""; CONTROLLERS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = CONTROLLERS[at].name;
        at += 1;
    }
    names
};

fn start_tokens(launch: ControllerLaunch<'_>) -> ControllerFuture {
    match launch.config.signer.clone() {
        Some(signer) => {
            Box::pin(secret_tokens::run(launch.manager, Arc::clone(&launch.config.root_ca), signer))
        }
        None => Box::pin(std::future::pending()),
    }
}

fn start_signing(launch: ControllerLaunch<'_>) -> ControllerFuture {
    match launch.config.request_signer.clone() {
        Some(signer) => Box::pin(certificates::sign(launch.client, signer)),
        None => Box::pin(std::future::pending()),
    }
}

/// Configuration of a [`crate::ControllerManager`].
#[derive(Clone)]
pub(crate) struct ManagerConfig {
    pub(crate) connection: Connection,
    pub(crate) controllers: Vec<String>,
    pub(crate) own: Vec<OwnController>,
    pub(crate) leader_elect: bool,
    pub(crate) timing: LeaseTiming,
    pub(crate) identity: String,
    pub(crate) root_ca: Arc<str>,
    pub(crate) counted_as: CountedAs,
    pub(crate) gates: Gates,
    pub(crate) component: String,
    pub(crate) signer: Option<Signer>,
    pub(crate) request_signer: Option<RequestSigner>,
}

/// A controller of the program.
#[derive(Clone)]
pub(crate) struct OwnController {
    pub(crate) name: String,
    /// Empty: the manager's own identity.
    pub(crate) account: String,
    pub(crate) start: Arc<dyn Fn(Client) -> ControllerFuture + Send + Sync>,
}

/// Why the manager ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// `controllers` names an unknown one.
    #[error("unknown controller {0:?}; the controllers are {names}", names = NAMES.join(", "))]
    UnknownController(String),
    /// Two controllers have the same name.
    #[error("two controllers are called {0}")]
    DuplicateController(String),
    /// No client can be created.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// Leadership was lost: the process should exit, so that no part of it keeps acting.
    #[error(transparent)]
    LeadershipLost(#[from] LeadershipLost),
}

/// See [`crate::ControllerManager::run`].
pub(crate) async fn run(
    config: ManagerConfig,
    chosen: &BTreeSet<&'static str>,
    shutdown: Shutdown,
    leading: watch::Sender<bool>,
) -> Result<(), ManagerError> {
    let client = config.connection.client()?;
    // Also while another manager leads.
    let mut reports = report_uses(client.clone(), config.gates.clone(), config.component.clone());
    let mut elector = Elector::new(client.clone(), NAMESPACE, LEASE, config.identity.clone())
        .timing(config.timing)
        .reporting(reports.lease_uses());
    if config.leader_elect && config.gates.enabled(&COORDINATED_LEADER_ELECTION) {
        elector = elector.coordinated(CandidateVersions {
            binary: format!("{}.0", KubernetesVersion::CURRENT),
            emulation: format!("{}.0", config.gates.version()),
        });
    }
    let stopped = shutdown.begun();
    tokio::pin!(stopped);
    if config.leader_elect {
        tokio::select! {
            () = &mut stopped => return Ok(()),
            () = &mut reports => return Ok(()),
            () = elector.acquire() => tracing::info!(identity = config.identity, "became leader"),
        }
    }
    let answered = reports.answered();
    let work = async {
        // Their first log lines are to have the ids, if any have.
        answered.await;
        controllers(&config, client, chosen, &leading).await
    };
    let outcome = tokio::select! {
        () = &mut stopped => Ok(()),
        () = &mut reports => Ok(()),
        result = work => result,
        lost = elector.hold(), if config.leader_elect => Err(lost.into()),
    };
    leading.send_replace(false);
    if config.leader_elect && outcome.is_ok() {
        elector.release().await;
    }
    outcome
}

/// Rejects unknown controller names.
///
/// # Errors
/// [`ManagerError::UnknownController`].
pub fn check_names(words: &[String]) -> Result<(), ManagerError> {
    choose(words).map(drop)
}

/// Names of the selected controllers.
pub(crate) fn choose(words: &[String]) -> Result<BTreeSet<&'static str>, ManagerError> {
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

/// Runs the selected controllers. Never returns; dropping it stops them all.
async fn controllers(
    config: &ManagerConfig,
    manager: Client,
    chosen: &BTreeSet<&'static str>,
    leading: &watch::Sender<bool>,
) -> Result<(), ManagerError> {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let mut monitored = Vec::new();
    let is_run = |spec: &&ControllerSpec| {
        let has_inputs = spec.account != CERTIFICATES || config.request_signer.is_some();
        chosen.contains(spec.name) && has_inputs
    };
    for spec in CONTROLLERS.iter().filter(is_run) {
        let client = client_of_account(config, &manager, spec.account, &mut tasks).await?;
        match spec.start {
            Start::Alone(start) => drop(tasks.spawn(start(ControllerLaunch {
                config,
                manager: manager.clone(),
                client,
            }))),
            Start::Monitored => monitored.push((spec.name, client)),
        }
    }
    let client_of = |name: &str| {
        monitored.iter().find(|(own, _)| *own == name).map(|(_, client)| client.clone())
    };
    start_monitored(&client_of, config.counted_as, &mut tasks);
    for own in &config.own {
        let client = client_of_account(config, &manager, &own.account, &mut tasks).await?;
        tasks.spawn((own.start)(client));
    }
    leading.send_replace(true);
    tracing::info!(controllers = chosen.len() + config.own.len(), "controllers started");
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(error = %error, "controller ended unexpectedly");
        }
    }
    std::future::pending().await
}

/// A client that acts as a service account, kept valid; as the manager if there is none.
async fn client_of_account(
    config: &ManagerConfig,
    manager: &Client,
    account: &str,
    tasks: &mut JoinSet<()>,
) -> Result<Client, ManagerError> {
    if account.is_empty() {
        return Ok(manager.clone());
    }
    let identity = obtain(manager, account).await;
    let client = config.connection.client_as(&identity)?;
    tasks.spawn(identity.keep_fresh(manager.clone()));
    Ok(client)
}

/// Migrations are an optional API: without it there is neither an identity nor a watch.
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
        Ok(client) => {
            _ = tokio::join!(storage_migration::run(client), identity.keep_fresh(manager))
        }
        Err(error) => {
            tracing::error!(error = %error, "cannot create the client for storage migrations")
        }
    }
}

/// Garbage collection, quota and namespaces share one set of metadata watches; namespaces alone run
/// without.
fn start_monitored(
    client_of: &impl Fn(&str) -> Option<Client>,
    counted_as: CountedAs,
    tasks: &mut JoinSet<()>,
) {
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

/// Obtains a controller's identity; waits until the API server grants it.
async fn obtain(client: &Client, account: &str) -> ServiceAccountIdentity {
    let mut outage = Outage::new(format!(
        "get a token for the controller's service account {NAMESPACE}/{account}"
    ))
    .after(MAX_STARTUP_FAILURES);
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
        choose(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
            .unwrap()
            .into_iter()
            .collect()
    }

    #[test]
    fn controllers_are_chosen_by_name_alias_star_and_minus() {
        assert_eq!(chosen(&[]).len(), NAMES.len());
        assert_eq!(chosen(&["*"]).len(), NAMES.len());
        assert_eq!(chosen(&["namespace"]), ["namespace-controller"]);
        assert_eq!(
            chosen(&["namespace-controller", "tokencleaner"]),
            ["namespace-controller", "token-cleaner-controller"]
        );
        assert!(!chosen(&["*", "-garbagecollector"]).contains(&"garbage-collector-controller"));
        assert_eq!(chosen(&["-garbagecollector"]).len(), NAMES.len() - 1);
        assert_eq!(chosen(&["-*"]), [""; 0]);
        assert_eq!(chosen(&["-*", "namespace"]), ["namespace-controller"]);
        assert_eq!(chosen(&["namespace", "-*"]), [""; 0], "later words win");
        for unknown in ["nodeipam", "-nodeipam", "", "-", "--*", "**"] {
            assert!(choose(&[unknown.to_owned()]).is_err(), "{unknown}");
        }
    }
}
