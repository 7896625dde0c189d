//! The front proxy (aggregation): `X-Remote-*` headers, trusted only with a client certificate
//! signed by the proxy's own CA.

use super::x509::CertificateSubject;
use super::{Authenticator, Credentials, Identity, Unauthenticated, WallClock};
use ferrokube_apimachinery::user::UserInfo;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;

/// Max headers that are read.
const MAX_HEADERS: usize = 1_000;

/// Header names, in lower case.
#[derive(Clone, Debug)]
pub struct FrontProxyHeaders {
    /// User headers, in order of preference.
    pub user: Vec<String>,
    /// UID headers, in order of preference.
    pub uid: Vec<String>,
    /// Group headers; all are read.
    pub group: Vec<String>,
    /// Prefixes of extra headers.
    pub extra: Vec<String>,
}

impl Default for FrontProxyHeaders {
    fn default() -> Self {
        let one = |name: &str| vec![name.to_owned()];
        Self {
            user: one("x-remote-user"),
            uid: one("x-remote-uid"),
            group: one("x-remote-group"),
            extra: one("x-remote-extra-"),
        }
    }
}

/// Authenticates by a front proxy's headers.
pub struct FrontProxy {
    headers: FrontProxyHeaders,
    /// Accepted common names; empty accepts any certificate of the proxy CA.
    allowed: Vec<String>,
    clock: WallClock,
}

impl FrontProxy {
    /// `allowed`: the accepted common names; empty accepts every certificate of the proxy CA.
    pub fn new(headers: FrontProxyHeaders, allowed: Vec<String>, clock: WallClock) -> Self {
        Self { headers, allowed, clock }
    }

    fn may_speak(&self, leaf: &[u8]) -> bool {
        let Some(subject) = CertificateSubject::parse(leaf, "front-proxy")
            .filter(|subject| subject.is_valid(&self.clock))
        else {
            return false;
        };
        let name = subject.identity.as_ref().map_or("", |identity| &identity.user.name);
        self.allowed.is_empty() || self.allowed.iter().any(|allowed| allowed == name)
    }
}

impl Authenticator for FrontProxy {
    fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        let remote = credentials.remote;
        let Some(name) = first(remote, &self.headers.user).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let Some(leaf) = credentials.proxy_certificate else {
            // Anyone can send the headers; only the proxy's certificate makes them count.
            return Ok(None);
        };
        if remote.len() > MAX_HEADERS || !self.may_speak(leaf) {
            return Err(Unauthenticated);
        }
        let groups = remote
            .iter()
            .filter(|(header, _)| self.headers.group.contains(header))
            .map(|(_, group)| group.clone())
            .collect();
        let uid = first(remote, &self.headers.uid).unwrap_or_default().to_owned();
        let user = UserInfo { name: name.to_owned(), uid, groups, extra: self.extra(remote) };
        Ok(Some(Identity::new(user, "front-proxy")))
    }
}

impl FrontProxy {
    fn extra(&self, remote: &[(String, String)]) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in remote {
            if let Some(key) =
                self.headers.extra.iter().find_map(|prefix| header.strip_prefix(prefix.as_str()))
            {
                let key = percent_decode_str(key).decode_utf8_lossy().to_lowercase();
                extra.entry(key).or_default().push(value.clone());
            }
        }
        extra
    }
}

fn first<'a>(remote: &'a [(String, String)], names: &[String]) -> Option<&'a str> {
    names
        .iter()
        .find_map(|name| remote.iter().find(|(header, _)| header == name))
        .map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authenticate::system_clock;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    fn certificate(name: &str, key: &KeyPair) -> rcgen::Certificate {
        let mut params = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, name);
        params.distinguished_name = subject;
        params.self_signed(key).expect("certificate")
    }

    fn remote() -> Vec<(String, String)> {
        [
            ("x-remote-user", "alice"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.com%2fscope", "s"),
            ("x-remote-uid", "u"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    fn authenticate(
        allowed: &[&str],
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        let allowed = allowed.iter().map(|name| (*name).to_owned()).collect();
        FrontProxy::new(FrontProxyHeaders::default(), allowed, system_clock())
            .authenticate(credentials)
    }

    #[test]
    fn fault_52_headers_count_only_with_the_proxy_certificate() {
        let remote = remote();
        let leaf = certificate("front-proxy", &KeyPair::generate().expect("key")).der().to_vec();
        let trusted = Credentials {
            proxy_certificate: Some(&leaf),
            remote: &remote,
            ..Credentials::default()
        };
        let identity = authenticate(&["front-proxy"], &trusted).expect("valid").expect("known");
        assert_eq!((identity.user.name.as_str(), identity.user.uid.as_str()), ("alice", "u"));
        assert_eq!(identity.user.groups, ["a", "b", "system:authenticated"]);
        assert_eq!(identity.user.extra["example.com/scope"], ["s"]);
        assert_eq!(authenticate(&["other"], &trusted), Err(Unauthenticated));

        let ordinary =
            Credentials { certificate: Some(&leaf), remote: &remote, ..Credentials::default() };
        assert_eq!(
            authenticate(&[], &ordinary),
            Ok(None),
            "an ordinary client's headers are ignored"
        );
    }

    /// A connection may outlive its certificate.
    #[test]
    fn fault_53_the_proxys_certificate_counts_while_it_is_valid() {
        let (remote, mut params) = (remote(), CertificateParams::default());
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2040, 1, 1));
        let leaf = params
            .self_signed(&KeyPair::generate().expect("key"))
            .expect("certificate")
            .der()
            .to_vec();
        let credentials = Credentials {
            proxy_certificate: Some(&leaf),
            remote: &remote,
            ..Credentials::default()
        };
        for (seconds, is_valid) in
            [(1_000_000_000, false), (1_700_000_000, true), (4_000_000_000, false)]
        {
            let clock: WallClock = std::sync::Arc::new(move || {
                std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)
            });
            let proxy = FrontProxy::new(FrontProxyHeaders::default(), Vec::new(), clock);
            assert_eq!(proxy.authenticate(&credentials).is_ok(), is_valid, "at {seconds}");
        }
    }
}
