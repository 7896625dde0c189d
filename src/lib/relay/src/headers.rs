//! Headers that go to another server, and those that come back.

use ferrokube_trace::{INITIAL_TRACE_ID, TRACEPARENT};
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use std::net::IpAddr;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// A bearer token in the list of a websocket's protocols.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Headers of one connection (RFC 9110, section 7.6.1).
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

/// The client's headers without its credentials, claims, ids, and the fields of its connection.
pub fn client_headers(client: &HeaderMap, peer: Option<IpAddr>) -> HeaderMap {
    let mut headers = client.clone();
    remove_hop_by_hop(&mut headers);
    let claims: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
    for name in [HOST, CONTENT_LENGTH, EXPECT, AUTHORIZATION, HeaderName::from_static("audit-id")] {
        headers.remove(name);
    }
    without_tokens(&mut headers);
    if let Some(peer) = peer {
        let before: Vec<&str> =
            headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok()).collect();
        let peer = peer.to_string();
        let all = before.into_iter().chain([peer.as_str()]).collect::<Vec<_>>().join(", ");
        if let Ok(all) = HeaderValue::from_str(&all) {
            headers.insert(FORWARDED_FOR, all);
        }
    }
    headers
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
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
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
pub fn upgrade_protocol(headers: &HeaderMap) -> Option<&'static str> {
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

    #[test]
    fn only_known_protocols_are_upgraded() {
        let asks = |connection, protocol| {
            let mut headers = HeaderMap::new();
            headers.insert(CONNECTION, HeaderValue::from_static(connection));
            headers.insert(UPGRADE, HeaderValue::from_static(protocol));
            upgrade_protocol(&headers)
        };
        assert_eq!(asks("keep-alive, Upgrade", "WebSocket"), Some("websocket"));
        assert_eq!(asks("upgrade", "SPDY/3.1"), Some("SPDY/3.1"));
        assert_eq!(asks("upgrade", "h2c"), None);
        assert_eq!(asks("close", "websocket"), None);
    }
}
