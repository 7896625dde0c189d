//! The other end of a connection, and which of its certificates are worth anything now.

use crate::tls::Tls;
use rustls_pki_types::CertificateDer;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// The other end of a connection, as of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificate chain (DER, leaf first) if the client CA verifies it now; else empty.
    pub certificates: Vec<Vec<u8>>,
    /// Its certificate chain if the front proxy's CA verifies it now; else empty.
    pub proxy_certificates: Vec<Vec<u8>>,
    /// It showed a certificate that no CA verifies: without other credentials such a request is
    /// unauthenticated, not anonymous.
    pub unverified_certificate: bool,
}

/// What a connection showed in its handshake, judged again when a CA is replaced or a certificate
/// expires: connections live long.
pub(crate) struct Shown {
    address: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    /// Within which all of the chain is valid.
    validity: Window,
    judged: Mutex<Judged>,
}

struct Judged {
    peer: Arc<Peer>,
    generation: u64,
    /// While it is neither earlier nor later than this, another verification would say the same.
    holds: Window,
}

/// A span of the wall clock; `None` is open.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    from: Option<SystemTime>,
    until: Option<SystemTime>,
}

impl Window {
    fn has(self, now: SystemTime) -> bool {
        self.from.is_none_or(|from| from <= now) && self.until.is_none_or(|until| now <= until)
    }

    /// Of the spans before, in and after this one, that which `now` is in.
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

impl Shown {
    pub(crate) fn new(address: SocketAddr, chain: Vec<CertificateDer<'static>>, tls: &Tls) -> Self {
        let validity = Window {
            from: chain.iter().filter_map(|each| validity(each)?.0).max(),
            until: chain.iter().filter_map(|each| validity(each)?.1).min(),
        };
        let judged = judge(address, &chain, validity, tls);
        Self { address, chain, validity, judged: Mutex::new(judged) }
    }

    /// The peer as of now; verifies again only when something changed. The clock may go either way.
    pub(crate) fn peer(&self, tls: &Tls) -> Arc<Peer> {
        let mut judged = self.judged.lock().expect("no panic while held");
        if self.chain.is_empty() {
            return Arc::clone(&judged.peer);
        }
        if !judged.holds.has(SystemTime::now()) || judged.generation != tls.generation() {
            *judged = judge(self.address, &self.chain, self.validity, tls);
        }
        Arc::clone(&judged.peer)
    }
}

fn judge(
    address: SocketAddr,
    chain: &[CertificateDer<'static>],
    validity: Window,
    tls: &Tls,
) -> Judged {
    // Read before the roots: a replacement in between leads to one more verification, not to a
    // stale one. So is the clock.
    let (generation, holds) = (tls.generation(), validity.around(SystemTime::now()));
    let Some((leaf, rest)) = chain.split_first() else {
        let peer = Peer {
            address,
            certificates: Vec::new(),
            proxy_certificates: Vec::new(),
            unverified_certificate: false,
        };
        return Judged { peer: Arc::new(peer), generation, holds };
    };
    let give = |verified: bool| {
        if verified {
            chain.iter().map(|certificate| certificate.to_vec()).collect()
        } else {
            Vec::new()
        }
    };
    let certificates: Vec<_> = give(tls.is_client(leaf, rest));
    let proxy_certificates: Vec<_> = give(tls.is_proxy(leaf, rest));
    let unverified_certificate = certificates.is_empty() && proxy_certificates.is_empty();
    Judged {
        peer: Arc::new(Peer { address, certificates, proxy_certificates, unverified_certificate }),
        generation,
        holds,
    }
}

/// From when and until when a certificate is valid.
fn validity(certificate: &CertificateDer<'_>) -> Option<(Option<SystemTime>, Option<SystemTime>)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let time = |time: x509_parser::time::ASN1Time| {
        let seconds = u64::try_from(time.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    // The last second belongs to it whole.
    let until =
        time(parsed.validity().not_after).map(|last| last + Duration::from_nanos(999_999_999));
    Some((time(parsed.validity().not_before), until))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_until_the_clock_passes_an_end_of_the_validity_either_way() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let validity = Window { from: Some(at(100)), until: Some(at(200)) };
        for (now, holding, other) in
            [(50, [0, 99], [101, 300]), (150, [100, 200], [99, 201]), (250, [201, 9000], [150, 0])]
        {
            let holds = validity.around(at(now));
            assert!(holding.iter().all(|now| holds.has(at(*now))), "{now}: {holds:?}");
            assert!(!other.iter().any(|now| holds.has(at(*now))), "{now}: {holds:?}");
        }
        assert!(Window::default().around(at(1)).has(at(9)));
    }
}
