//! Authentication: credentials in, identity out.
//!
//! Authenticators keep what they need in memory and answer synchronously. [`Bearer`] combines the
//! token authenticators.

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

use crate::access::add_authenticated;
use ferrokube_apimachinery::user::UserInfo;
use std::sync::Arc;
use std::time::SystemTime;

/// Returns the wall clock time; tests inject their own.
pub type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// [`SystemTime::now`].
pub fn system_clock() -> WallClock {
    Arc::new(SystemTime::now)
}

/// A client's credentials. `Debug` hides the token.
#[derive(Clone, Copy, Default)]
pub struct Credentials<'a> {
    /// The client certificate (DER), if the TLS layer verified it against the client CA.
    pub certificate: Option<&'a [u8]>,
    /// The same, against the front proxy's CA.
    pub proxy_certificate: Option<&'a [u8]>,
    /// The bearer token.
    pub bearer: Option<&'a str>,
    /// Request headers with lower-case names; only read with `proxy_certificate`.
    pub remote: &'a [(String, String)],
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("certificate", &self.certificate.map(<[u8]>::len))
            .field("proxy_certificate", &self.proxy_certificate.map(<[u8]>::len))
            .field("bearer", &self.bearer.map(|_| "(hidden)"))
            .finish_non_exhaustive()
    }
}

/// The authenticated user and the method, for the audit log. Cheap to clone, for authenticators
/// that remember whom they have authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// A member of `system:authenticated`, unless it is anonymous.
    pub user: Arc<UserInfo>,
    /// `x509`, `token-file`, `service-account`, ...
    pub method: &'static str,
}

impl Identity {
    /// Adds `system:authenticated` to the user's groups.
    pub fn new(mut user: UserInfo, method: &'static str) -> Self {
        add_authenticated(&mut user);
        Self { user: Arc::new(user), method }
    }
}

/// Invalid credentials: 401.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the credentials are not valid")]
pub struct Unauthenticated;

/// Synchronous: its state is in memory.
pub trait Authenticator: Send + Sync {
    /// `Ok(None)`: no credentials of this kind.
    ///
    /// # Errors
    /// [`Unauthenticated`] if there are credentials of this kind, but invalid ones.
    fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated>;
}
