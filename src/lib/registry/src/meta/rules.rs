//! Validation of metadata: names, labels, annotations, owners, finalizers, immutable fields.

use super::{finalizers, generation, owners};
use ferrokube_apimachinery::document::{Document, Map, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, quote};
use ferrokube_apimachinery::name;
use ferrokube_resource::{Definition, FinalizerDomain, Scope};
use ferrokube_trace::annotation;
use std::collections::HashSet;

/// Total of an object's annotations.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;
/// Subresource of a managedFields entry.
const MAX_SUBRESOURCE_BYTES: usize = 256;
/// New finalizers named in an error or warning.
const MAX_NAMED: usize = 10;
/// Finalizers that need no domain.
const STANDARD_FINALIZERS: [&str; 4] =
    ["kubernetes", "orphan", "foregroundDeletion", "customresourcecleanup.apiextensions.k8s.io"];

/// Errors in an object's metadata, at least the first [`MAX_ERRORS`].
pub(crate) fn check_object(
    definition: &Definition,
    object: &Document,
    ids_are_servers: bool,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_names(definition, object, &mut errors);
    check_namespace(definition, object, &mut errors);
    if let Some(generation) = generation(object).filter(|generation| *generation < 0) {
        errors.push(FieldError::invalid(
            "metadata.generation",
            generation,
            "must be greater than or equal to 0",
        ));
    }
    check_labels(object, &mut errors);
    check_annotations(object, ids_are_servers, &mut errors);
    errors.append(&mut owners::check(object));
    check_finalizers(object, &mut errors);
    check_managed_fields(object, &mut errors);
    check_domains(definition, object, &mut errors);
    errors
}

fn check_names(definition: &Definition, object: &Document, errors: &mut Vec<FieldError>) {
    let check = |text: &str| {
        definition.hooks.validate_name(text).unwrap_or_else(|| name::dns1123_subdomain(text))
    };
    let prefix = object.meta("generateName");
    if !prefix.is_empty() {
        errors.extend(
            check(&as_name(prefix))
                .into_iter()
                .map(|why| FieldError::invalid("metadata.generateName", prefix, why)),
        );
    }
    match object.name() {
        "" => {
            errors.push(FieldError::required("metadata.name", "name or generateName is required"))
        }
        name => errors.extend(
            check(name).into_iter().map(|why| FieldError::invalid("metadata.name", name, why)),
        ),
    }
}

/// Errors in generateName by the rules of all kinds.
pub(crate) fn check_prefix(object: &Document) -> Vec<FieldError> {
    let prefix = object.meta("generateName");
    let found = name::path_segment(&as_name(prefix)).into_iter();
    found.map(|why| FieldError::invalid("metadata.generateName", prefix, why)).collect()
}

/// A generateName in a form that is validated as a name: a trailing dash is allowed, and so are
/// names of dots.
fn as_name(prefix: &str) -> String {
    match prefix {
        "." | ".." => format!("{prefix}a"),
        // kube-apiserver also masks the character before the dash.
        _ => match prefix.strip_suffix('-').and_then(|stem| stem.char_indices().next_back()) {
            Some((at, _)) => format!("{}a", &prefix[..at]),
            None => prefix.to_owned(),
        },
    }
}

fn check_namespace(definition: &Definition, object: &Document, errors: &mut Vec<FieldError>) {
    let namespace = object.namespace();
    match definition.scope {
        Scope::Cluster if !namespace.is_empty() => {
            errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"))
        }
        Scope::Cluster => {}
        Scope::Namespaced if namespace.is_empty() => {
            errors.push(FieldError::required("metadata.namespace", ""))
        }
        Scope::Namespaced => errors.extend(
            name::dns1123_label(namespace)
                .into_iter()
                .map(|why| FieldError::invalid("metadata.namespace", namespace, why)),
        ),
    }
}

fn pairs<'a>(object: &'a Document, field: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let map = object.get(&["metadata", field]).and_then(Value::as_object);
    map.into_iter()
        .flat_map(Map::iter)
        .map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

fn check_labels(object: &Document, errors: &mut Vec<FieldError>) {
    for (key, value) in pairs(object, "labels") {
        if errors.len() >= MAX_ERRORS {
            return;
        }
        errors.extend(
            name::qualified_name(key)
                .into_iter()
                .map(|why| FieldError::invalid("metadata.labels", key, why)),
        );
        errors.extend(
            name::label_value(value)
                .into_iter()
                .map(|why| FieldError::invalid("metadata.labels", value, why)),
        );
    }
}

fn check_annotations(object: &Document, ids_are_servers: bool, errors: &mut Vec<FieldError>) {
    let mut bytes = 0;
    for (key, value) in pairs(object, "annotations") {
        // The server's annotations do not count towards the limit.
        if ids_are_servers && annotation::ALL.contains(&key) {
            continue;
        }
        bytes += key.len() + value.len();
        if errors.len() >= MAX_ERRORS {
            continue;
        }
        // kube-apiserver accepts upper case in keys here.
        let wrong = if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
            name::qualified_name(&key.to_ascii_lowercase())
        } else {
            name::qualified_name(key)
        };
        errors.extend(
            wrong.into_iter().map(|why| FieldError::invalid("metadata.annotations", key, why)),
        );
    }
    if bytes > MAX_ANNOTATION_BYTES {
        errors.push(FieldError::too_long("metadata.annotations", MAX_ANNOTATION_BYTES));
    }
}

fn check_finalizers(object: &Document, errors: &mut Vec<FieldError>) {
    let [mut orphan, mut foreground] = [false, false];
    for finalizer in finalizers(object) {
        orphan |= finalizer == "orphan";
        foreground |= finalizer == "foregroundDeletion";
        if errors.len() < MAX_ERRORS {
            errors.extend(
                name::qualified_name(finalizer)
                    .into_iter()
                    .map(|why| FieldError::invalid("metadata.finalizers", finalizer, why)),
            );
        }
    }
    if orphan && foreground {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(
            "metadata.finalizers",
            object.get(&["metadata", "finalizers"]),
            why,
        ));
    }
}

fn check_domains(definition: &Definition, object: &Document, errors: &mut Vec<FieldError>) {
    if definition.policy.finalizer_domain != FinalizerDomain::Required {
        return;
    }
    for (index, finalizer) in
        finalizers(object).enumerate().filter(|(_, finalizer)| !is_qualified(finalizer))
    {
        if errors.len() >= MAX_ERRORS {
            return;
        }
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        errors.push(FieldError::invalid(format!("metadata.finalizers[{index}]"), finalizer, why));
    }
}

/// Operations and types were validated when the entries were decoded.
fn check_managed_fields(object: &Document, errors: &mut Vec<FieldError>) {
    for (index, entry) in object.list(&["metadata", "managedFields"]).iter().enumerate() {
        if errors.len() >= MAX_ERRORS {
            return;
        }
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        let path = |field: &str| format!("metadata.managedFields[{index}].{field}");
        errors.extend(check_manager(text("manager"), || path("manager")));
        if text("subresource").len() > MAX_SUBRESOURCE_BYTES {
            errors.push(FieldError::too_long(path("subresource"), MAX_SUBRESOURCE_BYTES));
        }
    }
}

pub(crate) fn check_manager(manager: &str, path: impl Fn() -> String) -> Vec<FieldError> {
    FieldError::manager(&path(), manager)
}

fn is_qualified(finalizer: &str) -> bool {
    finalizer.contains('/') || STANDARD_FINALIZERS.contains(&finalizer)
}

/// Warns of new finalizers without a domain, if the policy prefers one.
pub(crate) fn warnings(
    definition: &Definition,
    old: Option<&Document>,
    object: &Document,
) -> Vec<String> {
    if definition.policy.finalizer_domain != FinalizerDomain::Preferred {
        return Vec::new();
    }
    let mut unqualified: Vec<&str> =
        finalizers(object).filter(|finalizer| !is_qualified(finalizer)).collect();
    if unqualified.is_empty() {
        return Vec::new();
    }
    let stored: HashSet<&str> = old.into_iter().flat_map(finalizers).collect();
    unqualified.retain(|finalizer| !stored.contains(finalizer));
    unqualified.sort_unstable();
    unqualified.dedup();
    let warning = |finalizer: &str| {
        let path = if finalizer.contains('.') { " including a path (/)" } else { "" };
        format!(
            "metadata.finalizers: {finalizer:?}: prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        )
    };
    unqualified.into_iter().take(MAX_NAMED).map(warning).collect()
}

/// A metadata value in an error: a missing string is empty, other missing values are null.
fn shown(field: &str, value: Option<&Value>) -> Value {
    match (field, value) {
        (_, Some(value)) => value.clone(),
        ("name" | "namespace" | "uid", None) => Value::from(""),
        _ => Value::Null,
    }
}

/// Errors in the metadata of an update, compared with the stored object.
pub(crate) fn check_change(old: &Document, object: &Document) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.is_terminating() {
        let stored: HashSet<&str> = finalizers(old).collect();
        let mut added: Vec<String> = finalizers(object)
            .filter(|finalizer| !stored.contains(finalizer))
            .take(MAX_NAMED)
            .map(quote)
            .collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let named = added.join(", ");
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{named}}}"
            );
            errors.push(FieldError::forbidden("metadata.finalizers", why));
        }
    }
    if generation(object).unwrap_or(0) < generation(old).unwrap_or(0) {
        errors.push(FieldError::invalid(
            "metadata.generation",
            generation(object).unwrap_or(0),
            "must not be decremented",
        ));
    }
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let [before, after] = [old, object]
            .map(|object| object.get(&["metadata", field]).filter(|value| !value.is_null()));
        if before != after {
            errors.push(FieldError::invalid(
                format!("metadata.{field}"),
                shown(field, after),
                "field is immutable",
            ));
        }
    }
    errors
}
