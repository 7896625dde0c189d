//! Token keys: one signs, several verify (for rotation). A key id is the hash of the public key.

use super::provider;
use super::verifying::VerifyingKey;
use ferrokube_apimachinery::document::{Value, json};
use jsonwebtoken::{Algorithm, EncodingKey};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair};
use std::collections::BTreeSet;
use x509_parser::pem::Pem;

/// Max verification keys.
const MAX_KEYS: usize = 64;

/// Why keys cannot be used. Never contains key material.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeyError {
    /// Not PEM.
    #[error("the service account key file {0} is not PEM")]
    Pem(usize),
    /// No key of a supported form.
    #[error(
        "the service account key file {0} holds no P-256 key and no RSA key of at least 2048 bits (PKCS#8 or RSA private key, SubjectPublicKeyInfo public key, or certificate)"
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

impl TokenKeys {
    /// `signing`: PEM with a private key: P-256 (PKCS#8), or RSA of at least 2048 bits (PKCS#8 or
    /// PKCS#1). `verifying`: PEM with further private or public keys, or certificates of such,
    /// whose tokens stay valid. As in kube-apiserver, a certificate only wraps its key: nothing
    /// else of it counts.
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

    /// Id and algorithm of the signing key.
    pub(super) fn signing_header(&self) -> (&str, Algorithm) {
        (&self.verifying[0].id, self.verifying[0].algorithm)
    }

    /// Whether a signature takes long: with RSA a millisecond or more.
    pub(super) fn sign_slowly(&self) -> bool {
        self.signing_header().1 == Algorithm::RS256
    }

    pub(super) fn signing(&self) -> &EncodingKey {
        &self.signing
    }

    /// The key with this id, or all keys without an id.
    pub(super) fn verifying(&self, id: Option<&str>) -> impl Iterator<Item = &VerifyingKey> {
        self.verifying.iter().filter(move |key| id.is_none_or(|id| id == key.id))
    }

    /// The public keys as a JSON Web Key Set.
    pub(super) fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.verifying.iter().map(|key| key.jwk.clone()).collect();
        json!({ "keys": keys })
    }

    /// Names of the algorithms of all keys, sorted.
    pub(super) fn algorithms(&self) -> Vec<Value> {
        let names: BTreeSet<String> =
            self.verifying.iter().map(|key| format!("{:?}", key.algorithm)).collect();
        names.into_iter().map(|name| json!(name)).collect()
    }
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<&str> = self.verifying.iter().map(|key| key.id.as_str()).collect();
        f.debug_struct("TokenKeys").field("ids", &ids).finish_non_exhaustive()
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
    let is_private = |block: &&Pem| ["PRIVATE KEY", "RSA PRIVATE KEY"].contains(&&*block.label);
    let read = |block: &Pem| private_key(block, random).ok_or(TokenKeyError::Form(number));
    blocks(pem, number)?.iter().filter(is_private).map(read).collect()
}

fn private_key(block: &Pem, random: &SystemRandom) -> Option<(EncodingKey, VerifyingKey)> {
    let der = &block.contents;
    let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
    if let Ok(pair) = EcdsaKeyPair::from_pkcs8(algorithm, der, random) {
        return Some((EncodingKey::from_ec_der(der), VerifyingKey::of_p256(&pair)?));
    }
    let pair = provider::rsa(der).ok()?;
    Some((EncodingKey::from_rsa_der(der), VerifyingKey::of_rsa(&pair)?))
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
