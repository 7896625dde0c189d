//! Field selectors.

use super::{MAX_TERMS, SelectorError};
use crate::field::cut;
use crate::work;
use std::fmt;

/// Bytes of a selector quoted in a message.
const MAX_MESSAGE: usize = 4096;

/// A parsed field selector. The API defines exact matches only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    /// All must hold.
    pub terms: Vec<FieldTerm>,
}

/// One term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTerm {
    /// Such as `metadata.name`.
    pub field: String,
    /// Required or excluded value.
    pub value: String,
    /// `!=` instead of `=`.
    pub negated: bool,
}

impl FieldSelector {
    /// Parses the query form (`a=b,c!=d`, with `\` escapes).
    ///
    /// # Errors
    /// A malformed selector or more than 1,000 terms.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parts: Vec<&str> = TermSplit { rest: Some(text) }
            .filter(|part| !part.is_empty())
            .take(MAX_TERMS + 1)
            .collect();
        if parts.len() > MAX_TERMS {
            return Err(SelectorError(format!("more than {MAX_TERMS} terms")));
        }
        // As in kube-apiserver: the order determines which name is authorized if several are given.
        parts.sort_unstable();
        let mut terms = parts
            .into_iter()
            .map(|part| FieldTerm::parse(part, text))
            .collect::<Result<Vec<_>, _>>()?;
        // kube-apiserver treats a lone `=` as everything.
        if terms.iter().all(|term| term.field.is_empty() && term.value.is_empty() && !term.negated)
        {
            terms.clear();
        }
        Ok(Self { terms })
    }

    /// Whether it matches everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether an object matches; `get` returns a declared field's value (`""` if missing).
    pub fn matches<'a>(&self, get: impl Fn(&str) -> &'a str) -> bool {
        self.terms.iter().all(|term| {
            work::count(1);
            (get(&term.field) == term.value) != term.negated
        })
    }

    /// The value required by an `=` term.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| !term.negated && term.field == field)
            .map(|term| term.value.as_str())
    }
}

impl FieldTerm {
    fn parse(part: &str, whole: &str) -> Result<Self, SelectorError> {
        let at = part.find('=').ok_or_else(|| {
            SelectorError(cut(
                format!("invalid selector: '{whole}'; can't understand '{part}'"),
                MAX_MESSAGE,
            ))
        })?;
        let negated = part[..at].ends_with('!');
        let field = &part[..at - usize::from(negated)];
        let after = &part[at + 1..];
        // `==` means `=`; `!=` takes no second sign.
        let value = if negated { after } else { after.strip_prefix('=').unwrap_or(after) };
        Ok(Self { field: field.to_owned(), value: unescape(value)?, negated })
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if term.negated { "!=" } else { "=" };
            write!(f, "{comma}{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

/// Terms separated by unescaped commas.
struct TermSplit<'a> {
    rest: Option<&'a str>,
}

impl<'a> Iterator for TermSplit<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.rest?;
        work::count(1);
        let mut escaped = false;
        let comma = rest.bytes().position(|byte| {
            let ends = byte == b',' && !escaped;
            escaped = byte == b'\\' && !escaped;
            ends
        });
        self.rest = comma.map(|comma| &rest[comma + 1..]);
        Some(comma.map_or(rest, |comma| &rest[..comma]))
    }
}

fn unescape(value: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                other => {
                    return Err(SelectorError(format!(
                        "invalid field selector: invalid escape sequence: \\{}",
                        other.map_or(String::new(), String::from)
                    )));
                }
            },
            ',' | '=' => {
                return Err(SelectorError(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(char)
                )));
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

fn escape(value: &str) -> String {
    value
        .chars()
        .flat_map(|char| matches!(char, '\\' | ',' | '=').then_some('\\').into_iter().chain([char]))
        .collect()
}
