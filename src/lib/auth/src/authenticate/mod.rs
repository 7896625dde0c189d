//! The authentication seam: credentials in, identity out.
//!
//! Every authenticator indexes what it needs in memory and answers synchronously. [`Bearer`] joins
//! the ones that know bearer tokens.

mod bearer;
mod bootstrap_token;
mod proxy;
mod token_file;
mod x509;

pub use bearer::{Bearer, TokenAuthenticator, TokenIdentity};
pub use bootstrap_token::BootstrapTokens;
pub use proxy::{FrontProxy, FrontProxyHeaders};
pub use token_file::{TokenFile, TokenFileError};
pub use x509::X509;

use ferrokube_registry::UserInfo;
use std::sync::Arc;
use std::time::SystemTime;

/// Reads the wall clock; tests give their own.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> Clock {
    Arc::new(SystemTime::now)
}

/// What a client showed. Its `Debug` form hides the token.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The client certificate chain (DER, leaf first) that the TLS layer verified against the
    /// client CA; empty without one.
    pub certificates: &'a [Vec<u8>],
    /// The chain verified against the front proxy's own CA; empty without one.
    pub proxy_certificates: &'a [Vec<u8>],
    /// The bearer token.
    pub bearer: Option<&'a str>,
    /// The request's headers, lower-case names; only read with `proxy_certificates`.
    pub remote: &'a [(String, String)],
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("certificates", &self.certificates.len())
            .field("proxy_certificates", &self.proxy_certificates.len())
            .field("bearer", &self.bearer.map(|_| "(hidden)"))
            .finish_non_exhaustive()
    }
}

/// Who it is, and how that is known (for the audit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user, without `system:authenticated` (the chain adds it).
    pub user: UserInfo,
    /// `x509`, `token-file`, `service-account`, ...
    pub method: &'static str,
}

/// Credentials were shown and are wrong: 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the credentials are not valid")]
pub struct Unauthenticated;

/// An authenticator. Synchronous: state it needs is indexed in memory.
pub trait Authenticator: Send + Sync {
    /// `Ok(None)`: none of this authenticator's credentials were shown.
    ///
    /// # Errors
    /// [`Unauthenticated`].
    fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated>;
}
