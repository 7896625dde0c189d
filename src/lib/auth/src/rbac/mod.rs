//! Role-based access control, decided from an index.
//!
//! [`RbacIndex`] is an immutable value: subject -> grants -> role, of the cluster or of one
//! namespace. [`Rbac`] holds the current ones, fed from the store's history. A decision sees every
//! published revision of what it reads ([`Authorizer::catch_up`](crate::Authorizer::catch_up)), so
//! a binding takes effect as soon as its write is acknowledged, and delays its own namespace only.

mod authorizer;
mod decision;
mod escalation;
mod feed;
mod held_rules;
mod index;
mod part;
mod rule;
#[cfg(test)]
mod tests;

pub use authorizer::Rbac;
pub use escalation::{EscalationCheck, RoleWrite};
pub use feed::{Feed, RbacChange, RbacKind, StoreFeed};
pub(crate) use held_rules::HeldRules;
pub use index::{Grant, RbacIndex, RbacView};
pub(crate) use rule::PermissionBudget;
pub use rule::PolicyRule;
