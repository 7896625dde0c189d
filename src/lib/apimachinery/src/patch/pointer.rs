//! JSON pointers as kube-apiserver reads them: text before the first slash is dropped, so that
//! `data/k` names the top-level `k`.

use crate::document::Value;
use crate::json::MAX_DEPTH;
use std::borrow::Cow;

/// A parsed pointer below the top.
pub(super) struct Pointer<'a> {
    parents: &'a str,
    key: &'a str,
}

impl<'a> Pointer<'a> {
    /// `None` without a slash: the top itself.
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        let (_, below) = text.split_once('/')?;
        let (parents, key) = below.rsplit_once('/').unwrap_or(("", below));
        // `/a` has no parent, `//a` has one with an empty name.
        let parents = if below.len() == key.len() { "" } else { &below[..parents.len() + 1] };
        Some(Self { parents, key })
    }

    /// The last segment.
    pub(super) fn key(&self) -> Cow<'a, str> {
        unescape(self.key)
    }

    /// Number of containers around the last segment, including the top.
    pub(super) fn depth(&self) -> usize {
        1 + self.parents.bytes().filter(|byte| *byte == b'/').count()
    }

    /// The object or array of the last segment.
    pub(super) fn container<'v>(&self, top: &'v mut Value) -> Option<&'v mut Value> {
        let mut value = top;
        // Each parent ends with a slash.
        for (level, part) in self.parents.split_terminator('/').enumerate() {
            if level > MAX_DEPTH {
                return None;
            }
            value = child(value, &unescape(part))?;
        }
        (value.is_object() || value.is_array()).then_some(value)
    }
}

fn child<'v>(value: &'v mut Value, key: &str) -> Option<&'v mut Value> {
    match value {
        Value::Object(map) => map.get_mut(key),
        Value::Array(items) => {
            let at = index(key, items.len())?;
            items.get_mut(at)
        }
        _ => None,
    }
}

/// An array index: negative ones count from `length` down, -1 being the last.
pub(super) fn index(key: &str, length: usize) -> Option<usize> {
    let number: i64 = key.parse().ok()?;
    if number < 0 {
        length.checked_sub(usize::try_from(number.unsigned_abs()).ok()?)
    } else {
        usize::try_from(number).ok()
    }
}

fn unescape(part: &str) -> Cow<'_, str> {
    if !part.contains('~') {
        return Cow::Borrowed(part);
    }
    let mut out = String::with_capacity(part.len());
    let mut rest = part;
    while let Some(at) = rest.find('~') {
        out.push_str(&rest[..at]);
        let (char, length) = match rest.as_bytes().get(at + 1) {
            Some(b'0') => ('~', 2),
            Some(b'1') => ('/', 2),
            _ => ('~', 1),
        };
        out.push(char);
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}
