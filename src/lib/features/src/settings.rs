//! `--feature-gates A=true,B=false`.

use crate::gate::{Gate, GateSpec, Stage};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Settings as given; later ones win. [`Gates`](crate::Gates) checks whether the gates exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GateSettings(BTreeMap<String, bool>);

/// A setting that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateSettingError {
    /// Not `Name=true` or `Name=false`.
    #[error("{text:?} is not of the form Name=true or Name=false")]
    Malformed {
        /// Given text.
        text: String,
    },
    /// The gate's value is fixed at this version.
    #[error("feature gate {name} is locked to {value}")]
    Locked {
        /// Gate name.
        name: &'static str,
        /// The only value that can be set.
        value: bool,
    },
    /// It is on, and gates that it depends on are off.
    #[error("{name} is enabled, but depends on features that are disabled: [{disabled}]")]
    Dependency {
        /// Gate name.
        name: &'static str,
        /// Names, separated by spaces.
        disabled: String,
    },
}

/// A setting without effect, or soon to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateWarning {
    /// Unknown gate, ignored.
    Unknown(String),
    /// The gate will be removed.
    GoingAway(&'static str),
}

impl fmt::Display for GateWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unknown feature gate {name:?} is ignored"),
            Self::GoingAway(name) => {
                write!(f, "feature gate {name} will be removed in a later version")
            }
        }
    }
}

/// Names that set every alpha or beta gate.
const GROUPS: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

impl GateSettings {
    /// Adds settings that override these.
    pub fn merge(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// Settings of gates, without those of groups.
    pub(crate) fn gates(&self) -> impl Iterator<Item = (&str, bool)> {
        self.0
            .iter()
            .filter(|(name, _)| !GROUPS.iter().any(|(group, _)| group == name))
            .map(|(name, value)| (name.as_str(), *value))
    }

    /// Value for a gate, given by its name or else by its stage.
    pub(crate) fn of(&self, gate: &Gate, spec: &GateSpec) -> Option<bool> {
        let group = || {
            GROUPS
                .iter()
                .find(|(_, stage)| *stage == spec.stage)
                .and_then(|(group, _)| self.0.get(*group))
        };
        self.0.get(gate.name).or_else(group).copied()
    }
}

impl FromStr for GateSettings {
    type Err = GateSettingError;

    fn from_str(text: &str) -> Result<Self, GateSettingError> {
        let mut settings = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let malformed = || GateSettingError::Malformed { text: part.to_owned() };
            let (name, value) = part.split_once('=').ok_or_else(malformed)?;
            let value = match value.trim() {
                "true" | "True" | "TRUE" | "t" | "T" | "1" => true,
                "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
                _ => return Err(malformed()),
            };
            let name = name.trim();
            if name.is_empty() {
                return Err(malformed());
            }
            settings.insert(name.to_owned(), value);
        }
        Ok(Self(settings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_like_kube_apiservers_flag() {
        let settings: GateSettings = " A=true, B=false ,A=F,".parse().unwrap();
        assert_eq!(settings.0, BTreeMap::from([("A".into(), false), ("B".into(), false)]));
        for text in ["A", "=true", "A=yes", "A=", "A=true=false"] {
            assert!(text.parse::<GateSettings>().is_err(), "{text}");
        }
    }
}
