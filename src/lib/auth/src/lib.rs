//! Who asks and what they may: authenticators, the RBAC authorizer, the token signer, audit.
//!
//! Must never know HTTP routing. Start reading at [`access`].

pub mod access;
pub mod authenticate;

pub use access::{Access, AlwaysDeny, Authorizer, Decision, MastersOnly, ResourceAccess};
pub use authenticate::{Authenticator, Credentials, Identity, Unauthenticated};
