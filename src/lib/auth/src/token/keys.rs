//! The keys: one signs, several verify (rotation), each known by the hash of its public form.

use super::provider;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferrokube_apimachinery::document::{Value, json};
use jsonwebtoken::{DecodingKey, EncodingKey};
use ring::digest;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair};
use x509_parser::pem::Pem;

/// Most verification keys.
const MAX_KEYS: usize = 64;
/// What stands before the point in the DER form of a P-256 public key (RFC 5480).
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// An uncompressed point.
const POINT: usize = 65;

/// Why keys cannot be used; never says what is in them.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not PEM.
    #[error("the service account key file {0} is not PEM")]
    Pem(usize),
    /// No key of the needed form in it.
    #[error(
        "the service account key file {0} holds no P-256 key (PKCS#8 private key, or SubjectPublicKeyInfo public key)"
    )]
    Form(usize),
    /// More than 64 verification keys.
    #[error("there are more than {MAX_KEYS} service account keys")]
    TooMany,
}

/// The key that signs and all that verify. Its `Debug` form shows key ids only.
pub struct TokenKeys {
    signing: EncodingKey,
    /// The signing key's own is the first.
    verifying: Vec<VerifyingKey>,
}

#[derive(Clone)]
struct VerifyingKey {
    id: String,
    point: [u8; POINT],
    key: DecodingKey,
}

impl TokenKeys {
    /// `signing`: PEM with a PKCS#8 P-256 private key. `verifying`: PEM texts with further private
    /// or public P-256 keys whose tokens stay valid.
    ///
    /// # Errors
    /// [`KeyError`]; the number is 0 for the signing key, then counts the others from 1.
    pub fn from_pem(signing: &[u8], verifying: &[&[u8]]) -> Result<Self, KeyError> {
        provider::install();
        let random = SystemRandom::new();
        let (signing, public) =
            private_keys(signing, 0, &random)?.into_iter().next().ok_or(KeyError::Form(0))?;
        let mut keys = vec![public];
        for (index, pem) in verifying.iter().enumerate() {
            let found = verifying_keys(pem, index + 1, &random)?;
            keys.extend(found);
        }
        keys = keys.into_iter().fold(Vec::new(), |mut unique: Vec<VerifyingKey>, key| {
            if !unique.iter().any(|known| known.id == key.id) {
                unique.push(key);
            }
            unique
        });
        if keys.len() > MAX_KEYS {
            return Err(KeyError::TooMany);
        }
        Ok(Self { signing, verifying: keys })
    }

    /// Whether these texts, as further keys of [`Self::from_pem`], can be used.
    ///
    /// # Errors
    /// As [`Self::from_pem`].
    pub fn check_verifying(verifying: &[&[u8]]) -> Result<(), KeyError> {
        let random = SystemRandom::new();
        verifying
            .iter()
            .enumerate()
            .try_for_each(|(index, pem)| verifying_keys(pem, index + 1, &random).map(drop))
    }

    /// The id of the key that signs.
    pub(super) fn signing_id(&self) -> &str {
        &self.verifying[0].id
    }

    /// The key that signs.
    pub(super) fn signing(&self) -> &EncodingKey {
        &self.signing
    }

    /// The key of this id, or all without one.
    pub(super) fn verifying(&self, id: Option<&str>) -> impl Iterator<Item = &DecodingKey> {
        self.verifying
            .iter()
            .filter(move |key| id.is_none_or(|id| id == key.id))
            .map(|key| &key.key)
    }

    /// The public keys as a JSON Web Key Set.
    pub(super) fn jwks(&self) -> Value {
        let keys: Vec<Value> = self
            .verifying
            .iter()
            .map(|key| {
                let (x, y) = key.point[1..].split_at(32);
                json!({"use": "sig", "kty": "EC", "kid": key.id, "crv": "P-256", "alg": "ES256", "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)})
            })
            .collect();
        json!({ "keys": keys })
    }
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<&str> = self.verifying.iter().map(|key| key.id.as_str()).collect();
        f.debug_struct("TokenKeys").field("ids", &ids).finish_non_exhaustive()
    }
}

impl VerifyingKey {
    fn of(pair: &EcdsaKeyPair) -> Self {
        Self::new(pair.public_key().as_ref().try_into().expect("ring gives the uncompressed point"))
    }

    fn new(point: [u8; POINT]) -> Self {
        let spki = [&SPKI_PREFIX[..], &point].concat();
        Self {
            id: URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &spki)),
            point,
            key: DecodingKey::from_ec_der(&point),
        }
    }

    /// From the DER form of a public key; `None` for other kinds of keys.
    fn from_spki(der: &[u8]) -> Option<Self> {
        let point: [u8; POINT] = der.strip_prefix(&SPKI_PREFIX)?.try_into().ok()?;
        (point[0] == 4).then(|| Self::new(point))
    }
}

fn blocks(pem: &[u8], number: usize) -> Result<Vec<Pem>, KeyError> {
    Pem::iter_from_buffer(pem).collect::<Result<Vec<_>, _>>().map_err(|_| KeyError::Pem(number))
}

fn private_keys(
    pem: &[u8],
    number: usize,
    random: &SystemRandom,
) -> Result<Vec<(EncodingKey, VerifyingKey)>, KeyError> {
    let read = |block: &Pem| {
        let pair = EcdsaKeyPair::from_pkcs8(
            &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
            &block.contents,
            random,
        )
        .map_err(|_| KeyError::Form(number))?;
        Ok((EncodingKey::from_ec_der(&block.contents), VerifyingKey::of(&pair)))
    };
    blocks(pem, number)?.iter().filter(|block| block.label == "PRIVATE KEY").map(read).collect()
}

fn verifying_keys(
    pem: &[u8],
    number: usize,
    random: &SystemRandom,
) -> Result<Vec<VerifyingKey>, KeyError> {
    let mut keys: Vec<VerifyingKey> =
        private_keys(pem, number, random)?.into_iter().map(|(_, public)| public).collect();
    for block in blocks(pem, number)?.iter().filter(|block| block.label == "PUBLIC KEY") {
        keys.push(VerifyingKey::from_spki(&block.contents).ok_or(KeyError::Form(number))?);
    }
    if keys.is_empty() { Err(KeyError::Form(number)) } else { Ok(keys) }
}
