//! Source tree rules: small files and functions, narrow comments, a doc comment per file, ASCII, no
//! machine-specific paths.

use std::fs;
use std::path::{Path, PathBuf};

/// Max lines of a file, without tests.
const MAX_FILE_LINES: usize = 800;
/// Max lines of a function.
const MAX_FUNCTION_LINES: usize = 100;
/// Max columns of a comment, as of code in `rustfmt.toml`: the formatter leaves comments alone.
const MAX_COMMENT_COLUMNS: usize = 100;
/// Exceptions, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

struct Source {
    name: String,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["src", "tests", "benches"].map(|folder| root.join(folder)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.push(Source { name, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    assert!(found.len() > 100, "only {} sources found", found.len());
    found
}

/// The part before the unit tests.
fn shipped(text: &str) -> &str {
    text.split_once("\n#[cfg(test)]\nmod ").map_or(text, |(shipped, _)| shipped)
}

#[test]
fn files_are_not_too_long() {
    let long: Vec<_> = sources()
        .into_iter()
        .map(|source| (source.name, shipped(&source.text).lines().count()))
        .filter(|(name, lines)| {
            *lines > MAX_FILE_LINES && !LONG_FILES.iter().any(|(allowed, _)| allowed == name)
        })
        .collect();
    assert!(long.is_empty(), "split: {long:?}");
}

/// Numbers of lines that are too wide. Rows of tables and examples cannot be wrapped.
fn wide_comments(text: &str) -> Vec<usize> {
    let mut is_example = false;
    let mut wide = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            is_example = false;
            continue;
        };
        let prose = comment.trim_start_matches(['/', '!']).trim_start();
        is_example ^= prose.starts_with("```");
        if line.len() > MAX_COMMENT_COLUMNS && !is_example && !prose.starts_with('|') {
            wide.push(index + 1);
        }
    }
    wide
}

#[test]
fn comments_are_not_too_wide() {
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|source| {
            wide_comments(&source.text).into_iter().map(|line| format!("{}:{line}", source.name))
        })
        .collect();
    assert!(found.is_empty(), "wrap: {found:#?}");
}

#[test]
fn wide_comments_are_found() {
    let wide = "x".repeat(MAX_COMMENT_COLUMNS);
    assert_eq!(wide_comments(&format!("    /// {wide}\nlet a = \"{wide}\";")), [1]);
    assert!(wide_comments(&format!("//! | {wide} |\n//! ```\n//! {wide}\n//! ```")).is_empty());
    assert_eq!(wide_comments(&format!("//! ```\n//! {wide}\n//! ```\n//! {wide}")), [4]);
}

#[test]
fn every_file_has_a_doc_comment() {
    let silent: Vec<_> = sources()
        .into_iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| source.name)
        .collect();
    assert!(silent.is_empty(), "no `//!` at the start: {silent:?}");
}

#[test]
fn sources_are_ascii() {
    let others: Vec<_> = sources()
        .into_iter()
        .filter(|source| !source.text.is_ascii())
        .map(|source| source.name)
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Prefixes of machine-specific paths, split so that this file passes.
const LOCAL_FOLDERS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
    concat!("google", "-cloud-sdk"),
];

#[test]
fn no_machine_specific_paths() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.to_path_buf()];
    let mut found = Vec::new();
    let mut looked_at = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if matches!(entry.file_name().to_str(), Some("target" | ".git")) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                looked_at += 1;
                let lines = text
                    .lines()
                    .enumerate()
                    .filter(|(_, line)| LOCAL_FOLDERS.iter().any(|local| line.contains(local)));
                found.extend(lines.map(|(at, _)| {
                    format!("{}:{}", path.strip_prefix(root).unwrap().display(), at + 1)
                }));
            }
        }
    }
    assert!(looked_at > 500, "only {looked_at} files looked at");
    assert!(found.is_empty(), "{found:#?}");
}

/// Relies on the formatter: a function's first and last line have the same indentation.
#[test]
fn functions_are_not_too_long() {
    let mut long = Vec::new();
    for source in sources() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let trimmed = line.trim_start();
            let is_function = [
                "fn ",
                "pub fn ",
                "async fn ",
                "pub async fn ",
                "pub(crate) fn ",
                "pub(super) fn ",
                "pub(crate) async fn ",
                "const fn ",
                "pub const fn ",
            ]
            .iter()
            .any(|begin| trimmed.starts_with(begin));
            if !is_function || line.ends_with('}') || line.ends_with(';') {
                continue;
            }
            let end = format!("{}}}", &line[..line.len() - trimmed.len()]);
            let length = lines[start..].iter().position(|line| *line == end).unwrap_or(0);
            if length > MAX_FUNCTION_LINES {
                long.push(format!("{}:{} has {length} lines", source.name, start + 1));
            }
        }
    }
    assert!(long.is_empty(), "{long:#?}");
}
