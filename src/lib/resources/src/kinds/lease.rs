//! Lease: a lock, renewed by its holder.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{Change, FinalizerDomain, Hooks, Policy, Printable, TableRow};
use std::sync::Arc;

pub(crate) fn body() -> KindBody {
    KindBody {
        columns: const {
            &[
                NativeColumn::NAME,
                NativeColumn::text(
                    "Holder",
                    "holderIdentity contains the identity of the holder of a current lease. If Coordinated Leader Election is used, the holder identity must be equal to the elected LeaseCandidate.metadata.name field.",
                ),
                NativeColumn::AGE,
            ]
        },
        storage: Some("leases"),
        policy: Policy {
            finalizer_domain: FinalizerDomain::Optional,
            create_on_update: true,
            unconditional_update: false,
            ..Policy::DEFAULT
        },
        hooks: Arc::new(Lease),
        ..KindBody::default()
    }
}

#[derive(Debug)]
struct Lease;

impl Hooks for Lease {
    /// Drops the fields of coordinated leader election, which is off, unless they were stored.
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        for field in ["strategy", "preferredHolder"] {
            if change.old.is_none_or(|old| old.get(&["spec", field]).is_none()) {
                object.remove(&["spec", field]);
            }
        }
    }

    fn validate(&self, _change: &Change<'_>, object: &Document) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let number = |field: &str| object.get(&["spec", field]).and_then(Value::as_i64);
        if let Some(seconds) = number("leaseDurationSeconds").filter(|seconds| *seconds <= 0) {
            errors.push(FieldError::invalid(
                "spec.leaseDurationSeconds",
                seconds,
                "must be greater than 0",
            ));
        }
        if let Some(transitions) = number("leaseTransitions").filter(|transitions| *transitions < 0)
        {
            errors.push(FieldError::invalid(
                "spec.leaseTransitions",
                transitions,
                "must be greater than or equal to 0",
            ));
        }
        let filled = |field: &str| !object.str(&["spec", field]).unwrap_or_default().is_empty();
        if filled("preferredHolder") && !filled("strategy") {
            errors.push(FieldError::forbidden(
                "spec.preferredHolder",
                "may only be specified if `strategy` is defined",
            ));
        }
        errors
    }

    fn print(&self, object: &Printable<'_>, row: &mut TableRow) {
        row.text(&object.name());
        row.text(&object.str(&["spec", "holderIdentity"]));
        row.age(object);
    }
}
