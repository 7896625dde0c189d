//! PriorityClass: its generation is set once, and never incremented.

use crate::checks::FieldErrors;
use crate::hooks::KindCode;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_resource::Change;

#[derive(Debug)]
pub(crate) struct PriorityClass;

impl KindCode for PriorityClass {
    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        const HIGHEST: i64 = 1_000_000_000;
        const POLICIES: [&str; 2] = ["PreemptLowerPriority", "Never"];
        const SYSTEM: [(&str, i64); 2] =
            [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
        if change.old.is_some() {
            return;
        }
        let root = FieldPath::Root;
        let policy = object.str(&["preemptionPolicy"]).unwrap_or_default();
        if !policy.is_empty() && !POLICIES.contains(&policy) {
            errors.not_supported(root.field("preemptionPolicy"), policy, &POLICIES);
        }
        let value = object.get(&["value"]).and_then(Value::as_i64).unwrap_or_default();
        let name = object.name();
        if name.starts_with("system-") {
            let is_default = object.get(&["globalDefault"]).and_then(Value::as_bool) == Some(true);
            let why = match SYSTEM.iter().find(|(known, _)| *known == name) {
                None => format!("{name} is not a known system priority class"),
                Some((_, known)) if *known != value => {
                    format!("value of {name} PriorityClass must be {known}")
                }
                Some(_) if is_default => {
                    format!("globalDefault of {name} PriorityClass must be false")
                }
                Some(_) => return,
            };
            let why = format!(
                "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
            );
            errors.forbidden(root.field("metadata.name"), &why);
        } else if value > HIGHEST {
            let why = format!("maximum allowed value of a user defined priority is {HIGHEST}");
            errors.forbidden(root.field("value"), &why);
        }
    }

    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["metadata", "generation"], 1);
        }
    }
}
