//! Authentication, RBAC authorization, service account tokens and the audit log.
//!
//! Must never know HTTP routing. Start reading at [`access`] and [`authenticate`], the two
//! interfaces; then [`audit`].

pub mod access;
pub mod audit;
pub mod authenticate;
pub mod bootstrap;
mod clock_cache;
pub mod impersonate;
pub mod rbac;
pub mod review;
#[cfg(test)]
mod testing;
pub mod token;

pub use access::{
    Access, AlwaysDeny, AnonymousLock, Authorizer, CatchUp, Decision, MastersOnly, ResourceAccess,
    RightsScope, Union, forbidden,
};
pub use authenticate::{
    Authenticator, Credentials, Identity, Unauthenticated, WallClock, system_clock,
};
pub use impersonate::{Impersonated, Impersonation, ImpersonationModes};
pub use rbac::{EscalationCheck, Rbac};
