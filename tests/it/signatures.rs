//! Signatures of functions: no arguments packed into tuples, which hide from the caller what each
//! value is, and from the lint how many there are.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of test code below `src`.
const TESTS: &[&str] = &["tests", "tests.rs"];

/// Sources of the product, as name and text.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut paths) = (Vec::new(), vec![root.join("src")]);
    while let Some(path) = paths.pop() {
        let name = path.file_name().unwrap().to_str().unwrap();
        if TESTS.contains(&name) || matches!(name, "benches" | "examples") {
            continue;
        }
        if path.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if name.ends_with(".rs") {
            let shown: PathBuf = path.strip_prefix(root).unwrap().to_owned();
            found.push((shown.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(found.len() > 500, "only {} sources found", found.len());
    found
}

/// Without comments and the unit tests at the end. Literals stay: none has a signature.
fn code(text: &str) -> String {
    let shipped = text.split_once("\n#[cfg(test)]\nmod tests {").map_or(text, |(before, _)| before);
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    shipped.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

/// The text up to the bracket that closes the one at its start.
fn bracketed(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, character) in text.char_indices() {
        match character {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if before == '-' || before == '=' => {}
            ')' | ']' | '}' | '>' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return text.get(1..at);
        }
        before = character;
    }
    None
}

/// Split at the commas outside of brackets.
fn items(mut text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut at = 0;
    while let Some(next) = text[at..].find([',', '(', '[', '{', '<']).map(|found| at + found) {
        if text[next..].starts_with(',') {
            items.push(text[..next].trim());
            (text, at) = (&text[next + 1..], 0);
        } else {
            at = next + 1 + bracketed(&text[next..]).map_or(0, |inside| inside.len() + 1);
        }
    }
    items.push(text.trim());
    items.retain(|item| !item.is_empty());
    items
}

/// Whether a pattern or type is a tuple of at least two, or a reference to one.
fn is_tuple(text: &str) -> bool {
    let text = text.trim_start_matches(['&', ' ']);
    let is_lifetime = |(name, _): &(&str, &str)| name.starts_with('\'');
    let text = text.split_once(' ').filter(is_lifetime).map_or(text, |(_, rest)| rest);
    let text = text.strip_prefix("mut ").unwrap_or(text);
    text.starts_with('(') && bracketed(text).is_some_and(|inside| items(inside).len() > 1)
}

/// Functions with a tuple as a parameter, as `line: name(parameter)`.
fn packed(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let is_word = code[..at].ends_with([' ', '\n', '(']) || at == 0;
        let rest = &code[at + 3..];
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let Some((name, mut rest)) = end.map(|end| rest.split_at(end)).filter(|_| is_word) else {
            continue;
        };
        if rest.starts_with('<') {
            rest = bracketed(rest).map_or("", |generics| &rest[generics.len() + 2..]);
        }
        let parameters = Some(rest).filter(|rest| rest.starts_with('(')).and_then(bracketed);
        for parameter in items(parameters.unwrap_or_default()) {
            // The colon of the pattern, not of a path.
            let pattern = if parameter.starts_with('(') { bracketed(parameter) } else { None };
            let after = pattern.map_or(0, |pattern| pattern.len() + 2);
            let kind = parameter[after..].split_once(':').map_or("", |(_, kind)| kind.trim());
            if is_tuple(parameter) || is_tuple(kind) {
                let line = code[..at].matches('\n').count() + 1;
                let parameter = parameter.split_whitespace().collect::<Vec<_>>().join(" ");
                found.push(format!("{line}: {name}({parameter})"));
            }
        }
    }
    found
}

#[test]
fn no_arguments_are_packed_into_tuples() {
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|(file, text)| {
            packed(&code(text)).into_iter().map(move |found| format!("{file}:{found}"))
        })
        .collect();
    assert!(found.is_empty(), "pass them one by one, or as a struct: {found:#?}");
}

#[test]
fn the_check_finds_tuples_only() {
    let one = |signature: &str| packed(&code(signature)).len();
    assert_eq!(one("fn a((x, y): (u8, u8)) {}"), 1);
    assert_eq!(
        one("    pub(crate) async fn a<F: Fn(u8) -> u8>(\n    &self,\n    at: (u8, u8),\n)"),
        1
    );
    assert_eq!(one("fn a(at: &'a mut (u8, u8), f: u8) {}"), 1);
    assert_eq!(one("fn a((name, _): &LeaseKey, b: Map<u8, (u8, u8)>) {}"), 1);
    assert_eq!(one("fn a(x: &[(u8, u8)], f: impl Fn((u8, u8)), b: Map<u8, (u8, u8)>) {}"), 0);
    assert_eq!(one("fn from((): ()) {}\n// fn a(at: (u8, u8))\nlet f = |(a, b): (u8, u8)| a;"), 0);
    assert_eq!(one("f: fn(u8, (u8, u8)) -> u8,\n#[cfg(test)]\nmod tests {\nfn a(x: (u8, u8))"), 0);
}
