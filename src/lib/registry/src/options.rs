//! Options of writes, and their validation, which precedes anything else.

use crate::context::FieldValidation;
use crate::failure::invalid_options;
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::status::Failure;

const POLICIES: [&str; 3] = ["Background", "Foreground", "Orphan"];

/// Query options common to all writes.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Runs every step, but stores nothing.
    pub dry_run: bool,
    /// Set for a dry run that the caller did not request: it fails as a write that stores.
    pub unshown: bool,
    /// How unknown and duplicate fields are treated; `None`: [`FieldValidation::default`].
    pub field_validation: Option<FieldValidation>,
    /// Empty: taken from the User-Agent.
    pub field_manager: String,
    /// Takes over fields of other managers. Apply only.
    pub force: bool,
    /// Error if an update or apply has to create the object and the caller lacks the verb `create`.
    /// As in kube-apiserver, mutating admission and validation reject it first.
    pub forbid_create: Option<Failure>,
}

impl WriteOptions {
    /// Stores nothing, since the response cannot be shown to the caller.
    pub fn withhold(&mut self) {
        self.unshown = !self.dry_run;
        self.dry_run = true;
    }

    /// Whether errors are those of a write that stores.
    pub(crate) fn fails_as_stored(&self) -> bool {
        !self.dry_run || self.unshown
    }
}

/// DeleteOptions, from query or body.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Runs every step, but stores nothing.
    pub dry_run: bool,
    /// Requested grace period.
    pub grace_seconds: Option<i64>,
    /// `Foreground`, `Background` or `Orphan`.
    pub propagation: Option<String>,
    /// Deprecated form of `propagation`.
    pub orphan_dependents: Option<bool>,
    /// Precondition.
    pub uid: Option<String>,
    /// Precondition.
    pub resource_version: Option<String>,
}

/// `CreateOptions` or `UpdateOptions`, by `kind`.
///
/// # Errors
/// 422.
pub(crate) fn check_write(kind: &str, options: &WriteOptions) -> Result<(), Failure> {
    refuse(kind, manager(options))
}

/// `PatchOptions`. An apply requires a field manager; only an apply may be forced.
///
/// # Errors
/// 422.
pub(crate) fn check_patch(options: &WriteOptions, is_apply: bool) -> Result<(), Failure> {
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
pub(crate) fn check_delete(options: &DeleteOptions) -> Result<(), Failure> {
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
