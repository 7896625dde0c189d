//! Language and names: no banned phrases, no type name with two meanings, no comment that only
//! repeats a name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Checked files and directories.
const CLEAN: &[&str] = &[
    ".ci",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "benches",
    "clients",
    "deploy",
    "docs",
    "examples",
    "src",
    "tests",
];

/// Banned phrases with the words to use instead. Matched as whole words in any case, also across
/// the lines of a comment.
const PHRASES: &[(&str, &str)] = &[
    ("anew", "again"),
    ("beside", "next to, alongside, with"),
    ("design section", "name the thing itself"),
    ("for ever", "forever, never resolves"),
    ("goes on trying", "retrying"),
    ("is told", "is returned, is logged"),
    ("are told", "are returned, are logged"),
    ("was told", "was returned, was logged"),
    ("its issue", "name the thing itself"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("namesake", "kube-apiserver"),
    ("so many", "the number, at most, max"),
    ("somebody", "name the party"),
    ("somebody else converts", "conversion webhook"),
    ("who asks", "caller"),
];

/// Banned in shipped code and documents; test code may use them.
const SHIPPED_PHRASES: &[(&str, &str)] = &[
    ("again and again", "repeatedly"),
    ("all the same", "still, anyway"),
    ("any more", "no longer"),
    ("anybody", "any client, any user"),
    ("at last", "finally"),
    ("between looks", "interval"),
    ("between two looks", "interval"),
    ("called back", "revoked"),
    ("calls back", "revokes"),
    ("everybody", "all users, all callers"),
    ("go on", "continue, keep"),
    ("goes on", "continues, keeps"),
    ("how late", "the delay"),
    ("in the words of", "with the messages of"),
    ("kube-apiserver's words", "kube-apiserver's message"),
    ("kubelet's words", "kubelet's message"),
    ("look at", "read, check"),
    ("looked at", "read, checked"),
    ("looking at", "reading, checking"),
    ("looks at", "reads, checks"),
    ("nobody", "no caller, no user, or name the party"),
    ("now and then", "occasionally"),
    ("one after the other", "in sequence, in order"),
    ("other side", "peer"),
    ("short of", "under pressure, low on, out of"),
    ("take part", "participate"),
    ("takes part", "participates"),
    ("under way", "in flight, running"),
    ("went on", "continued"),
    ("what is there", "existing"),
    ("what there is", "name it"),
    ("whoever", "a user that, any client that"),
];

/// Type names that do not say what the type is.
const VAGUE_TYPES: &[&str] = &[
    "Answer", "Found", "Held", "Kept", "Part", "Parts", "Piece", "Place", "Plan", "Row", "Seen",
    "Shape", "Sink", "Step", "Thing", "Told", "Wanted",
];

/// Type names that several checked files may share, each with the reason.
const SHARED_TYPES: &[(&str, &str)] = &[
    ("Body", "of an HTTP message, and of a parsed request"),
    ("Failure", "of a request, and of a CEL expression"),
    ("Map", "of JSON, and of CEL"),
    ("Request", "of HTTP, and with its caller"),
    ("Text", "of JSON, and of CEL"),
    ("Ticket", "of an example's shows, and of a submitted transaction"),
    ("Value", "of JSON, and of CEL"),
];

/// Not checked, since it lists the phrases.
const THIS_FILE: &str = "tests/it/language.rs";

/// Endings of checked files. Scripts have none.
const EXTENSIONS: &[&str] = &[
    "conf", "env", "html", "js", "md", "py", "rs", "service", "sh", "target", "timer", "toml",
    "tpl", "tsv", "txt", "yaml",
];

fn is_script(path: &Path) -> bool {
    path.extension().is_none() && fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"#!"))
}

struct CleanFile {
    name: String,
    text: String,
}

fn clean_files() -> Vec<CleanFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<PathBuf> = CLEAN.iter().map(|clean| root.join(clean)).collect();
    let mut files = Vec::new();
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if !path.ends_with(THIS_FILE)
            && (is_script(&path)
                || path
                    .extension()
                    .is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known)))
        {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            files.push(CleanFile {
                name,
                text: fs::read_to_string(&path)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.display())),
            });
        }
    }
    assert!(files.len() > 100, "only {} files", files.len());
    for script in [".ci/run", "tests/smoke", "tests/parity/run"] {
        assert!(files.iter().any(|file| file.name == script), "{script} is not checked");
    }
    files
}

/// A line without its indentation and comment marker.
fn prose(line: &str) -> &str {
    let line = line.trim();
    ["///", "//!", "//", "#"]
        .iter()
        .find_map(|marker| line.strip_prefix(marker))
        .map_or(line, str::trim_start)
}

/// Whether `text` contains `phrase` as whole words, beginning before byte `end`.
fn contains_words(text: &str, phrase: &str, end: usize) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(phrase).any(|(at, _)| {
        at < end
            && !text[..at].ends_with(is_word)
            && !text[at + phrase.len()..].starts_with(is_word)
    })
}

/// Lines with one of the phrases, as `line number: phrase (replacement)`.
fn banned_phrases(text: &str, phrases: &[(&str, &str)]) -> Vec<String> {
    let lines: Vec<String> = text.lines().map(|line| prose(line).to_lowercase()).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let both = format!("{line} {}", lines.get(index + 1).map_or("", String::as_str));
        let banned = phrases.iter().filter(|(phrase, _)| contains_words(&both, phrase, line.len()));
        found
            .extend(banned.map(|(phrase, better)| format!("{}: {phrase:?} ({better})", index + 1)));
    }
    found
}

/// The type that a line declares. Associated types are indented, and not counted.
fn declared_type(line: &str) -> Option<&str> {
    let is_indented = line.starts_with(' ');
    let line = line.trim_start();
    let line = ["pub(crate) ", "pub(super) ", "pub "]
        .iter()
        .find_map(|visibility| line.strip_prefix(visibility))
        .unwrap_or(line);
    let rest = ["struct ", "enum ", "trait ", "union ", "type "].iter().find_map(|keyword| {
        line.strip_prefix(keyword).filter(|_| *keyword != "type " || !is_indented)
    })?;
    let name =
        rest.split(|character: char| !character.is_alphanumeric() && character != '_').next()?;
    name.starts_with(char::is_uppercase).then_some(name)
}

/// Doc comments whose first word is a type of the same file, not in backticks: left by a rename.
fn misplaced_types(text: &str) -> Vec<&str> {
    let types: Vec<&str> = text.lines().filter_map(declared_type).collect();
    let is_compound = |name: &str| name.chars().filter(|letter| letter.is_uppercase()).count() > 1;
    let is_misplaced = |line: &&str| {
        let prose = line.trim_start().strip_prefix("/// ").unwrap_or_default();
        let first = prose.split(' ').next().unwrap_or_default();
        is_compound(first) && types.contains(&first)
    };
    text.lines().filter(is_misplaced).collect()
}

#[test]
fn no_rename_has_changed_prose() {
    let found: Vec<String> = clean_files()
        .iter()
        .filter(|file| file.name.ends_with(".rs"))
        .flat_map(|file| {
            misplaced_types(&file.text).into_iter().map(|line| format!("{}:{line}", file.name))
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// Beginnings in the middle of a sentence.
const FRAGMENTS: &[&str] = &["Of ", "Its "];
/// Clauses in place of a noun, in shipped code.
const CLAUSES: &[&str] = &["What ", "Who ", "Whose "];

/// Doc comments that begin like this, as `line number: comment`. Texts of flags end without a full
/// stop.
fn beginning_with(text: &str, starts: &[&str]) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let is_first = |at: usize| doc(lines[at]) && (at == 0 || !doc(lines[at - 1]));
    let is_sentence = |at: usize| {
        let docs = lines[at..].iter().take_while(|line| doc(line));
        docs.last().is_some_and(|last| last.ends_with('.'))
    };
    let begins = |line: &str| starts.iter().any(|start| prose(line).starts_with(start));
    (0..lines.len())
        .filter(|at| is_first(*at) && begins(lines[*at]) && is_sentence(*at))
        .map(|at| format!("{}: {}", at + 1, lines[at]))
        .collect()
}

#[test]
fn comments_name_their_subject() {
    let found: Vec<String> = clean_files()
        .iter()
        .filter(|file| file.name.ends_with(".rs"))
        .flat_map(|file| {
            let mut found = beginning_with(&file.text, FRAGMENTS);
            if is_shipped(&file) {
                let shipped = file.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
                found.extend(beginning_with(shipped, CLAUSES));
            }
            found.into_iter().map(|found| format!("{}:{found}", file.name)).collect::<Vec<_>>()
        })
        .collect();
    assert!(found.is_empty(), "name the subject: {found:#?}");
}

/// Words that add nothing to a name.
const FILLERS: &[&str] = &[
    "a", "an", "and", "as", "by", "for", "from", "in", "is", "it", "its", "of", "on", "one", "or",
    "that", "the", "this", "to", "with",
];

/// Lower-case words of a text or an identifier, singular.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for letter in text.chars() {
        if !letter.is_alphanumeric() || letter.is_uppercase() && before.is_lowercase() {
            words.push(String::new());
        }
        if letter.is_alphanumeric() {
            words.last_mut().expect("never empty").push(letter.to_ascii_lowercase());
        }
        before = letter;
    }
    words.retain(|word| !word.is_empty());
    let singular = |word: String| match word.strip_suffix('s') {
        Some(one) if word.len() > 3 && !one.ends_with('s') => one.to_owned(),
        _ => word,
    };
    words.into_iter().map(singular).collect()
}

/// Doc sentences whose words are all in the line of the item below, as `line number: comment`.
/// Texts of flags end without a full stop; the spelling of a word of the API is in backticks.
fn echoes(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let docs = lines[at..].iter().take_while(|line| line.starts_with("///")).count();
        if docs == 0 {
            at += 1;
            continue;
        }
        let doc = lines[at..at + docs].iter().map(|line| prose(line)).collect::<Vec<_>>().join(" ");
        let item = lines[at + docs..].iter().find(|line| !line.starts_with(['#', ')', ']']));
        let item = item.map_or("", |item| item.split(['{', '=']).next().unwrap_or_default());
        let known = words(item);
        let said = words(&doc).into_iter().filter(|word| !FILLERS.contains(&word.as_str()));
        let said: Vec<String> = said.collect();
        let is_sentence = doc.ends_with('.') && !(doc.starts_with('`') && doc.ends_with("`."));
        if is_sentence && !said.is_empty() && said.iter().all(|word| known.contains(word)) {
            found.push(format!("{}: {doc}", at + 1));
        }
        at += docs;
    }
    found
}

/// Whether a Rust file is part of the executable.
fn is_shipped(file: &&CleanFile) -> bool {
    file.name.starts_with("src/")
        && file.name.ends_with(".rs")
        && !file.name.contains("/tests/")
        && !file.name.ends_with("/tests.rs")
}

#[test]
fn comments_say_more_than_the_name() {
    let found: Vec<String> = clean_files()
        .iter()
        .filter(is_shipped)
        .flat_map(|file| {
            echoes(&file.text).into_iter().map(|found| format!("{}:{found}", file.name))
        })
        .collect();
    assert!(found.is_empty(), "say unit, range, invariant or reason, or nothing: {found:#?}");
}

#[test]
fn reworked_files_have_no_banned_phrases() {
    let found: Vec<String> = clean_files()
        .iter()
        .flat_map(|file| {
            banned_phrases(&file.text, PHRASES)
                .into_iter()
                .map(|found| format!("{}:{found}", file.name))
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn shipped_files_have_no_clumsy_phrases() {
    let is_document = |file: &&CleanFile| {
        file.name.ends_with(".md")
            || ["clients/", "deploy/"].iter().any(|of| file.name.starts_with(of))
    };
    let found: Vec<String> = clean_files()
        .iter()
        .filter(|file| is_shipped(file) || is_document(file))
        .flat_map(|file| {
            let shipped = file.text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
            banned_phrases(shipped, SHIPPED_PHRASES)
                .into_iter()
                .map(|found| format!("{}:{found}", file.name))
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn type_names_of_reworked_crates_are_unique_and_say_what_they_are() {
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in clean_files().iter().filter(|file| file.name.ends_with(".rs")) {
        for name in file.text.lines().filter_map(declared_type) {
            let files = declared.entry(name.to_owned()).or_default();
            if !files.contains(&file.name) {
                files.push(file.name.clone());
            }
        }
    }
    assert!(declared.len() > 200, "only {} types", declared.len());
    let is_shared = |name: &str| SHARED_TYPES.iter().any(|(shared, _)| *shared == name);
    let repeated: Vec<_> =
        declared.iter().filter(|(name, files)| files.len() > 1 && !is_shared(name)).collect();
    assert!(repeated.is_empty(), "rename, or list in SHARED_TYPES with the reason: {repeated:#?}");
    let outdated: Vec<_> = SHARED_TYPES
        .iter()
        .filter(|(name, _)| declared.get(*name).is_none_or(|files| files.len() < 2))
        .collect();
    assert!(outdated.is_empty(), "no longer shared: {outdated:#?}");
    let vague: Vec<_> =
        declared.iter().filter(|(name, _)| VAGUE_TYPES.contains(&name.as_str())).collect();
    assert!(vague.is_empty(), "say what the type is: {vague:#?}");
}

#[test]
fn the_checks_find_violations_only() {
    assert_eq!(banned_phrases("/// The caller.\n/// Made anew.", PHRASES).len(), 1);
    let split = "/// Holds so\n/// many bytes, which is\n/// told once.";
    assert_eq!(banned_phrases(split, PHRASES).len(), 2);
    let innocent = "let renewed = besides; // amend, recommended, is_told";
    assert_eq!(banned_phrases(innocent, PHRASES).len(), 0);
    assert_eq!(declared_type("    pub(crate) struct Row<'a> {"), Some("Row"));
    assert_eq!(declared_type("pub enum Kind {"), Some("Kind"));
    assert_eq!(declared_type("pub(crate) type Rows = Vec<u8>;"), Some("Rows"));
    assert_eq!(declared_type("    type Item = u8;"), None);
    assert_eq!(declared_type("let structure = 1;"), None);
    assert_eq!(echoes("/// The group.\n#[serde(default)]\npub api_group: String,").len(), 1);
    assert_eq!(echoes("/// Labels of a pod.\nfn pod_label(&self) -> u8 {").len(), 1);
    assert_eq!(echoes("/// `pods`.\nPods,\n/// Group, empty for core.\ngroup: String,").len(), 0);
    assert_eq!(
        echoes("/// Group\n#[arg(long)]\ngroup: String,\n/// Max 5 pods.\npods: u8").len(),
        0
    );
    let fragments = |text: &str| beginning_with(text, FRAGMENTS).len();
    assert_eq!(fragments("/// Of its JSON.\nfn len(&self) -> usize {"), 1);
    assert_eq!(fragments("/// Bytes\n/// Of its JSON.\nfn len(&self) -> usize {"), 0);
    assert_eq!(beginning_with("//! What runs.\n", CLAUSES).len(), 1);
    assert_eq!(beginning_with("    /// Whose it is\n    component: u8,", CLAUSES).len(), 0);
    let renamed = "/// HeldSnapshot snapshots.\nconst MAX: u8 = 1;\nstruct HeldSnapshot;";
    assert_eq!(misplaced_types(renamed).len(), 1);
    assert_eq!(misplaced_types(&renamed.replace("HeldSnapshot s", "Held s")).len(), 0);
}
