//! Converts pods to the runtime's sandbox and container configurations.

pub(crate) use crate::directories::{plain, pod_directory};
use crate::environment::{ContainerEnvironment, expanded};
use crate::pod::{DEFINITION, NodePod, definition};
use crate::room::amount;
use crate::{hooks, host_ports, oom};
use ferrokube_cri as cri;
use k8s_openapi::api::core::v1::{
    Container, ResourceRequirements, SELinuxOptions, SecurityContext,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// kubelet's labels, by which sandboxes and containers are found again.
pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
/// Annotation of containers: the resources with which one was created, as JSON.
pub(crate) const CREATED_WITH: &str = "ferrokube.dev/resources";
/// Annotation of sandboxes with the grace period, for pods whose manifest is gone.
pub(crate) const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
/// Microseconds.
const CPU_PERIOD: i64 = 100_000;
const MASKED: [&str; 9] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
];
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Directory of a pod's emptyDirs, in its own.
pub(crate) const EMPTY_DIRS: &str = "volumes/kubernetes.io~empty-dir";

/// Directory of an emptyDir.
pub(crate) fn empty_directory(root: &Path, uid: &str, volume: &str) -> PathBuf {
    pod_directory(root, uid).join(EMPTY_DIRS).join(volume)
}

/// Directory of a pod's logs.
pub(crate) fn log_directory(logs: &Path, pod: &NodePod) -> PathBuf {
    logs.join(plain(&format!("{}_{}_{}", pod.namespace, pod.name, pod.uid)))
}

fn labels(pod: &NodePod) -> BTreeMap<String, String> {
    BTreeMap::from([
        (POD_NAME.to_owned(), pod.name.clone()),
        (POD_NAMESPACE.to_owned(), pod.namespace.clone()),
        (POD_UID.to_owned(), pod.uid.clone()),
    ])
}

/// A sandbox without host name, resolver and control group.
pub(crate) fn sandbox(pod: &NodePod, logs: &Path, attempt: u32) -> cri::PodSandboxConfig {
    let mut annotations = pod.annotations.clone();
    annotations.insert(GRACE.to_owned(), grace(pod).to_string());
    let mut all_labels = pod.labels.clone();
    all_labels.extend(labels(pod));
    let security = pod.spec.security_context.clone().unwrap_or_default();
    let context = cri::LinuxSandboxSecurityContext {
        selinux_options: security.se_linux_options.as_ref().map(selinux),
        namespace_options: Some(namespaces(pod)),
        run_as_user: security.run_as_user.map(number),
        run_as_group: security.run_as_group.map(number),
        supplemental_groups: groups(pod),
        privileged: pod.all_containers().any(|container| {
            let context = container.security_context.as_ref();
            context.and_then(|context| context.privileged).unwrap_or(false)
        }),
        seccomp: Some(runtime_default()),
        ..cri::LinuxSandboxSecurityContext::default()
    };
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            attempt,
        }),
        log_directory: log_directory(logs, pod).display().to_string(),
        port_mappings: host_ports::mappings(pod),
        labels: all_labels,
        annotations,
        linux: Some(cri::LinuxPodSandboxConfig {
            sysctls: security
                .sysctls
                .into_iter()
                .flatten()
                .map(|one| (one.name, one.value))
                .collect(),
            security_context: Some(context),
            overhead: pod.spec.overhead.clone().map(|overhead| {
                let limits = Some(overhead);
                resources(Some(&ResourceRequirements { limits, ..ResourceRequirements::default() }))
            }),
            ..cri::LinuxPodSandboxConfig::default()
        }),
        ..cri::PodSandboxConfig::default()
    }
}

/// Seconds.
pub(crate) fn grace(pod: &NodePod) -> i64 {
    pod.spec.termination_grace_period_seconds.unwrap_or(30).max(1)
}

fn namespaces(pod: &NodePod) -> cri::NamespaceOption {
    let is_on_host = pod.spec.host_network.unwrap_or(false);
    let network = if is_on_host { cri::NamespaceMode::Node } else { cri::NamespaceMode::Pod };
    let is_set = |field: Option<bool>| field == Some(true);
    let pid = match (is_set(pod.spec.host_pid), is_set(pod.spec.share_process_namespace)) {
        (true, _) => cri::NamespaceMode::Node,
        (_, true) => cri::NamespaceMode::Pod,
        _ => cri::NamespaceMode::Container,
    };
    let of_node = is_set(pod.spec.host_ipc);
    let ipc = if of_node { cri::NamespaceMode::Node } else { cri::NamespaceMode::Pod };
    cri::NamespaceOption {
        network: network as i32,
        pid: pid as i32,
        ipc: ipc as i32,
        ..cri::NamespaceOption::default()
    }
}

/// Supplementary groups of the pod's processes, including the group of its volumes.
fn groups(pod: &NodePod) -> Vec<i64> {
    let context = pod.spec.security_context.as_ref();
    let given = context.and_then(|context| context.supplemental_groups.clone());
    given.into_iter().flatten().chain(pod.fs_group().map(i64::from)).collect()
}

fn number(value: i64) -> cri::Int64Value {
    cri::Int64Value { value }
}

fn runtime_default() -> cri::SecurityProfile {
    let profile_type = cri::ProfileType::RuntimeDefault as i32;
    cri::SecurityProfile { profile_type, ..cri::SecurityProfile::default() }
}

fn unconfined() -> cri::SecurityProfile {
    let profile_type = cri::ProfileType::Unconfined as i32;
    cri::SecurityProfile { profile_type, ..cri::SecurityProfile::default() }
}

/// Values that the start of a container adds to its spec.
pub(crate) struct ContainerStart {
    /// The runtime's reference to the image.
    pub(crate) image_ref: String,
    /// From 0.
    pub(crate) attempt: u32,
    pub(crate) environment: ContainerEnvironment,
    pub(crate) mounts: Vec<cri::ContainerMount>,
    /// Devices of block volumes.
    pub(crate) devices: Vec<cri::ContainerDevice>,
    /// Values of control groups of version 2.
    pub(crate) unified: BTreeMap<String, String>,
    /// Bytes of the node's memory.
    pub(crate) memory: u64,
}

/// A container of a pod.
pub(crate) fn container(
    pod: &NodePod,
    container: &Container,
    start: ContainerStart,
    root: &Path,
) -> cri::ContainerConfig {
    let ContainerStart { image_ref, attempt, environment, mounts, devices, unified, memory } =
        start;
    let ContainerEnvironment { values: environment, mut room } = environment;
    let mut expand = |words: &Option<Vec<String>>| {
        words.iter().flatten().map(|word| expanded(word, &environment, &mut room)).collect()
    };
    let named = container.image.clone().unwrap_or_default();
    let image = cri::ImageSpec {
        image: image_ref,
        user_specified_image: named,
        ..cri::ImageSpec::default()
    };
    let mut own_labels = labels(pod);
    own_labels.insert(CONTAINER_NAME.to_owned(), container.name.clone());
    let mut annotations = hooks::annotations(container);
    annotations.extend([
        ("io.kubernetes.container.restartCount".to_owned(), attempt.to_string()),
        (GRACE.to_owned(), grace(pod).to_string()),
        (DEFINITION.to_owned(), definition(container)),
    ]);
    if let Ok(text) = serde_json::to_string(&container.resources.clone().unwrap_or_default()) {
        annotations.insert(CREATED_WITH.to_owned(), text);
    }
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt }),
        image: Some(image),
        command: expand(&container.command),
        args: expand(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment
            .iter()
            .map(|(key, value)| cri::EnvironmentVariable {
                key: key.clone(),
                value: value.clone().into(),
            })
            .collect(),
        mounts,
        devices,
        labels: own_labels,
        annotations,
        log_path: format!("{}/{attempt}.log", container.name),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(cri::LinuxContainerResources {
                unified,
                oom_score_adj: oom::score(pod, container, memory),
                ..resources(container.resources.as_ref())
            }),
            security_context: Some(security(pod, container, root)),
        }),
        ..cri::ContainerConfig::default()
    }
}

/// Shares the process namespace of another container.
pub(crate) fn share_processes(config: &mut cri::ContainerConfig, target: String) {
    let linux = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    if let Some(options) = linux.and_then(|context| context.namespace_options.as_mut()) {
        options.pid = cri::NamespaceMode::Target as i32;
        options.target_id = target;
    }
}

/// Resources of a container in its control group.
pub(crate) fn resources(given: Option<&ResourceRequirements>) -> cri::LinuxContainerResources {
    let resources = given.cloned().unwrap_or_default();
    let cpu = |list| amount(list, "cpu").map(|amount| amount.milli_value());
    let limit = cpu(&resources.limits);
    let request = cpu(&resources.requests).or(limit).unwrap_or(0);
    let memory = amount(&resources.limits, "memory").map_or(0, |amount| amount.value());
    cri::LinuxContainerResources {
        cpu_period: CPU_PERIOD,
        // At least a millisecond, as in kubelet.
        cpu_quota: limit.map_or(0, |limit| (limit.saturating_mul(CPU_PERIOD) / 1000).max(1000)),
        cpu_shares: (request.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES),
        memory_limit_in_bytes: memory,
        ..cri::LinuxContainerResources::default()
    }
}

fn security(
    pod: &NodePod,
    container: &Container,
    root: &Path,
) -> cri::LinuxContainerSecurityContext {
    let of_pod = pod.spec.security_context.clone().unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let is_privileged = own.privileged.unwrap_or(false);
    let paths = |list: &[&str]| {
        let is_used = !is_privileged;
        list.iter().filter(|_| is_used).map(|path| (*path).to_owned()).collect()
    };
    let profile = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    let seccomp = match profile {
        _ if is_privileged => unconfined(),
        Some(profile) if profile.type_ == "Unconfined" => unconfined(),
        Some(profile) if profile.type_ == "Localhost" => {
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            cri::SecurityProfile {
                profile_type: cri::ProfileType::Localhost as i32,
                localhost_ref: root.join("seccomp").join(name).display().to_string(),
            }
        }
        _ => runtime_default(),
    };
    let armor = own.app_armor_profile.as_ref().or(of_pod.app_armor_profile.as_ref());
    let armor = armor.filter(|_| !is_privileged).map(|profile| match profile.type_.as_str() {
        "Unconfined" => unconfined(),
        "Localhost" => cri::SecurityProfile {
            profile_type: cri::ProfileType::Localhost as i32,
            localhost_ref: profile.localhost_profile.clone().unwrap_or_default(),
        },
        _ => runtime_default(),
    });
    let label = own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref());
    cri::LinuxContainerSecurityContext {
        apparmor: armor,
        selinux_options: label.map(selinux),
        capabilities: Some(capabilities(&own)),
        privileged: is_privileged,
        namespace_options: Some(namespaces(pod)),
        run_as_user: own.run_as_user.or(of_pod.run_as_user).map(number),
        run_as_group: own.run_as_group.or(of_pod.run_as_group).map(number),
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(seccomp),
        ..cri::LinuxContainerSecurityContext::default()
    }
}

fn selinux(options: &SELinuxOptions) -> cri::SELinuxOption {
    cri::SELinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

fn capabilities(context: &SecurityContext) -> cri::Capabilities {
    let given = context.capabilities.clone().unwrap_or_default();
    cri::Capabilities {
        add_capabilities: given.add.unwrap_or_default(),
        drop_capabilities: given.drop.unwrap_or_default(),
        ..cri::Capabilities::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limits: &str) -> Container {
        let resources = serde_json::json!({"limits": {"cpu": limits}, "requests": {"cpu": limits}});
        serde_json::from_value(serde_json::json!({"name": "c", "resources": resources})).unwrap()
    }

    #[test]
    fn amounts_beyond_all_machines_do_not_overflow() {
        let made = resources(of("100E").resources.as_ref());
        assert_eq!((made.cpu_shares, made.cpu_quota > 1000), (MAX_SHARES, true));
    }

    #[test]
    fn security_contexts_reach_the_runtime_those_of_containers_first() {
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {securityContext: \
                   {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}], seLinuxOptions: {level: \
                   s0}, appArmorProfile: {type: Unconfined}}, containers: [{name: a, image: i, \
                   stdinOnce: true}, {name: b, image: i, securityContext: {seLinuxOptions: {type: \
                   t}, appArmorProfile: {type: Localhost, localhostProfile: own}}}]}}";
        let pod = NodePod::from_file(pod.as_bytes(), "n").unwrap();
        let linux = sandbox(&pod, Path::new("/logs"), 0).linux.unwrap();
        assert_eq!(linux.sysctls["kernel.shm_rmid_forced"], "1");
        assert_eq!(linux.security_context.unwrap().selinux_options.unwrap().level, "s0");
        let contexts: Vec<_> =
            pod.spec.containers.iter().map(|one| security(&pod, one, Path::new("/root"))).collect();
        let labels = contexts.iter().map(|it| it.selinux_options.clone().unwrap());
        let labels: Vec<_> = labels.map(|it| (it.r#type, it.level)).collect();
        assert_eq!(labels, [(String::new(), "s0".to_owned()), ("t".to_owned(), String::new())]);
        let profiles = contexts.iter().map(|it| it.apparmor.clone().unwrap());
        let profiles: Vec<_> = profiles.map(|it| (it.profile_type, it.localhost_ref)).collect();
        let localhost = cri::ProfileType::Localhost as i32;
        assert_eq!(
            profiles,
            [(unconfined().profile_type, String::new()), (localhost, "own".into())]
        );
    }

    #[test]
    fn namespaces_are_those_of_container_pod_or_node() {
        let of = |fields: &str| {
            let pod = format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{{fields}containers: \
                 [{{name: c, image: i}}]}}}}"
            );
            let made = namespaces(&NodePod::from_file(pod.as_bytes(), "n").unwrap());
            [made.network, made.pid, made.ipc]
        };
        let [pod, container, node] = [
            cri::NamespaceMode::Pod as i32,
            cri::NamespaceMode::Container as i32,
            cri::NamespaceMode::Node as i32,
        ];
        assert_eq!(of(""), [pod, container, pod]);
        assert_eq!(of("shareProcessNamespace: true, "), [pod, pod, pod]);
        assert_eq!(of("hostNetwork: true, hostPID: true, hostIPC: true, "), [node, node, node]);
    }

    #[test]
    fn fault_56_names_do_not_leave_their_directory() {
        for name in ["", ".", "..", "../../etc", "/etc", "a/../../b", "..\0"] {
            let path = pod_directory(Path::new("/root"), name);
            let below = path.strip_prefix("/root/pods").unwrap();
            let parts: Vec<_> = below.components().collect();
            assert!(matches!(parts[..], [std::path::Component::Normal(_)]), "{name:?}: {path:?}");
        }
        let pod = crate::pod::NodePod::from_file(
            b"{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ../../../etc}, spec: {containers: [{name: c, image: i}]}}",
            "n",
        )
        .unwrap();
        let logs = log_directory(Path::new("/var/log/pods"), &pod);
        assert_eq!(logs.parent(), Some(Path::new("/var/log/pods")));
    }
}
