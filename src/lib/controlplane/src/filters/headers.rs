//! Headers of every response.

use crate::action::Refusal;
use crate::exchange::Exchange;
use ferrokube_serve::Response;
use http::header::{CACHE_CONTROL, HeaderName, WARNING, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};

/// A static, like the names of other headers that every request is searched for: looking a text up
/// parses it each time.
pub(crate) static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

pub(crate) fn leave(exchange: &mut Exchange, response: &mut Response) {
    // kube-apiserver sends it with rejections of impersonation and authorization, and with texts;
    // hostile paths it rejects only later.
    let is_refused =
        exchange.authenticated.as_ref().is_some_and(|known| known.authorized.is_none())
            && !matches!(exchange.incoming.action.refusal(), Some(Refusal::Hostile(_)))
            && matches!(response.status(), StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST);
    let headers = response.headers_mut();
    let id = &mut exchange.incoming.audit_id;
    headers.insert(&AUDIT_ID, std::mem::replace(id, HeaderValue::from_static("")));
    if !matches!(exchange.incoming.action.refusal(), Some(Refusal::Malformed)) {
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    }
    if is_refused {
        headers.entry(X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    }
    let Some(context) = exchange.view().context() else { return };
    let values = context.take_warnings().into_iter().map(|warning| quoted(&warning));
    for value in values.filter_map(|text| HeaderValue::from_bytes(text.as_bytes()).ok()) {
        headers.append(WARNING, value);
    }
}

/// A warning as in RFC 7234, section 5.5: code 299, no agent, quoted text without control
/// characters.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 10);
    out.push_str("299 - \"");
    for symbol in text.chars() {
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
