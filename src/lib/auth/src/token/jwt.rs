//! The compact form of a JSON Web Signature (RFC 7515), ES256 only.

use super::keys::TokenKeys;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferrokube_apimachinery::document::{Document, json};
use ferrokube_apimachinery::json;

/// A token taken apart; nothing is verified.
pub(super) struct Parts<'a> {
    header: Document,
    /// What was signed.
    signed: &'a str,
    signature: Vec<u8>,
    /// The claims, as yet unbelieved.
    pub(super) payload: Document,
}

/// Signs claims.
pub(super) fn sign(keys: &TokenKeys, claims: &Document) -> String {
    let header = json!({"alg": "ES256", "kid": keys.signing_id()});
    let payload = json::to_vec(&claims.clone().into_value());
    let mut token = format!("{}.{}", URL_SAFE_NO_PAD.encode(json::to_vec(&header)), URL_SAFE_NO_PAD.encode(payload));
    let signature = keys.sign(token.as_bytes());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(signature, &mut token);
    token
}

impl<'a> Parts<'a> {
    /// `None` when it is no JWS of JSON objects, or repeats a key.
    pub(super) fn split(token: &'a str) -> Option<Self> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (header, payload) = signed.split_once('.')?;
        if payload.contains('.') {
            return None;
        }
        Some(Self { header: object(header)?, signed, signature: URL_SAFE_NO_PAD.decode(signature).ok()?, payload: object(payload)? })
    }

    /// Whether one of our keys signed it, by ES256 and nothing else. A key id is only compared, never used as a name of anything.
    pub(super) fn is_signed_by(&self, keys: &TokenKeys) -> bool {
        let id = match self.header.get(&["kid"]) {
            None => None,
            Some(id) => match id.as_str() {
                Some(id) => Some(id),
                None => return false,
            },
        };
        self.header.str(&["alg"]) == Some("ES256")
            && self.header.get(&["crit"]).is_none()
            && self.signature.len() == 64
            && keys.verify(id, self.signed.as_bytes(), &self.signature)
    }
}

fn object(part: &str) -> Option<Document> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    let decoded = json::read(&bytes).ok()?;
    decoded.duplicates.is_empty().then_some(decoded.document)
}
