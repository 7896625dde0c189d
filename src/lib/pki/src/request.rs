//! Certificate requests (PKCS#10): made for a key, and signed by the holder of a CA.
//!
//! A certificate is built from the parsed parts of its request, never copied: whatever else a
//! request asks for, such as to be a CA, is left out.

use crate::authority::{
    Authority, LEAF_LIFETIME, Pki, Subject, check_key, check_validity, distinguished,
};
use crate::certificate::CertificateFacts;
use crate::error::PkiError;
use crate::renewal::{BACKDATED, Renewal};
use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
    SubjectPublicKeyInfo,
};
use ring::digest;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

/// Shortest lifetime that is issued, as kube-controller-manager's.
const MIN_LIFETIME: Duration = Duration::from_secs(600);

/// Why a request cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No PEM block with a certificate request.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Malformed,
    /// It is not signed by its own key.
    #[error("the request's signature does not verify")]
    Signature,
    /// A part of its subject or an alternative name cannot be read.
    #[error("the request has a name that cannot be read")]
    Name,
}

/// The names and the key in a request, which that key has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    /// Empty if the subject has none or several.
    pub common_name: String,
    /// Groups of a client.
    pub organizations: Vec<String>,
    /// Alternative names.
    pub dns_names: Vec<String>,
    /// Alternative addresses.
    pub addresses: Vec<IpAddr>,
    /// Alternative mail addresses.
    pub mail_addresses: Vec<String>,
    /// Alternative URIs.
    pub uris: Vec<String>,
    /// Whether it has alternative names of other kinds.
    pub has_other_names: bool,
    /// SubjectPublicKeyInfo.
    key_der: Vec<u8>,
}

impl CertificateRequest {
    /// Reads a PEM block and verifies its signature.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(pem: &[u8]) -> Result<Self, RequestError> {
        let (_, block) =
            x509_parser::pem::parse_x509_pem(pem).map_err(|_| RequestError::Malformed)?;
        if block.label != "CERTIFICATE REQUEST" {
            return Err(RequestError::Malformed);
        }
        let (rest, request) = X509CertificationRequest::from_der(&block.contents)
            .map_err(|_| RequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(RequestError::Malformed);
        }
        request.verify_signature().map_err(|_| RequestError::Signature)?;
        let info = &request.certification_request_info;
        let texts = |attributes: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
            let text = |it: &x509_parser::x509::AttributeTypeAndValue<'_>| {
                it.as_str().map(str::to_owned).map_err(|_| RequestError::Name)
            };
            attributes.into_iter().map(text).collect::<Result<Vec<String>, _>>()
        };
        let names = texts(info.subject.iter_common_name().collect())?;
        let mut parsed = Self {
            common_name: <[String; 1]>::try_from(names).map_or_else(|_| String::new(), |[it]| it),
            organizations: texts(info.subject.iter_organization().collect())?,
            dns_names: Vec::new(),
            addresses: Vec::new(),
            mail_addresses: Vec::new(),
            uris: Vec::new(),
            has_other_names: false,
            key_der: info.subject_pki.raw.to_vec(),
        };
        for extension in request.requested_extensions().into_iter().flatten() {
            match extension {
                ParsedExtension::SubjectAlternativeName(names) => {
                    names.general_names.iter().try_for_each(|name| parsed.add(name))?;
                }
                ParsedExtension::ParseError { .. } => return Err(RequestError::Name),
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn add(&mut self, name: &GeneralName<'_>) -> Result<(), RequestError> {
        match name {
            GeneralName::DNSName(name) => self.dns_names.push((*name).to_owned()),
            GeneralName::RFC822Name(name) => self.mail_addresses.push((*name).to_owned()),
            GeneralName::URI(uri) => self.uris.push((*uri).to_owned()),
            GeneralName::IPAddress(bytes) => self.addresses.push(
                match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
                    (Ok(bytes), _) => bytes.into(),
                    (_, Ok(bytes)) => bytes.into(),
                    _ => return Err(RequestError::Name),
                },
            ),
            _ => self.has_other_names = true,
        }
        Ok(())
    }
}

/// Purpose of a requested certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatePurpose {
    /// The API server authenticates its holder.
    Client,
    /// Clients verify the host that shows it.
    Serving,
}

/// Terms of a certificate besides its names.
#[derive(Clone, Copy, Debug)]
pub struct CertificateTerms {
    /// Extended key usage.
    pub purpose: CertificatePurpose,
    /// Whether its key may encrypt keys, which only RSA can.
    pub enciphers_keys: bool,
    /// As requested, in the bounds of the signer.
    pub lifetime: Option<Duration>,
}

/// A CA that signs certificate requests.
#[derive(Clone)]
pub struct RequestSigner {
    authority: Authority,
    max_lifetime: Duration,
}

impl std::fmt::Debug for RequestSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestSigner")
            .field("ca_pem", &self.authority.pem)
            .field("max_lifetime", &self.max_lifetime)
            .finish_non_exhaustive()
    }
}

impl Pki {
    /// Signs requests with the client CA. Clients of the server do not trust it: a serving
    /// certificate of a kubelet is never one of the API server.
    pub fn request_signer(&self) -> RequestSigner {
        RequestSigner { authority: self.clients.clone(), max_lifetime: LEAF_LIFETIME }
    }
}

impl RequestSigner {
    /// Reads a CA and its key, which only their owner may read.
    ///
    /// # Errors
    /// [`PkiError`].
    pub fn open(certificate: &Path, key: &Path, max_lifetime: Duration) -> Result<Self, PkiError> {
        let authority = Authority::open(certificate.to_owned(), key.to_owned(), SystemTime::now())?;
        let path = || certificate.to_owned();
        let authority = authority.ok_or_else(|| PkiError::Missing { path: path() })?;
        if !facts(&authority.pem).is_some_and(|facts| facts.is_ca) {
            return Err(PkiError::Unusable { path: path(), what: "CA certificate" });
        }
        Ok(Self { authority, max_lifetime })
    }

    /// Issues a certificate with a request's common name, organization and alternative names, which
    /// the caller has checked. PEM.
    ///
    /// # Errors
    /// [`PkiError::Name`], [`PkiError::Make`].
    pub fn sign(
        &self,
        request: &CertificateRequest,
        terms: CertificateTerms,
    ) -> Result<String, PkiError> {
        let refused = |source| PkiError::Make { what: "a certificate", source };
        let organizations: Vec<&str> = request.organizations.iter().map(String::as_str).collect();
        let subject = Subject { common_name: &request.common_name, organizations: &organizations };
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(&subject);
        parameters.subject_alt_names = alternatives(&request.dns_names, &request.addresses)?;
        parameters.extended_key_usages = vec![match terms.purpose {
            CertificatePurpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
            CertificatePurpose::Serving => ExtendedKeyUsagePurpose::ServerAuth,
        }];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if terms.enciphers_keys {
            parameters.key_usages.push(KeyUsagePurpose::KeyEncipherment);
        }
        let now = SystemTime::now();
        let lifetime = terms.lifetime.unwrap_or(self.max_lifetime);
        let lifetime = lifetime.max(MIN_LIFETIME).min(self.max_lifetime);
        parameters.not_before = (now - BACKDATED).into();
        // Not beyond the CA's own end.
        let end = facts(&self.authority.pem).map_or(now + lifetime, |facts| facts.not_after);
        parameters.not_after = (now + lifetime).min(end).into();
        parameters.use_authority_key_identifier_extension = true;
        let key = SubjectPublicKeyInfo::from_der(&request.key_der).map_err(refused)?;
        let certificate = parameters.signed_by(&key, &*self.authority.issuer).map_err(refused)?;
        Ok(certificate.pem())
    }
}

/// A key for which certificates are requested. `Debug` omits it.
pub struct RequestedKey(KeyPair);

impl std::fmt::Debug for RequestedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RequestedKey").field(&self.digest()).finish()
    }
}

impl RequestedKey {
    /// A new one (P-256).
    ///
    /// # Errors
    /// [`PkiError::Make`].
    pub fn generate() -> Result<Self, PkiError> {
        let refused = |source| PkiError::Make { what: "a key", source };
        KeyPair::generate().map(Self).map_err(refused)
    }

    /// PKCS#8 in PEM; `None` if it is not.
    pub fn from_pem(pem: &str) -> Option<Self> {
        KeyPair::from_pem(pem).ok().map(Self)
    }

    /// The private key, PKCS#8.
    pub fn pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// SHA-256 of the public key, in hexadecimal: a name for it.
    pub fn digest(&self) -> String {
        let digest = digest::digest(&digest::SHA256, &self.0.subject_public_key_info());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Requests a certificate for a subject, and for the names and addresses of a server. PEM.
    ///
    /// # Errors
    /// [`PkiError::Name`], [`PkiError::Make`].
    pub fn request(
        &self,
        subject: &Subject<'_>,
        dns_names: &[String],
        addresses: &[IpAddr],
    ) -> Result<String, PkiError> {
        let refused = |source| PkiError::Make { what: "a certificate request", source };
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(subject);
        parameters.subject_alt_names = alternatives(dns_names, addresses)?;
        parameters.serialize_request(&self.0).and_then(|it| it.pem()).map_err(refused)
    }

    /// Checks that a chain is of this key and valid now. Returns when to replace it.
    ///
    /// # Errors
    /// [`PkiError`], which names `path`.
    pub fn check(&self, chain_pem: &str, path: &Path) -> Result<Renewal, PkiError> {
        check_key(chain_pem, &self.0, path, path)?;
        check_validity(chain_pem, path, SystemTime::now())?;
        let unusable = || PkiError::Unusable { path: path.to_owned(), what: "certificate" };
        let facts = facts(chain_pem).ok_or_else(unusable)?;
        let lifetime = facts.not_after.duration_since(facts.not_before).unwrap_or_default();
        Ok(Renewal::of(facts.not_before + BACKDATED, lifetime.saturating_sub(BACKDATED)))
    }
}

/// Reads the first certificate of a chain.
fn facts(pem: &str) -> Option<CertificateFacts> {
    CertificateFacts::read_all(pem.as_bytes()).ok()?.into_iter().next()
}

fn alternatives(dns_names: &[String], addresses: &[IpAddr]) -> Result<Vec<SanType>, PkiError> {
    let wrong = |name: &String| PkiError::Name { name: name.clone() };
    let names = dns_names
        .iter()
        .map(|name| name.as_str().try_into().map(SanType::DnsName).map_err(|_| wrong(name)));
    let addresses = addresses.iter().map(|address| Ok(SanType::IpAddress(*address)));
    names.chain(addresses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Subject<'static> =
        Subject { common_name: "system:node:a", organizations: &["system:nodes"] };

    fn pki() -> (tempfile::TempDir, Pki) {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(&directory.path().join("pki")).unwrap();
        (directory, pki)
    }

    fn client(lifetime: Option<Duration>) -> CertificateTerms {
        let purpose = CertificatePurpose::Client;
        CertificateTerms { purpose, enciphers_keys: false, lifetime }
    }

    #[test]
    fn a_request_is_read_as_it_was_made() {
        let key = RequestedKey::generate().unwrap();
        let address = "2001:db8::1".parse().unwrap();
        let pem = key.request(&NODE, &["a.example".to_owned()], &[address]).unwrap();
        let read = CertificateRequest::parse(pem.as_bytes()).unwrap();
        assert_eq!(read.common_name, "system:node:a");
        assert_eq!(read.organizations, ["system:nodes"]);
        assert_eq!((read.dns_names, read.addresses), (vec!["a.example".to_owned()], vec![address]));
        assert!(read.uris.is_empty() && read.mail_addresses.is_empty() && !read.has_other_names);
    }

    #[test]
    fn a_request_is_signed_by_its_own_key() {
        let key = RequestedKey::generate().unwrap();
        let pem = key.request(&NODE, &[], &[]).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let mut der = block.contents.clone();
        let at = der.windows(6).position(|part| part == b"node:a").unwrap() + 5;
        der[at] = b'b';
        let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
        let label = "CERTIFICATE REQUEST";
        let forged = format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
        let read = |pem: &str| CertificateRequest::parse(pem.as_bytes()).unwrap_err();
        assert_eq!(read(&forged), RequestError::Signature);
        assert_eq!(read(&pem.replace(label, "CERTIFICATE")), RequestError::Malformed);
        assert_eq!(read(""), RequestError::Malformed);
    }

    #[test]
    fn a_signed_certificate_is_the_clients_and_nothing_else() {
        let (folder, pki) = pki();
        let key = RequestedKey::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = distinguished(&NODE);
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let pem = parameters.serialize_request(&key.0).unwrap().pem().unwrap();
        let request = CertificateRequest::parse(pem.as_bytes()).unwrap();
        let signed = pki.request_signer().sign(&request, client(None)).unwrap();
        let (_, block) = x509_parser::pem::parse_x509_pem(signed.as_bytes()).unwrap();
        let certificate = block.parse_x509().unwrap();
        assert!(!certificate.is_ca());
        let usage = certificate.key_usage().unwrap().unwrap().value;
        assert!(usage.digital_signature() && !usage.key_cert_sign());
        let purposes = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(purposes.client_auth && !purposes.server_auth && !purposes.any);
        assert_eq!(facts(&signed).unwrap().subject, "O=system:nodes, CN=system:node:a");
        key.check(&signed, folder.path()).unwrap();
        let other = RequestedKey::generate().unwrap().check(&signed, folder.path());
        assert!(matches!(other, Err(PkiError::Mismatch { .. })), "{other:?}");
    }

    #[test]
    fn lifetimes_are_within_bounds() {
        let (_folder, pki) = pki();
        let key = RequestedKey::generate().unwrap();
        let pem = key.request(&NODE, &[], &[]).unwrap();
        let request = CertificateRequest::parse(pem.as_bytes()).unwrap();
        let lifetime = |asked: Option<u64>| {
            let terms = client(asked.map(Duration::from_secs));
            let facts = facts(&pki.request_signer().sign(&request, terms).unwrap()).unwrap();
            (facts.not_after.duration_since(facts.not_before).unwrap() - BACKDATED).as_secs()
        };
        assert_eq!(lifetime(None), LEAF_LIFETIME.as_secs());
        assert_eq!(lifetime(Some(3600)), 3600);
        assert_eq!(lifetime(Some(1)), MIN_LIFETIME.as_secs());
        assert_eq!(lifetime(Some(1 << 40)), LEAF_LIFETIME.as_secs());
    }
}
