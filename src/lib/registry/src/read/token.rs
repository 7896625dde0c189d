//! Continue tokens: the position of a list, authenticated, and bound to its resource and namespace.

use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use base64::{Engine, alphabet};
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::{go, json};
use ring::hmac;

/// Longer tokens are rejected undecoded; keys are much shorter.
const MAX_LENGTH: usize = 4096;
const VERSION: u8 = 2;
const MAC: usize = 16;
/// Bytes of revision and remaining count.
const NUMBERS: usize = 16;
/// Remaining count is unknown.
const UNKNOWN: u64 = u64::MAX;
/// Revision of a list that continues at the current state.
const INCONSISTENT: u64 = u64::MAX;

/// Position of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContinueToken {
    /// Revision of its snapshot; `None`: continues at the current state, inconsistently.
    pub(super) revision: Option<u64>,
    /// Last key returned, without prefix.
    pub(super) after: String,
    /// Number of remaining items; `None` with selectors, or at the current state.
    pub(super) left: Option<u64>,
}

impl ContinueToken {
    /// Encodes the token. `scope` names the resource and namespace.
    pub(super) fn seal(&self, key: &hmac::Key, scope: &str) -> String {
        let numbers = [self.revision.unwrap_or(INCONSISTENT), self.left.unwrap_or(UNKNOWN)]
            .map(u64::to_be_bytes)
            .concat();
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&mac(key, scope, &numbers, &self.after).as_ref()[..MAC]);
        bytes.extend_from_slice(&numbers);
        bytes.extend_from_slice(self.after.as_bytes());
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Decodes a token; `None` if it was not made by this server, or for another scope.
    pub(super) fn open(text: &str, key: &hmac::Key, scope: &str) -> Option<Self> {
        if text.len() > MAX_LENGTH {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
        let (given, rest) = bytes.strip_prefix(&[VERSION])?.split_at_checked(MAC)?;
        let (numbers, after) = rest.split_at_checked(NUMBERS)?;
        let number = |at: usize| numbers.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        let after = std::str::from_utf8(after).ok()?;
        let expected = mac(key, scope, numbers, after);
        // Constant time: reads all 16 bytes of both.
        let differs = expected.as_ref()[..MAC]
            .iter()
            .zip(given)
            .fold(0, |differs, (one, other)| differs | (one ^ other));
        let revision = number(0).filter(|revision| *revision != INCONSISTENT);
        let left = number(8).filter(|left| *left != UNKNOWN);
        (differs == 0).then(|| Self { revision, after: after.to_owned(), left })
    }
}

/// Error for an invalid token: kube-apiserver's message for its own tokens, which are JSON.
pub(super) fn refusal(text: &str) -> String {
    if text.len() > MAX_LENGTH {
        return "it is too long".to_owned();
    }
    // Go's decoder accepts no padding, and ignores trailing bits.
    const DECODER: GeneralPurpose =
        GeneralPurpose::new(&alphabet::URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));
    let Ok(bytes) = DECODER.decode(text) else { return go::url_base64_fault(text) };
    if let Some(fault) = go::syntax_fault(&bytes) {
        return fault;
    }
    let Ok(value) = json::read_value(&bytes) else { return UNSIGNED.to_owned() };
    let wrong = |value: &Value, field: &str, kind: &str| {
        format!(
            "json: cannot unmarshal {} into Go struct field continueToken.{field} of type {kind}",
            json::type_name(value)
        )
    };
    match (value.get("v"), value.get("rv"), value.get("start")) {
        _ if !value.is_object() => format!(
            "json: cannot unmarshal {} into Go value of type storage.continueToken",
            json::type_name(&value)
        ),
        (Some(version), _, _) if !version.is_string() => wrong(version, "v", "string"),
        (_, Some(revision), _) if !revision.is_number() => wrong(revision, "rv", "int64"),
        (_, _, Some(start)) if !start.is_string() => wrong(start, "start", "string"),
        (version, revision, start) => match version.and_then(Value::as_str).unwrap_or_default() {
            "meta.k8s.io/v1" if revision.and_then(Value::as_i64).unwrap_or(0) == 0 => {
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)".to_owned()
            }
            "meta.k8s.io/v1" if start.and_then(Value::as_str).unwrap_or_default().is_empty() => {
                "encoded start key empty (version meta.k8s.io/v1)".to_owned()
            }
            "meta.k8s.io/v1" => UNSIGNED.to_owned(),
            other => format!("server does not recognize this encoded version {other}"),
        },
    }
}

/// Valid in kube-apiserver, whose tokens are not authenticated.
const UNSIGNED: &str = "it was not made by this server";

fn mac(key: &hmac::Key, scope: &str, numbers: &[u8], after: &str) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(&(scope.len() as u64).to_be_bytes());
    context.update(scope.as_bytes());
    context.update(numbers);
    context.update(after.as_bytes());
    context.sign()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32])
    }

    #[test]
    fn a_token_round_trips() {
        for token in [
            ContinueToken { revision: Some(7), after: "ns/a".to_owned(), left: Some(3) },
            ContinueToken { revision: None, after: String::new(), left: None },
        ] {
            let text = token.seal(&key(1), "/registry/secrets/ ns");
            assert_eq!(ContinueToken::open(&text, &key(1), "/registry/secrets/ ns"), Some(token));
        }
    }

    #[test]
    fn invalid_tokens_have_kube_apiservers_messages() {
        let encoded = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
        let cases = [
            ("x".to_owned(), "illegal base64 data at input byte 0"),
            (
                "no-continue".to_owned(),
                "invalid character '\\u009e' looking for beginning of value",
            ),
            (encoded("abc"), "invalid character 'a' looking for beginning of value"),
            (
                encoded("1"),
                "json: cannot unmarshal number into Go value of type storage.continueToken",
            ),
            (
                encoded("{\"rv\":\"x\"}"),
                "json: cannot unmarshal string into Go struct field continueToken.rv of type int64",
            ),
            (encoded("{}"), "server does not recognize this encoded version "),
            (
                encoded("{\"v\":\"meta.k8s.io/v1\",\"rv\":0,\"start\":\"a\"}"),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (
                encoded("{\"v\":\"meta.k8s.io/v1\",\"rv\":1}"),
                "encoded start key empty (version meta.k8s.io/v1)",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(refusal(&text), want, "{text}");
        }
    }

    #[test]
    fn fault_23_a_forged_token_is_refused() {
        let token = ContinueToken { revision: Some(7), after: "ns/a".to_owned(), left: Some(3) };
        let text = token.seal(&key(1), "/registry/secrets/ ns");
        assert_eq!(
            ContinueToken::open(&text, &key(2), "/registry/secrets/ ns"),
            None,
            "another key"
        );
        assert_eq!(
            ContinueToken::open(&text, &key(1), "/registry/secrets/ other"),
            None,
            "another namespace"
        );
        assert_eq!(
            ContinueToken::open(&text, &key(1), "/registry/configmaps/ ns"),
            None,
            "another resource"
        );
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(bytes).unwrap();
            assert_ne!(
                ContinueToken::open(&forged, &key(1), "/registry/secrets/ ns"),
                Some(ContinueToken { revision: Some(9), after: "x/y".to_owned(), left: None })
            );
            assert!(
                ContinueToken::open(&forged, &key(1), "/registry/secrets/ ns")
                    .is_none_or(|opened| opened == token),
                "changed at {at}"
            );
        }
        for junk in ["", "abc", "!!!", "AQ", &"A".repeat(5000)] {
            assert_eq!(ContinueToken::open(junk, &key(1), ""), None);
        }
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use ferrokube_fuzz::{Verdict, run};

    #[test]
    fn continue_tokens_are_read_or_refused() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &[1; 32]);
        let sealed = [
            ContinueToken { revision: Some(7), after: "ns/a".to_owned(), left: Some(3) },
            ContinueToken { revision: None, after: String::new(), left: None },
        ];
        let mut seeds: Vec<String> = sealed.iter().map(|token| token.seal(&key, "scope")).collect();
        seeds.extend(
            ["eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhIn0", "AQ==", "%%%"]
                .map(str::to_owned),
        );
        run("continue token", &seeds, |input| {
            let opened = std::str::from_utf8(input)
                .ok()
                .and_then(|text| ContinueToken::open(text, &key, "scope"));
            // A MAC of another key matches with negligible probability.
            assert!(opened.as_ref().is_none_or(|token| sealed.contains(token)), "{opened:?}");
            Verdict::from(opened.is_some())
        });
    }
}
