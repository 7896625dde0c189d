//! Filtering of request and response headers.

use ferrokube_trace::{INITIAL_TRACE_ID, TRACEPARENT};
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use std::net::IpAddr;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Prefix of a bearer token among a websocket's subprotocols.
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

/// The client's headers without credentials, identity claims, trace ids and hop-by-hop fields.
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

/// Whether only we may set the header: the user's identity and the trace ids. Some servers treat
/// underscores as hyphens.
fn is_claim(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    let ids = [TRACEPARENT, INITIAL_TRACE_ID, "tracestate", "baggage"];
    name.starts_with("x-remote-")
        || name.starts_with("impersonate-")
        || ids.iter().any(|id| id.eq_ignore_ascii_case(&name))
}

/// Drops bearer tokens from the subprotocols of a websocket.
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

/// Removes hop-by-hop fields, and those named by `Connection`.
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

/// The requested upgrade protocol, if API servers support it.
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
