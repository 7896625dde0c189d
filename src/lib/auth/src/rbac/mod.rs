//! Role-based access control, decided from an index.
//!
//! [`RbacIndex`] is an immutable value: subject -> namespace -> grants -> role. [`Rbac`] holds the
//! current one, fed from the store's history. A decision sees every published revision
//! ([`Authorizer::catch_up`](crate::Authorizer::catch_up)), so a binding takes effect as soon as
//! its write is acknowledged.

mod authorizer;
mod escalation;
mod feed;
mod held_rules;
mod index;
mod rule;
#[cfg(test)]
mod tests;

pub use authorizer::Rbac;
pub use escalation::{EscalationCheck, RoleWrite};
pub use feed::{Feed, RbacChange, RbacKind, StoreFeed};
pub(crate) use held_rules::HeldRules;
pub use index::{Grant, RbacIndex};
pub use rule::PolicyRule;
