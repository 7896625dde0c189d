//! Headers of delegated requests and their responses.

use ferrokube_apimachinery::user::UserInfo;
use ferrokube_trace::{INITIAL_TRACE_ID, TRACEPARENT};
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use std::fmt::Write;
use std::net::IpAddr;

pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REMOTE_USER: HeaderName = HeaderName::from_static("x-remote-user");
const REMOTE_UID: HeaderName = HeaderName::from_static("x-remote-uid");
const REMOTE_GROUP: HeaderName = HeaderName::from_static("x-remote-group");
/// Before the escaped name of an attribute.
const REMOTE_EXTRA: &str = "x-remote-extra-";
/// A bearer token in the list of a websocket's protocols.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Of one connection (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// A header that cannot be written: a user name with control characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnwritableHeader;

/// The headers of a delegated request: the client's without its credentials, claims and ids, and
/// the user whose rights were checked.
pub(crate) fn request(
    client: &HeaderMap,
    user: &UserInfo,
    peer: Option<IpAddr>,
) -> Result<HeaderMap, UnwritableHeader> {
    let mut headers = client.clone();
    remove_hop_by_hop(&mut headers);
    let claims: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
    for name in [HOST, CONTENT_LENGTH, EXPECT, AUTHORIZATION, AUDIT_ID] {
        headers.remove(name);
    }
    without_tokens(&mut headers);
    identify(&mut headers, user)?;
    if let Some(peer) = peer {
        let before: Vec<&str> =
            headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
        let peer = peer.to_string();
        let all = before.into_iter().chain([peer.as_str()]).collect::<Vec<_>>().join(", ");
        headers.insert(FORWARDED_FOR, value(&all)?);
    }
    Ok(headers)
}

/// What only we may say: who the user is, and the ids. Other servers may take an underscore for a
/// hyphen.
fn is_claim(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    let ids = [TRACEPARENT, INITIAL_TRACE_ID, "tracestate", "baggage"];
    name.starts_with("x-remote-")
        || name.starts_with("impersonate-")
        || ids.iter().any(|id| id.eq_ignore_ascii_case(&name))
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
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| UnwritableHeader)
}

/// Percent signs, and what cannot stand in a header's name.
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

/// Drops bearer tokens from the protocols of a websocket.
fn without_tokens(headers: &mut HeaderMap) {
    let protocols: Vec<String> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|name| name.trim().to_owned()))
        .filter(|name| !name.is_empty())
        .collect();
    if !protocols.iter().any(|name| name.starts_with(BEARER_PROTOCOL)) {
        return;
    }
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    let rest: Vec<&str> = protocols
        .iter()
        .map(String::as_str)
        .filter(|name| !name.starts_with(BEARER_PROTOCOL))
        .collect();
    if let Ok(rest) = HeaderValue::from_str(&rest.join(", "))
        && !rest.is_empty()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, rest);
    }
}

/// Removes the fields of the connection, and those that `Connection` names.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// The protocol that the client wants to switch to, if it is one that API servers speak.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<&'static str> {
    let has = |name: HeaderName, wanted: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    if !has(CONNECTION, "upgrade") {
        return None;
    }
    ["websocket", "SPDY/3.1"].into_iter().find(|protocol| has(UPGRADE, protocol))
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
    fn a_name_with_a_line_break_is_no_header() {
        let user = UserInfo { name: "a\r\nx-remote-group: b".to_owned(), ..UserInfo::default() };
        assert_eq!(request(&HeaderMap::new(), &user, None), Err(UnwritableHeader));
    }

    #[test]
    fn only_known_protocols_are_upgraded() {
        let asks = |connection, protocol| {
            upgrade(&map(&[("connection", connection), ("upgrade", protocol)]))
        };
        assert_eq!(asks("keep-alive, Upgrade", "WebSocket"), Some("websocket"));
        assert_eq!(asks("upgrade", "SPDY/3.1"), Some("SPDY/3.1"));
        assert_eq!(asks("upgrade", "h2c"), None);
        assert_eq!(asks("close", "websocket"), None);
    }
}
