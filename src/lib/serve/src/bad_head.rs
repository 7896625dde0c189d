//! Responses to malformed request heads, before a handler sees them, as clients of a Go server
//! expect.
//!
//! hyper responds with an empty 400 and closes. Tools that print the response body then print
//! nothing, and an unknown transfer coding looks like any other mistake; so that response is
//! replaced by one with the right code (RFC 9112) and a text. Heads that hyper accepts and a Go
//! server rejects (no or several Host fields, a list of transfer codings) are rejected here, too:
//! request smuggling needs two parties that parse one head differently (fault 39).

use crate::body::full;
use crate::handler::{CloseConnection, Response};
use http::header::{CONTENT_TYPE, HOST, HeaderMap, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, StatusCode, Version};

/// Prefixes of hyper's own responses to malformed heads. Handlers never send these codes without a
/// body.
const HYPER_PREFIXES: [&[u8]; 3] = [b"HTTP/1.1 400 ", b"HTTP/1.1 414 ", b"HTTP/1.1 431 "];
/// Bytes of a head that are kept to find its mistake.
pub(crate) const MAX_HEAD_PREFIX: usize = 16 << 10;
const TEXT: &str = "text/plain; charset=utf-8";

/// Whether outgoing bytes are a response that hyper made: a whole head without a body.
pub(crate) fn is_hypers_response(bytes: &[u8]) -> bool {
    HYPER_PREFIXES.iter().any(|own| bytes.starts_with(own))
        && bytes.ends_with(b"\r\n\r\n")
        && find(bytes, b"\r\ncontent-length: 0\r\n").is_some()
}

/// The response to send instead of hyper's; `head` is the start of the request.
pub(crate) fn replacement(answer: &[u8], head: &[u8]) -> Vec<u8> {
    let (status, text) = match answer.get(9..12) {
        Some(b"431") => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, ""),
        Some(b"414") => (StatusCode::URI_TOO_LONG, ""),
        _ => mistake(head),
    };
    let line = line(status, text);
    let body = if status == StatusCode::NOT_IMPLEMENTED { text } else { &line };
    format!("HTTP/1.1 {line}\r\nContent-Type: {TEXT}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

fn line(status: StatusCode, text: &str) -> String {
    let colon = if text.is_empty() || status == StatusCode::NOT_IMPLEMENTED { "" } else { ": " };
    let told = if colon.is_empty() { "" } else { text };
    format!("{} {}{colon}{told}", status.as_u16(), status.canonical_reason().unwrap_or_default())
}

/// The mistake in a head that hyper could not parse.
fn mistake(head: &[u8]) -> (StatusCode, &'static str) {
    const UNREADABLE: (StatusCode, &str) = (StatusCode::BAD_REQUEST, "");
    // Leading empty lines are allowed (RFC 9112, section 2.2).
    let mut lines = head
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii_end)
        .skip_while(|line| line.is_empty());
    let mut words = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
    let (Some(_), Some(_), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return UNREADABLE;
    };
    if is_other_version(version) {
        return (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "unsupported protocol version");
    }
    let mut codings = 0;
    let mut known = true;
    for line in lines.take_while(|line| !line.is_empty()) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return UNREADABLE };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.iter().any(u8::is_ascii_whitespace) {
            return UNREADABLE;
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            codings += 1;
            known &= value.eq_ignore_ascii_case(b"chunked");
        }
    }
    if version == b"HTTP/1.1" && codings > 0 && (codings > 1 || !known) {
        UNSUPPORTED_CODING
    } else {
        UNREADABLE
    }
}

const UNSUPPORTED_CODING: (StatusCode, &str) =
    (StatusCode::NOT_IMPLEMENTED, "Unsupported transfer encoding");

/// `HTTP/<digit>.<digit>` other than 1.0 and 1.1.
fn is_other_version(version: &[u8]) -> bool {
    match version {
        b"HTTP/1.0" | b"HTTP/1.1" => false,
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] => {
            major.is_ascii_digit() && minor.is_ascii_digit()
        }
        _ => false,
    }
}

/// Rejects a head that hyper accepted; `None` if it is fine. HTTP/2 has no such fields.
pub(crate) fn rejection<B>(head: &Request<B>) -> Option<Response> {
    if head.version() > Version::HTTP_11 {
        return None;
    }
    let (status, text) = fault(head)?;
    let line = line(status, text);
    let mut response = Response::new(full(if status == StatusCode::NOT_IMPLEMENTED {
        text.to_owned()
    } else {
        line
    }));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response.extensions_mut().insert(CloseConnection);
    Some(response)
}

fn fault<B>(head: &Request<B>) -> Option<(StatusCode, &'static str)> {
    if !has_known_coding(head.headers()) {
        return Some(UNSUPPORTED_CODING);
    }
    let mut hosts = head.headers().get_all(HOST).iter();
    let bad = |text| Some((StatusCode::BAD_REQUEST, text));
    match (hosts.next(), hosts.next()) {
        (None, _) if head.version() == Version::HTTP_11 && head.method() != Method::CONNECT => {
            bad("missing required Host header")
        }
        (Some(_), Some(_)) => bad("too many Host headers"),
        (Some(host), None) if !host.as_bytes().iter().copied().all(may_be_in_host) => {
            bad("malformed Host header")
        }
        _ => None,
    }
}

fn has_known_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

/// Characters of a host, an IP literal or a port (RFC 3986).
fn may_be_in_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]%".contains(&byte)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\ndate: x\r\n\r\n";

    #[test]
    fn only_hypers_own_responses_are_replaced() {
        assert!(is_hypers_response(EMPTY));
        assert!(is_hypers_response(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"));
        for other in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 5\r\n\r\nhello",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nmore",
        ] {
            assert!(!is_hypers_response(other));
        }
    }

    #[test]
    fn fault_39_the_mistake_in_a_head_is_named() {
        let of = |head: &str| {
            let text = String::from_utf8(replacement(EMPTY, head.as_bytes())).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(
                head.contains("\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close"),
                "{head}"
            );
            (head.lines().next().unwrap().to_owned(), body.to_owned())
        };
        let bad = ("HTTP/1.1 400 Bad Request".to_owned(), "400 Bad Request".to_owned());
        for head in [
            "",
            "\n",
            "GARBAGE",
            "GET / HTTP/1.1\r\nx",
            "GET / HTTP/1.1\r\ncontent-length: -1\r\n",
            "GET /a b HTTP/1.1\r\n",
            "GET / HTTP/9\r\n",
            "GET / HTTP/1.0\r\ntransfer-encoding: x\r\n",
        ] {
            assert_eq!(of(head), bad, "{head:?}");
        }
        let other = "505 HTTP Version Not Supported: unsupported protocol version";
        assert_eq!(
            of("\r\nGET / HTTP/3.0\r\nhost: x\r\n\r\n"),
            (format!("HTTP/1.1 {other}"), other.to_owned())
        );
        for codings in ["nonsense", "chunked, gzip", "chunked\r\nTransfer-Encoding: chunked"] {
            let head =
                format!("POST / HTTP/1.1\r\nhost: x\r\nTransfer-Encoding: {codings}\r\n\r\n");
            assert_eq!(
                of(&head),
                (
                    "HTTP/1.1 501 Not Implemented".to_owned(),
                    "Unsupported transfer encoding".to_owned()
                ),
                "{codings}"
            );
        }
        let large = replacement(b"HTTP/1.1 431 Request Header Fields Too Large\r\n", b"GET ");
        assert!(large.ends_with(b"\r\n\r\n431 Request Header Fields Too Large"));
    }

    #[test]
    fn fault_39_ambiguous_heads_are_rejected() {
        let status = |fields: &[(&str, &str)], version: Version| {
            let mut request = http::Request::get("/").version(version);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            rejection(&request.body(()).unwrap()).map(|response| response.status().as_u16())
        };
        for (fields, want) in [
            (&[("host", "a.example:6443")][..], None),
            (&[("host", "[::1]:6443")], None),
            (&[("host", "")], None),
            (&[], Some(400)),
            (&[("host", "a"), ("host", "a")], Some(400)),
            (&[("host", "a b")], Some(400)),
            (&[("host", "a/b")], Some(400)),
            (&[("host", "a"), ("transfer-encoding", "Chunked")], None),
            (&[("host", "a"), ("transfer-encoding", "gzip, chunked")], Some(501)),
            (
                &[
                    ("host", "a"),
                    ("transfer-encoding", "chunked"),
                    ("transfer-encoding", "chunked"),
                ],
                Some(501),
            ),
        ] {
            assert_eq!(status(fields, Version::HTTP_11), want, "{fields:?}");
        }
        assert_eq!(status(&[], Version::HTTP_10), None);
        assert_eq!(status(&[], Version::HTTP_2), None);
    }
}
