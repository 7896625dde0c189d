//! `docs/` is a book of mdBook: each page is in `docs/SUMMARY.md`, each link leads to something,
//! and what the pages name exists. Without mdBook, which need not be installed.

use crate::FERROKUBE;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Pages outside of the book, which may link to any file of the repository.
const OTHERS: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "clients/python/README.md",
    "clients/node/README.md",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files_below(directory: &Path, ending: &str) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path, ending));
        } else if path.to_str().unwrap().ends_with(ending) {
            found.insert(path);
        }
    }
    found
}

/// Lines of text, without blocks of code.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fence && !is_fenced && !line.starts_with("    ")
    })
}

/// Lines of blocks of code.
fn code(page: &str) -> Vec<&str> {
    let text: BTreeSet<*const u8> = prose(page).map(str::as_ptr).collect();
    page.lines().filter(|line| !text.contains(&line.as_ptr())).map(str::trim).collect()
}

/// Targets of the links in a line.
fn links(line: &str) -> Vec<&str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.trim_matches(['<', '>']))
        .collect()
}

/// Anchors of a page's headings, as mdBook and forges make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(page).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let id: String = line
                .trim_start_matches('#')
                .trim()
                .chars()
                .filter_map(|letter| match letter {
                    ' ' => Some('-'),
                    '-' | '_' => Some(letter),
                    _ if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
                    _ => None,
                })
                .collect();
            let count = seen.entry(id.clone()).or_default();
            *count += 1;
            if *count == 1 { id } else { format!("{id}-{}", *count - 1) }
        })
        .collect()
}

/// What is wrong with a link of a page.
fn fault(page: &Path, target: &str, book: Option<&BTreeSet<PathBuf>>) -> Option<String> {
    if target.starts_with("https://") || target.starts_with("http://") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let file = if path.is_empty() { page.to_owned() } else { page.parent().unwrap().join(path) };
    let Ok(file) = file.canonicalize() else { return Some("does not exist".to_owned()) };
    let is_page = file.extension().is_some_and(|ending| ending == "md");
    if let Some(pages) = book {
        if !file.starts_with(root().join("docs")) {
            return Some("leads out of the book".to_owned());
        }
        if is_page && !pages.contains(&file) {
            return Some("is no page of the book".to_owned());
        }
    }
    let has_anchor = || is_page && anchors(&read(&file)).contains(anchor);
    if !anchor.is_empty() && !has_anchor() {
        return Some(format!("has no heading #{anchor}"));
    }
    None
}

#[test]
fn every_page_is_in_the_summary_and_every_link_leads_somewhere() {
    let docs = root().join("docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let listed: Vec<PathBuf> =
        summary.lines().flat_map(links).map(|link| docs.join(link)).collect();
    let pages: BTreeSet<PathBuf> = listed.iter().cloned().collect();
    assert_eq!(pages.len(), listed.len(), "a page is listed twice");
    let mut there = files_below(&docs, ".md");
    assert!(there.remove(&docs.join("SUMMARY.md")));
    assert_eq!(pages, there);
    // mdBook writes PAGE.html, over a file of that name.
    for page in &pages {
        assert!(!page.with_extension("html").exists(), "{}", page.display());
    }
    let book = read(&docs.join("book.toml"));
    assert!(book.contains("src = \".\""), "{book}");

    let mut faults = Vec::new();
    let mut check = |page: &Path, book: Option<&BTreeSet<PathBuf>>| {
        let text = read(page);
        for target in prose(&text).flat_map(links) {
            if let Some(fault) = fault(page, target, book) {
                faults.push(format!("{}: {target} {fault}", page.display()));
            }
        }
    };
    for page in &pages {
        check(page, Some(&pages));
    }
    for page in OTHERS {
        check(&root().join(page), None);
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Words in backticks.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    prose(page).flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn tests_and_metrics_of_the_production_readiness_page_exist() {
    let page = read(&root().join("docs/production.md"));
    for number in ["P23", "P24", "P25"] {
        assert!(page.contains(&format!("## {number}: ")), "{number}");
    }
    let mut sources = String::new();
    for file in ["src", "tests"].map(|folder| files_below(&root().join(folder), ".rs")) {
        file.iter().for_each(|file| sources.push_str(&read(file)));
    }
    let is_word = |word: &str| {
        word.len() > 15
            && word.contains('_')
            && word.bytes().all(|byte| byte.is_ascii_lowercase() || b"_0123456789".contains(&byte))
    };
    let words: BTreeSet<&str> = quoted(&page).filter(|word| is_word(word)).collect();
    assert!(words.len() > 25, "{words:?}");
    let is_metric = |word: &str| word.starts_with("ferrokube_") || word.starts_with("apiserver_");
    let missing: Vec<&&str> = words
        .iter()
        .filter(|word| {
            if is_metric(word) {
                // The writer of the format appends it, as it does units.
                let registered = word.trim_end_matches("_total").trim_end_matches("_seconds");
                !sources.contains(&format!("\"{registered}"))
            } else {
                !sources.contains(&format!("fn {word}("))
            }
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Help of the command that a line calls, by the words after `ferrokube`.
fn help(words: &[&str]) -> Option<String> {
    let is_name = |word: &&&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let commands: Vec<&&str> =
        words.iter().take_while(|word| is_name(word) && !word.starts_with('-')).collect();
    // A subcommand of a command comes before an argument in lower case.
    (1..=commands.len()).rev().find_map(|count| {
        let mut command = Command::new(FERROKUBE);
        let output =
            command.args(&words[..count]).arg("--help").env_remove("RUST_LOG").output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    })
}

/// Each `ferrokube COMMAND --flag` in a block of code of the documentation.
#[test]
fn commands_in_the_documentation_have_their_flags() {
    let mut pages = files_below(&root().join("docs"), ".md");
    pages.extend(OTHERS.map(|page| root().join(page)));
    let (mut checked, mut wrong) = (0, Vec::new());
    let mut helps: BTreeMap<Vec<&str>, Option<String>> = BTreeMap::new();
    let texts: Vec<(PathBuf, String)> =
        pages.into_iter().map(|page| (page.clone(), read(&page))).collect();
    for (page, text) in &texts {
        let joined = code(text);
        for line in joined {
            let line = line.split('#').next().unwrap_or_default();
            for part in line.split(['|', ';', '&', '(', ')']) {
                let words: Vec<&str> = part.split_whitespace().collect();
                let is_ours = |word: &str| {
                    matches!(word, "ferrokube" | "./ferrokube" | "target/release/ferrokube")
                };
                // At the start, or after `runuser -u USER --`: elsewhere it is an argument.
                let is_start = |at: usize| at == 0 || matches!(words[at - 1], "--" | "sudo");
                let starts = (0..words.len()).find(|at| is_ours(words[*at]) && is_start(*at));
                let Some(start) = starts else { continue };
                let called = &words[start + 1..];
                let flags: Vec<&str> = called
                    .iter()
                    .filter(|word| word.starts_with("--") && word.len() > 2)
                    .map(|word| word.split('=').next().unwrap())
                    .collect();
                let name: Vec<&str> =
                    called.iter().copied().take_while(|word| !word.starts_with('-')).collect();
                if name.is_empty() {
                    continue;
                }
                checked += 1;
                let help = helps.entry(name.clone()).or_insert_with(|| help(&name));
                let unknown = |flag: &&&str| {
                    !help.as_ref().is_some_and(|help| {
                        help.split(|letter: char| letter.is_whitespace() || "[=,<".contains(letter))
                            .any(|word| word == **flag)
                    })
                };
                if help.is_none() || flags.iter().any(|flag| unknown(&flag)) {
                    wrong.push(format!("{}: {part}", page.display()));
                }
            }
        }
    }
    assert!(checked > 40, "{checked}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
