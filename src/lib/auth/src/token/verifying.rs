//! Public keys of tokens: P-256 and RSA. Each verifies signatures of one algorithm only, whatever
//! the header of a token says.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferrokube_apimachinery::document::{Value, json};
use jsonwebtoken::{Algorithm, DecodingKey};
use ring::digest;
use ring::signature::{EcdsaKeyPair, KeyPair, RsaKeyPair};
use std::ops::RangeInclusive;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::{PublicKey, RSAPublicKey};
use x509_parser::x509::SubjectPublicKeyInfo;

/// DER prefix of a P-256 public key, before the point (RFC 5480).
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// Length of an uncompressed point.
const POINT_BYTES: usize = 65;
/// DER of the algorithm in an RSA public key (RFC 3279).
const RSA_ALGORITHM: [u8; 15] =
    [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
/// Bits of an RSA modulus, as ring verifies with them.
const RSA_BITS: RangeInclusive<usize> = 2048..=8192;
/// DER tags.
const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// A public key.
#[derive(Clone)]
pub(super) struct VerifyingKey {
    /// Hash of the SubjectPublicKeyInfo, as kube-apiserver's.
    pub(super) id: String,
    pub(super) algorithm: Algorithm,
    pub(super) key: DecodingKey,
    /// As a JSON Web Key.
    pub(super) jwk: Value,
}

impl VerifyingKey {
    pub(super) fn of_p256(pair: &EcdsaKeyPair) -> Option<Self> {
        Self::from_spki(&[&P256_PREFIX[..], pair.public_key().as_ref()].concat())
    }

    pub(super) fn of_rsa(pair: &RsaKeyPair) -> Option<Self> {
        // A bit string begins with the number of its unused bits.
        let bits = long_der(BIT_STRING, &[&[0][..], pair.public_key().as_ref()].concat())?;
        Self::from_spki(&long_der(SEQUENCE, &[&RSA_ALGORITHM[..], &bits].concat())?)
    }

    /// Parses a SubjectPublicKeyInfo; `None` if it is neither P-256 nor RSA of 2048 to 8192 bits.
    pub(super) fn from_spki(der: &[u8]) -> Option<Self> {
        let id = URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, der));
        if let Some(point) = der.strip_prefix(&P256_PREFIX) {
            let point: [u8; POINT_BYTES] = point.try_into().ok()?;
            return (point[0] == 4).then(|| Self::p256(id, &point));
        }
        let (rest, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
        match info.parsed().ok()? {
            PublicKey::RSA(key) if rest.is_empty() => {
                Self::rsa(id, &key, &info.subject_public_key.data)
            }
            _ => None,
        }
    }

    fn p256(id: String, point: &[u8; POINT_BYTES]) -> Self {
        let (x, y) = point[1..].split_at(32);
        let jwk = json!({"use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y)});
        Self { id, algorithm: Algorithm::ES256, key: DecodingKey::from_ec_der(point), jwk }
    }

    /// `der`: the RSAPublicKey that was parsed.
    fn rsa(id: String, key: &RSAPublicKey<'_>, der: &[u8]) -> Option<Self> {
        let (n, e) = (unsigned(key.modulus), unsigned(key.exponent));
        let unused = n.first()?.leading_zeros() as usize;
        if !RSA_BITS.contains(&(n.len() * 8 - unused)) {
            return None;
        }
        let jwk = json!({"use": "sig", "kty": "RSA", "kid": id, "alg": "RS256", "n": URL_SAFE_NO_PAD.encode(n), "e": URL_SAFE_NO_PAD.encode(e)});
        Some(Self { id, algorithm: Algorithm::RS256, key: DecodingKey::from_rsa_der(der), jwk })
    }
}

/// Without leading zeros.
fn unsigned(integer: &[u8]) -> &[u8] {
    let zeros = integer.iter().take_while(|byte| **byte == 0).count();
    &integer[zeros..]
}

/// A DER value of at least 256 bytes, as all of an RSA key of 2048 bits are; at most 65,535.
fn long_der(tag: u8, content: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(content.len()).ok().filter(|length| *length >= 256)?;
    let [high, low] = length.to_be_bytes();
    Some([&[tag, 0x82, high, low][..], content].concat())
}
