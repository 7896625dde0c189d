//! Decoding errors and warnings in the order of the body. Documents are unordered, so the body is
//! scanned again.

use super::path::Path;
use super::types::{self, CheckResult, FirstFault};
use crate::schema::{Kind, MAX_WALK, Schema};
use ferrokube_apimachinery::json::{self, scan};
use std::borrow::Cow;
use std::collections::HashSet;

/// Longest body that is scanned again; errors of longer ones are in key order.
pub const MAX_ORDERED: usize = 64 * 1024;

/// Max reported unknown and duplicate fields.
const MAX_NAMED: usize = 100;

/// The first value in a body of the wrong type, worded by [`check_types`](super::check_types());
/// `None` if the body is not a JSON object, too long, or valid.
pub fn first_mismatch(schema: &Schema, body: &[u8]) -> Option<String> {
    let body = compact(body)?;
    mismatch(schema, &body, &Path::ROOT).err().map(|fault| fault.sentence(schema))
}

fn mismatch(schema: &Schema, raw: &[u8], path: &Path<'_>) -> CheckResult {
    let mut worst = FirstFault::default();
    match (schema.kind, raw.first()) {
        _ if path.depth() > MAX_WALK => {}
        (Kind::Object, Some(b'{')) => {
            for (name, value) in scan::fields(raw) {
                let name = unescaped(name);
                if let Some(node) = schema.child(&name) {
                    worst.take(mismatch(node, value, &path.field(&name)))?;
                }
            }
        }
        (Kind::Array, Some(b'[')) => {
            if let Some(node) = schema.items.as_deref() {
                for (index, item) in scan::items(raw).enumerate() {
                    worst.take(mismatch(node, item, &path.index(index)))?;
                }
            }
        }
        _ => {
            return json::read_value(raw)
                .map_or(Ok(()), |value| types::check(schema, &value, path));
        }
    }
    worst.end()
}

/// The last field of a body with this name in any case, as written there, that is not null.
pub fn last_spelling(body: &[u8], field: &str) -> Option<String> {
    let body = compact(body)?;
    scan::fields(&body)
        .filter(|(_, value)| *value != b"null")
        .map(|(name, _)| unescaped(name))
        .filter(|name| name.eq_ignore_ascii_case(field))
        .last()
        .map(Cow::into_owned)
}

/// The JSON type of the first field of a body with this name, in any case, that is neither a string
/// nor null.
pub fn mistyped(body: &[u8], field: &str) -> Option<&'static str> {
    let body = compact(body)?;
    let mut named =
        scan::fields(&body).filter(|(name, _)| unescaped(name).eq_ignore_ascii_case(field));
    named.find_map(|(_, value)| match value.first()? {
        b'"' | b'n' => None,
        b'{' => Some("object"),
        b'[' => Some("array"),
        b't' | b'f' => Some("bool"),
        _ => Some("number"),
    })
}

/// Messages about unknown and duplicate fields; `None` as for [`first_mismatch`]. Nothing below an
/// unknown field is reported.
pub fn strict_findings(schema: &Schema, body: &[u8]) -> Option<Vec<String>> {
    let body = compact(body)?;
    let mut found = Vec::new();
    findings(schema, &body, &Path::ROOT, &mut found);
    Some(found)
}

fn findings(schema: &Schema, raw: &[u8], path: &Path<'_>, found: &mut Vec<String>) {
    if path.depth() > MAX_WALK {
        return;
    }
    let note = |found: &mut Vec<String>, what: &str, path: &Path<'_>| {
        let sentence = format!("{what} field {:?}", path.to_string());
        if found.len() < MAX_NAMED && !found.contains(&sentence) {
            found.push(sentence);
        }
    };
    match (schema.kind, raw.first()) {
        (Kind::Object, Some(b'{')) => {
            let mut seen = HashSet::new();
            for (name, value) in scan::fields(raw) {
                let name = unescaped(name);
                let path = path.field(&name);
                let node = schema.child(&name);
                if node.is_none() && schema.preserve_unknown {
                    continue;
                }
                if node.is_none()
                    && !(path.depth() == 1 && matches!(&*name, "kind" | "apiVersion" | "metadata"))
                {
                    note(found, "unknown", &path);
                    continue;
                }
                if !seen.insert(name.to_string()) {
                    note(found, "duplicate", &path);
                }
                if let Some(node) = node {
                    findings(node, value, &path, found);
                }
            }
        }
        (Kind::Array, Some(b'[')) => {
            if let Some(node) = schema.items.as_deref() {
                scan::items(raw)
                    .enumerate()
                    .for_each(|(index, item)| findings(node, item, &path.index(index), found));
            }
        }
        _ => {}
    }
}

/// Unescapes a key.
fn unescaped(raw: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(raw) {
        Ok(text) if !text.contains('\\') => Cow::Borrowed(text),
        _ => {
            Cow::Owned(scan::string(&[b"\"", raw, b"\""].concat()).unwrap_or_default().into_owned())
        }
    }
}

/// A JSON object without whitespace between its tokens.
fn compact(body: &[u8]) -> Option<Vec<u8>> {
    if body.len() > MAX_ORDERED
        || body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{')
    {
        return None;
    }
    let (mut out, mut in_string, mut escaped) = (Vec::with_capacity(body.len()), false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            byte if !in_string && byte.is_ascii_whitespace() => continue,
            _ => {}
        }
        out.push(*byte);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{core, schema};

    #[test]
    fn the_first_mismatch_follows_the_bodys_order() {
        let event = schema("io.k8s.api.events.v1.Event");
        for (body, why) in [
            // A type with its own decoder ends decoding, whatever was found before.
            (
                r#"{"action": 1, "eventTime": "x"}"#,
                r#"parsing time "x" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "x" as "2006""#,
            ),
            (
                r#"{"deprecatedCount": "a", "metadata": {"creationTimestamp": 1}}"#,
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
            ),
            (
                r#"{"reason": true, "action": 1}"#,
                "json: cannot unmarshal bool into Go struct field Event.reason of type string",
            ),
            (
                r#"{ "action" : 1 , "reason" : true }"#,
                "json: cannot unmarshal number into Go struct field Event.action of type string",
            ),
            (
                r#"{"r\u0065ason": 1, "reason": "a"}"#,
                "json: cannot unmarshal number into Go struct field Event.reason of type string",
            ),
        ] {
            assert_eq!(first_mismatch(&event, body.as_bytes()).as_deref(), Some(why), "{body}");
        }
        let secret = core("Secret");
        let body = br#"{"data": {"b": "not base64", "a": "YQ"}, "immutable": 1}"#;
        assert_eq!(first_mismatch(&secret, body).unwrap(), "illegal base64 data at input byte 3");
        assert_eq!(
            first_mismatch(&secret, br#"{"immutable": 1, "data": {"a": "YQ"}}"#).unwrap(),
            "json: cannot unmarshal number into Go struct field Secret.immutable of type bool"
        );
        for other in ["[]", "kind: a", "", r#"{"immutable": true}"#] {
            assert_eq!(first_mismatch(&secret, other.as_bytes()), None);
        }
    }

    #[test]
    fn findings_are_in_the_order_of_the_body() {
        let body =
            br#"{"x": 1, "x": {"a": 1, "a": 2}, "metadata": {"name": "a", "labels": {"b": "1", "b": "2"}, "name": "b", "b": []}, "kind": "a", "kind": "b",
            "secrets": [{"name": "a"}, {"nope": 1, "name": "b", "name": "c"}]}"#;
        assert_eq!(
            strict_findings(&core("ServiceAccount"), body).unwrap(),
            [
                "unknown field \"x\"",
                "duplicate field \"metadata.labels.b\"",
                "duplicate field \"metadata.name\"",
                "unknown field \"metadata.b\"",
                "duplicate field \"kind\"",
                "unknown field \"secrets[1].nope\"",
                "duplicate field \"secrets[1].name\"",
            ]
        );
        assert_eq!(
            strict_findings(
                &core("ConfigMap"),
                br#"{"metadata": {"managedFields": [{"fieldsV1": {"a": 1, "a": 2}}]}}"#
            ),
            Some(Vec::new())
        );
        assert_eq!(strict_findings(&core("ConfigMap"), &vec![b' '; MAX_ORDERED + 1]), None);
    }
}
