//! Regular expressions with RE2's syntax, and the formats of strings, also for use by other crates.

use ferrokube_apimachinery::work;
use regex::{Regex, RegexBuilder};
use std::iter::Peekable;
use std::str::Chars;

pub use crate::validate::fits_format;

/// Parses a duration in words, as `format: duration` allows: `2 days`. In nanoseconds.
pub fn worded_duration(text: &str) -> Option<i64> {
    crate::validate::worded_duration(text)
}

/// Max bytes of a compiled pattern.
const MAX_PATTERN: usize = 1 << 20;

/// Size limits to try in turn: most patterns are small, and the smallest limit that fits is
/// charged.
const SIZES: [usize; 4] = [4 << 10, 32 << 10, 256 << 10, MAX_PATTERN];

/// Compiles a pattern and charges its compiled size to `room`: the text says little, `(a{99}){99}`
/// is short.
///
/// # Errors
/// A message: the text is invalid or too large.
pub fn compile_within(text: &str, room: &mut usize) -> Result<Regex, String> {
    let translated = translate(text);
    for size in SIZES {
        *room =
            room.checked_sub(size).ok_or("the patterns of the schema are too large together")?;
        work::count(size);
        match builder(&translated, size).build() {
            Ok(regex) => return Ok(regex),
            Err(regex::Error::CompiledTooBig(_)) if size < MAX_PATTERN => *room += size,
            Err(error) => return Err(explain(text, &error)),
        }
    }
    Err("expression too large".to_owned())
}

fn builder(translated: &str, size: usize) -> RegexBuilder {
    let mut builder = RegexBuilder::new(translated);
    builder.size_limit(size).dfa_size_limit(MAX_PATTERN).nest_limit(100);
    builder
}

/// Compiles a pattern.
///
/// # Errors
/// The text is invalid or too large.
pub fn compile(text: &str) -> Result<Regex, regex::Error> {
    builder(&translate(text), MAX_PATTERN).build()
}

/// Why a text is not a regular expression, in RE2's words.
pub fn explain(text: &str, error: &regex::Error) -> String {
    let told = match error {
        regex::Error::CompiledTooBig(_) => "expression too large".to_owned(),
        other => sentence(text, &other.to_string()),
    };
    format!("error parsing regexp: {told}")
}

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

#[cfg(test)]
mod tests {
    use super::compile;

    #[test]
    fn patterns_match_as_in_re2() {
        let found = |pattern: &str, text: &str| {
            compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}")).is_match(text)
        };
        let yes = [
            (r"^\d+$", "12"),
            (r"^[\d.]+$", "1.2"),
            (r"^[^\s]+$", "ab"),
            (r"^[[:alpha:]]+$", "ab"),
            (r"^[a[b]+$", "[a"),
            (r"^[]a]+$", "]a"),
            (r"^[a&&b]+$", "&"),
            (r"(?i)^ABC$", "abc"),
            (r"^\p{Greek}+$", "\u{3b1}"),
            (r"\bfoo\b", "a foo b"),
            (r"^\Qa.b\E$", "a.b"),
            (r"^[\w-]+$", "a-b"),
            (r"^[a~~]$", "~"),
            (r"^\x41$", "A"),
        ];
        for (pattern, text) in yes {
            assert!(found(pattern, text), "{pattern} {text}");
        }
        let no = [
            (r"^\d+$", "\u{661}"),
            (r"^\w+$", "\u{e9}"),
            (r"^\D$", "1"),
            (r"^[\W]$", "a"),
            (r"^\Qa.b\E$", "axb"),
            (r"^\s$", "\u{a0}"),
        ];
        for (pattern, text) in no {
            assert!(!found(pattern, text), "{pattern} {text}");
        }
        for bad in [
            "(",
            "[",
            "a{2,1}",
            r"\p{None}",
            "(?=a)",
            r"(a)\1",
            "((((a{1000}){1000}){1000}){1000})",
        ] {
            assert!(compile(bad).is_err(), "{bad}");
        }
    }
}
