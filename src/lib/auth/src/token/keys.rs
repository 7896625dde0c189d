//! Token keys: one signs, several verify (for rotation). A key id is the hash of the public key.

use super::provider;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferrokube_apimachinery::document::{Value, json};
use jsonwebtoken::{DecodingKey, EncodingKey};
use ring::digest;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair};
use x509_parser::pem::Pem;

/// Max verification keys.
const MAX_KEYS: usize = 64;
/// DER prefix of a P-256 public key, before the point (RFC 5480).
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Length of an uncompressed point.
const POINT_BYTES: usize = 65;

/// Why keys cannot be used. Never contains key material.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeyError {
    /// Not PEM.
    #[error("the service account key file {0} is not PEM")]
    Pem(usize),
    /// No key of a supported form.
    #[error(
        "the service account key file {0} holds no P-256 key (PKCS#8 private key, SubjectPublicKeyInfo public key, or certificate)"
    )]
    Form(usize),
    /// More than 64 verification keys.
    #[error("there are more than {MAX_KEYS} service account keys")]
    TooMany,
}

/// The signing key and all verification keys. `Debug` shows key ids only.
pub struct TokenKeys {
    signing: EncodingKey,
    /// The signing key's public key comes first.
    verifying: Vec<VerifyingKey>,
}

#[derive(Clone)]
struct VerifyingKey {
    id: String,
    point: [u8; POINT_BYTES],
    key: DecodingKey,
}

impl TokenKeys {
    /// `signing`: PEM with a PKCS#8 P-256 private key. `verifying`: PEM with further private or
    /// public P-256 keys, or certificates of such, whose tokens stay valid. As in kube-apiserver, a
    /// certificate only wraps its key: nothing else of it counts.
    ///
    /// # Errors
    /// [`TokenKeyError`]; its number is 0 for the signing key and counts the others from 1.
    pub fn from_pem(signing: &[u8], verifying: &[&[u8]]) -> Result<Self, TokenKeyError> {
        provider::install();
        let random = SystemRandom::new();
        let (signing, public) =
            private_keys(signing, 0, &random)?.into_iter().next().ok_or(TokenKeyError::Form(0))?;
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
            return Err(TokenKeyError::TooMany);
        }
        Ok(Self { signing, verifying: keys })
    }

    /// Checks that [`Self::from_pem`] would accept these further keys.
    ///
    /// # Errors
    /// As [`Self::from_pem`].
    pub fn check_verifying(verifying: &[&[u8]]) -> Result<(), TokenKeyError> {
        let random = SystemRandom::new();
        verifying
            .iter()
            .enumerate()
            .try_for_each(|(index, pem)| verifying_keys(pem, index + 1, &random).map(drop))
    }

    /// Id of the signing key.
    pub(super) fn signing_id(&self) -> &str {
        &self.verifying[0].id
    }

    pub(super) fn signing(&self) -> &EncodingKey {
        &self.signing
    }

    /// The key with this id, or all keys without an id.
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

    fn new(point: [u8; POINT_BYTES]) -> Self {
        let spki = [&SPKI_PREFIX[..], &point].concat();
        Self {
            id: URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, &spki)),
            point,
            key: DecodingKey::from_ec_der(&point),
        }
    }

    /// Parses a DER public key; `None` if it is not P-256.
    fn from_spki(der: &[u8]) -> Option<Self> {
        let point: [u8; POINT_BYTES] = der.strip_prefix(&SPKI_PREFIX)?.try_into().ok()?;
        (point[0] == 4).then(|| Self::new(point))
    }
}

fn blocks(pem: &[u8], number: usize) -> Result<Vec<Pem>, TokenKeyError> {
    Pem::iter_from_buffer(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| TokenKeyError::Pem(number))
}

fn private_keys(
    pem: &[u8],
    number: usize,
    random: &SystemRandom,
) -> Result<Vec<(EncodingKey, VerifyingKey)>, TokenKeyError> {
    let read = |block: &Pem| {
        let pair = EcdsaKeyPair::from_pkcs8(
            &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
            &block.contents,
            random,
        )
        .map_err(|_| TokenKeyError::Form(number))?;
        Ok((EncodingKey::from_ec_der(&block.contents), VerifyingKey::of(&pair)))
    };
    blocks(pem, number)?.iter().filter(|block| block.label == "PRIVATE KEY").map(read).collect()
}

fn verifying_keys(
    pem: &[u8],
    number: usize,
    random: &SystemRandom,
) -> Result<Vec<VerifyingKey>, TokenKeyError> {
    let mut keys: Vec<VerifyingKey> =
        private_keys(pem, number, random)?.into_iter().map(|(_, public)| public).collect();
    for block in blocks(pem, number)?.iter().filter(|block| block.label == "PUBLIC KEY") {
        keys.push(VerifyingKey::from_spki(&block.contents).ok_or(TokenKeyError::Form(number))?);
    }
    for block in blocks(pem, number)?.iter().filter(|block| block.label == "CERTIFICATE") {
        let certificate = block.parse_x509().map_err(|_| TokenKeyError::Form(number))?;
        let key = VerifyingKey::from_spki(certificate.public_key().raw);
        keys.push(key.ok_or(TokenKeyError::Form(number))?);
    }
    if keys.is_empty() { Err(TokenKeyError::Form(number)) } else { Ok(keys) }
}
