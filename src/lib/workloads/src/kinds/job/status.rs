//! Validation of job status updates. A rule applies only if its fields have changed, so that a
//! status that already violates it can still be updated.

use super::indexes;
use crate::checks::{FieldErrors, given, is_true, items, number, text};
use crate::paths::FieldPath;
use crate::rules::same;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::time;
use std::collections::HashSet;

/// The stored status and the new one, and the spec.
struct JobStatusChange<'a> {
    spec: &'a Value,
    old: &'a Value,
    new: &'a Value,
}

fn has(status: &Value, kind: &str, state: &str) -> bool {
    let is = |one: &Value| text(one, "type") == kind && text(one, "status") == state;
    items(status, "conditions").iter().any(is)
}

fn is_true_in(status: &Value, kind: &str) -> bool {
    has(status, kind, "True")
}

fn is_finished(status: &Value) -> bool {
    is_true_in(status, "Complete") || is_true_in(status, "Failed")
}

impl JobStatusChange<'_> {
    fn changed(&self, field: &str) -> bool {
        !same(self.old.get(field), self.new.get(field))
    }

    fn turned(&self, kind: &str) -> bool {
        is_true_in(self.old, kind) != is_true_in(self.new, kind)
    }

    fn is(&self, kind: &str) -> bool {
        is_true_in(self.new, kind)
    }

    fn count(&self, field: &str) -> i64 {
        number(self.new, field)
    }
}

pub(super) fn validate(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let nothing = Value::Null;
    let change = JobStatusChange {
        spec: object.get(&["spec"]).unwrap_or(&nothing),
        old: old.get(&["status"]).unwrap_or(&nothing),
        new: object.get(&["status"]).unwrap_or(&nothing),
    };
    let root = FieldPath::Root;
    let path = root.field("status");
    uncounted(&change, path, errors);
    let mut wrong = |why: &str| {
        errors.push(|| FieldError::invalid_unshown(path.field("conditions"), why));
    };
    let met = change.is("SuccessCriteriaMet");
    let (complete, failed, target) =
        (change.is("Complete"), change.is("Failed"), change.is("FailureTarget"));
    if (change.turned("Complete") || change.turned("Failed")) && complete && failed {
        wrong("cannot set Complete=True and Failed=true conditions");
    }
    if (change.turned("Complete") || change.turned("FailureTarget")) && complete && target {
        wrong("cannot set Complete=True and FailureTarget=true conditions");
    }
    if (change.turned("Failed") || change.changed("failedIndexes")) && failed && !target {
        wrong("cannot set Failed=True condition without the FailureTarget=true condition");
    }
    if (change.turned("Complete") || change.turned("SuccessCriteriaMet")) && complete && !met {
        wrong("cannot set Complete=True condition without the SuccessCriteriaMet=true condition");
    }
    if met && failed {
        wrong("cannot set SuccessCriteriaMet=True and Failed=true conditions");
    }
    if met && target {
        wrong("cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
    }
    if given(change.spec, "successPolicy").is_some() && !met && complete {
        wrong("cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True");
    }
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if is_true_in(change.old, kind) && !change.is(kind) {
            wrong(&format!("cannot disable the terminal {kind}=True condition"));
        }
    }
    if is_true_in(change.old, "SuccessCriteriaMet") && !met {
        wrong("cannot disable the SuccessCriteriaMet=True condition");
    }
    if is_true_in(change.old, "Complete") && !is_true_in(change.old, "SuccessCriteriaMet") && met {
        wrong("cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions");
    }
    counters(&change, path, errors);
    times(&change, path, errors);
    index_lists(&change, path, errors);
}

/// Validates `uncountedTerminatedPods`.
fn uncounted(change: &JobStatusChange<'_>, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some(uncounted) = given(change.new, "uncountedTerminatedPods") else { return };
    let (place, mut seen) = (path.field("uncountedTerminatedPods"), HashSet::new());
    for field in ["succeeded", "failed"] {
        let list = place.field(field);
        for (at, uid) in items(uncounted, field).iter().filter_map(Value::as_str).enumerate() {
            if errors.is_full() {
                return;
            }
            if uid.is_empty() {
                errors.invalid(list.index(at), uid, "must not be empty");
            } else if !seen.insert(uid) {
                errors.duplicate(list.index(at), uid);
            }
        }
    }
}

fn counters(change: &JobStatusChange<'_>, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let finished = is_finished(change.new);
    let turned = is_finished(change.old) != finished;
    let mut refuse = |field: &str, why: &str| {
        errors.invalid(path.field(field), number(change.new, field), why);
    };
    if (turned || change.changed("active")) && finished && change.count("active") > 0 {
        refuse("active", "active>0 is invalid for finished job");
    }
    if (turned || change.changed("terminating")) && finished && change.count("terminating") > 0 {
        refuse("terminating", "terminating>0 is invalid for finished job");
    }
    if (change.changed("ready") || change.changed("active"))
        && given(change.new, "ready").is_some()
        && change.count("ready") > change.count("active")
    {
        refuse("ready", "cannot set more ready pods than active");
    }
    if change.count("failed") < number(change.old, "failed") {
        refuse("failed", "cannot decrease the failed counter");
    }
    // Jobs of equal parallelism and completions are scaled down.
    let is_elastic = text(change.spec, "completionMode") == "Indexed"
        && given(change.spec, "completions") == given(change.spec, "parallelism");
    if !is_elastic && change.count("succeeded") < number(change.old, "succeeded") {
        refuse("succeeded", "cannot decrease the succeeded counter");
    }
    let left = given(change.new, "uncountedTerminatedPods")
        .filter(|pods| ["failed", "succeeded"].iter().any(|field| !items(pods, field).is_empty()));
    if (turned || change.changed("uncountedTerminatedPods"))
        && finished
        && let Some(left) = left
    {
        errors.invalid(
            path.field("uncountedTerminatedPods"),
            left,
            "must be empty for finished job",
        );
    }
}

fn times(change: &JobStatusChange<'_>, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let (start, end) = (given(change.new, "startTime"), given(change.new, "completionTime"));
    let (starts, ends) = (change.changed("startTime"), change.changed("completionTime"));
    let complete = change.is("Complete");
    let completes = change.turned("Complete") || ends;
    if completes && !complete && end.is_some() {
        let why = "cannot set completionTime when there is no Complete=True condition";
        errors.invalid(path.field("completionTime"), end, why);
    }
    if completes && complete && end.is_none() {
        errors
            .required(path.field("completionTime"), "completionTime is required for Complete jobs");
    }
    let seconds = |value: Option<&Value>| time::parse_rfc3339(value?.as_str()?);
    if (starts || ends)
        && let (Some(from), Some(to)) = (seconds(start), seconds(end))
        && to < from
    {
        let why = "must be equal to or after `startTime`";
        errors.invalid(path.field("completionTime"), end, why);
    }
    let is_suspended = is_true(change.spec, "suspend");
    let is_empty =
        is_suspended && given(change.spec, "completions").and_then(Value::as_i64) == Some(0);
    let turned = is_finished(change.old) != is_finished(change.new);
    if (turned || starts) && !is_empty && start.is_none() && is_finished(change.new) {
        errors.required(path.field("startTime"), "startTime is required for finished job");
    }
    let before = given(change.old, "completionTime");
    if ends && end.is_some() && before.is_some() {
        errors.invalid(path.field("completionTime"), end, "field is immutable");
    }
    let resumes = has(change.old, "Suspended", "True") && has(change.new, "Suspended", "False");
    if starts && given(change.old, "startTime").is_some() && !resumes && !is_suspended {
        let why = "field is immutable for unsuspended job once set";
        errors.invalid(path.field("startTime"), start, why);
    }
}

fn index_lists(change: &JobStatusChange<'_>, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let (done, lost) = (text(change.new, "completedIndexes"), given(change.new, "failedIndexes"));
    let lost = lost.and_then(Value::as_str);
    let (dones, losts) = (change.changed("completedIndexes"), change.changed("failedIndexes"));
    let completions = given(change.spec, "completions").and_then(Value::as_i64);
    let by_index = given(change.spec, "backoffLimitPerIndex").is_some();
    if dones && let Some(Err(why)) = completions.map(|most| indexes::count(done, most)) {
        let why = format!("error parsing completedIndexes: {why}");
        errors.invalid(path.field("completedIndexes"), done, &why);
    }
    if losts
        && by_index
        && let (Some(most), Some(lost)) = (completions, lost)
        && let Err(why) = indexes::count(lost, most)
    {
        let why = format!("error parsing failedIndexes: {why}");
        errors.invalid(path.field("failedIndexes"), lost, &why);
    }
    if dones && !done.is_empty() && text(change.spec, "completionMode") != "Indexed" {
        let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
        errors.invalid(path.field("completedIndexes"), done, why);
    }
    if losts
        && !by_index
        && let Some(lost) = lost
    {
        let why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
        errors.invalid(path.field("failedIndexes"), lost, why);
    }
    if (dones || losts)
        && let (Some(most), Some(lost)) = (completions, lost)
        && let Some(at) = indexes::overlap(done, lost, most)
    {
        let why = format!("failedIndexes and completedIndexes overlap at index: {at}");
        errors.invalid(path.field("failedIndexes"), lost, &why);
    }
}
