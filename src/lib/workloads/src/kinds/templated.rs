//! Kinds with a pod template.

use crate::cells::{self, CellValue, at, int_at};
use crate::checks::{FieldErrors, given, text};
use crate::hooks::KindCode;
use crate::kinds::podspec::validate::{self as specs, SpecOwner, matches, template_labels};
use crate::kinds::podspec::{self, warnings};
use crate::paths::FieldPath;
use crate::rules::{same, same_before_completion, texts as selectors};
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::quote;
use ferrokube_apimachinery::work::CountedKey;
use ferrokube_resource::{Change, GuardedField};
use std::collections::HashSet;
use std::num::IntErrorKind;
use std::time::SystemTime;

/// A kind with a pod template.
#[derive(Debug)]
pub(crate) struct Templated {
    /// Path of the template.
    pub(crate) template: &'static [&'static str],
}

/// Controllers with the template in their spec.
pub(crate) const CONTROLLER: Templated = Templated { template: &["spec", "template"] };
/// PodTemplate: the object is the template.
pub(crate) const TEMPLATE: Templated = Templated { template: &["template"] };

impl Templated {
    /// Path of the pod spec.
    fn spec(&self) -> Vec<&'static str> {
        self.template.iter().copied().chain(["spec"]).collect()
    }
}

impl KindCode for Templated {
    fn default(&self, _version: &str, object: &mut Document) {
        podspec::default_at(object, &self.spec());
    }

    /// With a malformed selector, the template is not validated.
    fn validated(&self, change: &Change<'_>, object: &Document) -> Option<Document> {
        let selector = object.get(&["spec", "selector"]).filter(|value| !value.is_null())?;
        if !change.subresource.is_empty() || is_selector(selector) {
            return None;
        }
        let mut validated = object.clone();
        validated.remove(self.template);
        Some(validated)
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if !change.subresource.is_empty() {
            return;
        }
        let (root, dotted) = (FieldPath::Root, self.template.join("."));
        let path = root.field(&dotted);
        let Some(template) = object.get(self.template) else { return };
        let selector = object.get(&["spec", "selector"]).filter(|value| !value.is_null());
        let kind = object.kind();
        if matches!(kind, "Deployment" | "ReplicaSet")
            && selector.is_some_and(|selector| !is_selector(selector))
        {
            // Nothing else is checked, then.
            errors.invalid(root.field("spec.selector"), selector, "invalid label selector");
            return;
        }
        if kind == "StatefulSet" && selector.is_some_and(|selector| !is_selector(selector)) {
            errors.invalid(root.field("spec.selector"), selector, "");
        } else {
            specs::validate_template(template, SpecOwner::default(), path, errors);
        }
        if self.template.len() > 1 {
            controlled(object, template, path, errors);
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        let (root, dotted) = (FieldPath::Root, self.template.join("."));
        if let Some(template) = object.get(self.template) {
            warnings::warn(template, root.field(&dotted), out);
        }
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        cell(word, object, self.template)
    }
}

/// Whether a label selector is well-formed.
fn is_selector(selector: &Value) -> bool {
    let mut errors = FieldErrors::default();
    selectors::selector(selector, FieldPath::Root, &mut errors);
    errors.into_vec().is_empty()
}

const NO_MATCH: &str = "`selector` does not match template `labels`";

/// Validates the template of a controller whose pods must restart always.
fn controlled(object: &Document, template: &Value, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let labels = template_labels(template);
    let labels_path = path.field("metadata.labels");
    let selector = object.get(&["spec", "selector"]).filter(|value| value.is_object());
    let fits = match (object.kind(), selector) {
        ("ReplicationController", Some(labels_wanted)) => {
            matches(&json!({"matchLabels": labels_wanted.clone()}), labels)
        }
        ("ReplicationController", None) => true,
        // It selects nothing.
        (_, None) => false,
        (_, Some(selector)) => !is_selector(selector) || matches(selector, labels),
    };
    if !fits {
        errors.invalid(labels_path, labels, NO_MATCH);
    }
    let (kind, spec) = (object.kind(), path.field("spec"));
    let policy = cells::str_at(template, &["spec", "restartPolicy"]);
    if policy != "Always" {
        errors.not_supported(spec.field("restartPolicy"), policy, &["Always"]);
    }
    if template.get("spec").is_some_and(|spec| given(spec, "activeDeadlineSeconds").is_some()) {
        let kind = if kind == "Deployment" { "ReplicaSet" } else { kind };
        let why = format!("activeDeadlineSeconds in {kind} is not Supported");
        errors.forbidden(spec.field("activeDeadlineSeconds"), &why);
    }
}

/// StatefulSet: pods with stable names and volumes.
#[derive(Debug)]
pub(crate) struct StatefulSet;

/// Fields of features.
pub(crate) static GUARDED: [GuardedField; 1] = [GuardedField {
    default: Some(default_max_unavailable),
    ..GuardedField::new("MaxUnavailableStatefulSet", &MAX_UNAVAILABLE)
}];

const MAX_UNAVAILABLE: [&str; 4] = ["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];

fn default_max_unavailable(object: &mut Document) {
    let is_rolling = object.str(&["spec", "updateStrategy", "type"]) == Some("RollingUpdate")
        && object.get(&MAX_UNAVAILABLE[..3]).is_some_and(Value::is_object);
    if is_rolling && object.get(&MAX_UNAVAILABLE).is_none_or(Value::is_null) {
        object.set(&MAX_UNAVAILABLE, 1);
    }
}

/// Fields of the template that its controller overwrites.
const OVERWRITTEN: [[&str; 4]; 2] =
    [["spec", "template", "spec", "subdomain"], ["spec", "template", "spec", "hostname"]];

/// Fields of the spec that may change.
const CHANGEABLE: [&str; 7] = [
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
];

impl KindCode for StatefulSet {
    fn default(&self, version: &str, object: &mut Document) {
        CONTROLLER.default(version, object);
        let Some(spec) = object.get_mut(&["spec"]).and_then(Value::as_object_mut) else { return };
        podspec::each(spec, "volumeClaimTemplates", |claim| {
            claim.insert("kind", "PersistentVolumeClaim".into());
            claim.insert("apiVersion", "v1".into());
        });
    }

    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(ferrokube_apimachinery::name::dns1123_label(name))
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if !change.subresource.is_empty() {
            return;
        }
        let validated = self.as_run(change, object);
        CONTROLLER.validate(change, validated.as_ref().unwrap_or(object), errors);
        let selector = object.get(&["spec", "selector"]);
        if let Some(template) = object.get(CONTROLLER.template)
            && selector.is_none_or(is_selector)
        {
            // Once more, like its labels and annotations.
            let (root, place) = (FieldPath::Root, "spec.template.annotations");
            specs::validate_annotations(template, root.field(place), errors);
        }
        let spec = |object: &Document| {
            let mut spec =
                object.get(&["spec"]).and_then(Value::as_object).cloned().unwrap_or_default();
            CHANGEABLE.iter().for_each(|field| {
                spec.remove(field);
            });
            Value::Object(spec)
        };
        if change.old.is_some_and(|old| !same(Some(&spec(old)), Some(&spec(object)))) {
            let (root, field) = (FieldPath::Root, "spec");
            errors.forbidden(root.field(field), "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden");
        }
    }

    fn validated(&self, change: &Change<'_>, object: &Document) -> Option<Document> {
        let run = self.as_run(change, object);
        CONTROLLER.validated(change, run.as_ref().unwrap_or(object)).or(run)
    }

    fn warnings(&self, change: &Change<'_>, object: &Document, out: &mut Warnings) {
        CONTROLLER.warnings(change, object, out);
    }

    fn cell(&self, word: &str, object: &Value, now: SystemTime) -> CellValue {
        CONTROLLER.cell(word, object, now)
    }
}

impl StatefulSet {
    /// The object with a volume per claim template, and without the fields that the controller
    /// overwrites. Immutable fields are validated on create only.
    fn as_run(&self, change: &Change<'_>, object: &Document) -> Option<Document> {
        const VOLUMES: [&str; 4] = ["spec", "template", "spec", "volumes"];
        let is_overwritten = |path: &[&str; 4]| object.get(path).is_some();
        let claims = object.list(&["spec", "volumeClaimTemplates"]);
        let has_name = object.str(&["spec", "serviceName"]).is_some_and(|name| !name.is_empty());
        if !change.subresource.is_empty()
            || claims.is_empty()
                && !OVERWRITTEN.iter().any(is_overwritten)
                && !(has_name && change.old.is_some())
        {
            return None;
        }
        let mut validated = object.clone();
        for path in &OVERWRITTEN {
            validated.remove(path);
        }
        if change.old.is_some() {
            validated.remove(&["spec", "serviceName"]);
            validated.remove(&["spec", "volumeClaimTemplates"]);
        }
        if !claims.is_empty() && object.get(&VOLUMES[..3]).is_some_and(Value::is_object) {
            validated.set(&VOLUMES, with_claims(claims, object.list(&VOLUMES)));
        }
        Some(validated)
    }
}

/// Claim templates replace volumes with the same name.
fn with_claims(claims: &[Value], volumes: &[Value]) -> Vec<Value> {
    let mut names = HashSet::new();
    let mut all: Vec<Value> = claims
        .iter()
        .map(|claim| cells::str_at(claim, &["metadata", "name"]))
        .filter(|name| names.insert(CountedKey(*name)))
        .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
        .collect();
    let others = volumes.iter().filter(|volume| !names.contains(&CountedKey(text(volume, "name"))));
    all.extend(others.cloned());
    all
}

/// Cells with the template's containers, images and selector.
pub(crate) fn cell(word: &str, object: &Value, template: &[&str]) -> CellValue {
    let template = at(object, template);
    let spec = template.and_then(|template| template.get("spec"));
    CellValue::text(match word {
        "containers" => cells::containers(spec, "name"),
        "images" => cells::containers(spec, "image"),
        "pod-labels" => {
            cells::labels(template.and_then(|template| at(template, &["metadata", "labels"])))
        }
        "node-selector" => cells::labels(spec.and_then(|spec| spec.get("nodeSelector"))),
        "selector" => cells::selector(at(object, &["spec", "selector"])),
        "ready" => format!(
            "{}/{}",
            int_at(object, &["status", "readyReplicas"]),
            int_at(object, &["spec", "replicas"])
        ),
        _ => String::new(),
    })
}

/// ReplicationController: its selector is a plain map and, like its labels, defaults to the
/// template's labels.
#[derive(Debug)]
pub(crate) struct ReplicationController;

impl KindCode for ReplicationController {
    fn default(&self, version: &str, object: &mut Document) {
        CONTROLLER.default(version, object);
        let labels = object
            .get(&["spec", "template", "metadata", "labels"])
            .filter(|labels| labels.is_object())
            .cloned();
        let Some(labels) = labels else { return };
        for path in [["spec", "selector"], ["metadata", "labels"]] {
            let is_empty = |value: &Value| value.as_object().is_none_or(|map| map.is_empty());
            if object.get(&path).is_none_or(is_empty) {
                object.set(&path, labels.clone());
            }
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        CONTROLLER.validate(change, object, errors);
    }

    fn warnings(&self, change: &Change<'_>, object: &Document, out: &mut Warnings) {
        CONTROLLER.warnings(change, object, out);
    }

    fn cell(&self, word: &str, object: &Value, now: SystemTime) -> CellValue {
        match word {
            "selector" => CellValue::text(cells::labels(at(object, &["spec", "selector"]))),
            _ => CONTROLLER.cell(word, object, now),
        }
    }
}

/// DaemonSet: tracks the generation of its template.
#[derive(Debug)]
pub(crate) struct DaemonSet;

/// Annotation with the generation of the template, which the internal type has as a field.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Annotation with the revision to roll back to, likewise.
const ROLLBACK: &str = "deprecated.deployment.rollback.to";

pub(crate) const INTERNAL_OF_DAEMON_SET: [&str; 1] = [TEMPLATE_GENERATION];
pub(crate) const INTERNAL_OF_DEPLOYMENT: [&str; 1] = [ROLLBACK];

/// The error of Go's parser for an annotation that is not a number.
fn malformed(annotation: Option<&str>) -> Option<String> {
    let text = annotation?;
    let why = match text.parse::<i64>().err()?.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    };
    Some(format!("strconv.ParseInt: parsing {}: {why}", quote(text)))
}

pub(crate) fn conversion_error_of_daemon_set(object: &Document) -> Option<String> {
    malformed(object.str(&["metadata", "annotations", TEMPLATE_GENERATION]))
}

pub(crate) fn conversion_error_of_deployment(object: &Document) -> Option<String> {
    let text = object.str(&["metadata", "annotations", ROLLBACK]).filter(|text| !text.is_empty());
    let why = malformed(text)?;
    Some(format!(
        "failed to parse annotation[{ROLLBACK}]={} as int64: {why}",
        text.unwrap_or_default()
    ))
}

impl KindCode for DaemonSet {
    /// The writer owns the annotation: kube-apiserver's conversion writes the field that it becomes
    /// even if that is 0.
    fn default(&self, version: &str, object: &mut Document) {
        CONTROLLER.default(version, object);
        let path = ["metadata", "annotations", TEMPLATE_GENERATION];
        let annotations = object.get(&path[..2]);
        let has_none = annotations.is_none_or(|value| value.is_null() || value.is_object())
            && object.get(&path).is_none();
        if has_none {
            object.set(&path, "0");
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        CONTROLLER.validate(change, object, errors);
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        let path = ["metadata", "annotations", TEMPLATE_GENERATION];
        let generation = |object: &Document| {
            object.str(&path).and_then(|text| text.parse::<i64>().ok()).unwrap_or_default()
        };
        let Some(old) = change.old else {
            return object.set(&path, generation(object).max(1).to_string());
        };
        if !change.subresource.is_empty() {
            return object.set(&path, generation(old).to_string());
        }
        let [before, after] = [old, object].map(|it| it.get(&["spec", "template"]));
        let changed = !same_before_completion(before, after);
        object.set(&path, generation(old).saturating_add(i64::from(changed)).to_string());
    }

    fn warnings(&self, change: &Change<'_>, object: &Document, out: &mut Warnings) {
        CONTROLLER.warnings(change, object, out);
    }

    fn cell(&self, word: &str, object: &Value, now: SystemTime) -> CellValue {
        CONTROLLER.cell(word, object, now)
    }
}
