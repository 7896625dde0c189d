//! Service account tokens as JSON Web Tokens, by the crate jsonwebtoken: ES256 only.
//!
//! The crate checks algorithm and signature. What it cannot check stays with us: repeated keys,
//! which it reads as it likes; `crit`, which it ignores; times, for which it has no clock but the
//! system's; audiences, which differ per request while a verified token is cached.

use super::keys::TokenKeys;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::{Algorithm, Header, Validation, decode, decode_header, encode};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::sync::LazyLock;

/// A token whose claims were read and not verified.
pub(super) struct Unverified<'a> {
    token: &'a str,
    pub(super) claims: Document,
}

/// ES256, and nothing else: no claim.
static SIGNATURE: LazyLock<Validation> = LazyLock::new(|| {
    let mut validation = Validation::new(Algorithm::ES256);
    validation.required_spec_claims.clear();
    (validation.validate_exp, validation.validate_aud) = (false, false);
    validation
});

/// Signs claims.
pub(super) fn sign(keys: &TokenKeys, claims: &Document) -> String {
    let header = Header {
        typ: None,
        kid: Some(keys.signing_id().to_owned()),
        ..Header::new(Algorithm::ES256)
    };
    let claims =
        String::from_utf8(json::to_vec(&claims.clone().into_value())).expect("JSON is UTF-8");
    let claims = RawValue::from_string(claims).expect("we wrote it");
    encode(&header, &claims, keys.signing())
        .expect("the key was checked when it was read, and the system gives random bytes")
}

impl<'a> Unverified<'a> {
    /// `None` unless the claims are a JSON object that repeats no key.
    pub(super) fn read(token: &'a str) -> Option<Self> {
        let claims: Box<RawValue> = insecure_decode_claims(token).ok()?;
        let decoded = json::read(claims.get().as_bytes()).ok()?;
        decoded.duplicates.is_empty().then_some(Self { token, claims: decoded.document })
    }

    /// Whether one of our keys signed it. A key id is only compared with those of our keys.
    pub(super) fn is_signed_by(&self, keys: &TokenKeys) -> bool {
        let Ok(header) = decode_header(self.token) else { return false };
        header.crit.is_none()
            && keys
                .verifying(header.kid.as_deref())
                .any(|key| decode::<IgnoredAny>(self.token, key, &SIGNATURE).is_ok())
    }
}
