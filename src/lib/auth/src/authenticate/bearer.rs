//! Bearer tokens: tried with each [`TokenAuthenticator`] in order; an unknown token is refused.

use super::{Authenticator, Credentials, Identity, Unauthenticated};
use std::sync::Arc;

/// Longest accepted token, in bytes.
pub(crate) const MAX_TOKEN: usize = 16 * 1024;

/// A verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIdentity {
    /// The user it authenticates.
    pub identity: Identity,
    /// The requested audiences that it is valid for; `None` for a token without audiences, which is
    /// valid for the server's own.
    pub audiences: Option<Vec<String>>,
}

/// Verifies one kind of token.
pub trait TokenAuthenticator: Send + Sync {
    /// Verifies a token for one of the audiences. `Ok(None)`: not this kind of token.
    ///
    /// # Errors
    /// The token is of this kind but invalid.
    fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, Unauthenticated>;
}

/// All token authenticators. Cheap to clone; TokenReview uses the same value.
#[derive(Clone)]
pub struct Bearer {
    kinds: Arc<[Arc<dyn TokenAuthenticator>]>,
    audiences: Arc<[String]>,
}

impl Bearer {
    /// `audiences`: the server's own (`--api-audiences`), one of which every request's token must
    /// have.
    pub fn new(kinds: Vec<Arc<dyn TokenAuthenticator>>, audiences: Vec<String>) -> Self {
        Self { kinds: kinds.into(), audiences: audiences.into() }
    }

    /// The server's own audiences.
    pub fn api_audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The identity and the audiences that the token is valid for, never `None`.
    ///
    /// # Errors
    /// The token is too long, invalid, unknown, or for none of the audiences.
    pub fn identify(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<TokenIdentity, Unauthenticated> {
        if token.len() > MAX_TOKEN {
            return Err(Unauthenticated);
        }
        for kind in self.kinds.iter() {
            if let Some(known) = kind.authenticate_token(token, audiences)? {
                return self.bound_to(known, audiences);
            }
        }
        Err(Unauthenticated)
    }

    fn bound_to(
        &self,
        mut known: TokenIdentity,
        asked: &[String],
    ) -> Result<TokenIdentity, Unauthenticated> {
        let audiences = known.audiences.take().unwrap_or_else(|| {
            asked.iter().filter(|audience| self.audiences.contains(audience)).cloned().collect()
        });
        if audiences.is_empty() {
            return Err(Unauthenticated);
        }
        Ok(TokenIdentity { audiences: Some(audiences), ..known })
    }
}

impl Authenticator for Bearer {
    fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        match credentials.bearer {
            None | Some("") => Ok(None),
            Some(token) => self.identify(token, &self.audiences).map(|known| Some(known.identity)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticate::TokenFile;

    fn bearer() -> Bearer {
        let file = TokenFile::parse(b"good,alice,u-alice").expect("parse");
        Bearer::new(vec![Arc::new(file)], vec!["https://kubernetes.default.svc".into()])
    }

    fn authenticate(token: Option<&str>) -> Result<Option<Identity>, Unauthenticated> {
        bearer().authenticate(&Credentials { bearer: token, ..Credentials::default() })
    }

    #[test]
    fn a_wrong_token_is_refused_and_none_is_anonymous() {
        assert_eq!(authenticate(Some("good")).expect("valid").expect("known").user.name, "alice");
        assert_eq!(authenticate(Some("wrong")), Err(Unauthenticated));
        assert_eq!(authenticate(Some("")), Ok(None));
        assert_eq!(authenticate(None), Ok(None));
    }

    #[test]
    fn fault_51_huge_tokens_are_not_looked_at() {
        assert_eq!(authenticate(Some(&"x".repeat(MAX_TOKEN + 1))), Err(Unauthenticated));
    }

    #[test]
    fn tokens_without_audiences_are_for_the_server() {
        let known = bearer()
            .identify("good", &["other".into(), "https://kubernetes.default.svc".into()])
            .expect("valid");
        assert_eq!(known.audiences, Some(vec!["https://kubernetes.default.svc".to_owned()]));
        assert_eq!(bearer().identify("good", &["other".into()]), Err(Unauthenticated));
    }

    #[test]
    fn fault_54_debug_hides_the_token() {
        let credentials = Credentials { bearer: Some("canary-token"), ..Credentials::default() };
        assert!(!format!("{credentials:?}").contains("canary"));
    }
}
