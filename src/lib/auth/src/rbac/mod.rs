//! Role-based access control, answered from an index.
//!
//! [`Index`] is an immutable value: subject -> namespace -> grants -> role. [`Rbac`] holds the present one, fed by the store's history; before it answers
//! it makes sure that its index has reached the published revision, so that whoever was told that a binding is written can use it at once.

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
