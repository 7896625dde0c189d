//! `docs/faults.md` and `docs/*-tests.md`: every fault and requirement has a row, and every test in
//! them exists.

use std::collections::{BTreeMap, BTreeSet};
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

/// Rust functions under a test attribute, and cases of the storage engines' suite.
fn rust_tests(text: &str) -> Vec<String> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
        } else if !line.is_empty() && !line.starts_with("//") {
            let rest = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
            let case = line.strip_prefix("ANY ").or(line.strip_prefix("LOCAL "));
            let case = case.and_then(|case| Some(case.split_once("::")?.1));
            names.extend(rest.filter(|_| is_test).or(case).map(name_at_start));
            is_test = false;
        }
    }
    names
}

fn name_at_start(text: &str) -> String {
    let is_end = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    text.split(is_end).next().unwrap_or_default().to_owned()
}

#[test]
fn only_functions_under_a_test_attribute_are_tests() {
    let text = "#[test]\nfn a() {}\nfn b() {}\n#[tokio::test(start_paused = true)]\n\
                // Why.\nasync fn c() {}\n#[test]\nconst D: u8 = 1;\nfn e() {}\nANY reads::f 4096;";
    assert_eq!(rust_tests(text), ["a", "c", "f"]);
}

/// All tests in the tree: Rust ones, and functions in Python.
fn all_tests() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for directory in ["src", "tests"] {
        sources(&root.join(directory), &mut files);
    }
    let mut names = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        if file.extension().is_some_and(|extension| extension == "py") {
            names.extend(text.split("def ").skip(1).map(name_at_start));
        } else {
            names.extend(rust_tests(&text));
        }
    }
    names
}

/// A test of a fault and its row: of `fault_07_no_space`, 7.
fn row_of(name: &str) -> Option<usize> {
    name.strip_prefix("fault_")?.split('_').next()?.parse().ok()
}

/// Checks a table of four columns (row, what, tests, rest): the tests of each row.
fn checked_rows(table: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join(table)).unwrap();
    let tests_there = all_tests();
    let mut seen = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| #")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [row, what, tests, rest] = cells[..] else { panic!("not four cells: {line}") };
        assert!(
            !(what.is_empty() || tests.is_empty() && rest.is_empty()),
            "row {row} names neither a test nor a reason"
        );
        for name in tests.split('`').skip(1).step_by(2) {
            let exists = if name.contains('/') {
                root.join(name).exists()
            } else {
                tests_there.contains(name)
            };
            assert!(exists, "row {row} names {name}, which does not exist");
        }
        let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(seen.insert(row.to_owned(), tests).is_none(), "row {row} is there twice");
    }
    seen
}

#[test]
fn every_fault_has_a_row_and_its_tests_exist() {
    let rows = checked_rows("docs/faults.md");
    let wanted: BTreeSet<String> = (1..=ROWS).map(|row| row.to_string()).collect();
    assert_eq!(rows.keys().cloned().collect::<BTreeSet<_>>(), wanted, "every row once");
    let unnamed: Vec<String> = all_tests()
        .into_iter()
        .filter_map(|name| Some((row_of(&name)?.to_string(), name)))
        .filter(|(row, name)| !rows.get(row).is_some_and(|tests| tests.contains(name)))
        .map(|(_, name)| name)
        .collect();
    assert!(unnamed.is_empty(), "docs/faults.md does not name in their rows: {unnamed:?}");
}

#[test]
fn every_log_tracking_requirement_has_a_row_and_its_tests_exist() {
    let seen: BTreeSet<String> = checked_rows("docs/log-tracking-tests.md").into_keys().collect();
    let numbered = |letter: char, count: u32| (1..=count).map(move |row| format!("{letter}{row}"));
    let requirements = (1..=38).map(|row| format!("L{row:02}"));
    // The testable answers of the questionnaire.
    let answers = ["P02", "P04", "P10", "P24"].map(str::to_owned);
    let wanted: BTreeSet<String> = requirements
        .chain(numbered('D', 6))
        .chain(numbered('B', 9))
        .chain(answers)
        .chain(numbered('M', 5))
        .collect();
    assert_eq!(
        seen, wanted,
        "every requirement, decision, bad input, answer and limit has its line, and no other is there"
    );
}

#[test]
fn every_image_pull_requirement_has_a_row_a_test_and_a_fact() {
    let rows = checked_rows("docs/kubelet-tests.md");
    every_row_is_whole("docs/kubelet-tests.md", &rows);
    let seen: BTreeSet<String> = rows.into_keys().collect();
    let requirements = (1..=18).map(|row| format!("I{row:02}"));
    let wanted: BTreeSet<String> =
        requirements.chain((7..=11).map(|row| format!("D{row}"))).collect();
    assert_eq!(seen, wanted, "every requirement and decision has its line, and no other is there");
}

#[test]
fn every_requirement_of_control_planes_has_a_row_and_its_tests_exist() {
    let seen: BTreeSet<String> = checked_rows("docs/control-plane-tests.md").into_keys().collect();
    let numbered =
        |(letter, count): (char, u32)| (1..=count).map(move |row| format!("{letter}{row:02}"));
    let counts = [('G', 16), ('W', 13), ('V', 10), ('A', 8), ('S', 9)];
    let wanted: BTreeSet<String> = counts.into_iter().flat_map(numbered).collect();
    assert_eq!(seen, wanted, "every requirement has its line, and no other is there");
}

#[test]
fn every_feature_requirement_has_a_row_a_test_and_a_fact() {
    let rows = checked_rows("docs/features-tests.md");
    let requirements = (1..=40).map(|row| format!("F{row:02}"));
    let decisions = (12..=15).map(|row| format!("D{row}"));
    let numbered =
        |letter: char, count: u32| (1..=count).map(move |row| format!("{letter}{row:02}"));
    let others = numbered('P', 30).chain(numbered('B', 11)).chain(numbered('M', 2));
    let wanted: BTreeSet<String> = requirements.chain(decisions).chain(others).collect();
    assert_eq!(rows.keys().cloned().collect::<BTreeSet<_>>(), wanted, "every requirement once");
    every_row_is_whole("docs/features-tests.md", &rows);
}

/// Every row of a table names a test, and says what it asserts.
fn every_row_is_whole(table: &str, rows: &BTreeMap<String, BTreeSet<String>>) {
    let untested: Vec<&String> =
        rows.iter().filter(|(_, tests)| tests.is_empty()).map(|(row, _)| row).collect();
    assert!(untested.is_empty(), "no test of {untested:?}");
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(table)).unwrap();
    let silent: Vec<&str> =
        text.lines().filter(|line| line.starts_with("| ") && line.ends_with("| |")).collect();
    assert!(silent.is_empty(), "no fact in {silent:?}");
}

#[test]
fn every_requirement_of_state_in_etcd_has_a_row_a_test_and_a_fact() {
    let rows = checked_rows("docs/etcd-tests.md");
    let numbered =
        |letter: char, count: u32| (1..=count).map(move |row| format!("{letter}{row:02}"));
    let wanted: BTreeSet<String> = numbered('E', 18).chain(numbered('B', 7)).collect();
    assert_eq!(rows.keys().cloned().collect::<BTreeSet<_>>(), wanted, "every requirement once");
    every_row_is_whole("docs/etcd-tests.md", &rows);
}
