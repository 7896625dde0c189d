//! The default RBAC policy.
//!
//! `policy.txt` is the table; [`expected`] builds the objects and [`reconcile()`] brings the stored
//! ones up to them: it creates missing objects in one batch and adds missing rules and subjects,
//! never removes any, and skips objects annotated `rbac.authorization.kubernetes.io/autoupdate:
//! "false"`.

mod policy;
mod reconcile;

pub use policy::{PolicyObject, RolesError, expected, policy};
pub use reconcile::{BootstrapError, Summary, reconcile, reconciled};
