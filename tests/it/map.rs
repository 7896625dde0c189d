//! ARCHITECTURE.md and CONTRIBUTING.md name only files and directories that exist; the README and
//! the crates' headers say what they must.

use std::fs;
use std::path::Path;

const PAGES: [&str; 2] = ["ARCHITECTURE.md", "CONTRIBUTING.md"];
const EXTENSIONS: [&str; 6] = [".rs", ".md", ".tsv", ".txt", ".py", "/"];

/// All files and directories (with a slash at the end), without the `src/` of crates.
fn tree(directory: &Path, name: &str, into: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let own = entry.file_name().into_string().unwrap();
        if matches!(own.as_str(), "target" | ".git" | "node_modules") {
            continue;
        }
        let path = format!("{name}/{own}");
        if entry.path().is_dir() {
            tree(&entry.path(), &path, into);
            into.push(format!("{path}/"));
        } else {
            into.push(path);
        }
    }
}

/// Words in backticks or code blocks that look like paths.
fn paths(page: &str) -> Vec<&str> {
    let is_end = |letter: char| letter.is_whitespace() || "`(),:;".contains(letter);
    page.split(is_end)
        .filter(|word| word.len() > 1 && EXTENSIONS.iter().any(|end| word.ends_with(end)))
        .filter(|word| !word.contains(['<', '*', '[', '$']) && !word.starts_with(['/', '.']))
        .collect()
}

#[test]
fn every_path_on_the_map_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tree_paths = Vec::new();
    tree(root, "", &mut tree_paths);
    let short: Vec<String> =
        tree_paths.iter().map(|path| path.replacen("/src/", "/", 2).replace("//", "/")).collect();
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).unwrap();
        let named = paths(&text);
        assert!(named.len() > 5, "{page} names {named:?}");
        let is_there = |path: &&str| {
            let end = format!("/{path}");
            tree_paths.iter().chain(&short).any(|known| known.ends_with(&end))
        };
        let missing: Vec<&str> = named.into_iter().filter(|path| !is_there(path)).collect();
        assert!(missing.is_empty(), "{page} names what does not exist: {missing:?}");
    }
}

/// A newcomer reads all of it.
#[test]
fn the_readme_is_below_900_words() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let words = text.split_whitespace().count();
    assert!((500..900).contains(&words), "{words} words");
}

#[test]
fn every_crate_says_what_it_must_not_know_and_where_to_start() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib");
    let missing: Vec<String> = fs::read_dir(crates)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("src/lib.rs"))
        .filter(|path| {
            let text = fs::read_to_string(path).unwrap();
            let header: Vec<&str> =
                text.lines().map_while(|line| line.strip_prefix("//!")).collect();
            let header = header.join("");
            let is_bounded =
                ["Must never", "Pure: knows no"].iter().any(|text| header.contains(text));
            !is_bounded || !header.contains(" Start ")
        })
        .map(|path| path.display().to_string())
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}
