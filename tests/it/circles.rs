//! Circles of files within a crate stay small: a newcomer who starts to read at any file of a
//! circle has to read all of it.
//!
//! A file uses another one if it names something in it, by `use` or by a path. A name that a
//! module re-exports is looked up where it is defined. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Files of the largest circle.
const LARGEST: usize = 5;

/// A module's path: `["verbs", "watch"]`; empty for `lib.rs`.
type ModulePath = Vec<String>;

struct Module {
    /// Source without comments, texts and tests.
    source: String,
    /// Imported names, with the paths that they stand for.
    imports: BTreeMap<String, Vec<ModulePath>>,
}

type Modules = BTreeMap<ModulePath, Module>;

/// Source without comments, texts and unit tests.
fn stripped(text: &str) -> String {
    let shipped = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut out = String::new();
    let mut letters = shipped.chars().peekable();
    let mut before = ' ';
    while let Some(letter) = letters.next() {
        match letter {
            '/' if letters.peek() == Some(&'/') => {
                letters.by_ref().find(|next| *next == '\n');
                out.push('\n');
            }
            '"' if before != '\'' => {
                while let Some(inner) = letters.next() {
                    match inner {
                        '\\' => _ = letters.next(),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            _ => out.push(letter),
        }
        before = letter;
    }
    out
}

/// The paths in a tree such as `a::{b::C, d as e}`, each with the name that it gets.
fn expanded(tree: &str, prefix: &[String], into: &mut Vec<(String, ModulePath)>) {
    let tree = tree.trim();
    if let Some((start, rest)) = tree.split_once('{') {
        let mut path = prefix.to_vec();
        path.extend(segments(start));
        let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
        let (mut depth, mut from) = (0, 0);
        for (at, letter) in inner.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expanded(&inner[from..at], &path, into);
                    from = at + 1;
                }
                _ => {}
            }
        }
        expanded(&inner[from..], &path, into);
        return;
    }
    let (tree, alias) = match tree.split_once(" as ") {
        Some((tree, alias)) => (tree, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let mut path = prefix.to_vec();
    path.extend(segments(tree));
    if path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    if let Some(last) = path.last().cloned() {
        into.push((alias.unwrap_or(last), path));
    }
}

fn segments(path: &str) -> impl Iterator<Item = String> {
    path.split("::").map(|segment| segment.trim().to_owned()).filter(|segment| !segment.is_empty())
}

/// The trees of all `use` declarations.
fn declarations(source: &str) -> Vec<&str> {
    let starts = source.match_indices("use ").filter(|(at, _)| {
        let before = source[..*at].trim_end_matches(' ');
        before.is_empty() || before.ends_with(['\n', ';', '{', '}', ')']) || before.ends_with("pub")
    });
    starts
        .filter_map(|(at, word)| source[at + word.len()..].split(';').next())
        .filter(|tree| !tree.contains("=>"))
        .collect()
}

fn load(directory: &Path, module: &ModulePath, modules: &mut Modules) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut child = module.clone();
        if !["lib", "mod"].contains(&name.as_str()) {
            child.push(name.clone());
        }
        if path.is_dir() {
            load(&path, &child, modules);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !["tests", "fuzz", "oracle"].contains(&name.as_str())
        {
            let source = stripped(&fs::read_to_string(&path).unwrap());
            let mut found = Vec::new();
            for tree in declarations(&source) {
                expanded(tree, &[], &mut found);
            }
            let mut imports: BTreeMap<String, Vec<ModulePath>> = BTreeMap::new();
            for (name, path) in found {
                imports.entry(name).or_default().push(path);
            }
            modules.insert(child, Module { source, imports });
        }
    }
}

/// Whether a source defines an item of this name.
fn defines(source: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 8] =
        ["struct ", "enum ", "trait ", "type ", "fn ", "const ", "static ", "macro_rules! "];
    source.match_indices(name).any(|(at, _)| {
        let is_whole = !source[at + name.len()..]
            .starts_with(|next: char| next.is_alphanumeric() || next == '_');
        is_whole && KEYWORDS.iter().any(|keyword| source[..at].ends_with(keyword))
    })
}

/// The module that defines what `path` names in module `from`; `None` outside of the crate.
fn resolve(
    modules: &Modules,
    from: &[String],
    path: &[String],
    depth: usize,
) -> Option<ModulePath> {
    let (first, mut rest) = path.split_first()?;
    if depth > 12 {
        return None;
    }
    let mut at = from.to_vec();
    match first.as_str() {
        "crate" => at.clear(),
        "self" => {}
        "super" => _ = at.pop(),
        _ => {
            let mut child = at.clone();
            child.push(first.clone());
            if !modules.contains_key(&child) {
                let known = modules.get(&at)?.imports.get(first)?;
                return known.iter().filter(|known| known.as_slice() != path).find_map(|known| {
                    resolve(modules, &at, &[known.as_slice(), rest].concat(), depth + 1)
                });
            }
            rest = path;
        }
    }
    while let Some((next, after)) = rest.split_first() {
        let mut child = at.clone();
        child.push(next.clone());
        if next == "super" {
            at.pop();
        } else if modules.contains_key(&child) {
            at = child;
        } else {
            break;
        }
        rest = after;
    }
    let module = modules.get(&at)?;
    if let Some((name, after)) = rest.split_first()
        && !defines(&module.source, name)
        && let Some(known) = module.imports.get(name)
    {
        let found = known.iter().find_map(|known| {
            resolve(modules, &at, &[known.as_slice(), after].concat(), depth + 1)
        });
        return found.or(Some(at));
    }
    Some(at)
}

/// Modules by those that they use.
fn uses(modules: &Modules) -> BTreeMap<&ModulePath, BTreeSet<ModulePath>> {
    let is_path = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let mut uses = BTreeMap::new();
    for (name, module) in modules {
        let mut paths: Vec<ModulePath> = Vec::new();
        let mut body = module.source.clone();
        for tree in declarations(&module.source) {
            body = body.replace(tree, "");
            let is_public = module.source.contains(&format!("pub use {tree}"))
                || module.source.contains(&format!(") use {tree}"));
            if !is_public {
                let mut found = Vec::new();
                expanded(tree, &[], &mut found);
                paths.extend(found.into_iter().map(|(_, path)| path));
            }
        }
        let words = body.split(|letter| !is_path(letter)).filter(|word| word.contains("::"));
        paths.extend(words.map(|word| segments(word).collect()));
        let used = paths.iter().filter_map(|path| resolve(modules, name, path, 0));
        uses.insert(name, used.filter(|used| used != name).collect());
    }
    uses
}

/// The modules that a module uses, directly or not.
fn reachable(
    uses: &BTreeMap<&ModulePath, BTreeSet<ModulePath>>,
    from: &ModulePath,
) -> BTreeSet<ModulePath> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&ModulePath> = vec![from];
    while let Some(module) = next.pop() {
        for used in uses.get(module).into_iter().flatten() {
            if reached.insert(used.clone()) {
                next.push(used);
            }
        }
    }
    reached
}

/// The largest circle of a crate.
fn largest_circle(modules: &Modules) -> Vec<ModulePath> {
    let uses = uses(modules);
    let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
        modules.keys().map(|module| (module, reachable(&uses, module))).collect();
    let circles = modules.keys().map(|module| {
        let is_back =
            |other: &&ModulePath| reached.get(*other).is_some_and(|back| back.contains(module));
        reached[module].iter().filter(is_back).cloned().collect::<Vec<_>>()
    });
    circles.max_by_key(Vec::len).unwrap_or_default()
}

#[test]
fn circles_of_files_stay_small() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut modules = Modules::new();
        load(&path.join("src"), &Vec::new(), &mut modules);
        let circle = largest_circle(&modules);
        if circle.len() > LARGEST {
            let files: Vec<String> = circle.iter().map(|module| module.join("/")).collect();
            wrong.push(format!("{name}: {} files: {}", circle.len(), files.join(" ")));
        }
    }
    assert!(
        wrong.is_empty(),
        "cut a circle, or move what it shares to a file of its own: {wrong:#?}"
    );
}

#[test]
fn a_circle_is_found_through_imports_and_paths() {
    let module = |source: &str| {
        let source = stripped(source);
        let mut found = Vec::new();
        for tree in declarations(&source) {
            expanded(tree, &[], &mut found);
        }
        let mut imports: BTreeMap<String, Vec<ModulePath>> = BTreeMap::new();
        for (name, path) in found {
            imports.entry(name).or_default().push(path);
        }
        Module { source, imports }
    };
    let at = |name: &str| -> ModulePath { segments(name).collect() };
    let mut modules = Modules::from([
        (at(""), module("mod a;\nmod b;\nmod c;\npub use c::Shared;\n")),
        (at("a"), module("use crate::b::{self, Other as Alias};\nstruct Own;\n")),
        (at("b"), module("struct Other;\nfn run() -> crate::Shared { todo() }\n")),
        (at("c"), module("// use crate::a::Own;\nstruct Shared(super::a::Own);\n")),
    ]);
    assert_eq!(largest_circle(&modules).len(), 3, "a, b, c: by an import, a re-export and a path");
    modules.insert(at("c"), module("struct Shared;\n"));
    assert_eq!(largest_circle(&modules).len(), 0);
}
