//! Counts connections refused for obsolete certificates, as kube-apiserver does: operators see in
//! which clusters certificates must be replaced.

use rustls::{CertificateError, Error};
use std::error;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// `sha1WithRSAEncryption` and `ecdsa-with-SHA1`, in DER.
const SHA1: [&[u8]; 2] = [
    &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05],
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01],
];

/// Connections that failed for such a certificate. Cheap to clone; clones count together.
#[derive(Clone, Debug, Default)]
pub struct CertificateFaults(Arc<FaultCounts>);

#[derive(Debug, Default)]
struct FaultCounts {
    missing_san: AtomicU64,
    insecure_sha1: AtomicU64,
}

impl CertificateFaults {
    /// Counts a connection error if it or one of its sources concerns such a certificate.
    pub fn count(&self, error: &(dyn error::Error + 'static)) {
        let Some(Error::InvalidCertificate(fault)) = tls_error(error) else { return };
        match fault {
            CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                self.0.missing_san.fetch_add(1, Ordering::Relaxed);
            }
            CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: id,
                ..
            } if SHA1.iter().any(|sha1| id.windows(sha1.len()).any(|part| part == *sha1)) => {
                self.0.insecure_sha1.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Those without subject alternative names.
    pub fn missing_san(&self) -> u64 {
        self.0.missing_san.load(Ordering::Relaxed)
    }

    /// Those signed with SHA-1.
    pub fn insecure_sha1(&self) -> u64 {
        self.0.insecure_sha1.load(Ordering::Relaxed)
    }
}

fn tls_error<'a>(error: &'a (dyn error::Error + 'static)) -> Option<&'a Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<Error>() {
            return Some(found);
        }
        // The source of an IO error is that of its inner error.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::bundle_verifier;
    use rcgen::{CertificateParams, KeyPair};
    use rustls::pki_types::{ServerName, UnixTime};

    fn counted(error: Error) -> (u64, u64) {
        let faults = CertificateFaults::default();
        let nested = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
        faults.clone().count(&nested);
        (faults.missing_san(), faults.insecure_sha1())
    }

    /// The failure to call a server `localhost` whose certificate, in the bundle, has these names.
    fn refused(names: &[&str]) -> Error {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let params = CertificateParams::new(names).unwrap();
        let shown = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let verifier = bundle_verifier(shown.pem().as_bytes()).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        verifier.verify_server_cert(shown.der(), &[], &name, &[], UnixTime::now()).unwrap_err()
    }

    #[test]
    fn certificates_without_names_are_counted() {
        assert_eq!(counted(refused(&[])), (1, 0));
        assert_eq!(counted(refused(&["example.com"])), (0, 0));
        assert_eq!(counted(Error::InvalidCertificate(CertificateError::Expired)), (0, 0));
        let faults = CertificateFaults::default();
        faults.count(&io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!((faults.missing_san(), faults.insecure_sha1()), (0, 0));
    }

    #[test]
    fn signatures_with_sha1_are_counted() {
        let unsupported = |oid: &[u8]| {
            let id = [oid, &[0x05, 0x00]].concat();
            Error::InvalidCertificate(CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: id,
                supported_algorithms: Vec::new(),
            })
        };
        for sha1 in SHA1 {
            assert_eq!(counted(unsupported(sha1)), (0, 1));
        }
        // md5WithRSAEncryption
        let md5 = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04];
        assert_eq!(counted(unsupported(&md5)), (0, 0));
    }
}
