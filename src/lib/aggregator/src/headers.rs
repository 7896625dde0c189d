//! Headers of delegated requests: the user, as a front proxy writes it.

use ferrokube_apimachinery::user::UserInfo;
use ferrokube_relay::client_headers;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use std::fmt::Write;
use std::net::IpAddr;

pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const REMOTE_USER: HeaderName = HeaderName::from_static("x-remote-user");
const REMOTE_UID: HeaderName = HeaderName::from_static("x-remote-uid");
const REMOTE_GROUP: HeaderName = HeaderName::from_static("x-remote-group");
/// Before the escaped name of an attribute.
const REMOTE_EXTRA: &str = "x-remote-extra-";

/// A header that cannot be written: a user name with control characters, or with blanks at its
/// ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnwritableHeader;

/// The headers of a delegated request: the client's without its credentials, claims and ids, and
/// the user whose rights were checked.
pub(crate) fn request(
    client: &HeaderMap,
    user: &UserInfo,
    peer: Option<IpAddr>,
) -> Result<HeaderMap, UnwritableHeader> {
    let mut headers = client_headers(client, peer);
    identify(&mut headers, user)?;
    Ok(headers)
}

/// Writes the user as a front proxy does.
pub(crate) fn identify(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), UnwritableHeader> {
    headers.insert(REMOTE_USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(REMOTE_UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(REMOTE_GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("{REMOTE_EXTRA}{}", escaped(key));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| UnwritableHeader)?;
        for one in values {
            headers.append(name.clone(), value(one)?);
        }
    }
    Ok(())
}

fn value(text: &str) -> Result<HeaderValue, UnwritableHeader> {
    // Readers of a header drop them: ` system:masters` would be another group there.
    if text.starts_with([' ', '\t']) || text.ends_with([' ', '\t']) {
        return Err(UnwritableHeader);
    }
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| UnwritableHeader)
}

/// Escapes percent signs, and characters that are invalid in header names.
fn escaped(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    fn user() -> UserInfo {
        UserInfo {
            name: "alice".to_owned(),
            uid: "u".to_owned(),
            groups: vec!["a".to_owned(), "b".to_owned()],
            extra: BTreeMap::from([("x.io/k%".to_owned(), vec!["1".to_owned()])]),
        }
    }

    #[test]
    fn a_client_cannot_claim_to_be_another_user() {
        let client = map(&[
            ("x-remote-user", "root"),
            ("x-remote-group", "system:masters"),
            ("x_remote_group", "system:masters"),
            ("x-remote-extra-scope", "all"),
            ("impersonate-user", "root"),
            ("authorization", "Basic eA=="),
            ("proxy-authorization", "x"),
            ("traceparent", "00-1-1-01"),
            ("initial-trace-id", "x"),
            ("audit-id", "mine"),
            ("connection", "close, x-private"),
            ("x-private", "1"),
            (
                "sec-websocket-protocol",
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.dA",
            ),
            ("accept", "text/plain"),
            ("x-forwarded-for", "1.2.3.4"),
        ]);
        let out = request(&client, &user(), Some("10.0.0.1".parse().unwrap())).unwrap();
        let mut names: Vec<&str> = out.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "sec-websocket-protocol",
                "x-forwarded-for",
                "x-remote-extra-x.io%2fk%25",
                "x-remote-group",
                "x-remote-uid",
                "x-remote-user"
            ]
        );
        assert_eq!(out["x-remote-user"], "alice");
        assert_eq!(out["sec-websocket-protocol"], "v4.channel.k8s.io");
        assert_eq!(out["x-forwarded-for"], "1.2.3.4, 10.0.0.1");
        let groups: Vec<_> = out.get_all("x-remote-group").iter().collect();
        assert_eq!(groups, ["a", "b"]);
    }

    #[test]
    fn a_name_that_its_reader_would_change_is_no_header() {
        for name in [" system:masters", "system:masters\t"] {
            let user = UserInfo { groups: vec![name.to_owned()], ..user() };
            assert_eq!(request(&HeaderMap::new(), &user, None), Err(UnwritableHeader), "{name:?}");
        }
    }

    #[test]
    fn a_name_with_a_line_break_is_no_header() {
        let user = UserInfo { name: "a\r\nx-remote-group: b".to_owned(), ..UserInfo::default() };
        assert_eq!(request(&HeaderMap::new(), &user, None), Err(UnwritableHeader));
    }
}
