//! The limit on processes of a pod, by control groups.
//!
//! Version 2 has it as a field of each container's resources. CRI has no field for version 1: there
//! the kubelet makes a group for each pod, with the limit, and the runtime makes those of the
//! containers in it. Groups that systemd makes are in a slice, without which runc refuses them.

use ferrokube_cri::{CgroupDriver, CriError, Runtime, RuntimeConfigRequest, RuntimeStatusRequest};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// kubelet's group of all pods.
const PODS: &str = "kubepods";
/// The slice of systemd for this group, which exists from the first container on.
const SLICE: &str = "kubepods.slice";
/// Attempts to remove a group whose processes are still exiting, and the pause between them.
const TRIES: u32 = 10;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// How many processes and threads a pod may have, and what enforces it.
#[derive(Clone, Debug, Default)]
pub enum ProcessLimit {
    /// None.
    #[default]
    Unlimited,
    /// Control groups of version 2: for each container.
    Unified(u64),
    /// Control groups of version 1: for the pod as a whole.
    PerPod {
        /// The directory with a directory per controller.
        mount: PathBuf,
        /// Number of processes.
        max: u64,
    },
    /// Control groups that systemd makes, with a limit for each container in version 2.
    Slice(Option<u64>),
}

impl ProcessLimit {
    /// The limit as this machine enforces it; `None`: unlimited.
    ///
    /// # Errors
    /// The machine has no writable control groups.
    pub fn of_machine(max: Option<u64>) -> io::Result<Self> {
        Self::below(Path::new(MOUNT), max)
    }

    fn below(mount: &Path, max: Option<u64>) -> io::Result<Self> {
        let Some(max) = max else { return Ok(Self::Unlimited) };
        if mount.join("cgroup.controllers").exists() {
            return Ok(Self::Unified(max));
        }
        let pids = mount.join("pids");
        if !pids.is_dir() {
            return Err(io::Error::other(format!("{} is not mounted", pids.display())));
        }
        fs::create_dir_all(pids.join(PODS))?;
        Ok(Self::PerPod { mount: mount.to_owned(), max })
    }

    /// The limit as this runtime can enforce it: none for groups of version 1 that systemd makes.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) async fn on(self, runtime: &Runtime) -> Result<Self, CriError> {
        if !uses_systemd(runtime).await? {
            return Ok(self);
        }
        Ok(Self::Slice(match self {
            Self::Unlimited => None,
            Self::Unified(max) => Some(max),
            Self::Slice(max) => max,
            Self::PerPod { .. } => {
                tracing::warn!(
                    "the runtime uses systemd with control groups of version 1: the number of a \
                     pod's processes is not limited"
                );
                None
            }
        }))
    }

    /// Values of a container's `unified` resources.
    pub(crate) fn unified(&self) -> BTreeMap<String, String> {
        match self {
            Self::Unified(max) | Self::Slice(Some(max)) => {
                BTreeMap::from([("pids.max".to_owned(), max.to_string())])
            }
            Self::Unlimited | Self::PerPod { .. } | Self::Slice(None) => BTreeMap::new(),
        }
    }

    /// Makes a pod's group with its limit, and returns the group's path for the runtime, or its
    /// slice; empty: the runtime chooses. Idempotent.
    ///
    /// # Errors
    /// A group that cannot be made.
    pub(crate) fn parent(&self, uid: &str) -> io::Result<String> {
        let (mount, max) = match self {
            Self::PerPod { mount, max } => (mount, max),
            Self::Slice(_) => return Ok(SLICE.to_owned()),
            Self::Unlimited | Self::Unified(_) => return Ok(String::new()),
        };
        let group = group(uid);
        let own = mount.join("pids").join(&group);
        fs::create_dir_all(&own)?;
        fs::write(own.join("pids.max"), max.to_string())?;
        Ok(format!("/{group}"))
    }

    /// Removes a pod's groups, whose containers are removed already. Blocks for a second at most.
    ///
    /// # Errors
    /// A group that still has processes.
    pub(crate) fn release(&self, uid: &str) -> io::Result<()> {
        let Self::PerPod { mount, .. } = self else { return Ok(()) };
        for controller in fs::read_dir(mount)? {
            remove(&controller?.path().join(group(uid)))?;
        }
        Ok(())
    }
}

/// Runtimes without the call report it in their verbose status.
async fn uses_systemd(runtime: &Runtime) -> Result<bool, CriError> {
    let config = runtime.runtime_config(RuntimeConfigRequest {}).await;
    if let Some(linux) = config.ok().and_then(|config| config.linux) {
        return Ok(linux.cgroup_driver == CgroupDriver::Systemd as i32);
    }
    let info = runtime.status(RuntimeStatusRequest { verbose: true }).await?.info;
    let parsed = info.values().filter_map(|text| serde_json::from_str(text).ok());
    Ok(parsed.into_iter().any(|value: Value| names_systemd(&value)))
}

/// `SystemdCgroup: true` of containerd, `cgroup_manager: systemd` of CRI-O.
fn names_systemd(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| {
            let key = key.replace('_', "").to_ascii_lowercase();
            match &*key {
                "systemdcgroup" => value == &Value::Bool(true),
                "cgroupmanager" => value == "systemd",
                _ => names_systemd(value),
            }
        }),
        Value::Array(items) => items.iter().any(names_systemd),
        _ => false,
    }
}

/// A single path component below that of all pods: runtimes, which name old pods, are untrusted.
fn group(uid: &str) -> String {
    format!("{PODS}/pod{}", uid.replace(['/', '\0'], "_"))
}

fn remove(group: &Path) -> io::Result<()> {
    let mut tries = 1;
    loop {
        match fs::remove_dir(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < TRIES => {
                tries += 1;
                std::thread::sleep(PAUSE);
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(());
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use ferrokube_cri::{
        CallCode, RuntimeStatusResponse, Transport, TransportFuture, encoded, path,
    };
    use serde_json::json;
    use std::sync::Arc;

    /// As containerd 1.6 is, which does not know RuntimeConfig.
    struct WithSystemd;

    impl Transport for WithSystemd {
        fn call(&self, method: &'static str, _: Bytes) -> TransportFuture<'_> {
            let config = json!({"runtimes": {"runc": {"options": {"SystemdCgroup": true}}}});
            let info = BTreeMap::from([("config".to_owned(), config.to_string())]);
            let status = RuntimeStatusResponse { info, ..RuntimeStatusResponse::default() };
            let answer = if method == path::status {
                Ok(Bytes::from(encoded(&status)))
            } else {
                Err(CriError::new(CallCode::Unimplemented, method))
            };
            Box::pin(std::future::ready(answer))
        }
    }

    /// runc wants `slice:prefix:name`, which containerd makes of a slice only.
    #[tokio::test]
    async fn groups_of_systemd_are_in_a_slice() {
        let runtime = Runtime::new(Arc::new(WithSystemd));
        let per_pod = ProcessLimit::PerPod { mount: "/nowhere".into(), max: 7 };
        for (configured, max) in [
            (ProcessLimit::Unlimited, None),
            (ProcessLimit::Unified(7), Some("7")),
            (per_pod, None),
        ] {
            let limit = configured.on(&runtime).await.unwrap();
            assert_eq!(limit.parent("a").unwrap(), "kubepods.slice");
            assert_eq!(limit.unified().get("pids.max").map(String::as_str), max);
            limit.release("a").unwrap();
        }
    }

    #[test]
    fn of_version_1_it_is_in_a_group_of_the_pod_until_that_is_released() {
        let mount = tempfile::tempdir().unwrap();
        let below = |max| ProcessLimit::below(mount.path(), max);
        assert!(matches!(below(None), Ok(ProcessLimit::Unlimited)));
        let missing = below(Some(7)).unwrap_err().to_string();
        assert!(missing.ends_with("/pids is not mounted"), "{missing}");
        for controller in ["pids", "memory"] {
            fs::create_dir(mount.path().join(controller)).unwrap();
        }
        fs::write(mount.path().join("file"), "").unwrap();
        let limit = below(Some(7)).unwrap();
        assert!(limit.unified().is_empty());
        let own = mount.path().join("pids/kubepods/poda-b");
        for _ in 0..2 {
            assert_eq!(limit.parent("a-b").unwrap(), "/kubepods/poda-b");
            assert_eq!(fs::read_to_string(own.join("pids.max")).unwrap(), "7");
        }
        // Only in a real one do files go with their directory. The runtime makes the others.
        fs::remove_file(own.join("pids.max")).unwrap();
        let other = mount.path().join("memory/kubepods/poda-b");
        fs::create_dir_all(&other).unwrap();
        limit.release("a-b").unwrap();
        assert!(!own.exists() && !other.exists());
        limit.release("a-b").unwrap();
        assert_eq!(limit.parent("a/../../..").unwrap(), "/kubepods/poda_.._.._..");
    }

    #[test]
    fn runtimes_say_in_several_ways_that_they_use_systemd() {
        let containerd = |is_it: bool| {
            json!({"containerd": {"runtimes": {"runc": {"options": {"SystemdCgroup": is_it}}}},
                "systemdCgroup": false})
        };
        assert!(names_systemd(&containerd(true)) && !names_systemd(&containerd(false)));
        assert!(names_systemd(&json!([{"cgroup_manager": "systemd"}])));
        assert!(!names_systemd(&json!({"cgroup_manager": "cgroupfs"})));
    }

    #[test]
    fn of_version_2_it_is_a_resource_of_each_container() {
        let mount = tempfile::tempdir().unwrap();
        fs::write(mount.path().join("cgroup.controllers"), "pids").unwrap();
        let limit = ProcessLimit::below(mount.path(), Some(7)).unwrap();
        assert_eq!(limit.unified(), BTreeMap::from([("pids.max".to_owned(), "7".to_owned())]));
        assert_eq!(limit.parent("a").unwrap(), "");
        limit.release("a").unwrap();
    }
}
