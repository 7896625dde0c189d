//! Supported fields of a pod; any other is rejected.

use ferrokube_apimachinery::document::Value;

/// Fields of `spec`, including those for schedulers.
const SPEC: &[&str] = &[
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
];
/// Fields of containers and init containers.
const CONTAINER: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "resources",
    "restartPolicy",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];
const POD_SECURITY: &[&str] = &[
    "appArmorProfile",
    "fsGroup",
    // Affects persistent volumes only: files of other volumes always get the group.
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
];
const CONTAINER_SECURITY: &[&str] = &[
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
];
/// Kernel parameters of a pod's own namespaces, kubelet's safe ones.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];
const VOLUME: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "name",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const PROJECTED: &[&str] = &["configMap", "downwardAPI", "secret", "serviceAccountToken"];
const CSI: &[&str] = &["driver", "fsType", "nodePublishSecretRef", "readOnly", "volumeAttributes"];
const OWN_CLAIM: &[&str] = &["volumeClaimTemplate"];
const EMPTY_DIR: &[&str] = &["medium", "sizeLimit"];
/// Media of an emptyDir.
const MEDIA: &[&str] = &["", "Memory"];
const MOUNT: &[&str] = &[
    "mountPath",
    "mountPropagation",
    "name",
    "readOnly",
    "recursiveReadOnly",
    "subPath",
    "subPathExpr",
];
const DEVICE: &[&str] = &["devicePath", "name"];
const ENV: &[&str] = &["name", "value", "valueFrom"];
const ENV_SOURCE: &[&str] = &["configMapKeyRef", "fieldRef", "resourceFieldRef", "secretKeyRef"];
const LIFECYCLE: &[&str] = &["postStart", "preStop"];
const HOOK: &[&str] = &["exec", "httpGet", "sleep"];
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];
const PROBE: &[&str] = &[
    "exec",
    "failureThreshold",
    "grpc",
    "httpGet",
    "initialDelaySeconds",
    "periodSeconds",
    "successThreshold",
    "tcpSocket",
    "terminationGracePeriodSeconds",
    "timeoutSeconds",
];
const RESOURCES: &[&str] = &["limits", "requests"];
const PORT: &[&str] = &["containerPort", "hostIP", "hostPort", "name", "protocol"];

/// Lists of a container, and the fields of their items.
const LISTS: [(&str, &[&str]); 4] =
    [("volumeMounts", MOUNT), ("volumeDevices", DEVICE), ("env", ENV), ("ports", PORT)];

/// Paths of unsupported fields, spelled as in the manifest.
pub(crate) fn unsupported(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Some(spec) = pod.get("spec") else { return found };
    others(spec, "spec", SPEC, &mut found);
    if spec.get("hostUsers").and_then(Value::as_bool) == Some(false) {
        found.push("spec.hostUsers".to_owned());
    }
    if let Some(os) = spec.get("os") {
        word(os, "spec.os", "name", &["linux"], &mut found);
    }
    one(spec, "spec", "securityContext", POD_SECURITY, &mut found);
    if let Some(context) = spec.get("securityContext") {
        pod_security(spec, context, &mut found);
    }
    each(
        spec,
        "spec",
        "volumes",
        &mut |volume, path, found| {
            others(volume, path, VOLUME, found);
            one(volume, path, "csi", CSI, found);
            one(volume, path, "ephemeral", OWN_CLAIM, found);
            one(volume, path, "emptyDir", EMPTY_DIR, found);
            let medium = volume.get("emptyDir").and_then(|source| source.get("medium"));
            if !MEDIA.contains(&medium.and_then(Value::as_str).unwrap_or_default()) {
                found.push(format!("{path}.emptyDir.medium"));
            }
            let Some(projected) = volume.get("projected") else { return };
            let source = &mut |source: &Value, path: &str, found: &mut Vec<String>| {
                others(source, path, PROJECTED, found);
            };
            each(projected, &format!("{path}.projected"), "sources", source, found);
        },
        &mut found,
    );
    for kind in ["initContainers", "containers", "ephemeralContainers"] {
        let is_ephemeral = kind == "ephemeralContainers";
        let more: &[&str] = if is_ephemeral { &["targetContainerName"] } else { &[] };
        let known = [CONTAINER, more].concat();
        each(
            spec,
            "spec",
            kind,
            &mut |container, path, found| {
                others(container, path, &known, found);
                one(container, path, "securityContext", CONTAINER_SECURITY, found);
                if let Some(context) = container.get("securityContext") {
                    let path = format!("{path}.securityContext");
                    word(context, &path, "procMount", &["Default"], found);
                }
                one(container, path, "resources", RESOURCES, found);
                one(container, path, "lifecycle", LIFECYCLE, found);
                if let Some(lifecycle) = container.get("lifecycle") {
                    for hook in LIFECYCLE {
                        one(lifecycle, &format!("{path}.lifecycle"), hook, HOOK, found);
                    }
                }
                for probe in PROBES {
                    one(container, path, probe, PROBE, found);
                }
                for (list, known) in LISTS {
                    let check = &mut |item: &Value, path: &str, found: &mut Vec<String>| {
                        others(item, path, known, found);
                        one(item, path, "valueFrom", ENV_SOURCE, found);
                        word(item, path, "recursiveReadOnly", &["Disabled"], found);
                    };
                    each(container, path, list, check, found);
                }
            },
            &mut found,
        );
    }
    found
}

fn pod_security(spec: &Value, context: &Value, found: &mut Vec<String>) {
    let path = "spec.securityContext";
    word(context, path, "supplementalGroupsPolicy", &["Merge"], found);
    let is_set = |field: &str| spec.get(field).and_then(Value::as_bool) == Some(true);
    let check = &mut |item: &Value, path: &str, found: &mut Vec<String>| {
        let name = item.get("name").and_then(Value::as_str).unwrap_or_default();
        // In a namespace of the node it is a parameter of the node.
        let is_of_node = is_set("hostNetwork") && name.starts_with("net.")
            || is_set("hostIPC") && name.starts_with("kernel.");
        if is_of_node || !SAFE_SYSCTLS.contains(&name) {
            found.push(format!("{path}.name"));
        }
    };
    each(context, path, "sysctls", check, found);
}

/// A field that may be absent or one of these words.
fn word(object: &Value, path: &str, field: &str, known: &[&str], found: &mut Vec<String>) {
    let given = object.get(field).filter(|value| !value.is_null());
    if given.is_some_and(|value| !value.as_str().is_some_and(|word| known.contains(&word))) {
        found.push(format!("{path}.{field}"));
    }
}

fn others(object: &Value, path: &str, known: &[&str], found: &mut Vec<String>) {
    let fields = object.as_object().into_iter().flat_map(|fields| fields.iter());
    let is_other = |name: &str, value: &Value| !value.is_null() && !known.contains(&name);
    found.extend(
        fields
            .filter(|(name, value)| is_other(name.as_ref(), value))
            .map(|(name, _)| format!("{path}.{}", AsRef::<str>::as_ref(name))),
    );
}

fn one(object: &Value, path: &str, field: &str, known: &[&str], found: &mut Vec<String>) {
    if let Some(inner) = object.get(field) {
        others(inner, &format!("{path}.{field}"), known, found);
    }
}

type ItemCheck<'a> = &'a mut dyn FnMut(&Value, &str, &mut Vec<String>);

fn each(object: &Value, path: &str, field: &str, check: ItemCheck<'_>, found: &mut Vec<String>) {
    let items = object.get(field).and_then(Value::as_array);
    for (index, item) in items.into_iter().flat_map(|items| items.as_slice().iter()).enumerate() {
        check(item, &format!("{path}.{field}[{index}]"), found);
    }
}
