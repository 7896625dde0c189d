//! Lease: a lock, renewed by its holder.

use super::leasecandidate::strategy_errors;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_resource::native::{KindBody, NativeColumn};
use ferrokube_resource::{
    Change, FinalizerDomain, GuardedField, Hooks, MetadataRules, Policy, Printable, TableRow,
};
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
        guarded: const {
            const GATE: &str = "CoordinatedLeaderElection";
            &[
                GuardedField::new(GATE, &["spec", "strategy"]),
                GuardedField::new(GATE, &["spec", "preferredHolder"]),
            ]
        },
        storage: Some("leases"),
        policy: Policy {
            metadata_rules: MetadataRules::Changes,
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

/// Annotations with the features of API servers in their identity Leases, on which transitions
/// rely.
const OF_SERVERS: [&str; 2] = ["features.k8s.io/gates", "features.k8s.io/observed"];
/// The user of the server's own loops.
const SERVER: &str = "system:apiserver";

impl Hooks for Lease {
    /// Only servers speak for servers.
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.user == SERVER {
            return;
        }
        for key in OF_SERVERS {
            let old = change.old.and_then(|old| old.annotation(key));
            if object.annotation(key) == old {
                continue;
            }
            let path = ["metadata", "annotations", key];
            match old {
                Some(old) => object.set(&path, old),
                None => drop(object.remove(&path)),
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
        if let Some(strategy) = object.str(&["spec", "strategy"]) {
            errors.extend(strategy_errors(strategy));
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
