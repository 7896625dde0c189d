//! `docs/faults.md`: every known fault has its line, and every test that it names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const ROWS: usize = 62;

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            into.push(path);
        }
    }
}

/// The names of all functions in the tree, Rust and Python.
fn functions() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for directory in ["src", "tests"] {
        sources(&root.join(directory), &mut files);
    }
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let is_name = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
        let keyword = if file.extension().is_some_and(|extension| extension == "py") { "def " } else { "fn " };
        names.extend(text.split(keyword).skip(1).filter_map(|rest| rest.split(is_name).next()).map(str::to_owned));
    }
    names
}

#[test]
fn every_fault_has_its_line_and_every_test_named_there_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/faults.md")).unwrap();
    let functions = functions();
    let mut seen = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("| ") && line[2..].starts_with(|letter: char| letter.is_ascii_digit())) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [number, fault, tests, rest] = cells[..] else { panic!("not four cells: {line}") };
        assert!(seen.insert(number.parse::<usize>().unwrap()), "row {number} is there twice");
        assert!(!(fault.is_empty() || tests.is_empty() && rest.is_empty()), "row {number} names neither a test nor a reason");
        for name in tests.split('`').skip(1).step_by(2) {
            let exists = if name.contains('/') { root.join(name).exists() } else { functions.contains(name) };
            assert!(exists, "row {number} names {name}, which does not exist");
        }
    }
    assert_eq!(seen, (1..=ROWS).collect(), "every row once");
}
