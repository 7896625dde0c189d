//! LeaseCandidate: a candidate in coordinated leader election. Served on request only, like beta
//! versions of kube-apiserver.

use crate::cells;
use crate::checks::all_invalid;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::{FieldError, Word};
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::semver::Semver;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, MetadataRules, Policy};
use std::sync::Arc;
use std::time::SystemTime;

/// The only strategy without a prefix.
const OLDEST: &str = "OldestEmulationVersion";

pub(crate) fn body() -> KindBody {
    KindBody {
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text("LeaseName", "The lease that it could hold."),
                NativeColumn::text("BinaryVersion", "The version of its program."),
                NativeColumn::text(
                    "EmulationVersion",
                    "The version that its program behaves like.",
                ),
                NativeColumn::AGE,
            ]
        },
        storage: Some("leasecandidates"),
        policy: Policy {
            metadata_rules: MetadataRules::Changes,
            finalizer_domain: FinalizerDomain::Optional,
            create_on_update: true,
            unconditional_update: false,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(LeaseCandidate),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct LeaseCandidate;

impl Hooks for LeaseCandidate {
    fn validate_name(&self, name: &str) -> Option<Vec<String>> {
        Some(name::config_key(name))
    }

    fn validate(&self, change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let field = |name: &str| object.str(&["spec", name]).unwrap_or_default();
        let mut errors = Vec::new();
        for name in ["leaseName", "binaryVersion", "strategy"] {
            if field(name).is_empty() {
                errors.push(FieldError::required(format!("spec.{name}"), ""));
            }
        }
        if change.old.is_some_and(|old| {
            old.str(&["spec", "leaseName"]).unwrap_or_default() != field("leaseName")
        }) {
            errors.push(FieldError::invalid(
                "spec.leaseName",
                field("leaseName"),
                "field is immutable",
            ));
        }
        errors.extend(versions(field("binaryVersion"), field("emulationVersion")));
        if field("strategy") == OLDEST
            && Semver::parse(field("emulationVersion"), false).unwrap_or_default()
                == Semver::default()
        {
            errors.push(FieldError::required(
                "spec.emulationVersion",
                "must be specified when `strategy` is 'OldestEmulationVersion'",
            ));
        }
        if !field("strategy").is_empty() {
            errors.extend(strategy_errors(field("strategy")));
        }
        errors
    }

    fn print_document(&self, object: &Document, now: SystemTime) -> Vec<Value> {
        let field = |name: &str| Value::from(object.str(&["spec", name]).unwrap_or_default());
        vec![
            Value::from(object.name()),
            field("leaseName"),
            field("binaryVersion"),
            field("emulationVersion"),
            Value::from(cells::age(object, now)),
        ]
    }
}

fn versions(binary: &str, emulated: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut read = |field: &str, text: &str| {
        let version = Semver::parse(text, false);
        if !text.is_empty() && version.is_err() {
            errors.push(FieldError::invalid(
                format!("spec.{field}"),
                text,
                "must be a valid semantic version",
            ));
        }
        version.unwrap_or_default()
    };
    let (emulated_version, binary_version) =
        (read("emulationVersion", emulated), read("binaryVersion", binary));
    if !binary.is_empty() && !emulated.is_empty() && binary_version < emulated_version {
        errors.push(FieldError::invalid(
            "spec.binaryVersion",
            binary,
            "must be greater than or equal to `emulationVersion`",
        ));
    }
    errors
}

/// Strategies of Leases and their candidates. kube-apiserver repeats the name of the field.
pub(super) fn strategy_errors(strategy: &str) -> Vec<FieldError> {
    const FIELD: &str = "spec.strategy.strategy";
    match strategy {
        OLDEST => Vec::new(),
        other if other.contains('/') => {
            all_invalid(FIELD, other, name::qualified_name(other)).collect()
        }
        other => vec![FieldError::not_supported(FIELD, Word(other), [OLDEST])],
    }
}
