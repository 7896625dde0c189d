//! The client's end of a connection, with its certificates as they verify now.

use crate::tls::Tls;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::time::ASN1Time;

/// The client's end of a connection, as of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Source address of the connection.
    pub address: SocketAddr,
    /// The client's certificate (DER) if the client CA verifies it now.
    pub certificate: Option<Arc<[u8]>>,
    /// The proxy's certificate if the front proxy's CA verifies it now.
    pub proxy_certificate: Option<Arc<[u8]>>,
    /// It showed a certificate that no CA verifies: without other credentials such a request is
    /// unauthenticated, not anonymous.
    pub unverified_certificate: bool,
}

/// The handshake's certificate chain, verified again when a CA is replaced or a certificate
/// expires, as connections live long.
pub(crate) struct PeerChain {
    address: SocketAddr,
    chain: ShownChain,
    /// Within which all of the chain is valid.
    validity: ValidityWindow,
    verification: Mutex<Verification>,
}

struct Verification {
    peer: Arc<Peer>,
    generation: u64,
    /// Within this, another verification would have the same result.
    holds: ValidityWindow,
}

/// A span of the wall clock; open where `None`.
#[derive(Clone, Copy, Debug, Default)]
struct ValidityWindow {
    from: Option<SystemTime>,
    until: Option<SystemTime>,
}

impl ValidityWindow {
    /// To when this certificate is valid, too.
    fn narrow(&mut self, certificate: &X509Certificate<'_>) {
        let time = |time: ASN1Time| {
            let seconds = u64::try_from(time.timestamp()).ok()?;
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
        };
        let validity = certificate.validity();
        self.from = self.from.max(time(validity.not_before));
        // The last second belongs to it whole.
        let until = time(validity.not_after).map(|last| last + Duration::from_nanos(999_999_999));
        self.until = [self.until, until].into_iter().flatten().min();
    }

    fn has(self, now: SystemTime) -> bool {
        self.from.is_none_or(|from| from <= now) && self.until.is_none_or(|until| now <= until)
    }

    /// The span before, in or after this one that contains `now`.
    fn around(self, now: SystemTime) -> Self {
        match self {
            Self { from: Some(from), .. } if now < from => Self { from: None, until: Some(from) },
            Self { until: Some(until), .. } if until < now => {
                Self { from: Some(until), until: None }
            }
            inside => inside,
        }
    }
}

/// Intermediate certificates of one subject that are tried. Paths through more of them multiply.
const MAX_SAME_SUBJECT: usize = 2;

/// A chain as it was shown.
#[derive(Default)]
struct ShownChain {
    /// `None`: no certificate was shown. Shared with [`Peer`].
    leaf: Option<Arc<[u8]>>,
    /// Those that may lead from the leaf to a CA.
    rest: Box<[CertificateDer<'static>]>,
}

impl ShownChain {
    /// Copies the certificates that may be needed, and computes the time span in which all are
    /// valid.
    fn new(shown: &[CertificateDer<'_>]) -> (Self, ValidityWindow) {
        let Some((leaf, others)) = shown.split_first() else {
            return (Self::default(), ValidityWindow::default());
        };
        let mut window = ValidityWindow::default();
        if let Ok((_, parsed)) = x509_parser::parse_x509_certificate(leaf) {
            window.narrow(&parsed);
        }
        let mut subjects: Vec<Vec<u8>> = Vec::new();
        let mut rest = Vec::new();
        for certificate in others {
            let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
                continue;
            };
            let subject = parsed.subject().as_raw();
            if subjects.iter().filter(|known| *known == subject).count() < MAX_SAME_SUBJECT {
                window.narrow(&parsed);
                rest.push(certificate.clone().into_owned());
            }
            subjects.push(subject.to_owned());
        }
        (Self { leaf: Some(Arc::from(&leaf[..])), rest: rest.into() }, window)
    }
}

impl ShownChain {
    /// Keeps only the leaf if the others do not help to verify it: any client can make them, and a
    /// connection lives long.
    fn forget_unneeded(&mut self, peer: &Peer, tls: &Tls) {
        let is_needed = |verified: &Option<Arc<[u8]>>, by: Verifier| {
            verified.as_deref().is_some_and(|leaf| !by(tls, &CertificateDer::from(leaf), &[]))
        };
        if !is_needed(&peer.certificate, Tls::is_client)
            && !is_needed(&peer.proxy_certificate, Tls::is_proxy)
        {
            self.rest = Box::default();
        }
    }
}

type Verifier = fn(&Tls, &CertificateDer<'_>, &[CertificateDer<'_>]) -> bool;

impl PeerChain {
    pub(crate) fn new(address: SocketAddr, chain: &[CertificateDer<'_>], tls: &Tls) -> Self {
        let (mut chain, validity) = ShownChain::new(chain);
        let verification = verify(address, &chain, validity, tls);
        chain.forget_unneeded(&verification.peer, tls);
        Self { address, chain, validity, verification: Mutex::new(verification) }
    }

    /// The peer as of now; only verifies again if something changed. The clock may go backwards.
    pub(crate) fn peer(&self, tls: &Tls) -> Arc<Peer> {
        let mut verification = self.verification.lock();
        if self.chain.leaf.is_none() {
            return Arc::clone(&verification.peer);
        }
        if !verification.holds.has(SystemTime::now()) || verification.generation != tls.generation()
        {
            *verification = verify(self.address, &self.chain, self.validity, tls);
        }
        Arc::clone(&verification.peer)
    }
}

fn verify(
    address: SocketAddr,
    chain: &ShownChain,
    validity: ValidityWindow,
    tls: &Tls,
) -> Verification {
    // Read before the roots: a replacement in between leads to one more verification, not to a
    // stale one. So is the clock.
    let (generation, holds) = (tls.generation(), validity.around(SystemTime::now()));
    let verified = |by: Verifier| {
        chain.leaf.clone().filter(|leaf| by(tls, &CertificateDer::from(&**leaf), &chain.rest))
    };
    let (certificate, proxy_certificate) = (verified(Tls::is_client), verified(Tls::is_proxy));
    let unverified_certificate =
        chain.leaf.is_some() && certificate.is_none() && proxy_certificate.is_none();
    Verification {
        peer: Arc::new(Peer { address, certificate, proxy_certificate, unverified_certificate }),
        generation,
        holds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_until_the_clock_passes_an_end_of_the_validity_either_way() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let validity = ValidityWindow { from: Some(at(100)), until: Some(at(200)) };
        for (now, holding, other) in
            [(50, [0, 99], [101, 300]), (150, [100, 200], [99, 201]), (250, [201, 9000], [150, 0])]
        {
            let holds = validity.around(at(now));
            assert!(holding.iter().all(|now| holds.has(at(*now))), "{now}: {holds:?}");
            assert!(!other.iter().any(|now| holds.has(at(*now))), "{now}: {holds:?}");
        }
        assert!(ValidityWindow::default().around(at(1)).has(at(9)));
    }

    #[test]
    fn few_certificates_of_one_subject_are_tried() {
        let ca = |name: &str| {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let names = ["leaf", "ca", "ca", "other", "ca", "ca"];
        let shown: Vec<_> = names.map(ca).into();
        let (chain, _) = ShownChain::new(&shown);
        assert_eq!(chain.leaf.as_deref(), Some(&*shown[0]));
        assert_eq!(*chain.rest, shown[1..4]);
    }
}
