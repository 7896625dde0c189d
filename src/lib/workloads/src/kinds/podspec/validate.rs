//! Cross-field validation of pod specs: names, mounts, ports and resources.

use super::{NO_FIELD, annotations, is_sidecar, platform, resources, volumes};
use crate::cells::{at, list_at, str_at};
use crate::checks::{FieldErrors, given, is_true, items, number, text};
use crate::paths::FieldPath;
use crate::resource_names::{NameCheck, container_resource_name};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::work::CountedKey;
use std::collections::HashSet;

const SIDECARS_ONLY: &str = "may not be set for init containers without restartPolicy=Always";
const RESTARTS: [&str; 3] = ["Always", "Never", "OnFailure"];
/// Fields of ephemeral containers whose contents do not matter.
const UNSEEN: [&str; 5] =
    ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "restartPolicyRules"];
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "restartPolicy",
    "restartPolicyRules",
];

/// The object that a spec is part of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpecOwner<'a> {
    /// Metadata of the pod; `None` for a template.
    pub(crate) pod: Option<&'a Value>,
}

/// Appends the errors of a spec at a path.
pub(crate) fn validate(
    spec: &Value,
    owner: SpecOwner<'_>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let volumes = volumes::volumes(spec, owner, path, errors);
    mirrored_claims(spec, owner, path.field("resourceClaims"), errors);
    let claims: HashSet<&str> =
        items(spec, "resourceClaims").iter().map(|claim| text(claim, "name")).collect();
    let mut names = HashSet::new();
    for (list, is_init) in [("containers", false), ("initContainers", true)] {
        let list_path = path.field(list);
        for (index, container) in list_at(spec, &[list]).iter().enumerate() {
            if errors.is_full() {
                return;
            }
            let path = list_path.index(index);
            common(container, spec, &volumes, &claims, path, errors);
            padded(container, owner, path, errors);
            let name = text(container, "name");
            if !names.insert(name) && (!name.is_empty() || !is_init) {
                errors.duplicate(path.field("name"), name);
            }
            if is_init {
                init_container(container, spec, path, errors);
                host_ports(std::slice::from_ref(container), list_path, errors);
            } else {
                restarts(container, path, errors);
                probes(container, spec, path, errors);
            }
        }
    }
    host_ports(list_at(spec, &["containers"]), path.field("containers"), errors);
    // Ephemeral containers are no targets.
    let targets: HashSet<CountedKey<&str>> = names.iter().copied().map(CountedKey).collect();
    let ephemeral = path.field("ephemeralContainers");
    for (index, container) in list_at(spec, &["ephemeralContainers"]).iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let path = ephemeral.index(index);
        common(container, spec, &volumes, &claims, path, errors);
        padded(container, SpecOwner { pod: Some(container) }, path, errors);
        ephemeral_container(container, &mut names, path, errors);
        target(container, &targets, path, errors);
    }
    resources::of_pod(spec, &claims, path, errors);
    host_network(spec, owner, path, errors);
    spread(spec, path, errors);
    platform::validate(spec, path, errors);
}

/// Refuses claims of a pod that stands for one of a kubelet's files, whatever they are.
fn mirrored_claims(
    spec: &Value,
    owner: SpecOwner<'_>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let annotations = owner.pod.and_then(|metadata| metadata.get("annotations"));
    let claims = items(spec, "resourceClaims");
    if claims.is_empty() || !annotations::is_mirror(annotations.and_then(Value::as_object)) {
        return;
    }
    errors.forget(path);
    for _ in claims {
        errors.forbidden(
            FieldPath::Root.field(NO_FIELD),
            "static pods do not support resource claims",
        );
    }
}

/// Appends the errors of a template at a path.
pub(crate) fn validate_template(
    template: &Value,
    owner: SpecOwner<'_>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let Some(spec) = template.get("spec") else { return };
    let own = path.field("spec");
    validate_annotations(template, path.field("annotations"), errors);
    validate(spec, owner, own, errors);
    annotations::agree(template_annotations(template), spec, own, errors);
}

/// Appends the errors of a template's annotations, which are reported at their own path.
pub(crate) fn validate_annotations(
    template: &Value,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if let Some(spec) = template.get("spec") {
        annotations::validate(template_annotations(template), spec, path, errors);
    }
}

fn template_annotations(template: &Value) -> Option<&Map> {
    at(template, &["metadata", "annotations"]).and_then(Value::as_object)
}

/// Rules common to all kinds of containers.
fn common(
    container: &Value,
    spec: &Value,
    volumes: &volumes::VolumeNames<'_>,
    claims: &HashSet<&str>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    volumes::mounts(container, volumes, path, errors);
    let names = Some(container_resource_name as NameCheck);
    resources::requirements(
        container.get("resources"),
        names,
        claims,
        path.field("resources"),
        errors,
    );
    let never = text(spec, "restartPolicy") == "Never";
    for policy in items(container, "resizePolicy").iter().filter(|_| never) {
        let word = text(policy, "restartPolicy");
        if word != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(path.field("resizePolicy"), word, why);
        }
    }
    let unmasked = at(container, &["securityContext"])
        .is_some_and(|context| text(context, "procMount") == "Unmasked");
    if unmasked && spec.get("hostUsers").and_then(Value::as_bool) != Some(false) {
        let why = "`hostUsers` must be false to use `Unmasked`";
        errors.invalid(path.field("securityContext.procMount"), "Unmasked", why);
    }
}

fn padded(container: &Value, owner: SpecOwner<'_>, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let image = text(container, "image");
    if owner.pod.is_some() && image.trim() != image {
        let why = "must not have leading or trailing whitespace";
        errors.invalid(path.field("image"), image, why);
    }
}

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

fn probes(container: &Value, spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    for probe in ["livenessProbe", "startupProbe"] {
        let threshold = given(container, probe).map(|probe| number(probe, "successThreshold"));
        if let Some(threshold) = threshold.filter(|threshold| *threshold != 1) {
            let below = path.field(probe);
            errors.invalid(below.field("successThreshold"), threshold, "must be 1");
        }
    }
    let readiness = given(container, "readinessProbe");
    if readiness.is_some_and(|probe| given(probe, "terminationGracePeriodSeconds").is_some()) {
        let below = path.field("readinessProbe");
        let value = readiness.and_then(|probe| probe.get("terminationGracePeriodSeconds"));
        errors.invalid(
            below.field("terminationGracePeriodSeconds"),
            value,
            "must not be set for readinessProbes",
        );
    }
    lifecycle(container, spec, path.field("lifecycle"), errors);
}

fn lifecycle(container: &Value, spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let grace = spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64);
    for handler in ["postStart", "preStop"] {
        let action = at(container, &["lifecycle", handler]);
        let is_second = action.is_some_and(|action| {
            ["exec", "httpGet", "tcpSocket"].iter().any(|other| given(action, other).is_some())
        });
        let seconds = action
            .and_then(|action| given(action, "sleep"))
            .filter(|sleep| sleep.is_object() && !is_second)
            .map(|sleep| number(sleep, "seconds"));
        let own = path.field(handler);
        if let (Some(seconds), Some(grace)) = (seconds, grace)
            && !(0..=grace).contains(&seconds)
        {
            let why = format!(
                "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
            );
            errors.invalid(own.field("sleep"), seconds, &why);
        }
    }
    let signal = at(container, &["lifecycle", "stopSignal"]).and_then(Value::as_str);
    if let Some(signal) = signal {
        platform::stop_signal(signal, spec, path.field("stopSignal"), errors);
    }
}

fn restarts(container: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let policy = container.get("restartPolicy").and_then(Value::as_str);
    if let Some(policy) = policy.filter(|policy| !RESTARTS.contains(policy)) {
        errors.not_supported(path.field("restartPolicy"), policy, &RESTARTS);
    }
}

fn init_container(container: &Value, spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    restarts(container, path, errors);
    if container.get("restartPolicy").is_none_or(Value::is_null) {
        errors.forget(path.field("restartPolicyRules"));
    }
    if is_sidecar(container) {
        return probes(container, spec, path, errors);
    }
    for field in ["lifecycle"].into_iter().chain(PROBES) {
        if given(container, field).is_some() {
            // What is in it does not matter.
            errors.forget(path.field(field));
            errors.forbidden(path.field(field), SIDECARS_ONLY);
        }
    }
    let list = path.field("resizePolicy");
    for (at, policy) in items(container, "resizePolicy").iter().enumerate() {
        if text(policy, "restartPolicy") == "RestartContainer" {
            let why = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            errors.invalid(list.index(at).field("restartPolicy"), "RestartContainer", why);
        }
    }
}

fn ephemeral_container<'a>(
    container: &'a Value,
    names: &mut HashSet<&'a str>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let name = text(container, "name");
    if !names.insert(name) {
        errors.duplicate(path.field("name"), name);
    }
    for field in NOT_EPHEMERAL {
        if UNSEEN.contains(&field) {
            errors.forget(path.field(field));
        }
        let is_used = match given(container, field) {
            Some(Value::Array(list)) => !list.as_slice().is_empty(),
            Some(Value::Object(map)) => field != "resources" || !map.is_empty(),
            value => value.is_some(),
        };
        if is_used {
            errors.forbidden(path.field(field), "cannot be set for an Ephemeral Container");
        }
    }
    let list = path.field("volumeMounts");
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        for field in ["subPath", "subPathExpr"] {
            if !text(mount, field).is_empty() {
                let why = "cannot be set for an Ephemeral Container";
                errors.forbidden(list.index(index).field(field), why);
            }
        }
    }
}

/// Checks the target container of an ephemeral one.
fn target(
    container: &Value,
    targets: &HashSet<CountedKey<&str>>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let target = text(container, "targetContainerName");
    if !target.is_empty() && !targets.contains(&CountedKey(target)) {
        errors.push(|| FieldError::not_found(path.field("targetContainerName"), target));
    }
}

/// Checks that host ports are unique.
fn host_ports(containers: &[Value], list: FieldPath<'_>, errors: &mut FieldErrors) {
    let mut taken = HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        let (path, ports) = (list.index(index), items(container, "ports"));
        let ports_path = path.field("ports");
        for (at, port) in ports.iter().enumerate() {
            if errors.is_full() {
                return;
            }
            let host = number(port, "hostPort");
            let key = (text(port, "protocol"), text(port, "hostIP"), host);
            if host != 0 && !taken.insert(key) {
                let shown = format!("{}/{}/{host}", key.0, key.1);
                errors.duplicate(ports_path.index(at).field("hostPort"), shown.as_str());
            }
        }
    }
}

/// In the host network, container ports are host ports.
fn host_network(spec: &Value, owner: SpecOwner<'_>, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if !is_true(spec, "hostNetwork") {
        return;
    }
    let list = path.field("containers");
    for (index, container) in items(spec, "containers").iter().enumerate() {
        let own = list.index(index);
        let ports = own.field("ports");
        for (at, port) in items(container, "ports").iter().enumerate() {
            let host = number(port, "hostPort");
            if (owner.pod.is_some() || host != 0) && host != number(port, "containerPort") {
                let why = "must match `containerPort` when `hostNetwork` is true";
                errors.invalid(ports.index(at).field("hostPort"), host, why);
            }
        }
    }
}

/// Checks that topology spread constraints are unique by key and action.
fn spread(spec: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let constraints = items(spec, "topologySpreadConstraints");
    let list = path.field("topologySpreadConstraints");
    let mut later = HashSet::new();
    for (at, constraint) in constraints.iter().enumerate().rev() {
        if errors.is_full() {
            return;
        }
        let key = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        if !later.insert(key) {
            let shown = format!("{{{}, {}}}", key.0, key.1);
            let field = list.index(at);
            errors.duplicate(field.field("{topologyKey, whenUnsatisfiable}"), shown.as_str());
        }
    }
}

/// The labels of a template that a selector must match: [`matches`].
pub(crate) fn template_labels(template: &Value) -> Option<&Value> {
    at(template, &["metadata", "labels"])
}

/// Whether a label selector selects these labels.
pub(crate) fn matches(selector: &Value, labels: Option<&Value>) -> bool {
    let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
    let exact = selector.get("matchLabels").and_then(Value::as_object);
    let all_exact = exact.into_iter().flatten().all(|(key, value)| label(key) == value.as_str());
    let is_met = |one: &Value| {
        let (value, wanted) = (label(text(one, "key")), items(one, "values"));
        let within =
            value.is_some_and(|value| wanted.iter().any(|one| one.as_str() == Some(value)));
        match str_at(one, &["operator"]) {
            "In" => within,
            "NotIn" => !within,
            "Exists" => value.is_some(),
            _ => value.is_none(),
        }
    };
    all_exact && items(selector, "matchExpressions").iter().all(is_met)
}
