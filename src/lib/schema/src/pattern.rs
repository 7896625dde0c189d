//! Regular expressions with RE2's syntax, and the formats of strings, also for use by other crates.

mod expression;
mod program;
#[cfg(test)]
mod tests;

use std::iter::Peekable;
use std::str::Chars;

pub use expression::{Expression, compile, compile_within};
pub use program::StepsExhausted;

pub use crate::duration::worded_duration;
pub use crate::validate::fits_format;

/// Extracts the message from the parser's output: the expression, a line that points at the error,
/// and the message.
fn sentence(text: &str, told: &str) -> String {
    let lines: Vec<&str> = told.lines().collect();
    let why = lines.iter().find_map(|line| line.strip_prefix("error: ")).unwrap_or_default();
    let pointer = lines
        .iter()
        .position(|line| line.contains('^') && line.trim_matches([' ', '^']).is_empty());
    let expression =
        pointer.and_then(|at| lines.get(at.checked_sub(1)?)).copied().unwrap_or_default();
    let marked = |line: &str| (line.find('^').unwrap_or_default(), line.matches('^').count());
    let (start, length) = pointer.map(|at| marked(lines[at])).unwrap_or_default();
    let fault: String = expression.chars().skip(start).take(length).collect();
    let from_there: String = expression.chars().skip(start).collect();
    let (sentence, shown) = match why {
        "unclosed group" => ("missing closing )", text),
        "unopened group" => ("unexpected )", text),
        "unclosed character class" => ("missing closing ]", &*from_there),
        "repetition operator missing expression" => {
            ("missing argument to repetition operator", &*fault)
        }
        why if why.starts_with("invalid character class range") => {
            ("invalid character class range", &*fault)
        }
        why if why.starts_with("incomplete escape sequence") => {
            ("trailing backslash at end of expression", "")
        }
        why if why.contains("escape sequence") || why.contains("Unicode property not found") => {
            ("invalid escape sequence", &*fault)
        }
        why if why.contains("backreferences") => ("invalid escape sequence", &*fault),
        why if why.contains("exceeds the maximum number of nested") => {
            ("expression nests too deeply", text)
        }
        why if why.contains("repetition quantifier") || why.contains("counted repetition") => {
            ("invalid repeat count", &*fault)
        }
        why if why.contains("look-around") || why.contains("flag") || why.contains("group") => {
            ("invalid or unsupported Perl syntax", &*fault)
        }
        _ => ("invalid regular expression", text),
    };
    format!("{sentence}: `{shown}`")
}

/// Translates from RE2's syntax: its `\d`, `\w`, `\s` and `\b` are ASCII-only, and its classes have
/// no nested classes, differences or intersections.
fn translate(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => escape(&mut chars, in_class, &mut out),
            '[' if in_class => class_in_class(&mut chars, &mut out),
            '[' => {
                in_class = true;
                out.push('[');
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // A bracket that closes nothing is a literal.
                if chars.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => out.extend(['\\', c]),
            '-' if in_class && chars.peek() == Some(&'-') => out.push_str("\\-"),
            c => out.push(c),
        }
    }
    out
}

/// `[:alpha:]` stays; any other bracket is a literal.
fn class_in_class(chars: &mut Peekable<Chars<'_>>, out: &mut String) {
    let named = chars.peek() == Some(&':')
        && chars.clone().skip(1).take_while(|c| *c != ']').last() == Some(':');
    if !named {
        out.push_str("\\[");
        return;
    }
    out.push('[');
    for c in chars.by_ref() {
        out.push(c);
        if c == ']' {
            return;
        }
    }
}

fn escape(chars: &mut Peekable<Chars<'_>>, in_class: bool, out: &mut String) {
    let (class, inner) = match chars.peek() {
        Some('d') => ("[0-9]", "0-9"),
        Some('D') => ("[^0-9]", "[^0-9]"),
        Some('w') => ("[0-9A-Za-z_]", "0-9A-Za-z_"),
        Some('W') => ("[^0-9A-Za-z_]", "[^0-9A-Za-z_]"),
        Some('s') => ("[\\t\\n\\f\\r ]", "\\t\\n\\f\\r "),
        Some('S') => ("[^\\t\\n\\f\\r ]", "[^\\t\\n\\f\\r ]"),
        Some('b') if !in_class => ("(?-u:\\b)", ""),
        Some('B') if !in_class => ("(?-u:\\B)", ""),
        Some('Q') if !in_class => {
            chars.next();
            return quoted(chars, out);
        }
        _ => {
            out.push('\\');
            out.extend(chars.next());
            return;
        }
    };
    chars.next();
    out.push_str(if in_class { inner } else { class });
}

/// `\Q...\E`: literal characters.
fn quoted(chars: &mut Peekable<Chars<'_>>, out: &mut String) {
    let rest: String = chars.clone().collect();
    let literal = rest.split("\\E").next().unwrap_or_default();
    out.push_str(&regex::escape(literal));
    let skipped = literal.chars().count() + if literal.len() < rest.len() { 2 } else { 0 };
    (0..skipped).for_each(|_| _ = chars.next());
}
