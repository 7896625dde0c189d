//! Issues and verifies service account tokens.

use super::bound::{CheckedRevisions, Objects};
use super::claims::Claims;
use super::jwt::{self, Unverified};
use super::keys::TokenKeys;
use super::legacy;
use crate::authenticate::{
    Identity, TokenAuthenticator, TokenIdentity, Unauthenticated, WallClock,
};
use crate::clock_cache::ClockCache;
use arc_swap::ArcSwap;
use ferrokube_apimachinery::document::json;
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::work::CountedKey;
use ferrokube_storage::Store;
use parking_lot::RwLock;
use ring::digest;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Longest accepted token, in bytes.
const MAX_TOKEN: usize = 16 * 1024;
/// Max cached verified tokens.
const MAX_CACHED: usize = 10_000;

/// Issuing and verification of tokens.
#[derive(Clone, Debug)]
pub struct TokenConfig {
    /// Accepted issuers; the first one is used for new tokens. Not empty.
    pub issuers: Vec<String>,
    /// The server's own audiences, the default of new tokens. Not empty.
    pub api_audiences: Vec<String>,
    /// URL of the key set; empty: the issuer's `/openid/v1/jwks`.
    pub jwks_uri: String,
    /// Max lifetime of a token; longer requests are shortened. `None`: 2^32 seconds.
    pub max_life: Option<Duration>,
}

/// Issues and verifies service account tokens. Cheap to clone.
#[derive(Clone)]
pub struct ServiceAccountTokens {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) config: TokenConfig,
    pub(super) objects: Objects,
    keys: ArcSwap<TokenKeys>,
    clock: WallClock,
    /// Tokens verified with the current keys, by the hash of the whole token, signature included.
    verified: RwLock<ClockCache<[u8; 32], Arc<Verified>>>,
}

struct Verified {
    claims: Claims,
    identity: Identity,
    /// Lives in a secret and is valid as long as the secret holds it.
    in_secret: bool,
    seen: CheckedRevisions,
}

impl ServiceAccountTokens {
    /// `store` holds the accounts, pods, secrets and nodes.
    ///
    /// # Panics
    /// If the configuration has no issuer or no audience.
    pub fn new(config: TokenConfig, keys: TokenKeys, store: Store, clock: WallClock) -> Self {
        assert!(
            !config.issuers.is_empty() && !config.api_audiences.is_empty(),
            "issuers and audiences are checked with the flags"
        );
        let inner = Inner {
            config,
            objects: Objects::new(store),
            keys: ArcSwap::from_pointee(keys),
            clock,
            verified: RwLock::new(ClockCache::new(MAX_CACHED)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Rotates keys: new tokens are signed with the new signing key, and only the new verification
    /// keys count.
    pub fn replace_keys(&self, keys: TokenKeys) {
        let mut verified = self.inner.verified.write();
        self.inner.keys.store(Arc::new(keys));
        verified.clear();
    }

    /// The OIDC discovery document (`/.well-known/openid-configuration`, `application/json`).
    pub fn discovery_document(&self) -> Vec<u8> {
        let config = &self.inner.config;
        let issuer = &config.issuers[0];
        let jwks_uri = if config.jwks_uri.is_empty() {
            format!("{}/openid/v1/jwks", issuer.trim_end_matches('/'))
        } else {
            config.jwks_uri.clone()
        };
        json::to_vec(&json!({
            "issuer": issuer,
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": self.inner.keys.load().algorithms(),
        }))
    }

    /// The public keys (`/openid/v1/jwks`, `application/jwk-set+json`).
    pub fn jwks(&self) -> Vec<u8> {
        json::to_vec(&self.inner.keys.load().jwks())
    }
}

impl Inner {
    /// Whether the keys take long to sign a token.
    pub(super) fn signs_slowly(&self) -> bool {
        self.keys.load().sign_slowly()
    }

    pub(super) fn sign(&self, claims: &Claims) -> String {
        jwt::sign(&self.keys.load(), &claims.to_document())
    }

    /// `Ok(None)`: not one of our tokens.
    fn verified(&self, token: &str) -> Result<Option<Arc<Verified>>, Unauthenticated> {
        let hash: [u8; 32] = digest::digest(&digest::SHA256, token.as_bytes())
            .as_ref()
            .try_into()
            .expect("SHA-256 has 32 bytes");
        if let Some(known) = self.verified.read().get(&hash) {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(unverified) = Unverified::read(token) else {
            return Ok(None);
        };
        let issuer = unverified.claims.str(&["iss"]).unwrap_or_default();
        let in_secret = issuer == legacy::ISSUER;
        if !in_secret && !self.config.issuers.iter().any(|ours| ours == issuer) {
            return Ok(None);
        }
        let keys = self.keys.load_full();
        if !unverified.is_signed_by(&keys) {
            return Err(Unauthenticated);
        }
        let claims = if in_secret {
            legacy::read(&unverified.claims)
        } else {
            Claims::read(&unverified.claims)
        }
        .ok_or(Unauthenticated)?;
        let identity = Identity::new(claims.user(), "service-account");
        let known =
            Arc::new(Verified { claims, identity, in_secret, seen: CheckedRevisions::default() });
        let mut verified = self.verified.write();
        if Arc::ptr_eq(&keys, &self.keys.load_full()) {
            verified.insert(hash, Arc::clone(&known));
        }
        Ok(Some(known))
    }
}

impl TokenAuthenticator for ServiceAccountTokens {
    fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<TokenIdentity>, Unauthenticated> {
        if token.len() > MAX_TOKEN {
            return Err(Unauthenticated);
        }
        let Some(known) = self.inner.verified(token)? else {
            return Ok(None);
        };
        let now = (self.inner.clock)();
        if known.in_secret {
            let held =
                self.inner.objects.secret_token_is_alive(&known.claims, token, &known.seen, now);
            return if held {
                Ok(Some(TokenIdentity { identity: known.identity.clone(), audiences: None }))
            } else {
                Err(Unauthenticated)
            };
        }
        let matching = in_both(audiences, &known.claims.audiences);
        if matching.is_empty()
            || !known.claims.is_current(now)
            || !self.inner.objects.are_alive(&known.claims, &known.seen, now)
        {
            return Err(Unauthenticated);
        }
        Ok(Some(TokenIdentity { identity: known.identity.clone(), audiences: Some(matching) }))
    }
}

/// The requested audiences that a token has. A review may ask for as many as its body has room for.
fn in_both(asked: &[String], own: &[String]) -> Vec<String> {
    const FEW: usize = 16;
    if asked.len() <= FEW {
        return asked.iter().filter(|audience| own.contains(audience)).cloned().collect();
    }
    let own: HashSet<CountedKey<&str>> = own.iter().map(|own| CountedKey(own.as_str())).collect();
    let is_own = |audience: &&String| own.contains(&CountedKey(audience.as_str()));
    asked.iter().filter(is_own).cloned().collect()
}

impl std::fmt::Debug for ServiceAccountTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceAccountTokens")
            .field("config", &self.inner.config)
            .field("keys", &self.inner.keys.load())
            .finish_non_exhaustive()
    }
}
