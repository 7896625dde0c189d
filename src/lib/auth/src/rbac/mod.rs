//! Role-based access control, answered from an index.
//!
//! [`Index`] is an immutable value: subject -> namespace -> grants -> role. [`Rbac`] holds the
//! present one, fed by the store's history; before it answers its index reaches the published
//! revision ([`Authorizer::catch_up`](crate::Authorizer::catch_up)), so that a binding can be used
//! as soon as its write is answered.

mod authorizer;
mod escalation;
mod feed;
mod held;
mod index;
mod rule;
#[cfg(test)]
mod tests;

pub use authorizer::Rbac;
pub use escalation::{EscalationCheck, RoleWrite};
pub use feed::{Change, Feed, Kind, RegistryFeed};
pub(crate) use held::Held;
pub use index::{Grant, Index};
pub use rule::Rule;
