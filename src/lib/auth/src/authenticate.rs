//! The authentication seam: credentials in, identity out.

use ferrokube_registry::UserInfo;

/// What a client showed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credentials<'a> {
    /// The client certificate chain (DER, leaf first) that the TLS layer verified against the client CA; empty without one.
    pub certificates: &'a [Vec<u8>],
    /// The chain verified against the front proxy's own CA; empty without one.
    pub proxy_certificates: &'a [Vec<u8>],
    /// The bearer token.
    pub bearer: Option<&'a str>,
    /// `X-Remote-*` headers, lower-case names; only read with `proxy_certificates`.
    pub remote: &'a [(String, String)],
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
    fn authenticate(&self, credentials: &Credentials<'_>) -> Result<Option<Identity>, Unauthenticated>;
}
