//! Validates the options of a write, before anything else.

use super::{DeleteOptions, WriteOptions};
use crate::failure::invalid_options;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::Failure;

const POLICIES: [&str; 3] = ["Background", "Foreground", "Orphan"];

/// `CreateOptions` or `UpdateOptions`, by `kind`.
///
/// # Errors
/// 422.
pub(super) fn check_write(kind: &str, options: &WriteOptions) -> Result<(), Failure> {
    refuse(kind, manager(options))
}

/// `PatchOptions`. An apply requires a field manager; only an apply may be forced.
///
/// # Errors
/// 422.
pub(super) fn check_patch(options: &WriteOptions, is_apply: bool) -> Result<(), Failure> {
    let mut errors = manager(options);
    if is_apply && options.field_manager.is_empty() {
        errors.push(FieldError::required("fieldManager", "is required for apply patch"));
    }
    if !is_apply && options.force {
        errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
    }
    refuse("PatchOptions", errors)
}

fn manager(options: &WriteOptions) -> Vec<FieldError> {
    FieldError::manager("fieldManager", &options.field_manager)
}

/// `DeleteOptions`.
///
/// # Errors
/// 422.
pub(super) fn check_delete(options: &DeleteOptions) -> Result<(), Failure> {
    let mut errors = Vec::new();
    if let Some(policy) = &options.propagation {
        if options.orphan_dependents.is_some() {
            errors.push(FieldError::invalid(
                "propagationPolicy",
                policy,
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        if !POLICIES.contains(&policy.as_str()) {
            errors.push(FieldError::not_supported(
                "propagationPolicy",
                policy,
                ["Foreground", "Background", "Orphan", "nil"],
            ));
        }
    }
    refuse("DeleteOptions", errors)
}

fn refuse(kind: &str, errors: Vec<FieldError>) -> Result<(), Failure> {
    if errors.is_empty() { Ok(()) } else { Err(invalid_options(kind, &errors)) }
}
