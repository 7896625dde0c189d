//! Service account tokens: signed (ES256), verified, and checked at every use against the objects
//! that they are bound to.

mod bound;
mod claims;
mod jwt;
mod keys;
mod legacy;
mod provider;
mod request;
mod service_account;
#[cfg(test)]
mod tests;

pub use keys::{TokenKeyError, TokenKeys};
pub use legacy::SecretToken;
pub use service_account::{ServiceAccountTokens, TokenConfig};
