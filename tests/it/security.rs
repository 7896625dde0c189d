//! `docs/security.md` names only limits that there are.

use std::fs;
use std::path::Path;

#[test]
fn every_limit_of_the_security_page_is_in_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let limits = page.split("## Limits").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut rows = 0;
    for row in limits.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what")) {
        let place = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let [file, name] = place.split(' ').map(|word| word.trim_matches('`')).collect::<Vec<_>>()[..] else { panic!("{row}") };
        let text = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let words = |line: &str| line.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).any(|word| word == name);
        assert!(text.lines().any(words), "{file} has no {name}");
        rows += 1;
    }
    assert!(rows > 30, "{rows}");
}
