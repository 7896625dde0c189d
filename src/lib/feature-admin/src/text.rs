//! Texts of the commands.

use crate::check::{CheckReason, VersionChange};
use crate::report::FeatureReport;
use ferrokube_features::transition::WAIT_FOR_USES;
use serde_json::{Value, json};
use std::fmt::Write;

/// Width of a progress bar.
const BAR: u64 = 30;

/// Columns as wide as their longest cell.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("   ");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// As [`aligned`], or a sentence if there is only the heading.
fn aligned_or(rows: &[Vec<String>], nothing: &str) -> String {
    if rows.len() > 1 { aligned(rows) } else { format!("{nothing}\n") }
}

fn heading(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

pub(crate) fn table(all: &[FeatureReport]) -> String {
    let names = ["NAME", "STATE", "DEFAULT", "SOURCE", "STAGE", "USES", "BLOCKED"];
    let mut rows = vec![heading(&names)];
    rows.extend(all.iter().map(|feature| {
        let uses: Vec<String> = feature.uses.iter().map(|one| one.shown()).collect();
        let blocked = feature.condition("Blocked").is_some_and(|condition| condition.holds);
        let texts = [&feature.default, &feature.source, &feature.stability].map(String::clone);
        let mut row = vec![feature.name.clone(), feature.state_text().to_owned()];
        row.extend(texts);
        row.extend([uses.join(","), if blocked { "yes" } else { "" }.to_owned()]);
        row
    }));
    aligned_or(&rows, "there are no features")
}

/// A page about a feature.
pub(crate) fn description(feature: &FeatureReport) -> String {
    let mut text = format!("{}: {}\n", feature.name, feature.state_text());
    let known = feature.descriptor();
    if let Some(known) = known {
        let _ = writeln!(text, "{}.", known.summary);
    }
    let or_unknown = |text: &str| if text.is_empty() { "unknown" } else { text }.to_owned();
    let configured = format!(
        "{} ({}), {} by default",
        or_unknown(&feature.configured),
        or_unknown(&feature.source),
        or_unknown(&feature.default)
    );
    let stage = format!("{} in {}", or_unknown(&feature.stability), or_unknown(&feature.version));
    let set = if feature.is_settable() {
        format!("feature-admin enable {0}, or disable {0}", feature.name)
    } else {
        let enable = feature.configured != "Enabled";
        feature.flag(enable)
    };
    let mut rows = vec![
        vec!["  Configured".to_owned(), configured],
        vec!["  Stage".to_owned(), stage],
        vec!["  To change it".to_owned(), set],
    ];
    if !feature.desired.is_empty() {
        rows.push(vec!["  Desired".to_owned(), feature.desired.clone()]);
    }
    if let Some(known) = known {
        rows.push(vec!["  Owner".to_owned(), known.owner.to_owned()]);
        let metrics = known.metrics.join(", ");
        rows.push(vec!["  Metrics".to_owned(), metrics]);
    }
    let _ = write!(text, "\n{}", aligned(&rows));
    describe_uses(feature, &mut text);
    describe_transition(feature, &mut text);
    for hindrance in feature.hindrances() {
        let _ = write!(text, "\nBlocked: {}\n  -> {}\n", hindrance.why, hindrance.remedy);
    }
    let rows: Vec<Vec<String>> = feature
        .conditions
        .iter()
        .map(|one| {
            let holds = if one.holds { "yes" } else { "no" };
            vec![format!("  {}", one.kind), holds.to_owned(), one.message.clone()]
        })
        .collect();
    if !rows.is_empty() {
        let _ = write!(text, "\nConditions\n{}", aligned(&rows));
    }
    text
}

fn describe_uses(feature: &FeatureReport, text: &mut String) {
    let _ = write!(text, "\nUsed by\n");
    if feature.uses.is_empty() {
        let _ = writeln!(text, "  no component has reported that it reads the gate");
    }
    let rows: Vec<Vec<String>> = feature
        .uses
        .iter()
        .map(|one| {
            let reporter = if one.reporter.is_empty() { "unknown" } else { &one.reporter };
            let reported = format!("first reported by {reporter} at {}", one.since);
            vec![format!("  components of {}", one.version), one.value().to_owned(), reported]
        })
        .collect();
    text.push_str(&aligned(&rows));
}

fn describe_transition(feature: &FeatureReport, text: &mut String) {
    if !feature.is_turning() {
        return;
    }
    let _ = write!(text, "\nBefore it is {}\n", if turns_on(feature) { "On" } else { "Off" });
    for (at, task) in feature.tasks.iter().enumerate() {
        let done = match feature.progress.filter(|_| at == 0) {
            Some((done, total)) => format!("   {} {done}/{total}", bar(done, total)),
            None => String::new(),
        };
        let _ = writeln!(text, "  {}. {task}{done}", at + 1);
    }
    if let Some(waiting) = feature.waiting() {
        let _ = writeln!(text, "  Now: {waiting}");
    }
}

fn turns_on(feature: &FeatureReport) -> bool {
    feature.state.is_some_and(ferrokube_features::transition::FeatureState::permits_use)
}

pub(crate) fn uses(features: &[FeatureReport]) -> String {
    let mut rows = vec![heading(&["FEATURE", "VERSION", "VALUE", "REPORTER", "SINCE"])];
    for feature in features {
        rows.extend(feature.uses.iter().map(|one| {
            let texts = [&feature.name, &one.version].map(String::clone);
            let [name, version] = texts;
            let value = one.value().to_owned();
            vec![name, version, value, one.reporter.clone(), one.since.clone()]
        }));
    }
    aligned_or(&rows, "no component has reported a value")
}

pub(crate) fn tasks(features: &[FeatureReport]) -> String {
    let mut rows = vec![heading(&["FEATURE", "STATE", "TASK", "DONE"])];
    for feature in features {
        for (at, task) in feature.tasks.iter().enumerate() {
            let done = match feature.progress.filter(|_| at == 0) {
                Some((done, total)) => format!("{done}/{total}"),
                None => String::new(),
            };
            let state = feature.state_text().to_owned();
            rows.push(vec![feature.name.clone(), state, task.clone(), done]);
        }
    }
    aligned_or(&rows, "no feature is in transition")
}

fn bar(done: u64, total: u64) -> String {
    let filled = done.min(total).saturating_mul(BAR).checked_div(total).unwrap_or(0);
    let bar: String = (0..BAR).map(|at| if at < filled { '#' } else { '.' }).collect();
    format!("[{bar}]")
}

/// `LogTracking TurningOff [#####.....] 50/100 ClearAnnotations(..)`
pub(crate) fn progress(feature: &FeatureReport) -> String {
    let (name, state) = (&feature.name, feature.state_text());
    let task = feature.tasks.first().map(String::as_str).unwrap_or_default();
    let blocked = feature.condition("Blocked").filter(|condition| condition.holds);
    let blocked = blocked.map(|one| format!("; blocked: {}", one.message)).unwrap_or_default();
    match feature.progress {
        Some((done, total)) => {
            format!("{name} {state} {} {done}/{total} {task}{blocked}", bar(done, total))
        }
        None if task == WAIT_FOR_USES && !feature.evaluation_ends.is_empty() => {
            format!("{name} {state} {task} until {}{blocked}", feature.evaluation_ends)
        }
        None => format!("{name} {state} {task}{blocked}"),
    }
}

/// The state of a transition, for programs.
pub(crate) fn progress_value(feature: &FeatureReport) -> Value {
    let (done, total) = feature.progress.unzip();
    let blocked = feature.condition("Blocked").filter(|condition| condition.holds);
    json!({
        "feature": feature.name,
        "state": feature.state_text(),
        "tasks": feature.tasks,
        "done": done,
        "total": total,
        "blocked": blocked.map(|condition| condition.message.as_str()),
    })
}

pub(crate) fn verdict(change: VersionChange, reasons: &[CheckReason]) -> String {
    if reasons.is_empty() {
        return format!("{change}: safe\n");
    }
    let line = |CheckReason { feature, why }: &CheckReason| match feature.as_str() {
        "" => format!("  {why}\n"),
        feature => format!("  {feature}: {why}\n"),
    };
    let lines: String = reasons.iter().map(line).collect();
    format!("{change}: not safe\n{lines}")
}

/// For programs.
pub(crate) fn verdict_value(change: VersionChange, reasons: &[CheckReason]) -> Value {
    let reason =
        |CheckReason { feature, why }: &CheckReason| json!({"feature": feature, "why": why});
    json!({
        "change": change.verb(),
        "to": change.to().to_string(),
        "safe": reasons.is_empty(),
        "reasons": reasons.iter().map(reason).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::turning;
    use ferrokube_features::KubernetesVersion;

    fn report() -> FeatureReport {
        FeatureReport::read(&turning())
    }

    #[test]
    fn a_list_is_aligned() {
        let text = table(&[report()]);
        let want = "NAME          STATE        DEFAULT   SOURCE        STAGE   USES      BLOCKED\n\
                    LogTracking   TurningOff   Enabled   CommandLine   Beta    1.36=on   yes\n";
        assert_eq!(text, want);
    }

    #[test]
    fn a_description_says_what_blocks_and_how_to_unblock() {
        let text = description(&report());
        for part in [
            "LogTracking: TurningOff\n",
            "  To change it   --feature-gates=LogTracking=true of apiserver",
            "  components of 1.36   on   first reported by eve",
            "Before it is Off\n",
            "  1. ClearAnnotations(a)   [###############...............] 5/10\n  2. WaitForUses\n",
            "\nBlocked: 2 objects use it: a, b\n  -> Change or delete these objects",
            "  UpgradeSafe          no    the feature is TurningOff\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn an_empty_list_is_a_sentence() {
        let resting = FeatureReport { tasks: Vec::new(), uses: Vec::new(), ..report() };
        assert_eq!(table(&[]), "there are no features\n");
        assert_eq!(uses(std::slice::from_ref(&resting)), "no component has reported a value\n");
        assert_eq!(tasks(&[resting]), "no feature is in transition\n");
    }

    #[test]
    fn progress_is_a_bar() {
        let bar = "###############...............";
        let blocked = "; blocked: 2 objects use it: a, b";
        let want = format!("LogTracking TurningOff [{bar}] 5/10 ClearAnnotations(a){blocked}");
        assert_eq!(progress(&report()), want);
        assert!(tasks(&[report()]).contains("ClearAnnotations(a)   5/10\n"));
        let waits = FeatureReport {
            progress: None,
            tasks: vec![WAIT_FOR_USES.to_owned()],
            evaluation_ends: "2026-01-02T03:04:05Z".to_owned(),
            conditions: Vec::new(),
            ..report()
        };
        let want = "LogTracking TurningOff WaitForUses until 2026-01-02T03:04:05Z";
        assert_eq!(progress(&waits), want);
        let odd = FeatureReport { progress: Some((u64::MAX, 0)), ..report() };
        assert!(progress(&odd).contains(&format!("[{}]", ".".repeat(30))));
    }

    #[test]
    fn a_verdict_names_the_features() {
        let change = VersionChange::Upgrade(KubernetesVersion::new(1, 37));
        let reason = |feature: &str| CheckReason { feature: feature.into(), why: "no".into() };
        let text = verdict(change, &[reason(""), reason("LogTracking")]);
        assert_eq!(text, "upgrade to 1.37: not safe\n  no\n  LogTracking: no\n");
        assert_eq!(verdict(change, &[]), "upgrade to 1.37: safe\n");
        assert_eq!(verdict_value(change, &[])["safe"], true);
    }
}
