//! Job and CronJob: pods that run to completion.

mod indexes;
mod policies;
mod status;

use crate::cells::{CellValue, at, int_at, list_at, str_at};
use crate::checks::{FieldErrors, text};
use crate::hooks::KindCode;
use crate::kinds::podspec::validate::{self as specs, SpecOwner};
use crate::kinds::podspec::{self, warnings};
use crate::kinds::templated;
use crate::paths::FieldPath;
use crate::rules::{same, texts};
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Map, Value, json};
use ferrokube_apimachinery::{name, time};
use ferrokube_resource::Change;
use std::time::SystemTime;

const TEMPLATE: &[&str] = &["spec", "template"];
/// Labels of a job's pods: each in its old and its new form.
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Job: runs once.
#[derive(Debug)]
pub(crate) struct Job;

impl KindCode for Job {
    fn default(&self, _version: &str, object: &mut Document) {
        default_spec(object, &["spec"]);
        podspec::default_at(object, &["spec", "template", "spec"]);
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_some() {
            return own_labels(object);
        }
        object.set(&["status"], json!({}));
        if object.get(&["spec", "manualSelector"]).and_then(Value::as_bool) == Some(true) {
            return own_labels(object);
        }
        let (name, uid) = (object.name().to_owned(), object.uid().to_owned());
        let given = object.get(&["spec", "template", "metadata", "labels"]);
        // kube-apiserver copies labels that were all generated once it has stored the job: errors
        // about them are those of the template alone.
        let is_own = given.and_then(Value::as_object).is_some_and(|labels| !labels.is_empty())
            || name::label_value(&name).is_empty();
        for (labels, value) in [(NAME_LABELS, name), (UID_LABELS, uid.clone())] {
            for label in labels {
                let path = ["spec", "template", "metadata", "labels", label];
                if object.get(&path).is_none() {
                    object.set(&path, value.as_str());
                }
            }
        }
        let path = ["spec", "selector", "matchLabels", UID_LABELS[1]];
        if object.get(&path).is_none() {
            object.set(&path, uid);
        }
        if is_own {
            own_labels(object);
        }
    }

    fn validated(&self, _change: &Change<'_>, object: &Document) -> Option<Document> {
        policies::validated(object, &["spec"])
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if !change.subresource.is_empty() {
            return change.old.map_or((), |old| status::validate(old, object, errors));
        }
        generated(object, errors);
        // An update's errors are given twice.
        for _ in 0..=usize::from(change.old.is_some()) {
            checked(object, errors);
        }
        let indexed = object.str(&["spec", "completionMode"]) == Some("Indexed");
        let completions = object.get(&["spec", "completions"]).and_then(Value::as_i64);
        if let Some(completions) = completions.filter(|number| indexed && *number > 0) {
            let host = format!("{}-{}", object.name(), completions - 1);
            if !ferrokube_apimachinery::name::dns1123_label(&host).is_empty() {
                let root = FieldPath::Root;
                let why = format!("will not able to create pod with invalid DNS label: {host}");
                errors.invalid(root.field("metadata.name"), object.name(), &why);
            }
        }
        if let Some(old) = change.old {
            unchanged(old, object, errors);
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        let (root, place) = (FieldPath::Root, "spec.template");
        if let Some(template) = object.get(TEMPLATE) {
            warnings::warn(template, root.field(place), out);
        }
    }

    fn cell(&self, word: &str, object: &Value, now: SystemTime) -> CellValue {
        match word {
            "status" => CellValue::text(status(object)),
            "completions" => CellValue::text(completions(object)),
            "duration" => duration(object, now),
            _ => templated::cell(word, object, TEMPLATE),
        }
    }

    fn selectable(&self, path: &str, object: &Document) -> Option<String> {
        (path == "status.successful").then(|| {
            let succeeded = object.get(&["status", "succeeded"]).and_then(Value::as_i64);
            succeeded.unwrap_or_default().to_string()
        })
    }
}

/// Defaults a job's labels to those of its template, including generated ones.
fn own_labels(object: &mut Document) {
    let own = object.get(&["metadata", "labels"]).and_then(Value::as_object);
    let labels = object.get(&["spec", "template", "metadata", "labels"]).cloned();
    if own.is_none_or(|own| own.is_empty())
        && let Some(labels) = labels.filter(Value::is_object)
    {
        object.set(&["metadata", "labels"], labels);
    }
}

/// Validation common to creates and updates.
fn checked(object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let (spec, path) = (root.field("spec"), root.field("spec.template"));
    let Some(template) = object.get(TEMPLATE) else { return };
    if let Some(fields) = object.get(&["spec"]) {
        policies::validate(fields, spec, errors);
    }
    specs::validate_template(template, SpecOwner::default(), path, errors);
    let labels = specs::template_labels(template);
    let why = "`selector` does not match template `labels`";
    match object.get(&["spec", "selector"]).filter(|selector| selector.is_object()) {
        None => {
            errors.required(spec.field("selector"), "");
            // It selects nothing.
            errors.invalid(path.field("metadata.labels"), labels, why);
        }
        Some(selector) => {
            let before = errors.count();
            texts::selector(selector, spec.field("selector"), errors);
            if errors.count() == before && !specs::matches(selector, labels) {
                errors.invalid(path.field("metadata.labels"), labels, why);
            }
        }
    }
}

/// Generated labels must match the job.
fn generated(object: &Document, errors: &mut FieldErrors) {
    let manual = object.get(&["spec", "manualSelector"]).and_then(Value::as_bool) == Some(true);
    let root = FieldPath::Root;
    if manual || object.get(&["spec", "selector"]).is_none_or(Value::is_null) {
        return;
    }
    let path = root.field("spec.template.metadata.labels");
    let all = object.get(&["spec", "template", "metadata", "labels"]).unwrap_or(&Value::Null);
    let expected = [(NAME_LABELS, object.name()), (UID_LABELS, object.uid())];
    for (labels, value) in expected {
        for label in labels {
            let why = format!("must be '{value}'");
            match object.str(&["spec", "template", "metadata", "labels", label]) {
                None => errors.required(path.key(label), &why),
                Some(given) if given != value => errors.invalid(path.key(label), all, &why),
                Some(_) => {}
            }
        }
    }
    let mut own = Map::new();
    for (labels, value) in expected {
        labels.iter().for_each(|label| _ = own.insert(*label, Value::from(value)));
    }
    let Some(selector) = object.get(&["spec", "selector"]) else { return };
    // A malformed one is refused for that.
    let mut whys = FieldErrors::default();
    texts::selector(selector, root, &mut whys);
    if whys.count() == 0 && !specs::matches(selector, Some(&Value::Object(own))) {
        errors.invalid(root.field("spec.selector"), selector, "`selector` not auto-generated");
    }
}

/// Rejects changes of immutable fields.
fn unchanged(old: &Document, object: &Document, errors: &mut FieldErrors) {
    const FIXED: [&str; 7] = [
        "selector",
        "template",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ];
    let root = FieldPath::Root;
    let spec = root.field("spec");
    let pair = |field: &str| (old.get(&["spec", field]), object.get(&["spec", field]));
    let number = |field: &str| object.get(&["spec", field]).and_then(Value::as_i64);
    let (before, completions) = pair("completions");
    if !same(before, completions) {
        let is_indexed = object.str(&["spec", "completionMode"]) == Some("Indexed");
        if !is_indexed {
            errors.invalid(spec.field("completions"), completions, "field is immutable");
        } else if completions.is_some() && number("completions") != number("parallelism") {
            let why = "can only be modified in tandem with spec.parallelism";
            errors.invalid(spec.field("completions"), completions, why);
        }
    }
    for field in FIXED {
        let (before, after) = pair(field);
        if field == "template" && may_get_other_pods(old) {
            let of = |template: Option<&Value>| template.and_then(|all| all.get("spec")).cloned();
            let (before, after) = (of(before).unwrap_or_default(), of(after).unwrap_or_default());
            let (was, is) = (fixed_part(&before, &after), fixed_part(&after, &before));
            if !same(Some(&was), Some(&is)) {
                errors.invalid(spec.field("template.spec"), &after, "field is immutable");
            }
            continue;
        }
        if !same(before, after) {
            errors.invalid(spec.field(field), after, "field is immutable");
        }
    }
}

/// Whether the job is suspended and has no pods, so that those to come may get other resources and
/// scheduling constraints.
fn may_get_other_pods(job: &Document) -> bool {
    let is_on = |condition: &Value| {
        text(condition, "type") == "Suspended" && text(condition, "status") == "True"
    };
    let is_idle = job.list(&["status", "conditions"]).iter().any(is_on)
        || job.get(&["status", "startTime"]).is_none_or(Value::is_null);
    let active = job.get(&["status", "active"]).and_then(Value::as_i64).unwrap_or_default();
    let is_suspended = job.get(&["spec", "suspend"]).and_then(Value::as_bool) == Some(true);
    is_suspended && is_idle && active == 0
}

/// A pod spec without scheduling constraints, and without the resources of containers that another
/// spec has as well.
fn fixed_part(spec: &Value, other: &Value) -> Value {
    let mut spec = spec.clone();
    let Some(fields) = spec.as_object_mut() else { return spec };
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        fields.remove(field);
    }
    podspec::drop_node_affinity(fields);
    for list in ["containers", "initContainers"] {
        let others = list_at(other, &[list]);
        let Some(Value::Array(own)) = fields.get_mut(list) else { continue };
        if own.as_slice().len() != others.len() {
            continue;
        }
        for (container, other) in own.iter_mut().zip(others) {
            let is_same = text(container, "name") == text(other, "name");
            if let Some(container) = container.as_object_mut().filter(|_| is_same) {
                container.remove("resources");
            }
        }
    }
    spec
}

/// Defaults of a job's spec.
fn default_spec(object: &mut Document, path: &[&str]) {
    let Some(spec) = object.get_mut(path).and_then(Value::as_object_mut) else { return };
    let mut or = |field: &str, value: Value| {
        if spec.get(field).is_none_or(Value::is_null) {
            spec.insert(field, value);
        }
    };
    or("completionMode", "NonIndexed".into());
    or("suspend", false.into());
    or("manualSelector", false.into());
    let has = |field: &str| spec.get(field).is_some_and(|value| !value.is_null());
    let (parallel, complete) = (has("parallelism"), has("completions"));
    let limit = if has("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
    let replaced = if has("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    let mut or = |field: &str, value: Value| {
        if spec.get(field).is_none_or(Value::is_null) {
            spec.insert(field, value);
        }
    };
    if !parallel && !complete {
        or("completions", 1.into());
    }
    or("parallelism", 1.into());
    or("backoffLimit", limit.into());
    or("podReplacementPolicy", replaced.into());
}

fn status(job: &Value) -> &'static str {
    let has = |kind: &str| {
        list_at(job, &["status", "conditions"])
            .iter()
            .any(|condition| text(condition, "type") == kind && text(condition, "status") == "True")
    };
    let deleted = at(job, &["metadata", "deletionTimestamp"]).is_some_and(|time| !time.is_null());
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if deleted {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let succeeded = int_at(job, &["status", "succeeded"]);
    match at(job, &["spec", "completions"]).and_then(Value::as_i64) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => match int_at(job, &["spec", "parallelism"]) {
            parallel if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
            _ => format!("{succeeded}/1"),
        },
    }
}

fn duration(job: &Value, _now: SystemTime) -> CellValue {
    let started = str_at(job, &["status", "startTime"]);
    let ended = str_at(job, &["status", "completionTime"]);
    match (time::parse_rfc3339(started), time::parse_rfc3339(ended)) {
        (None, _) => CellValue::text(""),
        (Some(_), None) => CellValue::Since(started.to_owned()),
        (Some(started), Some(ended)) => {
            let took = ended.duration_since(started).unwrap_or_default();
            CellValue::text(time::human_age(took.as_secs()))
        }
    }
}

/// CronJob: creates jobs on a schedule.
#[derive(Debug)]
pub(crate) struct CronJob;

impl KindCode for CronJob {
    fn default(&self, _version: &str, object: &mut Document) {
        podspec::default_at(object, &["spec", "jobTemplate", "spec", "template", "spec"]);
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status"], json!({}));
        }
    }

    fn validated(&self, _change: &Change<'_>, object: &Document) -> Option<Document> {
        policies::validated(object, &["spec", "jobTemplate", "spec"])
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        const MAX_NAME_BYTES: usize = 52;
        let root = FieldPath::Root;
        if change.old.is_none() && object.name().len() > MAX_NAME_BYTES {
            let why = "must be no more than 52 characters";
            errors.invalid(root.field("metadata.name"), object.name(), why);
        }
        let job = object.get(&["spec", "jobTemplate", "spec"]);
        let Some(job) = job.filter(|_| change.subresource.is_empty()) else { return };
        let path = root.field("spec.jobTemplate.spec");
        policies::validate(job, path, errors);
        if let Some(template) = job.get("template") {
            specs::validate_template(
                template,
                SpecOwner::default(),
                path.field("template"),
                errors,
            );
        }
        if crate::checks::is_true(job, "manualSelector") {
            errors.push(|| {
                ferrokube_apimachinery::field::FieldError::not_supported(
                    path.field("manualSelector"),
                    true,
                    ["nil", "false"],
                )
            });
        }
        if crate::checks::given(job, "selector").is_some() {
            errors.invalid(
                path.field("selector"),
                job.get("selector"),
                "`selector` will be auto-generated",
            );
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        let (root, place) = (FieldPath::Root, "spec.jobTemplate.spec.template");
        if let Some(template) = object.get(&["spec", "jobTemplate", "spec", "template"]) {
            warnings::warn(template, root.field(place), out);
        }
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        if word == "suspend" {
            let suspended = at(object, &["spec", "suspend"]).and_then(Value::as_bool);
            return CellValue::text(
                suspended.map_or("<unset>", |on| if on { "True" } else { "False" }),
            );
        }
        if word == "selector" {
            let selector = at(object, &["spec", "jobTemplate", "spec", "selector"]);
            return CellValue::text(crate::cells::selector(selector));
        }
        templated::cell(word, object, &["spec", "jobTemplate", "spec", "template"])
    }
}
