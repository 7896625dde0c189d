//! Rules that depend on a pod's operating system and on the host namespaces that it shares.

use super::containers;
use crate::cells::at;
use crate::checks::{FieldErrors, given, is_true, items, text};
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::field::FieldError;
use std::collections::HashMap;

const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";
/// Fields of the pod's security context, and of the pod itself.
const POD_CONTEXT: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const POD: [&str; 4] = ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"];
const CONTAINER_CONTEXT: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];
const WINDOWS_SIGNALS: [&str; 2] = ["SIGKILL", "SIGTERM"];
const SIGNALS: [&str; 36] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMIN",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

pub(super) fn validate(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    match at(spec, &["os", "name"]).and_then(Value::as_str) {
        Some("windows") => windows(spec, path, errors),
        Some("linux") => linux(spec, path, errors),
        _ => {}
    }
    host_processes(spec, path, errors);
    if spec.get("hostUsers").and_then(Value::as_bool) == Some(false) {
        own_users(spec, path, errors);
    }
    sysctls(spec, path, errors);
    file_keys(spec, path, errors);
}

fn is_used(value: &Value, field: &str) -> bool {
    given(value, field).is_some_and(|value| match value {
        Value::Array(list) => !list.as_slice().is_empty(),
        Value::Bool(flag) => *flag || !matches!(field, "hostPID" | "hostIPC"),
        _ => true,
    })
}

fn windows(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let context = given(spec, "securityContext");
    let own = path.field("securityContext");
    for field in POD_CONTEXT {
        if context.is_some_and(|context| is_used(context, field)) {
            errors.forbidden(own.field(field), NOT_ON_WINDOWS);
        }
    }
    for field in POD.into_iter().filter(|field| is_used(spec, field)) {
        errors.forbidden(path.field(field), NOT_ON_WINDOWS);
    }
    for (list, index, container) in containers(spec) {
        if errors.is_full() {
            return;
        }
        let list = path.field(list);
        let own = list.index(index);
        let own = own.field("securityContext");
        let Some(context) = given(container, "securityContext") else { continue };
        for field in CONTAINER_CONTEXT.into_iter().filter(|field| is_used(context, field)) {
            errors.forbidden(own.field(field), NOT_ON_WINDOWS);
        }
    }
}

fn linux(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const WHY: &str = "windows options cannot be set for a linux pod";
    if at(spec, &["securityContext", "windowsOptions"]).is_some_and(Value::is_object) {
        errors.forbidden(path.field("securityContext.windowsOptions"), WHY);
    }
    for (list, index, container) in containers(spec) {
        if at(container, &["securityContext", "windowsOptions"]).is_some_and(Value::is_object) {
            let list = path.field(list);
            let own = list.index(index);
            errors.forbidden(own.field("securityContext.windowsOptions"), WHY);
        }
    }
}

/// Either all containers of a pod are Windows HostProcess containers, or none.
fn host_processes(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const FIELD: [&str; 3] = ["securityContext", "windowsOptions", "hostProcess"];
    let of_pod = at(spec, &FIELD).and_then(Value::as_bool);
    let (mut all, mut on_host) = (0, 0);
    for (list, index, container) in containers(spec) {
        if errors.is_full() {
            return;
        }
        all += 1;
        let own = at(container, &FIELD).and_then(Value::as_bool);
        if let (Some(pod), Some(own)) = (of_pod, own)
            && pod != own
        {
            let why =
                format!("pod hostProcess value must be identical if both are specified, was {pod}");
            let list = path.field(list);
            let place = list.index(index);
            errors.invalid(place.field("securityContext.windowsOptions.hostProcess"), own, &why);
        }
        on_host += i32::from(own.or(of_pod) == Some(true));
    }
    if on_host == 0 {
        return;
    }
    if on_host != all {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(path, "", why);
    }
    if !is_true(spec, "hostNetwork") {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(path.field("hostNetwork"), false, why);
    }
}

/// Rules for a pod with its own user namespace.
fn own_users(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const WHY: &str = "when `hostUsers` is false";
    // The host's network is allowed by a feature that is off.
    for (field, shown) in
        [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")]
    {
        if is_true(spec, field) {
            errors.forbidden(path.field(shown), WHY);
        }
    }
    for (list, index, container) in containers(spec) {
        if !items(container, "volumeDevices").is_empty() {
            let list = path.field(list);
            errors.forbidden(list.index(index).field("volumeDevices"), WHY);
        }
    }
}

/// Rejects sysctls of host namespaces.
fn sysctls(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some(context) = given(spec, "securityContext") else { return };
    let list = path.field("securityContext.sysctls");
    for (index, sysctl) in items(context, "sysctls").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let name = text(sysctl, "name");
        // The separator may be a slash, then dots are part of the words.
        let dotted = match name.find(['.', '/']) {
            Some(at) if name[at..].starts_with('/') => name.replace('.', "\u{1}").replace('/', "."),
            _ => name.to_owned(),
        };
        let is_ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|prefix| dotted.starts_with(prefix))
            || dotted == "kernel.sem";
        let place = list.index(index);
        if is_true(spec, "hostNetwork") && dotted.starts_with("net.") {
            let why = "may not be specified when 'hostNetwork' is true";
            errors.invalid(place.field("name"), name, why);
        } else if is_true(spec, "hostIPC") && is_ipc {
            let why = "may not be specified when 'hostIPC' is true";
            errors.invalid(place.field("name"), name, why);
        }
    }
}

/// Checks that variables from files refer to an emptyDir.
fn file_keys(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let volumes: HashMap<&str, &Value> =
        items(spec, "volumes").iter().map(|volume| (text(volume, "name"), volume)).collect();
    for (list, index, container) in containers(spec) {
        let list = path.field(list);
        let own = list.index(index);
        let variables = own.field("env");
        for (at_variable, variable) in items(container, "env").iter().enumerate() {
            let Some(key) =
                at(variable, &["valueFrom", "fileKeyRef"]).filter(|key| key.is_object())
            else {
                continue;
            };
            let name = text(key, "volumeName");
            let place = variables.index(at_variable);
            let place = place.field("valueFrom.fileKeyRef.volumeName");
            match volumes.get(name) {
                None => errors.push(|| FieldError::not_found(place, name)),
                Some(volume) if given(volume, "emptyDir").is_none() => {
                    errors.invalid(place, name, "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    }
}

pub(super) fn stop_signal(
    signal: &str,
    spec: &Value,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let is_real_time = |signal: &str| {
        let number = |prefix| signal.strip_prefix(prefix).and_then(|rest| rest.parse::<u32>().ok());
        number("SIGRTMIN+").is_some_and(|number| (1..=15).contains(&number))
            || number("SIGRTMAX-").is_some_and(|number| (1..=14).contains(&number))
    };
    match at(spec, &["os", "name"]).and_then(Value::as_str) {
        None => {
            errors.forbidden(path, "may not be set for containers with empty `spec.os.name`");
        }
        Some("windows") if !WINDOWS_SIGNALS.contains(&signal) => {
            errors.not_supported(path, signal, &WINDOWS_SIGNALS);
        }
        Some("linux") if !SIGNALS.contains(&signal) && !is_real_time(signal) => {
            let mut known: Vec<String> = SIGNALS.iter().map(|name| (*name).to_owned()).collect();
            known.extend((1..=14).map(|number| format!("SIGRTMAX-{number}")));
            known.extend((1..=15).map(|number| format!("SIGRTMIN+{number}")));
            known.sort_unstable();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            errors.not_supported(path, signal, &known);
        }
        _ => {}
    }
}
