//! Handshakes: versions, cipher suites, CA names, resumption; and clients that do not speak TLS.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say so")]

mod support;

use ferrokube_pki::{LEAF_LIFETIME, Pki, Subject};
use ferrokube_serve::{ListenerLimits, TlsPolicy};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, ClientConfig, HandshakeKind, ProtocolVersion, RootCertStore, SignatureScheme,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn plain_http_gets_an_http_response() {
    let setup = setup(ListenerLimits::default());
    for request in [
        "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /api HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "DELETE /x HTTP/1.1\r\n\r\n",
    ] {
        let mut socket = TcpStream::connect(setup.address).await.unwrap();
        // In two segments: the first one does not decide it.
        socket.write_all(&request.as_bytes()[..2]).await.unwrap();
        tokio::task::yield_now().await;
        socket.write_all(&request.as_bytes()[2..]).await.unwrap();
        let mut answer = String::new();
        bounded(socket.read_to_string(&mut answer)).await.unwrap();
        assert_eq!(
            answer,
            "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
        );
    }
    let mut socket = TcpStream::connect(setup.address).await.unwrap();
    socket.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = bounded(socket.read_to_end(&mut answer)).await;
    assert_eq!(answer, b"");
    assert_eq!(failed_handshakes(&setup, 5).await, 5);
}

/// The number of them, once this many are counted: a connection is counted after its client saw
/// the end of it.
async fn failed_handshakes(setup: &Setup, count: u64) -> u64 {
    let failed = || setup.stats.handshakes_failed.load(Ordering::Relaxed);
    bounded(async {
        while failed() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    failed()
}

#[tokio::test]
async fn sessions_are_resumed_and_what_the_client_showed_is_judged_again() {
    let setup = setup(ListenerLimits::default());
    let pair = setup
        .pki
        .client(&Subject { common_name: "someone", organizations: &[] }, LEAF_LIFETIME)
        .unwrap();
    let config = Arc::new(setup.client_config("http/1.1", Some(&pair)));
    let mut seen = Vec::new();
    for round in 0..3 {
        if round == 2 {
            let directory = tempfile::tempdir().unwrap();
            let other = Pki::open(&directory.path().join("pki")).unwrap();
            setup.tls.replace_client_ca(other.client_ca_pem().as_bytes()).unwrap();
        }
        let stream = setup.connect_with(Arc::clone(&config)).await.unwrap();
        let resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        let (mut sender, connection) =
            http1::handshake::<_, Full<bytes::Bytes>>(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        seen.push((resumed, text(sender.send_request(get("/peer")).await.unwrap()).await));
    }
    assert_eq!(
        seen,
        [
            (false, "1 0 false".to_owned()),
            (true, "1 0 false".to_owned()),
            (true, "0 0 true".to_owned())
        ]
    );
}

/// A certificate of a CA of this name that signs nothing else.
fn ca(name: &str, bytes: usize) -> String {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let padding = rcgen::CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 1], vec![0; bytes]);
    params.custom_extensions.push(padding);
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

#[tokio::test]
async fn a_clients_chain_is_short() {
    let setup = setup(ListenerLimits::default());
    let pair = setup
        .pki
        .client(&Subject { common_name: "someone", organizations: &[] }, LEAF_LIFETIME)
        .unwrap();
    let foreign = support::setup(ListenerLimits::default());
    let foreign = foreign
        .pki
        .client(&Subject { common_name: "someone", organizations: &[] }, LEAF_LIFETIME)
        .unwrap();
    let show = async |pair: &ferrokube_pki::Pair, others: Vec<String>| {
        let mut pair = pair.clone();
        pair.chain_pem.push_str(&others.concat());
        let stream = setup.try_connect("http/1.1", Some(&pair)).await.ok()?;
        let (mut sender, connection) =
            http1::handshake::<_, Full<bytes::Bytes>>(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        Some(text(sender.send_request(get("/peer")).await.ok()?).await)
    };
    let peer = async |others| show(&pair, others).await;
    let verified = Some("1 0 false".to_owned());
    assert_eq!(peer(vec![ca("ca", 0); 7]).await, verified);
    assert_eq!(peer(vec![ca("ca", 0); 8]).await, None);
    assert_eq!(peer(vec![ca("ca", 14 << 10)]).await, verified);
    assert_eq!(peer(vec![ca("ca", 16 << 10)]).await, None);
    let unverified = Some("0 0 true".to_owned());
    assert_eq!(show(&foreign, vec![ca("ca", 1 << 10)]).await, unverified);
    assert_eq!(show(&foreign, vec![ca("ca", 4 << 10)]).await, None, "anybody can make it");
    assert_eq!(failed_handshakes(&setup, 3).await, 3);
}

/// Shows no certificate, and keeps the names of the CAs that it could be of.
#[derive(Debug, Default)]
struct OfferedCas(Mutex<Vec<Vec<u8>>>);

impl ResolvesClientCert for OfferedCas {
    fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.0.lock().unwrap() = hints.iter().map(|hint| hint.to_vec()).collect();
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn the_handshake_names_the_cas_that_clients_may_have_certificates_of() {
    let setup = setup(ListenerLimits::default());
    let asked = Arc::new(OfferedCas::default());
    let names = async || {
        let mut config = setup.client_config("http/1.1", None);
        config.client_auth_cert_resolver = Arc::clone(&asked) as Arc<dyn ResolvesClientCert>;
        setup.connect_with(config).await.unwrap();
        asked.0.lock().unwrap().clone()
    };
    let subject = |pem: &str| {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        roots.subjects()[0].as_ref().to_vec()
    };
    assert_eq!(names().await, [subject(setup.pki.client_ca_pem())]);
    setup.tls.replace_proxy_ca(setup.pki.ca_pem().as_bytes()).unwrap();
    assert_eq!(names().await, [subject(setup.pki.client_ca_pem()), subject(setup.pki.ca_pem())]);
}

fn only(setup: &Setup, version: &'static rustls::SupportedProtocolVersion) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(setup.pki.ca_pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[tokio::test]
async fn versions_and_cipher_suites_follow_the_policy() {
    let agreed = async |policy: &TlsPolicy, version| {
        let setup = setup_with(ListenerLimits::default(), policy);
        let stream = setup.connect_with(only(&setup, version)).await.ok()?;
        let session = stream.get_ref().1;
        Some((
            session.protocol_version().unwrap(),
            session.negotiated_cipher_suite().unwrap().suite(),
        ))
    };
    let (tls12, tls13) = (&rustls::version::TLS12, &rustls::version::TLS13);
    let default = TlsPolicy::default();
    assert_eq!(agreed(&default, tls12).await.unwrap().0, ProtocolVersion::TLSv1_2);
    assert_eq!(agreed(&default, tls13).await.unwrap().0, ProtocolVersion::TLSv1_3);
    let new = TlsPolicy { only_tls13: true, ..TlsPolicy::default() };
    assert_eq!(agreed(&new, tls12).await, None);
    assert_eq!(agreed(&new, tls13).await.unwrap().0, ProtocolVersion::TLSv1_3);
    let suite = TlsPolicy::suite("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256").unwrap();
    let one = TlsPolicy { suites: vec![suite], ..TlsPolicy::default() };
    assert_eq!(
        agreed(&one, tls12).await,
        Some((
            ProtocolVersion::TLSv1_2,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        ))
    );
    assert!(agreed(&one, tls13).await.is_some(), "those of TLS 1.3 cannot be chosen");
    let none_of_12 = TlsPolicy {
        suites: vec![TlsPolicy::suite("TLS_AES_128_GCM_SHA256").unwrap()],
        ..TlsPolicy::default()
    };
    assert_eq!(agreed(&none_of_12, tls12).await, None);
    assert_eq!(TlsPolicy::suite("TLS_RSA_WITH_AES_128_CBC_SHA"), None);
}
