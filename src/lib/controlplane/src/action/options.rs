//! Options of each verb, from the query (for deletes also the body), validated as kube-apiserver
//! does.

use super::include::Include;
use super::query::{Query, parse_duration};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, Word, quote};
use ferrokube_apimachinery::go::duration_fault;
use ferrokube_apimachinery::json::type_name;
use ferrokube_apimachinery::selector::{FieldSelector, LabelSelector};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{
    DeleteOptions, FieldValidation, ListOptions, VersionMatch, WatchOptions, WriteOptions,
};
use std::time::Duration;

/// Longer selectors are not searched for a name: such a request needs rights to the whole
/// collection.
const MAX_SELECTOR_BYTES: usize = 4096;
/// A watch without a timeout ends after this long, or up to twice as long.
const MIN_WATCH: Duration = Duration::from_secs(30 * 60);
const MAX_WATCH: Duration = Duration::from_secs(24 * 3600);

fn invalid(kind: &str, errors: &[FieldError]) -> Failure {
    Failure::invalid("meta.k8s.io", kind, "", errors)
}

/// The query of a request, private to this module. Each verb decodes the options that it knows.
#[derive(Debug, Default)]
pub(crate) struct Options {
    query: Query,
    /// List options, decoded once authorization has looked for a name in them.
    list: Option<Box<ListOptions>>,
}

impl Options {
    /// From the raw query of a URI.
    pub(crate) fn parse(raw: Option<&str>) -> Self {
        Self { query: Query::parse(raw), list: None }
    }

    /// Whether a read of a collection is a watch.
    pub(super) fn is_watch(&self) -> bool {
        self.query.flag("watch") == Some(true)
    }

    /// The name that a list or watch selects by `metadata.name`: it is authorized as that name.
    /// None if the options are malformed.
    pub(super) fn select_name(&mut self) -> Option<String> {
        let (fields, labels) = (self.query.text("fieldSelector"), self.query.text("labelSelector"));
        if !fields.contains("metadata.name") || fields.len().max(labels.len()) > MAX_SELECTOR_BYTES
        {
            return None;
        }
        let list = self.list.insert(Box::new(list(&self.query).ok()?));
        let name = list
            .fields
            .exact("metadata.name")
            .filter(|name| !matches!(*name, "" | "." | "..") && !name.contains(['/', '%']))?;
        Some(name.to_owned())
    }

    /// Whether a read accepts a state as old as a revision, or any.
    pub(crate) fn has_revision(&self) -> bool {
        !self.query.text("resourceVersion").is_empty()
    }

    /// The requested timeout, capped at `most`; absent, zero and negative mean `most`.
    ///
    /// # Errors
    /// 400 if malformed.
    pub(crate) fn timeout(&self, most: Duration) -> Result<Duration, Failure> {
        let text = self.query.text("timeout");
        if text.is_empty() {
            return Ok(most);
        }
        let asked = parse_duration(text).ok_or_else(|| {
            Failure::bad_request(format!(
                "invalid timeout specified in the request URL - {}",
                duration_fault(text)
            ))
        })?;
        Ok(if asked.is_zero() { most } else { asked.min(most) })
    }

    /// The requested resource version.
    ///
    /// # Errors
    /// 400 for the removed `export` option.
    pub(crate) fn get(&self) -> Result<&str, Failure> {
        if self.query.flag("export") == Some(true) {
            return Err(Failure::bad_request(
                "the export parameter, deprecated since v1.14, is no longer supported",
            ));
        }
        Ok(self.query.text("resourceVersion"))
    }

    /// Options of a list or deletecollection. The registry checks their combination.
    ///
    /// # Errors
    /// 400 if malformed.
    pub(crate) fn list(&self) -> Result<ListOptions, Failure> {
        self.list.as_deref().map_or_else(|| list(&self.query), |list| Ok(list.clone()))
    }

    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) fn watch(&self, jitter: u64) -> Result<WatchOptions, Failure> {
        let list = self.list()?;
        let timeout = match self.query.integer("timeoutSeconds")? {
            Some(seconds) if seconds > 0 => {
                Duration::from_secs(seconds.unsigned_abs()).min(MAX_WATCH)
            }
            // Over at once, like kube-apiserver's deadline in the past: it responds and ends.
            Some(seconds) if seconds < 0 => Duration::ZERO,
            _ => MIN_WATCH + Duration::from_secs(jitter % MIN_WATCH.as_secs()),
        };
        Ok(WatchOptions {
            list,
            bookmarks: self.query.flag("allowWatchBookmarks") == Some(true),
            timeout,
            by_path: !self.is_watch(),
        })
    }

    /// Options of a create, update or patch.
    ///
    /// # Errors
    /// 422 if invalid.
    pub(crate) fn write(&self, kind: WriteKind) -> Result<WriteOptions, Failure> {
        write(&self.query, kind)
    }

    /// Options of a delete: from the body if there is one, else from the query.
    ///
    /// # Errors
    /// 400 if malformed, 422 if invalid.
    pub(crate) fn delete(&self, body: Option<&Document>) -> Result<DeleteOptions, Failure> {
        delete(&self.query, body)
    }

    /// The objects included in rows of a Table.
    ///
    /// # Errors
    /// 400 if unknown.
    pub(crate) fn include(&self) -> Result<Include, Failure> {
        Include::parse(self.query.text("includeObject"))
    }

    /// The limit of a list, if it is one.
    pub(crate) fn limit_hint(&self) -> Option<u64> {
        let limit = self.query.integer("limit").ok().flatten()?;
        u64::try_from(limit).ok().filter(|limit| *limit > 0)
    }

    /// Whether a watch begins with the objects that there are.
    pub(crate) fn has_initial_state(&self) -> bool {
        self.query.flag("sendInitialEvents") == Some(true)
            || matches!(self.query.text("resourceVersion"), "" | "0")
    }

    /// Whether a dump of requests includes their details.
    pub(crate) fn has_request_details(&self) -> bool {
        !self.query.text("includeRequestDetails").is_empty()
    }

    /// `?pretty`; `None` if absent.
    pub(crate) fn pretty(&self) -> Option<bool> {
        self.query
            .get("pretty")
            .map(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }

    pub(crate) fn is_dry_run(&self) -> bool {
        self.query.get("dryRun").is_some()
    }

    /// Whether a probe lists its checks.
    pub(crate) fn is_verbose(&self) -> bool {
        self.query.get("verbose").is_some()
    }

    /// Checks that a probe skips.
    pub(crate) fn excluded(&self) -> impl Iterator<Item = &str> {
        self.query.all("exclude")
    }

    /// The expected hash of an OpenAPI document.
    pub(crate) fn hash(&self) -> Option<&str> {
        self.query.get("hash")
    }
}

fn list(query: &Query) -> Result<ListOptions, Failure> {
    // The first malformed number in this order is the one in the message.
    query.integer("timeoutSeconds")?;
    let limit = query.integer("limit")?.unwrap_or(0);
    let labels = LabelSelector::parse(query.text("labelSelector"))
        .map_err(|error| Failure::bad_request(error.to_string()))?;
    let fields = FieldSelector::parse(query.text("fieldSelector"))
        .map_err(|error| Failure::bad_request(error.to_string()))?;
    Ok(ListOptions {
        labels,
        fields,
        limit: u64::try_from(limit).unwrap_or(0),
        continue_token: query.text("continue").to_owned(),
        resource_version: query.text("resourceVersion").to_owned(),
        version_match: VersionMatch::parse(query.text("resourceVersionMatch")),
        given_match: query.text("resourceVersionMatch").to_owned(),
        initial_events: query.flag("sendInitialEvents"),
        watch: query.flag("watch") == Some(true),
        ..ListOptions::default()
    })
}

/// The write whose options are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH other than apply.
    Patch,
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

fn write(query: &Query, kind: WriteKind) -> Result<WriteOptions, Failure> {
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
        WriteKind::Patch if force.is_some() => {
            errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"))
        }
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
            errors.push(FieldError::not_supported(
                "fieldValidation",
                other,
                ["", "Ignore", "Strict", "Warn"],
            ));
            None
        }
    };
    if !errors.is_empty() {
        return Err(invalid(kind.options_kind(), &errors));
    }
    Ok(WriteOptions {
        dry_run,
        unshown: false,
        field_validation,
        field_manager: manager.to_owned(),
        force: force == Some(true),
        forbid_create: None,
    })
}

/// Whether `dryRun` is set; `All` is the only valid value.
fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut Vec<FieldError>) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        errors.push(FieldError::not_supported("dryRun", &values[..], ["All"]));
    }
    !values.is_empty()
}

fn delete(query: &Query, body: Option<&Document>) -> Result<DeleteOptions, Failure> {
    let (mut errors, mut dry_run_errors) = (Vec::new(), Vec::new());
    let precondition =
        |name: &str| query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
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
            errors.push(FieldError::invalid(
                "propagationPolicy",
                Word(policy),
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        if !matches!(policy, "Foreground" | "Background" | "Orphan") {
            errors.push(FieldError::not_supported(
                "propagationPolicy",
                Word(policy),
                ["Foreground", "Background", "Orphan", "nil"],
            ));
        }
    }
    errors.append(&mut dry_run_errors);
    if errors.is_empty() { Ok(options) } else { Err(invalid("DeleteOptions", &errors)) }
}

/// Position of the scheme of options, as in kube-apiserver's messages.
const OPTIONS_SCHEME: &str =
    "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27";

fn delete_from_body(
    body: &Document,
    errors: &mut Vec<FieldError>,
) -> Result<DeleteOptions, Failure> {
    for field in ["apiVersion", "kind"] {
        if let Some(value) = present(body, &[field]).filter(|value| !value.is_string()) {
            return Err(Failure::bad_request(format!(
                "couldn't get version/kind; json parse error: {}",
                wrong_type(value, &format!(".{field}"), "string")
            )));
        }
    }
    let version = body.api_version();
    if version.matches('/').count() > 1 {
        return Err(Failure::bad_request(format!("unexpected GroupVersion string: {version}")));
    }
    if !matches!(body.kind(), "" | "DeleteOptions") {
        let version = if version.is_empty() { "meta.k8s.io/v1" } else { version };
        let why = format!(
            "no kind {} is registered for version {} in scheme {OPTIONS_SCHEME:?}",
            quote(body.kind()),
            quote(version)
        );
        return Err(Failure::bad_request(why));
    }
    let values = match present(body, &["dryRun"]) {
        None => Vec::new(),
        Some(Value::Array(values)) => values
            .iter()
            .map(|value| {
                value.as_str().ok_or_else(|| mistyped(value, "DeleteOptions.dryRun", "string"))
            })
            .collect::<Result<Vec<_>, _>>()?,
        Some(other) => return Err(mistyped(other, "DeleteOptions.dryRun", "[]string")),
    };
    typed(body, &["preconditions"], "v1.Preconditions", Value::as_object)?;
    typed(body, &["ignoreStoreReadErrorWithClusterBreakingPotential"], "bool", Value::as_bool)?;
    Ok(DeleteOptions {
        dry_run: dry_run(values.into_iter(), errors),
        grace_seconds: typed(body, &["gracePeriodSeconds"], "int64", Value::as_i64)?,
        propagation: text(body, &["propagationPolicy"], "v1.DeletionPropagation")?,
        orphan_dependents: typed(body, &["orphanDependents"], "bool", Value::as_bool)?,
        uid: text(body, &["preconditions", "uid"], "types.UID")?,
        resource_version: text(body, &["preconditions", "resourceVersion"], "string")?,
    })
}

fn present<'a>(body: &'a Document, path: &[&str]) -> Option<&'a Value> {
    body.get(path).filter(|value| !value.is_null())
}

fn typed<'a, T>(
    body: &'a Document,
    path: &[&str],
    kind: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let owner = if path.len() > 1 { "Preconditions" } else { "DeleteOptions" };
    present(body, path)
        .map(|value| {
            read(value).ok_or_else(|| mistyped(value, &format!("{owner}.{}", path.join(".")), kind))
        })
        .transpose()
}

fn text(body: &Document, path: &[&str], kind: &str) -> Result<Option<String>, Failure> {
    typed(body, path, kind, |value| value.as_str().map(str::to_owned))
}

fn mistyped(value: &Value, field: &str, kind: &str) -> Failure {
    Failure::bad_request(wrong_type(value, field, kind))
}

/// Error message of Go's decoder.
fn wrong_type(value: &Value, field: &str, kind: &str) -> String {
    let given = match value {
        Value::Number(number) if kind == "int64" => format!("number {number}"),
        other => type_name(other).to_owned(),
    };
    format!("json: cannot unmarshal {given} into Go struct field {field} of type {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn excessive_timeouts_are_capped() {
        let most = Duration::from_secs(60);
        let timeout = |text: &str| Options::parse(Some(&format!("timeout={text}"))).timeout(most);
        for (text, want) in [("", 60), ("0", 60), ("-5s", 60), ("999h", 60), ("1s", 1)] {
            assert_eq!(timeout(text).unwrap(), Duration::from_secs(want), "{text}");
        }
        let refused = timeout("abc").unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (400, "invalid timeout specified in the request URL - time: invalid duration \"abc\"")
        );
    }

    #[test]
    fn the_first_malformed_number_of_a_list_is_named() {
        let message = |query: &str| list(&Query::parse(Some(query))).unwrap_err().message;
        let both = message("limit=&timeoutSeconds=x");
        assert_eq!(both, "strconv.ParseInt: parsing \"x\": invalid syntax");
        assert_eq!(message("limit="), "strconv.ParseInt: parsing \"\": invalid syntax");
    }

    #[test]
    fn fault_41_a_watch_lives_a_day_at_most() {
        let day = Duration::from_secs(24 * 3600);
        let timeout = |seconds: i64| {
            let query = format!("timeoutSeconds={seconds}");
            Options::parse(Some(&query)).watch(0).unwrap().timeout
        };
        for (seconds, want) in [
            (i64::MAX, day),
            (86_401, day),
            (86_400, day),
            (86_399, Duration::from_secs(86_399)),
            (-1, Duration::ZERO),
            (i64::MIN, Duration::ZERO),
        ] {
            assert_eq!(timeout(seconds), want, "{seconds}");
        }
        for jitter in [0, 1, u64::MAX] {
            assert!(Options::parse(None).watch(jitter).unwrap().timeout < day, "{jitter}");
        }
    }

    #[test]
    fn preconditions_of_a_delete_stand_in_the_query_or_the_body() {
        let read = |query: &str, body: Option<Value>| {
            delete(
                &Query::parse(Some(query)),
                body.map(|body| Document::from_value(body).unwrap()).as_ref(),
            )
        };
        let both = |options: DeleteOptions| (options.uid, options.resource_version);
        assert_eq!(
            both(read("uid=u&resourceVersion=7", None).unwrap()),
            (Some("u".to_owned()), Some("7".to_owned()))
        );
        assert_eq!(both(read("uid=&resourceVersion=", None).unwrap()), (None, None));
        let body = json!({"preconditions": {"uid": "v"}});
        assert_eq!(
            both(read("uid=u&resourceVersion=7", Some(body)).unwrap()),
            (Some("v".to_owned()), None),
            "a body replaces the query"
        );
    }

    #[test]
    fn malformed_delete_options_are_rejected_in_go_s_words() {
        let refused = |body: Value| {
            let failure =
                delete(&Query::default(), Some(&Document::from_value(body).unwrap())).unwrap_err();
            assert_eq!(failure.code, 400);
            failure.message
        };
        let field = |given: &str, field: &str, kind: &str| {
            format!("json: cannot unmarshal {given} into Go struct field {field} of type {kind}")
        };
        assert_eq!(
            refused(json!({"preconditions": "x"})),
            field("string", "DeleteOptions.preconditions", "v1.Preconditions")
        );
        assert_eq!(
            refused(json!({"preconditions": {"uid": 1}})),
            field("number", "Preconditions.preconditions.uid", "types.UID")
        );
        assert_eq!(
            refused(json!({"gracePeriodSeconds": "x"})),
            field("string", "DeleteOptions.gracePeriodSeconds", "int64")
        );
        assert_eq!(
            refused(json!({"gracePeriodSeconds": 1.5})),
            field("number 1.5", "DeleteOptions.gracePeriodSeconds", "int64")
        );
        assert_eq!(
            refused(json!({"dryRun": "x"})),
            field("string", "DeleteOptions.dryRun", "[]string")
        );
        assert_eq!(
            refused(json!({"kind": 1})),
            format!(
                "couldn't get version/kind; json parse error: {}",
                field("number", ".kind", "string")
            )
        );
        assert_eq!(
            refused(json!({"apiVersion": "a/b/c"})),
            "unexpected GroupVersion string: a/b/c"
        );
        assert!(
            refused(json!({"kind": "x"}))
                .starts_with("no kind \"x\" is registered for version \"meta.k8s.io/v1\"")
        );
    }
}
