//! Headers that every answer has.

use crate::action::Refusal;
use crate::exchange::Exchange;
use crate::state::ServerState;
use ferrokube_serve::{CloseConnection, Response};
use http::header::{CACHE_CONTROL, HeaderName, WARNING, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

/// The audit id's header.
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Bytes of warnings on one answer; what is beyond is left out.
const MAX_WARNING_BYTES: usize = 16 * 1024;

/// Sets them.
pub(crate) fn leave(_shared: &ServerState, exchange: &mut Exchange, response: &mut Response) {
    if exchange.head.version == http::Version::HTTP_2 && is_unknown(exchange) {
        // Whoever does not say who it is gets no connection to reuse (fault 37).
        response.extensions_mut().insert(CloseConnection);
    }
    // Upstream sends it with what impersonation and authorization refuse, and with texts; names
    // that are none are refused later there.
    let is_refused = exchange.authorized.is_none()
        && !exchange.real_user.name.is_empty()
        && !matches!(exchange.action.refusal(), Some(Refusal::Hostile(_)))
        && matches!(response.status(), StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST);
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, exchange.audit_id.clone());
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    if is_refused {
        headers.entry(X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    }
    let Some(context) = &exchange.context else { return };
    let mut room = MAX_WARNING_BYTES;
    for warning in context.take_warnings() {
        let text = quoted(&warning);
        if text.len() > room {
            break;
        }
        room -= text.len();
        if let Ok(value) = HeaderValue::from_bytes(text.as_bytes()) {
            headers.append(WARNING, value);
        }
    }
}

/// Whether the client has shown no credentials that count.
fn is_unknown(exchange: &Exchange) -> bool {
    exchange.real_user.name.is_empty() || exchange.real_user.name == super::admit::ANONYMOUS
}

/// A warning as RFC 9111's predecessor defines it: code 299, no agent, quoted text without control
/// characters.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 10);
    out.push_str("299 - \"");
    for symbol in text.chars().take(2048) {
        match symbol {
            '"' | '\\' => {
                out.push('\\');
                out.push(symbol);
            }
            control if control.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_quoted() {
        assert_eq!(quoted("a \"b\"\n\\c"), "299 - \"a \\\"b\\\" \\\\c\"");
    }
}
