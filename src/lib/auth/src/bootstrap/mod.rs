//! The RBAC policy that every cluster begins with.
//!
//! The policy is a table (`policy.txt`); [`expected`] makes the objects, [`reconcile`] brings the
//! stored ones up to them: it creates what is missing in one batch and adds missing rules and
//! subjects, never removes any, and leaves objects alone that say
//! `rbac.authorization.kubernetes.io/autoupdate: "false"`.

mod policy;
mod reconcile;

pub use policy::{Expected, expected};
pub use reconcile::{BootstrapError, Summary, reconcile, reconciled};
