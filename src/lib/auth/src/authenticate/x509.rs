//! Client certificates: the common name is the user, the organizations are the groups.
//!
//! The TLS layer verified the chain against the client CA. Validity is checked again here, because
//! connections outlive certificates.

use super::{Authenticator, Credentials, Identity, Unauthenticated, WallClock};
use crate::clock_cache::ClockCache;
use ferrokube_apimachinery::user::UserInfo;
use parking_lot::Mutex;
use ring::digest;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

/// Max cached certificates; the cache is cleared beyond it.
const MAX_CACHED: usize = 4_096;
/// Max organizations of a certificate.
const MAX_GROUPS: usize = 1_000;
/// Subject attribute that holds the uid.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

/// Authenticates by client certificate.
pub struct X509 {
    clock: WallClock,
    cache: Mutex<ClockCache<Arc<[u8]>, Arc<CertificateSubject>>>,
}

/// The parsed part of a certificate.
pub(super) struct CertificateSubject {
    /// `None` without a common name.
    pub(super) identity: Option<Identity>,
    not_before: i64,
    not_after: i64,
}

impl X509 {
    /// `clock`: for the validity check.
    pub fn new(clock: WallClock) -> Self {
        Self { clock, cache: Mutex::new(ClockCache::new(MAX_CACHED)) }
    }

    fn cached_subject(&self, leaf: &[u8]) -> Result<Arc<CertificateSubject>, Unauthenticated> {
        let mut cache = self.cache.lock();
        if let Some(known) = cache.get(leaf) {
            return Ok(Arc::clone(known));
        }
        let subject = Arc::new(CertificateSubject::parse(leaf, "x509").ok_or(Unauthenticated)?);
        cache.insert(leaf.into(), Arc::clone(&subject));
        Ok(subject)
    }
}

impl Authenticator for X509 {
    fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        let Some(leaf) = credentials.certificate else {
            return Ok(None);
        };
        let subject = self.cached_subject(leaf)?;
        if !subject.is_valid(&self.clock) {
            return Err(Unauthenticated);
        }
        Ok(subject.identity.clone())
    }
}

impl CertificateSubject {
    /// `None` if the certificate is malformed.
    pub(super) fn parse(der: &[u8], method: &'static str) -> Option<Self> {
        let (rest, certificate) = X509Certificate::from_der(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let validity = certificate.validity();
        let (not_before, not_after) =
            (validity.not_before.timestamp(), validity.not_after.timestamp());
        let identity = identity(certificate.subject(), der, method)?;
        Some(Self { identity, not_before, not_after })
    }

    pub(super) fn is_valid(&self, clock: &WallClock) -> bool {
        let now = clock()
            .duration_since(UNIX_EPOCH)
            .ok()
            .and_then(|since| i64::try_from(since.as_secs()).ok())
            .unwrap_or_default();
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// Outer `None`: malformed; inner `None`: no common name.
fn identity(subject: &X509Name<'_>, der: &[u8], method: &'static str) -> Option<Option<Identity>> {
    // The last one, as in Go: approvers and signers that are written in it see that one.
    let Some(name) = subject.iter_common_name().last() else {
        return Some(None);
    };
    let name = name.as_str().ok()?;
    if name.is_empty() {
        return Some(None);
    }
    let groups: Vec<String> = subject
        .iter_organization()
        .take(MAX_GROUPS)
        .map(|group| group.as_str().map(str::to_owned))
        .collect::<Result<_, _>>()
        .ok()?;
    let uid = subject
        .iter_attributes()
        .find(|attribute| attribute.attr_type().to_id_string() == UID_OID)
        .and_then(|attribute| attribute.as_str().ok());
    let extra = BTreeMap::from([(
        "authentication.kubernetes.io/credential-id".to_owned(),
        vec![format!("X509SHA256={}", fingerprint(der))],
    )]);
    let user =
        UserInfo { name: name.to_owned(), uid: uid.unwrap_or_default().to_owned(), groups, extra };
    Some(Some(Identity::new(user, method)))
}

fn fingerprint(der: &[u8]) -> String {
    digest::digest(&digest::SHA256, der).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
    use std::time::Duration;

    pub(crate) fn certificate(name: Option<&str>, groups: &[&str]) -> Vec<u8> {
        let params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        if let Some(name) = name {
            subject.push(DnType::CommonName, name);
        }
        // rcgen keeps one value per attribute type, so a fixture can only have one group.
        for group in groups {
            subject.push(DnType::OrganizationName, *group);
        }
        of_subject(params, subject)
    }

    fn of_subject(mut params: CertificateParams, subject: DistinguishedName) -> Vec<u8> {
        params.distinguished_name = subject;
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2040, 1, 1);
        params.self_signed(&KeyPair::generate().expect("key")).expect("certificate").der().to_vec()
    }

    fn at(seconds: u64) -> WallClock {
        Arc::new(move || UNIX_EPOCH + Duration::from_secs(seconds))
    }

    fn authenticate(
        clock: WallClock,
        certificate: Option<&[u8]>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        X509::new(clock).authenticate(&Credentials { certificate, ..Credentials::default() })
    }

    #[test]
    fn common_name_and_organization() {
        let leaf = certificate(Some("alice"), &["devs"]);
        let identity = authenticate(at(1_700_000_000), Some(&leaf)).expect("valid").expect("known");
        assert_eq!(identity.user.name, "alice");
        assert_eq!(identity.user.groups, ["devs", "system:authenticated"]);
        assert_eq!(identity.method, "x509");
        assert_eq!(
            identity.user.extra["authentication.kubernetes.io/credential-id"],
            [format!("X509SHA256={}", fingerprint(&leaf))]
        );
    }

    #[test]
    fn fault_53_of_several_common_names_the_last_counts() {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, "system:kube-controller-manager");
        // The same attribute under another key of rcgen's.
        subject.push(DnType::CustomDnType(vec![2, 5, 4, 3]), "system:node:n");
        let leaf = of_subject(CertificateParams::default(), subject);
        let identity = authenticate(at(1_700_000_000), Some(&leaf)).expect("valid").expect("known");
        assert_eq!(identity.user.name, "system:node:n");
    }

    #[test]
    fn certificates_do_not_share_cached_identities() {
        let x509 = X509::new(at(1_700_000_000));
        let leaves = [
            certificate(Some("alice"), &["devs"]),
            certificate(Some("bobby"), &["devs"]),
            certificate(Some("alice"), &["devs"]),
        ];
        // The second pass reads the cache.
        for _ in 0..2 {
            for (leaf, name) in leaves.iter().zip(["alice", "bobby", "alice"]) {
                let credentials = Credentials { certificate: Some(leaf), ..Credentials::default() };
                let identity = x509.authenticate(&credentials).expect("valid").expect("known");
                assert_eq!(identity.user.name, name);
                assert_eq!(
                    identity.user.extra["authentication.kubernetes.io/credential-id"],
                    [format!("X509SHA256={}", fingerprint(leaf))]
                );
            }
        }
    }

    #[test]
    fn no_certificate_or_common_name_is_anonymous() {
        assert_eq!(authenticate(at(1_700_000_000), Some(&certificate(None, &["devs"]))), Ok(None));
        assert_eq!(authenticate(at(1_700_000_000), None), Ok(None));
    }

    #[test]
    fn fault_53_expired_future_and_garbage() {
        let leaf = certificate(Some("alice"), &[]);
        assert_eq!(authenticate(at(1_000_000_000), Some(&leaf)), Err(Unauthenticated));
        assert_eq!(authenticate(at(4_000_000_000), Some(&leaf)), Err(Unauthenticated));
        assert_eq!(authenticate(at(1_700_000_000), Some(b"garbage")), Err(Unauthenticated));
        let trailing = [leaf, vec![0]].concat();
        assert_eq!(authenticate(at(1_700_000_000), Some(&trailing)), Err(Unauthenticated));
    }
}
