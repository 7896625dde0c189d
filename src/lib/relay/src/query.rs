//! URI queries as pairs.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Decoded names and values in order. A missing value is empty.
pub fn query_pairs(query: &str) -> Vec<(String, String)> {
    let decoded =
        |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decoded(name), decoded(value)))
        .collect()
}

/// Percent-encodes the pairs, without the question mark; empty without pairs.
pub fn encoded_query<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let encoded = |text: &'a str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs =
        pairs.into_iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value)));
    pairs.collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_inverts_encoding() {
        let pairs = [("command", "sh"), ("command", "a b&c=d+e%\u{e9}"), ("tty", "")];
        let decoded = query_pairs(&encoded_query(pairs));
        let decoded: Vec<_> = decoded.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert_eq!(decoded, pairs);
        assert_eq!(query_pairs("a=b+c&&d"), [("a".into(), "b c".into()), ("d".into(), "".into())]);
    }
}
