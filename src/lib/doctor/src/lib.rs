//! Read-only checks of a machine and a data directory: faults, and how to fix them.
//!
//! No content of a directory makes a check block or fail. Must never know
//! flags, the network or a kind. Start at [`Finding`].

pub mod directory;
pub mod machine;
pub mod store;

use std::fmt;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckOutcome {
    /// As it should be.
    Fine,
    /// Did not apply.
    Skipped,
    /// Works, but not forever.
    Doubtful,
    /// Does not work, or is not safe.
    Wrong,
}

impl fmt::Display for CheckOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fine => "ok",
            Self::Skipped => "-",
            Self::Doubtful => "warning",
            Self::Wrong => "FAILED",
        })
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Severity of the finding.
    pub outcome: CheckOutcome,
    /// The finding: one line without control characters.
    pub what: String,
    /// Advice; empty if none is needed.
    pub advice: String,
}

impl Finding {
    /// As it should be.
    pub fn fine(check: &'static str, what: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Fine, what, "")
    }

    /// Did not apply.
    pub fn skipped(check: &'static str, what: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Skipped, what, "")
    }

    /// Works, but not forever.
    pub fn doubtful(check: &'static str, what: impl AsRef<str>, advice: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Doubtful, what, advice)
    }

    /// Does not work, or is not safe.
    pub fn wrong(check: &'static str, what: impl AsRef<str>, advice: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Wrong, what, advice)
    }

    fn new(
        check: &'static str,
        outcome: CheckOutcome,
        what: impl AsRef<str>,
        advice: impl AsRef<str>,
    ) -> Self {
        Self { check, outcome, what: line(what.as_ref()), advice: line(advice.as_ref()) }
    }
}

/// Makes a text a single line without terminal control sequences, which file names may contain.
fn line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// On one line: `outermost: cause: cause`.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}
