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
    Ok,
    /// Did not apply.
    Skipped,
    /// Works, but not forever.
    Warning,
    /// Does not work, or is not safe.
    Failed,
}

impl fmt::Display for CheckOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Skipped => "-",
            Self::Warning => "warning",
            Self::Failed => "FAILED",
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
    pub fn ok(check: &'static str, what: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Ok, what, "")
    }

    /// Did not apply.
    pub fn skipped(check: &'static str, what: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Skipped, what, "")
    }

    /// Works, but not forever.
    pub fn warning(check: &'static str, what: impl AsRef<str>, advice: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Warning, what, advice)
    }

    /// Does not work, or is not safe.
    pub fn failed(check: &'static str, what: impl AsRef<str>, advice: impl AsRef<str>) -> Self {
        Self::new(check, CheckOutcome::Failed, what, advice)
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
