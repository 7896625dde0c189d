//! Cryptography for jsonwebtoken, by ring: the crate supports only aws-lc-rs and RustCrypto, and
//! this binary has one crypto library.
//!
//! A further algorithm is a row in each of the two functions.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Signer, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey};
use ring::error::KeyRejected;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm};

static RING: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the process-wide provider for jsonwebtoken. Idempotent.
pub(super) fn install() {
    // Fails only if it is installed already.
    let _ = RING.install_default();
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    match (algorithm, key.family()) {
        (Algorithm::ES256, AlgorithmFamily::Ec) => {
            let random = SystemRandom::new();
            let pair = EcdsaKeyPair::from_pkcs8(
                &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
                key.as_bytes(),
                &random,
            );
            Ok(Box::new(Es256(pair.map_err(|_| new_error(ErrorKind::InvalidEcdsaKey))?, random)))
        }
        (Algorithm::RS256, AlgorithmFamily::Rsa) => {
            let pair = rsa(key.as_bytes()).map_err(|_| new_error(ErrorKind::InvalidKeyFormat))?;
            Ok(Box::new(Rs256(pair, SystemRandom::new())))
        }
        _ => Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    }
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let verification: &'static dyn VerificationAlgorithm = match (algorithm, key.family()) {
        (Algorithm::ES256, AlgorithmFamily::Ec) => &signature::ECDSA_P256_SHA256_FIXED,
        (Algorithm::RS256, AlgorithmFamily::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA256,
        _ => return Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    };
    let key = UnparsedPublicKey::new(verification, key.try_get_as_bytes()?.to_vec());
    Ok(Box::new(PublicKey(*algorithm, key)))
}

/// An RSA private key in PKCS#8 or PKCS#1.
pub(super) fn rsa(der: &[u8]) -> std::result::Result<RsaKeyPair, KeyRejected> {
    RsaKeyPair::from_pkcs8(der).or_else(|_| RsaKeyPair::from_der(der))
}

struct Es256(EcdsaKeyPair, SystemRandom);

impl Signer<Vec<u8>> for Es256 {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        self.0
            .sign(&self.1, message)
            .map(|signature| signature.as_ref().to_vec())
            .map_err(|_| Error::new())
    }
}

impl JwtSigner for Es256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::ES256
    }
}

struct Rs256(RsaKeyPair, SystemRandom);

impl Signer<Vec<u8>> for Rs256 {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        let mut signature = vec![0; self.0.public().modulus_len()];
        self.0
            .sign(&signature::RSA_PKCS1_SHA256, &self.1, message, &mut signature)
            .map(|()| signature)
            .map_err(|_| Error::new())
    }
}

impl JwtSigner for Rs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

struct PublicKey(Algorithm, UnparsedPublicKey<Vec<u8>>);

impl Verifier<Vec<u8>> for PublicKey {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        self.1.verify(message, signature).map_err(|_| Error::new())
    }
}

impl JwtVerifier for PublicKey {
    fn algorithm(&self) -> Algorithm {
        self.0
    }
}
