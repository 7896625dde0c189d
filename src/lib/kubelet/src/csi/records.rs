//! Directories of CSI volumes, and the records in them: kubelet's paths and format, so that either
//! kubelet finds what the other has mounted.

use crate::directories::{directories, plain, pod_directories, pod_directory};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Name of a record.
const RECORD: &str = "vol_data.json";
/// Largest record.
const MAX_RECORD: u64 = 64 << 10;
/// Directory of CSI volumes in a pod's directory.
const PUBLISHED: &str = "volumes/kubernetes.io~csi";
/// Directory of staged volumes in the kubelet's, with a directory per driver.
pub(super) const STAGED: &str = "plugins/kubernetes.io/csi";

/// A volume whose driver was, or will be, called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeRecord {
    pub(super) driver_name: String,
    pub(super) volume_handle: String,
    /// Name of the PersistentVolume, or of the pod's volume.
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(super) spec_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) node_name: String,
    /// Name of the VolumeAttachment; empty if the driver attaches nothing.
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(super) attachment: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) volume_lifecycle_mode: String,
    /// Not in kubelet's records, which are written when the driver is called.
    pub(super) phase: RecordPhase,
}

/// How far a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RecordPhase {
    /// The driver was not called: it waits for its attachment. Next: `Called`.
    Waiting,
    /// The driver was called, with whatever result. Next: `Mounted`.
    #[default]
    Called,
    /// It is mounted, and its files belong to the pod's group.
    Mounted,
}

impl VolumeRecord {
    pub(super) fn is_attached(&self) -> bool {
        !self.attachment.is_empty()
    }

    /// Reads the record of a volume's directory; `None` if there is none.
    pub(super) fn read(directory: &Path) -> io::Result<Option<Self>> {
        read_record(directory)
    }

    /// Writes it durably, as a whole, and makes the directory.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        if text.len() as u64 > MAX_RECORD {
            return Err(io::Error::other("the record of the volume would be too long"));
        }
        DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
        let temporary = directory.join(format!(".{RECORD}"));
        let mut options = OpenOptions::new();
        let mut file =
            options.create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(temporary, directory.join(RECORD))
    }

    /// Removes a volume's directory with its record, last the directory itself. `inner` is where it
    /// was mounted, and must be empty: nothing is removed recursively.
    pub(super) fn remove(directory: &Path, inner: &Path) -> io::Result<()> {
        let ignored = |removed: io::Result<()>| match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        ignored(remove_target(inner))?;
        ignored(fs::remove_file(directory.join(format!(".{RECORD}"))))?;
        ignored(fs::remove_file(directory.join(RECORD)))?;
        ignored(fs::remove_dir(directory))
    }
}

/// Removes what a volume was mounted on: a directory, or for a device a file, both empty.
fn remove_target(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            // Devices have no length, either.
            match fs::symlink_metadata(path)?.len() {
                0 => fs::remove_file(path),
                _ => Err(io::Error::other(format!("{} is not empty", path.display()))),
            }
        }
        other => other,
    }
}

/// Directory of a pod's volume, with its record.
pub(super) fn published(root: &Path, uid: &str, spec_name: &str) -> PathBuf {
    pod_directory(root, uid).join(PUBLISHED).join(plain(spec_name))
}

/// Where a pod's volume is mounted.
pub(crate) fn target(root: &Path, uid: &str, spec_name: &str) -> PathBuf {
    mount_of(&published(root, uid, spec_name))
}

/// Whether a path is one that [`target`] returns.
pub(crate) fn is_target(path: &Path) -> bool {
    let volumes = path.parent().and_then(Path::parent);
    volumes.is_some_and(|volumes| volumes.ends_with(PUBLISHED))
}

/// Where the volume of a record's directory is mounted.
pub(super) fn mount_of(directory: &Path) -> PathBuf {
    directory.join("mount")
}

/// Directory of a staged volume, with its record.
pub(super) fn staged(root: &Path, driver: &str, handle: &str) -> PathBuf {
    let digest = Sha256::digest(handle);
    let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    root.join(STAGED).join(plain(driver)).join(name)
}

/// Where the volume of a staged record's directory is mounted.
pub(super) fn stage_of(directory: &Path) -> PathBuf {
    directory.join("globalmount")
}

/// Directories of a pod's CSI volumes.
pub(super) fn volumes_of_pod(root: &Path, uid: &str) -> io::Result<Vec<PathBuf>> {
    directories(&pod_directory(root, uid).join(PUBLISHED))
}

/// Reads a record, or a part of it; `None` if there is none.
fn read_record<T: DeserializeOwned>(directory: &Path) -> io::Result<Option<T>> {
    let file = match File::open(directory.join(RECORD)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut text = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Whether this kubelet wrote the record of a volume's directory. Another one's has no phase, and
/// its pods may be running, unknown to this one.
fn is_own(directory: &Path) -> bool {
    #[derive(Deserialize)]
    struct RecordMark {
        phase: Option<RecordPhase>,
    }
    let mark = read_record::<RecordMark>(directory).ok().flatten();
    mark.is_some_and(|mark| mark.phase.is_some())
}

/// UIDs of the pods that have CSI volumes of this kubelet.
pub(crate) fn pods_with_volumes(root: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for pod in pod_directories(root)? {
        let name = pod.file_name().and_then(|name| name.to_str());
        let volumes = directories(&pod.join(PUBLISHED))?;
        if let Some(uid) = name.filter(|_| volumes.iter().any(|volume| is_own(volume))) {
            found.push(uid.to_owned());
        }
    }
    Ok(found)
}

/// Whether any pod has a record of a volume. A record that cannot be read counts.
pub(super) fn is_used(root: &Path, driver: &str, handle: &str) -> io::Result<bool> {
    for pod in pod_directories(root)? {
        for volume in directories(&pod.join(PUBLISHED))? {
            let record = VolumeRecord::read(&volume)?;
            let is_it = |record: VolumeRecord| {
                record.driver_name == driver && record.volume_handle == handle
            };
            if record.is_some_and(is_it) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Records of staged volumes. Those that cannot be read are left out.
pub(super) fn staged_volumes(root: &Path) -> Vec<VolumeRecord> {
    let drivers = directories(&root.join(STAGED)).unwrap_or_default();
    let volumes = drivers.iter().flat_map(|driver| directories(driver).unwrap_or_default());
    let read = |volume: PathBuf| {
        let record = VolumeRecord::read(&volume);
        record.unwrap_or_else(|error| {
            tracing::warn!(path = %volume.display(), %error, "cannot read the record of a volume");
            None
        })
    };
    volumes.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kubelets_and_read_back() {
        let root = tempfile::tempdir().unwrap();
        let directory = published(root.path(), "u", "pv-1");
        assert_eq!(directory, root.path().join("pods/u/volumes/kubernetes.io~csi/pv-1"));
        assert_eq!(VolumeRecord::read(&directory).unwrap(), None);
        let record = VolumeRecord {
            driver_name: "d".to_owned(),
            volume_handle: "h".to_owned(),
            spec_name: "pv-1".to_owned(),
            attachment: "csi-x".to_owned(),
            phase: RecordPhase::Mounted,
            ..VolumeRecord::default()
        };
        record.write(&directory).unwrap();
        assert_eq!(VolumeRecord::read(&directory).unwrap(), Some(record));
        assert_eq!(pods_with_volumes(root.path()).unwrap(), ["u"]);
        assert!(is_used(root.path(), "d", "h").unwrap());
        assert!(!is_used(root.path(), "d", "i").unwrap());
        // As kubelet writes it.
        let theirs = r#"{"attachmentID":"csi-y","driverName":"d","nodeName":"n","specVolID":"pv-1",
            "volumeHandle":"i","volumeLifecycleMode":"Persistent"}"#;
        fs::write(directory.join(RECORD), theirs).unwrap();
        let read = VolumeRecord::read(&directory).unwrap().unwrap();
        assert_eq!((&*read.volume_handle, read.phase), ("i", RecordPhase::Called));
        assert!(read.is_attached());
        assert!(pods_with_volumes(root.path()).unwrap().is_empty(), "another kubelet runs it");
        let long = VolumeRecord { volume_handle: "h".repeat(1 << 16), ..read };
        assert!(long.write(&directory).is_err(), "it could not be read back");
        // Not written whole, or by another.
        fs::write(directory.join(RECORD), "{").unwrap();
        assert!(is_used(root.path(), "d", "i").is_err());
        VolumeRecord::remove(&directory, &mount_of(&directory)).unwrap();
        assert!(!directory.exists());
    }

    #[test]
    fn what_is_in_a_directory_is_not_removed_with_it() {
        let root = tempfile::tempdir().unwrap();
        let directory = published(root.path(), "u", "pv-1");
        VolumeRecord::default().write(&directory).unwrap();
        let mount = mount_of(&directory);
        fs::create_dir(&mount).unwrap();
        fs::write(mount.join("data"), "kept").unwrap();
        assert!(VolumeRecord::remove(&directory, &mount).is_err());
        assert_eq!(fs::read_to_string(mount.join("data")).unwrap(), "kept");
        assert!(VolumeRecord::read(&directory).unwrap().is_some(), "it is tried again");
        fs::remove_dir_all(&mount).unwrap();
        // That of a device.
        fs::write(&mount, "kept").unwrap();
        assert!(VolumeRecord::remove(&directory, &mount).is_err());
        fs::write(&mount, "").unwrap();
        VolumeRecord::remove(&directory, &mount).unwrap();
        assert!(!directory.exists());
    }

    #[test]
    fn names_cannot_leave_their_directories() {
        let root = Path::new("/root");
        let staged = staged(root, "../../d", "../h");
        assert_eq!(staged.parent().unwrap(), root.join(STAGED).join("_.._.._d"));
        assert_eq!(published(root, "u", "..").file_name().unwrap(), "_..");
    }
}
