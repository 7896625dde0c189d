//! CustomResourceDefinition: validation and status. The API server's own loop serves the defined
//! resources.

mod conversion;
mod fields;
mod former;
mod names;
mod paths;
mod schemas;
mod versions;

use crate::checks::{is_full, keep_stored, text};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::json::round_trip_floats;
use ferrokube_resource::native::{KindBody, NativeColumn, NativeSubresource};
use ferrokube_resource::{
    Change, FinalizerDomain, GuardedField, Hooks, MetadataRules, Policy, WhileOff,
};
use fields::{is_established, is_true, versions};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

/// Removed once the objects of the definition are deleted.
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";
/// Versions of a definition: rules compare them with each other.
const MAX_VERSIONS: usize = 100;

pub(crate) fn body() -> KindBody {
    KindBody {
        categories: &["api-extensions"],
        subresources: &[NativeSubresource::STATUS],
        reset: &["status"],
        columns: const { &[NativeColumn::NAME, NativeColumn::CREATED_AT] },
        storage: Some("customresourcedefinitions"),
        policy: Policy {
            untabled_subresources: &["status"],
            metadata_rules: MetadataRules::Changes,
            subresource_metadata_rules: MetadataRules::Changes,
            computes_long: true,
            counts_generation: true,
            unconditional_update: false,
            begins_own_deletion: true,
            mark_keeps_finalizers: true,
            finalizer_domain: FinalizerDomain::Optional,
            ..Policy::DEFAULT
        },
        guarded: const {
            &[GuardedField {
                value: Some("Webhook"),
                while_off: WhileOff::Refuse,
                ..GuardedField::new(
                    "CustomResourceWebhookConversion",
                    &["spec", "conversion", "strategy"],
                )
            }]
        },
        hooks: Arc::new(CustomResourceDefinition),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct CustomResourceDefinition;

impl Hooks for CustomResourceDefinition {
    fn default(&self, _version: &str, object: &mut Document) {
        let kind = object.str(&["spec", "names", "kind"]).unwrap_or_default().to_owned();
        for (field, value) in
            [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))]
        {
            if !kind.is_empty()
                && object.str(&["spec", "names", field]).unwrap_or_default().is_empty()
            {
                object.set(&["spec", "names", field], value);
            }
        }
        if object.str(&["spec", "conversion", "strategy"]).unwrap_or_default().is_empty()
            && object.get(&["spec", "conversion"]).is_none()
        {
            object.set(&["spec", "conversion"], json!({"strategy": "None"}));
        }
        const SERVICE: [&str; 5] = ["spec", "conversion", "webhook", "clientConfig", "service"];
        if let Some(Value::Object(service)) = object.get_mut(&SERVICE) {
            service.entry("port").or_insert(Value::from(443));
        }
        // Bounds, defaults and values of enums are floats or untyped: `1.0` is stored as `1`.
        object.get_mut(&["spec", "versions"]).into_iter().for_each(round_trip_floats);
        if object.list(&["status", "storedVersions"]).is_empty() {
            record_storage_version(object);
        }
    }

    fn restore_former(&self, object: &mut Document) {
        former::restore(object);
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        match (change.old, change.subresource) {
            (None, _) => object.set(&["status"], json!({"acceptedNames": {}})),
            // Equal numbers may be written differently: as they are stored.
            (Some(old), "status") => return keep_stored(old, object, "spec"),
            (Some(_), _) => {}
        }
        record_storage_version(object);
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = names::validate_names(
            object.get(&["status", "acceptedNames"]).unwrap_or(&Value::Null),
            "status.acceptedNames",
        );
        if change.subresource == "status" {
            return errors;
        }
        if change.old.is_none() {
            errors.extend(names::own_name(object));
        }
        if change.old.is_none_or(|old| old.get(&["spec"]) != object.get(&["spec"])) {
            errors.extend(specification(change.old, object));
        }
        if let Some(old) = change.old {
            errors.extend(immutable(old, object));
        }
        errors.extend(stored_versions(object));
        errors.extend(names::approval(change.old, object));
        errors
    }

    fn warnings(&self, change: &Change<'_>, object: &Document) -> Vec<String> {
        if !change.subresource.is_empty()
            || change.old.is_some_and(|old| old.get(&["spec"]) == object.get(&["spec"]))
        {
            return Vec::new();
        }
        let before = change.old.map(schemas::unknown_formats).unwrap_or_default();
        schemas::unknown_formats(object)
            .into_iter()
            .filter(|format| !before.contains(format))
            .map(|format| format!("unrecognized format {format:?}"))
            .collect()
    }

    fn has_pending_finalizers(&self, object: &Document) -> bool {
        // The first delete only marks the definition: its objects are deleted first.
        !object.is_terminating()
    }

    fn deletion_begins(&self, object: &mut Document) {
        let mut finalizers = object.list(&["metadata", "finalizers"]).to_vec();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            finalizers.push(Value::from(FINALIZER));
            object.set(&["metadata", "finalizers"], finalizers);
        }
        let condition = json!({
            "type": "Terminating",
            "status": "True",
            "lastTransitionTime": object.meta("deletionTimestamp"),
            "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        });
        let mut conditions = object.list(&["status", "conditions"]).to_vec();
        conditions.retain(|condition| text(condition, "type") != "Terminating");
        conditions.push(condition);
        object.set(&["status", "conditions"], conditions);
    }

    fn print_document(&self, object: &Document, _now: SystemTime) -> Vec<Value> {
        vec![Value::from(object.name()), Value::from(object.meta("creationTimestamp"))]
    }
}

/// Adds the storage version to `status.storedVersions`: objects may be stored in any of them.
fn record_storage_version(object: &mut Document) {
    let Some(name) = versions(object)
        .iter()
        .find(|version| is_true(version, "storage"))
        .map(|version| Value::from(text(version, "name")))
    else {
        return;
    };
    let mut stored = object.list(&["status", "storedVersions"]).to_vec();
    if !stored.contains(&name) {
        stored.push(name);
        object.set(&["status", "storedVersions"], stored);
    }
}

fn specification(old: Option<&Document>, object: &Document) -> Vec<FieldError> {
    let count = versions(object).len();
    if count > MAX_VERSIONS {
        return vec![FieldError::too_many("spec.versions", count, MAX_VERSIONS)];
    }
    let mut errors = names::validate(object);
    errors.extend(schemas::validate(object));
    errors.extend(versions::validate(object));
    errors.extend(paths::validate(object));
    errors.extend(conversion::validate(old, object));
    if is_true(object.get(&["spec"]).unwrap_or(&Value::Null), "preserveUnknownFields") {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, why));
    }
    errors
}

/// Group and plural are immutable; scope and kind are so once the definition is established.
fn immutable(old: &Document, object: &Document) -> Vec<FieldError> {
    let established = is_established(old);
    let always: [&[&str]; 2] = [&["spec", "group"], &["spec", "names", "plural"]];
    let then: [&[&str]; 2] = [&["spec", "scope"], &["spec", "names", "kind"]];
    let fields = always.into_iter().chain(then.into_iter().filter(|_| established));
    fields
        .filter(|field| old.get(field) != object.get(field))
        .map(|field| FieldError::invalid(field.join("."), object.get(field), "field is immutable"))
        .collect()
}

fn stored_versions(object: &Document) -> Vec<FieldError> {
    const FIELD: &str = "status.storedVersions";
    let stored = object.list(&["status", "storedVersions"]);
    if stored.is_empty() {
        return vec![FieldError::invalid(
            FIELD,
            None::<&Value>,
            "must have at least one stored version",
        )];
    }
    let mut errors = Vec::new();
    let listed = versions(object);
    // Each name stands for one version: a second version of that name is missing.
    let mut left: HashSet<&str> = stored.iter().filter_map(Value::as_str).collect();
    // With several storage versions there is another error.
    let missing = listed.iter().find(|version| {
        let is_left = left.remove(text(version, "name"));
        !is_left && is_true(version, "storage")
    });
    if let Some(version) = missing {
        let why = format!("must have the storage version {}", text(version, "name"));
        errors.push(FieldError::invalid(FIELD, Value::from(stored.to_vec()), why));
    }
    let names: HashSet<&str> = listed.iter().map(|version| text(version, "name")).collect();
    for (index, name) in stored.iter().enumerate() {
        if is_full(&errors) {
            break;
        }
        if !name.as_str().is_some_and(|name| names.contains(name)) {
            let old = name.as_str().unwrap_or_default();
            let why = format!(
                "missing from spec.versions; {old} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data \
                 remains persisted in {old} and removes {old} from status.storedVersions"
            );
            errors.push(FieldError::invalid(format!("{FIELD}[{index}]"), name, why));
        }
    }
    errors
}
