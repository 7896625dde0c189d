//! Contents of certificates for display and warnings: subject, names, validity. Nothing is
//! verified.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::X509Certificate;
use x509_parser::time::ASN1Time;

/// Certificates are reported from this long before their end; short-lived ones from a fifth of
/// their lifetime, which renewal does not leave over.
const SOON: Duration = Duration::from_secs(30 * DAY);
/// The same for CAs, whose renewal takes more: their copies are with all clients.
const SOON_CA: Duration = Duration::from_secs(90 * DAY);
const DAY: u64 = 24 * 3600;
/// Certificates read of a file; bundles of public CAs have some 150.
const MAX_CERTIFICATES: usize = 1024;

/// A certificate, as far as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Such as `O=system:masters, CN=kubernetes-admin`.
    pub subject: String,
    /// Subject of the issuer.
    pub issuer: String,
    /// Host names and addresses.
    pub names: Vec<String>,
    /// Whether it may issue others.
    pub is_ca: bool,
    /// Start of its validity.
    pub not_before: SystemTime,
    /// End of its validity.
    pub not_after: SystemTime,
}

/// Stage of a certificate's validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Validity {
    /// Valid for long enough.
    Valid,
    /// Renewal should have happened, or is due by hand.
    ExpiresSoon,
    /// The clock is behind, or was ahead when it was issued.
    NotYetValid,
    /// Past its end.
    Expired,
}

/// A text is no list of certificates in PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// There is none in it.
    #[error("contains no certificate in PEM")]
    Empty,
    /// A block cannot be read.
    #[error("contains a block that is no certificate")]
    Malformed,
    /// There are too many.
    #[error("contains more than {MAX_CERTIFICATES} certificates")]
    TooMany,
}

impl CertificateFacts {
    /// Reads all certificates of a text, which may have other blocks, too.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn read_all(pem: &[u8]) -> Result<Vec<Self>, CertificateError> {
        let mut found = Vec::new();
        for block in Pem::iter_from_buffer(pem) {
            let block = block.map_err(|_| CertificateError::Malformed)?;
            if block.label != "CERTIFICATE" {
                continue;
            }
            if found.len() == MAX_CERTIFICATES {
                return Err(CertificateError::TooMany);
            }
            let certificate = block.parse_x509().map_err(|_| CertificateError::Malformed)?;
            found.push(Self::of(&certificate));
        }
        if found.is_empty() { Err(CertificateError::Empty) } else { Ok(found) }
    }

    fn of(certificate: &X509Certificate<'_>) -> Self {
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        let names = alternatives.map(|names| names.value.general_names.iter().map(shown).collect());
        Self {
            subject: printable(&certificate.subject().to_string()),
            issuer: printable(&certificate.issuer().to_string()),
            names: names.unwrap_or_default(),
            is_ca: certificate.is_ca(),
            not_before: time(certificate.validity().not_before),
            not_after: time(certificate.validity().not_after),
        }
    }

    /// The current stage of its validity.
    pub fn validity(&self, now: SystemTime) -> Validity {
        if now < self.not_before {
            return Validity::NotYetValid;
        }
        let Ok(left) = self.not_after.duration_since(now) else { return Validity::Expired };
        let lifetime = self.not_after.duration_since(self.not_before).unwrap_or_default();
        let soon = if self.is_ca { SOON_CA } else { SOON };
        if left < soon.min(lifetime / 5) { Validity::ExpiresSoon } else { Validity::Valid }
    }

    /// Whole days until the end; negative after it.
    pub fn days_left(&self, now: SystemTime) -> i64 {
        let days = |duration: Duration| i64::try_from(duration.as_secs() / DAY).unwrap_or(i64::MAX);
        match self.not_after.duration_since(now) {
            Ok(left) => days(left),
            Err(past) => -days(past.duration()) - 1,
        }
    }
}

impl std::fmt::Display for Validity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Valid => "valid",
            Self::ExpiresSoon => "expires soon",
            Self::NotYetValid => "not yet valid",
            Self::Expired => "expired",
        })
    }
}

fn shown(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(name) => printable(name),
        GeneralName::IPAddress(bytes) => {
            match (<[u8; 4]>::try_from(*bytes), <[u8; 16]>::try_from(*bytes)) {
                (Ok(bytes), _) => Ipv4Addr::from(bytes).to_string(),
                (_, Ok(bytes)) => Ipv6Addr::from(bytes).to_string(),
                _ => "invalid address".to_owned(),
            }
        }
        other => printable(&other.to_string()),
    }
}

/// Drops terminal control sequences.
fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn time(at: ASN1Time) -> SystemTime {
    let seconds = Duration::from_secs(at.timestamp().unsigned_abs());
    let before = || SystemTime::UNIX_EPOCH.checked_sub(seconds);
    let after = || SystemTime::UNIX_EPOCH.checked_add(seconds);
    let time = if at.timestamp() < 0 { before() } else { after() };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ADMIN, ADMIN_LIFETIME, Pki};

    #[test]
    fn a_certificate_is_read_for_people() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(&directory.path().join("pki")).unwrap();
        let now = SystemTime::now();
        let names =
            ["api.example.com".to_owned(), "192.0.2.7".to_owned(), "2001:db8::1".to_owned()];
        let serving = pki.serving(&names).unwrap();
        // The key next to it is passed over.
        let text = format!("{}{}{}", serving.key_pem, serving.chain_pem, pki.ca_pem());
        let facts = CertificateFacts::read_all(text.as_bytes()).unwrap();
        assert_eq!(facts[0].names, names);
        assert_eq!((&*facts[0].subject, facts[0].is_ca), ("CN=kube-apiserver", false));
        assert_eq!((&*facts[1].subject, facts[1].is_ca), ("CN=ferrokube-ca", true));
        assert_eq!((facts[0].days_left(now), facts[0].validity(now)), (364, Validity::Valid));
        let at = |days: u64| now + Duration::from_secs(days * DAY);
        assert_eq!(facts[0].validity(at(340)), Validity::ExpiresSoon);
        assert_eq!(facts[1].validity(at(3580)), Validity::ExpiresSoon);
        assert_eq!(facts[0].validity(at(366)), Validity::Expired);
        assert_eq!(facts[0].days_left(at(366)), -2);
        assert_eq!(facts[0].validity(now - Duration::from_secs(DAY)), Validity::NotYetValid);
        // A short-lived one is renewed long before a month is left.
        let admin = pki.client(&ADMIN, ADMIN_LIFETIME).unwrap();
        let admin = CertificateFacts::read_all(admin.chain_pem.as_bytes()).unwrap();
        assert_eq!(admin[0].validity(now + ADMIN_LIFETIME * 2 / 3), Validity::Valid);
        assert_eq!(admin[0].validity(now + ADMIN_LIFETIME * 9 / 10), Validity::ExpiresSoon);
    }

    #[test]
    fn other_texts_are_refused() {
        let read = |text: &[u8]| CertificateFacts::read_all(text).unwrap_err();
        assert_eq!(read(b""), CertificateError::Empty);
        assert_eq!(read(&[0xff; 100]), CertificateError::Empty);
        let key = crate::self_signed(&["localhost".into()]).unwrap();
        assert_eq!(read(key.key_pem.as_bytes()), CertificateError::Empty);
        let half = &key.chain_pem.as_bytes()[..key.chain_pem.len() / 2];
        assert_eq!(read(half), CertificateError::Malformed);
        let nonsense = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(read(nonsense), CertificateError::Malformed);
        let many = key.chain_pem.repeat(MAX_CERTIFICATES + 1);
        assert_eq!(read(many.as_bytes()), CertificateError::TooMany);
    }
}
