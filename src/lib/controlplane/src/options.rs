//! Options of each verb, from the query (and for deletes the body), checked as upstream checks them.

use crate::query::Query;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::selector::{FieldSelector, LabelSelector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{DeleteOptions, FieldValidation, ListOptions, VersionMatch, WatchOptions, WriteOptions};
use std::time::Duration;

/// A watch without a timeout ends after this much or up to twice as much.
const MIN_WATCH: Duration = Duration::from_secs(30 * 60);
/// No watch lasts longer.
const MAX_WATCH: Duration = Duration::from_secs(24 * 3600);

fn invalid(kind: &str, errors: &[FieldError]) -> Failure {
    Failure::invalid("meta.k8s.io", kind, "", errors)
}

/// Options of a list (also of a deletecollection). Their combinations are checked by the registry.
///
/// # Errors
/// 400 for malformed values.
pub(crate) fn list(query: &Query) -> Result<ListOptions, Failure> {
    let limit = query.integer("limit")?.unwrap_or(0);
    query.integer("timeoutSeconds")?;
    let labels = LabelSelector::parse(query.text("labelSelector")).map_err(|error| Failure::bad_request(error.to_string()))?;
    let fields = FieldSelector::parse(query.text("fieldSelector")).map_err(|error| Failure::bad_request(error.to_string()))?;
    Ok(ListOptions {
        labels,
        fields,
        limit: u64::try_from(limit).unwrap_or(0),
        continue_token: query.text("continue").to_owned(),
        resource_version: query.text("resourceVersion").to_owned(),
        version_match: VersionMatch::parse(query.text("resourceVersionMatch")),
        initial_events: query.flag("sendInitialEvents"),
    })
}

/// Options of a watch.
///
/// # Errors
/// As [`list`].
pub(crate) fn watch(query: &Query, jitter: u64) -> Result<WatchOptions, Failure> {
    let list = list(query)?;
    let timeout = match query.integer("timeoutSeconds")? {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()).min(MAX_WATCH),
        // Over before it begins, as upstream's deadline in the past makes it: a watch that answers and ends.
        Some(seconds) if seconds < 0 => Duration::ZERO,
        _ => MIN_WATCH + Duration::from_secs(jitter % MIN_WATCH.as_secs()),
    };
    Ok(WatchOptions { list, bookmarks: query.flag("allowWatchBookmarks") == Some(true), timeout })
}

/// Which write asks for its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// POST
    Create,
    /// PUT
    Update,
    /// PATCH, but not apply
    Patch,
    /// PATCH apply
    Apply,
}

impl WriteKind {
    fn options_kind(self) -> &'static str {
        match self {
            Self::Create => "CreateOptions",
            Self::Update => "UpdateOptions",
            Self::Patch | Self::Apply => "PatchOptions",
        }
    }
}

/// Options of a create, update or patch.
///
/// # Errors
/// 422.
pub(crate) fn write(query: &Query, kind: WriteKind) -> Result<WriteOptions, Failure> {
    if query.is_empty() && kind != WriteKind::Apply {
        return Ok(WriteOptions::default());
    }
    let mut errors = Vec::new();
    let force = query.flag("force");
    let manager = query.text("fieldManager");
    match kind {
        WriteKind::Apply if manager.is_empty() => {
            errors.push(FieldError::required("fieldManager", "is required for apply patch"));
        }
        WriteKind::Patch if force.is_some() => errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch")),
        _ => {}
    }
    errors.extend(FieldError::manager("fieldManager", manager));
    let dry_run = dry_run(query.all("dryRun"), &mut errors);
    let field_validation = match query.text("fieldValidation") {
        "" => None,
        "Ignore" => Some(FieldValidation::Ignore),
        "Warn" => Some(FieldValidation::Warn),
        "Strict" => Some(FieldValidation::Strict),
        other => {
            errors.push(FieldError::not_supported("fieldValidation", other, ["", "Ignore", "Strict", "Warn"]));
            None
        }
    };
    if !errors.is_empty() {
        return Err(invalid(kind.options_kind(), &errors));
    }
    Ok(WriteOptions { dry_run, field_validation, field_manager: manager.to_owned(), force: force == Some(true), forbid_create: None })
}

/// Whether a dry run is asked for; `All` is the only value.
fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut Vec<FieldError>) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        errors.push(FieldError::not_supported("dryRun", &values[..], ["All"]));
    }
    !values.is_empty()
}

/// Options of a delete: from the body when there is one, else from the query.
///
/// # Errors
/// 400 for malformed values, 422 for values that are not allowed.
pub(crate) fn delete(query: &Query, body: Option<&Document>) -> Result<DeleteOptions, Failure> {
    let (mut errors, mut dry_run_errors) = (Vec::new(), Vec::new());
    let precondition = |name: &str| query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
    let options = match body {
        Some(body) => delete_from_body(body, &mut dry_run_errors)?,
        None => DeleteOptions {
            dry_run: dry_run(query.all("dryRun"), &mut dry_run_errors),
            grace_seconds: query.integer("gracePeriodSeconds")?,
            propagation: query.get("propagationPolicy").map(str::to_owned),
            orphan_dependents: query.flag("orphanDependents"),
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        },
    };
    if let Some(policy) = options.propagation.as_deref() {
        if options.orphan_dependents.is_some() {
            errors.push(FieldError::invalid("propagationPolicy", Word(policy), "orphanDependents and deletionPropagation cannot be both set"));
        }
        if !matches!(policy, "Foreground" | "Background" | "Orphan") {
            errors.push(FieldError::not_supported("propagationPolicy", Word(policy), ["Foreground", "Background", "Orphan", "nil"]));
        }
    }
    errors.append(&mut dry_run_errors);
    if errors.is_empty() { Ok(options) } else { Err(invalid("DeleteOptions", &errors)) }
}

fn delete_from_body(body: &Document, errors: &mut Vec<FieldError>) -> Result<DeleteOptions, Failure> {
    if !matches!(body.kind(), "" | "DeleteOptions") {
        return Err(Failure::bad_request(format!("expected DeleteOptions in the body, not {}", body.kind())));
    }
    let values = match present(body, &["dryRun"]) {
        None => Vec::new(),
        Some(Value::Array(values)) => values.iter().map(|value| value.as_str().ok_or_else(|| wrong_type("dryRun"))).collect::<Result<Vec<_>, _>>()?,
        Some(_) => return Err(wrong_type("dryRun")),
    };
    typed(body, &["preconditions"], Value::as_object)?;
    Ok(DeleteOptions {
        dry_run: dry_run(values.into_iter(), errors),
        grace_seconds: typed(body, &["gracePeriodSeconds"], Value::as_i64)?,
        propagation: text(body, &["propagationPolicy"])?,
        orphan_dependents: typed(body, &["orphanDependents"], Value::as_bool)?,
        uid: text(body, &["preconditions", "uid"])?,
        resource_version: text(body, &["preconditions", "resourceVersion"])?,
    })
}

fn present<'a>(body: &'a Document, path: &[&str]) -> Option<&'a Value> {
    body.get(path).filter(|value| !value.is_null())
}

fn typed<'a, T>(body: &'a Document, path: &[&str], read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>, Failure> {
    present(body, path).map(|value| read(value).ok_or_else(|| wrong_type(&path.join(".")))).transpose()
}

fn text(body: &Document, path: &[&str]) -> Result<Option<String>, Failure> {
    typed(body, path, |value| value.as_str().map(str::to_owned))
}

fn wrong_type(field: &str) -> Failure {
    Failure::bad_request(format!("DeleteOptions.{field} has the wrong type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preconditions_of_a_delete_stand_in_the_query_or_the_body() {
        let read = |query: &str, body: Option<Value>| delete(&Query::parse(Some(query)), body.map(|body| Document::from_value(body).unwrap()).as_ref());
        let both = |options: DeleteOptions| (options.uid, options.resource_version);
        assert_eq!(both(read("uid=u&resourceVersion=7", None).unwrap()), (Some("u".to_owned()), Some("7".to_owned())));
        assert_eq!(both(read("uid=&resourceVersion=", None).unwrap()), (None, None));
        let body = ferrokube_apimachinery::document::json!({"preconditions": {"uid": "v"}});
        assert_eq!(both(read("uid=u&resourceVersion=7", Some(body)).unwrap()), (Some("v".to_owned()), None), "a body takes the query's place");
        for body in [ferrokube_apimachinery::document::json!({"preconditions": "x"}), ferrokube_apimachinery::document::json!({"preconditions": {"uid": 1}})] {
            assert_eq!(read("", Some(body)).unwrap_err().code, 400);
        }
    }
}
