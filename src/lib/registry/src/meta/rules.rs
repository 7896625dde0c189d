//! Validation of metadata: names, labels, annotations, owners, finalizers, immutable fields.

use super::{finalizers, generation};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, MAX_ERRORS, quote};
use ferrokube_apimachinery::metadata;
use ferrokube_apimachinery::name;
use ferrokube_resource::{Definition, FinalizerDomain, Scope};
use ferrokube_trace::annotation;
use std::collections::HashSet;

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
    let servers = |key: &str| ids_are_servers && annotation::ALL.contains(&key);
    if let Some(Value::Object(map)) = object.get(&["metadata"]) {
        metadata::check(map, "metadata", servers, &mut errors);
    }
    check_domains(definition, object, &mut errors);
    errors
}

fn check_names(definition: &Definition, object: &Document, errors: &mut Vec<FieldError>) {
    let check = |text: &str| {
        definition.hooks.validate_name(text).unwrap_or_else(|| name::dns1123_subdomain(text))
    };
    let prefix = object.meta("generateName");
    if !prefix.is_empty() {
        let found =
            if definition.policy.prefix_is_name { check(prefix) } else { check(&as_name(prefix)) };
        errors.extend(
            found.into_iter().map(|why| FieldError::invalid("metadata.generateName", prefix, why)),
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
    let found = name::path_segment_prefix(prefix).into_iter();
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
