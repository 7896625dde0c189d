//! Registration of drivers: sockets in `plugins_registry`, as kubelet's plug-in watcher finds them.
//!
//! A driver is registered as long as its socket is there; a socket that is made again is another
//! registration.

use super::abilities::DriverAbilities;
use super::directory_watch::DirectoryWatch;
use super::drivers::{CsiDrivers, RegisteredDriver};
use super::records::STAGED;
use crate::background::in_background;
use ferrokube_csi::{
    CriError, CsiClient, InfoRequest, NodeGetInfoRequest, PluginInfo, RegistrationStatus,
};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Interval of scans where changes cannot be watched, like kubelet's of its reconciler.
const SCAN: Duration = Duration::from_secs(1);
/// Interval of scans without a change.
const RESCAN: Duration = Duration::from_secs(60);
/// Pause after a change, which bounds the number of scans.
const SETTLING: Duration = Duration::from_millis(100);
/// Max number of sockets.
const MAX_SOCKETS: usize = 64;
/// Max number of entries of a directory that are read.
const MAX_ENTRIES: usize = 1024;
/// Max depth of directories below the registry.
const MAX_DEPTH: usize = 2;
/// Max length of a name and of an id, by CSI's rules.
const MAX_NAME: usize = 63;
const MAX_ID: usize = 256;
/// Max number of topology segments of a node.
const MAX_SEGMENTS: usize = 64;
/// Limit of a call about the registration, and of one to the driver: kubelet's.
const REGISTRATION_CALL: Duration = Duration::from_secs(10);
const DRIVER_CALL: Duration = Duration::from_secs(120);
/// Pause after a failed registration: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(120)];
/// The type of plug-ins that this kubelet knows.
const TYPE: &str = "CSIPlugin";

/// A plug-in that was not registered.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("failed to get plugin info: {0}")]
    Info(#[source] CriError),
    #[error("{0}")]
    Refused(String),
    #[error("failed to send registration status: {0}")]
    Notify(#[source] CriError),
}

/// Device and inode of a socket, and its change time: that of a new socket differs.
type SocketIdentity = (u64, u64, i64, i64);

/// The registration of a socket, ended on drop.
struct SocketTask {
    identity: SocketIdentity,
    task: JoinHandle<()>,
}

impl Drop for SocketTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A registered driver, removed on drop.
struct DriverRegistration {
    drivers: Arc<CsiDrivers>,
    name: String,
    driver: Arc<RegisteredDriver>,
}

impl Drop for DriverRegistration {
    fn drop(&mut self) {
        self.drivers.remove(&self.name, &self.driver);
        tracing::info!(driver = self.name, "CSI driver deregistered");
    }
}

/// Registers drivers until dropped. `root` is the kubelet's directory.
pub(crate) async fn run(drivers: Arc<CsiDrivers>, root: PathBuf) {
    let mut sockets: BTreeMap<PathBuf, SocketTask> = BTreeMap::new();
    let mut is_failing = false;
    let watch = DirectoryWatch::new().inspect_err(|error| {
        tracing::warn!(%error, "cannot watch the directory where CSI drivers register");
    });
    let watch = watch.ok().map(Arc::new);
    loop {
        let (directory, own) = (root.clone(), watch.clone());
        let mut is_watched = false;
        match in_background(move || scan(&directory, own.as_deref())).await {
            Ok(found) => {
                is_failing = false;
                is_watched = found.is_watched;
                let found = found.sockets;
                sockets.retain(|path, own| found.get(path) == Some(&own.identity));
                for (path, identity) in found {
                    let (drivers, root) = (Arc::clone(&drivers), root.clone());
                    let socket = path.clone();
                    sockets.entry(path).or_insert_with(|| {
                        let task = tokio::spawn(keep(drivers, root, socket));
                        SocketTask { identity, task }
                    });
                }
            }
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::warn!(%error, "cannot read the directory where CSI drivers register");
            }
            Err(_) => {}
        }
        next_scan(watch.as_deref().filter(|_| is_watched)).await;
    }
}

/// Waits until the registry has changed or is to be read anyway.
async fn next_scan(watch: Option<&DirectoryWatch>) {
    let Some(watch) = watch else { return tokio::time::sleep(SCAN).await };
    match tokio::time::timeout(RESCAN, watch.changed()).await {
        Ok(Ok(())) => tokio::time::sleep(SETTLING).await,
        Ok(Err(_)) => tokio::time::sleep(SCAN).await,
        Err(_) => {}
    }
}

/// The sockets of the registry.
struct ScannedRegistry {
    sockets: BTreeMap<PathBuf, SocketIdentity>,
    /// Whether all its directories are.
    is_watched: bool,
}

/// Reads the registry, which is made if it is missing.
fn scan(root: &Path, watch: Option<&DirectoryWatch>) -> io::Result<ScannedRegistry> {
    let registry = root.join("plugins_registry");
    if !registry.is_dir() {
        DirBuilder::new().recursive(true).mode(0o750).create(&registry)?;
    }
    let mut found = ScannedRegistry { sockets: BTreeMap::new(), is_watched: watch.is_some() };
    found.add(&registry, MAX_DEPTH, watch)?;
    Ok(found)
}

impl ScannedRegistry {
    /// Adds a directory. Links are not followed, so all sockets are below the registry.
    fn add(
        &mut self,
        directory: &Path,
        depth: usize,
        watch: Option<&DirectoryWatch>,
    ) -> io::Result<()> {
        // Before it is read, so that no change is missed.
        self.is_watched &= watch.is_some_and(|watch| watch.add(directory).is_ok());
        for entry in fs::read_dir(directory)?.take(MAX_ENTRIES) {
            let entry = entry?;
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            // Removed since.
            let Ok(meta) = entry.metadata() else { continue };
            if is_hidden || self.sockets.len() >= MAX_SOCKETS {
                continue;
            }
            if meta.file_type().is_socket() {
                let identity = (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec());
                self.sockets.insert(entry.path(), identity);
            } else if meta.is_dir() && depth > 0 {
                self.add(&entry.path(), depth - 1, watch)?;
            }
        }
        Ok(())
    }
}

/// Registers what listens at a socket, and keeps it registered until dropped.
async fn keep(drivers: Arc<CsiDrivers>, root: PathBuf, socket: PathBuf) {
    let [mut pause, longest] = PAUSES;
    loop {
        match register(&drivers, &root, &socket).await {
            Ok(_registration) => std::future::pending::<()>().await,
            Err(error) => {
                let socket = socket.display().to_string();
                tracing::warn!(socket, %error, "cannot register a plug-in, retrying");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
    }
}

async fn register(
    drivers: &Arc<CsiDrivers>,
    root: &Path,
    socket: &Path,
) -> Result<DriverRegistration, RegistrationError> {
    let client = CsiClient::new(socket, REGISTRATION_CALL);
    let client = client.map_err(|error| RegistrationError::Refused(error.to_string()))?;
    let info = client.get_info(InfoRequest {}).await.map_err(RegistrationError::Info)?;
    let registered = match connect(root, socket, &info).await {
        Ok(driver) => insert(drivers, &info.name, driver),
        Err(why) => Err(why),
    };
    let status = RegistrationStatus {
        plugin_registered: registered.is_ok(),
        error: registered.as_ref().err().cloned().unwrap_or_default(),
    };
    let notified = client.notify_registration_status(status).await;
    let registration = registered.map_err(RegistrationError::Refused)?;
    notified.map_err(RegistrationError::Notify)?;
    Ok(registration)
}

fn insert(
    drivers: &Arc<CsiDrivers>,
    name: &str,
    driver: RegisteredDriver,
) -> Result<DriverRegistration, String> {
    if drivers.len() >= MAX_SOCKETS {
        return Err(format!("more than {MAX_SOCKETS} CSI drivers"));
    }
    let driver = Arc::new(driver);
    drivers.insert(name, Arc::clone(&driver));
    let node = driver.node_id.as_str();
    tracing::info!(driver = name, node, "CSI driver registered");
    Ok(DriverRegistration { drivers: Arc::clone(drivers), name: name.to_owned(), driver })
}

/// Checks a plug-in and asks its driver about this node. Error messages follow kubelet's.
async fn connect(
    root: &Path,
    socket: &Path,
    info: &PluginInfo,
) -> Result<RegisteredDriver, String> {
    let PluginInfo { r#type: kind, name, endpoint, supported_versions: versions } = info;
    if kind != TYPE {
        let socket = socket.display();
        return Err(format!("no handler registered for plugin type: {kind} at socket {socket}"));
    }
    let invalid = |why: String| {
        format!("validation failed for CSI Driver {name} at endpoint {endpoint}: {why}")
    };
    if !is_name(name) {
        return Err(invalid(
            "the name must consist of at most 63 letters, digits, '-' and '.'".into(),
        ));
    }
    if !versions.iter().any(|version| is_supported(version)) {
        return Err(invalid(format!("None of the versions specified {versions:?} are supported")));
    }
    let given = if endpoint.is_empty() { socket.to_owned() } else { PathBuf::from(endpoint) };
    let root = root.to_owned();
    let path = in_background(move || own_socket(&root, &given)).await;
    let path = path.map_err(|error| invalid(error.to_string()))?;
    let failed = |error: CriError| {
        format!("RegisterPlugin error -- plugin registration failed with err: {error}")
    };
    let client = CsiClient::new(&path, DRIVER_CALL).map_err(|error| invalid(error.to_string()))?;
    let node = client.node_get_info(NodeGetInfoRequest {}).await.map_err(failed)?;
    let topology = node.accessible_topology.unwrap_or_default().segments;
    if node.node_id.is_empty() || node.node_id.len() > MAX_ID || topology.len() > MAX_SEGMENTS {
        return Err(invalid("NodeGetInfo without a usable id or topology".to_owned()));
    }
    Ok(RegisteredDriver {
        abilities: DriverAbilities::of(&client).await.map_err(failed)?,
        client,
        node_id: node.node_id,
        max_volumes: i32::try_from(node.max_volumes_per_node).ok().filter(|count| *count > 0),
        topology,
    })
}

/// A name by CSI's rules; it becomes that of a directory.
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    let ends = [name.bytes().next(), name.bytes().last()];
    name.len() <= MAX_NAME
        && name.bytes().all(is_inner)
        && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

/// CSI 1.x.
fn is_supported(version: &str) -> bool {
    let version = version.strip_prefix('v').unwrap_or(version);
    version.split('.').next() == Some("1")
}

/// The resolved path of a socket that is in the kubelet's directory, but not where containers
/// write.
fn own_socket(root: &Path, given: &Path) -> io::Result<PathBuf> {
    let (root, path) = (fs::canonicalize(root)?, fs::canonicalize(given)?);
    let outside = [root.join("pods"), root.join(STAGED)];
    if !path.starts_with(&root) || outside.iter().any(|writable| path.starts_with(writable)) {
        let path = path.display();
        return Err(io::Error::other(format!("{path} is not a socket of a plug-in's directory")));
    }
    if !fs::symlink_metadata(&path)?.file_type().is_socket() {
        return Err(io::Error::other(format!("{} is no socket", path.display())));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_testkit::BOUND;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn names_and_versions_are_checked() {
        for name in ["csi.example.com", "a", "A-1.b"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(64);
        for name in ["", ".", "..", "-a", "a.", "a/b", "a b", "a_b", &long] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_supported("1.0.0") && is_supported("v1.11.0") && is_supported("1"));
        assert!(!is_supported("0.3.0") && !is_supported("11.0.0") && !is_supported(""));
    }

    #[test]
    fn only_sockets_below_the_registry_are_found() {
        let root = tempfile::tempdir().unwrap();
        assert!(scan(root.path(), None).unwrap().sockets.is_empty(), "the directory is made");
        let registry = root.path().join("plugins_registry");
        let outside = root.path().join("outside");
        fs::create_dir_all(registry.join("a/b/c/d")).unwrap();
        fs::create_dir(&outside).unwrap();
        let _listeners = [
            registry.join("one.sock"),
            registry.join("a/two.sock"),
            registry.join("a/b/c/deep.sock"),
            registry.join(".hidden.sock"),
            outside.join("other.sock"),
        ]
        .map(|path| UnixListener::bind(path).unwrap());
        fs::write(registry.join("file"), "").unwrap();
        symlink(outside.join("other.sock"), registry.join("link.sock")).unwrap();
        symlink(&outside, registry.join("linked")).unwrap();
        let found = scan(root.path(), None).unwrap().sockets;
        let found: Vec<PathBuf> = found.into_keys().collect();
        assert_eq!(found, [registry.join("a/two.sock"), registry.join("one.sock")]);
    }

    /// The next scan without a change is a minute later.
    #[tokio::test]
    async fn a_new_socket_is_found_at_once_also_in_a_new_directory() {
        let root = tempfile::tempdir().unwrap();
        let watch = DirectoryWatch::new().unwrap();
        let scanned = || scan(root.path(), Some(&watch)).unwrap();
        assert!(scanned().is_watched);
        assert!(futures::poll!(std::pin::pin!(watch.changed())).is_pending());
        let directory = root.path().join("plugins_registry/a");
        let changed = async || tokio::time::timeout(BOUND, watch.changed()).await.unwrap().unwrap();
        fs::create_dir(&directory).unwrap();
        changed().await;
        assert!(scanned().is_watched);
        let listener = UnixListener::bind(directory.join("one.sock")).unwrap();
        changed().await;
        assert_eq!(scanned().sockets.len(), 1);
        drop(listener);
        fs::remove_file(directory.join("one.sock")).unwrap();
        changed().await;
        assert!(scanned().sockets.is_empty());
    }

    #[test]
    fn an_endpoint_is_in_the_directories_of_plug_ins() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("kubelet");
        for directory in ["plugins/d", "pods/u/volumes", "plugins/kubernetes.io/csi/d"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        let own = root.join("plugins/d/csi.sock");
        let others = [
            folder.path().join("docker.sock"),
            root.join("pods/u/volumes/csi.sock"),
            root.join("plugins/kubernetes.io/csi/d/csi.sock"),
        ];
        let _own = UnixListener::bind(&own).unwrap();
        let _others = others.each_ref().map(|path| UnixListener::bind(path).unwrap());
        assert_eq!(own_socket(&root, &own).unwrap(), fs::canonicalize(&own).unwrap());
        for (index, other) in others.iter().enumerate() {
            assert!(own_socket(&root, other).is_err(), "{}", other.display());
            let link = root.join(format!("plugins/d/{index}.sock"));
            symlink(other, &link).unwrap();
            assert!(own_socket(&root, &link).is_err(), "a link to {}", other.display());
        }
        let file = root.join("plugins/d/file");
        fs::write(&file, "").unwrap();
        assert!(own_socket(&root, &file).is_err());
        assert!(own_socket(&root, &root.join("plugins/d/missing.sock")).is_err());
    }
}
