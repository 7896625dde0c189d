//! The drivers on this node, and locks of their volumes.

use super::abilities::DriverAbilities;
use super::in_use::VolumesInUse;
use super::known_rules::KnownRules;
use ferrokube_csi::CsiClient;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Longest wait for a driver to register.
const REGISTERING: Duration = Duration::from_secs(3);

/// A driver that has registered.
pub(crate) struct RegisteredDriver {
    pub(super) client: CsiClient,
    /// Id of this node for the driver's controller.
    pub(crate) node_id: String,
    /// Volumes that this node can have; `None`: the driver does not say.
    pub(crate) max_volumes: Option<i32>,
    /// Where the node is: labels for the scheduler.
    pub(crate) topology: BTreeMap<String, String>,
    pub(super) abilities: DriverAbilities,
}

pub(crate) type DriversByName = BTreeMap<String, Arc<RegisteredDriver>>;
/// Held while a volume's driver is called.
type VolumeLock = tokio::sync::Mutex<()>;

/// The registered drivers, shared by their users.
pub(crate) struct CsiDrivers {
    drivers: watch::Sender<DriversByName>,
    pub(crate) in_use: VolumesInUse,
    pub(super) rules: KnownRules,
    /// By driver and handle. Entries whose lock has no user are removed with the next one.
    locks: Mutex<BTreeMap<(String, String), Weak<VolumeLock>>>,
}

impl CsiDrivers {
    /// Without drivers; with the volumes that a previous kubelet has staged below `root`.
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            drivers: watch::Sender::new(BTreeMap::new()),
            in_use: VolumesInUse::below(root),
            rules: KnownRules::default(),
            locks: Mutex::default(),
        }
    }

    /// The drivers by name, as they change.
    pub(crate) fn changes(&self) -> watch::Receiver<DriversByName> {
        self.drivers.subscribe()
    }

    /// A driver, which may be about to register: the kubelet, or the machine, has just started.
    ///
    /// # Errors
    /// kubelet's message if there is no such driver.
    pub(super) async fn driver(&self, name: &str) -> Result<Arc<RegisteredDriver>, String> {
        let mut changes = self.changes();
        let registered = changes.wait_for(|drivers| drivers.contains_key(name));
        let found = match tokio::time::timeout(REGISTERING, registered).await {
            Ok(Ok(drivers)) => drivers.get(name).cloned(),
            _ => None,
        };
        found.ok_or_else(|| {
            format!("driver name {name} not found in the list of registered CSI drivers")
        })
    }

    /// A driver, if it is registered now.
    pub(super) fn registered(&self, name: &str) -> Option<Arc<RegisteredDriver>> {
        self.drivers.borrow().get(name).cloned()
    }

    /// Number of drivers.
    pub(super) fn len(&self) -> usize {
        self.drivers.borrow().len()
    }

    pub(super) fn insert(&self, name: &str, driver: Arc<RegisteredDriver>) {
        self.drivers.send_modify(|drivers| _ = drivers.insert(name.to_owned(), driver));
    }

    /// Removes a driver, unless another has its name by now.
    pub(super) fn remove(&self, name: &str, driver: &Arc<RegisteredDriver>) {
        self.drivers.send_if_modified(|drivers| {
            let is_own = drivers.get(name).is_some_and(|own| Arc::ptr_eq(own, driver));
            is_own && drivers.remove(name).is_some()
        });
    }

    /// The lock of a volume. Held while its driver is called, and released when the caller is
    /// dropped.
    pub(super) fn lock(&self, driver: &str, handle: &str) -> Arc<VolumeLock> {
        let mut locks = self.locks.lock();
        locks.retain(|_, lock| lock.strong_count() > 0);
        let entry = locks.entry((driver.to_owned(), handle.to_owned())).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let lock = Arc::default();
            *entry = Arc::downgrade(&lock);
            lock
        })
    }
}
