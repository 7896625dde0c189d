//! Service account tokens: signed (ES256 or RS256), verified, and checked at every use against the
//! objects that they are bound to.

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
mod verifying;

pub use keys::{TokenKeyError, TokenKeys};
pub use legacy::SecretToken;
pub use service_account::{ServiceAccountTokens, TokenConfig};
