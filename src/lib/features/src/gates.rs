//! The values of all gates in one component, and a record of which were read.

use crate::descriptor::{Descriptor, FeatureSetting};
use crate::gate::{Gate, GateSpec, Stage};
use crate::known;
use crate::settings::{GateSettingError, GateSettings, GateWarning};
use crate::version::{GateVersions, KubernetesVersion};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Values of all gates in one component. Cheap to clone; clones share the values and the record of
/// use.
///
/// A value rather than a global: components in one process have their own ([`Self::separate`]).
/// Values set by command line are immutable; those of central features follow the Feature API
/// ([`Self::follow`]).
#[derive(Clone, Debug)]
pub struct Gates(Arc<GateTable>);

#[derive(Debug)]
struct GateTable {
    version: KubernetesVersion,
    values: Vec<GateValue>,
    unavailable: Vec<(String, bool)>,
}

#[derive(Debug)]
struct GateValue {
    gate: &'static Gate,
    descriptor: Option<&'static Descriptor>,
    spec: &'static GateSpec,
    configured: bool,
    live: Arc<AtomicBool>,
    set: bool,
    asked: AtomicBool,
    followed: AtomicBool,
}

/// One gate of [`Gates::all`].
#[derive(Clone, Copy, Debug)]
pub struct GateState {
    /// Feature gate.
    pub gate: &'static Gate,
    /// Descriptor, if the table has one.
    pub descriptor: Option<&'static Descriptor>,
    /// Properties at this version.
    pub spec: &'static GateSpec,
    /// Current value.
    pub enabled: bool,
    /// Value by the command line, or default.
    pub configured: bool,
    /// Whether the command line set it.
    pub set: bool,
    /// Whether the value was read: an unread gate is not in use.
    pub asked: bool,
    /// Whether it is a value of the Feature API.
    pub followed: bool,
}

impl GateState {
    /// Whether components take the value from the Feature API.
    pub fn is_central(&self) -> bool {
        self.descriptor.is_some_and(|one| one.setting == FeatureSetting::Central)
    }

    /// Whether there is something to remove when it is turned off.
    pub fn stores(&self) -> bool {
        self.descriptor.is_some_and(|one| !one.tasks.is_empty())
    }
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
    /// Values at a version with settings; a version alone is compatible with the one before.
    /// Settings of unknown gates are kept as [`Self::unavailable`], with a warning.
    ///
    /// # Errors
    /// [`GateSettingError::Locked`], [`GateSettingError::Dependency`].
    pub fn new(
        version: impl Into<GateVersions>,
        settings: &GateSettings,
    ) -> Result<(Self, Vec<GateWarning>), GateSettingError> {
        Self::of_features(&known::ALL, version, settings)
    }

    /// As [`Self::new`], with a custom table.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_features(
        features: &[&'static Descriptor],
        version: impl Into<GateVersions>,
        settings: &GateSettings,
    ) -> Result<(Self, Vec<GateWarning>), GateSettingError> {
        let gates: Vec<_> = features.iter().map(|descriptor| descriptor.gate).collect();
        let (mut gates, warnings) = Self::of(&gates, version, settings)?;
        let table = Arc::get_mut(&mut gates.0).expect("not shared yet");
        for value in &mut table.values {
            value.descriptor =
                features.iter().find(|one| one.gate.name == value.gate.name).copied();
        }
        Ok((gates, warnings))
    }

    /// As [`Self::new`], with custom gates: a component outside of this repository has its
    /// own table.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of(
        gates: &[&'static Gate],
        version: impl Into<GateVersions>,
        settings: &GateSettings,
    ) -> Result<(Self, Vec<GateWarning>), GateSettingError> {
        let version = version.into();
        let known: Vec<_> =
            gates.iter().filter_map(|gate| Some((*gate, gate.at(version)?))).collect();
        let unavailable: Vec<_> = settings
            .gates()
            .filter(|(name, _)| !known.iter().any(|(gate, _)| gate.name == *name))
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let mut warnings: Vec<_> =
            unavailable.iter().map(|(name, _)| GateWarning::Unknown(name.clone())).collect();
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
            values.push(GateValue::new(gate, spec, set));
        }
        check_dependencies(&values)?;
        let table = GateTable { version: version.emulated, values, unavailable };
        Ok((Self(Arc::new(table)), warnings))
    }

    /// Value of a gate; off if it does not exist at this version.
    pub fn enabled(&self, gate: &'static Gate) -> bool {
        let Some(value) = self.find(gate.name) else { return false };
        value.asked.store(true, Ordering::Relaxed);
        value.live.load(Ordering::Relaxed)
    }

    /// The value of a gate as it changes.
    pub fn live(&self, gate: &'static Gate) -> Arc<AtomicBool> {
        let Some(value) = self.find(gate.name) else { return Arc::default() };
        value.asked.store(true, Ordering::Relaxed);
        Arc::clone(&value.live)
    }

    /// Sets a gate to its value in the Feature API. Returns whether it changes.
    pub fn follow(&self, name: &str, enabled: bool) -> bool {
        let found = self.find(name);
        found.is_some_and(|value| {
            value.followed.store(true, Ordering::Relaxed);
            value.live.swap(enabled, Ordering::Relaxed) != enabled
        })
    }

    /// Sets a gate while its value in the Feature API is unknown.
    pub fn presume(&self, name: &str, enabled: bool) {
        if let Some(value) = self.find(name) {
            value.live.store(enabled, Ordering::Relaxed);
        }
    }

    /// The same settings for another component of the process: with values and a record of its own.
    #[must_use]
    pub fn separate(&self) -> Self {
        let values = self.0.values.iter();
        let values = values.map(|value| GateValue {
            descriptor: value.descriptor,
            ..GateValue::new(value.gate, value.spec, value.set.then_some(value.configured))
        });
        Self(Arc::new(GateTable {
            version: self.0.version,
            values: values.collect(),
            unavailable: self.0.unavailable.clone(),
        }))
    }

    fn find(&self, name: &str) -> Option<&GateValue> {
        self.0.values.iter().find(|value| value.gate.name == name)
    }

    /// The version whose gates these are.
    pub fn version(&self) -> KubernetesVersion {
        self.0.version
    }

    /// All gates of this version, by name.
    pub fn all(&self) -> impl Iterator<Item = GateState> + '_ {
        self.0.values.iter().map(GateValue::state)
    }

    /// A gate of this version.
    pub fn get(&self, name: &str) -> Option<GateState> {
        self.find(name).map(GateValue::state)
    }

    /// Settings of gates that this version does not have.
    pub fn unavailable(&self) -> &[(String, bool)] {
        &self.0.unavailable
    }
}

impl GateValue {
    fn new(gate: &'static Gate, spec: &'static GateSpec, set: Option<bool>) -> Self {
        let configured = set.unwrap_or(spec.default);
        let live = Arc::new(AtomicBool::new(configured));
        let (asked, followed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (descriptor, set) = (None, set.is_some());
        Self { gate, descriptor, spec, configured, live, set, asked, followed }
    }

    fn state(&self) -> GateState {
        GateState {
            gate: self.gate,
            descriptor: self.descriptor,
            spec: self.spec,
            enabled: self.live.load(Ordering::Relaxed),
            configured: self.configured,
            set: self.set,
            asked: self.asked.load(Ordering::Relaxed),
            followed: self.followed.load(Ordering::Relaxed),
        }
    }
}

fn check_dependencies(values: &[GateValue]) -> Result<(), GateSettingError> {
    let is_on =
        |gate: &Gate| values.iter().any(|value| value.gate.name == gate.name && value.configured);
    for value in values.iter().filter(|value| value.configured) {
        let off: Vec<_> = value.gate.dependencies.iter().filter(|gate| !is_on(gate)).collect();
        if !off.is_empty() {
            return Err(GateSettingError::Dependency {
                name: value.gate.name,
                disabled: off.iter().map(|gate| gate.name).collect::<Vec<_>>().join(" "),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn spec(minor: u16, stage: Stage, default: bool, locked: bool) -> GateSpec {
        GateSpec {
            since: KubernetesVersion::new(1, minor),
            stage,
            default,
            locked,
            min_compatibility: None,
        }
    }

    static GROWING: Gate = Gate {
        name: "Growing",
        specs: &[
            spec(30, Stage::Alpha, false, false),
            spec(33, Stage::Beta, true, false),
            spec(35, Stage::Ga, true, true),
        ],
        dependencies: &[],
    };
    static LEANING: Gate = Gate {
        name: "Leaning",
        specs: &[spec(30, Stage::Alpha, false, false)],
        dependencies: &[&GROWING],
    };

    fn gates(minor: u16, settings: &str) -> Result<(Gates, Vec<GateWarning>), GateSettingError> {
        let version = KubernetesVersion::new(1, minor);
        Gates::of(&[&GROWING, &LEANING], version, &settings.parse().unwrap())
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

    /// On by default only where no older component would not understand it.
    #[test]
    fn a_default_waits_until_no_component_is_too_old() {
        static WAITING: Gate = Gate {
            name: "Waiting",
            specs: &[
                spec(34, Stage::Alpha, false, false),
                GateSpec {
                    min_compatibility: Some(KubernetesVersion::new(1, 36)),
                    ..spec(36, Stage::Beta, true, false)
                },
            ],
            dependencies: &[],
        };
        let at = |versions: GateVersions| {
            let (gates, _) = Gates::of(&[&WAITING], versions, &GateSettings::default()).unwrap();
            let state = gates.get("Waiting").unwrap();
            (gates.version(), state.spec.stage, state.enabled)
        };
        let emulated = KubernetesVersion::new(1, 36);
        assert_eq!(at(emulated.into()), (emulated, Stage::Alpha, false));
        let alone = GateVersions { emulated, compatible: emulated };
        assert_eq!(at(alone), (emulated, Stage::Beta, true));
    }

    #[test]
    fn all_alpha_and_all_beta_yield_to_the_gate_itself() {
        assert!(value(30, "AllAlpha=true"));
        assert!(!value(30, "AllBeta=true"));
        assert!(!value(30, "Growing=false,Leaning=false,AllAlpha=true"));
        assert!(!value(33, "AllBeta=false"));
        assert!(value(36, "AllBeta=false,AllAlpha=false"));
    }

    #[test]
    fn a_gate_needs_those_that_it_depends_on() {
        assert!(gates(30, "AllAlpha=true").unwrap().0.enabled(&LEANING));
        assert!(gates(33, "Leaning=true").is_ok());
        assert_eq!(
            gates(30, "Leaning=true").unwrap_err().to_string(),
            "Leaning is enabled, but depends on features that are disabled: [Growing]"
        );
    }

    #[test]
    fn d14_an_unknown_gate_is_a_warning_and_remains_known_by_its_setting() {
        let (unknown, warnings) = gates(36, "Nothing=true").unwrap();
        assert_eq!(warnings, [GateWarning::Unknown("Nothing".into())]);
        assert_eq!(unknown.unavailable(), [("Nothing".to_owned(), true)]);
        let (earlier, warnings) = gates(29, "Growing=true,AllAlpha=true").unwrap();
        assert_eq!(warnings, [GateWarning::Unknown("Growing".into())]);
        assert_eq!(earlier.unavailable(), [("Growing".to_owned(), true)]);
        assert_eq!(earlier.all().count(), 0);
    }

    #[test]
    fn f21_only_what_was_asked_counts_as_used() {
        let (gates, _) = gates(34, "").unwrap();
        let clone = gates.clone();
        assert!(!gates.all().next().unwrap().asked);
        clone.enabled(&GROWING);
        assert!(gates.all().next().unwrap().asked);
    }

    #[test]
    fn f05_a_value_follows_the_api_and_leaves_other_components_alone() {
        let (gates, _) = gates(34, "").unwrap();
        let (live, other) = (gates.live(&GROWING), gates.separate());
        assert!(gates.follow("Growing", false) && !gates.follow("Growing", false));
        assert!(!gates.enabled(&GROWING) && !live.load(Ordering::Relaxed));
        let state = gates.get("Growing").unwrap();
        assert!(state.configured && !state.enabled && !state.set);
        assert!(other.enabled(&GROWING) && !gates.follow("Nothing", true));
    }
}
