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
    /// It showed a certificate that no CA verifies: without other credentials such a request is unauthenticated, not anonymous.
    pub unverified_certificate: bool,
}

/// What a connection showed in its handshake, judged again when a CA is replaced or a certificate expires: connections live long.
pub(crate) struct Shown {
    address: SocketAddr,
    chain: Vec<CertificateDer<'static>>,
    /// The end of the shortest validity in the chain.
    expiry: Option<SystemTime>,
    judged: Mutex<Judged>,
}

struct Judged {
    peer: Arc<Peer>,
    generation: u64,
    valid_until: Option<SystemTime>,
}

impl Shown {
    pub(crate) fn new(address: SocketAddr, chain: Vec<CertificateDer<'static>>, tls: &Tls) -> Self {
        let expiry = chain.iter().filter_map(not_after).min();
        let judged = judge(address, &chain, expiry, tls);
        Self { address, chain, expiry, judged: Mutex::new(judged) }
    }

    /// The peer as of now; verifies again only when something changed.
    pub(crate) fn peer(&self, tls: &Tls) -> Arc<Peer> {
        let mut judged = self.judged.lock().expect("no panic while held");
        if self.chain.is_empty() {
            return Arc::clone(&judged.peer);
        }
        let expired = judged.valid_until.is_some_and(|until| until < SystemTime::now());
        if expired || judged.generation != tls.generation() {
            *judged = judge(self.address, &self.chain, self.expiry, tls);
        }
        Arc::clone(&judged.peer)
    }
}

fn judge(address: SocketAddr, chain: &[CertificateDer<'static>], expiry: Option<SystemTime>, tls: &Tls) -> Judged {
    // Read before the roots: a replacement in between leads to one more verification, not to a stale one.
    let generation = tls.generation();
    let Some((leaf, rest)) = chain.split_first() else {
        let peer = Peer { address, certificates: Vec::new(), proxy_certificates: Vec::new(), unverified_certificate: false };
        return Judged { peer: Arc::new(peer), generation, valid_until: None };
    };
    let give = |verified: bool| if verified { chain.iter().map(|certificate| certificate.to_vec()).collect() } else { Vec::new() };
    let certificates: Vec<_> = give(tls.is_client(leaf, rest));
    let proxy_certificates: Vec<_> = give(tls.is_proxy(leaf, rest));
    let unverified_certificate = certificates.is_empty() && proxy_certificates.is_empty();
    let valid_until = if unverified_certificate { None } else { expiry };
    Judged { peer: Arc::new(Peer { address, certificates, proxy_certificates, unverified_certificate }), generation, valid_until }
}

fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}
