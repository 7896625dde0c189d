//! Feature gates, their versions, and the values of all gates in one component.

use crate::known;
use crate::settings::{GateSettingError, GateSettings, GateWarning};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A Kubernetes minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubernetesVersion {
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
}

impl KubernetesVersion {
    /// The version that this code implements.
    pub const CURRENT: Self = Self::new(1, 36);

    /// `major.minor`.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Not of the form `major.minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the form 1.36")]
pub struct KubernetesVersionError;

impl FromStr for KubernetesVersion {
    type Err = KubernetesVersionError;

    fn from_str(text: &str) -> Result<Self, KubernetesVersionError> {
        let (major, minor) = text.split_once('.').ok_or(KubernetesVersionError)?;
        let number = |text: &str| text.parse().map_err(|_| KubernetesVersionError);
        Ok(Self::new(number(major)?, number(minor)?))
    }
}

/// Maturity of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Off by default; may be removed.
    Alpha,
    /// Feature complete.
    Beta,
    /// Stable; the gate will be removed.
    Ga,
    /// Will be removed.
    Deprecated,
}

impl Stage {
    /// As in metrics and in Kubernetes; empty for GA.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Alpha => "ALPHA",
            Self::Beta => "BETA",
            Self::Ga => "",
            Self::Deprecated => "DEPRECATED",
        }
    }
}

/// Properties of a gate from one version on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSpec {
    /// First version with these properties.
    pub since: KubernetesVersion,
    /// Maturity.
    pub stage: Stage,
    /// Value unless set.
    pub default: bool,
    /// Whether the default is the only value.
    pub locked: bool,
}

/// A gate: a name and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Unique, in upper camel case.
    pub name: &'static str,
    /// By ascending version, at least one.
    pub specs: &'static [GateSpec],
}

impl Gate {
    /// Properties at a version; `None` before the first.
    pub fn at(&self, version: KubernetesVersion) -> Option<&'static GateSpec> {
        self.specs.iter().rev().find(|spec| spec.since <= version)
    }
}

/// Values of all gates in one component; immutable. Cheap to clone; clones share the record of use.
///
/// A value rather than a global: components in one process have their own.
#[derive(Clone, Debug)]
pub struct Gates(Arc<[GateValue]>);

#[derive(Debug)]
struct GateValue {
    gate: &'static Gate,
    spec: &'static GateSpec,
    enabled: bool,
    set: bool,
    asked: AtomicBool,
}

/// One gate of [`Gates::all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateState {
    /// Feature gate.
    pub gate: &'static Gate,
    /// Properties at this version.
    pub spec: &'static GateSpec,
    /// Current value.
    pub enabled: bool,
    /// Whether the command line set it.
    pub set: bool,
    /// Whether the value was read: an unread gate is not in use.
    pub asked: bool,
}

impl Default for Gates {
    /// The defaults of the current version.
    fn default() -> Self {
        let (gates, _) = Self::new(KubernetesVersion::CURRENT, &GateSettings::default())
            .expect("defaults are valid");
        gates
    }
}

impl Gates {
    /// Values at a version with settings. Settings of unknown gates are ignored with a warning.
    ///
    /// # Errors
    /// [`GateSettingError::Locked`].
    pub fn new(
        version: KubernetesVersion,
        settings: &GateSettings,
    ) -> Result<(Self, Vec<GateWarning>), GateSettingError> {
        Self::of(&known::ALL.map(|descriptor| descriptor.gate), version, settings)
    }

    fn of(
        gates: &[&'static Gate],
        version: KubernetesVersion,
        settings: &GateSettings,
    ) -> Result<(Self, Vec<GateWarning>), GateSettingError> {
        let known: Vec<_> =
            gates.iter().filter_map(|gate| Some((*gate, gate.at(version)?))).collect();
        let mut warnings: Vec<_> = settings
            .names()
            .filter(|name| !known.iter().any(|(gate, _)| gate.name == *name))
            .map(GateWarning::Unknown)
            .collect();
        let mut values = Vec::with_capacity(known.len());
        for (gate, spec) in known {
            let set = settings.of(gate, spec);
            if let Some(value) = set {
                if spec.locked && value != spec.default {
                    return Err(GateSettingError::Locked { name: gate.name, value: spec.default });
                }
                if matches!(spec.stage, Stage::Ga | Stage::Deprecated) {
                    warnings.push(GateWarning::GoingAway(gate.name));
                }
            }
            values.push(GateValue {
                gate,
                spec,
                enabled: set.unwrap_or(spec.default),
                set: set.is_some(),
                asked: AtomicBool::new(false),
            });
        }
        Ok((Self(values.into()), warnings))
    }

    /// Value of a gate; off if it does not exist at this version. Read once per component, not per
    /// request.
    pub fn enabled(&self, gate: &'static Gate) -> bool {
        let Some(value) = self.0.iter().find(|value| value.gate.name == gate.name) else {
            return false;
        };
        value.asked.store(true, Ordering::Relaxed);
        value.enabled
    }

    /// All gates of this version, by name.
    pub fn all(&self) -> impl Iterator<Item = GateState> + '_ {
        self.0.iter().map(|value| GateState {
            gate: value.gate,
            spec: value.spec,
            enabled: value.enabled,
            set: value.set,
            asked: value.asked.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GROWING: Gate = Gate {
        name: "Growing",
        specs: &[
            GateSpec {
                since: KubernetesVersion::new(1, 30),
                stage: Stage::Alpha,
                default: false,
                locked: false,
            },
            GateSpec {
                since: KubernetesVersion::new(1, 33),
                stage: Stage::Beta,
                default: true,
                locked: false,
            },
            GateSpec {
                since: KubernetesVersion::new(1, 35),
                stage: Stage::Ga,
                default: true,
                locked: true,
            },
        ],
    };

    fn gates(minor: u16, settings: &str) -> Result<(Gates, Vec<GateWarning>), GateSettingError> {
        Gates::of(&[&GROWING], KubernetesVersion::new(1, minor), &settings.parse().unwrap())
    }

    fn value(minor: u16, settings: &str) -> bool {
        gates(minor, settings).unwrap().0.enabled(&GROWING)
    }

    #[test]
    fn a_gate_follows_its_versions() {
        assert!(!value(29, ""));
        assert!(!value(30, ""));
        assert!(value(30, "Growing=true"));
        assert!(value(34, ""));
        assert!(!value(34, "Growing=false"));
        assert!(value(36, "Growing=true"));
        assert!(matches!(
            gates(36, "Growing=false"),
            Err(GateSettingError::Locked { name: "Growing", value: true })
        ));
    }

    #[test]
    fn all_alpha_and_all_beta_yield_to_the_gate_itself() {
        assert!(value(30, "AllAlpha=true"));
        assert!(!value(30, "AllBeta=true"));
        assert!(!value(30, "Growing=false,AllAlpha=true"));
        assert!(!value(33, "AllBeta=false"));
        assert!(value(36, "AllBeta=false,AllAlpha=false"));
    }

    #[test]
    fn d14_an_unknown_gate_is_a_warning() {
        let (_, warnings) = gates(36, "Nothing=true").unwrap();
        assert_eq!(warnings, [GateWarning::Unknown("Nothing".into())]);
        let (_, warnings) = gates(29, "Growing=true").unwrap();
        assert_eq!(warnings, [GateWarning::Unknown("Growing".into())]);
    }

    #[test]
    fn f21_only_what_was_asked_counts_as_used() {
        let (gates, _) = gates(34, "").unwrap();
        let clone = gates.clone();
        assert!(!gates.all().next().unwrap().asked);
        clone.enabled(&GROWING);
        assert!(gates.all().next().unwrap().asked);
    }
}
