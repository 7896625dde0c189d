//! Keeps the tables of flags in `docs/configuration.md` in sync with the flags.

use super::{Cli, OTHERS, ROLE_NAMES};
use clap::{Arg, ArgAction, CommandFactory};
use std::collections::{BTreeSet, HashSet};
use std::fmt::Write;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
/// Everything after this line is generated.
const MARK: &str =
    "<!-- Generated: FERROKUBE_UPDATE_DOCS=1 cargo test --bin ferrokube documented -->\n";

/// Commands without a table.
const LEFT_OUT: [&str; 4] = ["feature-admin", "version", "completions", "help"];

/// Tables for every role; flags that a role shares with `all-in-one` are listed there only.
fn reference() -> String {
    let mut command = Cli::command();
    command.build();
    let mut text = String::new();
    let mut shared = HashSet::new();
    let names = ROLE_NAMES.iter().chain(&OTHERS).filter(|name| !LEFT_OUT.contains(name));
    for name in names {
        let role = command.find_subcommand(name).expect("a role");
        let _ = write!(text, "\n## {name}\n");
        let base = match *name {
            "apiserver" => Some("`all-in-one` that concern no controllers"),
            "doctor" => Some("`apiserver`, of which it takes those of the server to check"),
            "envtest-apiserver" => Some("`apiserver`, `--controllers`"),
            _ => None,
        };
        if let Some(base) = base {
            let _ = write!(text, "\nThe flags of {base}, and these:\n");
        }
        let flags: Vec<_> = role
            .get_arguments()
            .filter(|flag| {
                !flag.is_hide_set()
                    && !matches!(flag.get_action(), ArgAction::Help | ArgAction::Version)
            })
            .collect();
        let new: Vec<_> = flags
            .iter()
            .copied()
            .filter(|flag| base.is_none() || !shared.contains(&cells(flag)))
            .collect();
        tables(&mut text, &new);
        if matches!(*name, "all-in-one" | "apiserver") {
            shared.extend(flags.into_iter().map(cells));
        }
    }
    text
}

/// One table for each help heading, in the order of the help.
fn tables(text: &mut String, flags: &[&Arg]) {
    let mut seen = BTreeSet::new();
    let headings = flags
        .iter()
        .map(|flag| flag.get_help_heading().unwrap_or_default())
        .filter(|heading| seen.insert(*heading));
    for heading in headings.collect::<Vec<_>>() {
        if !heading.is_empty() {
            let _ = write!(text, "\n### {heading}\n");
        }
        text.push_str("\n| flag | default | meaning |\n|---|---|---|\n");
        for flag in
            flags.iter().filter(|flag| flag.get_help_heading().unwrap_or_default() == heading)
        {
            let [name, default, meaning] = cells(flag);
            let _ = writeln!(text, "| {name} | {default} | {meaning} |");
        }
    }
}

fn cells(flag: &Arg) -> [String; 3] {
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let (meaning, default) = help
        .split_once("[default:")
        .map_or((help.as_str(), ""), |(meaning, default)| (meaning, default.trim_end_matches(']')));
    let given = flag
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(", ");
    let is_switch = !flag.get_action().takes_values();
    let default =
        if !default.is_empty() || given.is_empty() || is_switch { escape(default) } else { given };
    [format!("`{}`", escape(&spelled(flag, is_switch))), default, escape(meaning)]
}

fn spelled(flag: &Arg, is_switch: bool) -> String {
    let names = flag
        .get_value_names()
        .unwrap_or_default()
        .iter()
        .map(|name| name.as_str())
        .collect::<Vec<_>>()
        .join(" ");
    let choices = flag
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect::<Vec<_>>();
    let value = if choices.len() > 1 { choices.join("|") } else { names };
    match (flag.get_short(), flag.get_long()) {
        (_, None) => value,
        (Some(short), Some(long)) if is_switch => format!("-{short}, --{long}"),
        (Some(short), Some(long)) => format!("-{short}, --{long} {value}"),
        (None, Some(long)) if is_switch => format!("--{long}"),
        (None, Some(long)) => format!("--{long} {value}"),
    }
}

/// Escapes text for a table cell.
fn escape(text: &str) -> String {
    text.trim().replace('|', "\\|").replace(['\n', '\r'], " ")
}

#[test]
fn the_documented_flags_are_those_that_exist() {
    let document = std::fs::read_to_string(PATH).expect("docs/configuration.md");
    let (head, tables) = document.split_once(MARK).expect("the mark of the generated part");
    let expected = reference();
    if std::env::var_os("FERROKUBE_UPDATE_DOCS").is_some() {
        std::fs::write(PATH, format!("{head}{MARK}{expected}")).expect("docs/configuration.md");
        return;
    }
    let command = MARK.trim().trim_start_matches("<!-- Generated: ").trim_end_matches(" -->");
    assert_eq!(tables, expected, "docs/configuration.md is out of date: run `{command}`");
}
