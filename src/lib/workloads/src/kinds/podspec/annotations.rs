//! Annotations of pods that predate fields, and some that are still in use.

use super::containers;
use crate::cells::at;
use crate::checks::{FieldErrors, text};
use crate::paths::FieldPath;
use crate::types;
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::work::CountedKey;
use std::collections::HashSet;

/// Marks what the kubelet makes for a pod of its own files.
const MIRROR: &str = "kubernetes.io/config.mirror";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(crate) fn annotations(object: &Document) -> Option<&Map> {
    object.get(&["metadata", "annotations"]).and_then(Value::as_object)
}

/// Whether these are the annotations of a pod that stands for one of a kubelet's files.
pub(crate) fn is_mirror(annotations: Option<&Map>) -> bool {
    annotations.is_some_and(|annotations| annotations.contains_key(MIRROR))
}

/// The annotations of a pod or a template.
pub(crate) fn validate(
    annotations: Option<&Map>,
    spec: &Value,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let names: HashSet<CountedKey<&str>> =
        containers(spec).map(|(_, _, container)| CountedKey(text(container, "name"))).collect();
    for (key, value) in annotations.into_iter().flatten() {
        if errors.is_full() {
            return;
        }
        let (key, value) = (key.as_str(), value.as_str().unwrap_or_default());
        if key == MIRROR && text(spec, "nodeName").is_empty() {
            let why = "must set spec.nodeName if mirror pod annotation is set";
            errors.invalid(path.key(key), value, why);
        }
        if key == TOLERATIONS && !value.is_empty() {
            tolerations(value, path, errors);
        }
        if key == DELETION_COST && !is_cost(value) {
            errors.invalid(path.key(key), value, "must be a 32bit integer");
        }
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, path.field(key), errors);
        }
        if let Some(name) = key.strip_prefix(APP_ARMOR) {
            if !names.contains(&CountedKey(name)) {
                errors.invalid(path.key(key), name, "container not found");
            }
            let is_known = matches!(value, "" | "runtime/default" | "unconfined")
                || value.starts_with("localhost/");
            if !is_known {
                let why = format!("invalid AppArmor profile name: {value:?}");
                errors.invalid(path.key(key), value, &why);
            }
        }
    }
}

/// Tolerations in an annotation, from before there was a field for them.
fn tolerations(text: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    const FIELDS: [(&str, &str, &str); 5] = [
        ("key", "Key", "string"),
        ("operator", "Operator", "core.TolerationOperator"),
        ("value", "Value", "string"),
        ("effect", "Effect", "core.TaintEffect"),
        ("tolerationSeconds", "TolerationSeconds", "int64"),
    ];
    let misfit = |value: &Value, of: &str| {
        format!("json: cannot unmarshal {} into Go {of}", json::type_name(value))
    };
    let unfit = |toleration: &Value| {
        let Some(fields) = toleration.as_object() else {
            return (!toleration.is_null())
                .then(|| misfit(toleration, "value of type core.Toleration"));
        };
        FIELDS.iter().find_map(|(field, shown, kind)| {
            let value = fields.get(field).filter(|value| !value.is_null())?;
            let fits = if *kind == "int64" { value.as_i64().is_some() } else { value.is_string() };
            let of = format!("struct field Toleration.{shown} of type {kind}");
            (!fits).then(|| misfit(value, &of))
        })
    };
    let list = match json::read_any(text.as_bytes()).map(|read| read.value) {
        Ok(Value::Array(list)) => list,
        Ok(Value::Null) => return,
        Ok(other) => {
            let why = misfit(&other, "value of type []core.Toleration");
            return errors.invalid(path, TOLERATIONS, &why);
        }
        Err(error) => return errors.invalid(path, TOLERATIONS, &error.to_string()),
    };
    if let Some(why) = list.iter().find_map(unfit) {
        return errors.invalid(path, TOLERATIONS, &why);
    }
    let Some(rules) = types::of("core.v1.Toleration") else { return };
    let path = path.field(TOLERATIONS);
    let zero = Map::new();
    for (index, toleration) in list.iter().enumerate() {
        let fields = toleration.as_object().unwrap_or(&zero);
        rules.check(fields, None, path.index(index), errors);
    }
}

fn is_cost(text: &str) -> bool {
    let has_plain_start = text.len() == 1 || !text.starts_with(['+', '0']);
    has_plain_start && !text.starts_with("-0") && text.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    let Some(file) = profile.strip_prefix("localhost/") else {
        return errors.invalid(path, profile, "must be a valid seccomp profile");
    };
    if file.starts_with('/') {
        errors.invalid(path, file, "must be a relative path");
    }
    if file.split('/').any(|part| part == "..") {
        errors.invalid(path, file, "must not contain '..'");
    }
}

/// Annotations that an update may not change.
pub(crate) fn unchanged(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let metadata = root.field("metadata");
    let path = metadata.field("annotations");
    let (before, after) = (annotations(old), annotations(object));
    let guarded = |key: &str| key == MIRROR || key.starts_with(APP_ARMOR);
    let mut refuse = |key: &str, what: &str| {
        let kind = if key == MIRROR { "mirror pod annotation" } else { "AppArmor annotations" };
        errors.forbidden(path.key(key), &format!("may not {what} {kind}"));
    };
    for (key, value) in before.into_iter().flatten().filter(|(key, _)| guarded(key)) {
        if after.and_then(|after| after.get(key)) != Some(value) {
            refuse(key, "remove or update");
        }
    }
    for (key, _) in after.into_iter().flatten().filter(|(key, _)| guarded(key)) {
        if before.is_none_or(|before| !before.contains_key(key)) {
            refuse(key, "add");
        }
    }
}

/// Checks that fields and annotations of a new pod or template agree.
pub(crate) fn agree(
    annotations: Option<&Map>,
    spec: &Value,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let Some(annotations) = annotations else { return };
    let annotation = |key: &str| annotations.get(key).and_then(Value::as_str);
    let own = |kind: &str| at(spec, &["securityContext", kind]).filter(|value| value.is_object());
    if let (Some(profile), Some(given)) = (own("seccompProfile"), annotation(SECCOMP_POD)) {
        matching(profile, given, path.field("securityContext.seccompProfile"), "seccomp", errors);
    }
    let windows = at(spec, &["os", "name"]).and_then(Value::as_str) == Some("windows");
    for (list, index, container) in containers(spec) {
        let list = path.field(list);
        let container_path = list.index(index);
        let of = |kind: &str| {
            at(container, &["securityContext", kind]).filter(|value| value.is_object())
        };
        let name = text(container, "name");
        let given = annotation(&format!("{SECCOMP_CONTAINER}{name}"));
        if let (Some(profile), Some(given)) = (of("seccompProfile"), given) {
            let place = container_path.field("securityContext.seccompProfile");
            matching(profile, given, place, "seccomp", errors);
        }
        let profile = of("appArmorProfile").or_else(|| own("appArmorProfile"));
        let given = annotation(&format!("{APP_ARMOR}{name}"));
        if let (Some(profile), Some(given)) = (profile.filter(|_| !windows), given) {
            let place = container_path.field("securityContext.appArmorProfile");
            matching(profile, given, place, "apparmor", errors);
        }
    }
}

fn matching(
    profile: &Value,
    annotation: &str,
    path: FieldPath<'_>,
    kind: &str,
    errors: &mut FieldErrors,
) {
    let is_same = match text(profile, "type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (kind == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => match annotation.strip_prefix("localhost/") {
            Some(file) if file != text(profile, "localhostProfile") => {
                let why = format!("{kind} profile in annotation and field must match");
                return errors.forbidden(path.field("localhostProfile"), &why);
            }
            found => found.is_some(),
        },
        _ => true,
    };
    if !is_same {
        let why = format!("{kind} type in annotation and field must match");
        errors.forbidden(path.field("type"), &why);
    }
}
