//! Supported fields of a pod; any other is rejected.

use ferrokube_apimachinery::document::Value;

/// Fields of `spec`, including those for schedulers.
const SPEC: &[&str] = &[
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostname",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "restartPolicy",
    "schedulerName",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
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
    "resources",
    "restartPolicy",
    "securityContext",
    "startupProbe",
    "stdin",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeMounts",
    "workingDir",
];
const POD_SECURITY: &[&str] = &[
    "fsGroup",
    // Affects persistent volumes only: files of other volumes always get the group.
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seccompProfile",
    "supplementalGroups",
];
const CONTAINER_SECURITY: &[&str] = &[
    "allowPrivilegeEscalation",
    "capabilities",
    "privileged",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "seccompProfile",
];
const VOLUME: &[&str] = &[
    "configMap",
    "downwardAPI",
    "emptyDir",
    "hostPath",
    "name",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
const PROJECTED: &[&str] = &["configMap", "downwardAPI", "secret", "serviceAccountToken"];
const EMPTY_DIR: &[&str] = &["medium", "sizeLimit"];
/// Media of an emptyDir.
const MEDIA: &[&str] = &["", "Memory"];
const MOUNT: &[&str] = &["mountPath", "name", "readOnly", "subPath", "subPathExpr"];
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

/// Paths of unsupported fields, spelled as in the manifest.
pub(crate) fn unsupported(pod: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let Some(spec) = pod.get("spec") else { return found };
    others(spec, "spec", SPEC, &mut found);
    one(spec, "spec", "securityContext", POD_SECURITY, &mut found);
    each(
        spec,
        "spec",
        "volumes",
        &mut |volume, path, found| {
            others(volume, path, VOLUME, found);
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
    for kind in ["initContainers", "containers"] {
        each(
            spec,
            "spec",
            kind,
            &mut |container, path, found| {
                others(container, path, CONTAINER, found);
                one(container, path, "securityContext", CONTAINER_SECURITY, found);
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
                for (list, known) in [("volumeMounts", MOUNT), ("env", ENV), ("ports", PORT)] {
                    let check = &mut |item: &Value, path: &str, found: &mut Vec<String>| {
                        others(item, path, known, found);
                        one(item, path, "valueFrom", ENV_SOURCE, found);
                    };
                    each(container, path, list, check, found);
                }
            },
            &mut found,
        );
    }
    found
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
