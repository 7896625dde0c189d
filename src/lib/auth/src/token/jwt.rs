//! Service account tokens as JSON Web Tokens (ES256 or RS256), with the jsonwebtoken crate.
//!
//! The crate checks algorithm and signature. Checked here: duplicate keys, which it accepts;
//! `crit`, which it ignores; times, for which it only knows the system clock; audiences, which
//! differ per request while verified tokens are cached.

use super::keys::TokenKeys;
use super::verifying::VerifyingKey;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header, encode};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::sync::LazyLock;

/// A token whose claims were parsed but not verified.
pub(super) struct Unverified<'a> {
    token: &'a str,
    pub(super) claims: Document,
}

static ES256: LazyLock<Validation> = LazyLock::new(|| signature_by(Algorithm::ES256));
static RS256: LazyLock<Validation> = LazyLock::new(|| signature_by(Algorithm::RS256));

/// Accepts one algorithm only, and checks no claim.
fn signature_by(algorithm: Algorithm) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_aud) = (false, false);
    validation
}

/// The algorithm of the key, not that of the token's header.
fn validation(key: &VerifyingKey) -> &'static Validation {
    if key.algorithm == Algorithm::RS256 { &RS256 } else { &ES256 }
}

pub(super) fn sign(keys: &TokenKeys, claims: &Document) -> String {
    let (id, algorithm) = keys.signing_header();
    let header = Header { typ: None, kid: Some(id.to_owned()), ..Header::new(algorithm) };
    let claims =
        String::from_utf8(json::to_vec(&claims.clone().into_value())).expect("JSON is UTF-8");
    let claims = RawValue::from_string(claims).expect("serialized above");
    encode(&header, &claims, keys.signing())
        .expect("the key was checked when it was read, and the system gives random bytes")
}

impl<'a> Unverified<'a> {
    /// `None` unless the claims are a JSON object without duplicate keys.
    pub(super) fn read(token: &'a str) -> Option<Self> {
        let claims: Box<RawValue> = insecure_decode_claims(token).ok()?;
        let decoded = json::read(claims.get().as_bytes()).ok()?;
        decoded.duplicates.is_empty().then_some(Self { token, claims: decoded.document })
    }

    /// Whether one of our keys signed it. The key id only selects among our keys.
    pub(super) fn is_signed_by(&self, keys: &TokenKeys) -> bool {
        let Ok(header) = decode_header(self.token) else { return false };
        header.crit.is_none()
            && keys
                .verifying(header.kid.as_deref())
                .any(|key| decode::<IgnoredAny>(self.token, &key.key, validation(key)).is_ok())
    }
}
